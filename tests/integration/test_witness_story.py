"""docs/witness.md, word for word: its commands are run in order, in one shell, and print what it says.

On the page `…` stands for any text, and the ports are others here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from replset.cli.local_set import HTTP_OFFSET, LocalSet, free_ports

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[2] / "docs" / "witness.md"
FIRST_PORT = 27017
COMMAND_WITHIN_S = 120


def commands() -> Iterator[tuple[str, str]]:
    """(command, what it prints) of each command on the page. Lines that begin with four spaces go on with it."""
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.splitlines()
            ends = next((n for n, line in enumerate(lines) if n and not line.startswith("    ")), len(lines))
            yield "\n".join(lines[:ends]), "\n".join(lines[ends:])


class Shell:
    """Runs the page's commands in a folder of its own, with the ports of this run."""

    def __init__(self, folder: Path, first_port: int) -> None:
        self.folder = folder
        self._ports = {
            str(FIRST_PORT + offset + n): str(first_port + offset + n) for offset in (0, HTTP_OFFSET) for n in range(3)
        }
        self._functions = f'replset() {{ "{sys.executable}" -m replset.cli.main "$@"; }}\n'

    def run(self, command: str) -> str:
        """What it prints, with the page's ports."""
        here = self._replaced(command, self._ports)
        if re.match(r"\w+\(\) \{", here):
            self._functions += f"{here}\n"
            return ""
        environment = {**os.environ, "PYTHONPATH": str(PAGE.parents[1])}
        done = subprocess.run(
            ["bash", "-c", self._functions + here],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_WITHIN_S,
            check=False,
        )
        assert done.stderr == "", done.stderr
        return self._replaced(done.stdout, {there: mine for mine, there in self._ports.items()})

    def _replaced(self, text: str, names: dict[str, str]) -> str:
        return re.sub(r"\b\d{5}\b", lambda match: names.get(match[0], match[0]), text)


def pattern(text: str) -> str:
    return re.escape(text.strip()).replace("…", ".*")


def test_the_page_is_true(tmp_path: Path) -> None:
    shell = Shell(tmp_path, free_ports(3, 24_100)[0])
    wrong: list[str] = []
    seen = 0
    try:
        for command, expected in commands():
            found = shell.run(command)
            seen += 1
            if not re.fullmatch(pattern(expected), found.strip()):
                wrong.append(f"$ {command}\n{found}")
    finally:
        if (tmp_path / "demo" / "set.json").exists():
            for member in (local := LocalSet.load(tmp_path / "demo")).members:
                local.kill(member)
    assert seen == 13
    assert wrong == [], "\n".join(wrong)

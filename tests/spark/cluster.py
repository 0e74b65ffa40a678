"""A standalone cluster of Spark's on loopback: a master and workers, each a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pyspark

from spark.java import find_java, home_for_spark

SPARK_HOME = Path(pyspark.__file__).parent
START_S = 60
END_S = 20


@contextmanager
def standalone(folder: Path, *, workers: int = 2, cores: int = 1, memory: str = "512m") -> Iterator[str]:
    """The master's address. Logs and the workers' files lie in `folder`, which is where all of them run."""
    environment = clean_environment() | {
        "JAVA_HOME": str(home_for_spark(find_java(os.environ))),
        "SPARK_CONF_DIR": str(folder),
        "SPARK_DAEMON_MEMORY": "256m",
    }
    common = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with ExitStack() as stack:

        def start(name: str, arguments: list[str], told: str) -> re.Match[str]:
            command = [str(SPARK_HOME / "bin/spark-class"), f"org.apache.spark.deploy.{name}", *common, *arguments]
            return stack.enter_context(_process(command, folder, environment, told))

        address = start("master.Master", [], r"Starting Spark master at (spark://\S+)")[1]
        for number in range(workers):
            own = ["--cores", str(cores), "--memory", memory, "--work-dir", str(folder / f"worker{number}"), address]
            start("worker.Worker", own, "Successfully registered with master")
        yield address


def clean_environment() -> dict[str, str]:
    """What a fresh shell on this machine has: nothing of ours, nothing of Spark's, loopback only."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
    return kept | {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}


def bare_python(folder: Path, *, without: Collection[str] = ()) -> Path:
    """A Python, made in `folder`, with the packages of this one, but not our own, nor those of `without`."""
    venv.create(folder, symlinks=True)
    site = folder / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    packages = folder / "packages"
    packages.mkdir()
    (site / "packages.pth").write_text(f"{packages}\n")  # .pth files within it, our own too, are not followed
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if path.name.partition(".")[0] not in {"replset", "spark", "api", "rollback_tools", *without}:
            (packages / path.name).symlink_to(path)
    return folder / "bin/python"


@contextmanager
def _process(command: list[str], folder: Path, environment: Mapping[str, str], told: str) -> Iterator[re.Match[str]]:
    """Started; it has said `told` in its log. At the end it and its children are gone."""
    log = folder / f"{len(list(folder.glob('*.log')))}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield _wait_for(told, log, process)
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        finally:
            _kill_group(process.pid)
            process.wait(END_S)


def _wait_for(told: str, log: Path, process: subprocess.Popen[bytes]) -> re.Match[str]:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        found = re.search(told, log.read_text(errors="replace"))
        if found:
            return found
        assert process.poll() is None, log.read_text(errors="replace")
        time.sleep(0.1)
    raise AssertionError(f"not within {START_S} s: {told}\n{log.read_text(errors='replace')}")


def _kill_group(leader: int) -> None:
    """Executors are children of their worker and in its group."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)

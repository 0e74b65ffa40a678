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
from dataclasses import dataclass
from pathlib import Path

import pyspark

from spark.java import find_java, home_for_spark

SPARK_HOME = Path(pyspark.__file__).parent
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""For a JVM that lives for seconds: half of its work would be to compile what is not run again, a tenth to collect
garbage side by side and to check the classes of Spark's own jars.
"""
START_S = 120
END_S = 20


@contextmanager
def standalone(folder: Path, *, workers: int = 2, cores: int = 1, memory: str = "512m") -> Iterator[str]:
    """The master's address. Logs and the workers' files lie in `folder`, which is where all of them run."""
    clean = clean_environment()
    environment = clean | {
        "JAVA_HOME": str(home_for_spark(find_java(clean))),
        "SPARK_CONF_DIR": str(folder),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED,
        "SPARK_LAUNCHER_OPTS": SHORT_LIVED,
    }
    common = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with ExitStack() as stack:

        def start(name: str, *arguments: str) -> Log:
            command = [str(SPARK_HOME / "bin/spark-class"), f"org.apache.spark.deploy.{name}", *common, *arguments]
            return stack.enter_context(_process(command, folder, environment))

        master = start("master.Master").wait_for(r"Starting Spark master at (spark://\S+)")[1]
        own = ["--cores", str(cores), "--memory", memory]
        started = [
            start("worker.Worker", *own, "--work-dir", str(folder / f"worker{number}"), master)
            for number in range(workers)
        ]
        for worker in started:
            worker.wait_for("Successfully registered with master")
        yield master


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


@dataclass(frozen=True)
class Log:
    """What a process says."""

    process: subprocess.Popen[bytes]
    path: Path

    def wait_for(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            ended = self.process.poll() is not None
            text = self.path.read_text(errors="replace")
            found = re.search(pattern, text)
            if found:
                return found
            assert not ended, text
            time.sleep(0.05)
        raise AssertionError(f"not within {START_S} s: {pattern}\n{self.path.read_text(errors='replace')}")


@contextmanager
def _process(command: list[str], folder: Path, environment: Mapping[str, str]) -> Iterator[Log]:
    """Started; at the end it and its children are gone."""
    path = folder / f"{len(list(folder.glob('*.log')))}.log"
    with path.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield Log(process, path)
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        _kill_group(process.pid)
        process.wait()


def _kill_group(leader: int) -> None:
    """Executors are children of their worker and in its group."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)

"""On a real standalone cluster: a master and two workers, whose Python has the packages but not our modules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.spark.cluster import bare_python, clean_environment, standalone
from tests.spark.kit import insert, write_oplog

ROOT = Path(__file__).parents[2]
N = 2_000
DRIVER = """
import json, os, socket, sys
from pathlib import Path

from spark import shipping
from spark.jobs import scan
from spark.readers.sqlite import SqlitePlace
from spark.session import SessionError, spark_session

master, lacking, *folders = sys.argv[1:]

def where(_):
    import replset.bson, spark.jobs
    yield [replset.bson.__file__, spark.jobs.__file__], sys.executable, os.getcwd(), sys.path

def refusal(ask):
    try:
        ask()
    except shipping.WorkersError as error:
        return str(error)

java = "-XX:TieredStopAtLevel=1"
conf = {"spark.executor.memory": "512m", "spark.driver.memory": "512m"}
conf |= {"spark.executor.extraJavaOptions": java, "spark.driver.extraJavaOptions": java}
session = spark_session(master=master, conf=conf)
assert spark_session() is session
context = session.sparkContext
# A barrier's tasks run side by side, so that each executor has one.
places = context.parallelize(range(2), 2).barrier().mapPartitions(where).collect()
members = [SqlitePlace(Path(folder).name, folder + "/replset.db") for folder in folders]
rows = scan(session, members, ("ts", "hash"), rows_per_task=300).groupBy("member").count().collect()
refused = []
for python in (lacking, "/no/such/python"):
    shipping._served.clear()
    context.pythonExec = python
    refused.append(refusal(lambda: spark_session()))
print(json.dumps({"places": places, "counts": dict(map(tuple, rows)), "refused": refused, "host": os.uname().nodename}))
session.stop()
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one driver saw of the cluster."""
    folder = tmp_path_factory.mktemp("cluster")
    python = bare_python(folder / "python")
    lacking = bare_python(folder / "lacking", without=["xxhash", "adbc_driver_sqlite"])
    entries = [insert(number) for number in range(N)]
    members = [write_oplog(folder / "a", entries), write_oplog(folder / "b", entries[: N // 2])]
    environment = clean_environment() | {"PYSPARK_PYTHON": str(python), "PYTHONPATH": str(ROOT)}
    with standalone(folder) as master:
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, master, str(lacking), *map(str, members)],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "stderr": done.stderr, "python": str(python), "folder": folder}


def test_both_workers_run_the_modules_that_were_sent(told: dict[str, Any]) -> None:
    for files, python, _, path in told["places"]:
        assert files == ["./oplog-spark.zip/replset/bson/__init__.py", "./oplog-spark.zip/spark/jobs.py"]
        assert python == told["python"]
        assert str(ROOT) not in path
    folders = sorted(Path(folder).relative_to(told["folder"]).parts[0] for _, _, folder, _ in told["places"])
    assert folders == ["worker0", "worker1"]


def test_they_read_the_members(told: dict[str, Any]) -> None:
    assert told["counts"] == {"a": N, "b": N // 2}


def test_what_their_python_lacks_is_named_with_the_host(told: dict[str, Any]) -> None:
    lacking, nowhere = told["refused"]
    assert lacking == f"executor on {told['host']}: its Python has no xxhash, adbc_driver_sqlite"
    assert nowhere.startswith("the cluster cannot run our Python: executor on 127.0.0.1: ")
    assert 'Cannot run program "/no/such/python"' in nowhere
    assert "\n" not in nowhere


def test_nothing_but_the_line_about_java_is_on_stderr(told: dict[str, Any]) -> None:
    assert told["stderr"].startswith("oplog-spark: Java ")
    assert told["stderr"].count("\n") == 1


def test_nothing_of_it_is_left_running(told: dict[str, Any]) -> None:
    """Executors are started by workers; their command line names the worker's folder or the master."""
    left = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                folder = os.readlink(entry / "cwd")
            except OSError:
                continue
            if Path(folder).is_relative_to(told["folder"]):
                left.append(entry.name)
    assert left == []

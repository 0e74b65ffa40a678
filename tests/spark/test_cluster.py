"""On a real standalone cluster: a master and two workers, whose Python has the packages but not our modules."""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from spark.reports.diff.compare import difference
from spark.runners import LocalRunner
from tests.programs import run_to_end
from tests.spark.background import in_background
from tests.spark.cluster import SHORT_LIVED, bare_python, clean_environment, standalone
from tests.spark.diff_rows import all_rows
from tests.spark.planted import Tail, dense, in_files, plant

pytestmark = pytest.mark.in_turns(together="Spark's cluster")
ROOT = Path(__file__).parents[2]
DRIVER = """
import json, os, pickle, sys
from pathlib import Path

from spark import shipping
from spark.reports.diff.compare import diff
from spark.readers.sqlite import SqliteOplog
from spark.session import spark_session
from tests.spark.diff_rows import all_rows

master, lacking, java, *paths = sys.argv[1:]

def where(_):
    import replset.bson, spark.jobs
    yield [replset.bson.__file__, spark.jobs.__file__], sys.executable, os.getcwd(), sys.path

def refusal(ask):
    try:
        ask()
    except shipping.WorkersError as error:
        return str(error)

def executors(context):
    return context._jsc.sc().getExecutorIds().size()

conf = {"spark.executor.memory": "512m", "spark.driver.memory": "512m"}
conf |= {"spark.executor.extraJavaOptions": java, "spark.driver.extraJavaOptions": java}
session = spark_session(master=master, conf=conf)
assert spark_session() is session
context = session.sparkContext
# A barrier's tasks run side by side, so that each executor has one.
places = context.parallelize(range(2), 2).barrier().mapPartitions(where).collect()
members = [SqliteOplog(Path(path).parent.name, path) for path in paths]
found = {executors(context): all_rows(diff(session, members, rows_per_task=150))}
session.stop()
session = spark_session(master=master, conf=conf | {"spark.cores.max": "1"})
context = session.sparkContext
answer = all_rows(diff(session, members, rows_per_task=1000))
found[executors(context)] = answer
with open("found", "wb") as file:
    pickle.dump(found, file)
refused = []
for python in (lacking, "/no/such/python"):
    shipping._served.clear()
    context.pythonExec = python
    refused.append(refusal(lambda: spark_session()))
print(json.dumps({"places": places, "refused": refused, "host": os.uname().nodename}))
session.stop()
"""


@in_background
def cluster(folder: Path) -> dict[str, Any]:
    """What one driver saw of it."""
    python = bare_python(folder / "python")
    lacking = bare_python(folder / "lacking", without=["xxhash", "adbc_driver_sqlite"])
    made = plant(dense(0.05, 9, tail=Tail.LOSING))
    members = in_files(folder, made.members)
    environment = clean_environment() | {"PYSPARK_PYTHON": str(python), "PYTHONPATH": str(ROOT)}
    with standalone(folder) as master:
        command = [sys.executable, "-c", DRIVER, master, str(lacking), SHORT_LIVED, *(oplog.path for oplog in members)]
        done = run_to_end(command, environment=environment, cwd=folder, bare=True)
    assert done.returncode == 0, done.stderr
    found = pickle.loads((folder / "found").read_bytes())
    seen = {"diffs": found, "expected": made.expected, "alone": all_rows(difference(LocalRunner(), members))}
    return {**json.loads(done.stdout), **seen, "stderr": done.stderr, "python": str(python), "folder": folder}


def test_both_workers_run_the_modules_that_were_sent(cluster: dict[str, Any]) -> None:
    for files, python, _, path in cluster["places"]:
        assert files == ["./oplog-spark.zip/replset/bson/__init__.py", "./oplog-spark.zip/spark/jobs.py"]
        assert python == cluster["python"]
        assert str(ROOT) not in path
    folders = sorted(Path(folder).relative_to(cluster["folder"]).parts[0] for _, _, folder, _ in cluster["places"])
    assert folders == ["worker0", "worker1"]


def test_a_diff_is_the_same_with_two_workers_and_with_one(cluster: dict[str, Any]) -> None:
    diffs = cluster["diffs"]
    assert diffs == {2: cluster["alone"], 1: cluster["alone"]}
    assert diffs[1]["entries"] == cluster["expected"] != []


def test_what_their_python_lacks_is_named_with_the_host(cluster: dict[str, Any]) -> None:
    lacking, nowhere = cluster["refused"]
    assert lacking == f"executor on {cluster['host']}: its Python has no xxhash, adbc_driver_sqlite"
    assert nowhere.startswith("the cluster cannot run our Python: executor on 127.0.0.1: ")
    assert 'Cannot run program "/no/such/python"' in nowhere
    assert "\n" not in nowhere


def test_nothing_but_the_line_about_java_is_on_stderr(cluster: dict[str, Any]) -> None:
    assert cluster["stderr"].startswith("oplog-spark: Java ")
    assert cluster["stderr"].count("\n") == 1


def test_nothing_of_it_is_left_running(cluster: dict[str, Any]) -> None:
    """Executors are started by workers; their command line names the worker's folder or the master."""
    left = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                folder = os.readlink(entry / "cwd")
            except OSError:
                continue
            if Path(folder).is_relative_to(cluster["folder"]):
                left.append(entry.name)
    assert left == []

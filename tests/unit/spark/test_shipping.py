"""What travels to executors: the same bytes each time, importable alone; and what a failed job is told as."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from spark.shipping import WORKERS_NEED, main, reason_of, write_archive

DRIVER_ONLY = ("spark.__main__", "spark.cli", "spark.command_run", "spark.render.html", "spark.render.terminal")
"""What stands on the command's side."""
ALLOWED = {*WORKERS_NEED, "pyspark", "py4j", "typing_extensions", "replset", "spark"}
IMPORT_ALONE = """
import sys
from importlib import import_module, metadata

refused = {{name for name in metadata.packages_distributions() if name.isidentifier()}} - {allowed}

class Bare:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in refused:
            raise ModuleNotFoundError(f"no {{name}} in executors", name=name)

sys.meta_path = [Bare] + [finder for finder in sys.meta_path if "editable" not in finder.__module__]
sys.path.insert(0, {archive!r})
for name in {wanted}:
    assert import_module(name).__file__.startswith({archive!r}), sys.modules[name].__file__
"""


def test_the_archive_is_the_same_each_time(tmp_path: Path) -> None:
    first, second = write_archive(tmp_path / "a.zip"), write_archive(tmp_path / "b.zip")
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as archive:
        names = archive.namelist()
    assert {"spark/__init__.py", "spark/shipping.py", "replset/bson/__init__.py", "replset/ids.py"} <= set(names)
    assert names == [name for name in names if name.endswith(".py") and name.startswith(("spark/", "replset/"))]


def test_workers_import_our_modules_from_the_archive_alone(tmp_path: Path) -> None:
    """With what executors are asked to have and nothing else: no apsw, no typer, no tree beside it."""
    archive = write_archive(tmp_path / "modules.zip")
    with zipfile.ZipFile(archive) as opened:
        modules = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in opened.namelist()}
    wanted = sorted(name for name in modules if name.startswith("spark.") and not name.startswith(DRIVER_ONLY))
    assert {"spark.jobs", "spark.readers.sqlite", "spark.shipping"} <= set(wanted)
    script = IMPORT_ALONE.format(archive=str(archive), wanted=wanted, allowed=ALLOWED)
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_command_writes_an_archive_for_spark_submit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "modules.zip")]) == 0
    assert zipfile.is_zipfile(tmp_path / "modules.zip")
    assert main([]) == main(["modules.tar"]) == 2
    assert capsys.readouterr().err.startswith("usage: python -m spark.shipping FILE.zip")


def test_what_workers_need_is_installed_with_the_extra() -> None:
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    for name in WORKERS_NEED:
        assert f'"{name.replace("_", "-")}>=' in text


PYTHON_FAILED = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 4, in process
    serializer.dump_stream(out_iter, outfile)
KeyError: 7

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "jobs.py", line 5, in bad
    raise ValueError(text)
           ^^^^^^^^^^^
ValueError: no such thing
and more of it"""
JAVA_FAILED = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent \
failure: Lost task 0.3 in stage 0.0 (TID 4) (10.0.0.7 executor 1): java.io.IOException: Cannot run program "/nope"
\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(PYTHON_FAILED, "ValueError: no such thing", id="python"),
        pytest.param(JAVA_FAILED, 'executor on 10.0.0.7: java.io.IOException: Cannot run program "/nope"', id="java"),
        pytest.param("An error occurred while calling o1.x.\n: java.Bad: why\n\tat", "java.Bad: why", id="driver"),
        pytest.param("\nsimple\nlonger", "simple", id="any"),
        pytest.param(
            "Traceback (most recent call last):\n  cut", "Traceback (most recent call last):\n  cut", id="cut"
        ),
        pytest.param("", "RuntimeError", id="nothing"),
    ],
)
def test_a_failed_job_is_told_in_one_line(text: str, reason: str) -> None:
    assert reason_of(RuntimeError(text)) == reason

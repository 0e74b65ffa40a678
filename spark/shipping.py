"""Our modules travel to the executors of a cluster, which are expected to have the packages of `WORKERS_NEED`.

`python -m spark.shipping FILE.zip` writes the same modules for `spark-submit --py-files`.
"""

from __future__ import annotations

import importlib
import platform
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from replset.errors import ReplError
from replset.own_process import ROOT as FOLDER

if TYPE_CHECKING:
    from pyspark import SparkContext

ROOT = Path(FOLDER)
PACKAGES = ("replset", "spark")  # installed, spark is in replset (setup.py)
"""Whole, which is some 1.4 MB; what needs a package that executors do not have is never imported there."""
WORKERS_NEED = ("numpy", "orjson", "pyarrow", "xxhash", "adbc_driver_manager", "adbc_driver_sqlite")
ARCHIVE = "oplog-spark.zip"
_served: set[str] = set()
_CALLING = "An error occurred while calling "  # what py4j puts in a line before Java's own words


class WorkersError(ReplError):
    """The executors cannot run our Python; the text has the host and the reason."""


def ship(context: SparkContext) -> None:
    """Give the executors our modules and see that they have the rest, once an application. Raises WorkersError."""
    if context.applicationId in _served:
        return
    if ROOT.is_dir():  # else we came in an archive ourselves: --py-files brought it to the executors as well
        context.addPyFile(str(write_archive(Path(context._temp_dir) / ARCHIVE)))
    tasks = max(8, 2 * context.defaultParallelism)  # enough that each executor gets one
    try:
        found = context.parallelize(range(tasks), tasks).mapPartitions(missing_packages).collect()
    except Exception as error:
        raise WorkersError(f"the cluster cannot run our Python: {reason_of(error)}") from error
    for host, missing in sorted(set(found)):
        if missing:
            raise WorkersError(f"executor on {host}: its Python has no {missing}")
    _served.add(context.applicationId)


def write_archive(path: Path) -> Path:
    """The modules as a zip at `path`; the same bytes from the same sources."""
    with zipfile.ZipFile(path, "w") as archive:
        for package in PACKAGES:
            for source in sorted((ROOT / package).rglob("*.py")):
                entry = zipfile.ZipInfo(source.relative_to(ROOT).as_posix())
                archive.writestr(entry, source.read_bytes(), zipfile.ZIP_DEFLATED)
    return path


def missing_packages(_: object) -> Iterator[tuple[str, str]]:
    """In an executor: its host, and which packages are missing there (empty: none)."""
    missing = []
    for name in WORKERS_NEED:
        try:
            importlib.import_module(name)
        except ImportError:
            missing.append(name)
    yield platform.node(), ", ".join(missing)


def reason_of(error: Exception) -> str:
    """A failed job's reason in one line: a worker's Python exception, else Java's message and its host."""
    text = str(error)
    lines = text.rpartition("Traceback (most recent call last):\n")[2].splitlines()
    if len(lines) < len(text.splitlines()):
        return next((line for line in lines if line.strip() and not line.startswith((" ", "\t"))), text.strip())
    failed = re.search(r"\((\S+) executor \S+\): (.*)", text)
    if failed is not None:
        return f"executor on {failed[1]}: {failed[2]}"
    messages = (line.removeprefix(": ") for line in lines if line.strip() and not line.startswith(_CALLING))
    return next(messages, type(error).__name__)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not arguments[0].endswith(".zip"):
        print("usage: python -m spark.shipping FILE.zip", file=sys.stderr)
        return 2
    write_archive(Path(arguments[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

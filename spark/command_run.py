"""What every command of `oplog-spark` does around its own work: it opens members and a session and shows the result.

Errors become one line.

Nothing heavy is imported before a command runs, so that `--help` and a wrong option answer at once.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replset.errors import BadValueError, ReplError
from replset.ids import OpTime, pack_ts
from replset.long_work import scaled
from replset.text import printable

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

    from replset.long_work import LongWork
    from spark.oplog import Bounds, EntryFilter, Oplog, OplogError, Span
    from spark.render.charts import Chart
    from spark.render.content import Content
    from spark.runners import Runner, SparkRunner
    from spark.session import SparkTasks

PROGRAM = "oplog-spark"
NEEDS = ("numpy", "pyarrow", "adbc_driver_sqlite", "adbc_driver_manager", "xxhash", "pandas", "pyspark", "jinja2")
NOT_FOR_LOCAL = ("pyspark", "pandas")
JAVA_OPTIONS = "SPARK_SUBMIT_OPTS"
QUICK_JAVA = "-XX:TieredStopAtLevel=1"
"""Compiles once and quickly: half the CPU of a job of some seconds, and no loss before Java's part of a job is long."""
QUICK_ROWS = 1_000_000
QUICK_DIFF_ROWS = 25_000_000
"""Of so many entries `diff` compares the digests in this process. Java starts Python's workers, and little else."""

LOCAL_ROWS = {"diff": 20_000_000, "summary": 2_000_000, "verify": 1_000_000}
"""Up to so many entries of all members together `--engine auto` takes the local engine (docs/spark-at-scale.md)."""


class Engine(StrEnum):
    AUTO = "auto"
    SPARK = "spark"
    LOCAL = "local"


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    HTML = "html"


class NotInstalledError(ReplError):
    """The extra `spark` is missing, or a part of it."""


class JobFailedError(ReplError):
    """Spark could not do it, and the reason is no member's oplog."""


@dataclass(slots=True)
class CommandRun:
    """One command at work: its members, its session, and where its result goes. `with` ends the session.

    `context` and `session` start Spark when they are first asked for. engine: AUTO until `open` chooses.
    """

    command: str
    engine: Engine = Engine.AUTO
    master: str | None = None
    form: Format = Format.TABLE
    html: Path | None = None
    parquet: Path | None = None
    oplogs: list[Oplog] = field(default_factory=list)
    bounds: list[Bounds] = field(default_factory=list)
    _context: SparkContext | None = None
    _session: SparkSession | None = None
    _work: LongWork | None = None
    _tasks: SparkTasks | None = None

    def __enter__(self) -> None:
        if is_submitted():
            return  # spark-submit puts standard error into standard output, where the result is
        from replset.long_work import LongWork

        self._work = LongWork(PROGRAM).__enter__()

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self.end_work()
        self.close()
        if isinstance(error, Exception) and not isinstance(error, ReplError | OSError):
            raise one_line_error(error) from error

    def open(self, members: Sequence[str]) -> None:
        """Open the members and ask for their bounds: what cannot be read or written is an error before Spark starts."""
        local = self.engine is not Engine.SPARK
        check_installed([name for name in NEEDS if not (local and name in NOT_FOR_LOCAL)])
        check_target(self.html, "--html")
        check_folder(self.parquet, "--parquet")
        from spark.members import open_members

        self.begin("reading the ends of the oplogs", len(members))
        self.oplogs = open_members(members)
        self.bounds = [oplog.bounds() for oplog in self.oplogs]
        if self.engine is Engine.AUTO:
            self._choose_engine()
        self.begin(f"{self.command} of {scaled(self.rows, 'entries')}", unit="parts")

    def _choose_engine(self) -> None:
        """Take the local engine where it is faster and enough, and say so."""
        size = scaled(self.rows, "entries")
        if self.rows > LOCAL_ROWS[self.command] and not missing_of(NOT_FOR_LOCAL):
            self.engine, why = Engine.SPARK, f"{size}; --engine local does without Spark"
        else:
            self.engine, why = Engine.LOCAL, f"{size}; --engine spark or --master uses Spark"
        print(printable(f"{PROGRAM}: {self.engine.value} engine, {why}"), file=sys.stderr, flush=True)

    @property
    def needs_spark(self) -> bool:
        """Whether the user named a cluster, or wants the page of a diff, whose lag only Spark computes."""
        return self.master is not None or is_submitted() or (self.wants_page and self.command == "diff")

    @property
    def wants_page(self) -> bool:
        return self.html is not None or self.form is Format.HTML

    @property
    def rows(self) -> int:
        """How many entries the members have together."""
        return sum(bounds.rows for bounds in self.bounds)

    def begin(self, what: str, total: int = 0, unit: str = "") -> None:
        """Begin a step of the work that a person may have to wait for."""
        if self._work is not None:
            self._work.begin(what, total, unit)

    def on_part(self, done: int, total: int) -> None:
        """Note how many parts of the oplogs the local engine has read."""
        if self._work is not None:
            self._work.update(done, total)

    def end_work(self) -> None:
        """Show no progress any more: the result is printed next."""
        if self._tasks is not None:
            self._tasks.close()
            self._tasks = None
        if self._work is not None:
            self._work.close()

    @property
    def runner(self) -> Runner:
        """Where the jobs of its report run."""
        from spark.runners import LocalRunner

        return LocalRunner(self.on_part) if self.engine is Engine.LOCAL else self.spark_runner

    @property
    def spark_runner(self) -> SparkRunner:
        from spark.runners import SparkRunner

        return SparkRunner(self.context, lambda: self.session)

    @property
    def session(self) -> SparkSession:
        if self._session is None:
            _ = self.context
            from spark.session import spark_session

            self._session = spark_session()
        return self._session

    @property
    def context(self) -> SparkContext:
        if self._context is None:
            from spark.session import SparkTasks, spark_context

            self.begin("starting Spark")
            quick = self.is_short and JAVA_OPTIONS not in os.environ
            if quick:
                os.environ[JAVA_OPTIONS] = QUICK_JAVA
            try:
                self._context = spark_context(master=self.master or self._gentle_master)
            finally:
                if quick:
                    del os.environ[JAVA_OPTIONS]
            self.begin(f"{self.command} of {scaled(self.rows, 'entries')}", unit="tasks")
            if self._work is not None:
                self._tasks = SparkTasks(self._context, self._work)
        return self._context

    @property
    def _gentle_master(self) -> str | None:
        """So few tasks at once that a mongod has no more cursors than the local engine would open; None: no matter."""
        from spark.readers.wire import WireOplog
        from spark.runners import THREADS

        is_wire = any(isinstance(oplog, WireOplog) for oplog in self.oplogs)
        return f"local[{THREADS}]" if is_wire and not is_submitted() else None

    @property
    def is_short(self) -> bool:
        """Whether Java's part of the job will be over in seconds; a tail's never is."""
        only_diff = self.command == "diff" and not self.wants_page
        return self.command != "tail" and self.rows <= (QUICK_DIFF_ROWS if only_diff else QUICK_ROWS)

    def show(
        self,
        found: Mapping[str, Any],
        tables: Mapping[str, DataFrame | Any],
        content: Callable[[Mapping[str, Any]], Content],
        charts: Callable[[Mapping[str, Any]], Sequence[Chart]] = lambda document: (),
        only_on_page: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """Write a result everywhere it is wanted. tables: all its rows by name, for Parquet.

        content, charts: how its document is put into words and drawn.
        """
        from spark.render.report_documents import header

        head = header(self.command, self.engine.value, zip(self.oplogs, self.bounds, strict=True))
        document = {**head, **found}
        self.write_tables(tables)
        if self.form is Format.HTML or self.html is not None:
            from spark.render.html import page

            whole = {**document, **only_on_page()}
            text = page(whole, content(whole), charts(whole))
            self.end_work()
            if self.html is not None:
                self.html.write_text(text, encoding="utf-8")
            if self.form is Format.HTML:
                sys.stdout.write(text)
        self.end_work()
        if self.form is Format.JSON:
            from replset.terminal import echo_json

            echo_json(document)
        elif self.form is Format.TABLE:
            from spark.render.terminal import print_content

            print_content(content(document))

    def write_tables(self, tables: Mapping[str, Any]) -> None:
        """With --parquet one folder for each table: `NAME/part-*.parquet`, as Spark writes and anybody reads."""
        if self.parquet is None:
            return
        for name, rows in tables.items():
            target = self.parquet / name
            if self._context is not None and not hasattr(rows, "write"):
                rows = self.session.createDataFrame(rows)
            if hasattr(rows, "write"):
                rows.write.parquet(str(target))
            else:
                import pyarrow.parquet as pq

                target.mkdir(parents=True)
                pq.write_table(rows, target / "part-00000.parquet", compression="zstd")

    def close(self) -> None:
        started = self._session or self._context
        if started is not None:
            started.stop()


def is_submitted() -> bool:
    """Whether spark-submit started this process."""
    from spark.session import GATEWAY

    return GATEWAY in os.environ


def one_line_error(error: Exception) -> ReplError:
    """Return an error of Spark's or Arrow's as one with a one-line message; raise anything unknown as it is."""
    from spark.jobs import oplog_error

    found = oplog_error(error)
    if found is not None:
        return _missing_on_worker(found)
    module = type(error).__module__.partition(".")[0]
    if module not in {"pyspark", "py4j", "pyarrow"}:
        raise error
    return JobFailedError(first_line(error))


def _missing_on_worker(error: OplogError) -> OplogError:
    """Explain a file that a worker misses and this process sees: it is on another machine or in no shared folder."""
    path = error.reason.removesuffix(" does not exist")
    if path == error.reason or not os.path.exists(path):
        return error
    return type(error)(
        error.name, f"{path} does not exist where a worker runs, only here: every worker must see the file at this path"
    )


def first_line(error: Exception) -> str:
    """Return the first line with text of a long error of Spark's; of a fault in a worker the line that says which."""
    java = getattr(error, "java_exception", None)
    text = str(java.getMessage() or java.toString()) if java is not None else str(error)
    _, is_of_worker, trace = text.rpartition("Traceback (most recent call last):")
    if is_of_worker:
        text = next((line for line in trace.splitlines() if line.strip() and line[0] != " "), text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def check_installed(modules: Sequence[str]) -> None:
    missing = missing_of(modules)
    if missing:
        raise NotInstalledError(not_installed(missing))


def missing_of(modules: Sequence[str]) -> list[str]:
    return [name for name in modules if importlib.util.find_spec(name) is None]


def not_installed(modules: Sequence[str]) -> str:
    return f'no {", ".join(modules)} here: pip install ".[spark]" in the clone of replset'


def check_target(file: Path | None, option: str) -> None:
    """Raise BadValueError where no such file can be written."""
    if file is None:
        return
    if file.is_dir():
        raise BadValueError(f"{option}: {file} is a folder")
    if not file.parent.is_dir():
        raise BadValueError(f"{option}: there is no folder {file.parent}")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise BadValueError(f"{option}: {file} cannot be written")


def check_folder(folder: Path | None, option: str) -> None:
    """Raise BadValueError unless it is empty or can be made: new tables are never mixed with older ones."""
    if folder is None:
        return
    if folder.is_dir():
        if any(folder.iterdir()):
            raise BadValueError(f"{option}: {folder} is there already, and not empty")
        return
    if folder.exists():
        raise BadValueError(f"{option}: {folder} is a file")
    above = next(parent for parent in folder.absolute().parents if parent.exists())
    if not (above.is_dir() and os.access(above, os.W_OK)):
        raise BadValueError(f"{option}: {folder} cannot be made")


def point_of(text: str, option: str, *, end: bool = False) -> int:
    """The ts of TERM:SECONDS:INC, or of a wall clock such as 2026-10-03T12:00:00Z; BadValueError otherwise.

    end: the first ts behind it: an optime is itself part of a range that it ends, a wall clock is not.
    """
    from datetime import UTC, datetime

    try:
        return OpTime.parse(text).ts + end
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadValueError(
            f"{option}: {text!r} is neither TERM:SECONDS:INC nor a time such as 2026-10-03T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return pack_ts(max(0, int(moment.timestamp())), 0)


def span_of(begin: str | None, end: str | None) -> Span:
    from spark.oplog import EVERYTHING, Span

    first = EVERYTHING.first_ts if begin is None else point_of(begin, "--from")
    last = EVERYTHING.end_ts if end is None else point_of(end, "--to", end=True)
    if last < first:
        raise BadValueError(f"--to {end} is before --from {begin}")
    return Span(first, last)


def optime_of(text: str, option: str) -> OpTime:
    try:
        return OpTime.parse(text)
    except ValueError as error:
        raise BadValueError(f"{option}: {error}") from None


def only_of(namespaces: Sequence[str] | None) -> EntryFilter:
    from spark.oplog import EntryFilter

    return EntryFilter(ns=tuple(namespaces or ()))


def tables_of(found: Any) -> dict[str, Any]:
    """The tables that a result's fields are, by their names."""
    values = {item.name: getattr(found, item.name) for item in fields(found)}
    return {name: value for name, value in values.items() if hasattr(value, "schema")}

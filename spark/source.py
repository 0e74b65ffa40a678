"""`format("oplog")`: members' oplogs as a table of their own in Spark, read whole or as a stream.

    from spark import register
    register(session)
    session.read.format("oplog").load("/data/m1")
    session.readStream.format("oplog").option("from", "now").load("http://localhost:28017")

Columns are those of `columns.SPARK_SCHEMA`. `.schema("ts bigint, hash bigint")` or the option `columns` reads fewer,
which costs less: PySpark does not pass the columns that a query uses to its data sources. It could pass its filters
(`pushFilters`), but PySpark 4.3.0 gives one DataFrame's two branches the filters of both, so that a join of them misses
rows; ranges and namespaces are options instead. docs/spark.md describes the options.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from replset.client import HttpAnswerError, HttpClient
from replset.ejson import from_ejson_value
from replset.errors import BadValueError, ErrorCode, HostUnreachableError
from replset.ids import OpTime
from replset.optime import parse_optime
from replset.query.change_tokens import Token, behind
from replset.text import printable
from spark.columns import MEMBER, SPARK_SCHEMA, SPARK_TYPES, arrow_schema, repeated
from spark.command_run import point_of
from spark.jobs import ROWS_PER_TASK, Task, freeze_modules, plan, read_remaining
from spark.members import open_members
from spark.oplog import (
    ALL,
    EVERYTHING,
    EntryFilter,
    GrowingOplog,
    Oplog,
    OplogError,
    OplogRolledBackError,
    OplogTrimmedError,
    ReadPosition,
    Span,
    ts_text,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

TEMPORARY = 500
"""From this HTTP status on an acknowledgement may be tried again; the one of the next batch does."""


class ConsumerPlace:
    """Talks to one member, which forwards what only the primary answers. reader: a stream of the same name goes on."""

    def __init__(self, url: str, name: str, reader: str) -> None:
        self._client = HttpClient(url)
        self._name, self._reader = name, reader
        self._path = f"/v1/consumers/{quote(name, safe='')}"
        self._generation = 0

    def begin(self) -> OpTime:
        """Become the consumer's reader; the entry behind which the stream begins."""
        found = self._client.post(f"{self._path}/read", {"reader": self._reader, "maxEvents": 1})
        if "deliveries" in found:
            raise BadValueError(f"consumer {self._name} is shared: a stream needs an exclusive or a failover one")
        if not found["active"]:
            raise BadValueError(f"{found['holder']!r} reads consumer {self._name}")
        self._generation = int(found["generation"])
        return Token.parse(found["position"]).read_after

    def committed(self) -> OpTime:
        """The newest entry that no rollback takes back."""
        status = self._client.get("/v1/replset/status")
        return parse_optime(from_ejson_value(status["optimes"]["lastCommittedOpTime"]))

    def acknowledge(self, through: OpTime) -> None:
        """Move the consumer on. A member that cannot now is no error: the next batch's acknowledgement covers it."""
        try:
            self._acknowledge(through)
        except (HttpAnswerError, HostUnreachableError) as error:
            if isinstance(error, HttpAnswerError) and error.status < TEMPORARY:
                raise
            print(printable(f"oplog-spark: consumer {self._name} is moved on later: {error.message}"), file=sys.stderr)

    def _acknowledge(self, through: OpTime) -> None:
        token = str(behind(through))
        for attempt in range(2):
            if not self._generation:
                self.begin()
            try:
                self._client.post(f"{self._path}/ack", {"generation": self._generation, "token": token})
                return
            except HttpAnswerError as error:
                if error.code != ErrorCode.CONSUMER_MOVED or attempt:
                    raise
                self._generation = 0  # its position was set, or its reader had changed: the checkpoint goes on


NAME = "oplog"
MAX_ENTRIES = 100_000
"""Of each member in one batch of a stream, unless `maxEntriesPerBatch` is given."""
NOW = "now"


def register(session: SparkSession) -> None:
    """Make `format("oplog")` known to the session."""
    session.dataSource.register(OplogSource)


class OplogSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        options = Options.parse(self.options)
        return ", ".join(f"{name} {SPARK_TYPES[name]}" for name in options.columns)

    def reader(self, schema: StructType) -> OplogReader:
        return OplogReader(Options.parse(self.options), columns_of(schema))

    def streamReader(self, schema: StructType) -> OplogStreamReader:
        return OplogStreamReader(Options.parse(self.options), columns_of(schema))


@dataclass(frozen=True, slots=True)
class Options:
    """The values of `.option(...)`. texts: the members. begin: `from` as it was given."""

    texts: tuple[str, ...]
    members: tuple[str, ...] = ()
    only: EntryFilter = ALL
    span: Span = EVERYTHING
    from_now: bool = False
    columns: tuple[str, ...] = tuple(SPARK_TYPES)
    rows_per_task: int = ROWS_PER_TASK
    max_entries: int = MAX_ENTRIES
    skip_trimmed: bool = False
    consumer: str = ""
    reader: str = ""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """Names are taken whatever their case. BadValueError names the option that cannot be."""
        options = {name.lower(): value for name, value in given.items()}
        unknown = sorted(set(options) - {name.lower() for name in _OPTIONS})
        if unknown:
            raise BadValueError(f"format oplog has no option {unknown[0]}; it has {', '.join(_OPTIONS)}")
        texts = (*_list(options, "paths"), *([options["path"]] if "path" in options else []))
        if not texts:
            raise BadValueError(
                'say what to read: load("DBPATH"), or option("paths", \'["DBPATH", "http://HOST:PORT"]\')'
            )
        begin, end = options.get("from"), options.get("to")
        now = begin == NOW
        first = EVERYTHING.first_ts if begin is None or now else point_of(begin, "option from")
        last = EVERYTHING.end_ts if end is None else point_of(end, "option to", end=True)
        return cls(
            texts,
            _list(options, "member"),
            EntryFilter(_list(options, "ns"), _list(options, "op")),
            Span(first, last),
            now,
            _columns(_list(options, "columns")) or tuple(SPARK_TYPES),
            _number(options, "rowsPerTask", ROWS_PER_TASK),
            _number(options, "maxEntriesPerBatch", MAX_ENTRIES),
            _choice(options, "onTrimmed", "fail", "skip") == "skip",
            options.get("consumer", ""),
            options.get("reader", ""),
        )

    def oplogs(self) -> list[Oplog]:
        """The members, or those of `member`. OplogError."""
        found = open_members(self.texts)
        missing = set(self.members) - {oplog.name for oplog in found}
        if missing:
            names = ", ".join(oplog.name for oplog in found)
            raise OplogError(min(missing), f"there is no such member; there are {names}")
        return [oplog for oplog in found if not self.members or oplog.name in self.members]


_OPTIONS = (
    "path",
    "paths",
    "member",
    "ns",
    "op",
    "from",
    "to",
    "columns",
    "rowsPerTask",
    "maxEntriesPerBatch",
    "onTrimmed",
    "consumer",
    "reader",
)


@dataclass
class Part(InputPartition):
    """Number of the task in the reader's plan."""

    number: int


class OplogReader(DataSourceReader):
    """Planned when it is made: each query sees the members as they are when it begins."""

    def __init__(self, options: Options, columns: Sequence[str]) -> None:
        self._reading = _TaskReader(tuple(columns), options.only, options.skip_trimmed)
        self._tasks: list[Task] = plan(options.oplogs(), options.span, options.rows_per_task)

    def partitions(self) -> list[Part]:
        return [Part(number) for number in range(len(self._tasks))]

    def read(self, partition: Part | InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Part):  # PySpark makes a partition of its own where there is none
            yield from self._reading.read(*self._tasks[partition.number])


@dataclass
class StreamPart(InputPartition):
    oplog: Oplog
    span: Span


class OplogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An offset names for each member the entry up to which it was read: {name: {"optime", "chain", "skipped"?}}.

    The chain (as text; None before the first entry) shows whether the member still has the history that was read. A
    batch ends for each member at an entry that was there when it was planned; its tasks see to it that it still is.
    A member that comes in at a restart begins as all did, one that is left out is forgotten; both at once may be but
    another name, and then its entries would come twice.

    With a consumer only committed entries are read. No rollback takes them back, and their chains are not kept.
    """

    def __init__(self, options: Options, columns: Sequence[str]) -> None:
        self._options = options
        self._consumer = _consumer_of(options)
        self._reading = _TaskReader(tuple(columns), options.only, options.skip_trimmed)
        self._places = {oplog.name: _followed(oplog) for oplog in options.oplogs()}
        self._last: dict[str, ReadPosition] = {}

    def initialOffset(self) -> dict[str, Any]:
        return {name: _shown(self._begin(oplog)) for name, oplog in self._places.items()}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_entries)

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = {name: _newest(oplog) for name, oplog in self._places.items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        entries = limit.max_rows if isinstance(limit, ReadMaxRows) else sys.maxsize >> 1
        new, left_out = sorted(self._places.keys() - start), sorted(start.keys() - self._places.keys())
        if new and left_out:
            reason = f"the stream does not know this member, it knows {', '.join(sorted(start))}"
            raise OplogError(
                new[0], f"{reason}; give it the name that it had with NAME=MEMBER, or leave out or add first"
            )
        found = {}
        for name, oplog in self._places.items():
            found[name] = self._ahead(oplog, start.get(name) or _shown(self._begin(oplog)), entries)
        return found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[StreamPart]:
        parts = []
        for name, oplog in self._places.items():
            if name not in end:  # it came in at a restart, before a batch that was planned without it
                continue
            reached = _mark(end[name])
            after = _mark(start[name]) if name in start else self._begin(oplog)
            if reached.optime.ts > after.optime.ts:
                within = oplog.between(after, reached)
                count = -(-within.count(EVERYTHING) // self._options.rows_per_task)
                wanted = Span(0, self._options.span.end_ts)
                parts += [StreamPart(within, span) for span in within.split(wanted, count)]
        return parts

    def read(self, partition: StreamPart | InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StreamPart)
        try:
            yield from self._reading.read(partition.oplog, partition.span)
        except OplogRolledBackError as error:
            raise _with_advice(error) from error

    def commit(self, end: dict[str, Any]) -> None:
        """Called when a batch is done and noted in the checkpoint."""
        if self._consumer is not None:
            for place in end.values():
                self._consumer.acknowledge(_mark(place).optime)

    def _begin(self, oplog: GrowingOplog) -> ReadPosition:
        if self._consumer is not None:
            return ReadPosition(self._consumer.begin(), None)
        if self._options.from_now:
            return _newest(oplog)
        before = max(self._options.span.first_ts, oplog.bounds().oldest.ts) - 1
        return ReadPosition(OpTime(0, max(0, before)), None)

    def _ahead(self, oplog: GrowingOplog, start: dict[str, Any], entries: int) -> dict[str, Any]:
        after, skipped = _mark(start), start.get("skipped")
        while True:
            try:
                reached = oplog.follow(after, entries)
                break
            except OplogTrimmedError as error:
                if not self._options.skip_trimmed:
                    raise
                gone = Span(after.optime.ts + 1, error.through + 1)
                _report_skipped(oplog.name, gone)
                skipped = _with_skipped(skipped, gone)
                after = ReadPosition(OpTime(0, error.through), None)
            except OplogRolledBackError as error:
                raise _with_advice(error) from error
        if self._consumer is not None:
            reached = self._committed(after.optime, reached.optime)
        last = self._last.get(oplog.name)
        if last is not None and reached.optime.ts > last.optime.ts:
            reached = last
        return _shown(reached) | ({"skipped": skipped} if skipped else {})

    def _committed(self, after: OpTime, reached: OpTime) -> ReadPosition:
        """The newest entry behind `after` that is committed, up to `reached`."""
        assert self._consumer is not None
        committed = self._consumer.committed()
        return ReadPosition(max(after, min(reached, committed, key=_ts), key=_ts), None)


def _ts(optime: OpTime) -> int:
    return optime.ts


@dataclass(frozen=True, slots=True)
class _TaskReader:
    """How a worker reads: in which columns, `member` among them or not, and whether entries may be gone."""

    columns: tuple[str, ...]
    only: EntryFilter
    skip_trimmed: bool

    def read(self, oplog: Oplog, span: Span) -> Iterator[pa.RecordBatch]:
        freeze_modules()
        stored = [name for name in self.columns if name != MEMBER] or ["ts"]
        schema = arrow_schema(self.columns)
        batches = oplog.read(span, stored, self.only)
        if self.skip_trimmed:
            batches = read_remaining(oplog, span, stored, self.only, lambda gone: _report_skipped(oplog.name, gone))
        for batch in batches:
            arrays = [
                repeated(oplog.name, batch.num_rows) if name == MEMBER else batch.column(name) for name in self.columns
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def columns_of(schema: StructType) -> tuple[str, ...]:
    """Those of a schema that somebody gave, which may be fewer and in another order, but not other ones."""
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if SPARK_TYPES.get(field.name) != kind:
            raise BadValueError(f"format oplog has no column {field.name} {kind}; it has {SPARK_SCHEMA}")
    return tuple(schema.fieldNames())


def _columns(names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if name not in SPARK_TYPES:
            raise BadValueError(f"option columns: there is no column {name}; there are {SPARK_SCHEMA}")
    return tuple(dict.fromkeys(names))


def _list(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    """A JSON array of texts, or texts with commas between them."""
    given = options.get(name, "").strip()
    if not given.startswith("["):
        return tuple(part.strip() for part in given.split(",") if part.strip())
    try:
        values = json.loads(given)
    except ValueError as error:
        raise BadValueError(f"option {name}: {given} is no JSON array: {error}") from None
    if not all(isinstance(value, str) for value in values):
        raise BadValueError(f"option {name}: {given} is no array of texts")
    return tuple(values)


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    given = options.get(name.lower())
    if given is None:
        return default
    if not (given.isascii() and given.isdigit() and int(given) > 0):
        raise BadValueError(f"option {name}: {given!r} is no number of rows")
    return int(given)


def _choice(options: Mapping[str, str], name: str, *choices: str) -> str:
    given = options.get(name.lower(), choices[0])
    if given not in choices:
        raise BadValueError(f"option {name}: {given!r} is not {' or '.join(choices)}")
    return given


def _followed(oplog: Oplog) -> GrowingOplog:
    if isinstance(oplog, GrowingOplog):
        return oplog
    raise OplogError(oplog.name, "it does not grow; read it with spark.read, not readStream")


def _consumer_of(options: Options) -> ConsumerPlace | None:
    """The place of a stream with the option `consumer`, which reads one live member."""
    if not options.consumer:
        return None
    member = options.texts[0]
    url = member if member.startswith("http") else member.partition("=")[2]
    if len(options.texts) != 1 or not url.startswith(("http://", "https://")):
        raise BadValueError("option consumer is for one member, by its address: http://HOST:PORT")
    return ConsumerPlace(url, options.consumer, options.reader or f"spark-{options.consumer}")


def _newest(oplog: Oplog) -> ReadPosition:
    bounds = oplog.bounds()
    return ReadPosition(bounds.newest, bounds.chain)


def _shown(mark: ReadPosition) -> dict[str, Any]:
    """As an offset has it. The chain as text: not everything that reads JSON has 64 bits."""
    chain = {} if mark.chain is None else {"chain": str(mark.chain)}
    return {"optime": str(mark.optime)} | chain


def _mark(offset: Mapping[str, Any]) -> ReadPosition:
    chain = offset.get("chain")
    return ReadPosition(OpTime.parse(offset["optime"]), None if chain is None else int(chain))


def _with_skipped(skipped: Mapping[str, Any] | None, gone: Span) -> dict[str, Any]:
    """An offset's count of entries that were trimmed away unread: how often, how long a time, the last gap."""
    before = skipped or {"times": 0, "seconds": 0}
    first, through = OpTime(0, gone.first_ts), OpTime(0, gone.end_ts - 1)
    return {
        "times": before["times"] + 1,
        "seconds": before["seconds"] + through.seconds - first.seconds,
        "lastFrom": str(first),
        "lastThrough": str(through),
    }


def _with_advice(error: OplogRolledBackError) -> OplogRolledBackError:
    advice = "what the stream gave out of it is no more; begin again with a new checkpointLocation, and `from` set to"
    return OplogRolledBackError(error.name, f"{error.reason}; {advice} the entry behind the common point")


def _report_skipped(name: str, gone: Span) -> None:
    """On the worker's standard error, which Spark keeps with its logs."""
    through = gone.end_ts - 1
    text = f"{ts_text(gone.first_ts)} to {ts_text(through)} ({(through >> 31) - (gone.first_ts >> 31)} s)"
    print(
        printable(f"oplog-spark: {name}: skipped, since they were trimmed away: entries from {text}"), file=sys.stderr
    )

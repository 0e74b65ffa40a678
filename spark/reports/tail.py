"""Entries counted by second while they come, through structured streaming: by second, member, kind and namespace.

A second is one of the optime (ts), not of a wall clock: a member's entries come in that order, so its second is full
as soon as an entry of a later one has come, or nothing for a while. No watermark then: one for all members would drop
the entries of a member that is behind. The workers count each batch; the driver keeps the open seconds, and with a
checkpoint saves them with the number of the batch they hold, so that a restarted tail counts each entry once. (Only
a kill between showing a second and saving that shows it twice.)
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from replset.text import printable
from spark.columns import MEMBER, batch_from, ddl_of, schema_of
from spark.runners import aggregated, table_of_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = (MEMBER, "ts", "op", "ns")
STATE_FILE = "seconds.json"
_POLL_S = 0.1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KEYS = [MEMBER, "second", "op", "ns"]
_COUNTS = schema_of("member second op ns entries", **dict.fromkeys((MEMBER, "op", "ns"), pa.string()))


class Count(NamedTuple):
    """So many entries of one kind and namespace in one second (since 1970, of ts) of a member's oplog."""

    member: str
    second: int
    op: str
    ns: str
    entries: int


@dataclass(frozen=True, slots=True)
class Second:
    """A full second of a member. by_op, by_ns: entries by kind and by namespace, the most first."""

    member: str
    second: int
    entries: int
    by_op: dict[str, int]
    by_ns: dict[str, int]

    @property
    def time(self) -> str:
        """YYYY-MM-DDTHH:MM:SS in UTC."""
        return (_EPOCH + timedelta(seconds=self.second)).strftime("%Y-%m-%dT%H:%M:%S")


Show = Callable[[Sequence[Second]], None]


# --- pure ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Seconds:
    """The counts of the seconds that are not full yet. batch: the newest batch counted, -1 for none."""

    batch: int = -1
    _open: dict[tuple[str, int], dict[tuple[str, str], int]] = field(default_factory=dict)
    _newest: dict[str, int] = field(default_factory=dict)

    def add(self, counts: Iterable[Count]) -> list[Second]:
        """Count a batch; the seconds that are full now, by time and member.

        Entries of a second that was shown before (a member that went back) are one more row of it.
        """
        for member, second, op, ns, entries in counts:
            found = self._open.setdefault((member, second), {})
            found[op, ns] = found.get((op, ns), 0) + entries
            self._newest[member] = max(second, self._newest.get(member, second))
        return self._take(lambda member, second: second < self._newest[member])

    def close(self) -> list[Second]:
        """The seconds that are open, which are full: nothing came for a while."""
        return self._take(lambda member, second: True)

    def _take(self, full: Callable[[str, int], bool]) -> list[Second]:
        keys = sorted((second, member) for member, second in self._open if full(member, second))
        return [second_of(member, second, self._open.pop((member, second))) for second, member in keys]

    def document(self) -> dict[str, Any]:
        """What `parse` reads."""
        counts = [[*key, *what, n] for key, found in self._open.items() for what, n in found.items()]
        return {"batch": self.batch, "newest": self._newest, "open": counts}

    @classmethod
    def parse(cls, document: dict[str, Any]) -> Seconds:
        seconds = cls(int(document["batch"]))
        seconds.add(Count(*count) for count in document["open"])
        seconds._newest.update(document["newest"])
        return seconds


def second_of(member: str, second: int, counts: dict[tuple[str, str], int]) -> Second:
    """Summed up from counts by (op, ns)."""
    by_op: dict[str, int] = {}
    by_ns: dict[str, int] = {}
    for (op, ns), entries in counts.items():
        by_op[op] = by_op.get(op, 0) + entries
        by_ns[ns] = by_ns.get(ns, 0) + entries
    return Second(member, second, sum(by_op.values()), _most_first(by_op), _most_first(by_ns))


def line_of(second: Second, *, namespaces: int = 4) -> str:
    """One line for a terminal: time, member, entries, by kind, and the busiest namespaces."""
    kinds = " ".join(f"{op} {entries}" for op, entries in second.by_op.items())
    busiest = list(second.by_ns.items())
    shown = [f"{ns or '-'} {entries}" for ns, entries in busiest[:namespaces]]
    if len(busiest) > namespaces:
        shown.append(f"{len(busiest) - namespaces} more {sum(n for _, n in busiest[namespaces:])}")
    return f"{second.time} {second.member:<16} {second.entries:>7}/s  {kinds:<28} {', '.join(shown)}"


def counted(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch of COLUMNS counted by member, second, op and ns."""
    seconds = pc.shift_right(batch.column("ts"), 31)
    table = pa.table([batch.column(MEMBER), seconds, batch.column("op"), batch.column("ns")], names=_KEYS)
    grouped = table_of_rows(aggregated(table, _KEYS, entries=("count", "ns")))
    found = grouped.combine_chunks().to_batches()
    return found[0] if found else batch_from([], _COUNTS)


def _most_first(counts: dict[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


# --- in Spark --------------------------------------------------------------------------------------------------


def tail_stream(
    stream: DataFrame,
    show: Show,
    *,
    checkpoint: str | Path | None = None,
    every_ms: int = 500,
    idle_s: float = 2.0,
    stop: threading.Event | None = None,
) -> None:
    """Show the full seconds of a streaming table with (at least) COLUMNS until `stop` is set or Ctrl-C comes.

    checkpoint: a folder to go on from; what comes next then begins where the last tail ended. A second is full too when
    nothing came for idle_s. On Ctrl-C the second that is still open is left out, or kept for the next tail. What ends
    the query is raised: OplogError in PySpark's wrapping (`jobs.oplog_error` finds it).
    """
    with tempfile.TemporaryDirectory(prefix="oplog-tail-") as temporary:
        folder = Path(checkpoint) if checkpoint is not None else Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        counting = _BatchCounter(folder / STATE_FILE, show)
        writer = stream.select(*COLUMNS).writeStream.foreachBatch(counting.batch)
        query = (
            writer.option("checkpointLocation", str(folder / "spark")).trigger(
                processingTime=f"{every_ms} milliseconds"
            )
        ).start()
        ending = stop or threading.Event()
        with _ending_on_ctrl_c(ending):  # to the end: whoever is impatient presses it twice
            try:
                while query.isActive and not ending.wait(_POLL_S):
                    counting.idle(idle_s)
                if not query.isActive and (error := query.exception()) is not None:
                    raise error
            finally:
                query.stop()
            counting.idle(1.0)


class _BatchCounter:
    """Takes the batches in Spark's thread and closes idle seconds in the caller's; never both at once."""

    def __init__(self, path: Path, show: Show) -> None:
        self._path, self._show = path, show
        self._lock = threading.Lock()
        self._seconds = Seconds.parse(json.loads(path.read_text())) if path.exists() else Seconds()
        self._moved = time.monotonic()

    def batch(self, frame: DataFrame, number: int) -> None:
        rows = frame.mapInArrow(_count_batches, ddl_of(_COUNTS)).collect()
        with self._lock:
            if number <= self._seconds.batch:
                return  # counted before the last end, which came before Spark noted it
            full = self._seconds.add(Count(*row) for row in rows)
            self._seconds.batch = number
            self._moved = time.monotonic()
            self._show_and_save(full)

    def idle(self, after_s: float) -> None:
        """Close the open seconds when nothing came for `after_s`."""
        with self._lock:
            if time.monotonic() - self._moved >= after_s and (full := self._seconds.close()):
                self._show_and_save(full)

    def _show_and_save(self, full: Sequence[Second]) -> None:
        if full:
            self._show(full)
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self._seconds.document()))
        os.replace(temporary, self._path)


def _count_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield counted(batch)


@contextmanager
def _ending_on_ctrl_c(ending: threading.Event) -> Iterator[None]:
    """Ctrl-C sets the event rather than break into the middle of something; only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        ending.set()

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# --- what the command prints -----------------------------------------------------------------------------------


class TailPrinter:
    """Prints the seconds of a tail, and ends it when nobody reads them any more."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._unread = False
        self.stop = threading.Event()

    def show(self, seconds: Sequence[Second]) -> None:
        """Called from Spark's thread, where an error would come home as Spark's."""
        try:
            for second in seconds:
                print(printable(json.dumps(second_document(second)) if self._as_json else line_of(second)))
            sys.stdout.flush()
        except BrokenPipeError:
            self._unread = True
            self.stop.set()

    def status(self) -> int:
        """130 after Ctrl-C, which is how a tail ends."""
        if self._unread:
            raise BrokenPipeError
        return 130


def second_document(second: Second) -> dict[str, Any]:
    return {
        "time": f"{second.time}Z",
        "member": second.member,
        "entries": second.entries,
        "operations": second.by_op,
        "namespaces": second.by_ns,
    }

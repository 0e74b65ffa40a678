"""Keeps the commands that run now, and what each collection was used for.

A command that is killed ends at its next await, as if its client had left, and answers 11601.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, Protocol

from replset.bson import InvalidBSONError
from replset.ids import Millis
from replset.operations.command import CommandContext
from replset.operations.flow_control import FlowControl
from replset.operations.slow_operations import SLOW_MS, TEXTS, SlowOperation, SlowOperations, SlowReason
from replset.replication.ports import Clock

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)


class Histogram:
    """Values that were observed, by the first bound that is not below them. total: their sum."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return each bound with how many values are not above it, the last one `+Inf` with all."""
        rows: list[tuple[str, float]] = []
        count = 0
        for bound, found in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            count += found
            rows.append((bound, float(count)))
        return rows


KINDS = {
    "find": "queries",
    "getMore": "getmore",
    "insert": "insert",
    "update": "update",
    "delete": "remove",
    "aggregate": "commands",
    "count": "commands",
    "distinct": "commands",
    "findAndModify": "commands",
}
"""The commands that `top` counts, by what it calls them."""
PATIENT = frozenset({"hello", "isMaster", "replSetStepDown"})
"""Commands that wait because their client asks for it."""
WRITES = frozenset({"insert", "update", "delete", "findAndModify"})
MAX_USED = 10_000
"""Collections and kinds of use that are counted; a client may name any number of collections."""
FIELDS_SHOWN = 5
SHOWN_BYTES = 4 << 10
"""A command above this size is cut in currentOp."""


class Running(Protocol):
    """A command that runs now: in a task, or as a prepared write. held_before: flow control's `held_ms` then."""

    id: int
    began: Millis
    held_before: int
    is_killed: bool

    @property
    def ctx(self) -> CommandContext: ...

    def kill(self) -> None:
        """End it, unless it is the caller's own."""
        ...


@dataclass(slots=True)
class Operation:
    """A command that runs in a task."""

    id: int
    ctx: CommandContext
    began: Millis
    task: asyncio.Task[Any]
    held_before: int
    is_killed: bool = False

    def kill(self) -> None:
        if self.task is not asyncio.current_task():
            self.is_killed = True
            self.task.cancel()


class OperationTable:
    """The running commands of clients, by their id; and count and milliseconds by (database, collection, command).

    failed: how many were answered with an error. slow: those that took long. took_ms: by command.
    write_concern_failures: by code.
    """

    def __init__(self, clock: Clock, flow_control: FlowControl) -> None:
        self._now = clock.now
        self._flow_control = flow_control
        self._ids = count(1)
        self.failed = 0
        self.slow = SlowOperations()
        self.took_ms: dict[str, int] = {}
        self.write_concern_waits = Histogram(SECONDS)
        self.write_concern_failures: Counter[int] = Counter()
        self.running: dict[int, Running] = {}
        self.used: dict[tuple[str, str, str], list[int]] = {}
        self.index_uses: Counter[tuple[bytes, str]] = Counter()
        """How many commands used an index, by the collection's UUID and the index's name."""

    def begin(self, ctx: CommandContext, task: asyncio.Task[Any]) -> Operation:
        """Note that `task` runs this command; `end` must follow."""
        operation = Operation(next(self._ids), ctx, self._now(), task, self._flow_control.held_ms)
        self.running[operation.id] = operation
        return operation

    def begin_prepared(self, write: Running) -> None:
        """Do as `begin` for a write that runs in no task; `end_prepared` must follow."""
        write.id, write.began, write.held_before = next(self._ids), self._now(), self._flow_control.held_ms
        self.running[write.id] = write

    def end_prepared(self, write: Running, use: tuple[str, str, str], index: tuple[bytes, str] | None) -> None:
        """Do as `end`. use: the database, the collection and the command. index: that it used."""
        del self.running[write.id]
        took_ms, name = self._now() - write.began, use[2]
        self.count_use(use, took_ms)
        self.took_ms[name] = self.took_ms.get(name, 0) + took_ms
        if index is not None:
            self._count_index(index)
        if took_ms >= SLOW_MS:
            self._add_slow(write, took_ms)

    def begins_anew(self, write: Running) -> None:
        """Forget a prepared write that goes the usual way, where it is counted."""
        del self.running[write.id]

    def end(self, operation: Operation) -> None:
        """Forget the command, and add what it took."""
        del self.running[operation.id]
        took_ms = self._now() - operation.began
        self.count(operation.ctx, took_ms)
        for index in operation.ctx.work.indexes:
            self._count_index(index)
        name = operation.ctx.command.name
        self.took_ms[name] = self.took_ms.get(name, 0) + took_ms
        if took_ms - operation.ctx.work.idle_ms >= SLOW_MS and name not in PATIENT:
            self._add_slow(operation, took_ms - operation.ctx.work.idle_ms)

    def _count_index(self, index: tuple[bytes, str]) -> None:
        if index in self.index_uses or len(self.index_uses) < MAX_USED:
            self.index_uses[index] += 1

    def _add_slow(self, operation: Running, took_ms: int) -> None:
        ctx, work = operation.ctx, operation.ctx.work
        held_ms = self._flow_control.held_ms - operation.held_before if ctx.command.name in WRITES else 0
        if held_ms:
            queued_ms = work.waits.pop(SlowReason.WRITE_QUEUE, 0)
            held_ms = min(held_ms, took_ms)
            work.waited(SlowReason.FLOW_CONTROL, held_ms)
            work.waited(SlowReason.WRITE_QUEUE, max(0, queued_ms - held_ms))
        reason = work.reason(took_ms)
        texts = []
        if reason is not SlowReason.FLOW_CONTROL:
            texts.append(TEXTS[reason].format(ms=work.waits.get(reason, 0), documents=work.documents))
        if held_ms:
            waits_for = ", ".join(self._flow_control.waits_for) or "nobody any more"
            texts.append(f"flow control held writers back for {held_ms} ms of it and waits for {waits_for}")
        ns = repr(f"{ctx.database}.{_collection(ctx)}")[1:-1]  # a name may have line breaks
        wall_ms, client = ctx.member.clock.wall_ms(), ctx.connection.peer
        row = SlowOperation(wall_ms, ctx.name, ns, took_ms, reason, "; ".join(texts), client, _filtered(ctx), work)
        self.slow.add(row, self._now())

    def count(self, ctx: CommandContext, took_ms: int) -> None:
        """Add one use of the collection that the command names."""
        name = ctx.command.name
        if name not in KINDS:
            return
        collection = ctx.collection or ctx.body.get_string("collection" if name == "getMore" else ctx.name)
        if collection is None:
            return
        self.count_use((ctx.request.database, collection, name), took_ms)

    def count_use(self, key: tuple[str, str, str], took_ms: int) -> None:
        """Add one use of a collection: (database, collection, command)."""
        used = self.used.get(key)
        if used is None:
            if len(self.used) >= MAX_USED:
                return
            used = self.used[key] = [0, 0]
        used[0] += 1
        used[1] += took_ms

    def kill(self, operation_id: int) -> None:
        """End a command. An unknown id, and the caller's own command, are passed over."""
        operation = self.running.get(operation_id)
        if operation is not None and not operation.is_killed:
            operation.kill()


def _collection(ctx: CommandContext) -> str:
    """The collection that a command names; `$cmd` where it names none, or is malformed."""
    field = "collection" if ctx.command.name == "getMore" else ctx.name
    try:
        name = ctx.collection or ctx.body.get_string(field)
    except InvalidBSONError:
        return "$cmd"
    return "$cmd" if name is None else name


def _filtered(ctx: CommandContext) -> tuple[str, ...]:
    """The first fields that the filter of a read names: an index on them might help."""
    try:
        if len(ctx.body.raw) > SHOWN_BYTES:
            return ()
        found = ctx.body.get("filter", ctx.body.get("query"))
        return tuple(found)[:FIELDS_SHOWN] if isinstance(found, dict) else ()
    except InvalidBSONError:
        return ()

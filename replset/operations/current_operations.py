"""Keeps the commands that run now, and what each collection was used for. Holds currentOp, killOp and top.

A command that is killed ends at its next await, as if its client had left, and answers 11601.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from replset.auth.roles import Action
from replset.bson import DateTime, Int64, InvalidBSONError, RawDocument
from replset.ids import Millis
from replset.operations import fields
from replset.operations.audit_trail import without_secrets
from replset.operations.authorization import authorize
from replset.operations.command import Command, CommandContext
from replset.operations.evaluation import read_statement, run_in_thread
from replset.operations.flow_control import FlowControl
from replset.operations.replies import LargeReply
from replset.operations.request import Reply
from replset.operations.slow_operations import SLOW_MS, TEXTS, SlowOperation, SlowOperations, SlowReason
from replset.query.match import compile_filter
from replset.replication.ports import Clock

if TYPE_CHECKING:
    from replset.operations.prepared import PreparedWrite

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
_OPS = {"find": "query", "getMore": "getmore", "insert": "insert", "update": "update", "delete": "remove"}
MAX_USED = 10_000
"""Collections and kinds of use that are counted; a client may name any number of collections."""
FIELDS_SHOWN = 5
SHOWN_BYTES = 4 << 10
"""A command above this size is cut in currentOp."""
_OPTIONS = frozenset({"$all", "$ownOps", "$truncateOps", "$db", "$clusterTime", "$readPreference", "lsid", "comment"})


@dataclass(slots=True)
class Operation:
    """A command that runs now."""

    id: int
    ctx: CommandContext
    began: Millis
    task: asyncio.Task[Any]
    held_before: int
    is_killed: bool = False

    def kill(self) -> None:
        """End it, unless it is the caller's own."""
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
        self.running: dict[int, Operation | PreparedWrite] = {}
        self.used: dict[tuple[str, str, str], list[int]] = {}
        self.index_uses: Counter[tuple[bytes, str]] = Counter()
        """How many commands used an index, by the collection's UUID and the index's name."""

    def begin(self, ctx: CommandContext, task: asyncio.Task[Any]) -> Operation:
        """Note that `task` runs this command; `end` must follow."""
        operation = Operation(next(self._ids), ctx, self._now(), task, self._flow_control.held_ms)
        self.running[operation.id] = operation
        return operation

    def begin_prepared(self, write: PreparedWrite) -> None:
        """Do as `begin` for a write that runs in no task; `end_prepared` must follow."""
        write.id, write.began, write.held_before = next(self._ids), self._now(), self._flow_control.held_ms
        self.running[write.id] = write

    def end_prepared(self, write: PreparedWrite, *, counts: bool) -> None:
        """Do as `end`. counts: False if the write goes the usual way, where it begins anew."""
        del self.running[write.id]
        if counts:
            took_ms, name = self._now() - write.began, write.target.name
            self._count(write.target.use, took_ms)
            self.took_ms[name] = self.took_ms.get(name, 0) + took_ms
            if write.index is not None:
                self._count_index(write.index)
            if took_ms >= SLOW_MS:
                self._add_slow(write, took_ms)

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

    def _add_slow(self, operation: Operation | PreparedWrite, took_ms: int) -> None:
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
        self._count((ctx.request.database, collection, name), took_ms)

    def _count(self, key: tuple[str, str, str], took_ms: int) -> None:
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


def describe(operation: Operation | PreparedWrite, now: Millis) -> dict[str, object]:
    """A row of currentOp."""
    ctx = operation.ctx
    connection, body, name = ctx.connection, ctx.body, ctx.command.name
    ran_ms = now - operation.began
    field = "collection" if name == "getMore" else ctx.name
    collection = body.get(field) if body.type_of(field) == 2 else "$cmd"
    row: dict[str, object] = {
        "type": "op",
        "host": str(ctx.member.host),
        "desc": f"conn{connection.id}",
        "connectionId": connection.id,
        "client": connection.peer,
        "appName": connection.app_name,
        "active": True,
        "currentOpTime": DateTime(ctx.member.clock.wall_ms()),
        "opid": operation.id,
        "secs_running": Int64(ran_ms // 1000),
        "microsecs_running": Int64(ran_ms * 1000),
        "op": _OPS.get(name, "command"),
        "ns": f"{ctx.database}.{collection}",
        "command": _shown(body),
        "killPending": operation.is_killed,
        "numYields": 0,
        "waitingForLock": False,
        "locks": {},
        "lockStats": {},
    }
    if connection.metadata is not None:
        row["clientMetadata"] = connection.metadata.decode()
    if body.type_of("lsid") == 3:
        row["lsid"] = body.get("lsid")
    if ctx.opened_by is not None:
        row["cursor"] = {"originatingCommand": _shown(ctx.opened_by)}
    return row


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


def _shown(command: RawDocument) -> dict[str, object]:
    """The command; if it is large or malformed, only its name."""
    try:
        if len(command.raw) <= SHOWN_BYTES:
            return without_secrets(command)
    except InvalidBSONError:
        pass
    return {str(command.first_key): 1, "$truncated": f"{len(command.raw)} bytes"}


async def current_operations(
    ctx: CommandContext, query: dict[str, object], *, only_own: bool = False
) -> list[dict[str, object]]:
    """What runs now and matches, the caller's own command included; with `$ownOps` that of this client alone."""
    now = ctx.member.clock.now()
    own = only_own or fields.boolean(ctx.body, "$ownOps", ctx.name)
    if not own:
        authorize(ctx.member, ctx.sender, Action.IN_PROGRESS, "admin", ctx.name)
    operations = [op for op in ctx.operations.running.values() if not own or is_of_caller(op, ctx)]

    def work() -> list[dict[str, object]]:
        matcher = compile_filter(query)
        rows = [describe(operation, now) for operation in operations]
        return [row for row in rows if matcher.matches(row)]

    return await run_in_thread(ctx.member, work)


def is_of_caller(operation: Operation | PreparedWrite, ctx: CommandContext) -> bool:
    """Whether the operation is of the caller's user; without logins, of the same client."""
    mine, theirs = ctx.sender, operation.ctx.sender
    if mine.login is None:
        return theirs.owner == mine.owner
    return theirs.login is not None and str(theirs.login) == str(mine.login)


async def current_op(ctx: CommandContext) -> Reply:
    """What runs now; all other fields of the command are a filter on it."""
    body = ctx.body

    def read() -> dict[str, object]:
        return {name: value for name, value in body.items() if name not in _OPTIONS and name != ctx.name}

    query = await read_statement(ctx.member, body, read)
    return LargeReply({"inprog": await current_operations(ctx, query)})


async def kill_op(ctx: CommandContext) -> Reply:
    """End the command with this opid. It is answered 11601 when it next waits."""
    if "op" not in ctx.body:
        raise fields.missing(ctx.name, "op")
    opid = fields.whole(ctx.body, "op", ctx.name)
    operation = ctx.operations.running.get(opid)
    if operation is None or not is_of_caller(operation, ctx):
        authorize(ctx.member, ctx.sender, Action.KILL_OP, "admin", ctx.name)
    ctx.operations.kill(opid)
    return {"info": "attempting to kill op"}


async def top(ctx: CommandContext) -> Reply:
    """How often, and for how long, each collection was used since the start. `time` is in microseconds."""
    collections = {coll.ns for coll in ctx.member.store.collections()}
    totals: dict[str, dict[str, dict[str, Int64]]] = {ns: _no_use() for ns in sorted(collections)}
    for (database, collection, name), (times, ran_ms) in sorted(ctx.operations.used.items()):
        uses = totals.get(f"{database}.{collection}")
        if uses is not None:
            for kind in ("total", "writeLock" if name in WRITES else "readLock", KINDS[name]):
                use = uses[kind]
                uses[kind] = {"time": Int64(use["time"] + ran_ms * 1000), "count": Int64(use["count"] + times)}
    return {"totals": {"note": "all times in microseconds", **totals}}


def _no_use() -> dict[str, dict[str, Int64]]:
    kinds = ("total", "readLock", "writeLock", "queries", "getmore", "insert", "update", "remove", "commands")
    return {kind: {"time": Int64(0), "count": Int64(0)} for kind in kinds}


COMMANDS: tuple[Command, ...] = (
    Command("currentOp", current_op, None, admin_only=True, needs=Action.LOGIN),
    Command("killOp", kill_op, frozenset({"op"}), admin_only=True, needs=Action.LOGIN),
    Command("top", top, admin_only=True, needs=Action.TOP),
)

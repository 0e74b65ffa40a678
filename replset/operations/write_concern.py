"""The write concern of a command: how it is parsed, checked and waited for, and the set's default (map A8, W6).

Whether an entry meets a write concern is decided in core/quorum.py; everything else about it is here. It holds
getDefaultRWConcern and setDefaultRWConcern too: the default is a replicated document in `config.settings`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Final, NamedTuple, TypeVar

from replset.auth.roles import Action
from replset.bson import DateTime, RawDocument, encode, encode_key
from replset.config import ReplSetConfig, TagCounts, parse_tag_counts
from replset.core.member_state import MemberState
from replset.core.quorum import IN_SYNC, MAJORITY, WriteConcern, implicit_default, unsatisfiable
from replset.core.waiting import WaitedFor
from replset.errors import (
    BadValueError,
    ErrorCode,
    FailedToParseError,
    IllegalOperationError,
    NotBuiltError,
    NotEnoughInSyncError,
    NotYetInitializedError,
    PrimarySteppedDownError,
    ReplError,
    code_name,
    cut_message,
)
from replset.ids import Millis, OpTime
from replset.operations import fields
from replset.operations.command import Command, CommandContext, Where
from replset.operations.current_operations import OperationTable
from replset.operations.fail_command import replaced_write_concern_error
from replset.operations.kernel import Kernel
from replset.operations.replies import write_times
from replset.operations.request import Reply
from replset.operations.slow_operations import SlowReason
from replset.operations.waiters import Completion, done_within
from replset.optime import optime_document
from replset.replication.write_ops import ReplicatedDocument, WriteGroup, do_create
from replset.storage.catalog import SESSIONS
from replset.storage.sessions import txn_number_of
from replset.storage.store import Store

T = TypeVar("T")
MAX_W = 50
SURVIVAL_MS: Final = Millis(2_000)
"""How long a write of a primary that has stepped down may still turn out to be committed."""
SETTINGS_NS = "config.settings"
DEFAULTS_ID = "ReadWriteConcernDefaults"
DEFAULTS = ReplicatedDocument(SETTINGS_NS, encode_key(DEFAULTS_ID))
_FIELDS = frozenset({"w", "j", "fsync", "wtimeout", "provenance"})

# --- parsing ----------------------------------------------------------------------------------------------------


LONGEST_KEPT = 256
"""Bytes of a write concern that is kept in memory for the next one like it. Over HTTP a client may send megabytes."""


def parse_write_concern(raw: bytes, default_w: Callable[[], int | str | TagCounts]) -> WriteConcern:
    """Return the write concern of a document. `default_w` gives its `w` if it has none. FailedToParseError (9)."""
    has_w, concern = _kept(raw) if len(raw) <= LONGEST_KEPT else _parse(raw)
    return concern if has_w else replace(concern, w=default_w())


def _parse(raw: bytes) -> tuple[bool, WriteConcern]:
    """Return the write concern, and whether its `w` is given."""
    document = RawDocument(raw).decode()
    for name in document:
        if name not in _FIELDS:
            raise FailedToParseError(f"unrecognized write concern field: {name}")
    w = document.get("w")
    if isinstance(w, float) and w.is_integer():
        w = int(w)
    if isinstance(w, dict):
        w = _parse_tags(w)
    if isinstance(w, bool) or not (w is None or isinstance(w, int | str | tuple)):
        raise FailedToParseError("w has to be a number, string, or object")
    if isinstance(w, int) and not 0 <= w <= MAX_W:
        raise FailedToParseError(f"w has to be a non-negative number and not greater than {MAX_W}; found: {int(w)}")
    if w == "":
        raise FailedToParseError("w must not be an empty string")
    flags: dict[str, bool | None] = {}
    for name in ("j", "fsync"):
        value = document.get(name)
        if value is not None and not isinstance(value, bool | int | float):
            raise FailedToParseError(f"{name} must be numeric or a boolean value")
        flags[name] = None if value is None else bool(value)
    if flags["j"] and flags["fsync"]:
        raise FailedToParseError("fsync and j options cannot be used together")
    wtimeout = document.get("wtimeout", 0)
    if isinstance(wtimeout, bool) or not isinstance(wtimeout, int | float):
        raise FailedToParseError("wtimeout must be a number")
    if isinstance(wtimeout, float) and not math.isfinite(wtimeout):
        raise FailedToParseError("wtimeout must be a finite number")
    wtimeout_ms = max(0, min(int(wtimeout), (1 << 31) - 1))
    j = flags["j"] or flags["fsync"]
    return w is not None, WriteConcern(MAJORITY if w is None else int(w) if isinstance(w, int) else w, j, wtimeout_ms)


def _parse_tags(counts: dict[str, object]) -> TagCounts:
    """Read `w: {tag: count}` (MongoDB 5.3)."""
    if not counts:
        raise FailedToParseError("tagged write concern requires tags")
    try:
        return parse_tag_counts(counts, "w.")
    except ReplError as error:
        raise FailedToParseError(error.message) from error


_kept = lru_cache(maxsize=256)(_parse)


def write_concern_of(ctx: CommandContext, ns: str | None = None) -> WriteConcern:
    """Return the write concern of this command, before anything of it is applied.

    ns: the collection that it writes; None: the one that it names, if it names one. Over HTTP a concern that can never
    be met is refused here; see also `refuse_few_in_sync`.
    """
    member = ctx.member
    config = member.node.config
    raw = ctx.body.get_raw("writeConcern")
    kind = ctx.body.type_of("writeConcern")
    if raw is None and kind in (None, 10):
        concern = _level_of(ctx, ns) or default_concern(member.store, config)
    elif raw is None or kind != 3:
        raise fields.wrong_type(ctx.name, "writeConcern", kind, "object")
    else:
        concern = parse_write_concern(raw, lambda: default_concern(member.store, config).w)
        if config is not None and config.settings.durability_levels and "w" not in RawDocument(raw):
            level = _level_of(ctx, ns)
            if level is not None:
                concern = replace(level, j=concern.j or level.j, wtimeout_ms=concern.wtimeout_ms)
    if ctx.request.source == "http":
        refuse_unsatisfiable(config, concern)
    if ctx.transaction is None and not ctx.command.ends_transaction:
        try:
            refuse_few_in_sync(member, concern)
        except NotEnoughInSyncError:
            if not _was_begun(ctx):
                raise
    return concern


def _was_begun(ctx: CommandContext) -> bool:
    """Whether an earlier attempt of this retryable write has written something, which the answer must not deny."""
    session = ctx.session
    if session is None or not session.is_retryable_write:
        return False
    raw = ctx.member.store.get(SESSIONS, session.key)
    return raw is not None and txn_number_of(raw) == session.txn_number


def _level_of(ctx: CommandContext, ns: str | None = None) -> WriteConcern | None:
    """Return what the durability level of the command's collection asks for; None: it has none."""
    config = ctx.member.node.config
    if config is None or not config.settings.durability_levels or ctx.transaction is not None:
        return None
    if ns is None:
        if ctx.body.type_of(ctx.name) != 2:  # no string; the operations of applyOps may be megabytes
            return None
        ns = f"{ctx.database}.{ctx.body.get(ctx.name)}"
    return ctx.member.node.concern_of_level(ns)


def refuse_few_in_sync(member: Kernel, concern: WriteConcern) -> None:
    """Refuse a write that waits for other members while fewer than settings.minInSync are in sync."""
    config = member.node.config
    if config is not None and config.settings.min_in_sync > 1 and concern.w not in (0, 1):
        refusal = member.node.in_sync_refusal()
        if refusal is not None:
            raise NotEnoughInSyncError(refusal)


def refuse_unsatisfiable(config: ReplSetConfig | None, concern: WriteConcern) -> None:
    """Raise ReplError (100, 79) if the set as configured can never meet `concern`."""
    refusal = None if config is None else unsatisfiable(config, concern)
    if refusal is not None:
        raise ReplError(refusal.reason, code=refusal.code)


# --- waiting ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WriteConcernFailure:
    """The write is applied, and its write concern is not met (map W4).

    code: 64 (wtimeout), 50 (maxTimeMS), 100, 79, 189. timed_out: wtimeout ran out. progress: how far each member was,
    as `Node.member_progress` gives it. waiting_for: the members that lack the entry.
    """

    code: int
    message: str
    timed_out: bool = False
    progress: Sequence[dict[str, object]] = ()
    waiting_for: Sequence[WaitedFor] = ()


async def wait_until_met(
    member: Kernel, optime: OpTime, concern: WriteConcern, deadline: Millis | None
) -> WriteConcernFailure | None:
    """Wait until the entry at `optime` meets `concern`; return why it is not met, None when it is.

    The wait ends with the concern's wtimeout or at `deadline` (maxTimeMS, on the member's clock), whichever is first.
    Without either it ends once it is in vain: MongoDB would wait for ever, and say nothing (map D9).
    """
    left_ms = None if deadline is None else max(0, deadline - member.clock.now())
    wtimeout_ms = concern.wtimeout_ms or None
    by_deadline = left_ms is not None and (wtimeout_ms is None or left_ms < wtimeout_ms)
    limit_ms = left_ms if by_deadline else wtimeout_ms
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    failure = begin_wait(member, optime, concern, future, endless=limit_ms is None)
    if failure is not None:
        return failure
    try:
        if await done_within(future, limit_ms):
            return None
    except PrimarySteppedDownError:
        return _stepped_down(member)
    except WaitInVainError as error:
        return _failure(member, concern, optime, error.code, error.message)
    if by_deadline:
        return _failure(member, concern, optime, ErrorCode.MAX_TIME_EXPIRED, "operation exceeded time limit")
    return _failure(member, concern, optime, ErrorCode.WRITE_CONCERN_TIMEOUT, "waiting for replication timed out")


def begin_wait(
    member: Kernel, optime: OpTime, concern: WriteConcern, waiter: Completion, *, endless: bool
) -> WriteConcernFailure | None:
    """Let `waiter` wait until the entry at `optime` meets `concern`, maybe not at all; return why it cannot begin to.

    endless: no limit ends the wait; then WaitInVainError does. PrimarySteppedDownError: this member leads no more.
    """
    endless = endless and not concern.level_of  # while a level may be lowered, no wait is in vain
    if endless and member.write_waiters.join(concern, optime, waiter):
        note_awaited(member, concern)
        return None
    node = member.node
    refusal = None if node.config is None else unsatisfiable(node.config, concern)
    if refusal is not None:
        return WriteConcernFailure(refusal.code, refusal.reason)
    # This member may have lost the primary's place since the write, and won it again. Then the entry may have been
    # rolled back, and the set may hold another one at the same timestamp. To count who has reached that timestamp would
    # acknowledge a write that is lost.
    if optime.term < node.term or node.state is not MemberState.PRIMARY:
        return _stepped_down(member)
    note_awaited(member, concern)
    vain = node.in_vain(concern) if endless else None
    # Nobody joins a wait that is in vain: who did would learn of it only at the next look at all waits.
    condition = concern if endless and vain is None else None
    is_satisfied = partial(node.is_satisfied, concern)
    member.write_waiters.add(_waiter_key(concern, endless), optime, is_satisfied, waiter, condition)
    if vain is not None and not waiter.done():
        waiter.set_exception(WaitInVainError(vain.reason, code=vain.code))
    return None


@lru_cache(maxsize=64)
def one_of(concern: WriteConcern) -> WriteConcern:
    """Return one object for all concerns that are equal: writes on many connections can `join` each other's wait."""
    return concern


def note_awaited(member: Kernel, concern: WriteConcern) -> None:
    """Note that a write waits for other members' positions, or is about to.

    Noted before its group, it goes with the page that the group makes: the others then tell their positions at once.
    """
    if not isinstance(concern.w, int) or concern.w > 1:
        member.on_awaited("durable" if concern.j or concern.w in (MAJORITY, IN_SYNC) else "applied")
        if concern.w != MAJORITY:
            member.on_awaited("members")


class WaiterKey(NamedTuple):
    """Which waiters have one condition. endless: they wait without a limit."""

    w: int | str | TagCounts
    j: bool
    endless: bool
    level_of: str


@lru_cache(maxsize=64)
def _waiter_key(concern: WriteConcern, endless: bool) -> WaiterKey:
    return WaiterKey(concern.w, bool(concern.j), endless, concern.level_of)


class WaitInVainError(ReplError):
    """A write waits for members that are down (100, or 79 if the configuration has lost the mode)."""


def end_waits_in_vain(member: Kernel) -> None:
    """End the waits without a limit that are in vain. A member calls it every second."""

    def error(key: Hashable) -> Callable[[], ReplError] | None:
        if not isinstance(key, WaiterKey) or not key.endless:
            return None
        concern, config = WriteConcern(key.w, key.j), member.node.config
        vain = (config and unsatisfiable(config, concern)) or member.node.in_vain(concern)  # a reconfig may end a mode
        return None if vain is None else lambda: WaitInVainError(vain.reason, code=vain.code)

    member.write_waiters.fail_where(error)


def _failure(member: Kernel, concern: WriteConcern, optime: OpTime, code: int, text: str) -> WriteConcernFailure:
    """Make the failure of a write that is applied: with whom it waited for, and how far each member is."""
    node = member.node
    waiting_for = node.members_waited_for(concern, optime)
    if waiting_for and code != ErrorCode.UNSATISFIABLE_WRITE_CONCERN:
        text += f"; not yet on {', '.join(f'{row.host} ({row.why})' for row in waiting_for)}"
    return WriteConcernFailure(
        code,
        text,
        timed_out=code == ErrorCode.WRITE_CONCERN_TIMEOUT,
        progress=node.member_progress(),
        waiting_for=waiting_for,
    )


def _stepped_down(member: Kernel) -> WriteConcernFailure:
    text = "the primary stepped down"
    return WriteConcernFailure(ErrorCode.PRIMARY_STEPPED_DOWN, text, progress=member.node.member_progress())


async def wait_for_write_concern(
    ctx: CommandContext, optime: OpTime, concern: WriteConcern
) -> dict[str, object] | None:
    """Wait until the entry at `optime` meets `concern`; return the reply's writeConcernError when it does not.

    Inside of a transaction only its commit waits.
    """
    if ctx.member.fail_points.active and (replaced := replaced_write_concern_error(ctx)) is not None:
        return replaced
    if (concern.w == 1 and not concern.j) or concern.w == 0 or ctx.transaction is not None:
        return None
    began = ctx.member.clock.now()
    failure = await wait_until_met(ctx.member, optime, concern, ctx.deadline)
    if failure is not None and failure.code == ErrorCode.PRIMARY_STEPPED_DOWN and concern.w == MAJORITY:
        failure = None if await survives(ctx.member, optime, concern, ctx.deadline) else failure
    waited_ms = ctx.member.clock.now() - began
    ctx.work.waited(SlowReason.WRITE_CONCERN, waited_ms)
    ctx.member[OperationTable].write_concern_waits.observe(waited_ms / 1000)
    if failure is not None:
        ctx.member[OperationTable].write_concern_failures[failure.code] += 1
    return None if failure is None else _error_document(failure, concern)


async def survives(member: Kernel, optime: OpTime, concern: WriteConcern, deadline: Millis | None) -> bool:
    """Whether the set soon turns out to have committed the entry, although this member leads no more.

    It has if the oplog here still holds the entry, and an entry at or behind it that is committed: all before a
    committed entry is (Raft, 5.3). Where another member takes over that is known in a moment. Without this look, a
    client whose driver sends the write once more, and meets a stepdown again, would be told 189.
    """
    node, store, clock = member.node, member.store, member.clock
    end = Millis(clock.now() + SURVIVAL_MS)
    if deadline is not None:
        end = min(end, deadline)
    if concern.level_of or (concern.j and node.config and not node.config.write_concern_majority_journal_default):
        return False  # the commit point says too little
    while clock.now() < end and node.state in (MemberState.PRIMARY, MemberState.SECONDARY) and not member.shutting_down:
        committed = node.commit_point
        if optime <= committed <= store.last_applied:
            return store.oplog_row_at(optime) is not None and store.oplog_row_at(committed) is not None
        await member.wait_for_change(end - clock.now())
    return False


def _error_document(failure: WriteConcernFailure, concern: WriteConcern) -> dict[str, object]:
    """Return writeConcernError as drivers read it (map W3)."""
    info: dict[str, object] = {"wtimeout": True} if failure.timed_out else {}
    info["writeConcern"] = concern.document()
    if failure.waiting_for:
        info["waitingFor"] = [{"host": str(row.host), "why": row.why} for row in failure.waiting_for]
    if failure.progress:
        info["progress"] = [
            {name: optime_document(value) if isinstance(value, OpTime) else value for name, value in row.items()}
            for row in failure.progress
        ]
    return {
        "code": failure.code,
        "codeName": code_name(failure.code),
        "errmsg": cut_message(failure.message),
        "errInfo": info,
    }


@asynccontextmanager
async def also_if_it_fails(ctx: CommandContext, concern: WriteConcern) -> AsyncIterator[None]:
    """Wait for `concern` also when the writes within fail: what the error tells of must not be rolled back either."""
    try:
        yield
    except ReplError as error:
        if ctx.member.node.writable:
            failure = await wait_for_write_concern(ctx, ctx.member.store.last_applied, concern)
            error.details.pop("writeConcernError", None)  # of another command: a group that fails has one error
            error.details |= {} if failure is None else {"writeConcernError": failure}
        raise


async def write_and_wait(ctx: CommandContext, operation: Callable[[WriteGroup], T]) -> tuple[T, dict[str, object]]:
    """Run one operation and wait for the command's write concern.

    Returns the operation's result, and the fields that the reply of a write ends with: writeConcernError and times.
    """
    concern = write_concern_of(ctx)

    def run(group: WriteGroup) -> tuple[T, OpTime, int]:
        return operation(group), group.txn.last, group.term

    async with also_if_it_fails(ctx, concern):
        result, optime, term = await ctx.write(run)
    failure = await wait_for_write_concern(ctx, optime, concern)
    reply: dict[str, object] = {} if failure is None else {"writeConcernError": failure}
    return result, reply | write_times(optime, term)


# --- the set's default -------------------------------------------------------------------------------------------


def stored_default(store: Store) -> WriteConcern | None:
    """Return the default that setDefaultRWConcern stored, None when there is none."""
    document = _stored_document(store)
    raw = None if document is None else document.get_raw("defaultWriteConcern")
    if raw is None:
        return None
    return replace(parse_write_concern(raw, lambda: MAJORITY), provenance="customDefault")


def has_stored_default(store: Store) -> bool:
    """Whether there is such a default; False while the data is being replaced."""
    try:
        return stored_default(store) is not None
    except ReplError:
        return False


def _stored_document(store: Store) -> RawDocument | None:
    raw = DEFAULTS.read(store)
    return None if raw is None else RawDocument(raw)


def default_concern(store: Store, config: ReplSetConfig | None) -> WriteConcern:
    """Return the write concern of a command that names none."""
    if config is None:
        raise NotYetInitializedError("no replset config has been received")
    return stored_default(store) or implicit_default(config)


async def store_default(ctx: CommandContext, concern: WriteConcern) -> tuple[OpTime, dict[str, object] | None]:
    """Write the default and wait until a majority holds it; return (optime, writeConcernError or None)."""

    def operation(group: WriteGroup) -> OpTime:
        if SETTINGS_NS not in group.txn.catalog.by_ns:
            do_create(group, SETTINGS_NS)  # before the optime of the document is known
        document: dict[str, object] = {
            "_id": DEFAULTS_ID,
            "defaultWriteConcern": _fields_of(concern),
            "updateOpTime": optime_document(group.next_optime()),
            "updateWallClockTime": DateTime(group.wall_ms),
        }
        DEFAULTS.put(group, encode(document))
        return group.txn.last

    optime = await ctx.member.write(operation)
    concern_of_default = WriteConcern(MAJORITY, provenance="internalWriteDefault")
    return optime, await wait_for_write_concern(ctx, optime, concern_of_default)


def _fields_of(concern: WriteConcern) -> dict[str, object]:
    document = concern.document()
    del document["provenance"]
    return document


async def get_default(ctx: CommandContext) -> Reply:
    """The default read and write concern, and whether they were set or follow from the configuration."""
    return _describe_defaults(ctx)


def _describe_defaults(ctx: CommandContext) -> dict[str, object]:
    store = ctx.member.store
    concern = default_concern(store, ctx.member.node.config)
    document = _stored_document(store)
    reply: dict[str, object] = {
        "defaultReadConcern": {"level": "local"},
        "defaultWriteConcern": _fields_of(concern),
        "defaultWriteConcernSource": "implicit" if stored_default(store) is None else "global",
        "defaultReadConcernSource": "implicit",
    }
    if document is not None:
        reply["updateOpTime"] = document.get("updateOpTime")
        reply["updateWallClockTime"] = document.get("updateWallClockTime")
    reply["localUpdateWallClockTime"] = DateTime(ctx.member.clock.wall_ms())
    return reply


def _refuse_unset() -> int:
    raise IllegalOperationError("the default write concern cannot be unset; it needs a w")


async def set_default(ctx: CommandContext) -> Reply:
    """Store the set's default write concern. Once set it can be changed, but not be unset."""
    body = ctx.body
    read = fields.document(body, "defaultReadConcern", ctx.name)
    write = fields.document(body, "defaultWriteConcern", ctx.name)
    if read is None and write is None:
        raise BadValueError("setDefaultRWConcern needs defaultReadConcern or defaultWriteConcern")
    if read is not None and read.get("level") in ("linearizable", "snapshot"):
        raise BadValueError(f"level '{read.get('level')}' is not suitable for the default read concern")
    if read is not None and read.decode() not in ({}, {"level": "local"}):
        raise NotBuiltError("defaultReadConcern other than {level: 'local'} is not built yet")
    if write is None:
        return _describe_defaults(ctx)
    concern = parse_write_concern(write.raw, _refuse_unset)
    if concern.w == 0:
        raise BadValueError("w: 0 cannot be the default write concern")
    refuse_unsatisfiable(ctx.member.node.config, concern)
    optime, failure = await store_default(ctx, concern)
    reply = _describe_defaults(ctx)
    if failure is not None:
        reply["writeConcernError"] = failure
    return reply | write_times(optime, optime.term)


COMMANDS: tuple[Command, ...] = (
    Command("getDefaultRWConcern", get_default, frozenset({"inMemory"}), admin_only=True, needs=Action.LOGIN),
    Command(
        "setDefaultRWConcern",
        set_default,
        frozenset({"defaultReadConcern", "defaultWriteConcern"}),
        where=Where.PRIMARY,
        admin_only=True,
        write_concern=True,
        needs=Action.SET_DEFAULTS,
    ),
)

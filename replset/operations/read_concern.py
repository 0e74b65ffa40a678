"""The read concern of a command: how it is parsed, when the read may begin, and at which point it reads.

A linearizable read sees the primary's newest state. It is answered only after a majority has an entry that was written
after the read, in the term in which the read began. So no other primary had begun its term at the read (map K4).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias

from replset.bson import RawDocument, Timestamp
from replset.core.member_state import MemberState
from replset.core.quorum import MAJORITY, WriteConcern
from replset.errors import (
    CatalogChangedError,
    FailedToParseError,
    InvalidOptionsError,
    LinearizableReadConcernError,
    MaxTimeMSExpiredError,
    NotPrimaryNoSecondaryOkError,
    NotPrimaryOrSecondaryError,
    NotWritablePrimaryError,
    PrimarySteppedDownError,
    ReplError,
    SnapshotTooOldError,
    TypeMismatchError,
)
from replset.ids import INCREMENT_BITS, OPTIME_NULL, Millis, OpTime, pack_ts
from replset.operations.command import CommandContext
from replset.operations.fields import unknown_field, wrong_type
from replset.operations.kernel import Kernel
from replset.operations.namespaces import namespace
from replset.operations.read_preference import read_preference_of, refuse_unsuitable_member
from replset.operations.slow_operations import SlowReason
from replset.operations.write_concern import WriteConcernFailure, wait_until_met
from replset.oplog_entry import noop_entry
from replset.optime import timestamp
from replset.replication.write_ops import WriteGroup
from replset.storage.catalog import Collection

Level: TypeAlias = Literal["local", "majority", "linearizable", "snapshot"]
_LEVELS: dict[str, Level] = {
    "local": "local",
    "available": "local",
    "majority": "majority",
    "linearizable": "linearizable",
    "snapshot": "snapshot",
}
_WITH_SNAPSHOT = frozenset({"find", "aggregate", "distinct"})
"""The commands that take level snapshot outside of a transaction."""
_PROOF = {"msg": "linearizable read"}
_NOTE = {"msg": "afterClusterTime"}
CLOCK_SLACK_S = 60
"""How far afterClusterTime may lie ahead of this member's wall clock: other members' clocks may be ahead of it."""
ASK_AFTER_MS, ASK_EVERY_MS = 100, 1_000
"""When a secondary asks the primary for an entry at the time that a read waits for, and when again."""


@dataclass(frozen=True, slots=True)
class ReadConcern:
    """after: a packed timestamp (as OpTime.ts) that the read must cover. at: of level snapshot, the one to read at."""

    level: Level = "local"
    after: int | None = None
    at: int | None = None


def check_readable(ctx: CommandContext) -> None:
    """Raises 13436 when no read is answered here, 13435 when only the primary may answer, and over HTTP 133 when the
    read preference does not choose this member.
    """
    state = ctx.member.node.state
    preference = read_preference_of(ctx)
    if state is not MemberState.PRIMARY:
        if not preference.allows_secondary and ctx.request.source != "internal":
            raise NotPrimaryNoSecondaryOkError("not primary and secondaryOk=false")
        if state is not MemberState.SECONDARY:
            raise NotPrimaryOrSecondaryError(f"node is not in primary or secondary state: {state.name}")
    if ctx.request.source == "http":
        refuse_unsuitable_member(ctx, preference)


def read_concern_of(ctx: CommandContext) -> ReadConcern:
    """Parse `readConcern`. Levels and fields that are not built are refused by their name."""
    body = ctx.body
    kind = body.type_of("readConcern")
    if kind in (None, 10):
        return _LOCAL
    if kind != 3:
        raise wrong_type(ctx.name, "readConcern", kind, "object")
    document = RawDocument(body.get_raw("readConcern") or b"").decode()
    level = document.get("level", "local")
    for name in document:
        if name not in ("level", "afterClusterTime", "atClusterTime", "provenance"):
            raise unknown_field("readConcern", name)
    if not isinstance(level, str):
        raise TypeMismatchError("readConcern.level must be a string")
    if level not in _LEVELS:
        raise FailedToParseError(
            f"readConcern.level must be local, available, majority, linearizable or snapshot, not '{level:.80}'"
        )
    after, at = (_cluster_time(ctx, document, name) for name in ("afterClusterTime", "atClusterTime"))
    if level == "linearizable" and after is not None:
        raise InvalidOptionsError("readConcern afterClusterTime does not go with level 'linearizable'")
    if level == "snapshot" and ctx.command.name not in _WITH_SNAPSHOT and not ctx.in_transaction:
        raise InvalidOptionsError(f"Command {ctx.name} does not support readConcern level 'snapshot'")
    if at is not None and level != "snapshot":
        raise InvalidOptionsError("readConcern atClusterTime needs level 'snapshot'")
    if at is not None and after is not None:
        raise InvalidOptionsError("readConcern afterClusterTime does not go with atClusterTime")
    return ReadConcern(_LEVELS[level], after if at is None else at, at)


def _cluster_time(ctx: CommandContext, document: dict[str, object], name: str) -> int | None:
    """A field that is a cluster time, packed; None when it is absent.

    InvalidOptionsError for one that no member can have reached: the read would wait for ever (map K6).
    """
    value = document.get(name)
    if value is None:
        return None
    if not isinstance(value, Timestamp):
        raise TypeMismatchError(f"readConcern.{name} must be a timestamp")
    ts = pack_ts(value.time, value.inc)
    check_reachable(ctx.member, ts, f"readConcern {name} value")
    return ts


_LOCAL = ReadConcern()
LINEARIZABLE = ReadConcern("linearizable")


def refuse_linearizable(concern: ReadConcern, ns: str) -> None:
    """Refuse level linearizable for `ns`, whose content is this member's own and not the set's."""
    if concern.level == "linearizable":
        raise InvalidOptionsError(f"readConcern level 'linearizable' is not for {ns}")


def check_reachable(member: Kernel, ts: int, name: str) -> None:
    """Refuse a cluster time that no member can have reached: the read would wait for ever (map K6).

    What members say to have is known to a primary; a secondary learns of it some seconds later.
    """
    known = newest_ts(member)
    if not member.node.writable:
        known += pack_ts(CLOCK_SLACK_S, 0)
    if ts > max(known, pack_ts(member.clock.wall_ms() // 1000 + CLOCK_SLACK_S, 0)):
        raise beyond_cluster_time(name)


def beyond_cluster_time(name: str) -> InvalidOptionsError:
    return InvalidOptionsError(f"{name} must not be greater than the current clusterTime")


def newest_ts(member: Kernel) -> int:
    """The newest timestamp of which this member knows that the set has or had an entry with it."""
    return max(member.store.last_applied.ts, member.node.newest_ts)


def may_write_at(member: Kernel, ts: int) -> bool:
    """Whether an entry may be written at this timestamp because a client asks for it.

    Else a client that may only read would move the optimes of the set ahead of the time of day, by as much as it likes.
    """
    return ts <= newest_ts(member) or ts >> INCREMENT_BITS <= member.clock.wall_ms() // 1000


async def read_point(ctx: CommandContext, concern: ReadConcern) -> OpTime | None:
    """Wait until the read may begin; return the point to read at for majority and snapshot, None (the newest state) for
    the others.

    A linearizable read begins on a primary that takes writes, once an entry of its term is committed. Raises
    MaxTimeMSExpiredError at the deadline, NotPrimaryOrSecondaryError when the member becomes unreadable meanwhile, and
    NotWritablePrimaryError for a linearizable read anywhere but on the primary.
    """
    member, node = ctx.member, ctx.member.node
    if concern.level == "local" and concern.after is None:
        return None
    began = member.clock.now()
    ask_at = Millis(began + ASK_AFTER_MS)
    is_commit_point_asked = concern.level == "local"
    while True:
        if concern.level == "linearizable" and node.state is not MemberState.PRIMARY:
            raise NotWritablePrimaryError("cannot satisfy linearizable read concern on non-primary node")
        if not node.state.is_readable:
            raise NotPrimaryOrSecondaryError(f"this member is in {node.state.name}: it serves no reads now")
        point = newest_readable(member, concern.level)
        if point is not None and (concern.after is None or point.ts >= concern.after):
            break
        left_ms = None if ctx.deadline is None else ctx.deadline - member.clock.now()
        if left_ms is not None and left_ms <= 0:
            raise MaxTimeMSExpiredError("operation exceeded time limit while waiting for the read concern")
        if not is_commit_point_asked:
            is_commit_point_asked = True
            member.on_awaited("durable" if node.state is MemberState.PRIMARY else "commit point")
        if concern.after is not None and member.store.last_applied.ts < concern.after:
            if node.writable and may_write_at(member, concern.after):
                await member.write(partial(append_at_least, after=concern.after))
                continue
            if not node.writable and member.clock.now() >= ask_at:
                await _ask_for_entry(member, concern.after)
                ask_at = Millis(member.clock.now() + ASK_EVERY_MS)
                continue
            until_ask_ms = ASK_EVERY_MS if node.writable else max(1, ask_at - member.clock.now())
            left_ms = until_ask_ms if left_ms is None else min(left_ms, until_ask_ms)
        await member.wait_for_change(left_ms)
    ctx.work.waited(SlowReason.READ_CONCERN, member.clock.now() - began)
    if concern.level == "linearizable":
        ctx.linearizable_term = node.term
    if concern.at is not None:
        if concern.at < member.store.pruned_through:
            raise SnapshotTooOldError("Read timestamp is older than the oldest available timestamp.")
        return OpTime(point.term, concern.at)
    return point if concern.level in ("majority", "snapshot") else None


def append_at_least(group: WriteGroup, after: int, note: Mapping[str, object] = _NOTE) -> None:
    """Write a no-op at the timestamp `after`, if the newest entry is older.

    A session may have read this time from a primary whose newest entries were rolled back since. If the set is idle
    then, nothing else reaches that time soon.
    """
    if group.txn.last.ts >= after:
        return
    optime = OpTime(group.term, max(after, group.next_optime().ts))
    group.txn.append(noop_entry(note, optime, group.wall_ms), optime, op="n", ns="", wall_ms=group.wall_ms)


async def _ask_for_entry(member: Kernel, after: int) -> None:
    """Ask the primary for an entry at the timestamp `after`. A failure is passed over: the read goes on waiting."""
    primary = member.node.primary_host
    if primary is None or primary == member.host:
        return
    note = {"appendOplogNote": 1, "maxClusterTime": timestamp(after), "data": _NOTE}
    command = {**note, "writeConcern": {"w": 1}}  # the read waits by itself, and settings.minInSync concerns writes
    with suppress(ReplError):
        await member.peer.call(primary, command, timeout_ms=Millis(ASK_EVERY_MS))


def newest_readable(member: Kernel, level: Level) -> OpTime | None:
    """Return up to where a read at `level` may see now, None while it must wait."""
    node = member.node
    if level == "local":
        return member.store.last_applied
    if level == "linearizable" and not node.writable:
        return None
    point = min(node.commit_point, member.store.last_applied)
    # A new primary knows an old commit point only: what was acknowledged last by the primary before it may lie behind.
    # A majority or linearizable read at the old point would miss such a write, so it waits until an entry of this
    # primary's own term is committed.
    if point == OPTIME_NULL or (node.state is MemberState.PRIMARY and point.term != node.term):
        return None
    return point


async def confirm_linearizable(ctx: CommandContext) -> None:
    """Confirm a linearizable read before its answer: a majority must have an entry that was written after the read.

    Raises MaxTimeMSExpiredError at the deadline, PrimarySteppedDownError and NotWritablePrimaryError when the member
    is not primary any more, LinearizableReadConcernError when it is not known. The read must not be answered then: a
    new primary may have acknowledged a newer write that this member does not have.
    """
    term = ctx.linearizable_term
    if term is None:
        return
    began = ctx.member.clock.now()
    optime = await ctx.member.write(lambda group: append_confirmation(group, term))
    failure = await wait_until_met(ctx.member, optime, WriteConcern(MAJORITY), ctx.deadline)
    ctx.work.waited(SlowReason.READ_CONCERN, ctx.member.clock.now() - began)
    if failure is not None:
        raise _confirmation_error(failure)


def append_confirmation(group: WriteGroup, term: int) -> OpTime:
    """Return the optime of the entry that confirms a read of `term`: the newest of this group, else a new no-op.

    Everything in the group is written after the read, so reads at the same time share one entry.
    """
    if group.term != term:
        raise PrimarySteppedDownError("the primary stepped down after it read")
    if group.txn.has_entries:
        return group.txn.last
    optime = group.next_optime()
    entry = noop_entry(_PROOF, optime, group.wall_ms)
    group.txn.append(entry, optime, op="n", ns="", wall_ms=group.wall_ms)
    return optime


def _confirmation_error(failure: WriteConcernFailure) -> ReplError:
    match failure.code:
        case MaxTimeMSExpiredError.code:
            return MaxTimeMSExpiredError("operation exceeded time limit while the read was being proven linearizable")
        case PrimarySteppedDownError.code:
            return PrimarySteppedDownError(failure.message)
        case _:
            return LinearizableReadConcernError(f"the read could not be proven linearizable: {failure.message}")


async def open_collection(
    ctx: CommandContext, name: str, concern: ReadConcern
) -> tuple[Collection | None, OpTime | None]:
    """Wait until the read may begin: the collection (None: there is none) and the point to read at (None: now)."""
    ns = namespace(ctx.database, name)
    if ctx.transaction is not None:
        return ctx.transaction.write_set.collection(ns), ctx.transaction.at
    at = await read_point(ctx, concern)
    while at is not None:
        try:
            return collection_at(ctx, ns, at), at
        except CatalogChangedError as changed:
            if concern.at is not None:
                raise
            at = await read_point(ctx, replace(concern, after=changed.until))
    return ctx.member.store.collection(ns), None


def collection_at(ctx: CommandContext, ns: str, at: OpTime) -> Collection | None:
    """Return the collection as of a point. CatalogChangedError."""
    with ctx.member.store.read() as snapshot:
        coll = snapshot.collection(ns, at)
        return None if coll is None else snapshot.with_indexes(coll, at)

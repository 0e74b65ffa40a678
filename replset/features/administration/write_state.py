"""replSetGetWriteState: what became of a write, by the optime that its reply named (map D8).

A client whose write was applied, but not as safe as it asked, can look later: did a majority get it, or was it rolled
back, and which rollback has it? Each member says what its own oplog and its own rollback files show. Two facts settle
the question for the whole set: a member's commit point is at or past an entry that its oplog has, or past the place of
one that it does not have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from replset.auth.roles import Action
from replset.errors import BadValueError, ReplError
from replset.ids import OPTIME_NULL, HostPort, Millis, OpTime
from replset.operations import fields
from replset.operations.command import Command, CommandContext
from replset.operations.kernel import Kernel
from replset.operations.request import Reply
from replset.replication.rollback_list import RollbackList
from replset.replication.rollback_manifest import RollbackState
from replset.storage.store import Store

NAME = "replSetGetWriteState"
MEMBER_TIMEOUT_MS = Millis(2_000)


class WriteState(Enum):
    """COMMITTED: never rolled back. PENDING: some member has it. NOT_IN_SET: rolled back, or going to be."""

    COMMITTED = "committed"
    PENDING = "pending"
    NOT_IN_SET = "notInSet"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class MemberView:
    """What one member knows of a write.

    holds: its oplog has the entry, or had it before it was trimmed; None: it cannot tell. committed_through: the newest
    entry of its oplog that is committed. rollbacks: `id` and `state` of its rollbacks that have the entry.
    """

    host: HostPort
    holds: bool | None
    committed_through: OpTime
    rollbacks: Sequence[Mapping[str, object]] = field(default_factory=tuple)

    def state_of(self, optime: OpTime) -> WriteState:
        """Return what this member alone can say of the write."""
        if self.holds:
            return WriteState.COMMITTED if optime <= self.committed_through else WriteState.PENDING
        is_passed = self.holds is False and optime < self.committed_through
        return WriteState.NOT_IN_SET if is_passed else WriteState.UNKNOWN

    def document(self) -> dict[str, object]:
        return {
            "holds": self.holds,
            "committedThrough": str(self.committed_through),
            "rollbacks": [dict(row) for row in self.rollbacks],
        }

    @classmethod
    def parse(cls, host: HostPort, reply: Mapping[str, object]) -> MemberView:
        """Read another member's answer. ValueError when it is none."""
        rollbacks = reply.get("rollbacks")
        if not isinstance(rollbacks, list):
            raise ValueError(str(reply.get("errmsg", f"it does not know {NAME}")))
        rows = tuple(row for row in rollbacks if isinstance(row, dict))
        holds = reply.get("holds")
        return cls(
            host, holds if isinstance(holds, bool) else None, OpTime.parse(str(reply.get("committedThrough"))), rows
        )


async def get_write_state(ctx: CommandContext) -> Reply:
    """What became of a write, by its optime. With `all` the other members are asked where this one cannot tell."""
    optime = _optime_of(ctx)
    if not fields.boolean(ctx.body, "all", ctx.name):
        return (await _own_view(ctx.member, optime)).document()
    return await describe_write(ctx, optime)


async def describe_write(ctx: CommandContext, optime: OpTime) -> dict[str, object]:
    """Return what became of a write; the other members are asked where this one cannot tell."""
    own = await _own_view(ctx.member, optime)
    views, unreachable = [own], dict[str, str]()
    if own.state_of(optime) is not WriteState.COMMITTED:
        config = ctx.member.node.config
        others = [] if config is None else [m.host for m in config.oplog_holders if m.host != ctx.member.host]
        answers = await asyncio.gather(*(_ask_member(ctx, host, optime) for host in others))
        views += [answer for answer in answers if isinstance(answer, MemberView)]
        unreachable = {
            str(host): answer for host, answer in zip(others, answers, strict=True) if isinstance(answer, str)
        }
    return _describe(ctx, optime, views, unreachable)


def _optime_of(ctx: CommandContext) -> OpTime:
    given = ctx.body.get(ctx.name)
    try:
        return OpTime.parse(given if isinstance(given, str) else "")
    except ValueError:
        text = f"{given!r:.80}" if isinstance(given, str) else "no string"
        raise BadValueError(f"{ctx.name} takes an optime as text, TERM:SECONDS:INC, not {text}") from None


async def _own_view(member: Kernel, optime: OpTime) -> MemberView:
    """Return what this member knows. Its oplog counts only where it follows the set."""
    rollbacks = [
        {"id": manifest.id, "state": manifest.state.value} for manifest in await member[RollbackList].with_entry(optime)
    ]
    node, store = member.node, member.store
    if not node.follows_set:
        return MemberView(member.host, None, OPTIME_NULL, rollbacks)
    return MemberView(member.host, has_entry(store, optime), min(node.commit_point, store.last_applied), rollbacks)


def has_entry(store: Store, optime: OpTime) -> bool | None:
    """Return whether the oplog has the entry, or had it before it was trimmed; None: that is not known any more.

    Where it is trimmed, only the first and the last entry of each term are known. One primary wrote all of a term's
    entries, and no oplog leaves one of them out, so an entry between these two was there.
    """
    if store.oplog_row_at(optime) is not None:
        return True
    newest, spans = store.last_applied, store.terms()
    if newest == OPTIME_NULL or not spans:
        return None
    if optime > newest or optime.ts >= store.oldest.ts:
        return False
    if optime < spans[0].first:
        return None
    return any(span.first <= optime <= (newest if span.last is None else span.last) for span in spans)


async def _ask_member(ctx: CommandContext, host: HostPort, optime: OpTime) -> MemberView | str:
    """Return what another member knows, or why it did not answer."""
    left_ms = ctx.left_ms
    timeout_ms = MEMBER_TIMEOUT_MS if left_ms is None else Millis(max(1, min(MEMBER_TIMEOUT_MS, left_ms)))
    try:
        reply = await ctx.member.peer.call(host, {NAME: str(optime)}, timeout_ms=timeout_ms)
        return MemberView.parse(host, reply.decode())
    except ReplError as error:
        return error.message
    except ValueError as error:
        return str(error)


def decide(views: Sequence[MemberView], optime: OpTime) -> WriteState:
    """Return what all of them together show. Of two that settle it, the one that is committed further counts: only a
    forced reconfiguration, or a lost disk, makes two such members differ.
    """
    settled = [view for view in views if view.state_of(optime) in (WriteState.COMMITTED, WriteState.NOT_IN_SET)]
    if settled:
        return max(settled, key=lambda view: view.committed_through).state_of(optime)
    return WriteState.PENDING if any(view.holds for view in views) else WriteState.UNKNOWN


def _describe(
    ctx: CommandContext, optime: OpTime, views: Sequence[MemberView], unreachable: Mapping[str, str]
) -> dict[str, object]:
    state = decide(views, optime)
    rollbacks = [
        {**row, "member": str(view.host), "httpAddress": ctx.member.node.http_address_of(view.host)}
        for view in views
        for row in view.rollbacks
        if row.get("state") != RollbackState.ABANDONED.value
    ]
    holders = [str(view.host) for view in views if view.holds]
    reply: dict[str, object] = {"optime": str(optime), "state": state.value}
    match state:
        case WriteState.COMMITTED:
            reply["why"] = "a majority has it: no failover takes it back"
        case WriteState.PENDING:
            status = ctx.member.node.status(ctx.member.clock.now())
            blocking = status.blocking if status is not None else ""
            reply["why"] = blocking or "no member that answered knows yet that a majority has it"
            reply["heldBy"] = holders
        case WriteState.NOT_IN_SET:
            where = ", ".join(f"{row['id']} on {row['member']}" for row in rollbacks)
            waits = f"{', '.join(holders)} will roll it back" if holders else "the member that took it is not back yet"
            reply["why"] = f"the set went on without it: {f'it is in {where}' if where else waits}"
            reply["heldBy"] = holders
        case WriteState.UNKNOWN:
            reply["why"] = "no member that answered has it, and none has committed past it"
    if state is WriteState.NOT_IN_SET or (rollbacks and state is not WriteState.COMMITTED):
        reply["rollbacks"] = rollbacks
    if unreachable:
        reply["unreachable"] = dict(unreachable)
    return reply


COMMANDS: tuple[Command, ...] = (
    Command(NAME, get_write_state, frozenset({"all"}), admin_only=True, needs=Action.LOGIN),
)

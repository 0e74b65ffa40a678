"""replSetFollow: makes this set follow another one, stop that, or take no writes so that its follower can take over;
replSetFollowStatus says how far it is, and replSetFollowEntries gives a source's entries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import apsw

from replset.auth.roles import Action
from replset.bson import RawDocument
from replset.errors import (
    BadValueError,
    CappedPositionLostError,
    ChangeStreamHistoryLostError,
    IllegalOperationError,
)
from replset.features.crud.oplog_cursor import shown_entry
from replset.features.follower.follow_source import OwnHistory, SourceSet
from replset.features.follower.followed import (
    OWN_DATABASES,
    FollowMode,
    FollowProgress,
    FollowState,
    is_followed,
    position_in,
    read_state,
    save_state,
    state_in,
    stopped,
)
from replset.ids import OpTime
from replset.operations import fields
from replset.operations.command import Command, CommandContext, Where, declared
from replset.operations.declared import TEXT, one_of, operation, own, value
from replset.operations.history import History
from replset.operations.majority_write import write_to_majority
from replset.operations.request import Reply
from replset.oplog_entry import OplogEntry
from replset.optime import optime_document, optime_or_none
from replset.replication.write_ops import WriteGroup
from replset.storage.sqlite import rows_of

PAGE_ENTRIES = 1_000
_OWN_ENTRIES, _OWN_BYTES = 2_000, 4 << 20
"""At the end of this set's oplog: what came after the entry that both sets have."""
Change = Callable[[FollowState | None, WriteGroup], FollowState]
"""Makes the new document of the present one, in the group that writes it."""


@operation("replSetFollow", needs=Action.CONFIGURE_SET, on_primary=True)
class Follow:
    """start: follow the set of `source`. stop: take writes from now on. close, open: of the source of a follower."""

    step: str = own(one_of(str, "start", "stop", "close", "open"))
    source: str = value(TEXT, default="")


async def follow(ctx: CommandContext, given: Follow) -> Reply:
    if given.step == "start":
        return await _start(ctx, given)
    changes: dict[str, Change] = {"stop": _stopped, "close": _closed, "open": _opened}
    return await _save(ctx, changes[given.step])


def _stopped(state: FollowState | None, group: WriteGroup) -> FollowState:
    if state is None or state.mode is not FollowMode.FOLLOWING:
        raise IllegalOperationError("this set follows nobody")
    return stopped(state, group)


def _closed(state: FollowState | None, _group: WriteGroup) -> FollowState:
    if state is not None and state.mode is FollowMode.FOLLOWING:
        raise IllegalOperationError(f"this set follows {state.set_name}: it takes no writes anyway")
    return replace(state or FollowState(FollowMode.CLOSED), mode=FollowMode.CLOSED, hosts=())


def _opened(state: FollowState | None, _group: WriteGroup) -> FollowState:
    if state is None or state.mode is not FollowMode.CLOSED:
        raise IllegalOperationError("this set was not closed")
    return replace(state, mode=FollowMode.STOPPED)


async def _save(ctx: CommandContext, change: Change) -> Reply:
    """Write the document, and wait until a majority has it."""

    def operation(group: WriteGroup) -> FollowState:
        after = change(state_in(group.txn), group)
        save_state(group, after)
        return after

    state, optime = await write_to_majority(ctx, operation, "done, but not on a majority")
    return {**_described(state), "opTime": optime_document(optime)}


async def _start(ctx: CommandContext, given: Follow) -> Reply:
    member, hosts = ctx.member, [host for host in given.source.split(",") if host]
    if not hosts:
        raise fields.missing(ctx.name, "source")
    state = read_state(member.store)
    if state is not None and state.mode is FollowMode.FOLLOWING:
        raise IllegalOperationError(f"this set follows {state.set_name} already")
    last = member.store.last_applied  # before what is asked about, so that nothing is written unseen in between
    own = own_history(ctx)
    source = SourceSet(hosts)
    try:
        start = await source.run(source.find_start, own)
    finally:
        source.close()
    if source.set_name == own.set_name:
        raise BadValueError(f"both sets are called {own.set_name}: give the follower another name")

    def started(now: FollowState | None, group: WriteGroup) -> FollowState:
        entries = map(OplogEntry, _newest_entries(group.txn.connection))
        if (
            now != state
            or group.txn.has_entries
            or any(entry.optime > last and is_followed(entry) for entry in entries)
        ):
            raise IllegalOperationError("something was written meanwhile: try again")
        return FollowState(
            FollowMode.FOLLOWING,
            tuple(source.hosts),
            source.set_name,
            f"follower-{own.set_name}",
            start,
            group.next_optime(),
            str(member.node.set_id),
        )

    return await _save(ctx, started)


def own_history(ctx: CommandContext) -> OwnHistory:
    """What the source is asked about."""
    store, config = ctx.member.store, ctx.member.node.config
    has_data = any(coll.database not in OWN_DATABASES for coll in store.collections())
    return OwnHistory("" if config is None else config.set_name, store.query(_newest_entries), has_data)


def _newest_entries(connection: apsw.Connection) -> list[bytes]:
    """The committed end of the oplog, oldest first; the open group's own entries are not in it."""
    entries, size = list[bytes](), 0
    for (entry,) in rows_of(connection, "SELECT entry FROM oplog ORDER BY ts DESC LIMIT ?", (_OWN_ENTRIES,)):
        entries.append(entry)
        size += len(entry)
        if size > _OWN_BYTES:
            break
    entries.reverse()
    return entries


async def status(ctx: CommandContext) -> Reply:
    """How far this set is, as this member has it; the primary also says what hinders it."""
    state = read_state(ctx.member.store)
    if state is None:
        return {"mode": "none"}
    position = state.position
    reply = _described(state)
    if state.mode is FollowMode.FOLLOWING:
        position = ctx.member.store.query(lambda connection: position_in(connection, state)).position
        progress = ctx.member[FollowProgress]
        if ctx.member.node.writable:
            position = max(position, progress.position, key=lambda at: at.ts)
            reply |= {
                "entries": progress.entries,
                "lagSecs": progress.lag_s(ctx.member.clock),
                "error": progress.error,
            }
    return {**reply, "position": optime_document(position)}


def _described(state: FollowState) -> dict[str, object]:
    document = state.document()
    del document["_id"]
    return document


async def entries(ctx: CommandContext) -> Reply:
    """For a follower: committed entries behind the one that it names, also those that only the archive still has."""
    document = fields.document(ctx.body, ctx.name, ctx.name)
    position = None if document is None else optime_or_none(document.decode())
    if position is None:
        raise BadValueError(f"{ctx.name} takes the optime of an entry: {{ts, t}}")
    history = ctx.member[History]
    if position.ts > history.committed.ts:  # a new primary does not know yet what is committed
        return {"entries": []}
    try:
        found = await history.after(OpTime(position.term, position.ts - 1), limit=1)
        rows = await history.after(position, limit=PAGE_ENTRIES)
    except ChangeStreamHistoryLostError:
        found = []
    if not found or found[0].optime != position:
        raise CappedPositionLostError(
            f"neither the oplog nor an archive has the entry at {position} any more: this set needs a new copy of its"
            " data"
        )
    return {"entries": [RawDocument(shown_entry(row)) for row in rows]}


COMMANDS: tuple[Command, ...] = (
    Command("replSetFollowEntries", entries, where=Where.PRIMARY, admin_only=True, needs=Action.READ_OPLOG),
    declared(Follow, follow),
    Command("replSetFollowStatus", status, admin_only=True, needs=Action.SET_STATUS),
)

"""replSetUndo: takes back what a span of the oplog did, in slices, each a group of ordinary writes.

Nothing is remembered between runs: what is as it was before the span is left alone. So a run that was cut off is just
run again, and a second one changes nothing. The entries of an undo have its id as their session; a redo is an undo of
that session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from replset.auth.roles import INTERNAL_DATABASES
from replset.bson import Binary, DateTime, RawDocument, Timestamp, decode, encode, encode_key
from replset.core.quorum import WriteConcern
from replset.errors import (
    BadValueError,
    DocumentHeldError,
    IllegalOperationError,
    ReplError,
    SnapshotTooOldError,
    cut_message,
)
from replset.features.crud.scan import pause, read_in_thread
from replset.features.recovery.policy import Policy, RestoreAction
from replset.features.undo.operations import Undo
from replset.features.undo.plan import Place, Row, Span, find_places, judge, read_slice
from replset.ids import OpTime, pack_ts
from replset.operations.collations import refuse_newer
from replset.operations.command import Command, CommandContext, declared
from replset.operations.declared import declaration_of
from replset.operations.evaluation import read_statement, run_in_thread
from replset.operations.namespaces import check_database, refuse_view, writable_namespace
from replset.operations.request import Reply
from replset.operations.write_concern import refuse_few_in_sync, wait_for_write_concern
from replset.oplog_entry import extra_fields
from replset.optime import timestamp
from replset.query.match import compile_filter
from replset.replication.index_ops import do_create_index
from replset.replication.session_write import SessionWrite
from replset.replication.write_ops import ReplicatedDocument, WriteGroup, do_create, do_delete, do_insert, do_update
from replset.storage.catalog import Collection

T = TypeVar("T")
UNDOS_NS: Final = "config.undos"
MAJORITY: Final = WriteConcern()
MOST_SHOWN: Final = 100
"""Documents that are left as they are, and are named in the answer, those with an `_id` of so many bytes."""
LONGEST_SHOWN: Final = 4_096
MEANWHILE: Final = "it was written meanwhile: run the undo again"


class Mark(SessionWrite):
    """Names the undo in each of its entries. It has no transaction number, so no record of a session is kept."""

    def __init__(self, id_: str) -> None:
        super().__init__(b"", encode({"id": Binary(bytes.fromhex(id_), 4)}), 0)

    def extra(self, *, has_image: bool = False) -> bytes:
        return extra_fields({"lsid": RawDocument(self._lsid)})

    def record(self, *_: object, **__: object) -> None:
        """Keep nothing."""


async def undo(ctx: CommandContext, given: Undo) -> Reply:
    member, id_ = ctx.member, ""
    span = await _span_of(ctx, given)
    store, pin = member.store, member.store.pin(OpTime(0, span.since_ts))
    try:
        oldest = max(store.pruned_through, store.trimmed_through if span.session else 0)
        if span.since_ts < oldest:
            first = OpTime(0, oldest + 1)
            raise SnapshotTooOldError(
                f"documents are known as they were from {first.seconds}:{first.increment} on, the earliest `from` that"
                " can be undone (see --snapshot-history-secs); nothing is written"
            )
        places = await read_in_thread(ctx, partial(find_places, span=span))
        for again in (place.before for place in places if place.behind is None and place.now is None):
            for options in () if again is None else (again.options, *(index.spec for index in again.more_indexes)):
                refuse_newer(member, options, IllegalOperationError)
        if given.apply:
            refuse_few_in_sync(member, MAJORITY)
            record = await _write(ctx, partial(_begin, ctx, span))
            id_ = str(record["_id"])
        left: list[dict[str, object]] = []
        rows = [await _undo(ctx, place, span, id_, left) for place in places]
        if given.apply:
            ended = encode({**record, "collections": rows})
            await _write(ctx, partial(_record(id_).put, after=ended))
    finally:
        pin.release()
    told = [f"{place.ns} {text}" for place in places for text in place.told]
    reply = {"id": id_ or None, "applied": given.apply, "to": timestamp(span.until_ts)}
    return {**reply, "collections": rows, "told": told, "left": left}


async def _span_of(ctx: CommandContext, given: Undo) -> Span:
    store, policy = ctx.member.store, Policy(given.policy)
    if given.redo:
        if given.first or given.last or given.ns or given.session or given.match is not None:
            raise BadValueError("redo goes with policy and apply alone: it takes back all that the undo wrote")
        raw = _record(given.redo).read(store)
        if raw is None:
            raise BadValueError(f"there is no undo {given.redo!r:.80} ({UNDOS_NS} has them all)")
        record: dict[str, Any] = decode(raw)
        begin: Timestamp = record["begin"]
        return Span(
            pack_ts(begin.time, begin.inc), store.last_applied.ts, tuple(record["ns"]), given.redo, None, policy
        )
    if given.first is None or given.last is None or not given.ns:
        raise BadValueError("an undo needs from, to and ns")
    session = given.session.replace("-", "").lower()
    if session and (len(session) != 32 or not set(session) <= set("0123456789abcdef")):
        raise BadValueError(f"session {given.session!r:.80} is none: it has 32 hex digits")
    if given.last[1] < given.first[0]:
        raise BadValueError("to lies before from")
    match, matcher = given.match, None
    if match is not None:
        matcher = await read_statement(ctx.member, match, lambda: compile_filter(match.decode()))
    until_ts = min(given.last[1], store.last_applied.ts)  # what this undo writes lies behind it
    return Span(given.first[0] - 1, until_ts, tuple(map(_name, given.ns)), session, matcher, policy)


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise BadValueError("ns holds names of collections and databases")
    database, dot, collection = name.partition(".")
    if dot:
        return writable_namespace(database, collection)
    if check_database(database) in INTERNAL_DATABASES:
        raise IllegalOperationError(f"the database {database} is the member's own: it is not undone")
    return database


async def _undo(
    ctx: CommandContext, place: Place, span: Span, id_: str, left: list[dict[str, object]]
) -> dict[str, object]:
    """Undo the span in one namespace; id_: empty in a dry run. left: gets the documents that stay as they are."""
    counts = dict.fromkeys(("changed", "unchanged", "left"), 0)
    if id_ and place.behind is None:
        await _write(ctx, partial(_collection, place))  # it is made again, also without documents
    after: bytes | None = b""
    while after is not None:
        await pause(ctx)
        rows, after = await read_in_thread(ctx, partial(read_slice, place=place, span=span, after=after))
        decided = await run_in_thread(ctx.member, partial(judge, rows, span))
        writes = [(row, found.target) for row, found in decided if found.action is RestoreAction.WRITE]
        failed = [""] * len(writes)
        if writes and id_:
            failed = await _write(ctx, partial(_put_back, place, writes, id_))
        stays = [(row, found.reason) for row, found in decided if found.action is RestoreAction.LEAVE]
        stays += [(row, why) for (row, _), why in zip(writes, failed, strict=True) if why]
        left += [
            {"ns": place.ns, "_id": row.id, "reason": cut_message(why)}
            for row, why in stays[: MOST_SHOWN - len(left)]
            if len(row.key) <= LONGEST_SHOWN
        ]
        counts["changed"] += failed.count("")
        counts["unchanged"] += len(decided) - failed.count("") - len(stays)
        counts["left"] += len(stays)
    return {"ns": place.ns, **counts}


async def _write(ctx: CommandContext, operation: Callable[[WriteGroup], T]) -> T:
    """Run it in a group, and wait until a majority has that. ReplError: it may be rolled back."""
    result, optime = await ctx.write(lambda group: (operation(group), group.txn.last))
    ctx.has_written = True
    failure = await wait_for_write_concern(ctx, optime, MAJORITY)
    if failure is not None:
        raise ReplError(f"{failure['errmsg']}; run the undo again", code=int(str(failure["code"])))
    return result


def _begin(ctx: CommandContext, span: Span, group: WriteGroup) -> dict[str, object]:
    """Write the record: what was asked, by whom and when. What this undo writes lies behind `begin`."""
    id_, login = group.new_uuid().hex(), ctx.sender.login
    asked = {name: ctx.body.get(name) for name in declaration_of(Undo).names if name in ctx.body}
    times = {"at": DateTime(group.wall_ms), "begin": timestamp(group.txn.last.ts)}
    by = None if login is None else str(login)
    record = {"_id": id_, **asked, "ns": list(span.names), "by": by, **times}
    _record(id_).put(group, encode(record))
    return record


def _record(id_: str) -> ReplicatedDocument:
    return ReplicatedDocument(UNDOS_NS, encode_key(id_))


def _collection(place: Place, group: WriteGroup) -> Collection:
    """The collection that has the name; made now, as it was before it was dropped, if there is none."""
    there, old = group.txn.catalog.by_ns.get(place.ns), place.before or place.behind
    refuse_view(there)
    if there is not None or old is None:
        return there or do_create(group, place.ns)
    made = do_create(group, place.ns, old.options.decode())
    for index in old.more_indexes:
        if index.ready:
            do_create_index(group, made, index.spec)
    return made


def _put_back(place: Place, rows: Sequence[tuple[Row, bytes | None]], id_: str, group: WriteGroup) -> list[str]:
    """Write these documents; return of each why not, empty where it was."""
    coll = group.txn.catalog.by_ns.get(place.ns) if place.now is not None else _collection(place, group)
    group.session_write = Mark(id_)
    try:
        return [MEANWHILE if coll is None else _put_row_back(group, coll, row, target) for row, target in rows]
    finally:
        group.session_write = None


def _put_row_back(group: WriteGroup, coll: Collection, row: Row, target: bytes | None) -> str:
    # It was read and decided about outside of this group. A newer write is not overwritten by that decision.
    if group.txn.get(coll, row.key) != row.now:
        return MEANWHILE
    at = group.txn.mark()
    try:
        if row.now is None:
            do_insert(group, coll, row.key, target or b"")
        elif target is None:
            do_delete(group, coll, row.key, row.now)
        else:
            do_update(group, coll, row.key, row.now, target, target)
    except DocumentHeldError:
        raise  # waited for, and all of these are written then
    except ReplError as error:
        group.txn.revert_to(at)
        return error.message
    return ""


COMMANDS: tuple[Command, ...] = (declared(Undo, undo),)

"""replSetDocumentHistory: reads every version of one document that this member still knows. It writes nothing.

An answer looks at a bounded part of the oplog, in a worker and in slices; `next` says where another one goes on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from replset.auth.roles import Action
from replset.bson import DateTime, RawDocument, Timestamp, encode_key
from replset.errors import BadValueError, NotPrimaryOrSecondaryError, SnapshotCutError
from replset.features.history.operations import DocumentHistory
from replset.features.history.versions import UNKNOWN, Version, Versions, concerns, place
from replset.ids import OPTIME_NULL, OpTime, pack_ts
from replset.operations.authorization import authorize
from replset.operations.command import Command, CommandContext, declared
from replset.operations.history import History
from replset.operations.namespaces import namespace
from replset.operations.request import Reply
from replset.oplog_entry import COMMAND, OplogEntry
from replset.oplog_row import DamagedEntryError, OplogRow
from replset.replication.rollback_list import RollbackList
from replset.replication.rollback_manifest import Manifest
from replset.storage import oplog
from replset.storage.store import Store

MOST_LOOKED: Final = 1_000_000
"""Entries of the live oplog that one answer looks at."""
MOST_ARCHIVED: Final = 20_000
SLICE: Final = 100_000
PLACES: Final = 256
ARCHIVE_SLICE: Final = 5_000
PAGE_BYTES: Final = 1 << 20
"""Of entries and documents that one answer shows: it is encoded on the event loop."""
LOST_BYTES: Final = 64 << 20
"""Bytes of rollback files that one answer reads."""
FOREVER: Final = (1 << 63) - 1


@dataclass(slots=True)
class _Look:
    """What is asked and how far it is. position: looked at through here. until_ts: the last that counts.

    found: the versions that concern the field asked for. last: the newest of all.
    """

    given: DocumentHistory
    key: bytes
    versions: Versions
    until_ts: int
    position: OpTime
    found: list[Version] = field(default_factory=list)
    last: Version | None = None
    looked: int = 0
    is_full: bool = False
    is_at_end: bool = False

    def add(self, rows: list[Version]) -> None:
        """Keep them, of a moment only the last one."""
        self.last = rows[-1] if rows else self.last
        self.found += [row for row in rows if concerns(row, self.given.field)]
        if self.given.at is not None:
            del self.found[:-1]
        elif len(self.found) >= self.given.limit or self.versions.size >= PAGE_BYTES:
            self.is_full = True


async def document_history(ctx: CommandContext, given: DocumentHistory) -> Reply:
    member = ctx.member
    database, _, collection = given.ns.partition(".")
    ns = namespace(database, collection)
    authorize(member, ctx.sender, Action.FIND, database, ctx.name)
    if not member.node.state.is_readable:
        raise NotPrimaryOrSecondaryError(f"this member is in {member.node.state.name}: it serves no reads now")
    history, begin = member[History], given.after or OPTIME_NULL
    is_archived = history.oldest() != member.store.oldest
    if given.after is None and not given.archive:
        begin = OpTime(begin.term, member.store.trimmed_through)
    key = encode_key(given.id)
    is_whole = begin == OPTIME_NULL and not member.store.trimmed_through
    look = _Look(given, key, Versions(ns, key, None if is_whole else UNKNOWN), _until(given.at), begin)
    await _look_in_archive(ctx, look)
    while look.position.ts >= member.store.trimmed_through and not (look.is_full or look.is_at_end):
        store = member.store
        try:
            await member.workers.run(lambda: _look_in_oplog(store, look))  # noqa: B023 - awaited at once
        except SnapshotCutError:
            look.versions.document = UNKNOWN  # some writes of an entry may be in it already; the undo tells it again
            look.looked += SLICE
        except DamagedEntryError as error:
            member.on_damage(error.message)
            raise
        ctx.check_deadline()
        if look.looked >= MOST_LOOKED:
            break
    return await _reply(ctx, look, is_archived=is_archived)


def _until(at: object) -> int:
    if at is None:
        return FOREVER
    if isinstance(at, Timestamp):
        return pack_ts(at.time, at.inc)
    if isinstance(at, DateTime) and at.ms >= 0:
        return pack_ts(at.ms // 1000 + 1, 0) - 1  # entries are dated in whole seconds
    raise BadValueError("at is a timestamp or a date")


async def _look_in_archive(ctx: CommandContext, look: _Look) -> None:
    older, store = ctx.member[History].older, ctx.member.store
    while look.position.ts < store.trimmed_through and look.looked < MOST_ARCHIVED and not look.is_full:
        ctx.check_deadline()
        rows = [] if older is None else await older.after(look.position, limit=ARCHIVE_SLICE, max_bytes=PAGE_BYTES)
        if not rows:
            look.position = OpTime(look.position.term, store.trimmed_through)  # nobody has those: what is live goes on
            look.versions.document = UNKNOWN
            return
        look.looked += len(rows)
        for row in rows:
            if row.ts > look.until_ts:
                look.is_at_end = True
                return
            look.position = row.optime
            if _may_concern(row, look):
                look.add(look.versions.of(OplogEntry(row.entry)))
            if look.is_full:
                return


def _may_concern(row: OplogRow, look: _Look) -> bool:
    return row.op == COMMAND or (row.key == look.key and row.ns == look.versions.ns)


def _look_in_oplog(store: Store, look: _Look) -> None:
    """Look at the next slice of the live oplog. Runs in a worker."""
    with store.read() as snapshot:
        connection, ns = snapshot.connection, look.versions.ns
        newest = snapshot.newest
        end_ts = oplog.ts_further_on(connection, look.position.ts, SLICE) or newest.ts
        until_ts = min(end_ts, look.until_ts)
        places = oplog.places_about(
            connection, ns, look.key, after_ts=look.position.ts, until_ts=until_ts, limit=PLACES
        )
        rows = oplog.rows_at(connection, store.path, places, PAGE_BYTES) if places else []
        for row in rows:
            if look.is_full:
                return
            look.add(look.versions.of(OplogEntry(row.entry), snapshot))
            look.position = row.optime
            look.looked += 1
        if look.is_full or len(rows) < len(places) or len(places) == PLACES:
            return
        look.looked += SLICE
        look.position = OpTime(newest.term, max(until_ts, look.position.ts))
        look.is_at_end = until_ts == newest.ts or until_ts == look.until_ts
        coll = snapshot.collection(ns)
        if look.last is not None and until_ts == newest.ts and look.versions.document is UNKNOWN and coll is not None:
            # Nothing wrote it behind that version, so it is what is there now.
            document = snapshot.get(coll, look.key)
            look.last["document"] = None if document is None else RawDocument(document)


async def _reply(ctx: CommandContext, look: _Look, *, is_archived: bool) -> Reply:
    member, given = ctx.member, look.given
    committed = member[History].committed
    found = [row | {"committed": OpTime.parse(str(row["optime"])) <= committed} for row in look.found]
    end_ts = look.until_ts if look.is_at_end else look.position.ts
    ns, left_out = look.versions.ns, list[str]()
    if given.at is None:
        names = ns.encode(), f"{ns.partition('.')[0]}.$cmd".encode()
        after_ts = 0 if given.after is None else given.after.ts
        lost, left_out = await member[RollbackList].entries_between(after_ts, end_ts, names, LOST_BYTES)
        found += await member.workers.run(lambda: _taken_away(ns, look.key, lost, left_out))
    reply: dict[str, object] = {
        "ns": ns,
        "id": given.id,
        "versions": [row for row in sorted(found, key=place) if concerns(row, given.field)],
        "oldest": str(member.store.oldest),
        "next": None if look.is_at_end else str(look.position),
    }
    if is_archived and not given.archive:
        reply["archivedSince"] = str(member[History].oldest())
    if left_out:
        reply["rollbacksNotRead"] = left_out
    return reply


def _taken_away(
    ns: str, key: bytes, lost: list[tuple[Manifest, list[OplogEntry]]], left_out: list[str]
) -> list[Version]:
    """What rollbacks took away of the document. left_out: gets the ids of those that are not shown whole."""
    found: list[Version] = []
    size = 0
    for manifest, entries in lost:
        versions = Versions(ns, key)
        for entry in entries:
            if size + versions.size >= PAGE_BYTES:
                left_out.append(manifest.id)
                break
            found += [row | {"committed": False} for row in versions.of(entry, lost=manifest)]
        size += versions.size
    return found


COMMANDS: tuple[Command, ...] = (declared(DocumentHistory, document_history),)

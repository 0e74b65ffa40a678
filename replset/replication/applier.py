"""Applies oplog entries that another member wrote: the effect, its undo rows and the oplog row in one transaction.

It is idempotent (map O8): an entry twice, or a suffix of the oplog again in order, gives the same state. An insert of a
document that is there replaces it. An update or delete of one that is not there changes nothing, nor does an entry for
a collection that a later entry dropped. On a witness an entry has no effect: the oplog row is all that is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from replset.bson import MAX_INTERNAL_SIZE, Binary, RawDocument, encode, encode_key
from replset.bson.keystring import encode_key_of
from replset.errors import (
    CannotApplyError,
    ErrorCode,
    FailedToParseError,
    RemoteProtocolError,
    ReplError,
    SnapshotCutError,
)
from replset.ids import OpTime
from replset.oplog_entry import COMMAND, INSERT, UPDATE, InsertReader, OplogEntry
from replset.oplog_row import UnchainedRow
from replset.query.diff import apply_update_bytes
from replset.replication import index_ops
from replset.replication.session_write import expire_applied, image_of_entry, read_extra, record_applied, record_insert
from replset.replication.write_ops import changed_options, changed_spec
from replset.storage.catalog import Collection
from replset.storage.sqlite import is_about_the_disk
from replset.storage.store import Store
from replset.storage.txn import Txn

MAX_GROUP_ENTRIES = 500
MAX_GROUP_BYTES = 1 << 20
LARGE_DOCUMENT = 32 << 10
"""A document above this size takes longer to decode, change and encode than the event loop has."""
MAX_RUN = 100
"""Inserts between two looks at the clock: about a millisecond."""
_CHECK_TIME_EVERY = 16
_ID_FIRST = b"_id\0"
_MALFORMED = frozenset({ErrorCode.TRANSACTION_TOO_LARGE, ErrorCode.DUPLICATE_FIELD_IN_DIFF})
UpdateFunction = Callable[[bytes, RawDocument], bytes]


class LargeUpdateError(Exception):
    """The next entry changes a large document: the new document must be computed in a thread first.

    entry: of the transaction whose operation it is; None for an entry of its own.
    """

    def __init__(self, before: bytes, o: RawDocument) -> None:
        super().__init__("a large document is changed")
        self.before = before
        self.o = o
        self.entry: OplogEntry | None = None


class UnfinishedBuildError(Exception):
    """The next entry makes indexes ready that this member still has to fill, in slices."""

    def __init__(self, coll: bytes, build: bytes) -> None:
        super().__init__("an index build is committed")
        self.coll = coll
        self.build = build


@dataclass(frozen=True, slots=True)
class EvaluatedUpdate:
    """A large document before and after an update of the next entry, and the update's `o`."""

    before: bytes
    o: bytes
    after: bytes


def apply_batch(
    store: Store,
    entries: Sequence[bytes],
    start: int,
    stop: int,
    is_time_up: Callable[[], bool],
    evaluated: Sequence[EvaluatedUpdate] = (),
    *,
    builds_indexes: bool = True,
) -> int:
    """Apply entries[start:stop] in one group, as many as the limits of a group and the time allow, at least one.

    Returns how many were applied. They continue the store's newest entry; one that is not newer is skipped, since it is
    applied already. builds_indexes: whether this member has indexes besides those of _id. LargeUpdateError: an update
    of entries[start] must be computed first; call again with it in `evaluated`, behind those of the calls before.
    UnfinishedBuildError: entries[start] needs indexes that are filled first. RemoteProtocolError: an entry is malformed
    or of a kind that this version cannot apply. CannotApplyError: it is sound, and does not fit what is on this disk.
    Nothing of the group was applied then. Errors of the disk are passed on.
    """
    done = size = 0
    known = {(update.o, update.before): update.after for update in evaluated}
    try:
        with store.group() as txn:
            txn.builds_indexes = builds_indexes
            last = min(stop, start + MAX_GROUP_ENTRIES)
            if store.oplog_only:
                return _append_only(txn, entries, start, last, is_time_up)
            while start + done < last:
                inserted, inserted_bytes = _apply_inserts(txn, entries, start + done, last)
                if inserted:
                    done += inserted
                    size += inserted_bytes
                    if size > MAX_GROUP_BYTES or is_time_up():
                        break
                    continue
                raw = entries[start + done]
                entry = OplogEntry(raw)
                unfinished = index_ops.unfinished_build(txn, entry) if entry.op == COMMAND else None
                if unfinished is not None:
                    if not done:
                        raise UnfinishedBuildError(*unfinished)
                    break
                mark = txn.mark()
                try:
                    apply_entry(txn, entry, lambda before, o: _updated_on_loop(before, o, known))
                except LargeUpdateError as large:
                    if not done:
                        large.entry = entry if entry.op == COMMAND else None
                        raise
                    txn.revert_to(mark)  # the operations of a transaction before the large one
                    break
                done += 1
                size += len(raw)
                if size > MAX_GROUP_BYTES or (done % _CHECK_TIME_EVERY == 0 and is_time_up()):
                    break
    except (LargeUpdateError, UnfinishedBuildError):
        raise
    except Exception as error:
        if is_about_the_disk(error):
            raise
        raise _not_applied(entries[min(start + done, stop - 1)], error) from error
    return done


def _not_applied(raw: bytes, error: Exception) -> ReplError:
    """Whose fault it is that an entry was not applied: its source's, or this member's data."""
    why = error.message if isinstance(error, ReplError) else f"{type(error).__name__}: {error}"
    try:
        entry = OplogEntry(raw)
        entry.o.decode()
        at = f"{entry.optime} ({entry.op!r} of {entry.ns})"
    except (ReplError, ValueError):
        return RemoteProtocolError(f"an oplog entry is malformed: {why}")
    if is_malformed(error):
        return RemoteProtocolError(f"the entry {at} cannot be applied: {why}")
    return CannotApplyError(f"the entry {at} does not fit what is on this member's disk: {why}")


def is_malformed(error: Exception) -> bool:
    """Whether the error says of an entry that it is none, or of a kind that is not known here."""
    return isinstance(error, RemoteProtocolError | FailedToParseError) or (
        isinstance(error, ReplError) and error.code in _MALFORMED
    )


def _append_only(txn: Txn, entries: Sequence[bytes], start: int, stop: int, is_time_up: Callable[[], bool]) -> int:
    """Add entries to a witness's oplog, without their effect; returns how many of entries[start:stop]."""
    done = size = 0
    for raw in entries[start:stop]:
        entry = OplogEntry(raw)
        # As in `apply_entry`: an entry that is not newer is in the oplog already.
        if entry.optime.ts > txn.last.ts:
            txn.append_accepted(raw, entry.optime, op=entry.op, ns=entry.ns, key=entry.key(), wall_ms=entry.wall_ms)
        done += 1
        size += len(raw)
        if size > MAX_GROUP_BYTES or (done % _CHECK_TIME_EVERY == 0 and is_time_up()):
            break
    return done


def _apply_inserts(txn: Txn, entries: Sequence[bytes], start: int, stop: int) -> tuple[int, int]:
    """Insert the new documents of a run of inserts into one collection, the fast path.

    Returns how many, and the bytes of their entries. 0: the first of entries[start:stop] needs the slow path.
    """
    run = InsertReader.of(entries[start])
    coll = None if run is None else txn.catalog.by_uuid.get(run.ui)
    if run is None or coll is None or coll.dropped_ts is not None:
        return 0, 0
    (last_term, last_ts), ns, size = txn.last, run.ns, 0
    documents: list[tuple[bytes, bytes]] = []
    rows: list[UnchainedRow] = []
    sessions: list[tuple[bytes, int] | None] = []
    for i in range(start, min(stop, start + MAX_RUN)):
        raw = entries[i]
        found = run.read(raw)
        if found is None or size > MAX_GROUP_BYTES:
            break
        doc, ts, term, wall_ms, extra = found
        session = read_extra(extra) if extra else None
        if ts <= last_ts or term < last_term or (extra and session is None) or doc[5:9] != _ID_FIRST:
            break
        key = document_key(doc)
        documents.append((key, doc))
        rows.append((ts, term, INSERT, ns, key, wall_ms, raw))
        sessions.append(session)
        last_term, last_ts = term, ts
        size += len(raw)
    if not rows or size > MAX_INTERNAL_SIZE:  # an entry may be too large: the slow path refuses it
        return 0, 0
    done = txn.insert_run(coll, documents, rows)
    for row, session in zip(rows[:done], sessions, strict=False):
        if session is not None:
            record_insert(txn, session, OpTime(row[1], row[0]), row[5])
    return done, size


def _updated_on_loop(before: bytes, o: RawDocument, known: Mapping[tuple[bytes, bytes], bytes]) -> bytes:
    """Call `apply_update_bytes` on the event loop. LargeUpdateError: the document is large, and not computed yet."""
    if not _is_large(before, o):
        return apply_update_bytes(before, o)
    after = known.get((o.raw, before))
    if after is None:
        raise LargeUpdateError(before, o)
    return after


def _is_large(before: bytes, o: RawDocument) -> bool:
    return max(len(before), len(o.raw)) > LARGE_DOCUMENT and o.type_of("$v") is not None


def evaluate_large(store: Store, large: LargeUpdateError) -> list[EvaluatedUpdate]:
    """Compute what the next entry makes of a large document, and of all others if it is a transaction's: for a thread.

    One by one, each of them would have the operations before it applied and taken back again.
    """
    found = [EvaluatedUpdate(large.before, large.o.raw, apply_update_bytes(large.before, large.o))]
    now: dict[tuple[bytes, bytes], bytes | None] = {}
    with suppress(SnapshotCutError), store.read() as snapshot:
        for operation in large.entry.operations if large.entry else ():
            uuid, key = operation.ui, operation.key()
            if uuid is None or key is None:
                continue
            place = uuid, key
            if operation.op == UPDATE:
                coll = snapshot.collection_by_uuid(uuid)
                if coll is not None and place not in now:
                    now[place] = snapshot.get(coll, key)
                before = now.get(place)
                if before is None or (coll is not None and coll.dropped_ts is not None):
                    continue
                now[place] = after = apply_update_bytes(before, operation.o)
                if _is_large(before, operation.o):
                    found.append(EvaluatedUpdate(before, operation.o.raw, after))
            else:
                now[place] = operation.o.raw if operation.op == INSERT else None
    return found


def apply_entry(txn: Txn, entry: OplogEntry, changed: UpdateFunction = apply_update_bytes) -> bool:
    """Apply one entry and add it to the oplog; False when it is there already, which changes nothing.

    changed: what an update entry makes of a document; nothing is written yet when it is called.
    """
    optime = entry.optime
    # The entry, its effect and its undo rows are committed together, so an entry that is not newer is here whole. A
    # second effect would write undo rows that hold the document as the entry left it, and a rollback would put that
    # back instead of what was there before. An entry that only goes back in time is left out too: then the page ends
    # with another chain than this oplog, and the fetcher says so (`Fetcher._apply_page`). (Map O8, O14.)
    if optime.ts <= txn.last.ts:
        return False
    wanted = image_of_entry(entry)
    image = _document_now(txn, entry) if wanted == "preImage" else None
    key = apply_effect(txn, entry, optime.ts, changed)
    if wanted == "postImage":
        image = _document_now(txn, entry)
    record_applied(txn, entry, image)
    txn.append_accepted(entry.raw, optime, op=entry.op, ns=entry.ns, key=key, wall_ms=entry.wall_ms)
    return True


def apply_effect(txn: Txn, entry: OplogEntry, ts: int, changed: UpdateFunction = apply_update_bytes) -> bytes | None:
    """Do what the entry says to documents and collections, with undo rows under `ts`; no oplog row.

    Returns the key of its document (encode_key of the `_id`), None for commands and no-ops.
    """
    match entry.op:
        case "i":
            doc = entry.o.raw
            key = document_key(doc)
            coll = _collection(txn, entry)
            if coll is not None and not txn.insert_new(coll, key, doc, ts):
                _replace(txn, coll, key, doc, ts)
            return key
        case "u":
            return _update(txn, entry, ts, changed)
        case "d":
            key = document_key(entry.o.raw)
            coll = _collection(txn, entry)
            before = None if coll is None else txn.get(coll, key)
            # Where a later entry has been applied already, the document may be gone. A delete of it changes nothing
            # then; to fail would stop this member at an entry that every other one has passed. (Map O8.)
            if coll is not None and before is not None:
                txn.remove(coll, key, ts=ts, before=before)
            return key
        case "c":
            _command(txn, entry, ts, changed)
            return None
        case "n":
            expire_applied(txn, entry.o, ts)
            return None
        case _:
            raise RemoteProtocolError(f"oplog entry {entry.optime} has op {entry.op!r}, which is not known here")


def document_key(doc: bytes) -> bytes:
    """encode_key of the document's `_id`. Where it is the first field, as in all that a primary writes, nothing else
    of the document is read. RemoteProtocolError when there is none.
    """
    if doc[5:9] == _ID_FIRST:
        return encode_key_of(doc, doc[4], 9, len(doc) - 1)
    view = RawDocument(doc)
    if "_id" not in view:
        raise RemoteProtocolError("an oplog entry without the _id of its document")
    return encode_key(view.get("_id"))


def _document_now(txn: Txn, entry: OplogEntry) -> bytes | None:
    """The document that the entry is about, as it is now."""
    coll, key = _collection(txn, entry), entry.key()
    return None if coll is None or key is None else txn.get(coll, key)


def _collection(txn: Txn, entry: OplogEntry) -> Collection | None:
    """The entry's collection, by UUID; None when it was dropped since, or never was."""
    uuid = entry.ui
    coll = None if uuid is None else txn.catalog.by_uuid.get(uuid)
    # A collection of the same name is another one if it has another UUID. By the name, a write to a collection that was
    # dropped would change the one that took its name.
    return coll if coll is not None and coll.dropped_ts is None else None


def _replace(txn: Txn, coll: Collection, key: bytes, doc: bytes, ts: int) -> None:
    before = txn.get(coll, key)
    if before != doc:
        txn.put(coll, key, doc, ts=ts, before=before)


def _update(txn: Txn, entry: OplogEntry, ts: int, changed: UpdateFunction) -> bytes:
    target = entry.o2
    if target is None:
        raise RemoteProtocolError(f"oplog entry {entry.optime} is an update without o2")
    key = document_key(target.raw)
    coll = _collection(txn, entry)
    before = None if coll is None else txn.get(coll, key)
    # As of a delete in `apply_effect`. Nor may the update insert what it can: the document would have the fields of
    # this update alone, and a document that the set has deleted would be back here. (Map O8.)
    if coll is not None and before is not None:
        after = changed(before, entry.o)
        if after != before:
            txn.put(coll, key, after, ts=ts, before=before)
    return key


def _command(txn: Txn, entry: OplogEntry, ts: int, changed: UpdateFunction) -> None:
    """Commands on collections and indexes, and a transaction's applyOps. The others are not made by any version that
    this one can replicate from.
    """
    o = entry.o
    name = o.first_key
    match name:
        case "create":
            _create(txn, entry, o, ts)
        case "drop":
            coll = _collection(txn, entry)
            if coll is not None:
                txn.drop_collection(coll, ts=ts)
        case "renameCollection":
            _rename(txn, entry, o, ts)
        case "collMod":
            _coll_mod(txn, entry, o, ts)
        case "applyOps":
            for operation in entry.operations:
                apply_effect(txn, operation, ts, changed)
        case name if name in index_ops.NAMES:
            coll = _collection(txn, entry)
            if coll is not None:
                index_ops.apply_index_entry(txn, entry, coll, ts)
        case "dropDatabase":
            for coll in list(txn.catalog.by_ns.values()):
                # Where later entries are applied already, the database may have new collections. Dropped here, they
                # would be missing on this member alone.
                if coll.database == entry.database and coll.created_ts < entry.optime.ts:
                    txn.drop_collection(coll, ts=ts)
        case _:
            raise RemoteProtocolError(f"oplog entry {entry.optime} has the command {name!r}, which is not known here")


def _create(txn: Txn, entry: OplogEntry, o: RawDocument, ts: int) -> None:
    uuid = entry.ui
    target = o.get("create")
    if uuid is None or not isinstance(target, str):
        raise RemoteProtocolError(f"oplog entry {entry.optime} creates a collection without a name or UUID")
    ns = f"{entry.database}.{target}"
    # Known: applied before. Name taken: a later entry dropped this one and made the other.
    if uuid not in txn.catalog.by_uuid and ns not in txn.catalog.by_ns:
        options = {name: value for name, value in o.top_level().items() if name not in ("create", "idIndex")}
        txn.create_collection(ns, uuid, options, ts=ts)


def _rename(txn: Txn, entry: OplogEntry, o: RawDocument, ts: int) -> None:
    coll = _collection(txn, entry)
    to = o.get("to")
    if not isinstance(to, str):
        raise RemoteProtocolError(f"oplog entry {entry.optime} renames a collection without its new name")
    if coll is None or coll.ns == to:
        return
    taken, dropped = txn.catalog.by_ns.get(to), o.get("dropTarget")
    if taken is not None:
        if not (isinstance(dropped, Binary) and bytes(dropped) == taken.uuid):
            return  # applied before, and a later entry gave the name to another collection
        txn.drop_collection(taken, ts=ts)
    txn.rename_collection(coll, to, ts=ts)


def _coll_mod(txn: Txn, entry: OplogEntry, o: RawDocument, ts: int) -> None:
    coll = _collection(txn, entry)
    if coll is None:
        return
    changes = {name: value for name, value in o.top_level().items() if name != "collMod"}
    index = changes.pop("index", None)
    if isinstance(index, RawDocument):
        index_changes = index.decode()
        name = index_changes.pop("name", None)
        for index in coll.indexes:
            if index.name == name:
                txn.change_index(index, changed_spec(index, index_changes), ts=ts)
    if changes:
        txn.set_options(coll, RawDocument(encode(changed_options(coll.options.top_level(), changes))), ts=ts)

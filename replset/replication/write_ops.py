"""Makes a primary's writes inside an open group: the change itself, and its oplog entry.

Each `do_` function writes exactly one entry and returns its optime, or None when there was nothing to do. Callers run
inside `Kernel.write`; documents come validated, with `_id` first. Secondaries do the same from the entry
(applier.py).
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from struct import Struct
from typing import NamedTuple

from replset.bson import Binary, RawDocument, decode, encode
from replset.bson.decoding import FIXED_SIZE, value_end
from replset.errors import ErrorCode, ReplError
from replset.ids import OpTime
from replset.oplog_entry import (
    INSERT,
    command_entry,
    delete_entry,
    insert_entries,
    insert_entry,
    noop_entry,
    update_entry,
)
from replset.query.diff import Targets, update_entry_object
from replset.replication.held_keys import NOTHING_HELD, HeldKeys
from replset.replication.session_write import SessionWrite
from replset.storage.catalog import Catalog, Collection
from replset.storage.indexes import Index, id_index_spec
from replset.storage.store import Store
from replset.storage.txn import Txn

MOST_REMOVED = 200
"""Documents that one insert into a capped collection removes."""
_int32 = Struct("<i").pack


class WriteGroup:
    """The open group commit as one write operation sees it. The operation runs on the event loop, without await.

    The member runs each operation behind a savepoint: an exception undoes that operation alone and goes to its caller.
    """

    __slots__ = ("held", "rng", "session_write", "term", "txn", "wall_ms")

    def __init__(self, txn: Txn, term: int, wall_ms: int, rng: random.Random, held: HeldKeys = NOTHING_HELD) -> None:
        """term: the primary's. wall_ms: the wall clock of all entries of this operation. rng: for new ids.

        held: documents that may not be written now; each write of one raises DocumentHeldError.
        """
        self.held = held
        self.txn = txn
        txn.refuses_duplicates = True
        self.term = term
        self.wall_ms = wall_ms
        self.rng = rng
        self.session_write: SessionWrite | None = None
        """Names the session and statement of the entries that follow. Who sets it clears it."""

    def next_optime(self) -> OpTime:
        return self.txn.next_optime(self.term, self.wall_ms)

    def new_uuid(self) -> bytes:
        """Return the 16 bytes of a random UUID (version 4) for a new collection."""
        return uuid.UUID(bytes=self.rng.randbytes(16), version=4).bytes


def id_document(doc: bytes) -> bytes:
    """The bytes of {_id: ...} of a document that begins with its `_id`."""
    size = FIXED_SIZE[doc[4]]
    end = 9 + size if size >= 0 else value_end(doc, doc[4], 9, len(doc) - 1, 4)
    element = doc[4:end]
    return b"".join((_int32(len(element) + 5), element, b"\0"))


def do_insert(group: WriteGroup, coll: Collection, key: bytes, doc: bytes) -> OpTime | None:
    """Insert; None, and nothing is done, when the key is there already. key: encode_key of the `_id`."""
    txn, wall_ms = group.txn, group.wall_ms
    if group.held:
        group.held.check(coll.uuid, key)
    optime = group.next_optime()
    if not txn.insert_new(coll, key, doc, optime.ts):
        return None
    ns, session = coll.ns, group.session_write
    extra = b"" if session is None else session.extra()
    txn.append(
        insert_entry(ns, coll.uuid, doc, optime, wall_ms, extra), optime, op="i", ns=ns, key=key, wall_ms=wall_ms
    )
    if session is not None:
        session.record(txn, optime, wall_ms)
    if coll.capped is not None:
        _remove_oldest(group, coll, *coll.capped)
    return optime


def do_inserts(
    group: WriteGroup, coll: Collection, documents: list[tuple[bytes, bytes]], statements: Sequence[int] = ()
) -> int:
    """Insert documents, (key, bytes) each, up to the first whose key is there already. Returns how many.

    Returns 0 where each document must be looked at: use `do_insert`. statements: their numbers, of a retryable write.
    """
    session = group.session_write
    extras: Iterable[bytes] = repeat(b"") if session is None else session.extras(statements, group.next_optime())
    return len(_insert_run(group, coll, documents, extras, repeat(session)))


def do_inserts_of(
    group: WriteGroup,
    coll: Collection,
    documents: list[tuple[bytes, bytes]],
    sessions: Sequence[SessionWrite | None],
) -> list[OpTime]:
    """Do as `do_inserts` for several writes of one document each, whose sessions these are. Returns their optimes."""
    extras = [b"" if session is None else session.extra() for session in sessions]
    return _insert_run(group, coll, documents, extras, sessions)


def _insert_run(
    group: WriteGroup,
    coll: Collection,
    documents: list[tuple[bytes, bytes]],
    extras: Iterable[bytes],
    sessions: Iterable[SessionWrite | None],
) -> list[OpTime]:
    if group.held or coll.capped is not None or coll.indexes:
        return []
    ns, term, wall_ms = coll.ns, group.term, group.wall_ms
    entries = insert_entries(ns, coll.uuid, [doc for _, doc in documents], group.next_optime(), wall_ms, extras)
    rows = [
        (ts, term, INSERT, ns, key, wall_ms, entry) for (key, _), (ts, entry) in zip(documents, entries, strict=True)
    ]
    done = group.txn.insert_run(coll, documents, rows)
    optimes = [OpTime(term, row[0]) for row in rows[:done]]
    for optime, session in zip(optimes, sessions, strict=False):
        if session is not None:
            session.record(group.txn, optime, wall_ms)
    return optimes


def _remove_oldest(group: WriteGroup, coll: Collection, most_bytes: int, most_documents: int) -> None:
    """Delete the oldest documents of a capped collection that has become too large, each by an entry of its own.

    So every member deletes the same ones, whatever it holds. The newest stays. One insert removes a bounded number, so
    that a large document does not hold the event loop; the inserts after it remove the rest.
    """
    documents, size = group.txn.capped_size(coll)
    session, group.session_write = group.session_write, None  # the deletes are not the client's
    try:
        for _ in range(MOST_REMOVED):
            if documents <= 1 or (size <= most_bytes and not 0 < most_documents < documents):
                break
            _, key, raw = next(group.txn.natural_scan(coll, rows=1))
            do_delete(group, coll, key, raw)
            documents, size = documents - 1, size - len(raw)
    finally:
        group.session_write = session


def update_object(
    before: dict[str, object],
    after: dict[str, object],
    after_bytes: bytes,
    *,
    is_replacement: bool | None = None,
    targets: Targets | None = None,
) -> bytes | None:
    """The `o` of the entry that turns `before` into `after`; None when they are the same. See update_entry_object."""
    o = update_entry_object(before, after, after_size=len(after_bytes), is_replacement=is_replacement, targets=targets)
    if o is None:
        return None
    return after_bytes if o is after else encode(o)


def do_update(
    group: WriteGroup,
    coll: Collection,
    key: bytes,
    before: bytes,
    after: bytes,
    o: bytes,
) -> OpTime:
    """Replace `before` by `after`. o: of the entry, from `update_object`."""
    txn, ns, wall_ms, session = group.txn, coll.ns, group.wall_ms, group.session_write
    if group.held:
        group.held.check(coll.uuid, key)
    optime = group.next_optime()
    extra = b"" if session is None else session.extra(has_image=True)
    entry = update_entry(ns, coll.uuid, id_document(before), o, optime, wall_ms, extra)
    txn.put(coll, key, after, ts=optime.ts, before=before)
    txn.append(entry, optime, op="u", ns=ns, key=key, wall_ms=wall_ms)
    if session is not None:
        session.record(txn, optime, wall_ms, before=before, after=after)
    return optime


def do_delete(group: WriteGroup, coll: Collection, key: bytes, before: bytes) -> OpTime:
    """Delete the document, whose bytes are `before`."""
    txn, ns, wall_ms, session = group.txn, coll.ns, group.wall_ms, group.session_write
    if group.held:
        group.held.check(coll.uuid, key)
    optime = group.next_optime()
    txn.remove(coll, key, ts=optime.ts, before=before)
    extra = b"" if session is None else session.extra(has_image=True)
    entry = delete_entry(ns, coll.uuid, id_document(before), optime, wall_ms, extra)
    txn.append(entry, optime, op="d", ns=ns, key=key, wall_ms=wall_ms)
    if session is not None:
        session.record(txn, optime, wall_ms, before=before)
    return optime


def do_create(
    group: WriteGroup, ns: str, options: Mapping[str, object] | None = None, uuid: bytes | None = None
) -> Collection:
    """Create the collection. uuid: None for a new one. NamespaceExistsError when the namespace is taken, 13297 when
    there is a database whose name differs in case only.
    """
    txn = group.txn
    check_case(txn.catalog, ns.partition(".")[0])
    if group.held:
        group.held.check(b"", ns.encode())
    database, _, name = ns.partition(".")
    given = dict(options or {})
    coll_uuid = uuid or group.new_uuid()
    optime = group.next_optime()
    coll = txn.create_collection(ns, coll_uuid, given, ts=optime.ts)
    o = {"create": name, **given, **({} if "viewOn" in given else {"idIndex": id_index_spec(coll.options)})}
    _append_command(group, database, coll_uuid, o, optime)
    return coll


class ReplicatedDocument(NamedTuple):
    """A document that the set keeps under one key. Its collection is made with it."""

    ns: str
    key: bytes

    def read(self, store: Store) -> bytes | None:
        """Return it as this member has it."""
        coll = store.collection(self.ns)
        return None if coll is None else store.get(coll, self.key)

    def read_in(self, txn: Txn) -> bytes | None:
        """Return it within a group."""
        coll = txn.catalog.by_ns.get(self.ns)
        return None if coll is None else txn.get(coll, self.key)

    def put(self, group: WriteGroup, after: bytes, *, anew: bool = False) -> None:
        """Insert it, or give it these bytes. anew: write an entry even if it has them already."""
        coll, before = group.txn.catalog.by_ns.get(self.ns) or do_create(group, self.ns), self.read_in(group.txn)
        if before is None:
            do_insert(group, coll, self.key, after)
        elif anew or before != after:
            do_update(group, coll, self.key, before, after, after)

    def revise(self, group: WriteGroup, before: bytes, document: dict[str, object]) -> None:
        """Make it `document`, by an entry that holds what differs from `before`, its bytes now."""
        after = encode(document)
        o = update_object(decode(before), document, after)
        if o is not None:
            do_update(group, group.txn.catalog.by_ns[self.ns], self.key, before, after, o)

    def remove(self, group: WriteGroup) -> bytes | None:
        """Delete it; return what it was, None if it was not there."""
        before = self.read_in(group.txn)
        if before is not None:
            do_delete(group, group.txn.catalog.by_ns[self.ns], self.key, before)
        return before


def check_case(catalog: Catalog, database: str) -> None:
    """Refuse a new database whose name another one has, but for the case of its letters (13297)."""
    known = {"admin", "config", "local", *(coll.database for coll in catalog.by_ns.values())}
    if database in known:
        return
    for name in sorted(known):
        if name.casefold() == database.casefold():
            raise ReplError(
                f"db already exists with different case already have: [{name}] trying to create [{database}]",
                code=ErrorCode.DATABASE_DIFFER_CASE,
            )


def do_drop(group: WriteGroup, coll: Collection) -> OpTime:
    """Drop the collection."""
    optime = group.next_optime()
    group.txn.drop_collection(coll, ts=optime.ts)
    _append_command(group, coll.database, coll.uuid, {"drop": coll.name}, optime)
    return optime


def do_drop_database(group: WriteGroup, database: str) -> OpTime | None:
    """Drop every collection of the database, one entry each, and say so; None if there is none."""
    leaving = [coll for coll in list(group.txn.catalog.by_ns.values()) if coll.database == database]
    for coll in leaving:
        do_drop(group, coll)
    if not leaving:
        return None
    optime = group.next_optime()
    _append_command(group, database, None, {"dropDatabase": 1}, optime)
    return optime


def do_rename(group: WriteGroup, coll: Collection, ns: str, target: Collection | None = None) -> OpTime:
    """Rename within a database. target: the collection that has the name now, and is dropped by the same entry."""
    optime = group.next_optime()
    o: dict[str, object] = {"renameCollection": coll.ns, "to": ns, "stayTemp": False}
    if target is not None:
        o["dropTarget"] = Binary(target.uuid, 4)
        group.txn.drop_collection(target, ts=optime.ts)
    group.txn.rename_collection(coll, ns, ts=optime.ts)
    _append_command(group, coll.database, coll.uuid, o, optime)
    return optime


IMAGES = "changeStreamPreAndPostImages"
OPTION_ORDER = (
    *("viewOn", "pipeline", "capped", "size", "max", "collation"),
    *("validator", "validationLevel", "validationAction", IMAGES),
)
"""The order of the options that a collection may have, so that equal ones are equal bytes."""
COLL_MOD_NAMES = {"cappedSize": "size", "cappedMax": "max"}
"""What collMod calls an option, where that differs."""
_NOTHING = {
    name: encode({name: value}) for name, value in (("validator", {}), ("temp", False), (IMAGES, {"enabled": False}))
}


def changed_options(options: Mapping[str, object], changes: Mapping[str, object]) -> dict[str, object]:
    """The options of a collection after a collMod. An empty validator is none, and so are `temp: false` and images
    that are not enabled. Documents in both may be RawDocuments: those of a validator take long to encode.
    """
    merged = {**options, **{COLL_MOD_NAMES.get(name, name): value for name, value in changes.items()}}
    for name in _NOTHING:
        if name in merged and encode({name: merged[name]}) == _NOTHING[name]:
            del merged[name]
    known = {name: merged.pop(name) for name in OPTION_ORDER if name in merged}
    return {**known, **merged}


def do_set_options(group: WriteGroup, coll: Collection, changes: Mapping[str, object]) -> OpTime:
    """Change options of a collection, as collMod names them."""
    optime = group.next_optime()
    before = coll.options
    after = changed_options(before.top_level(), changes)
    group.txn.set_options(coll, RawDocument(encode(after)), ts=optime.ts)
    _append_command(
        group, coll.database, coll.uuid, {"collMod": coll.name, **changes}, optime, o2={"collectionOptions_old": before}
    )
    return optime


def do_change_index(group: WriteGroup, coll: Collection, index: Index, changes: Mapping[str, object]) -> OpTime:
    """Change options of an index that leave its entries as they are."""
    optime = group.next_optime()
    old = {name: index.spec.get(name) for name in changes if name in index.spec}
    group.txn.change_index(index, changed_spec(index, changes), ts=optime.ts)
    _append_command(
        group,
        coll.database,
        coll.uuid,
        {"collMod": coll.name, "index": {"name": index.name, **changes}},
        optime,
        o2={"indexOptions_old": old},
    )
    return optime


def changed_spec(index: Index, changes: Mapping[str, object]) -> RawDocument:
    """The index's spec with these options; one that is false is left out, as it means nothing."""
    spec = {name: value for name, value in {**index.spec.decode(), **changes}.items() if value is not False}
    return RawDocument(encode(spec))


def do_noop(group: WriteGroup, o: Mapping[str, object]) -> OpTime:
    """Write a no-op entry with this `o`."""
    txn, wall_ms = group.txn, group.wall_ms
    optime = group.next_optime()
    txn.append(noop_entry(o, optime, wall_ms), optime, op="n", ns="", wall_ms=wall_ms)
    return optime


def _append_command(
    group: WriteGroup,
    database: str,
    uuid: bytes | None,
    o: Mapping[str, object],
    optime: OpTime,
    *,
    o2: Mapping[str, object] | None = None,
) -> None:
    entry = command_entry(database, uuid, o, optime, group.wall_ms, o2=o2)
    group.txn.append(entry, optime, op="c", ns=f"{database}.$cmd", wall_ms=group.wall_ms)

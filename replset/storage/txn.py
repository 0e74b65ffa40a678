"""Writes the documents, collections, oplog entries and undo rows of one group of operations.

All of a group commits in one SQLite transaction (store.py begins and ends it). Documents are written at once. Oplog and
undo rows, which nobody reads inside a group, are collected and written together at its end. When one operation fails,
the undo rows of the group take it back alone (`revert_to`), without a savepoint in SQLite.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import apsw

from replset.bson import MAX_ENTRY_SIZE, MAX_INTERNAL_SIZE, RawDocument, encode
from replset.errors import DataMismatchError, ErrorCode, NamespaceExistsError, ReplError, StorageError
from replset.ids import OPTIME_NULL, OpTime, invariant, pack_ts
from replset.oplog_row import StoredRow, UnchainedRow, stored_rows
from replset.query.collation import icu_version
from replset.storage import natural_order
from replset.storage.catalog import (
    SESSIONS,
    Catalog,
    Collection,
    capped_size,
    count_from_now_on,
    rename_collection,
    set_options,
    undo_rename,
)
from replset.storage.indexes import (
    ICU_VERSION,
    TO_THE_END,
    Index,
    id_index_spec,
    insert_index,
    restore_state,
    scan_index,
    set_index,
    state_before_creation,
    state_of,
    write_entries,
)
from replset.storage.schema import DOC as DOC_COLUMN
from replset.storage.schema import collection_table, collection_table_sql
from replset.storage.sqlite import PAGE_ROWS, first_row, page_of, rows_of

DOC, CREATE, DROP, INDEX, RENAME, COLL_MOD = "doc", "create", "drop", "index", "rename", "collMod"
UndoRow = tuple[int, int, str, bytes | None, bytes | None, bytes | None, int | None]
"""ts, seq, kind, coll, key, before, place. coll: None for the collection of sessions. place: of a deleted document, its
rowid.
"""
Meta = int | str | bytes | None


@dataclass(slots=True)
class NewestEntry:
    """The newest entry, to which the next one is chained."""

    optime: OpTime = OPTIME_NULL
    wall_ms: int = 0
    chain: int = 0


def revert(
    connection: apsw.Connection,
    catalog: Catalog,
    kind: str,
    coll: bytes | None,
    key: bytes | None,
    before: bytes | None,
    place: int | None,
) -> None:
    """Take one change back: the document, the collection or the index is then as it was before, in the same place.

    The newest change first. So the place of a deleted document is free when it comes back.
    """
    coll = SESSIONS.uuid if coll is None else coll
    if kind == DOC:
        table = collection_table(coll)
        indexes = catalog.by_uuid[coll].indexes
        if indexes:
            row = first_row(connection, f"SELECT {DOC_COLUMN} FROM {table} WHERE key = ?", (key,))
            if write_entries(connection, indexes, key or b"", None if row is None else row[0], before):
                catalog.reload_indexes(connection, coll)
        if before is None:
            connection.execute(f"DELETE FROM {table} WHERE key = ?", (key,))
        else:
            connection.execute(f"UPDATE {table} SET doc = ? WHERE key = ?", (before, key))
            if connection.changes() == 0:
                _put_back(connection, table, place, key, before)
    elif kind == CREATE:
        connection.execute("DELETE FROM catalog WHERE uuid = ?", (coll,))
        connection.execute(f"DROP TABLE {collection_table(coll)}")
        connection.execute("DELETE FROM capped WHERE coll = ?", (coll,))
        catalog.forget(coll)
    elif kind == INDEX:
        restore_state(connection, before or b"")
        catalog.reload_indexes(connection, coll)
    elif kind == RENAME:
        undo_rename(connection, catalog, coll, RawDocument(before or b""))
    elif kind == COLL_MOD:
        set_options(connection, catalog, coll, RawDocument(before or b""))
    else:
        if kind != DROP:
            raise DataMismatchError(f"undo knows no {kind!r}")
        connection.execute("UPDATE catalog SET dropped_ts = NULL WHERE uuid = ?", (coll,))
        catalog.put(replace(catalog.by_uuid[coll], dropped_ts=None))


def _put_back(connection: apsw.Connection, table: str, place: int | None, key: bytes | None, doc: bytes) -> None:
    """Insert a document in its place, or at the end where a document that only this disk has is there."""
    sql = f"INSERT INTO {table} (rowid, key, doc) VALUES (?, ?, ?)"
    try:
        connection.execute(sql, (place, key, doc))
    except apsw.ConstraintError:
        connection.execute(sql, (None, key, doc))


class Txn:
    """One open group. Only on the event loop's thread, and never across an await."""

    __slots__ = (
        "_base",
        "_known_sessions",
        "_meta_before",
        "_oplog",
        "_undo",
        "appended_bytes",
        "builds_indexes",
        "catalog",
        "connection",
        "last",
        "refuses_duplicates",
        "sessions",
    )

    def __init__(
        self,
        connection: apsw.Connection,
        catalog: Catalog,
        newest: NewestEntry,
        known_sessions: Mapping[bytes, bytes] | None = None,
    ) -> None:
        """known_sessions: committed records of sessions, by key, as far as they are in memory."""
        self.connection = connection
        self._known_sessions = known_sessions or {}
        self.sessions: dict[bytes, bytes | None] = {}
        """Records that this group writes, None: removes. They reach their table at its end, each once."""
        self.catalog = catalog
        self._base = newest
        self.last: OpTime = newest.optime
        """The newest optime, this group's entries included."""
        self.appended_bytes = 0
        self.builds_indexes = True
        """Whether entries that make indexes make them here (`buildIndexes` of the member)."""
        self.refuses_duplicates = False
        """Whether unique indexes refuse a key that another document has. Only a primary's own writes are refused: what
        is in the oplog is accepted."""
        self._oplog: list[UnchainedRow] = []
        self._undo: list[UndoRow] = []
        self._meta_before: list[tuple[str, Meta]] = []

    # --- entries

    def next_optime(self, term: int, wall_ms: int) -> OpTime:
        """The optime of the next entry: seconds of the wall clock, never behind the newest entry."""
        fresh = pack_ts(wall_ms // 1000, 1)
        last = self.last.ts
        return OpTime(term, fresh if fresh > last else last + 1)

    def append(self, entry: bytes, optime: OpTime, *, op: str, ns: str, key: bytes | None = None, wall_ms: int) -> None:
        """Add the entry to the oplog. key: encode_key of its document's _id, None for commands and no-ops.

        ReplError 257 for an entry over 16 MiB.
        """
        self._append(entry, optime, MAX_ENTRY_SIZE, op, ns, key, wall_ms)

    def append_accepted(
        self, entry: bytes, optime: OpTime, *, op: str, ns: str, key: bytes | None = None, wall_ms: int
    ) -> None:
        """Add an entry that another member or set wrote, as `append` does its own: it may have grown on its way."""
        self._append(entry, optime, MAX_INTERNAL_SIZE, op, ns, key, wall_ms)

    def _append(
        self, entry: bytes, optime: OpTime, most: int, op: str, ns: str, key: bytes | None, wall_ms: int
    ) -> None:
        last = self.last
        # Voters judge who has more by the newest entry, and readers ask for what follows an entry. An entry that went
        # back would be seen by neither.
        invariant(optime.ts > last.ts and optime.term >= last.term, "oplog entries only move forward")
        if len(entry) > most:
            raise ReplError(f"an oplog entry of {len(entry)} bytes is too large", code=ErrorCode.TRANSACTION_TOO_LARGE)
        self._oplog.append((optime.ts, optime.term, op, ns, key, wall_ms, entry))
        self.appended_bytes += len(entry)
        self.last = optime

    # --- documents

    def get(self, coll: Collection, key: bytes) -> bytes | None:
        row = first_row(self.connection, coll.sql_get, (key,))
        return None if row is None else row[0]

    def scan(
        self, coll: Collection, *, low: bytes = b"", high: bytes | None = None, backwards: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Read as Snapshot.scan does. Documents may be written meanwhile."""
        sql = key_sql(coll, backwards)
        high = TO_THE_END if high is None else high
        more = True
        while more:
            page, more = page_of(self.connection, sql, (low, high))
            yield from page
            if page and backwards:
                high = page[-1][0]
            elif page:
                low = next_key(page[-1][0])

    def natural_scan(
        self, coll: Collection, after: int | None = None, *, backwards: bool = False, rows: int = PAGE_ROWS
    ) -> Iterator[tuple[int, bytes, bytes]]:
        """See natural_order.documents. Documents may be written meanwhile."""
        return natural_order.documents(self.connection, coll, after, backwards, rows)

    def changed_keys(self, coll: Collection, after_ts: int) -> set[bytes]:
        """The keys of the documents that were written after `after_ts`, in this group or before. The undo must reach
        back to there.
        """
        # The plus keeps SQLite from the index by collection, which would read all undo of the collection.
        sql = f"SELECT key FROM undo WHERE ts > ? AND +coll = ? AND kind = '{DOC}'"
        keys = {key for (key,) in self.connection.execute(sql, (after_ts, coll.uuid))}
        for ts, _, kind, uuid, key, *_ in self._undo:
            if ts > after_ts and kind == DOC and uuid == coll.uuid and key is not None:
                keys.add(key)
        return keys

    def insert_new(self, coll: Collection, key: bytes, doc: bytes, ts: int) -> bool:
        """Insert a document; False, and nothing happens, when the key is there already.

        As in `put`, DuplicateKeyError and what `keys_of` raises refuse it for an index; nothing happens then.
        """
        indexes = self.catalog.by_uuid[coll.uuid].indexes
        if indexes:
            if self.get(coll, key) is not None:
                return False
            self._write_entries(coll, indexes, key, None, doc)
        try:
            self.connection.execute(coll.sql_insert, (key, doc))
        except apsw.ConstraintError:
            return False
        undo = self._undo
        undo.append((ts, len(undo), DOC, coll.uuid, key, None, None))
        return True

    def insert_run(
        self, coll: Collection, documents: Sequence[tuple[bytes, bytes]], rows: Sequence[UnchainedRow]
    ) -> int:
        """Insert documents, (key, bytes) each, with their entries, up to the first whose key is there already.

        Returns how many. rows: the entries, behind the newest one. As in `insert_new`, an index may refuse a document;
        those before it are inserted then. Others go to SQLite in one call, which costs half of one for each.
        """
        # total_changes counts what the triggers of a capped collection change, too. Documents behind one that is there
        # would be taken for inserted, and be missing here for ever.
        if coll.capped is not None or self.catalog.by_uuid[coll.uuid].indexes:
            return self._insert_one_by_one(coll, documents, rows)
        connection = self.connection
        changes = connection.total_changes()
        try:
            connection.executemany(coll.sql_insert, documents)
        except apsw.ConstraintError:
            rows = rows[: connection.total_changes() - changes]
        undo, uuid = self._undo, coll.uuid
        undo += [(row[0], seq, DOC, uuid, row[4], None, None) for seq, row in enumerate(rows, len(undo))]
        if rows:
            self._oplog += rows
            self.appended_bytes += sum([len(row[6]) for row in rows])
            self.last = OpTime(rows[-1][1], rows[-1][0])
        return len(rows)

    def _insert_one_by_one(
        self, coll: Collection, documents: Sequence[tuple[bytes, bytes]], rows: Sequence[UnchainedRow]
    ) -> int:
        for done, ((key, doc), (ts, term, op, ns, _, wall_ms, entry)) in enumerate(zip(documents, rows, strict=True)):
            if not self.insert_new(coll, key, doc, ts):
                return done
            self.append(entry, OpTime(term, ts), op=op, ns=ns, key=key, wall_ms=wall_ms)
        return len(rows)

    def put(self, coll: Collection, key: bytes, doc: bytes, *, ts: int, before: bytes | None) -> None:
        """Write a document. before: its bytes as they are now, None when it is not there."""
        indexes = self.catalog.by_uuid[coll.uuid].indexes
        if indexes:
            self._write_entries(coll, indexes, key, before, doc)
        if before is None:
            self.connection.execute(coll.sql_insert, (key, doc))
        else:
            self.connection.execute(coll.sql_update, (doc, key))
            if self.connection.changes() != 1:
                raise DataMismatchError(f"a document of {coll.ns} was there, and cannot be replaced")
        self._undo.append((ts, len(self._undo), DOC, coll.uuid, key, before, None))

    def remove(self, coll: Collection, key: bytes, *, ts: int, before: bytes) -> None:
        """Delete a document. before: its bytes as they are now."""
        indexes = self.catalog.by_uuid[coll.uuid].indexes
        if indexes:
            self._write_entries(coll, indexes, key, before, None)
        removed = list(rows_of(self.connection, coll.sql_delete, (key,)))
        if len(removed) != 1:
            raise DataMismatchError(f"a document of {coll.ns} was there, and cannot be removed")
        self._undo.append((ts, len(self._undo), DOC, coll.uuid, key, before, removed[0][0]))

    def _write_entries(
        self, coll: Collection, indexes: tuple[Index, ...], key: bytes, before: bytes | None, after: bytes | None
    ) -> None:
        unique_in = coll.ns if self.refuses_duplicates else None
        if write_entries(self.connection, indexes, key, before, after, unique_in=unique_in):
            self.catalog.reload_indexes(self.connection, coll.uuid)

    # --- indexes

    def create_index(self, coll: Collection, spec: RawDocument, *, build: bytes | None = None, ts: int) -> Index:
        """Make an index: ready at once with build=None, for an empty collection; else under build.

        Of a collection that is not empty after all the caller fills it in this group.
        """
        id_ = insert_index(self.connection, coll.uuid, spec, build, is_whole=build is None)
        self._undo.append((ts, len(self._undo), INDEX, coll.uuid, None, state_before_creation(id_), None))
        self.catalog.reload_indexes(self.connection, coll.uuid)
        made = next(index for index in self.catalog.by_uuid[coll.uuid].indexes if index.id == id_)
        if made.fold is not None and self.meta(ICU_VERSION) is None:
            self.set_meta(ICU_VERSION, icu_version())
        return made

    def commit_index(self, index: Index, *, ts: int) -> None:
        """Let queries use an index that holds all documents."""
        if index.position is not None:
            raise DataMismatchError(f"index {index.name} is committed and does not hold all documents")
        self._change_index(index, "ready", 1, ts)

    def drop_index(self, index: Index, *, ts: int) -> None:
        """Hide the index. Its entries stay as they are, and are removed once this is committed (retention.py)."""
        self._change_index(index, "dropped_ts", ts, ts)

    def change_index(self, index: Index, spec: RawDocument, *, ts: int) -> None:
        """Give the index other options that leave its entries as they are: hidden, expireAfterSeconds."""
        self._change_index(index, "spec", spec.raw, ts)

    def _change_index(self, index: Index, column: str, value: object, ts: int) -> None:
        before = state_of(self.connection, index.id)
        set_index(self.connection, index, column, value)
        self._undo.append((ts, len(self._undo), INDEX, index.coll, None, before, None))
        self.catalog.reload_indexes(self.connection, index.coll)

    def index_scan(
        self,
        index: Index,
        low: bytes,
        high: bytes | None,
        *,
        after: tuple[bytes, bytes] | None = None,
        limit: int,
        backwards: bool = False,
    ) -> list[tuple[bytes, bytes]]:
        """Read this group's state as Snapshot.index_scan does a snapshot's."""
        return scan_index(self.connection, index, low, high, after=after, limit=limit, backwards=backwards)

    # --- records of sessions

    def session(self, key: bytes) -> bytes | None:
        """The record of a session (sessions.py); None when there is none."""
        if key in self.sessions:
            return self.sessions[key]
        return self._known_sessions.get(key) or self.get(SESSIONS, key)

    def put_session(self, key: bytes, record: bytes | None, *, ts: int) -> None:
        """Write or, with None, remove the record of a session."""
        undo, place = self._undo, None
        if record is None:  # a read at an earlier point finds it in its place, as one of a document
            row = first_row(self.connection, f"SELECT rowid FROM {SESSIONS.table} WHERE key = ?", (key,))
            place = None if row is None else row[0]
        undo.append((ts, len(undo), DOC, None, key, self.session(key), place))
        self.sessions[key] = record

    # --- collections

    def collection(self, ns: str) -> Collection | None:
        return self.catalog.by_ns.get(ns)

    def create_collection(
        self, ns: str, uuid: bytes, options: Mapping[str, object] | RawDocument, *, ts: int
    ) -> Collection:
        """Make an empty collection. uuid: 16 bytes. NamespaceExistsError when the namespace is taken."""
        if ns in self.catalog.by_ns:
            raise NamespaceExistsError(f"collection {ns} already exists")
        coll = Collection(ns, uuid, RawDocument(encode(options)), ts)
        self.connection.execute(
            "INSERT INTO catalog (uuid, ns, options, created_ts) VALUES (?, ?, ?, ?)", (uuid, ns, coll.options.raw, ts)
        )
        self.connection.execute(collection_table_sql(uuid))
        if coll.capped is not None:
            count_from_now_on(self.connection, coll)
        self.catalog.put(coll)
        self._undo.append((ts, len(self._undo), CREATE, uuid, None, None, None))
        if coll.fold is not None and coll.view_on is None and self.builds_indexes:
            self.create_index(coll, RawDocument(encode(id_index_spec(coll.options))), ts=ts)
        return self.catalog.by_uuid[uuid]

    def rename_collection(self, coll: Collection, ns: str, *, ts: int) -> None:
        """Give the collection another name. NamespaceExistsError when it is taken."""
        before = rename_collection(self.connection, self.catalog, coll.uuid, ns, ts)
        self._undo.append((ts, len(self._undo), RENAME, coll.uuid, None, before, None))

    def set_options(self, coll: Collection, options: RawDocument, *, ts: int) -> None:
        """Give the collection other options. Whether it is capped stays as it is."""
        before = set_options(self.connection, self.catalog, coll.uuid, options)
        self._undo.append((ts, len(self._undo), COLL_MOD, coll.uuid, None, before, None))

    def capped_size(self, coll: Collection) -> tuple[int, int]:
        """See collection_changes.capped_size, of this group's state."""
        return capped_size(self.connection, coll)

    def drop_collection(self, coll: Collection, *, ts: int) -> None:
        """Hide the collection. Its documents are removed once the drop is committed (retention.py)."""
        self.connection.execute("UPDATE catalog SET dropped_ts = ? WHERE uuid = ?", (ts, coll.uuid))
        self.catalog.put(replace(self.catalog.by_uuid[coll.uuid], dropped_ts=ts))
        self._undo.append((ts, len(self._undo), DROP, coll.uuid, None, None, None))

    # --- meta: a few named values (int, str or bytes) that travel with the data and that undo leaves alone

    def meta(self, name: str) -> Meta:
        return read_meta(self.connection, name)

    def set_meta(self, name: str, value: Meta) -> None:
        """None removes it."""
        self._meta_before.append((name, self.meta(name)))
        write_meta(self.connection, name, value)

    # --- failing alone

    def mark(self) -> tuple[int, int, int, OpTime]:
        """Return a position in the group for `revert_to`."""
        return len(self._undo), len(self._oplog), len(self._meta_before), self.last

    def entries_since(self, mark: tuple[int, int, int, OpTime]) -> list[bytes]:
        """The entries that were appended since `mark`."""
        return [row[6] for row in self._oplog[mark[1] :]]

    def revert_to(self, mark: tuple[int, int, int, OpTime]) -> None:
        """Take back everything since `mark`. StorageError when SQLite ended the transaction itself: fail the group."""
        # After some errors (a full disk, no memory) SQLite ends the transaction. What this group wrote is gone then,
        # and each later statement would be committed at once: documents without their entry and without undo.
        if not self.connection.in_transaction:
            raise StorageError("SQLite gave the transaction up after an error")
        undo, oplog, meta, last = mark
        for _ts, _seq, kind, coll, key, before, place in reversed(self._undo[undo:]):
            if coll is None:
                self.sessions[key or b""] = before
            else:
                revert(self.connection, self.catalog, kind, coll, key, before, place)
        for name, value in reversed(self._meta_before[meta:]):
            write_meta(self.connection, name, value)
        del self._undo[undo:], self._oplog[oplog:], self._meta_before[meta:]
        self.last = last

    # --- the end

    @property
    def has_entries(self) -> bool:
        """Whether the group holds an oplog entry by now; the newest is at `last`."""
        return bool(self._oplog)

    @property
    def changed(self) -> bool:
        return bool(self._oplog or self._undo or self._meta_before)

    def flush(self) -> list[StoredRow]:
        """Write what was collected; returns the rows that entered the oplog. Called once, just before COMMIT."""
        rows = stored_rows(self._oplog, self._base.chain)
        self._check(rows)
        if rows:
            self.connection.executemany("INSERT INTO oplog VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
            self._note_terms(rows)
        if self._undo:
            self.connection.executemany("INSERT INTO undo VALUES (?, ?, ?, ?, ?, ?, ?)", self._undo)
        if self.sessions:
            self._write_sessions()
        return rows

    def _check(self, rows: list[StoredRow]) -> None:
        """Check what later steps rely on, before anything of the group is committed."""
        base, newest = self._base.optime, self._base.optime
        if rows:
            ts, term, *_ = rows[0]
            # Two entries of one ts, or one that goes back, would give this member another oplog than the others have.
            invariant(ts > base.ts and term >= base.term, "a group goes on behind the newest entry")
            newest = OpTime(rows[-1][1], rows[-1][0])
        invariant(self.last == newest, "the newest optime is that of the group's last entry")
        # A rollback takes back the undo rows of the entries that it removes. A row under any other ts would stay, or go
        # with another entry, and the document would keep what no entry says.
        invariant(
            {row[0] for row in rows}.issuperset([row[0] for row in self._undo]),
            "each undo row belongs to an entry of its group",
        )

    def _write_sessions(self) -> None:
        written = [row for row in self.sessions.items() if row[1] is not None]
        removed = [(key,) for key, record in self.sessions.items() if record is None]
        upsert = f"{SESSIONS.sql_insert} ON CONFLICT (key) DO UPDATE SET doc = excluded.doc"
        delete = f"DELETE FROM {SESSIONS.table} WHERE key = ?"
        for sql, values in ((upsert, written), (delete, removed)):
            if values:
                self.connection.executemany(sql, values)

    def _note_terms(self, rows: list[StoredRow]) -> None:
        last_term, last_ts = self._base.optime
        if rows[-1][1] == last_term:
            return
        for ts, term, *_ in rows:
            if term != last_term:
                self.connection.execute("UPDATE terms SET last_ts = ? WHERE term = ?", (last_ts, last_term))
                self.connection.execute("INSERT INTO terms (term, first_ts) VALUES (?, ?)", (term, ts))
            last_term, last_ts = term, ts


def key_sql(coll: Collection, backwards: bool) -> str:
    """The statement for a page of (key, document) in the order of keys, from one key to before another."""
    order = "DESC" if backwards else "ASC"
    return f"SELECT key, {DOC_COLUMN} FROM {coll.table} WHERE key >= ? AND key < ? ORDER BY key {order} LIMIT ?"


def next_key(key: bytes) -> bytes:
    """The first string of bytes behind this one."""
    return key + b"\0"


def read_meta(connection: apsw.Connection, name: str) -> Meta:
    row = first_row(connection, "SELECT value FROM meta WHERE name = ?", (name,))
    return None if row is None else row[0]


def write_meta(connection: apsw.Connection, name: str, value: Meta) -> None:
    if value is None:
        connection.execute("DELETE FROM meta WHERE name = ?", (name,))
    else:
        connection.execute(
            "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (name, value),
        )

"""Reads documents, now or as they were at an earlier point.

A `Snapshot` is one SQLite read transaction on its own connection: nothing that commits later shows in it. Reads at a
point C overlay, for each document written after C, the earliest undo row with ts > C. Documents come in the order of
their keys or in natural order, so a scan can go on later, from another snapshot at the same C, after the last key or
place that was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from types import TracebackType
from typing import Any, TypeVar

import apsw

from replset.errors import (
    CatalogChangedError,
    NamespaceNotFoundError,
    QueryPlanKilledError,
    SnapshotCutError,
    SnapshotTooOldError,
)
from replset.ids import OPTIME_NULL, OpTime
from replset.oplog_row import OplogRow
from replset.storage import natural_order, oplog
from replset.storage.catalog import SESSIONS, Collection, load_collection
from replset.storage.indexes import Index, has_entry, scan_index
from replset.storage.schema import IS_MISTYPED, KEY
from replset.storage.sqlite import PAGE_ROWS, page_of, rows_of, storage_error
from replset.storage.txn import Meta, key_sql, next_key, read_meta

_ABSENT = object()
_BEFORE = "CAST(before AS BLOB)"
_CHANGES = 1000
"""Writes that one call of `changed_documents` looks at."""
_SESSION_CHANGES = 2000
"""Undo rows behind a point at which records of sessions can still be read. No index finds those of one session."""
_MANY_CHANGES = f"SELECT 1 FROM undo WHERE ts > ? LIMIT 1 OFFSET {_SESSION_CHANGES}"
_LAST = (1 << 63) - 1
_ABOVE_ALL = b"\xff"
"""No key begins so (bson/keystring.py): it is behind them all."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a collection takes: documents, their bytes, the bytes of its table's pages and of each index's."""

    count: int
    data: int
    table: int
    indexes: dict[str, int]


def _trees(coll: Collection) -> tuple[str, ...]:
    """The names of the trees that hold the collection and its indexes."""
    return (coll.table, _id_tree(coll), *[index.table for index in coll.indexes if index.ready])


def _id_tree(coll: Collection) -> str:
    """The index on `_id`, as SQLite names it."""
    return f"sqlite_autoindex_{coll.table}_1"


class Snapshot:
    """One read transaction; a context manager. At most one thread at a time, any thread.

    `at` below is the point C of the read, None for the newest state of this snapshot. Raised by the reads:
    SnapshotTooOldError when the undo for C is gone; CatalogChangedError when the collection was created after C;
    NamespaceNotFoundError when it is gone; SnapshotCutError when the store cut the snapshot off; StorageError.
    """

    def __init__(self, connection: apsw.Connection, path: str, on_done: Callable[[Snapshot, bool], None]) -> None:
        """Begins at once. on_done: called when it ends; True when the connection can be used for another one."""
        self.connection = connection
        self._path = path
        self._on_done = on_done
        self._cut = False
        self._ended = False
        self._collections: dict[bytes, Collection | None] = {}
        self._newest: OpTime | None = None
        connection.execute("BEGIN")
        pruned = read_meta(connection, "pruned_through")
        self.pruned_through: int = pruned if isinstance(pruned, int) else 0

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if isinstance(error, apsw.Error):
            raise self._failure(error) from error

    def close(self) -> None:
        """End the read transaction. Nothing happens the second time."""
        if self._ended:
            return
        self._ended = True
        is_reusable = not self._cut
        try:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
        except apsw.Error:
            is_reusable = False
        self._on_done(self, is_reusable)

    def cut(self) -> None:
        """End the read transaction from outside, in the middle of a read too. Called by the store."""
        self._cut = True
        try:
            self.connection.interrupt()
            self.connection.execute("ROLLBACK")
        except apsw.Error:
            return  # another thread is inside a call, which the interrupt ends; its owner closes the snapshot

    # --- what there is

    @property
    def newest(self) -> OpTime:
        """The newest entry in this snapshot."""
        if self._newest is None:
            rows = self._execute("SELECT term, ts FROM oplog ORDER BY ts DESC LIMIT 1", ())
            self._newest = OpTime(*rows[0]) if rows else OPTIME_NULL
        return self._newest

    def collection(self, ns: str, at: OpTime | None = None) -> Collection | None:
        """The collection of that name. CatalogChangedError when it was created, dropped or renamed after `at`."""
        found = SESSIONS if ns == SESSIONS.ns else None
        if at is not None:
            ((renamed,),) = self._execute("SELECT max(ts) FROM name_changes WHERE ns = ?", (ns,))
            if renamed is not None and renamed > at.ts:
                raise CatalogChangedError(f"{ns} was renamed after {at}", until=renamed)
        for uuid, created, dropped in self._execute(
            "SELECT uuid, created_ts, dropped_ts FROM catalog WHERE ns = ?", (ns,)
        ):
            changed = max(created, dropped or 0)
            if at is not None and changed > at.ts:
                raise CatalogChangedError(f"{ns} was created or dropped after {at}", until=changed)
            if dropped is None:
                found = self._known(uuid)
        return found

    def _known(self, uuid: bytes) -> Collection | None:
        if uuid not in self._collections:
            self._collections[uuid] = self._query(lambda: load_collection(self.connection, uuid))
        return self._collections[uuid]

    def _prepare(self, coll: Collection, at: OpTime | None) -> int | None:
        """Checks that `coll` can be read at `at`; the ts after which undo counts, None when there is none."""
        known = self._known(coll.uuid)
        if known is None:
            raise NamespaceNotFoundError(f"collection {coll.ns} was dropped")
        if at is None:
            return None
        # Without its undo, a document that was written since would be shown as it is now. A majority read would show
        # what is not committed, and a cursor documents of two moments.
        if at.ts < self.pruned_through:
            raise SnapshotTooOldError(f"the state at {at} is no longer kept; the oldest is {self.pruned_through}")
        if known.created_ts > at.ts:
            raise CatalogChangedError(f"{coll.ns} was created after {at}", until=known.created_ts)
        if at.ts >= self.newest.ts:
            return None
        if coll.uuid == SESSIONS.uuid and self._execute(_MANY_CHANGES, (at.ts,)):
            raise SnapshotTooOldError(f"{coll.ns} can be read as of its newest {_SESSION_CHANGES} changes, not at {at}")
        return at.ts

    def collection_by_uuid(self, uuid: bytes) -> Collection | None:
        """Return a collection, also one that is dropped but not yet removed."""
        return self._known(uuid)

    def meta(self, name: str) -> Meta:
        """One of the named values that travel with the data; see Txn.set_meta."""
        return self._query(lambda: read_meta(self.connection, name))

    def touched_after(self, since_ts: int, after: tuple[bytes, bytes] | None, limit: int) -> list[tuple[bytes, bytes]]:
        """(collection, key) of the documents written after `since_ts`, each once, ordered; on from `after`.

        Records of sessions are left out: nobody wrote them by themselves. Walks the undo that is kept: for a worker.
        """
        uuid, key = after or (b"", b"")
        return self._execute(
            "SELECT DISTINCT coll, key FROM undo"
            " WHERE (coll, key) > (?, ?) AND coll >= ? AND key IS NOT NULL AND ts > ?"
            " ORDER BY coll, key LIMIT ?",
            (uuid, key, uuid, since_ts, limit),
        )

    def written_after(self, since_ts: int, after: tuple[str, bytes] | None, limit: int) -> list[tuple[str, bytes]]:
        """(namespace, key) of the documents in oplog entries after `since_ts`, each once, ordered; on from `after`.

        As `touched_after`, of what the undo does not know any more, slower: each page walks all those entries.
        """
        return self._execute(
            "SELECT DISTINCT ns, key FROM oplog WHERE ts > ? AND key IS NOT NULL AND (ns, key) > (?, ?)"
            " ORDER BY ns, key LIMIT ?",
            (since_ts, *(after or ("", b"")), limit),
        )

    # --- documents

    def get(self, coll: Collection, key: bytes, at: OpTime | None = None) -> bytes | None:
        """The document with this key (encode_key of its _id); None when there is none."""
        since = self._prepare(coll, at)
        if since is not None:
            rows = self._execute(
                f"SELECT {_BEFORE} FROM undo WHERE {coll.sql_in_undo} AND key = ? AND ts > ? ORDER BY ts, seq LIMIT 1",
                (coll.uuid, key, since),
            )
            if rows:
                before: bytes | None = rows[0][0]
                return before
        rows = self._execute(coll.sql_get, (key,))
        return rows[0][0] if rows else None

    def is_written_after(self, coll: Collection, key: bytes, at: OpTime) -> bool:
        """Whether an entry after `at` wrote the document. `at` must be pinned."""
        sql = "SELECT 1 FROM undo WHERE coll = ? AND key = ? AND ts > ? LIMIT 1"
        return bool(self._execute(sql, (coll.uuid, key, at.ts)))

    def scan(
        self,
        coll: Collection,
        at: OpTime | None = None,
        *,
        low: bytes = b"",
        high: bytes | None = None,
        backwards: bool = False,
        rows: int = PAGE_ROWS,
        pauses: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        """(key, document) with low <= key < high in the order of keys; high: None for no end.

        backwards: the greatest first. To go on behind a key, begin at `next_key` of it, or backwards end at it.
        rows: that are read at once. pauses: give a key without a document, b"", after many that came later than `at`.
        """
        since = self._prepare(coll, at)
        return self._scan(coll, since, low, _ABOVE_ALL if high is None else high, backwards, rows, pauses)

    def _scan(
        self, coll: Collection, since: int | None, low: bytes, high: bytes, backwards: bool, rows: int, pauses: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        sql = key_sql(coll, backwards)
        more = True
        while more:
            page, more = self._query(lambda: page_of(self.connection, sql, (low, high), rows))  # noqa: B023 - runs at once
            begin, end = low, high
            if more and backwards:
                begin = high = page[-1][0]
            elif more:
                end = low = next_key(page[-1][0])
            if since is not None:
                last = page[-1:]
                page = self._overlay(coll, since, begin, end, page, backwards)
                if pauses and more and not page:
                    page = [(key, b"") for key, _ in last]
            yield from page

    def _overlay(
        self,
        coll: Collection,
        since: int,
        low: bytes,
        high: bytes,
        page: list[tuple[bytes, bytes]],
        backwards: bool,
    ) -> list[tuple[bytes, bytes]]:
        """The documents with low <= key < high as they were at `since`. page: those that are there now."""
        earliest: dict[bytes, bytes | None] = {}
        for key, before in self._execute(
            f"SELECT key, {_BEFORE} FROM undo WHERE {coll.sql_in_undo} AND key >= ? AND key < ? AND ts > ?"
            " ORDER BY key, ts, seq",
            (coll.uuid, low, high, since),
        ):
            earliest.setdefault(key, before)
        if not earliest:
            return page
        merged: dict[bytes, bytes | None] = {**dict(page), **earliest}
        return [(key, doc) for key, doc in sorted(merged.items(), reverse=backwards) if doc is not None]

    def natural_scan(
        self,
        coll: Collection,
        at: OpTime | None = None,
        *,
        after: int | None = None,
        backwards: bool = False,
        rows: int = PAGE_ROWS,
    ) -> Iterator[tuple[int, bytes, bytes]]:
        """(place, key, document) in the order in which they were inserted, behind the place `after`.

        With `at` also places without a document, b"": see natural_order.pages.
        """
        return chain.from_iterable(self.natural_pages(coll, at, after=after, backwards=backwards, rows=rows))

    def natural_pages(
        self,
        coll: Collection,
        at: OpTime | None = None,
        *,
        after: int | None = None,
        backwards: bool = False,
        rows: int = PAGE_ROWS,
    ) -> Iterator[list[tuple[int, bytes, bytes]]]:
        """Do as `natural_scan`, and give the rows together that were read together."""
        since = self._prepare(coll, at)
        pages = natural_order.pages(self.connection, coll, since, after, backwards, rows)
        while (page := self._query(lambda: next(pages, None))) is not None:
            if page:
                yield page

    def versions_at(self, coll: Collection, key: bytes, ts: int, number: int = 0) -> list[bytes | None]:
        """The document before and behind the write of this number in the entry `ts`; None where there was none.

        Empty if that entry did not write it so often, or the undo does not reach back to it.
        """
        at = f"SELECT {_BEFORE} FROM undo WHERE coll = ? AND key = ? AND ts = ? ORDER BY seq LIMIT 2 OFFSET ?"
        versions: list[bytes | None] = [before for (before,) in self._execute(at, (coll.uuid, key, ts, number))]
        if len(versions) == 1:
            later = f"SELECT {_BEFORE} FROM undo WHERE coll = ? AND key = ? AND ts > ? ORDER BY ts, seq LIMIT 1"
            rows = self._execute(later, (coll.uuid, key, ts)) or self._execute(coll.sql_get, (key,))
            versions.append(rows[0][0] if rows else None)
        return versions

    def place_of(self, coll: Collection, key: bytes) -> int | None:
        """The place of the document with this key, as it is now; None when there is none."""
        rows = self._execute(f"SELECT rowid FROM {coll.table} WHERE key = ?", (key,))
        return rows[0][0] if rows else None

    def count(self, coll: Collection, at: OpTime | None = None) -> int:
        """How many documents there are. Walks the keys: not for the event loop when the collection is large."""
        since = self._prepare(coll, at)
        total = int(self._execute(f"SELECT count(*) FROM {coll.table}", ())[0][0])
        if since is None:
            return total
        previous: object = _ABSENT
        rows = self._execute(
            f"SELECT u.key, u.before IS NOT NULL, EXISTS (SELECT 1 FROM {coll.table} d WHERE d.key = u.key)"
            f" FROM undo u WHERE {coll.sql_in_undo} AND u.key IS NOT NULL AND u.ts > ? ORDER BY u.key, u.ts, u.seq",
            (coll.uuid, since),
        )
        for key, was, is_now in rows:
            if key != previous:
                total += was - is_now
            previous = key
        return total

    def sizes(self, coll: Collection) -> Sizes:
        """What the collection and its indexes take. Walks them: for a worker."""
        self._prepare(coll, None)
        ((count, data),) = self._execute(f"SELECT count(*), total(length(doc)) FROM {coll.table}", ())
        known = self._known(coll.uuid) or coll
        indexes = {"_id_": self._bytes_of(_id_tree(coll))}
        for index in known.indexes:
            if index.ready:
                indexes[index.name] = indexes.get(index.name, 0) + self._bytes_of(index.table)
        return Sizes(count, int(data), self._bytes_of(coll.table), indexes)

    def bytes_on_disk(self, coll: Collection) -> int:
        """What the collection takes with its indexes; 0 when it was dropped. Walks their pages: for a worker."""
        known = self._known(coll.uuid)
        return 0 if known is None else self._bytes_of(*_trees(known))

    def all_bytes_on_disk(self, collections: Iterable[Collection]) -> list[int]:
        """Return the `bytes_on_disk` of each, in one walk over all pages of the database.

        To find one table by its name, SQLite reads the whole schema. For a thousand collections that takes seconds.
        """
        sizes = dict(self._execute("SELECT name, pgsize FROM dbstat WHERE aggregate = 1", ()))
        return [sum(sizes.get(tree, 0) for tree in _trees(coll)) for coll in collections]

    def _bytes_of(self, *trees: str) -> int:
        """The bytes of all pages of tables and indexes of SQLite."""
        marks = ", ".join("?" * len(trees))
        sql = f"SELECT total(pgsize) FROM dbstat WHERE name IN ({marks}) AND aggregate = 1"
        return int(self._execute(sql, trees)[0][0])

    def unchanged_range(
        self, coll: Collection, at: OpTime, low: bytes, high: bytes | None, rows: int, size: int
    ) -> tuple[bytes, bool] | None:
        """The last key of the documents from `low` on, up to so many rows, or the one with which they have more bytes
        than `size`; and whether there may be more. None: one of them was written after `at`, or there is none.
        """
        since, high = self._prepare(coll, at), _ABOVE_ALL if high is None else high
        sql = (
            "SELECT max(key), count(*), max(before + size) FROM (SELECT key, size, sum(size) OVER (ORDER BY key ROWS"
            f" UNBOUNDED PRECEDING) - size AS before FROM (SELECT key, length(doc) AS size FROM {coll.table}"
            " WHERE key >= ? AND key < ? ORDER BY key LIMIT ?)) WHERE before <= ?"
        )
        ((last, count, total),) = self._execute(sql, (low, high, rows, size))
        if last is None:
            return None
        is_full = count == rows or total > size
        if since is not None:
            end = next_key(last) if is_full else high
            later = f"SELECT 1 FROM undo WHERE {coll.sql_in_undo} AND key >= ? AND key < ? AND ts > ? LIMIT 1"
            if self._execute(later, (coll.uuid, low, end, since)):
                return None
        return last, is_full

    def range_text(self, coll: Collection, low: bytes, last: bytes) -> tuple[int, int, str, bool]:
        """How many documents there are from one key to another, their bytes, all keys and documents in hex, and whether
        some of the rows say that they are no bytes.
        """
        sql = (
            "SELECT count(*), total(length(doc)), group_concat(hex(key) || ':' || hex(doc)),"
            f" max({IS_MISTYPED}) FROM (SELECT key, doc FROM {coll.table} WHERE key >= ? AND key <= ? ORDER BY key)"
        )
        ((count, size, text, is_mistyped),) = self._execute(sql, (low, last))
        return count, int(size), text or "", bool(is_mistyped)

    def mistyped(self, coll: Collection, low: bytes, high: bytes) -> set[bytes]:
        """The keys from `low` to before `high` whose rows say that they are no bytes: a disk has changed a bit of them.

        All reads take them for the bytes that they were.
        """
        self._prepare(coll, None)
        sql = f"SELECT {KEY} FROM {coll.table} WHERE key >= ? AND key < ? AND {IS_MISTYPED}"
        return {key for (key,) in self._execute(sql, (low, high))}

    # --- indexes

    def with_indexes(self, coll: Collection, at: OpTime) -> Collection:
        """The collection without its indexes if one of them was made, changed or dropped after `at`.

        Documents of that time may be such that the index does not find them.
        """
        sql = "SELECT 1 FROM undo WHERE coll = ? AND key IS NULL AND ts > ? LIMIT 1"
        if coll.indexes and self._execute(sql, (coll.uuid, at.ts)):
            return replace(coll, indexes=())
        return coll

    def index_count(self, index: Index, low: bytes, high: bytes) -> int:
        """How many entries there are with low <= keystring < high. For a worker. QueryPlanKilledError when the index is
        gone.
        """
        self._check_index(index)
        sql = f"SELECT count(*) FROM {index.table} WHERE keystring >= ? AND keystring < ?"
        return int(self._execute(sql, (low, high))[0][0])

    def changed_documents(
        self, coll: Collection, at: OpTime, after: tuple[int, int] | None
    ) -> tuple[list[tuple[bytes, bytes]], tuple[int, int], bool]:
        """(key, document as it was at `at`) of some documents written since, how far this call looked, and whether
        there is more.

        Each once, in the order of their first writes, without those that were not there. after: how far the call before
        looked, maybe in an older snapshot.
        """
        begin = after or (at.ts, _LAST)
        last = self._execute(
            f"SELECT ts, seq FROM undo WHERE (ts, seq) > (?, ?) ORDER BY ts, seq LIMIT 1 OFFSET {_CHANGES}", begin
        )
        # The plus keeps SQLite from the index by collection, which would read all undo of the collection.
        end: tuple[int, int] = last[0] if last else (self.newest.ts, _LAST)
        rows = self._execute(
            f"SELECT CAST(key AS BLOB), {_BEFORE} FROM undo AS u WHERE (ts, seq) > (?, ?) AND (ts, seq) <= (?, ?)"
            " AND +coll = ? AND key IS NOT NULL AND before IS NOT NULL AND NOT EXISTS (SELECT 1 FROM undo AS e"
            " WHERE e.coll = u.coll AND e.key = u.key AND e.ts > ? AND e.ts <= u.ts"
            " AND (e.ts, e.seq) < (u.ts, u.seq)) ORDER BY ts, seq",
            (*begin, *end, coll.uuid, at.ts),
        )
        return rows, end, bool(last)

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
        """(keystring, key) with low <= keystring < high as they are now, in order, on from `after`.

        high: None for no end. backwards: the greatest first. Keystrings of whole values are no prefixes of each other:
        all that begin with `p` lie from p to p + TO_THE_END. QueryPlanKilledError when the index is gone.
        """
        self._check_index(index)
        return self._query(
            lambda: scan_index(self.connection, index, low, high, after=after, limit=limit, backwards=backwards)
        )

    def has_index_entry(self, index: Index, keystring: bytes, key: bytes) -> bool:
        """Whether the index holds this very entry. QueryPlanKilledError when the index is gone."""
        self._check_index(index)
        return self._query(lambda: has_entry(self.connection, index, keystring, key))

    def _check_index(self, index: Index) -> None:
        coll = self._known(index.coll)
        if coll is None or not any((index.id, index.spec) == (known.id, known.spec) for known in coll.indexes):
            raise QueryPlanKilledError(f"query plan killed :: caused by :: index '{index.name}' dropped")

    # --- oplog

    def oplog_after(
        self, after: OpTime, *, limit: int, max_bytes: int, ns: str | None = None, op: str | None = None
    ) -> list[OplogRow]:
        """Rows newer than `after`, oldest first. OPTIME_NULL: from the oldest there is. CappedPositionLostError."""
        trimmed = self.meta("trimmed_through")
        if after != OPTIME_NULL and isinstance(trimmed, int) and after.ts < trimmed:
            raise oplog.trimmed_error(after)
        return self._query(
            lambda: oplog.rows_after(self.connection, after.ts, limit=limit, max_bytes=max_bytes, ns=ns, op=op)
        )

    def entries_after(self, after_ts: int) -> int:
        """How many oplog entries there are after `after_ts`. Walks them: for a worker."""
        return int(self._execute("SELECT count(*) FROM oplog WHERE ts > ?", (after_ts,))[0][0])

    def check_chain(self, after_ts: int, limit: int) -> int | None:
        """See oplog.check_chain: one slice of the re-hash."""
        return self._query(lambda: oplog.check_chain(self.connection, self._path, after_ts=after_ts, limit=limit))

    def check_newest(self, entries: int) -> None:
        """Check hash and chain of so many of the newest entries. DamagedEntryError."""
        newest = "SELECT min(ts) FROM (SELECT ts FROM oplog ORDER BY ts DESC LIMIT ?)"
        self.check_chain(self._execute(newest, (entries,))[0][0] or 0, entries)

    # --- inside

    def _execute(self, sql: str, values: tuple[object, ...]) -> list[Any]:
        """All rows, in one call: a connection that goes back to others has no statement half done."""
        return self._query(lambda: list(rows_of(self.connection, sql, values)))

    def _query(self, read: Callable[[], T]) -> T:
        """Return what `read` returns, unless the snapshot was cut off before or meanwhile.

        After that the connection reads a later state, and the answer would mix two points in time.
        """
        self._check_alive()
        try:
            found = read()
        except apsw.Error as error:
            raise self._failure(error) from error
        self._check_alive()
        return found

    def _check_alive(self) -> None:
        if self._cut or self._ended:
            raise SnapshotCutError("the read was cut off; read again")

    def _failure(self, error: apsw.Error) -> Exception:
        if self._cut:
            return SnapshotCutError("the read was cut off; read again")
        return storage_error(error, self._path)

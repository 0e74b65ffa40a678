"""Reads documents in natural order, that of the inserts. A document's place is its rowid in its collection's table.

An update keeps the place. The undo row of a delete keeps it too, so that a rollback puts the document back there, and
a read at an earlier point C finds it there. All members insert in the order of the oplog, so all have the same order.
"""

from __future__ import annotations

from collections.abc import Iterator

import apsw

from replset.storage.catalog import Collection
from replset.storage.schema import DOC, KEY, SESSIONS_UUID
from replset.storage.sqlite import PAGE_BYTES, PAGE_ROWS, first_row, page_of, rows_of

Row = tuple[int, bytes, bytes]
"""place, key, document."""
_FIRST, _LAST = -(1 << 63), (1 << 63) - 1
_EARLIEST = "ORDER BY ts, seq LIMIT 1"


def documents(
    connection: apsw.Connection, coll: Collection, after: int | None, backwards: bool, rows: int
) -> Iterator[Row]:
    """(place, key, document) as they are now, behind the place `after`. backwards: the last one first."""
    for page in pages(connection, coll, None, after, backwards, rows):
        yield from page


def pages(
    connection: apsw.Connection,
    coll: Collection,
    since: int | None,
    after: int | None,
    backwards: bool,
    rows: int = PAGE_ROWS,
) -> Iterator[list[Row]]:
    """Give `documents` in pages of at most `rows`, some 256 KiB; as they were at the ts `since`, None for now.

    Where nothing was there at `since`, a page holds one place without a document (b""): the reader may pause there.
    """
    beyond, order = ("<", "DESC") if backwards else (">", "ASC")
    later = f"EXISTS (SELECT 1 FROM undo WHERE {coll.sql_in_undo} AND key = d.key AND ts > ?), "
    changed, values = ("", ()) if since is None else (later, (coll.uuid, since))
    sql = (
        f"SELECT {changed}rowid, {KEY}, {DOC} FROM {coll.table} AS d"
        f" WHERE rowid {beyond} ? ORDER BY rowid {order} LIMIT ?"
    )
    place = (_LAST if backwards else _FIRST) if after is None else after
    more = True
    while more:
        page, more = page_of(connection, sql, (*values, place), rows)
        if since is not None:
            view = _Earlier(connection, coll, since)
            page, more, place = view.page(page, more, place, backwards)
            if more and not page:
                page = [(place, b"", b"")]
        elif page:
            place = page[-1][0]
        yield page


class _Earlier:
    """One collection as it was at `since`."""

    def __init__(self, connection: apsw.Connection, coll: Collection, since: int) -> None:
        self._connection = connection
        self._uuid = coll.uuid
        self._in_undo = None if coll.uuid == SESSIONS_UUID else coll.uuid  # see schema.py
        self._since = since
        self._later = f"FROM undo WHERE {coll.sql_in_undo} AND key = ? AND ts > ?"

    def page(
        self, now: list[tuple[int, int, bytes, bytes]], more: bool, after: int, backwards: bool
    ) -> tuple[list[Row], bool, int]:
        """Return the page as it was, whether there may be more, and the place behind which the next one begins.

        now: rows with whether they were changed since, of the places behind `after`.
        """
        end = now[-1][1] if more else (_FIRST if backwards else _LAST)
        found: list[Row] = []
        size = 0
        places = self._places_of_deletes(after, end, backwards)
        for place in places:
            row = self._deleted_from(place)
            if row is not None:
                found.append(row)
                size += len(row[2])
            if size > PAGE_BYTES or (place == places[-1] and len(places) == PAGE_ROWS):
                end, more = place, True
                break
        for is_changed, place, key, doc in now:
            if (place < end) if backwards else (place > end):
                break
            was = self._as_it_was(key) if is_changed else doc
            if was is not None:
                found.append((place, key, was))
        found.sort(reverse=backwards)
        return found, more, end

    def _places_of_deletes(self, after: int, end: int, backwards: bool) -> list[int]:
        low, high = (end, after - 1) if backwards else (after + 1, end)
        sql = (
            "SELECT DISTINCT place FROM undo WHERE coll IS ? AND place IS NOT NULL AND place BETWEEN ? AND ? AND ts > ?"
            f" ORDER BY place {'DESC' if backwards else 'ASC'} LIMIT {PAGE_ROWS}"
        )
        return [place for (place,) in rows_of(self._connection, sql, (self._in_undo, low, high, self._since))]

    def _deleted_from(self, place: int) -> Row | None:
        """The document that had this place and was deleted since. It was the first one that was deleted from there."""
        sql = f"SELECT ts, seq, key FROM undo WHERE coll IS ? AND place = ? AND ts > ? {_EARLIEST}"
        ts, seq, key = first_row(self._connection, sql, (self._in_undo, place, self._since))
        first_delete = f"SELECT ts, seq {self._later} AND place IS NOT NULL {_EARLIEST}"
        if first_row(self._connection, first_delete, (self._uuid, key, self._since)) != (ts, seq):
            return None  # it was elsewhere before
        before = self._earliest(key)
        return None if before is None else (place, key, before)

    def _as_it_was(self, key: bytes) -> bytes | None:
        """A document that is there now, None if it was not there, or elsewhere: it was deleted and came back."""
        moved = f"SELECT 1 {self._later} AND place IS NOT NULL LIMIT 1"
        is_moved = first_row(self._connection, moved, (self._uuid, key, self._since)) is not None
        return None if is_moved else self._earliest(key)

    def _earliest(self, key: bytes) -> bytes | None:
        sql = f"SELECT CAST(before AS BLOB) {self._later} {_EARLIEST}"
        row = first_row(self._connection, sql, (self._uuid, key, self._since))
        before: bytes | None = row[0]
        return before

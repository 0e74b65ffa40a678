"""Makes oplogs in members' files without members, as large and as wrong as a test wants them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa

from replset.bson import encode, encode_key
from replset.ids import OpTime, pack_ts
from replset.oplog_entry import insert_entry
from replset.oplog_row import CHAIN_START, COLUMNS, OplogRow, UnchainedRow, chained_rows
from replset.storage import DATABASE_FILE
from replset.storage.schema import DATA_SCHEMA, statements_of
from spark.oplog import ALL, Bounds, EntryFilter, Span
from spark.readers.rows import Row, batch_of, batched, chosen

T0 = 1_760_000_000
UUID = b"u" * 16


def insert(
    number: int, *, ns: str = "shop.orders", term: int = 1, per_second: int = 2000, text: str = "x"
) -> UnchainedRow:
    """The entry number `number` (from 0) of a plain history: document {_id: number, text}, one insert each."""
    seconds = T0 + number // per_second
    optime, wall_ms = OpTime(term, pack_ts(seconds, 1 + number % per_second)), seconds * 1000
    entry = insert_entry(ns, UUID, encode({"_id": number, "text": text}), optime, wall_ms)
    return (optime.ts, term, "i", ns, encode_key(number), wall_ms, entry)


def write_oplog(folder: Path, pending: Iterable[UnchainedRow], *, trimmed_through: int = 0) -> Path:
    """A dbpath whose oplog holds these entries, hashed and chained; the folder itself."""
    return write_rows(folder, _chained(pending), trimmed_through=trimmed_through)


def write_rows(folder: Path, rows: Iterable[OplogRow], *, trimmed_through: int = 0) -> Path:
    """The same from finished rows, which may be wrong on purpose."""
    folder.mkdir(parents=True, exist_ok=True)
    terms: dict[int, list[int]] = {}

    def noted() -> Iterator[OplogRow]:
        for row in rows:
            span = terms.setdefault(row.term, [row.ts, row.ts])
            span[1] = row.ts
            yield row

    with closing(sqlite3.connect(folder / DATABASE_FILE)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=OFF")
        for statement in statements_of(DATA_SCHEMA, 0):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version={len(DATA_SCHEMA.steps)}")
        connection.execute(f"PRAGMA application_id={DATA_SCHEMA.application_id}")
        connection.executemany(f"INSERT INTO oplog({COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?)", noted())
        newest = max(terms, default=0)
        spans = [(term, first, None if term == newest else last) for term, (first, last) in terms.items()]
        connection.executemany("INSERT INTO terms VALUES (?,?,?)", spans)
        if trimmed_through:
            connection.execute("INSERT INTO meta VALUES ('trimmed_through', ?)", (trimmed_through,))
        connection.commit()
    return folder


def _chained(pending: Iterable[UnchainedRow]) -> Iterator[OplogRow]:
    chain, left = CHAIN_START, iter(pending)
    while block := list(islice(left, 10_000)):
        rows = chained_rows(block, chain)
        chain = rows[-1].chain
        yield from rows


def change(path: Path | str, sql: str, *values: object) -> int:
    """Run a statement on a file behind its member's back; how many rows it changed."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(sql, values)
        connection.commit()
        return connection.total_changes


def append(folder: Path, pending: Iterable[UnchainedRow], *, keep: int | None = None) -> None:
    """More entries behind the newest; with `keep` behind the first `keep` of them: the member rolled back."""
    with closing(sqlite3.connect(folder / DATABASE_FILE)) as connection:
        if keep is not None:
            nth = "SELECT ts FROM oplog ORDER BY ts LIMIT 1 OFFSET ?"
            connection.execute(f"DELETE FROM oplog WHERE ts >= ({nth})", [keep])
        newest = connection.execute("SELECT chain FROM oplog ORDER BY ts DESC LIMIT 1").fetchone()
        rows = chained_rows(pending, newest[0] if newest else CHAIN_START)
        connection.executemany(f"INSERT INTO oplog({COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?)", rows)
        connection.commit()


def trim(folder: Path, through: int) -> None:
    """The entries up to this ts are gone, as a capped oplog gives them up."""
    change(folder / DATABASE_FILE, "DELETE FROM oplog WHERE ts <= ?", through)
    change(folder / DATABASE_FILE, "INSERT OR REPLACE INTO meta VALUES ('trimmed_through', ?)", through)


@dataclass(frozen=True, slots=True)
class ListOplog:
    """An oplog in memory, which may hold what no file can: rows in any order, and an optime twice."""

    name: str
    rows: Sequence[OplogRow]
    batch_rows: int = 1000

    def pin(self) -> ListOplog:
        return self

    def bounds(self) -> Bounds:
        if not self.rows:
            return Bounds()
        oldest = min(self.rows, key=lambda row: row.ts)
        newest = max(reversed(self.rows), key=lambda row: row.ts)  # of several with this timestamp the last
        return Bounds(oldest.optime, newest.optime, len(self.rows))

    def count(self, span: Span) -> int:
        return sum(span.first_ts <= row.ts < span.end_ts for row in self.rows)

    def split(self, span: Span, parts: int) -> list[Span]:
        stamps = sorted(row.ts for row in self.rows if span.first_ts < row.ts < span.end_ts)
        cuts = sorted({stamps[len(stamps) * number // parts] for number in range(1, parts) if stamps})
        return [Span(*ends) for ends in zip([span.first_ts, *cuts], [*cuts, span.end_ts], strict=True)]

    def read(self, span: Span, columns: Sequence[str], only: EntryFilter = ALL) -> Iterator[pa.RecordBatch]:
        rows = (Row(*row) for row in self.rows if span.first_ts <= row.ts < span.end_ts)
        for some in batched(chosen(rows, only), self.batch_rows):
            yield batch_of(some, columns)

"""A member's database file, the member running or not, read through ADBC's SQLite driver.

Only ever in another process than the member's. Opens `mode=ro`; a read transaction lasts as long as one span is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from adbc_driver_manager import Error as AdbcError
from adbc_driver_sqlite import dbapi

from replset.ids import OpTime
from replset.storage.layout import DATA_APPLICATION_ID, DATABASE_FILE
from spark.columns import FIELDS, arrow_schema
from spark.places import ALL, Bounds, Only, PlaceError, PlaceTrimmedError, Span

_BATCH_ROWS = 16_384
_SECOND = 1 << 31


@dataclass(frozen=True, slots=True)
class SqlitePlace:
    """`path`: of the database file."""

    name: str
    path: str

    def bounds(self) -> Bounds:
        with self._connect() as connection:
            oldest = self._one(connection, "SELECT term, ts FROM oplog ORDER BY ts LIMIT 1")
            newest = self._one(connection, "SELECT term, ts FROM oplog ORDER BY ts DESC LIMIT 1")
            if oldest is None or newest is None:
                return Bounds(trimmed_through=self._trimmed(connection))
            first, last = OpTime(*oldest), OpTime(*newest)
            return Bounds(first, last, self._estimate(connection), self._trimmed(connection))

    def split(self, span: Span, parts: int) -> list[Span]:
        bounds = self.bounds()
        begin = max(span.first_ts, bounds.oldest.ts)
        end = min(span.end_ts, bounds.newest.ts + 1)
        if parts < 2 or end - begin < parts:
            return [span]
        cuts = [begin + (end - begin) * number // parts for number in range(1, parts)]
        return [Span(*pair) for pair in zip([span.first_ts, *cuts], [*cuts, span.end_ts], strict=True)]

    def read(self, span: Span, columns: Sequence[str], only: Only = ALL) -> Iterator[pa.RecordBatch]:
        # The driver takes a column's type from the first batch, so a key that is null there must not be null here.
        shown = ", ".join("coalesce(key, x'') AS key" if name == "key" else name for name in columns)
        where, values = _chosen(span, only)
        sql = f"SELECT {shown} FROM oplog WHERE {where} ORDER BY ts"
        with self._connect() as connection:
            trimmed = self._trimmed(connection)
            if trimmed >= span.first_ts > 0:
                raise PlaceTrimmedError(self.name, f"the oplog up to {trimmed} was trimmed away")
            try:
                with connection.cursor() as cursor:
                    cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": _BATCH_ROWS})
                    cursor.execute(sql, values)
                    for batch in cursor.fetch_record_batch():
                        yield _typed(batch, columns)
            except (AdbcError, pa.ArrowInvalid) as error:
                raise PlaceError(self.name, error) from error

    def _connect(self) -> dbapi.Connection:
        if not Path(self.path).is_file():
            raise PlaceError(self.name, f"{self.path} does not exist")
        try:
            connection = dbapi.connect(f"{Path(self.path).absolute().as_uri()}?mode=ro")
            found = self._one(connection, "PRAGMA application_id")
        except AdbcError as error:
            raise PlaceError(self.name, error) from error
        if found is None or found[0] != DATA_APPLICATION_ID:
            connection.close()
            raise PlaceError(self.name, f"{self.path} is no member's database")
        return connection

    def _one(self, connection: dbapi.Connection, sql: str) -> tuple[int, ...] | None:
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql)
                row: tuple[int, ...] | None = cursor.fetchone()
                return row
        except AdbcError as error:
            raise PlaceError(self.name, error) from error

    def _trimmed(self, connection: dbapi.Connection) -> int:
        row = self._one(connection, "SELECT CAST(value AS INTEGER) FROM meta WHERE name = 'trimmed_through'")
        return 0 if row is None else row[0]

    def _estimate(self, connection: dbapi.Connection) -> int:
        row = self._one(connection, "SELECT count(*) FROM oplog")
        return 0 if row is None else row[0]


def database_file(place: str) -> Path | None:
    """The database file of a dbpath, or `place` itself when it is a file; None when there is none."""
    path = Path(place)
    found = path / DATABASE_FILE if path.is_dir() else path
    return found if found.is_file() else None


def _chosen(span: Span, only: Only) -> tuple[str, list[int | str]]:
    """The condition and its values."""
    where = "ts >= ? AND ts < ?"
    values: list[int | str] = [span.first_ts, span.end_ts, *only.ns, *only.op]
    for column, wanted in (("ns", only.ns), ("op", only.op)):
        if wanted:
            where += f" AND {column} IN ({', '.join('?' * len(wanted))})"
    return where, values


def _typed(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """The driver's types made ours: an empty result has none, keys that are empty are null."""
    arrays = []
    for name, array in zip(columns, batch.columns, strict=True):
        typed = array if array.type == FIELDS[name] else array.cast(FIELDS[name])
        if name == "key":
            typed = pc.if_else(pc.equal(pc.binary_length(typed), 0), pa.scalar(None, pa.binary()), typed)
        arrays.append(typed)
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))

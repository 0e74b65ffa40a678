"""The columns of an oplog as tables show it, one row an entry; the same for Arrow, Spark and every kind of member."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

MEMBER = "member"
FIELDS = {
    "ts": pa.int64(),  # seconds * 2**31 + increment
    "term": pa.int64(),
    "op": pa.string(),
    "ns": pa.string(),
    "key": pa.binary(),  # encode_key of the document's _id; null where the entry is about no document
    "wall": pa.int64(),  # milliseconds since 1970
    "hash": pa.int64(),  # xxh3_64 of entry, signed
    "chain": pa.int64(),  # xxh3_64 of the previous chain and hash, signed; null where the source keeps none
    "entry": pa.binary(),  # the entry's BSON
}
COLUMNS = tuple(FIELDS)
_SPARK_NAMES = {pa.int64(): "bigint", pa.string(): "string", pa.binary(): "binary", pa.bool_(): "boolean"}
SPARK_TYPES = {MEMBER: "string", **{name: _SPARK_NAMES[kind] for name, kind in FIELDS.items()}}
SPARK_SCHEMA = ", ".join(f"{name} {kind}" for name, kind in SPARK_TYPES.items())


def arrow_schema(columns: Sequence[str] = COLUMNS) -> pa.Schema:
    """Of these columns, in this order; `member` among them or not."""
    return pa.schema([(name, pa.string() if name == MEMBER else FIELDS[name]) for name in columns])


def ddl_of(schema: pa.Schema) -> str:
    """Write an Arrow schema as Spark does."""
    return ", ".join(f"{field.name} {_spark_type(field.type)}" for field in schema)


def _spark_type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"array<{_spark_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {_spark_type(field.type)}' for field in kind)}>"
    return _SPARK_NAMES[kind]


def schema_of(names: str, **others: pa.DataType) -> pa.Schema:
    """A schema of columns of 64-bit numbers, but for those of another type."""
    return pa.schema([(name, others.get(name, pa.int64())) for name in names.split()])


def batch_from(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    """The rows, values in the order of the schema, as one batch."""
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def table_from(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.Table:
    """The same as a table."""
    return pa.Table.from_batches([batch_from(rows, schema)])


def tuples_of(table: pa.Table) -> Iterable[tuple[Any, ...]]:
    """The rows, values in the order of the columns."""
    return zip(*table.to_pydict().values(), strict=True)


def repeated(value: str | int, times: int) -> pa.Array:
    """A column with one value: text, or 64-bit numbers."""
    return pa.repeat(pa.scalar(value, pa.string() if isinstance(value, str) else pa.int64()), times)


def sorted_by(table: pa.Table, *names: str) -> pa.Table:
    """The rows, rising by these columns."""
    return table.sort_by([(name, "ascending") for name in names])

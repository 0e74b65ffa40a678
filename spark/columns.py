"""The columns of an oplog as tables show it, one row an entry; the same for Arrow, Spark and every kind of member."""

from __future__ import annotations

from collections.abc import Sequence

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
_SPARK_NAMES = {pa.int64(): "bigint", pa.string(): "string", pa.binary(): "binary"}
SPARK_TYPES = {MEMBER: "string", **{name: _SPARK_NAMES[kind] for name, kind in FIELDS.items()}}
SPARK_SCHEMA = ", ".join(f"{name} {kind}" for name, kind in SPARK_TYPES.items())


def arrow_schema(columns: Sequence[str] = COLUMNS) -> pa.Schema:
    """Of these columns, in this order; `member` among them or not."""
    return pa.schema([(name, pa.string() if name == MEMBER else FIELDS[name]) for name in columns])

"""The rows of a segment as a Parquet file, with the columns that oplog-spark reads. Only this file needs pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from replset.errors import BadValueError, CorruptDataError
from replset.oplog_row import OplogRow, first_damaged

_GROUP_BYTES = 1 << 20
"""Of entries in a row group: a reader of a part of a segment reads little more than it needs."""
_NAMES = ("ts", "term", "op", "ns", "key", "wall", "hash", "chain", "entry")


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise BadValueError(
            "an archive needs the package pyarrow (pip install '.[archive]' in the clone of replset)"
        ) from error
    return pyarrow, pyarrow.parquet


def encode_rows(rows: Sequence[OplogRow]) -> bytes:
    """Return a Parquet file; equal rows give equal bytes under one version of pyarrow."""
    pa, pq = _pyarrow()
    whole, text, binary = pa.int64(), pa.string(), pa.binary()
    schema = pa.schema(zip(_NAMES, (whole, whole, text, text, binary, whole, whole, whole, binary), strict=True))
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        for group in _groups(rows):
            columns = zip(zip(*group, strict=True), schema, strict=True)
            arrays = [pa.array(values, field.type) for values, field in columns]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _groups(rows: Sequence[OplogRow]) -> list[list[OplogRow]]:
    groups: list[list[OplogRow]] = [[]]
    size = 0
    for row in rows:
        if groups[-1] and size + len(row.entry) > _GROUP_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(row)
        size += len(row.entry)
    return groups


def decode_rows(data: bytes, where: str, chain: int | None) -> list[OplogRow]:
    """Read and check all rows of a segment. chain: before its first row, None where that is unknown.

    where: for the message of a CorruptDataError.
    """
    pa, pq = _pyarrow()
    try:
        table = pq.read_table(pa.BufferReader(data), columns=list(_NAMES), use_threads=False)
        rows = [OplogRow._make(row) for row in zip(*(table.column(name).to_pylist() for name in _NAMES), strict=True)]
        damaged = first_damaged(rows, chain)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, pa.ArrowException) as error:
        raise CorruptDataError(f"{where} holds no oplog: {str(error).splitlines()[0]:.200}") from error
    if damaged is not None:
        raise CorruptDataError(f"{where}: the entry {rows[damaged].optime} is not the one that was written")
    return rows

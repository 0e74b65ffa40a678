"""The result of a `diff` as plain rows, for comparisons over engines, partitions and workers."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from spark.reports.diff.classify import Diff

TABLES = ("members", "pairs", "entries", "by_namespace", "by_document")


def all_rows(found: Diff[Any]) -> dict[str, Any]:
    """Rows in their order, by table, and the facts about the whole."""
    return {
        **{name: rows(getattr(found, name)) for name in TABLES},
        "verdicts": [str(verdict) for verdict in found.verdicts],
        "trimmed": found.trimmed,
        "same": found.same,
    }


def rows(table: Any) -> list[dict[str, Any]]:
    """Of a DataFrame or an Arrow table."""
    if isinstance(table, pa.Table):
        return table.to_pylist()
    return [
        {name: bytes(value) if isinstance(value, bytearray) else value for name, value in row.asDict(True).items()}
        for row in table.collect()
    ]

"""Which rows and columns of an Arrow table a read wants."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from spark.oplog import EntryFilter, Span


def columns_for(columns: Sequence[str], only: EntryFilter) -> list[str]:
    """Those to read, so that `rows_in` can choose rows."""
    by_choice = [name for name, wanted in (("ns", only.ns), ("op", only.op)) if wanted]
    return list(dict.fromkeys([*columns, "ts", *by_choice]))


def rows_in(table: pa.Table, span: Span, only: EntryFilter) -> pa.Table:
    ts = table.column("ts")
    mask = pc.and_(pc.greater_equal(ts, span.first_ts), pc.less(ts, span.end_ts))
    for name, wanted in (("ns", only.ns), ("op", only.op)):
        if wanted:
            mask = pc.and_(mask, pc.is_in(table.column(name), pa.array(wanted, pa.string())))
    return table.filter(mask)

"""A pinned place whose hashes are those of the entries' bytes, computed anew, and not the ones that it stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from replset.oplog_row import entry_hash
from spark.columns import arrow_schema
from spark.oplog import ALL, Bounds, EntryFilter, Oplog, Span


@dataclass(frozen=True, slots=True)
class Rehashed:
    """Costs the reading of every entry: a stored hash is a number beside it."""

    oplog: Oplog

    @property
    def name(self) -> str:
        return self.oplog.name

    def pin(self) -> Rehashed:
        return self

    def bounds(self) -> Bounds:
        return self.oplog.bounds()

    def count(self, span: Span) -> int:
        return self.oplog.count(span)

    def split(self, span: Span, parts: int) -> list[Span]:
        return self.oplog.split(span, parts)

    def read(self, span: Span, columns: Sequence[str], only: EntryFilter = ALL) -> Iterator[pa.RecordBatch]:
        asked = [name for name in columns if name != "hash"]
        if "hash" in columns and "entry" not in asked:
            asked.append("entry")
        for batch in self.oplog.read(span, asked, only):
            if "hash" not in columns:
                yield batch
                continue
            hashes = [entry_hash(entry) for entry in batch.column(asked.index("entry")).to_pylist()]
            arrays = [
                pa.array(hashes, pa.int64()) if name == "hash" else batch.column(asked.index(name)) for name in columns
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))

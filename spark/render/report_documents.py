"""What the documents of all reports are made of. docs/spark.md describes their shapes.

Rows come from Spark's DataFrames or from Arrow tables alike. The caller bounds their number: what may be as long as an
oplog goes to `--parquet`, not here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from replset.bson import RawDocument
from replset.ejson import to_ejson_value
from replset.errors import ReplError
from replset.ids import OPTIME_NULL
from spark.entry_bytes import action_of
from spark.oplog import Bounds, Oplog
from spark.readers.dump import DumpOplog
from spark.readers.wire import WireOplog
from spark.runners import Rows, table_of_rows

SAMPLES = 10


def entries_only(oplogs: Iterable[Oplog]) -> list[str]:
    """The members that store entries alone, as mongods and their dumps do, and neither hashes nor a chain."""
    return sorted(oplog.name for oplog in oplogs if isinstance(oplog, DumpOplog | WireOplog))


def header(command: str, engine: str, members: Iterable[tuple[Oplog, Bounds]]) -> dict[str, Any]:
    """What every document begins with. members: with the bounds that they had when the command began."""
    ends = {oplog.name: (bounds.oldest, bounds.newest) for oplog, bounds in members}
    shown = [
        {"name": name, "oldest": str(oldest), "newest": str(newest)}
        if newest != OPTIME_NULL
        else {"name": name, "oldest": None, "newest": None}
        for name, (oldest, newest) in ends.items()
    ]
    return {"command": command, "engine": engine, "members": shown}


def rows_of(found: Rows, most: int | None = None) -> list[dict[str, Any]]:
    """The first rows as dictionaries, all when `most` is None."""
    rows: list[dict[str, Any]] = table_of_rows(found, most).to_pylist()
    return rows


def camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def camel_row(row: Mapping[str, Any], *left_out: str) -> dict[str, Any]:
    """The row with its names in camelCase, but for the columns that are left out."""
    return {camel(name): value for name, value in row.items() if name not in left_out}


def entry_value(entry: bytes | None) -> Any:
    """An entry or a document as relaxed Extended JSON; of what is no BSON, its bytes in hexadecimal."""
    if entry is None:
        return None
    try:
        return to_ejson_value(RawDocument(entry).decode())
    except (ReplError, ValueError) as error:
        return {"damaged": str(error), "bytes": entry.hex()}


def action_value(entry: bytes) -> Any:
    """What an entry does, as Extended JSON; None when it cannot be read."""
    try:
        return to_ejson_value(action_of(entry))
    except (ReplError, ValueError):
        return None

"""Results as documents: what `--json` prints, and all that tables and pages show. docs/spark.md describes the shapes.

Rows come from Spark's DataFrames or from Arrow tables alike. Numbers of rows are bounded by the caller: what may be as
long as an oplog goes to `--parquet`, not here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from replset.bson import RawDocument, to_ejson_value
from replset.errors import ReplError
from replset.ids import OPTIME_NULL, OpTime
from spark.places import Place

if TYPE_CHECKING:
    from typing import TypeAlias

    from pyspark.sql import DataFrame

    from spark.elections import Elections
    from spark.summary import Summary

    Rows: TypeAlias = DataFrame | pa.Table

Document = dict[str, Any]
SAMPLES = 10


def header(command: str, engine: str, places: Sequence[Place]) -> Document:
    """What every document begins with."""
    return {"command": command, "engine": engine, "members": [_member(place) for place in places]}


def elections(found: Elections, samples: int = SAMPLES) -> Document:
    lost = rows_of(found.lost, samples + 1)
    return {
        "history": found.winner,
        "terms": [_camel(row, drop=("first_ts", "last_ts")) for row in rows_of(found.terms)],
        "lost": [_entry_row(row) for row in lost[:samples]],
        "moreLost": len(lost) > samples,
        "rollbacks": [
            _camel(row, drop=("first_ts", "first_term", "last_ts", "last_term")) for row in rows_of(found.rollbacks)
        ],
    }


def lag(found: Rows) -> Document:
    """The series by source and member, each point [wall in ms, ms behind]; `now`: how far each is behind at its end."""
    series: dict[tuple[str, str | None], list[dict[str, Any]]] = {}
    for row in rows_of(found):
        series.setdefault((row["source"], row["member"]), []).append(row)
    return {
        "series": [
            {
                "source": source,
                "member": member,
                "now": rows[-1]["behind_ms"],
                "worst": max(row["behind_ms"] for row in rows),
                "optime": rows[-1]["optime"],
                "points": [[row["at"], row["behind_ms"]] for row in rows],
            }
            for (source, member), rows in series.items()
        ]
    }


def summary(found: Summary[Any]) -> Document:
    """Its tables' rows under the tables' names, but `totals` for `members`, which every document has already."""
    tables = {item.name: getattr(found, item.name) for item in fields(found)}
    return {
        {"members": "totals"}.get(name, name): [
            {
                **_camel(row, drop=("key", "first_ts", "last_ts", "id")),
                **({"_id": json.loads(row["id"]) if row["id"] else None} if "id" in row else {}),
            }
            for row in rows_of(table)
        ]
        for name, table in tables.items()
    }


def export(files: Rows, folder: str) -> Document:
    """What was written: files, entries and bytes of each namespace of a member, not each file."""
    sums: dict[tuple[str, str], dict[str, int]] = {}
    days: set[str] = set()
    for row in rows_of(files):
        counts = sums.setdefault((row["member"], row["ns"]), {"files": 0, "entries": 0, "bytes": 0})
        counts["files"] += 1
        counts["entries"] += row["entries"]
        counts["bytes"] += row["bytes"]
        days.add(row["day"])
    written = [{"member": member, "ns": ns, **counts} for (member, ns), counts in sorted(sums.items())]
    return {"folder": folder, "days": sorted(days), "written": written}


# --- pieces ----------------------------------------------------------------------------------------------------


def rows_of(found: Rows, most: int | None = None) -> list[dict[str, Any]]:
    """The first rows as dictionaries, all when `most` is None."""
    if isinstance(found, pa.Table):
        table = found.slice(0, most)
    else:
        table = (found if most is None else found.limit(most)).toArrow()
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def entry_value(entry: bytes | None) -> Any:
    """An entry or a document as relaxed Extended JSON; of what is no BSON, its bytes in hexadecimal."""
    if entry is None:
        return None
    try:
        return to_ejson_value(RawDocument(entry).decode())
    except (ReplError, ValueError) as error:
        return {"damaged": str(error), "bytes": entry.hex()}


def optime_of(ts: int | None, term: int | None) -> str | None:
    return None if ts is None or term is None else str(OpTime(term, ts))


def _member(place: Place) -> Document:
    bounds = place.bounds()
    empty = bounds.newest == OPTIME_NULL
    return {
        "name": place.name,
        "oldest": None if empty else str(bounds.oldest),
        "newest": None if empty else str(bounds.newest),
    }


def _entry_row(row: Mapping[str, Any]) -> Document:
    """A row with an entry, for people: the key left to the entry's `_id`."""
    shown = _camel(row, drop=("ts", "term", "key", "entry"))
    return {**shown, "entry": entry_value(row["entry"])}


def _camel(row: Mapping[str, Any], drop: Iterable[str] = ()) -> Document:
    left_out = set(drop)
    return {camel(name): value for name, value in row.items() if name not in left_out}


def camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)

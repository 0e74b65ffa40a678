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
import pyarrow.compute as pc

from replset.bson import RawDocument, to_ejson_value
from replset.errors import ReplError
from replset.ids import OPTIME_NULL, OpTime
from spark.entry_bytes import id_text
from spark.oplog import Bounds, Oplog
from spark.reports.diff.samples import Sample, Version, action_of, entry_about, samples_of, versions_of

if TYPE_CHECKING:
    from typing import TypeAlias

    from pyspark.sql import DataFrame

    from spark.reports.diff.classify import Diff
    from spark.reports.diff.documents import DocumentDiff
    from spark.reports.elections import Elections
    from spark.reports.summary import Summary
    from spark.reports.verify.check import Verification

    Rows: TypeAlias = DataFrame | pa.Table

Document = dict[str, Any]
SAMPLES = 10
DOCUMENTS = 20
KINDS = ("divergent", "duplicated", "missing", "rolled-back", "extra")
REASONS = ("content", "copies", "hole", "losing branch", "winning branch", "ahead")
"""Why entries differ, the loudest first; see spark.reports.diff.classify."""


def header(command: str, engine: str, members: Iterable[tuple[Oplog, Bounds]]) -> Document:
    """What every document begins with. members: with the bounds that they had when the command began."""
    return {"command": command, "engine": engine, "members": [_member(*member) for member in members]}


def diff(
    found: Diff[Any],
    oplogs: Sequence[Oplog],
    samples: int = SAMPLES,
    *,
    by_bytes: bool = False,
    held: DocumentDiff | None = None,
) -> Document:
    """held: the documents of the data files, where they were compared."""
    counts = dict.fromkeys(KINDS, 0)
    namespaces = rows_of(found.by_namespace)
    for row in namespaces:
        counts[row["kind"]] += row["entries"]
    return {
        "same": found.same and (held is None or held.same),
        "sameOplogs": found.same,
        "byBytes": by_bytes,
        "differing": {camel(kind.replace("-", "_")): count for kind, count in counts.items()},
        "trimmed": found.trimmed,
        "compared": [
            _camel(row, drop=("oldest_ts", "oldest_term", "newest_ts", "newest_term")) for row in rows_of(found.members)
        ],
        "pairs": [_camel(row, drop=("common_ts", "common_term")) for row in rows_of(found.pairs)],
        "namespaces": [_camel(row) for row in namespaces],
        "documents": [_document_row(row, oplogs) for row in rows_of(found.by_document, DOCUMENTS)],
        "samples": [_sample(one) for one in samples_of(oplogs, loudest(found.entries, samples))],
        "documentsAt": None if held is None else held.document(samples),
    }


def verify(found: Verification[Any], oplogs: Sequence[Oplog], samples: int = SAMPLES) -> Document:
    checked = rows_of(found.checked)
    counts = rows_of(_counted(found.faults))
    rows = rows_of(found.faults, samples)
    versions = {(row["member"], row["ts"], row["term"]): _versions_on(oplogs, row) for row in rows}
    return {
        "sound": not counts,
        "checked": [_camel(row) for row in checked],
        "faults": counts,
        "samples": [_fault(row, versions[row["member"], row["ts"], row["term"]]) for row in rows],
    }


def loudest(entries: Rows, most: int) -> list[dict[str, Any]]:
    """Some rows of `Diff.entries`, the loudest reasons first, each with its share; what is left goes to louder ones."""
    of_reason = {reason: found for reason in REASONS if (found := rows_of(_of_reason(entries, reason), most))}
    taken = dict.fromkeys(of_reason, 0)
    for _ in range(most):
        left = [reason for reason, found in of_reason.items() if taken[reason] < len(found)]
        if not left:
            break
        taken[min(left, key=taken.__getitem__)] += 1
    return [row for reason, found in of_reason.items() for row in found[: taken[reason]]]


def timeline(entries: Rows, width_s: int) -> list[Document]:
    """How many entries differ on each member by stretches of `width_s` seconds: {at, member, kind, entries}.

    A missing entry counts on those that miss it, any other on those that have it. at: milliseconds.
    """
    where = _placed(entries, width_s << 31)
    return [{**row, "at": row["at"] * width_s * 1000} for row in rows_of(where)]


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


# --- tables of Spark and of Arrow ------------------------------------------------------------------------------


def _of_reason(entries: Rows, reason: str) -> Rows:
    if isinstance(entries, pa.Table):
        return entries.filter(pc.equal(entries["reason"], reason))
    return entries.where(entries["reason"] == reason)


def _counted(faults: Rows) -> Rows:
    """(member, kind, entries)"""
    if isinstance(faults, pa.Table):
        counted = faults.group_by(["member", "kind"], use_threads=False).aggregate([([], "count_all")])
        return counted.rename_columns(["member", "kind", "entries"]).sort_by(
            [("member", "ascending"), ("kind", "ascending")]
        )
    from pyspark.sql import functions as f

    return faults.groupBy("member", "kind").agg(f.count("*").alias("entries")).orderBy("member", "kind")


def _placed(entries: Rows, width: int) -> Rows:
    """(at, member, kind, entries), at: ts // width."""
    if isinstance(entries, pa.Table):
        missing = pc.equal(entries["kind"], "missing")
        holders = pa.chunked_array(
            [
                pc.if_else(
                    missing.combine_chunks(), entries["absent"].combine_chunks(), entries["present"].combine_chunks()
                )
            ]
        )
        row = pc.list_parent_indices(holders)
        flat = pa.table(
            {
                "at": pc.divide(entries["ts"], width).take(row),
                "member": pc.list_flatten(holders),
                "kind": entries["kind"].take(row),
            }
        )
        counted = flat.group_by(["at", "member", "kind"], use_threads=False).aggregate([([], "count_all")])
        return counted.rename_columns(["at", "member", "kind", "entries"]).sort_by(
            [("at", "ascending"), ("member", "ascending"), ("kind", "ascending")]
        )
    from pyspark.sql import functions as f

    holders = f.when(f.col("kind") == "missing", f.col("absent")).otherwise(f.col("present"))
    flat = entries.select(f.expr(f"ts div {width}").alias("at"), f.explode(holders).alias("member"), "kind")
    return flat.groupBy("at", "member", "kind").agg(f.count("*").alias("entries")).orderBy("at", "member", "kind")


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


def _member(oplog: Oplog, bounds: Bounds) -> Document:
    empty = bounds.newest == OPTIME_NULL
    return {
        "name": oplog.name,
        "oldest": None if empty else str(bounds.oldest),
        "newest": None if empty else str(bounds.newest),
    }


def _sample(sample: Sample) -> Document:
    row = sample.row
    entry = sample.versions[0].entry if sample.versions else None
    _id = None if entry is None else id_text(entry)
    return {
        **_camel(row, drop=("ts", "term", "key", "hashes")),
        "_id": None if _id is None else json.loads(_id),
        "versions": [
            {
                "members": version.members,
                "wall": version.wall,
                "hash": version.hash,
                "does": _does(version.entry),
                "entry": entry_value(version.entry),
            }
            for version in sample.versions
        ],
        "rollback": sample.rollback,
        "before": entry_value(sample.before),
        "after": entry_value(sample.after),
    }


def _versions_on(oplogs: Sequence[Oplog], row: Mapping[str, Any]) -> list[Version]:
    return versions_of([oplog for oplog in oplogs if oplog.name == row["member"]], row["ts"], row["term"])


def _fault(row: Mapping[str, Any], versions: Sequence[Version]) -> Document:
    return {
        **_camel(row, drop=("ts", "term", "key", "id")),
        "_id": None if row["id"] is None else json.loads(row["id"]),
        "entry": entry_value(versions[0].entry) if versions else None,
    }


def _does(entry: bytes) -> Any:
    try:
        return to_ejson_value(action_of(entry))
    except (ReplError, ValueError):
        return None


def _document_row(row: Mapping[str, Any], oplogs: Sequence[Oplog]) -> Document:
    entry = entry_about(oplogs, row["first_ts"], row["key"])
    text = None if entry is None else id_text(entry)
    return {
        "ns": row["ns"],
        "_id": None if text is None else json.loads(text),
        "entries": row["entries"],
        "first": _timestamp(row["first_ts"]),
        "last": _timestamp(row["last_ts"]),
        "kinds": row["kinds"],
    }


def _timestamp(ts: int) -> str:
    """SECONDS:INC"""
    return str(OpTime(0, ts)).partition(":")[2]


def _entry_row(row: Mapping[str, Any]) -> Document:
    """A row with an entry, for people: the key left to the entry's `_id`."""
    shown = _camel(row, drop=("ts", "term", "key", "entry"))
    return {**shown, "does": _does(row["entry"]), "entry": entry_value(row["entry"])}


def _camel(row: Mapping[str, Any], drop: Iterable[str] = ()) -> Document:
    left_out = set(drop)
    return {camel(name): value for name, value in row.items() if name not in left_out}


def camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)

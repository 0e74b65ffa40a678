"""`verify` as a document and as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from spark.oplog import Oplog
from spark.render.content import (
    Content,
    ContentSample,
    ContentSamples,
    ContentTable,
    Document,
    Phrase,
    Tone,
    count_text,
    ejson,
    listed,
    several,
    shortened,
)
from spark.render.report_documents import SAMPLES, camel_row, entries_only, entry_value, rows_of
from spark.reports.diff.samples import versions_of
from spark.reports.verify.check import COUNTS, Verification
from spark.runners import aggregated, ordered

MEANINGS = {
    "hash": "the bytes do not give the stored hash: damage",
    "chain": "does not follow from the entry before: one is missing, put in, or another one",
    "order": "an optime that is not above the one before",
    "entry": "no well-formed oplog entry",
    "columns": "what is stored beside the entry is not what it says",
    "diff": "an update that is neither a replacement nor a well-formed difference",
    "idempotence": "applied twice it gives something else than applied once",
}


def document_of(found: Verification[Any], oplogs: Sequence[Oplog], samples: int = SAMPLES) -> dict[str, Any]:
    """What `--json` prints."""
    keys = ("member", "kind")
    faults = rows_of(ordered(aggregated(found.faults, keys, entries=("count", "kind")), *keys))
    by_name = {oplog.name: oplog for oplog in oplogs}
    return {
        "sound": not faults,
        "entriesOnly": entries_only(oplogs),
        "checked": [camel_row(row) for row in rows_of(found.checked)],
        "faults": faults,
        "samples": [_fault_document(row, by_name[row["member"]]) for row in rows_of(found.faults, samples)],
    }


def _fault_document(row: Mapping[str, Any], oplog: Oplog) -> dict[str, Any]:
    versions = versions_of([oplog], row["ts"], row["term"])
    return {
        **camel_row(row, "ts", "term", "key", "id"),
        "_id": None if row["id"] is None else json.loads(row["id"]),
        "entry": entry_value(versions[0].entry) if versions else None,
    }


def content(document: Document) -> Content:
    checked, faults = document["checked"], document["faults"]
    entries = several(sum(row["entries"] for row in checked), "entry", "entries")
    parts: list[ContentTable | ContentSamples] = []
    if document["sound"]:
        hashes = several(sum(row["hashes"] for row in checked), "hash", "hashes")
        applied = several(sum(row["applied"] for row in checked), "entry", "entries")
        answers = [
            Phrase(f"{listed([row['member'] for row in checked])}: sound. {entries} checked.", Tone.GOOD),
            Phrase(f"{hashes} recomputed, {applied} applied once and twice."),
        ]
    else:
        found = several(sum(row["entries"] for row in faults), "fault")
        broken = listed(sorted({row["member"] for row in faults}))
        answers = [Phrase(f"{found} in {broken}; {entries} checked.", Tone.BAD)]
        rows = [
            (Phrase(row["kind"], Tone.BAD), row["member"], count_text(row["entries"]), MEANINGS[row["kind"]])
            for row in faults
        ]
        parts.append(ContentTable("Faults", ("kind", "member", "faults", ""), rows, numbers=("faults",)))
    if without := document["entriesOnly"]:
        text = f"Of {listed(without)} there are only entries, without hashes or a chain: these alone were checked."
        answers.append(Phrase(text, Tone.SOFT))
    cells = [(row["member"], *(count_text(row[name]) for name in COUNTS)) for row in checked]
    parts.append(ContentTable("Checked", ("member", *COUNTS), cells, numbers=COUNTS))
    if document["samples"]:
        parts.append(ContentSamples("Faults looked at closely", [_fault(row) for row in document["samples"]]))
    return Content("Verify", answers, parts)


def _fault(row: Document) -> ContentSample:
    about = f" {shortened(ejson(row['_id']), 100)}" if row["_id"] is not None else ""
    lines = [("on", row["member"]), ("detail", row["detail"])]
    if row["entry"] is not None:
        lines.append(("entry", shortened(ejson(row["entry"]))))
    return ContentSample(Phrase(row["kind"], Tone.BAD), f"{row['optime']}  {row['ns'] or '-'}{about}", lines)

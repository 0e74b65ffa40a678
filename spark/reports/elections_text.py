"""What `elections` found as a document, as text and in charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spark.render.charts import SERIES_COLOURS, Bar, Chart, Dot, Lane, lane_chart
from spark.render.content import (
    Content,
    ContentSample,
    ContentSamples,
    ContentTable,
    Document,
    Phrase,
    Tone,
    count_text,
    duration,
    ejson,
    listed,
    moment,
    operation,
    several,
    shortened,
)
from spark.render.report_documents import SAMPLES, action_value, camel_row, entry_value, rows_of
from spark.reports.elections import Elections


def document_of(found: Elections, samples: int = SAMPLES) -> dict[str, Any]:
    """What `--json` prints."""
    lost = rows_of(found.lost, samples + 1)
    return {
        "history": found.winner,
        "terms": [camel_row(row, "first_ts", "last_ts") for row in rows_of(found.terms)],
        "lost": [_lost_document(row) for row in lost[:samples]],
        "moreLost": len(lost) > samples,
        "rollbacks": [
            camel_row(row, "first_ts", "first_term", "last_ts", "last_term") for row in rows_of(found.rollbacks)
        ],
    }


def _lost_document(row: Mapping[str, Any]) -> dict[str, Any]:
    shown = camel_row(row, "ts", "term", "key", "entry")
    return {**shown, "does": action_value(row["entry"]), "entry": entry_value(row["entry"])}


def content(document: Document) -> Content:
    terms, lost = document["terms"], document["lost"]
    if not terms:
        return Content("Elections", [Phrase("The oplogs are empty.", Tone.WARN)])
    spans = [term["firstWall"] for term in terms] + [term["lastWall"] for term in terms]
    gaps = [term["gapMs"] for term in terms if term["gapMs"] is not None]
    answers = [
        Phrase(
            f"{several(len(terms), 'term')} between {moment(min(spans))} and {moment(max(spans))} UTC; "
            f"the history is {document['history']}'s."
        )
    ]
    if gaps:
        answers.append(
            Phrase(f"{duration(sum(gaps))} without a primary's entries in all, {duration(max(gaps))} at the longest.")
        )
    total = sum(term["lost"] for term in terms)
    if total:
        by = sorted({name for term in terms for name in term["lostBy"]})
        named = sum(row["rollback"] is not None for row in lost)
        where = f" {named} of {len(lost)} shown below are in rollback files." if lost else ""
        holders = f"held by {listed(by)} only"
        answers.append(Phrase(f"{several(total, 'entry', 'entries')} lost to the history, {holders}.{where}", Tone.BAD))
    else:
        answers.append(Phrase("No entry that these members hold was lost at a change of term.", Tone.GOOD))
    recorded = sum(row["entries"] for row in document["rollbacks"])
    if recorded:
        files = several(len(document["rollbacks"]), "rollback")
        answers.append(Phrase(f"{files} recorded beside the members' files, {several(recorded, 'entry', 'entries')}."))
    parts: list[ContentTable | ContentSamples] = [_terms(terms)]
    if document["rollbacks"]:
        parts.append(_rollbacks(document["rollbacks"]))
    if lost:
        more = "More were lost; --parquet writes all." if document["moreLost"] else ""
        parts.append(ContentSamples("Lost entries", [_lost_sample(row) for row in lost], more))
    return Content("Elections", answers, parts)


def _terms(terms: Sequence[Document]) -> ContentTable:
    columns = ("term", "primary", "from (UTC)", "first entry", "last entry", "entries", "gap before", "lost", "held by")
    rows = [
        (
            str(term["term"]),
            term["primary"] or "-",
            moment(term["firstWall"], "%H:%M:%S"),
            term["first"],
            term["last"],
            count_text(term["entries"]),
            duration(term["gapMs"]),
            Phrase(count_text(term["lost"]), Tone.BAD if term["lost"] else Tone.SOFT),
            ", ".join(term["members"]),
        )
        for term in terms
    ]
    return ContentTable("Terms", columns, rows, numbers=("term", "entries", "gap before", "lost"))


def _rollbacks(rollbacks: Sequence[Document]) -> ContentTable:
    columns = ("member", "rollback", "state", "common point", "undone", "entries")
    rows = [
        (
            row["member"],
            row["id"],
            Phrase(row["state"], Tone.GOOD if row["state"] == "finished" else Tone.WARN),
            row["commonPoint"],
            f"{row['first']} to {row['last']}",
            count_text(row["entries"]),
        )
        for row in rollbacks
    ]
    return ContentTable("Rollbacks on record", columns, rows, numbers=("entries",))


def _lost_sample(row: Document) -> ContentSample:
    where = [("rollback", row["rollback"])] if row["rollback"] else []
    return ContentSample(
        Phrase("lost", Tone.BAD),
        f"{row['optime']}  {operation(row['op'])} {row['ns'] or '-'}",
        [("held by", row["member"]), *where, *_does(row)],
    )


def _does(row: Document) -> list[tuple[str, str]]:
    """What an entry does to which document; all of an entry that cannot be read."""
    entry = row["entry"]
    about = [("document", shortened(ejson(entry["o2"])))] if isinstance(entry, dict) and "o2" in entry else []
    return [*about, ("does", shortened(ejson(entry if row["does"] is None else row["does"])))]


def charts(document: Document) -> list[Chart]:
    terms = document["terms"]
    if not terms:
        return []
    by_leader: dict[str, list[Document]] = {}
    for term in terms:
        by_leader.setdefault(term["primary"] or "unknown", []).append(term)
    rows = []
    for at, (leader, led) in enumerate(sorted(by_leader.items())):
        titles = [
            f"term {term['term']}: {moment(term['firstWall'])} to {moment(term['lastWall'])}, "
            f"{count_text(term['entries'])} entries"
            for term in led
        ]
        colour = f"c{at % SERIES_COLOURS}"
        bars = [
            Bar(term["firstWall"], term["lastWall"], colour, title) for term, title in zip(led, titles, strict=True)
        ]
        dots = [
            Dot(term["lastWall"], "bad", f"term {term['term']}: {count_text(term['lost'])} entries lost", "diamond")
            for term in led
            if term["lost"]
        ]
        rows.append(Lane(leader, bars, dots))
    note = "A bar is a term, from its first entry to its last; a red diamond marks a term of which entries were lost."
    return [Chart("Who led when", lane_chart(rows, label="primaries over time"), note)]

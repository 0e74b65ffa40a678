"""What `summary` found as a document, as text and in charts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from spark.render.charts import Chart, Count, bar_chart, column_chart
from spark.render.content import (
    HOT_SHOWN,
    ROWS_SHOWN,
    Content,
    ContentTable,
    Document,
    Phrase,
    Tone,
    byte_size,
    count_text,
    duration,
    ejson,
    listed,
    moment,
    more_rows,
    operation,
    several,
)
from spark.render.report_documents import camel_row, rows_of
from spark.reports.summary import MINUTE_MS, Summary

_WIDTHS = tuple(MINUTE_MS * minutes for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 360, 720, 1440, 10_080, 43_200))
BARS = 20


def document_of(found: Summary[Any]) -> dict[str, Any]:
    """Its tables' rows under the tables' names, but `totals` for `members`, which every document has already."""
    tables = {item.name: getattr(found, item.name) for item in fields(found)}
    return {
        {"members": "totals"}.get(name, name): [
            {
                **camel_row(row, "key", "first_ts", "last_ts", "id"),
                **({"_id": json.loads(row["id"]) if row["id"] else None} if "id" in row else {}),
            }
            for row in rows_of(table)
        ]
        for name, table in tables.items()
    }


def content(document: Document) -> Content:
    totals = document["totals"]
    if not totals:
        return Content("Summary", [Phrase("There are no such entries.", Tone.WARN)])
    names = [row["member"] for row in totals]
    most = max(totals, key=lambda row: row["entries"])
    spaces = {row["ns"] for row in document["namespaces"] if row["ns"]}
    begin, end = min(row["firstWall"] for row in totals), max(row["lastWall"] for row in totals)
    answers = [
        Phrase(
            f"{several(most['entries'], 'entry', 'entries')} in {most['member']}, {byte_size(most['bytes'])}, "
            f"{most['perSecond']:,.1f} a second; {several(len(spaces), 'namespace')}."
        ),
        Phrase(f"From {moment(begin)} to {moment(end)} UTC ({duration(end - begin)})."),
    ]
    if len({row["entries"] for row in totals}) > 1:
        each = listed([f"{row['member']} {count_text(row['entries'])}" for row in totals])
        answers.append(Phrase(f"The members do not hold equally many: {each}. `oplog-spark diff` says why.", Tone.WARN))
    hot = max(document["hot"], key=lambda row: row["entries"], default=None)
    if hot is not None and hot["entries"] > 1:
        share = 100 * hot["entries"] / max(1, next(row["entries"] for row in totals if row["member"] == hot["member"]))
        answers.append(
            Phrase(f"The hottest document takes {share:.1f} % of the entries: {hot['ns']} {ejson(hot['_id'])}.")
        )
    parts = [
        _pivot("Namespaces", "namespace", "ns", document["namespaces"], names),
        _pivot("Operations", "operation", "op", document["operations"], names, operation),
        _pivot("Terms", "term", "term", document["terms"], names, str, by_size=False),
        _pivot("Sizes of entries", "at most", "atMost", document["sizes"], names, byte_size, by_size=False),
    ]
    parts += [_hot(document["hot"])] if hot is not None and hot["entries"] > 1 else []
    parts += [_updates(document["updates"])] if document["updates"] else []
    return Content("Summary", answers, parts)


def _pivot(
    title: str,
    name: str,
    key: str,
    rows: Sequence[Document],
    members: Sequence[str],
    shown: Callable[[Any], str] = lambda value: value or "-",
    *,
    by_size: bool = True,
) -> ContentTable:
    """A row for each value of `key`, a column of entries for each member, and the bytes of the member with most."""
    of_key: dict[Any, dict[str, Document]] = {}
    for row in rows:
        of_key.setdefault(row[key], {})[row["member"]] = row
    order = (
        sorted(of_key, key=lambda value: -max(row["entries"] for row in of_key[value].values())) if by_size else of_key
    )
    entries = [f"entries, {member}" for member in members] if len(members) > 1 else ["entries"]
    cells = [
        (
            shown(value),
            *(count_text(of_key[value][member]["entries"]) if member in of_key[value] else "0" for member in members),
            byte_size(max(row["bytes"] for row in of_key[value].values())),
        )
        for value in list(order)[:ROWS_SHOWN]
    ]
    return ContentTable(
        title, (name, *entries, "bytes"), cells, numbers=(*entries, "bytes"), note=more_rows(len(of_key))
    )


def _hot(rows: Sequence[Document]) -> ContentTable:
    """Of each document the member that has most of its entries."""
    best: dict[tuple[str, str], Document] = {}
    for row in rows:
        key = (row["ns"], ejson(row["_id"]))
        if key not in best or best[key]["entries"] < row["entries"]:
            best[key] = row
    found = sorted(best.items(), key=lambda item: (-item[1]["entries"], item[0]))[:HOT_SHOWN]
    cells = [
        (
            ns,
            _id,
            count_text(row["entries"]),
            byte_size(row["bytes"]),
            moment(row["firstWall"]),
            moment(row["lastWall"]),
        )
        for (ns, _id), row in found
    ]
    columns = ("namespace", "_id", "entries", "bytes", "first (UTC)", "last (UTC)")
    return ContentTable("Hot documents", columns, cells, numbers=("entries", "bytes"), mono=("_id",))


def _updates(rows: Sequence[Document]) -> ContentTable:
    """Of each namespace the member that has most of its updates."""
    best: dict[str, Document] = {}
    for row in rows:
        if row["ns"] not in best or best[row["ns"]]["updates"] < row["updates"]:
            best[row["ns"]] = row
    cells = [
        (
            ns,
            count_text(row["updates"]),
            byte_size(row["bytesPerUpdate"]),
            "-" if row["replacedShare"] is None else f"{100 * row['replacedShare']:.0f} %",
            "-" if row["amplification"] is None else f"{row['amplification']:.1f}",
        )
        for ns, row in sorted(best.items(), key=lambda item: -item[1]["updates"])[:ROWS_SHOWN]
    ]
    columns = ("namespace", "updates", "bytes an update", "whole documents", "amplification")
    note = "amplification: bytes of the entries of diffs over the bytes of what they change"
    return ContentTable("What updates cost", columns, cells, numbers=columns[1:], note=note)


def charts(document: Document) -> list[Chart]:
    totals = document["totals"]
    if not totals:
        return []
    largest = max(totals, key=lambda row: row["entries"])["member"]
    minutes = [(row["minute"], row["entries"]) for row in document["minutes"] if row["member"] == largest]
    points, width_ms = widened(minutes, MINUTE_MS)
    name = f"Entries by {duration(width_ms)}" if width_ms != MINUTE_MS else "Entries by minute"
    over_time = column_chart(points, width_ms, label="entries over time")
    return [
        Chart(name, over_time, f"In {largest}, by the wall clocks of the entries."),
        namespace_chart([row for row in document["namespaces"] if row["member"] == largest], largest),
    ]


def namespace_chart(rows: Sequence[Document], member: str) -> Chart:
    """The namespaces with most entries, the others together."""
    ordered = sorted(rows, key=lambda row: -row["entries"])
    shown, rest = ordered[:BARS], ordered[BARS:]
    bars = [Count(row["ns"] or "(no namespace)", [("c0", row["entries"])], byte_size(row["bytes"])) for row in shown]
    if rest:
        entries, bytes_ = (sum(row[name] for row in rest) for name in ("entries", "bytes"))
        bars.append(Count(f"{len(rest)} more", [("c5", entries)], byte_size(bytes_)))
    note = f"In {member}; behind the bars the number of entries and their bytes."
    return Chart("Entries by namespace", bar_chart(bars, label="entries by namespace"), note)


def widened(points: list[tuple[int, int]], width_ms: int, most: int = 240) -> tuple[list[tuple[int, int]], int]:
    """Counts by stretches of time added up to wider ones, until `most` of them reach from the first to the last."""
    first, last = min(at for at, _ in points), max(at for at, _ in points)
    wide = next(w for w in (*_WIDTHS, last - first + 1) if w >= width_ms and (last - first) // w < most)
    sums: dict[int, int] = {}
    for at, count in points:
        sums[at - at % wide] = sums.get(at - at % wide, 0) + count
    return sorted(sums.items()), wide

"""Documents put into words: for each command the answers that come first and the tables below them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from json import dumps
from typing import Any

from spark.render.charts import moment
from spark.render.content import (
    Content,
    Grid,
    Said,
    Sample,
    Samples,
    Tone,
    listed,
    number,
    seconds,
    several,
    size,
)

Document = Mapping[str, Any]


def content_of(document: Document) -> Content:
    """What the document of any command says."""
    return _TELLERS[document["command"]](document)


# --- elections -------------------------------------------------------------------------------------------------


def elections(document: Document) -> Content:
    terms, lost = document["terms"], document["lost"]
    if not terms:
        return Content("Elections", [Said("The oplogs are empty.", Tone.WARN)])
    spans = [term["firstWall"] for term in terms] + [term["lastWall"] for term in terms]
    gaps = [term["gapMs"] for term in terms if term["gapMs"] is not None]
    answers = [
        Said(
            f"{several(len(terms), 'term')} between {moment(min(spans))} and {moment(max(spans))} UTC; "
            f"the history is {document['history']}'s."
        )
    ]
    if gaps:
        answers.append(
            Said(f"{seconds(sum(gaps))} without a primary's entries in all, {seconds(max(gaps))} at the longest.")
        )
    total = sum(term["lost"] for term in terms)
    if total:
        by = sorted({name for term in terms for name in term["lostBy"]})
        named = sum(row["rollback"] is not None for row in lost)
        where = f" {named} of {len(lost)} shown below are in rollback files." if lost else ""
        holders = f"held by {listed(by)} only"
        answers.append(Said(f"{several(total, 'entry', 'entries')} lost to the history, {holders}.{where}", Tone.BAD))
    else:
        answers.append(Said("No entry that these members hold was lost at a change of term.", Tone.GOOD))
    recorded = sum(row["entries"] for row in document["rollbacks"])
    if recorded:
        files = several(len(document["rollbacks"]), "rollback")
        answers.append(Said(f"{files} recorded beside the members' files, {several(recorded, 'entry', 'entries')}."))
    parts: list[Grid | Samples] = [_terms(terms)]
    if document["rollbacks"]:
        parts.append(_rollbacks(document["rollbacks"]))
    if lost:
        more = "More were lost; --parquet writes all." if document["moreLost"] else ""
        parts.append(Samples("Lost entries", [_lost_sample(row) for row in lost], more))
    return Content("Elections", answers, parts)


def _terms(terms: Sequence[Document]) -> Grid:
    columns = ("term", "primary", "from (UTC)", "first entry", "last entry", "entries", "gap before", "lost", "held by")
    rows = [
        (
            str(term["term"]),
            term["primary"] or "-",
            moment(term["firstWall"], "%H:%M:%S"),
            term["first"],
            term["last"],
            number(term["entries"]),
            seconds(term["gapMs"]),
            Said(number(term["lost"]), Tone.BAD if term["lost"] else Tone.SOFT),
            ", ".join(term["members"]),
        )
        for term in terms
    ]
    return Grid("Terms", columns, rows, numbers=("term", "entries", "gap before", "lost"))


def _rollbacks(rollbacks: Sequence[Document]) -> Grid:
    columns = ("member", "rollback", "state", "common point", "undone", "entries")
    rows = [
        (
            row["member"],
            row["id"],
            Said(row["state"], Tone.GOOD if row["state"] == "finished" else Tone.WARN),
            row["commonPoint"],
            f"{row['first']} to {row['last']}",
            number(row["entries"]),
        )
        for row in rollbacks
    ]
    return Grid("Rollbacks on record", columns, rows, numbers=("entries",))


def _lost_sample(row: Document) -> Sample:
    where = [("rollback", row["rollback"])] if row["rollback"] else []
    return Sample(
        Said("lost", Tone.BAD),
        f"{row['optime']}  {operation(row['op'])} {row['ns'] or '-'}",
        [("held by", row["member"]), *where, *entry_lines(row["entry"])],
    )


# --- lag -------------------------------------------------------------------------------------------------------

_SOURCES = {
    "walls": "from the oplogs",
    "commitPoint": "majority, from no-ops",
    "status": "now, as live members say",
}


def lag(document: Document) -> Content:
    series = document["series"]
    if not series:
        return Content("Lag", [Said("The oplogs are empty.", Tone.WARN)])
    of_members = [row for row in series if row["member"] is not None]
    answers = []
    behind = [row for row in of_members if row["now"] > 0]
    if behind:
        worst = max(behind, key=lambda row: row["now"])
        answers.append(Said(f"{worst['member']} is furthest behind at the end: {seconds(worst['now'])}.", Tone.WARN))
    else:
        answers.append(Said("At the end no member is behind the newest entry.", Tone.GOOD))
    most = max(series, key=lambda row: row["worst"])
    if most["worst"] > 0:
        who = most["member"] or "the commit point"
        answers.append(Said(f"At worst {who} was {seconds(most['worst'])} behind."))
    columns = ("member", "source", "behind at the end", "at worst", "points", "where it is")
    rows = [
        (
            row["member"] or "commit point",
            _SOURCES[row["source"]],
            Said(seconds(row["now"]), Tone.WARN if row["now"] else Tone.PLAIN),
            seconds(row["worst"]),
            number(len(row["points"])),
            row["optime"],
        )
        for row in series
    ]
    grid = Grid("Behind the primary", columns, rows, numbers=("behind at the end", "at worst", "points"))
    return Content("Lag", answers, [grid])


# --- summary ---------------------------------------------------------------------------------------------------

ROWS_SHOWN = 30
HOT_SHOWN = 10


def summary(document: Document) -> Content:
    totals = document["totals"]
    if not totals:
        return Content("Summary", [Said("There are no such entries.", Tone.WARN)])
    names = [row["member"] for row in totals]
    most = max(totals, key=lambda row: row["entries"])
    spaces = {row["ns"] for row in document["namespaces"] if row["ns"]}
    begin, end = min(row["firstWall"] for row in totals), max(row["lastWall"] for row in totals)
    answers = [
        Said(
            f"{several(most['entries'], 'entry', 'entries')} in {most['member']}, {size(most['bytes'])}, "
            f"{most['perSecond']:,.1f} a second; {several(len(spaces), 'namespace')}."
        ),
        Said(f"From {moment(begin)} to {moment(end)} UTC ({seconds(end - begin)})."),
    ]
    if len({row["entries"] for row in totals}) > 1:
        each = listed([f"{row['member']} {number(row['entries'])}" for row in totals])
        answers.append(Said(f"The members do not hold equally many: {each}. `oplog-spark diff` says why.", Tone.WARN))
    hot = max(document["hot"], key=lambda row: row["entries"], default=None)
    if hot is not None and hot["entries"] > 1:
        share = 100 * hot["entries"] / max(1, next(row["entries"] for row in totals if row["member"] == hot["member"]))
        answers.append(
            Said(f"The hottest document takes {share:.1f} % of the entries: {hot['ns']} {ejson(hot['_id'])}.")
        )
    parts = [
        _pivot("Namespaces", "namespace", "ns", document["namespaces"], names),
        _pivot("Operations", "operation", "op", document["operations"], names, operation),
        _pivot("Terms", "term", "term", document["terms"], names, str, by_size=False),
        _pivot("Sizes of entries", "at most", "atMost", document["sizes"], names, size, by_size=False),
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
) -> Grid:
    """A row for each value of `key`, a column of entries for each member, and the bytes of the member with most."""
    of_key: dict[Any, dict[str, Document]] = {}
    for row in rows:
        of_key.setdefault(row[key], {})[row["member"]] = row
    order = (
        sorted(of_key, key=lambda value: -max(row["entries"] for row in of_key[value].values())) if by_size else of_key
    )
    counts = [f"entries, {member}" for member in members] if len(members) > 1 else ["entries"]
    cells = [
        (
            shown(value),
            *(number(of_key[value][member]["entries"]) if member in of_key[value] else "0" for member in members),
            size(max(row["bytes"] for row in of_key[value].values())),
        )
        for value in list(order)[:ROWS_SHOWN]
    ]
    more = f"and {len(of_key) - ROWS_SHOWN} more, in --json and --parquet" if len(of_key) > ROWS_SHOWN else ""
    return Grid(title, (name, *counts, "bytes"), cells, numbers=(*counts, "bytes"), note=more)


def _hot(rows: Sequence[Document]) -> Grid:
    """Of each document the member that has most of its entries."""
    best: dict[tuple[str, str], Document] = {}
    for row in rows:
        key = (row["ns"], ejson(row["_id"]))
        if key not in best or best[key]["entries"] < row["entries"]:
            best[key] = row
    found = sorted(best.items(), key=lambda item: (-item[1]["entries"], item[0]))[:HOT_SHOWN]
    cells = [
        (ns, _id, number(row["entries"]), size(row["bytes"]), moment(row["firstWall"]), moment(row["lastWall"]))
        for (ns, _id), row in found
    ]
    columns = ("namespace", "_id", "entries", "bytes", "first (UTC)", "last (UTC)")
    return Grid("Hot documents", columns, cells, numbers=("entries", "bytes"), mono=("_id",))


def _updates(rows: Sequence[Document]) -> Grid:
    """Of each namespace the member that has most of its updates."""
    best: dict[str, Document] = {}
    for row in rows:
        if row["ns"] not in best or best[row["ns"]]["updates"] < row["updates"]:
            best[row["ns"]] = row
    cells = [
        (
            ns,
            number(row["updates"]),
            size(row["bytesPerUpdate"]),
            "-" if row["replacedShare"] is None else f"{100 * row['replacedShare']:.0f} %",
            "-" if row["amplification"] is None else f"{row['amplification']:.1f}",
        )
        for ns, row in sorted(best.items(), key=lambda item: -item[1]["updates"])[:ROWS_SHOWN]
    ]
    columns = ("namespace", "updates", "bytes an update", "whole documents", "amplification")
    note = "amplification: bytes of the entries of diffs over the bytes of what they change"
    return Grid("What updates cost", columns, cells, numbers=columns[1:], note=note)


# --- export ----------------------------------------------------------------------------------------------------


def export(document: Document) -> Content:
    rows = document["written"]
    entries, files = sum(row["entries"] for row in rows), sum(row["files"] for row in rows)
    days = document["days"]
    when = f", {days[0]} to {days[-1]}" if len(days) > 1 else f", {days[0]}" if days else ""
    said = f"{several(entries, 'entry', 'entries')} in {several(files, 'file')} below {document['folder']}{when}."
    cells = [
        (row["member"], row["ns"] or "-", number(row["entries"]), number(row["files"]), size(row["bytes"]))
        for row in rows
    ]
    columns = ("member", "namespace", "entries", "files", "bytes")
    return Content("Export", [Said(said, Tone.GOOD)], [Grid("Written", columns, cells, numbers=columns[2:])])


# --- entries in words ------------------------------------------------------------------------------------------

_OPERATIONS = {"i": "insert", "u": "update", "d": "delete", "c": "command", "n": "no-op"}


def operation(op: str | None) -> str:
    return _OPERATIONS.get(op or "", op or "?")


def entry_lines(entry: Any) -> list[tuple[str, str]]:
    """An entry for people: what it does to which document."""
    if not isinstance(entry, dict) or "damaged" in entry:
        return [("entry", ejson(entry))]
    lines = []
    if "o2" in entry:
        lines.append(("document", ejson(entry["o2"])))
    lines.append(("does", ejson(entry.get("o"))))
    return lines


def ejson(value: Any) -> str:
    return dumps(value, ensure_ascii=False)


_TELLERS: dict[str, Callable[[Document], Content]] = {
    "elections": elections,
    "export": export,
    "lag": lag,
    "summary": summary,
}

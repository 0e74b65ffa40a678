"""Documents put into words: for each command the answers that come first and the tables below them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from json import dumps
from typing import Any

from spark.render.charts import moment
from spark.render.content import (
    Content,
    ContentSample,
    ContentSamples,
    ContentTable,
    Phrase,
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
    return _CONTENTS[document["command"]](document)


# --- diff ------------------------------------------------------------------------------------------------------

TONES = {
    "divergent": Tone.BAD,
    "duplicated": Tone.BAD,
    "missing": Tone.BAD,
    "rolled-back": Tone.BAD,
    "extra": Tone.SOFT,
}
MEANINGS = {
    "divergent": "the same optime with other content: a bug or damage",
    "duplicated": "an optime more than once",
    "missing": "in the history of the others, and not there",
    "rolled-back": "on a branch that lost: a rollback takes or took it",
    "extra": "the others are behind",
}
LONGEST = 2000
_TIMES = ("before", "after")
_VERDICTS = ("no common point", "inconsistent", "diverged", "behind", "same")


def diff(document: Document) -> Content:
    pairs, compared = document["pairs"], document["compared"]
    if document["sameOplogs"]:
        held = max((row["entries"] for row in compared), default=0)
        newest = next((pair["common"] for pair in pairs if pair["common"]), None)
        upto = f", the newest {newest}" if newest else ""
        names = listed([row["member"] for row in compared])
        what = f" as to {listed(document['ns'])}" if document.get("ns") else ""
        answers = [
            Phrase(f"The oplogs of {names} are the same{what}. {several(held, 'entry', 'entries')}{upto}.", Tone.GOOD)
        ]
    else:
        answers = [Phrase("The oplogs differ.", Tone.BAD), *_divergent(document), *_verdicts(pairs)]
    if document["trimmed"]:
        trimmed = several(document["trimmed"], "entry was", "entries were")
        answers.append(Phrase(f"{trimmed} trimmed away during the run and left out.", Tone.SOFT))
    documents = document["documentsAt"]
    if documents:
        answers += _documents_at(documents)
    answers.append(_compared(by_bytes=document["byBytes"], documents=bool(documents)))
    parts: list[ContentTable | ContentSamples] = [_pairs(pairs)] if pairs else []
    if document["namespaces"]:
        holes = sum(pair["aMissing"] + pair["bMissing"] for pair in pairs)
        parts.append(_differing(document["namespaces"], holes))
    if document["documents"]:
        parts.append(_documents(document["documents"]))
    if document["samples"]:
        parts.append(ContentSamples("Entries looked at closely", [_sample(sample) for sample in document["samples"]]))
    if documents and documents["samples"]:
        shown = [_document_versions(sample) for sample in documents["samples"]]
        parts.append(ContentSamples("Documents looked at closely", shown))
    return Content("Diff", answers, parts)


def _compared(*, by_bytes: bool, documents: bool) -> Phrase:
    """What the answer rests on, and what was not looked at."""
    if by_bytes:
        text = "Compared by hashes computed of the entries' bytes."
    else:
        text = (
            "Compared by the hashes stored beside the entries, which a changed entry keeps: --bytes computes them anew,"
            " and `oplog-spark verify` checks each oplog by itself."
        )
    return Phrase(text if documents else f"{text} Documents were not compared (--documents).", Tone.SOFT)


def _documents_at(found: Document) -> list[Phrase]:
    counts = sorted({row["documents"] for row in found["members"]})
    said = [
        Phrase(f"{row['ns']} is not the same collection on all, or only on {listed(row['members'])}.", Tone.BAD)
        for row in found["collections"]
    ]
    if found["differing"]:
        count = several(found["differing"], "document is", "documents are")
        said.append(Phrase(f"{count} not the same in all data files as of {found['optime']}.", Tone.BAD))
    elif not said:
        each = several(counts[-1], "document") if counts else "no document"
        said.append(Phrase(f"The data files hold the same documents as of {found['optime']}: {each} each.", Tone.GOOD))
    return said


def _document_versions(sample: Document) -> ContentSample:
    lines = [
        (f"on {one['member']}", "(no such document)" if one["document"] is None else cut(ejson(one["document"])))
        for one in sample["versions"]
    ]
    return ContentSample(Phrase("differs", Tone.BAD), f"{sample['ns']} {cut(ejson(sample['_id']), 100)}", lines)


def _divergent(document: Document) -> list[Phrase]:
    count = document["differing"]["divergent"]
    if not count:
        return []
    return [
        Phrase(f"{several(count, 'optime')} with different content: no rollback does that, a bug or damage.", Tone.BAD)
    ]


def _verdicts(pairs: Sequence[Document]) -> list[Phrase]:
    """What is wrong between the members, pairs that tell the same in one line."""
    told: dict[tuple[str, ...], list[Document]] = {}
    for pair in pairs:
        told.setdefault((pair["verdict"], pair["follower"] or "", pair["common"] or ""), []).append(pair)
    said: list[Phrase] = []
    for verdict in _VERDICTS[:-1]:
        for (found, follower, common), group in sorted(told.items()):
            if found == verdict:
                said += _verdict(verdict, follower, common, group)
    return said


def _verdict(verdict: str, follower: str, common: str, group: Sequence[Document]) -> list[Phrase]:
    if verdict == "no common point":
        return [Phrase(f"{pair['a']} and {pair['b']} have no entry in common.", Tone.BAD) for pair in group]
    if verdict == "inconsistent":
        return [Phrase(_inconsistent(pair), Tone.BAD) for pair in group]
    others = [pair["b"] if pair["a"] == follower else pair["a"] for pair in group]
    alone = [pair["aAfter"] if pair["a"] == follower else pair["bAfter"] for pair in group]
    beyond = max(pair["bAfter"] if pair["a"] == follower else pair["aAfter"] for pair in group)
    when = f"{common} ({moment(seconds_of(common) * 1000)} UTC)"
    if verdict == "diverged" and follower:
        mine, theirs = several(max(alone), "entry", "entries"), several(beyond, "entry", "entries")
        text = (
            f"{follower} parted from {listed(others)} at {when}: {mine} of its own behind that, {theirs} of the others."
        )
        return [Phrase(text, Tone.BAD)]
    if verdict == "diverged":
        return [Phrase(f"{pair['a']} and {pair['b']} parted at {when}.", Tone.BAD) for pair in group]
    count = several(beyond, "entry", "entries")
    return [Phrase(f"{follower} is behind {listed(others)}: {count} after {when} are still to come.", Tone.WARN)]


def _inconsistent(pair: Document) -> str:
    found = []
    if pair["divergent"]:
        found.append(f"{several(pair['divergent'], 'optime')} with different content")
    found += [
        f"{several(pair[key], 'entry', 'entries')} missing in the middle of {pair[side]}"
        for key, side in (("aMissing", "a"), ("bMissing", "b"))
        if pair[key]
    ]
    if pair["duplicated"]:
        found.append(f"{several(pair['duplicated'], 'optime')} more often on one than on the other")
    if pair["sameChain"] is False:
        found.append("hash chains that do not agree at the common point")
    return f"{pair['a']} and {pair['b']} contradict each other: {listed(found) or 'their histories'}."


_VERDICT_TONES = {"same": Tone.GOOD, "behind": Tone.WARN}


def _pairs(pairs: Sequence[Document]) -> ContentTable:
    columns = (
        "a",
        "b",
        "verdict",
        "common point",
        "after it, a",
        "after it, b",
        "missing, a",
        "missing, b",
        "divergent",
    )
    rows = [
        (
            pair["a"],
            pair["b"],
            Phrase(pair["verdict"], _VERDICT_TONES.get(pair["verdict"], Tone.BAD)),
            pair["common"] or "-",
            number(pair["aAfter"]),
            number(pair["bAfter"]),
            *(Phrase(number(pair[key]), Tone.BAD if pair[key] else Tone.SOFT) for key in ("aMissing", "bMissing")),
            Phrase(number(pair["divergent"]), Tone.BAD if pair["divergent"] else Tone.SOFT),
        )
        for pair in sorted(pairs, key=lambda pair: _VERDICTS.index(pair["verdict"]))
    ]
    return ContentTable("Pairs", columns, rows, numbers=columns[4:], mono=("common point",))


def _differing(rows: Sequence[Document], holes: int) -> ContentTable:
    """holes: entries missing in the middle. Without any, what is missing is what a member fetches after a rollback."""
    tones = (
        TONES if holes else {**{kind: tone for kind, tone in TONES.items() if kind != "missing"}, "missing": Tone.WARN}
    )
    order = {kind: position for position, kind in enumerate(tones)}
    shown = sorted(rows, key=lambda row: (order[row["kind"]], -row["entries"], row["ns"]))[:ROWS_SHOWN]
    cells = [
        (
            Phrase(row["kind"], tones[row["kind"]]),
            row["ns"] or "-",
            number(row["entries"]),
            number(row["documents"]),
            MEANINGS[row["kind"]],
        )
        for row in shown
    ]
    more = f"and {len(rows) - ROWS_SHOWN} more, in --json and --parquet" if len(rows) > ROWS_SHOWN else ""
    columns = ("kind", "namespace", "entries", "documents", "")
    return ContentTable("Entries that differ", columns, cells, numbers=("entries", "documents"), note=more)


def _documents(rows: Sequence[Document]) -> ContentTable:
    cells = [
        (row["ns"] or "-", cut(ejson(row["_id"]), 60), number(row["entries"]), ", ".join(row["kinds"]))
        for row in rows[:HOT_SHOWN]
    ]
    columns = ("namespace", "_id", "entries that differ", "kinds")
    return ContentTable("Documents", columns, cells, numbers=("entries that differ",), mono=("_id",))


def _sample(sample: Document) -> ContentSample:
    kind = sample["kind"]
    lines = [("on", listed(sample["present"]))]
    if sample["absent"]:
        lines.append(("not on", listed(sample["absent"])))
    for version in sample["versions"]:
        several_versions = len(sample["versions"]) > 1
        name = f"does, on {listed(version['members'])}" if several_versions else "does"
        lines.append((name, cut(ejson(version["entry"] if version["does"] is None else version["does"]))))
    if sample["rollback"]:
        lines.append(("rolled back", sample["rollback"]))
        if sample["before"] is not None or sample["after"] is not None:
            lines += [(when, cut(ejson(sample[when])) if sample[when] else "(no such document)") for when in _TIMES]
    about = f" {cut(ejson(sample['_id']), 100)}" if sample["_id"] is not None else ""
    heading = f"{sample['optime']}  {operation(sample['op'])} {sample['ns'] or '-'}{about}"
    tone = Tone.WARN if sample["reason"] == "winning branch" else TONES[kind]
    return ContentSample(Phrase(kind, tone), heading, lines)


def seconds_of(optime: str) -> int:
    """The seconds in TERM:SECONDS:INC."""
    return int(optime.split(":")[1])


# --- verify ----------------------------------------------------------------------------------------------------

FAULTS = {
    "hash": "the bytes do not give the stored hash: damage",
    "chain": "does not follow from the entry before: one is missing, put in, or another one",
    "order": "an optime that is not above the one before",
    "entry": "no well-formed oplog entry",
    "columns": "what is stored beside the entry is not what it says",
    "diff": "an update that is neither a replacement nor a well-formed difference",
    "idempotence": "applied twice it gives something else than applied once",
}


def verify(document: Document) -> Content:
    checked, faults = document["checked"], document["faults"]
    total = sum(row["entries"] for row in checked)
    names = listed([row["member"] for row in checked])
    if document["sound"]:
        hashes = sum(row["hashes"] for row in checked)
        applied = sum(row["applied"] for row in checked)
        answers = [
            Phrase(f"{names}: sound. {several(total, 'entry', 'entries')} checked.", Tone.GOOD),
            Phrase(
                f"{several(hashes, 'hash', 'hashes')} recomputed, "
                f"{several(applied, 'entry', 'entries')} applied once and twice."
            ),
        ]
    else:
        found = sum(row["entries"] for row in faults)
        broken = listed(sorted({row["member"] for row in faults}))
        answers = [
            Phrase(f"{several(found, 'fault')} in {broken}; {several(total, 'entry', 'entries')} checked.", Tone.BAD)
        ]
    parts: list[ContentTable | ContentSamples] = []
    if faults:
        rows = [
            (Phrase(row["kind"], Tone.BAD), row["member"], number(row["entries"]), FAULTS[row["kind"]])
            for row in faults
        ]
        parts.append(ContentTable("Faults", ("kind", "member", "faults", ""), rows, numbers=("faults",)))
    columns = ("member", "entries", "hashes", "links", "updates", "documents", "applied")
    rows_checked = [(row["member"], *(number(row[name]) for name in columns[1:])) for row in checked]
    parts.append(ContentTable("Checked", columns, rows_checked, numbers=columns[1:]))
    if document["samples"]:
        parts.append(ContentSamples("Faults looked at closely", [_fault(row) for row in document["samples"]]))
    return Content("Verify", answers, parts)


def _fault(row: Document) -> ContentSample:
    about = f" {cut(ejson(row['_id']), 100)}" if row["_id"] is not None else ""
    lines = [("on", row["member"]), ("detail", row["detail"])]
    if row["entry"] is not None:
        lines.append(("entry", cut(ejson(row["entry"]))))
    return ContentSample(Phrase(row["kind"], Tone.BAD), f"{row['optime']}  {row['ns'] or '-'}{about}", lines)


# --- elections -------------------------------------------------------------------------------------------------


def elections(document: Document) -> Content:
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
            Phrase(f"{seconds(sum(gaps))} without a primary's entries in all, {seconds(max(gaps))} at the longest.")
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
            number(term["entries"]),
            seconds(term["gapMs"]),
            Phrase(number(term["lost"]), Tone.BAD if term["lost"] else Tone.SOFT),
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
            number(row["entries"]),
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


# --- lag -------------------------------------------------------------------------------------------------------

_SOURCES = {
    "walls": "from the oplogs",
    "commitPoint": "majority, from no-ops",
    "status": "now, as live members say",
}


def lag(document: Document) -> Content:
    series = document["series"]
    if not series:
        return Content("Lag", [Phrase("The oplogs are empty.", Tone.WARN)])
    of_members = [row for row in series if row["member"] is not None]
    answers = []
    behind = [row for row in of_members if row["now"] > 0]
    if behind:
        worst = max(behind, key=lambda row: row["now"])
        answers.append(Phrase(f"{worst['member']} is furthest behind at the end: {seconds(worst['now'])}.", Tone.WARN))
    else:
        answers.append(Phrase("At the end no member is behind the newest entry.", Tone.GOOD))
    most = max(series, key=lambda row: row["worst"])
    if most["worst"] > 0:
        who = most["member"] or "the commit point"
        answers.append(Phrase(f"At worst {who} was {seconds(most['worst'])} behind."))
    columns = ("member", "source", "behind at the end", "at worst", "points", "where it is")
    rows = [
        (
            row["member"] or "commit point",
            _SOURCES[row["source"]],
            Phrase(seconds(row["now"]), Tone.WARN if row["now"] else Tone.PLAIN),
            seconds(row["worst"]),
            number(len(row["points"])),
            row["optime"],
        )
        for row in series
    ]
    grid = ContentTable("Behind the primary", columns, rows, numbers=("behind at the end", "at worst", "points"))
    return Content("Lag", answers, [grid])


# --- summary ---------------------------------------------------------------------------------------------------

ROWS_SHOWN = 30
HOT_SHOWN = 10


def summary(document: Document) -> Content:
    totals = document["totals"]
    if not totals:
        return Content("Summary", [Phrase("There are no such entries.", Tone.WARN)])
    names = [row["member"] for row in totals]
    most = max(totals, key=lambda row: row["entries"])
    spaces = {row["ns"] for row in document["namespaces"] if row["ns"]}
    begin, end = min(row["firstWall"] for row in totals), max(row["lastWall"] for row in totals)
    answers = [
        Phrase(
            f"{several(most['entries'], 'entry', 'entries')} in {most['member']}, {size(most['bytes'])}, "
            f"{most['perSecond']:,.1f} a second; {several(len(spaces), 'namespace')}."
        ),
        Phrase(f"From {moment(begin)} to {moment(end)} UTC ({seconds(end - begin)})."),
    ]
    if len({row["entries"] for row in totals}) > 1:
        each = listed([f"{row['member']} {number(row['entries'])}" for row in totals])
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
) -> ContentTable:
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
    return ContentTable(title, (name, *counts, "bytes"), cells, numbers=(*counts, "bytes"), note=more)


def _hot(rows: Sequence[Document]) -> ContentTable:
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
            number(row["updates"]),
            size(row["bytesPerUpdate"]),
            "-" if row["replacedShare"] is None else f"{100 * row['replacedShare']:.0f} %",
            "-" if row["amplification"] is None else f"{row['amplification']:.1f}",
        )
        for ns, row in sorted(best.items(), key=lambda item: -item[1]["updates"])[:ROWS_SHOWN]
    ]
    columns = ("namespace", "updates", "bytes an update", "whole documents", "amplification")
    note = "amplification: bytes of the entries of diffs over the bytes of what they change"
    return ContentTable("What updates cost", columns, cells, numbers=columns[1:], note=note)


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
    return Content("Export", [Phrase(said, Tone.GOOD)], [ContentTable("Written", columns, cells, numbers=columns[2:])])


# --- entries in words ------------------------------------------------------------------------------------------

_OPERATIONS = {"i": "insert", "u": "update", "d": "delete", "c": "command", "n": "no-op"}


def operation(op: str | None) -> str:
    return _OPERATIONS.get(op or "", op or "?")


def _does(row: Document) -> list[tuple[str, str]]:
    """What an entry does to which document; all of an entry that cannot be read."""
    entry = row["entry"]
    about = [("document", cut(ejson(entry["o2"])))] if isinstance(entry, dict) and "o2" in entry else []
    return [*about, ("does", cut(ejson(entry if row["does"] is None else row["does"])))]


def ejson(value: Any) -> str:
    return dumps(value, ensure_ascii=False)


def cut(text: str, most: int = LONGEST) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"


_CONTENTS: dict[str, Callable[[Document], Content]] = {
    "diff": diff,
    "elections": elections,
    "export": export,
    "lag": lag,
    "summary": summary,
    "verify": verify,
}

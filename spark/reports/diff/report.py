"""`diff` as a document, as text and as charts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark.entry_bytes import id_text
from spark.oplog import Oplog, ts_text
from spark.render.charts import Bar, Chart, Count, Dot, Lane, bar_chart, lane_chart, shorten
from spark.render.content import (
    HOT_SHOWN,
    ROWS_SHOWN,
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
    moment,
    more_rows,
    operation,
    seconds_of,
    several,
    shortened,
)
from spark.render.report_documents import SAMPLES, action_value, camel, camel_row, entries_only, entry_value, rows_of
from spark.reports.diff.classify import Diff, Kind, Reason, Verdict
from spark.reports.diff.documents import DocumentDiff
from spark.reports.diff.samples import Sample, entry_about, samples_of
from spark.reports.lag import lag_chart
from spark.reports.summary_text import BARS, namespace_chart
from spark.runners import Rows, aggregated, ordered, where

DOCUMENTS = 20


def document_of(
    found: Diff[Any],
    oplogs: Sequence[Oplog],
    samples: int = SAMPLES,
    *,
    by_bytes: bool = False,
    documents: DocumentDiff | None = None,
) -> dict[str, Any]:
    """What `--json` prints. documents: of the data files, where they were compared."""
    differing = dict.fromkeys(Kind, 0)
    namespaces = rows_of(found.by_namespace)
    for row in namespaces:
        differing[Kind(row["kind"])] += row["entries"]
    left_out = ("oldest_ts", "oldest_term", "newest_ts", "newest_term")
    return {
        "same": found.same and (documents is None or documents.same),
        "sameOplogs": found.same,
        "byBytes": by_bytes,
        "entriesOnly": entries_only(oplogs),
        "differing": {camel(kind.replace("-", "_")): count for kind, count in differing.items()},
        "trimmed": found.trimmed,
        "compared": [camel_row(row, *left_out) for row in rows_of(found.members)],
        "pairs": [camel_row(row, "common_ts", "common_term") for row in rows_of(found.pairs)],
        "namespaces": [camel_row(row) for row in namespaces],
        "documents": [_changed_document(row, oplogs) for row in rows_of(found.by_document, DOCUMENTS)],
        "samples": [_sample_document(one) for one in samples_of(oplogs, chosen_entries(found.entries, samples))],
        "documentsAt": None if documents is None else documents.document(samples),
    }


def chosen_entries(entries: Rows, most: int) -> list[dict[str, Any]]:
    """Some rows of `Diff.entries`, by reason in the order of Reason, each with its share of `most`.

    What a reason with few rows leaves goes to the reasons before the others.
    """
    of_reason = {reason: rows for reason in Reason if (rows := rows_of(where(entries, "reason", reason), most))}
    taken = dict.fromkeys(of_reason, 0)
    for _ in range(most):
        left = [reason for reason, rows in of_reason.items() if taken[reason] < len(rows)]
        if not left:
            break
        taken[min(left, key=taken.__getitem__)] += 1
    return [row for reason, rows in of_reason.items() for row in rows[: taken[reason]]]


def timeline(entries: Rows, width_s: int) -> list[dict[str, Any]]:
    """How many entries differ on each member by stretches of `width_s` seconds: {at, member, kind, entries}.

    A missing entry counts on those that miss it, any other on those that have it. at: milliseconds.
    """
    return [{**row, "at": row["at"] * width_s * 1000} for row in rows_of(_by_stretch(entries, width_s << 31))]


def _by_stretch(entries: Rows, width: int) -> Rows:
    """(at, member, kind, entries), at: ts // width."""
    keys = ["at", "member", "kind"]
    if isinstance(entries, pa.Table):
        kind, absent, present = (entries[name].combine_chunks() for name in ("kind", "absent", "present"))
        members = pc.if_else(pc.equal(kind, "missing"), absent, present)
        row = pc.list_parent_indices(members)
        columns = [pc.divide(entries["ts"], width).take(row), pc.list_flatten(members), kind.take(row)]
        flat = pa.table(columns, keys)
    else:
        from pyspark.sql import functions as f

        on = f.when(f.col("kind") == "missing", f.col("absent")).otherwise(f.col("present"))
        flat = entries.select(f.expr(f"ts div {width}").alias("at"), f.explode(on).alias("member"), "kind")
    return ordered(aggregated(flat, keys, entries=("count", "kind")), *keys)


def _sample_document(sample: Sample) -> dict[str, Any]:
    _id = id_text(sample.versions[0].entry) if sample.versions else None
    return {
        **camel_row(sample.row, "ts", "term", "key", "hashes"),
        "_id": None if _id is None else json.loads(_id),
        "versions": [
            {
                "members": version.members,
                "wall": version.wall,
                "hash": version.hash,
                "does": action_value(version.entry),
                "entry": entry_value(version.entry),
            }
            for version in sample.versions
        ],
        "rollback": sample.rollback,
        "before": entry_value(sample.before),
        "after": entry_value(sample.after),
    }


def _changed_document(row: Mapping[str, Any], oplogs: Sequence[Oplog]) -> dict[str, Any]:
    entry = entry_about(oplogs, row["first_ts"], row["key"])
    text = None if entry is None else id_text(entry)
    _id = None if text is None else json.loads(text)
    return {
        **{"ns": row["ns"], "_id": _id, "entries": row["entries"]},
        **{"first": ts_text(row["first_ts"]), "last": ts_text(row["last_ts"]), "kinds": row["kinds"]},
    }


# --- text ------------------------------------------------------------------------------------------------------

MEANINGS = {
    "divergent": "the same optime with other content: a bug or damage",
    "duplicated": "an optime more than once",
    "missing": "in the history of the others, and not there",
    "rolled-back": "on a branch that lost: a rollback takes or took it",
    "extra": "the others are behind",
}
_VERDICT_TONES = {"same": Tone.GOOD, "behind": Tone.WARN}


def content(document: Document) -> Content:
    pairs, compared, documents = document["pairs"], document["compared"], document["documentsAt"]
    if document["sameOplogs"]:
        entries = several(max((row["entries"] for row in compared), default=0), "entry", "entries")
        newest = next((f", the newest {pair['common']}" for pair in pairs if pair["common"]), "")
        names = listed([row["member"] for row in compared])
        what = f" as to {listed(document['ns'])}" if document.get("ns") else ""
        answers = [Phrase(f"The oplogs of {names} are the same{what}. {entries}{newest}.", Tone.GOOD)]
    else:
        answers = [Phrase("The oplogs differ.", Tone.BAD)]
        if divergent := document["differing"]["divergent"]:
            text = f"{several(divergent, 'optime')} with different content: no rollback does that, a bug or damage."
            answers.append(Phrase(text, Tone.BAD))
        answers += _verdicts(pairs)
    if document["trimmed"]:
        trimmed = several(document["trimmed"], "entry was", "entries were")
        answers.append(Phrase(f"{trimmed} trimmed away during the run and left out.", Tone.SOFT))
    if documents:
        answers += _documents_at(documents)
    answers.append(_compared(document, documents=bool(documents)))
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


def _compared(document: Document, *, documents: bool) -> Phrase:
    """What the answer rests on, and what was not looked at."""
    text = "Compared by hashes computed of the entries' bytes."
    without, members = document["entriesOnly"], document["compared"]
    if not document["byBytes"] and len(without) < len(members):
        text = (
            "Compared by the hashes stored beside the entries, which a changed entry keeps: --bytes computes them anew,"
            " and `oplog-spark verify` checks each oplog by itself."
        )
    if without:
        text += f" Of {listed(without)} there are only entries, without hashes or a chain: theirs were computed."
    return Phrase(text if documents else f"{text} Documents were not compared (--documents).", Tone.SOFT)


def _documents_at(found: Document) -> list[Phrase]:
    answers = [
        Phrase(f"{row['ns']} is not the same collection on all, or only on {listed(row['members'])}.", Tone.BAD)
        for row in found["collections"]
    ]
    if found["differing"]:
        count = several(found["differing"], "document is", "documents are")
        answers.append(Phrase(f"{count} not the same in all data files as of {found['optime']}.", Tone.BAD))
    elif not answers:
        most = max((row["documents"] for row in found["members"]), default=None)
        each = "no document" if most is None else several(most, "document")
        text = f"The data files hold the same documents as of {found['optime']}: {each} each."
        answers.append(Phrase(text, Tone.GOOD))
    return answers


def _document_versions(sample: Document) -> ContentSample:
    lines = [
        (f"on {one['member']}", "(no such document)" if one["document"] is None else shortened(ejson(one["document"])))
        for one in sample["versions"]
    ]
    return ContentSample(Phrase("differs", Tone.BAD), f"{sample['ns']} {shortened(ejson(sample['_id']), 100)}", lines)


def _verdicts(pairs: Sequence[Document]) -> list[Phrase]:
    """What is wrong between the members; pairs of which the same is true are in one line."""
    alike: dict[tuple[str, ...], list[Document]] = {}
    for pair in pairs:
        alike.setdefault((pair["verdict"], pair["follower"] or "", pair["common"] or ""), []).append(pair)
    return [
        phrase
        for verdict in Verdict
        for (found, follower, common), group in sorted(alike.items())
        if found == verdict and verdict is not Verdict.SAME
        for phrase in _verdict(verdict, follower, common, group)
    ]


def _verdict(verdict: Verdict, follower: str, common: str, group: Sequence[Document]) -> list[Phrase]:
    if verdict is Verdict.NO_COMMON_POINT:
        return [Phrase(f"{pair['a']} and {pair['b']} have no entry in common.", Tone.BAD) for pair in group]
    if verdict is Verdict.INCONSISTENT:
        return [Phrase(_inconsistent(pair), Tone.BAD) for pair in group]
    when = f"{common} ({moment(seconds_of(common) * 1000)} UTC)"
    if verdict is Verdict.DIVERGED and not follower:
        return [Phrase(f"{pair['a']} and {pair['b']} parted at {when}.", Tone.BAD) for pair in group]
    others = listed([pair["b"] if pair["a"] == follower else pair["a"] for pair in group])
    own = max(pair["aAfter"] if pair["a"] == follower else pair["bAfter"] for pair in group)
    beyond = max(pair["bAfter"] if pair["a"] == follower else pair["aAfter"] for pair in group)
    mine, theirs = several(own, "entry", "entries"), several(beyond, "entry", "entries")
    if verdict is Verdict.DIVERGED:
        text = f"{follower} parted from {others} at {when}: {mine} of its own behind that, {theirs} of the others."
        return [Phrase(text, Tone.BAD)]
    return [Phrase(f"{follower} is behind {others}: it has yet to fetch {theirs} after {when}.", Tone.WARN)]


def _inconsistent(pair: Document) -> str:
    found = []
    if pair["divergent"]:
        found.append(f"{several(pair['divergent'], 'optime')} with different content")
    for key, side in (("aMissing", "a"), ("bMissing", "b")):
        if pair[key]:
            found.append(f"{several(pair[key], 'entry', 'entries')} missing in the middle of {pair[side]}")
    if pair["duplicated"]:
        found.append(f"{several(pair['duplicated'], 'optime')} more often on one than on the other")
    if pair["sameChain"] is False:
        found.append("hash chains that do not agree at the common point")
    return f"{pair['a']} and {pair['b']} contradict each other: {listed(found) or 'their histories'}."


def _pairs(pairs: Sequence[Document]) -> ContentTable:
    sides = ("after it, a", "after it, b", "missing, a", "missing, b")
    columns = ("a", "b", "verdict", "common point", *sides, "divergent")
    rows = [
        (
            pair["a"],
            pair["b"],
            Phrase(pair["verdict"], _VERDICT_TONES.get(pair["verdict"], Tone.BAD)),
            pair["common"] or "-",
            count_text(pair["aAfter"]),
            count_text(pair["bAfter"]),
            *(
                Phrase(count_text(pair[key]), Tone.BAD if pair[key] else Tone.SOFT)
                for key in ("aMissing", "bMissing", "divergent")
            ),
        )
        for pair in sorted(pairs, key=lambda pair: list(Verdict).index(pair["verdict"]))
    ]
    return ContentTable("Pairs", columns, rows, numbers=columns[4:], mono=("common point",))


def _differing(rows: Sequence[Document], holes: int) -> ContentTable:
    """holes: entries missing in the middle. Without any, what is missing is what a member fetches after a rollback."""
    order = [kind for kind in Kind if holes or kind != "missing"] + ([] if holes else [Kind.MISSING])
    tones = dict.fromkeys(order, Tone.BAD) | {Kind.EXTRA: Tone.SOFT} | ({} if holes else {Kind.MISSING: Tone.WARN})
    cells = [
        (
            Phrase(row["kind"], tones[row["kind"]]),
            row["ns"] or "-",
            count_text(row["entries"]),
            count_text(row["documents"]),
            MEANINGS[row["kind"]],
        )
        for row in sorted(rows, key=lambda row: (order.index(row["kind"]), -row["entries"], row["ns"]))[:ROWS_SHOWN]
    ]
    columns = ("kind", "namespace", "entries", "documents", "")
    return ContentTable(
        "Entries that differ", columns, cells, numbers=("entries", "documents"), note=more_rows(len(rows))
    )


def _documents(rows: Sequence[Document]) -> ContentTable:
    cells = [
        (row["ns"] or "-", shortened(ejson(row["_id"]), 60), count_text(row["entries"]), ", ".join(row["kinds"]))
        for row in rows[:HOT_SHOWN]
    ]
    columns = ("namespace", "_id", "entries that differ", "kinds")
    return ContentTable("Documents", columns, cells, numbers=("entries that differ",), mono=("_id",))


def _sample(sample: Document) -> ContentSample:
    lines = [("on", listed(sample["present"]))]
    if sample["absent"]:
        lines.append(("not on", listed(sample["absent"])))
    for version in sample["versions"]:
        name = f"does, on {listed(version['members'])}" if len(sample["versions"]) > 1 else "does"
        lines.append((name, shortened(ejson(version["entry"] if version["does"] is None else version["does"]))))
    if sample["rollback"]:
        lines.append(("rolled back", sample["rollback"]))
        if sample["before"] is not None or sample["after"] is not None:
            for when in ("before", "after"):
                lines.append((when, shortened(ejson(sample[when])) if sample[when] else "(no such document)"))
    about = f" {shortened(ejson(sample['_id']), 100)}" if sample["_id"] is not None else ""
    heading = f"{sample['optime']}  {operation(sample['op'])} {sample['ns'] or '-'}{about}"
    tone = Tone.SOFT if sample["kind"] == Kind.EXTRA else Tone.BAD
    return ContentSample(
        Phrase(sample["kind"], Tone.WARN if sample["reason"] == Reason.WINNING else tone), heading, lines
    )


# --- charts ----------------------------------------------------------------------------------------------------

COLOURS = {"divergent": "bad", "duplicated": "c4", "missing": "c1", "rolled-back": "c3", "extra": "c5"}
"""Of the kinds of entries that differ."""


def charts(document: Document) -> list[Chart]:
    if not any(row["oldest"] for row in document["compared"]):
        return []
    return [
        *_parting_charts(document),
        *_differing_chart(document["namespaces"]),
        *([namespace_chart(*newest_namespaces(document))] if document.get("namespacesOfAll") else []),
        *(lag_chart(document["lag"]) if document.get("lag") else []),
    ]


def _parting_charts(document: Document) -> list[Chart]:
    """Each member's oplog on one line of time; where two parted; where entries differ. The end once more, closer."""
    rows = [row for row in document["compared"] if row["oldest"]]
    begin, end = min(_ms(row["oldest"]) for row in rows), max(_ms(row["newest"]) for row in rows)
    step = document.get("timelineSeconds", 1) * 1000
    marks = document.get("timeline", [])
    uprights = [(_ms(common), text, "bad") for common, text in partings(document["pairs"])]
    drawn = [_lane(row, branch_begin(row["member"], document["pairs"]), marks, step) for row in rows]
    kinds = [kind for kind in COLOURS if any(row["kind"] == kind for row in marks)]
    note = "A bar is what a member holds; purple where it is on a branch of its own. "
    note += "Marks are entries that differ, on the members that have them, and where they are missing." if kinds else ""
    legend = [(kind, COLOURS[kind]) for kind in kinds]
    whole = lane_chart(drawn, label="members over time", upright=uprights)
    first = min([at for at, *_ in uprights] + [row["at"] for row in marks], default=end)
    margin = max(2000, (end - first) // 8)
    if first - margin <= begin or (end - first) * 5 >= end - begin:
        return [Chart("Where the members part", whole, note, legend)]
    near = [lane_from(lane, first - margin) for lane in drawn]
    closer = lane_chart(near, label="the end of the members' oplogs", upright=uprights)
    return [Chart("Where the members part", whole, note), Chart("The same, closer", closer, legend=legend)]


def partings(pairs: Sequence[Document]) -> list[tuple[str, str]]:
    """(common point, who parted there) of the pairs that did, each point once."""
    found: dict[str, list[str]] = {}
    for pair in pairs:
        if pair["verdict"] in ("diverged", "inconsistent") and pair["common"]:
            who = pair["follower"] if pair["verdict"] == "diverged" else None
            known = found.setdefault(pair["common"], [])
            known += [name for name in ([who] if who else [pair["a"], pair["b"]]) if name not in known]
    texts = {
        common: f"{shorten(names[0])} parts" if len(names) == 1 else f"{len(names)} members part"
        for common, names in found.items()
        if any(pair["verdict"] == "diverged" and pair["common"] == common for pair in pairs)
    }
    return sorted(texts.items(), key=lambda item: _ms(item[0]))


def branch_begin(member: str, pairs: Sequence[Document]) -> int | None:
    """Where the member's own branch begins, in milliseconds: behind the oldest common point with one that won."""
    own = [pair["common"] for pair in pairs if pair["verdict"] == "diverged" and pair["follower"] == member]
    return min((_ms(common) for common in own if common), default=None)


def _lane(row: Document, fork: int | None, marks: Sequence[Document], step: int) -> Lane:
    name, begin, end = row["member"], _ms(row["oldest"]), _ms(row["newest"])
    bars = [Bar(begin, end if fork is None else fork, "c0", f"{name}: {row['oldest']} to {row['newest']}")]
    if fork is not None:
        bars.append(Bar(fork, end, "c3", f"{name}, its own branch, to {row['newest']}"))
    dots = [
        Dot(
            mark["at"] + step // 2 if step > 1000 else mark["at"],
            COLOURS[mark["kind"]],
            f"{count_text(mark['entries'])} {mark['kind']}, {moment(mark['at'])}",
            "diamond" if mark["kind"] == "divergent" else "tick",
        )
        for mark in marks
        if mark["member"] == name
    ]
    return Lane(name, bars, dots)


def lane_from(lane: Lane, begin: int) -> Lane:
    """The part of a lane behind a moment."""
    bars = [Bar(max(bar.begin, begin), bar.end, bar.colour, bar.title) for bar in lane.bars if bar.end > begin]
    return Lane(lane.name, bars, [dot for dot in lane.dots if dot.at >= begin])


def _differing_chart(rows: Sequence[Document]) -> list[Chart]:
    of_ns: dict[str, dict[str, int]] = {}
    for row in rows:
        of_ns.setdefault(row["ns"] or "(no namespace)", {})[row["kind"]] = row["entries"]
    if not of_ns:
        return []
    ordered = sorted(of_ns.items(), key=lambda item: -sum(item[1].values()))[:BARS]
    bars = [Count(ns, [(COLOURS[kind], kinds[kind]) for kind in COLOURS if kind in kinds]) for ns, kinds in ordered]
    legend = [(kind, COLOURS[kind]) for kind in COLOURS if any(kind in kinds for _, kinds in ordered)]
    drawing = bar_chart(bars, label="entries that differ by namespace")
    return [Chart("Entries that differ, by namespace", drawing, legend=legend)]


def newest_namespaces(document: Document) -> tuple[list[Document], str]:
    """The namespaces of the member with the newest entry, of equal ones the first, and its name."""
    known = [row for row in document["compared"] if row["newest"]]
    name = max(known, key=lambda row: tuple(map(int, row["newest"].split(":"))))["member"]
    return [row for row in document["namespacesOfAll"] if row["member"] == name], name


def _ms(optime: str) -> int:
    return seconds_of(optime) * 1000

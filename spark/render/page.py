"""A document as one self-contained page: the answers, charts, tables and samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spark.render import charts
from spark.render.charts import Bar, Count, Dot, Lane, Line, moment
from spark.render.content import Content, ContentSample, ContentTable, number, seconds, size, text_of, tone_of
from spark.render.markup import Node, table, tag
from spark.render.markup import document as whole
from spark.render.telling import content_of, seconds_of

Document = Mapping[str, Any]


def page(document: Document) -> str:
    """HTML that needs no network."""
    content = content_of(document)
    names = ", ".join(member["name"] for member in document["members"])
    title = f"{content.title}: {names}"
    head = [
        tag("h1", content.title),
        tag("p", f"oplog-spark {document['command']}, engine {document['engine']}", class_="soft"),
        tag("ul", [tag("li", said.text, class_=said.tone.value) for said in content.answers], class_="answers"),
    ]
    drawn = _CHARTS[document["command"]](document) if document["command"] in _CHARTS else []
    return whole(title, [*head, *drawn, *_parts(content), *_members(document)])


def chart(title: str, drawing: Node, note: str = "") -> list[Node]:
    """A chart with its heading; the note says how to read it."""
    said = [tag("p", note, class_="soft")] if note else []
    return [tag("h2", title), *said, tag("div", drawing, class_="card")]


# --- charts by command -----------------------------------------------------------------------------------------


COLOURS = {"divergent": "bad", "duplicated": "c4", "missing": "c1", "rolled-back": "c3", "extra": "c5"}
"""Of the kinds of entries that differ."""


def diff_charts(document: Document) -> list[Node]:
    if not any(row["oldest"] for row in document["compared"]):
        return []
    return [
        *parting_charts(document),
        *differing_chart(document["namespaces"]),
        *(namespace_chart(*held_newest(document)) if document.get("held") else []),
        *(lag_chart(document["lag"]) if document.get("lag") else []),
    ]


def parting_charts(document: Document) -> list[Node]:
    """Each member's oplog on one line of time; where two parted; where entries differ. The end once more, closer."""
    rows = [row for row in document["compared"] if row["oldest"]]
    begin, end = min(_ms(row["oldest"]) for row in rows), max(_ms(row["newest"]) for row in rows)
    step = document.get("timelineSeconds", 1) * 1000
    marks = document.get("timeline", [])
    forks = partings(document["pairs"])
    uprights = [(_ms(common), text, "bad") for common, text in forks]
    lanes = [_lane(row, forks_of(row["member"], document["pairs"]), marks, step) for row in rows]
    kinds = [kind for kind in COLOURS if any(row["kind"] == kind for row in marks)]
    note = "A bar is what a member holds; purple where it is on a branch of its own. "
    note += "Marks are entries that differ, on the members that have them, and where they are missing." if kinds else ""
    nodes = chart("Where the members part", charts.lanes(lanes, label="members over time", upright=uprights), note)
    first = min([at for at, *_ in uprights] + [row["at"] for row in marks], default=end)
    room = max(2000, (end - first) // 8)
    if first - room > begin and (end - first) * 5 < end - begin:
        near = [lane_from(lane, first - room) for lane in lanes]
        drawing = charts.lanes(near, label="the end of the members' oplogs", upright=uprights)
        nodes += chart("The same, closer", drawing)
    return [*nodes, legend([(kind, COLOURS[kind]) for kind in kinds])] if kinds else nodes


def partings(pairs: Sequence[Document]) -> list[tuple[str, str]]:
    """(common point, who parted there) of the pairs that did, each point once."""
    found: dict[str, list[str]] = {}
    for pair in pairs:
        if pair["verdict"] in ("diverged", "inconsistent") and pair["common"]:
            who = pair["follower"] if pair["verdict"] == "diverged" else None
            names = [who] if who else [pair["a"], pair["b"]]
            known = found.setdefault(pair["common"], [])
            known += [name for name in names if name not in known]
    texts = {
        common: f"{charts.shorten(names[0])} parts" if len(names) == 1 else f"{len(names)} members part"
        for common, names in found.items()
        if any(pair["verdict"] == "diverged" and pair["common"] == common for pair in pairs)
    }
    return sorted(texts.items(), key=lambda item: _ms(item[0]))


def forks_of(member: str, pairs: Sequence[Document]) -> int | None:
    """Where the member's own branch begins, in milliseconds: behind the oldest common point with one that won."""
    own = [
        _ms(pair["common"])
        for pair in pairs
        if pair["verdict"] == "diverged" and pair["follower"] == member and pair["common"]
    ]
    return min(own, default=None)


def _lane(row: Document, fork: int | None, marks: Sequence[Document], step: int) -> Lane:
    name, begin, end = row["member"], _ms(row["oldest"]), _ms(row["newest"])
    whole = Bar(begin, end if fork is None else fork, "c0", f"{name}: {row['oldest']} to {row['newest']}")
    bars = [whole] if fork is None else [whole, Bar(fork, end, "c3", f"{name}, its own branch, to {row['newest']}")]
    dots = [
        Dot(
            mark["at"] + step // 2 if step > 1000 else mark["at"],
            COLOURS[mark["kind"]],
            f"{number(mark['entries'])} {mark['kind']}, {moment(mark['at'])}",
            "diamond" if mark["kind"] == "divergent" else "tick",
        )
        for mark in marks
        if mark["member"] == name
    ]
    return Lane(name, bars, dots)


def lane_from(lane: Lane, begin: int) -> Lane:
    """What of a lane lies behind a moment."""
    bars = [Bar(max(bar.begin, begin), bar.end, bar.colour, bar.title) for bar in lane.bars if bar.end > begin]
    return Lane(lane.name, bars, [dot for dot in lane.dots if dot.at >= begin])


def differing_chart(rows: Sequence[Document]) -> list[Node]:
    of_ns: dict[str, dict[str, int]] = {}
    for row in rows:
        of_ns.setdefault(row["ns"] or "(no namespace)", {})[row["kind"]] = row["entries"]
    if not of_ns:
        return []
    ordered = sorted(of_ns.items(), key=lambda item: -sum(item[1].values()))[:BARS]
    bars = [Count(ns, [(COLOURS[kind], kinds[kind]) for kind in COLOURS if kind in kinds]) for ns, kinds in ordered]
    shown = [kind for kind in COLOURS if any(kind in kinds for _, kinds in ordered)]
    drawing = charts.counts(bars, label="entries that differ by namespace")
    return [*chart("Entries that differ, by namespace", drawing), legend([(kind, COLOURS[kind]) for kind in shown])]


def legend(names: Sequence[tuple[str, str]]) -> Node:
    """(name, colour) in one line."""
    return tag(
        "p",
        [tag("span", tag("i", style=f"background: var(--{colour})"), name, class_="key") for name, colour in names],
        class_="soft",
    )


def held_newest(document: Document) -> tuple[list[Document], str]:
    """The namespaces of the member with the newest entry, of equal ones the first, and its name."""
    known = [row for row in document["compared"] if row["newest"]]
    name = max(known, key=lambda row: tuple(map(int, row["newest"].split(":"))))["member"]
    return [row for row in document["held"] if row["member"] == name], name


def _ms(optime: str) -> int:
    return seconds_of(optime) * 1000


def elections_charts(document: Document) -> list[Node]:
    terms = document["terms"]
    if not terms:
        return []
    leaders = sorted({term["primary"] or "unknown" for term in terms})
    lanes = []
    for number_, leader in enumerate(leaders):
        bars = [
            Bar(
                term["firstWall"],
                term["lastWall"],
                f"c{number_ % charts.SERIES_COLOURS}",
                f"term {term['term']}: {moment(term['firstWall'])} to {moment(term['lastWall'])}, "
                f"{number(term['entries'])} entries",
            )
            for term in terms
            if (term["primary"] or "unknown") == leader
        ]
        dots = [
            Dot(term["lastWall"], "bad", f"term {term['term']}: {number(term['lost'])} entries lost", "diamond")
            for term in terms
            if (term["primary"] or "unknown") == leader and term["lost"]
        ]
        lanes.append(Lane(leader, bars, dots))
    note = "A bar is a term, from its first entry to its last; a red diamond marks a term of which entries were lost."
    return chart("Who led when", charts.lanes(lanes, label="primaries over time"), note)


def lag_charts(document: Document) -> list[Node]:
    return lag_chart(document["series"])


def lag_chart(series: list[Document]) -> list[Node]:
    """How far each member was behind, over time; nothing where no source tells more than a moment."""
    lines = [
        Line(row["member"] or "commit point", [(at, behind / 1000) for at, behind in row["points"]])
        for row in series
        if row["source"] != "status" and len(row["points"]) > 1
    ]
    if not lines:
        return []
    drawing = charts.lines(lines, label="seconds behind over time", unit=lambda value: seconds(round(value * 1000)))
    return chart("Behind the primary", drawing, "How much older than the newest entry what each member had was.")


def summary_charts(document: Document) -> list[Node]:
    totals = document["totals"]
    if not totals:
        return []
    largest = max(totals, key=lambda row: row["entries"])["member"]
    rows = [row for row in document["minutes"] if row["member"] == largest]
    points, width_ms = widened([(row["minute"], row["entries"]) for row in rows], 60_000)
    name = f"Entries by {seconds(width_ms)}" if width_ms != 60_000 else "Entries by minute"
    over_time = charts.columns(points, width_ms, label="entries over time")
    return [
        *chart(name, over_time, f"In {largest}, by the wall clocks of the entries."),
        *namespace_chart([row for row in document["namespaces"] if row["member"] == largest], largest),
    ]


def namespace_chart(rows: list[Document], member: str) -> list[Node]:
    """The namespaces with most entries, the others together."""
    ordered = sorted(rows, key=lambda row: -row["entries"])
    bars = [
        Count(row["ns"] or "(no namespace)", [("c0", row["entries"])], size(row["bytes"])) for row in ordered[:BARS]
    ]
    if len(ordered) > BARS:
        rest = ordered[BARS:]
        name = f"{len(rest)} more"
        bars.append(Count(name, [("c5", sum(row["entries"] for row in rest))], size(sum(row["bytes"] for row in rest))))
    drawing = charts.counts(bars, label="entries by namespace")
    return chart(
        "Entries by namespace", drawing, f"In {member}; behind the bars the number of entries and their bytes."
    )


def widened(points: list[tuple[int, int]], width_ms: int, most: int = 240) -> tuple[list[tuple[int, int]], int]:
    """Counts by stretches of time added up to wider ones, until `most` of them reach from the first to the last."""
    first, last = min(at for at, _ in points), max(at for at, _ in points)
    wide = next(w for w in (*_WIDTHS, last - first + 1) if w >= width_ms and (last - first) // w < most)
    sums: dict[int, int] = {}
    for at, count in points:
        sums[at - at % wide] = sums.get(at - at % wide, 0) + count
    return sorted(sums.items()), wide


_WIDTHS = tuple(60_000 * minutes for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 360, 720, 1440, 10_080, 43_200))
BARS = 20
_CHARTS: dict[str, Callable[[Document], list[Node]]] = {
    "diff": diff_charts,
    "elections": elections_charts,
    "lag": lag_charts,
    "summary": summary_charts,
}


# --- pieces ----------------------------------------------------------------------------------------------------


def _parts(content: Content) -> list[Node]:
    nodes: list[Node] = []
    for part in content.parts:
        nodes.append(tag("h2", part.title))
        if isinstance(part, ContentTable):
            rows = [[tag("span", text_of(cell), class_=tone_of(cell).value) for cell in row] for row in part.rows]
            nodes.append(tag("div", table(part.columns, rows, numbers=part.numbers, mono=part.mono), class_="card"))
        else:
            nodes += [_sample(sample) for sample in part.samples]
        if part.note:
            nodes.append(tag("p", part.note, class_="soft"))
    return nodes


def _sample(sample: ContentSample) -> Node:
    badge = tag("span", sample.badge.text, class_=f"badge {sample.badge.tone.value}")
    lines = [(tag("dt", name), tag("dd", tag("pre", text))) for name, text in sample.lines]
    heading = tag("div", badge, tag("code", sample.heading))
    return tag("div", heading, tag("dl", *lines), class_=f"card sample {sample.badge.tone.value}")


def _members(document: Document) -> list[Node]:
    rows = [(member["name"], member["oldest"] or "-", member["newest"] or "-") for member in document["members"]]
    return [
        tag("h2", "Members"),
        tag(
            "div",
            table(("member", "oldest entry", "newest entry"), rows, mono=("oldest entry", "newest entry")),
            class_="card",
        ),
    ]

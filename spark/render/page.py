"""A document as one self-contained page: the answers, charts, tables and samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from spark.render import charts
from spark.render.charts import Bar, Count, Dot, Lane, Line, moment
from spark.render.content import Content, Grid, Sample, number, seconds, size, text_of, tone_of
from spark.render.markup import Node, table, tag
from spark.render.markup import document as whole
from spark.render.telling import content_of

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
    "elections": elections_charts,
    "lag": lag_charts,
    "summary": summary_charts,
}


# --- pieces ----------------------------------------------------------------------------------------------------


def _parts(content: Content) -> list[Node]:
    nodes: list[Node] = []
    for part in content.parts:
        nodes.append(tag("h2", part.title))
        if isinstance(part, Grid):
            rows = [[tag("span", text_of(cell), class_=tone_of(cell).value) for cell in row] for row in part.rows]
            nodes.append(tag("div", table(part.columns, rows, numbers=part.numbers, mono=part.mono), class_="card"))
        else:
            nodes += [_sample(sample) for sample in part.samples]
        if part.note:
            nodes.append(tag("p", part.note, class_="soft"))
    return nodes


def _sample(sample: Sample) -> Node:
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

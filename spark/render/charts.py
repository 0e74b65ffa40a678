"""Charts as SVG elements that take their colours from the page: spans of time, lines over time, bars."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from spark.render.markup import Node, add, tag

WIDTH = 1000.0
_CHAR = 7.6  # a letter's width at 12 px, on the wide side
_EDGE = 46.0  # half of the longest text under an axis
_NAME_MAX = 30
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STEPS_S = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600),
    *(7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800, 1_209_600, 2_592_000, 7_776_000, 31_536_000),
)
SERIES_COLOURS = 8


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of time on a lane, in milliseconds. colour: a variable of the page's style such as `c0` or `bad`."""

    begin: int
    end: int
    colour: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Dot:
    """A moment on a lane. shape: `diamond`, `tick` or `dot`."""

    at: int
    colour: str
    title: str = ""
    shape: str = "dot"


@dataclass(frozen=True, slots=True)
class Lane:
    name: str
    bars: Sequence[Bar] = ()
    dots: Sequence[Dot] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """A series over time: (milliseconds, value), by time."""

    name: str
    points: Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Count:
    """A row of a bar chart; parts are (colour, number), drawn one behind the other."""

    name: str
    parts: Sequence[tuple[str, int]]
    note: str = ""


@dataclass(slots=True)
class _Frame:
    """Where the data lies in the picture: x from left to right, and what time is where."""

    left: float
    first: int
    last: int
    right: float = WIDTH - _EDGE
    nodes: list[Node] = field(default_factory=list)

    def x(self, at: int) -> float:
        return self.left + (self.right - self.left) * (at - self.first) / max(1, self.last - self.first)


def lanes(rows: Sequence[Lane], *, label: str, upright: Sequence[tuple[int, str, str]] = ()) -> Node:
    """One line of time, a lane a row. upright: (time, text, colour) of lines across all lanes."""
    times = [t for row in rows for bar in row.bars for t in (bar.begin, bar.end)]
    times += [dot.at for row in rows for dot in row.dots] + [at for at, _, _ in upright]
    frame = _time_frame(times, [row.name for row in rows])
    texts = _apart([(frame.x(at), text, colour) for at, text, colour in upright], frame.left)
    levels = max((level for *_, level in texts), default=-1) + 1
    top, height = 8.0 + 16 * levels, 30.0
    bottom = top + height * len(rows)
    svg = _picture(bottom + 40, label)
    add(svg, _time_axis(frame, top, bottom))
    for number, row in enumerate(rows):
        y = top + height * number
        add(svg, _name(row.name, frame.left, y + height / 2))
        for bar in row.bars:
            x, end = frame.x(bar.begin), frame.x(bar.end)
            shape = tag("rect", x=x, y=y + 8, width=max(2.0, end - x), height=height - 16, rx=2)
            add(svg, _titled(shape, bar.title, bar.colour))
        for dot in row.dots:
            add(svg, _titled(_shape(dot.shape, frame.x(dot.at), y + height / 2), dot.title, dot.colour))
    for (at, _, colour), (x, text, _, anchor, level) in zip(upright, texts, strict=True):
        style = f"stroke: var(--{colour})"
        y = 12.0 + 16 * level
        add(svg, tag("line", x1=frame.x(at), x2=frame.x(at), y1=y + 4, y2=bottom, style=style, stroke_dasharray="4 3"))
        add(svg, tag("text", text, x=x, y=y, text_anchor=anchor, style=f"fill: var(--{colour})"))
    return svg


def lines(series: Sequence[Line], *, label: str, unit: Callable[[float], str]) -> Node:
    """Seconds over time in steps: a value holds until the next one."""
    top_value = nice_seconds(max((value for line in series for _, value in line.points), default=0.0))
    ticks = [top_value * part / 4 for part in range(5)]
    names = [unit(tick) for tick in ticks]
    frame = _time_frame([at for line in series for at, _ in line.points], names)
    rows = _legend_rows([line.name for line in series], frame)
    top = 14.0 + 20 * (max((row for _, row in rows), default=0) + 1)
    bottom = top + 200

    def y(value: float) -> float:
        return bottom - (bottom - top) * value / top_value

    svg = _picture(bottom + 40, label)
    for tick, name in zip(ticks, names, strict=True):
        add(svg, tag("line", x1=frame.left, x2=frame.right, y1=y(tick), y2=y(tick), class_="grid"))
        add(svg, tag("text", name, x=frame.left - 8, y=y(tick) + 4, text_anchor="end", class_="soft"))
    add(svg, _time_axis(frame, top, bottom))
    for number, (line, (x, row)) in enumerate(zip(series, rows, strict=True)):
        colour = f"c{number % SERIES_COLOURS}"
        path = "".join(
            f"M{frame.x(at):.1f} {y(value):.1f}" if first else f"H{frame.x(at):.1f}V{y(value):.1f}"
            for first, (at, value) in zip([True, *[False] * len(line.points)], line.points, strict=False)
        )
        dashes = None if number < SERIES_COLOURS else "6 4"
        style = f"stroke: var(--{colour})"
        shape = tag("path", d=path, fill="none", stroke_width=2, stroke_dasharray=dashes, style=style)
        add(shape, tag("title", line.name))
        add(svg, shape)
        add(svg, tag("rect", x=x, y=6 + 20 * row, width=14, height=4, style=f"fill: var(--{colour})"))
        add(svg, tag("text", shorten(line.name), x=x + 20, y=12 + 20 * row))
    return svg


def counts(rows: Sequence[Count], *, label: str) -> Node:
    """Bars, a row a name, with their sums behind them."""
    left = _name_width([row.name for row in rows])
    sums = [sum(number for _, number in row.parts) for row in rows]
    texts = [f"{total:,}{f' ({row.note})' if row.note else ''}" for total, row in zip(sums, rows, strict=True)]
    room = WIDTH - left - 24 - max((len(text) for text in texts), default=0) * _CHAR
    most = max([*sums, 1])
    height = 26.0
    svg = _picture(height * len(rows) + 8, label)
    for number, (row, total, text) in enumerate(zip(rows, sums, texts, strict=True)):
        y = 4 + height * number
        add(svg, _name(row.name, left, y + height / 2))
        x = left
        for colour, value in row.parts:
            width = max(room * value / most, 2.0 if value else 0.0)
            shape = tag("rect", x=x, y=y + 5, width=width, height=height - 10, rx=1)
            add(svg, _titled(shape, f"{value:,}", colour) if value else None)
            x += width
        add(svg, tag("text", text, x=x + 8, y=y + height / 2 + 4, class_="soft" if not total else None))
    return svg


def columns(points: Sequence[tuple[int, int]], width_ms: int, *, label: str) -> Node:
    """A count for each stretch of time of `width_ms`."""
    top_value = nice_top(float(max((count for _, count in points), default=0)))
    names = [f"{top_value * part / 4:,.0f}" if top_value >= 4 else f"{top_value * part / 4:g}" for part in range(5)]
    frame = _time_frame([t for at, _ in points for t in (at, at + width_ms)], names)
    top, bottom = 12.0, 172.0
    svg = _picture(bottom + 40, label)
    for part, name in enumerate(names):
        y = bottom - (bottom - top) * part / 4
        add(svg, tag("line", x1=frame.left, x2=frame.right, y1=y, y2=y, class_="grid"))
        add(svg, tag("text", name, x=frame.left - 8, y=y + 4, text_anchor="end", class_="soft"))
    add(svg, _time_axis(frame, top, bottom))
    for at, count in points:
        x, high = frame.x(at), (bottom - top) * count / top_value
        wide = frame.x(at + width_ms) - x
        shape = tag("rect", x=x, y=bottom - high, width=max(1.0, wide - (1 if wide > 4 else 0)), height=high)
        add(svg, _titled(shape, f"{moment(at)}: {count:,}", "c0"))
    return svg


# --- text and time ---------------------------------------------------------------------------------------------


def moment(at_ms: int, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """A wall clock as UTC; as a number where the calendar ends."""
    try:
        return (_EPOCH + timedelta(milliseconds=at_ms)).strftime(form)
    except OverflowError:
        return f"{at_ms} ms"


def shorten(name: str, most: int = _NAME_MAX) -> str:
    """The middle taken out of a long name."""
    if len(name) <= most:
        return name
    half = (most - 1) // 2
    return f"{name[: most - 1 - half]}…{name[len(name) - half :]}"


def nice_top(value: float) -> float:
    """The end of an axis from 0: 1, 2, 4, 5 or 10 times a power of ten, at least `value` and 1."""
    power = 1.0
    while power * 10 < value:
        power *= 10
    return next(step * power for step in (1, 2, 4, 5, 10) if step * power >= value)


def nice_seconds(value: float) -> float:
    """The end of an axis of four round spans of time."""
    return next((4 * step for step in _STEPS_S if 4 * step >= value and step >= 0.01), nice_top(value))


def time_ticks(first: int, last: int, room: float) -> tuple[list[int], str]:
    """(milliseconds of round moments, how to write them), so few that their texts do not touch in `room`."""
    length_s = max((last - first) / 1000, 0.001)
    step_s = next((s for s in _STEPS_S if room * s / length_s >= len(_form(s)[1]) * _CHAR + 14), length_s)
    step = max(1, int(step_s * 1000))
    begin = -(-first // step) * step
    return list(range(begin, last + 1, step)), _form(step_s)[0]


def _form(step_s: float) -> tuple[str, str]:
    """How moments so far apart are written, and one as an example."""
    if step_s >= 86_400:
        return "%Y-%m-%d", "2026-10-03"
    if step_s >= 60:
        return "%H:%M", "12:00"
    return ("%H:%M:%S", "12:00:00") if step_s >= 1 else ("%H:%M:%S.%f", "12:00:00.000")


# --- pieces ----------------------------------------------------------------------------------------------------


def _picture(height: float, label: str) -> Node:
    return tag("svg", viewBox=f"0 0 {WIDTH:.0f} {height:.0f}", role="img", aria_label=label)


def _time_frame(times: Sequence[int], names: Iterable[str]) -> _Frame:
    first, last = min(times, default=0), max(times, default=1)
    if last - first < 10:
        first, last = first - 500, last + 500
    room = max(1, (last - first) // 100)
    return _Frame(_name_width(names), first - room, last + room)


def _time_axis(frame: _Frame, top: float, bottom: float) -> list[Node]:
    ticks, form = time_ticks(frame.first, frame.last, frame.right - frame.left)
    nodes = [tag("line", x1=frame.left, x2=frame.right, y1=bottom, y2=bottom, class_="axis")]
    for at in ticks:
        x = frame.x(at)
        text = moment(at, form)
        text = text[:-3] if form.endswith("%f") else text
        nodes.append(tag("line", x1=x, x2=x, y1=top, y2=bottom, class_="grid"))
        nodes.append(tag("text", text, x=x, y=bottom + 16, text_anchor="middle", class_="soft"))
    days = sorted({moment(at, "%Y-%m-%d") for at in (frame.first, frame.last)})
    name = " to ".join(days) + ", UTC" if not form.startswith("%Y") else "UTC"
    nodes.append(tag("text", name, x=frame.right, y=bottom + 34, text_anchor="end", class_="soft"))
    return nodes


def _apart(wanted: Sequence[tuple[float, str, str]], left: float) -> list[tuple[float, str, str, str, int]]:
    """(x, text, colour, anchor, level) of texts over upright lines; on another level where two would touch."""
    placed: list[tuple[float, float, int]] = []
    found = []
    for x, text, colour in wanted:
        half = len(text) * _CHAR / 2
        centre = min(max(x, left + half), WIDTH - half - 4)
        level = 0
        while any(on == level and begin < centre + half + 8 and end > centre - half - 8 for begin, end, on in placed):
            level += 1
        placed.append((centre - half, centre + half, level))
        found.append((centre, text, colour, "middle", level))
    return found


def _legend_rows(names: Sequence[str], frame: _Frame) -> list[tuple[float, int]]:
    """(x, row) of each name in the legend."""
    x, row = frame.left, 0
    found = []
    for name in names:
        width = 20 + len(shorten(name)) * _CHAR + 24
        if x + width > frame.right and x > frame.left:
            x, row = frame.left, row + 1
        found.append((x, row))
        x += width
    return found


def _name_width(names: Iterable[str]) -> float:
    return max(_EDGE, 20 + max((len(shorten(name)) for name in names), default=0) * _CHAR)


def _name(name: str, left: float, middle: float) -> Node:
    node = tag("text", shorten(name), x=left - 10, y=middle + 4, text_anchor="end")
    add(node, tag("title", name))
    return node


def _titled(shape: Node, title: str, colour: str) -> Node:
    shape.set("style", f"fill: var(--{colour})")
    add(shape, tag("title", title) if title else None)
    return shape


def _shape(kind: str, x: float, y: float) -> Node:
    match kind:
        case "diamond":
            return tag("path", d=f"M{x:.1f} {y - 7:.1f}l7 7l-7 7l-7 -7z")
        case "tick":
            return tag("rect", x=x - 1.5, y=y - 11, width=3, height=22)
        case _:
            return tag("circle", cx=x, cy=y, r=5)

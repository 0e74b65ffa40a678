"""Charts as SVG: spans of time, lines over time, bars. Their colours are the page's, which is light or dark.

They are drawn here and not by a library. No chart library has a line of time on which members part, and those whose
output needs no network are larger than what they would replace and know nothing of a page that is light or dark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from replset.text import printable
from spark.render.content import moment

WIDTH = 1000.0
_CHAR = 7.6  # a letter's width at 12 px, on the wide side
_EDGE = 46.0  # half of the longest text under an axis
_NAME_MAX = 30
_STEPS_S = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600),
    *(7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800, 1_209_600, 2_592_000, 7_776_000, 31_536_000),
)
SERIES_COLOURS = 8


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing with its heading. note: how to read it. legend: (name, colour) of each kind of mark."""

    title: str
    svg: str
    note: str = ""
    legend: Sequence[tuple[str, str]] = ()


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
    """One row of a line of time."""

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
    """A row of a bar chart. parts: (colour, number), drawn one behind the other."""

    name: str
    parts: Sequence[tuple[str, int]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where the data is in the picture: x from left to right, in milliseconds from first to last."""

    left: float
    first: int
    last: int
    right: float = WIDTH - _EDGE

    def x(self, at: int) -> float:
        return self.left + (self.right - self.left) * (at - self.first) / max(1, self.last - self.first)


def lane_chart(rows: Sequence[Lane], *, label: str, upright: Sequence[tuple[int, str, str]] = ()) -> str:
    """Draw one line of time, a lane for each row. upright: (time, text, colour) of lines across all lanes."""
    times = [t for row in rows for bar in row.bars for t in (bar.begin, bar.end)]
    times += [dot.at for row in rows for dot in row.dots] + [at for at, _, _ in upright]
    frame = _time_frame(times, [row.name for row in rows])
    texts = _apart([(frame.x(at), text) for at, text, _ in upright], frame.left)
    top, height = 8.0 + 16 * (max((level for _, level in texts), default=-1) + 1), 30.0
    bottom = top + height * len(rows)
    parts = _time_axis(frame, top, bottom)
    for number, row in enumerate(rows):
        y = top + height * number
        parts.append(_name(row.name, frame.left, y + height / 2))
        for bar in row.bars:
            x, end = frame.x(bar.begin), frame.x(bar.end)
            size = {"x": x, "y": y + 8, "width": max(2.0, end - x), "height": height - 16, "rx": 2}
            parts.append(_mark("rect", bar.colour, bar.title, **size))
        parts += [_dot(dot, frame.x(dot.at), y + height / 2) for dot in row.dots]
    for (at, text, colour), (middle, level) in zip(upright, texts, strict=True):
        x, y = frame.x(at), 12.0 + 16 * level
        line = {"x1": x, "x2": x, "y1": y + 4, "y2": bottom, "stroke_dasharray": "4 3"}
        parts.append(_tag("line", style=f"stroke: var(--{colour})", **line))
        parts.append(_text(text, middle, y, text_anchor="middle", style=f"fill: var(--{colour})"))
    return _picture(bottom + 40, label, parts)


def line_chart(series: Sequence[Line], *, label: str, unit: Callable[[float], str]) -> str:
    """Draw seconds over time in steps: a value holds until the next one."""
    top_value = nice_seconds(max((value for line in series for _, value in line.points), default=0.0))
    names = [unit(top_value * part / 4) for part in range(5)]
    frame = _time_frame([at for line in series for at, _ in line.points], names)
    rows = _legend_rows([line.name for line in series], frame)
    top = 14.0 + 20 * (max((row for _, row in rows), default=0) + 1)
    bottom = top + 200
    parts = [*_value_axis(frame, names, top, bottom), *_time_axis(frame, top, bottom)]
    for number, (line, (x, row)) in enumerate(zip(series, rows, strict=True)):
        colour = f"var(--c{number % SERIES_COLOURS})"
        path = ""
        for at, value in line.points:
            y = f"{bottom - (bottom - top) * value / top_value:.1f}"
            path += f"H{frame.x(at):.1f}V{y}" if path else f"M{frame.x(at):.1f} {y}"
        dashes = None if number < SERIES_COLOURS else "6 4"
        look = {"fill": "none", "stroke_width": 2, "stroke_dasharray": dashes, "style": f"stroke: {colour}"}
        parts.append(_tag("path", _title(line.name), d=path, **look))
        parts.append(_tag("rect", x=x, y=6 + 20 * row, width=14, height=4, style=f"fill: {colour}"))
        parts.append(_text(shorten(line.name), x + 20, 12 + 20 * row))
    return _picture(bottom + 40, label, parts)


def bar_chart(rows: Sequence[Count], *, label: str) -> str:
    """Draw bars, a row for each name, with their sums behind them."""
    left = _name_width([row.name for row in rows])
    sums = [sum(number for _, number in row.parts) for row in rows]
    texts = [f"{total:,}{f' ({row.note})' if row.note else ''}" for total, row in zip(sums, rows, strict=True)]
    longest = WIDTH - left - 24 - max((len(text) for text in texts), default=0) * _CHAR
    height, parts = 26.0, []
    for number, (row, total, text) in enumerate(zip(rows, sums, texts, strict=True)):
        x, y = left, 4 + height * number
        parts.append(_name(row.name, left, y + height / 2))
        for colour, value in row.parts:
            if value:
                width = max(longest * value / max(sums), 2.0)
                parts.append(_mark("rect", colour, f"{value:,}", x=x, y=y + 5, width=width, height=height - 10, rx=1))
                x += width
        parts.append(_text(text, x + 8, y + height / 2 + 4, class_=None if total else "soft"))
    return _picture(height * len(rows) + 8, label, parts)


def column_chart(points: Sequence[tuple[int, int]], width_ms: int, *, label: str) -> str:
    """Draw a count for each stretch of time of `width_ms`."""
    top_value = nice_top(float(max((count for _, count in points), default=0)))
    names = [f"{top_value * part / 4:,.0f}" if top_value >= 4 else f"{top_value * part / 4:g}" for part in range(5)]
    frame = _time_frame([t for at, _ in points for t in (at, at + width_ms)], names)
    top, bottom = 12.0, 172.0
    parts = [*_value_axis(frame, names, top, bottom), *_time_axis(frame, top, bottom)]
    for at, count in points:
        x, high = frame.x(at), (bottom - top) * count / top_value
        wide = frame.x(at + width_ms) - x
        size = {"x": x, "y": bottom - high, "width": max(1.0, wide - (1 if wide > 4 else 0)), "height": high}
        parts.append(_mark("rect", "c0", f"{moment(at)}: {count:,}", **size))
    return _picture(bottom + 40, label, parts)


# --- texts and scales ------------------------------------------------------------------------------------------


def shorten(name: str, most: int = _NAME_MAX) -> str:
    """Take the middle out of a long name."""
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


def time_ticks(first: int, last: int, width: float) -> tuple[list[int], str]:
    """(milliseconds of round moments, how to write them), so few that their texts do not touch in `width`."""
    length_s = max((last - first) / 1000, 0.001)
    step_s = next((s for s in _STEPS_S if width * s / length_s >= len(_form(s)[1]) * _CHAR + 14), length_s)
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


def _time_frame(times: Sequence[int], names: Iterable[str]) -> _Frame:
    first, last = min(times, default=0), max(times, default=1)
    if last - first < 10:
        first, last = first - 500, last + 500
    margin = max(1, (last - first) // 100)
    return _Frame(_name_width(names), first - margin, last + margin)


def _time_axis(frame: _Frame, top: float, bottom: float) -> list[str]:
    ticks, form = time_ticks(frame.first, frame.last, frame.right - frame.left)
    parts = [_tag("line", x1=frame.left, x2=frame.right, y1=bottom, y2=bottom, class_="axis")]
    for at in ticks:
        x, text = frame.x(at), moment(at, form)
        parts.append(_tag("line", x1=x, x2=x, y1=top, y2=bottom, class_="grid"))
        text = text[:-3] if form.endswith("%f") else text
        parts.append(_text(text, x, bottom + 16, text_anchor="middle", class_="soft"))
    days = sorted({moment(at, "%Y-%m-%d") for at in (frame.first, frame.last)})
    name = " to ".join(days) + ", UTC" if not form.startswith("%Y") else "UTC"
    return [*parts, _text(name, frame.right, bottom + 34, text_anchor="end", class_="soft")]


def _value_axis(frame: _Frame, names: Sequence[str], top: float, bottom: float) -> list[str]:
    """Lines for the names, from the lowest to the highest."""
    parts = []
    for part, name in enumerate(names):
        y = bottom - (bottom - top) * part / (len(names) - 1)
        parts.append(_tag("line", x1=frame.left, x2=frame.right, y1=y, y2=y, class_="grid"))
        parts.append(_text(name, frame.left - 8, y + 4, text_anchor="end", class_="soft"))
    return parts


def _apart(wanted: Sequence[tuple[float, str]], left: float) -> list[tuple[float, int]]:
    """(middle, level) of texts over upright lines; on another level where two would touch."""
    taken: list[tuple[float, float, int]] = []
    found = []
    for x, text in wanted:
        half = len(text) * _CHAR / 2
        middle, level = min(max(x, left + half), WIDTH - half - 4), 0
        while any(on == level and begin < middle + half + 8 and end > middle - half - 8 for begin, end, on in taken):
            level += 1
        taken.append((middle - half, middle + half, level))
        found.append((middle, level))
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


# --- elements --------------------------------------------------------------------------------------------------


def _tag(name: str, *inside: str, **attributes: object) -> str:
    """An element. inside: markup. `class_` is the attribute class, `stroke_width` is stroke-width; None: left out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{given}>{''.join(inside)}</{name}>"


def _value(value: object) -> str:
    return escape(f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else printable(str(value)))


def _title(text: str) -> str:
    return f"<title>{_value(text)}</title>" if text else ""


def _text(text: str, x: float, y: float, **attributes: object) -> str:
    return _tag("text", _value(text), x=x, y=y, **attributes)


def _name(name: str, left: float, middle: float) -> str:
    return _tag("text", _value(shorten(name)), _title(name), x=left - 10, y=middle + 4, text_anchor="end")


def _mark(name: str, colour: str, title: str, **attributes: object) -> str:
    return _tag(name, _title(title), style=f"fill: var(--{colour})", **attributes)


def _dot(dot: Dot, x: float, y: float) -> str:
    match dot.shape:
        case "diamond":
            return _mark("path", dot.colour, dot.title, d=f"M{x:.1f} {y - 7:.1f}l7 7l-7 7l-7 -7z")
        case "tick":
            return _mark("rect", dot.colour, dot.title, x=x - 1.5, y=y - 11, width=3, height=22)
        case _:
            return _mark("circle", dot.colour, dot.title, cx=x, cy=y, r=5)


def _picture(height: float, label: str, parts: Iterable[str]) -> str:
    return _tag("svg", *parts, viewBox=f"0 0 {WIDTH:.0f} {height:.0f}", role="img", aria_label=label)

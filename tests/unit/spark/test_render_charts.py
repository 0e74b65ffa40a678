"""Charts: round axes, texts that do not touch, everything inside the picture."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark.render import charts
from spark.render.charts import Bar, Count, Dot, Lane, Line, nice_seconds, nice_top, shorten, time_ticks

DAY = 86_400_000
NOON = 1_760_000_000_000
LETTER = 6.5
"""A letter's width at the charts' size of text, on the average."""

moments = st.integers(0, 4_000_000_000_000)


def check(svg: str) -> ElementTree.Element:
    """No text touches another, by the average width of letters; no text, bar or line leaves the picture."""
    drawing = ElementTree.fromstring(svg)
    _, _, width, height = map(float, drawing.get("viewBox", "").split())
    placed = []
    for node in drawing.iter("text"):
        x, y, wide = float(node.get("x", "nan")), float(node.get("y", "nan")), LETTER * len(node.text or "")
        left = {"middle": x - wide / 2, "end": x - wide}.get(node.get("text-anchor", "start"), x)
        assert 0 <= left <= left + wide <= width
        assert 0 < y <= height
        placed.append((y, left, left + wide))
    for (y, _, right), (other_y, left, _) in pairwise(sorted(placed)):
        assert y != other_y or right <= left
    for node in drawing.iter("rect"):
        x, y, wide, high = (float(node.get(name, "nan")) for name in ("x", "y", "width", "height"))
        assert 0 <= x <= x + wide <= width + 0.1
        assert 0 <= y <= y + high <= height + 0.1
    for node in drawing.iter("path"):
        numbers = [float(number) for number in re.findall(r"-?\d+\.?\d*", node.get("d", ""))]
        assert all(not math.isnan(number) for number in numbers)
    return drawing


def test_an_axis_ends_at_a_round_number() -> None:
    plain = {0: 1, 0.3: 1, 1: 1, 1.5: 2, 3: 4, 4.5: 5, 99: 100, 1001: 2000}
    assert list(map(nice_top, plain)) == pytest.approx(list(plain.values()))
    seconds = {0: 0.04, 0.5: 0.8, 1: 2, 3.9: 4, 50: 60, 160: 240, 3000: 3600, 90_000: 172_800}
    assert list(map(nice_seconds, seconds)) == pytest.approx(list(seconds.values()))


@given(st.floats(0, 1e15))
def test_an_axis_is_not_much_longer_than_its_values(value: float) -> None:
    top = nice_top(value)
    assert top >= value
    assert top <= max(1, 2 * value)


@given(moments, st.integers(0, 20 * 365 * DAY))
def test_moments_on_an_axis_are_round_and_apart(first: int, length: int) -> None:
    ticks, _ = time_ticks(first, first + length, 900)
    assert len(ticks) <= 20
    assert all(first <= at <= first + length for at in ticks)
    assert len({after - before for before, after in pairwise(ticks)}) <= 1


def test_moments_are_written_as_finely_as_they_lie() -> None:
    spans = {500: "%H:%M:%S.%f", 30_000: "%H:%M:%S", 3_600_000: "%H:%M", 30 * DAY: "%Y-%m-%d"}
    assert {span: time_ticks(NOON, NOON + span, 900)[1] for span in spans} == spans


def test_a_long_name_loses_its_middle() -> None:
    assert shorten("m1") == "m1"
    assert shorten("a" * 40 + "z" * 40) == "a" * 15 + "…" + "z" * 14


@given(
    st.lists(
        st.tuples(st.text("mw1-./", min_size=1, max_size=60), moments, st.integers(0, 400 * DAY)),
        min_size=1,
        max_size=8,
    ),
    st.lists(st.tuples(moments, st.sampled_from(["common point", "m1 and m2 part", "x"])), max_size=6),
)
def test_lanes(rows: list[tuple[str, int, int]], upright: list[tuple[int, str]]) -> None:
    bars = [(name, Bar(at, at + long, "c0", "a bar"), Dot(at, "bad", shape="diamond")) for name, at, long in rows]
    lanes = [Lane(name, [bar], [dot]) for name, bar, dot in bars]
    check(charts.lane_chart(lanes, label="x", upright=[(at, text, "bad") for at, text in upright]))


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1, max_size=40))
def test_lines(points: list[tuple[int, int]]) -> None:
    series = [Line(f"127.0.0.1:2701{n}", [(at, value / 1000) for at, value in sorted(points)]) for n in range(10)]
    drawn = check(charts.line_chart(series, label="x", unit=lambda value: f"{value:g} s"))
    assert len(drawn.findall("path")) == 10


def test_a_line_goes_in_steps_from_its_first_point() -> None:
    drawn = check(charts.line_chart([Line("m1", [(0, 0.0), (1000, 4.0)])], label="x", unit=str))
    path = drawn.find("path")
    assert re.fullmatch(r"M[\d.]+ [\d.]+H[\d.]+V[\d.]+", path.get("d", ""))


@given(st.lists(st.tuples(st.text("nsx.", max_size=60), st.integers(0, 10**12)), min_size=1, max_size=30))
def test_counts(rows: list[tuple[str, int]]) -> None:
    bars = [Count(name, [("c0", n), ("bad", n // 10)], "12 KiB") for name, n in rows]
    check(charts.bar_chart(bars, label="x"))


@given(st.dictionaries(st.integers(0, 10**6), st.integers(0, 10**9), min_size=1, max_size=60))
def test_columns(found: dict[int, int]) -> None:
    points = [(at * 60_000, n) for at, n in sorted(found.items())]
    drawn = check(charts.column_chart(points, 60_000, label="x"))
    assert len(drawn.findall("rect")) == len(found)

"""How far members are behind, told from marks, no-ops and status answers, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replset.bson import DateTime, Int64, Timestamp
from replset.ejson import from_ejson_value, to_ejson_value
from replset.errors import BadValueError
from replset.ids import OpTime, pack_ts
from replset.oplog_entry import insert_entry, noop_entry
from spark.oplog import EVERYTHING, OplogError, Span
from spark.readers.sqlite import SqliteOplog
from spark.reports.lag import (
    Lag,
    LagMark,
    commit_point_rows,
    lag_marks_in,
    noop_in,
    round_width_ms,
    status_of,
    status_rows,
    wall_rows,
    width_ms_of,
)
from spark.reports.lag import PeriodicNoop as Noop
from tests.unit.spark.readers.conftest import stand_in

Rows = list[tuple[int, int, int]]
"""(ts, term, wall) of entries."""


def test_round_width() -> None:
    widths = {0: 1000, 1: 1000, 500: 1000, 501: 2000, 2001: 5000, 86_400: 300_000, 10**9: 24 * 86_400_000}
    assert {seconds: round_width_ms(seconds) for seconds in widths} == widths
    assert all(-(-seconds * 1000 // width_ms) <= 500 for seconds, width_ms in widths.items())


def test_width() -> None:
    two, hundred = [(0, 999), (500, 1999)], Span(0, pack_ts(100, 0))
    assert [width_ms_of([], EVERYTHING, None), width_ms_of([], EVERYTHING, 70)] == [1000, 70]
    assert [width_ms_of(two, EVERYTHING, None), width_ms_of(two, hundred, None)] == [5000, 1000]
    assert width_ms_of(two[:1], EVERYTHING, 20) == 20
    for every_ms, reason in ((0, "at least 1 ms"), (-5, "at least 1 ms"), (9, "1000 s in stretches of 9 ms are more")):
        with pytest.raises(BadValueError, match=reason):
            width_ms_of(two[:1], EVERYTHING, every_ms)


# --- marks -----------------------------------------------------------------------------------------------------


def batches(rows: Rows, size: int) -> Iterator[pa.RecordBatch]:
    schema = pa.schema([(name, pa.int64()) for name in ("ts", "term", "wall")])
    for begin in range(0, len(rows), size):
        columns = list(zip(*rows[begin : begin + size], strict=True))
        yield pa.RecordBatch.from_arrays([pa.array(column, pa.int64()) for column in columns], schema=schema)


def marks_of(member: str, rows: Rows, noops: list[Noop], *, part: int = 1000, size: int = 1000) -> list[LagMark]:
    """What the workers note of a member's oplog, read in parts of so many entries and batches of so many; width 10."""
    noop_ts = np.unique(np.array([noop.ts for noop in noops], np.int64))
    wanted = np.union1d(noop_ts, np.array([noop.point_ts for noop in noops], np.int64))
    return [
        mark
        for begin in range(0, len(rows), part)
        for mark in lag_marks_in(member, batches(rows[begin : begin + part], size), 10, wanted, noop_ts)
    ]


def test_marks() -> None:
    rows = [(1, 1, 5), (2, 1, 8), (3, 1, 12), (4, 2, 13), (5, 2, 0)]
    found = marks_of("a", rows, [Noop(1, 1, 0, 0), Noop(3, 1, 2, 1)])
    assert found == [
        LagMark("a", "at", 0, 1, 1, 5),
        LagMark("a", "at", 0, 1, 2, 8),
        LagMark("a", "at", 0, 1, 3, 12),
        LagMark("a", "before", 3, 1, 2, 8),
        LagMark("a", "newest", 10, 1, 2, 8),
        LagMark("a", "newest", 20, 1, 3, 12),
        LagMark("a", "newest", 20, 2, 4, 13),
        LagMark("a", "newest", 10, 2, 5, 0),
        LagMark("a", "first", 10, 1, 1, 5),
        LagMark("a", "first", 20, 2, 4, 13),
        LagMark("a", "end", 0, 2, 5, 0),
    ]
    assert marks_of("a", [], []) == []
    (mark, *_) = marks_of("a", [(pack_ts(7, 1), 1, 0)], [])
    assert (mark.at, mark.wall) == (7010, 7000)  # no wall: the seconds of the optime


PLAIN: Rows = [(1, 1, 5), (2, 1, 15), (3, 1, 25), (4, 1, 47)]
STEPPED_BACK: Rows = [(1, 1, 25), (2, 2, 12)]
LOST: Rows = [(1, 1, 5), (2, 1, 8), (3, 1, 9), (4, 1, 22), (5, 1, 38)]


@pytest.mark.parametrize(
    ("a", "b", "behind"),
    [
        pytest.param(PLAIN, PLAIN[:2], {10: (0, 0), 20: (0, 0), 30: (0, 10), 50: (0, 32)}, id="b-stops"),
        pytest.param(PLAIN[:3], PLAIN[1:3], {10: (0, None), 20: (0, 0), 30: (0, 0)}, id="a-shorter-head"),
        pytest.param(
            LOST,
            [*LOST[:2], (20, 2, 31), (21, 2, 45)],
            {10: (0, 0), 30: (0, 0), 40: (23, 0), 50: (37, 0)},
            id="lost-entries-bring-nobody-forward",
        ),
        pytest.param(STEPPED_BACK, STEPPED_BACK[:1], {30: (0, 0)}, id="the-clock-steps-back"),
        pytest.param([], [], {}, id="nothing"),
    ],
)
def test_how_far_members_are_behind(a: Rows, b: Rows, behind: dict[int, tuple[int | None, ...]]) -> None:
    rows = wall_rows([*marks_of("a", a, []), *marks_of("b", b, [])])
    found = {(row.at, row.member): row.behind_ms for row in rows}
    assert {at: (found.get((at, "a")), found.get((at, "b"))) for at in sorted({at for at, _ in found})} == behind
    if a is LOST:
        assert {row.ts for row in rows if row.member == "a"} == {2}


@pytest.mark.parametrize("wrong", [900_000, 4])
def test_a_clock_that_was_wrong_once_hides_no_lag(wrong: int) -> None:
    history: Rows = [(1, 1, 5), (2, 1, 15), (3, 1, wrong), (4, 1, 25), (5, 1, 47)]
    rows = wall_rows([*marks_of("a", history, []), *marks_of("b", history[:3], [])])
    last = [(row.member, row.at, row.behind_ms) for row in rows[-2:]]
    assert last == [("a", 50, 0), ("b", 50, 47 - (25 if wrong > 25 else 15))]


HISTORY: Rows = [(10 * n, 1 + n // 8, 100 * n) for n in range(1, 16)]
NOOPS = [Noop(100, 2, 70, 1), Noop(30, 1, 20, 1), Noop(10, 1, 5, 1), Noop(150, 2, 120, 2), Noop(100, 2, 70, 1)]


def test_the_majority_is_behind_by_what_came_before_the_noop() -> None:
    marks = [*marks_of("a", HISTORY, NOOPS), *marks_of("b", HISTORY[2:9], NOOPS, part=2)]
    rows = commit_point_rows(marks, NOOPS)
    assert [(row.member, row.at, row.behind_ms, OpTime(row.term, row.ts)) for row in rows] == [
        (None, 300, 0, OpTime(1, 20)),
        (None, 1000, 200, OpTime(1, 70)),
        (None, 1500, 200, OpTime(2, 120)),
    ]


def test_a_noop_that_the_history_lost_tells_nothing() -> None:
    lost = [*HISTORY[:7], (75, 1, 750), (76, 1, 760)]
    noops = [Noop(76, 1, 70, 1)]
    marks = [*marks_of("a", lost, noops), *marks_of("b", HISTORY, noops)]
    assert commit_point_rows(marks, noops) == []
    assert len(commit_point_rows(marks_of("a", lost, noops), noops)) == 1


@given(
    parts=st.integers(1, 20),
    size=st.integers(1, 20),
    walls=st.lists(st.integers(0, 30), min_size=1, max_size=20),
    behind=st.integers(0, 20),
    noop_at=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), max_size=3),
)
def test_parts_and_batches_change_nothing(
    parts: int, size: int, walls: list[int], behind: int, noop_at: list[tuple[int, int]]
) -> None:
    rows: Rows = []
    for number, step in enumerate(walls, 1):
        rows.append((number, 1 + number // 7, (rows[-1][2] if rows else 100) + step))
    noops = [Noop(ts, 1 + ts // 7, point, 1 + point // 7) for ts, point in noop_at]
    whole = [*marks_of("a", rows, noops), *marks_of("b", rows[:behind], noops)]
    pieces = {"a": rows, "b": rows[:behind]}.items()
    cut = [mark for of, some in pieces for mark in marks_of(of, some, noops, part=parts, size=size)]
    assert wall_rows(cut) == wall_rows(whole)
    assert commit_point_rows(cut, noops) == commit_point_rows(whole, noops)
    last = {row.member: row.behind_ms for row in wall_rows(whole)}
    assert last["a"] == 0
    if behind:
        assert last["b"] == rows[-1][2] - rows[:behind][-1][2]


@pytest.mark.parametrize(
    ("o", "noop"),
    [
        ({"msg": "periodic noop", "commitPoint": {"ts": Timestamp(5, 2), "t": Int64(3)}}, Noop(9, 4, pack_ts(5, 2), 3)),
        ({"msg": "periodic noop", "commitPoint": {"ts": Timestamp(0, 0), "t": Int64(0)}}, None),
        ({"msg": "periodic noop", "commitPoint": {"ts": 5, "t": Int64(3)}}, None),
        ({"msg": "periodic noop"}, None),
        ({"msg": "new primary", "commitPoint": {"ts": Timestamp(5, 2), "t": 3}}, None),
    ],
)
def test_noop_in(o: dict[str, object], noop: Noop | None) -> None:
    assert noop_in(9, 4, noop_entry(o, OpTime(4, 9), 0)) == noop
    assert noop_in(9, 4, insert_entry("a.b", b"u" * 16, b"\x05\0\0\0\0", OpTime(4, 9), 0)) is None


# --- status ----------------------------------------------------------------------------------------------------


def member(host: str, seconds: int, *, is_self: bool = False, term: int = 1) -> dict[str, object]:
    found: dict[str, object] = {
        "name": host,
        "optime": {"ts": Timestamp(seconds, 1), "t": Int64(term)},
        "lastAppliedWallTime": DateTime(seconds * 1000),
    }
    return {**found, "self": True} if is_self else found


def status(date_ms: int, *members: dict[str, object]) -> dict[str, Any]:
    """As it comes back from the HTTP API."""
    return from_ejson_value(to_ejson_value({"date": DateTime(date_ms), "members": list(members)}))


def test_status_rows() -> None:
    primary = status(
        100_500,
        member("a:1", 100, is_self=True, term=2),
        member("b:1", 90, term=2),
        member("c:1", 80),
        {"name": "d:1", "state": 7},
        {"name": "e:1", "optime": {"ts": Timestamp(0, 0), "t": Int64(-1)}},
    )
    secondary = status(101_000, member("a:1", 99, term=2), member("b:1", 95, is_self=True, term=2), member("c:1", 70))
    assert status_rows([("A", primary), ("B", secondary)]) == [
        Lag("A", 100_500, "status", 0, pack_ts(100, 1), 2),
        Lag("B", 101_000, "status", 5000, pack_ts(95, 1), 2),
        Lag("c:1", 100_500, "status", 20_000, pack_ts(80, 1), 1),
    ]
    assert status_rows([]) == []
    assert status_rows([("A", status(5, {"name": "a:1", "self": True}))]) == []


def test_status_rows_of_members_that_measure() -> None:
    """The clock of the primary was ahead when it wrote what `b` has as its newest."""
    behind = {**member("b:1", 90), "lastAppliedWallTime": DateTime(9_000_000_000), "lagMillis": Int64(7_000)}
    answer = status(100_500, member("a:1", 100, is_self=True) | {"lagMillis": Int64(0)}, behind)
    assert [row.behind_ms for row in status_rows([("A", answer)])] == [0, 7_000]


def test_a_live_member_is_asked_for_its_status() -> None:
    document = to_ejson_value({"date": DateTime(5000), "members": [member("a:1", 4, is_self=True)]})
    with stand_in([]) as live:
        live.answer = lambda path, _: (200 if path == "/v1/replset/status" else 404, {}, json.dumps(document).encode())
        answer = status_of(live.oplog)
    assert status_rows([("A", answer)]) == [Lag("A", 5000, "status", 0, pack_ts(4, 1), 1)]
    assert status_of(SqliteOplog("f", "/none")) is None
    with pytest.raises(OplogError, match=r"^m1: .* cannot be reached"):
        status_of(live.oplog)

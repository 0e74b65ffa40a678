"""The reader of a mongod over the wire: what breaks, what goes on, and what it asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from replset.ids import OPTIME_NULL, OpTime
from spark.oplog import (
    EVERYTHING,
    START,
    EntryFilter,
    OplogError,
    OplogRolledBackError,
    OplogTrimmedError,
    ReadPosition,
    Span,
)
from spark.readers import wire
from spark.readers.wire import WireOplog
from tests.spark.kit import T0
from tests.unit.spark.readers.conftest import WireStandIn, history, stamps, wire_stand_in

ROWS = history(100)
ALL_STAMPS = [row.ts for row in ROWS]


@pytest.fixture
def member(monkeypatch: pytest.MonkeyPatch) -> Iterator[WireStandIn]:
    monkeypatch.setattr(wire, "BATCH_ENTRIES", 15)
    monkeypatch.setattr(wire, "_PAUSE_S", 0.0)
    with wire_stand_in(ROWS) as made:
        yield made


def breaking(number: int, name: str = "getMore") -> Any:
    """Breaks the connection at this one of the commands of that name, and at the first try to come back."""
    seen = [0]

    def before(command: dict[str, Any]) -> None:
        seen[0] += name in command
        if seen[0] == number and name in command:
            raise ConnectionError

    return before


@pytest.mark.parametrize("is_pinned", [False, True])
@pytest.mark.parametrize(("number", "name"), [(1, "getMore"), (4, "getMore"), (1, "find"), (2, "find")])
def test_it_goes_on_behind_a_broken_connection(
    member: WireStandIn, number: int, name: str, is_pinned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    oplog = member.oplog.pin() if is_pinned else member.oplog
    monkeypatch.setattr(wire, "_PATIENCE_S", 60.0)
    member.before = breaking(number, name)
    if name == "find" and number == 1 and not is_pinned:
        with pytest.raises(OplogError, match="closed the connection"):  # it never answered yet
            stamps(oplog)
    else:
        assert stamps(oplog) == ALL_STAMPS


def test_a_cursor_that_is_gone(member: WireStandIn) -> None:
    member.before = lambda command: "getMore" in command and len(member.asked) == 5 and member._cursors.clear()
    assert stamps(member.oplog) == ALL_STAMPS


def test_a_break_while_it_looks_how_far_the_oplog_reaches(member: WireStandIn) -> None:
    pinned = member.oplog.pin()
    member.before = breaking(2, "find")  # the first one opened the cursor
    assert stamps(pinned, Span(ALL_STAMPS[3], EVERYTHING.end_ts)) == ALL_STAMPS[3:]


def test_a_member_that_stays_away(member: WireStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_PATIENCE_S", 0.0)

    def break_all(command: dict[str, Any]) -> None:
        if "getMore" in command:
            raise ConnectionError

    member.before = break_all
    with pytest.raises(OplogError, match=r"^m1: 127.0.0.1:\d+ closed the connection"):
        stamps(member.oplog)


def test_what_it_asks_for(member: WireStandIn) -> None:
    only = EntryFilter(ns=("shop.c1",), op=("i",))
    assert len(stamps(member.oplog, Span(ALL_STAMPS[20], ALL_STAMPS[61]), only)) == 20
    find, *rest = (command for command in member.asked if "batchSize" in command)
    assert find["batchSize"] == 15
    assert find["filter"]["ns"] == {"$in": ["shop.c1"]}
    assert [next(iter(command)) for command in rest] == ["getMore"]
    member.asked.clear()
    read = member.oplog.read(EVERYTHING, ("ts",))
    next(read)
    read.close()  # type: ignore[attr-defined]
    assert "killCursors" in member.asked[-1]
    assert not member._cursors


def test_follow(member: WireStandIn) -> None:
    oplog, marks = member.oplog, [ReadPosition(row.optime, None) for row in ROWS]
    assert oplog.follow(START, 1) == marks[0]
    assert oplog.follow(marks[0], 40) == marks[40]
    assert oplog.follow(marks[40], 1 << 62) == marks[99] == oplog.follow(marks[99], 5)
    assert stamps(oplog.between(marks[10], marks[30])) == ALL_STAMPS[11:31]
    with pytest.raises(OplogRolledBackError, match="2:"):
        oplog.follow(ReadPosition(OpTime(2, ROWS[50].ts), None), 1)
    member.trim(ROWS[30].ts)
    assert oplog.follow(ReadPosition(OpTime(0, ROWS[31].ts - 1), None), 1) == marks[31]
    for after in (marks[29], marks[30], ReadPosition(OpTime(0, ROWS[29].ts), None)):
        with pytest.raises(OplogTrimmedError) as caught:
            oplog.follow(after, 1)
        assert caught.value.through == ROWS[31].ts - 1
    member.rows = []
    assert oplog.follow(marks[50], 1) == marks[50]
    assert oplog.bounds().newest == OPTIME_NULL


def test_a_rollback_while_nothing_is_pinned(member: WireStandIn) -> None:
    def roll_back(command: dict[str, Any]) -> None:
        if "getMore" in command:
            member.rows = history(100, others_from=20)

    member.before = roll_back
    with pytest.raises(OplogRolledBackError, match=rf"m1: its entry 1:{T0 + 9}:10 "):
        stamps(member.oplog)


@pytest.mark.parametrize(
    ("more", "options", "why"),
    [
        ({"msg": "isdbgrid"}, "", "it is a mongos, which has no oplog"),
        ({"arbiterOnly": True}, "", "it is an arbiter, which has no oplog"),
        ({}, "/?replicaSet=other", "it is a member of rs0, the address says other"),
    ],
)
def test_servers_without_an_oplog(member: WireStandIn, more: dict[str, Any], options: str, why: str) -> None:
    member.more = more
    with pytest.raises(OplogError, match=f"^x: {why}"):
        WireOplog("x", f"mongodb://{member.host}{options}").bounds()

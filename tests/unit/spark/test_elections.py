"""Terms and common points without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replset.bson import Int64
from replset.ids import OpTime, pack_ts
from replset.oplog_entry import insert_entry, noop_entry
from replset.replication.rollback_manifest import Manifest, RollbackState
from spark.oplog import OplogError, Span
from spark.readers.sqlite import SqliteOplog
from spark.reports.elections import (
    Fork,
    MemberTerm,
    TermStart,
    fork_of,
    manifests_of,
    member_terms_in,
    term_rows,
    term_start_in,
    winner_of,
)
from tests.spark.kit import insert, write_oplog


def stretch(member: str, term: int, first: int, last: int, entries: int | None = None) -> MemberTerm:
    """An entry at each ts from first to last; its wall is ts * 10."""
    return MemberTerm(
        member, term, first, first * 10, last, last * 10, last - first + 1 if entries is None else entries
    )


def test_winner_of() -> None:
    both = [stretch("a", 1, 1, 9), stretch("b", 1, 1, 5)]
    found = [winner_of(found) for found in ([], both, [*both, stretch("b", 2, 7, 7)])]
    assert found == [None, "a", "b"]
    of_longest = [stretch("b", 1, 3, 9), stretch("c", 1, 1, 9), stretch("a", 1, 3, 9)]
    assert [winner_of(of_longest), winner_of([stretch("b", 1, 1, 9), stretch("a", 1, 1, 9)])] == ["c", "a"]


HISTORY = [stretch("w", 2, 10, 20), stretch("w", 4, 30, 40)]


@pytest.mark.parametrize(
    ("mine", "history", "fork"),
    [
        ([], HISTORY, Fork(None, None)),
        (HISTORY, [], Fork(None, None)),
        ([stretch("a", 2, 15, 20), stretch("a", 4, 30, 31)], HISTORY, Fork(OpTime(4, 31), None)),  # a shorter head
        ([stretch("a", 1, 1, 5), stretch("a", 2, 10, 20)], HISTORY, Fork(OpTime(2, 20), None)),  # a longer one
        ([stretch("a", 1, 1, 5)], HISTORY, Fork(None, None)),  # it ends before the history begins
        ([stretch("a", 1, 1, 12)], HISTORY, Fork(None, Span(10, 13))),
    ],
)
def test_forks_of_trimmed_oplogs(mine: list[MemberTerm], history: list[MemberTerm], fork: Fork) -> None:
    assert fork_of(mine, history) == fork


@st.composite
def logs(draw: st.DrawFn) -> list[list[OpTime]]:
    """Logs of three members as elections leave them: a term grows in one of them, the others copy a part of its log."""
    ts = 1
    members = [[OpTime(1, ts)] for _ in range(3)]
    for term in range(2, draw(st.integers(2, 7))):
        leader = draw(st.integers(0, 2))
        for _ in range(draw(st.integers(1, 4))):
            ts += 1
            members[leader].append(OpTime(term, ts))
        for follower in range(3):
            if draw(st.booleans()):
                members[follower] = members[leader][: draw(st.integers(1, len(members[leader])))]
    return members


@given(logs=logs())
def test_forks_are_those_of_the_entries(logs: list[list[OpTime]]) -> None:
    stretches = [
        MemberTerm(str(number), term, min(of_term), 0, max(of_term), 0, len(of_term))
        for number, log in enumerate(logs)
        for term in sorted({optime.term for optime in log})
        if (of_term := [optime.ts for optime in log if optime.term == term])
    ]
    winner = winner_of(stretches)
    history = logs[int(winner)]
    assert history[-1] == max(log[-1] for log in logs)
    for number, log in enumerate(logs):
        mine, theirs = ([part for part in stretches if part.member == name] for name in (str(number), winner))
        fork = fork_of(mine, theirs)
        tail = fork.tail or Span(0, 0)
        told = [optime for optime in log if tail.first_ts <= optime.ts < tail.end_ts]
        assert told == [optime for optime in log if optime not in history]
        common = [optime for optime in log if optime in history]
        assert fork.common == (common[-1] if common else None)


MANIFEST = Manifest(
    id="rollback-1",
    state=RollbackState.FINISHED,
    reason="rollback",
    set_name="rs0",
    member="a:1",
    when="2026-01-01T00:00:00.000Z",
    source="b:1",
    common_point=OpTime(1, 20),
    first=OpTime(1, 21),
    last=OpTime(1, 22),
    first_wall_ms=0,
    last_wall_ms=0,
    entries=2,
    operations={"i": 2},
    files=(),
)


def test_term_rows() -> None:
    stretches = [
        stretch("a", 1, 10, 25),
        stretch("b", 1, 10, 20),
        stretch("b", 3, 40, 50),
        stretch("c", 1, 15, 23),
        stretch("c", 2, 30, 31),
    ]
    openings = [
        TermStart(1, 10, "initiating set", None),
        TermStart(1, 11, "new primary", "a:1"),
        TermStart(2, 30, "new primary", "c:1"),
        TermStart(3, 40, "new primary", "b:1"),
        TermStart(4, 99, "new primary", "d:1"),
    ]
    held = [(1, ["a"], 2), (1, ["a", "c"], 3), (2, ["c"], 2)]
    rows = term_rows(stretches, "b", openings, held, [("a", MANIFEST)])
    text = [f"{term}:0:{ts}" for term, ts in ((1, 10), (1, 20), (2, 30), (2, 31), (3, 40), (3, 50))]
    of_first = (5, ["a", "c"], 2, ["a/rollback-1"])
    assert rows == [
        (1, "a:1", "initiating set", 10, text[0], 100, 20, text[1], 200, 11, None, ["a", "b", "c"], *of_first),
        (2, "c:1", "new primary", 30, text[2], 300, 31, text[3], 310, 2, None, ["c"], 2, ["c"], 0, []),
        (3, "b:1", "new primary", 40, text[4], 400, 50, text[5], 500, 11, 200, ["b"], 0, [], 0, []),
    ]


def test_a_trimmed_beginning_is_not_told_as_one() -> None:
    stretches = [stretch("a", 1, 5, 9), stretch("a", 2, 12, 13)]
    rows = term_rows(stretches, "a", [TermStart(2, 12, "new primary", None)], [], [])
    assert [(row[0], row[2], row[10]) for row in rows] == [(1, None, None), (2, "new primary", 30)]
    assert term_rows(stretches[1:], "a", [], [], [])[0][2] is None


def batch(*rows: tuple[int, int, int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(list(column)) for column in zip(*rows, strict=True)], ["ts", "term", "wall"]
    )


def test_member_terms_in() -> None:
    batches = [batch((1, 1, 10), (2, 1, 20), (3, 2, 30)), batch((4, 2, 40)), batch((5, 2, 50), (6, 5, 60))]
    empty = batches[0].slice(0, 0)
    assert list(member_terms_in("a", iter([empty, *batches]))) == [
        MemberTerm("a", 1, 1, 10, 2, 20, 2),
        MemberTerm("a", 2, 3, 30, 3, 30, 1),
        MemberTerm("a", 2, 4, 40, 4, 40, 1),
        MemberTerm("a", 2, 5, 50, 5, 50, 1),
        MemberTerm("a", 5, 6, 60, 6, 60, 1),
    ]


@pytest.mark.parametrize(
    ("o", "opening"),
    [
        ({"msg": "new primary", "member": 1, "host": "b:2"}, TermStart(3, 7, "new primary", "b:2")),
        ({"msg": "new primary"}, TermStart(3, 7, "new primary", None)),
        ({"msg": "initiating set"}, TermStart(3, 7, "initiating set", None)),
        ({"msg": "new primary", "host": Int64(5)}, TermStart(3, 7, "new primary", None)),
        ({"msg": "periodic noop"}, None),
        ({"msg": 5}, None),
        ({}, None),
    ],
)
def test_term_start_in(o: dict[str, object], opening: TermStart | None) -> None:
    assert term_start_in(7, 3, noop_entry(o, OpTime(3, pack_ts(1, 1)), 0)) == opening
    assert term_start_in(7, 3, insert_entry("a.b", b"u" * 16, b"\x05\0\0\0\0", OpTime(3, 7), 0)) is None


def test_manifests_beside_a_members_file(tmp_path: Path) -> None:
    write_oplog(tmp_path, [insert(0)])
    oplog = SqliteOplog("a", str(tmp_path / "replset.db"))
    assert manifests_of(oplog) == []
    (tmp_path / "rollback").mkdir()
    assert manifests_of(oplog) == []
    file = tmp_path / "rollback" / "rollback-1.json"
    file.write_text(json.dumps(MANIFEST.document()))
    assert manifests_of(oplog) == [MANIFEST]
    file.write_text("{}")
    with pytest.raises(OplogError, match=r"^a: rollback-1\.json is not a rollback manifest"):
        manifests_of(oplog)

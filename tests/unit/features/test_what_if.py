"""`replset what-if` plays the core forward: who would lead, for how long nobody does, and what would be lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from replset.config import Member, ReplSetConfig, Settings
from replset.features.what_if.forecast import Deed, Forecast, Kind, foresee, weights_of
from replset.features.what_if.player import MemberNow, SetNow
from replset.ids import HostPort, MemberId, OpTime, pack_ts

PLAYS = 5
WALL_MS = 1_795_387_446_000


def host(number: int) -> HostPort:
    return HostPort(f"m{number}:1")


def at(number: int) -> OpTime:
    return OpTime(2, pack_ts(WALL_MS // 1000 - 100 + number, 1))


def a_set(*rows: dict[str, Any], down: tuple[int, ...] = (), lags: dict[int, int] | None = None) -> SetNow:
    """Member 0 is primary at entry 50. rows: of the configuration; lags: by how many seconds a member is behind."""
    members = tuple(Member(MemberId(number), host(number), **row) for number, row in enumerate(rows))
    behind = lags or {}
    now = [
        MemberNow(row.host, row.id not in down, at(50 - behind.get(row.id, 0)), follows=row.secondary_delay_secs == 0)
        for row in members
    ]
    config = ReplSetConfig("rs0", 3, 2, members, Settings())
    copies = sorted((each.newest for each, row in zip(now, members, strict=True) if row in config.oplog_voters))
    return SetNow(config, tuple(now), host(0), 2, copies[-config.write_majority], WALL_MS)


def play(known: SetNow, kind: Kind, *numbers: int, others: tuple[int, ...] = ()) -> Forecast:
    weights = weights_of({each.newest: 50 - (each.newest.seconds - at(0).seconds) for each in known.members})
    return foresee(known, Deed(kind, tuple(map(host, numbers)), tuple(map(host, others))), weights, PLAYS)


DATA: dict[str, Any] = {}
ARBITER = {"arbiter_only": True, "priority": 0.0}
WITNESS = {"witness": True, "priority": 0.0}
HIDDEN = {"hidden": True, "priority": 0.0}
DELAYED = {"hidden": True, "priority": 0.0, "secondary_delay_secs": 30}

LEADERS = [
    pytest.param(a_set(DATA, DATA, ARBITER), 1, False, id="arbiter"),
    pytest.param(a_set(DATA, DATA, WITNESS), 1, True, id="witness"),
    pytest.param(a_set(DATA, DATA, {"priority": 2.0}), 2, True, id="priorities"),
    pytest.param(a_set(DATA, HIDDEN, DATA), 2, True, id="hidden"),
    pytest.param(a_set(DATA, HIDDEN, HIDDEN), None, False, id="nobody electable"),
    pytest.param(a_set(DATA, DATA, DELAYED, lags={2: 30}), 1, False, id="delayed"),
    pytest.param(a_set(DATA, DATA, DATA, lags={1: 20}), None, True, id="lagging"),
    pytest.param(a_set(DATA, DATA, DATA, down=(2,)), None, False, id="two members gone"),
    pytest.param(a_set(DATA, DATA, DATA, DATA, DATA, down=(3,)), None, True, id="two of five gone"),
]


@pytest.mark.parametrize(("known", "leader", "writes"), LEADERS)
def test_who_leads_when_the_primary_dies(known: SetNow, leader: int | None, writes: bool) -> None:
    found = play(known, "kill", 0)
    if leader is not None:
        assert found.leaders == {host(leader): PLAYS}, found.votes
    elif writes:
        assert set(found.leaders) <= {host(number) for number in range(1, len(known.members))}
    else:
        assert found.leaders == {None: PLAYS}
    assert (found.majority_writes == PLAYS) is writes
    assert found.leader is None or min(found.without_primary_ms) > 0
    assert found.leader is None or max(found.without_primary_ms) < 12_000


def test_what_only_the_dead_primary_has_is_lost() -> None:
    found = play(a_set(DATA, DATA, DATA, lags={1: 7, 2: 9}), "kill", 0)
    assert found.leaders == {host(1): PLAYS} or found.leaders[None] == 0
    assert found.lost == [7] * PLAYS


def test_a_member_that_is_not_primary_dies() -> None:
    found = play(a_set(DATA, DATA, DATA), "kill", 2)
    assert (found.leaders, found.majority_writes, found.without_primary_ms) == ({host(0): PLAYS}, PLAYS, [])
    assert any("m2:1" in remark.why for remark in found.remarks)


def test_a_stop_hands_over_sooner_than_a_cut() -> None:
    known = a_set(DATA, DATA, DATA)
    stopped, cut = play(known, "stop", 0), play(known, "cut", 0, others=(1, 2))
    assert host(0) not in (stopped.leader, cut.leader)
    assert max(stopped.without_primary_ms) < min(cut.without_primary_ms)
    assert min(cut.without_primary_ms) > 5_000
    assert stopped.lost == [0] * PLAYS


def test_a_cut_that_leaves_the_primary_its_majority_changes_nothing() -> None:
    found = play(a_set(DATA, DATA, DATA), "cut", 0, others=(1,))
    assert (found.leaders, found.majority_writes) == ({host(0): PLAYS}, PLAYS)


def test_without_the_vote_of_a_removed_member_a_set_of_two_is_left() -> None:
    known = a_set(DATA, DATA, DATA, down=(1,))
    assert play(known, "remove", 1).majority_writes == PLAYS
    two = a_set(DATA, DATA, DATA)
    assert play(two, "remove", 2).leaders == {host(0): PLAYS}


def test_without_a_primary_a_removal_of_nobody_is_played() -> None:
    known = replace(a_set(DATA, DATA, DATA, down=(0,)), primary=None)
    found = play(known, "kill", 1)
    assert found.leaders == {None: PLAYS}
    assert any("no primary" in remark.why for remark in found.remarks)


def test_an_optime_stands_for_the_entries_since_the_one_before() -> None:
    assert weights_of({at(1): 9, at(5): 2, at(7): 0}) == {at(1): 1, at(5): 7, at(7): 2}

"""What a write concern asks, whether it can be met, whether it is met (map A8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from replset.config import ReplSetConfig, Settings, TagCounts
from replset.core.messages import LocalPosition, Position
from replset.core.quorum import IN_SYNC, WriteConcern, implicit_default, is_enough, satisfied, unsatisfiable
from replset.ids import OPTIME_NULL, OpTime
from tests.simulation.core_kit.cluster import running
from tests.simulation.core_kit.machine import host, members_of
from tests.unit.core.single_node import NOW, at, lead, named, place, shaped, single_node

W, OLDER = at(2, 5), at(2, 4)


@pytest.mark.parametrize(
    ("shape", "default"),
    [
        ("P", "majority"),
        ("PSS", "majority"),
        ("PSA", 1),
        ("PAA", 1),
        ("PSSA", 1),
        ("PSSAA", 1),
        ("PSSSA", "majority"),
        ("PSSNA", 1),
        ("PSSS+A", "majority"),
    ],
)
def test_the_implicit_default(shape: str, default: int | str) -> None:
    """Map W6: arbiters and non-arbiter voters <= vote majority gives {w: 1}, else majority."""
    concern = implicit_default(shaped(shape))
    assert (concern.w, concern.provenance) == (default, "implicitDefault")


@pytest.mark.parametrize(
    ("w", "code"),
    [
        *((0, None), (1, None), (3, None), (4, 100), (50, 100), ("majority", None), ("dc", 79)),
        *(("$majority", None), ("$votingMembers", None), ("$stepDownCheck", None), ("$configAll", 79)),
    ],
)
def test_what_can_never_be_met(w: int | str, code: int | None) -> None:
    """Map W4: more nodes than bear data is 100, an unknown mode 79. Arbiters never count (W1)."""
    refusal = unsatisfiable(shaped("PSNA"), WriteConcern(w))
    assert (refusal.code if refusal else None) == code


def tagged(*tags: Mapping[str, str], modes: Mapping[str, TagCounts] | None = None) -> ReplSetConfig:
    """Members with these tags; one of them is hidden and without a vote."""
    rows = [replace(row, tags=own) for row, own in zip(members_of(len(tags)), tags, strict=True)]
    rows[-1] = replace(rows[-1], votes=0, priority=0.0, hidden=True)
    return named(*rows, settings=Settings(write_concern_modes=modes or {}))


TAGGED = tagged(
    {"dc": "east", "disk": "ssd"},
    {"dc": "east"},
    {"dc": "west", "disk": "ssd"},
    {"dc": "north"},
    modes={"both": (("dc", 2),), "many": (("dc", 4),), "fast": (("dc", 2), ("disk", 1))},
)


@pytest.mark.parametrize(
    ("w", "holders", "enough"),
    [
        ("both", {0, 1}, False),
        ("both", {0, 2}, True),
        ("both", {0, 3}, True),
        ("fast", {1, 3}, False),
        ("fast", {1, 2}, True),
        ((("dc", 3),), {0, 1, 2}, False),
        ((("dc", 3),), {1, 2, 3}, True),
        ("none", {0, 1, 2, 3}, False),
        (2, {3, 1}, True),
        (2, {3}, False),
        ("$majority", {0, 3}, False),
        ("$majority", {0, 1}, True),
        ("$votingMembers", {0, 1, 3}, False),
        ("$votingMembers", {0, 1, 2}, True),
        ("$stepDownCheck", {0, 3}, False),
        ("$stepDownCheck", {1, 2}, True),
        ("majority", {0, 3}, False),
        ("majority", {0, 1}, True),
        (IN_SYNC, {0, 1}, True),
    ],
)
def test_which_members_are_enough(w: int | str | TagCounts, holders: set[int], enough: bool) -> None:
    """Map C7: a mode counts the different values of its tags; members without a vote count, for a majority not."""
    assert (
        is_enough(TAGGED, WriteConcern(w), {member.id for member in TAGGED.members if member.id in holders}) is enough
    )


@pytest.mark.parametrize(
    ("w", "code"),
    [("both", None), ("many", 100), ("none", 79), ((("rack", 1),), 100), ((("dc", 3),), None), (IN_SYNC, None)],
)
def test_which_tags_can_never_be_enough(w: str | TagCounts, code: int | None) -> None:
    refusal = unsatisfiable(TAGGED, WriteConcern(w))
    assert (refusal.code if refusal else None) == code
    assert w != (("rack", 1),) or (refusal and "different tags (1 of rack)" in refusal.reason)


@pytest.mark.parametrize(
    ("concern", "own", "others", "committed", "met"),
    [
        pytest.param(WriteConcern(0), place(W, OLDER), [], OPTIME_NULL, True, id="w0"),
        pytest.param(WriteConcern(1), place(W, OLDER), [], OPTIME_NULL, True, id="w1"),
        pytest.param(WriteConcern(1, j=True), place(W, OLDER), [], OPTIME_NULL, False, id="w1-j-not-synced"),
        pytest.param(WriteConcern(1, j=True), place(W), [], OPTIME_NULL, True, id="w1-j-synced"),
        pytest.param(WriteConcern(2), place(W), [place(OLDER)], OPTIME_NULL, False, id="w2-behind"),
        pytest.param(WriteConcern(2), place(W), [place(W, OLDER)], OPTIME_NULL, True, id="w2-applied"),
        pytest.param(WriteConcern(2, j=True), place(W), [place(W, OLDER)], OPTIME_NULL, False, id="w2-j-applied"),
        pytest.param(WriteConcern(2, j=True), place(W), [place(W)], OPTIME_NULL, True, id="w2-j-synced"),
        pytest.param(WriteConcern("majority"), place(W), [place(W)], OLDER, False, id="majority-not-yet"),
        pytest.param(WriteConcern("majority"), place(W), [], W, True, id="majority"),
    ],
)
def test_when_it_is_met(
    concern: WriteConcern, own: Position, others: list[Position], committed: OpTime, met: bool
) -> None:
    assert satisfied(concern, W, own, lambda: [own, *others], committed) is met


def test_a_tagged_write_is_met_by_members_of_another_place() -> None:
    node = lead(single_node(config=named(*TAGGED.members, settings=TAGGED.settings)))
    node.receive(LocalPosition(place(at(2))), NOW)
    both, on_disk = WriteConcern("both"), WriteConcern((("dc", 2),), j=True)
    node.receive_heartbeat(1, config_term=2, position=place(at(2)))
    assert not node.is_satisfied(both, at(2))
    node.receive_heartbeat(3, config_term=2, position=place(at(2), at(1)))
    assert node.is_satisfied(both, at(2))
    assert not node.is_satisfied(on_disk, at(2))
    assert [row.host for row in node.members_waited_for(on_disk, at(2))] == [host(2), host(3)]


def test_the_document() -> None:
    assert WriteConcern((("dc", 2),)).document()["w"] == {"dc": 2}
    assert WriteConcern(2, True, 5, "clientSupplied").document() == {
        "w": 2,
        "wtimeout": 5,
        "j": True,
        "provenance": "clientSupplied",
    }


def test_a_write_is_met_by_members_one_after_the_other() -> None:
    cluster = running(3)
    leader = cluster.elect()
    others = [machine for machine in cluster.machines.values() if machine is not leader]
    others[0].crash()
    wrote = leader.write("a")
    assert wrote is not None
    assert leader.node.is_satisfied(WriteConcern(1), wrote)
    assert not leader.node.is_satisfied(WriteConcern(2), wrote)
    cluster.until(lambda: leader.node.is_satisfied(WriteConcern("majority", j=True), wrote), 1_000)
    assert leader.node.is_satisfied(WriteConcern(2, j=True), wrote)
    assert not leader.node.is_satisfied(WriteConcern(3), wrote)
    others[0].boot()
    cluster.until(lambda: leader.node.is_satisfied(WriteConcern(3, j=True), wrote), 10_000)


def test_progress_of_another_term_never_releases_a_waiter() -> None:
    """Progress of another term never ends a wait."""
    cluster = running(3)
    old = cluster.elect()
    cluster.isolate(cluster.number_of(old))
    doomed = old.write("doomed")
    assert doomed is not None
    cluster.until(lambda: cluster.primary not in (None, old))
    new = cluster.elect()
    new.write("kept")
    cluster.heal()
    for _ in range(500):
        cluster.run(5)
        assert not old.node.is_satisfied(WriteConcern(2), doomed)
        assert not old.node.is_satisfied(WriteConcern("majority"), doomed)
    cluster.until(cluster.is_quiet)
    assert old.node.commit_point > doomed
    assert not old.node.is_satisfied(WriteConcern("majority"), doomed)


def test_a_member_that_is_not_named_does_not_count_for_w() -> None:
    """A member counts only while the configuration names its incarnation; without a vote, always (docs/adr/0007)."""
    rows = members_of(4)
    config = named(rows[0], rows[1], rows[2], replace(rows[3], votes=0, priority=0.0))
    node = single_node(0, config=config)
    node.receive_heartbeat(1, position=place(at(1, 9)), incarnation="other")
    node.receive_heartbeat(2, position=place(at(1, 8)))
    node.receive_heartbeat(3, position=place(at(1, 7)), incarnation="whatever")
    node.receive(LocalPosition(place(at(1, 9))), node._state.now)
    assert {int(member) for member in node._state.positions()} == {0, 2, 3}


def test_waiters_learn_the_positions_of_members() -> None:
    cluster = running(3)
    rows = cluster.elect().node.member_progress()
    assert [row["_id"] for row in rows] == [0, 1, 2]
    assert {row["state"] for row in rows} == {"PRIMARY", "SECONDARY"}

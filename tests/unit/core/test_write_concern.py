"""What a write concern asks, whether it can be met, whether it is met (map A8)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replset.core.messages import LocalPosition, Position
from replset.core.write_concern import WriteConcern, implicit_default, satisfied, unsatisfiable
from replset.ids import OPTIME_NULL, OpTime
from tests.simulation.core_kit.cluster import CoreCluster
from tests.simulation.core_kit.machine import members_of
from tests.unit.core.single_node import at, named, place, shaped, single_node

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
    [(0, None), (1, None), (3, None), (4, 100), (50, 100), ("majority", None), ("dc", 79)],
)
def test_what_can_never_be_met(w: int | str, code: int | None) -> None:
    """Map W4: more nodes than bear data is 100, an unknown mode 79. Arbiters never count (W1)."""
    refusal = unsatisfiable(shaped("PSNA"), WriteConcern(w))
    assert (refusal.code if refusal else None) == code


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


def test_the_document() -> None:
    assert WriteConcern(2, True, 5, "clientSupplied").document() == {
        "w": 2,
        "wtimeout": 5,
        "j": True,
        "provenance": "clientSupplied",
    }


def leading() -> CoreCluster:
    cluster = CoreCluster(3)
    cluster.initiate(*members_of(3))
    cluster.until(cluster.is_quiet)
    return cluster


def test_a_write_is_met_by_members_one_after_the_other() -> None:
    cluster = leading()
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
    cluster = leading()
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
    cluster = leading()
    rows = cluster.elect().node.member_progress()
    assert [row["_id"] for row in rows] == [0, 1, 2]
    assert {row["state"] for row in rows} == {"PRIMARY", "SECONDARY"}

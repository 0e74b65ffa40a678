"""The core alone under faults: more schedules than whole members can go through."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from replset.core.effects import LastVote, Persist, Reply, Send
from replset.ids import MemberId
from tests.simulation.core_kit.cluster import CoreCluster
from tests.simulation.core_kit.machine import members_of
from tests.simulation.core_kit.runs import CoreRun, run_core, run_core_changes

SEEDS, OF_CHANGES = range(30), range(12)


@pytest.mark.in_turns
@pytest.mark.parametrize("seed", SEEDS)
def test_the_core_holds(seed: int) -> None:
    """One primary a term, one entry an optime, no majority write lost, no commit point moves back."""
    outcome = run_core(seed)
    assert outcome.error is None, outcome.report()
    assert outcome.counts["entries committed"] > 10
    assert outcome.counts["terms"]


@pytest.mark.in_turns
@pytest.mark.parametrize("seed", OF_CHANGES)
def test_operators_change_the_set_all_the_time(seed: int) -> None:
    outcome = run_core_changes(seed)
    assert outcome.error is None, outcome.report()


@pytest.mark.in_turns
def test_a_seed_gives_the_same_run_again() -> None:
    """The core draws only from the Random handed in, and depends on no order of a set."""
    assert state_after(3) == state_after(3) != state_after(4)


def state_after(seed: int) -> str:
    """All that the nodes saved and said."""
    run = CoreRun(seed)
    run.run()
    seen = hashlib.sha256()
    for machine in run.cluster.machines.values():
        for effect in machine.effects:
            if isinstance(effect, Persist | Send | Reply):
                seen.update(repr(effect).encode())
    return seen.hexdigest()


def test_the_kit_sees_a_second_vote() -> None:
    cluster = CoreCluster(3)
    cluster.initiate(*members_of(3))
    machine = cluster.elect()
    last = machine.disk.last_vote
    assert isinstance(last, LastVote)
    with pytest.raises(AssertionError, match="voted twice"):
        cluster.checkers.on_vote(machine, replace(last, candidate=MemberId(99)))

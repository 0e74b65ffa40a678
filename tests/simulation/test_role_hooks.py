"""Role hooks: no two members hold the primary's role at a time, and no first write overtakes a release."""

from __future__ import annotations

import pytest

from replset.core import leader, role
from replset.core.member_state import MemberState
from tests.simulation.core_kit.cluster import CoreCluster, running
from tests.simulation.core_kit.machine import CoreMachine
from tests.simulation.core_kit.role_guards import RoleGuards
from tests.simulation.core_kit.runs import CoreRun

HOOK_MS = 600


class GuardedRun(CoreRun):
    """A run of the core under faults whose members have role hooks."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.guards = RoleGuards(self.cluster, HOOK_MS)

    def stop(self, machine: CoreMachine, *, power: bool = False, wipe: bool = False) -> None:
        super().stop(machine, power=power, wipe=wipe)
        if power or wipe:
            self.guards.on_power_loss(machine)


@pytest.mark.in_turns
@pytest.mark.parametrize("seed", range(15))
def test_no_two_members_hold_the_role(seed: int) -> None:
    run = GuardedRun(seed)
    run.run()
    assert run.guards.gains


def guarded() -> tuple[CoreCluster, RoleGuards]:
    cluster = running(3)
    guards = RoleGuards(cluster, HOOK_MS)
    cluster.until(cluster.is_quiet)
    return cluster, guards


def writer(cluster: CoreCluster, *, other_than: CoreMachine) -> CoreMachine | None:
    return next((one for one in cluster.machines.values() if one is not other_than and one.node.writable), None)


def test_a_hand_over_waits_for_the_release_alone() -> None:
    cluster, guards = guarded()
    old = cluster.elect()
    cluster.until(lambda: guards.guard(old).holds)
    began = cluster.now
    cluster.step_down(cluster.number_of(old))
    cluster.until(lambda: writer(cluster, other_than=old))
    assert not guards.guard(old).holds
    assert cluster.now - began < HOOK_MS


def test_a_silent_primary_is_waited_for_until_it_cannot_hold_the_role() -> None:
    cluster, guards = guarded()
    old = cluster.elect()
    cluster.until(lambda: guards.guard(old).holds)
    cluster.isolate(cluster.number_of(old))
    others = [machine for machine in cluster.machines.values() if machine is not old]
    cluster.until(lambda: any(machine.node.state is MemberState.PRIMARY for machine in others))
    began = cluster.now
    cluster.until(lambda: writer(cluster, other_than=old))
    assert 2 * HOOK_MS < cluster.now - began < 3 * HOOK_MS
    new = writer(cluster, other_than=old)
    assert new is not None
    assert any("writes wait until" in line for line in new.journal)


def test_a_hand_over_waits_for_a_third_member_that_is_away() -> None:
    cluster, guards = guarded()
    old = cluster.elect()
    cluster.until(lambda: guards.guard(old).holds)
    others = [machine for machine in cluster.machines.values() if machine is not old]
    cluster.isolate(cluster.number_of(others[0]))
    cluster.step_down(cluster.number_of(old))
    cluster.until(lambda: others[1].node.state is MemberState.PRIMARY)
    began = cluster.now
    cluster.until(lambda: writer(cluster, other_than=old))
    assert 2 * HOOK_MS < cluster.now - began < 3 * HOOK_MS


def test_a_cut_shorter_than_an_election_takes_the_role_away_and_gives_it_back() -> None:
    cluster, guards = guarded()
    old = cluster.elect()
    cluster.until(lambda: guards.guard(old).holds)
    cluster.isolate(cluster.number_of(old))
    cluster.until(lambda: not guards.guard(old).holds)
    cluster.heal()
    cluster.until(lambda: any(guard.holds for guard in guards.guards.values()))


@pytest.mark.in_turns
@pytest.mark.parametrize("broken", ["no wait", "short wait", "long hold"])
def test_the_checks_notice_a_broken_rule(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    if broken == "no wait":
        monkeypatch.setattr(leader, "holders", lambda node: [])
    elif broken == "short wait":
        monkeypatch.setattr(leader, "role_wait_ms", lambda node: node.role_hook_ms // 4)
    else:
        monkeypatch.setattr("replset.core.node.role_until", lambda state, now: role.role_until(state, now) + 3_000)
    with pytest.raises(AssertionError, match=r"has the role|hold the role"):
        run_seeds(range(12))


def run_seeds(seeds: range) -> None:
    for seed in seeds:
        GuardedRun(seed).run()

"""Links that break and disks that are lost while a set runs, told from beginning to end."""

from __future__ import annotations

import pytest

from replset.core.member_state import MemberState
from tests.simulation.core_kit.cluster import CoreCluster, running, the_config
from tests.simulation.core_kit.machine import host


def apart(cluster: CoreCluster, *groups: list[int]) -> None:
    """Members of different groups do not hear each other."""
    group_of = {host(number): group for group, numbers in enumerate(groups) for number in numbers}
    cluster.cut = {(a, b) for a in cluster.machines for b in cluster.machines if group_of[a] != group_of[b]}


def test_a_member_that_meets_one_from_a_term_in_between_stays_well() -> None:
    """Entries of an old term are committed later, through a higher one. Who had a term of its own in between and was
    away since is "ahead" of a member that fetched only some of those entries, and does not hold them.
    """
    cluster = running(5, seed=3)
    old = cluster.number_of(cluster.elect())
    late, *others = (number for number in range(5) if number != old)
    cluster.run(500)
    apart(cluster, [old], [late], others)
    for number in range(5):
        assert cluster[old].write(f"written alone {number}")
    cluster.until(lambda: any(cluster[number].node.state is MemberState.PRIMARY for number in others))
    between = next(number for number in others if cluster[number].node.state is MemberState.PRIMARY)
    others.remove(between)
    apart(cluster, [old], [late], [between], others)
    cluster.until(lambda: cluster[between].disk.log[-1][0].term == cluster[between].node.term)
    cluster.until(lambda: cluster[between].node.state is MemberState.SECONDARY)

    apart(cluster, [old, *others], [late], [between])
    cluster.until(lambda: any(machine.node.commit_point.term > 3 for machine in cluster.machines.values()), 60_000)
    cluster.pages = (1,)  # so that it stops halfway
    had = cluster[late].disk.log[-1][0]
    apart(cluster, [old, *others, late], [between])
    node, log = cluster[late].node, cluster[late].disk
    cluster.until(lambda: log.log[-1][0] > had)
    while node.commit_point < log.log[-1][0]:
        cluster.run(1)
    assert node.commit_point < cluster[between].disk.log[-1][0]

    apart(cluster, [old, *others], [late, between])
    cluster.run(20_000)
    assert (node.state, node.quarantine) == (MemberState.SECONDARY, "")
    cluster.heal()
    cluster.until(cluster.is_quiet, 60_000)


@pytest.mark.in_turns
@pytest.mark.parametrize("size", [3, 5])
def test_one_broken_link_changes_no_primary(size: int) -> None:
    """The member that does not hear the primary stands; those who do hear it refuse, and no term goes by."""
    cluster = running(size, seed=2)
    leader = cluster.elect()
    term, deaf = leader.node.term, next(machine for machine in cluster.machines.values() if machine is not leader)
    cluster.cut = {(leader.host, deaf.host), (deaf.host, leader.host)}
    for number in range(300):
        cluster.run(100)
        assert leader.write(f"{number}")
    assert (cluster.primary, leader.node.term) == (leader, term)
    assert any("contact with a healthy primary" in line for line in deaf.journal)
    assert deaf.disk.log[-1][0] > leader.disk.log[250][0]  # it follows others meanwhile
    cluster.heal()
    cluster.until(cluster.is_quiet)


@pytest.mark.parametrize(("arbiters", "seed"), [(0, 1), *((1, seed) for seed in range(6))])
def test_a_primary_that_died_is_no_healthy_one(arbiters: int, seed: int) -> None:
    """Whoever heard it a little later than the candidate does not keep the set without a primary for another round."""
    cluster = running(3, arbiters=arbiters, seed=seed)
    leader = cluster.elect()
    cluster.run(seed * 7)  # somewhere between two heartbeats
    cluster.isolate(cluster.number_of(leader))
    cut_at = cluster.now
    cluster.until(lambda: any(machine.node.writable for machine in cluster.machines.values() if machine is not leader))
    assert cluster.now - cut_at < 1_500  # an election timeout is 1,000 and up to 15 % more


@pytest.mark.in_turns
@pytest.mark.parametrize(("size", "arbiters"), [(5, 1), (5, 2), (5, 0), (7, 2)])
def test_two_lost_disks_do_not_wait_for_each_other(size: int, arbiters: int) -> None:
    """Neither holds what came before, and neither can vote: the writes need not be on them to set the other aside."""
    cluster = running(size, arbiters=arbiters, seed=2)
    leader = cluster.elect()
    lost = [
        machine
        for machine in cluster.machines.values()
        if machine is not leader and machine.node.state is MemberState.SECONDARY
    ][:2]
    leader.write("before")
    cluster.run(1_000)
    for machine in lost:
        machine.wipe()
    leader.crash()
    cluster.run(50)
    leader.boot()
    cluster.run(8_000)
    for machine in lost:
        machine.boot()
    cluster.until(cluster.is_quiet, 5_000)
    named = {member.host: member.incarnation for member in the_config(cluster.elect()).members}
    assert [named[machine.host] for machine in lost] == [machine.disk.incarnation for machine in lost]
    assert "before" in [text for _, text in cluster.elect().disk.log]

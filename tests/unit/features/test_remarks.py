"""What `status` says is wrong, and what to do: never empty when nobody leads or majority writes wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from replset.config import Member
from replset.core.effects import StartRollback
from replset.core.member_state import MemberState
from replset.core.messages import (
    DamageFound,
    DiskStalled,
    Done,
    MaintenanceRequest,
    RollbackEnded,
    SourceFailed,
    SourceProblem,
)
from replset.core.status import Remark
from replset.features.administration.remarks import find_remarks
from replset.ids import OPTIME_NULL, MemberId, OpTime
from tests.simulation.core_kit.cluster import CoreCluster, change, running, the_config
from tests.simulation.core_kit.machine import CoreMachine, host, members_of
from tests.unit.core.single_node import NOW, SingleNode, at, named, only, place, ready, single_node


def remarks_of(cluster: CoreCluster, machine: CoreMachine) -> tuple[Remark, ...]:
    return find_remarks(machine.node.known, cluster.now)


def others_of(cluster: CoreCluster, leader: CoreMachine) -> list[CoreMachine]:
    return [machine for machine in cluster.machines.values() if machine is not leader]


def other_of_two(cluster: CoreCluster) -> CoreMachine:
    return cluster[1] if cluster.elect() is cluster[0] else cluster[0]


def test_a_healthy_set_gives_no_remark() -> None:
    cluster = running(3)
    assert [remarks_of(cluster, machine) for machine in cluster.machines.values()] == [()] * 3


def test_too_few_votes() -> None:
    cluster = running(3)
    leader = cluster.elect()
    gone = others_of(cluster, leader)
    for machine in gone:
        machine.crash()
    cluster.run(10_000)
    first, *others = remarks_of(cluster, leader)
    assert "an election takes 2 of 3 votes" in first.why
    assert all(str(machine.host) in first.why for machine in gone)
    assert "start these members again" in first.next_step
    assert [str(machine.host) in remark.why for machine, remark in zip(gone, others, strict=True)] == [True, True]


def test_a_member_in_maintenance_names_the_command_that_ends_it() -> None:
    cluster = running(3)
    member = others_of(cluster, cluster.elect())[0]
    for _ in range(2):
        cluster.ask(cluster.number_of(member), MaintenanceRequest(True))
    cluster.run(1_000)
    (remark,) = remarks_of(cluster, member)
    assert "maintenance mode, switched on 2 times" in remark.why
    assert remark.next_step == f"replset maintenance off --host {member.host}"


def test_an_arbiter_and_one_copy_too_few() -> None:
    """P, S and an arbiter: without S there is a primary, and no majority write ends."""
    cluster = running(3, arbiters=1)
    leader = cluster.elect()
    other = other_of_two(cluster)
    other.crash()
    cluster.run(10_000)
    first, second = remarks_of(cluster, leader)
    assert "they need 2 copies, and 1 of 2" in first.why
    assert f"replset reconfig --demote {other.host}" in first.next_step
    assert f"{other.host} is not reachable" in second.why


def test_only_one_member_has_the_documents_beside_a_witness() -> None:
    """P, S and a witness: without S majority writes go on, and the documents of these are on one disk."""
    cluster = running(3, witnesses=1)
    leader = cluster.elect()
    other = other_of_two(cluster)
    assert remarks_of(cluster, leader) == ()
    other.crash()
    cluster.run(10_000)
    first, second = remarks_of(cluster, leader)
    assert f"only {leader.host} has the documents" in first.why
    assert f"start {other.host} again" in first.next_step
    assert f"{other.host} is not reachable" in second.why


def test_nobody_can_win_before_it_has_what_a_witness_has() -> None:
    """The witness has trimmed what the secondary needs next, and refuses its vote. Both of them say so."""
    config = named(*members_of(3, witnesses=1))
    for number, other, mine, theirs in ((1, 2, at(1, 5), at(1, 9)), (2, 1, at(1, 9), at(1, 5))):
        node = single_node(number, config=config, position=place(mine), oplog_only=number == 2)
        node.receive_heartbeat(other, position=place(theirs), electable=other == 1)
        remarks = find_remarks(node.known, NOW)
        assert f"m1:27017 lacks the newest entries of {host(2)}" in remarks[0].why
        assert "no member can be elected" in remarks[0].why


def test_no_election_starts_because_of_the_disks() -> None:
    cluster = running(3)
    leader = cluster.elect()
    one, two = others_of(cluster, leader)
    for machine in (one, two):
        machine.feed(DiskStalled(True))
    cluster.run(1_000)  # a heartbeat tells it
    leader.crash()
    cluster.run(15_000)
    first = remarks_of(cluster, one)[0]
    assert "no member can be elected" in first.why
    assert f"{leader.host} cannot be reached" in first.why
    assert f"{one.host} has no space on its disk, or its disk does not sync" in first.why
    assert f"{two.host} cannot be elected now (its disk is full or slow, or it is frozen)" in first.why


def test_a_disk_was_replaced_and_no_primary_can_give_the_vote_back() -> None:
    """Of two voters one gets an empty disk and the primary steps down before the other has its data."""
    cluster = running(2)
    leader = cluster.elect()
    other = other_of_two(cluster)
    other.wipe()
    leader.crash()
    for machine in (leader, other):
        machine.boot()
    cluster.run(30_000)
    for machine in (leader, other):
        first = remarks_of(cluster, machine)[0]
        assert f"{other.host} may not vote: its disk was replaced" in first.why
        assert f"replset add {other.host}" in first.next_step
    # What the remark names brings a primary and the second voter back.
    number, both = cluster.number_of(leader), members_of(2)
    alone = next(row for row in both if row.host == leader.host)
    assert cluster.reconfig(number, cluster.user_config(number, alone), force=True) == Done()
    cluster.elect()
    assert cluster.reconfig(number, cluster.user_config(number, *both)) == Done()
    cluster.until(lambda: all(row.is_voter for row in the_config(leader).members), 30_000)


def test_the_remark_of_a_frozen_member_names_its_end_and_the_command() -> None:
    cluster = running(3, arbiters=1)
    leader = cluster.elect()
    other = other_of_two(cluster)
    cluster.freeze(cluster.number_of(other), 60)
    leader.crash()
    cluster.run(10_000)
    first = remarks_of(cluster, other)[0]
    assert "is frozen for 5" in first.why
    assert f"replset freeze 0 --host {other.host}" in first.why


def test_an_election_that_comes() -> None:
    cluster = running(3)
    leader = cluster.elect()
    other = others_of(cluster, leader)[0]
    leader.crash()
    cluster.until(lambda: other.node.primary is None)
    assert "the next election begins within" in remarks_of(cluster, other)[0].why


def test_a_member_that_never_answered() -> None:
    """A wrong port in the configuration: nothing has ever run there."""
    cluster = running(2)
    change(cluster, *members_of(2), Member(MemberId(7), host(7)))
    cluster.run(10_000)
    (remark,) = remarks_of(cluster, cluster.elect())
    assert f"{host(7)} has not answered since" in remark.why
    assert f"replset remove {host(7)}" in remark.next_step


def test_a_member_that_was_removed() -> None:
    cluster = running(3)
    leader = cluster.elect()
    other = others_of(cluster, leader)[0]
    change(cluster, *(member for member in members_of(3) if member.host != other.host))
    cluster.until(lambda: other.node.state.name == "REMOVED")
    (remark,) = remarks_of(cluster, other)
    assert f"{other.host} is not in the set's configuration" in remark.why
    assert f"replset add {other.host} --host" in remark.next_step
    status = other.node.status(cluster.now)
    own, *others = status.members
    assert (own.id, own.host, own.is_self, own.state.name, own.counted) == (-1, other.host, True, "REMOVED", False)
    assert others == []


def test_damage_of_a_member_that_the_others_need() -> None:
    cluster = running(1)
    machine = cluster.elect()
    machine.feed(DamageFound("replset.db: the entry at 1:2:3 is not the one that was written"))
    (remark,) = remarks_of(cluster, machine)
    assert "holds damaged entries" in remark.why
    assert "1:2:3" in remark.why
    assert f"replset resync --host {machine.host}" in remark.next_step


def follower(durability_mark: OpTime = OPTIME_NULL, **third: Any) -> SingleNode:
    """Member 0, which follows member 1."""
    node = single_node(config=named(*members_of(3)), position=place(at(2, 5)), durability_mark=durability_mark)
    node.receive_heartbeat(1, state=MemberState.PRIMARY, term=3)
    node.receive_heartbeat(2, **{"state": MemberState.SECONDARY, **third})
    return node


def test_a_spare_whose_voter_is_removed_is_a_voter_like_others() -> None:
    first, second, spare = members_of(3)
    node = ready(config=named(first, second, replace(spare, spare_for=MemberId(9))))
    assert "no primary" in the_remark(node).why


def the_remark(node: SingleNode) -> Remark:
    (remark,) = find_remarks(node.known, NOW)
    return remark


def test_a_resync_that_would_be_refused_is_to_be_forced() -> None:
    """What it knows to be committed is not in the set any more: without force it stays as it is (119)."""
    node = follower()
    node.tick(NOW)
    diverged = SourceFailed(host(1), SourceProblem.DIVERGED, "", node.term, at(3, 9), at(1))
    assert only(node.receive(diverged, NOW), StartRollback)
    node.receive(RollbackEnded(host(1), False, False, False, "below the commit point"), NOW)
    assert "below the commit point" in the_remark(node).why
    assert f"replset resync --force --host {host(0)}" in the_remark(node).next_step
    told = follower(state=MemberState.RECOVERING, quarantine=node.quarantine)
    assert f"{host(2)} keeps out of the set" in the_remark(told).why
    assert f"replset resync --force --host {host(2)}" in the_remark(told).next_step


def test_a_member_names_its_own_quarantine_before_those_of_others() -> None:
    node = follower(state=MemberState.RECOVERING, quarantine="it differs")
    node.tick(NOW)
    node.receive(SourceFailed(host(1), SourceProblem.NOT_APPLIED, "does not fit", node.term, at(3, 9), at(1)), NOW)
    assert [remark.why.partition(":27017")[0] for remark in find_remarks(node.known, NOW)] == ["m0", "m2"]


def test_a_damaged_member_copies_without_force() -> None:
    node = follower()
    node.receive(DamageFound("the entry is not the one that was written"), NOW)
    assert f"replset resync --host {host(0)}" in the_remark(node).next_step


def test_no_resync_is_advised_to_a_member_that_lost_entries() -> None:
    """It copies by itself where it can; where it cannot, a person decides over its files."""
    remark = the_remark(follower(durability_mark=at(2, 9)))
    assert f"{host(0)} keeps out of the set: entries are lost" in remark.why
    assert "replset repair DBPATH" in remark.next_step
    assert "resync" not in remark.next_step


def test_a_role_that_is_not_released() -> None:
    cluster = CoreCluster(3)
    cluster.role_hook_ms = 500
    for machine in cluster.machines.values():
        machine.boot()
    cluster.initiate(*members_of(3))
    old = cluster.elect()
    cluster.holds_role = lambda machine: machine is old
    cluster.until(
        lambda: all(one.node.commit_point == old.position().last_applied for one in cluster.machines.values())
    )
    cluster.step_down(cluster.number_of(old))
    others = others_of(cluster, old)
    cluster.until(lambda: any(machine.node.state is MemberState.PRIMARY for machine in others))
    (new,) = (machine for machine in others if machine.node.state is MemberState.PRIMARY)
    (waits,) = remarks_of(cluster, new)
    assert (
        waits.why == f"{new.host} takes no writes yet: {old.host} may still hold what a role hook gives to the primary"
    )
    assert waits.next_step == "wait: within 1.1 s it takes writes in any case"
    (holds,) = remarks_of(cluster, old)
    assert holds.why == f"{old.host} is not primary, and its role hook has not released the role"
    cluster.until(lambda: new.node.writable, 1_200)
    assert remarks_of(cluster, new) == ()

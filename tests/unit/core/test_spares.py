"""Hot spares: a member without a vote votes in the place of one that is gone, and gives the vote back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replset.config import Member, ReplSetConfig
from replset.core.member_state import MemberState
from replset.core.messages import ReconfigRequest
from replset.core.reconfig_rules import complete_config
from replset.errors import BadValueError, ErrorCode
from replset.ids import MemberId
from tests.simulation.core_kit.cluster import CoreCluster, change, the_config
from tests.simulation.core_kit.machine import CoreMachine, config_of, host, members_of

AFTER_SECS = 3


def with_spare(count: int = 3, *, arbiters: int = 0, witnesses: int = 0, spares: int = 1) -> CoreCluster:
    """A set at rest; the last `spares` members have no vote."""
    cluster = CoreCluster(count + spares)
    cluster.default_write_concern_set = True
    numbers = range(count, count + spares)
    rows = (Member(MemberId(n), host(n), priority=0.0, votes=0, spare_after_secs=AFTER_SECS) for n in numbers)
    cluster.initiate(*members_of(count, arbiters=arbiters, witnesses=witnesses), *rows)
    cluster.until(cluster.is_quiet)
    return cluster


def row_of(cluster: CoreCluster, number: int) -> Member:
    row = the_config(cluster.elect()).member_at(host(number))
    assert row is not None
    return row


def is_lent(cluster: CoreCluster, voter: int, spare: int) -> bool:
    """Whether the spare votes in the place of the voter, which does not."""
    if cluster.primary is None:
        return False
    return row_of(cluster, spare).is_voter and not row_of(cluster, voter).is_voter


def another(cluster: CoreCluster) -> CoreMachine:
    """A secondary that votes."""
    leader = cluster.elect()
    voters = [row.host for row in the_config(leader).oplog_voters if row.host != leader.host]
    return cluster.machines[voters[0]]


def lent(count: int = 3, **others: int) -> tuple[CoreCluster, CoreMachine, int]:
    """A set whose spare votes for a secondary that died, that one, and its number."""
    cluster = with_spare(count, **others)
    gone = another(cluster)
    gone.crash()
    cluster.until(lambda: is_lent(cluster, cluster.number_of(gone), count))
    return cluster, gone, cluster.number_of(gone)


def until_given_back(cluster: CoreCluster, number: int) -> None:
    cluster.until(lambda: cluster.primary is not None and row_of(cluster, number).is_voter)
    cluster.until(lambda: not row_of(cluster, 3).votes)
    cluster.until(cluster.is_quiet)


@pytest.mark.parametrize("arbiters", [0, 1])
def test_a_spare_votes_for_one_that_is_gone_and_gives_the_vote_back(arbiters: int) -> None:
    """P+S+S and P+S+A lose a secondary: the set has as many voters with data as before, and another one may die."""
    cluster = with_spare(3, arbiters=arbiters)
    gone = another(cluster)
    number = cluster.number_of(gone)
    before = the_config(cluster.elect())
    gone.crash()
    cluster.until(lambda: is_lent(cluster, number, 3))
    lent = the_config(cluster.elect())
    assert row_of(cluster, 3).spare_for == number
    assert (len(lent.voters), lent.write_majority) == (len(before.voters), before.write_majority)
    assert row_of(cluster, number).votes == 1  # as configured
    cluster.elect().write("while it is away")
    newest = cluster.elect().disk.log[-1][0]
    cluster.until(lambda: cluster.elect().node.commit_point >= newest)
    gone.boot()
    until_given_back(cluster, number)
    assert row_of(cluster, 3).spare_for is None
    assert the_config(cluster.elect()).voters == tuple(
        replace(voter, incarnation=cluster.machines[voter.host].disk.incarnation) for voter in before.voters
    )


@pytest.mark.parametrize("gone", [1, 2], ids=["secondary", "witness"])
def test_one_of_primary_secondary_and_witness_is_gone(gone: int) -> None:
    cluster = with_spare(3, witnesses=1)
    if cluster.elect() is cluster[gone]:
        cluster.step_down(gone)
        cluster.until(cluster.is_quiet)
    cluster[gone].crash()
    cluster.until(lambda: is_lent(cluster, gone, 3))
    assert len(the_config(cluster.elect()).oplog_voters) == 3
    cluster[gone].boot()
    until_given_back(cluster, gone)


@pytest.mark.in_turns
def test_one_that_only_the_primary_cannot_reach_keeps_its_vote() -> None:
    """It follows another member, which passes its position on, and counts for every majority."""
    cluster = with_spare(3)
    leader, far = cluster.elect(), another(cluster)
    number = cluster.number_of(far)
    cluster.cut = {(leader.host, far.host), (far.host, leader.host)}
    for _ in range(40):
        cluster.run(500)
        cluster.elect().write("news")
        assert not is_lent(cluster, number, 3)
    assert cluster.elect() is leader
    far.crash()
    cluster.until(lambda: is_lent(cluster, number, 3))


def test_in_no_step_are_there_fewer_copies() -> None:
    cluster = with_spare(3, arbiters=1)
    gone, seen = another(cluster), set[int]()
    gone.crash()
    for _ in range(800):
        cluster.run(10)
        if cluster.primary is not None:
            seen.add(the_config(cluster.elect()).write_majority)
    gone.boot()
    for _ in range(800):
        cluster.run(10)
        if cluster.primary is not None:
            seen.add(the_config(cluster.elect()).write_majority)
    assert min(seen) == 2, "the primary could have committed alone"


def test_the_primary_of_psa_dies_and_its_successor_has_a_spare() -> None:
    """The successor can commit nothing of its term before that, since the write majority needs the one that is gone."""
    cluster = with_spare(3, arbiters=1)
    gone = cluster.elect()
    number = cluster.number_of(gone)
    gone.crash()
    cluster.until(lambda: is_lent(cluster, number, 3))
    leader = cluster.elect()
    leader.write("by the successor")
    newest = leader.disk.log[-1][0]
    cluster.until(lambda: leader.node.commit_point >= newest)
    gone.boot()
    until_given_back(cluster, number)


def test_no_vote_moves_before_the_writes_of_the_term_are_on_disks() -> None:
    """What an earlier primary committed may otherwise be on too few of those who vote then."""
    cluster = with_spare()
    gone = cluster.elect()
    cluster.sync_ms = 12_000
    gone.crash()
    cluster.elect()
    cluster.run(AFTER_SECS * 1000 + 3_000)
    number = cluster.number_of(gone)
    assert (row_of(cluster, 3).spare_for, row_of(cluster, number).is_voter) == (number, True)
    cluster.sync_ms = 3
    cluster.until(lambda: is_lent(cluster, number, 3))


@pytest.mark.in_turns
def test_one_that_comes_and_goes_keeps_its_spare() -> None:
    """The vote moves once while the voter flaps, however long that goes on."""
    cluster, gone, number = lent()
    version = the_config(cluster.elect()).version
    for _ in range(5):
        gone.boot()
        cluster.run(AFTER_SECS * 1000 - 1_500)
        gone.crash()
        cluster.run(AFTER_SECS * 1000 - 1_500)
        assert the_config(cluster.elect()).version == version
    gone.boot()
    cluster.until(cluster.is_quiet)
    cluster.until(lambda: row_of(cluster, number).is_voter)


def test_one_that_is_back_in_time_keeps_its_vote() -> None:
    cluster = with_spare()
    gone = another(cluster)
    version = the_config(cluster.elect()).version
    for _ in range(4):
        gone.crash()
        cluster.run(AFTER_SECS * 1000 - 500)
        gone.boot()
        cluster.run(1_500)
    assert the_config(cluster.elect()).version == version


def test_each_spare_for_one_voter() -> None:
    """Two voters of five die: each of two spares votes for one of them."""
    cluster = with_spare(5, spares=2)
    leader = cluster.elect()
    gone = [machine for machine in cluster.machines.values() if machine is not leader][:2]
    for machine in gone:
        machine.crash()
    voters = {row.host for row in the_config(leader).voters} - {machine.host for machine in gone}
    spares = {host(5), host(6)}
    cluster.until(lambda: {row.host for row in the_config(leader).voters} == voters | spares)
    found = {row.spare_for for row in the_config(leader).members if row.host in spares}
    assert found == {cluster.number_of(machine) for machine in gone}


@pytest.mark.in_turns
def test_seven_voters_are_never_eight() -> None:
    """First the one that is gone loses its vote; its spare gives the vote up before it votes again."""
    cluster, gone, number = lent(7)
    ReplSetConfig.parse(the_config(cluster.elect()).document(internal=True))
    gone.boot()
    cluster.until(lambda: row_of(cluster, number).is_voter)
    cluster.until(cluster.is_quiet)
    assert not row_of(cluster, 7).votes


def test_another_primary_gives_the_vote_back() -> None:
    cluster, gone, number = lent()
    former = cluster.elect()
    former.crash()
    cluster.run(1_500)
    gone.boot()
    former.boot()
    until_given_back(cluster, number)


def test_without_its_voter_a_spare_is_a_voter_for_good() -> None:
    cluster, _, number = lent()
    rows = [row for row in the_config(cluster.elect()).members if row.id != number]
    change(cluster, *rows)
    cluster.until(cluster.is_quiet)
    assert (row_of(cluster, 3).votes, row_of(cluster, 3).spare_for) == (1, None)


def test_a_spare_that_was_given_a_priority_loses_it_with_its_vote() -> None:
    """Otherwise the configuration would be one that no member can read."""
    cluster, gone, _ = lent()
    rows = the_config(cluster.elect()).members
    change(cluster, *(replace(row, priority=2.0) if row.id == 3 else row for row in rows))
    gone.boot()
    cluster.until(lambda: cluster.primary is not None and not row_of(cluster, 3).votes)
    ReplSetConfig.parse(the_config(cluster.elect()).document(internal=True))
    cluster.until(cluster.is_quiet)


def test_a_spare_that_is_behind_or_away_is_no_help() -> None:
    cluster = with_spare()
    gone = another(cluster)
    cluster[3].crash()
    cluster.run(1_500)
    version = the_config(cluster.elect()).version
    gone.crash()
    cluster.run(AFTER_SECS * 3_000)
    assert the_config(cluster.elect()).version == version


def test_only_the_server_says_whose_spare_votes() -> None:
    cluster = with_spare()
    leader = cluster.elect()
    rows = [replace(row, spare_for=MemberId(1)) if row.id == 3 else row for row in the_config(leader).members]
    number = cluster.number_of(leader)
    answer = cluster.ask_and_wait(number, ReconfigRequest(cluster.user_config(number, *rows), False, 0))
    assert answer.code == ErrorCode.INVALID_CONFIG
    assert answer.reason.startswith("spareFor is the server's to set")


def test_what_an_operator_hands_in_keeps_the_spare() -> None:
    """The vote of a spare and the mark of its voter stay when somebody changes something else."""
    rows = list(members_of(4))
    rows[1] = replace(rows[1], newly_added=True)
    rows[3] = replace(rows[3], priority=0.0, spare_after_secs=AFTER_SECS, spare_for=MemberId(1), incarnation="i4")
    old = config_of(*rows)
    new = ReplSetConfig.parse(old.document())
    completed = complete_config(old, new, 1)
    assert completed.member(MemberId(3)) == rows[3]
    assert completed.member(MemberId(1)) == rows[1]
    assert old.document()["members"][3]["spareFor"] == 1


@pytest.mark.parametrize(
    "row", [{"arbiterOnly": True, "priority": 0}, {"priority": 0, "secondaryDelaySecs": 5}], ids=["arbiter", "delayed"]
)
def test_who_cannot_be_a_spare(row: dict[str, object]) -> None:
    members = [{"_id": 0, "host": "a:1"}, {"_id": 1, "host": "b:1", "spareAfterSecs": 5, **row}]
    with pytest.raises(BadValueError, match="spareAfterSecs"):
        ReplSetConfig.parse({"_id": "rs0", "version": 1, "members": members})


def test_a_lost_voter_that_comes_back_empty_has_its_vote_once_it_has_copied() -> None:
    cluster, gone, number = lent()
    gone.wipe()
    gone.boot()
    until_given_back(cluster, number)
    assert gone.node.state is MemberState.SECONDARY

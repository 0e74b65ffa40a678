"""Reconfig: each rule (map C10 to C16), and the primary's own changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from replset.bson import ObjectId
from replset.config import MAX_GIVEN_VERSION, MAX_VERSION, Member, ReplSetConfig
from replset.config.feature_version import LATEST, OLDEST, FeatureVersion
from replset.core.effects import ConfigInstalled, Persist, RecordElectionEvent, Reply, Send
from replset.core.member_state import MemberState
from replset.core.messages import Done, HeartbeatRequest, LocalPosition, ReconfigRequest, Refused, Request
from replset.core.reconfig import MANY_ARBITERS
from replset.core.reconfig_rules import complete_config, reconfig_refusal
from replset.errors import InvariantError
from replset.features.administration.remarks import find_remarks
from replset.ids import OPTIME_NULL, HostPort, MemberId, Millis
from tests.simulation.core_kit.cluster import change, leader_number, running, the_config
from tests.simulation.core_kit.machine import CoreMachine, config_of, host, members_of
from tests.unit.core.single_node import (
    NOW,
    SingleNode,
    asked,
    at,
    lead,
    leading_three,
    named,
    only,
    place,
    ready,
    shaped,
    single_node,
)

ARBITER: dict[str, Any] = {"arbiter_only": True, "priority": 0.0}


def new_of(old: ReplSetConfig, *members: Member, **changes: Any) -> ReplSetConfig:
    return replace(old, version=old.version + 1, members=members or old.members, **changes)


def refusal(
    old: ReplSetConfig, new: ReplSetConfig, *, force: bool = False, default_set: bool = False
) -> Refused | None:
    return reconfig_refusal(old, new, host(0), force=force, default_set=default_set)


PSS, PSA, PA = shaped("PSS"), shaped("PSA"), shaped("PA")
ROWS = PSS.members
FOURTH, FIFTH = members_of(5)[3:]


@pytest.mark.parametrize(
    ("new", "code", "says", "forced_too"),
    [
        pytest.param(new_of(PSS, set_name="x"), 103, "name", True, id="C10-set-name"),
        pytest.param(replace(PSS), 103, "version", False, id="C10-version"),
        pytest.param(replace(PSS, version=MAX_GIVEN_VERSION + 1), 2, "version", True, id="C1-version"),
        pytest.param(
            new_of(PSS, ROWS[0], replace(ROWS[1], id=MemberId(7)), ROWS[2]),
            103,
            "_id is 1",
            True,
            id="C10-host-keeps-id",
        ),
        pytest.param(
            new_of(PSS, ROWS[0], ROWS[1], replace(ROWS[2], **ARBITER)), 103, "arbiterOnly", True, id="C10-arbiter"
        ),
        pytest.param(
            new_of(PSS, ROWS[0], ROWS[1], replace(ROWS[2], build_indexes=False, priority=0.0)),
            103,
            "buildIndexes",
            True,
            id="C10-build-indexes",
        ),
        pytest.param(new_of(PSS, *ROWS, FOURTH, FIFTH), 93, "one voter", False, id="C10-two-voters-added"),
        pytest.param(new_of(PSS, ROWS[0]), 93, "one voter", False, id="C10-two-voters-removed"),
        pytest.param(new_of(PSS, ROWS[0], ROWS[1], FOURTH), 93, "one voter", False, id="C10-one-swapped"),
        pytest.param(new_of(PSS, *ROWS[1:]), 74, "not in the new", True, id="C10-runner-missing"),
        pytest.param(
            new_of(PSS, replace(ROWS[0], priority=0.0), *ROWS[1:]), 104, "electable", False, id="C10-runner-unelectable"
        ),
        pytest.param(
            new_of(PSS, *ROWS, replace(FOURTH, **ARBITER)), 103, "implicit default write", True, id="C16-flips-default"
        ),
    ],
)
def test_what_may_not_follow(new: ReplSetConfig, code: int, says: str, forced_too: bool) -> None:
    found = refusal(PSS, new)
    assert (found.code, says in found.reason) == (code, True)
    assert (refusal(PSS, new, force=True) is not None) is forced_too


@pytest.mark.parametrize(
    "new",
    [
        pytest.param(new_of(PSS), id="nothing-changed"),
        pytest.param(replace(PSS, version=MAX_GIVEN_VERSION), id="highest-version"),
        pytest.param(new_of(PSS, *ROWS, FOURTH), id="one-voter-added"),
        pytest.param(new_of(PSS, *ROWS[:2]), id="one-voter-removed"),
        pytest.param(
            new_of(PSS, *ROWS, *(replace(row, votes=0, priority=0.0) for row in (FOURTH, FIFTH))),
            id="two-without-votes",
        ),
        pytest.param(new_of(PSS, ROWS[0], ROWS[1], replace(ROWS[2], host=HostPort("new:1"))), id="another-host"),
    ],
)
def test_what_may_follow(new: ReplSetConfig) -> None:
    assert refusal(PSS, new) is None


def test_the_set_id_cannot_change() -> None:
    """Map C10."""
    one, other = ObjectId(b"123456789012"), ObjectId(b"210987654321")
    old = replace(PSS, settings=replace(PSS.settings, replica_set_id=one))
    assert refusal(old, new_of(old)) is None
    assert refusal(old, new_of(old, settings=replace(old.settings, replica_set_id=None))) is None
    assert refusal(old, new_of(old, settings=replace(old.settings, replica_set_id=other))).code == 103


def test_from_primary_and_arbiter_to_psa_in_two_steps() -> None:
    """Map C15: first priority 0, then the real priority."""
    second = replace(members_of(3)[2])
    found = refusal(PA, new_of(PA, *PA.members, second), default_set=True)
    assert found.code == 103
    assert "priority 0" in found.reason
    modest = new_of(PA, *PA.members, replace(second, priority=0.0))
    assert refusal(PA, modest, default_set=True) is None
    raised = new_of(modest, *PA.members, second)
    assert refusal(modest, raised, default_set=True) is None


def test_a_default_write_concern_that_was_set_makes_the_arbiter_possible() -> None:
    """Map C16."""
    new = new_of(PSS, *ROWS, replace(FOURTH, **ARBITER))
    assert refusal(PSS, new, default_set=True) is None
    assert refusal(PSS, new, default_set=True, force=True) is None


def test_the_primary_fills_in_what_users_do_not_see() -> None:
    """A voter is added as newlyAdded; the primary fills in the incarnation on a user's reconfig (docs/adr/0007)."""
    rows = members_of(5)
    plain = (*rows[:3], rows[3], replace(rows[4], votes=0, priority=0.0))
    done = complete_config(PSS, config_of(*plain, version=2, term=-1), 7)
    assert [member.incarnation for member in done.members] == ["i0", "i1", "i2", None, None]
    assert [member.newly_added for member in done.members] == [False, False, False, True, False]
    assert done.term == 7
    assert complete_config(done, replace(done, version=3, members=plain), 7).members == done.members


def test_a_configuration_names_whom_it_removed_unless_it_was_forced() -> None:
    new = config_of(*ROWS[:2], version=2, term=-1)
    done = complete_config(PSS, new, 7)
    assert done.former_hosts == (ROWS[2].host,)
    assert complete_config(done, replace(done, version=3), 7).former_hosts == ()
    assert complete_config(PSS, new, -1).former_hosts == ()


def test_a_voter_at_another_host_is_a_new_one_and_one_that_gets_its_vote_back_too() -> None:
    rows = members_of(3)
    moved = replace(rows[2], host=HostPort("elsewhere:1"))
    done = complete_config(PSS, config_of(rows[0], rows[1], moved), 1)
    assert (done.members[2].newly_added, done.members[2].incarnation) == (True, None)
    without = complete_config(PSS, config_of(ROWS[0], ROWS[1], replace(ROWS[2], votes=0, priority=0.0)), 1)
    assert without.members[2].incarnation is None
    assert complete_config(without, config_of(*rows), 1).members[2].newly_added


# --- reconfig --------------------------------------------------------------------------------------------------------


def test_a_reconfig_keeps_the_incarnation_of_a_member_that_is_down_and_was_never_heard_of() -> None:
    """The primary's process is new, so the configuration alone says whose data counts there."""
    cluster = running(3)
    leader = cluster.elect()
    gone = next(machine for machine in cluster.machines.values() if machine is not leader)
    gone.crash()
    for machine in cluster.machines.values():
        if machine is not gone:
            machine.crash()
            machine.boot()
    cluster.until(lambda: any(machine.alive and machine.node.writable for machine in cluster.machines.values()))
    cluster.run(30_000)
    assert isinstance(change(cluster, *members_of(3)), Done)
    config = the_config(cluster.elect())
    assert config.member_at(gone.host).incarnation == gone.disk.incarnation


def test_a_new_voter_is_newly_added_until_it_has_caught_up() -> None:
    """Map C14: a newlyAdded member gets its vote once that is committed and it has caught up."""
    cluster = running(extra=1)
    cluster.copy_ms = 3_000
    leader = cluster.elect()
    assert isinstance(change(cluster, *members_of(4)), Done)
    joined = the_config(leader).member(MemberId(3))
    assert (joined.newly_added, joined.incarnation, joined.is_voter) == (True, None, False)
    assert len(the_config(leader).voters) == 3
    leader.write("while it copies")
    cluster.run(2_000)
    assert the_config(leader).member(MemberId(3)).newly_added
    cluster.until(cluster.all_counted)
    assert the_config(leader).member(MemberId(3)).incarnation == cluster[3].disk.incarnation
    assert len(the_config(leader).voters) == 4
    assert "newlyAdded" not in str(the_config(leader).document())


def test_from_the_highest_version_that_may_be_given_a_set_goes_on() -> None:
    """The primary's own change makes a higher one. All members read it, and every kind of change follows it."""
    cluster = running(extra=1)
    number = leader_number(cluster)
    highest = replace(cluster.user_config(number, *members_of(4)), version=MAX_GIVEN_VERSION)
    assert isinstance(cluster.reconfig(number, highest), Done)
    cluster.until(cluster.all_counted)
    cluster.until(cluster.is_quiet)
    for machine in cluster.machines.values():
        assert machine.disk.config.version > MAX_GIVEN_VERSION
        assert ReplSetConfig.parse(machine.disk.config.document(internal=True)) == machine.disk.config
    assert isinstance(change(cluster, *members_of(4)[:3]), Done)
    number = leader_number(cluster)
    cluster.checkers.exempt = True
    assert isinstance(cluster.reconfig(number, cluster.user_config(number), force=True), Done)
    cluster.until(cluster.is_quiet)


@pytest.mark.parametrize(
    ("version", "after"),
    [
        pytest.param(5, 6, id="one-more"),
        pytest.param(MAX_GIVEN_VERSION, MAX_GIVEN_VERSION + 1, id="highest-given"),
        pytest.param(MAX_VERSION, MAX_VERSION, id="none-is-left"),
    ],
)
def test_the_version_of_the_primarys_own_change(version: int, after: int) -> None:
    """A version that no member could read is never made."""
    node = lead(single_node(config=replace(shaped("PSS+"), version=version)))
    own = place(at(2))
    node.receive(LocalPosition(own), NOW)
    for number in (1, 2, 3):
        node.receive_heartbeat(number, config_term=2, position=own)
    node.tick(NOW)
    assert node.config.version == after


def test_a_new_arbiter_gets_its_vote_at_once() -> None:
    """Arbiters are newlyAdded too. One that flips the default write concern is refused until that is set (map C16)."""
    cluster = running(extra=1)
    rows = members_of(4, arbiters=1)
    assert change(cluster, *rows).code == 103
    cluster.default_write_concern_set = True
    assert isinstance(change(cluster, *rows), Done)
    cluster.until(cluster.all_counted, 3_000)
    assert cluster[3].node.state is MemberState.ARBITER


def test_a_removed_member_knows_it_and_comes_back() -> None:
    """Map C17."""
    cluster = running(4)
    leader = cluster.elect()
    gone = next(number for number in range(4) if cluster[number] is not leader)
    rows = members_of(4)
    assert isinstance(change(cluster, *(row for row in rows if row.id != gone)), Done)
    cluster.until(lambda: cluster[gone].node.state is MemberState.REMOVED)
    leader.write("without it")
    assert cluster[gone].node.sync_source is None
    cluster.until(lambda: cluster[gone].disk.config == cluster[gone].node.config)
    cluster[gone].crash()
    cluster[gone].boot()
    assert cluster[gone].node.state is MemberState.REMOVED
    assert isinstance(change(cluster, *rows), Done)
    cluster.until(cluster.is_quiet)
    assert cluster[gone].node.state is MemberState.SECONDARY


def test_the_primary_must_reach_a_majority_of_the_new_voters() -> None:
    """Map C12."""
    cluster = running(3, extra=2)
    leader = cluster.elect()
    others = [machine for machine in cluster.machines.values() if machine is not leader and machine.node.config]
    cluster.default_write_concern_set = True
    others[0].crash()
    answer = change(cluster, *(row for row in members_of(3) if row.host != others[0].host))
    assert isinstance(answer, Done)
    cluster.until(lambda: len(the_config(leader).voters) == 2)
    cluster.cut = {(leader.host, host(3)), (leader.host, others[1].host)}
    answer = change(cluster, *(the_config(leader).members), members_of(4)[3])
    assert answer.code in (74, 189)


def new_config(node: SingleNode, rows: tuple[Member, ...]) -> ReplSetConfig:
    return replace(node.config, version=node.config.version + 1, members=rows)


def reconfiguring(rows: int) -> SingleNode:
    """Member 0 of three leads, and was asked for a configuration of so many members."""
    node = leading_three()
    node.receive(Request(5, ReconfigRequest(new_config(node, members_of(rows)), False, 0)), NOW)
    return node


@pytest.mark.parametrize("twin", [0, 2])
def test_one_member_under_two_names_is_refused(twin: int) -> None:
    """It would count twice for a majority. The answer of the new name is waited for, however many others agree."""
    node = reconfiguring(4)
    assert not only(node.receive_heartbeat(1), Reply)
    assert not only(node.receive_heartbeat(2), Reply)
    (answer,) = only(node.receive_heartbeat(3, incarnation=f"i{twin}"), Reply)
    assert answer.body.code == 93
    assert f"{host(twin)} and {host(3)}" in answer.body.reason
    assert len(node.config.members) == 3


def test_a_copy_of_a_member_that_does_not_answer_now_is_refused() -> None:
    """What is known of a member counts: the original may be down, or slower than its copy."""
    node = reconfiguring(4)
    node.receive_heartbeat(2)
    (answer,) = only(node.receive_heartbeat(3, incarnation="i1"), Reply)
    assert (answer.body.code, f"{host(1)} and {host(3)}" in answer.body.reason) == (93, True)


def test_a_new_member_that_does_not_answer_is_added_all_the_same() -> None:
    node = reconfiguring(4)
    node.receive_heartbeat(1)
    node.answer(3, HeartbeatRequest, None, error="connection refused")
    assert len(node.config.members) == 4


@pytest.mark.parametrize(("number", "members"), [(3, 3), (2, 4)])
def test_a_new_host_that_answers_without_proof_is_refused(number: int, members: int) -> None:
    """It belongs to a set with other keys. A known member that lost its key hinders no change."""
    node = reconfiguring(4)
    effects = node.answer(number, HeartbeatRequest, None, error="no proof of membership", unproven=True)
    effects += [effect for other in (1, 3) if other != number for effect in node.receive_heartbeat(other)]
    assert len(node.config.members) == members
    refusals = [reply.body for reply in only(effects, Reply) if isinstance(reply.body, Refused)]
    assert [(body.code, "no proof" in body.reason) for body in refusals] == [(103, True)] * (number == 3)


def test_a_member_of_another_set_vetoes() -> None:
    """Map C12: another set name, as long as the majority has not answered."""
    node = reconfiguring(3)
    effects = node.answer(2, HeartbeatRequest, Refused(108, "this member belongs to set 'x'"))
    answer = only(effects, Reply)[0].body
    assert answer.code == 103
    assert "'x'" in answer.reason


def raised(config: ReplSetConfig, version: FeatureVersion) -> ReplSetConfig:
    return replace(config, version=config.version + 1, feature_version=version)


@pytest.mark.parametrize(("release", "refused"), [(OLDEST, [103]), (LATEST, [])])
def test_a_set_is_not_raised_over_a_member_that_answers_and_could_not_read_it(
    release: FeatureVersion, refused: list[int]
) -> None:
    node = leading_three()
    assert node.config is not None
    node.receive(Request(5, ReconfigRequest(raised(node.config, LATEST), False, 0)), NOW)
    effects = node.receive_heartbeat(1, release=release)
    assert [reply.body.code for reply in only(effects, Reply)] == refused
    assert node.config.feature_version == (OLDEST if refused else LATEST)


def test_a_member_takes_no_configuration_that_it_could_not_run_and_says_so() -> None:
    """Its entries may be of kinds that this release reads as something else."""
    node = ready()
    assert node.config is not None
    before, newer, effects = node.config, raised(node.config, FeatureVersion(1, 2)), []
    for _ in range(2):
        effects += node.receive_heartbeat(1, config=newer, config_version=newer.version)
        node.tick(Millis(NOW + 5_000))
    assert node.config == before
    lines = [effect.record.detail for effect in only(effects, RecordElectionEvent) if effect.record.event == "reconfig"]
    assert len(lines) == 1
    assert "featureCompatibilityVersion is 1.2" in lines[0]
    (remark,) = [
        remark for remark in find_remarks(node.known, NOW) if "featureCompatibilityVersion is 1.2" in remark.why
    ]
    assert "knows 1.0 to 1.1" in remark.why
    lowered = replace(newer, version=newer.version + 1, feature_version=LATEST)
    node.receive_heartbeat(1, config=lowered, config_version=lowered.version)
    assert node.config == lowered
    assert not [one for one in find_remarks(node.known, NOW) if "featureCompatibilityVersion" in one.why]


@pytest.mark.parametrize(
    ("before", "after", "refused"),
    [(0, 1, False), (0, 2, True), (1, 1, False), (1, 2, True), (2, 2, False), (2, 3, True), (3, 2, False)],
)
def test_a_second_arbiter_needs_the_start_option(before: int, after: int, refused: bool) -> None:
    """Map C6. Those that a set has already stay."""
    for allowed in (False, True):
        node = single_node(config=named(*members_of(7, arbiters=before)), allow_multiple_arbiters=allowed)
        rows = members_of(7, arbiters=after)
        effects = node.receive(Request(5, ReconfigRequest(new_config(node, rows), True, 0)), NOW)
        reasons = [effect.body.reason for effect in only(effects, Reply) if isinstance(effect.body, Refused)]
        assert (MANY_ARBITERS in reasons) is (refused and not allowed)


def test_an_answer_to_a_check_of_a_new_configuration_ends_a_primary_of_an_older_term() -> None:
    node = leading_three()
    node.receive(Request(5, ReconfigRequest(new_config(node, members_of(3)), False, 0)), NOW)
    node.receive_heartbeat(1, term=5)
    assert (node.state, node.term) == (MemberState.SECONDARY, 5)


def test_one_reconfig_at_a_time() -> None:
    node = leading_three()
    request = ReconfigRequest(new_config(node, members_of(3)), False, 0)
    node.receive(Request(5, request), NOW)
    assert asked(node, request).code == 109


def test_a_config_is_durable_before_it_is_sent() -> None:
    """Votes and configurations are durable before they are sent or counted (docs/adr/0007)."""
    node = reconfiguring(3)
    effects = node.receive_heartbeat(1)
    kinds = [type(effect) for effect in effects]
    assert only(effects, Persist)[0].record.version == 2
    assert kinds.index(Persist) < kinds.index(ConfigInstalled)
    assert kinds.index(Persist) < kinds.index(Send)


def test_a_change_waits_for_the_current_config_and_the_writes_before_it() -> None:
    """A change needs the current configuration committed and the previous term's writes too (map C10, C11)."""
    cluster = running(3)
    leader = cluster.elect()
    others = [machine for machine in cluster.machines.values() if machine is not leader]
    for machine in others:
        machine.crash()
    before = the_config(leader)
    cluster.run(100)
    # What others had before they died still counts: this one is on a majority. The next one cannot be.
    request = cluster.ask(
        cluster.number_of(leader), ReconfigRequest(cluster.user_config(leader_number(cluster)), False, 300)
    )
    cluster.until(lambda: cluster.answer_of(cluster.number_of(leader), request))
    assert cluster.answer_of(cluster.number_of(leader), request).code in (74, 308)
    assert the_config(leader) == before


def test_beside_an_arbiter_the_dead_primary_of_before_loses_its_vote() -> None:
    """The new one cannot commit anything with it gone. It has all that was committed, since that needed both."""
    cluster = running(3, arbiters=1)
    old = cluster.elect()
    gone = cluster.number_of(old)
    old.write("on both")
    cluster.until(cluster.is_quiet)
    committed = old.node.commit_point
    old.crash()
    new = cluster.elect()
    number = cluster.number_of(new)
    assert new.node.commit_point.term < new.node.term
    rows = [
        replace(member, votes=0, priority=0.0) if member.id == gone else member for member in the_config(new).members
    ]
    raised = [replace(member, priority=5.0) if member.id == number else member for member in the_config(new).members]
    refused = cluster.reconfig(number, cluster.user_config(number, *raised), max_time_ms=500)
    assert isinstance(refused, Refused), "with all votes as they are, it could be undone"
    assert refused.code == 308
    assert cluster.reconfig(number, cluster.user_config(number, *rows), max_time_ms=5_000) == Done()
    cluster.until(lambda: new.node.commit_point.term == new.node.term)
    assert new.node.position.last_applied >= committed
    old.boot()
    cluster.run(20_000)
    assert cluster.primary is new
    assert the_config(old) == the_config(new)


def test_out_of_time_while_it_spreads_leaves_it_installed() -> None:
    """Map C11: after installing it waits again; an error then still leaves the config installed."""
    cluster = running(3)
    leader = cluster.elect()
    number = cluster.number_of(leader)
    version = the_config(leader).version
    cluster.persist_ms = 250
    assert cluster.reconfig(number, cluster.user_config(number), max_time_ms=100).code == 308
    assert the_config(leader).version == version + 1


def test_a_new_primary_must_commit_in_its_own_term_first() -> None:
    """Map C11: not before the first entry of the term is committed."""
    node = lead(single_node(config=named(*members_of(3)), position=place(at(1))))
    answer_effects = node.receive(Request(5, ReconfigRequest(new_config(node, members_of(3)), False, 500)), NOW)
    assert not only(answer_effects, Persist)
    node.receive_heartbeat(1, config_term=2, now=NOW + 1)
    node.receive_heartbeat(2, config_term=2, now=NOW + 1)
    assert node.config.version == 1  # the config is committed, the term's entry is not
    effects = node.tick(NOW + 600)
    assert Refused(308, "out of time while waiting for the current configuration to be committed") in [
        getattr(effect, "body", None) for effect in effects
    ]


def test_a_change_waits_until_the_majority_of_the_last_one_has_what_was_committed_before() -> None:
    """The member that held it beside the primary is gone by that change."""
    node = leading_three()
    node.receive(LocalPosition(place(at(2, 5))), NOW)
    node.tick(Millis(NOW + 2_000))
    node.receive_heartbeat(1, NOW + 2_000, position=place(at(2, 5)))
    assert node.commit_point == at(2, 5)
    rows = [members_of(3)[0], members_of(3)[2]]
    node.receive(Request(5, ReconfigRequest(new_config(node, rows), False, 0)), Millis(NOW + 2_000))
    node.receive_heartbeat(2, NOW + 2_000, position=place(at(2)))
    two = node.config
    assert two is not None
    assert len(two.members) == 2
    node.tick(Millis(NOW + 4_000))
    node.receive_heartbeat(2, NOW + 4_000, position=place(at(2)))
    node.receive(Request(6, ReconfigRequest(new_config(node, rows), False, 0)), Millis(NOW + 4_000))
    node.receive_heartbeat(2, NOW + 4_000, position=place(at(2)))
    assert node.config == two, "member 2 lacks what member 1 had"
    node.tick(Millis(NOW + 6_000))
    for _ in range(2):  # the second answers what the change asks
        node.receive_heartbeat(2, NOW + 6_000, position=place(at(2, 5)))
    assert node.config is not two


def test_a_primary_beside_arbiters_commits_alone_once_a_majority_knows_that_it_may() -> None:
    """Until the arbiter has the configuration that takes the secondary's vote, both could elect the secondary."""
    rows = members_of(3, arbiters=1)
    node = lead(single_node(config=named(*rows)))
    own = place(at(2))
    node.receive(LocalPosition(own), NOW)
    node.receive_heartbeat(1, config_term=2, position=own)
    node.receive_heartbeat(2, config_term=2, position=place(OPTIME_NULL), state=MemberState.ARBITER)
    assert node.commit_point == at(2)
    request = ReconfigRequest(new_config(node, (rows[0], replace(rows[1], votes=0, priority=0.0), rows[2])), False, 0)
    node.receive(Request(5, request), NOW)
    node.receive_heartbeat(2, config_term=2, position=place(OPTIME_NULL), state=MemberState.ARBITER)
    assert node.config.write_majority == 1
    node.receive(LocalPosition(place(at(2, 2))), NOW)
    assert node.commit_point == at(2)
    node.receive(Request(9, HeartbeatRequest("rs0", host(2), MemberId(2), 2, 2, 2, None, "i2")), NOW)
    assert node.commit_point == at(2, 2)


def test_the_term_in_the_config_moves_at_step_up() -> None:
    """The term in the configuration moves at step-up (map E7), from the first version on."""
    cluster = running()
    for machine in cluster.machines.values():
        assert the_config(machine).version_and_term == (1, 2)
    cluster.step_down(leader_number(cluster))
    cluster.until(cluster.is_quiet)
    for machine in cluster.machines.values():
        assert the_config(machine).version_and_term == (1, 3)


def test_a_stepdown_ends_the_change() -> None:
    cluster = running()
    leader = cluster.elect()
    number = cluster.number_of(leader)
    cluster.isolate(number)
    request = cluster.ask(number, ReconfigRequest(cluster.user_config(number), False, 0))
    cluster.until(lambda: leader.node.state is MemberState.SECONDARY)
    assert cluster.answer_of(number, request).code == 189


# --- force -----------------------------------------------------------------------------------------------------------


def test_force_on_a_secondary_of_a_set_that_lost_its_majority() -> None:
    """Map C13: version jumps, the term becomes -1, no majority is asked; then the set works again."""
    cluster = running(3)
    leader = cluster.elect()
    left = next(number for number in range(3) if cluster[number] is not leader)
    for number in range(3):
        if number != left:
            cluster[number].crash()
    cluster.until(lambda: cluster.primary is None)
    cluster.checkers.exempt = True
    assert isinstance(cluster.reconfig(left, cluster.user_config(left, members_of(3)[left]), force=True), Done)
    config = the_config(cluster[left])
    assert config.term == -1
    assert 10_000 < config.version < 111_000
    assert cluster.elect() is cluster[left]
    assert the_config(cluster[left]).term == -1
    assert isinstance(change(cluster, members_of(3)[left]), Done)
    assert the_config(cluster[left]).term == cluster[left].node.term


@pytest.mark.parametrize(("is_to_sync", "named_as"), [(False, "i0"), (True, "lost")])
def test_force_counts_the_disk_of_its_member_unless_a_copy_is_to_replace_it(is_to_sync: bool, named_as: str) -> None:
    first, *others = named(*members_of(3)).members
    rows = (replace(first, incarnation="lost"), *others)
    node = single_node(config=replace(named(*members_of(3)), members=rows), initial_sync_pending=is_to_sync)
    node.receive(Request(5, ReconfigRequest(new_config(node, rows), True, 0)), NOW)
    assert node.config.version > 10_000
    assert [member.incarnation for member in node.config.members] == [named_as, "i1", "i2"]


def test_a_forced_config_is_taken_by_the_others() -> None:
    cluster = running(3)
    leader = cluster.elect()
    number = next(number for number in range(3) if cluster[number] is not leader)
    cluster.checkers.exempt = True
    cluster.reconfig(number, cluster.user_config(number), force=True)
    cluster.until(cluster.is_quiet)
    assert {the_config(machine).term for machine in cluster.machines.values()} == {-1}


def test_a_forced_config_keeps_two_primaries_from_taking_different_votes() -> None:
    """It has no term, so a change that the primary before made, and nobody else has, is newer than it is to voters."""
    cluster = running(4)
    old = cluster.elect()
    cluster.reconfig(cluster.number_of(old), cluster.user_config(cluster.number_of(old)), force=True)
    cluster.until(cluster.is_quiet)
    rows = the_config(old).members
    others = [machine for machine in cluster.machines.values() if machine is not old]

    def without(machine: CoreMachine) -> list[Member]:
        return [replace(row, votes=0, priority=0.0) if row.host == machine.host else row for row in rows]

    def cut_off(machine: CoreMachine, record: object) -> None:
        if machine is old and isinstance(record, ReplSetConfig):
            cluster.on_persist.remove(cut_off)
            cluster.isolate(cluster.number_of(old))

    cluster.on_persist.append(cut_off)
    change(cluster, *without(others[2]), max_time_ms=300)
    cluster.until(lambda: cluster.primary not in (None, old))
    new = cluster.elect()
    late = others[1] if new is others[0] else others[0]
    assert late.disk.log[-1][0].term < new.node.term
    cluster.isolate(cluster.number_of(old), cluster.number_of(late))
    request = ReconfigRequest(cluster.user_config(cluster.number_of(new), *without(old)), False, 3_000)
    cluster.ask(cluster.number_of(new), request)
    cluster.run(500)
    new.write("committed by the two that it reaches")
    cluster.run(10_000)  # the other two must not elect one of theirs meanwhile
    cluster.heal()
    cluster.until(cluster.is_quiet)


def test_a_primary_that_force_makes_unelectable_steps_down() -> None:
    """Map C13."""
    cluster = running(3)
    leader = cluster.elect()
    number = cluster.number_of(leader)
    rows = [replace(row, priority=0.0) if row.id == number else row for row in members_of(3)]
    cluster.reconfig(number, cluster.user_config(number, *rows), force=True)
    assert leader.node.state is MemberState.SECONDARY
    cluster.until(cluster.is_quiet)
    assert cluster.elect() is not leader


def test_a_member_learns_what_one_that_it_removed_has_since() -> None:
    """Seed 282224 of the core: the removal was never committed, and the third member lost its disk after it had voted.

    The other two hold everything. The one that removed takes the newer configuration of the removed one.
    """
    cluster = running(3, witnesses=1)
    old = cluster.elect()
    removed, witness = cluster[1 - cluster.number_of(old)], cluster[2]
    left = [row for row in the_config(old).members if row.host != removed.host]

    def cut_off(machine: CoreMachine, record: object) -> None:
        if machine is old and isinstance(record, ReplSetConfig):
            cluster.on_persist.remove(cut_off)
            cluster.isolate(cluster.number_of(old))

    cluster.on_persist.append(cut_off)
    change(cluster, *left, max_time_ms=300)
    cluster.until(lambda: cluster.primary is removed)
    removed.write("held by the removed one alone")
    cluster.run(1_000)
    cluster.isolate(cluster.number_of(removed))
    witness.wipe()
    witness.boot()
    cluster.run(5_000)
    assert the_config(witness).member_at(removed.host) is None
    cluster.heal()
    cluster.until(cluster.is_quiet)
    assert the_config(old).member_at(removed.host) is not None
    assert the_config(old).former_hosts == ()
    assert old.disk.log == removed.disk.log


@pytest.mark.parametrize(
    ("version", "rows", "why"),
    [
        pytest.param(0, 3, "followed by a newer", id="an-older-one"),
        pytest.param(2, 1, "one voter at a time", id="two-voters-less"),
    ],
)
def test_a_primary_installs_nothing_else_if_the_checks_fail(version: int, rows: int, why: str) -> None:
    node = leading_three()
    before = node.config
    with pytest.raises(InvariantError, match=why):
        node._reconfigs._install_own(replace(before, version=version, members=before.members[:rows]))
    assert node.config == before

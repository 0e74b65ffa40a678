"""Initiate (map C9): what cannot, and what it leaves."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from replset.bson import ObjectId
from replset.config import ReplSetConfig
from replset.core.effects import AppendNoop, Reply
from replset.core.member_state import MemberState
from replset.core.messages import Done, InitiateRequest, Refused, Request
from replset.ids import OPTIME_NULL, HostPort, MemberId
from tests.simulation.core_kit.cluster import CoreCluster, change
from tests.simulation.core_kit.machine import FAST, config_of, host, members_of
from tests.unit.core.single_node import NOW, asked, at, named, only, place, single_node


@pytest.mark.parametrize(
    ("config", "code"),
    [
        pytest.param(replace(config_of(*members_of(3)), set_name="other"), 93, id="other-set"),
        pytest.param(config_of(*members_of(3), version=2), 103, id="version"),
        pytest.param(config_of(*members_of(3)[1:]), 74, id="runner-missing"),
        pytest.param(config_of(replace(members_of(1)[0], priority=0.0), members_of(2)[1]), 104, id="not-electable"),
        pytest.param(config_of(members_of(1)[0], replace(members_of(2)[1], newly_added=True)), 93, id="newly-added"),
        pytest.param(config_of(members_of(1)[0], replace(members_of(2)[1], spare_for=MemberId(0))), 93, id="spare"),
        pytest.param(
            config_of(*members_of(3), settings=replace(FAST, replica_set_id=ObjectId(b"another set "))), 93, id="set-id"
        ),
        pytest.param(config_of(*members_of(3, arbiters=2)), 2, id="C6-two-arbiters"),
    ],
)
def test_what_cannot_initiate(config: ReplSetConfig, code: int) -> None:
    """Map C9."""
    node = single_node(
        config=None, initial_sync_pending=True, position=place(OPTIME_NULL), allow_multiple_arbiters=False
    )
    assert asked(node, InitiateRequest(config)).code == code


def test_a_member_with_the_data_of_a_set_and_no_configuration_does_not_initiate() -> None:
    """Its member.db was lost. Nothing is changed: the marker stays, so that it copies anew when its set finds it."""
    node = single_node(config=None, initial_sync_pending=True, position=place(at(2, 9)))
    effects = node.receive(Request(5, InitiateRequest(config_of(*members_of(1)))), NOW)
    (reply,) = only(effects, Reply)
    assert reply.body.code == 110
    assert effects == [reply]
    assert node.config is None


def test_an_initiate_that_a_crash_ended_may_be_done_again() -> None:
    """Its first entry was written, its configuration was not."""
    node = single_node(config=None, position=place(at(1, 1)))
    effects = node.receive(Request(5, InitiateRequest(config_of(*members_of(1)))), NOW)
    assert [reply.body for reply in only(effects, Reply)] == [Done()]
    assert only(effects, AppendNoop)[0] == AppendNoop(1, "initiating set")


def test_one_member_under_two_names_cannot_initiate() -> None:
    """As localhost and 127.0.0.1 it would be a majority by itself."""
    node = single_node(config=None, initial_sync_pending=True, position=place(OPTIME_NULL))
    node.receive(Request(5, InitiateRequest(config_of(*members_of(2), term=-1))), NOW)
    (reply,) = only(node.receive_heartbeat(1, incarnation="i0", has_data=False, position=place(OPTIME_NULL)), Reply)
    assert reply.body.code == 93
    assert node.config is None


def test_initiate_end_to_end() -> None:
    """Initiate names the incarnations that its check found. Map C9: version 1, term 1, a set id, "initiating set"."""
    cluster = CoreCluster(4)
    assert isinstance(cluster.initiate(*members_of(4, arbiters=1)), Done)
    config = cluster[0].node.config
    assert config.version_and_term == (1, 1)
    assert config.settings.replica_set_id is not None
    assert [member.incarnation for member in config.members] == ["i1", "i2", "i3", "i4"]
    assert cluster[0].disk.log[0][1] == "initiating set"
    assert cluster[0].disk.log[0][0].term == 1
    assert not cluster[0].disk.marker
    cluster.until(cluster.is_quiet)
    leader = cluster.elect()
    assert leader is cluster[0]
    assert leader.node.term == 2
    assert [entry[1] for entry in leader.disk.log] == ["initiating set", "new primary"]
    assert [machine.disk.incarnation for machine in cluster.machines.values()] == ["i1", "i2", "i3", "i4"]
    assert cluster[3].node.state is MemberState.ARBITER
    assert not cluster[3].disk.log
    assert cluster.initiate(*members_of(4, arbiters=1)).code == 23


def test_initiate_needs_every_member_and_every_one_empty() -> None:
    cluster = CoreCluster(3)
    cluster[2].crash()
    answer = cluster.initiate(*members_of(3))
    assert answer.code == 74
    assert "m2" in answer.reason
    assert cluster[0].node.state is MemberState.STARTUP

    other = CoreCluster(2)
    other.ask_and_wait(1, InitiateRequest(config_of(members_of(2)[1])))
    answer = other.initiate(*members_of(2))
    assert answer.code == 110


def test_a_crash_between_the_first_configuration_and_the_first_entry() -> None:
    """The initiator alone has neither marker nor data: at its start it writes the entry that was lost."""
    node = single_node(0, config=named(*members_of(3)), position=place(OPTIME_NULL), start=False)
    assert only(node.start(NOW), AppendNoop) == [AppendNoop(1, "initiating set")]
    assert not only(single_node(0, config=named(*members_of(3)), start=False).start(NOW), AppendNoop)


# --- members that find each other (--expect-members) -----------------------------------------------------------------

FIRST, SECOND, THIRD = EXPECTED = (host(0), host(1), host(2))


def expecting(count: int = 3, seed: int = 1) -> CoreCluster:
    return CoreCluster(count, seed=seed, expected={host(n): EXPECTED for n in range(3)})


def test_only_the_first_of_the_expected_members_initiates_and_only_with_all_of_them() -> None:
    cluster = expecting()
    refused = cluster.ask_and_wait(1, InitiateRequest(config_of(*members_of(3), term=-1)))
    assert refused == Refused(103, f"{FIRST} makes this set (--expect-members)")
    alone = cluster.initiate(*members_of(1))
    assert alone == Refused(103, f"{FIRST} was started with --expect-members {','.join(EXPECTED)}")
    assert isinstance(cluster.initiate(*reversed(members_of(3))), Done)
    cluster.until(cluster.is_quiet)


@pytest.mark.parametrize(
    ("theirs", "says"),
    [
        pytest.param(
            (FIRST, SECOND), f"{SECOND} refuses: was started with --expect-members {FIRST},{SECOND}", id="fewer"
        ),
        pytest.param((), f"{SECOND} refuses: has no --expect-members", id="none"),
    ],
)
def test_a_member_that_expects_others_refuses(theirs: tuple[HostPort, ...], says: str) -> None:
    cluster = CoreCluster(3, expected={FIRST: EXPECTED, SECOND: theirs, THIRD: EXPECTED})
    assert cluster.initiate(*members_of(3)) == Refused(103, says)
    assert cluster[0].node.config is None


def test_nobody_else_takes_an_expected_member_into_a_new_set() -> None:
    """A member without the option initiates by hand and names one with it."""
    cluster = CoreCluster(2, expected={FIRST: (FIRST,)})
    answer = cluster.ask_and_wait(1, InitiateRequest(config_of(*members_of(2), term=-1)))
    assert answer == Refused(103, f"{FIRST} refuses: was started with --expect-members {FIRST}")


def test_an_expected_member_can_still_be_added_to_a_set() -> None:
    """A check is only of a new set: one that is there adds whom its primary asks."""
    cluster = CoreCluster(2, expected={host(1): (SECOND,)})
    cluster.initiate(*members_of(1))
    cluster.until(cluster.is_quiet)
    assert isinstance(change(cluster, *members_of(2)), Done)
    cluster.until(cluster.is_quiet)


@pytest.mark.in_turns
@pytest.mark.parametrize("seed", range(25))
def test_expected_members_never_make_two_sets(seed: int) -> None:
    """Messages are lost and late, members die and come back, everybody initiates again and again, also by hand."""
    cluster = expecting(seed=seed)
    cluster.loss, cluster.late = 0.2, 0.2
    rng = random.Random(seed)
    for _ in range(60):
        number = rng.randrange(3)
        machine = cluster[number]
        if not machine.alive:
            machine.boot()
        elif rng.random() < 0.3:
            machine.crash(power=rng.random() < 0.5)
            continue
        members = members_of(rng.choice((1, 2, 3, 3, 3)))
        cluster.ask(number, InitiateRequest(config_of(*members, term=-1)))
        cluster.run(rng.randrange(1_000))
        if rng.random() < 0.3:
            cluster.isolate(rng.randrange(3))
        else:
            cluster.heal()
    cluster.loss = cluster.late = 0.0
    cluster.heal()
    for number in range(3):
        if not cluster[number].alive:
            cluster[number].boot()
    cluster.run(15_000)  # a check whose messages were lost ends after ten seconds
    if cluster[0].node.config is None:
        cluster.initiate(*members_of(3))
    cluster.until(cluster.all_counted)
    ids = {config.settings.replica_set_id for n in range(3) if (config := cluster[n].node.config) is not None}
    assert len(ids) == 1

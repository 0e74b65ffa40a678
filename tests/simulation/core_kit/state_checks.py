"""What holds of a core's state after every event: what is over has ended, and what it says of itself fits together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replset.core.leader import Phase
from replset.core.member_state import MemberState
from replset.core.reconfig import ReconfigStage
from replset.ids import OPTIME_NULL

if TYPE_CHECKING:
    from tests.simulation.core_kit.machine import CoreMachine

IN_SERVICE = (MemberState.PRIMARY, MemberState.SECONDARY)


def check_state(machine: CoreMachine) -> None:
    """To be asked after every event."""
    wrong = _of_itself(machine) or _of_work(machine) or _of_others(machine)
    assert not wrong, f"invariant 28 broken: {machine.host} at {machine.cluster.now} ms: {wrong}"


def _first(*rules: tuple[str, bool]) -> str:
    return next((what for what, holds in rules if not holds), "")


def _of_itself(machine: CoreMachine) -> str:
    state = machine.node._state
    me, leads, phase, now = state.self_member, state.is_primary, machine.node._leader.phase, state.state
    newest = max(
        state.last_vote.term, state.position.last_applied.term, 0 if state.config is None else state.config.term
    )
    is_ready = now not in IN_SERVICE or not (state.must_sync or state.maintenance or state.quarantine)
    follows = now in (MemberState.SECONDARY, MemberState.RECOVERING) or phase is Phase.CATCH_UP
    return _first(
        (
            "it knows itself as the primary",
            (state.primary_id is not None and state.primary_id == state.self_id) is leads,
        ),
        ("it leads by its phase", (phase is not Phase.NOT_PRIMARY) is leads),
        ("it has an election's time", (state.election_wall_ms is not None) is leads),
        ("it takes writes", not state.writable or phase is Phase.ACTIVE),
        ("its term is behind its data", state.term >= newest),
        (f"it is {now.name} without data, in maintenance or in quarantine", is_ready),
        ("it is REMOVED", (now is MemberState.REMOVED) is (me is None and state.config is not None)),
        ("it is ARBITER", (now is MemberState.ARBITER) is state.is_arbiter),
        ("it is RECOVERING", now is not MemberState.RECOVERING or bool(state.quarantine or state.maintenance)),
        ("it rolls back", now is not MemberState.ROLLBACK or state.rolling_back),
        (f"it follows {state.sync_source} as {now.name}", state.sync_source is None or follows),
        ("it has its commit point", leads <= (state.commit_point <= state.position.last_applied)),
    )


def _of_work(machine: CoreMachine) -> str:
    """Elections, stepdowns and changes that are under way."""
    node, state, now = machine.node, machine.node._state, machine.node._state.now
    election, stepdown, change = node._elections.election, node._stepdowns._pending, node._reconfigs._change
    rules: list[tuple[str, bool]] = []
    if election is not None:
        votes = len(election.granted | {state.self_id})
        rules += [
            ("it stands where it cannot lead", state.is_electable and election.term == state.term),
            ("it stands for too long", now < election.deadline),
            ("its election is decided", len(election.granted) < election.needed <= votes + len(election.pending)),
        ]
    if stepdown is not None:
        rules.append(("it steps down", state.is_primary and not state.writable and now < stepdown.deadline))
    else:
        rules.append(("it leads and takes no writes", node._leader.phase is not Phase.ACTIVE or state.writable))
    if change is not None:
        based_on = None if state.config is None else state.config.version_and_term
        is_open = change.stage is ReconfigStage.PROPAGATING or based_on == change.based_on
        is_due = node.next_tick_at() <= now  # what a follower fetches and reports ends a stepdown between two ticks
        rules += [
            ("it changes what is not its own", change.initiating or state.is_primary or is_due),
            ("its change is decided", now <= change.deadline and is_open),
            ("its check is over", change.stage is not ReconfigStage.CHECKING or bool(change.pending)),
            ("its change is known", change.stage is not ReconfigStage.PROPAGATING or not state.is_config_committed),
        ]
    return _first(*rules)


def _of_others(machine: CoreMachine) -> str:
    state = machine.node._state
    members = () if state.config is None or state.self_member is None else state.config.members
    others = {member.host: member.id for member in members if member.host != state.host}
    if {peer.host: peer.id for peer in state.peers.values()} != others:
        return f"its peers are {list(state.peers)}, not {others}"
    for host, peer in state.peers.items():
        is_known = peer.heartbeat_id in machine.node._heartbeats._pending
        wrong = _first(
            ("waits for no answer", peer.heartbeat_id is None or is_known),
            ("failed too often", peer.failures <= 3),
            ("is down without a reason", peer.state is not MemberState.DOWN or bool(peer.message)),
            ("is heard of later", max(peer.last_contact, peer.heartbeat_began, peer.reported_at) <= state.now),
            ("is never asked", peer.heartbeat_id is not None or peer.heartbeat_due <= state.now + _interval(machine)),
        )
        if wrong:
            return f"{host} {wrong}: {peer}"
    return _of_commit_point(machine)


def _interval(machine: CoreMachine) -> int:
    return machine.node._state.settings.heartbeat_interval_ms


def _of_commit_point(machine: CoreMachine) -> str:
    """A primary commits what a write majority has on disk by its word, once a majority knows the configuration."""
    state, config = machine.node._state, machine.node.config
    if config is None or not state.is_primary or state.commit_point_paused or not state.is_config_committed:
        return ""
    places = [state.position.last_durable] if state.incarnation_matches else []
    for voter in config.oplog_voters:
        peer = state.peers.get(voter.host)
        if peer is not None and voter.incarnation == peer.incarnation:
            places.append(peer.position.last_durable)
    places = sorted(places, reverse=True)[: config.write_majority]
    point = places[-1] if len(places) == config.write_majority else OPTIME_NULL
    is_due = state.commit_point < point <= state.position.last_applied and point.term == state.term
    return f"{point} is on a majority, and its commit point is {state.commit_point}" if is_due else ""

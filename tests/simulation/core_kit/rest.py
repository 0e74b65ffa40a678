"""Cores at rest: each says of all members what is so, counts who counts, and has nothing under way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from replset.config import ReplSetConfig
from replset.core.member_state import MemberState
from replset.core.quorum import MAJORITY, WriteConcern
from replset.core.status import MemberStatus
from replset.features.administration.remarks import find_remarks
from replset.ids import HostPort, OpTime
from tests.simulation.core_kit.machine import WALL, CoreMachine
from tests.simulation.kit.errors import SimulationError

if TYPE_CHECKING:
    from tests.simulation.core_kit.cluster import CoreCluster

HEARTBEATS = 4
SLOWEST_MS = 3_000
"""A round trip of two late messages, which an average keeps for a while."""
RESTS = 40
"""So often may something be due yet: a takeover, a closer source, a vote given back."""


def check_rest(cluster: CoreCluster) -> None:
    """To be asked when nobody writes, all members are up, and all links are whole."""
    before, facts = None, facts_of(cluster)
    for _ in range(RESTS):
        stand = any(machine.node._elections.election for machine in cluster.machines.values())
        if before == facts and cluster.is_quiet() and not stand:
            break
        settings = current_config(cluster).settings
        # What was lost while links were cut has timed out by then, and was asked again.
        cluster.run(settings.heartbeat_timeout_ms + HEARTBEATS * settings.heartbeat_interval_ms)
        before, facts = facts, facts_of(cluster)
    else:
        raise SimulationError(f"invariant 24 broken: no rest; {before}, then {facts}")
    open_asks = [
        ask
        for machine, start, *ask in cluster.asks
        if machine.alive and machine.start_number == start and ask[0] not in machine.answers
    ]
    if open_asks:
        raise SimulationError(f"invariant 27 broken: nobody answers {open_asks}")
    for member in current_config(cluster).members:
        machine = cluster.machines[member.host]
        if wrong := _fault_of_status(cluster, machine) or _fault_of_node(cluster, machine):
            raise SimulationError(f"invariant 24 broken: {machine.host} at rest: {wrong}")


def current_config(cluster: CoreCluster) -> ReplSetConfig:
    config = cluster.elect().node.config
    assert config is not None
    return config


def facts_of(cluster: CoreCluster) -> dict[HostPort, tuple[object, ...]]:
    machines = cluster.machines.values()
    return {one.host: (one.node.state, one.node.term, one.node.config, one.source, one.position()) for one in machines}


def _difference(found: object, expected: Mapping[str, object]) -> str:
    """How the attributes differ, in words."""
    pairs = ((name, getattr(found, name), value) for name, value in expected.items())
    return "; ".join(f"{name} is {value!r}, not {right!r}" for name, value, right in pairs if value != right)


def _source(cluster: CoreCluster, machine: CoreMachine) -> dict[str, object]:
    ids = {member.host: int(member.id) for member in current_config(cluster).members}
    return {"sync_source": machine.source, "sync_source_id": -1 if machine.source is None else ids[machine.source]}


def _state(cluster: CoreCluster, machine: CoreMachine) -> MemberState:
    member = current_config(cluster).member_at(machine.host)
    if machine is cluster.primary or member is None:
        return MemberState.PRIMARY
    return MemberState.SECONDARY if member.bears_data else MemberState.ARBITER


def _fault_of_status(cluster: CoreCluster, machine: CoreMachine) -> str:
    config, status = current_config(cluster), machine.node.status(cluster.now)
    leader, needed = cluster.elect(), len(config.voters) // 2 + 1
    spares = [member for member in config.members if config.member(member.spare_for) is not None]
    if status is None or [row.id for row in status.members] != sorted(member.id for member in config.members):
        return f"it has the rows {status and status.members}"
    expected = {
        "state": _state(cluster, machine),
        "term": leader.node.term,
        **_source(cluster, machine),
        "majority_vote_count": needed,
        "write_majority": min(needed, len(config.oplog_voters)),
        "voters": len(config.voters),
        "writable_voters": len(config.oplog_voters),
        "commit_point": leader.position().last_applied,
        "position": machine.position(),
        "blocking": "",
    }
    if wrong := _difference(status, expected):
        return wrong
    remarks = find_remarks(machine.node.known, cluster.now)
    if len(remarks) != len(spares):
        return f"it remarks {remarks}, and {len(spares)} vote for others"
    return next(filter(None, (_fault_of_row(cluster, machine, row) for row in status.members)), "")


def _fault_of_row(cluster: CoreCluster, machine: CoreMachine, row: MemberStatus) -> str:
    config, other = current_config(cluster), cluster.machines[row.host]
    member = config.member_at(row.host)
    is_self, wall_ms = other is machine, WALL + cluster.now
    heard_since = wall_ms - HEARTBEATS * config.settings.heartbeat_interval_ms
    heard = (0, 0) if is_self else (row.last_heartbeat_wall_ms, row.last_heartbeat_recv_wall_ms)
    expected = {
        "id": member and member.id,
        "is_self": is_self,
        "state": _state(cluster, other),
        "healthy": True,
        "counted": True,
        "newly_added": False,
        "witness": member and member.witness,
        "position": None if member and member.arbiter_only else other.position(),
        "uptime_ms": cluster.now - machine.booted_at,
        **_source(cluster, other),
        "config_version": config.version,
        "config_term": config.term,
        "message": "",
        "lag_ms": 0 if other.disk.log and not (member and member.arbiter_only) else None,
        "last_heartbeat_wall_ms": heard[0],
        "last_heartbeat_recv_wall_ms": heard[1],
    }
    wrong = _difference(row, expected)
    is_heard = is_self or heard_since < min(heard) <= max(heard) <= wall_ms
    is_measured = row.ping_ms == 0 if is_self else 1 < row.ping_ms <= SLOWEST_MS
    led = row.election_wall_ms is not None and row.election_wall_ms <= wall_ms
    if wrong or not is_heard or not is_measured or led is not (other is cluster.primary):
        return f"{wrong} in {row} at {wall_ms}"
    return ""


def _fault_of_node(cluster: CoreCluster, machine: CoreMachine) -> str:
    """What it waits for, whom it counts, and what it would do next."""
    node, state, config, leads = machine.node, machine.node._state, current_config(cluster), machine is cluster.primary
    open_work = (node._elections.election, node._reconfigs._change, node._stepdowns._pending)
    if any(work is not None for work in open_work) or not state.is_config_committed or node.writable is not leads:
        return f"{open_work} is under way, or it takes writes: {node.writable}"
    failing = [
        peer for peer in state.peers.values() if peer.failures or (peer.refused_at and peer.host == node.primary_host)
    ]
    if failing:
        return f"heartbeats fail: {failing}"
    soon = cluster.now + config.settings.heartbeat_interval_ms
    is_silent = all(peer.heartbeat_id is not None for peer in state.peers.values())
    if not (cluster.now < node.next_tick_at() <= soon or is_silent):
        return f"its next tick is at {node.next_tick_at()}, not soon after {cluster.now}"
    latest = cluster.now + config.settings.election_timeout_ms * 115 // 100
    if state.state is MemberState.SECONDARY and not cluster.now < state.election_due <= latest:
        return f"its election is due at {state.election_due}, not until {latest}"
    counted = {member.id: cluster.machines[member.host].position() for member in config.oplog_holders}
    if not state.is_arbiter and state.positions() != counted:
        return f"it counts {state.positions()}, not {counted}"
    return _fault_of_concerns(cluster, machine)


def _fault_of_concerns(cluster: CoreCluster, machine: CoreMachine) -> str:
    """What a primary says to the newest write, and to one behind it: so many members have it, or none."""
    node, config, newest = machine.node, current_config(cluster), machine.node.commit_point
    later, leads, bearing = OpTime(newest.term, newest.ts + 1), machine is cluster.primary, len(config.data_bearing)
    if node.majority_lag() != (0, ()):
        return f"a majority lags by {node.majority_lag()}"
    for w in (MAJORITY, *range(1, bearing + 2)):
        for j in (None, True):
            concern = WriteConcern(w, j)
            has = leads and (w == MAJORITY or int(w) <= bearing)
            if leads and node.in_vain(concern) is not None:
                return f"{concern} is in vain"
            if node.is_satisfied(concern, newest) is not has or (node.is_satisfied(concern, later) and w != 1):
                return f"{concern} is not judged {has} at {newest}"
            lacking = [node.members_waited_for(concern, optime) for optime in (newest, later)] if leads else []
            able = config.oplog_voters if w == MAJORITY else config.data_bearing
            if leads and [[one.host for one in some] for some in lacking] != [[], [member.host for member in able]]:
                return f"{concern} waits for {lacking}"
    return ""

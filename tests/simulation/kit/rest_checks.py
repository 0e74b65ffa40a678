"""A set at rest: nothing happens in it that nobody asked for, and each member says of all what is so."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from replset.core.member_state import MemberState
from replset.ids import HostPort, OpTime
from replset.optime import optime_document
from replset.replication.initial_sync_progress import InitialSyncProgress

if TYPE_CHECKING:
    from replset.core.node import Node
    from replset.member.member import RunningMember
    from tests.simulation.kit.cluster import SimCluster

_INCOMPATIBLE = "NewReplicaSetConfigurationIncompatible"
_OF_FAULTS = ("cannot archive", "ahead of the wall time")
"""Remarks on an archive, which fails at any time, and on what a wrong clock leaves behind."""
REST_S, RESTS = 1.5, 4
"""Three heartbeats: by then each member has heard how the others are."""


class Fact(NamedTuple):
    """What is so of one member."""

    state: MemberState
    term: int
    config: tuple[int, int]
    source: HostPort | None
    applied: OpTime
    durable: OpTime


def fault_at_rest(cluster: SimCluster) -> str | None:
    """What happens though nobody writes and nothing fails, or what a member says that is not so; None: all is well."""
    before, wrong = _facts(cluster), None
    if not before:
        return "nobody leads"
    for _ in range(RESTS):
        if len({fact.config for fact in before.values()}) == 1:
            break
        cluster.run(asyncio.sleep(REST_S))  # what a new primary made of the configuration comes with heartbeats
        before = _facts(cluster)
    for _ in range(RESTS):
        cluster.run(asyncio.sleep(REST_S))
        facts = _facts(cluster)
        for host, fact in facts.items():
            if fact[:3] != before[host][:3]:
                return f"{host} was {before[host]}, is {fact}, and nothing happened"
        if facts == before:  # else an entry was written, or a closer source taken, of which not everybody has heard
            wrong = next(filter(None, (_fault_of_member(cluster, name, facts) for name in cluster.alive())), None)
            if wrong is None:
                return None  # else a connection to a machine that lost power may have to break first
        before = facts
    return wrong


def _fault_of_member(cluster: SimCluster, name: str, facts: dict[HostPort, Fact]) -> str | None:
    member = cluster.machines[name].running
    if member is None or member.host not in facts:
        return None
    status, hello = cluster.command(name, {"replSetGetStatus": 1}), cluster.command(name, {"hello": 1})
    if _facts(cluster) != facts:
        return None
    wrong = (
        _fault_of_copy(member, facts)
        or _fault_of_status(member.node, status, facts)
        or _fault_of_hello(member.host, hello, facts)
    )
    return wrong and f"{name} says {wrong}"


def refusal_fault(cluster: SimCluster) -> str | None:
    """Which command is taken that a set at rest has to refuse, or changes something though it is refused."""
    config, primary = cluster.config(), cluster.primary()
    if config is None or primary is None:
        return None
    document = config.document()
    others = [name for name in cluster.secondaries() if cluster.host(name) in {m.host for m in config.members}]
    host = cluster.host(primary)
    next_one = {**document, "version": config.version + 1}
    without = [row for row in document["members"] if row["host"] != host]
    own = {**next(row for row in document["members"] if row["host"] == host)}
    refused: list[tuple[str, dict[str, object], str]] = [
        (primary, {"replSetReconfig": document}, _INCOMPATIBLE),
        (primary, {"replSetReconfig": {**next_one, "_id": "other"}}, _INCOMPATIBLE),
        (primary, {"replSetReconfig": {**next_one, "members": [*without, own | {"_id": 99}]}}, _INCOMPATIBLE),
        (primary, {"replSetInitiate": document}, "AlreadyInitialized"),
        (primary, {"replSetSyncFrom": host}, "NotSecondary"),
        (primary, {"replSetMaintenance": 1}, "NotSecondary"),
        (primary, {"replSetFreeze": 5}, "NotSecondary"),
        *((name, {"replSetReconfig": next_one}, "NotWritablePrimary") for name in others),
        *((name, {"replSetStepDown": 5}, "NotWritablePrimary") for name in others),
        *((name, {"replSetSyncFrom": cluster.host(name)}, "InvalidOptions") for name in others),
        *((name, {"replSetSyncFrom": "nobody:1"}, "NodeNotFound") for name in others),
    ]
    if any(member.is_electable for member in config.members if member.host != host):  # else nobody could lead
        refused += [
            (primary, {"replSetReconfig": {**next_one, "members": without}}, "NodeNotFound"),
            (
                primary,
                {"replSetReconfig": {**next_one, "members": [*without, own | {"priority": 0}]}},
                "NodeNotElectable",
            ),
        ]
    before = _facts(cluster)
    for name, command, code in refused:
        reply = cluster.command(name, command)
        if reply.get("codeName") != code:
            return f"{name} answers {command} with {reply}, and not {code}"
    after = _facts(cluster)
    changed = [host for host, fact in before.items() if after[host][:3] != fact[:3]]
    return f"{changed} changed by commands that were refused" if changed else None


def _facts(cluster: SimCluster) -> dict[HostPort, Fact]:
    config = cluster.config()
    members = [] if config is None else config.members
    nodes = {machine.host: machine.running.node for machine in cluster.machines.values() if machine.running}
    return {member.host: _fact(nodes[member.host]) for member in members}


def _fact(node: Node) -> Fact:
    config, position = node.config, node.position
    return Fact(
        node._state.shown_state,
        node.term,
        (0, 0) if config is None else (config.version, config.term),
        node.sync_source,
        position.last_applied,
        position.last_durable,
    )


def _fault_of_status(node: Node, status: dict[str, Any], facts: dict[HostPort, Fact]) -> str | None:
    own, point = facts[node._state.host], optime_document(node.commit_point)
    expected: dict[str, object] = {
        "myState": int(own.state),
        "term": own.term,
        "syncSourceHost": str(own.source or ""),
    }
    found = {name: status[name] for name in expected}
    if found != expected:
        return f"{found}, where it is {expected}"
    optimes = {"lastCommittedOpTime": point, "appliedOpTime": optime_document(own.applied)}
    optimes |= {"durableOpTime": optime_document(own.durable)}
    if any(status["optimes"][name] != optime for name, optime in optimes.items()):
        return f"{status['optimes']}, where they are {optimes}"
    remarks = [remark for remark in status["remarks"] if not any(word in remark["why"] for word in _OF_FAULTS)]
    if remarks:
        return f"{remarks}, where all is well"
    rows = {HostPort(row["name"]): row for row in status["members"]}
    if rows.keys() != facts.keys():
        return f"that the members are {list(rows)}"
    for host, fact in facts.items():
        wrong = _fault_of_row(rows[host], fact, is_self=host == node._state.host)
        if wrong:
            return f"of {host} {wrong}, where it is {fact}"
    return None


def _fault_of_copy(member: RunningMember, facts: dict[HostPort, Fact]) -> str | None:
    """What the progress of an initial sync came to, where this process had one."""
    done = member[InitialSyncProgress]
    if not done.source:
        return None
    is_whole = bool(done.compared) or done.copied == done.total > 0
    is_in_order = 0 < done.began <= done.ended <= member.clock.now() and len(done.attempts) == min(done.failed, 10)
    is_from_another = done.source != member.host and 0 < done.begins_at.ts <= member.store.last_applied.ts
    is_at_rest = not done.running and not done.waiting_for
    if is_whole and is_in_order and is_from_another and is_at_rest:
        return None
    return f"that its initial sync came to {done}"


def _fault_of_row(row: dict[str, Any], fact: Fact, *, is_self: bool) -> str | None:
    expected: dict[str, object] = {
        "health": 1.0,
        "state": int(fact.state),
        "stateStr": fact.state.name,
        "syncSourceHost": str(fact.source or ""),
        "configVersion": fact.config[0],
        "configTerm": fact.config[1],
    }
    if "optime" in row:
        expected["optime"] = optime_document(fact.applied)
        if not is_self:
            expected["optimeDurable"] = optime_document(fact.durable)
    found = {name: row.get(name) for name in expected}
    if found != expected:
        return str({name: value for name, value in found.items() if value != expected[name]})
    if row.get("self", False) is not is_self or ("electionTime" in row) is not (fact.state is MemberState.PRIMARY):
        return str(row)
    return None


def _fault_of_hello(host: HostPort, hello: dict[str, Any], facts: dict[HostPort, Fact]) -> str | None:
    primary = next(other for other, fact in facts.items() if fact.state is MemberState.PRIMARY)
    state = facts[host].state
    expected = {
        "isWritablePrimary": state is MemberState.PRIMARY,
        "secondary": state is MemberState.SECONDARY,
        "primary": str(primary),
        "me": str(host),
    }
    found = {name: hello.get(name) for name in expected}
    return None if found == expected else f"{found}, where it is {expected}"

"""What operators ask of cores at rest: what is refused changes nothing, and what may be done comes to its end."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from replset.bson import ObjectId
from replset.config import Member, ReplSetConfig
from replset.core.member_state import MemberState
from replset.core.messages import (
    AbortCatchUpRequest,
    DamageFound,
    DiskStalled,
    Done,
    FreezeRequest,
    InitiateRequest,
    MaintenanceRequest,
    ReconfigRequest,
    Refused,
    RequestBody,
    ResyncRequest,
    StepDownRequest,
    StepUpRequest,
    SyncFromRequest,
)
from replset.errors import ErrorCode
from replset.ids import HostPort, MemberId
from tests.simulation.core_kit.rest import current_config, facts_of
from tests.simulation.kit.errors import SimulationError

if TYPE_CHECKING:
    from tests.simulation.core_kit.cluster import CoreCluster
    from tests.simulation.core_kit.machine import CoreMachine

NOBODY = HostPort("nobody:1")
WITHIN_MS = 4_000
ELECTED_WITHIN_MS = 20_000
"""By the election timeout; votes may be split a few times."""


def check_refusals(cluster: CoreCluster) -> None:
    """All at once, of a set at rest."""
    before = facts_of(cluster)
    for machine, body, code in _refused(cluster):
        number = cluster.number_of(machine)
        answer = cluster.answer_of(number, cluster.ask(number, body))
        if not isinstance(answer, Refused) or answer.code != code:
            raise SimulationError(f"invariant 27 broken: {machine.host} answers {body} with {answer}, not {code!r}")
    if facts_of(cluster) != before:
        raise SimulationError(f"invariant 27 broken: {before} became {facts_of(cluster)}, and all was refused")


def _refused(cluster: CoreCluster) -> Iterator[tuple[CoreMachine, RequestBody, ErrorCode]]:
    leader, config = cluster.elect(), current_config(cluster)
    mine = config.member_at(leader.host)
    others = [member for member in config.members if member.host != leader.host]
    assert mine is not None
    yield leader, InitiateRequest(config), ErrorCode.ALREADY_INITIALIZED
    for body in (MaintenanceRequest(True), FreezeRequest(5_000), SyncFromRequest(leader.host), ResyncRequest()):
        yield leader, body, ErrorCode.NOT_SECONDARY
    yield leader, AbortCatchUpRequest(), ErrorCode.ILLEGAL_OPERATION
    yield leader, StepDownRequest(-1, 0, False), ErrorCode.BAD_VALUE
    yield leader, StepDownRequest(1, 2, False), ErrorCode.BAD_VALUE
    yield leader, StepDownRequest(1, 1, False, leader.host), ErrorCode.NODE_NOT_FOUND
    yield leader, StepDownRequest(1, 1, False, NOBODY), ErrorCode.NODE_NOT_FOUND
    yield leader, StepDownRequest(1, 1, True, NOBODY), ErrorCode.BAD_VALUE
    for changed, code in _configs(cluster, config, mine):
        yield leader, ReconfigRequest(changed, False, 0), code
    for member in others:
        machine = cluster.machines[member.host]
        yield machine, StepDownRequest(1, 1, True), ErrorCode.NOT_WRITABLE_PRIMARY
        yield machine, ReconfigRequest(config, False, 0), ErrorCode.NOT_WRITABLE_PRIMARY
        if member.arbiter_only:
            yield leader, StepDownRequest(1, 1, False, member.host), ErrorCode.NODE_NOT_ELECTABLE
            for body in (MaintenanceRequest(True), SyncFromRequest(leader.host)):
                yield machine, body, ErrorCode.NOT_SECONDARY
            continue
        yield machine, MaintenanceRequest(False), ErrorCode.OPERATION_FAILED
        yield machine, SyncFromRequest(NOBODY), ErrorCode.NODE_NOT_FOUND
        yield machine, SyncFromRequest(machine.host), ErrorCode.INVALID_OPTIONS
        for other in others:
            if other.arbiter_only or (member.is_voter and not other.is_voter):
                yield machine, SyncFromRequest(other.host), ErrorCode.INVALID_OPTIONS


def _configs(cluster: CoreCluster, config: ReplSetConfig, mine: Member) -> Iterator[tuple[ReplSetConfig, ErrorCode]]:
    """Configurations that may not follow this one, each as near to it as can be."""
    asked = cluster.user_config(cluster.number_of(cluster.elect()))
    rows, place = asked.members, asked.members.index(next(row for row in asked.members if row.host == mine.host))

    def changed(**fields: object) -> ReplSetConfig:
        own = replace(rows[place], **fields)  # type: ignore[arg-type]
        return replace(asked, members=(*rows[:place], own, *rows[place + 1 :]))

    other_id = replace(asked.settings, replica_set_id=ObjectId(b"another set "))
    new_id = MemberId(max(row.id for row in rows) + 1)
    yield replace(asked, set_name="rs1"), ErrorCode.NEW_CONFIG_INCOMPATIBLE
    yield replace(asked, version=config.version), ErrorCode.NEW_CONFIG_INCOMPATIBLE
    yield replace(asked, settings=other_id), ErrorCode.NEW_CONFIG_INCOMPATIBLE
    for fields in ({"id": new_id}, {"arbiter_only": True}, {"witness": True}, {"build_indexes": False}):
        yield changed(**fields), ErrorCode.NEW_CONFIG_INCOMPATIBLE
    yield changed(newly_added=True), ErrorCode.INVALID_CONFIG
    yield changed(spare_for=MemberId(0)), ErrorCode.INVALID_CONFIG
    yield changed(priority=0.0), ErrorCode.NODE_NOT_ELECTABLE
    yield replace(asked, members=(*rows[:place], *rows[place + 1 :])), ErrorCode.NODE_NOT_FOUND
    strangers = tuple(Member(MemberId(new_id + number), HostPort(f"nobody:{number + 1}")) for number in (0, 1))
    yield replace(asked, members=(*rows, *strangers)), ErrorCode.INVALID_CONFIG


def check_order(cluster: CoreCluster, rng: random.Random) -> None:
    """One thing that an operator may do, or that happens to a disk; what follows is so within a few seconds."""
    config, leader = current_config(cluster), cluster.elect()
    bearing = [row for row in config.members if row.bears_data and row.host != leader.host]
    able = [cluster.machines[row.host] for row in bearing if row.is_electable and row.is_voter]
    able = [machine for machine in able if machine.node._state.frozen_until <= cluster.now]  # else it stepped down
    if not able:
        return
    chosen = rng.choice(able)
    number, leads = cluster.number_of(chosen), cluster.number_of(leader)
    kinds = ["hand over", "step down", "maintenance", "sync from", "disk"]
    if not any(row.arbiter_only for row in config.voters):  # they vote for nobody beside a primary that is well
        kinds += ["step up", "freeze"]
    if len(config.voters) > 2 and len([row for row in config.oplog_voters if row.bears_data]) > 2:
        kinds += ["damage", "damage"]
    kind = rng.choice(kinds)
    cluster.note("order", f"{kind} {chosen.host}")
    cluster.done[f"order {kind}"] += 1
    match kind:
        case "hand over":
            _do(cluster, leads, StepDownRequest(2_000, 1_000, False, chosen.host))
            _until(cluster, kind, lambda: cluster.primary is chosen)
            if leader.node._state.frozen_until <= cluster.now:
                raise SimulationError(f"invariant 26 broken: {leader.host} is not frozen after its stepdown")
        case "step down":
            _do(cluster, leads, StepDownRequest(1_000, 0, True))
            _until(
                cluster,
                kind,
                lambda: cluster.primary not in (None, leader) or leader.node.term > config.term,
                ELECTED_WITHIN_MS,
            )
        case "step up":
            _step_up(cluster, chosen, StepUpRequest(rng.random() < 0.5))
        case "freeze":
            _do(cluster, number, FreezeRequest(1_000))
            _refuses(cluster, number, StepUpRequest(True))
            _do(cluster, number, FreezeRequest(0))
            _step_up(cluster, chosen, StepUpRequest(True))
        case "maintenance":
            _do(cluster, number, MaintenanceRequest(True))
            _until(cluster, kind, lambda: chosen.node.state is MemberState.RECOVERING)
            _refuses(cluster, number, StepUpRequest(True))
            _do(cluster, number, MaintenanceRequest(False))
            _until(cluster, kind, lambda: chosen.node.state is MemberState.SECONDARY)
        case "sync from":
            _do(cluster, number, SyncFromRequest(leader.host))
            _until(cluster, kind, lambda: chosen.source == leader.host)
        case "damage":
            chosen.feed(DamageFound("an entry is not what was written"))
            if chosen.node.state is not MemberState.RECOVERING or not chosen.node.quarantine:
                raise SimulationError(f"invariant 26 broken: {chosen.host} serves on damaged, as {chosen.node.state}")
            _refuses(cluster, number, StepUpRequest(True))
            _do(cluster, number, ResyncRequest())
            _until(cluster, kind, lambda: chosen.node.state is MemberState.SECONDARY and not chosen.node.quarantine)
        case "disk":
            leader.feed(DiskStalled(True))
            _until(cluster, kind, lambda: cluster.primary not in (None, leader), ELECTED_WITHIN_MS)
            leader.feed(DiskStalled(False))
    _until(cluster, f"rest after {kind}", cluster.is_quiet, 60_000)


def _step_up(cluster: CoreCluster, chosen: CoreMachine, body: StepUpRequest) -> None:
    """Once more where it is refused: somebody may have a newer configuration, or stand as well."""
    number = cluster.number_of(chosen)
    _until(cluster, "step up", lambda: isinstance(cluster.ask_and_wait(number, body, WITHIN_MS), Done))
    _until(cluster, "step up", lambda: cluster.primary is chosen)


def _do(cluster: CoreCluster, number: int, body: RequestBody) -> None:
    answer = cluster.ask_and_wait(number, body, WITHIN_MS)
    if not isinstance(answer, Done):
        raise SimulationError(f"invariant 26 broken: {cluster[number].host} answers {body} with {answer}")


def _refuses(cluster: CoreCluster, number: int, body: RequestBody) -> None:
    answer = cluster.ask_and_wait(number, body, WITHIN_MS)
    if not isinstance(answer, Refused):
        raise SimulationError(f"invariant 26 broken: {cluster[number].host} answers {body} with {answer}")


def _until(cluster: CoreCluster, what: str, holds: object, within_ms: int = WITHIN_MS) -> None:
    assert callable(holds)
    end = cluster.now + within_ms
    while not holds():
        if cluster.now > end:
            raise SimulationError(f"invariant 26 broken: no {what} within {within_ms} ms: {cluster.summary()}")
        cluster.run(10)

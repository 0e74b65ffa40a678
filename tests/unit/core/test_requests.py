"""What an administrator's request is answered in each state of a member: done, later, or refused with a code."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from replset.core.effects import Reply
from replset.core.member_state import MemberState
from replset.core.messages import (
    AbortCatchUpRequest,
    Done,
    FreezeRequest,
    InitialSyncStarted,
    InitiateRequest,
    MaintenanceRequest,
    ReconfigRequest,
    Refused,
    Request,
    RequestBody,
    ResyncRequest,
    SourceProblem,
    StepDownRequest,
    StepUpRequest,
    SyncFromRequest,
)
from replset.ids import Millis
from tests.simulation.core_kit.machine import host, members_of
from tests.unit.core.single_node import NOW, SingleNode, at, lead, leading_three, named, only, place, single_node
from tests.unit.core.test_follower import failed, following, outvoted

CONFIG = named(*members_of(3))


def without_config() -> SingleNode:
    return single_node(config=None, position=place(at(1)))


def removed() -> SingleNode:
    node = following()
    node.tick(Millis(NOW + 2_000))
    node.receive_heartbeat(1, now=NOW + 2_000, config=named(*members_of(3)[1:], version=2), config_version=2)
    return node


def arbiter() -> SingleNode:
    node = single_node(2, config=named(*members_of(3, arbiters=1)), initial_sync_pending=True)
    for number in (0, 1):
        node.receive_heartbeat(number)
    return node


def copying() -> SingleNode:
    node = following()
    node.receive(Request(5, ResyncRequest()), NOW)
    node.receive(InitialSyncStarted("i0"), NOW)
    return node


def rolling_back() -> SingleNode:
    node = following()
    failed(node, SourceProblem.DIVERGED, at(3), at(1))
    return node


def quarantined() -> SingleNode:
    node = following()
    outvoted(node)
    return node


def in_maintenance() -> SingleNode:
    node = following()
    node.receive(Request(5, MaintenanceRequest(True)), NOW)
    return node


def alone() -> SingleNode:
    return single_node(config=CONFIG, position=place(at(2)))


def new_primary() -> SingleNode:
    node = single_node(config=CONFIG)
    lead(node)
    return node


REQUESTS: dict[str, RequestBody] = {
    "initiate": InitiateRequest(CONFIG),
    "reconfig": ReconfigRequest(named(*members_of(3), version=2), False, 0),
    "forced": ReconfigRequest(named(*members_of(3), version=2), True, 0),
    "stepdown": StepDownRequest(60_000, 0, False),
    "stepup": StepUpRequest(skip_dry_run=False),
    "abort": AbortCatchUpRequest(),
    "freeze": FreezeRequest(10_000),
    "unfreeze": FreezeRequest(0),
    "resync": ResyncRequest(),
    "syncfrom": SyncFromRequest(host(1)),
    "from-me": SyncFromRequest(host(0)),
    "on": MaintenanceRequest(True),
    "off": MaintenanceRequest(False),
}
# What each of REQUESTS is answered, in their order: a code, ok, or - where the answer comes later. Behind it the first
# letters of the state that the member is in then, if that is another one.
TABLE: list[tuple[Callable[[], SingleNode], MemberState, str]] = [
    (without_config, MemberState.STARTUP, "- 94 94 10107 125 20 ok ok 94 95 95 95 95"),
    (removed, MemberState.REMOVED, "23 10107 ok>SEC 10107 125 20 ok ok 95 95 95 95 95"),
    (arbiter, MemberState.ARBITER, "23 10107 103 10107 125 20 ok ok 95 95 95 95 95"),
    (copying, MemberState.STARTUP2, "23 10107 ok 10107 125 20 ok ok ok ok 72 ok 96"),
    (rolling_back, MemberState.ROLLBACK, "23 10107 ok 10107 125 20 ok ok 95 ok 72 ok 96"),
    (quarantined, MemberState.RECOVERING, "23 10107 ok 10107 125 20 ok ok ->STA ok 72 ok 96"),
    (in_maintenance, MemberState.RECOVERING, "23 10107 ok 10107 125 20 ok ok ->STA ok 72 ok ok>SEC"),
    (alone, MemberState.SECONDARY, "23 10107 ok 10107 125 20 ok ok 74 6 72 ok>REC 96"),
    (following, MemberState.SECONDARY, "23 10107 ok 10107 - 20 ok ok ->STA ok 72 ok>REC 96"),
    (new_primary, MemberState.PRIMARY, "23 - ok 262 ok 20 95 95 95 95 95 95 95"),
    (leading_three, MemberState.PRIMARY, "23 - ok ok>SEC ok 20 95 95 95 95 95 95 95"),
]


def answer(node: SingleNode, body: RequestBody) -> str:
    before = node.state
    replies = [reply.body for reply in only(node.receive(Request(77, body), NOW), Reply) if reply.request_id == 77]
    assert len(replies) <= 1
    said = "-"
    for reply in replies:
        assert isinstance(reply, Done | Refused)
        said = "ok" if isinstance(reply, Done) else str(int(reply.code))
    return said if node.state is before else f"{said}>{node.state.name[:3]}"


@pytest.mark.parametrize(("make", "state", "expected"), TABLE, ids=[make.__name__ for make, _, _ in TABLE])
def test_each_request_is_answered_by_the_state(
    make: Callable[[], SingleNode], state: MemberState, expected: str
) -> None:
    assert make().state is state
    assert [answer(make(), body) for body in REQUESTS.values()] == expected.split()

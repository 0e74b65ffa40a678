"""One core node without a set: a test gives it messages and looks at its effects."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, TypeVar

from replset.config import Member, ReplSetConfig, Settings
from replset.core.effects import NO_VOTE, Effect, LastVote, Persist, Reply, Send
from replset.core.member_state import MemberState
from replset.core.messages import (
    DrainFinished,
    HeartbeatReply,
    HeartbeatRequest,
    LocalPosition,
    Position,
    ReplyBody,
    Request,
    RequestBody,
    Response,
    StepUpRequest,
    VoteReply,
    VoteRequest,
    VoteSaved,
)
from replset.core.node import Node
from replset.core.state import NodeState
from replset.ids import OPTIME_NULL, MemberId, Millis, OpTime, pack_ts
from tests.simulation.core_kit.machine import WALL, host, members_of

T = TypeVar("T")
NOW = Millis(100_000)


def at(term: int, number: int = 1) -> OpTime:
    """The optime of entry `number` of `term`."""
    return OpTime(term, pack_ts(1_700_000_000, number))


def place(applied: OpTime, durable: OpTime | None = None) -> Position:
    return Position(applied, applied if durable is None else durable, 0, 0)


def named(*members: Member, version: int = 1, term: int = 1, settings: Settings | None = None) -> ReplSetConfig:
    """A configuration that names incarnation iN for every voter N."""
    rows = tuple(
        replace(member, incarnation=f"i{member.id}") if member.votes and not member.newly_added else member
        for member in members
    )
    return ReplSetConfig("rs0", version, term, rows, settings or Settings())


def shaped(shape: str) -> ReplSetConfig:
    """One letter a member: P or S bear data and vote, A is an arbiter, N has no vote, + is newlyAdded."""
    rows: list[Member] = []
    for letter, row in zip(shape, members_of(len(shape)), strict=True):
        changes: dict[str, dict[str, object]] = {
            "A": {"arbiter_only": True, "priority": 0.0},
            "N": {"votes": 0, "priority": 0.0},
            "+": {"newly_added": True},
        }
        rows.append(replace(row, **changes.get(letter, {})))
    return named(*rows)


CONFIG = named(*members_of(3))
FROM_1 = HeartbeatRequest("rs0", host(1), MemberId(1), 1, 1, 1, None, "i1")


class SingleNode(Node):
    """A node that keeps the requests it sent, so that a test answers them. disk_is_fast: votes are durable at once."""

    disk_is_fast = True

    def _take_effects(self) -> list[Effect]:
        effects = super()._take_effects()
        self.sent = [*getattr(self, "sent", []), *only(effects, Send)]
        for persist in only(effects, Persist):
            if self.disk_is_fast and isinstance(persist.record, LastVote):
                effects += self.receive(VoteSaved(persist.record.term), self._state.now)
        return effects

    def open(self, number: int, kind: type) -> Send:
        """The newest question of this kind to member `number`."""
        return [send for send in self.sent if send.to == host(number) and isinstance(send.body, kind)][-1]

    def answer(
        self, number: int, kind: type, body: ReplyBody | None, now: int = NOW, error: str = "", unproven: bool = False
    ) -> list[Effect]:
        send = self.open(number, kind)
        return self.receive(Response(send.request_id, send.to, body, error, Millis(2), unproven=unproven), Millis(now))

    def receive_heartbeat(self, number: int, now: int = NOW, **told: object) -> list[Effect]:
        """Member `number` answers the newest heartbeat: up, SECONDARY, my term and configuration unless told."""
        config = self.config
        reply = HeartbeatReply(
            set_name="rs0",
            term=self.term,
            state=MemberState.SECONDARY,
            member_id=MemberId(number),
            config_version=-2 if config is None else config.version,
            config_term=-1 if config is None else config.term,
            config=None,
            primary_id=None,
            position=place(at(1)),
            commit_point=OPTIME_NULL,
            electable=True,
            election_wall_ms=None,
            sync_source=None,
            incarnation=f"i{number}",
            rollback_id=1,
            http_address=f"http://{host(number)}",
            has_data=True,
        )
        return self.answer(number, HeartbeatRequest, replace(reply, **told), now)


def single_node(
    number: int = 0,
    *,
    config: ReplSetConfig | None,
    default_write_concern_set: bool = False,
    unacknowledged_rollbacks: int = 0,
    start: bool = True,
    **fields: Any,
) -> SingleNode:
    """Member `number`, started at NOW: SECONDARY when it is in `config` and bears data. fields: of its NodeState."""
    values: dict[str, Any] = {
        "incarnation": f"i{number}",
        "last_vote": fields.pop("last_vote", None) or NO_VOTE,
        "position": place(at(1)),
        "initial_sync_pending": False,
        "allow_multiple_arbiters": True,
    }
    node = SingleNode(
        NodeState(
            host=host(number),
            set_name="rs0",
            http_address=f"http://{host(number)}",
            rng=random.Random(number),
            config=config,
            rollback_id=lambda: 1,
            wall_ms=lambda: WALL,
            default_write_concern_set=lambda: default_write_concern_set,
            unacknowledged_rollbacks=lambda: unacknowledged_rollbacks,
            **(values | fields),
        )
    )
    if start:
        node.start(NOW)
    return node


def ready(**fields: Any) -> SingleNode:
    """Member 0 of three that hears both others."""
    node = single_node(**{"config": CONFIG, **fields})
    for number in (1, 2):
        node.receive_heartbeat(number)
    return node


def vote_requests(effects: list[Any]) -> list[VoteRequest]:
    return [send.body for send in only(effects, Send) if isinstance(send.body, VoteRequest)]


def grant(node: SingleNode, number: int, **changes: Any) -> list[Any]:
    reply = VoteReply(node.term, True, "", MemberId(number), f"i{number}")
    return node.answer(number, VoteRequest, replace(reply, **changes))


def asked(node: Node, body: RequestBody, now: int = NOW) -> ReplyBody:
    """The node's answer, which must come at once."""
    return next(
        e.body for e in node.receive(Request(77, body), Millis(now)) if isinstance(e, Reply) and e.request_id == 77
    )


def lead(node: SingleNode) -> SingleNode:
    """Make `node`, member 0, primary of the next term; its first entry is applied, not yet synced."""
    others = [int(member.id) for member in (node.config.members[1:] if node.config else ())]
    for number in others:
        node.receive_heartbeat(number)
    node.receive(Request(3, StepUpRequest(skip_dry_run=True)), NOW)
    node.answer(1, VoteRequest, VoteReply(node.term, True, "", MemberId(1), "i1"))
    assert node.state is MemberState.PRIMARY
    for number in others:
        node.receive_heartbeat(number)
    node.receive(DrainFinished(node.term), NOW)
    node.receive(LocalPosition(place(at(node.term), at(1))), NOW)
    assert node.writable
    return node


def leading_three() -> SingleNode:
    """Member 0 of three leads term 2; its first entry and its configuration are committed."""
    node = lead(single_node(config=named(*members_of(3))))
    own = place(at(2))
    node.receive(LocalPosition(own), NOW)
    for number in (1, 2):
        node.receive_heartbeat(number, config_term=2, position=own)
    assert node.commit_point == at(2)
    return node


def only(effects: list[Effect], kind: type[T]) -> list[T]:
    return [effect for effect in effects if isinstance(effect, kind)]

"""replSetStepDown, handoff and freeze (map E11 to E13)."""

from __future__ import annotations

from dataclasses import dataclass

from replset.core.effects import AcceptWrites
from replset.core.leader import Leader, Phase
from replset.core.member_state import MemberState
from replset.core.messages import Done, FreezeRequest, Refused, StepDownRequest, StepUpRequest
from replset.core.state import NEVER, NodeState, Peer
from replset.errors import ErrorCode
from replset.ids import HostPort, Millis


@dataclass(slots=True)
class PendingStepDown:
    """A stepdown that waits until a write majority has every entry, an electable member among it."""

    request_id: int
    deadline: Millis
    freeze_ms: int
    force: bool
    hand_over_to: HostPort | None


class StepDowns:
    """Handles replSetStepDown and replSetFreeze."""

    def __init__(self, node: NodeState, leader: Leader) -> None:
        self.node = node
        self._leader = leader
        self._pending: PendingStepDown | None = None

    def on_request(self, request_id: int, request: StepDownRequest) -> None:
        node = self.node
        if node.state is not MemberState.PRIMARY:
            node.reply(request_id, Refused(ErrorCode.NOT_WRITABLE_PRIMARY, "not primary, so it cannot step down"))
        elif request.step_down_ms < 0 or request.catch_up_ms < 0:
            node.reply(request_id, Refused(ErrorCode.BAD_VALUE, "stepdown periods must not be negative"))
        elif request.catch_up_ms > request.step_down_ms:
            node.reply(
                request_id,
                Refused(ErrorCode.BAD_VALUE, "secondaryCatchUpPeriodSecs must not be longer than the stepdown period"),
            )
        elif (refusal := self._target_refusal(request)) is not None:
            node.reply(request_id, refusal)
        elif self._pending is not None:
            node.reply(request_id, Refused(ErrorCode.CONFIGURATION_IN_PROGRESS, "a stepdown is under way already"))
        else:
            deadline = Millis(node.now + request.catch_up_ms)
            self._pending = PendingStepDown(
                request_id, deadline, request.step_down_ms, request.force, request.hand_over_to
            )
            self.advance()

    def _target_refusal(self, request: StepDownRequest) -> Refused | None:
        """Why the set cannot be handed to the member that was asked for; None: it can, or none was."""
        node, to = self.node, request.hand_over_to
        member = None if node.config is None or to is None else node.config.member_at(to)
        if to is None:
            return None
        if request.force:
            return Refused(ErrorCode.BAD_VALUE, "force hands over to nobody, so handOverTo cannot be given with it")
        if member is None or to == node.host:
            return Refused(ErrorCode.NODE_NOT_FOUND, f"handOverTo: {to} is no other member of the set")
        if not member.is_electable or not member.is_voter:
            return Refused(ErrorCode.NODE_NOT_ELECTABLE, f"handOverTo: {to} cannot be elected (priority, votes)")
        return None

    def next_due(self) -> Millis:
        return NEVER if self._pending is None else self._pending.deadline

    def advance(self) -> None:
        """Step down once a successor has every entry; at the deadline give up, or step down if forced.

        Without a successor that has every entry, the writes that only this member holds would be rolled back.
        """
        node, pending = self.node, self._pending
        if pending is None:
            return
        if node.state is not MemberState.PRIMARY:
            self._pending = None
            node.reply(pending.request_id, Done("it stepped down already"))
            return
        if node.writable:  # also where it began to take writes since; each would move what the others have to reach
            node.writable = False
            node.emit(AcceptWrites(False, node.term))
        best = self._successor(pending.hand_over_to)
        if best is None and node.now < pending.deadline:
            return
        self._pending = None
        if best is None and not pending.force:
            if self._leader.phase is Phase.ACTIVE:
                node.writable = True
                node.emit(AcceptWrites(True, node.term))
            node.reply(
                pending.request_id,
                Refused(
                    ErrorCode.EXCEEDED_TIME_LIMIT,
                    f"{self._why_no_successor(pending.hand_over_to)}; still primary (see force)",
                ),
            )
            return
        self._leader.step_down("it shuts down" if node.shutting_down else "replSetStepDown", pending.freeze_ms)
        if best is not None and not pending.force:
            node.send(best.host, StepUpRequest(skip_dry_run=True), node.settings.election_timeout_ms)
        node.reply(pending.request_id, Done())

    def _successor(self, wanted: HostPort | None) -> Peer | None:
        """The electable member with every entry, of highest priority and then lowest id (map E12).

        None while fewer than a write majority have every entry, or no electable member does (map E11). A member that
        says it cannot stand now (frozen by an earlier stepdown, in maintenance) would refuse, and nobody would lead.
        wanted: the only one that will do.
        """
        node = self.node
        if node.config is None:
            return None
        target = node.position.last_applied
        positions = node.positions()
        caught_up = [
            member
            for member in node.config.oplog_voters
            if member.id in positions and positions[member.id].last_applied >= target
        ]
        ready = [
            (member.priority, -member.id, peer)
            for member in caught_up
            if member.is_electable
            and wanted in (None, member.host)
            and (peer := node.peers.get(member.host)) is not None
            and peer.is_up
            and peer.electable
        ]
        if len(caught_up) < node.config.write_majority or not ready:
            return None
        return max(ready, key=lambda row: row[:2])[2]

    def _why_no_successor(self, wanted: HostPort | None) -> str:
        """Why nobody took over in time."""
        if wanted is None:
            return "no electable secondary caught up in time"
        peer = self.node.peers.get(wanted)
        if peer is not None and peer.is_up and not peer.electable:
            return f"{wanted} cannot be elected now: it is frozen, in maintenance, or its disk is full or slow"
        return f"{wanted} has not, or no write majority has, caught up in time"

    def on_freeze(self, request_id: int, request: FreezeRequest) -> None:
        node = self.node
        if node.state is MemberState.PRIMARY:
            node.reply(request_id, Refused(ErrorCode.NOT_SECONDARY, "a primary cannot be frozen; use replSetStepDown"))
            return
        if request.freeze_ms <= 0:
            node.frozen_until = node.now
            node.reply(request_id, Done("unfrozen"))
            return
        node.frozen_until = Millis(max(node.frozen_until, node.now + request.freeze_ms))
        node.reply(
            request_id, Done("you really want to freeze for only 1 second?" if request.freeze_ms == 1000 else "")
        )

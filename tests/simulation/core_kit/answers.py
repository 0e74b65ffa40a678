"""What a core answers, by a second statement of the rules: every request once, votes and orders as they must be."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from replset.core.effects import (
    AppendNoop,
    Drain,
    Effect,
    ElectionEvent,
    LastVote,
    Persist,
    RecordElectionEvent,
    Reply,
    Send,
    StartInitialSync,
    StartRollback,
    StateChanged,
)
from replset.core.member_state import MemberState
from replset.core.messages import (
    AbortCatchUpRequest,
    Done,
    FreezeRequest,
    HeartbeatRequest,
    MaintenanceRequest,
    Message,
    ProgressRequest,
    ReplyBody,
    Request,
    StepUpRequest,
    SyncFromRequest,
    VoteReply,
    VoteRequest,
)
from replset.core.state import NodeState

if TYPE_CHECKING:
    from tests.simulation.core_kit.machine import CoreMachine

AT_ONCE = (
    *(HeartbeatRequest, VoteRequest, ProgressRequest),
    *(FreezeRequest, MaintenanceRequest, SyncFromRequest, AbortCatchUpRequest),
)
"""What is answered with the effects of the request itself."""
CHANGES = (
    (None, MemberState.PRIMARY, ElectionEvent.WON),
    (MemberState.PRIMARY, None, ElectionEvent.STEPPED_DOWN),
    (None, MemberState.ROLLBACK, "rollback"),
    (MemberState.ROLLBACK, MemberState.SECONDARY, "rollback ended"),
    (MemberState.STARTUP2, MemberState.SECONDARY, "initial sync ended, resync given up"),
    (MemberState.SECONDARY, MemberState.STARTUP2, "resync"),
)
"""From one state, to another, and the event of the line that says why, or several of which one does."""
Judge = Callable[[list[Effect]], None]


def check_journal(machine: CoreMachine, effects: list[Effect], was: MemberState) -> MemberState:
    """What an operator has to know of is in the journal, beside what is done. Returns the state that it leads to."""
    needed: list[str] = []
    for effect in effects:
        match effect:
            case StateChanged(state=state):
                needed += [event for one, other, event in CHANGES if _is_change(one, other, was, state)]
                was = state
            case Persist(LastVote(candidate=candidate)):
                needed.append(ElectionEvent.ELECTION if candidate == machine.node.self_id else "vote")
            case Send(body=VoteRequest(dry_run=True)):
                needed.append(ElectionEvent.DRY_RUN)
            case Drain():
                needed.append(ElectionEvent.DRAINING)
            case AppendNoop(text="new primary"):
                needed.append(ElectionEvent.LEADING)
            case StartRollback():
                needed.append("rollback")
            case StartInitialSync():
                needed.append("initial sync")
            case _:
                pass
    written = {effect.record.event for effect in effects if isinstance(effect, RecordElectionEvent)}
    lacking = [events for events in needed if written.isdisjoint(events.split(", "))]
    assert not lacking, f"invariant 27 broken: {machine.host} writes no line of {lacking} beside {effects}"
    return was


def _is_change(one: MemberState | None, other: MemberState | None, was: MemberState, state: MemberState) -> bool:
    return was is not state and one in (None, was) and other in (None, state)


def judge_of_answer(machine: CoreMachine, message: Message) -> Judge | None:
    """To be called before the core gets a message; the judge takes what the core makes of it."""
    if not isinstance(message, Request):
        return None
    number, body, state = message.request_id, message.body, machine.node._state
    last_vote, frozen, maintenance = state.last_vote, state.frozen_until, state.maintenance
    was_primary, is_member = state.is_primary, state.self_member is not None

    def judge(effects: list[Effect]) -> None:
        answers = [effect.body for effect in effects if isinstance(effect, Reply) and effect.request_id == number]
        assert len(answers) == 1 or not isinstance(body, AT_ONCE), (
            f"invariant 27 broken: {machine.host} answers {body} with {answers}"
        )
        answer = answers[0] if answers else None
        match body:
            case VoteRequest() if isinstance(answer, VoteReply):
                _judge_vote(machine, body, answer, effects, last_vote, was_primary=was_primary)
            case FreezeRequest(freeze_ms):
                until = max(frozen, state.now + freeze_ms) if freeze_ms > 0 else state.now
                _is(machine, body, answer, done=not was_primary)
                assert state.frozen_until == (frozen if was_primary else until), (
                    f"invariant 27 broken: {machine.host} is frozen until {state.frozen_until}"
                )
            case MaintenanceRequest(on):
                is_done = isinstance(answer, Done)
                allowed = is_member and not was_primary and not state.is_arbiter and (on or maintenance > 0)
                assert allowed or not is_done, f"invariant 27 broken: {machine.host} takes {body}"
                assert state.maintenance == maintenance + is_done * (1 if on else -1), (
                    f"invariant 27 broken: after {body} {machine.host} is {state.maintenance} times in maintenance"
                )
            case StepUpRequest() if was_primary:
                _is(machine, body, answer, done=True)
            case _:
                pass

    return judge


def _is(machine: CoreMachine, body: object, answer: ReplyBody | None, *, done: bool) -> None:
    assert isinstance(answer, Done) is done, f"invariant 27 broken: {machine.host} answers {body} with {answer}"


def _judge_vote(
    machine: CoreMachine,
    request: VoteRequest,
    answer: VoteReply,
    effects: list[Effect],
    last_vote: LastVote,
    *,
    was_primary: bool,
) -> None:
    """A real vote is given where all this holds, and nowhere else; an arbiter may have one more reason to refuse, and
    anybody in a dry run.
    """
    state, config = machine.node._state, machine.configured
    own = None if config is None else config.member_at(machine.host)
    candidate = None if config is None else config.member(request.candidate)
    may = config is not None and own is not None and candidate is not None and _has_vote(state)
    if may and config is not None and own is not None and candidate is not None:
        theirs, ours = (request.config_term, request.config_version), (config.term, config.version)
        in_order = theirs >= ours if -1 not in (theirs[0], ours[0]) else theirs[1] >= ours[1]
        newest = state.commit_point if own.arbiter_only else state.position.last_applied
        voted = last_vote.term > request.term or (last_vote.term == request.term and last_vote.candidate is not None)
        may = (
            in_order
            and candidate.incarnation == request.candidate_incarnation
            and not state.is_other_set(request.set_name, request.set_id)
            and request.term == answer.term
            and request.last_applied >= newest
            and (request.dry_run or not voted)
        )
    what = f"invariant 27 broken: {machine.host} answers {request} with {answer}, its last vote was {last_vote}"
    assert may or not answer.granted, what
    is_sure = not (request.dry_run or state.is_arbiter) or request.reason.startswith("stepUpRequest")
    assert answer.granted or not may or not is_sure or state.is_arbiter, what
    refuses = was_primary and request.dry_run and request.reason == "electionTimeout"
    assert not (refuses and answer.granted), what
    saved = [place for place, effect in enumerate(effects) if isinstance(effect, Persist)]
    said = [place for place, effect in enumerate(effects) if isinstance(effect, Reply) and effect.body is answer]
    binds = answer.granted and not request.dry_run
    assert not binds or (saved and saved[0] < said[0]), f"{what}, before that is saved"
    assert answer.granted is not bool(answer.reason), what


def _has_vote(state: NodeState) -> bool:
    own = state.self_member
    is_copying = (state.initial_sync_pending or state.has_wrong_kind_of_data) and not state.is_arbiter
    return (
        own is not None
        and own.votes == 1
        and not own.newly_added
        and own.incarnation == state.incarnation
        and not is_copying
    )

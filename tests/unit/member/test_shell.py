"""The shell carries the core's effects out in order, and nothing overtakes a Persist."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from replset.core.effects import (
    AcceptWrites,
    CommitPointAdvanced,
    Drain,
    Effect,
    ElectionRecord,
    LastVote,
    Persist,
    PersistedRecord,
    ProgressChanged,
    RecordElectionEvent,
    Reply,
    Send,
    StateChanged,
    StopFetching,
)
from replset.core.member_state import MemberState
from replset.core.messages import (
    DiskStalled,
    Done,
    DrainFinished,
    FreezeRequest,
    Message,
    ReplyBody,
    Request,
    Response,
    StepUpRequest,
)
from replset.errors import (
    HostUnreachableError,
    InvariantError,
    OutOfDiskSpaceError,
    ShutdownInProgressError,
    StorageError,
)
from replset.ids import HostPort, MemberId, Millis, OpTime
from replset.member.shell import Shell
from tests.simulation.kit.clock import SimClock
from tests.simulation.kit.loop import SimLoop
from tests.unit.member.kit import HandWorkers, settle

FAR = Millis(1_000_000)
VOTE = LastVote(3, MemberId(1))
BALLOT = Persist(VOTE)
PEER = HostPort("b:1")


class ScriptedNode:
    """A core whose answers the test gives: by the message's type, or a function of the message."""

    def __init__(self) -> None:
        self.heard: list[Message] = []
        self.ticks: list[Millis] = []
        self.answers: dict[type, Callable[[Any], list[Effect]]] = {}
        self.on_start: list[Effect] = []
        self.on_tick: Callable[[], list[Effect]] = list
        self.due = FAR

    def start(self, now: Millis) -> list[Effect]:
        return self.on_start

    def tick(self, now: Millis) -> list[Effect]:
        self.ticks.append(now)
        return self.on_tick()

    def next_tick_at(self) -> Millis:
        return self.due

    def receive(self, message: Message, now: Millis) -> list[Effect]:
        self.heard.append(message)
        return self.answers.get(type(message), lambda _message: [])(message)


class RecordingHandler:
    """Notes what was carried out; `on_effect` lets a test feed more from inside."""

    def __init__(self) -> None:
        self.done: list[object] = []
        self.on_effect: Callable[[Effect], None] = lambda effect: None
        self.reply: ReplyBody | Exception = Done()
        self.save_error: Exception | None = None

    def handle_effect(self, effect: Effect) -> None:
        self.done.append(effect)
        self.on_effect(effect)

    async def send_request(self, send: Send) -> ReplyBody:
        self.done.append(send)
        await asyncio.sleep(0.007)
        if isinstance(self.reply, Exception):
            raise self.reply
        return self.reply

    def save_record(self, record: PersistedRecord) -> None:
        if self.save_error is not None:
            raise self.save_error
        self.done.append(("saved", record))

    def save_election_events(self, records: list[ElectionRecord]) -> None:
        self.done.append(("noted", [record.event for record in records]))


class Rig:
    """A shell with a scripted core, a recording handler and hand-driven threads."""

    def __init__(self, clock: SimClock) -> None:
        self.node = ScriptedNode()
        self.handler = RecordingHandler()
        self.workers = HandWorkers()
        self.broken: list[BaseException] = []
        self.shell = Shell(self.node, self.handler, clock, self.workers, self.broken.append)  # type: ignore[arg-type]

    def answer(self, kind: type, *effects: Effect) -> None:
        self.node.answers[kind] = lambda _message: list(effects)

    def want(self, *effects: Effect) -> None:
        """The core wants these done now."""
        self.answer(DrainFinished, *effects)
        self.shell.feed(DrainFinished(1))

    @property
    def done(self) -> list[object]:
        return self.handler.done


@pytest.fixture
def rig(clock: SimClock, loop: SimLoop) -> Iterator[Rig]:
    made = Rig(clock)
    yield made
    loop.run_until_complete(made.shell.close())


async def test_effects_are_carried_out_in_list_order(rig: Rig) -> None:
    effects = [StopFetching(), CommitPointAdvanced(OpTime(1, 5)), ProgressChanged(), Drain(2)]
    rig.want(*effects)
    assert rig.done == effects


async def test_effects_of_the_start_come_first(rig: Rig) -> None:
    rig.node.on_start = [StopFetching()]
    rig.answer(DrainFinished, ProgressChanged())
    rig.shell.start()
    rig.shell.feed(DrainFinished(1))
    assert rig.done == [StopFetching(), ProgressChanged()]


async def test_effects_after_a_persist_wait_until_it_is_durable(rig: Rig) -> None:
    rig.want(StopFetching(), BALLOT, ProgressChanged())
    await settle()
    assert rig.done == [StopFetching()]
    await rig.workers.finish()
    assert rig.done == [StopFetching(), ("saved", VOTE), ProgressChanged()]


async def test_effects_of_later_messages_wait_for_an_earlier_persist_too(rig: Rig) -> None:
    rig.answer(DrainFinished, BALLOT, StopFetching())
    rig.answer(DiskStalled, ProgressChanged())
    rig.shell.feed(DrainFinished(1))
    rig.shell.feed(DiskStalled(True))
    await settle()
    assert rig.done == []
    assert len(rig.node.heard) == 2, "the core itself hears every message at once"
    await rig.workers.finish()
    assert rig.done == [("saved", VOTE), StopFetching(), ProgressChanged()]


async def test_the_end_of_writes_waits_for_no_save(rig: Rig) -> None:
    """A save may take seconds; meanwhile a primary that has stepped down must not acknowledge writes."""
    stopped = [AcceptWrites(False, 3), StateChanged(MemberState.SECONDARY, 3, None)]
    rig.answer(DrainFinished, BALLOT, AcceptWrites(True, 3), ProgressChanged())
    rig.answer(DiskStalled, StopFetching(), *stopped)
    rig.shell.feed(DrainFinished(1))
    rig.shell.feed(DiskStalled(True))
    assert rig.done == stopped
    await rig.workers.finish()
    assert rig.done == [*stopped, ("saved", VOTE), ProgressChanged(), StopFetching()]  # nothing allows them again


async def test_what_allows_writes_waits_for_the_save_and_may_come_behind_an_end(rig: Rig) -> None:
    rig.want(BALLOT, AcceptWrites(False, 3), AcceptWrites(True, 3))
    assert rig.done == [AcceptWrites(False, 3)]
    await rig.workers.finish()
    assert rig.done == [AcceptWrites(False, 3), ("saved", VOTE), AcceptWrites(True, 3)]


async def test_one_persist_after_the_other(rig: Rig) -> None:
    second = LastVote(4, None)
    rig.want(BALLOT, Persist(second), StopFetching())
    await settle()
    assert len(rig.workers.jobs) == 1, "the second is not begun before the first is durable"
    await rig.workers.finish()
    assert rig.done == [("saved", VOTE)]
    await rig.workers.finish()
    assert rig.done == [("saved", VOTE), ("saved", second), StopFetching()]


async def test_a_message_fed_while_effects_are_carried_out_queues_behind_them(rig: Rig) -> None:
    rig.answer(DrainFinished, StopFetching(), ProgressChanged())
    rig.answer(DiskStalled, Drain(9))
    rig.handler.on_effect = lambda effect: rig.shell.feed(DiskStalled(True)) if effect == StopFetching() else None
    rig.shell.feed(DrainFinished(1))
    assert rig.done == [StopFetching(), ProgressChanged(), Drain(9)]


async def test_a_vote_is_sent_only_after_it_is_durable(rig: Rig) -> None:
    rig.node.answers[Request] = lambda request: [BALLOT, Reply(request.request_id, Done("granted"))]
    asked = asyncio.ensure_future(rig.shell.ask(FreezeRequest(Millis(0))))
    await settle()
    assert not asked.done()
    await rig.workers.finish()
    assert asked.result() == Done("granted")


async def test_an_answer_comes_back_as_a_message_with_its_round_trip(rig: Rig) -> None:
    rig.want(Send(5, PEER, StepUpRequest(True), Millis(100)))
    await asyncio.sleep(0.05)
    assert rig.node.heard[1:] == [Response(5, PEER, Done(), "", Millis(7))]


async def test_no_answer_comes_back_as_a_message_with_the_reason(rig: Rig) -> None:
    rig.handler.reply = HostUnreachableError("nobody there")
    rig.want(Send(5, PEER, StepUpRequest(True), Millis(100)))
    await asyncio.sleep(0.05)
    assert rig.node.heard[1:] == [Response(5, PEER, None, "nobody there", Millis(7))]


async def test_the_journal_delays_nothing_and_is_written_at_once(rig: Rig) -> None:
    lines = [RecordElectionEvent(ElectionRecord(2, event, "")) for event in ("dry run started", "won")]
    rig.want(lines[0], ProgressChanged(), lines[1])
    assert rig.done == [ProgressChanged()]
    await rig.workers.finish()
    assert rig.done[1:] == [("noted", ["dry run started", "won"])]
    assert rig.workers.jobs == []


async def test_ticks_come_when_the_core_is_due(rig: Rig) -> None:
    rig.node.due = Millis(40)

    def tick() -> list[Effect]:
        rig.node.due = Millis(rig.node.due + 40)
        return [ProgressChanged()]

    rig.node.on_tick = tick
    rig.shell.start()
    await asyncio.sleep(0.1)
    assert rig.node.ticks == [40, 80]
    assert rig.done == [ProgressChanged()] * 2


async def test_a_message_that_brings_the_deadline_forward_moves_the_timer(rig: Rig) -> None:
    rig.shell.start()
    rig.node.due = Millis(30)
    rig.node.on_tick = lambda: setattr(rig.node, "due", FAR) or []
    rig.shell.feed(DrainFinished(1))
    await asyncio.sleep(0.1)
    assert rig.node.ticks == [30]


async def test_a_deadline_that_is_past_does_not_spin(rig: Rig) -> None:
    rig.node.due = Millis(0)
    rig.shell.start()
    await asyncio.sleep(0.01)
    assert 5 <= len(rig.node.ticks) <= 11, "at most one a millisecond"


async def test_a_broken_invariant_stops_the_core_for_good(rig: Rig) -> None:
    def broken(_message: Message) -> list[Effect]:
        raise InvariantError("two primaries in one term")

    rig.node.answers[DrainFinished] = broken
    rig.node.due = Millis(20)
    rig.shell.start()
    rig.shell.feed(DrainFinished(1))
    rig.shell.feed(DiskStalled(True))
    await asyncio.sleep(0.1)
    assert [str(error) for error in rig.broken] == ["two primaries in one term"]
    assert rig.node.heard == [DrainFinished(1)], "nothing is put to it any more"
    assert rig.node.ticks == []
    with pytest.raises(ShutdownInProgressError):
        await rig.shell.ask(FreezeRequest(Millis(0)))


@pytest.mark.parametrize("where", ["receive", "tick", "effect"])
async def test_an_unexpected_error_stops_the_member_too(rig: Rig, where: str) -> None:
    """A core or an effect that broke off halfway cannot be trusted; silently losing the timer would be worse."""

    def fail(*_arguments: object) -> list[Effect]:
        raise KeyError("gone")

    if where == "receive":
        rig.node.answers[DrainFinished] = fail
    elif where == "effect":
        rig.answer(DrainFinished, StopFetching(), ProgressChanged())
        rig.handler.on_effect = fail  # type: ignore[assignment]
    else:
        rig.node.on_tick = fail
        rig.node.due = Millis(5)
    rig.shell.start()
    rig.shell.feed(DrainFinished(1))
    await asyncio.sleep(0.05)
    assert [type(error) for error in rig.broken] == [KeyError]
    assert ProgressChanged() not in rig.done


async def test_member_db_that_cannot_be_written_stops_the_member_before_the_vote_is_sent(rig: Rig) -> None:
    rig.handler.save_error = StorageError("member.db: disk I/O error")
    rig.want(BALLOT, StopFetching())
    await rig.workers.finish()
    assert rig.broken == [rig.handler.save_error]
    assert rig.done == []


async def test_a_full_disk_delays_the_vote_until_there_is_disk_space(rig: Rig) -> None:
    rig.handler.save_error = OutOfDiskSpaceError("member.db: no space left on the disk")
    rig.want(BALLOT, StopFetching())
    for _ in range(3):
        await settle()
        await rig.workers.finish()
        await asyncio.sleep(1)
    assert (rig.broken, rig.done) == ([], [])
    rig.handler.save_error = None
    await rig.workers.finish()
    assert rig.done == [("saved", VOTE), StopFetching()]


async def test_a_member_whose_disk_is_full_can_be_closed(rig: Rig) -> None:
    rig.handler.save_error = OutOfDiskSpaceError("member.db: no space left on the disk")
    rig.want(BALLOT, StopFetching())
    await rig.workers.finish()
    await asyncio.wait_for(rig.shell.close(), 5)
    assert (rig.broken, rig.done) == ([], [])


async def test_close_ends_waiting_requests_ticks_and_effects(rig: Rig) -> None:
    rig.node.due = Millis(20)
    rig.shell.start()
    asked = asyncio.ensure_future(rig.shell.ask(FreezeRequest(Millis(0))))
    await settle()
    await rig.shell.close()
    with pytest.raises(ShutdownInProgressError):
        await asked
    with pytest.raises(ShutdownInProgressError):
        await rig.shell.ask(FreezeRequest(Millis(0)))
    await asyncio.sleep(0.1)
    assert rig.node.ticks == []


async def test_close_waits_for_the_member_file_to_be_written(rig: Rig) -> None:
    """Whoever closes member.db next must not meet a thread that still writes it."""
    rig.want(BALLOT, ProgressChanged())
    await settle()
    closing = asyncio.ensure_future(rig.shell.close())
    await settle()
    assert not closing.done()
    await rig.workers.finish()
    await closing
    assert rig.done == [("saved", VOTE)], "written, but nothing that stood behind it is carried out"


async def test_close_does_not_wait_for_an_answer_of_another_member(rig: Rig) -> None:
    rig.want(Send(5, PEER, StepUpRequest(True), Millis(100)))
    await settle()
    await rig.shell.close()
    await asyncio.sleep(0.05)
    assert rig.node.heard == [DrainFinished(1)]


async def test_a_caller_that_gives_up_is_removed(rig: Rig) -> None:
    asked = asyncio.ensure_future(rig.shell.ask(FreezeRequest(Millis(0))))
    await settle()
    asked.cancel()
    await settle()
    request = rig.node.heard[0]
    assert isinstance(request, Request)
    rig.want(Reply(request.request_id, Done()), ProgressChanged())
    assert rig.done == [ProgressChanged()], "the late answer goes nowhere and hurts nobody"


async def test_waiting_callers_get_an_error_when_the_member_breaks(rig: Rig) -> None:
    rig.answer(Request, BALLOT, Reply(1, Done()))
    rig.handler.save_error = StorageError("the disk is gone")
    waiting = asyncio.ensure_future(rig.shell.ask(FreezeRequest(Millis(1))))
    await rig.workers.finish()
    assert len(rig.broken) == 1
    with pytest.raises(ShutdownInProgressError):
        await asyncio.wait_for(waiting, 5)

"""Runs the core: feeds it messages and time, and carries its effects out in list order.

Effects are carried out at once, on the loop, until a `Persist` comes: everything behind it waits until the record is
durable in member.db; only the end of writes waits for nothing. Finished work comes back as one more message; a message
that arrives while effects are being carried out adds its own effects behind them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Final, Protocol

from replset.core.effects import (
    AcceptWrites,
    CommitPointAdvanced,
    Effect,
    ElectionRecord,
    LastVote,
    Persist,
    PersistedRecord,
    ProgressChanged,
    RecordElectionEvent,
    RelayProgress,
    Reply,
    Send,
    ends_writes,
)
from replset.core.member_state import MemberState
from replset.core.messages import (
    FetchProgress,
    LocalPosition,
    Message,
    ReplyBody,
    Request,
    RequestBody,
    Response,
    SourceBatch,
    StepDownRequest,
    VoteSaved,
)
from replset.core.node import Node
from replset.errors import ConnectRefusedError, ReplError, ShutdownInProgressError, UnprovenMemberError
from replset.ids import HostPort, Millis
from replset.member.process.machine import BackgroundTasks
from replset.replication.disk_space import retry_while_disk_full
from replset.replication.ports import Clock, Workers

log = logging.getLogger("replset.shell")

POSITIONS = frozenset({FetchProgress, LocalPosition, SourceBatch})
MOVES_NO_TIMER = frozenset({CommitPointAdvanced, ProgressChanged, RelayProgress})
"""Effects of a member's new position that leave the core's next deadline where it was, or move it on."""


class EffectHandler(Protocol):
    """Does what the shell does not do itself. `CoreEffects` implements it."""

    def handle_effect(self, effect: Effect) -> None:
        """Do any effect but Persist, RecordElectionEvent, Send and Reply; on the loop, without waiting."""
        ...

    async def send_request(self, send: Send) -> ReplyBody:
        """Send to another member and return its answer; raises ReplError when there is none."""
        ...

    def save_record(self, record: PersistedRecord) -> None:
        """Write to member.db and sync; in a worker thread."""
        ...

    def save_election_events(self, records: list[ElectionRecord]) -> None:
        """Write lines of the election journal; in a worker thread."""
        ...


class Shell:
    """Runs the core: gives it time and messages, and handles its effects in order."""

    def __init__(
        self,
        node: Node,
        handler: EffectHandler,
        clock: Clock,
        workers: Workers,
        on_broken: Callable[[BaseException], None],
    ) -> None:
        """`on_broken` stops the member: the core or an effect broke off, or member.db could not be written."""
        self.node = node
        self._handler = handler
        self._clock = clock
        self._workers = workers
        self._on_broken = on_broken
        self._effects: deque[Effect] = deque()
        self._busy = False  # carrying effects out right now
        self._persisting = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._due = Millis(0)
        self._requests = BackgroundTasks(self._break)
        self._file_tasks = BackgroundTasks(self._break)  # these write member.db and are never cancelled
        self._request_ids = count(1)
        self._answers: dict[int, asyncio.Future[ReplyBody]] = {}
        self._journal: list[ElectionRecord] = []
        self._member_file = asyncio.Lock()

    def start(self) -> None:
        self._take(self.node.start(self._clock.now()))

    def feed(self, message: Message) -> None:
        """Give the core one message and carry out what it answers."""
        if self._closed:
            return
        try:
            effects = self.node.receive(message, self._clock.now())
        except Exception as broken:  # InvariantError, or a core that broke off halfway: neither may go on
            self._break(broken)
            return
        if type(message) not in POSITIONS or not MOVES_NO_TIMER.issuperset(map(type, effects)):
            self._take(effects)
        elif effects:  # none of them ends writes, and no deadline comes earlier
            self._effects.extend(effects)
            self._pump()

    async def ask(self, body: RequestBody) -> ReplyBody:
        """Put a request to the core and wait for its answer."""
        if self._closed:
            raise ShutdownInProgressError("the member is shutting down")
        request_id = next(self._request_ids)
        answer: asyncio.Future[ReplyBody] = asyncio.get_running_loop().create_future()
        self._answers[request_id] = answer
        try:
            self.feed(Request(request_id, body))
            return await answer
        finally:
            self._answers.pop(request_id, None)

    async def close(self) -> None:
        """Stop: no more ticks, no more effects; whoever still waits for an answer gets 91.

        On return no thread writes member.db any more.
        """
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._requests.cancel()
        self._give_up_answers("the member is shutting down")
        await self._requests.wait()
        await self._file_tasks.wait()

    # --- effects ------------------------------------------------------------------------------------------------

    def _take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if ends_writes(effect):
                self._end_writes(effect)
            else:
                self._effects.append(effect)
        self._pump()
        self._schedule()

    def _end_writes(self, effect: Effect) -> None:
        """Carry it out before all that waits for a save, and take back what would allow writes again.

        A save may take seconds on a slow disk. Waiting for it, a primary that has stepped down would go on taking and
        acknowledging writes that the next primary rolls back.
        """
        if isinstance(effect, AcceptWrites):
            self._effects = deque(waiting for waiting in self._effects if not isinstance(waiting, AcceptWrites))
        try:
            self._handler.handle_effect(effect)
        except Exception as broken:
            self._break(broken)

    def _pump(self) -> None:
        if self._busy or self._persisting:
            return
        self._busy = True
        try:
            while self._effects and not self._persisting and not self._closed:
                self._carry_out(self._effects.popleft())
        except Exception as broken:
            self._break(broken)
        finally:
            self._busy = False

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Persist(record):
                self._persisting = True
                self._file_tasks.start(self._persist(record))
            case RecordElectionEvent(record=line):
                self._journal.append(line)
                if len(self._journal) == 1:
                    self._file_tasks.start(self._write_journal())
            case Send():
                self._requests.start(self._send(effect))
            case Reply(request_id, body):
                answer = self._answers.get(request_id)
                if answer is not None and not answer.done():
                    answer.set_result(body)
            case _:
                self._handler.handle_effect(effect)

    async def _persist(self, record: PersistedRecord) -> None:
        try:
            async with self._member_file:
                # While the disk is full the effects behind this one wait, messages to other members included: a vote
                # or a configuration that is not on disk must not be known to anybody else.
                await retry_while_disk_full(lambda: self._save(record), "saving in member.db")
        except ShutdownInProgressError:
            return
        except (ReplError, OSError) as error:
            self._break(error)
            return
        self._persisting = False
        if isinstance(record, LastVote):
            self.feed(VoteSaved(record.term))
        self._pump()
        self._schedule()

    async def _save(self, record: PersistedRecord) -> None:
        if self._closed:
            raise ShutdownInProgressError("the member is shutting down")
        await self._workers.run(lambda: self._handler.save_record(record))

    async def _write_journal(self) -> None:
        try:
            async with self._member_file:
                lines, self._journal = self._journal, []
                await self._workers.run(lambda: self._handler.save_election_events(lines))
        except (ReplError, OSError) as error:
            log.warning("the election journal could not be written: %s", error)

    async def _send(self, send: Send) -> None:
        began = self._clock.now()
        body: ReplyBody | None = None
        error, refused, unproven = "", False, False
        try:
            body = await self._handler.send_request(send)
        except ReplError as failure:
            error, refused = failure.message, isinstance(failure, ConnectRefusedError)
            unproven = isinstance(failure, UnprovenMemberError)
        took = Millis(self._clock.now() - began)
        self.feed(Response(send.request_id, send.to, body, error, took, refused, unproven))

    def _break(self, error: BaseException) -> None:
        self._closed = True
        self._on_broken(error)
        self._give_up_answers("the member must stop")

    def _give_up_answers(self, why: str) -> None:
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ShutdownInProgressError(why))

    # --- time ---------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Sleep until the core's next deadline; a tick that comes early does no harm, so a later one moves nothing."""
        due = self.node.next_tick_at()
        if self._closed or (self._timer is not None and self._due <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = asyncio.get_running_loop().call_later(max(1, due - self._clock.now()) / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._closed:
            return
        try:
            effects = self.node.tick(self._clock.now())
        except Exception as broken:
            self._break(broken)
            return
        self._take(effects)


HAND_OVER_TRIES: Final = 10
"""Each waits a second for an electable member to catch up."""


async def hand_over_primary(node: Node, shell: Shell, host: HostPort) -> None:
    """Step down if this member is primary: for ten seconds only to a member that caught up, then in any case."""
    for _ in range(HAND_OVER_TRIES):
        if node.state is not MemberState.PRIMARY:
            break
        config = node.config
        others = () if config is None else (m for m in config.members if m.is_electable and m.host != host)
        if not any((peer := node.peer_at(m.host)) is not None and peer.is_up for m in others):
            break
        await shell.ask(StepDownRequest(60_000, 1_000, force=False))
    if node.state is MemberState.PRIMARY:
        await shell.ask(StepDownRequest(60_000, 0, force=True))
    await asyncio.sleep(0.05)  # the request to the next primary is on its way

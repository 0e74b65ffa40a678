"""Tails the sync source's oplog: the next page is fetched while this one is applied.

Each source has one session: a task that asks for page after page (long polls, raw bytes) and a task that applies them
in order, with a small buffer between. A page is buffered only when its entries give the hash chain that it ends with,
and applied only when it continues exactly behind the newest entry here, by term, timestamp and chain. The core decides
what follows when a source does not fit.

Each request carries this member's position. If somebody at the source waits for it, and a page was the source's last
one, the next request waits until that page is on disk here: one message from each secondary is then enough for a
majority write. If nobody waits, the next page is fetched while this one is applied and synced.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from replset.bson import RawDocument
from replset.core.messages import SourceBatch, SourceFailed, SourceProblem, is_plausible_term
from replset.core.node import Node
from replset.errors import (
    HostUnreachableError,
    OutOfDiskSpaceError,
    RemoteProtocolError,
    ReplError,
)
from replset.ids import OPTIME_NULL, HostPort, Millis, OpTime
from replset.oplog_entry import OplogEntry
from replset.oplog_row import CHAIN_START, chain_after
from replset.replication.applier import (
    EvaluatedUpdate,
    LargeUpdateError,
    UnfinishedBuildError,
    apply_batch,
    evaluate_large,
    is_malformed,
)
from replset.replication.context import MemberContext
from replset.replication.disk_space import retry_while_disk_full
from replset.replication.index_builder import write_slice
from replset.replication.ports import MemberClient
from replset.replication.protocol import Awaited, FetchReply, FetchRequest
from replset.storage.sqlite import is_about_the_disk

log = logging.getLogger("replset.fetcher")

APPLY_SLICE_MS = 10
"""How long one group of applied entries may hold the event loop."""
SETTLE_MS = 10
"""How long the next request waits for the sync of the last page, whose position it is to carry. A sync that takes
longer is reported on its own."""


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """max_bytes: a page. buffered_pages: fetched ahead of what is applied. network_ms: a reply's time on the way."""

    max_bytes: int = 4 << 20
    buffered_pages: int = 2
    network_ms: int = 5_000


@dataclass(eq=False, slots=True)
class _Session:
    """Tailing one source. `buffer` holds pages in order, the failure that ended fetching last."""

    source: HostPort
    buffer: deque[FetchReply | SourceFailed] = field(default_factory=deque)
    page_arrived: asyncio.Event = field(default_factory=asyncio.Event)
    page_taken: asyncio.Event = field(default_factory=asyncio.Event)
    draining: bool = False
    stopped: bool = False
    last_fetched: OpTime = OPTIME_NULL
    last_chain: int = CHAIN_START  # at last_fetched
    rollback_id: int = -1
    known_commit_point: OpTime = OPTIME_NULL
    known_term: int = 0
    settled: asyncio.Future[None] | None = None  # while the next request waits for the sync of the last page
    awaited: Awaited = ""  # see FetchReply
    fetching: asyncio.Task[None] | None = None
    applying: asyncio.Task[None] | None = None


class Fetcher:
    """Fetches and applies the oplog of one source at a time."""

    def __init__(
        self,
        context: MemberContext,
        *,
        peer: MemberClient,
        node: Node,
        on_applied: Callable[[], None],
        last_durable: Callable[[], OpTime],
        document: Callable[[FetchRequest], RawDocument],
        awaits_commit_point: Callable[[], bool] = lambda: False,
        is_paused: Callable[[], bool] = lambda: False,
        options: FetchOptions | None = None,
    ) -> None:
        """on_applied: called after each committed group, when the store's newest entry moved on.

        document: of a fetch, with this member's position if that counts. awaits_commit_point: whether a reader here
        waits for the commit point. is_paused: whether a fail point holds back what is fetched.
        """
        self._context = context
        self._peer = peer
        self._node = node
        self._on_applied = on_applied
        self._last_durable = last_durable
        self._document = document
        self._awaits_commit_point = awaits_commit_point
        self._is_paused = is_paused
        self._options = options or FetchOptions()
        self._session: _Session | None = None

    @property
    def source(self) -> HostPort | None:
        """The source that it tails now."""
        return None if self._session is None else self._session.source

    @property
    def last_fetched(self) -> OpTime:
        """The newest entry that is here, applied or not."""
        newest = self._context.store.last_applied
        return newest if self._session is None else max(newest, self._session.last_fetched)

    @property
    def is_settling(self) -> bool:
        """Whether a request that carries the position is about to go. Then no report of its own is needed."""
        return self._session is not None and self._session.settled is not None

    @property
    def is_awaited(self) -> bool:
        """Whether somebody at the source waits for this member's position."""
        return self._session is None or bool(self._session.awaited)

    @property
    def awaited(self) -> Awaited:
        """Which positions somebody at the source waits for, as its last page said."""
        return "" if self._session is None else self._session.awaited

    def on_moved(self) -> None:
        """Handle a move of last_applied or last_durable: the next request may go."""
        session = self._session
        if session is None or session.settled is None:
            return
        reached = self._context.store.last_applied if session.awaited == "applied" else self._last_durable()
        if reached >= session.last_fetched:
            _finish(session.settled)

    def start(self, source: HostPort) -> None:
        """Tail `source` from my newest entry; a session with another one ends at once."""
        self.stop()
        session = self._session = _Session(source)
        session.last_fetched, session.last_chain = self._context.store.last_applied, self._context.store.chain
        loop = asyncio.get_running_loop()
        session.fetching = loop.create_task(self._fetch_pages(session))
        session.applying = loop.create_task(self._apply_pages(session))
        for task in (session.fetching, session.applying):
            task.add_done_callback(self._on_ended)

    def stop(self) -> None:
        """End the session and drop what is fetched; nothing is applied after this returns."""
        session, self._session = self._session, None
        if session is None:
            return
        session.stopped = True
        for task in (session.fetching, session.applying):
            if task is not None:
                task.cancel()

    def drain(self) -> asyncio.Future[None]:
        """Stop fetching at once; the future is done when everything that was fetched is applied.

        This is about the present session. A session that starts before the drain has ended is another one.
        """
        drained: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        session = self._session
        if session is None or session.applying is None:
            drained.set_result(None)
            return drained
        session.draining = True
        if session.fetching is not None:
            session.fetching.cancel()
        session.page_arrived.set()

        def applied(_: asyncio.Task[None]) -> None:
            if self._session is session:
                self._session = None
            if not drained.done():
                drained.set_result(None)

        session.applying.add_done_callback(applied)
        return drained

    async def run(self, source: HostPort) -> None:
        """Tail `source` until it fails or the session is stopped."""
        self.start(source)
        session = self._session
        if session is not None and session.applying is not None:
            await asyncio.wait([session.applying])

    def _on_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.stop()
            self._context.on_broken(error)

    # --- fetching -----------------------------------------------------------------------------------------------

    async def _fetch_pages(self, session: _Session) -> None:
        """Ask for page after page; a failure ends it and goes into the buffer behind them."""
        wait_ms = 0  # the first answer comes at once: it says whether the source fits
        while True:
            while len(session.buffer) >= self._options.buffered_pages:
                session.page_taken.clear()
                await session.page_taken.wait()
            page = await self._fetch_page(session, wait_ms)
            while self._is_paused():  # noqa: ASYNC110 - in tests only
                await asyncio.sleep(0.01)
            session.buffer.append(page)
            session.page_arrived.set()
            if isinstance(page, SourceFailed):
                return
            if page.entries:
                session.last_fetched, session.last_chain = page.last, page.end_chain
            session.rollback_id = page.rollback_id
            session.known_commit_point = page.commit_point
            session.known_term = page.term
            wait_ms = self._node.election_timeout_ms() // 2
            session.awaited = page.awaited
            is_last = page.entries and not page.has_more
            if page.awaited and is_last and len(session.buffer) < self._options.buffered_pages:
                await self._settle(session)

    async def _settle(self, session: _Session) -> None:
        """Wait until what is fetched is on disk, or applied where that is awaited, for at most SETTLE_MS."""
        loop = asyncio.get_running_loop()
        session.settled = loop.create_future()
        timer = loop.call_later(SETTLE_MS / 1000, _finish, session.settled)
        try:
            await session.settled
        finally:
            timer.cancel()
            session.settled = None

    async def _fetch_page(self, session: _Session, wait_ms: int) -> FetchReply | SourceFailed:
        request = FetchRequest(
            session.last_fetched,
            session.last_chain,
            self._options.max_bytes,
            wait_ms,
            max(session.known_term, self._node.term),
            max(session.known_commit_point, self._node.commit_point),
            session.rollback_id,
            self._awaits_commit_point(),
            set_id=self._node.set_id,
        )
        source = session.source
        try:
            reply = await self._peer.call(
                source, self._document(request), timeout_ms=Millis(wait_ms + self._options.network_ms)
            )
            page = FetchReply.parse(reply)
            self._check_term(page)
        except HostUnreachableError as error:
            return _failure(source, SourceProblem.UNREACHABLE, error.message)
        except ReplError as error:
            return _failure(source, SourceProblem.NOT_READABLE, error.message)
        if page.matched and chain_after(page.entries, page.prev_chain) != page.end_chain:
            # Memory or the network has changed bytes. If they were applied, this member would acknowledge entries that
            # nobody wrote and pass them on, and the next page would make this member look like the damaged one.
            return _failure(source, SourceProblem.NOT_READABLE, "its page is damaged: the hash chain does not fit")
        if page.matched:
            return page
        return SourceFailed(
            source,
            SourceProblem.DIVERGED,
            f"{source} does not hold {session.last_fetched}; it goes from {page.oldest} to {page.newest}",
            page.term,
            page.newest,
            page.oldest,
        )

    def _check_term(self, page: FetchReply) -> None:
        """Refuse a page whose terms cannot be true.

        Once applied, such an entry would set this member's own term, and no real primary could reach it.
        """
        newest = page.last.term
        if newest > page.term or not is_plausible_term(self._node.term, page.term):
            raise RemoteProtocolError(
                f"an entry of term {newest} from a source in term {page.term}, mine {self._node.term}"
            )

    # --- applying -----------------------------------------------------------------------------------------------

    async def _apply_pages(self, session: _Session) -> None:
        while True:
            while session.buffer:
                page = session.buffer.popleft()
                session.page_taken.set()
                failure = page if isinstance(page, SourceFailed) else await self._apply_page(session, page)
                if failure is not None:
                    self._fail(session, failure)
                    return
                if session.stopped:
                    return
            if session.draining:
                return
            session.page_arrived.clear()
            await session.page_arrived.wait()

    def _fail(self, session: _Session, failure: SourceFailed) -> None:
        """End the session, then report: what the core answers may start the next one."""
        session.stopped = True
        if session.fetching is not None:
            session.fetching.cancel()
        if self._session is session:
            self._session = None
        if not session.draining:
            self._context.on_report(failure)

    async def _apply_page(self, session: _Session, page: FetchReply) -> SourceFailed | None:
        """Apply one page, slice by slice, and report it to the core."""
        failure = self._mismatch(session.source, page)
        if failure is not None:
            return failure
        done = 0
        try:
            while done < len(page.entries):
                old_enough = await self._wait_for_delay(session, page, done)
                done += await self._apply_slice(session, page.entries, done, old_enough)
                if session.stopped:
                    return None
                if done < len(page.entries):
                    await asyncio.sleep(0)
            if self._context.store.chain != page.end_chain:
                # An entry of the page is not here, since it was left out here or goes back in time. The commit point
                # of this page says nothing of such an oplog.
                at = (
                    f"{session.source}: its page ends with the chain {page.end_chain}, mine {self._context.store.chain}"
                )
                return SourceFailed(
                    session.source, SourceProblem.CHAIN_DIFFERS, at, page.term, page.newest, page.oldest
                )
        except (RemoteProtocolError, OutOfDiskSpaceError) as error:
            return _failure(session.source, SourceProblem.NOT_READABLE, error.message)
        except Exception as error:
            if is_about_the_disk(error):
                raise
            log.error("an entry of %s is not applied", session.source, exc_info=error)
            return _failure(session.source, SourceProblem.NOT_APPLIED, _text(error))
        if not session.draining:
            self._context.on_report(
                SourceBatch(session.source, page.term, page.commit_point, page.is_primary, page.commit_term)
            )
        return None

    def _mismatch(self, source: HostPort, page: FetchReply) -> SourceFailed | None:
        """Return why this page does not continue the log here, None when it does.

        Without this check a member would apply entries of another history behind its own, and acknowledge a log that
        no other member has.
        """
        store = self._context.store
        newest, chain = store.last_applied, store.chain
        if page.prev != newest:
            problem, detail = SourceProblem.NOT_READABLE, f"its batch continues {page.prev}, my log ends at {newest}"
        elif page.prev_chain != chain:
            problem, detail = SourceProblem.CHAIN_DIFFERS, f"at {newest}: {page.prev_chain}, mine {chain}"
        else:
            return None
        return SourceFailed(source, problem, f"{source}: {detail}", page.term, page.newest, page.oldest)

    async def _apply_slice(self, session: _Session, entries: Sequence[bytes], start: int, stop: int) -> int:
        """Commit one group of entries[start:stop] and return how many it has.

        A full disk is waited for, but not by a drain, which has to end: what this member never applied it never
        acknowledged.
        """
        evaluated: list[EvaluatedUpdate] = []
        clock = self._context.clock

        def apply() -> int:
            until = clock.now() + APPLY_SLICE_MS
            done = apply_batch(
                self._context.store,
                entries,
                start,
                stop,
                lambda: clock.now() >= until,
                evaluated,
                builds_indexes=self._node.builds_indexes(),
            )
            self._on_applied()
            return done

        while True:
            try:
                return await retry_while_disk_full(
                    lambda: self._context.write_queue.write(apply),
                    "applying entries",
                    may_wait=lambda: not session.draining,
                )
            except LargeUpdateError as large:
                evaluated += await self._evaluate(large)
            except UnfinishedBuildError as unfinished:
                await self._finish_build(unfinished)

    async def _finish_build(self, unfinished: UnfinishedBuildError) -> None:
        """Fill the indexes that the next entry makes ready."""
        more = True
        while more:
            more = await write_slice(self._context, unfinished.coll, unfinished.build)
            await asyncio.sleep(0)

    async def _evaluate(self, large: LargeUpdateError) -> list[EvaluatedUpdate]:
        """Compute in a thread what the entry makes of large documents. RemoteProtocolError when it is malformed."""
        store = self._context.store
        try:
            return await self._context.workers.run(lambda: evaluate_large(store, large))
        except ReplError as error:
            if is_malformed(error):
                raise RemoteProtocolError(f"an update cannot be applied: {error.message}") from error
            raise

    async def _wait_for_delay(self, session: _Session, page: FetchReply, start: int) -> int:
        """Return where to stop applying: the end of the page, or on a delayed member the first entry too young."""
        while True:
            delay_ms = self._node.secondary_delay_ms()
            if delay_ms <= 0 or session.draining:
                return len(page.entries)
            stop = start
            while stop < len(page.entries) and self._is_delayed(OplogEntry(page.entries[stop]), delay_ms):
                stop += 1
            if stop > start:
                return stop
            due_ms = OplogEntry(page.entries[start]).wall_ms + delay_ms - self._context.clock.wall_ms()
            await asyncio.sleep(due_ms / 1000 if 0 < due_ms < 1_000 else 1)

    def _is_delayed(self, entry: OplogEntry, delay_ms: int) -> bool:
        """Whether an entry has been held back for long enough.

        That is measured since this member heard of it, within the few seconds that a heartbeat takes. Its wall time
        says it more exactly, or where this member was not running then; but one written by a clock that was ahead
        would hold back everything behind it until the time gets there.
        """
        at_least, at_most = self._node.measured_age_ms(entry.optime, self._context.clock.now())
        is_old = entry.wall_ms <= self._context.clock.wall_ms() - delay_ms
        return at_least >= delay_ms or (is_old and (at_most is None or at_most >= delay_ms))


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _text(error: Exception) -> str:
    return error.message if isinstance(error, ReplError) else f"{type(error).__name__}: {error}"


def _failure(source: HostPort, problem: SourceProblem, detail: str) -> SourceFailed:
    return SourceFailed(source, problem, f"{source}: {detail}", 0, OPTIME_NULL, OPTIME_NULL)

"""Serves the oplog to other members: replSetOplogFetch and replSetOplogProbe.

The server keeps no state for a member that tails it but its open fetch, which names the entry behind which it goes on.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from replset.bson import ObjectId, RawDocument
from replset.core.member_state import MemberState
from replset.core.messages import ProgressRequest
from replset.errors import BadValueError, ErrorCode, ReplError
from replset.ids import OPTIME_NULL, MemberId, OpTime
from replset.member.peers.flows import Flows
from replset.member.peers.majority_first import LATER_MS, MajorityFirst
from replset.member.peers.message_documents import parse_progress
from replset.member.peers.snapshot_server import check_serves_oplog
from replset.member.positions import Positions
from replset.operations.history import History
from replset.operations.kernel import Kernel
from replset.operations.lag import behind_ms
from replset.operations.replies import whole
from replset.operations.waiters import Completion
from replset.oplog_row import DamagedEntryError, next_chain
from replset.replication.protocol import FetchReply, FetchRequest, ProbeReply, ProbeRequest

log = logging.getLogger("replset.oplog_fetch")

PAGE_ENTRIES = 5_000
MAX_PAGE_BYTES = 16 << 20
MAX_AWAIT_MS = 30_000
MAX_PROBES = 1_000
COMMIT_POINT_DELAY_MS = 10
"""How long a new commit point waits for entries that it can go with, if nobody waits for it at the other end."""
FAR_BEHIND_MS = 10_000
LONGEST_WAIT_S = 2.0
"""How long one answer may wait for the byte rate: the other member waits for it for 5 s."""
BEHIND_MS = 1_000
"""How long a secondary waits for the entry that another one wants to go on from: it may be a moment behind it."""


class OplogFetches:
    """The fetches of other members: each is answered in the turn in which there is something for it.

    A commit point alone is answered after COMMIT_POINT_DELAY_MS: under load it goes with the entries that follow, and
    costs no message.
    """

    def __init__(self, member: Kernel, on_progress: Callable[[ProgressRequest], None], flows: Flows) -> None:
        """on_progress: called with the position that came with a fetch."""
        self._member = member
        self._on_progress = on_progress
        self._flows = flows
        self._majority = MajorityFirst(member)
        self._waiting: dict[_Fetch, None] = {}
        self._is_scheduled = False
        self._slow: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf

    def begin(self, body: RawDocument, waiter: Completion) -> None:
        """Answer replSetOplogFetch: `waiter` gets the whole reply, its bytes, at once or later. ReplError."""
        request = FetchRequest.parse(body)
        self.serve(request, None if request.progress is None else parse_progress(request.progress), waiter)

    def serve(self, request: FetchRequest, progress: ProgressRequest | None, waiter: Completion) -> None:
        """Do as `begin`. progress: the position that came with the request; it is counted first."""
        member, store = self._member, self._member.store
        refuse_other_set(member, request.set_id)
        now = asyncio.get_running_loop().time()
        if progress is not None:
            before = member.node.commit_point
            self._on_progress(progress)
            self._majority.on_position(progress, now, moved_commit_point=member.node.commit_point > before)
        if request.awaits_commit_point and member.node.state is not MemberState.PRIMARY:
            member.on_awaited("commit point")
        if request.after == store.last_applied and request.chain != store.chain:
            member.on_chain_mismatch(request.after)
        look = Look(member, now)
        deadline = now + min(request.max_await_ms, MAX_AWAIT_MS) / 1000
        fetch = _Fetch(request, waiter, now, deadline, None if progress is None else progress.sender_id)
        self._waiting[fetch] = None
        self._look_at(fetch, look)

    def on_change(self) -> None:
        """Something has changed: an entry, the commit point or a state. One look at the end of this turn is for all."""
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self.look)

    def look(self) -> None:
        """Look at once. A page for a few writes goes before its sync begins, whose thread takes the interpreter; with
        more writes in a group the pages would be more and smaller.
        """
        self._is_scheduled = False
        if not self._waiting:
            return
        look = Look(self._member, asyncio.get_running_loop().time())
        for fetch in list(self._waiting):
            if fetch.due <= look.now or fetch.seen != look.seen_by(fetch):
                self._look_at(fetch, look)
            elif fetch.due < self._due:
                self._look_again_at(fetch.due)

    def _look_at(self, fetch: _Fetch, look: Look) -> None:
        """Answer the fetch if there is something for it, or its time is over."""
        if fetch.waiter.done():
            self._waiting.pop(fetch, None)
            return
        request, pages = fetch.request, look.pages
        try:
            fetch.due = self._due_of(fetch, look)
            if fetch.due:
                fetch.seen = look.seen_by(fetch)
                if fetch.due < self._due:
                    self._look_again_at(fetch.due)
                return
            self._waiting.pop(fetch, None)
            place = request.after, request.chain, request.max_bytes
            if place not in pages and (page := self._page_of_now(request, look)) is not None:
                pages[place] = self._whole(page)
        except Exception as error:
            self._waiting.pop(fetch, None)
            fetch.waiter.set_exception(error)
            return
        if place in pages:
            self._flows.of(fetch.member).note(len(pages[place]))
            fetch.waiter.set_result(pages[place])
            return
        task = asyncio.get_running_loop().create_task(self._answer_slowly(fetch))
        self._slow.add(task)
        task.add_done_callback(self._slow.discard)

    def _due_of(self, fetch: _Fetch, look: Look) -> float:
        """When the fetch has to be answered at last, on the loop's clock; 0: now. ReplError: it is refused.

        That changes with what `look.seen_by` gives.
        """
        request, now = fetch.request, look.now
        check_serves_oplog(self._member.node)
        if _may_come(look.state, request) and now < (until := fetch.began + BEHIND_MS / 1000):
            return until
        if has_news(look.state, request):
            if not (has_entries(look.state, request) and self._majority.comes_later(fetch.member, now)):
                return 0
            fetch.found = fetch.found or now
            until = (fetch.began if look.is_committed else fetch.found) + LATER_MS / 1000
            return until if until > now and not request.awaits_commit_point else 0
        until = fetch.deadline
        if look.commit_point > request.known_commit_point:
            delay_ms = 0 if request.awaits_commit_point else COMMIT_POINT_DELAY_MS
            until = min(until, fetch.began + delay_ms / 1000)
        return until if until > now else 0

    def _look_again_at(self, due: float) -> None:
        """Let the timer look at `due`, and no later. One timer serves all: an early look does no harm."""
        if self._timer is not None:
            self._timer.cancel()
        self._due, self._timer = due, asyncio.get_running_loop().call_at(due, self._on_time)

    def _on_time(self) -> None:
        self._due, self._timer = math.inf, None
        self.look()

    def _page_of_now(self, request: FetchRequest, look: Look) -> FetchReply | None:
        """The answer of this moment; None: it needs a wait, or a look into the archive."""
        member = self._member
        if _rate_for(member, request):
            return None
        page = fetch_now(member, request, look)
        return page if page.matched or member[History].older is None else None

    def _whole(self, page: FetchReply) -> bytes:
        """The reply with what every reply ends with."""
        ts = page.newest.ts
        return page.reply(ts) if page.matched and ts else whole(page.document(), self._member)

    async def _answer_slowly(self, fetch: _Fetch) -> None:
        try:
            page = await self._page(fetch)
        except Exception as error:
            if not fetch.waiter.done():
                fetch.waiter.set_exception(error)
            return
        if not fetch.waiter.done():
            fetch.waiter.set_result(self._whole(page))

    async def _page(self, fetch: _Fetch) -> FetchReply:
        """The answer of this moment. One that goes far back waits for settings.followerBytesPerSecond: a member that
        comes back after a day must not take the disk and the network from clients and from the members that keep up.
        """
        member, request, flow = self._member, fetch.request, self._flows.of(fetch.member)
        bytes_per_s = _rate_for(member, request)
        if not bytes_per_s:
            page = await _reaching_back(member, request, fetch_now(member, request))
            flow.note(sum(map(len, page.entries)))
            return page
        flow.rate.begin()
        may_send = await flow.wait_for(flow.rate, LONGEST_WAIT_S)
        check_serves_oplog(member.node)
        request = replace(request, max_bytes=min(request.max_bytes, bytes_per_s))
        page = await _reaching_back(member, request, fetch_now(member, request))
        if not may_send:  # after an entry that was larger than the rate
            return replace(page, entries=(), end_chain=page.prev_chain)
        size = sum(map(len, page.entries))
        flow.rate.spend(size, bytes_per_s)
        flow.note(size, bytes_per_s)
        return page


State: TypeAlias = tuple[OpTime, int, int, MemberState]
"""Of this member: its newest entry, its rollback id, its term and its state. A fetch waits for a change of it."""


class Look:
    """What this member is at the time of one look at the fetches.

    now: on the loop's clock. commit_point: of what is here. is_committed: whether all of that is. pages: replies that
    were made in this look, by where they begin: members that keep up get the same one.
    """

    __slots__ = ("commit_point", "is_committed", "now", "pages", "state")

    def __init__(self, member: Kernel, now: float = 0.0) -> None:
        store, node = member.store, member.node
        newest = store.last_applied
        self.now = now
        self.state: State = newest, store.rollback_id, node.term, node.state
        self.commit_point = min(node.commit_point, newest)
        self.is_committed = self.commit_point == newest
        self.pages: dict[tuple[OpTime, int, int], bytes] = {}

    def seen_by(self, fetch: _Fetch) -> tuple[State, bool, bool]:
        """On what it depends when this fetch has to be answered."""
        is_later = fetch.found > 0 and self.is_committed
        return self.state, self.commit_point > fetch.request.known_commit_point, is_later


@dataclass(slots=True, eq=False)
class _Fetch:
    """One that waits. began, deadline: on the loop's clock. member: the `_id` of who asks; None: it did not say.

    found: when there were entries that it gets after others; 0: never. due: see `_due_of`; it holds while
    `Look.seen_by` gives the same as `seen`.
    """

    request: FetchRequest
    waiter: Completion
    began: float
    deadline: float
    member: MemberId | None
    found: float = 0.0
    due: float = 0.0
    seen: tuple[State, bool, bool] | None = None


def refuse_other_set(member: Kernel, theirs: ObjectId | None) -> None:
    """Refuse a member of another set (108).

    Another set of the same name may have this address in its configuration. Its members must not apply this oplog as if
    it were their own set's, nor replace their data by a copy of this member's.
    """
    mine = member.node.set_id
    if theirs is not None and mine is not None and theirs != mine:
        raise ReplError(
            f"this member belongs to the set with id {mine}, not {theirs}",
            code=ErrorCode.INCONSISTENT_REPLICA_SET_NAMES,
        )


def _rate_for(member: Kernel, request: FetchRequest) -> int:
    """How many bytes a second may go to a member that is so far behind; 0: any number."""
    bytes_per_s = member.node.follower_bytes_per_second()
    return bytes_per_s if bytes_per_s and behind_ms(member, request.after) >= FAR_BEHIND_MS else 0


async def _reaching_back(member: Kernel, request: FetchRequest, page: FetchReply) -> FetchReply:
    """The page, or if the oplog does not reach back so far, one of the archive: a stale member needs no copy then.

    Its first entry must continue the asking member's hash chain. What is archived is committed, so that member's entry
    was, too.
    """
    older, at = member[History].older, request.after
    if page.matched or older is None or at == OPTIME_NULL:
        return page
    if not older.missing_through <= at.ts <= member.store.trimmed_through:
        return page
    max_bytes = max(1, min(request.max_bytes, MAX_PAGE_BYTES))
    try:
        if at.ts == member.store.trimmed_through:  # the archive ends here, and the oplog begins
            rows = member.store.oplog_after(at, limit=PAGE_ENTRIES, max_bytes=max_bytes)
        else:
            rows = await older.after(at, limit=PAGE_ENTRIES, max_bytes=max_bytes)
    except ReplError as error:
        log.warning("a member that is too stale gets nothing from the archive: %s", error.message)
        return page
    check_serves_oplog(member.node)
    if not rows or next_chain(request.chain, rows[0].hash) != rows[0].chain:
        return page
    entries = [row.entry for row in rows]
    return replace(page, matched=True, entries=entries, prev_chain=request.chain, end_chain=rows[-1].chain)


def _may_come(state: State, request: FetchRequest) -> bool:
    """Whether the entry that was asked for may still reach this secondary: it is of the same term, and newer."""
    newest = state[0]
    return request.after > newest and request.after.term == newest.term and state[3] is not MemberState.PRIMARY


def has_news(state: State, request: FetchRequest) -> bool:
    """Whether there is anything but a new commit point that the asking member does not know yet."""
    newest, rollback_id, term, _ = state
    return (
        request.after != newest
        or request.after == OPTIME_NULL
        or request.known_rollback_id not in (-1, rollback_id)
        or term > request.term
    )


def has_entries(state: State, request: FetchRequest) -> bool:
    """Whether there are entries behind the one that was asked for, in the same term, and nothing else is new."""
    newest, rollback_id, term, _ = state
    same = request.after.term == request.term == term and request.known_rollback_id == rollback_id
    return same and request.after < newest


def fetch_now(member: Kernel, request: FetchRequest, look: Look | None = None) -> FetchReply:
    """Return the answer of this moment, without waiting. look: of this moment, if there is one already.

    DamagedEntryError: what comes next is damaged here.
    """
    look = look or Look(member)
    newest, rollback_id, term, state = look.state
    store, after = member.store, request.after
    matched, prev_chain = False, 0
    entries: list[bytes] = []
    end_chain: int | None = None
    if after == newest and after != OPTIME_NULL:
        matched, prev_chain = True, store.chain
    else:
        try:
            chain = store.chain_at(after)
            if chain is not None:
                matched, prev_chain = True, chain
                max_bytes = max(1, min(request.max_bytes, MAX_PAGE_BYTES))
                entries, end_chain = store.entries_after(after, limit=PAGE_ENTRIES, max_bytes=max_bytes)
        except DamagedEntryError as error:
            # Another member would apply it and acknowledge it as if it were the one written. The core takes this member
            # out of service as a source, and it copies the data of another one.
            member.on_damage(error.message)
            raise
    if matched and prev_chain != request.chain:
        member.on_chain_mismatch(after)
    return FetchReply(
        matched,
        entries,
        after,
        prev_chain,
        prev_chain if end_chain is None else end_chain,
        rollback_id,
        term,
        state,
        state is MemberState.PRIMARY,
        newest,
        store.oldest,
        look.commit_point,
        member.node.commit_term,
        member[Positions].awaited,
    )


async def oplog_probe(member: Kernel, body: RawDocument) -> RawDocument:
    """Answer replSetOplogProbe: which of these entries are here, and the hash chain at each."""
    request = ProbeRequest.parse(body)
    if len(request.optimes) > MAX_PROBES:
        raise BadValueError(f"at most {MAX_PROBES} optimes in one probe, not {len(request.optimes)}")
    check_serves_oplog(member.node)
    store = member.store
    try:
        rows = [store.sound_row_at(optime) for optime in request.optimes]
    except DamagedEntryError as error:
        member.on_damage(error.message)  # as in `fetch_now`
        raise
    return ProbeReply(
        [None if row is None else row.chain for row in rows],
        store.rollback_id,
        member.node.term,
        store.last_applied,
        store.oldest,
    ).document()

"""Follows another set: on this set's primary, fetches the source's committed entries and applies them (followed.py).

It costs nothing on a set that follows nobody: the task waits until there is a document in `config.follow`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from replset.core.node import Node
from replset.core.status import Remark
from replset.errors import NotWritablePrimaryError, ReplError
from replset.features.follower.follow_source import SourceSet
from replset.features.follower.followed import (
    FOLLOW_NS,
    FollowMode,
    FollowProgress,
    FollowState,
    is_followed,
    own_entry,
    position_in,
    read_state,
    save_state,
    state_in,
    stopped,
)
from replset.ids import OPTIME_NULL, OpTime, pack_ts
from replset.member.disk.writer import Writer
from replset.member.feature import FeaturePart, Figure
from replset.oplog_entry import OplogEntry
from replset.replication.applier import (
    EvaluatedUpdate,
    LargeUpdateError,
    UnfinishedBuildError,
    apply_batch,
    evaluate_large,
)
from replset.replication.context import MemberContext
from replset.replication.index_builder import write_slice
from replset.replication.write_ops import WriteGroup

log = logging.getLogger("replset.follow")

APPLY_SLICE_MS = 10
POLL_S, RETRY_S, IDLE_S = 0.1, 1.0, 0.5
SAVE_EVERY_MS, SAVE_IDLE_MS = 1_000, 10_000
"""How often the position is saved while entries about clients' data come, and while none does: the acknowledgement of
a position is itself an entry of the source.
"""
MOST_OWN_ENTRIES = 1_000
"""Behind the last entry that says the position: with more of them it is written again, so that it is found soon."""


class SetFollower(FeaturePart):
    """Runs as a task of its own."""

    def __init__(self, context: MemberContext, node: Node, writer: Writer) -> None:
        self._context = context
        self._node = node
        self._writer = writer
        self._wake = asyncio.Event()
        self._follows = False  # as of the newest commit
        self.progress = FollowProgress()

    def does_own_work(self) -> bool:
        """Not while the set follows another one, which does that work, or hands over to one."""
        return not self._follows

    def jobs(self) -> Iterable[Coroutine[Any, Any, None]]:
        return (self.run(),)

    def status(self) -> Mapping[str, object]:
        following = self.progress.document(self._context.clock)
        return {"following": following} if following else {}

    def remarks(self) -> Iterable[Remark]:
        progress = self.progress
        if progress.error:
            yield Remark(
                f"nothing comes from {progress.source}, which this set follows: {progress.error}",
                "it is tried again all the time; docs/follower.md says what to do where that does not help",
            )

    def figures(self) -> Iterable[Figure]:
        progress, lag_s = self.progress, self.progress.lag_s(self._context.clock)
        lag = {progress.source: float(lag_s)} if progress.source and lag_s is not None else {}
        failing = {progress.source: float(bool(progress.error))} if progress.source else {}
        yield Figure("replset_follow_lag_seconds", "age of the newest entry that came", lag, "source")
        yield Figure("replset_follow_failing", "1 while nothing comes from it", failing, "source")

    def _is_following(self) -> bool:
        state = read_state(self._context.store)
        return state is not None and state.mode is FollowMode.FOLLOWING

    def on_committed(self) -> None:
        if self._context.store.collection(FOLLOW_NS) is not None:
            state = read_state(self._context.store)
            self._follows = state is not None and state.refuses_clients
            self._wake.set()

    async def run(self) -> None:
        """Work until cancelled. Whatever fails is tried again: this set's own data and its readers go on meanwhile."""
        self.on_committed()
        while True:
            await self._wake.wait()
            try:
                await self._round()
            except Exception as error:
                self._on_failed(error)
                await asyncio.sleep(RETRY_S)
            await asyncio.sleep(IDLE_S)

    async def _round(self) -> None:
        state, term = read_state(self._context.store), self._writer.term
        if state is None or term is None or state.mode is not FollowMode.FOLLOWING:
            self.progress.source = self.progress.error = ""
        elif state.set_id == str(self._node.set_id):
            self.progress.source = state.set_name
            await self._follow(state, term)
        else:
            await self._writer.write(self._leave)

    def _on_failed(self, error: Exception) -> None:
        """Log it, once, and keep it for the status. What is no ReplError is a fault of ours or of the source."""
        if isinstance(error, ReplError):
            text, trace = error.message, None
        else:
            text, trace = f"{type(error).__name__}: {error} (behind {self.progress.position})", error
        if text != self.progress.error:
            log.warning("following stopped for now: %s", text, exc_info=trace)
        self.progress.error = text

    @staticmethod
    def _leave(group: WriteGroup) -> None:
        """Follow nobody in a set that was made of a follower's backup: it would leave the point in time that it was
        restored to, and acknowledge at the source what the other set may not have.
        """
        state = state_in(group.txn)
        if state is not None and state.mode is FollowMode.FOLLOWING:
            log.warning("this set was made of a backup of a set that follows %s; it follows nobody", state.set_name)
            save_state(group, stopped(state, group))

    async def _follow(self, state: FollowState, term: int) -> None:
        """Apply what comes until this member leads no more, the set follows no more, or something fails."""
        store, clock, source = self._context.store, self._context.clock, SourceSet(state.hosts, state.set_name)
        position, looked_at = store.query(lambda connection: position_in(connection, state))
        self.progress.position = position
        saved, unacknowledged = position, (OPTIME_NULL, OPTIME_NULL)
        if looked_at > MOST_OWN_ENTRIES or position != state.position:
            # While the source is gone, the oplog may be trimmed to what this set writes itself: by a document that is
            # behind, entries would be applied again, over what later ones wrote.
            unacknowledged = await self._save(position, state.hosts), position
        saved_at, every_ms = clock.now(), SAVE_IDLE_MS
        log.info("following %s from %s on", state.set_name, position)
        try:
            await source.run(source.keep_from, state.consumer, position)
            while self._writer.term == term and self._is_following():
                page = await source.run(source.entries_after, position)
                self.progress.error = ""
                if page:
                    if await self._apply(term, page, state.set_name):
                        every_ms = SAVE_EVERY_MS
                    position = OplogEntry(page[-1]).optime
                    self._note(page, position)
                is_due = clock.now() >= saved_at + every_ms
                if position != saved and is_due and unacknowledged[0] == OPTIME_NULL:
                    unacknowledged = await self._save(position, source.hosts), position
                    saved, saved_at, every_ms = position, clock.now(), SAVE_IDLE_MS
                if OPTIME_NULL != unacknowledged[0] <= self._node.commit_point and self._is_following():
                    # Not before: what a rollback here takes away has to come once more.
                    await source.run(source.acknowledge, state.consumer, unacknowledged[1])
                    unacknowledged = (OPTIME_NULL, OPTIME_NULL)
                if not page:
                    await asyncio.sleep(POLL_S)
        finally:
            source.close()

    def _note(self, page: Sequence[bytes], position: OpTime) -> None:
        self.progress.position = position
        self.progress.entries += len(page)
        self.progress.newest_wall_ms = OplogEntry(page[-1]).wall_ms
        self.progress.came_at = self._context.clock.now()

    async def _save(self, position: OpTime, hosts: Sequence[str]) -> OpTime:
        """Write the position into the document; return this set's own entry for that."""

        def save(group: WriteGroup) -> OpTime:
            state = state_in(group.txn)
            if state is None or state.mode is not FollowMode.FOLLOWING:
                raise NotWritablePrimaryError()
            save_state(group, replace(state, hosts=tuple(hosts), position=position))
            return group.txn.last

        return await self._writer.write(save)

    async def _apply(self, term: int, page: Sequence[bytes], name: str) -> bool:
        """Apply the entries that are about clients' data, slice by slice, as a secondary does. name: of the source.
        False: none.
        """
        context, clock = self._context, self._context.clock
        wanted = [raw for raw in page if is_followed(OplogEntry(raw))]
        evaluated: list[EvaluatedUpdate] = []
        done = 0

        def apply() -> int:
            if self._writer.term != term or not self._is_following():
                raise NotWritablePrimaryError()
            store, until = context.store, clock.now() + APPLY_SLICE_MS
            first = max(store.last_applied.ts + 1, pack_ts(clock.wall_ms() // 1000, 1))
            slice_ = wanted[done : done + 200]
            entries = [own_entry(raw, OpTime(term, first + number), name) for number, raw in enumerate(slice_)]
            applied = apply_batch(store, entries, 0, len(entries), lambda: clock.now() >= until, evaluated)
            self._writer.on_committed(applied)
            return applied

        while done < len(wanted):
            try:
                done += await context.write_queue.write(apply)
            except LargeUpdateError as large:
                missing = large
                evaluated += await context.workers.run(lambda: evaluate_large(context.store, missing))  # noqa: B023
            except UnfinishedBuildError as unfinished:
                more = True
                while more:
                    more = await write_slice(context, unfinished.coll, unfinished.build)
                    await asyncio.sleep(0)
            await asyncio.sleep(0)
        return bool(wanted)

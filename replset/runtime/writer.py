"""Group commit: what arrived in this turn of the loop is one transaction, as far as it fits a group.

An operation runs synchronously inside the open group, under a savepoint: one that fails is undone and fails alone.
A failed COMMIT fails the whole group. Only a member that accepts writes runs client operations; no-op entries of the
core go through `append_noop`, in a group of their own. Groups pass the write queue that all writers of the store share.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import apsw

from replset.errors import (
    InvariantError,
    NotWritablePrimaryError,
    OutOfDiskSpaceError,
    ReplError,
    ShutdownInProgressError,
    StorageError,
    StoreBusyError,
)
from replset.oplog_entry import noop_entry
from replset.replication.ports import Clock
from replset.replication.write_ops import WriteGroup
from replset.replication.write_queue import WriteQueue
from replset.storage.store import Store

T = TypeVar("T")

_ENDS_THE_GROUP = (StorageError, OutOfDiskSpaceError, apsw.Error, OSError, MemoryError)
"""SQLite may have rolled the transaction back by itself: whatever followed would be committed piece by piece."""
GROUP_BYTES: Final = 4 << 20
GROUP_OPERATIONS: Final = 1000
GROUP_MS: Final = 10
"""A group takes no more once it has these; the rest is for the next turn of the loop, so that heartbeats pass."""


class Writer:
    """The queue in front of the store's one write connection."""

    def __init__(
        self,
        store: Callable[[], Store],
        write_queue: WriteQueue,
        clock: Clock,
        rng: random.Random,
        primary_host: Callable[[], str | None],
        on_committed: Callable[[], None],
        on_broken: Callable[[BaseException], None],
    ) -> None:
        """on_committed: called after each group that wrote entries. on_broken: storage failed; the member stops."""
        self._store = store
        self._write_queue = write_queue
        self._clock = clock
        self._rng = rng
        self._primary_host = primary_host
        self._on_committed = on_committed
        self._on_broken = on_broken
        self._term: int | None = None
        self._closed = False
        self._queue: list[tuple[Callable[[WriteGroup], Any], asyncio.Future[Any]]] = []
        self._scheduled = False

    def accept(self, term: int | None) -> None:
        """Take clients' writes in `term`; None: refuse them from here on, those in the queue included."""
        self._term = term

    def close(self) -> None:
        """Refuse everything from here on."""
        self._closed = True
        self._flush()

    async def write(self, operation: Callable[[WriteGroup], T]) -> T:
        """Run `operation` in the next group; its result once that is committed. See MemberPort.write."""
        if self._term is None or self._closed:
            raise self._refusal()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.append((operation, future))
        self._schedule()
        return await future

    def append_noop(self, term: int, message: Mapping[str, object]) -> None:
        """Write a no-op entry now, in a group of its own. Work for the write queue; raises what storage raises."""
        wall_ms = self._clock.wall_ms()
        with self._store().group() as txn:
            optime = txn.next_optime(term, wall_ms)
            entry = noop_entry(message, optime, wall_ms)
            txn.append(entry, optime, op="n", ns="", wall_ms=wall_ms)
        self._on_committed()

    def _schedule(self) -> None:
        if self._queue and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._write_queue.submit, self._flush)

    def _refusal(self) -> ReplError:
        if self._closed:
            return ShutdownInProgressError("the member is shutting down")
        return NotWritablePrimaryError(primary=self._primary_host())

    def _flush(self) -> None:
        self._scheduled = False
        queue, self._queue = self._queue, []
        queue = [row for row in queue if not row[1].done()]  # whose client has gone
        if not queue:
            return
        term = self._term
        if term is None or self._closed:
            for _, future in queue:
                future.set_exception(self._refusal())
            return
        try:
            outcomes, wrote = self._run_group(term, queue)
        except StoreBusyError:  # no operation ran: the write queue calls again
            self._queue = queue + self._queue
            raise
        except InvariantError as broken:
            self._fail(queue, broken)
            self._on_broken(broken)
        except ReplError as error:
            self._fail(queue, error)
        except Exception as error:
            self._fail(queue, error)
            self._on_broken(error)
        else:
            self._queue = queue[len(outcomes) :] + self._queue
            self._schedule()
            if wrote:
                self._on_committed()
            for (_, future), (result, failure) in zip(queue, outcomes, strict=False):
                if future.done():
                    continue
                if failure is None:
                    future.set_result(result)
                else:
                    future.set_exception(failure)

    def _run_group(
        self, term: int, queue: list[tuple[Callable[[WriteGroup], Any], asyncio.Future[Any]]]
    ) -> tuple[list[tuple[Any, Exception | None]], bool]:
        """Run the first operations, as many as fit, in one transaction.

        Returns (result, failure) of each, and whether anything was written.
        """
        outcomes: list[tuple[Any, Exception | None]] = []
        with self._store().group() as txn:
            group = WriteGroup(txn, term, self._clock.wall_ms(), self._rng)
            until = self._clock.now() + GROUP_MS
            for operation, _ in queue[:GROUP_OPERATIONS]:
                if txn.appended_bytes > GROUP_BYTES or (outcomes and self._clock.now() >= until):
                    break
                mark = txn.mark()
                try:
                    outcomes.append((operation(group), None))
                except (InvariantError, *_ENDS_THE_GROUP):
                    raise
                except Exception as failure:
                    txn.back_to(mark)
                    outcomes.append((None, failure))
            wrote = txn.changed
        return outcomes, wrote

    @staticmethod
    def _fail(queue: list[tuple[Callable[[WriteGroup], Any], asyncio.Future[Any]]], error: Exception) -> None:
        for _, future in queue:
            if not future.done():
                future.set_exception(error)

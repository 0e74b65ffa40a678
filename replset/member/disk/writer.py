"""Group commit: what arrived in this turn of the loop is one transaction, as far as it fits a group.

An operation runs synchronously inside the open group, under a savepoint: one that fails is undone and fails alone.
A failed COMMIT fails the whole group. Only a member that accepts writes runs client operations; no-op entries of the
core go through `append_noop`, in a group of their own. Groups pass the write queue that all writers of the store share.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import apsw

from replset.bson import Timestamp
from replset.core.member_state import MemberState
from replset.core.node import Node
from replset.errors import (
    InvariantError,
    NotWritablePrimaryError,
    OutOfDiskSpaceError,
    ReplError,
    ShutdownInProgressError,
    StorageError,
    StoreBusyError,
    SyncFailedError,
)
from replset.member.disk.group_wait import MOST_MS, GroupWait
from replset.operations.current_operations import SIZES, Histogram
from replset.operations.flow_control import FlowControl
from replset.operations.prepared import PreparedWrite
from replset.operations.waiters import Completion
from replset.oplog_entry import noop_entry
from replset.replication.context import MemberContext
from replset.replication.held_keys import HeldKeys
from replset.replication.write_ops import WriteGroup
from replset.storage.txn import Txn

T = TypeVar("T")

INITIATION: Final = "initiating set"
"""The no-op of a new set. The member that writes it is no primary yet."""

_ENDS_THE_GROUP = (StorageError, OutOfDiskSpaceError, apsw.Error, OSError, MemoryError)
"""SQLite may have rolled the transaction back by itself: whatever followed would be committed piece by piece."""
GROUP_BYTES: Final = 4 << 20
GROUP_OPERATIONS: Final = 1000
GROUP_MS: Final = 10
"""A group takes no more once it has these; the rest is for the next turn of the loop, so that heartbeats pass."""


class Writer:
    """Queues writes for the store's only write connection, and commits them in groups."""

    def __init__(
        self,
        context: MemberContext,
        node: Node,
        rng: random.Random,
        on_committed: Callable[[int], None],
        held: HeldKeys,
        flow_control: FlowControl,
        unanswered: Callable[[], int],
    ) -> None:
        """on_committed: called after each group that wrote entries, with the number of its operations. held: by open
        transactions. unanswered: how many writes are committed and wait for their write concern.
        """
        self._held = held
        self._flow_control = flow_control
        self._context = context
        self._node = node
        self._rng = rng
        self.on_committed = on_committed
        self._term: int | None = None
        self._closed = False
        self._operations: list[tuple[Callable[[WriteGroup], Any], Completion]] = []
        self._scheduled = False
        self._unanswered = unanswered
        self._group_wait = GroupWait(context.clock)
        self._is_patient = True  # each operation in the queue will wait for its write concern
        self._wait_timer: asyncio.TimerHandle | None = None  # of the group that waits now
        self.group_sizes = Histogram(SIZES)
        """Operations of each group."""
        self.refusals: dict[str, Callable[[Txn, Sequence[bytes]], None]] = {}
        """Of features: each may refuse what an operation has written, while there is the collection of this name."""

    def accept(self, term: int | None) -> None:
        """Take clients' writes in `term`; None: refuse them from here on, those in the queue included."""
        self._term = term
        self._end_wait()

    @property
    def term(self) -> int | None:
        """The term in which clients' writes are taken; None while they are not."""
        return self._term

    @property
    def queued(self) -> int:
        """How many operations of clients wait for a group."""
        return len(self._operations)

    def close(self) -> None:
        """Refuse everything from here on."""
        self._closed = True
        self._flush()

    def write(self, operation: Callable[[WriteGroup], T]) -> asyncio.Future[T]:
        """Run `operation` in the next group; its result once that is committed. See Kernel.write."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.submit(operation, future, waits=False)
        return future

    def submit(self, operation: Callable[[WriteGroup], Any], completion: Completion, *, waits: bool) -> None:
        """Do as `write`; `completion` gets the result or the error. It raises only if clients' writes are refused.

        waits: see Kernel.submit.
        """
        if self._term is None or self._closed:
            raise self._refusal()
        self._operations.append((operation, completion))
        self._is_patient = self._is_patient and waits
        self._schedule()

    def append_noop(self, term: int, message: str) -> None:
        """Write a no-op entry of the core now, in a group of its own. Work for the write queue.

        Raises what storage raises. A no-op that waited until this member had left `term` is not written: a rollback
        would only have to take it away again.
        """
        leads = self._node.state is MemberState.PRIMARY and self._node.term == term
        if leads or message == INITIATION:
            self._write_noop(term, message)

    def _write_noop(self, term: int, message: str) -> None:
        wall_ms = self._context.clock.wall_ms()
        with self._context.store.group() as txn:
            optime = txn.next_optime(term, wall_ms)
            entry = noop_entry(self._noop_document(message), optime, wall_ms)
            txn.append(entry, optime, op="n", ns="", wall_ms=wall_ms)
        self.on_committed(1)
        if message == INITIATION:
            # The entry must be on disk before the configuration that follows it is. A power cut between the two would
            # leave a member that belongs to a set, must have data and has none. Nobody is served yet, so the loop may
            # wait for the disk here.
            self._context.store.wal.sync()

    def _noop_document(self, message: str) -> dict[str, object]:
        document: dict[str, object] = {"msg": message}
        node = self._node
        if message == "new primary":
            document |= {"member": node.self_id, "host": self._context.identity.member}
        elif message == "periodic noop":
            point = node.commit_point
            document["commitPoint"] = {"ts": Timestamp(point.seconds, point.increment), "t": point.term}
        elif message == "Reconfig set" and node.config is not None:
            document["version"] = node.config.version
        return document

    def _schedule(self) -> None:
        if self._scheduled or not self._operations:
            return
        if self._is_patient and not self._group_wait.is_enough(len(self._operations)):
            if self._wait_timer is None:
                self._wait_timer = asyncio.get_running_loop().call_later(MOST_MS / 1000, self._end_wait)
            return
        self._scheduled = True
        asyncio.get_running_loop().call_soon(self._context.write_queue.submit, self._flush)

    def _end_wait(self) -> None:
        """Begin the group that waits, if one does, in the next turn."""
        if self._wait_timer is not None:
            self._is_patient = False
            self._schedule()

    def _hold(self, wait_s: float) -> None:
        """Leave the queue as it is for so long, because the majority has to catch up."""
        self._scheduled = True
        asyncio.get_running_loop().call_later(wait_s, self._context.write_queue.submit, self._flush)

    def _refusal(self) -> ReplError:
        if self._closed:
            return ShutdownInProgressError("the member is shutting down")
        return NotWritablePrimaryError()

    def _flush(self) -> None:
        self._scheduled = False
        if self._term is not None and not self._closed and (wait_s := self._flow_control.wait_s()):
            self._hold(wait_s)
            return
        if self._wait_timer is not None:
            self._wait_timer.cancel()
            self._wait_timer = None
        self._group_wait.on_group(len(self._operations) + self._unanswered())
        self._is_patient = True
        queue, self._operations = self._operations, []
        queue = [row for row in queue if not row[1].done()]  # whose client has gone
        if not queue:
            return
        term = self._term
        # These were taken before a stepdown and are not committed. Written now, they would be in no other member's
        # history, and be rolled back although they were acknowledged.
        if term is None or self._closed:
            for _, completion in queue:
                completion.set_exception(self._refusal())
            return
        try:
            outcomes, wrote = self._run_group(term, queue)
        except StoreBusyError:  # no operation ran: the write queue calls again
            self._operations = queue + self._operations
            raise
        except (InvariantError, SyncFailedError) as broken:
            self._fail(queue, broken)
            self._context.on_broken(broken)
        except ReplError as error:
            self._fail(queue, error)
        except Exception as error:
            self._fail(queue, error)
            self._context.on_broken(error)
        else:
            self._operations = queue[len(outcomes) :] + self._operations
            self._is_patient = self._is_patient and not self._operations  # the rest is to go on at once
            self._schedule()
            if wrote:
                self.on_committed(len(outcomes))
            for (_, completion), (result, failure) in zip(queue, outcomes, strict=False):
                if completion.done():
                    continue
                if failure is None:
                    completion.set_result(result)
                else:
                    completion.set_exception(failure)

    def _run_group(
        self, term: int, queue: list[tuple[Callable[[WriteGroup], Any], Completion]]
    ) -> tuple[list[tuple[Any, Exception | None]], bool]:
        """Run the first operations, as many as fit, in one transaction.

        Returns (result, failure) of each, and whether anything was written.
        """
        outcomes: list[tuple[Any, Exception | None]] = []
        with self._context.store.group() as txn:
            group = WriteGroup(txn, term, self._context.clock.wall_ms(), self._rng, self._held)
            until = self._context.clock.now() + GROUP_MS
            most = self._flow_control.allowance(GROUP_BYTES)
            last = min(len(queue), GROUP_OPERATIONS)
            while (at := len(outcomes)) < last:
                if txn.appended_bytes > most or (outcomes and self._context.clock.now() >= until):
                    break
                mark = txn.mark()
                try:
                    rest = (queue[i][1] for i in range(at, last))
                    is_free = txn.catalog.by_ns.keys().isdisjoint(self.refusals)
                    if is_free and (together := PreparedWrite.run_together(group, rest)):
                        outcomes += [(result, None) for result in together]
                        continue
                    result = queue[at][0](group)
                    for ns, refuse in self.refusals.items():
                        if ns in txn.catalog.by_ns:
                            refuse(txn, txn.entries_since(mark))
                    outcomes.append((result, None))
                except (InvariantError, *_ENDS_THE_GROUP):
                    raise
                except Exception as failure:
                    txn.revert_to(mark)
                    outcomes.append((None, failure))
            wrote = txn.changed
        self._flow_control.on_written(txn.appended_bytes)
        self.group_sizes.observe(len(outcomes))
        return outcomes, wrote

    @staticmethod
    def _fail(queue: list[tuple[Callable[[WriteGroup], Any], Completion]], error: Exception) -> None:
        for _, completion in queue:
            if not completion.done():
                completion.set_exception(error)

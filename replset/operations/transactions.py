"""Multi-document transactions: begun by a command with `startTransaction`, kept in this primary's memory (map X5).

A transaction is a `WriteSet` over the state at one optime, with a pin on that. The dispatcher hands every command of a
transaction to `run_in_transaction`. A command that fails aborts its transaction. So do a stepdown, a shutdown, and the
end of the transaction's life; nothing is on disk before the commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Final, TypeVar

from replset.bson import Int64, Timestamp
from replset.errors import (
    ErrorCode,
    MaxTimeMSExpiredError,
    OverloadedError,
    ReplError,
)
from replset.ids import Millis, OpTime, invariant
from replset.operations.kernel import Kernel
from replset.operations.session_request import SessionRequest
from replset.operations.session_table import EndsSession
from replset.operations.waiters import Notifier
from replset.oplog_entry import extra_fields
from replset.replication.held_keys import HeldKeys, Place
from replset.replication.write_ops import WriteGroup
from replset.replication.write_set import WriteSet
from replset.storage.catalog import SESSIONS
from replset.storage.sessions import txn_number_of

T = TypeVar("T")
LIFETIME_S: Final = 60
"""transactionLifetimeLimitSeconds of MongoDB."""
MAX_MEMORY_BYTES: Final = 256 << 20
"""Limit on the writes of all open transactions together."""
MAX_OPEN: Final = 10_000
"""Each takes some 6 KB beside its writes."""
MAX_ENDED: Final = 10_000
"""Transactions that are remembered after their end, so that a late command of theirs is answered right."""
TRANSIENT: Final = "TransientTransactionError"


class State(Enum):
    IN_PROGRESS = "in progress"
    COMMITTING = "being committed"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Transaction:
    """One transaction of one session. is_in_use: a command is running in it."""

    def __init__(self, session: SessionRequest, number: int, member: Kernel, held: HeldKeys) -> None:
        self.session = session
        self.number = number
        self.state = State.IN_PROGRESS
        self.is_in_use = False
        self.term = member.node.term
        self.on_end: list[Callable[[], None]] = []
        """Called at the end, to close the cursors that were opened inside."""
        self.write_set = WriteSet(member.store, held)
        self._pin = member.store.pin(self.write_set.at)
        self._failure: ReplError | None = None

    @property
    def at(self) -> OpTime:
        """The optime whose state the transaction reads."""
        return self.write_set.at

    def entry_fields(self) -> bytes:
        """The session, as the entry of the commit has it."""
        first = {"ts": Timestamp(0, 0), "t": Int64(-1)}
        number = Int64(self.number)
        return extra_fields({"lsid": self.session.lsid, "txnNumber": number, "prevOpTime": first})

    def check_open(self) -> None:
        """Raise why the transaction has ended: 256 once committed, else 251 or what ended it."""
        if self.state is State.COMMITTED:
            raise ReplError(f"Transaction {self.number} has been committed.", code=ErrorCode.TRANSACTION_COMMITTED)
        if self.state is State.ABORTED:
            failure, self._failure = self._failure, None
            raise failure or no_such_transaction(f"Transaction with {{ txnNumber: {self.number} }} has been aborted.")

    def end(self, state: State, failure: ReplError | None = None) -> None:
        """Release everything. failure: for the command that is running now."""
        self.state = state
        self._failure = failure if self.is_in_use else None
        self.write_set.end()
        self._pin.release()
        self.close_cursors()

    def close_cursors(self) -> None:
        callbacks, self.on_end = self.on_end, []
        for callback in callbacks:
            callback()


def no_such_transaction(message: str) -> ReplError:
    return ReplError(message, code=ErrorCode.NO_SUCH_TRANSACTION)


class TransactionTable:
    """The transactions of one member: of each session the newest one.

    held: what they have written. lifetime_s: how long one may stay open.
    """

    def __init__(self, member: Kernel) -> None:
        self.held = HeldKeys()
        self.lifetime_s: float = LIFETIME_S
        self._member = member
        self._newest: dict[bytes, Transaction] = {}
        self._open: dict[Transaction, asyncio.TimerHandle] = {}
        self._ended = Notifier()
        self._memory_bytes = 0

    @property
    def open_count(self) -> int:
        return len(self._open)

    # --- beginning, going on, ending

    def begin(self, session: SessionRequest, number: int) -> Transaction:
        """Begin a transaction at the newest entry. 225 when the session is further, 117 for the same number again.

        462 while too many are open. An open transaction of the session with a lower number is aborted.
        """
        newest = self.newest_number(session.key)
        if number < newest:
            raise too_old(number, newest)
        if number == newest:
            raise ReplError(
                "Only servers in a sharded cluster can start a new transaction at the active transaction number",
                code=ErrorCode.CONFLICTING_OPERATION_IN_PROGRESS,
            )
        self.abort_of(session.key)
        if len(self._open) >= MAX_OPEN:
            raise _overloaded(f"{len(self._open)} transactions are open")
        # With an older number a late command of a transaction that is done would be taken for one of this.
        known = self._newest.get(session.key)
        invariant(number > newest and (known is None or number > known.number), "a session's numbers only grow")
        transaction = Transaction(session, number, self._member, self.held)
        self._newest[session.key] = transaction
        timer = asyncio.get_running_loop().call_later(self.lifetime_s, self._expire, transaction)
        self._open[transaction] = timer
        self._forget_ended()
        return transaction

    def find(self, session: SessionRequest, number: int) -> Transaction:
        """Return the session's transaction of this number, in whatever state. 225 when it is older, 251."""
        transaction = self._newest.get(session.key)
        if transaction is not None and transaction.number == number:
            return transaction
        newest = self.newest_number(session.key)
        if number < newest:
            raise too_old(number, newest)
        raise no_such_transaction(
            f"Given transaction number {number} does not match any in-progress transactions."
            f" The active transaction number is {newest}"
        )

    def newest_number(self, key: bytes) -> int:
        """The newest number that the session has used, for a transaction or a retryable write; -1: none."""
        transaction = self._newest.get(key)
        raw = self._member.store.get(SESSIONS, key)
        written = -1 if raw is None else txn_number_of(raw)
        return written if transaction is None else max(written, transaction.number)

    def check_retryable_write(self, key: bytes, number: int) -> None:
        """Refuse a retryable write behind the session's newest transaction (225), or with its number (217)."""
        transaction = self._newest.get(key)
        if transaction is None or number > transaction.number:
            self.abort_of(key)
        elif number < transaction.number:
            raise too_old(number, transaction.number)
        else:
            raise ReplError(
                "Cannot retry a retryable write that has been converted into a transaction",
                code=ErrorCode.INCOMPLETE_TRANSACTION_HISTORY,
            )

    def abort(self, transaction: Transaction, failure: ReplError | None = None) -> None:
        """Abort it unless it has ended. failure: for the command that is running in it."""
        if transaction.state in (State.IN_PROGRESS, State.COMMITTING):
            self._end(transaction, State.ABORTED, failure)

    def committed(self, transaction: Transaction) -> None:
        """Note that its entry is in the oplog. A stepdown may have ended the transaction since."""
        if transaction in self._open:
            self._end(transaction, State.COMMITTED)
        else:
            transaction.state = State.COMMITTED

    def sessions(self) -> list[bytes]:
        """The keys of the sessions that have a transaction open."""
        return [transaction.session.key for transaction in self._open]

    def abort_of(self, key: bytes) -> None:
        """Abort the session's open transaction, if there is one: the session ends or goes on with something else."""
        transaction = self._newest.get(key)
        if transaction is not None:
            self.abort(transaction)

    def abort_sessions(self, ends: EndsSession) -> None:
        """Abort the transactions of sessions that end."""
        for transaction in list(self._open):
            if ends(transaction.session.key):
                self.abort(transaction, ReplError("the session was killed", code=ErrorCode.INTERRUPTED))

    def abort_all(self, failure: Callable[[], ReplError]) -> None:
        """Abort all: this member is no longer primary, or it stops. What they were is forgotten too."""
        for transaction in list(self._open):
            self.abort(transaction, failure())
        self._newest.clear()

    def _expire(self, transaction: Transaction) -> None:
        message = "transaction lifetime limit exceeded"
        self.abort(transaction, ReplError(message, code=ErrorCode.TRANSACTION_EXCEEDED_LIFETIME))

    def _end(self, transaction: Transaction, state: State, failure: ReplError | None = None) -> None:
        self._open.pop(transaction).cancel()
        self._count(-transaction.write_set.size)
        transaction.end(state, failure)
        self._ended.notify()

    def _forget_ended(self) -> None:
        if len(self._newest) > MAX_ENDED + len(self._open):
            oldest = next(key for key, one in self._newest.items() if one not in self._open)
            del self._newest[oldest]

    # --- writing

    def write(self, transaction: Transaction, operation: Callable[[WriteGroup], T]) -> T:
        """Run a write operation inside, as `Kernel.write` does outside.

        Raises WriteConflictError, 257 (too large), 462 (all transactions together are too large) and what the
        operation raises.
        """
        transaction.check_open()
        member, write_set = self._member, transaction.write_set
        size = write_set.size
        try:
            return write_set.run(operation, transaction.term, member.clock.wall_ms(), member.rng)
        finally:
            self._count(write_set.size - size)
            if self._memory_bytes > MAX_MEMORY_BYTES:
                raise _overloaded(f"open transactions hold more than {MAX_MEMORY_BYTES >> 20} MiB")

    def _count(self, size: int) -> None:
        self._memory_bytes += size
        invariant(self._memory_bytes >= 0, "a transaction gives back the memory that it took, once")
        self._member.admission.add(size)

    async def wait_until_free(self, place: Place, deadline: Millis | None) -> None:
        """Wait until no transaction holds the document, for a plain write. MaxTimeMSExpiredError at `deadline`."""
        while self.held.is_held(place):
            left_ms = None if deadline is None else max(0, deadline - self._member.clock.now())
            if not await self._ended.wait(left_ms):
                raise MaxTimeMSExpiredError("operation exceeded time limit while a transaction held the document")


def _overloaded(reason: str) -> OverloadedError:
    error = OverloadedError(f"{reason}; try again")
    error.labels = (*error.labels, TRANSIENT)
    return error


def too_old(number: int, newest: int) -> ReplError:
    return ReplError(
        f"Cannot start transaction {number} because a newer retryable write or transaction with txnNumber {newest}"
        " has already started on this session.",
        code=ErrorCode.TRANSACTION_TOO_OLD,
    )

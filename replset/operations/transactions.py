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

from replset.auth.roles import Action
from replset.bson import Int64, Timestamp
from replset.core.quorum import WriteConcern
from replset.errors import (
    ErrorCode,
    InvalidOptionsError,
    MaxTimeMSExpiredError,
    NotWritablePrimaryError,
    OverloadedError,
    QueryPlanKilledError,
    ReplError,
    Trait,
    WriteConflictError,
)
from replset.ids import OPTIME_NULL, Millis, OpTime, invariant
from replset.operations.command import Command, CommandContext
from replset.operations.member_port import MemberPort, Reply
from replset.operations.namespaces import collection_field
from replset.operations.read_concern import ReadConcern, read_concern_of, read_point
from replset.operations.session_request import SessionRequest
from replset.operations.session_table import EndsSession
from replset.operations.waiters import Notifier
from replset.operations.write_concern import refuse_few_in_sync, wait_for_write_concern, write_concern_of
from replset.oplog_entry import OplogEntry, extra_fields
from replset.replication.held_keys import HeldKeys, Place
from replset.replication.session_write import record_applied
from replset.replication.write_ops import WriteGroup
from replset.replication.write_set import WriteSet
from replset.storage.catalog import SESSIONS
from replset.storage.sessions import is_committed, read_record

T = TypeVar("T")
LIFETIME_S: Final = 60
"""transactionLifetimeLimitSeconds of MongoDB."""
MAX_MEMORY_BYTES: Final = 256 << 20
"""Limit on the writes of all open transactions together."""
MAX_ENDED: Final = 10_000
"""Transactions that are remembered after their end, so that a late command of theirs is answered right."""
TRANSIENT: Final = "TransientTransactionError"
COMMANDS_INSIDE: Final = frozenset(
    {"find", "getMore", "killCursors", "insert", "update", "delete", "findAndModify", "distinct", "aggregate"}
    | {"create", "createIndexes", "commitTransaction", "abortTransaction"}
)


class State(Enum):
    IN_PROGRESS = "in progress"
    COMMITTING = "being committed"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Transaction:
    """One transaction of one session. is_in_use: a command is running in it."""

    def __init__(self, session: SessionRequest, number: int, member: MemberPort, held: HeldKeys) -> None:
        self.session = session
        self.number = number
        self.state = State.IN_PROGRESS
        self.is_in_use = False
        self.term = member.node.term
        self.optime = OPTIME_NULL
        self.on_end: list[Callable[[], None]] = []
        """Called at the end, to close the cursors that were opened inside."""
        self.write_set = WriteSet(member.store, held)
        self._member = member
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

    def __init__(self, member: MemberPort) -> None:
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

        An open transaction of the session with a lower number is aborted.
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
        written = -1 if raw is None else read_record(raw).txn_number
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

    def committed(self, transaction: Transaction, optime: OpTime) -> None:
        """Note that its entry is in the oplog. A stepdown may have ended the transaction since."""
        transaction.optime = optime
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
        """Run a write operation inside, as `MemberPort.write` does outside.

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
                error = OverloadedError(f"open transactions hold more than {MAX_MEMORY_BYTES >> 20} MiB; try again")
                error.labels = (*error.labels, TRANSIENT)
                raise error

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


def too_old(number: int, newest: int) -> ReplError:
    return ReplError(
        f"Cannot start transaction {number} because a newer retryable write or transaction with txnNumber {newest}"
        " has already started on this session.",
        code=ErrorCode.TRANSACTION_TOO_OLD,
    )


# --- commands inside of a transaction ---------------------------------------------------------------------------


def number_of(session: SessionRequest) -> int:
    """The number of the transaction that a command with `autocommit: false` belongs to."""
    if session.txn_number is None:
        raise InvalidOptionsError("'autocommit' field requires a transaction number to also be specified")
    return session.txn_number


async def run_in_transaction(ctx: CommandContext) -> Reply:
    """Run a command with `autocommit: false`, one at a time in a session. A failure aborts its transaction."""
    session = _session_of(ctx)
    check_command(ctx, ctx.command)
    _check_writable(ctx.member)
    await ctx.sessions.check_out(session.key, ctx.left_ms)
    try:
        _check_writable(ctx.member)
        return await (ctx.command.run(ctx) if ctx.command.ends_transaction else _run_inside(ctx, session))
    finally:
        ctx.sessions.check_in(session.key)


def _check_writable(member: MemberPort) -> None:
    if not member.node.writable:
        text = "Not primary so we cannot begin or continue a transaction"
        raise NotWritablePrimaryError(text, primary=member.node.primary_host)


async def _run_inside(ctx: CommandContext, session: SessionRequest) -> Reply:
    table = ctx.member.transactions
    if session.start_transaction:
        transaction = await _begin(ctx, session)
    else:
        if "readConcern" in ctx.body:
            raise InvalidOptionsError("Only the first command in a transaction may specify a readConcern")
        transaction = table.find(session, number_of(session))
        transaction.check_open()
    ctx.transaction = transaction
    transaction.is_in_use = True
    try:
        reply = await ctx.command.run(ctx)
        transaction.check_open()
    except BaseException as error:
        table.abort(transaction)
        transaction.close_cursors()  # one that was opened after the end
        if isinstance(error, QueryPlanKilledError):
            raise WriteConflictError(error.message) from error
        raise
    finally:
        transaction.is_in_use = False
    if isinstance(reply, dict) and "writeErrors" in reply:
        table.abort(transaction)
    return reply


async def _begin(ctx: CommandContext, session: SessionRequest) -> Transaction:
    concern, given = read_concern_of(ctx), ctx.body.get("readConcern")
    if concern.level == "linearizable" or (isinstance(given, dict) and given.get("level") == "available"):
        raise InvalidOptionsError(
            "The readConcern level must be either 'local' (default), 'majority' or 'snapshot' in order to run in a"
            " transaction"
        )
    if concern.at is not None:
        raise InvalidOptionsError("atClusterTime is not for transactions here")
    await read_point(ctx, ReadConcern("local", concern.after))
    _check_writable(ctx.member)  # it may have stepped down meanwhile, and ended all that were open then
    return ctx.member.transactions.begin(session, number_of(session))


def check_command(ctx: CommandContext, command: Command) -> None:
    """Refuse what no transaction takes: 263 for a command or database, 72 for a write concern before the end."""
    name, database = command.name, ctx.database
    if name == "count":
        _refuse(
            "Cannot run 'count' in a multi-document transaction. Please see"
            " http://dochub.mongodb.org/core/transaction-count for a recommended alternative."
        )
    if name not in COMMANDS_INSIDE:
        _refuse(f"Cannot run '{name}' in a multi-document transaction.")
    if command.ends_transaction:
        return
    if "writeConcern" in ctx.body:
        raise InvalidOptionsError("writeConcern is not allowed within a multi-statement transaction")
    if name == "killCursors" and ctx.session is not None and ctx.session.start_transaction:
        _refuse("Cannot run killCursors as the first operation in a multi-document transaction.")
    if database in ("local", "config"):
        _refuse(f"Cannot run command against the '{database}' database in a transaction.")
    if ctx.body.type_of(ctx.name) == 2 and collection_field(ctx.body, ctx.name).startswith("system."):
        _refuse(f"Cannot run command against the '{database}.{ctx.body.get(ctx.name)}' collection in a transaction.")


def _refuse(message: str) -> None:
    raise ReplError(message, code=ErrorCode.OPERATION_NOT_SUPPORTED_IN_TRANSACTION)


def add_transaction_label(ctx: CommandContext, error: ReplError) -> None:
    """Say whether the client may run the whole transaction again after this error (map B4).

    After a commit it may not: where a member is no primary any more, the transaction may be committed.
    """
    is_transient = error.has(Trait.TRANSIENT) or (not ctx.command.ends_transaction and error.has(Trait.RETRYABLE))
    if "writeConcernError" in error.details:
        is_transient = False  # not known to be gone: see commit_transaction
    if is_transient and TRANSIENT not in error.labels:
        error.labels = (*error.labels, TRANSIENT)


# --- commitTransaction, abortTransaction ------------------------------------------------------------------------


async def commit_transaction(ctx: CommandContext) -> Reply:
    """Commit the transaction and wait for the write concern; again after an answer that was lost.

    A commit that is repeated waits for everything that this member has, and so for the transaction's entry. That one
    may be of an earlier term, which this primary cannot wait for. Where there is no such transaction the wait tells
    whether it can still come: an entry of it on a member that was primary before is rolled back once a majority has
    the entries of this one.
    """
    session, concerns, missing = _session_of(ctx), [write_concern_of(ctx)], None
    try:
        concerns = await _commit_once(ctx, session, concerns)
    except ReplError as error:
        if error.code != ErrorCode.NO_SUCH_TRANSACTION:
            raise
        missing = error
    reply: dict[str, object] = {}
    optime = ctx.member.store.last_applied
    for concern in concerns:
        failure = await wait_for_write_concern(ctx, optime, concern)
        if failure is not None:
            reply["writeConcernError"] = failure
            break
    if missing is None:
        return reply
    missing.details |= reply
    raise missing


async def _commit_once(
    ctx: CommandContext, session: SessionRequest, concerns: list[WriteConcern]
) -> list[WriteConcern]:
    """Commit the transaction unless it is committed. 251 when it was aborted or is not known.

    Returns what to wait for: `concerns`, or those of the collections that it has written.
    """
    member, number = ctx.member, number_of(session)
    if _was_committed(member, session.key, number):
        return concerns
    transaction = member.transactions.find(session, number)
    if transaction.state is not State.COMMITTED:
        transaction.check_open()
        if not transaction.write_set.is_empty:
            concerns = list(dict.fromkeys(write_concern_of(ctx, ns) for ns in transaction.write_set.namespaces))
            try:
                for concern in concerns:
                    refuse_few_in_sync(member, concern)
            except ReplError:
                member.transactions.abort(transaction)  # else it would hold its documents until its life ends
                raise
        await _commit(member, transaction)
    return concerns


def _session_of(ctx: CommandContext) -> SessionRequest:
    if ctx.session is None or ctx.session.autocommit is not False:
        raise InvalidOptionsError(f"{ctx.name} must be run within a transaction", code=ErrorCode.COMMAND_FAILED)
    return ctx.session


def _was_committed(member: MemberPort, key: bytes, number: int) -> bool:
    """Whether the session's record says so: after a failover it is all that the new primary knows."""
    raw = member.store.get(SESSIONS, key)
    return raw is not None and read_record(raw).txn_number == number and is_committed(raw)


async def _commit(member: MemberPort, transaction: Transaction) -> None:
    table = member.transactions
    if transaction.write_set.is_empty:
        table.committed(transaction, member.store.last_applied)
        return
    transaction.state = State.COMMITTING

    def operation(group: WriteGroup) -> OpTime:
        transaction.check_open()
        if group.term != transaction.term:
            raise NotWritablePrimaryError(primary=None)
        entry = transaction.write_set.commit(group, transaction.entry_fields())
        record_applied(group.txn, OplogEntry(entry))
        return group.txn.last

    try:
        table.committed(transaction, await member.write(operation))
    except BaseException:
        # The client may have gone when the group was committed already.
        if _was_committed(member, transaction.session.key, transaction.number):
            table.committed(transaction, member.store.last_applied)
        table.abort(transaction)
        raise


async def abort_transaction(ctx: CommandContext) -> Reply:
    """Abort the transaction: what it wrote is forgotten."""
    session, table = _session_of(ctx), ctx.member.transactions
    write_concern_of(ctx)  # is checked, and nothing is waited for: an abort writes nothing
    number = number_of(session)
    if _was_committed(ctx.member, session.key, number):
        raise ReplError(f"Transaction {number} has been committed.", code=ErrorCode.TRANSACTION_COMMITTED)
    transaction = table.find(session, number)
    transaction.check_open()
    table.abort(transaction)
    failure = await wait_for_write_concern(ctx, ctx.member.store.last_applied, WriteConcern(1))
    return {} if failure is None else {"writeConcernError": failure}


COMMANDS: tuple[Command, ...] = (
    Command(
        "commitTransaction",
        commit_transaction,
        admin_only=True,
        write_concern=True,
        ends_transaction=True,
        needs=Action.LOGIN,
    ),
    Command(
        "abortTransaction",
        abort_transaction,
        admin_only=True,
        write_concern=True,
        ends_transaction=True,
        needs=Action.LOGIN,
    ),
)

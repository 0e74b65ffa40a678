"""commitTransaction and abortTransaction."""

from __future__ import annotations

from replset.auth.roles import Action
from replset.core.quorum import WriteConcern
from replset.errors import (
    ErrorCode,
    NotWritablePrimaryError,
    ReplError,
)
from replset.operations.command import Command, CommandContext
from replset.operations.in_transaction import number_of, session_of
from replset.operations.kernel import Kernel
from replset.operations.request import Reply
from replset.operations.session_request import SessionRequest
from replset.operations.transactions import State, Transaction, TransactionTable
from replset.operations.write_concern import refuse_few_in_sync, wait_for_write_concern, write_concern_of
from replset.oplog_entry import OplogEntry
from replset.replication.session_write import record_applied
from replset.replication.write_ops import WriteGroup
from replset.storage.catalog import SESSIONS
from replset.storage.sessions import is_committed, txn_number_of


async def commit_transaction(ctx: CommandContext) -> Reply:
    """Commit the transaction and wait for the write concern; again after an answer that was lost.

    A commit that is repeated waits for everything that this member has, and so for the transaction's entry. That one
    may be of an earlier term, which this primary cannot wait for. Where there is no such transaction the wait tells
    whether it can still come: an entry of it on a member that was primary before is rolled back once a majority has
    the entries of this one.
    """
    session, concerns, missing = session_of(ctx), [write_concern_of(ctx)], None
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
    transaction = member[TransactionTable].find(session, number)
    if transaction.state is not State.COMMITTED:
        transaction.check_open()
        if not transaction.write_set.is_empty:
            concerns = list(dict.fromkeys(write_concern_of(ctx, ns) for ns in transaction.write_set.namespaces))
            try:
                for concern in concerns:
                    refuse_few_in_sync(member, concern)
            except ReplError:
                member[TransactionTable].abort(transaction)  # else it would hold its documents until its life ends
                raise
        await _commit(member, transaction)
    return concerns


def _was_committed(member: Kernel, key: bytes, number: int) -> bool:
    """Whether the session's record says so: after a failover it is all that the new primary knows."""
    raw = member.store.get(SESSIONS, key)
    return raw is not None and txn_number_of(raw) == number and is_committed(raw)


async def _commit(member: Kernel, transaction: Transaction) -> None:
    table = member[TransactionTable]
    if transaction.write_set.is_empty:
        table.committed(transaction)
        return
    transaction.state = State.COMMITTING

    def operation(group: WriteGroup) -> None:
        transaction.check_open()
        if group.term != transaction.term:
            raise NotWritablePrimaryError()
        entry = transaction.write_set.commit(group, transaction.entry_fields())
        record_applied(group.txn, OplogEntry(entry))

    try:
        await member.write(operation)
        table.committed(transaction)
    except BaseException:
        # The client may have gone when the group was committed already.
        if _was_committed(member, transaction.session.key, transaction.number):
            table.committed(transaction)
        table.abort(transaction)
        raise


async def abort_transaction(ctx: CommandContext) -> Reply:
    """Abort the transaction: what it wrote is forgotten."""
    session, table = session_of(ctx), ctx.member[TransactionTable]
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

"""Runs a command that is part of a transaction."""

from __future__ import annotations

from typing import Final

from replset.errors import (
    ErrorCode,
    InvalidOptionsError,
    NotWritablePrimaryError,
    QueryPlanKilledError,
    ReplError,
    Trait,
    WriteConflictError,
)
from replset.operations.command import Command, CommandContext
from replset.operations.kernel import Kernel
from replset.operations.namespaces import collection_field
from replset.operations.read_concern import ReadConcern, read_concern_of, read_point
from replset.operations.request import Reply
from replset.operations.session_request import SessionRequest
from replset.operations.transactions import TRANSIENT, Transaction, TransactionTable

COMMANDS_INSIDE: Final = frozenset(
    {"find", "getMore", "killCursors", "insert", "update", "delete", "findAndModify", "distinct", "aggregate"}
    | {"create", "createIndexes", "commitTransaction", "abortTransaction"}
)


def session_of(ctx: CommandContext) -> SessionRequest:
    if ctx.session is None or ctx.session.autocommit is not False:
        raise InvalidOptionsError(f"{ctx.name} must be run within a transaction", code=ErrorCode.COMMAND_FAILED)
    return ctx.session


def number_of(session: SessionRequest) -> int:
    """The number of the transaction that a command with `autocommit: false` belongs to."""
    if session.txn_number is None:
        raise InvalidOptionsError("'autocommit' field requires a transaction number to also be specified")
    return session.txn_number


async def run_in_transaction(ctx: CommandContext) -> Reply:
    """Run a command with `autocommit: false`, one at a time in a session. A failure aborts its transaction."""
    session = session_of(ctx)
    check_command(ctx, ctx.command)
    _check_writable(ctx.member)
    await ctx.sessions.check_out(session.key, ctx.left_ms)
    try:
        _check_writable(ctx.member)
        return await (ctx.command.run(ctx) if ctx.command.ends_transaction else _run_inside(ctx, session))
    finally:
        ctx.sessions.check_in(session.key)


def _check_writable(member: Kernel) -> None:
    if not member.node.writable:
        text = "Not primary so we cannot begin or continue a transaction"
        raise NotWritablePrimaryError(text)


async def _run_inside(ctx: CommandContext, session: SessionRequest) -> Reply:
    table = ctx.member[TransactionTable]
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
    return ctx.member[TransactionTable].begin(session, number_of(session))


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

"""Runs commands: one document in, one document out. The wire port and the HTTP API both use this dispatcher."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from replset.auth.users import Login
from replset.bson import Binary, RawDocument, encode
from replset.errors import (
    CommandNotFoundError,
    ErrorCode,
    InvalidOptionsError,
    InvariantError,
    NotWritablePrimaryError,
    ReplError,
    forget_frames,
)
from replset.ids import Millis
from replset.operations import fields
from replset.operations.audit_trail import AuditTrail, without_secrets
from replset.operations.authorization import authorize
from replset.operations.command import GENERIC_FIELDS, PROVE, Command, CommandContext, Repeat, Where
from replset.operations.current_operations import OperationTable
from replset.operations.cursors import CursorTable
from replset.operations.evaluation import IS_TIME_UP, SMALL_STATEMENT
from replset.operations.fail_command import fail_command
from replset.operations.flow_control import FlowControl
from replset.operations.in_transaction import add_transaction_label, run_in_transaction
from replset.operations.kernel import Kernel
from replset.operations.known_fields import unknown_command
from replset.operations.prepared import PreparedCommands
from replset.operations.read_concern import check_readable
from replset.operations.replies import (
    LargeReply,
    add_resumable_label,
    add_retry_labels,
    add_topology_version,
    error_reply,
    finish,
    label_concern_error,
    replace_labels,
)
from replset.operations.request import CommandRequest, ConnectionContext, Reply
from replset.operations.session_request import (
    NOBODY,
    SessionRequest,
    check_cluster_time,
    foreign_session,
    parse_session,
    plain_session,
)
from replset.operations.session_table import SessionTable
from replset.operations.slow_operations import WORK
from replset.operations.stable_api import check_api
from replset.operations.statement_memory import LARGE, StatementMemory
from replset.operations.transactions import TransactionTable
from replset.operations.user_directory import UserDirectory
from replset.operations.waiters import Completion

log = logging.getLogger("replset.commands")

LARGEST_FIELD = 256 << 10
LARGEST_GENERIC = 16 << 10
"""Bytes of a field that is read on the event loop, and of one that every command takes."""
LONGEST_NAME = 32
"""Bytes of the name of a command that runs at once."""
ANY_SIZE = frozenset(
    {"documents", "updates", "deletes", "filter", "query", "projection", "sort", "update", "fields", "pipeline"}
    | {"applyOps", "comment", "endSessions", "refreshSessions", "killSessions", "killAllSessions"}
)
"""Fields that are read in a thread where they are large (evaluation.py), or not read at all."""
HELLO_NAMES = frozenset({"hello", "isMaster", "ismaster"})


class Dispatcher:
    """Runs commands on one member. `counts` and `failures`: how many so far, by command name and by error code."""

    def __init__(self, member: Kernel, commands: Iterable[Command]) -> None:
        self.member = member
        self._users, self._transactions = member[UserDirectory], member[TransactionTable]
        self._audit = member[AuditTrail]
        self.cursors = CursorTable(member.clock, member.rng, member.admission)
        self.sessions = SessionTable()
        self.sessions.on_end.append(self._transactions.abort_sessions)
        self.sessions.on_end.append(self.cursors.end_sessions)
        self.operations = OperationTable(member.clock, member[FlowControl])
        self.counts: dict[str, int] = {}
        self.failures: dict[int, int] = {}
        self.commands = {name: command for command in commands for name in (command.name, *command.aliases)}
        """By each of their names."""
        self._at_once = {name.encode(): row for name, row in self.commands.items() if row.at_once is not None}
        self.prepared = PreparedCommands(self)
        self._statements, self._large_statements = StatementMemory(), StatementMemory()

    async def run(self, request: CommandRequest) -> Reply:
        """Return the reply, a document or bytes. A failure is a reply with ok: 0. Only a broken invariant is raised."""
        member, ctx = self.member, None
        try:
            if self._users.required:
                await self._learn_user(request)
            ctx = self._begin(request)
            reply = await self._operate(ctx)
            self._audit.command(ctx, 0)
            if isinstance(reply, bytes):
                return reply
        except InvariantError:
            raise
        except Exception as error:
            reply = self._failed(request, ctx, error)
            forget_frames(error)
        whole = self.complete(request, ctx, reply)
        if not isinstance(reply, LargeReply):
            return whole
        return await member.evaluations.run(lambda: encode(whole))  # whatever is left of maxTimeMS: the work is done

    def _failed(self, request: CommandRequest, ctx: CommandContext | None, error: BaseException) -> dict[str, object]:
        """Return the reply of a command that failed, without the fields that every reply ends with."""
        if not isinstance(error, ReplError):
            log.error("command failed: %r", without_secrets(request.body), exc_info=error)
            self.failures[1] = self.failures.get(1, 0) + 1
            return error_reply(ReplError(f"internal error: {type(error).__name__}: {error}"), self.member)
        if ctx is not None and ctx.is_retryable:
            add_retry_labels(error, has_written=ctx.has_written or ctx.command.ends_transaction)
        if ctx is not None:
            add_resumable_label(ctx, error)
        self.failures[error.code] = self.failures.get(error.code, 0) + 1
        if error.code == ErrorCode.UNAUTHORIZED:
            self._audit.refused(request)
        elif ctx is not None:
            self._audit.command(ctx, error.code)
        return error_reply(error, self.member)

    def complete(
        self, request: CommandRequest, ctx: CommandContext | None, reply: dict[str, object]
    ) -> dict[str, object]:
        """Add what every reply ends with, and the labels of a write concern that is not met."""
        failure = reply.get("writeConcernError")
        if isinstance(failure, dict):
            if ctx is not None and ctx.is_retryable and reply.get("ok") != 0.0:
                label_concern_error(reply)
            add_topology_version(reply, failure.get("code"), self.member)
        if request.error_labels is not None:
            replace_labels(reply, request.error_labels)
        return finish(reply, self.member.store.last_applied.ts)

    def refuse(self, request: CommandRequest, ctx: CommandContext | None, error: BaseException) -> dict[str, object]:
        """Return the whole reply of a command that ran in no task, and failed."""
        return self.complete(request, ctx, self._failed(request, ctx, error))

    def at_once(self, body: RawDocument) -> Command | None:
        """The command if it may run without a task (`begin`), by a cheap look."""
        raw = body.raw
        command = self._at_once.get(raw[5 : raw.find(b"\0", 5, 5 + LONGEST_NAME)])
        if command is None or command.at_once is None or self.member.fail_points.active:
            return None
        return command if command.at_once.fits(body) else None

    def begin(self, command: Command, request: CommandRequest, waiter: Completion) -> bool:
        """Run a command that needs no task: `waiter` gets the reply's bytes or the error, at once or later.

        False: nothing has happened. `run` has to answer it, which meets whatever is unusual again.
        """
        counted = self.counts.get(command.name, 0)
        try:
            ctx = self._begin(request)
            self._check_may_run(ctx)
            has_begun = command.at_once is not None and command.at_once.begin(ctx, waiter)
        except Exception:
            if waiter.done():  # its reply has gone, so it must not run again
                raise
            has_begun = False
        if not has_begun:
            self.counts[command.name] = counted
        return has_begun

    def again(self, repeat: Repeat, name: str, message: bytes, waiter: Completion) -> bool:
        """Carry out a member's command like one before, by its form. False: as of `begin`."""
        if self.member.fail_points.active:
            return False
        try:
            repeat.begin(message, waiter)
        except Exception:
            if waiter.done():
                raise
            return False
        self.counts[name] += 1
        return True

    def _begin(self, request: CommandRequest) -> CommandContext:
        """Check what every command is checked for. ReplError: it is refused."""
        body = request.body
        name = body.first_key
        command = None if name is None else self.commands.get(name)
        if command is None or name is None or self._is_hidden(command, request):
            raise CommandNotFoundError(f"no such command: '{name}'") if command else unknown_command(name)
        self.counts[command.name] = self.counts.get(command.name, 0) + 1
        if request.legacy and name not in HELLO_NAMES:
            raise ReplError(
                f"Unsupported OP_QUERY command: {name}. The client driver may require an upgrade.",
                code=ErrorCode.UNSUPPORTED_OP_QUERY,
            )
        if command.admin_only and request.database != "admin":
            raise ReplError(f"{name} may only be run against the admin database.", code=ErrorCode.UNAUTHORIZED)
        if command.private and not request.connection.is_member and name != PROVE:
            # A heartbeat, position or vote of a stranger would count like a member's. A stranger could then have writes
            # acknowledged that no member has on disk, or make the primary step down again and again.
            raise ReplError(
                f"{name} is for members, which prove first that they are members ({PROVE})", code=ErrorCode.UNAUTHORIZED
            )
        if len(body.raw) > LARGEST_GENERIC:
            refuse_large(body, name)
        if self._users.required:
            authorize(self.member, request.sender, command.needs, request.database, name)
        if command.private and command.known is None:  # members send none of the fields below
            return self.context_of(request, command, name)
        deadline = None
        is_plain = command.known is None or body.has_only(command.plain)
        if command.known is not None and not is_plain:
            check_api(body, name)
            fields.check_fields(body, command.known, command.name)
            self._check_generic(command, request)
            deadline = self._deadline(request, name)
        elif command.known is None:
            check_api(body, name)
        cluster_time = body.get_raw("$clusterTime")
        if cluster_time is not None:
            check_cluster_time(cluster_time, self.member)
        uid = NOBODY if request.sender.login is None else request.sender.login.uid
        session = plain_session(body, uid) if is_plain else self._session(command, body, uid)
        if session is not None:
            if session.is_keyed and request.source == "wire" and not request.connection.is_member:
                raise foreign_session()
            self.sessions.note_use(session.key, self.member.clock.now())
        for sequence in request.sequences:
            if command.known is not None and sequence not in command.known:
                raise fields.unknown_field(command.name, sequence)
        return self.context_of(request, command, name, deadline, session)

    def context_of(
        self,
        request: CommandRequest,
        command: Command,
        name: str,
        deadline: Millis | None = None,
        session: SessionRequest | None = None,
    ) -> CommandContext:
        return CommandContext(self.member, self.cursors, request, command, name, deadline, session, self.sessions)

    async def _learn_user(self, request: CommandRequest) -> None:
        """Note whose rights count, and read them where that takes a question to another member."""
        if request.connection.is_member:
            client = request.body.get("$replsetForwarded")
            if isinstance(client, dict):
                login = Login(str(client.get("user")), str(client.get("db")))
                request.acting = ConnectionContext(peer=request.connection.peer, login=login)
        login_now = request.sender.login
        if login_now is not None and not self._users.knows(login_now):
            await self._users.refresh(login_now)

    async def _operate(self, ctx: CommandContext) -> Reply:
        """Carry the command out, and show it in currentOp meanwhile. Interrupted (11601): killOp ended it."""
        task = ctx.connection.task or asyncio.current_task()
        if task is None or ctx.command.private:
            if self.member.fail_points.active:
                await fail_command(ctx)
            return await ctx.command.run(ctx)
        operation = self.operations.begin(ctx, task)
        WORK.set(ctx.work)
        IS_TIME_UP.set(ctx.is_time_up)
        try:
            size = ctx.request.statement_bytes
            if size <= SMALL_STATEMENT:
                return await self._carry_out(ctx)
            async with (self._statements if size <= LARGE else self._large_statements).held(ctx, size):
                return await self._carry_out(ctx)
        except ReplError:
            self.operations.failed += 1
            raise
        except asyncio.CancelledError:
            if not operation.is_killed or task.uncancel():  # or the client has left, or the member stops, as well
                raise
            raise ReplError("operation was interrupted", code=ErrorCode.INTERRUPTED) from None
        finally:
            self.operations.end(operation)

    def _check_may_run(self, ctx: CommandContext) -> None:
        """Raise ReplError if this member, in its state, does not carry the command out now."""
        command, session = ctx.command, ctx.session
        if session is not None and session.txn_number is not None:
            self._transactions.check_retryable_write(session.key, session.txn_number)
        if command.where is Where.READABLE:
            check_readable(ctx)
        elif command.where is Where.PRIMARY and not self.member.node.writable:
            raise NotWritablePrimaryError()

    async def _carry_out(self, ctx: CommandContext) -> Reply:
        if ctx.in_transaction:
            return await self._carry_out_inside(ctx)
        if self.member.fail_points.active:
            await fail_command(ctx)
        self._check_may_run(ctx)
        return await ctx.command.run(ctx)

    async def _carry_out_inside(self, ctx: CommandContext) -> Reply:
        """Carry out a command of a transaction."""
        try:
            if self.member.fail_points.active:
                await fail_command(ctx)
            return await run_in_transaction(ctx)
        except ReplError as error:
            add_transaction_label(ctx, error)
            raise

    def _is_hidden(self, command: Command, request: CommandRequest) -> bool:
        """Whether this member answers that it does not know the command."""
        return (command.test_only and not self.member.test_commands) or (command.private and request.source == "http")

    def _check_generic(self, command: Command, request: CommandRequest) -> None:
        """Refuse generic fields that this command does not support."""
        body = request.body
        for name in ("stmtId", "stmtIds"):
            if name in body and not command.retryable:
                raise fields.unknown_field(command.name, name)
        if not command.write_concern and "writeConcern" in body:
            raise InvalidOptionsError(f"Command {command.name} does not support writeConcern")
        if not command.read_concern and "readConcern" in body and "startTransaction" not in body:
            concern = body.get("readConcern")
            # PyMongo repeats the snapshot of the cursor's session in each getMore. The cursor has its own.
            levels = ("local", "snapshot") if command.name == "getMore" else ("local",)
            if not isinstance(concern, dict) or concern.get("level", "local") not in levels:
                raise InvalidOptionsError(f"Command {command.name} does not support this readConcern")

    def _session(self, command: Command, body: RawDocument, uid: Binary) -> SessionRequest | None:
        return parse_session(
            body, command.name, uid, is_retryable=command.retryable, ends_transaction=command.ends_transaction
        )

    def _deadline(self, request: CommandRequest, name: str) -> Millis | None:
        """Return when maxTimeMS is over; maxTimeMSOpOnly, which drivers' proxies send, may end it earlier."""
        limits = [
            fields.whole(request.body, field, name, least=0, most=(1 << 31) - 1)
            for field in ("maxTimeMS", "maxTimeMSOpOnly")
            if field in request.body
        ]
        limits = [limit_ms for limit_ms in limits if limit_ms]
        return Millis(self.member.clock.now() + min(limits)) if limits else None


def refuse_large(body: RawDocument, command: str) -> None:
    """Refuse a field that would take the event loop too long to read (10334)."""
    for name in body.keys():  # noqa: SIM118 - a RawDocument is no mapping
        most = LARGEST_GENERIC if name in GENERIC_FIELDS else LARGEST_FIELD
        if name not in ANY_SIZE and body.size_of(name) > most:
            raise ReplError(
                f"BSON field '{command}.{name:.80}' is over {most} bytes", code=ErrorCode.DOCUMENT_TOO_LARGE
            )

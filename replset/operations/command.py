"""Defines a command and what its handler is given. features/all.py lists all features; dispatcher.py runs commands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from replset.auth.roles import Action
from replset.bson import RawDocument
from replset.errors import DocumentHeldError, MaxTimeMSExpiredError
from replset.ids import Millis
from replset.operations import fields
from replset.operations.cursors import CursorTable
from replset.operations.declared import declaration_of
from replset.operations.kernel import Kernel
from replset.operations.request import CommandRequest, ConnectionContext, Reply
from replset.operations.slow_operations import SlowReason, Work
from replset.operations.transactions import TransactionTable
from replset.operations.waiters import Completion
from replset.replication.write_ops import WriteGroup, do_insert
from replset.storage.catalog import Collection

if TYPE_CHECKING:
    from replset.operations.session_request import SessionRequest
    from replset.operations.session_table import SessionTable
    from replset.operations.transactions import Transaction

T = TypeVar("T")

GENERIC_FIELDS = frozenset(
    {"$db", "$clusterTime", "$readPreference", "$configServerState", "$configTime", "$topologyTime", "$audit"}
    | {"$client", "$replData", "lsid", "txnNumber", "autocommit", "startTransaction", "stmtId", "stmtIds"}
    | {"apiVersion", "apiStrict", "apiDeprecationErrors", "comment", "maxTimeMS", "maxTimeMSOpOnly"}
    | {"readConcern", "writeConcern", "databaseVersion", "shardVersion", "helloOk", "mayBypassWriteBlocking"}
    | {"$replsetForwarded"}
)
"""Fields that every command takes. The dispatcher checks them, or the code that needs them."""
PROVE = "replSetProve"
"""The only private command that a connection may send before it has proved that it is a member's."""


class Where(Enum):
    """Which member carries the command out."""

    ANYWHERE = "any member, in any state"
    READABLE = "the primary; a secondary when the read preference allows it"
    PRIMARY = "the primary"


@dataclass(slots=True)
class CommandContext:
    """One running command: its member, its request, and what the dispatcher shares with it.

    command: its row of the table. name: as the client wrote it. deadline: of maxTimeMS, on the member's clock.
    linearizable_term: of a linearizable read, the primary's term when it began. It must be confirmed in that term.
    session: None when the command names none. sessions: those in use on this member. has_written: set when the command
    fails after a part of it was committed. transaction: that the command is part of. opened_by: of a getMore, the
    command that opened its cursor. collection: that it names, once that is read.
    is_change_stream: of a getMore, whether its cursor is one.
    work: what it did and waited for so far.
    """

    member: Kernel
    cursors: CursorTable
    request: CommandRequest
    command: Command
    name: str
    deadline: Millis | None
    session: SessionRequest | None
    sessions: SessionTable
    linearizable_term: int | None = None
    has_written: bool = False
    transaction: Transaction | None = None
    opened_by: RawDocument | None = None
    collection: str | None = None
    is_change_stream: bool = False
    work: Work = field(default_factory=Work)

    @property
    def in_transaction(self) -> bool:
        """Whether the command says that it is part of a transaction."""
        return self.session is not None and self.session.autocommit is False

    @property
    def is_retryable(self) -> bool:
        """Whether a driver sends the command again after an error that has the label for it."""
        session = self.session
        return session is not None and (session.is_retryable_write or self.command.ends_transaction)

    async def write(self, operation: Callable[[WriteGroup], T]) -> T:
        """Run a write operation in the command's transaction, or as `Kernel.write` in the next group.

        Outside of a transaction it waits for documents that one holds. MaxTimeMSExpiredError.
        """
        member = self.member
        if self.transaction is not None:
            await asyncio.sleep(0)
            return member[TransactionTable].write(self.transaction, operation)
        while True:
            began = member.clock.now()

            def run(group: WriteGroup, began: Millis = began) -> T:
                self.work.waited(SlowReason.WRITE_QUEUE, member.clock.now() - began)
                return operation(group)

            try:
                return await member.write(run)
            except DocumentHeldError as held:
                await self.wait_until_free(held.place)

    async def wait_until_free(self, place: tuple[bytes, bytes]) -> None:
        """Wait until no transaction holds the document. MaxTimeMSExpiredError."""
        began = self.member.clock.now()
        await self.member[TransactionTable].wait_until_free(place, self.deadline)
        self.work.waited(SlowReason.TRANSACTION, self.member.clock.now() - began)

    @property
    def body(self) -> RawDocument:
        return self.request.body

    @property
    def database(self) -> str:
        return self.request.database

    @property
    def connection(self) -> ConnectionContext:
        return self.request.connection

    @property
    def sender(self) -> ConnectionContext:
        return self.request.sender

    @property
    def left_ms(self) -> int | None:
        """What is left of maxTimeMS; None: no limit."""
        return None if self.deadline is None else max(0, self.deadline - self.member.clock.now())

    def is_time_up(self) -> bool:
        """Return True once maxTimeMS is over."""
        return self.deadline is not None and self.member.clock.now() >= self.deadline

    def check_deadline(self) -> None:
        """Raise MaxTimeMSExpiredError once maxTimeMS is over. Long work calls this between its slices."""
        if self.is_time_up():
            raise MaxTimeMSExpiredError("operation exceeded time limit")


def remember_client(ctx: CommandContext) -> None:
    """Keep the client metadata of the connection's first hello."""
    client = fields.document(ctx.body, "client", ctx.name)
    if client is not None and ctx.connection.metadata is None:
        ctx.connection.metadata = client
        application = client.get("application")
        if isinstance(application, dict):
            ctx.connection.app_name = str(application.get("name", ""))


Handler = Callable[[CommandContext], Awaitable[Reply]]
Counters: TypeAlias = tuple[tuple[str, int], ...]
PreparedWork: TypeAlias = Callable[[WriteGroup, Collection], Counters]
"""Does a write of one document inside a group, and gives the reply's counters. UnusualError, and every ReplError: it
has to go the usual way."""


INSERTED_ONE: Final[Counters] = (("n", 1),)


class UnusualError(Exception):
    """A prepared write has to go the usual way; nothing of it is left in the group."""


class PreparedInsert:
    """The insert of a document, whose key is the `encode_key` of its `_id`, as a PreparedWork."""

    __slots__ = ("row",)

    def __init__(self, key: bytes, document: bytes) -> None:
        self.row = key, document

    def __call__(self, group: WriteGroup, coll: Collection) -> Counters:
        if do_insert(group, coll, *self.row) is None:
            raise UnusualError  # the key is there already
        return INSERTED_ONE


class Repeat(Protocol):
    """The form of a command that a connection sends again and again, the same but for numbers."""

    def fits(self, message: bytes) -> bool:
        """Whether these bytes are one message of this form."""
        ...

    def begin(self, message: bytes, waiter: Completion) -> None:
        """Carry out such a message; the completion gets the reply's bytes, at once or later. ReplError."""
        ...


class AtOnce(NamedTuple):
    """How a command runs in the turn in which it arrives, without a task and an entry in currentOp.

    begin: the completion gets the reply's bytes, at once or later; False: the command is not so simple, nothing has
    happened, and `run` answers it. fits: a cheap look at the body, before all checks. repeat: the form of a member's
    command that was begun, of its body and message; None: it has none.
    """

    begin: Callable[[CommandContext, Completion], bool]
    fits: Callable[[RawDocument], bool] = lambda _: True
    repeat: Callable[[Kernel, RawDocument, bytes], Repeat | None] | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """One command. fields: those it takes beside its own name and the generic ones; None: any (for internal ones).

    needs: what its sender must be allowed to do where members were started with --auth (authorization.py); it has no
    default. admin_only: refused (13) against another database. test_only: only with --enable-test-commands.
    private: between members. It is not served over HTTP, and only on a connection that has proved itself a member's.
    retryable: takes a `txnNumber` outside of a transaction. ends_transaction: commitTransaction and abortTransaction.
    read_concern, write_concern: whether it takes one; otherwise one that is given is refused (72).
    at_once: for a command that is sent often and needs no task. prepared: makes the work of a statement of one document
    that is taken from the bytes of a message (prepared.py); None: it has to go the usual way. prepared_read: likewise
    the reply to a find, by its filter and namespace.
    """

    name: str
    run: Handler
    fields: frozenset[str] | None = frozenset()
    aliases: tuple[str, ...] = ()
    where: Where = Where.ANYWHERE
    admin_only: bool = False
    test_only: bool = False
    private: bool = False
    read_concern: bool = False
    write_concern: bool = False
    retryable: bool = False
    ends_transaction: bool = False
    at_once: AtOnce | None = None
    prepared: Callable[[bytes, Kernel], PreparedWork | None] | None = None
    prepared_read: Callable[[bytes, Kernel, str], bytes | None] | None = None
    needs: Action = field(kw_only=True)
    known: frozenset[str] | None = field(init=False, compare=False)
    """All field names that are taken, its own included; None: any."""
    plain: frozenset[bytes] = field(init=False, compare=False)
    """Those of them that the dispatcher need not look at, as they are in BSON."""

    def __post_init__(self) -> None:
        own = (self.fields or frozenset()) | {self.name, *self.aliases}
        plain = own | {"$db", "$clusterTime", "$readPreference", "lsid", "comment"}
        if self.read_concern:
            plain |= {"readConcern"}
        if self.write_concern:
            plain |= {"writeConcern"}
        if self.retryable:
            plain |= {"txnNumber", "stmtId", "stmtIds"}
        object.__setattr__(self, "known", None if self.fields is None else own | GENERIC_FIELDS)
        object.__setattr__(self, "plain", frozenset(name.encode() for name in plain))


def declared(cls: type[T], run: Callable[[CommandContext, T], Awaitable[Reply]]) -> Command:
    """The row of a declared operation of the admin database. run: is given what the client asked for."""
    declaration = declaration_of(cls)

    async def handler(ctx: CommandContext) -> Reply:
        return await run(ctx, declaration.read(cls, ctx.body))

    handler.__doc__ = declaration.summary
    where = Where.PRIMARY if declaration.on_primary else Where.ANYWHERE
    return Command(declaration.name, handler, declaration.names, where=where, admin_only=True, needs=declaration.needs)

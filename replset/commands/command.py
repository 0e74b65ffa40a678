"""What a command is, and what its handler is given. The table of them is table.py, their dispatcher dispatcher.py."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum

from replset.bson import RawDocument
from replset.commands.cursors import CursorTable
from replset.commands.ports import CommandRequest, MemberPort, Reply
from replset.errors import MaxTimeMSExpiredError
from replset.ids import Millis

GENERIC_FIELDS = frozenset(
    {
        "$db",
        "$clusterTime",
        "$readPreference",
        "$configServerState",
        "$configTime",
        "$topologyTime",
        "$audit",
        "$client",
        "$replData",
        "lsid",
        "txnNumber",
        "autocommit",
        "startTransaction",
        "stmtId",
        "stmtIds",
        "apiVersion",
        "apiStrict",
        "apiDeprecationErrors",
        "comment",
        "maxTimeMS",
        "readConcern",
        "writeConcern",
        "databaseVersion",
        "shardVersion",
        "helloOk",
        "mayBypassWriteBlocking",
        "maxTimeMSOpOnly",
        "$replsetForwarded",
    }
)
"""Fields that every command takes; what they mean is looked at in one place (dispatcher.py) or where they matter."""
PROVE = "replSetProve"
"""The one command of members that a connection may say before it has proved that it is one."""
CONCERNS = ("readConcern", "writeConcern")


class Where(Enum):
    """Which member carries the command out."""

    ANYWHERE = "any member, in any state"
    READABLE = "the primary; a secondary when the read preference allows it"
    PRIMARY = "the primary"


class CommandContext:
    """One running command: who asks what of whom."""

    __slots__ = (
        "body",
        "connection",
        "counts",
        "cursors",
        "database",
        "deadline",
        "linearizable_term",
        "member",
        "name",
        "request",
    )

    def __init__(
        self,
        member: MemberPort,
        cursors: CursorTable,
        counts: dict[str, int],
        request: CommandRequest,
        name: str,
        deadline: Millis | None,
    ) -> None:
        """name: as the client wrote it. counts: commands so far. deadline: of maxTimeMS, on the member's clock."""
        self.member = member
        self.cursors = cursors
        self.counts = counts
        self.request = request
        self.name = name
        self.body: RawDocument = request.body
        self.database = request.database
        self.connection = request.connection
        self.deadline = deadline
        self.linearizable_term: int | None = None
        """Of a linearizable read: the primary's term when it began; what was read must be proven in that same term."""

    def check_deadline(self) -> None:
        """MaxTimeMSExpiredError once maxTimeMS is over; long work asks now and then."""
        if self.deadline is not None and self.member.clock.now() >= self.deadline:
            raise MaxTimeMSExpiredError("operation exceeded time limit")


Handler = Callable[[CommandContext], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Command:
    """One command. fields: those it takes beside its own name and the generic ones; None: any (for internal ones).

    admin_only: refused (13) against another database. test_only: only with --enable-test-commands.
    private: for members among themselves; not served over HTTP, and with a key file only to who proved to be a member.
    read_concern, write_concern: whether it takes one; otherwise one that is given is refused (72).
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
    known: frozenset[str] | None = field(init=False, compare=False)
    """All field names that are taken, its own included; None: any."""
    plain: frozenset[str] = field(init=False, compare=False)
    """Those of them that say nothing to the dispatcher."""

    def __post_init__(self) -> None:
        own = (self.fields or frozenset()) | {self.name, *self.aliases}
        object.__setattr__(self, "known", None if self.fields is None else own | GENERIC_FIELDS)
        concerns = {
            name for name, taken in zip(CONCERNS, (self.read_concern, self.write_concern), strict=True) if taken
        }
        object.__setattr__(
            self, "plain", own | concerns | {"$db", "$clusterTime", "$readPreference", "lsid", "comment"}
        )

"""Defines what commands need of a running member, and what a command is given. RunningMember implements MemberPort."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

from replset.auth.users import Login, SaslConversation
from replset.bson import MAX_BSON_SIZE, ObjectId, RawDocument
from replset.core.messages import ProgressRequest, ReplyBody, RequestBody
from replset.core.node import Node
from replset.ids import HostPort, Millis, OpTime
from replset.key_file import Handshake, Keys
from replset.member.peers.snapshot_server import SnapshotServer
from replset.operations.fail_points import FailPoints
from replset.operations.waiters import ByteRate, Completion, Topology, WaiterList
from replset.replication.document_check import DocumentCheck, ScrubStatus
from replset.replication.document_repair import DocumentRepair
from replset.replication.followed import FollowProgress
from replset.replication.index_builder import IndexBuilder
from replset.replication.initial_sync_progress import InitialSyncProgress
from replset.replication.ports import Clock, MemberClient, Workers
from replset.replication.protocol import Awaited
from replset.replication.rollback_list import RollbackList
from replset.replication.rollback_progress import RollbackProgress
from replset.replication.write_ops import WriteGroup
from replset.storage.member_file import JournalLine, OplogLimits
from replset.storage.store import Store

if TYPE_CHECKING:
    from replset.features.archive.archive_lease import ArchiveLease, ArchiveStatus
    from replset.features.consumers.consumer_directory import ConsumerDirectory
    from replset.member.peers.oplog_fetch import OplogFetches
    from replset.operations.audit_trail import AuditTrail
    from replset.operations.history import History
    from replset.operations.transactions import TransactionTable
    from replset.operations.user_directory import UserDirectory

T = TypeVar("T")
LONGEST_LINE = 2_000

Reply: TypeAlias = dict[str, object] | bytes
"""What a command answers: a document, or for the hot commands its bytes."""

Source: TypeAlias = Literal["wire", "http", "internal"]


class MemoryCounter(Protocol):
    """Counts the memory that requests take."""

    def add(self, size: int) -> None:
        """Add `size` bytes; a negative number takes bytes off."""
        ...

    @property
    def left(self) -> int:
        """Bytes that may still be used; negative if more are than may be."""
        ...


class Slices(Protocol):
    """Shares the turns of the event loop among all commands that go on."""

    async def wait(self, size: int) -> None:
        """Wait for a turn with room for one more slice. size: its bytes, 0 where they are not known."""
        ...


class FlowControlState(Protocol):
    """What flow control does now. Sizes are bytes of oplog."""

    @property
    def per_second(self) -> float | None:
        """What writers may write in a second; None: no limit."""
        ...

    @property
    def is_lagged(self) -> bool: ...

    @property
    def lag_ms(self) -> int:
        """How far the write majority was behind a second ago."""
        ...

    @property
    def waits_for(self) -> tuple[HostPort, ...]:
        """The members that would have to catch up."""
        ...

    @property
    def held_ms(self) -> int:
        """For how long writers were held back since the start."""
        ...

    @property
    def times_lagged(self) -> int: ...


Owner: TypeAlias = tuple[str, bytes]
"""A client: its machine and the metadata of its first hello."""


@dataclass(slots=True)
class RecentLog:
    """The newest lines of the process's log. total: how many there were. dropped: those that were not written."""

    lines: deque[str] = field(default_factory=lambda: deque(maxlen=1024))
    total: int = 0
    dropped: int = 0

    def add(self, line: str) -> None:
        self.total += 1
        self.lines.append(line[:LONGEST_LINE])


@dataclass(slots=True)
class Traffic:
    """What passed the wire port since the start."""

    bytes_in: int = 0
    bytes_out: int = 0
    connections: int = 0


# --- requests --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ConnectionContext:
    """The sender of commands. There is one per connection; the HTTP API makes one per request.

    id: shown as connectionId. peer: `host:port` of the client. member: the member that sends, once it
    has proved itself (`replSetProve`). is_certified: whether it has shown a member's certificate, or needs none.
    handshake: of a proof that has begun. metadata: `client` of the first hello. app_name: the application's name in it.
    login: the user that has logged in on it; None: nobody (and nobody has to without --auth). sasl: a login that has
    begun.
    is_to_close: a fail point closes the connection instead of the reply. task: that runs the commands of a connection.
    """

    id: int = 0
    peer: str = ""
    member: HostPort | None = None
    is_certified: bool = True
    handshake: Handshake | None = None
    metadata: RawDocument | None = None
    app_name: str = ""
    login: Login | None = None
    sasl: SaslConversation | None = None
    is_to_close: bool = False
    task: asyncio.Task[None] | None = None

    @property
    def is_member(self) -> bool:
        return self.member is not None

    @property
    def owner(self) -> Owner | None:
        """Return the client of this connection: a driver may use any of its connections for a getMore.

        A client without metadata is known by this connection alone. None: HTTP, where no connection stays.
        """
        if not self.id:
            return None
        return (self.peer, b"") if self.metadata is None else (self.peer.rpartition(":")[0], self.metadata.raw)


@dataclass(slots=True)
class CommandRequest:
    """One command. `sequences` are the OP_MSG document sequences by their name (documents, updates, deletes).

    legacy: it came as OP_QUERY, where only hello and its aliases are answered. exhaust: its client takes a stream of
    replies. error_labels: of a fail point; they replace all others in the reply. acting: the client of another member
    that forwards its write. batch_bytes: what its sender takes of a cursor at once.
    """

    database: str
    body: RawDocument
    sequences: dict[str, list[RawDocument]] = field(default_factory=dict)
    connection: ConnectionContext = field(default_factory=ConnectionContext)
    source: Source = "wire"
    legacy: bool = False
    exhaust: bool = False
    error_labels: list[str] | None = None
    acting: ConnectionContext | None = None
    batch_bytes: int = MAX_BSON_SIZE

    @property
    def sender(self) -> ConnectionContext:
        """Whose rights count: with a write that another member forwards, those of its client."""
        return self.connection if self.acting is None else self.acting


# --- the member ------------------------------------------------------------------------------------------------


class MemberPort(Protocol):
    """One running member. Times without a unit in their name are the clock's monotonic milliseconds."""

    @property
    def host(self) -> HostPort: ...

    @property
    def http_address(self) -> str: ...

    @property
    def set_name(self) -> str:
        """The set's name that was given at start (`--replSet`)."""
        ...

    @property
    def clock(self) -> Clock: ...

    @property
    def rng(self) -> random.Random: ...

    def new_id(self) -> ObjectId:
        """Return an `_id` for a document that has none. It sorts behind those that this member made before."""
        ...

    @property
    def workers(self) -> Workers: ...

    @property
    def evaluations(self) -> Workers:
        """One thread for all clients: for filters, updates and documents that are too large for the event loop."""
        ...

    @property
    def test_commands(self) -> bool: ...

    @property
    def fail_points(self) -> FailPoints: ...

    @property
    def keys(self) -> Keys:
        """The keys of the key file, or those that all members without a key file have."""
        ...

    def reload_credentials(self) -> bool:
        """Read the key file and the certificates again, blocking. False: this member has none.

        BadValueError: they are wrong, and what was read before stays in force.
        """
        ...

    @property
    def users(self) -> UserDirectory:
        """The set's users, and whether a client must be one of them."""
        ...

    @property
    def follow_progress(self) -> FollowProgress:
        """How far this primary is with the entries of the set that its set follows."""
        ...

    @property
    def consumers(self) -> ConsumerDirectory:
        """The set's named consumers."""
        ...

    @property
    def audit(self) -> AuditTrail: ...

    @property
    def warnings(self) -> Sequence[str]:
        """Warnings about how this member was started."""
        ...

    @property
    def node(self) -> Node: ...

    @property
    def store(self) -> Store:
        """The store that is open now. An initial sync replaces it, so read it again after each await."""
        ...

    @property
    def peer(self) -> MemberClient: ...

    @property
    def flow_control(self) -> FlowControlState: ...

    @property
    def admission(self) -> MemoryCounter: ...

    @property
    def slices(self) -> Slices: ...

    @property
    def snapshots(self) -> SnapshotServer:
        """Serves copies of the database to members that sync for the first time."""
        ...

    @property
    def document_check(self) -> DocumentCheck: ...

    @property
    def document_repair(self) -> DocumentRepair: ...

    @property
    def scrub(self) -> ScrubStatus:
        """What the comparison in the background has found."""
        ...

    @property
    def archive_status(self) -> ArchiveStatus | None:
        """What this member knows of the set's archive; None: it was started without one."""
        ...

    @property
    def archive_lease(self) -> ArchiveLease: ...

    @property
    def fetches(self) -> OplogFetches:
        """The open fetches of other members."""
        ...

    @property
    def byte_rates(self) -> dict[int, ByteRate]:
        """What was sent of the oplog to each member that was far behind, by its `_id`."""
        ...

    @property
    def rollbacks(self) -> RollbackList:
        """The rollbacks of this member and their files."""
        ...

    @property
    def rollback_progress(self) -> RollbackProgress:
        """How far the rollback is that runs."""
        ...

    @property
    def command_line(self) -> tuple[Sequence[str], dict[str, object]]:
        """argv and the parsed options, for getCmdLineOpts."""
        ...

    @property
    def shutting_down(self) -> bool:
        """SIGTERM came: hello answers 91, so that clients go elsewhere."""
        ...

    @property
    def started_at(self) -> Millis: ...

    @property
    def connection_count(self) -> int: ...

    @property
    def most_connections(self) -> int: ...

    @property
    def traffic(self) -> Traffic: ...

    @property
    def recent_log(self) -> RecentLog: ...

    @property
    def awaited_members(self) -> str:
        """Why the set of --expect-members is not made yet; empty without that option."""
        ...

    async def election_journal(self, limit: int) -> list[JournalLine]:
        """The newest lines of the election journal, newest first."""
        ...

    @property
    def initial_sync_progress(self) -> InitialSyncProgress:
        """How far the initial sync under way is, or this process's last one was."""
        ...

    def write(self, operation: Callable[[WriteGroup], T]) -> Awaitable[T]:
        """Run `operation` in the next group; return its result once that is committed.

        Raises what the operation raises (then it left nothing), NotWritablePrimaryError, OutOfDiskSpaceError,
        ShutdownInProgressError, StorageError.
        """
        ...

    def submit(self, operation: Callable[[WriteGroup], Any], completion: Completion) -> None:
        """Do as `write`: `completion` gets the result or the error, in the turn in which the group ends.

        It raises only NotWritablePrimaryError and ShutdownInProgressError, at once.
        """
        ...

    @property
    def index_builder(self) -> IndexBuilder:
        """Fills the indexes under build, and ends each build on a primary."""
        ...

    @property
    def transactions(self) -> TransactionTable:
        """The open transactions, which live in this member's memory while it is primary."""
        ...

    @property
    def write_waiters(self) -> WaiterList:
        """The clients that wait for a write concern. The member releases them when a position or the commit point
        moves, and fails them (189) when it stops being primary.
        """
        ...

    @property
    def awaited(self) -> Awaited:
        """Which positions of other members a client waits for here, or waited for a moment ago."""
        ...

    def on_awaited(self, what: Literal["applied", "durable", "commit point"]) -> None:
        """Called when a client begins to wait for positions of other members, or a reader of a secondary for the commit
        point: the sync source is asked for that at once.
        """
        ...

    def on_fetch_progress(self, progress: ProgressRequest) -> None:
        """Called with the position that came with another member's fetch."""
        ...

    async def ask_core(self, body: RequestBody) -> ReplyBody:
        """Put a request to the core, return its answer. ShutdownInProgressError."""
        ...

    @property
    def topology(self) -> Topology: ...

    @property
    def history(self) -> History:
        """The committed entries, for all who follow them."""
        ...

    async def wait_for_change(self, timeout_ms: int | None) -> bool:
        """Return at the next commit, commit-point move, state change or rollback; False when the time ran out."""
        ...

    def on_damage(self, detail: str) -> None:
        """Called when an oplog entry of this member is not the one that was written; it was not served."""
        ...

    def on_chain_mismatch(self, at: OpTime) -> None:
        """Called when another member has another hash chain at this entry."""
        ...

    def cut(self, hosts: Sequence[HostPort], direction: Literal["both", "in", "out"]) -> None:
        """replSetTestCut: drop member traffic with exactly these hosts from now on; none heals all."""
        ...

    def delay(self, hosts: Sequence[HostPort], delay_ms: int) -> None:
        """replSetTestCut with delayMillis: calls to exactly these hosts leave so much later; cuts end."""
        ...

    async def resize_oplog(self, limits: OplogLimits) -> None:
        """Save and apply new limits of this member's oplog. StorageError."""
        ...

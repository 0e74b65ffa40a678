"""The running member, as operations see it. `replset.member.member.RunningMember` is what runs."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

from replset.bson import ObjectId
from replset.core.messages import ReplyBody, RequestBody
from replset.core.node import Node
from replset.ids import HostPort, Millis, OpTime
from replset.key_file import Keys
from replset.operations.admission import Admission
from replset.operations.fail_points import FailPoints
from replset.operations.turns import Turns
from replset.operations.waiters import Completion, Topology, WaiterList
from replset.replication.ports import Clock, MemberClient, Workers
from replset.replication.write_ops import WriteGroup
from replset.storage.store import Store

T = TypeVar("T")
What: TypeAlias = Literal["applied", "durable", "members", "commit point"]
"""What somebody waits for: see `Kernel.on_awaited`."""


class Kernel(ABC):
    """One running member: its kernel, and its parts by their type. A feature's operations ask for the parts they need.

    Times without a unit in their name are the clock's monotonic milliseconds.
    host: as the configuration names it. http_address: `host:port`. set_name: of `--replSet`. warnings: about how it was
    started. shutting_down: SIGTERM came, and hello answers 91, so that clients go elsewhere. awaited_members: why the
    set of --expect-members is not made yet; empty without that option.
    peer: asks other members. keys: of the key file, or those that all members without one have.
    workers: threads for what blocks, which a stop does not wait for: what writes files of the member takes those of its
    `MemberContext`. evaluations: one thread for all clients, for filters, updates and documents that
    are too large for the event loop. admission: the memory that requests take. slices: shares the turns of the event
    loop among all commands that go on. write_waiters: the clients that wait for a write concern; the member releases
    them when a position or the commit point moves, and fails them (189) when it stops being primary.
    on_awaited: called when a client begins to wait for positions of other members, or a reader of a secondary for the
    commit point: the sync source is asked for that at once. "members": of others than those that make a majority.
    """

    host: HostPort
    http_address: str
    set_name: str
    test_commands: bool
    warnings: Sequence[str]
    started_at: Millis
    shutting_down: bool
    awaited_members: str
    clock: Clock
    rng: random.Random
    node: Node
    peer: MemberClient
    keys: Keys
    workers: Workers
    evaluations: Workers
    fail_points: FailPoints
    admission: Admission
    slices: Turns
    topology: Topology
    write_waiters: WaiterList
    on_awaited: Callable[[What], None]

    def __init__(self) -> None:
        self._parts: dict[type, Any] = {}

    def __getitem__(self, kind: type[T]) -> T:
        """The part of this type. KeyError: the member was started without the feature that has it."""
        part: T = self._parts[kind]
        return part

    def get(self, kind: type[T]) -> T | None:
        """The part of this type, or None on a member that was started without its feature."""
        return self._parts.get(kind)

    def add(self, *parts: object) -> None:
        """Let operations find these, each by its type."""
        for part in parts:
            self._parts[type(part)] = part

    @property
    @abstractmethod
    def store(self) -> Store:
        """The store that is open now. An initial sync replaces it, so read it again after each await."""

    @abstractmethod
    def new_id(self) -> ObjectId:
        """Return an `_id` for a document that has none. It sorts behind those that this member made before."""

    @abstractmethod
    def write(self, operation: Callable[[WriteGroup], T]) -> Awaitable[T]:
        """Run `operation` in the next group; return its result once that is committed.

        Raises what the operation raises (then it left nothing), NotWritablePrimaryError, OutOfDiskSpaceError,
        ShutdownInProgressError, StorageError.
        """

    @abstractmethod
    def submit(self, operation: Callable[[WriteGroup], Any], completion: Completion, *, waits: bool) -> None:
        """Do as `write`: `completion` gets the result or the error, in the turn in which the group ends.

        waits: it will not be answered before its write concern is met, so its group may wait a moment for others.
        It raises only NotWritablePrimaryError and ShutdownInProgressError, at once.
        """

    @abstractmethod
    def own_work_term(self) -> int | None:
        """The term in which this set's own work (expiring documents, ending index builds) is this member's, or None."""

    @abstractmethod
    async def ask_core(self, body: RequestBody) -> ReplyBody:
        """Put a request to the core, return its answer. ShutdownInProgressError."""

    @abstractmethod
    async def wait_for_change(self, timeout_ms: int | None) -> bool:
        """Return at the next commit, commit-point move, state change or rollback; False when the time ran out."""

    @abstractmethod
    def on_damage(self, detail: str) -> None:
        """Called when an oplog entry of this member is not the one that was written; it was not served."""

    @abstractmethod
    def on_chain_mismatch(self, at: OpTime) -> None:
        """Called when another member has another hash chain at this entry."""

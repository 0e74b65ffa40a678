"""A member without sockets and without a core of its own: a real store, and answers that a test sets."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, TypeVar

import pytest

from replset.bson import ObjectId, ObjectIds, RawDocument, decode, encode
from replset.commands import read_concern, write_concern
from replset.commands.command import PROVE
from replset.commands.dispatcher import Dispatcher
from replset.commands.fail_points import FailPoints
from replset.commands.members.archive_lease import ArchiveLease, ArchiveStatus
from replset.commands.members.byte_rate import ByteRate
from replset.commands.members.oplog_fetch import OplogFetches
from replset.commands.members.snapshot_server import SnapshotServer
from replset.commands.ports import CommandRequest, ConnectionContext, RecentLog, Source, Traffic
from replset.commands.sessions.transactions import TransactionTable
from replset.commands.streams.consumer_directory import ConsumerDirectory
from replset.commands.streams.history import History
from replset.commands.table import PRIVATE
from replset.commands.topology import Topology
from replset.commands.users.audit_trail import AuditTrail
from replset.commands.users.user_directory import UserDirectory
from replset.commands.waiters import WaiterList
from replset.commands.write_concern import WriteConcernFailure
from replset.config import ReplSetConfig
from replset.core.ages import OptimeAges
from replset.core.member_state import MemberState
from replset.core.messages import Done, Position, ProgressRequest, ReplyBody, RequestBody
from replset.core.node import SERVING
from replset.core.state import Peer
from replset.core.status import Status
from replset.core.write_concern import WriteConcern
from replset.errors import HostUnreachableError, MaxTimeMSExpiredError, NotWritablePrimaryError
from replset.ids import OPTIME_NULL, HostPort, MemberId, Millis, OpTime
from replset.key_file import Keys
from replset.replication.context import Identity
from replset.replication.document_check import DocumentCheck, ScrubStatus
from replset.replication.document_repair import DocumentRepair
from replset.replication.followed import FollowProgress
from replset.replication.index_builder import IndexBuilder
from replset.replication.initial_sync_progress import InitialSyncProgress
from replset.replication.protocol import Awaited
from replset.replication.rollback_list import RollbackList
from replset.replication.rollback_progress import RollbackProgress
from replset.replication.write_ops import WriteGroup
from replset.replication.write_queue import WriteQueue
from replset.runtime.disk.flow_control import FlowControl
from replset.runtime.net.admission import Admission
from replset.runtime.net.turns import Turns
from replset.storage.disk import RealDisk
from replset.storage.member_file import JournalLine, OplogLimits
from replset.storage.store import Store, StoreOptions
from tests.rig import Rig, a_set

T = TypeVar("T")
SELF, SELF_ID = HostPort("localhost:27017"), MemberId(0)
START = Millis(0)
NOWHERE = Position(OPTIME_NULL, OPTIME_NULL, 0, 0)
CONFIG = ReplSetConfig.parse(
    {
        "_id": "rs0",
        "version": 3,
        "term": 1,
        "members": [{"_id": number, "host": f"localhost:{27017 + number}"} for number in range(3)],
    }
)


class FakeClock:
    def __init__(self) -> None:
        self.time = Millis(1_000)
        self.ahead_ms = 0

    def advance(self, ms: Millis) -> None:
        self.time = Millis(self.time + ms)

    def now(self) -> Millis:
        return self.time

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self.time + self.ahead_ms

    def set_wall_ahead(self, ahead_ms: int) -> None:
        self.ahead_ms = ahead_ms


class FakeWorkers:
    async def run(self, work: Callable[[], T]) -> T:
        return work()


class NoPeer:
    async def call(
        self, host: HostPort, command: Mapping[str, object], *, timeout_ms: Millis, database: str = "admin"
    ) -> RawDocument:
        raise HostUnreachableError(f"{host} is not reachable")


@dataclass
class FakeNode:
    config: ReplSetConfig | None = CONFIG
    state: MemberState = MemberState.PRIMARY
    term: int = 1
    primary: MemberId | None = SELF_ID
    primary_host: HostPort | None = SELF
    self_id: MemberId | None = SELF_ID
    writable: bool = True
    commit_point: OpTime = OPTIME_NULL
    commit_term: int = 0
    set_id: ObjectId | None = None
    position: Position = NOWHERE
    sync_source: HostPort | None = None
    quarantine: str = ""
    maintenance: int = 0
    status_value: Status | None = None
    lag: int | None = 0
    ages: OptimeAges = field(default_factory=OptimeAges)
    now: Millis = START
    newest_ts: int = 0

    def measured_lag_ms(self, optime: OpTime, _now: Millis) -> tuple[int, bool]:
        return self.ages.lag_ms(optime, self.now), self.ages.covers(optime)

    def measured_age_ms(self, optime: OpTime, _now: Millis) -> tuple[int, int | None]:
        return self.ages.age_ms(optime, self.now)

    def follower_bytes_per_second(self) -> int:
        return 0

    def lag_ms(self) -> int | None:
        return self.lag

    @property
    def serves_oplog(self) -> bool:
        return self.state in SERVING

    @property
    def follows_set(self) -> bool:
        return self.state.is_readable

    def peer_at(self, host: HostPort) -> Peer | None:
        return None

    def http_address_of(self, host: HostPort) -> str | None:
        return f"{host.rpartition(':')[0]}:1{host.rpartition(':')[2]}"

    in_sync_hosts: tuple[HostPort, ...] = ()
    lowered_levels: Mapping[str, int] = field(default_factory=dict)

    def flow_control_target_ms(self) -> int:
        return 10_000

    def status(self, now: Millis) -> Status | None:
        return self.status_value


class FakeTopology(Topology):
    """Nothing changes, and a wait takes no time."""

    def __init__(self, process_id: ObjectId, clock: FakeClock) -> None:
        super().__init__(process_id, clock)
        self.counter, self.fake_clock = 6, clock

    async def wait(self, counter: int, timeout_ms: int) -> None:
        self.fake_clock.advance(Millis(timeout_ms))


@dataclass
class FakeMember:
    """Everything commits at once, and concerns are met."""

    store: Store
    snapshots: SnapshotServer
    host: HostPort = SELF
    http_address: str = "localhost:28017"
    set_name: str = "rs0"
    clock: FakeClock = field(default_factory=FakeClock)
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    ids: ObjectIds = field(default_factory=lambda: ObjectIds(random.Random(8)))
    workers: FakeWorkers = field(default_factory=FakeWorkers)
    evaluations: FakeWorkers = field(default_factory=FakeWorkers)
    peer: NoPeer = field(default_factory=NoPeer)
    test_commands: bool = True
    fail_points: FailPoints = field(default_factory=lambda: FailPoints(random.Random(3)))
    reload_credentials: Callable[[], bool] = lambda: True
    keys: Keys = field(default_factory=Keys.public)
    admission: Admission = field(default_factory=Admission)
    slices: Turns = field(default_factory=lambda: Turns(lambda: 0))
    flow_control: FlowControl = field(default_factory=lambda: FlowControl(FakeClock(), lambda: (0, ())))
    warnings: list[str] = field(default_factory=list)
    node: FakeNode = field(default_factory=FakeNode)
    command_line: tuple[Sequence[str], dict[str, object]] = (["replset", "start"], {"replSet": "rs0"})
    shutting_down: bool = False
    started_at: Millis = START
    connection_count: int = 1
    most_connections: int = 100
    traffic: Traffic = field(default_factory=Traffic)
    recent_log: RecentLog = field(default_factory=RecentLog)
    awaited_members: str = ""
    initial_sync_progress: InitialSyncProgress = field(default_factory=InitialSyncProgress)
    rollback_progress: RollbackProgress = field(default_factory=RollbackProgress)
    topology: FakeTopology = field(init=False)
    core_answer: ReplyBody = field(default_factory=Done)
    asked: list[RequestBody] = field(default_factory=list)
    awaited: Awaited = ""
    write_waiters: WaiterList = field(default_factory=WaiterList)
    byte_rates: dict[int, ByteRate] = field(default_factory=dict)
    oplog_limits: OplogLimits = field(default_factory=OplogLimits)
    archive_status: ArchiveStatus | None = None
    archive_lease: ArchiveLease = field(init=False)
    audited: list[str] = field(default_factory=list)
    transactions: TransactionTable = field(init=False)
    users: UserDirectory = field(init=False)
    audit: AuditTrail = field(init=False)
    history: History = field(init=False)
    consumers: ConsumerDirectory = field(init=False)
    follow_progress: FollowProgress = field(default_factory=FollowProgress)
    scrub: ScrubStatus = field(default_factory=ScrubStatus)

    def __post_init__(self) -> None:
        self.fetches = OplogFetches(self)
        self.topology = FakeTopology(ObjectId("0123456789abcdef01234567"), self.clock)
        self.archive_lease = ArchiveLease(self.clock.now)
        self.transactions = TransactionTable(self)
        self.history = History(self)
        self.consumers = ConsumerDirectory(self)
        self.users = UserDirectory(self, required=False)
        self.audit = AuditTrail(self.audited.append, self.clock.wall_ms)
        context: Any = SimpleNamespace(clock=self.clock, store=self.store, write_queue=WriteQueue())
        context.workers, context.identity = self.workers, Identity(self.set_name, self.host)
        self.document_check = DocumentCheck(context, self.peer)
        self.document_repair = DocumentRepair(context, self.document_check, self.transactions.held.is_held)
        self.index_builder = EagerBuilder(
            context,
            busy=asyncio.Lock(),
            leads_in=lambda: self.node.term if self.node.writable else None,
            write=self.write,
        )

    def new_id(self) -> ObjectId:
        return self.ids.make(self.clock.wall_ms() // 1000)

    async def resize_oplog(self, limits: OplogLimits) -> None:
        self.oplog_limits = limits

    async def write(self, operation: Callable[[WriteGroup], T]) -> T:
        await asyncio.sleep(0)
        if not self.node.writable:
            raise NotWritablePrimaryError(primary=self.node.primary_host)
        with self.store.group() as txn, txn.savepoint():
            held = self.transactions.held
            return operation(WriteGroup(txn, self.node.term, self.clock.wall_ms(), self.rng, held))

    async def wait_until_met(
        self, optime: OpTime, concern: WriteConcern, deadline: Millis | None
    ) -> WriteConcernFailure | None:
        return None

    async def ask_core(self, body: RequestBody) -> ReplyBody:
        self.asked.append(body)
        return self.core_answer

    def on_awaited(self, what: str) -> None:
        pass

    def on_fetch_progress(self, progress: ProgressRequest) -> None:
        pass

    def on_damage(self, detail: str) -> None:
        raise AssertionError(detail)

    def on_chain_mismatch(self, at: OpTime) -> None:
        raise AssertionError(at)

    async def wait_for_change(self, timeout_ms: int | None) -> bool:
        if timeout_ms is None:
            raise MaxTimeMSExpiredError("nothing ends this wait")
        self.clock.advance(Millis(timeout_ms))
        # What is written gets to the disk while somebody waits.
        self.node.position = replace(self.node.position, last_durable=self.store.last_applied)
        return False

    def cut(self, hosts: Sequence[HostPort], direction: Literal["both", "in", "out"]) -> None:
        pass

    def delay(self, hosts: Sequence[HostPort], delay_ms: int) -> None:
        pass

    async def election_journal(self, limit: int) -> list[JournalLine]:
        return []

    @property
    def rollbacks(self) -> RollbackList:
        return RollbackList(self.store.disk, self.store.dbpath, self.workers)


class EagerBuilder(IndexBuilder):
    """Begins to work as soon as somebody waits: no task runs it."""

    def result(self, build: bytes) -> asyncio.Future[OpTime]:
        self.task = asyncio.get_running_loop().create_task(self.work())
        return super().result(build)


class Client:
    """Runs commands on the fake member, synchronously, and gives replies decoded."""

    def __init__(self, member: FakeMember) -> None:
        self.member = member
        self.dispatcher = Dispatcher(member)
        self.connection = ConnectionContext(5, "127.0.0.1:5555")
        self.proves = True
        """Whether commands between members come from a member."""
        self.loop = asyncio.new_event_loop()

    def run(
        self, command: Mapping[str, object], db: str = "test", *, source: Source = "wire", **sequences: Any
    ) -> dict[str, Any]:
        """One command; the bytes of the reply pass the codec, as on the wire."""
        body = RawDocument(encode({**command, "$db": db}))
        found = {name: [RawDocument(encode(doc)) for doc in docs] for name, docs in sequences.items()}
        connection = self.connection
        if self.proves and PRIVATE & command.keys() - {PROVE}:
            connection = replace(connection, member=HostPort("localhost:27018"))
        request = CommandRequest(db, body, found, connection, source)
        reply = self.loop.run_until_complete(self.dispatcher.run(request))
        return decode(reply if isinstance(reply, bytes) else encode(reply))

    def ok(self, command: Mapping[str, object], db: str = "test", **more: Any) -> dict[str, Any]:
        reply = self.run(command, db, **more)
        assert reply["ok"] == 1.0, reply
        return reply

    def code(self, command: Mapping[str, object], db: str = "test", **more: Any) -> int:
        """The error code of a command that must fail; codeName and message are there."""
        reply = self.run(command, db, **more)
        assert reply["ok"] == 0.0, reply
        assert reply["codeName"]
        assert reply["errmsg"]
        return int(reply["code"])

    def entries(self) -> list[dict[str, Any]]:
        """The oplog, decoded."""
        return [
            decode(row.entry) for row in self.member.store.oplog_after(OPTIME_NULL, limit=10_000, max_bytes=1 << 30)
        ]

    def close(self) -> None:
        self.loop.close()


@contextmanager
def fake_member(folder: Path) -> Iterator[FakeMember]:
    """A fake member with a store of its own in `folder`."""
    disk = RealDisk()
    clock = FakeClock()
    store = Store.open(disk, folder, StoreOptions(min_free_bytes=0))
    node = FakeNode()
    context: Any = SimpleNamespace(clock=clock, workers=FakeWorkers(), disk=disk, dbpath=str(folder), store=store)
    snapshots = SnapshotServer(context, node, random.Random(1))  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        for module in (write_concern, read_concern):
            patch.setattr(module, "wait_until_met", lambda member, *arguments: member.wait_until_met(*arguments))
        yield FakeMember(store, snapshots, clock=clock, node=node)
    store.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    with a_set() as made:
        yield made


def _drives_a_rig(request: pytest.FixtureRequest) -> bool:
    """Files that import nothing of this one."""
    return not any(value in (FakeMember, Client) for value in vars(request.module).values() if isinstance(value, type))


@pytest.fixture
def member(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if _drives_a_rig(request):
        yield request.getfixturevalue("rig").member()
        return
    with fake_member(tmp_path) as made:
        yield made


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    if _drives_a_rig(request):
        yield request.getfixturevalue("rig").client()
        return
    client = Client(request.getfixturevalue("member"))
    yield client
    client.dispatcher.cursors.close_all()
    client.close()

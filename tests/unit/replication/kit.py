"""Members without a runtime: real stores in a folder each, joined in memory through the real command documents."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import shutil
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from replset.bson import Binary, Int64, RawDocument, RawDocuments, decode, documents_of, encode, encode_key
from replset.core.ages import OptimeAges
from replset.core.member_state import MemberState
from replset.core.messages import InitialSyncEnded, ProgressRequest, Report
from replset.core.node import SERVING
from replset.errors import HostUnreachableError, ReplError
from replset.features.collections.index_check import IndexCheck
from replset.features.compared_copies.feature import compare_copies
from replset.features.scrub.document_ranges import RangeRequest, read_own
from replset.ids import OPTIME_NULL, HostPort, Millis, OpTime
from replset.member.peers.flows import Flows
from replset.member.peers.oplog_fetch import OplogFetches, oplog_probe
from replset.member.peers.snapshot_server import SnapshotServer
from replset.member.positions import Positions
from replset.operations.history import History
from replset.oplog_entry import OplogEntry, command_entry, delete_entry, insert_entry, noop_entry, update_entry
from replset.query.diff import update_entry_object
from replset.replication.applier import apply_entry
from replset.replication.context import Identity, MemberContext
from replset.replication.fetcher import Fetcher, FetchOptions
from replset.replication.initial_sync import (
    InitialSync,
    InitialSyncMarker,
    InitialSyncOptions,
    RequiredEntries,
    newest_entry_to_keep,
)
from replset.replication.protocol import Awaited
from replset.replication.rollback import Rollback
from replset.replication.write_ops import WriteGroup
from replset.replication.write_queue import WriteQueue
from replset.storage.copies import install_copy
from replset.storage.disk import Disk, RealDisk
from replset.storage.retention import remove_old_data
from replset.storage.store import Store, StoreOptions
from replset.storage.undo import undo_step
from tests.simulation.kit.loop import SimLoop

T = TypeVar("T")
SOURCE, MINE = HostPort("source:1"), HostPort("mine:1")
NS = "app.orders"
WALL_MS = 1_790_000_000_000
OPTIONS = StoreOptions(min_free_bytes=0)


class TestClock:
    """Time stands still unless a test moves it."""

    __test__ = False

    def __init__(self) -> None:
        self.ms = 0

    def now(self) -> Millis:
        return Millis(self.ms)

    def wall_ms(self) -> int:
        return WALL_MS + self.ms


class InlineWorkers:
    """Threads that are none. work: what runs in one now."""

    work: Callable[[], object] | None = None

    async def run(self, work: Callable[[], T]) -> T:
        await asyncio.sleep(0)
        self.work = work
        try:
            return work()
        finally:
            self.work = None


class FakeNode:
    """What replication reads of the core. To start two whole members takes six times as long as two of these stores."""

    def __init__(self) -> None:
        self.state = MemberState.SECONDARY
        self.config = None
        self.term = 1
        self.commit_point = OPTIME_NULL
        self.commit_term = 0
        self.timeout_ms = 400
        self.delay_ms = 0
        self.ages = OptimeAges()
        self.now = Millis(0)
        self.newest_ts = 0
        self.bytes_per_s = 0
        self.has_indexes = True
        self.set_id = None

    def builds_indexes(self) -> bool:
        return self.has_indexes

    def follower_bytes_per_second(self) -> int:
        return self.bytes_per_s

    @property
    def serves_oplog(self) -> bool:
        return self.state in SERVING

    def election_timeout_ms(self) -> Millis:
        return Millis(self.timeout_ms)

    def secondary_delay_ms(self) -> int:
        return self.delay_ms

    def measured_age_ms(self, optime: OpTime, _now: Millis) -> tuple[int, int | None]:
        return self.ages.age_ms(optime, self.now)

    def measured_lag_ms(self, optime: OpTime, _now: Millis) -> tuple[int, bool]:
        return self.ages.lag_ms(optime, self.now), self.ages.covers(optime)


class Network:
    """Joins members: `call` passes encoded bytes both ways, and may break."""

    def __init__(self) -> None:
        self.members: dict[HostPort, Member] = {}
        self.down: set[HostPort] = set()
        self.calls: list[dict[str, object]] = []
        self.before_call: Callable[[dict[str, object]], None] = lambda command: None
        self.before_reply: Callable[[dict[str, object], dict[str, object]], None] = lambda command, reply: None

    async def call(
        self, host: HostPort, command: Mapping[str, object], *, timeout_ms: Millis, database: str = "admin"
    ) -> RawDocument:
        assert timeout_ms > 0
        assert database == "admin"
        body = RawDocument(encode(command))
        document = body.decode()
        self.calls.append(document)
        self.before_call(document)
        await asyncio.sleep(0)
        if host in self.down:
            raise HostUnreachableError(f"{host} is down")
        try:
            reply = await self.members[host].serve(body)
        except ReplError as error:
            reply = {"ok": 0.0, "code": error.code, "errmsg": error.message}
        self.before_reply(document, reply)
        if host in self.down:
            raise HostUnreachableError(f"{host} is down")
        return RawDocument(encode(reply))


class NotingDisk(RealDisk):
    """done: what was written, synced and renamed, by the names alone. failing: what of that fails."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[str] = []
        self.failing = ""

    def _note(self, text: str) -> None:
        self.done.append(text)
        if text == self.failing:
            raise OSError(errno.EIO, "Input/output error")

    def write_file(self, path: str, chunks: Iterable[bytes], *, append: bool = False) -> None:
        chunks = list(chunks)
        self._note(f"write {len(chunks)} to {Path(path).name}")
        super().write_file(path, chunks, append=append)

    def sync_file(self, path: str) -> None:
        self._note(f"sync {Path(path).name}")
        super().sync_file(path)

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        self._note(f"rename to {Path(target).name}")

    def sync_folder(self, path: str) -> None:
        self._note(f"sync folder {Path(path).name}")
        super().sync_folder(path)


class Member:
    """One member's storage, with everything of replication around it."""

    def __init__(self, host: str, folder: Path, network: Network, disk: Disk | None = None) -> None:
        self.host = HostPort(host)
        self.folder = folder / host
        self.dbpath = str(self.folder)
        self.network = network
        self.disk: Disk = disk or RealDisk()
        self.clock = TestClock()
        self.workers = InlineWorkers()
        self.rng = random.Random(host)
        self.node = FakeNode()
        self.reports: list[Report] = []
        self.broken: list[BaseException] = []
        self.moves = 0
        self.incarnation = "first"
        self.write_queue = WriteQueue()
        self.lowered: list[tuple[OpTime, OpTime]] = []
        self.damage: list[str] = []
        self.doubts: list[OpTime] = []
        self.marker = False
        self.syncs = 0
        self.told: list[ProgressRequest] = []
        self.durable: OpTime | None = None  # None: as far as it is applied
        self.progress: RawDocument | None = None
        self.awaits_commit_point = False
        self.awaited: Awaited = ""
        self.history: Any = SimpleNamespace(older=None)
        self.claimed: list[OpTime] = []
        self.claims_as = ""
        self.flows = Flows()
        self.fetches = OplogFetches(self, self.told.append, self.flows)  # type: ignore[arg-type]
        self.context = MemberContext(
            disk=self.disk,
            dbpath=self.dbpath,
            clock=self.clock,
            workers=self.workers,
            store=Store.open(self.disk, self.dbpath, OPTIONS),
            write_queue=self.write_queue,
            identity=Identity("rs0", self.host),
            on_report=self.reports.append,
            on_undone=self.moved,
            on_broken=self.broken.append,
        )
        network.members[self.host] = self
        self.fetcher = Fetcher(
            self.context,
            peer=network,
            node=self.node,
            on_applied=self.moved,
            last_durable=lambda: self.store.last_applied if self.durable is None else self.durable,
            document=lambda request: replace(request, progress=self.progress).document(),
            awaits_commit_point=lambda: self.awaits_commit_point,
            options=FetchOptions(max_bytes=2_000),
        )
        self.snapshots = SnapshotServer(self.context, self.node, self.rng, self.flows)
        self.rollback = Rollback(self.context, peer=network, node=self.node, on_undo_begins=self.before_undo)
        self.initial_sync = InitialSync(
            self.context,
            peer=network,
            required=lambda: RequiredEntries(
                newest_entry_to_keep(self.store), max(self.node.commit_point, self.store.saved_commit_point())
            ),
            set_marker=self.set_marker,
            claim=self.claim,
            install=self.install,
            options=InitialSyncOptions(chunk_bytes=10_000, keep_chunks=2, pause_ms=1, spare_bytes=0),
        )
        compare_copies(self.context, self.snapshots, self.initial_sync)

    def __getitem__(self, kind: type) -> Any:
        return {History: self.history, OplogFetches: self.fetches, Positions: self}[kind]

    @property
    def store(self) -> Store:
        return self.context.store

    # --- as a member's runtime would

    async def serve(self, body: RawDocument) -> dict[str, object]:
        match body.first_key:
            case "replSetOplogFetch":
                page = await self.fetch(body)
                return {**page.decode(), "batch": RawDocuments(documents_of(page.get_raw("batch") or b""))}
            case "replSetOplogProbe":
                return (await oplog_probe(self, body)).decode()
            case "replSetSnapshot":
                return decode(encode(await self.snapshots.serve(body)))
            case "replSetDocuments":
                return (await read_own(self.context, RangeRequest.parse(body))).document()
        raise AssertionError(body.first_key)

    async def fetch(self, body: RawDocument) -> RawDocument:
        waiter: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.fetches.begin(body, waiter)
        return RawDocument(await waiter)

    def on_damage(self, detail: str) -> None:
        self.damage.append(detail)

    def on_chain_mismatch(self, at: OpTime) -> None:
        self.doubts.append(at)

    def moved(self) -> None:
        self.moves += 1
        self.fetcher.on_moved()
        with contextlib.suppress(RuntimeError):  # between two loops nobody waits
            self.fetches.on_change()

    async def set_marker(self, _required: RequiredEntries) -> InitialSyncMarker:
        if not self.marker:
            self.syncs += 1
        self.marker = True
        return InitialSyncMarker(f"sync {self.syncs}", self.incarnation)

    async def before_undo(self, common: OpTime) -> None:
        self.lowered.append((common, self.store.last_applied))

    async def claim(self, newest: OpTime) -> str:
        self.claimed.append(newest)
        return self.claims_as or self.incarnation

    async def install(self, copy: str) -> None:
        before = self.store.rollback_id
        self.store.close()
        install_copy(self.disk, self.dbpath, copy, rollback_id_before=before)
        self.context.store = Store.open(self.disk, self.dbpath, OPTIONS)
        self.marker = False
        self.moved()

    def do(self, operation: Callable[[WriteGroup], T]) -> T:
        with self.store.group() as txn:
            result = operation(WriteGroup(txn, self.node.term, self.clock.wall_ms(), self.rng))
        self.moved()
        return result

    def reopen(self) -> None:
        self.store.close()
        self.context.store = Store.open(self.disk, self.dbpath, OPTIONS)

    def reborn(self, folder: Path) -> Member:
        """The process was killed: what it wrote is there, what it knew is not."""
        shutil.copytree(self.folder, folder / self.host, ignore=shutil.ignore_patterns("*-shm"))
        again = Member(self.host, folder, self.network)
        again.marker, again.syncs = self.marker, self.syncs
        return again

    def apply(self, raw: bytes) -> None:
        with self.store.group() as txn:
            apply_entry(txn, OplogEntry(raw))

    # --- as a primary's commands would

    def _write(self, make: Callable[[OpTime, int], bytes], term: int | None) -> OpTime:
        with self.store.group() as txn:
            optime = txn.next_optime(self.node.term if term is None else term, self.clock.wall_ms())
            apply_entry(txn, OplogEntry(make(optime, self.clock.wall_ms())))
        self.moved()
        return optime

    def _uuid(self, ns: str) -> bytes:
        coll = self.store.collection(ns)
        assert coll is not None, ns
        return coll.uuid

    def create(self, ns: str, term: int | None = None, **options: object) -> OpTime:
        database, _, name = ns.partition(".")
        uuid = self.rng.randbytes(16)
        return self._write(lambda at, wall: command_entry(database, uuid, {"create": name, **options}, at, wall), term)

    def drop(self, ns: str, term: int | None = None) -> OpTime:
        database, _, name = ns.partition(".")
        uuid = self._uuid(ns)
        return self._write(lambda at, wall: command_entry(database, uuid, {"drop": name}, at, wall), term)

    def rename(self, ns: str, to: str, *, drop_target: bool = False, term: int | None = None) -> OpTime:
        uuid = self._uuid(ns)
        o: dict[str, object] = {"renameCollection": ns, "to": to, "stayTemp": False}
        if drop_target:
            o["dropTarget"] = Binary(self._uuid(to), 4)
        return self._write(lambda at, wall: command_entry(ns.partition(".")[0], uuid, o, at, wall), term)

    def coll_mod(self, ns: str, changes: Mapping[str, object], term: int | None = None) -> OpTime:
        database, _, name = ns.partition(".")
        uuid = self._uuid(ns)
        return self._write(lambda at, wall: command_entry(database, uuid, {"collMod": name, **changes}, at, wall), term)

    def drop_database(self, database: str, term: int | None = None) -> OpTime:
        return self._write(lambda at, wall: command_entry(database, None, {"dropDatabase": 1}, at, wall), term)

    def insert(self, ns: str, *documents: Mapping[str, object], term: int | None = None) -> OpTime:
        optime = OPTIME_NULL
        for document in documents:
            raw, uuid = encode(document), self._uuid(ns)
            optime = self._write(lambda at, wall, raw=raw, uuid=uuid: insert_entry(ns, uuid, raw, at, wall), term)
        return optime

    def replace(self, ns: str, document: Mapping[str, object], term: int | None = None) -> OpTime:
        about, raw, uuid = encode({"_id": document["_id"]}), encode(document), self._uuid(ns)
        return self._write(lambda at, wall: update_entry(ns, uuid, about, raw, at, wall), term)

    def change(self, ns: str, key: object, diff: Mapping[str, object], term: int | None = None) -> OpTime:
        about, raw, uuid = encode({"_id": key}), encode({"$v": 2, "diff": diff}), self._uuid(ns)
        return self._write(lambda at, wall: update_entry(ns, uuid, about, raw, at, wall), term)

    def update(self, ns: str, document: dict[str, object]) -> None:
        """As an update command: a diff where that is smaller, nothing where nothing changes."""
        o = update_entry_object(self.documents(ns)[document["_id"]], document)
        if o is not None:
            about, raw, uuid = encode({"_id": document["_id"]}), encode(o), self._uuid(ns)
            self._write(lambda at, wall: update_entry(ns, uuid, about, raw, at, wall), None)

    def delete(self, ns: str, key: object, term: int | None = None) -> OpTime:
        about, uuid = encode({"_id": key}), self._uuid(ns)
        return self._write(lambda at, wall: delete_entry(ns, uuid, about, at, wall), term)

    def noop(self, term: int | None = None) -> OpTime:
        return self._write(lambda at, wall: noop_entry({"msg": "new primary"}, at, wall), term)

    # --- what there is

    def documents(self, ns: str) -> dict[object, dict[str, object]]:
        coll = self.store.collection(ns)
        if coll is None:
            return {}
        with self.store.read() as snapshot:
            found = [decode(doc) for _, doc in snapshot.scan(coll)]
        return {doc["_id"]: doc for doc in found}

    def everything(self) -> dict[str, dict[bytes, bytes]]:
        """All documents, byte for byte, by UUID and namespace."""
        with self.store.read() as snapshot:
            return {f"{c.uuid.hex()} {c.ns}": dict(snapshot.scan(c)) for c in self.store.collections()}

    def oplog(self) -> list[bytes]:
        return [row.entry for row in self.store.oplog_after(OPTIME_NULL, limit=100_000, max_bytes=1 << 30)]

    def rollback_file(self, name: str) -> list[dict[str, object]]:
        return split_bson((self.folder / "rollback" / name).read_bytes())

    def close(self) -> None:
        self.fetcher.stop()
        self.store.close()


Pair = tuple[Member, Member]


def pair(folder: Path, documents: int = 0, *, shared: bool = False) -> Pair:
    """A source with so many documents, and another member; it has them too where they are `shared`."""
    network = Network()
    source, mine = Member(SOURCE, folder, network), Member(MINE, folder, network)
    if documents:
        source.create(NS)
        source.insert(NS, *numbered(range(documents)))
    if shared:
        copy_log(source, mine)
    return source, mine


def split_bson(data: bytes) -> list[dict[str, object]]:
    """Concatenated documents."""
    found = []
    while data:
        size = int.from_bytes(data[:4], "little")
        found.append(decode(data[:size]))
        data = data[size:]
    return found


def copy_log(source: Member, target: Member) -> None:
    """Bring `target` to where `source` is, past the network."""
    for raw in source.oplog():
        target.apply(raw)


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run one test on a loop of its own, in virtual time: a wait takes none of the machine's, and always suffices."""

    async def within() -> None:
        await asyncio.wait_for(test(), 600)

    with contextlib.closing(SimLoop()) as loop:
        loop.run_until_complete(within())


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Let the loop run until `condition` holds. It is looked at in each turn; one turn of many waits for timers."""
    for turn in range(1, 1_000_000):
        if condition():
            return
        await asyncio.sleep(0 if turn % 500 else 0.02)
    raise AssertionError(f"never happened: {what or condition}")


async def catch_up(source: Member, mine: Member) -> None:
    """Let `mine` fetch from the source until it has everything."""
    mine.fetcher.start(source.host)
    await until(lambda: mine.store.last_applied == source.store.last_applied)
    mine.fetcher.stop()


def synced(mine: Member, reason: str, **options: bool) -> InitialSyncEnded:
    """Run an initial sync from SOURCE to its end, and return what it reports."""
    asyncio.run(mine.initial_sync.run(SOURCE, reason, **options))
    ended = mine.reports[-1]
    assert isinstance(ended, InitialSyncEnded)
    return ended


def copies_asked(mine: Member) -> int:
    return sum(call.get("step") == "begin" and not call["id"] for call in mine.network.calls)


def left_at_source(source: Member) -> list[str]:
    """The files of copies."""
    folder = source.folder / "snapshots"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def indexes_are_sound(store: Store) -> bool:
    """Whether each index holds exactly what the documents, up to its position, say."""
    for coll in store.collections():
        for index in coll.indexes:
            check = IndexCheck(coll, index)
            with store.read() as snapshot:
                while check.next_slice(snapshot, 7):
                    pass
            if check.missing or check.extra:
                return False
    return True


def undo_to(member: Member, common: OpTime, limit: int = 1_000) -> None:
    while undo_step(member.store, common, stem="rollback-1", limit=limit):
        pass


def trim(member: Member, commit_point: OpTime | None = None, **options: int) -> None:
    """Remove all that the options do not keep; the commit point is the newest entry where none is given."""
    member.store.set_commit_point(commit_point or member.store.last_applied)
    member.store.options = replace(member.store.options, **options)
    while remove_old_data(member.store, member.clock.now()):
        pass


def numbered(numbers: Iterable[int]) -> list[dict[str, object]]:
    return [{"_id": number, "text": f"document {number}", "n": Int64(number)} for number in numbers]


def key_of(value: object) -> bytes:
    return encode_key(value)

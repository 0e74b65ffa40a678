"""A fake member with prepared replies, and requests to its HTTP API without a socket."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Awaitable, Callable, Mapping
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, cast

import httpx

from api.app import create_routes, with_limits
from replset.bson import ObjectIds, RawDocument, encode
from replset.config import ReplSetConfig
from replset.core.member_state import MemberState
from replset.core.messages import Position
from replset.core.status import Status
from replset.features.archive.feature import ArchiveOptions, ArchivePart
from replset.features.consumers.consumer_directory import ConsumerDirectory
from replset.features.follower.followed import FollowProgress
from replset.features.follower.set_follower import SetFollower
from replset.features.scrub.scrubber import Scrubber
from replset.ids import OPTIME_NULL, HostPort, MemberId, Millis, OpTime, pack_ts
from replset.member.feature import Features
from replset.member.net.server import Traffic, WireServer
from replset.member.peers.flows import Flows
from replset.member.peers.snapshot_server import SnapshotServer
from replset.member.process.machine import Load, RecentLog
from replset.operations.admission import Admission
from replset.operations.audit_trail import AuditTrail
from replset.operations.current_operations import SECONDS, SIZES, Histogram, OperationTable
from replset.operations.flow_control import FlowControl
from replset.operations.replies import finish
from replset.operations.request import CommandRequest, Reply
from replset.operations.transactions import TransactionTable
from replset.operations.user_directory import UserDirectory
from replset.operations.waiters import WaiterList
from replset.replication.initial_sync_progress import InitialSyncProgress
from replset.replication.ports import Clock
from replset.replication.rollback_list import RollbackList
from replset.storage.disk import RealDisk

ME, OTHER = HostPort("127.0.0.1:27017"), HostPort("127.0.0.1:27018")
NEWEST = OpTime(3, pack_ts(1_700_000_000, 5))
OK: dict[str, Any] = {"ok": 1.0}
CONFIG = {
    "_id": "rs0",
    "version": 1,
    "term": 3,
    "members": [{"_id": 0, "host": ME}, {"_id": 1, "host": OTHER}, {"_id": 2, "host": "127.0.0.1:27019"}],
}
Answer = dict[str, Any] | bytes | Callable[[dict[str, Any]], Any]


FLOW: Any = SimpleNamespace(is_lagged=False, per_second=None, lag_ms=250, held_ms=1500, written=77)


class FakeDispatcher:
    """Answers a command by its name: with a reply, its bytes, or the result of a function of the command."""

    def __init__(self) -> None:
        self.requests: list[CommandRequest] = []
        self.answers: dict[str, Answer] = {}
        self.counts = {"find": 2}
        self.failures = {11000: 1}
        self.cursors: list[object] = []
        self.operations = OperationTable(cast("Clock", SimpleNamespace(now=lambda: Millis(5000))), FLOW)

    async def run(self, request: CommandRequest) -> Reply:
        self.requests.append(request)
        answer = self.answers.get(request.body.first_key or "", OK)
        if callable(answer):
            answer = answer(whole_command(request))
        return answer if isinstance(answer, bytes) else finish({**answer}, NEWEST.ts)

    @property
    def command(self) -> dict[str, Any]:
        """The last command."""
        return whole_command(self.requests[-1])


def whole_command(request: CommandRequest) -> dict[str, Any]:
    """Return the command with its document sequences in it."""
    sequences = {name: [row.decode() for row in rows] for name, rows in request.sequences.items()}
    return {**request.body.decode(), **sequences}


class FakePeer:
    """The primary that a secondary forwards writes to."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any], str, int]] = []
        self.answer: dict[str, Any] | Exception | Callable[[], Awaitable[dict[str, Any]]] = {"ok": 1.0, "n": 1}

    async def call(
        self, host: HostPort, command: Mapping[str, object], *, timeout_ms: Millis, database: str = "admin"
    ) -> RawDocument:
        whole = RawDocument(encode(command)).decode()
        self.calls.append((host, whole, database, timeout_ms))
        if isinstance(self.answer, Exception):
            raise self.answer
        answer = await self.answer() if callable(self.answer) else self.answer
        return RawDocument(encode(finish({**answer}, NEWEST.ts)))


class FakeNode:
    def __init__(self) -> None:
        self.state = MemberState.PRIMARY
        self.writable = True
        self.primary_host: HostPort | None = ME
        self.config: ReplSetConfig | None = ReplSetConfig.parse(CONFIG)
        self.term = 3
        self.commit_point = NEWEST
        self.quarantine = ""
        self.position = Position(NEWEST, NEWEST, 0, 0)
        self.self_id = MemberId(0)
        self.lag: int | None = 0
        self.status_value: Status | None = None
        self.http_addresses: dict[str, str] = {ME: "127.0.0.1:28017", OTHER: "127.0.0.1:28018"}

    def http_address_of(self, host: HostPort) -> str | None:
        return self.http_addresses.get(host)

    def lag_ms(self) -> int | None:
        return self.lag

    def measured_lag_ms(self, optime: OpTime, _now: Millis) -> tuple[int, bool]:
        return 0, True

    def measured_age_ms(self, optime: OpTime, _now: Millis) -> tuple[int, int | None]:
        return 0, 1_500

    def status(self, now: Millis) -> Status | None:
        return self.status_value


class InlineWorkers:
    """Workers that run their work on the event loop."""

    def __init__(self) -> None:
        self.runs = 0

    async def run(self, work: Callable[[], Any]) -> Any:
        self.runs += 1
        await asyncio.sleep(0)
        return work()


class OneConsumer(ConsumerDirectory):
    def summary(self) -> list[dict[str, object]]:
        return [{"name": "mailer", "lagSecs": 3}]


class FakeMember:
    """See the module."""

    def __init__(self, rollback_folder: str = "/nonexistent/rollback") -> None:
        self.host, self.http_address, self.set_name = ME, "127.0.0.1:28017", "rs0"
        self.dispatcher = FakeDispatcher()
        self.node = FakeNode()
        self.peer = FakePeer()
        self.store = SimpleNamespace(
            last_applied=NEWEST,
            oldest=OpTime(1, pack_ts(1_699_999_000, 1)),
            oplog_bytes=1234,
            wal=SimpleNamespace(size=10),
            rollback_id=1,
            data_bytes=lambda: 4096,
            newest_heads=lambda limit: [],
            window_s=lambda: 1_000,
            options=SimpleNamespace(oplog_max_bytes=1 << 30),
        )
        self.clock = SimpleNamespace(now=lambda: Millis(5000), wall_ms=lambda: 1_700_000_000_000)
        self.rng = random.Random(1)
        self.new_id = partial(ObjectIds(random.Random(1)).make, 1_700_000_000)
        self.users = SimpleNamespace(required=False)
        self.audit = AuditTrail(None, self.clock.wall_ms)
        self.flows = Flows()
        self.workers = InlineWorkers()
        self.started_at = Millis(0)
        self.shutting_down = False
        self.topology: Any = SimpleNamespace(counter=0)
        self.admission = Admission()
        self.one_export = asyncio.Lock()
        self.load = Load()
        self.http_slots = None
        self.tls = SimpleNamespace(expires_at=2e9)
        self.group_sizes = Histogram(SIZES)
        self.durability = SimpleNamespace(sync_times=Histogram(SECONDS))
        self.transactions = SimpleNamespace(open_count=1)
        self.write_waiters = WaiterList()
        self.snapshots: Any = None
        self.rollbacks = RollbackList(RealDisk(), os.path.dirname(rollback_folder), self.workers)
        context: Any = SimpleNamespace(clock=self.clock)
        follower = SetFollower(context, cast(Any, self.node), cast(Any, None))
        follower.progress = FollowProgress("site1", error="gone", newest_wall_ms=1_700_000_000_000 - 7_000)
        me = cast(Any, self)
        scrubber = Scrubber(
            context, cast(Any, None), lambda: None, 0, cast(Any, SimpleNamespace(repaired=0, stopped=""))
        )
        self.features = Features([OneConsumer(me), follower, ArchivePart(me, None, 1), scrubber])
        self.server = SimpleNamespace(
            connection_count=7, slots=SimpleNamespace(most=4096), traffic=Traffic(100, 200, 9)
        )

    def add(self, *_parts: object) -> None:
        """No operation of a feature is asked here."""

    def __getitem__(self, kind: type) -> Any:
        if kind is ArchiveOptions:
            return ArchiveOptions()
        parts: dict[type, object] = {
            AuditTrail: self.audit,
            Features: self.features,
            FlowControl: FLOW,
            Flows: self.flows,
            InitialSyncProgress: InitialSyncProgress(),
            RecentLog: RecentLog(),
            RollbackList: self.rollbacks,
            SnapshotServer: self.snapshots,
            TransactionTable: self.transactions,
            UserDirectory: self.users,
            WireServer: self.server,
        }
        return parts[kind]

    def queue_depths(self) -> dict[str, int]:
        return {"clients": 3}

    async def free_bytes(self) -> float:
        return 1e9

    def become_secondary(self, primary: HostPort | None = OTHER) -> None:
        self.node.state, self.node.writable, self.node.primary_host = MemberState.SECONDARY, False, primary

    def forget_time(self) -> None:
        """Make the member one without an oplog entry."""
        self.store.last_applied = self.store.oldest = OPTIME_NULL


class _AskedMember:
    """Stands for the member that was asked last: all tests share one set of routes, which takes longer than a test."""

    now: FakeMember

    def __getattr__(self, name: str) -> Any:
        return getattr(self.now, name)

    def __getitem__(self, kind: type) -> Any:
        return self.now[kind]


_routes = cache(lambda: create_routes(cast(Any, _AskedMember())))


class Api:
    """The API of a fake member."""

    def __init__(self, rollback_folder: str = "/nonexistent/rollback", allowed_hosts: tuple[str, ...] = ()) -> None:
        self.member = FakeMember(rollback_folder)
        self.dispatcher = self.member.dispatcher
        limited = with_limits(_routes(), cast(Any, self.member), allowed_hosts)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            _AskedMember.now = self.member
            await limited(scope, receive, send)

        self.app = app

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send one request. A POST has the content type of JSON unless `options` name another."""
        if method == "POST":
            options["headers"] = {"content-type": "application/json", **options.get("headers", {})}

        async def main() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:28017") as client:
                return await client.request(method, path, **options)

        return asyncio.run(main())

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, body: object = None, **options: Any) -> httpx.Response:
        content = body if isinstance(body, bytes | str) else b"" if body is None else json.dumps(body)
        return self.request("POST", path, content=content, **options)

    def act(self, name: str, query: str = "", headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        """Send one action on shop.orders."""
        body = {"database": "shop", "collection": "orders", **fields}
        return self.post(f"/v1/action/{name}{query}", body, headers=headers or {})

    def exchange(
        self, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]], accept: bytes = b"*/*"
    ) -> None:
        """Send one find, with a body from `receive` and the answer to `send`."""
        headers = [(b"content-type", b"application/json"), (b"accept", accept)]
        scope = {"type": "http", "path": "/v1/action/find", "headers": headers, "method": "POST"}
        asyncio.run(self.app(scope, receive, send))

    def command_names(self) -> list[str]:
        return [str(request.body.first_key) for request in self.dispatcher.requests]


def plain(response: httpx.Response) -> dict[str, Any]:
    """Return the answer without its times, which every answer has."""
    document: dict[str, Any] = response.json()
    stamp = {"$timestamp": {"t": NEWEST.seconds, "i": NEWEST.increment}}
    assert document.pop("operationTime") == stamp
    assert document.pop("$clusterTime")["clusterTime"] == stamp
    return document


def refused(response: httpx.Response, status: int, code: int, text: str = "") -> dict[str, Any]:
    """Check the form of an error and return its body."""
    document = plain(response)
    assert (response.status_code, document["code"]) == (status, code), document
    assert document["ok"] == 0
    assert isinstance(document["codeName"], str)
    assert text in document["errmsg"], document["errmsg"]
    assert (response.headers.get("retry-after") == "1") == (status == 503)
    return document

"""Whole members on virtual time, for tests of commands: what runs in production, without sockets, threads and waits.

A `Rig` is a set of the simulator's. Most tests need one member, which leads at once; a test of a secondary, or of what
a majority has, asks for more. A command goes to the dispatcher of a member as its wire port would give it.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import replace
from typing import Any, Self, TypeVar

import pytest

from replset.bson import RawDocument, decode, encode
from replset.config import ReplSetConfig
from replset.core.messages import ReplyBody, RequestBody
from replset.core.quorum import WriteConcern
from replset.errors import HostUnreachableError
from replset.features.all import PRIVATE
from replset.ids import OPTIME_NULL, HostPort, Millis, OpTime
from replset.member.member import RunningMember
from replset.operations import read_concern, write_concern
from replset.operations.command import PROVE
from replset.operations.dispatcher import Dispatcher
from replset.operations.request import CommandRequest, ConnectionContext, Reply, Source
from replset.operations.write_concern import WriteConcernFailure
from replset.oplog_row import OplogRow
from replset.replication.write_ops import WriteGroup
from tests.simulation.kit.cluster import SimCluster, quiet_logs
from tests.simulation.kit.environment import Environment
from tests.simulation.kit.errors import SimulationError
from tests.simulation.kit.loop import current_process

T = TypeVar("T")
MOST_TURNS = 200_000
"""Of the loop, for what a test waits for."""
ENVIRONMENT = Environment(worker_ms=0.2, skew_ms=1, oplog_bytes=990 << 20)


class Rig:
    """A set whose member `a` leads."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self._stopped: AbstractAsyncContextManager[None]

    def member(self, name: str = "a") -> RunningMember:
        member = self.cluster.machines[name].running
        assert member is not None, f"{name} runs"
        return member

    def client(self, name: str = "a") -> Client:
        return Client(self, name)

    def begin(self, work: Coroutine[Any, Any, T], name: str = "a") -> asyncio.Task[T]:
        """The task of `work` as a part of the member's process. It goes on whenever time passes."""
        context = contextvars.copy_context()
        context.run(current_process.set, self.cluster.machines[name].process)
        return self.cluster.loop.create_task(work, context=context)

    def do(self, work: Coroutine[Any, Any, T], name: str = "a") -> T:
        """Run `work` as a part of the member's process, to its end."""
        return self.finish(self.begin(work, name))

    def finish(self, task: asyncio.Task[T]) -> T:
        """The result of what has begun. SimulationError where it goes on and on."""
        loop, ends = self.cluster.loop, self.cluster.loop.steps + MOST_TURNS

        def look() -> None:
            if loop.steps > ends:
                raise SimulationError(f"not ended after {MOST_TURNS:,} turns of the loop: {task}")

        self.cluster.on_step.append(look)
        try:
            return loop.run_until_complete(task)
        finally:
            self.cluster.on_step.remove(look)

    def wait(self, seconds: float) -> None:
        self.cluster.run_for(seconds)

    def turn(self, times: int = 20) -> None:
        """Let everything run that can run without time passing."""
        for _ in range(times):
            self.cluster.run(asyncio.sleep(0))

    def until(self, condition: Callable[[], bool], within_s: float = 60) -> None:
        self.cluster.run_until(condition, within_s)

    def step_down(self, seconds: int = 600) -> None:
        """The primary becomes a secondary. With one member there is no primary then."""
        self.client().ok(step_down(seconds), "admin")

    def lead(self) -> None:
        """Wait until `a` leads again."""
        self.until(lambda: self.member().node.writable, 700)

    def step_down_after(self, groups: int, seconds: int = 5) -> None:
        """The primary steps down as soon as it has committed so many groups of clients' writes."""
        member, before = self.member(), self.groups()

        def look() -> None:
            if self.groups() - before >= groups:
                self.cluster.on_step.remove(look)
                self.begin(member.dispatcher.run(self.client().request(step_down(seconds), "admin")))

        self.cluster.on_step.append(look)

    def groups(self) -> int:
        """How many groups of clients' writes the primary has committed."""
        return int(self.member().group_sizes.buckets()[-1][1])

    def reconfigure(self, **settings: object) -> None:
        """Change settings of the set."""
        config = self.client().ok({"replSetGetConfig": 1}, "admin")["config"]
        config = {**config, "version": config["version"] + 1, "settings": {**config["settings"], **settings}}
        self.client().ok({"replSetReconfig": config}, "admin")

    def write(self, operation: Callable[[WriteGroup], T]) -> T:
        """Run `operation` in a group of its own on the primary."""

        async def work() -> T:
            return await self.member().write(operation)

        return self.do(work())

    async def lead_again(self) -> None:
        """For a coroutine: the only member steps down, and leads again in another term."""
        member = self.member()
        await member.dispatcher.run(self.client().request(step_down(1), "admin"))
        while not member.node.writable:
            await member.wait_for_change(1_000)

    def answer_core(self, answer: ReplyBody) -> list[RequestBody]:
        """From now on this answers in the place of the member's core. Returns what is asked."""
        asked: list[RequestBody] = []

        async def ask(body: RequestBody) -> ReplyBody:
            asked.append(body)
            return answer

        self.member().ask_core = ask  # type: ignore[method-assign]
        return asked

    def answer_peers(self, answers: Mapping[str, Mapping[str, object]]) -> list[tuple[str, dict[str, Any], int]]:
        """From now on these answer in the place of other members; a host that is not in it cannot be reached.

        Returns what is asked: the host, the command, and the time limit.
        """
        asked: list[tuple[str, dict[str, Any], int]] = []

        async def call(
            host: HostPort, command: Mapping[str, object], *, timeout_ms: Millis, database: str = "admin"
        ) -> RawDocument:
            asked.append((host, dict(command), timeout_ms))
            if host not in answers:
                raise HostUnreachableError(f"{host} is away")
            return RawDocument(encode(answers[host]))

        self.member().peer.call = call  # type: ignore[method-assign]
        return asked

    def use_config(self, document: Mapping[str, object]) -> None:
        """The member has this configuration now, as if it came from another one."""
        config = ReplSetConfig.parse({"_id": self.cluster.set_name, "version": 3, "term": 1, **document})
        self.member().node._state.config = config

    def newest(self, name: str = "a") -> OpTime:
        return self.member(name).store.last_applied

    def stop_disk(self, name: str = "a") -> None:
        """Nothing more gets to the disk, so the only member commits nothing, until `start_disk`."""
        self._stopped = self.member(name).durability.paused()
        self.do(self._stopped.__aenter__(), name)

    def start_disk(self, name: str = "a") -> None:
        """The disk works again, and what was written meanwhile is committed."""
        self.do(self._stopped.__aexit__(None, None, None), name)
        member = self.member(name)
        self.until(lambda: member.node.commit_point == member.store.last_applied)


class Client:
    """Runs commands on one member, and gives replies decoded."""

    def __init__(self, rig: Rig, name: str) -> None:
        self.rig, self.name = rig, name
        self.connection = ConnectionContext(5, "127.0.0.1:5555")
        self.proves = True
        """Whether commands between members come from a member."""
        self._begin = OPTIME_NULL
        self.begins_at = len(self._rows())
        """How many entries there were before this client came."""
        self._begin = rig.newest(name)

    @property
    def member(self) -> RunningMember:
        return self.rig.member(self.name)

    @property
    def dispatcher(self) -> Dispatcher:
        return self.member.dispatcher

    def request(
        self, command: Mapping[str, object], db: str = "test", source: Source = "wire", **sequences: Any
    ) -> CommandRequest:
        body = RawDocument(encode({**command, "$db": db}))
        found = {name: [RawDocument(encode(doc)) for doc in docs] for name, docs in sequences.items()}
        connection = self.connection
        if self.proves and PRIVATE & command.keys() - {PROVE}:
            connection = replace(connection, member=HostPort("b:27017"))
        return CommandRequest(db, body, found, connection, source)

    def run(
        self, command: Mapping[str, object], db: str = "test", *, source: Source = "wire", **sequences: Any
    ) -> dict[str, Any]:
        """One command; the bytes of the reply pass the codec, as on the wire."""
        reply = self.reply(self.request(command, db, source, **sequences))
        return decode(reply if isinstance(reply, bytes) else encode(reply))

    def reply(self, request: CommandRequest) -> Reply:
        """As the dispatcher gives it."""
        return self.rig.do(self.dispatcher.run(request), self.name)

    def begin(self, command: Mapping[str, object], db: str = "test", **sequences: Any) -> asyncio.Task[Reply]:
        """The task of a command, which goes on whenever time passes."""
        return self.rig.begin(self.dispatcher.run(self.request(command, db, **sequences)), self.name)

    def decoded(self, task: asyncio.Task[Reply]) -> dict[str, Any]:
        """The reply of a command that has begun, once it is there."""
        reply = self.rig.finish(task)
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
        """The oplog, decoded, behind what the set wrote before this client came."""
        return [decode(row.entry) for row in self._rows() if row.optime > self._begin]

    def _rows(self) -> list[OplogRow]:
        return self.member.store.oplog_after(OPTIME_NULL, limit=10_000, max_bytes=1 << 30)


def rig_wire(rig: Rig, patch: pytest.MonkeyPatch, module: object) -> list[dict[str, Any]]:
    """From now on the module's WireClients ask members of the rig, and wait for the answers. Returns what is asked."""
    asked: list[dict[str, Any]] = []

    class RigWire:
        def __init__(self, host: str, **_options: object) -> None:
            self.host, self.name = host, host.partition(":")[0]
            if host != f"{self.name}:27017" or self.name not in rig.cluster.machines:
                raise HostUnreachableError(f"{host} cannot be reached: Connection refused")

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            self.close()

        def close(self) -> None:
            """There is nothing to close."""

        def log_in(self, *_: object) -> None:
            """Nobody has to."""

        def command(self, database: str, command: Mapping[str, object]) -> dict[str, Any]:
            return self.ask(database, command).decode()

        def ask(
            self, database: str, command: Mapping[str, object], sequence: tuple[str, list[bytes]] = ("", [])
        ) -> RawDocument:
            asked.append({**command})
            client, rows = rig.client(self.name), {sequence[0]: [decode(row) for row in sequence[1]]}
            return RawDocument(encode(client.run(command, database, **(rows if sequence[0] else {}))))

    patch.setattr(module, "WireClient", RigWire)
    return asked


def note_waits(
    monkeypatch: pytest.MonkeyPatch, failure: WriteConcernFailure | None = None
) -> list[tuple[OpTime, WriteConcern]]:
    """The write concerns that are waited for from now on. failure: instead of all these waits."""
    found: list[tuple[OpTime, WriteConcern]] = []
    wait = write_concern.wait_until_met

    async def noted(member: Any, optime: OpTime, concern: WriteConcern, deadline: Any) -> WriteConcernFailure | None:
        found.append((optime, concern))
        return failure or await wait(member, optime, concern, deadline)

    for module in (write_concern, read_concern):
        monkeypatch.setattr(module, "wait_until_met", noted)
    return found


@contextmanager
def a_set(
    members: int = 1, *, environment: Environment = ENVIRONMENT, initiates: bool = True, **more: Any
) -> Iterator[Rig]:
    """A set that is well: `a` leads, everybody follows. initiates: or else a member that belongs to no set."""
    quiet_logs()
    with SimCluster(members, seed=1, environment=environment, **more) as cluster:
        if not initiates:
            cluster.start("a")
            cluster.run_until(lambda: cluster.machines["a"].started, 10, "it runs")
            yield Rig(cluster)
            return
        cluster.initiate(priorities={"a": 2})
        if members > 1:
            is_well = cluster.all_counted if cluster.delay_s else cluster.converged
            cluster.run_until(lambda: cluster.primary() == "a" and is_well(), 60, "a leads")
        yield Rig(cluster)
        cluster.check_unbroken()


def step_down(seconds: int) -> dict[str, object]:
    return {"replSetStepDown": seconds, "secondaryCatchUpPeriodSecs": 0, "force": True}

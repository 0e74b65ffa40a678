"""Streams of bytes with delays, cuts and deaths."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

from replset.ids import HostPort
from tests.simulation.kit.cluster import SimCluster
from tests.simulation.kit.environment import Environment
from tests.simulation.kit.loop import Process, SimLoop
from tests.simulation.kit.network import LinkFaults, SimNetwork, SimTransport

A1 = HostPort("a:1")


class Receiver(asyncio.Protocol):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.received = b""
        self.ended: list[Exception | None] = []
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.append(exc)


class World:
    """Machine a listens on port 1; b connects."""

    def __init__(self, loop: SimLoop, seed: int = 1) -> None:
        self.loop = loop
        self.network = SimNetwork(self.loop, random.Random(seed))
        self.starts = {"a": Process("a"), "b": Process("b")}
        self.served: list[Receiver] = []
        self.loop.run_until_complete(self.network.port("a", self.starts["a"]).serve(A1, self._receiver))

    def _receiver(self) -> Receiver:
        self.served.append(Receiver())
        return self.served[-1]

    def connect(self) -> tuple[asyncio.Transport, Receiver]:
        receiver = Receiver()
        port = self.network.port("b", self.starts["b"])
        transport = self.loop.run_until_complete(port.connect(A1, lambda: receiver))
        return transport, receiver

    def wait(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    made = SimLoop()
    yield made
    made.close()


def test_bytes_arrive_in_order_in_pieces(loop: SimLoop) -> None:
    world = World(loop)
    world.network.faults = LinkFaults(split=0.5, slow=0.3)
    transport, _ = world.connect()
    sent = [bytes([n]) * 10 for n in range(100)]
    for piece in sent:
        transport.write(piece)
    world.wait(10)
    assert world.served[0].received == b"".join(sent)


def test_no_server_listens(loop: SimLoop) -> None:
    world = World(loop)
    port = world.network.port("b", world.starts["b"])
    with pytest.raises(ConnectionRefusedError):
        world.loop.run_until_complete(port.connect(HostPort("a:2"), Receiver))
    with pytest.raises(OSError, match="already in use"):
        world.loop.run_until_complete(world.network.port("a", world.starts["a"]).serve(A1, Receiver))


@pytest.mark.parametrize("seed", range(8))
def test_a_one_way_cut_swallows_one_direction_until_it_heals(loop: SimLoop, seed: int) -> None:
    world = World(loop, seed)
    transport, receiver = world.connect()
    world.network.cut("b", "a")
    transport.write(b"lost")
    served = world.served[0]
    assert served.transport is not None
    served.transport.write(b"heard")
    world.wait(100)
    assert (served.received, receiver.received) == (b"", b"heard")
    assert not receiver.ended
    world.network.heal()
    world.wait(10)
    broken = bool(receiver.ended)
    assert broken == bool(served.ended)
    assert served.received == (b"" if broken else b"lost")


def test_a_cut_link_refuses_new_connections_only_after_long(loop: SimLoop) -> None:
    world = World(loop)
    world.network.cut("a", "b")
    began = world.loop.now_ms
    port = world.network.port("b", world.starts["b"])
    with pytest.raises(TimeoutError):
        world.loop.run_until_complete(port.connect(A1, Receiver))
    assert world.loop.now_ms - began >= 20_000


@pytest.mark.parametrize("silently", [False, True], ids=["killed", "power-lost"])
def test_death_ends_connections_and_listening(loop: SimLoop, silently: bool) -> None:
    world = World(loop)
    _, receiver = world.connect()
    world.loop.kill(world.starts["a"])
    world.network.die(world.starts["a"], silently=silently)
    world.wait(0.5)
    assert bool(receiver.ended) != silently
    world.wait(10)
    assert [type(error) for error in receiver.ended] == [ConnectionResetError]
    assert not world.served[0].ended, "the dead hear nothing"
    with pytest.raises(TimeoutError if silently else ConnectionRefusedError):
        world.loop.run_until_complete(world.network.port("b", world.starts["b"]).connect(A1, Receiver))


def test_a_paused_process_refuses_no_connect(loop: SimLoop) -> None:
    world = World(loop)
    loop.pause(world.starts["a"])
    world.loop.run_until_complete(world.network.port("b", world.starts["b"]).connect(A1, Receiver))


def test_close_delivers_what_was_written_before(loop: SimLoop) -> None:
    world = World(loop)
    transport, receiver = world.connect()
    transport.write(b"last words")
    transport.close()
    transport.write(b"too late")
    world.wait(1)
    assert world.served[0].received == b"last words"
    assert world.served[0].ended == [None]
    assert receiver.ended == [None]


def test_paused_reading_keeps_the_order(loop: SimLoop) -> None:
    world = World(loop)
    transport, _ = world.connect()
    far = world.served[0].transport
    assert far is not None
    far.pause_reading()
    for n in range(5):
        transport.write(bytes([n]))
    world.wait(1)
    assert world.served[0].received == b""
    far.resume_reading()
    transport.write(b"\x05")
    world.wait(1)
    assert world.served[0].received == bytes(range(6))


def test_a_set_with_keys_elects_writes_and_takes_no_stranger_s_message() -> None:
    """Members prove themselves on virtual time, on new connections too; what was overheard is worth nothing anew."""
    with SimCluster(3, seed=5, environment=Environment(keyed=True)) as cluster:
        cluster.initiate()
        first = cluster.primary() or ""
        write = {"insert": "c", "documents": [{"_id": 1}], "writeConcern": {"w": 3, "wtimeout": 5_000}}
        assert "writeConcernError" not in cluster.command(first, write, "d")
        assert cluster.command(first, {"hello": 1, "replsetMember": "b:27017"})["ok"] == 1.0
        term = cluster.command(first, {"replSetGetStatus": 1})["term"]
        for name in cluster.machines:
            assert cluster.command(name, {"replSetGetRBID": 1})["code"] == 13
        refused = [machine.member.dispatcher.failures for machine in cluster.machines.values() if machine.member]
        before = sum(failures.get(13, 0) for failures in refused)
        recent_messages = cluster.network.recent_messages()
        assert recent_messages
        for message in recent_messages:
            cluster.run(cluster.network.resend_message(message))
        cluster.run_for(1.0)
        assert sum(failures.get(13, 0) + failures.get(18, 0) for failures in refused) > before
        assert cluster.command(first, {"replSetGetStatus": 1})["term"] == term
        cluster.kill(first)
        cluster.run_until(lambda: cluster.primary() not in (None, first), 20, "another primary")
        cluster.restart(first)
        cluster.run_until(cluster.converged, 60, "converged")

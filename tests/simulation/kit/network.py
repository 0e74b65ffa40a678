"""Byte streams between machines, in memory, on virtual time, with faults.

A connection passes the bytes that its ends write, in pieces, in order, each piece after a drawn delay; different
connections overtake each other. A cut link swallows pieces silently: the connection stays up and stalls. When the cut
is healed a stalled stream is either carried on, late (as TCP sends again), or breaks. A process that dies closes its
connections, and fresh connects are refused; a machine that loses power just falls silent: the other ends break later,
and other members' connects wait. A paused process refuses nothing.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from replset.ids import HostPort
from tests.simulation.kit.loop import Process, SimLoop

CONNECT_TIMEOUT_S = 20.0


@dataclass(slots=True)
class LinkFaults:
    """What goes wrong between members while faults are on. Probabilities are per piece of bytes.

    stall: the stream stands still for stall_ms and then goes on or breaks. split: a write arrives in two pieces.
    """

    delay_ms: tuple[float, float] = (0.2, 4.0)
    slow: float = 0.0
    slow_ms: float = 400.0
    stall: float = 0.0
    stall_ms: float = 3_000.0
    split: float = 0.05


QUIET = LinkFaults()


@dataclass(frozen=True, slots=True)
class SentMessage:
    """One message from member to member. first: what the connection began with."""

    source: str
    target: str
    first: bytes
    message: bytes


class _Echo(asyncio.Protocol):
    """Ignores what it receives and sends nothing."""

    def __call__(self) -> _Echo:
        return self


RECENT_MESSAGES_MAX = 12


class SimNetwork:
    """All machines and links. Machines are known by name; a host is `NAME:PORT`."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self._loop = loop
        self.rng = rng
        self.faults = QUIET
        self._listening: dict[HostPort, _Listening] = {}
        self._dark: set[HostPort] = set()  # their machines have no power
        self._cut: set[tuple[str, str]] = set()
        self._connections: dict[_Connection, None] = {}
        self._shared: tuple[tuple[float, str, str], float] = (-1.0, "", ""), 0.0  # the newest moment and its delay
        self._echoes = Process("echoes")

    def port(self, machine: str, process: Process, *, together: bool = False) -> NetworkPort:
        """The Network port of one process on `machine`. together: what it sends at one moment arrives in one turn."""
        return NetworkPort(self, machine, process, together)

    # --- cuts

    def cut(self, source: str, target: str) -> None:
        """Bytes from `source` to `target` vanish from now on."""
        self._cut.add((source, target))

    def uncut(self, source: str, target: str) -> None:
        """This direction works again."""
        self._cut.discard((source, target))
        for connection in list(self._connections):
            connection.revive()

    def heal(self) -> None:
        """Every link works again; stalled streams go on or break."""
        self._cut.clear()
        for connection in list(self._connections):
            connection.revive()

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cut

    # --- death

    def die(self, process: Process, *, silently: bool) -> None:
        """Close all that belongs to `process`. silently: power went away, the other ends learn of it late."""
        for address, listening in list(self._listening.items()):
            if listening.process is process:
                del self._listening[address]
                if silently:
                    self._dark.add(address)
        for connection in list(self._connections):
            for end in connection.ends:
                if end.process is process:
                    wait = self.rng.uniform(1.0, 8.0) if silently else self.rng.uniform(0.0002, 0.004)
                    connection.abandon(end, wait)

    # --- used by ports and connections

    def listen(self, address: HostPort, process: Process, factory: Callable[[], asyncio.BaseProtocol]) -> _Listening:
        if address in self._listening:
            raise OSError(errno.EADDRINUSE, f"address already in use: {address}")
        listening = _Listening(self, address, process, factory, contextvars.copy_context())
        self._listening[address] = listening
        self._dark.discard(address)
        return listening

    def stop_listening(self, listening: _Listening) -> None:
        if self._listening.get(listening.address) is listening:
            del self._listening[listening.address]

    async def connect(
        self, machine: str, process: Process, address: HostPort, factory: Callable[[], asyncio.Protocol]
    ) -> SimTransport:
        target = machine_of(address)
        await asyncio.sleep(self.delay_s(machine, target))
        if self.is_cut(machine, target) or self.is_cut(target, machine):
            await asyncio.sleep(CONNECT_TIMEOUT_S)
            raise OSError(errno.ETIMEDOUT, f"no answer from {address}")
        gives_up = self._loop.time() + CONNECT_TIMEOUT_S
        while address in self._dark and machine != "client":
            if self._loop.time() >= gives_up:
                raise OSError(errno.ETIMEDOUT, f"no answer from {address}")
            await asyncio.sleep(1.0)
        listening = self._listening.get(address)
        if listening is None or not process.alive:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens on {address}")
        connection = _Connection(self, self._loop)
        self._connections[connection] = None
        near = SimTransport(connection, machine, process, contextvars.copy_context(), peer=address)
        far = SimTransport(connection, target, listening.process, listening.context, peer=HostPort(f"{machine}:0"))
        connection.ends = (near, far)
        near.is_recorded = machine != "client" and process is not self._echoes
        near.other, far.other = far, near
        self._loop.run_in(listening.process, listening.context.copy(), lambda: far.attach(listening.factory()))
        near.attach(factory())
        return near

    def delay_s(self, source: str, target: str) -> float:
        faults = self.faults if source != "client" and target != "client" else QUIET
        low, high = faults.delay_ms
        delay = self.rng.uniform(low, high)
        if faults.slow and self.rng.random() < faults.slow:
            delay += self.rng.uniform(0, faults.slow_ms)
        return delay / 1000

    def shared_delay_s(self, source: str, target: str) -> float:
        """As `delay_s`, the same for all that is sent to one machine at this moment."""
        moment = self._loop.time(), source, target
        if self._shared[0] != moment:
            self._shared = moment, self.delay_s(source, target)
        return self._shared[1]

    def draws_stall(self, source: str, target: str) -> float:
        """Seconds for which this piece's stream stands still; 0 as a rule."""
        if "client" in (source, target) or not self.faults.stall or self.rng.random() >= self.faults.stall:
            return 0.0
        return self.rng.uniform(0, self.faults.stall_ms) / 1000

    def forget(self, connection: _Connection) -> None:
        self._connections.pop(connection, None)

    # --- messages that come twice

    def recent_messages(self) -> list[SentMessage]:
        """Requests between members, newest last: the last messages of each connection between two of them."""
        found = []
        for connection in self._connections:
            if connection.recorded:
                near, far = connection.ends
                first, *rest = connection.recorded
                found += [SentMessage(near.machine, far.machine, first, message) for message in rest]
        return found

    async def resend_message(self, sent: SentMessage) -> None:
        """The message comes once more, on a connection of its own that begins as the first one did. Nobody reads the
        answer.
        """
        echo = _Echo()
        try:
            transport = await self.connect(sent.source, self._echoes, HostPort(f"{sent.target}:27017"), echo)
        except OSError:
            return
        for message in (sent.first, sent.message):
            transport.write(message)
            await asyncio.sleep(0.05)
        transport.close()


class NetworkPort:
    """replication/ports.py Network for one process."""

    def __init__(self, network: SimNetwork, machine: str, process: Process, together: bool = False) -> None:
        self._network = network
        self._machine = machine
        self._process = process
        self._together = together

    async def serve(self, address: HostPort, factory: Callable[[], asyncio.BaseProtocol]) -> _Listening:
        return self._network.listen(address, self._process, factory)

    async def connect(self, address: HostPort, factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        transport = await self._network.connect(self._machine, self._process, address, factory)
        transport.together = self._together
        return transport


class _Listening:
    def __init__(
        self,
        network: SimNetwork,
        address: HostPort,
        process: Process,
        factory: Callable[[], asyncio.BaseProtocol],
        context: contextvars.Context,
    ) -> None:
        self._network = network
        self.address = address
        self.process = process
        self.factory = factory
        self.context = context

    def close(self) -> None:
        self._network.stop_listening(self)


class _Connection:
    """Two ends and what is on the way between them."""

    def __init__(self, network: SimNetwork, loop: SimLoop) -> None:
        self.network = network
        self.loop = loop
        self.ends: tuple[SimTransport, ...] = ()
        self.broken = False
        self.recorded: list[bytes] = []  # from the member that connected: the first message and the last ones

    def revive(self) -> None:
        for end in self.ends:
            end.revive()

    def break_down(self, error: Exception | None) -> None:
        """Both ends learn that the connection is gone."""
        if self.broken:
            return
        self.broken = True
        self.network.forget(self)
        for end in self.ends:
            end.lost(error)

    def abandon(self, dead: SimTransport, wait: float) -> None:
        """The process at one end died: it hears nothing more, the other end breaks after `wait` seconds."""
        dead.gone()
        self.loop.call_later(wait, self._break_when_open, context=contextvars.Context())

    def _break_when_open(self) -> None:
        near, far = self.ends
        if self.network.is_cut(near.machine, far.machine) or self.network.is_cut(far.machine, near.machine):
            self.loop.call_later(1.0, self._break_when_open, context=contextvars.Context())
        else:
            self.break_down(ConnectionResetError(errno.ECONNRESET, "the other process died"))


class SimTransport(asyncio.Transport):
    """One end of a connection: asyncio's Transport for its Protocol."""

    def __init__(
        self, connection: _Connection, machine: str, process: Process, context: contextvars.Context, *, peer: HostPort
    ) -> None:
        host, _, port = peer.rpartition(":")
        super().__init__({"peername": (host, int(port)), "sockname": (machine, 0)})
        self._connection = connection
        self._loop = connection.loop
        self.machine = machine
        self.process = process
        self._context = context
        self.other: SimTransport = self
        self._protocol: asyncio.BaseProtocol | None = None
        self._closing = False
        self._lost = False
        self._sent_until = 0.0  # nothing arrives at the other end before this moment
        self._outgoing: deque[bytes | None] = deque()  # on the way to the other end; None: end of stream
        self._stalled = False
        self._unread: deque[bytes | None] | None = None  # reading is paused
        self.is_recorded = False  # what it says may come twice
        self.together = False  # see `SimNetwork.port`

    def attach(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._run(protocol.connection_made, self)

    def _run(self, callback: Callable[..., Any], *args: Any) -> None:
        """Call into the protocol as the process that owns this end."""
        self._loop.run_in(self.process, self._context.copy(), callback, *args)

    # --- sending

    def write(self, data: Any) -> None:
        if self._closing or self._lost or not self.process.alive or not data:
            return
        raw = bytes(data)
        if self.is_recorded:
            recorded = self._connection.recorded
            recorded.append(raw)
            if len(recorded) > RECENT_MESSAGES_MAX:
                del recorded[1]
        rng, faults = self._connection.network.rng, self._connection.network.faults
        if len(raw) > 1 and rng.random() < faults.split:
            at = rng.randrange(1, len(raw))
            self._send(raw[:at])
            self._send(raw[at:])
        else:
            self._send(raw)

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def _send(self, piece: bytes | None) -> None:
        network = self._connection.network
        self._outgoing.append(piece)
        stall = network.draws_stall(self.machine, self.other.machine)
        delay_s = network.shared_delay_s if self.together else network.delay_s
        arrival = self._loop.time() + delay_s(self.machine, self.other.machine) + stall
        self._sent_until = max(self._sent_until, arrival)
        self._loop.call_at(self._sent_until, self._arrive, context=contextvars.Context())

    def _arrive(self) -> None:
        """The oldest piece on the way reaches the other end, unless the link is cut."""
        if self._connection.broken or not self._outgoing:
            return
        if self._stalled or self._connection.network.is_cut(self.machine, self.other.machine):
            self._stalled = True
            return
        self.other.receive(self._outgoing.popleft())

    def revive(self) -> None:
        """The cut is healed: what stalled is sent again soon, or the connection breaks."""
        if not self._stalled or self._connection.broken:
            return
        rng = self._connection.network.rng
        if rng.random() < 0.3:
            error = ConnectionResetError(errno.ECONNRESET, "reset after a stall")
            self._loop.call_later(rng.uniform(0, 2), self._connection.break_down, error, context=contextvars.Context())
        else:
            self._loop.call_later(rng.uniform(0.01, 2), self._resume, context=contextvars.Context())

    def _resume(self) -> None:
        if self._connection.network.is_cut(self.machine, self.other.machine):
            return
        self._stalled = False
        while self._outgoing and not self._connection.broken:
            self.other.receive(self._outgoing.popleft())

    # --- receiving

    def receive(self, piece: bytes | None) -> None:
        if self._lost:
            return
        if self._unread is not None:
            self._unread.append(piece)
            return
        if self._protocol is None:
            return
        if piece is None:
            self._run(self._end_of_stream)
        elif not self._closing:
            self._run(self._protocol.data_received, piece)  # type: ignore[attr-defined]

    def _end_of_stream(self) -> None:
        keep_open = False
        if not self._closing and self._protocol is not None:
            keep_open = bool(self._protocol.eof_received())  # type: ignore[attr-defined]
        if not keep_open or self._closing:
            self._connection.break_down(None)

    def pause_reading(self) -> None:
        if self._unread is None:
            self._unread = deque()

    def resume_reading(self) -> None:
        if self._unread is None:
            return
        unread, self._unread = self._unread, None
        for piece in unread:
            self._loop.call_soon(self.receive, piece, context=contextvars.Context())

    def is_reading(self) -> bool:
        return self._unread is None

    # --- ending

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            if not self._lost and self.process.alive:
                self._send(None)
                self._loop.call_soon(self.lost, None, context=contextvars.Context())

    def abort(self) -> None:
        if not self._lost and self.process.alive:
            self._closing = True
            error = ConnectionResetError(errno.ECONNRESET, "aborted by the other end")
            self._loop.call_soon(self.lost, None, context=contextvars.Context())
            self._loop.call_later(0.001, self._connection.break_down, error, context=contextvars.Context())

    def lost(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        if self._protocol is not None:
            self._run(self._protocol.connection_lost, error)

    def gone(self) -> None:
        """The process of this end is dead."""
        self._lost = self._closing = True

    def is_closing(self) -> bool:
        return self._closing

    def write_eof(self) -> None:
        self._send(None)

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol


def machine_of(address: HostPort) -> str:
    return address.rpartition(":")[0]

"""Listens on the wire port, and keeps what its connections have in common.

What is sent in one turn of the event loop goes out at its end, over all connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from replset.ids import HostPort
from replset.member.net.connections import ConnectionSlots
from replset.member.net.tls import Certifies, needs_no_certificate
from replset.member.net.wire_connection import WireConnection
from replset.operations.admission import SMALL_BYTES, Admission
from replset.operations.cursors import CursorTable
from replset.operations.dispatcher import Dispatcher
from replset.operations.repeated_warnings import RepeatedWarnings
from replset.operations.request import Owner
from replset.operations.turns import Turns
from replset.replication.ports import Listener, Network
from replset.wire.framing import message_ids

log = logging.getLogger("replset.server")

QUIESCE_S = 5.0
"""A member that stops waits so long for the commands that clients have sent already."""
READ_BYTES = 16 << 10
LARGE_READ_BYTES = 256 << 10
"""Read of one connection at once, and amid a large message. The rest stays in the system's buffers."""
LEFT_S = 60.0
"""A client whose last connection has ended finds its cursors again for so long: a driver closes all connections when
one heartbeat fails, and goes on reading over new ones."""


@dataclass(slots=True)
class Traffic:
    """What passed the wire port since the start."""

    bytes_in: int = 0
    bytes_out: int = 0
    connections: int = 0


class WireServer:
    """Listens on the wire port."""

    def __init__(
        self,
        network: Network,
        dispatcher: Dispatcher,
        *,
        drops_inbound: Callable[[HostPort], bool],
        drops_outbound: Callable[[HostPort], bool],
        slots: ConnectionSlots,
        admission: Admission,
        turns: Turns,
        cursors: CursorTable | None = None,
        certifies: Certifies = needs_no_certificate,
        needs_login: bool = False,
    ) -> None:
        """drops_inbound, drops_outbound: whether a test cut drops the commands of a member, or the replies to it.

        certifies: says of a connection's TLS whether the other end has shown a member's certificate. needs_login:
        clients must log in, before anything large is read of them.
        """
        self.certifies = certifies
        self.needs_login = needs_login
        self._cursors = cursors
        self._left: dict[Owner, asyncio.TimerHandle] = {}
        """Clients without a connection, until their cursors end."""
        self.dispatcher = dispatcher
        self.drops_inbound = drops_inbound
        self.drops_outbound = drops_outbound
        self.slots = slots
        self.admission = admission
        self.turns = turns
        self.small_buffer = memoryview(bytearray(READ_BYTES))
        self.large_buffer = memoryview(bytearray(LARGE_READ_BYTES))
        self.connections: dict[WireConnection, None] = {}
        """The connections in the order in which they came. A set's differs between runs; a simulation's must not."""
        self.connection_ids = count(1)
        self.reply_ids = message_ids()
        self.one_checksum = asyncio.Lock()
        self.traffic = Traffic()
        self.repeated = RepeatedWarnings(log, lambda: asyncio.get_running_loop().time())
        self._outbox: list[tuple[WireConnection, bytes]] = []
        self._outbox_bytes = 0
        self._network = network
        self._listening: Listener | None = None

    def send(self, connection: WireConnection, frame: bytes) -> None:
        """Write the frame at the end of this turn of the loop, with those of other connections; many bytes at once.

        A client that is woken for each reply by itself costs both ends some 10 microseconds more a reply. A connection
        must know soon that its client does not read (`pause_writing`), or its next commands would fill the memory.
        Another member's page of the oplog goes at once: behind the replies its entries would be visible there later.
        """
        if connection.is_member:
            connection.write(frame)
            return
        self._outbox.append((connection, frame))
        self._outbox_bytes += len(frame)
        if self._outbox_bytes > SMALL_BYTES:
            self.send_all()
        elif len(self._outbox) == 1:
            asyncio.get_running_loop().call_soon(self.send_all)

    def send_all(self) -> None:
        """Write the frames that wait for the end of the turn."""
        outbox, self._outbox, self._outbox_bytes = self._outbox, [], 0
        for connection, frame in outbox:
            connection.write(frame)

    @property
    def connection_count(self) -> int:
        return len(self.connections)

    async def start(self, address: HostPort) -> None:
        """Start to listen. OSError: the address is in use."""
        self._listening = await self._network.serve(address, lambda: WireConnection(self))

    def client_left(self, owner: Owner) -> None:
        """Close the client's cursors after a while if this was its last connection and it does not come back."""
        if self._cursors is None or not self._cursors.has_of(owner):
            return
        timer = self._left.pop(owner, None)
        if timer is not None:
            timer.cancel()
        wait_s = LEFT_S if owner[1] else 0  # without metadata nobody is known again
        self._left[owner] = asyncio.get_running_loop().call_later(wait_s, self._end_cursors_of, owner, self._cursors)

    def _end_cursors_of(self, owner: Owner, cursors: CursorTable) -> None:
        del self._left[owner]
        if not any(connection.owner == owner for connection in self.connections):
            cursors.client_left(owner)

    def end_stalled(self) -> None:
        """Close connections that sent a part of a large message and then nothing more, to free its memory."""
        for connection in [connection for connection in self.connections if connection.is_stalled]:
            self.repeated.warn("stopped", f"{connection.peer} stopped in the middle of a large message: closed")
            connection.end()

    async def quiesce(self) -> None:
        """Wait until no command of a client runs any more, for at most QUIESCE_S."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + QUIESCE_S
        while loop.time() < deadline and any(one.is_serving for one in self.connections):  # noqa: ASYNC110 - see below
            # It happens once in a member's life, so that no command has to note its end for it.
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        """Stop listening and end every connection."""
        if self._listening is not None:
            self._listening.close()
        tasks = [connection.end() for connection in list(self.connections)]
        for timer in self._left.values():
            timer.cancel()
        await asyncio.gather(*(task for task in tasks if task is not None), return_exceptions=True)

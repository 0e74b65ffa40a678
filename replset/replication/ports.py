"""The interfaces to the outside of a member that the simulator replaces: Clock, Workers, Network and MemberClient.

The runtime implements them on the real machine, the simulator on a virtual one. The disk's port is
`storage/disk.py`. Randomness is a `random.Random` handed in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from replset.bson import Document, ObjectId, RawDocument, with_fields
from replset.ids import HostPort, Millis

T = TypeVar("T")


class Clock(Protocol):
    """The only source of time. `now` is monotonic; `wall_ms` is UTC and may jump."""

    def now(self) -> Millis: ...

    def wall_ms(self) -> int: ...

    def set_wall_ahead(self, ahead_ms: int) -> None:
        """For tests: set the wall clock ahead of the machine's by so much."""


class Workers(Protocol):
    """Runs `work` in a thread beside the event loop; its exception is raised at the await."""

    async def run(self, work: Callable[[], T]) -> T: ...


class SyncThread(Protocol):
    """Runs the syncs of the WAL in a thread beside the event loop."""

    def start(self, work: Callable[[], None], on_ended: Callable[[BaseException | None], None]) -> None:
        """Run `work`; then call `on_ended` on the loop, with what it raised."""
        ...


class Listener(Protocol):
    """An open listening socket."""

    def close(self) -> None: ...


class Network(Protocol):
    """Byte streams between members and to clients, with asyncio's own Protocol and Transport classes."""

    async def serve(self, address: HostPort, factory: Callable[[], asyncio.BaseProtocol]) -> Listener:
        """Listen; OSError when the address is taken."""
        ...

    async def connect(self, address: HostPort, factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        """Open a stream; OSError when nobody listens there."""
        ...


class MemberClient(Protocol):
    """Commands to other members over the wire port."""

    async def call(
        self,
        host: HostPort,
        command: Document,
        *,
        timeout_ms: Millis,
        database: str = "admin",
    ) -> RawDocument:
        """Send one command, return the reply document (also one with ok: 0).

        Raises HostUnreachableError: no connection, broken, cut or out of time; the outcome is unknown.
        """
        ...


class SetMemberClient:
    """Sends commands within one set: adds the set's id to each, so that a member of another set refuses it."""

    def __init__(self, peer: MemberClient, set_id: Callable[[], ObjectId | None]) -> None:
        self._peer = peer
        self._set_id = set_id

    async def call(
        self,
        host: HostPort,
        command: Document,
        *,
        timeout_ms: Millis,
        database: str = "admin",
    ) -> RawDocument:
        """See MemberClient.call."""
        set_id = self._set_id()
        with_id = command if set_id is None else with_fields(command, {"setId": set_id})
        return await self._peer.call(host, with_id, timeout_ms=timeout_ms, database=database)

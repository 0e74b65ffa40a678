"""Serves the application with uvicorn on the HTTP port. The member handles the signals itself."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from api.connection import HttpConnection
from api.prepared import PreparedActions
from replset.ids import HostPort
from replset.member.net.connections import ConnectionSlots
from replset.member.net.listening import ListeningSockets, bound_socket
from replset.member.net.tls import MemberTls
from replset.operations.admission import Admission
from replset.operations.turns import Turns


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers. The member handles SIGTERM: it steps down before it stops."""

    def __init__(self, config: uvicorn.Config, tls: MemberTls | None, slots: ConnectionSlots) -> None:
        super().__init__(config)
        self._slots = slots
        self._tls = tls
        self._stopping = asyncio.Event()
        self._listening: ListeningSockets | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen by our own means, which accept many connections in one turn of the loop."""

        def connection() -> asyncio.Protocol:
            state = {"server_state": self.server_state, "app_state": self.lifespan.state}
            protocol: asyncio.Protocol = self.config.http_protocol_class(config=self.config, **state)  # type: ignore[call-arg]
            return protocol

        tls = self._tls
        self._listening = ListeningSockets(
            sockets or [],
            connection,
            self.config.backlog,
            None if tls is None else lambda: tls.http,
            tls_is_optional=tls is not None and tls.is_optional,
            has_room=self._slots.has_room,
        )
        await super().startup(sockets=[])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._listening is not None:
            self._listening.close()
        await super().shutdown(sockets)

    def stop(self) -> None:
        self.should_exit = True
        self._stopping.set()

    async def main_loop(self) -> None:
        """Set the date of the responses once a second, until the end.

        uvicorn looks ten times a second whether it must end, which took a sixth of an idle member's CPU.
        """
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._stopping.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Serves `app` on `address` until `stop`."""

    def __init__(
        self,
        app: Any,
        address: HostPort,
        slots: ConnectionSlots,
        admission: Admission,
        turns: Turns,
        backlog: int,
        tls: MemberTls | None = None,
        actions: PreparedActions | None = None,
    ) -> None:
        """Make a server. slots: limits its connections. admission: counts the memory that their requests use.

        turns: in which they are answered. actions: answers inserts before `app`, where it can.
        """

        class Connection(HttpConnection):
            pass

        Connection.slots, Connection.admission, Connection.turns = slots, admission, turns
        Connection.actions = actions
        self._address = address
        config = uvicorn.Config(
            app,
            http=Connection,
            backlog=backlog,
            loop="none",
            lifespan="off",
            ws="none",
            access_log=False,
            log_config=None,
            log_level="warning",
            server_header=False,
            proxy_headers=False,  # a client on loopback could give itself another address in the audit log
            timeout_graceful_shutdown=5,
        )
        self._server = _Server(config, tls, slots)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen on the address; OSError when it is in use."""
        host, _, port = self._address.rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = bound_socket(family, (host.strip("[]"), int(port)))
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))
        while not self._server.started and not self._task.done():  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        self._server.stop()
        if self._task is not None:
            await self._task

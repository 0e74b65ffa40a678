"""The HTTP port: uvicorn around the application, with the member's own signal handling."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from api.connection import HttpConnection
from replset.ids import HostPort
from replset.runtime.admission import Admission
from replset.runtime.connections import Slots


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: SIGTERM is the member's, which hands over before it stops."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Serves `app` on `address` until `stop`."""

    def __init__(self, app: Any, address: HostPort, slots: Slots, admission: Admission, backlog: int) -> None:
        """slots: of its connections. admission: what their requests hold."""

        class Connection(HttpConnection):
            pass

        Connection.slots, Connection.admission = slots, admission
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
            timeout_graceful_shutdown=5,
        )
        self._server = _Server(config)
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen; OSError when the address is taken."""
        host, _, port = self._address.rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host.strip("[]"), int(port)))
        except OSError:
            listening.close()
            raise
        self._serving = asyncio.create_task(self._server.serve(sockets=[listening]))
        while not self._server.started and not self._serving.done():  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving

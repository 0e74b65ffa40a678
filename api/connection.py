"""One HTTP connection: uvicorn's connection with limits on the size of a request's head and on the time that it takes.

uvicorn alone takes heads of any size and waits for their end without a limit. httptools joins the pieces of one header
again for each piece, which takes quadratic time.

It is also faster than uvicorn's: head and body of a short response leave in one write, and the timer of an idle
connection is not set again for each request.
"""

from __future__ import annotations

import asyncio
import json
import logging
import urllib.parse
from collections.abc import MutableMapping
from itertools import chain
from typing import Any, Final

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import (
    HEADER_VALUE_RE,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from api.errors import error_body
from replset.errors import ErrorCode
from replset.runtime.net.admission import STALLED_S, Admission
from replset.runtime.net.connections import ConnectionSlots

log = logging.getLogger("replset.http")

MAX_HEAD_BYTES: Final = 64 << 10
MAX_HEADERS: Final = 100
HEAD_S: Final = 10.0
"""Time for a whole head, from the beginning of the connection or the first byte of the request."""
BODY_REST_S: Final = 5.0
"""Time for the rest of a body whose request is answered already."""
_UVICORNS_HEADERS: Final = (b"connection", b"transfer-encoding")
_REASONS = {408: "Request Timeout", 431: "Request Header Fields Too Large"}


class Exchange(RequestResponseCycle):
    """One request and its response."""

    _start: MutableMapping[str, Any] | None = None
    """The start of a response that waits for the first part of the body."""

    async def run_asgi(self, app: Any) -> None:
        """Answer the request. `whole_body` is set if the body has come with the head, so that nobody waits for it."""
        if not (self.more_body or self.waiting_for_100_continue or self.disconnected):
            self.scope["whole_body"] = bytes(self.body)  # type: ignore[typeddict-unknown-key]
            if len(self.body) > HIGH_WATER_LIMIT:
                self.flow.resume_reading()  # paused for the body; only who reads hears that the client leaves
        await super().run_asgi(app)

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start" and not self.response_started:
            self._start = message
            return
        start, self._start = self._start, None
        if start is not None:
            if self._send_whole(start, message):
                return
            await super().send(start)  # type: ignore[arg-type]
        await super().send(message)

    def _send_whole(self, start: MutableMapping[str, Any], message: MutableMapping[str, Any]) -> bool:
        """Send a response in one write. Return False if uvicorn must do it, for example because more of it follows."""
        body: bytes = message.get("body", b"")
        length = (b"content-length", b"%d" % len(body))
        is_whole = length in start["headers"] and not message.get("more_body") and self.scope["method"] != "HEAD"
        if not is_whole or not self.keep_alive or self.disconnected or self.flow.write_paused:
            return False
        parts = [STATUS_LINE[start["status"]]]
        for name, value in (*self.default_headers, *start["headers"]):
            if name in _UVICORNS_HEADERS or HEADER_VALUE_RE.search(value):
                return False
            parts += (name, b": ", value, b"\r\n")
        self.response_started = self.response_complete = True
        self.message_event.set()
        self.transport.write(b"".join((*parts, b"\r\n", body)))
        self.on_response()
        return True


class HttpConnection(HttpToolsProtocol):
    """HttpServer makes a subclass of this that has the `slots` and the `admission` of its member."""

    slots: ConnectionSlots
    admission: Admission

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._last_received = 0.0
        self._answered_at = 0.0
        self._in_head = True
        self._in_request = False
        self._head_bytes = 0
        self._refused_with = 0
        self._timer: asyncio.TimerHandle | None = None
        self._unsent = 0
        self._write_timer: asyncio.TimerHandle | None = None

    # --- its slot ------------------------------------------------------------------------------------------------

    @property
    def idle_since(self) -> float | None:
        """Return since when no request of this connection is being answered; None while one is."""
        return None if self._is_answering else self._last_received

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def close_idle(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._last_received = self.loop.time()
        if not self.slots.take(self):
            transport.abort()
            return
        self._timer = self.loop.call_later(HEAD_S, self._on_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self.slots.give_back_descriptor()
        self.slots.release(self)
        self._stop_timer()
        self._stop_waiting()
        self._count_head(0)
        super()._unset_keepalive_if_required()
        super().connection_lost(exc)

    # --- responses that the client does not read -----------------------------------------------------------------

    def pause_writing(self) -> None:
        """Count the bytes that wait to be sent, and end the connection when the client stops reading."""
        super().pause_writing()
        self._wait_for_client()

    def resume_writing(self) -> None:
        self._stop_waiting()
        super().resume_writing()

    def _wait_for_client(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._stop_waiting()
        self._unsent = left
        self.admission.add(left)
        self._write_timer = self.loop.call_later(STALLED_S, self._on_write_timeout)

    def _on_write_timeout(self) -> None:
        if self.transport.get_write_buffer_size() < self._unsent:
            self._wait_for_client()
        else:
            log.warning("%s has read nothing of its response for %.0f s", self.client, STALLED_S)
            self._stop_waiting()
            self.transport.abort()

    def _stop_waiting(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        self.admission.release(self._unsent)
        self._unsent = 0

    # --- the head ------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._refused_with or self.parser is None:
            return
        self._last_received = self.loop.time()
        if self._in_head:
            self._count_head(self._head_bytes + len(data))
        super().data_received(data)
        if self._in_head and self._in_request:
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(431)
            elif self._timer is None:
                self._timer = self.loop.call_later(HEAD_S, self._on_late)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = self._in_request = True

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS or len(value) > MAX_HEAD_BYTES:
            self._refused_with = 431
            raise ValueError("too many headers")  # httptools ends the parsing and asks for the answer

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(map(len, chain.from_iterable(self.headers)))
        if size > MAX_HEAD_BYTES:
            self._refused_with = 431
            raise ValueError("too large headers")
        self._in_head = False
        self._count_head(0)
        self._stop_timer()
        self._begin_exchange()
        if self.slots.is_reserved(self):
            self.scope["has_reserved_slot"] = True  # type: ignore[typeddict-unknown-key]

    def _begin_exchange(self) -> None:
        """Begin to answer the request, once those before it are answered."""
        url, version = httptools.parse_url(self.url), self.parser.get_http_version()
        path = url.path.decode("ascii")
        self.scope["method"] = self.parser.get_method().decode("ascii")
        self.scope["http_version"] = version
        self.scope["path"] = urllib.parse.unquote(path) if "%" in path else path
        self.scope["raw_path"] = url.path
        self.scope["query_string"] = url.query or b""
        exchange, before = self._exchange(keep_alive=version != "1.0" and self.parser.should_keep_alive()), self.cycle
        self.cycle = exchange
        if before is None or before.response_complete:
            self._answer(exchange)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((exchange, self.app))

    def _answer(self, exchange: RequestResponseCycle) -> None:
        task = self.loop.create_task(exchange.run_asgi(self.app))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _exchange(self, *, keep_alive: bool) -> Exchange:
        return Exchange(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=keep_alive,
            on_response=self.on_response_complete,
        )

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head, self._in_request = True, False

    def on_response_complete(self) -> None:
        """Begin with the next request, or wait for it."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._answer(self.pipeline.pop()[0])
        elif self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        self._answered_at = self.loop.time()
        if self._in_request and not self._in_head and not self._is_answering and self._timer is None:
            self._timer = self.loop.call_later(BODY_REST_S, self._on_late)

    # --- while it is idle ----------------------------------------------------------------------------------------

    def _unset_keepalive_if_required(self) -> None:
        """Leave the timer as it is: to set it for each request costs 2 µs, so it looks for itself what came since."""

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection when nothing came for the whole time since its last response."""
        self.timeout_keep_alive_task = None
        if self._is_answering or self._last_received > self._answered_at:
            return  # the next response sets the timer
        left = self._answered_at + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        if self._refused_with:
            self._refuse(self._refused_with)
        else:
            super().send_400_response(msg)

    # --- refusals ------------------------------------------------------------------------------------------------

    def _on_late(self) -> None:
        """End the connection: a head, or the rest of an answered body, did not come in time."""
        self._timer = None
        if self._is_answering:  # uvicorn reads nothing meanwhile
            self._timer = self.loop.call_later(HEAD_S, self._on_late)
        elif self._in_head and self._in_request:
            self._refuse(408)
        elif self.transport is not None:
            self.transport.close()

    def _refuse(self, status: int) -> None:
        self._refused_with = status
        self._stop_timer()
        self._count_head(0)
        reason = _REASONS[status]
        limits = f"at most {MAX_HEAD_BYTES >> 10} KiB and {MAX_HEADERS} headers, within {HEAD_S:g} s"
        body = json.dumps(error_body(ErrorCode.FAILED_TO_PARSE, f"{reason}: a request's head has {limits}")).encode()
        head = f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _count_head(self, size: int) -> None:
        """Count `size` bytes of a head that is not complete yet."""
        self.admission.add(size - self._head_bytes)
        self._head_bytes = size

"""One HTTP connection: uvicorn's, with bounds on how large a request's head may be and how long it may take.

uvicorn takes heads of any size and waits for ever for their end; httptools joins the pieces of one header again and
again, which is quadratic.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from api.errors import error_body
from replset.errors import ErrorCode
from replset.runtime.admission import STALLED_S, Admission
from replset.runtime.connections import Slots

log = logging.getLogger("replset.http")

MAX_HEAD_BYTES: Final = 64 << 10
MAX_HEADERS: Final = 100
HEAD_S: Final = 10.0
"""From a connection's beginning, or a request's first byte, until the head is whole."""
REST_S: Final = 5.0
"""How long the rest of a body may come that was answered before its end."""
_REASONS = {408: "Request Timeout", 431: "Request Header Fields Too Large"}


class HttpConnection(HttpToolsProtocol):
    """Subclassed by HttpServer with the `slots` and `admission` of its member."""

    slots: Slots
    admission: Admission

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._heard_at = 0.0
        self._in_head = True
        self._in_message = False
        self._head_bytes = 0
        self._refused_with = 0
        self._timer: asyncio.TimerHandle | None = None
        self._unread = 0
        self._reader_timer: asyncio.TimerHandle | None = None

    # --- the place that it takes ---------------------------------------------------------------------------------

    @property
    def idle_since(self) -> float | None:
        """See connections.Holder: no request of it is being answered."""
        return None if self._is_answering else self._heard_at

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def let_go(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._heard_at = self.loop.time()
        if not self.slots.take(self):
            transport.abort()
            return
        self._timer = self.loop.call_later(HEAD_S, self._on_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self.slots.release(self)
        self._stop_timer()
        self._stop_waiting()
        self._count(0)
        super().connection_lost(exc)

    # --- answers that nobody takes -------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Its client takes less than is written: what waits counts, and not for ever."""
        super().pause_writing()
        self._wait_for_reader()

    def resume_writing(self) -> None:
        self._stop_waiting()
        super().resume_writing()

    def _wait_for_reader(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._stop_waiting()
        self._unread = left
        self.admission.hold(left)
        self._reader_timer = self.loop.call_later(STALLED_S, self._on_unread)

    def _on_unread(self) -> None:
        if self.transport.get_write_buffer_size() < self._unread:
            self._wait_for_reader()
        else:
            log.warning("%s took nothing of its answer for %.0f s", self.client, STALLED_S)
            self._stop_waiting()
            self.transport.abort()

    def _stop_waiting(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None
        self.admission.give_back(self._unread)
        self._unread = 0

    # --- the head ------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._refused_with or self.parser is None:
            return
        self._heard_at = self.loop.time()
        if self._in_head:
            self._count(self._head_bytes + len(data))
        super().data_received(data)
        if self._in_head and self._in_message:
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(431)
            elif self._timer is None:
                self._timer = self.loop.call_later(HEAD_S, self._on_late)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = self._in_message = True

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS or len(value) > MAX_HEAD_BYTES:
            self._refused_with = 431
            raise ValueError("too many headers")  # httptools ends the parsing and asks for the answer

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > MAX_HEAD_BYTES:
            self._refused_with = 431
            raise ValueError("too large headers")
        self._in_head = False
        self._count(0)
        self._stop_timer()
        super().on_headers_complete()
        if self.slots.is_kept(self):
            self.scope["on_kept_slot"] = True  # type: ignore[typeddict-unknown-key]

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head, self._in_message = True, False

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_message and not self._in_head and not self._is_answering and self._timer is None:
            self._timer = self.loop.call_later(REST_S, self._on_late)

    def send_400_response(self, msg: str) -> None:
        if self._refused_with:
            self._refuse(self._refused_with)
        else:
            super().send_400_response(msg)

    # --- refusals ------------------------------------------------------------------------------------------------

    def _on_late(self) -> None:
        """A head, or the rest of an answered body, did not come in time."""
        self._timer = None
        if self._is_answering:  # its client is not read from meanwhile
            self._timer = self.loop.call_later(HEAD_S, self._on_late)
        elif self._in_head and self._in_message:
            self._refuse(408)
        elif self.transport is not None:
            self.transport.close()

    def _refuse(self, status: int) -> None:
        self._refused_with = status
        self._stop_timer()
        self._count(0)
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

    def _count(self, size: int) -> None:
        """So many bytes of a head that is not whole yet are held."""
        self.admission.hold(size - self._head_bytes)
        self._head_bytes = size

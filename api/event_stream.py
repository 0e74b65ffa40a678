"""Answers that stay open and send events until the client leaves: changes, a consumer's events, the set's state."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final, Self
from weakref import WeakSet

from fastapi import Response

from api.bodies import NO_TIMES, Form, encode_body
from api.errors import HttpError, http_error
from api.exchange import HttpRequest, Receive, Scope, Send
from api.lines import NDJSON, encoded_line, line_of, wants_lines
from api.streaming import wait_for_disconnect
from replset.bson import RawDocument
from replset.errors import OverloadedError

EVENT_STREAM: Final = "text/event-stream"
RESPONSE: Final = {"description": "events", "content": {EVENT_STREAM: {"schema": {"type": "string"}}}}
RESPONSE_OR_LINES: Final = {
    "description": "events",
    "content": {kind: {"schema": {"type": "string"}} for kind in (EVENT_STREAM, NDJSON)},
}
STREAM_S = 900.0
"""A stream ends after this time. Its client opens another one, and its login is checked again."""
WAIT_MS: Final = 5_000
"""A stream without events sends something so often, which shows that it lives."""


class EventStream(Response):
    """Sends one part after the other. is_over: the part that is ready is the last one. as_lines: as NDJSON.

    more_headers: of the answer; they are there before the first part is sent.
    """

    content_type = EVENT_STREAM

    def __init__(self, http: HttpRequest | None = None) -> None:
        """http: may ask for NDJSON; None: the stream has no such form."""
        super().__init__()
        self.as_lines = http is not None and wants_lines(http)
        if self.as_lines:
            self.content_type = NDJSON
        self.is_over = False
        self.more_headers: dict[str, str] = {}
        self._part = b""
        self._open: WeakSet[EventStream] = WeakSet()

    async def opened(self, streams: WeakSet[EventStream], most: int) -> Self:
        """Have the first part ready. HttpError: it is refused, also when `most` of its kind are open on this member.

        It counts from now on, and until it is sent to its end; one that is never sent leaves the set by itself.
        """
        if len(streams) >= most:
            text = f"this member is overloaded: {len(streams)} streams of this kind are open; close one, or try again"
            raise http_error(OverloadedError(text))
        self._open = streams
        streams.add(self)
        try:
            self._part = await self.read(0)
        except BaseException:
            streams.discard(self)
            raise
        return self

    @abstractmethod
    async def read(self, wait_ms: int) -> bytes:
        """Return the next part, something after `wait_ms` at the latest. HttpError: refused, which ends the stream."""

    def error_part(self, error: HttpError) -> bytes:
        """Return the last part of a stream that is refused."""
        if self.as_lines:
            return encoded_line({"error": error.body})
        return sse_event("error", encode_body(Form.JSON, error.body, NO_TIMES))

    async def close(self) -> None:
        """Free what the stream keeps."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + STREAM_S
        more = [(name.encode(), value.encode()) for name, value in self.more_headers.items()]
        disconnected = asyncio.ensure_future(wait_for_disconnect(receive))
        reading: asyncio.Future[None] = loop.create_future()
        headers = [(b"content-type", self.content_type.encode()), (b"cache-control", b"no-store"), *more]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            while not disconnected.done():
                is_last = self.is_over or loop.time() >= ends_at
                await send({"type": "http.response.body", "body": self._part, "more_body": not is_last})
                if is_last:
                    return
                reading = asyncio.ensure_future(self._read_on())
                await asyncio.wait((reading, disconnected), return_when=asyncio.FIRST_COMPLETED)
                if reading.done():
                    reading.result()  # a fault ends the stream: the part before must not be sent again
        finally:
            reading.cancel()
            disconnected.cancel()
            self._open.discard(self)
            await self.close()

    async def _read_on(self) -> None:
        try:
            self._part = await self.read(WAIT_MS)
        except HttpError as error:
            self._part, self.is_over = self.error_part(error), True


def sse_event(name: str, line: bytes, event_id: str = "") -> bytes:
    """Return one server-sent event. line: its JSON, which has no line break."""
    head = b"id: %s\n" % event_id.encode() if event_id else b""
    return b"%sevent: %s\ndata: %s\n\n" % (head, name.encode(), line)


def change_events(events: Sequence[RawDocument], before_token: str = "") -> bytes:
    """Return events of documents that changed, each with its token as `id`."""
    return b"".join(sse_event("change", line_of(event), before_token + _token_of(event)) for event in events)


def _token_of(event: RawDocument) -> str:
    token: Any = event.get("_id")
    return str(token["_data"])

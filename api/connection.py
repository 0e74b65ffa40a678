"""One HTTP connection: uvicorn's connection with limits on what one client makes the member hold and do.

uvicorn alone parses all requests that a client sends ahead, however many. Here a request is parsed when the one before
it is answered. What waits is counted, nothing more is read meanwhile, and each request waits for its turn among those
of all clients (turns.py).

uvicorn takes heads of any size and waits for their end without a limit. httptools joins the pieces of one header again
for each piece, which takes quadratic time.

It is also faster than uvicorn's: head and body of a short response leave in one write, and the timer of an idle
connection is not set again for each request.
"""

from __future__ import annotations

import asyncio
import json
import logging
import urllib.parse
from collections.abc import Coroutine, Iterable, MutableMapping
from functools import partial
from typing import Any, Final

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import (
    HEADER_VALUE_RE,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from api.errors import error_body
from api.exchange import DRAIN_BYTES, HttpAnswer
from api.prepared import MOST_HEADS, Head, PreparedActions, head_of
from replset.bson import MAX_MESSAGE_SIZE
from replset.errors import ErrorCode
from replset.member.net.connections import ConnectionSlots
from replset.operations.admission import STALLED_S, Admission
from replset.operations.prepared import PreparedWrite
from replset.operations.turns import Turns

log = logging.getLogger("replset.http")

MAX_HEAD_BYTES: Final = 64 << 10
MAX_HEADERS: Final = 100
HEAD_S: Final = 10.0
"""Time for a whole head, from the beginning of the connection or the first byte of the request."""
BODY_REST_S: Final = 5.0
"""Time for the rest of a body whose request is answered already."""
STEP_BYTES: Final = 4 << 10
STEPS: Final = 4
"""Of a connection in one turn of the loop. Each byte of a chunked body may be a chunk, which is a call for each."""
SMALL_AHEAD_BYTES: Final = 16 << 10
"""So much may wait of each connection, also when the member has no memory left: one request is rarely larger."""
_HEAD_END: Final = b"\r\n\r\n"
_UVICORNS_HEADERS: Final = (b"connection", b"transfer-encoding")
_HEAD_LIMITS: Final = f"a request's head has at most {MAX_HEAD_BYTES >> 10} KiB and {MAX_HEADERS} headers"


class RequestError(Exception):
    """A request whose head is refused: the status and the code of the answer. The connection is closed."""

    def __init__(self, status: int, code: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.code = code


class RequestBounds:
    """Says how much of the bytes may be parsed that no byte of the next request is among them.

    A request ends with its body of known length, or else with an empty line: that of its head, or that behind the last
    chunk. So an empty line in a chunk is only one step more.
    """

    def __init__(self) -> None:
        self.body_left = 0
        """Of a body of known length, what has not come yet."""
        self._before = b""

    def end(self, data: bytes, at: int) -> int:
        """Return where the next step ends that begins at `at`."""
        if self.body_left:
            end = min(len(data), at + self.body_left)
            self.body_left -= end - at
            return end
        seen = len(self._before)
        text = self._before + data[at : at + STEP_BYTES]
        found = text.find(_HEAD_END)
        self._before = text[-3:] if found < 0 else b""
        return at + (len(text) if found < 0 else found + len(_HEAD_END)) - seen


class Flow(FlowControl):
    """Reads nothing more while something that has come waits to be parsed."""

    something_waits = False

    def resume_reading(self) -> None:
        if not self.something_waits:
            super().resume_reading()


class Exchange(RequestResponseCycle):
    """One request and its response."""

    turns: Turns
    status = 0
    """Of the response, if it was sent in one write."""
    _start: MutableMapping[str, Any] | None = None
    """The start of a response that waits for the first part of the body."""

    async def run_asgi(self, app: Any) -> None:
        """Answer the request in its turn.

        `whole_body` is set if the body has come with the head, so that nobody waits for it.
        """
        await self.turns.take()
        if not (self.more_body or self.waiting_for_100_continue or self.disconnected):
            self.scope["whole_body"] = bytes(self.body)  # type: ignore[typeddict-unknown-key]
            if len(self.body) > HIGH_WATER_LIMIT:
                self.flow.resume_reading()  # paused for the body; only who reads hears that the client leaves
        await super().run_asgi(app)

    async def send_500_response(self) -> None:
        body = _error_json(ErrorCode.INTERNAL_ERROR, "the request failed; the member's log says why")
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        headers.append((b"connection", b"close"))
        await self.send({"type": "http.response.start", "status": 500, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})

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
        headers = [*self.default_headers, *start["headers"]]
        for name, value in headers:
            if name in _UVICORNS_HEADERS or HEADER_VALUE_RE.search(value):
                return False
        self.response_started = self.response_complete = True
        self.status = start["status"]
        self.message_event.set()
        self.transport.write(_response(self.status, headers, body))
        self.on_response()
        return True


class HttpConnection(HttpToolsProtocol):
    """HttpServer makes a subclass of this that has the `slots`, `admission`, `turns` and `actions` of its member."""

    slots: ConnectionSlots
    admission: Admission
    turns: Turns
    actions: PreparedActions | None = None
    flow: Flow
    cycle: Exchange

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._last_received = 0.0
        self._answered_at = 0.0
        self._in_head = True
        self._in_request = False
        self._has_length = False
        self._head_bytes = 0
        self._bounds = RequestBounds()
        self._ahead = b""  # what has come and is not parsed, from _ahead_at on
        self._ahead_at = 0
        self._ahead_counted = 0
        self._waits_for_turn = False
        self._is_refused = False
        self._timer: asyncio.TimerHandle | None = None
        self._heads: list[Head] = []  # of the last writes, see prepared.py
        self._request = b""  # the request that is being answered, if it came whole and alone
        self._write: PreparedWrite | None = None  # that is under way outside of uvicorn
        self._closes = False
        self._unsent = 0
        self._write_timer: asyncio.TimerHandle | None = None

    # --- its slot ------------------------------------------------------------------------------------------------

    @property
    def idle_since(self) -> float | None:
        """Return since when no request of this connection is being answered; None while one is."""
        return None if self._is_answering or self._ahead or self._write is not None else self._last_received

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _is_busy(self) -> bool:
        """Whether the next request has to wait: the one before it has come to its end and is not answered yet."""
        return self._write is not None or (self._is_answering and not self._in_request)

    def close_idle(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = Flow(transport)
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
        self._drop_ahead()
        write, self._write = self._write, None
        if write is not None:
            write.leave()
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

    # --- what comes ----------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._is_refused or self.parser is None:
            return
        if self._write is None and self._is_busy and not self.cycle.keep_alive:
            return
        self._last_received = self.loop.time()
        is_first = not self._ahead
        is_alone = is_first and not self._in_request and not self._is_busy
        if is_alone and self._heads and self.turns.has_room() and self._take_write(data):
            self.turns.count(len(data))
            return
        self._request = data if is_alone and len(data) <= SMALL_AHEAD_BYTES else b""
        self._ahead, self._ahead_at = self._ahead[self._ahead_at :] + data, 0
        if is_first and not self._is_busy and self.turns.has_room():
            self.turns.count(len(data))
            self._parse()
        self._keep_rest()

    def _take_write(self, data: bytes) -> bool:
        """Put the write into the next group, if `data` is one whole request with a head that is known."""
        actions = self.actions
        if actions is None or self.flow.write_paused or self.slots.is_reserved(self):
            return False
        for head in self._heads:
            if (body := head.body_in(data)) is not None:
                break
        else:
            return False
        client = "" if self.client is None else f"{self.client[0]}:{self.client[1]}"
        write = actions.begin(head, body, client, partial(self._finish_write, head, data))
        if write is None:
            return False
        self._write = write
        return True

    def _finish_write(self, head: Head, data: bytes, answer: HttpAnswer | None) -> None:
        """Send the answer of the write that was under way. None: it goes the usual way, before what came since."""
        self._write = None
        if answer is None or self.actions is None:
            self._heads = [known for known in self._heads if known is not head]
            self._ahead, self._ahead_at = data + self._ahead[self._ahead_at :], 0
            self._go_on_later()
            self._keep_rest()
            return
        body, headers = self.actions.encode(head.form, answer)
        self.transport.write(_response(answer.status, [*self.server_state.default_headers, *headers], body))
        self.on_response_complete()
        if self._closes:
            self.transport.close()

    def shutdown(self) -> None:
        """Close the connection, after the answer to a write that is under way."""
        if self._write is None:
            super().shutdown()
        else:
            self._closes = True

    def _parse(self) -> None:
        """Parse up to the end of a request, or a few steps of it."""
        data, at = self._ahead, self._ahead_at
        for _ in range(STEPS):
            end = self._bounds.end(data, at)
            self._feed(data[at:end])
            at = end
            if at == len(data) or self._is_busy or self._is_refused or self.parser is None:
                break
        self._ahead, self._ahead_at = (b"", 0) if at == len(data) else (data, at)
        if self._in_head and self._in_request and self._timer is None and not self._is_refused:
            self._timer = self.loop.call_later(HEAD_S, self._on_late)

    def _feed(self, piece: bytes) -> None:
        if not self._has_length:
            self._count_head(self._head_bytes + len(piece))
        try:
            self.parser.feed_data(piece)
            if self._head_bytes > MAX_HEAD_BYTES:
                raise RequestError(431, ErrorCode.FAILED_TO_PARSE, _HEAD_LIMITS)
        except RequestError as error:
            self._refuse(error)
        except httptools.HttpParserUpgrade:
            pass  # it is answered as if it had not asked for it
        except httptools.HttpParserError as error:
            cause = error.__context__
            if not isinstance(cause, RequestError):
                cause = RequestError(400, ErrorCode.FAILED_TO_PARSE, f"malformed HTTP: {cause or error}")
            self._refuse(cause)

    def _keep_rest(self) -> None:
        """Count what is not parsed, and read nothing more before it is. Without anything left, read on."""
        size = 0 if self._is_refused or self.parser is None else len(self._ahead)
        more = size - self._ahead_counted
        if more <= 0 or size <= SMALL_AHEAD_BYTES:
            self.admission.add(more)
            self._ahead_counted = size
        elif self.admission.admit(more):
            self._ahead_counted = size
        else:
            log.warning("%s sends requests ahead, for which there is no memory: closed", self.client)
            self._is_refused = True  # what it has sent ahead: the request that is being answered gets its answer
            size = 0
            if self._is_answering:
                self.cycle.keep_alive = False
            else:
                self.transport.abort()
        if size:
            self.flow.something_waits = True
            self.flow.pause_reading()
            if not self._is_busy:
                self._go_on_later()
            return
        self._drop_ahead()
        if not self._is_refused and (self.cycle is None or len(self.cycle.body) <= HIGH_WATER_LIMIT):
            self.flow.resume_reading()

    def _drop_ahead(self) -> None:
        self.admission.release(self._ahead_counted)
        self._ahead, self._ahead_at, self._ahead_counted = b"", 0, 0
        if self.flow is not None:
            self.flow.something_waits = False

    def _go_on_later(self) -> None:
        if not self._waits_for_turn:
            self._waits_for_turn = True
            self.turns.call(0, self._go_on)

    def _go_on(self) -> None:
        """Take or parse what waits, in its turn."""
        self._waits_for_turn = False
        if not self._ahead or self._is_busy:
            return
        may_be_known = self._heads and not self._in_request and not self.transport.is_closing()
        if may_be_known and self._take_write(self._ahead[self._ahead_at :]):
            self._request, self._ahead, self._ahead_at = b"", b"", 0
        else:
            self._parse()
        self._keep_rest()

    # --- the head ------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = self._in_request = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # behind the body: a login or a host that is read after the head has been checked counts for nothing
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS:
            raise RequestError(431, ErrorCode.FAILED_TO_PARSE, _HEAD_LIMITS)

    def on_headers_complete(self) -> None:
        if self._head_bytes > MAX_HEAD_BYTES:
            raise RequestError(431, ErrorCode.FAILED_TO_PARSE, _HEAD_LIMITS)
        self._bounds.body_left = self._body_length()
        self._has_length = self._bounds.body_left > 0
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
        keep_alive = version != "1.0" and self.parser.should_keep_alive() and not self._closes
        self.cycle = exchange = self._exchange(keep_alive=keep_alive)
        self._start_task(exchange.run_asgi(self.app))

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _exchange(self, *, keep_alive: bool) -> Exchange:
        exchange = Exchange(
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
        exchange.turns = self.turns
        return exchange

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._count_head(0)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head, self._in_request, self._has_length = True, False, False
        self._bounds.body_left = 0
        self._count_head(0)

    def on_response_complete(self) -> None:
        """Begin with the next request, or wait for it."""
        self.server_state.total_requests += 1
        request, self._request = self._request, b""
        # Only a head that was let through: the guard refuses those of other sites' pages.
        if request and not self.scope["query_string"] and self.cycle.keep_alive and not self._in_request:
            head = head_of(self.scope["path"], self.cycle.status, request, self.headers)
            if head is not None and all(known.body_in(request) is None for known in self._heads):
                self._heads = [*self._heads[1 - MOST_HEADS :], head]
        if self.transport.is_closing():
            return
        if self._ahead:
            self._go_on_later()
        self.flow.resume_reading()
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        self._answered_at = self.loop.time()
        if self._in_request and not self._in_head and not self._is_answering and self._timer is None:
            self._timer = self.loop.call_later(BODY_REST_S, self._on_late)

    def _body_length(self) -> int:
        """Return the length of the body that the head tells, 0 if it tells none. RequestError: it is refused."""
        length = 0
        for name, value in self.headers:
            if name == b"content-length":
                length = int(value)
            elif name == b"transfer-encoding" and value.strip().lower() != b"chunked":
                text = f"Transfer-Encoding {value[:40].decode('latin-1')!r} is not read; there is: chunked"
                raise RequestError(501, ErrorCode.NOT_IMPLEMENTED, text)
        # Many clients read no answer before they have sent everything. So a body that is somewhat too large is read and
        # discarded. Who asks first whether to send it, or would send it for hours, gets the answer at once.
        most = MAX_MESSAGE_SIZE if self.expect_100_continue else DRAIN_BYTES
        if length > most:
            text = f"the body is over {MAX_MESSAGE_SIZE} bytes"
            raise RequestError(413, ErrorCode.DOCUMENT_TOO_LARGE, text)
        return length

    # --- while it is idle ----------------------------------------------------------------------------------------

    def _unset_keepalive_if_required(self) -> None:
        """Leave the timer as it is: to set it for each request costs 2 µs, so it looks for itself what came since."""

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection when nothing came for the whole time since its last response."""
        self.timeout_keep_alive_task = None
        if self._is_answering or self._ahead or self._last_received > self._answered_at:
            return  # the next response sets the timer
        left = self._answered_at + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    # --- refusals ------------------------------------------------------------------------------------------------

    def _on_late(self) -> None:
        """End the connection: a head, or the rest of an answered body, did not come in time."""
        self._timer = None
        if self._is_answering or self._ahead:  # nothing more is read meanwhile
            self._timer = self.loop.call_later(HEAD_S, self._on_late)
        elif self._in_head and self._in_request:
            self._refuse(RequestError(408, ErrorCode.FAILED_TO_PARSE, f"a request's head comes within {HEAD_S:g} s"))
        elif self.transport is not None:
            self.transport.close()

    def _refuse(self, error: RequestError) -> None:
        """Answer with an error instead of the request, and close the connection."""
        self._is_refused = True
        self._stop_timer()
        self._count_head(0)
        if self._is_answering:  # its body is malformed
            if self.cycle.response_started:
                self.transport.abort()
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = _error_json(error.code, str(error))
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[error.status] + head + body)
        self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _count_head(self, size: int) -> None:
        """Count `size` bytes of a head that is not complete yet."""
        self.admission.add(size - self._head_bytes)
        self._head_bytes = size


def _response(status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bytes:
    parts = [STATUS_LINE[status]]
    for name, value in headers:
        parts += (name, b": ", value, b"\r\n")
    return b"".join((*parts, b"\r\n", body))


def _error_json(code: int, text: str) -> bytes:
    return json.dumps(error_body(code, text)).encode()

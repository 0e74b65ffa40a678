"""`GET /v1/replset/events` streams the state of the set as server-sent events: one a second, and at each change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request, Response

from api.commands import check_reply, decode_reply, run_command
from api.content import NO_TIMES, Form, encode_body
from api.errors import HttpError, http_error
from api.exchange import HttpRequest, Receive, Scope, Send
from api.openapi import answers
from api.streaming import wait_for_disconnect
from replset.bson import DateTime, Int64
from replset.commands.slow_operations import SlowOperation
from replset.errors import ErrorCode, OverloadedError, ReplError
from replset.ids import OPTIME_NULL
from replset.runtime.member import RunningMember

EVENT_STREAM = "text/event-stream"
STREAMS_MAX = 16
"""Streams of one member at once. Each costs a replSetGetStatus a second."""
STREAM_S = 900.0
"""A stream ends after this time. Its client opens another one, and its login is checked again."""
EVERY_MS = 1000
LEAST_S = 0.1
"""Changes that come faster are sent together."""
NEWEST_ENTRIES = 40
COUNTED = ("find", "aggregate", "count", "distinct", "insert", "update", "delete", "findAndModify")


def router(member: RunningMember) -> APIRouter:
    routes = APIRouter(prefix="/v1/replset", tags=["replset"])
    streams: set[EventStream] = set()

    @routes.get(
        "/events",
        summary="The state of the set as server-sent events: one a second, and at each change.",
        description="`event: status`, and as `data` a document: `status` (replSetGetStatus), `oplog` (its bounds and"
        " its newest entries, without their documents), `operations` (how often each command ran here), `slow` (the"
        " newest slow operations). `event: error` is the last one of a stream that is refused from then on.",
        responses={
            **answers(400, 405, 503),
            200: {"description": "events", "content": {EVENT_STREAM: {"schema": {"type": "string"}}}},
        },
        response_class=Response,
    )
    async def events(request: Request) -> Response:
        if len(streams) >= STREAMS_MAX:
            text = f"this member is overloaded: {len(streams)} streams of events are open; close one, or try again"
            raise http_error(OverloadedError(text))
        http = HttpRequest(request.scope)
        first = await _status_event(member, http)
        return EventStream(member, streams, first, lambda: _status_event(member, http))

    return routes


class EventStream(Response):
    """Sends one event after the other until the client leaves or the member stops. streams: those that are open."""

    def __init__(
        self, member: RunningMember, streams: set[EventStream], first: bytes, next_event: Callable[[], Awaitable[bytes]]
    ) -> None:
        super().__init__()
        self._member = member
        self._streams = streams
        self._first = first
        self._next_event = next_event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._streams.add(self)
        ends_at = asyncio.get_running_loop().time() + STREAM_S
        disconnected = asyncio.ensure_future(wait_for_disconnect(receive))
        headers = [(b"content-type", EVENT_STREAM.encode()), (b"cache-control", b"no-store")]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            event, is_last = self._first, False
            while not disconnected.done():
                await send({"type": "http.response.body", "body": event, "more_body": not is_last})
                if is_last:
                    return
                event, is_last = await self._wait_for_event(disconnected)
                is_last = is_last or asyncio.get_running_loop().time() >= ends_at
        finally:
            disconnected.cancel()
            self._streams.discard(self)

    async def _wait_for_event(self, disconnected: asyncio.Future[None]) -> tuple[bytes, bool]:
        """Return the next event, and True if it is the last one."""
        member = self._member
        change = asyncio.ensure_future(member.topology.wait(member.topology.counter, EVERY_MS))
        try:
            await asyncio.wait((change, disconnected), return_when=asyncio.FIRST_COMPLETED)
        finally:
            change.cancel()
        if member.shutting_down or disconnected.done():
            return b"", True
        await asyncio.sleep(LEAST_S)
        try:
            return await self._next_event(), False
        except HttpError as error:
            return _event("error", error.body), True


async def _status_event(member: RunningMember, http: HttpRequest) -> bytes:
    """Return the event of now. HttpError when this client may not see it; before the initiation it says so."""
    reply = await run_command(member, {"replSetGetStatus": 1}, "admin", http.sender)
    if reply.get("code") != ErrorCode.NOT_YET_INITIALIZED:
        check_reply(reply)
    counts = member.dispatcher.counts
    document = {
        "member": str(member.host),
        "status": decode_reply(reply),
        "oplog": _oplog_document(member),
        "slow": [_slow_document(row) for row in reversed(member.dispatcher.operations.slow.rows)],
        "operations": {name: Int64(counts.get(name, 0)) for name in COUNTED},
    }
    return _event("status", document)


def _oplog_document(member: RunningMember) -> dict[str, Any]:
    store = member.store
    first, last = store.oldest, store.last_applied
    try:
        heads = store.newest_heads(NEWEST_ENTRIES)
    except ReplError:  # the data is being replaced
        heads = []
    return {
        "first": None if first == OPTIME_NULL else str(first),
        "last": None if last == OPTIME_NULL else str(last),
        "windowSecs": 0 if first == OPTIME_NULL else max(0, last.seconds - first.seconds),
        "bytes": Int64(store.oplog_bytes),
        "maxBytes": Int64(store.options.oplog_max_bytes),
        "newest": [
            {"optime": str(head.optime), "op": head.op, "ns": head.ns, "wall": DateTime(head.wall_ms)} for head in heads
        ],
    }


def _slow_document(row: SlowOperation) -> dict[str, Any]:
    return {
        "date": DateTime(row.wall_ms),
        "command": row.command,
        "ns": row.ns,
        "millis": Int64(row.took_ms),
        "why": row.why,
        "fields": list(row.fields),
        "client": row.client,
    }


def _event(name: str, document: dict[str, Any]) -> bytes:
    """Return one event. The JSON has no line break, so that it is one `data` line."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), encode_body(Form.JSON, document, NO_TIMES))

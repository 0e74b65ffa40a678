"""`GET /v1/replset/events` streams the state of the set as server-sent events: one a second, and at each change."""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakSet

from fastapi import APIRouter, Request, Response

from api.bodies import NO_TIMES, Form, encode_body
from api.commands import check_reply, decode_reply, run_command
from api.event_stream import RESPONSE, EventStream, sse_event
from api.exchange import HttpRequest
from api.openapi import answers
from api.routes.oplog import facts_of
from replset.bson import DateTime, Int64
from replset.errors import ErrorCode, ReplError
from replset.member.member import RunningMember
from replset.operations.slow_operations import SlowOperation
from replset.storage.store import Store

STREAMS_MAX = 16
"""Streams of one member at once. Each costs a replSetGetStatus a second."""
EVERY_MS = 1000
LEAST_S = 0.1
"""Changes that come faster are sent together."""
NEWEST_ENTRIES = 40
COUNTED = ("find", "aggregate", "count", "distinct", "insert", "update", "delete", "findAndModify")


def router(member: RunningMember) -> APIRouter:
    routes = APIRouter(prefix="/v1/replset", tags=["replset"])
    streams: WeakSet[EventStream] = WeakSet()

    @routes.get(
        "/events",
        summary="The state of the set as server-sent events: one a second, and at each change.",
        description="`event: status`, and as `data` a document: `status` (replSetGetStatus), `oplog` (its bounds and"
        " its newest entries, without their documents), `operations` (how often each command ran here), `slow` (the"
        " newest slow operations). `event: error` is the last one of a stream that is refused from then on.",
        responses={**answers(400, 405, 503), 200: RESPONSE},
        response_class=Response,
    )
    async def events(request: Request) -> Response:
        return await StatusStream(member, HttpRequest(request.scope)).opened(streams, STREAMS_MAX)

    return routes


class StatusStream(EventStream):
    """Sends the status each second and at each change, until the member stops."""

    def __init__(self, member: RunningMember, http: HttpRequest) -> None:
        super().__init__()
        self._member = member
        self._http = http

    async def read(self, wait_ms: int) -> bytes:
        member = self._member
        if wait_ms:
            await member.topology.wait(member.topology.counter, EVERY_MS)
            if member.shutting_down:
                self.is_over = True
                return b""
            await asyncio.sleep(LEAST_S)
        return await _status_event(member, self._http)


async def _status_event(member: RunningMember, http: HttpRequest) -> bytes:
    """Return the event of now. HttpError when this client may not see it; before the initiation it says so."""
    reply = await run_command(member, {"replSetGetStatus": 1}, "admin", http.sender)
    if reply.get("code") != ErrorCode.NOT_YET_INITIALIZED:
        check_reply(reply)
    counts = member.dispatcher.counts
    document = {
        "member": str(member.host),
        "status": decode_reply(reply),
        "oplog": _oplog_document(member.store),
        "slow": [_slow_document(row) for row in reversed(member.dispatcher.operations.slow.rows)],
        "operations": {name: Int64(counts.get(name, 0)) for name in COUNTED},
    }
    return sse_event("status", encode_body(Form.JSON, document, NO_TIMES))


def _oplog_document(store: Store) -> dict[str, Any]:
    try:
        heads = store.newest_heads(NEWEST_ENTRIES)
    except ReplError:  # the data is being replaced
        heads = []
    rows = [{"optime": str(one.optime), "op": one.op, "ns": one.ns, "wall": DateTime(one.wall_ms)} for one in heads]
    return {**facts_of(store), "newest": rows}


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

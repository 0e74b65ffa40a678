"""`GET /v1/watch` and `POST /v1/watch`: change streams as server-sent events or NDJSON, with the tokens of the wire.

A request runs the commands that a driver would: aggregate with $changeStream, and getMore again and again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final
from weakref import WeakSet

from fastapi import APIRouter, Request, Response

from api.actions import read_cursor
from api.commands import Reply, check_reply, run_command
from api.content import LARGE_BYTES, DocumentList
from api.errors import HttpError, failure, http_error
from api.exchange import HttpRequest, Receive, Scope, Send, read_options
from api.lines import NDJSON, lines_of, wants_lines
from api.openapi import answers, body
from api.read_from import add_read_from
from api.streaming import wait_for_disconnect
from replset.bson import Int64, RawDocument, Timestamp, to_ejson
from replset.errors import ErrorCode, OverloadedError
from replset.ids import OpTime
from replset.runtime.member import RunningMember

EVENT_STREAM: Final = "text/event-stream"
STREAMS_MAX: Final = 128
"""Streams of one member at once."""
STREAM_S: Final = 900.0
"""A stream ends after this time. Its client opens another one, and its login is checked again."""
WAIT_MS: Final = 5_000
"""A stream without events tells its token so often."""
TEXT: Final = {"type": "string"}
TOKEN: Final = {"type": "string", "description": "a token, as `id` of an event"}
FIELDS: Final[dict[str, dict[str, Any]]] = {
    "database": {**TEXT, "description": "without it the whole deployment"},
    "collection": {**TEXT, "description": "without it the whole database"},
    "resumeAfter": TOKEN,
    "startAfter": TOKEN,
    "startAtOperationTime": {**TEXT, "description": "an optime, TERM:SECONDS:INC"},
    "fullDocument": {"type": "string", "enum": ["default", "updateLookup", "whenAvailable", "required"]},
    "fullDocumentBeforeChange": {"type": "string", "enum": ["off", "whenAvailable", "required"]},
    "showExpandedEvents": {"type": "boolean"},
    "readPreference": {"type": "object", "description": "by default every member serves the stream"},
}
PIPELINE: Final = {"pipeline": {"type": "array", "items": {"type": "object"}}}
NEAREST: Final = {"mode": "nearest"}
DESCRIPTION: Final = (
    'With `accept: application/x-ndjson` each event is a line; a line `{"resumeToken"}` says where the stream is.'
    " Else they are server-sent events: `event: change` with its token as `id`. `Last-Event-ID` goes on behind a token."
    " The last event of a stream that is refused from then on is `error`."
)


def router(member: RunningMember) -> APIRouter:
    routes = APIRouter(prefix="/v1", tags=["data"])
    streams: WeakSet[WatchStream] = WeakSet()  # one that is never sent leaves by itself
    responses = {
        **answers(400, 403, 405, 413, 415, 503),
        200: {"description": "events", "content": {kind: {"schema": TEXT} for kind in (EVENT_STREAM, NDJSON)}},
    }

    async def open_stream(request: Request, options: dict[str, Any]) -> Response:
        if len(streams) >= STREAMS_MAX:
            raise http_error(OverloadedError(f"{len(streams)} change streams are open here: close one"))
        http = HttpRequest(request.scope)
        http.refuse_idempotency_key()
        stream = WatchStream(member, streams, http, options)
        streams.add(stream)
        try:
            await stream.open()
        except BaseException:
            streams.discard(stream)
            raise
        return stream

    @routes.get(
        "/watch",
        summary="Follow changes.",
        description=DESCRIPTION,
        responses=responses,
        response_class=Response,
        openapi_extra={
            "parameters": [{"name": name, "in": "query", "schema": schema} for name, schema in FIELDS.items()]
        },
    )
    async def watch(request: Request) -> Response:
        return await open_stream(request, _query_options(request))

    @routes.post(
        "/watch",
        summary="Follow changes, with a pipeline behind them.",
        description=DESCRIPTION,
        responses=responses,
        response_class=Response,
        openapi_extra=body({"type": "object", "properties": {**FIELDS, **PIPELINE}}),
    )
    async def watch_with_pipeline(request: Request) -> Response:
        http = HttpRequest(request.scope)
        return await open_stream(request, await read_options(http, request.receive, [*FIELDS, *PIPELINE]))

    return routes


def _query_options(request: Request) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in request.query_params.items():
        if name not in FIELDS or name == "readPreference":
            allowed = ", ".join(name for name in FIELDS if name != "readPreference")
            raise failure(ErrorCode.UNKNOWN_FIELD, f"unknown query parameter {name[:80]!r}; there are: {allowed}")
        if name == "showExpandedEvents":
            if value not in ("true", "false"):
                raise failure(ErrorCode.BAD_VALUE, f"{name} is true or false, not {value[:80]!r}")
            options[name] = value == "true"
        else:
            options[name] = value
    return options


def watch_command(options: Mapping[str, Any], last_event_id: str = "") -> tuple[dict[str, Any], str]:
    """Return the aggregate command, and its database. HttpError 400."""
    rest = dict(options)
    database, collection = _text(rest, "database"), _text(rest, "collection")
    if collection and not database:
        raise failure(ErrorCode.BAD_VALUE, "a collection needs its database")
    pipeline, preference = rest.pop("pipeline", []), rest.pop("readPreference", NEAREST)
    if not isinstance(pipeline, list):
        raise failure(ErrorCode.TYPE_MISMATCH, "pipeline is an array of stages")
    for name in ("resumeAfter", "startAfter"):
        if name in rest:
            rest[name] = {"_data": _text(rest, name)}
    if "startAtOperationTime" in rest and not isinstance(rest["startAtOperationTime"], Timestamp):
        text = _text(rest, "startAtOperationTime")
        try:
            at = OpTime.parse(text)
        except ValueError as error:
            raise failure(ErrorCode.BAD_VALUE, f"startAtOperationTime: {error}") from None
        rest["startAtOperationTime"] = Timestamp(at.seconds, at.increment)
    if last_event_id:  # a client that comes back: where it is counts, and not where it began
        for name in ("resumeAfter", "startAfter", "startAtOperationTime"):
            rest.pop(name, None)
        rest["startAfter"] = {"_data": last_event_id}
    if not database:
        rest["allChangesForCluster"] = True
    command: dict[str, Any] = {"aggregate": collection or Int64(1), "pipeline": [{"$changeStream": rest}, *pipeline]}
    return {**command, "cursor": {}, "$readPreference": preference}, database or "admin"


def _text(options: dict[str, Any], name: str) -> str:
    value = options.get(name, "") if name not in ("database", "collection") else options.pop(name, "")
    if not isinstance(value, str):
        raise failure(ErrorCode.TYPE_MISMATCH, f"{name} is a string")
    return value


class WatchStream(Response):
    """Sends what one change stream gives, until the client leaves. streams: those that are open."""

    def __init__(
        self, member: RunningMember, streams: WeakSet[WatchStream], http: HttpRequest, options: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self._member = member
        self._streams = streams
        self._http = http
        self._command, self._database = watch_command(options, http.header(b"last-event-id"))
        self._as_lines = wants_lines(http)
        self._cursor = Int64(0)
        self._collection = ""
        self._next = b""

    async def open(self) -> None:
        """Open the cursor, and have the first batch ready. HttpError: it is refused."""
        try:
            await self._take(await self._run(self._command), "firstBatch")
        except HttpError as error:
            add_read_from(self._member, error, self._command["$readPreference"])
            raise

    async def _run(self, command: Mapping[str, Any]) -> Reply:
        return check_reply(await run_command(self._member, command, self._database, self._http.sender))

    async def _take(self, reply: Reply, batch: str) -> None:
        self._cursor, documents = read_cursor(reply, batch)
        cursor: Any = reply.get("cursor")
        self._collection = str(cursor["ns"]).partition(".")[2]
        token = str(cursor["postBatchResumeToken"]["_data"])
        if sum(len(document.raw) for document in documents) > LARGE_BYTES:
            self._next = await self._member.workers.run(lambda: self._shown(documents, token))
        else:
            self._next = self._shown(documents, token)

    def _shown(self, documents: DocumentList, token: str) -> bytes:
        if self._as_lines:
            return lines_of(documents) if documents else _line({"resumeToken": token})
        found = [_event("change", line, _token_of(raw)) for raw in documents for line in [lines_of([raw])]]
        return b"".join(found) if found else b"id: %s\n: nothing new\n\n" % token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ends_at = asyncio.get_running_loop().time() + STREAM_S
        disconnected = asyncio.ensure_future(wait_for_disconnect(receive))
        kind = NDJSON if self._as_lines else EVENT_STREAM
        headers = [(b"content-type", kind.encode()), (b"cache-control", b"no-store")]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            while not disconnected.done():
                is_last = not self._cursor or asyncio.get_running_loop().time() >= ends_at
                await send({"type": "http.response.body", "body": self._next, "more_body": not is_last})
                if is_last:
                    return
                reading = asyncio.ensure_future(self._read_on())
                await asyncio.wait((reading, disconnected), return_when=asyncio.FIRST_COMPLETED)
                reading.cancel()
        finally:
            disconnected.cancel()
            self._streams.discard(self)
            await self._close()

    async def _read_on(self) -> None:
        more = {"getMore": self._cursor, "collection": self._collection, "maxTimeMS": WAIT_MS}
        try:
            await self._take(await self._run(more), "nextBatch")
        except HttpError as error:
            self._cursor = Int64(0)
            self._next = _line({"error": error.body}) if self._as_lines else _event("error", _line(error.body))

    async def _close(self) -> None:
        if self._cursor:
            kill = {"killCursors": self._collection, "cursors": [self._cursor]}
            await run_command(self._member, kill, self._database, self._http.sender)


def _token_of(event: RawDocument) -> str:
    token: Any = event.get("_id")
    return str(token["_data"])


def _line(document: Mapping[str, Any]) -> bytes:
    return (to_ejson(document, False) + "\n").encode()


def _event(name: str, line: bytes, event_id: str = "") -> bytes:
    """Return one server-sent event. line: its JSON, with a line break at its end alone."""
    head = b"id: %s\n" % event_id.encode() if event_id else b""
    return b"%sevent: %s\ndata: %s\n" % (head, name.encode(), line)

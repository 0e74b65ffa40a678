"""`GET /v1/watch` and `POST /v1/watch`: change streams as server-sent events or NDJSON, with the tokens of the wire.

A request runs the commands that a driver would: aggregate with $changeStream, and getMore again and again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final
from weakref import WeakSet

from fastapi import APIRouter, Request, Response

from api.actions import read_cursor
from api.commands import Reply, check_reply, run_command
from api.errors import HttpError, failure
from api.event_stream import RESPONSE_OR_LINES, EventStream, change_events
from api.exchange import HttpRequest, read_options
from api.lines import BATCH_BYTES, encoded, encoded_line, lines_of
from api.openapi import answers, body
from api.read_from import add_read_from, advised_elsewhere
from replset.bson import Int64, Timestamp
from replset.errors import ErrorCode
from replset.ids import OpTime
from replset.member.member import RunningMember

STREAMS_MAX: Final = 128
"""Streams of one member at once."""
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
    streams: WeakSet[EventStream] = WeakSet()
    responses = {
        **answers(400, 403, 405, 413, 415, 503),
        200: RESPONSE_OR_LINES,
    }

    async def open_stream(request: Request, options: dict[str, Any]) -> Response:
        http = HttpRequest(request.scope)
        http.refuse_idempotency_key()
        return await WatchStream(member, http, options).opened(streams, STREAMS_MAX)

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


class WatchStream(EventStream):
    """Sends what one change stream gives."""

    def __init__(self, member: RunningMember, http: HttpRequest, options: Mapping[str, Any]) -> None:
        super().__init__(http)
        self._member = member
        self._http = http
        self._command, self._database = watch_command(options, http.header(b"last-event-id"))
        self._cursor = Int64(0)
        self._collection = ""

    async def read(self, wait_ms: int) -> bytes:
        """Open the cursor, and later read on."""
        if self._cursor:
            more = {"getMore": self._cursor, "collection": self._collection, "maxTimeMS": wait_ms}
            return await self._shown(await self._run(more), "nextBatch")
        preference = self._command["$readPreference"]
        try:
            self.more_headers = advised_elsewhere(self._member, preference)
            return await self._shown(await self._run(self._command), "firstBatch")
        except HttpError as error:
            add_read_from(self._member, error, preference)
            raise

    async def _run(self, command: Mapping[str, Any]) -> Reply:
        return check_reply(await run_command(self._member, command, self._database, self._http.sender, BATCH_BYTES))

    async def _shown(self, reply: Reply, batch: str) -> bytes:
        self._cursor, documents = read_cursor(reply, batch)
        self.is_over = not self._cursor
        cursor: Any = reply.get("cursor")
        self._collection = str(cursor["ns"]).partition(".")[2]
        token = str(cursor["postBatchResumeToken"]["_data"])
        if documents:
            make = lines_of if self.as_lines else change_events
            return await encoded(self._member, documents, partial(make, documents))
        return encoded_line({"resumeToken": token}) if self.as_lines else b"id: %s\n: nothing new\n\n" % token.encode()

    def error_part(self, error: HttpError) -> bytes:
        self._cursor = Int64(0)
        return super().error_part(error)

    async def close(self) -> None:
        if self._cursor:
            kill = {"killCursors": self._collection, "cursors": [self._cursor]}
            await run_command(self._member, kill, self._database, self._http.sender)

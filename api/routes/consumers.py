"""`/v1/consumers`: named consumers. Each route runs one command on the primary, wherever the request comes in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

from fastapi import APIRouter, Request, Response

from api.actions import documents_in
from api.bodies import NO_TIMES, DocumentList, Form, encode_body, parts_of, times_of
from api.commands import Reply, check_reply, decode_reply, run_command, run_write
from api.errors import HttpError
from api.event_stream import RESPONSE_OR_LINES, EventStream, change_events, sse_event
from api.exchange import HttpAnswer, HttpRequest, read_options, to_response
from api.guard import check_no_link
from api.lines import encoded, encoded_line, lines_of
from api.openapi import answers, body
from replset.bson import Int64
from replset.member.member import RunningMember

STREAMS_MAX = 64
"""Streams of one member at once."""
TEXT, NUMBER = {"type": "string"}, {"type": "integer", "minimum": 0}
TOKENS = {"type": "array", "items": TEXT}
GENERATION = {"generation": {"type": "integer", "description": "of the answer that had the events"}}
FIELDS: dict[str, dict[str, Any]] = {
    "Create": {
        "name": TEXT,
        "ns": {**TEXT, "example": "shop.orders"},
        "filter": {"type": "object"},
        "mode": {"type": "string", "enum": ["exclusive", "failover", "shared"]},
        "startAt": {},
        "ackTimeoutMS": NUMBER,
    },
    "Read": {"reader": TEXT, "after": TEXT, **GENERATION, "maxEvents": NUMBER, "waitMS": NUMBER},
    "Ack": {**GENERATION, "token": TEXT, "tokens": TOKENS},
    "Nack": {**GENERATION, "tokens": TOKENS, "reader": TEXT, "delayMS": NUMBER, "leave": {"type": "boolean"}},
    "Seek": {"to": {}},
}
SUMMARIES = {
    "Read": "Events behind the position; with `waitMS` it waits for some.",
    "Ack": "Acknowledge all events up to `token`, of a shared consumer those of `tokens`.",
    "Nack": "Give events back; they come again after `delayMS`.",
    "Seek": "Set the position: a token, a time, oldest or now.",
}
ERRORS = (400, 404, 405, 409, 503)
WRITE_ERRORS = (307, *ERRORS, 413, 415, 504)


def router(member: RunningMember) -> APIRouter:
    routes = APIRouter(prefix="/v1/consumers", tags=["consumers"])
    streams: WeakSet[EventStream] = WeakSet()

    async def run(request: Request, command: Mapping[str, Any], status: int = 200) -> Response:
        http = HttpRequest(request.scope)
        http.refuse_idempotency_key()
        reply, headers = await run_write(member, http, command, "admin")
        try:
            check_reply(reply, is_write=True)
        except HttpError as error:
            error.headers |= headers
            raise
        answer = HttpAnswer(_document_of(reply), status, headers, times_of(reply), is_heavy="events" in reply)
        return await to_response(member, http, answer)

    async def listed(request: Request, what: object) -> Response:
        http = HttpRequest(request.scope)
        reply = check_reply(await run_command(member, {"replSetConsumers": what}, "admin", http.sender))
        return await to_response(member, http, HttpAnswer(decode_reply(reply), times=times_of(reply)))

    @routes.get("", summary="All consumers, as this member knows them.", responses=answers(200, 400, 405, 503))
    async def consumers(request: Request) -> Response:
        return await listed(request, 1)

    @routes.get("/{name}", summary="One consumer, as this member knows it.", responses=answers(200, *ERRORS))
    async def consumer(name: str, request: Request) -> Response:
        return await listed(request, name)

    @routes.post(
        "",
        summary="Create a named consumer; one that is there with the same options stays as it is.",
        responses=answers(201, *WRITE_ERRORS),
        openapi_extra=body({"type": "object", "required": ["name"], "properties": FIELDS["Create"]}),
    )
    async def create(request: Request) -> Response:
        fields = await read_options(HttpRequest(request.scope), request.receive, FIELDS["Create"])
        return await run(request, {"replSetConsumerCreate": fields.pop("name", None), **fields}, 201)

    @routes.delete("/{name}", summary="Remove a consumer.", responses=answers(200, *WRITE_ERRORS))
    async def remove(name: str, request: Request) -> Response:
        return await run(request, {"replSetConsumerRemove": name})

    def add_action(action: str) -> None:
        @routes.post(
            f"/{{name}}/{action.lower()}",
            name=action.lower(),
            summary=SUMMARIES[action],
            responses=answers(200, *WRITE_ERRORS),
            openapi_extra=body({"type": "object", "properties": FIELDS[action]}),
        )
        async def act(name: str, request: Request) -> Response:
            fields = await read_options(HttpRequest(request.scope), request.receive, FIELDS[action])
            return await run(request, {f"replSetConsumer{action}": name, **fields})

    for action in SUMMARIES:
        add_action(action)

    @routes.get(
        "/{name}/events",
        summary="Its events as server-sent events or NDJSON, for one `reader`.",
        description="`event: change` with GENERATION-TOKEN as `id`, and `event: reader` with the generation that"
        " acknowledgements name. `Last-Event-ID` is where an exclusive or failover consumer goes on. With `accept:"
        ' application/x-ndjson` a line `{"reader"}` says the same, each event is a line, and without events'
        ' `{"next", "position"}` says where the reader is.',
        responses={**answers(403, *ERRORS), 200: RESPONSE_OR_LINES},
        response_class=Response,
    )
    async def events(name: str, request: Request, reader: str = "") -> Response:
        check_no_link(request.scope)  # a reader takes the consumer, or events from others
        http = HttpRequest(request.scope)
        http.query = ""  # its parameters are not those of a command
        stream = ConsumerStream(member, http, {"replSetConsumerRead": name, "reader": reader})
        return await stream.opened(streams, STREAMS_MAX)

    return routes


def _document_of(reply: Reply) -> dict[str, Any]:
    """Return the reply. Of events field by field: a document in one may be nested as deep as any."""
    if "events" not in reply:
        return decode_reply(reply)
    events = DocumentList(parts_of(event.raw) for event in documents_in(reply, "events"))
    names = [name for name in reply.keys() if name != "events"]  # noqa: SIM118 - a RawDocument is no mapping
    return {**{name: reply.get(name) for name in names}, "events": events}


class ConsumerStream(EventStream):
    """Reads as the command does, again and again."""

    def __init__(self, member: RunningMember, http: HttpRequest, command: dict[str, Any]) -> None:
        super().__init__(http)
        self._member = member
        self._http = http
        self._command = command
        generation, _, token = http.header(b"last-event-id").partition("-")
        self._begin: dict[str, Any] = {}
        if token and generation.isdecimal() and len(generation) < 17:
            self._begin = {"after": token, "generation": Int64(int(generation))}
        self._shown: object = None

    async def read(self, wait_ms: int) -> bytes:
        command = {**self._command, "waitMS": wait_ms, **self._begin}
        reply = check_reply((await run_write(self._member, self._http, command, "admin"))[0])
        generation = reply.get("generation")
        if "next" in reply:
            self._begin = {"after": reply.get("next"), "generation": generation}
        about = b""
        if (generation, reply.get("holder")) != self._shown:
            self._shown = generation, reply.get("holder")
            names: tuple[str, ...] = ("generation", "position", "active", "holder")
            shown = {name: reply.get(name) for name in names if name in reply}
            if self.as_lines:
                about = encoded_line({"reader": shown})
            else:
                about = sse_event("reader", encode_body(Form.JSON, shown, NO_TIMES))
        events = documents_in(reply, "events")
        if self.as_lines:
            idle = {name: reply.get(name) for name in ("next", "position", "active") if name in reply}
            return about + (await encoded(self._member, events, lambda: lines_of(events)) or encoded_line(idle))
        changes = await encoded(self._member, events, lambda: change_events(events, f"{generation}-"))
        return about + changes or b": nothing new\n\n"

"""`/v1/consumers`: shows named consumers and streams their events; the other routes are declared with the commands."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from fastapi import APIRouter, Request, Response

from api.actions import documents_in
from api.bodies import NO_TIMES, Form, encode_body
from api.commands import check_reply, run_write
from api.event_stream import RESPONSE_OR_LINES, EventStream, change_events, sse_event
from api.exchange import HttpRequest
from api.guard import check_no_link
from api.lines import encoded, encoded_line, lines_of
from api.openapi import answers
from api.routes.declared import answer, serve_declared
from replset.bson import Int64
from replset.member.member import RunningMember

STREAMS_MAX = 64
"""Streams of one member at once."""
ERRORS = (400, 404, 405, 409, 503)


def router(member: RunningMember) -> APIRouter:
    routes = APIRouter(prefix="/v1/consumers", tags=["consumers"])
    streams: WeakSet[EventStream] = WeakSet()

    @routes.get("", summary="All consumers, as this member knows them.", responses=answers(200, 400, 405, 503))
    async def consumers(request: Request) -> Response:
        return await answer(member, request, {"replSetConsumers": 1})

    @routes.get("/{name}", summary="One consumer, as this member knows it.", responses=answers(200, *ERRORS))
    async def consumer(name: str, request: Request) -> Response:
        return await answer(member, request, {"replSetConsumers": name})

    serve_declared(routes, member, 409)

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

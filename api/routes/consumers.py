"""`/v1/consumers`: named consumers. Each route runs one command on the primary, wherever the request comes in."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

from fastapi import APIRouter, Request, Response

from api.commands import check_reply, decode_reply, run_command, run_write
from api.content import NO_TIMES, Form, encode_body, times_of
from api.errors import HttpError, http_error
from api.exchange import HttpAnswer, HttpRequest, Receive, Scope, Send, read_options, to_response
from api.guard import check_no_link
from api.openapi import answers, body
from api.streaming import wait_for_disconnect
from replset.bson import Int64, RawDocument
from replset.errors import OverloadedError
from replset.runtime.member import RunningMember

EVENT_STREAM = "text/event-stream"
STREAMS_MAX = 64
"""Streams of one member at once."""
STREAM_S = 900.0
"""A stream ends after this time. Its client opens another one, and its login is checked again."""
WAIT_MS = 5_000
"""A stream without events sends a comment so often, which shows that it lives."""
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
    streams: WeakSet[ConsumerStream] = WeakSet()  # one that is never sent leaves by itself

    async def run(request: Request, command: Mapping[str, Any], status: int = 200) -> Response:
        http = HttpRequest(request.scope)
        http.refuse_idempotency_key()
        reply, headers = await run_write(member, http, command, "admin")
        try:
            check_reply(reply, is_write=True)
        except HttpError as error:
            error.headers |= headers
            raise
        answer = HttpAnswer(decode_reply(reply), status, headers, times_of(reply), is_heavy="events" in reply)
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
        summary="Its events as server-sent events, for one `reader`.",
        description="`event: change` with GENERATION-TOKEN as `id`, and `event: reader` with the generation that"
        " acknowledgements name. `Last-Event-ID` is where an exclusive or failover consumer goes on.",
        responses={
            **answers(403, *ERRORS),
            200: {"description": "events", "content": {EVENT_STREAM: {"schema": {"type": "string"}}}},
        },
        response_class=Response,
    )
    async def events(name: str, request: Request, reader: str = "") -> Response:
        check_no_link(request.scope)  # a reader takes the consumer, or events from others
        if len(streams) >= STREAMS_MAX:
            raise http_error(OverloadedError(f"{len(streams)} streams of consumers are open here: close one"))
        http = HttpRequest(request.scope)
        http.query = ""  # its parameters are not those of a command
        stream = ConsumerStream(member, streams, http, {"replSetConsumerRead": name, "reader": reader})
        streams.add(stream)
        try:
            await stream.read(0)
        except BaseException:
            streams.discard(stream)
            raise
        return stream

    return routes


class ConsumerStream(Response):
    """Reads as the command does, again and again, until the client leaves. streams: those that are open."""

    def __init__(
        self, member: RunningMember, streams: WeakSet[ConsumerStream], http: HttpRequest, command: dict[str, Any]
    ) -> None:
        super().__init__()
        self._member = member
        self._streams = streams
        self._http = http
        self._command = command
        generation, _, token = http.header(b"last-event-id").partition("-")
        self._begin: dict[str, Any] = {}
        if token and generation.isdecimal() and len(generation) < 17:
            self._begin = {"after": token, "generation": Int64(int(generation))}
        self._shown: object = None
        self._next = b""

    async def read(self, wait_ms: int) -> None:
        """Have the next events ready. HttpError: they are refused."""
        command = {**self._command, "waitMS": wait_ms, **self._begin}
        reply, _ = await run_write(self._member, self._http, command, "admin")
        found = decode_reply(check_reply(reply))
        generation = found.get("generation")
        if "next" in found:
            self._begin = {"after": found["next"], "generation": generation}
        parts = []
        if (generation, found.get("holder")) != self._shown:
            self._shown = generation, found.get("holder")
            names: tuple[str, ...] = ("generation", "position", "active", "holder")
            parts.append(_event("reader", {name: found[name] for name in names if name in found}))
        events: list[dict[str, Any]] = [
            event.decode() if isinstance(event, RawDocument) else event for event in found["events"]
        ]
        parts += [_event("change", event, f"{generation}-{event['_id']['_data']}") for event in events]
        self._next = b"".join(parts) or b": nothing new\n\n"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ends_at = asyncio.get_running_loop().time() + STREAM_S
        disconnected = asyncio.ensure_future(wait_for_disconnect(receive))
        headers = [(b"content-type", EVENT_STREAM.encode()), (b"cache-control", b"no-store")]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            while not disconnected.done():
                is_last = self._next.startswith(b"event: error") or asyncio.get_running_loop().time() >= ends_at
                await send({"type": "http.response.body", "body": self._next, "more_body": not is_last})
                if is_last:
                    return
                reading = asyncio.ensure_future(self._read_on())
                await asyncio.wait((reading, disconnected), return_when=asyncio.FIRST_COMPLETED)
                reading.cancel()
        finally:
            disconnected.cancel()
            self._streams.discard(self)

    async def _read_on(self) -> None:
        try:
            await self.read(WAIT_MS)
        except HttpError as error:
            self._next = _event("error", error.body)


def _event(name: str, document: Mapping[str, Any], event_id: str = "") -> bytes:
    """Return one event. The JSON has no line break, so that it is one `data` line."""
    line = b"id: %s\n" % event_id.encode() if event_id else b""
    return b"%sevent: %s\ndata: %s\n\n" % (line, name.encode(), encode_body(Form.JSON, document, NO_TIMES))

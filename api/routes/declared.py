"""Answers with the reply of a command, and serves the operations that declare a route (operations/declared.py)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fastapi import APIRouter, Request, Response

from api.actions import documents_in
from api.bodies import DocumentList, parts_of, times_of
from api.commands import Reply, check_reply, decode_reply, run_command, run_write
from api.errors import HttpError
from api.exchange import HttpAnswer, HttpRequest, read_options, to_response
from api.openapi import answers, body
from api.read_from import read_from_in
from api.streaming import while_connected
from replset.auth.roles import Action
from replset.errors import ErrorCode
from replset.member.member import RunningMember
from replset.operations.declared import Declaration, declarations

READ_ERRORS = (400, 404, 405, 503)
WRITE_ERRORS = (*READ_ERRORS, 413, 415, 504)


async def answer(
    member: RunningMember,
    request: Request,
    command: Mapping[str, Any],
    status: int = 200,
    *,
    forwards: bool = False,
    more: Mapping[str, object] = MappingProxyType({}),
) -> Response:
    """Answer with the reply to a command: this member's, or the primary's if the member `forwards` it.

    more: fields of the answer in front of those of the reply.
    """
    http, headers = HttpRequest(request.scope), dict[str, str]()
    if forwards:
        reply, headers = await run_write(member, http, command, "admin")
    else:
        reply = await run_command(member, command, "admin", http.sender)
    try:
        check_reply(reply, is_write=request.method != "GET")
    except HttpError as error:
        error.headers |= headers
        if error.body["code"] == ErrorCode.NODE_NOT_FOUND and request.method == "DELETE":
            error.status = 404
        raise
    headers |= read_from_in(member, reply)
    document = HttpAnswer({**more, **_document_of(reply)}, status, headers, times_of(reply), is_heavy="events" in reply)
    return await to_response(member, http, document)


def _document_of(reply: Reply) -> dict[str, Any]:
    """Return the reply. Of events field by field: a document in one may be nested as deep as any."""
    if "events" not in reply:
        return decode_reply(reply)
    events = DocumentList(parts_of(event.raw) for event in documents_in(reply, "events"))
    names = [name for name in reply.keys() if name != "events"]  # noqa: SIM118 - a RawDocument is no mapping
    return {**{name: reply.get(name) for name in names}, "events": events}


def serve_declared(routes: APIRouter, member: RunningMember, *statuses: int) -> None:
    """Add the route of each operation that declares one under the router's prefix. statuses: what else they answer."""
    for one in declarations():
        if one.path.startswith(routes.prefix):
            _serve(routes, member, one, statuses)


def _serve(routes: APIRouter, member: RunningMember, one: Declaration, statuses: tuple[int, ...]) -> None:
    path = one.path.removeprefix(routes.prefix)
    status = 201 if one.title == "create" else 200
    schema, extra = one.schema(), dict[str, Any]()
    if one.method == "POST":
        extra = body(schema, required="required" in schema)
    if one.in_path:
        in_path = {"name": one.in_path, "in": "path", "required": True}
        extra["parameters"] = [in_path | {"schema": {"type": "string", "title": one.in_path.title()}}]

    async def run(request: Request) -> Response:
        http = HttpRequest(request.scope)
        given = request.path_params
        if one.method == "POST":
            given = given | await read_options(http, request.receive, schema["properties"])
        if one.on_primary:
            http.refuse_idempotency_key()
        answering = answer(member, request, one.command(given), status, forwards=one.on_primary)
        if one.needs is Action.SET_STATUS:  # it only looks, and may take long
            return await while_connected(answering, request.receive)
        return await answering

    codes = answers(status, *((307,) if one.on_primary else ()), *statuses, *WRITE_ERRORS)
    routes.add_api_route(
        path, run, methods=[one.method], name=one.title, summary=one.summary, responses=codes, openapi_extra=extra
    )

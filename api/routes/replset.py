"""`/v1/replset/...` shows status and configuration, and runs the administrator's commands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, Request, Response

from api.errors import failure
from api.exchange import HttpRequest, read_options
from api.openapi import answers, body
from api.routes.declared import READ_ERRORS, WRITE_ERRORS, answer, serve_declared
from api.routes.writes import add_write_state
from replset.errors import ErrorCode
from replset.features.administration.operations import MEMBER
from replset.member.member import RunningMember

CONFIG = {"type": "object", "example": {"_id": "rs0", "members": [{"_id": 0, "host": "127.0.0.1:27017"}]}}
RECONFIG = {"config": CONFIG, "force": {"type": "boolean"}, "maxTimeMS": {"type": "integer", "minimum": 0}}
OF_CONFIG = ("ok", "operationTime", "$clusterTime", "commitmentStatus")
"""What else an answer of /config has, which may be sent back with a changed `config`."""


def router(member: RunningMember) -> APIRouter:
    routes = APIRouter(prefix="/v1/replset", tags=["replset"])

    async def options_of(request: Request, known: Iterable[str] | None) -> dict[str, Any]:
        return await read_options(HttpRequest(request.scope), request.receive, known)

    @routes.get("/status", summary="Every member as this one sees it.", responses=answers(200, *READ_ERRORS))
    async def status(request: Request) -> Response:
        return await answer(member, request, {"replSetGetStatus": 1})

    @routes.get("/config", summary="The configuration in force.", responses=answers(200, *READ_ERRORS))
    async def config(request: Request, commitmentStatus: bool = False) -> Response:
        return await answer(member, request, {"replSetGetConfig": 1, "commitmentStatus": commitmentStatus})

    add_write_state(routes, member, "/writes/{optime}")

    @routes.get(
        "/elections",
        summary="The elections of all members, newest first; with `local` of this member's alone.",
        description="Why a member stood, who was asked, who granted, who refused and why, and how long each phase took."
        " `unreachable` names the members that did not answer, and why.",
        responses=answers(200, *READ_ERRORS),
    )
    async def elections(request: Request, local: bool = False, limit: int = 20) -> Response:
        return await answer(member, request, {"replSetGetElections": 1, "all": not local, "limit": limit})

    @routes.post(
        "/initiate",
        summary="Make a new set: the body is its configuration, or empty for this member alone.",
        responses=answers(200, *WRITE_ERRORS),
        openapi_extra=body(CONFIG, required=False),
    )
    async def initiate(request: Request) -> Response:
        return await answer(member, request, {"replSetInitiate": await options_of(request, None)})

    @routes.post(
        "/reconfig",
        summary="Install another configuration, on the primary; with force on this member, also without a majority.",
        description="Its version must be higher than the one in force. An answer of /config with a changed `config`"
        " in it may be sent back as it is. Force may lose acknowledged writes.",
        responses=answers(200, 307, *WRITE_ERRORS),
        openapi_extra=body({"type": "object", "required": ["config"], "properties": RECONFIG}),
    )
    async def reconfig(request: Request) -> Response:
        fields = await options_of(request, (*RECONFIG, *OF_CONFIG))
        document = fields.get("config")
        if document is None:
            raise failure(ErrorCode.MISSING_FIELD, "field 'config' is missing but required: the new configuration")
        if not isinstance(document, dict):
            raise failure(ErrorCode.TYPE_MISMATCH, "field 'config' must be the new configuration, a document")
        options = {name: fields[name] for name in ("force", "maxTimeMS") if fields.get(name) is not None}
        command = {"replSetReconfig": document, **options}
        return await answer(member, request, command, forwards=not options.get("force"))

    serve_declared(routes, member)

    @routes.post(
        "/members",
        summary="Add a member, on the primary; it copies the data, then it votes.",
        responses=answers(200, 307, *WRITE_ERRORS),
        openapi_extra=body({"type": "object", "required": ["host"], "properties": MEMBER}),
    )
    async def add_member(request: Request) -> Response:
        fields = await options_of(request, MEMBER)
        if "host" not in fields:
            raise failure(ErrorCode.MISSING_FIELD, "field 'host' is missing but required: HOST:PORT of the member")
        return await answer(member, request, {"replSetAddMember": fields}, forwards=True)

    @routes.delete(
        "/members/{host}",
        summary="Take a member out of the set, on the primary; its files stay where they are.",
        responses=answers(200, 307, *WRITE_ERRORS),
    )
    async def remove_member(host: str, request: Request) -> Response:
        return await answer(member, request, {"replSetRemoveMember": host}, forwards=True)

    return routes

"""`/v1/replset/...`: status, configuration, and the administrator's actions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from api.ask import check, decoded, run, run_write
from api.content import read_document, times_of
from api.errors import HttpError, failure
from api.exchange import Answer, Asked, read_body, respond
from api.openapi import answers, body
from api.ports import ApiDispatcher, ApiMember
from replset.errors import ErrorCode

NOT_BUILT_YET = ("syncFrom", "maintenance")
NODE_NOT_FOUND = 74
REPLY_FIELDS = frozenset({"ok", "operationTime", "$clusterTime", "commitmentStatus"})
"""Of an answer of /config, which may come back as it is, with another configuration in it."""
MEMBER = {
    "host": {"type": "string", "example": "127.0.0.1:27020"},
    "priority": {"type": "number", "minimum": 0, "maximum": 1000},
    "votes": {"type": "integer", "enum": [0, 1]},
    "arbiterOnly": {"type": "boolean"},
    "hidden": {"type": "boolean"},
    "secondaryDelaySecs": {"type": "integer", "minimum": 0},
    "tags": {"type": "object", "additionalProperties": {"type": "string"}},
}
CONFIG = {"type": "object", "example": {"_id": "rs0", "members": [{"_id": 0, "host": "127.0.0.1:27017"}]}}
SECONDS = {"type": "integer", "minimum": 0}
READ_ERRORS = (400, 404, 405, 503)
ERRORS = (*READ_ERRORS, 413, 415)
WRITE_ERRORS = (*ERRORS, 504)


def router(dispatcher: ApiDispatcher, member: ApiMember) -> APIRouter:
    routes = APIRouter(prefix="/v1/replset", tags=["replset"])

    async def here(request: Request, command: dict[str, Any], *, writes: bool = False) -> Response:
        asked = Asked(request.scope)
        reply = check(await run(dispatcher, command, "admin", asked.client), writes=writes)
        return await respond(member, asked, Answer(decoded(reply), times=times_of(reply)))

    async def on_primary(request: Request, command: dict[str, Any]) -> Response:
        asked = Asked(request.scope)
        reply, headers = await run_write(dispatcher, member, asked, command, "admin")
        try:
            check(reply, writes=True)
        except HttpError as error:
            error.headers |= headers
            if error.body["code"] == NODE_NOT_FOUND and request.method == "DELETE":
                error.status = 404
            raise
        return await respond(member, asked, Answer(decoded(reply), 200, headers, times_of(reply)))

    async def body_of(request: Request, known: frozenset[str] | None) -> dict[str, Any]:
        """The body's fields, {} for an empty one. known: those there are, None for any."""
        asked = Asked(request.scope)
        data = await read_body(asked, request.receive)
        fields = read_document(asked.content_type, data).decode() if data.strip() else {}
        for name in fields:
            if known is not None and name not in known:
                text = f"unknown field {name[:80]!r}; there are: {', '.join(sorted(known))}"
                raise failure(ErrorCode.UNKNOWN_FIELD, text)
        return fields

    @routes.get("/status", summary="Every member as this one sees it.", responses=answers(200, *READ_ERRORS))
    async def status(request: Request) -> Response:
        return await here(request, {"replSetGetStatus": 1})

    @routes.get("/config", summary="The configuration in force.", responses=answers(200, *READ_ERRORS))
    async def config(request: Request, commitmentStatus: bool = False) -> Response:
        return await here(request, {"replSetGetConfig": 1, "commitmentStatus": commitmentStatus})

    @routes.post(
        "/initiate",
        summary="Make a new set: the body is its configuration, or empty for this member alone.",
        responses=answers(200, *WRITE_ERRORS),
        openapi_extra=body(CONFIG, required=False),
    )
    async def initiate(request: Request) -> Response:
        return await here(request, {"replSetInitiate": await body_of(request, None)}, writes=True)

    @routes.post(
        "/reconfig",
        summary="Install another configuration, on the primary; with force on this member, also without a majority.",
        description="Its version must be higher than the one in force. An answer of /config with a changed `config`"
        " in it may be sent back as it is. Force may lose acknowledged writes.",
        responses=answers(200, 307, *WRITE_ERRORS),
        openapi_extra=body(
            {
                "type": "object",
                "required": ["config"],
                "properties": {"config": CONFIG, "force": {"type": "boolean"}, "maxTimeMS": SECONDS},
            }
        ),
    )
    async def reconfig(request: Request) -> Response:
        fields = await body_of(request, REPLY_FIELDS | {"config", "force", "maxTimeMS"})
        document = fields.get("config")
        if document is None:
            raise failure(ErrorCode.MISSING_FIELD, "field 'config' is missing but required: the new configuration")
        if not isinstance(document, dict):
            raise failure(ErrorCode.TYPE_MISMATCH, "field 'config' must be the new configuration, a document")
        options = {name: fields[name] for name in ("force", "maxTimeMS") if fields.get(name) is not None}
        command = {"replSetReconfig": document, **options}
        if options.get("force"):
            return await here(request, command, writes=True)
        return await on_primary(request, command)

    @routes.post(
        "/stepDown",
        summary="Let this member, the primary, hand over; it is not elected again for `seconds`.",
        responses=answers(200, *WRITE_ERRORS),
        openapi_extra=body(
            {
                "type": "object",
                "properties": {
                    "seconds": SECONDS,
                    "secondaryCatchUpPeriodSecs": SECONDS,
                    "force": {"type": "boolean"},
                },
            },
            required=False,
        ),
    )
    async def step_down(request: Request) -> Response:
        fields = await body_of(request, frozenset({"seconds", "secondaryCatchUpPeriodSecs", "force"}))
        return await here(request, {"replSetStepDown": fields.pop("seconds", 60), **fields})

    @routes.post(
        "/freeze",
        summary="Keep this member from standing for election for `seconds`; 0 ends it.",
        responses=answers(200, *ERRORS),
        openapi_extra=body({"type": "object", "required": ["seconds"], "properties": {"seconds": SECONDS}}),
    )
    async def freeze(request: Request) -> Response:
        fields = await body_of(request, frozenset({"seconds"}))
        if "seconds" not in fields:
            raise failure(ErrorCode.MISSING_FIELD, "field 'seconds' is missing but required; 0 ends it")
        return await here(request, {"replSetFreeze": fields["seconds"]})

    @routes.post(
        "/resync",
        summary="Let this member export what only it has, and copy another member's data; also ends a quarantine.",
        responses=answers(200, *ERRORS),
        openapi_extra=body({"type": "object", "properties": {"force": {"type": "boolean"}}}, required=False),
    )
    async def resync(request: Request) -> Response:
        fields = await body_of(request, frozenset({"force"}))
        return await here(request, {"replSetResync": 1, **fields})

    @routes.post(
        "/members",
        summary="Add a member, on the primary; it copies the data, then it votes.",
        responses=answers(200, 307, *WRITE_ERRORS),
        openapi_extra=body({"type": "object", "required": ["host"], "properties": MEMBER}),
    )
    async def add_member(request: Request) -> Response:
        fields = await body_of(request, frozenset(MEMBER))
        if "host" not in fields:
            raise failure(ErrorCode.MISSING_FIELD, "field 'host' is missing but required: HOST:PORT of the member")
        return await on_primary(request, {"replSetAddMember": fields})

    @routes.delete(
        "/members/{host}",
        summary="Take a member out of the set, on the primary; its files stay where they are.",
        responses=answers(200, 307, *WRITE_ERRORS),
    )
    async def remove_member(host: str, request: Request) -> Response:
        return await on_primary(request, {"replSetRemoveMember": host})

    async def not_built(request: Request) -> Response:
        raise failure(ErrorCode.COMMAND_NOT_FOUND, f"{request.url.path.rpartition('/')[2]} is not built yet")

    for name in NOT_BUILT_YET:
        routes.add_api_route(
            f"/{name}",
            not_built,
            methods=["POST"],
            summary="Not built yet: answers 400, code 59.",
            operation_id=name,
            responses=answers(400, 405),
            status_code=400,
        )
    return routes

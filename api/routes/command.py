"""`POST /v1/command/{db}` runs any database command and returns the same reply document as the wire port."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from api.bodies import times_of
from api.commands import check_reply, decode_reply, run_command
from api.errors import APPLIED, HttpError, headers_of
from api.exchange import HttpAnswer, HttpRequest, read_document, to_response
from api.openapi import answers
from api.read_from import READ_COMMANDS, add_read_from, advised_elsewhere
from replset.errors import http_status_of
from replset.features.all import PRIVATE
from replset.member.member import RunningMember

WRITES = frozenset(
    {"insert", "update", "delete", "findAndModify", "bulkWrite", "applyOps", "create", "drop", "dropDatabase"}
    | {"renameCollection", "collMod", "createIndexes", "dropIndexes"}
)
BODY = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {"type": "object", "minProperties": 1},
            "example": {"find": "orders", "filter": {"qty": {"$gt": 2}}},
        }
    },
}


def router(member: RunningMember) -> APIRouter:
    routes = APIRouter(tags=["command"])

    @routes.post(
        "/v1/command/{db}",
        summary="Run a database command on this member.",
        description="The reply is the command's own. It is not forwarded: 503 when only the primary may answer.",
        responses=answers(200, 400, 403, 404, 405, 409, 413, 415, 503, 504),
        response_class=Response,
        openapi_extra={"requestBody": BODY},
    )
    async def command(db: str, request: Request) -> Response:
        http = HttpRequest(request.scope)
        http.refuse_idempotency_key()
        document = await read_document(member, http, request.receive)
        reply = await run_command(member, document, db, http.sender)
        try:
            fields = decode_reply(check_reply(reply, is_write=document.first_key in WRITES))
        except HttpError as error:
            if document.first_key in PRIVATE:
                error.status = 404
            elif document.first_key in READ_COMMANDS:
                add_read_from(member, error, document.get("$readPreference"))
            raise
        status, headers = outcome(fields)
        if document.first_key in READ_COMMANDS:
            headers |= advised_elsewhere(member, document.get("$readPreference"))
        answer = HttpAnswer(fields, status, headers, times_of(reply), is_heavy="cursor" in fields)
        return await to_response(member, http, answer)

    return routes


def outcome(reply: dict[str, Any]) -> tuple[int, dict[str, str]]:
    """Return status and headers for a reply with ok: 1, which may still hold write errors or a write concern error."""
    if reply.get("writeErrors"):
        status = http_status_of(int(reply["writeErrors"][0]["code"]))
        # A 503 says that nothing was applied and invites the client to send the whole write again. Here a part is
        # applied already, and a second run would apply that part twice. So the status is 504.
        if status == 503 and reply.get("n"):
            return 504, {APPLIED: "unknown"}
        return status, headers_of(status)
    if reply.get("writeConcernError"):
        return 504, {APPLIED: "true"}
    return 200, {}

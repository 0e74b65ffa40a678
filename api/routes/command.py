"""`POST /v1/command/{db}`: any database command as a document; the reply document as the wire port would give it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from api.ask import check, decoded, run
from api.content import times_of
from api.errors import APPLIED, HttpError, failure, headers_of, status_of
from api.exchange import Answer, Asked, document_of, respond
from api.openapi import answers
from api.ports import ApiDispatcher, ApiMember
from replset.commands.table import PRIVATE
from replset.errors import ErrorCode

WRITES = frozenset({"insert", "update", "delete", "findAndModify", "bulkWrite", "create", "drop", "dropDatabase"})
BODY = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {"type": "object", "minProperties": 1},
            "example": {"find": "orders", "filter": {"qty": {"$gt": 2}}},
        }
    },
}


def router(dispatcher: ApiDispatcher, member: ApiMember) -> APIRouter:
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
        asked = Asked(request.scope)
        if b"idempotency-key" in asked.headers:
            raise failure(ErrorCode.UNKNOWN_FIELD, "the header Idempotency-Key is not built yet")
        document = await document_of(member, asked, request.receive)
        reply = await run(dispatcher, document, db, asked.client)
        try:
            whole = decoded(check(reply, writes=document.first_key in WRITES))
        except HttpError as error:
            if document.first_key in PRIVATE:
                error.status = 404
            raise
        status, headers = outcome(whole)
        answer = Answer(whole, status, headers, times_of(reply), heavy="cursor" in whole)
        return await respond(member, asked, answer)

    return routes


def outcome(reply: dict[str, Any]) -> tuple[int, dict[str, str]]:
    """(status, headers) of a reply with ok: 1, which may still hold write errors or an unmet write concern."""
    if reply.get("writeErrors"):
        status = status_of(int(reply["writeErrors"][0]["code"]))
        if status == 503 and reply.get("n"):  # part of it is applied: 503 would deny that
            return 504, {APPLIED: "unknown"}
        return status, headers_of(status)
    if reply.get("writeConcernError"):
        return 504, {APPLIED: "true"}
    return 200, {}

"""`POST /v1/command/{db}`: any database command as a document; the reply document as the wire port would give it."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from api.ask import check, run
from api.content import answer, parse_body
from api.ports import ApiDispatcher


def router(dispatcher: ApiDispatcher) -> APIRouter:
    routes = APIRouter(tags=["command"])

    @routes.post("/v1/command/{db}", summary="Run a database command.", response_class=Response)
    async def command(db: str, request: Request) -> Response:
        document = parse_body(request.headers.get("content-type", ""), await request.body())
        client = f"{request.client.host}:{request.client.port}" if request.client else ""
        reply = check(await run(dispatcher, document, db, client))
        return answer(request.headers.get("accept", ""), reply)

    return routes

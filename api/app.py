"""The HTTP API of one member: the actions' dispatcher in front of a FastAPI application. Holds no rules."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from api.bounded import Bounded
from api.errors import HttpError, failure, of
from api.exchange import Answer, App, Asked, respond
from api.guard import Guard, check_content_type
from api.hot import Actions
from api.openapi import with_actions
from api.ports import ApiDispatcher, ApiMember
from api.routes import command, docs, health, metrics, oplog, recovery, replset, rollbacks
from replset.errors import ErrorCode, ReplError

log = logging.getLogger("replset.http")
DESCRIPTION = """A replica set over HTTP. Bodies are MongoDB Extended JSON v2 (`application/json`, `application/ejson`)
or BSON (`application/bson`). Answers are relaxed Extended JSON; `Accept: application/ejson; canonical=true` keeps every
type, `Accept: application/bson` gives BSON. `/v1` answers carry `operationTime` and `$clusterTime`."""


def create_app(dispatcher: ApiDispatcher, member: ApiMember, allowed_hosts: Sequence[str] = ()) -> App:
    """The whole API of one member, as an ASGI application. allowed_hosts: names that it goes by, beside its own."""

    async def guarded(request: Request) -> None:
        check_content_type(request.scope)

    app = FastAPI(
        title="replset",
        description=DESCRIPTION,
        version="1",
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(guarded)],
    )
    for router in (
        command.router(dispatcher, member),
        replset.router(dispatcher, member),
        oplog.router(member),
        recovery.router(member),
        rollbacks.router(dispatcher, member),
        health.router(member),
        metrics.router(dispatcher, member),
        docs.router(),
    ):
        app.include_router(router)
    _handle_errors(app, member)
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        return with_actions(plain())

    app.openapi = openapi  # type: ignore[method-assign]
    return Bounded(Actions(app, dispatcher, member), member, Guard(member, allowed_hosts))


def _handle_errors(app: FastAPI, member: ApiMember) -> None:
    """Every failure has the same form, whoever noticed it."""

    async def give(request: Request, problem: HttpError) -> Response:
        answer = Answer(problem.body, problem.status, problem.headers)
        return await respond(member, Asked(request.scope), answer)

    async def on_error(request: Request, error: Exception) -> Response:
        match error:
            case HttpError():
                return await give(request, error)
            case ReplError():
                return await give(request, of(error))
            case RequestValidationError():
                first = error.errors()[0]
                place = " ".join(str(part) for part in first["loc"])
                return await give(request, failure(ErrorCode.BAD_VALUE, f"{place}: {first['msg']}"))
            case HTTPException():
                text = f"{request.method[:20]} {request.url.path[:200]}: {error.detail}"
                return await give(
                    request, failure(ErrorCode.COMMAND_NOT_FOUND, text, status=error.status_code, headers=error.headers)
                )
        raise error

    for kind in (HttpError, ReplError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, on_error)

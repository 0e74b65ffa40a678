"""Builds the HTTP API of one member. Limits and guard come first, then the actions, then a FastAPI application."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from api.access import LoginRequired, check_route
from api.errors import HttpError
from api.exchange import App, HttpRequest, Receive, Scope, Send, error_answer, to_response
from api.guard import Guard, check_content_type
from api.limits import RequestLimits
from api.openapi import with_actions
from api.routes import (
    backup,
    command,
    consumers,
    docs,
    events,
    health,
    login,
    oplog,
    page,
    recovery,
    replset,
    rollbacks,
    watch,
    writes,
)
from api.routes.actions import ActionRoutes
from replset.errors import ReplError
from replset.imports import kept_out
from replset.member.member import RunningMember

DESCRIPTION = """A replica set over HTTP. Bodies are MongoDB Extended JSON v2 (`application/json`, `application/ejson`)
or BSON (`application/bson`). Answers are relaxed Extended JSON; `Accept: application/ejson; canonical=true` keeps every
type, `Accept: application/bson` gives BSON. `/v1` answers carry `operationTime` and `$clusterTime`."""


def create_app(member: RunningMember, allowed_hosts: Sequence[str] = ()) -> App:
    """Return the whole API of one member as an ASGI application. allowed_hosts: the member's names beside its own."""
    return with_limits(create_routes(member), member, allowed_hosts)


def with_limits(routes: FastAPI, member: RunningMember, allowed_hosts: Sequence[str] = ()) -> App:
    """Put what comes first before the routes: limits, guard, logins and actions."""
    logins = LoginRequired(ActionRoutes(routes, member), member)
    return answer_head(RequestLimits(logins, member, Guard(member, allowed_hosts)))


def answer_head(next_app: App) -> App:
    """Answer HEAD as GET, without the body."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        is_over = False

        async def send_head(message: MutableMapping[str, Any]) -> None:
            nonlocal is_over
            if message["type"] == "http.response.start":
                await send(message)
            elif not is_over:
                is_over = True  # then `receive` tells that the client has left, which ends what sends on and on
                await send({"type": "http.response.body", "body": b""})

        is_head = scope["type"] == "http" and scope["method"] == "HEAD"
        await (next_app({**scope, "method": "GET"}, receive, send_head) if is_head else next_app(scope, receive, send))

    return app


def create_routes(member: RunningMember) -> FastAPI:
    """Return all routes but those of actions."""

    async def guarded(request: Request) -> None:
        check_content_type(request.scope)
        check_route(member, request)

    app = FastAPI(
        title="replset",
        description=DESCRIPTION,
        version="1",
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(guarded)],
    )
    with kept_out("pydantic.v1"):  # 1.4 MB: each route asks whether a type is one of its own
        for router in (
            command.router(member),
            replset.router(member),
            writes.router(member),
            events.router(member),
            backup.router(member),
            consumers.router(member),
            watch.router(member),
            oplog.router(member),
            recovery.router(member),
            rollbacks.router(member),
            health.router(member),
            login.router(member),
            docs.router(),
            page.router(),
        ):
            app.include_router(router)
    _handle_errors(app, member)
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        return with_actions(plain())

    app.openapi = openapi  # type: ignore[method-assign]
    return app


def _handle_errors(app: FastAPI, member: RunningMember) -> None:
    """Give every error the same form, whether a route or the framework raised it."""

    async def on_error(http_request: Request, error: Exception) -> Response:
        request = HttpRequest(http_request.scope)
        request_line = f"{request.method[:20]} {http_request.url.path[:200]}"
        return await to_response(member, request, error_answer(error, request_line))

    for kind in (HttpError, ReplError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, on_error)

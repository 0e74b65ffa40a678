"""The HTTP API: the actions' dispatcher in front of a FastAPI application. Holds no rules."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from api.content import HttpError, answer, failure
from api.hot import Actions, App
from api.openapi import with_actions
from api.ports import ApiDispatcher, ApiMember
from api.routes import command, health, metrics, replset
from replset.errors import ReplError

DESCRIPTION = """A replica set over HTTP. Bodies are MongoDB Extended JSON v2, or BSON as `application/bson`."""


def create_app(dispatcher: ApiDispatcher, member: ApiMember) -> App:
    """The whole API of one member, as an ASGI application."""
    app = FastAPI(title="replset", description=DESCRIPTION, version="1", redirect_slashes=False)
    for router in (
        command.router(dispatcher),
        replset.router(dispatcher, member),
        health.router(member),
        metrics.router(dispatcher, member),
    ):
        app.include_router(router)
    _handle_errors(app)
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        return with_actions(plain())

    app.openapi = openapi  # type: ignore[method-assign]
    return Actions(app, dispatcher, member)


def _handle_errors(app: FastAPI) -> None:
    """Every failure has the same form, whoever noticed it."""

    def respond(request: Request, problem: HttpError) -> Response:
        return answer(request.headers.get("accept", ""), problem.body, problem.status, problem.headers)

    @app.exception_handler(HttpError)
    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HttpError)
        return respond(request, error)

    @app.exception_handler(ReplError)
    async def on_repl_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ReplError)
        return respond(request, failure(error.code, error.message, details=error.details))

    @app.exception_handler(RequestValidationError)
    async def on_invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        return respond(request, failure(2, f"{place}: {first['msg']}"))

    @app.exception_handler(HTTPException)
    async def on_starlette(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        text = f"{request.method} {request.url.path}: {error.detail}"
        problem = failure(59, text, status=error.status_code)
        problem.headers = dict(error.headers or {})
        return respond(request, problem)

"""`POST /v1/login` gives a token for a name and a password."""

from __future__ import annotations

from datetime import UTC, datetime

from fastapi import APIRouter, Request, Response

from api.access import token_keys, user_of_password
from api.errors import failure
from api.exchange import HttpAnswer, HttpRequest, read_options, to_response
from api.openapi import answers, body
from api.tokens import LIFETIME_S, make_token
from replset.errors import ErrorCode
from replset.member.member import RunningMember

LOGIN_BYTES = 64 << 10
"""Of the body of a login, which anybody may send."""
_TEXT = {"type": "string"}
_FIELDS = {"user": _TEXT, "password": _TEXT, "db": {**_TEXT, "default": "admin"}}


def router(member: RunningMember) -> APIRouter:
    routes = APIRouter(tags=["login"])

    @routes.post(
        "/v1/login",
        summary="A token for `Authorization: Bearer TOKEN`, on all members of the set.",
        description="It ends at `expires`, and with any change of the user.",
        responses=answers(200, 400, 401, 405, 413, 415, 503),
        openapi_extra=body({"type": "object", "required": ["user", "password"], "properties": _FIELDS}),
    )
    async def login(request: Request) -> Response:
        http = HttpRequest(request.scope)
        fields = {"db": "admin", **await read_options(http, request.receive, _FIELDS, LOGIN_BYTES)}
        for name in _FIELDS:
            if not isinstance(fields.get(name), str):
                raise failure(ErrorCode.TYPE_MISMATCH, f"field {name!r} must be a string")
        user = await user_of_password(member, http, fields["user"], fields["db"], fields["password"])
        until_s = member.clock.wall_ms() // 1000 + LIFETIME_S
        found = {
            "token": make_token(token_keys(member)[0], user, until_s),
            "expires": datetime.fromtimestamp(until_s, UTC).isoformat(),
            "user": user.name,
            "db": user.database,
            "roles": [role.document() for role in sorted(user.roles)],
        }
        return await to_response(member, http, HttpAnswer(found, headers={"cache-control": "no-store"}))

    return routes

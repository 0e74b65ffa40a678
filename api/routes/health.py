"""Health checks for load balancers: /health, /ready, /primary, /secondary and /arbiter answer 200 or 503."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from api.errors import headers_of
from replset.core.member_state import MemberState
from replset.runtime.member import RunningMember

_BODY = {
    "type": "object",
    "required": ["ok", "state"],
    "properties": {"ok": {"type": "integer", "enum": [0, 1]}, "state": {"type": "string"}},
}
_CONTENT = {"application/json": {"schema": _BODY}}


def router(member: RunningMember) -> APIRouter:
    routes = APIRouter(tags=["health"])
    checks: dict[str, tuple[str, Callable[[], bool]]] = {
        "/health": ("This process answers.", lambda: True),
        "/ready": ("Reads are served here.", lambda: member.node.state.is_readable and not member.shutting_down),
        "/primary": ("Writes are taken here.", lambda: member.node.writable and not member.shutting_down),
        "/secondary": ("This member is a secondary.", lambda: member.node.state is MemberState.SECONDARY),
        "/arbiter": ("This member is an arbiter.", lambda: member.node.state is MemberState.ARBITER),
    }
    for path, (summary, holds) in checks.items():
        routes.add_api_route(
            path,
            _endpoint(member, holds),
            methods=["GET"],
            summary=summary,
            operation_id=path[1:],
            response_class=JSONResponse,
            responses={
                200: {"description": "yes", "content": _CONTENT},
                503: {"description": "no", "content": _CONTENT},
            },
        )
        routes.add_api_route(path, _endpoint(member, holds), methods=["HEAD"], include_in_schema=False)
    return routes


def _endpoint(member: RunningMember, holds: Callable[[], bool]) -> Callable[[], object]:
    async def endpoint() -> JSONResponse:
        status = 200 if holds() else 503
        return JSONResponse({"ok": int(status == 200), "state": member.node.state.name}, status, headers_of(status))

    return endpoint

"""Health checks for load balancers: /health, /ready, /primary, /secondary and /arbiter answer 200 or 503.

`GET /metrics` returns Prometheus text, computed for each request. docs/metrics.md lists the names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest

from api.errors import headers_of
from api.metrics import MemberCollector
from api.openapi import answers
from replset.core.member_state import MemberState
from replset.member.member import RunningMember
from replset.replication.rollback_list import RollbackList

MAX_LAG_S = 30
"""A secondary that may be further behind is not ready for readers, unless the check names another limit."""
_BODY = {
    "type": "object",
    "required": ["ok", "state"],
    "properties": {
        "ok": {"type": "integer", "enum": [0, 1]},
        "state": {"type": "string"},
        "why": {"type": "string", "description": "with ok: 0 of /ready and /secondary"},
    },
}
_CONTENT = {"application/json": {"schema": _BODY}}
_RESPONSES: dict[int | str, dict[str, object]] = {
    200: {"description": "yes", "content": _CONTENT},
    503: {"description": "no", "content": _CONTENT},
}


def router(member: RunningMember) -> APIRouter:
    routes = APIRouter(tags=["health"])
    checks: dict[str, tuple[str, Callable[[], bool]]] = {
        "/health": ("This process answers.", lambda: True),
        "/primary": ("Writes are taken here.", lambda: member.node.writable and not member.shutting_down),
        "/arbiter": ("This member is an arbiter.", lambda: member.node.state is MemberState.ARBITER),
    }
    readers = {
        "/ready": ("Reads are served here.", (MemberState.PRIMARY, MemberState.SECONDARY)),
        "/secondary": ("This member is a secondary for readers.", (MemberState.SECONDARY,)),
    }
    endpoints = {path: (summary, _endpoint(member, holds)) for path, (summary, holds) in checks.items()}
    endpoints |= {path: (summary, _reader_endpoint(member, states)) for path, (summary, states) in readers.items()}
    for path, (summary, endpoint) in endpoints.items():
        routes.add_api_route(
            path,
            endpoint,
            methods=["GET"],
            summary=summary,
            operation_id=path[1:],
            response_class=JSONResponse,
            responses={**_RESPONSES, **(answers(400) if path in readers else {})},
        )

    @routes.get(
        "/metrics",
        summary="Prometheus text.",
        responses={200: {"description": "metrics", "content": {"text/plain": {}}}},
        response_class=Response,
    )
    async def metrics() -> Response:
        states = [str(row.get("state", "unreadable")) for row in await member[RollbackList].listed()]
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        unacknowledged, free = await member[RollbackList].refresh(), await member.free_bytes()
        registry.register(MemberCollector(member, states, unacknowledged, free))
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return routes


def _endpoint(member: RunningMember, holds: Callable[[], bool]) -> Callable[..., object]:
    async def endpoint() -> JSONResponse:
        return _answer(member, None if holds() else "")

    return endpoint


def _reader_endpoint(member: RunningMember, states: tuple[MemberState, ...]) -> Callable[..., object]:
    async def endpoint(
        maxLag: Annotated[float, Query(ge=0, description="seconds that a secondary may be behind")] = MAX_LAG_S,
    ) -> JSONResponse:
        return _answer(member, _why_no_reader(member, states, maxLag))

    return endpoint


def _why_no_reader(member: RunningMember, states: tuple[MemberState, ...], max_lag_s: float) -> str | None:
    """Return why readers should not be sent here; None: they may."""
    node = member.node
    if member.shutting_down:
        return "it is shutting down"
    if node.state not in states:
        return ""  # the answer has the state
    if node.state is MemberState.PRIMARY:
        return None
    me = None if node.config is None else node.config.member(node.self_id)
    if me is not None and (me.hidden or me.secondary_delay_secs):
        return "it is hidden" if me.hidden else f"it is {me.secondary_delay_secs} s delayed"
    lag_ms = node.lag_ms()
    if lag_ms is None:
        return "it has no data"
    return f"it may be {lag_ms / 1000:.1f} s behind" if lag_ms > max_lag_s * 1000 else None


def _answer(member: RunningMember, why_not: str | None) -> JSONResponse:
    """Answer 200, or 503 with the reason, which may be empty."""
    status = 200 if why_not is None else 503
    body = {"ok": int(status == 200), "state": member.node.state.name, **({"why": why_not} if why_not else {})}
    return JSONResponse(body, status, headers_of(status))

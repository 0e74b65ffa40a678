"""For load balancers and orchestrators: /health, /ready, /primary, /secondary, /arbiter; small bodies, 200 or 503."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from api.ports import ApiMember
from replset.core.member_state import MemberState


def router(member: ApiMember) -> APIRouter:
    routes = APIRouter(tags=["health"])

    def verdict(good: bool) -> JSONResponse:
        return JSONResponse({"ok": int(good), "state": member.node.state.name}, 200 if good else 503)

    @routes.get("/health", summary="The process is alive.")
    async def health() -> JSONResponse:
        return verdict(True)

    @routes.get("/ready", summary="This member can serve reads.")
    async def ready() -> JSONResponse:
        return verdict(member.node.state.is_readable and not member.shutting_down)

    @routes.get("/primary", summary="This member takes writes.")
    async def primary() -> JSONResponse:
        return verdict(member.node.writable)

    @routes.get("/secondary", summary="This member is a secondary.")
    async def secondary() -> JSONResponse:
        return verdict(member.node.state is MemberState.SECONDARY)

    @routes.get("/arbiter", summary="This member is an arbiter.")
    async def arbiter() -> JSONResponse:
        return verdict(member.node.state is MemberState.ARBITER)

    return routes

"""`GET /metrics` returns Prometheus text, computed for each request. docs/metrics.md lists the names."""

from __future__ import annotations

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest

from api.metrics import MemberCollector
from replset.runtime.member import RunningMember


def router(member: RunningMember) -> APIRouter:
    routes = APIRouter(tags=["health"])

    @routes.get(
        "/metrics",
        summary="Prometheus text.",
        responses={200: {"description": "metrics", "content": {"text/plain": {}}}},
        response_class=Response,
    )
    async def metrics() -> Response:
        states = [str(row.get("state", "unreadable")) for row in await member.rollbacks.listed()]
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        unacknowledged, free = await member.rollbacks.refresh(), await member.free_bytes()
        registry.register(MemberCollector(member, states, unacknowledged, free))
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return routes

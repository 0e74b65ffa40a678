"""`/v1/writes`: what became of a write, or of many, and waiting until they are safe."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from api.commands import check_reply, run_command
from api.exchange import HttpRequest
from api.openapi import answers
from api.routes.declared import READ_ERRORS, answer, serve_declared
from replset.member.member import RunningMember


def router(member: RunningMember) -> APIRouter:
    routes = APIRouter(prefix="/v1/writes", tags=["replset"])
    serve_declared(routes, member)
    add_write_state(routes, member, "/{optime}")
    return routes


def add_write_state(routes: APIRouter, member: RunningMember, path: str) -> None:
    """Add the route that tells what became of one write; it has two paths."""

    @routes.get(
        path,
        summary="What became of a write: committed, pending, notInSet or unknown; with `wait` once it is safe.",
        description="`optime` is the one that the write's answer named, TERM:SECONDS:INC. `rollbacks` says which have"
        " it; the other members are asked where this one cannot tell. `wait` is majority or members:N, for at most"
        " `timeoutMS` (10000, at most 60000); `confirmed` says whether that came about.",
        responses=answers(200, *READ_ERRORS),
    )
    async def write_state(
        optime: str,
        request: Request,
        wait: str | None = None,
        timeoutMS: int | None = None,
    ) -> Response:
        more: dict[str, object] = {}
        if wait is not None:
            limit = {} if timeoutMS is None else {"timeoutMS": timeoutMS}
            command = {"replSetConfirmWrites": [optime], "wait": wait, **limit}
            reply = await run_command(member, command, "admin", HttpRequest(request.scope).sender)
            check_reply(reply, is_write=False)
            more = {"confirmed": reply.get("confirmed") == 1}
        return await answer(member, request, {"replSetGetWriteState": optime, "all": True}, more=more)

"""`/v1/replset/rollbacks`: lists the rollbacks of all members, and gives the files of this member's rollbacks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import FileResponse
from starlette.exceptions import HTTPException

from api.bodies import BSON, times_of
from api.commands import check_reply, decode_reply, run_command
from api.errors import failure
from api.exchange import HttpAnswer, HttpRequest, read_options, to_response
from api.openapi import answers, body
from replset.bson import InvalidBSONError
from replset.errors import CorruptDataError, ErrorCode
from replset.features.recovery.lost_writes import LostPage, lost_entries
from replset.ids import HostPort
from replset.member.member import RunningMember
from replset.replication.rollback_list import RollbackList
from replset.replication.rollback_manifest import (
    Manifest,
    RollbackState,
    acknowledged,
    is_manifest_name,
    read_manifest,
)

DEFAULT_ROWS = 100
MAX_ROWS = 10_000
POSTED = frozenset({"ack", "restore"})
"""Names behind a rollback's that are no files of it. `restore` has a route elsewhere."""


def router(member: RunningMember) -> APIRouter:
    routes = APIRouter(prefix="/v1/replset/rollbacks", tags=["rollbacks"])

    @routes.get(
        "",
        summary="The manifests of all members' rollbacks, oldest first; with `local` of this member's alone.",
        description="`acknowledged` says when a person took note of it, null while nobody has. `httpAddress` is where"
        " the files are; `unreachable` names the members that did not answer, and why.",
        responses=answers(200, 400, 405, 503),
    )
    async def rollbacks(request: Request, local: bool = False) -> Response:
        http = HttpRequest(request.scope)
        command = {"replSetGetRollbacks": 1, "all": not local}
        reply = check_reply(await run_command(member, command, "admin", http.sender))
        found = decode_reply(reply)
        for row in found["rollbacks"]:
            row["httpAddress"] = member.node.http_address_of(HostPort(str(row["member"])))
        return await to_response(member, http, HttpAnswer(found, times=times_of(reply)))

    @routes.get("/{rollback}", summary="One manifest.", responses=answers(200, 404, 405, 503))
    async def rollback(rollback: str, request: Request) -> Response:
        manifest = await member.workers.run(lambda: find_manifest(Path(member[RollbackList].folder), rollback))
        return await to_response(member, HttpRequest(request.scope), HttpAnswer(manifest.document()))

    @routes.get(
        "/{rollback}/writes",
        summary="The writes that it undid, oldest first; with `lsid` those of one session.",
        description="`_id` of the document or the name of the command, and `lsid`, `txnNumber` and `stmtId` where the"
        " entry holds them. `next` is the value of `after` for the next page, null at the end.",
        responses=answers(200, 400, 404, 405, 503),
    )
    async def writes(
        rollback: str,
        request: Request,
        lsid: Annotated[str | None, Query(description="a session's UUID", pattern="^[0-9a-fA-F-]{32,36}$")] = None,
        after: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_ROWS)] = DEFAULT_ROWS,
    ) -> Response:
        folder = Path(member[RollbackList].folder)

        def read() -> LostPage:
            manifest = find_manifest(folder, rollback)
            try:
                return lost_entries(folder, manifest, session=lsid or "", after=after, limit=limit)
            except (OSError, CorruptDataError, InvalidBSONError) as error:
                raise failure(
                    ErrorCode.BAD_VALUE, f"the lost entries cannot be read from byte {after}: {error}"
                ) from error

        page = await member.workers.run(read)
        found = {"writes": page.rows, "next": page.next}
        return await to_response(member, HttpRequest(request.scope), HttpAnswer(found, is_heavy=True))

    @routes.post(
        "/{rollback}/ack",
        summary="Note that a person knows of it; `by` says who. The files stay.",
        description="Ask the member that has the files. `new` is false when it was acknowledged before.",
        responses=answers(200, 400, 404, 405, 413, 415, 503),
        openapi_extra=body({"type": "object", "properties": {"by": {"type": "string"}}}, required=False),
    )
    async def ack(rollback: str, request: Request) -> Response:
        http = HttpRequest(request.scope)
        by = await _acknowledged_by(http, request)
        folder = Path(member[RollbackList].folder)
        await member.workers.run(lambda: _check_settled(folder, rollback))
        is_new = await member[RollbackList].acknowledge(rollback, wall_ms=member.clock.wall_ms(), by=by)
        when = await member.workers.run(lambda: acknowledged(folder, rollback))
        return await to_response(member, http, HttpAnswer({"id": rollback, "acknowledged": when, "new": is_new}))

    @routes.get(
        "/{rollback}/{file}",
        summary="One of its BSON files, as it is.",
        responses={
            **answers(404, 405, 503),
            200: {"description": "documents, one after the other", "content": {BSON: {}}},
        },
    )
    async def rollback_file(rollback: str, file: str) -> Response:
        if file in POSTED:
            raise HTTPException(405, headers={"allow": "POST"})
        folder = Path(member[RollbackList].folder)
        manifest = await member.workers.run(lambda: find_manifest(folder, rollback))
        if file not in {row.name for row in manifest.files} or not await member.workers.run((folder / file).is_file):
            raise failure(ErrorCode.NAMESPACE_NOT_FOUND, f"rollback {rollback} has no file {file[:255]!r}", status=404)
        return FileResponse(folder / file, media_type=BSON)

    return routes


async def _acknowledged_by(http: HttpRequest, request: Request) -> str:
    """`by` of the body, else the client's address."""
    by = (await read_options(http, request.receive, ["by"])).get("by", http.client)
    if not isinstance(by, str):
        raise failure(ErrorCode.TYPE_MISMATCH, "field 'by' must be a string: who acknowledges")
    return by[:200]


def _check_settled(folder: Path, rollback: str) -> None:
    """Refuse to acknowledge a rollback that is not over. A damaged manifest can be acknowledged. Runs in a worker."""
    try:
        manifest = find_manifest(folder, rollback)
    except CorruptDataError:
        return
    if manifest.state is RollbackState.PLANNED:
        raise failure(ErrorCode.ILLEGAL_OPERATION, f"{manifest.id} is planned, not settled yet")


def find_manifest(folder: Path, rollback: str) -> Manifest:
    """Read the manifest of one rollback. Opens only files that the folder lists, no other path. Runs in a worker."""
    names = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
    name = f"{rollback}.json"
    if not is_manifest_name(name) or name not in names:
        raise failure(ErrorCode.NAMESPACE_NOT_FOUND, f"no rollback {rollback[:255]!r} on this member", status=404)
    try:
        return read_manifest(folder / name)
    except OSError as error:
        raise failure(
            ErrorCode.NAMESPACE_NOT_FOUND, f"rollback {rollback[:255]!r} cannot be read: {error.strerror}", status=404
        ) from error

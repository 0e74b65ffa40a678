"""`/v1/replset/...`: status, configuration, the administrator's actions, the oplog and the rollbacks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from api.ask import check, run, run_write
from api.content import BSON, answer, failure, parse_body
from api.ports import ApiDispatcher, ApiMember
from replset.bson import Int64, RawDocument, encode
from replset.commands.replies import finish
from replset.errors import ReplError
from replset.ids import OPTIME_NULL, OpTime
from replset.replication.rollback_files import list_manifests
from replset.storage.oplog import OplogRow

MAX_ROWS = 1000
MAX_ROWS_BYTES = 16 << 20
NOT_BUILT = ("syncFrom", "maintenance", "resync")
MEMBER_FIELDS = frozenset({"host", "priority", "votes", "arbiterOnly", "hidden", "secondaryDelaySecs", "tags"})


def router(dispatcher: ApiDispatcher, member: ApiMember) -> APIRouter:
    routes = APIRouter(prefix="/v1/replset", tags=["replset"])

    def client_of(request: Request) -> str:
        return f"{request.client.host}:{request.client.port}" if request.client else ""

    async def admin(request: Request, command: dict[str, Any]) -> Response:
        reply = check(await run(dispatcher, command, "admin", client_of(request)))
        return answer(request.headers.get("accept", ""), reply)

    async def on_primary(request: Request, command: dict[str, Any]) -> Response:
        query = request.url.query
        reply, headers = await run_write(
            dispatcher,
            member,
            command,
            "admin",
            path=request.url.path,
            query=query,
            forward="forward=false" not in query.split("&"),
            client=client_of(request),
        )
        return answer(request.headers.get("accept", ""), check(reply), headers=headers)

    async def body_of(request: Request) -> dict[str, Any]:
        data = await request.body()
        return parse_body(request.headers.get("content-type", ""), data) if data.strip() else {}

    @routes.get("/status", summary="replSetGetStatus.", response_class=Response)
    async def status(request: Request) -> Response:
        return await admin(request, {"replSetGetStatus": 1})

    @routes.get("/config", summary="replSetGetConfig.", response_class=Response)
    async def config(request: Request) -> Response:
        return await admin(request, {"replSetGetConfig": 1})

    @routes.post("/initiate", summary="replSetInitiate: the body is the configuration.", response_class=Response)
    async def initiate(request: Request) -> Response:
        return await admin(request, {"replSetInitiate": await body_of(request)})

    @routes.post("/reconfig", summary="replSetReconfig: {config, force?, maxTimeMS?}.", response_class=Response)
    async def reconfig(request: Request) -> Response:
        body = await body_of(request)
        document = body.pop("config", None)
        if not isinstance(document, dict):
            raise failure(40414, "field 'config' must be the new configuration document")
        force = body.get("force", False)
        command = {"replSetReconfig": document, **body}
        return await (admin if force else on_primary)(request, command)

    @routes.post(
        "/stepDown",
        summary="replSetStepDown: {seconds?, secondaryCatchUpPeriodSecs?, force?}.",
        response_class=Response,
    )
    async def step_down(request: Request) -> Response:
        body = await body_of(request)
        return await on_primary(request, {"replSetStepDown": body.pop("seconds", 60), **body})

    @routes.post("/freeze", summary="replSetFreeze: {seconds}.", response_class=Response)
    async def freeze(request: Request) -> Response:
        body = await body_of(request)
        return await admin(request, {"replSetFreeze": body.pop("seconds", 0), **body})

    @routes.post("/members", summary="Add a member.", response_class=Response)
    async def add_member(request: Request) -> Response:
        body = await body_of(request)
        for name in body:
            if name not in MEMBER_FIELDS:
                raise failure(40415, f"unknown field {name!r}; a member has: {', '.join(sorted(MEMBER_FIELDS))}")
        return await on_primary(request, {"replSetAddMember": body})

    @routes.delete("/members/{host}", summary="Remove a member.", response_class=Response)
    async def remove_member(host: str, request: Request) -> Response:
        return await on_primary(request, {"replSetRemoveMember": host})

    async def not_built(request: Request) -> Response:
        raise failure(59, f"{request.url.path.rpartition('/')[2]} is not built yet")

    for name in NOT_BUILT:
        routes.add_api_route(f"/{name}", not_built, methods=["POST"], summary="Not built yet.", response_class=Response)

    # --- the oplog -----------------------------------------------------------------------------------------------

    def stamped(document: dict[str, Any]) -> dict[str, Any]:
        return finish(document, member.store.last_applied.ts)

    @routes.get("/oplog", summary="Oplog entries behind `after`, oldest first.", response_class=Response)
    async def oplog(
        request: Request,
        after: Annotated[str | None, Query(description="TERM:SECONDS:INC, exclusive")] = None,
        limit: Annotated[int, Query(ge=1, le=MAX_ROWS)] = 100,
        ns: Annotated[str | None, Query(description="only this namespace")] = None,
        op: Annotated[str | None, Query(pattern="^[iudcn]$")] = None,
    ) -> Response:
        rows, following = await member.workers.run(lambda: read_rows(member, parse_after(after), limit, ns, op))
        accept = request.headers.get("accept", "")
        if BSON in accept.lower():
            data = b"".join(encode(row_document(row)) for row in rows)
            headers = {"x-replset-next": str(following)} if following else {}
            return Response(data, headers=headers, media_type=BSON)
        entries = [row_document(row) for row in rows]
        return answer(accept, stamped({"entries": entries, "next": str(following) if following else None}))

    @routes.get("/oplog/info", summary="First, last, window and size of the oplog.", response_class=Response)
    async def oplog_info(request: Request) -> Response:
        store = member.store
        first, last = store.oldest, store.last_applied
        return answer(
            request.headers.get("accept", ""),
            stamped(
                {
                    "first": None if first == OPTIME_NULL else str(first),
                    "last": None if last == OPTIME_NULL else str(last),
                    "windowSecs": last.seconds - first.seconds,
                    "bytes": Int64(store.oplog_bytes),
                    "maxBytes": Int64(store.options.oplog_max_bytes),
                }
            ),
        )

    # --- rollbacks -----------------------------------------------------------------------------------------------

    @routes.get("/rollbacks", summary="This member's rollbacks, oldest first.", response_class=Response)
    async def rollbacks(request: Request) -> Response:
        found = [manifest.document() for manifest in list_manifests(member.rollback_folder)]
        return answer(request.headers.get("accept", ""), stamped({"rollbacks": found}))

    @routes.get("/rollbacks/{rollback}", summary="One rollback's manifest.", response_class=Response)
    async def rollback(rollback: str, request: Request) -> Response:
        return answer(request.headers.get("accept", ""), stamped(manifest_of(member, rollback).document()))

    @routes.get("/rollbacks/{rollback}/{file}", summary="One of its BSON files.", response_class=Response)
    async def rollback_file(rollback: str, file: str) -> Response:
        names = {row.name for row in manifest_of(member, rollback).files}
        if file not in names:
            raise failure(26, f"rollback {rollback} has no file {file!r}", status=404)
        data = await member.workers.run(lambda: (Path(member.rollback_folder) / file).read_bytes())
        return Response(data, media_type=BSON)

    return routes


def parse_after(text: str | None) -> OpTime:
    if text is None:
        return OPTIME_NULL
    try:
        return OpTime.parse(text)
    except ValueError as error:
        raise failure(2, f"after: {error}") from error


def read_rows(
    member: ApiMember, after: OpTime, limit: int, ns: str | None, op: str | None
) -> tuple[list[OplogRow], OpTime | None]:
    """Rows behind `after`, and behind which optime to ask next (None: these were the last for now). In a worker."""
    with member.store.read() as snapshot:
        rows = list(snapshot.oplog_after(after, limit=limit, max_bytes=MAX_ROWS_BYTES, ns=ns, op=op))
        newest = snapshot.newest
    return rows, rows[-1].optime if rows and rows[-1].optime < newest else None


def row_document(row: OplogRow) -> dict[str, object]:
    return {
        "optime": str(row.optime),
        "key": row.key,
        "hash": Int64(row.hash),
        "chain": Int64(row.chain),
        "entry": RawDocument(row.entry),
    }


def manifest_of(member: ApiMember, rollback: str) -> Any:
    try:
        for manifest in list_manifests(member.rollback_folder):
            if manifest.id == rollback:
                return manifest
    except ReplError as error:
        raise failure(error.code, error.message) from error
    raise failure(26, f"no rollback {rollback!r} on this member", status=404)

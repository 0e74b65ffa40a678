"""`/v1/replset/oplog` returns this member's oplog page by page, as Extended JSON or as BSON documents."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from api.bodies import DocumentList, DocumentParts, Form, parts_of
from api.errors import failure
from api.exchange import HttpAnswer, HttpRequest, to_response
from api.openapi import answers
from replset.bson import Binary, Int64, RawDocument, encode
from replset.errors import ErrorCode
from replset.ids import OPTIME_NULL, OpTime
from replset.member.member import RunningMember
from replset.oplog_row import OplogRow
from replset.storage.snapshot import Snapshot
from replset.storage.store import Store

DEFAULT_ROWS = 100
MAX_ROWS = 10_000
MAX_ROWS_BYTES = 8 << 20
NEXT = "x-replset-next"


def router(member: RunningMember) -> APIRouter:
    routes = APIRouter(prefix="/v1/replset/oplog", tags=["oplog"])

    @routes.get(
        "",
        summary="Entries newer than `after`, oldest first.",
        description="`next` is what `after` has to be for the page behind this one, null at the end."
        " With Accept: application/bson the rows as concatenated documents, and x-replset-next.",
        responses=answers(200, 400, 405, 503),
    )
    async def oplog(
        request: Request,
        after: Annotated[str | None, Query(description="TERM:SECONDS:INC; without it from the oldest entry")] = None,
        limit: Annotated[int, Query(ge=1, le=MAX_ROWS)] = DEFAULT_ROWS,
        ns: Annotated[str | None, Query(description="only this namespace", max_length=255)] = None,
        op: Annotated[str | None, Query(description="only this operation", pattern="^[iudcn]$")] = None,
    ) -> Response:
        http = HttpRequest(request.scope)
        begin = parse_after(after)
        with member.store.read() as snapshot:
            reading = asyncio.ensure_future(member.workers.run(lambda: read_rows(snapshot, begin, limit, ns, op)))
            try:
                rows, next_after = await asyncio.shield(reading)
            finally:  # a cancelled request must not close the snapshot while its worker still reads from it
                await asyncio.wait([reading])
        position = None if next_after is None else str(next_after)
        if http.form is Form.BSON:
            headers = {"content-type": Form.BSON.value, **({NEXT: position} if position else {})}
            data = await member.workers.run(lambda: b"".join([encode(row_fields(row)) for row in rows]))
            return Response(data, headers=headers)
        documents = await member.workers.run(lambda: DocumentList([row_parts(row) for row in rows]))
        return await to_response(member, http, HttpAnswer({"entries": documents, "next": position}, is_heavy=True))

    @routes.get(
        "/info",
        summary="First and last entry, the time between them, bytes.",
        responses=answers(200, 400, 405, 503),
    )
    async def info(request: Request) -> Response:
        return await to_response(member, HttpRequest(request.scope), HttpAnswer(facts_of(member.store)))

    return routes


def facts_of(store: Store) -> dict[str, object]:
    """Where the oplog begins and ends, and its bytes."""
    first, last = (None if end == OPTIME_NULL else str(end) for end in (store.oldest, store.last_applied))
    sizes = {"bytes": Int64(store.oplog_bytes), "maxBytes": Int64(store.options.oplog_max_bytes)}
    return {"first": first, "last": last, "windowSecs": store.window_s(), **sizes}


def parse_after(text: str | None) -> OpTime:
    if text is None:
        return OPTIME_NULL
    try:
        return OpTime.parse(text)
    except ValueError as error:
        raise failure(ErrorCode.BAD_VALUE, f"query parameter after: {error}"[:300]) from error


def read_rows(
    snapshot: Snapshot, after: OpTime, limit: int, ns: str | None, op: str | None
) -> tuple[list[OplogRow], OpTime | None]:
    """Return rows newer than `after`, and the `after` of the next page, None at the end. Runs in a worker thread."""
    rows = snapshot.oplog_after(after, limit=limit, max_bytes=MAX_ROWS_BYTES, ns=ns, op=op)
    if not rows:
        return [], None
    last = rows[-1].optime
    return rows, last if snapshot.oplog_after(last, limit=1, max_bytes=1, ns=ns, op=op) else None


def row_fields(row: OplogRow) -> dict[str, object]:
    """Return {optime, key, hash, chain, entry}. key: the encoded `_id` of the document that the entry changes."""
    return {
        "optime": str(row.optime),
        "key": None if row.key is None else Binary(row.key),
        "hash": Int64(row.hash),
        "chain": Int64(row.chain),
        "entry": RawDocument(row.entry),
    }


def row_parts(row: OplogRow) -> DocumentParts:
    """Return the same fields for JSON, where the document of an insert may have the full 200 levels of nesting."""
    return DocumentParts(row_fields(row) | {"entry": parts_of(row.entry)})

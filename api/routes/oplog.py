"""`/v1/replset/oplog`: this member's oplog, a page at a time, as Extended JSON or as the rows' BSON."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from api.content import Form, Parts, Rows
from api.errors import failure
from api.exchange import Answer, Asked, respond
from api.openapi import answers
from api.ports import ApiMember
from replset.bson import Binary, Int64, RawDocument, encode, walk
from replset.bson.decoding import read_value
from replset.errors import ErrorCode
from replset.ids import OPTIME_NULL, OpTime
from replset.oplog_row import OplogRow
from replset.storage.snapshot import Snapshot

DEFAULT_ROWS = 100
MAX_ROWS = 10_000
MAX_ROWS_BYTES = 8 << 20
NEXT = "x-replset-next"
DOCUMENT = 3


def router(member: ApiMember) -> APIRouter:
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
        asked = Asked(request.scope)
        begin = parse_after(after)
        with member.store.read() as snapshot:
            reading = asyncio.ensure_future(member.workers.run(lambda: read_rows(snapshot, begin, limit, ns, op)))
            try:
                rows, following = await asyncio.shield(reading)
            finally:  # a request that is cancelled does not give the snapshot back under its worker
                await asyncio.wait([reading])
        position = None if following is None else str(following)
        if asked.form is Form.BSON:
            headers = {"content-type": Form.BSON.value, **({NEXT: position} if position else {})}
            data = await member.workers.run(lambda: b"".join([encode(row_fields(row)) for row in rows]))
            return Response(data, headers=headers)
        documents = await member.workers.run(lambda: Rows([row_parts(row) for row in rows]))
        return await respond(member, asked, Answer({"entries": documents, "next": position}, heavy=True))

    @routes.get(
        "/info",
        summary="First and last entry, the time between them, bytes.",
        responses=answers(200, 400, 405, 503),
    )
    async def info(request: Request) -> Response:
        store = member.store
        first, last = store.oldest, store.last_applied
        facts: dict[str, object] = {
            "first": None if first == OPTIME_NULL else str(first),
            "last": None if last == OPTIME_NULL else str(last),
            "windowSecs": 0 if first == OPTIME_NULL else max(0, last.seconds - first.seconds),
            "bytes": Int64(store.oplog_bytes),
            "maxBytes": Int64(store.options.oplog_max_bytes),
        }
        return await respond(member, Asked(request.scope), Answer(facts))

    return routes


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
    """Rows newer than `after`, and behind which to ask next (None: there are no more now). Runs in a worker."""
    rows = snapshot.oplog_after(after, limit=limit, max_bytes=MAX_ROWS_BYTES, ns=ns, op=op)
    if not rows:
        return [], None
    last = rows[-1].optime
    return rows, last if snapshot.oplog_after(last, limit=1, max_bytes=1, ns=ns, op=op) else None


def row_fields(row: OplogRow) -> dict[str, object]:
    """{optime, key, hash, chain, entry}; key: the encoded `_id` of the document that it is about."""
    return {
        "optime": str(row.optime),
        "key": None if row.key is None else Binary(row.key),
        "hash": Int64(row.hash),
        "chain": Int64(row.chain),
        "entry": RawDocument(row.entry),
    }


def row_parts(row: OplogRow) -> Parts:
    """The same to be written as JSON: the document of an insert may nest as deep as any."""
    entry = row.entry
    fields = {
        name: RawDocument(entry[start:end]) if kind == DOCUMENT else read_value(entry, kind, start, end)
        for name, kind, start, end in walk(entry)
    }
    return Parts(row_fields(row) | {"entry": Parts(fields)})

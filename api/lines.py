"""Streams documents as NDJSON: one document of relaxed Extended JSON in each line, for an answer of any size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial

from api.bodies import LARGE_BYTES
from api.errors import HttpError
from api.exchange import HttpRequest, Receive, Send
from api.limits import UnfinishedAnswerError
from api.streaming import wait_for_disconnect
from replset.bson import Binary, InvalidBSONError, RawDocument
from replset.ejson import to_ejson
from replset.member.member import RunningMember

NDJSON = "application/x-ndjson"
BATCH_BYTES = 64 << 10
"""Of documents at once. They become lines on the event loop, in the turn in which they are read."""


def wants_lines(request: HttpRequest) -> bool:
    """Whether the client asks for NDJSON."""
    kinds = request.header(b"accept").lower().split(",")
    return any(kind.partition(";")[0].strip() == NDJSON for kind in kinds)


def lines_of(documents: Sequence[RawDocument]) -> bytes:
    """Return one line for each document; a document that is nested too deep for JSON is shown as binary data."""
    return b"".join([line_of(document) + b"\n" for document in documents])


def line_of(document: RawDocument) -> bytes:
    """Return the line of one document, without its end."""
    try:
        return to_ejson(document, False).encode()
    except InvalidBSONError:
        return to_ejson(Binary(document.raw), False).encode()


def encoded_line(document: Mapping[str, object]) -> bytes:
    """Return the line of a document of ours."""
    return (to_ejson(document, False) + "\n").encode()


async def send_lines(
    member: RunningMember,
    batches: AsyncGenerator[Sequence[RawDocument]],
    receive: Receive,
    send: Send,
    headers: Mapping[str, str] | None,
) -> None:
    """Send the documents of all batches until the end, or until the client has left.

    HttpError before the first line is the caller's. A later one becomes the last line, {"error": ...}, and then the
    connection is closed without an end, so that nobody takes the answer for a whole one.
    """
    batch: Sequence[RawDocument] | None = await anext(batches, None)
    disconnected = asyncio.ensure_future(wait_for_disconnect(receive))
    try:
        head = [(b"content-type", NDJSON.encode())]
        head += [(name.encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        while batch is not None and not disconnected.done():
            async with member.one_export:  # many threads that make lines would keep the event loop from running
                body = await encoded(member, batch, partial(lines_of, batch))
            await send({"type": "http.response.body", "body": body, "more_body": True})
            del body
            batch = await anext(batches, None)
        await send({"type": "http.response.body", "body": b""})
    except HttpError as error:
        line = encoded_line({"error": error.body})
        await send({"type": "http.response.body", "body": line, "more_body": True})
        raise UnfinishedAnswerError(str(error)) from error
    finally:
        disconnected.cancel()
        await batches.aclose()


async def encoded(member: RunningMember, documents: Sequence[RawDocument], encode: Callable[[], bytes]) -> bytes:
    """Return what `encode` makes of the documents, in a worker thread if they are large."""
    if sum(len(document.raw) for document in documents) > LARGE_BYTES:
        return await member.workers.run(encode)
    return encode()

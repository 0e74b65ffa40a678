"""One HTTP exchange: the request as the API sees it, its body, and the answer's bytes. No framework."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

from starlette.responses import Response

from api.content import (
    LARGE_BYTES,
    NO_TIMES,
    Form,
    Times,
    check_size,
    form_of,
    is_large,
    read_document,
    read_fields,
    write,
)
from api.errors import HttpError, error_body, failure
from api.held import Held
from api.ports import ApiMember
from replset.bson import InvalidBSONError, RawDocument
from replset.errors import ErrorCode
from replset.runtime.admission import STALLED_S

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

DRAIN_BYTES = 1 << 28
"""A body that is too large is read this far, and thrown away, so that its sender hears why."""


SLOWEST = 10_000


@dataclass(slots=True)
class Answer:
    """What goes out. times: of the reply it was made from, else the member's own. heavy: written in a worker."""

    document: Mapping[str, Any]
    status: int = 200
    headers: Mapping[str, str] | None = None
    times: Times = NO_TIMES
    heavy: bool = False


class Asked:
    """One HTTP request: who asks, for what, and how the answer is to be written."""

    __slots__ = ("client", "content_type", "form", "headers", "held", "method", "path", "query")

    def __init__(self, scope: Scope) -> None:
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.form: Form = form_of(self.header(b"accept"))
        self.content_type = self.header(b"content-type")
        self.held: Held = scope["held"]
        self.path: str = scope["path"]
        self.method: str = scope["method"]
        self.query: str = scope.get("query_string", b"").decode("latin-1")
        client = scope.get("client")
        self.client = f"{client[0]}:{client[1]}" if client else ""

    def header(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1")

    def forwards(self) -> bool:
        """`?forward=true|false`, true where it is not said; any other parameter is refused by its name."""
        if not self.query:
            return True
        forward = True
        for name, value in parse_qsl(self.query, keep_blank_values=True):
            if name != "forward":
                raise failure(ErrorCode.UNKNOWN_FIELD, f"unknown query parameter {name[:80]!r}; there is: forward")
            if value not in ("true", "false"):
                raise failure(ErrorCode.BAD_VALUE, f"query parameter forward is true or false, not {value[:80]!r}")
            forward = value == "true"
        return forward


async def read_body(asked: Asked, receive: Receive) -> bytes:
    """The request's body; 413 once it is too large, 503 when the member has too much to do, 408 when it stalls.

    It stalls when nothing comes for STALLED_S, or less than SLOWEST bytes a second come beyond that.
    """
    chunks: list[bytes] = []
    size = 0
    loop = asyncio.get_running_loop()
    began = loop.time()
    problem = _refused_for(asked, int(asked.header(b"content-length") or 0))
    while True:
        try:
            async with asyncio.timeout_at(min(loop.time(), began + size / SLOWEST) + STALLED_S):
                message = await receive()
        except TimeoutError:
            text = f"the body stopped coming after {size} bytes"
            raise failure(ErrorCode.FAILED_TO_PARSE, text, status=408) from None
        if message["type"] == "http.disconnect":
            raise failure(ErrorCode.FAILED_TO_PARSE, "the request ended before its body did")
        chunk = message.get("body", b"")
        size += len(chunk)
        more_follows = message.get("more_body", False)
        problem = problem or _refused_for(asked, size, whole=not more_follows)
        if problem is None:
            chunks.append(chunk)
        else:
            chunks.clear()
            if size > DRAIN_BYTES:
                raise problem
        if not more_follows:
            if problem is not None:
                raise problem
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _refused_for(asked: Asked, size: int, *, whole: bool = True) -> HttpError | None:
    """Why a body of `size` bytes is not taken. whole: nothing of it is still to come, which may take long."""
    try:
        check_size(size)
        asked.held.take(size, whole=whole)
    except HttpError as error:
        return error
    return None


async def fields_of(member: ApiMember, asked: Asked, receive: Receive) -> dict[str, Any]:
    """The body's fields; a large body is read in a worker."""
    data = await read_body(asked, receive)
    if len(data) > LARGE_BYTES:
        return await member.workers.run(lambda: read_fields(asked.content_type, data))
    return read_fields(asked.content_type, data)


async def known_fields(asked: Asked, receive: Receive, *known: str) -> dict[str, Any]:
    """The fields of a small body, which need not be there; any other field is refused by its name."""
    data = await read_body(asked, receive)
    fields = read_document(asked.content_type, data).decode() if data.strip() else {}
    for name in fields:
        if name not in known:
            there = f"there {'are' if len(known) > 1 else 'is'}: {', '.join(known)}"
            raise failure(ErrorCode.UNKNOWN_FIELD, f"unknown field {name[:80]!r}; {there}")
    return fields


async def document_of(member: ApiMember, asked: Asked, receive: Receive) -> RawDocument:
    """The body as one document."""
    data = await read_body(asked, receive)
    if len(data) > LARGE_BYTES:
        return await member.workers.run(lambda: read_document(asked.content_type, data))
    return read_document(asked.content_type, data)


async def written(member: ApiMember, form: Form, answer: Answer) -> bytes:
    """The answer's bytes. What has no such form (deeper than JSON's wrappers go) becomes an error."""
    times = answer.times
    if not times.operation:
        newest = member.store.last_applied.ts
        times = Times(newest, newest)
    try:
        if answer.heavy or is_large(answer.document):
            return await member.workers.run(lambda: write(form, answer.document, times))
        return write(form, answer.document, times)
    except InvalidBSONError as error:
        answer.status = 400
        return write(form, error_body(error.code, f"the answer cannot be written: {error.message}"), times)


async def say(member: ApiMember, asked: Asked, answer: Answer, send: Send) -> None:
    """The answer straight to the client."""
    body = await written(member, asked.form, answer)
    headers = [(b"content-type", asked.form.value.encode()), (b"content-length", b"%d" % len(body))]
    if answer.headers:
        headers += [(name.encode(), value.encode("latin-1")) for name, value in answer.headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if asked.method == "HEAD" else body})


async def respond(member: ApiMember, asked: Asked, answer: Answer) -> Response:
    """The answer as the application's routes give it."""
    body = await written(member, asked.form, answer)
    headers = {"content-type": asked.form.value, **(answer.headers or {})}
    return Response(body, answer.status, headers)

"""Reads one HTTP request and writes its response, without the web framework."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar
from urllib.parse import parse_qsl

from starlette.responses import Response

from api.bodies import (
    HUGE_BYTES,
    LARGE_BYTES,
    NO_TIMES,
    Form,
    Times,
    check_size,
    encode_body,
    form_of,
    is_large,
    parse_document,
)
from api.errors import HttpError, error_body, failure, http_error
from replset.auth.users import Login
from replset.bson import InvalidBSONError, RawDocument
from replset.bson.limits import MAX_MESSAGE_SIZE
from replset.errors import ErrorCode, OverloadedError, forget_frames
from replset.member.member import RunningMember
from replset.operations.admission import SMALL_BYTES, STALLED_S, Admission
from replset.operations.request import ConnectionContext
from replset.operations.statement_memory import LONGEST_WAIT_MS

T = TypeVar("T")
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

OPTIONS_BYTES = 256 << 10
"""Of a body that is read on the event loop, as of a field of a command."""
DRAIN_BYTES = 1 << 28
"""A body that is too large is read up to this size and discarded, because many clients read no response before."""
PIECE_BYTES = 256 << 10
"""A longer response is sent in pieces of this size, each after the client has taken those before it."""
MIN_BYTES_PER_S = 10_000
"""A body that comes more slowly than this is given up."""


class RequestMemory:
    """Counts the memory that one request and its response use in the member's admission.

    Its methods raise HttpError 503 (462) when the member has no memory left for them.
    """

    __slots__ = ("_admission", "_place", "_reserved", "_size")

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._size = 0
        self._reserved = 0
        self._place: asyncio.Semaphore | None = None

    def count_request(self, size: int, *, is_whole: bool = True) -> None:
        """Count a body of which `size` bytes have come. A small body that came at once is not counted."""
        more = size - self._size
        if (is_whole and size <= SMALL_BYTES) or more <= 0:
            return
        if not self._admission.admit(more):
            raise self.refusal()
        self._size = size

    def count_response(self, size: int) -> None:
        """Count the `size` bytes of the response that the client has not taken yet."""
        size = size if size > SMALL_BYTES else 0
        self._admission.add(size - self._size)
        self._size = size

    def reserve(self, size: int) -> None:
        """Count `size` more bytes until the request is over."""
        if not self._admission.admit(size):
            raise self.refusal()
        self._reserved += size

    async def take_place(self, places: asyncio.Semaphore) -> None:
        """Take one of the places of huge bodies until the request is over. It waits for one for LONGEST_WAIT_MS."""
        try:
            async with asyncio.timeout(LONGEST_WAIT_MS / 1000):
                await places.acquire()
        except TimeoutError:
            text = "this member is overloaded: other huge bodies are under way; nothing was applied, try again"
            raise http_error(OverloadedError(text)) from None
        self._place = places

    def release(self) -> None:
        """Give everything back, because the request is over."""
        if self._place is not None:
            self._place.release()
            self._place = None
        self.count_response(0)
        self._admission.release(self._reserved)
        self._reserved = 0

    def refusal(self) -> HttpError:
        return http_error(self._admission.refusal())


IDEMPOTENCY_KEY = b"idempotency-key"
LONGEST_KEY = 255


class HttpRequest:
    """One HTTP request: its headers, its client, and the form that the client wants the response in."""

    __slots__ = (
        "client",
        "content_type",
        "form",
        "headers",
        "login",
        "memory",
        "method",
        "path",
        "query",
        "scheme",
        "whole_body",
    )

    def __init__(self, scope: Scope) -> None:
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.form: Form = form_of(self.header(b"accept"))
        self.content_type = self.header(b"content-type")
        self.memory: RequestMemory = scope["memory"]
        self.scheme: str = scope.get("scheme", "http")
        self.path: str = scope["path"]
        self.method: str = scope["method"]
        self.query: str = scope.get("query_string", b"").decode("latin-1")
        self.whole_body: bytes | None = scope.get("whole_body")
        self.login: Login | None = scope.get("login")
        client = scope.get("client")
        self.client = f"{client[0]}:{client[1]}" if client else ""

    def header(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1")

    @property
    def sender(self) -> ConnectionContext:
        return ConnectionContext(peer=self.client, login=self.login)

    def wants_forwarding(self) -> bool:
        """Read `?forward=true|false`; the default is true. Any other parameter is refused by its name (40415)."""
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

    @property
    def idempotency_key(self) -> bytes | None:
        """The header Idempotency-Key. HttpError 400 when it is empty or too long."""
        key = self.headers.get(IDEMPOTENCY_KEY)
        if key is not None and not 1 <= len(key) <= LONGEST_KEY:
            raise failure(ErrorCode.BAD_VALUE, f"the header Idempotency-Key has 1 to {LONGEST_KEY} characters")
        return key

    def refuse_idempotency_key(self) -> None:
        """Refuse the header Idempotency-Key (238). A client that sends it expects no write to be applied twice."""
        if IDEMPOTENCY_KEY in self.headers:
            raise failure(
                ErrorCode.NOT_IMPLEMENTED,
                "Idempotency-Key is for actions; a command takes lsid and txnNumber",
            )


@dataclass(slots=True)
class HttpAnswer:
    """What a request is answered with.

    times: of the reply that the document was made from; without them the member's own times are added.
    is_heavy: the document is encoded in a worker thread.
    """

    document: Mapping[str, Any]
    status: int = 200
    headers: Mapping[str, str] | None = None
    times: Times = NO_TIMES
    is_heavy: bool = False


def error_answer(error: Exception, request_line: str = "") -> HttpAnswer:
    """Return the answer for an expected error and raise every other one again; see `http_error`."""
    problem = http_error(error, request_line)
    forget_frames(error)
    return HttpAnswer(problem.body, problem.status, problem.headers)


# --- reading ----------------------------------------------------------------------------------------------------


async def read_body(request: HttpRequest, receive: Receive, most: int = MAX_MESSAGE_SIZE) -> bytes:
    """Return the request's body. HttpError: 413 too large, 503 no memory left, 408 the client stopped sending.

    The client has stopped when nothing comes for STALLED_S, or when fewer than MIN_BYTES_PER_S come over a longer time.
    """
    if request.whole_body is not None:
        problem = _body_refusal(request, len(request.whole_body), most)
        if problem is not None:
            raise problem
        return request.whole_body
    chunks: list[bytes] = []
    size = 0
    loop = asyncio.get_running_loop()
    began = loop.time()
    problem = _body_refusal(request, int(request.header(b"content-length") or 0), most)
    while True:
        try:
            async with asyncio.timeout_at(min(loop.time(), began + size / MIN_BYTES_PER_S) + STALLED_S):
                message = await receive()
        except TimeoutError:
            text = f"the body stopped coming after {size} bytes"
            raise failure(ErrorCode.FAILED_TO_PARSE, text, status=408) from None
        if message["type"] == "http.disconnect":
            raise failure(ErrorCode.FAILED_TO_PARSE, "the request ended before its body did")
        chunk = message.get("body", b"")
        size += len(chunk)
        more_follows = message.get("more_body", False)
        problem = problem or _body_refusal(request, size, most, is_whole=not more_follows)
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


def _body_refusal(request: HttpRequest, size: int, most: int, *, is_whole: bool = True) -> HttpError | None:
    """Return why a body of `size` bytes is refused. is_whole: nothing more of it follows."""
    try:
        check_size(size, most)
        request.memory.count_request(size, is_whole=is_whole)
    except HttpError as error:
        return error
    return None


async def read_document(member: RunningMember, request: HttpRequest, receive: Receive) -> RawDocument:
    """Return the body as one document. A large body is parsed in a worker thread."""
    data = await read_body(request, receive)
    return await parsed(member, request, data, lambda: parse_document(request.content_type, data))


async def parsed(member: RunningMember, request: HttpRequest, data: bytes, parse: Callable[[], T]) -> T:
    """Return what `parse` makes of the body, in a worker thread if that takes long."""
    if len(data) <= LARGE_BYTES:
        return parse()
    if len(data) > HUGE_BYTES:
        await request.memory.take_place(member.huge_bodies)
    return await member.workers.run(parse)


async def read_options(
    request: HttpRequest, receive: Receive, known: Iterable[str] | None, most: int = OPTIONS_BYTES
) -> dict[str, Any]:
    """Return the fields of a small body, {} for an empty one. A field that is not in `known` is refused (40415).

    known: None takes every field. most: bytes of the body, which is read on the event loop (413).
    """
    data = await read_body(request, receive, most)
    fields = parse_document(request.content_type, data).decode() if data.strip() else {}
    names = list(fields if known is None else known)
    for name in fields:
        if name not in names:
            allowed = f"there {'are' if len(names) > 1 else 'is'}: {', '.join(names)}"
            raise failure(ErrorCode.UNKNOWN_FIELD, f"unknown field {name[:80]!r}; {allowed}")
    return fields


# --- writing ----------------------------------------------------------------------------------------------------


async def _encode_answer(member: RunningMember, form: Form, answer: HttpAnswer) -> bytes:
    """Return the bytes of the answer. A document that has no such form, for example a too deep one, becomes a 400."""
    if answer.is_heavy or is_large(answer.document):
        return await member.workers.run(lambda: encode_answer(member, form, answer))
    return encode_answer(member, form, answer)


def encode_answer(member: RunningMember, form: Form, answer: HttpAnswer) -> bytes:
    """As `_encode_answer`, at once."""
    times = answer.times
    if not times.operation:
        newest = member.store.last_applied.ts
        times = Times(newest, newest)
    try:
        return encode_body(form, answer.document, times)
    except InvalidBSONError as error:
        answer.status = 400
        return encode_body(form, error_body(error.code, f"the answer cannot be written: {error.message}"), times)


def answer_headers(form: Form, answer: HttpAnswer, body: bytes) -> list[tuple[bytes, bytes]]:
    headers = [(b"content-type", form.value.encode()), (b"content-length", b"%d" % len(body))]
    if answer.headers:
        headers += [(name.encode(), value.encode("latin-1")) for name, value in answer.headers.items()]
    return headers


async def send_answer(member: RunningMember, request: HttpRequest, answer: HttpAnswer, send: Send) -> None:
    """Send the answer to the client."""
    body = await _encode_answer(member, request.form, answer)
    headers = answer_headers(request.form, answer, body)
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def to_response(member: RunningMember, request: HttpRequest, answer: HttpAnswer) -> Response:
    """Return the answer as a response of the web framework, for a route."""
    body = await _encode_answer(member, request.form, answer)
    headers = {"content-type": request.form.value, **(answer.headers or {})}
    return Response(body, answer.status, headers)

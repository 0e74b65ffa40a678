"""Bodies in and out: Extended JSON, relaxed or canonical, and BSON; and errors as answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from replset.bson import RawDocument, encode, from_ejson, to_ejson, validate
from replset.bson.limits import MAX_MESSAGE_SIZE
from replset.errors import ReplError, code_name

JSON, EJSON, BSON = "application/json", "application/ejson", "application/bson"
READ = (JSON, EJSON, BSON)
RETRY_AFTER_S = "1"

STATUS: dict[int, int] = {
    1: 500,
    6: 503,
    13: 403,
    14031: 503,
    18: 401,
    26: 404,
    50: 503,
    64: 504,
    76: 503,
    89: 503,
    91: 503,
    94: 503,
    117: 503,
    134: 503,
    189: 503,
    10107: 503,
    10334: 413,
    11000: 409,
    11600: 503,
    11602: 503,
    13436: 503,
    17419: 413,
    262: 503,
}
"""HTTP status by MongoDB's code; what is not here is the client's to mend: 400."""


class HttpError(Exception):
    """An answer that is no success: status, the body, extra headers."""

    def __init__(self, status: int, body: dict[str, object], headers: dict[str, str] | None = None) -> None:
        super().__init__(str(body.get("errmsg", status)))
        self.status = status
        self.body = body
        self.headers = headers or {}


def status_of(code: int) -> int:
    return STATUS.get(code, 400)


def failure(
    code: int, message: str, *, status: int | None = None, details: Mapping[str, object] | None = None
) -> HttpError:
    """An HttpError for `code`; 503 gets Retry-After. details: more fields of the body."""
    found = status_of(code) if status is None else status
    body: dict[str, object] = {"ok": 0, "code": code, "codeName": code_name(code), "errmsg": message}
    return HttpError(found, {**body, **(details or {})}, {"retry-after": RETRY_AFTER_S} if found == 503 else None)


def from_repl_error(error: ReplError) -> HttpError:
    return failure(error.code, error.message, details=error.details)


def parse_body(content_type: str, data: bytes) -> dict[str, Any]:
    """The body's document; HttpError 400 with the place, 413, 415."""
    if len(data) > MAX_MESSAGE_SIZE:
        raise failure(10334, f"a body of {len(data)} bytes is over {MAX_MESSAGE_SIZE}")
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if kind == BSON:
            validate(data)
            return RawDocument(data).decode()
        if kind and kind not in READ:
            raise failure(9, f"content type {kind!r} is not read; send one of: {', '.join(READ)}", status=415)
        if not data.strip():
            raise failure(9, "the body is empty; a JSON document is needed")
        return from_ejson(data)
    except ReplError as error:
        raise from_repl_error(error) from error


def is_canonical(accept: str) -> bool:
    return "canonical=true" in accept.replace(" ", "").lower()


def render(accept: str, document: Mapping[str, object]) -> tuple[bytes, str]:
    """The document in the form that `accept` asks for: (bytes, content type)."""
    wanted = accept.lower()
    if BSON in wanted:
        return encode(document), BSON
    if EJSON in wanted:
        canonical = is_canonical(accept)
        kind = f"{EJSON}; canonical=true" if canonical else EJSON
        return to_ejson(document, canonical=canonical).encode(), kind
    return to_ejson(document).encode(), JSON


def answer(
    accept: str, document: Mapping[str, object], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    body, kind = render(accept, document)
    return Response(body, status, dict(headers or {}), media_type=kind)

"""From MongoDB's error codes to HTTP statuses, and error bodies. Which rule refused is not decided here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replset.errors import ReplError, code_name, cut_message

BAD_VALUE, FAILED_TO_PARSE, UNAUTHORIZED, TYPE_MISMATCH, NOT_FOUND = 2, 9, 13, 14, 26
NOT_BUILT, NOT_PRIMARY, TOO_LARGE = 59, 10107, 10334
MISSING_FIELD, UNKNOWN_FIELD = 40414, 40415
BUSY, NO_ROOM = 117, 14031
RETRY_AFTER_S = 1
"""What `Retry-After` says: elections take seconds, and nothing was applied, so asking again soon is right."""
APPLIED = "x-replset-applied"

UNAVAILABLE = frozenset(
    {1, 6, 50, 76, 89, 91, 94, 109, 112, 117, 133, 134, 187, 189, 237, 239, 246, 262, 308, 462}
    | {NOT_PRIMARY, 11600, 11601, 11602, 13435, 13436, 14031}
)
"""Not here or not now: 503, unless it is a write that may have been applied."""
OUTCOME_UNKNOWN = frozenset({1, 64, 89, 189, 11601, 11602})
"""At the top of a write's reply: what of it was applied, and whether that stays, this member cannot say."""
STATUS: dict[int, int] = {
    11: 404,
    13: 403,
    18: 401,
    26: 404,
    43: 404,
    64: 504,
    257: 413,
    TOO_LARGE: 413,
    11000: 409,
    17419: 413,
}


def status_of(code: int) -> int:
    """The HTTP status of a failure with `code`: 400 for what the client can mend."""
    return 503 if code in UNAVAILABLE else STATUS.get(code, 400)


class HttpError(Exception):
    """An answer that is no success: its status, body and extra headers."""

    def __init__(self, status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        super().__init__(str(body.get("errmsg", status)))
        self.status = status
        self.body = dict(body)
        self.headers = dict(headers or {})


def error_body(code: int, text: str, details: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """`{"ok": 0, "code", "codeName", "errmsg"}` and what else is known."""
    return {"ok": 0, "code": code, "codeName": code_name(code), "errmsg": cut_message(text), **(details or {})}


def failure(
    code: int,
    text: str,
    *,
    status: int | None = None,
    details: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> HttpError:
    """The error for `code`; its status follows from the code where none is given."""
    found = status_of(code) if status is None else status
    return HttpError(found, error_body(code, text, details), {**headers_of(found), **(headers or {})})


def headers_of(status: int) -> dict[str, str]:
    """What goes with a status: 503 says when to come again."""
    return {"retry-after": str(RETRY_AFTER_S)} if status == 503 else {}


def of(error: ReplError) -> HttpError:
    return failure(error.code, error.message, details=error.details)


def unknown_outcome(code: int, text: str, details: Mapping[str, Any] | None = None) -> HttpError:
    """504: nobody can say whether the write was applied, or all of it, or whether it stays."""
    body = error_body(code, text, {"applied": "unknown", **(details or {})})
    return HttpError(504, body, {APPLIED: "unknown"})

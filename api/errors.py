"""From MongoDB's error codes to HTTP statuses, and error bodies. Which rule refused is not decided here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replset.errors import ErrorCode, ReplError, code_name, cut_message

RETRY_AFTER_S = 1
"""What `Retry-After` says: elections take seconds, and nothing was applied, so asking again soon is right."""
APPLIED = "x-replset-applied"

UNAVAILABLE = frozenset(
    {
        ErrorCode.INTERNAL_ERROR,
        ErrorCode.HOST_UNREACHABLE,
        ErrorCode.MAX_TIME_EXPIRED,
        ErrorCode.NO_REPLICATION_ENABLED,
        ErrorCode.NETWORK_TIMEOUT,
        ErrorCode.SHUTDOWN_IN_PROGRESS,
        ErrorCode.NOT_YET_INITIALIZED,
        ErrorCode.CONFIGURATION_IN_PROGRESS,
        ErrorCode.WRITE_CONFLICT,
        ErrorCode.CONFLICTING_OPERATION_IN_PROGRESS,
        ErrorCode.READ_PREFERENCE_NOT_SATISFIED,
        ErrorCode.READ_CONCERN_MAJORITY_NOT_AVAILABLE,
        ErrorCode.LINEARIZABLE_READ_CONCERN_ERROR,
        ErrorCode.PRIMARY_STEPPED_DOWN,
        ErrorCode.CURSOR_IN_USE,
        ErrorCode.SNAPSHOT_TOO_OLD,
        ErrorCode.SNAPSHOT_UNAVAILABLE,
        ErrorCode.EXCEEDED_TIME_LIMIT,
        ErrorCode.CONFIG_NOT_COMMITTED_YET,
        ErrorCode.OVERLOADED,
        ErrorCode.NOT_WRITABLE_PRIMARY,
        ErrorCode.INTERRUPTED_AT_SHUTDOWN,
        ErrorCode.INTERRUPTED,
        ErrorCode.INTERRUPTED_BY_STATE_CHANGE,
        ErrorCode.NOT_PRIMARY_NO_SECONDARY_OK,
        ErrorCode.NOT_PRIMARY_OR_SECONDARY,
        ErrorCode.OUT_OF_DISK_SPACE,
    }
)
"""Not here or not now: 503, unless it is a write that may have been applied."""
OUTCOME_UNKNOWN = frozenset(
    {
        ErrorCode.INTERNAL_ERROR,
        ErrorCode.WRITE_CONCERN_TIMEOUT,
        ErrorCode.NETWORK_TIMEOUT,
        ErrorCode.PRIMARY_STEPPED_DOWN,
        ErrorCode.INTERRUPTED,
        ErrorCode.INTERRUPTED_BY_STATE_CHANGE,
    }
)
"""At the top of a write's reply: what of it was applied, and whether that stays, this member cannot say."""
STATUS: dict[int, int] = {
    ErrorCode.USER_NOT_FOUND: 404,
    ErrorCode.UNAUTHORIZED: 403,
    ErrorCode.AUTHENTICATION_FAILED: 401,
    ErrorCode.NAMESPACE_NOT_FOUND: 404,
    ErrorCode.CURSOR_NOT_FOUND: 404,
    ErrorCode.WRITE_CONCERN_TIMEOUT: 504,
    ErrorCode.TRANSACTION_TOO_LARGE: 413,
    ErrorCode.DOCUMENT_TOO_LARGE: 413,
    ErrorCode.DUPLICATE_KEY: 409,
    ErrorCode.UPDATE_RESULT_TOO_LARGE: 413,
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

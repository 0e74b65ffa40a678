"""Maps MongoDB's error codes to HTTP statuses and error bodies. It does not decide what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from replset.errors import CorruptDataError, ErrorCode, ReplError, code_name, cut_message, http_status_of
from replset.storage.sqlite import is_disk_full

RETRY_AFTER_S = 1
"""The value of `Retry-After`. Elections take seconds and nothing was applied, so a quick retry is right."""
APPLIED = "x-replset-applied"


def headers_of(status: int) -> dict[str, str]:
    """Return the extra headers of a status: 503 has `Retry-After`."""
    return {"retry-after": str(RETRY_AFTER_S)} if status == 503 else {}


def error_body(code: int, text: str, details: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return `{"ok": 0, "code", "codeName", "errmsg"}`, followed by `details`."""
    return {"ok": 0, "code": code, "codeName": code_name(code), "errmsg": cut_message(text), **(details or {})}


class HttpError(Exception):
    """A request failed; this is the status, the body and the extra headers of the response."""

    def __init__(self, status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        super().__init__(str(body.get("errmsg", status)))
        self.status = status
        self.body = dict(body)
        self.headers = dict(headers or {})


def failure(
    code: int,
    text: str,
    *,
    status: int | None = None,
    details: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> HttpError:
    """Return the error for `code`. Without `status`, the status follows from the code."""
    found = http_status_of(code) if status is None else status
    return HttpError(found, error_body(code, text, details), {**headers_of(found), **(headers or {})})


def unknown_outcome(code: int, text: str, details: Mapping[str, Any] | None = None) -> HttpError:
    """Return a 504: nobody knows whether the write was applied, whether all of it was, and whether it stays."""
    body = error_body(code, text, {"applied": "unknown", **(details or {})})
    return HttpError(504, body, {APPLIED: "unknown"})


def http_error(error: Exception, request_line: str = "") -> HttpError:
    """Return the HTTP form of any expected error and raise every other one again.

    request_line: method and path of the request, for the message about a path or method that does not exist.
    """
    match error:
        case HttpError():
            return error
        case ReplError():
            labels = {"errorLabels": list(error.labels)} if error.labels else {}
            return failure(error.code, error.message, details={**error.details, **labels})
        case RequestValidationError():
            first = error.errors()[0]
            place = " ".join(str(part) for part in first["loc"])
            return failure(ErrorCode.BAD_VALUE, f"{place}: {first['msg']}")
        case HTTPException():
            text = f"{request_line}: {error.detail}"
            return failure(ErrorCode.COMMAND_NOT_FOUND, text, status=error.status_code, headers=error.headers)
    raise error


def rollback_error(error: Exception) -> HttpError:
    """Return the HTTP form of an error while a rollback is verified, compared or restored."""
    match error:
        case CorruptDataError():
            return failure(ErrorCode.BAD_VALUE, error.message)
        case HttpError() | ReplError():
            return http_error(error)
        case FileNotFoundError():
            return failure(ErrorCode.BAD_VALUE, f"{error.filename} is missing")
        case OSError() if is_disk_full(error):
            return failure(ErrorCode.OUT_OF_DISK_SPACE, f"the disk is full: {error}")
    return failure(ErrorCode.INTERNAL_ERROR, str(error))

"""Compares an error of PyMongo with the `expectError` of a test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gridfs.errors import CorruptGridFile, NoFile
from pymongo.errors import ConfigurationError, ConnectionFailure, InvalidOperation, NotPrimaryError, PyMongoError

from tests.conformance.matching import Matcher, MismatchError
from tests.conformance.operations import partial_result


def check_error(matcher: Matcher, expected: Mapping[str, Any], error: BaseException) -> None:
    """Raise MismatchError where the error is not what the test expects."""
    details = getattr(error, "details", None) or {}
    for name, value in expected.items():
        match name:
            case "isClientError":
                _require(_is_client_error(error) is value, f"a client error: {value}", error)
            case "isTimeoutError":
                _require(bool(getattr(error, "timeout", False)) is value, f"a timeout: {value}", error)
            case "errorContains":
                text = f"{error} {details}".lower()
                _require(value.lower() in text, f"the text {value!r}", error)
            case "errorCode":
                _require(details.get("code") == value, f"code {value}", error)
            case "errorCodeName":
                _require(value in _code_names(details), f"codeName {value}", error)
            case "errorLabelsContain":
                for label in value:
                    _require(_has_label(error, label), f"the label {label}", error)
            case "errorLabelsOmit":
                for label in value:
                    _require(not _has_label(error, label), f"no label {label}", error)
            case "errorResponse":
                matcher.match(value, details, "errorResponse")
            case "expectResult":
                matcher.match(value, partial_result(error), "the partial result")
            case "isError":
                continue
            case _:
                raise NotImplementedError(f"expectError.{name}")


def _require(holds: bool, what: str, error: BaseException) -> None:
    if not holds:
        raise MismatchError(f"expected an error with {what}; got {type(error).__name__}: {error}") from error


def _is_client_error(error: BaseException) -> bool:
    """Whether the driver made the error itself; errors of the connection count as such."""
    if isinstance(error, ConnectionFailure):
        return not isinstance(error, NotPrimaryError)
    own = (InvalidOperation, ConfigurationError, NoFile, CorruptGridFile)
    return isinstance(error, own) or not isinstance(error, PyMongoError)


def _has_label(error: Any, label: str) -> bool:
    return isinstance(error, PyMongoError) and error.has_error_label(label)


def _code_names(details: Mapping[str, Any]) -> set[Any]:
    """Return the codeName of the reply and of all that a bulk write collects."""
    inner = [*details.get("writeErrors", []), *details.get("writeConcernErrors", [])]
    return {one.get("codeName") for one in (details, *inner)}

"""Errors that a query or an update is refused with, and the text of values in their messages."""

from __future__ import annotations

from collections.abc import Container, Mapping

from replset.bson import InvalidBSONError, ObjectId
from replset.ejson import to_ejson
from replset.errors import (
    BadValueError,
    ErrorCode,
    FailedToParseError,
    NotBuiltError,
    ReplError,
    TypeMismatchError,
    UnknownFieldError,
)

__all__ = [
    "BadValueError",
    "ConflictingUpdateOperatorsError",
    "DollarPrefixedFieldNameError",
    "EmptyFieldNameError",
    "FailedToParseError",
    "ImmutableFieldError",
    "PathNotViableError",
    "ProjectionError",
    "TypeMismatchError",
    "check_fields",
    "not_built",
    "shell_text",
    "shorten",
    "show",
]

_SHOWN_CHARACTERS = 150


class PathNotViableError(ReplError, code=ErrorCode.PATH_NOT_VIABLE):
    """A path goes through a value that has no fields (28)."""


class ConflictingUpdateOperatorsError(ReplError, code=ErrorCode.CONFLICTING_UPDATE_OPERATORS):
    """Two parts of one update change the same path (40)."""


class DollarPrefixedFieldNameError(ReplError, code=ErrorCode.DOLLAR_PREFIXED_FIELD_NAME):
    """A field name that may not begin with a dollar here (52)."""


class EmptyFieldNameError(ReplError, code=ErrorCode.EMPTY_FIELD_NAME):
    """A path with an empty field name (56)."""


class ImmutableFieldError(ReplError, code=ErrorCode.IMMUTABLE_FIELD):
    """The `_id` of a document would change (66)."""


class ProjectionError(ReplError):
    """A projection contradicts itself or cannot be parsed. `code` is MongoDB's assertion number."""


def not_built(name: str) -> NotBuiltError:
    """Return the error for a feature that MongoDB has and this product does not have (238)."""
    return NotBuiltError(f"{name} is not built yet")


def check_fields(spec: Mapping[str, object], known: Container[str], place: str) -> None:
    """Raise 40415 for a field that the argument of a stage does not have. place: the stage, or a field below it."""
    for name in spec:
        if name not in known:
            raise UnknownFieldError(f"BSON field '{place}.{name:.80}' is an unknown field.")


def show(value: object) -> str:
    """Return `value` as Extended JSON for a message, cut when it is long."""
    try:
        text = to_ejson(_cut(value, [_SHOWN_CHARACTERS]))
    except InvalidBSONError:
        return "..."
    return shorten(text)


def _cut(value: object, left: list[int]) -> object:
    """Return the first parts of a value, as many as are `left`: all of a large one would take too long to show."""
    left[0] -= 1
    if isinstance(value, Mapping):
        return {name: _cut(inner, left) for name, inner in value.items() if left[0] > 0}
    if isinstance(value, list):
        return [_cut(item, left) for item in value if left[0] > 0]
    return value[: 2 * _SHOWN_CHARACTERS] if isinstance(value, str) else value


def shell_text(value: object) -> str:
    """Return `value` as MongoDB's message about a duplicate key shows it."""
    return f"ObjectId('{value}')" if isinstance(value, ObjectId) else show(value)


def shorten(text: str) -> str:
    """Return `text` for a message, cut when it is long."""
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."

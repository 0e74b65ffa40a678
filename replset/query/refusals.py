"""What a query or update is refused with: errors that several files raise, and values as messages show them."""

from __future__ import annotations

from replset.bson import InvalidBSONError, to_ejson
from replset.errors import BadValueError, ErrorCode, FailedToParseError, ReplError, TypeMismatchError, UnknownFieldError

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
    "not_built",
    "shortened",
    "show",
]

_SHOWN_CHARACTERS = 150


class PathNotViableError(ReplError):
    """A path leads through a value that holds no fields (28)."""

    code = ErrorCode.PATH_NOT_VIABLE


class ConflictingUpdateOperatorsError(ReplError):
    """Two parts of one update change the same place (40)."""

    code = ErrorCode.CONFLICTING_UPDATE_OPERATORS


class DollarPrefixedFieldNameError(ReplError):
    """A field name that may not begin with a dollar here (52)."""

    code = ErrorCode.DOLLAR_PREFIXED_FIELD_NAME


class EmptyFieldNameError(ReplError):
    """A path with an empty field name (56)."""

    code = ErrorCode.EMPTY_FIELD_NAME


class ImmutableFieldError(ReplError):
    """The `_id` of a document would change (66)."""

    code = ErrorCode.IMMUTABLE_FIELD


class ProjectionError(ReplError):
    """A projection that contradicts itself or cannot be read; `code` is MongoDB's assertion number."""


def not_built(name: str) -> UnknownFieldError:
    """For what MongoDB has and this product does not: refused by name (40415)."""
    return UnknownFieldError(f"{name} is not supported yet")


def show(value: object) -> str:
    """`value` for a message: Extended JSON, cut where it gets long."""
    try:
        text = to_ejson(value)
    except InvalidBSONError:
        return "..."
    return shortened(text)


def shortened(text: str) -> str:
    """`text` for a message, cut where it gets long."""
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."

"""Reads the fields of a command document: their types, defaults and limits. An error names the field.

As in MongoDB, any number type is taken for a whole number if its value is whole; null means absent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from replset.bson import Decimal128, InvalidBSONError, RawDocument, encode, walk
from replset.bson.types import TYPE_NAMES
from replset.errors import (
    BadValueError,
    ErrorCode,
    NotBuiltError,
    TypeMismatchError,
    UnknownFieldError,
)
from replset.operations.known_fields import KNOWN, is_harmless

if TYPE_CHECKING:
    from replset.query.collation import Fold

_ABSENT = (None, 6, 10)
_EMPTY = encode({})
_FIRST = b"\x030\0"


def wrong_type(command: str, name: str, kind: int | None, wanted: str) -> TypeMismatchError:
    """The error for a field of the wrong type, with the place."""
    was = TYPE_NAMES.get(kind or 0, "missing")
    return TypeMismatchError(f"BSON field '{command}.{name}' is the wrong type '{was}', expected type '{wanted}'")


def missing(command: str, name: str) -> BadValueError:
    """A field that must be there (MongoDB's 40414)."""
    return BadValueError(f"BSON field '{command}.{name}' is missing but a required field", code=ErrorCode.MISSING_FIELD)


def unknown_field(command: str, name: str) -> UnknownFieldError:
    return UnknownFieldError(f"BSON field '{command}.{name}' is an unknown field.")


def is_absent(body: RawDocument, name: str) -> bool:
    return body.type_of(name) in _ABSENT


def check_fields(body: RawDocument, read: frozenset[str], place: str) -> None:
    """Refuse the first field that is not in `read` and would mean something. place: in the table of known_fields.py.

    NotBuiltError (238) for one that MongoDB takes; it may be there without a value, as drivers send it.
    UnknownFieldError (40415) for one that MongoDB does not take.
    """
    for name in body.keys():  # noqa: SIM118 - a RawDocument is no mapping
        if name in read or is_harmless(place, name):
            continue
        if name not in KNOWN.get(place, ()):
            raise unknown_field(place, name)
        if given(body, name):
            raise NotBuiltError(f"BSON field '{place}.{name}' is not built yet")


def text(body: RawDocument, name: str, command: str, default: str | None = None) -> str:
    """A string; `default` None: it must be there."""
    kind = body.type_of(name)
    if kind == 2:
        return str(body.get(name))
    if kind in _ABSENT and default is not None:
        return default
    if kind is None:
        raise missing(command, name)
    raise wrong_type(command, name, kind, "string")


def boolean(body: RawDocument, name: str, command: str, default: bool = False) -> bool:
    """true or false; numbers count as MongoDB's safeBool takes them."""
    kind = body.type_of(name)
    if kind in _ABSENT:
        return default
    if kind in (8, 1, 16, 18):
        return bool(body.get(name))
    if kind == 19:
        return as_whole(body.get(name), name, command) != 0
    raise wrong_type(command, name, kind, "bool")


def whole(
    body: RawDocument,
    name: str,
    command: str,
    default: int = 0,
    *,
    least: int | None = None,
    most: int = (1 << 63) - 1,
) -> int:
    """A whole number of any numeric type. Below `least` or above `most`: BadValueError (2)."""
    kind = body.type_of(name)
    if kind in _ABSENT:
        return default
    if kind not in (1, 16, 18, 19):
        raise wrong_type(command, name, kind, "long")
    value = as_whole(body.get(name), name, command)
    if least is not None and value < least:
        raise BadValueError(
            f"BSON field '{name}' value must be >= {least}, actual value '{value}'", code=ErrorCode.NUMBER_OUT_OF_RANGE
        )
    if value > most:
        raise BadValueError(
            f"BSON field '{name}' value must be <= {most}, actual value '{value}'", code=ErrorCode.NUMBER_OUT_OF_RANGE
        )
    return value


def as_whole(value: object, name: str, command: str) -> int:
    """The number as an int; BadValueError when it is not whole."""
    if isinstance(value, bool) or value is None:
        raise TypeMismatchError(f"BSON field '{command}.{name}' must be a number")
    if isinstance(value, int):
        return int(value)
    try:
        number = float(str(value)) if isinstance(value, Decimal128) else float(value)  # type: ignore[arg-type]
        found = int(number)
    except (TypeError, ValueError, OverflowError):
        raise BadValueError(f"BSON field '{command}.{name}' must be a whole number, not {value}") from None
    if found != number:
        raise BadValueError(f"BSON field '{command}.{name}' must be a whole number, not {value}")
    return found


def document(body: RawDocument, name: str, command: str) -> RawDocument | None:
    """A sub-document; None when it is absent or null."""
    kind = body.type_of(name)
    if kind in _ABSENT:
        return None
    if kind != 3:
        raise wrong_type(command, name, kind, "object")
    raw = body.get_raw(name)
    return None if raw is None else RawDocument(raw)


def decoded(body: RawDocument, name: str, command: str) -> dict[str, object]:
    """A sub-document, decoded; empty when it is absent or null."""
    found = document(body, name, command)
    return {} if found is None else found.decode()


def documents(
    body: RawDocument, sequences: dict[str, list[RawDocument]], name: str, command: str
) -> Sequence[RawDocument]:
    """An array of documents, from the OP_MSG sequence of that name or from the body."""
    sequence = sequences.get(name)
    if sequence is not None:
        if name in body:
            raise BadValueError(f"BSON field '{command}.{name}' is a duplicate field", code=ErrorCode.DUPLICATE_FIELD)
        return sequence
    kind = body.type_of(name)
    if kind is None:
        raise missing(command, name)
    if kind != 4:
        raise wrong_type(command, name, kind, "array")
    raw = body.get_raw(name) or b""
    if raw[4:7] == _FIRST and int.from_bytes(raw[7:11], "little") == len(raw) - 8 and not raw[-1]:
        return [RawDocument(raw[7:-1])]  # one document, as most often: no walk through the array
    found: list[RawDocument] = []
    for index, (_, element, start, end) in enumerate(walk(raw)):
        if element != 3:
            raise wrong_type(command, f"{name}.{index}", element, "object")
        found.append(RawDocument(raw[start:end]))
    return found


def values(body: RawDocument, name: str, command: str) -> list[object]:
    """An array, decoded."""
    kind = body.type_of(name)
    if kind is None:
        raise missing(command, name)
    if kind != 4:
        raise wrong_type(command, name, kind, "array")
    found = body.get(name)
    if not isinstance(found, list):
        raise InvalidBSONError(f"field {name} is no array")
    return found


def given(body: RawDocument, name: str) -> bool:
    """Whether the field has a value other than null, false, 0, "" and an empty document."""
    kind = body.type_of(name)
    if kind in (3, 4):
        return len(body.get_raw(name) or b"") > len(_EMPTY)
    return kind not in _ABSENT and bool(body.get(name))


def collation(body: RawDocument, place: str, default: Fold | None = None) -> Fold | None:
    """Return what the command's collation makes of values; None for the simple one. default: if it gives none.

    Raises what fold_of raises.
    """
    if "collation" not in body:
        return default
    given = document(body, "collation", place)
    if given is None or not given.first_key:
        return default
    from replset.query.collation import fold_of  # the command line does without the query language

    return fold_of(given.decode())

"""Checks and splits dotted paths, and finds the values at a path in documents and arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from replset.bson import MAX_DEPTH
from replset.errors import ErrorCode, ReplError
from replset.query.errors import BadValueError
from replset.query.order import MISSING

DBREF_NAMES: Final = frozenset({"$ref", "$id", "$db"})
"""The names of a DBRef. They begin with a dollar and are names of fields all the same, as in MongoDB."""


def split_path(path: str) -> tuple[str, ...]:
    """Return the field names of a filter's path. BadValueError when it has more names than a document has levels."""
    if path.count(".") >= MAX_DEPTH:
        raise BadValueError(f"FieldPath is too long: more than {MAX_DEPTH} field names")
    return tuple(path.split("."))


def field_path(path: str) -> tuple[str, ...]:
    """Return the field names of a path in a projection, a sort, an expression or distinct.

    Raises 40352 and 40353 for a path that is empty or ends with a dot, and what check_field_name raises.
    """
    if not path:
        raise ReplError("FieldPath cannot be constructed with empty string", code=ErrorCode.EMPTY_PATH)
    if path.endswith("."):
        raise ReplError(f"FieldPath must not end with a '.': {path[:100]}", code=ErrorCode.PATH_ENDS_WITH_DOT)
    parts = split_path(path)
    for part in parts:
        check_field_name(part, path)
    return parts


def check_field_name(name: str, path: str) -> None:
    """Refuse a field name that is empty (15998), begins with a dollar (16410) or holds a zero byte (16411).

    path: for the message. The names of a DBRef are allowed.
    """
    if not name:
        raise ReplError("FieldPath field names may not be empty strings.", code=ErrorCode.EMPTY_PATH_PART)
    if name.startswith("$") and name not in DBREF_NAMES:
        raise ReplError(f"FieldPath field names may not start with '$': {path[:100]}", code=ErrorCode.DOLLAR_IN_PATH)
    if "\0" in name:
        raise ReplError("FieldPath field names may not contain '\\0'.", code=ErrorCode.NUL_IN_PATH)


def array_index(name: str) -> int | None:
    """Return the array index that a field name is, digits without leading zeros; None for any other name."""
    if not (name.isascii() and name.isdigit()) or (name[0] == "0" and len(name) > 1) or len(name) > 9:
        return None
    return int(name)


def values_at(
    document: Mapping[str, object], parts: Sequence[str], into_last: bool = True
) -> Iterator[tuple[object, int | None]]:
    """Yield (value or MISSING, index in the outermost array that was searched, or None) for a filter's path.

    An array inside the path gives the values of the rest of the path in each of its documents. An index in the path
    names one item as well; that is no search. An array at the end gives its items and then itself; with
    into_last=False only itself. An array without documents inside the path gives nothing. Any other value inside the
    path gives MISSING.
    """
    return _values_at(document, parts, into_last, None)


def _values_at(
    document: Mapping[str, object], parts: Sequence[str], into_last: bool, seen: _Seen | None
) -> Iterator[tuple[object, int | None]]:
    value: object = document
    for depth, part in enumerate(parts):
        if isinstance(value, Mapping):
            value = value.get(part, MISSING)
        elif type(value) is list:
            yield from _through_array(value, parts[depth:], into_last, set() if seen is None else seen)
            return
        else:
            yield MISSING, None
            return
    if type(value) is list and into_last:
        for index, item in enumerate(value):
            yield item, index
    yield value, None


_Seen = set[tuple[int, int]]
"""Arrays that were searched, by identity, and how many names of the path were left there. A number in a path names a
field of the items and also an item itself. Without this set the work would double with each nested array."""


def _through_array(
    items: list[object], parts: Sequence[str], into_last: bool, seen: _Seen
) -> Iterator[tuple[object, int | None]]:
    place = (id(items), len(parts))
    if place in seen:
        return
    seen.add(place)
    wanted = array_index(parts[0])
    for index, item in enumerate(items):
        if isinstance(item, Mapping):
            for value, _ in _values_at(item, parts, into_last, seen):
                yield value, index
        if index != wanted:
            continue
        if len(parts) == 1:
            yield item, None  # MongoDB does not search in an array that an index named
        elif isinstance(item, Mapping):
            yield from _values_at(item, parts[1:], into_last, seen)
        elif type(item) is list:
            yield from _through_array(item, parts[1:], into_last, seen)

"""Dotted paths: checked and split, and the values that one reaches through documents and arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from replset.bson import MAX_DEPTH
from replset.errors import ErrorCode, ReplError
from replset.query.order import MISSING
from replset.query.refusals import BadValueError


def split_path(path: str) -> tuple[str, ...]:
    """The field names of a filter's path, any names; BadValueError where it is deeper than a document can be."""
    if path.count(".") >= MAX_DEPTH:
        raise BadValueError(f"FieldPath is too long: more than {MAX_DEPTH} field names")
    return tuple(path.split("."))


def field_path(path: str) -> tuple[str, ...]:
    """The field names of a path in a projection, a sort or distinct: none empty, none with a dollar in front."""
    if not path:
        raise ReplError("FieldPath cannot be constructed with empty string", code=ErrorCode.EMPTY_PATH)
    if path.endswith("."):
        raise ReplError(f"FieldPath must not end with a '.': {path[:100]}", code=ErrorCode.PATH_ENDS_WITH_DOT)
    parts = split_path(path)
    for part in parts:
        if not part:
            raise ReplError("FieldPath field names may not be empty strings.", code=ErrorCode.EMPTY_PATH_PART)
        if part.startswith("$"):
            raise ReplError(
                f"FieldPath field names may not start with '$': {path[:100]}", code=ErrorCode.DOLLAR_IN_PATH
            )
        if "\0" in part:
            raise ReplError("FieldPath field names may not contain '\\0'.", code=ErrorCode.NUL_IN_PATH)
    return parts


def array_index(name: str) -> int | None:
    """The index that a field name stands for in an array: digits without leading zeros."""
    if not (name.isascii() and name.isdigit()) or (name[0] == "0" and len(name) > 1) or len(name) > 9:
        return None
    return int(name)


def reach(
    document: Mapping[str, object], parts: Sequence[str], into_last: bool = True
) -> Iterator[tuple[object, int | None]]:
    """What a filter's path finds: (value or MISSING, index in the innermost array passed, or None).

    Arrays on the way are gone through: each document in them is asked for the rest of the path, and an index in the
    path also names one item. An array at the end gives its items and then itself; into_last=False: only itself.
    An array without documents on the way gives nothing, other values on the way give MISSING.
    """
    return _reach(document, parts, into_last, None)


def _reach(
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
"""Arrays by identity, with how many names of the path were left there. A number in a path names a field of the items
and an item itself: without this the ways to one place double with each array that is nested in another."""


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
            for value, inner in _reach(item, parts, into_last, seen):
                yield value, index if inner is None else inner
        if index != wanted:
            continue
        if len(parts) == 1:
            yield item, index  # MongoDB does not look into an array that an index named
        elif isinstance(item, Mapping):
            for value, inner in _reach(item, parts[1:], into_last, seen):
                yield value, index if inner is None else inner
        elif type(item) is list:
            for value, inner in _through_array(item, parts[1:], into_last, seen):
                yield value, index if inner is None else inner

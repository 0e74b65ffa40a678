"""Compiles sort orders, which turn a document into a key; the order of the keys' bytes is the wanted order.

Keys are made as MongoDB makes index keys. An array on a path gives one key for each item; the first key in the order
counts. A missing field counts as null. An empty array sorts before null.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import Any, TypeVar

from replset.bson import Undefined, encode_key
from replset.errors import ErrorCode, ReplError
from replset.query.errors import BadValueError, not_built, show
from replset.query.order import MISSING, equals, is_number
from replset.query.paths import array_index, field_path
from replset.query.time_limit import check_time

MAX_FIELDS = 32
_COMPLEMENT = bytes(range(255, -1, -1))
_NULL_KEY = encode_key(None)
_UNDEFINED = Undefined()

SORT_RUN = 8192
"""Keys that are sorted in one call, which takes some milliseconds."""

Path = tuple[str, ...]
T = TypeVar("T")
_key_of: Callable[[tuple[bytes, object]], bytes] = itemgetter(0)


class Sort:
    """A compiled sort. Called with a document it returns the document's key.

    natural: 1 or -1 for the order of storage (`$natural`), else 0.
    """

    __slots__ = ("_paths", "_reversed", "natural")

    def __init__(self, paths: list[Path], is_reversed: list[bool], natural: int) -> None:
        self._paths = paths
        self._reversed = is_reversed
        self.natural = natural

    def __call__(self, doc: Mapping[str, object]) -> bytes:
        """Return the document's key. BadValueError when the paths go through two different arrays of the document."""
        values: list[object] = []
        for path in self._paths:
            value = doc.get(path[0])
            if type(value) is list or len(path) > 1:
                return b"".join(self._least(_value_lists([(doc, path) for path in self._paths])))
            values.append(value)
        keys = self._keys(values, values, [])
        return keys[0] if len(keys) == 1 else b"".join(keys)

    def _least(self, lists: Iterator[list[object]]) -> list[bytes]:
        """Return the keys that come first in the order.

        A value that all lists share is encoded once. It may be as large as a document, and an array gives as many lists
        as it has items.
        """
        least = last_values = last_keys = None
        for values in lists:
            check_time()
            last_keys = self._keys(values, last_values or values, last_keys or [])
            last_values = values
            if least is None or last_keys < least:
                least = last_keys
        return least or []

    def _keys(self, values: list[object], before: list[object], keys_before: list[bytes]) -> list[bytes]:
        """Return the key of each value. A value that was in the same place in `before` keeps its key."""
        keys: list[bytes] = []
        for place, (value, is_reversed) in enumerate(zip(values, self._reversed, strict=True)):
            if keys_before and value is before[place]:
                keys.append(keys_before[place])
            else:
                keys.append(encode_key(value).translate(_COMPLEMENT) if is_reversed else encode_key(value))
        return keys


def sort_by_key(pairs: list[tuple[bytes, T]]) -> list[T]:
    """Return the values of (key, value) pairs in the order of the keys. The sort is stable.

    `list.sort` lets no other thread run until it is done. So a long list is sorted in runs, which are then merged.
    """
    runs = [sorted(pairs[start : start + SORT_RUN], key=_key_of) for start in range(0, len(pairs), SORT_RUN)]
    if len(runs) == 1:
        return [value for _, value in runs[0]]
    return [value for _, value in heapq.merge(*runs, key=_key_of)]


def compile_sort(spec: Mapping[str, object]) -> Sort:
    """Return the sort of a document such as `{a: 1, "b.c": -1}`. In the empty sort all keys are equal.

    Raises 15974 and 15975 for a bad direction, BadValueError for `$natural` with other fields or for too many fields.
    """
    if "$natural" in spec:
        return Sort([], [], _natural(spec))
    if len(spec) > MAX_FIELDS:
        raise BadValueError(f"too many compound keys: a sort has at most {MAX_FIELDS}")
    paths: list[Path] = []
    is_reversed: list[bool] = []
    for name, direction in spec.items():
        if isinstance(direction, Mapping) and "$meta" in direction:
            raise not_built("$meta in a sort")
        if not is_number(direction):
            raise ReplError(
                f"Illegal key in $sort specification: {name}: {show(direction)}",
                code=ErrorCode.SORT_DIRECTION_NOT_A_NUMBER,
            )
        if not (equals(1)(direction) or equals(-1)(direction)):
            raise ReplError(
                "$sort key ordering must be 1 (for ascending) or -1 (for descending)",
                code=ErrorCode.SORT_DIRECTION_NOT_ONE,
            )
        paths.append(field_path(name))
        is_reversed.append(not equals(1)(direction))
    return Sort(paths, is_reversed, 0)


def _natural(spec: Mapping[str, Any]) -> int:
    direction = spec["$natural"]
    if len(spec) > 1:
        raise BadValueError(f"Cannot include '$natural' in compound sort: {show(spec)}")
    if not (equals(1)(direction) or equals(-1)(direction)):
        raise BadValueError("$natural sort cannot be set to a value other than -1 or 1.")
    return 1 if equals(1)(direction) else -1


def _value_lists(places: list[tuple[object, Path]]) -> Iterator[list[object]]:
    """Yield the values of all fields, once for each item of the array on their paths.

    places: for each field the value to begin at and the path from there. A path without names is at its end.
    """
    values: list[object] = []
    array: list[object] | None = None
    rests: dict[int, Path] = {}
    for number, (begin, path) in enumerate(places):
        value, rest = (begin, None) if not path else _down_to_array(begin, path)
        values.append(value)
        if rest is not None and type(value) is list:
            if array is not None and value is not array:
                raise BadValueError("cannot sort with keys that are parallel arrays")
            array = value
            rests[number] = rest
    if array is None:
        yield values
        return
    if not array:
        yield [
            value if number not in rests else (None if rests[number] else _UNDEFINED)
            for number, value in enumerate(values)
        ]
        return
    for item in array:
        yield from _value_lists(
            [(value, ()) if number not in rests else (item, rests[number]) for number, value in enumerate(values)]
        )


def _down_to_array(begin: object, path: Path) -> tuple[object, Path | None]:
    """Return the value at `path`; or the first array on the path where no index follows, and the rest of the path."""
    value = begin
    for depth, name in enumerate(path):
        if isinstance(value, Mapping):
            value = value.get(name, MISSING)
        elif type(value) is list and depth > 0:
            index = array_index(name)
            if index is None or index >= len(value):
                return value, path[depth:]
            value = value[index]
        else:
            return None, None
    if value is MISSING:
        return None, None
    return (value, ()) if type(value) is list else (value, None)

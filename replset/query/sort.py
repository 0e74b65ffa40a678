"""Compiles sort orders, which turn a document into a key; the order of the keys' bytes is the wanted order.

Keys are made as MongoDB makes index keys. An array on a path gives one key for each item; the first key in the order
counts. A missing field counts as null. An empty array sorts before null.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from operator import itemgetter
from typing import Any, TypeVar

from replset.bson import encode_key
from replset.bson.keystring import encode_keys
from replset.errors import ErrorCode, ReplError
from replset.query.collation import Fold, key_by
from replset.query.errors import BadValueError, not_built, show
from replset.query.index_values import ParallelArraysError, Path, value_lists
from replset.query.order import MISSING, equals, is_number
from replset.query.paths import array_index, field_path
from replset.query.time_limit import check_time

MAX_FIELDS = 32
_COMPLEMENT = bytes(range(255, -1, -1))

SORT_RUN = 8192
"""Keys that are sorted in one call, which takes some milliseconds."""

T = TypeVar("T")
ItemKey = Callable[[object], bytes]
"""Gives the key of an array's item."""
_key_of: Callable[[tuple[bytes, object]], bytes] = itemgetter(0)


class Sort:
    """A compiled sort. Called with a document it returns the document's key.

    natural: 1 or -1 for the order of storage (`$natural`), else 0. fold: of the collation of its strings.
    """

    fold: Fold | None = None

    __slots__ = ("_is_falling", "_is_flat", "_is_rising", "_names", "_paths", "_reversed", "natural")

    def __init__(self, paths: list[Path], is_reversed: list[bool], natural: int) -> None:
        self._paths = paths
        self._names = [path[0] for path in paths]
        self._is_flat = all(len(path) == 1 for path in paths)
        self._reversed = is_reversed
        self._is_rising, self._is_falling = not any(is_reversed), all(is_reversed)
        self.natural = natural

    @property
    def reads(self) -> frozenset[str]:
        """The top-level fields that it looks at."""
        return frozenset(path[0] for path in self._paths)

    @property
    def fields(self) -> tuple[tuple[str, int], ...]:
        """The paths, with 1 or -1."""
        return tuple(
            (".".join(path), -1 if is_reversed else 1)
            for path, is_reversed in zip(self._paths, self._reversed, strict=True)
        )

    def __call__(self, doc: Mapping[str, object]) -> bytes:
        """Return the document's key. BadValueError when the paths go through two different arrays of the document."""
        values = [doc.get(name) for name in self._names]
        if not self._is_flat or list in map(type, values):
            try:
                return b"".join(self._least(value_lists(doc, self._paths)))
            except ParallelArraysError:
                raise BadValueError("cannot sort with keys that are parallel arrays") from None
        if self._is_rising:
            return encode_keys(values)
        if self._is_falling:
            return encode_keys(values).translate(_COMPLEMENT)
        return b"".join(map(_directed_key, map(encode_key, values), self._reversed))

    def _least(self, lists: Iterable[list[object]]) -> list[bytes]:
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
                keys.append(_directed_key(encode_key(None if value is MISSING else value), is_reversed))
        return keys


class CollatedSort(Sort):
    """A sort whose strings are in the order of a collation."""

    __slots__ = ("fold",)

    def __init__(self, paths: list[Path], is_reversed: list[bool], fold: Fold) -> None:
        super().__init__(paths, is_reversed, 0)
        self.fold: Fold = fold

    def __call__(self, doc: Mapping[str, object]) -> bytes:
        return super().__call__({name: self.fold(doc[name]) for name in self.reads if name in doc})


def _directed_key(key: bytes, is_reversed: bool) -> bytes:
    return key.translate(_COMPLEMENT) if is_reversed else key


def sort_by_key(pairs: list[tuple[bytes, T]]) -> list[T]:
    """Return the values of (key, value) pairs in the order of the keys. The sort is stable.

    `list.sort` lets no other thread run until it is done. So a long list is sorted in runs, which are then merged.
    """
    return [value for _, value in sorted_pairs(pairs)]


def sorted_pairs(pairs: list[tuple[bytes, T]]) -> Iterable[tuple[bytes, T]]:
    """Return the (key, value) pairs in the order of the keys, as `sort_by_key`."""
    runs = [sorted(pairs[start : start + SORT_RUN], key=_key_of) for start in range(0, len(pairs), SORT_RUN)]
    return chain.from_iterable(_merged(runs) if len(runs) > 1 else runs)


def _merged(runs: list[list[tuple[bytes, T]]]) -> Iterator[Iterable[tuple[bytes, T]]]:
    """Yield the pairs of sorted runs in order, some thousand at once: those between two keys, sorted again.

    That takes a third of the time of a merge one by one, which is left for keys that very many pairs have.
    """
    step = max(1, SORT_RUN // 2 // len(runs))
    bounds = heapq.merge(*[map(_key_of, run[step::step]) for run in runs])
    begins = [0] * len(runs)
    for bound in [*islice(bounds, 0, None, len(runs)), None]:
        ends = [
            len(run) if bound is None else bisect_left(run, bound, begin, key=_key_of)
            for run, begin in zip(runs, begins, strict=True)
        ]
        parts = [run[begin:end] for run, begin, end in zip(runs, begins, ends, strict=True) if begin < end]
        begins = ends
        is_few = sum(map(len, parts)) <= SORT_RUN
        yield (
            sorted([pair for part in parts for pair in part], key=_key_of)
            if is_few
            else heapq.merge(*parts, key=_key_of)
        )


def compile_sort(spec: Mapping[str, object], fold: Fold | None = None) -> Sort:
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
    return Sort(paths, is_reversed, 0) if fold is None else CollatedSort(paths, is_reversed, fold)


def _natural(spec: Mapping[str, Any]) -> int:
    direction = spec["$natural"]
    if len(spec) > 1:
        raise BadValueError(f"Cannot include '$natural' in compound sort: {show(spec)}")
    if not (equals(1)(direction) or equals(-1)(direction)):
        raise BadValueError("$natural sort cannot be set to a value other than -1 or 1.")
    return 1 if equals(1)(direction) else -1


def compile_item_sort(spec: object, fold: Fold | None = None) -> ItemKey:
    """Return the key of an array's item: of the whole item by 1 or -1, of its fields by a document.

    fold: of the collation of the order.
    It is that of $push and $sortArray. A number in a path names an item, and no array on a path is searched.
    """
    if is_number(spec):
        return _directed(key_by(fold), spec)
    if not isinstance(spec, Mapping):
        raise BadValueError(
            "The $sort is invalid: use 1/-1 to sort the whole element, or {field:1/-1} to sort embedded fields"
        )
    if not spec:
        raise BadValueError("The $sort pattern is empty when it should be a set of fields.")
    keys = [_directed(_field_key(path, key_by(fold)), direction) for path, direction in spec.items()]
    return lambda item: b"".join([key(item) for key in keys])


def _directed(key: ItemKey, direction: object) -> ItemKey:
    if not is_number(direction) or not (equals(1)(direction) or equals(-1)(direction)):
        raise BadValueError("The $sort element value must be either 1 or -1")
    is_rising = equals(1)(direction)

    def directed(item: object) -> bytes:
        check_time()
        return key(item) if is_rising else key(item).translate(_COMPLEMENT)

    return directed


def _field_key(path: str, key_of: ItemKey) -> ItemKey:
    if "" in path.split("."):
        raise BadValueError(f"The $sort field is a dotted field but has an empty part: {path}")
    parts = path.split(".")

    def key(item: object) -> bytes:
        value: Any = item if isinstance(item, Mapping) else None
        for part in parts:
            if isinstance(value, Mapping):
                value = value.get(part)
            elif type(value) is list:
                index = array_index(part)
                value = value[index] if index is not None and index < len(value) else None
            else:
                return key_of(None)
        return key_of(value)

    return key

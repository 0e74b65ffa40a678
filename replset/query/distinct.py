"""Collects the distinct values of a path over many documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from replset.bson import encode
from replset.query.collation import Fold, key_by
from replset.query.order import MISSING
from replset.query.paths import array_index, field_path
from replset.query.time_limit import check_time

_EMPTY = encode({})


class Distinct:
    """Collects the values at `key`, each once by MongoDB's equality, in the order in which they came.

    An array at the end of the path gives its items. An array inside the path gives the values of all its documents, or
    of one item if the path holds an index. A missing field gives nothing. size: bytes of all values in one array.
    Raises what field_path raises for a bad path.
    """

    __slots__ = ("_key_of", "_parts", "_seen", "size", "values")

    def __init__(self, key: str, fold: Fold | None = None) -> None:
        self._key_of = key_by(fold)
        self._parts = field_path(key)
        self._seen: set[bytes] = set()
        self.values: list[object] = []
        self.size = 0

    def add(self, doc: Mapping[str, object]) -> None:
        for value in _values_along(doc, self._parts):
            check_time()
            key = self._key_of(value)
            if key not in self._seen:
                self._seen.add(key)
                self.size += len(encode({str(len(self.values)): value})) - len(_EMPTY)
                self.values.append(value)


def _values_along(begin: object, parts: tuple[str, ...]) -> Iterator[object]:
    value = begin
    for depth, part in enumerate(parts):
        if isinstance(value, Mapping):
            value = value.get(part, MISSING)
            continue
        if type(value) is not list:
            return
        index = array_index(part)
        if index is None:
            for item in value:
                if isinstance(item, Mapping):
                    yield from _values_along(item, parts[depth:])
            return
        value = value[index] if index < len(value) else MISSING
    if type(value) is list:
        yield from value
    elif value is not MISSING:
        yield value

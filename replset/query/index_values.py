"""Takes from a document the values that an index, or a sort, has of it: one list of values for each key.

An array on a path gives one list for each item, an array at the end of a path too; an index in the path names one item.
The arrays of all paths must be the same one, and inside its items again. An empty array counts as undefined at the end
of a path, and as a missing field before that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from replset.bson import Undefined
from replset.query.order import MISSING
from replset.query.paths import array_index

Path = tuple[str, ...]
_UNDEFINED = Undefined()


class ParallelArraysError(Exception):
    """Two paths go through two different arrays. paths: their numbers."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__("parallel arrays")
        self.paths = first, second


def value_lists(
    document: Mapping[str, object], paths: Sequence[Path], through_arrays: set[int] | None = None
) -> Iterator[list[object]]:
    """Yield the values of all paths, MISSING where there is none, once for each key. ParallelArraysError.

    through_arrays: gets the numbers of the paths that go through an array, or end in one.
    """
    return _lists([(document, path) for path in paths], set() if through_arrays is None else through_arrays)


def _lists(places: list[tuple[object, Path]], through_arrays: set[int]) -> Iterator[list[object]]:
    """places: for each path the value to begin at and the path from there. A path without names is at its end."""
    values: list[object] = []
    array: list[object] | None = None
    rests: dict[int, Path] = {}
    for number, (begin, path) in enumerate(places):
        value, rest = (begin, None) if not path else _down_to_array(begin, path)
        values.append(value)
        if rest is not None and type(value) is list:
            if array is not None and value is not array:
                raise ParallelArraysError(next(iter(rests)), number)
            array = value
            rests[number] = rest
    if array is None:
        yield values
        return
    through_arrays.update(rests)
    if not array:
        yield [
            value if number not in rests else (MISSING if rests[number] else _UNDEFINED)
            for number, value in enumerate(values)
        ]
        return
    if not any(rests.values()):  # the items themselves
        for item in array:
            yield [item if number in rests else value for number, value in enumerate(values)]
        return
    for item in array:
        yield from _lists(
            [(value, ()) if number not in rests else (item, rests[number]) for number, value in enumerate(values)],
            through_arrays,
        )


def _down_to_array(begin: object, path: Path) -> tuple[object, Path | None]:
    """Return the value at `path`; or the first array on the path where no index follows, and the rest of the path.

    An array that an index names is one value, as in MongoDB.
    """
    value = begin
    is_item = False
    for depth, name in enumerate(path):
        if isinstance(value, Mapping):
            value, is_item = value.get(name, MISSING), False
        elif type(value) is list and depth > 0:
            index = array_index(name)
            if index is None or index >= len(value):
                return value, path[depth:]
            value, is_item = value[index], True
        else:
            return MISSING, None
    return (value, ()) if type(value) is list and not is_item else (value, None)

"""$unwind makes one document for each item of an array."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from replset.bson import Int64
from replset.query.expressions import fault
from replset.query.order import MISSING, is_null, type_name
from replset.query.paths import field_path
from replset.query.row import Row
from replset.query.stages.stage import ChainStage, StageScope

_FEW: Final = 16
"""Items of which the documents are made at once."""


class UnwindStage(ChainStage):
    """Makes one document for each item of an array."""

    def __init__(self, spec: object, _scope: StageScope) -> None:
        if type(spec) is str:
            spec = {"path": spec}
        if not isinstance(spec, Mapping):
            raise fault(
                15981,
                f"expected either a string or an object as specification for $unwind stage, got {type_name(spec)}",
            )
        self.keeps_empty, self._index, path = False, None, None
        for name, value in spec.items():
            match name:
                case "path":
                    if type(value) is not str:
                        raise fault(28808, f"expected a string as the path for $unwind stage, got {type_name(value)}")
                    path = value
                case "preserveNullAndEmptyArrays":
                    if type(value) is not bool:
                        raise fault(28809, "expected a boolean for the preserveNullAndEmptyArrays option to $unwind")
                    self.keeps_empty = value
                case "includeArrayIndex":
                    if type(value) is not str or not value:
                        raise fault(28810, "expected a non-empty string for the includeArrayIndex option to $unwind")
                    if value.startswith("$"):
                        raise fault(
                            28822, "includeArrayIndex option to $unwind stage should not be prefixed with a '$'"
                        )
                    self._index = field_path(value)
                case _:
                    raise fault(28811, f"unrecognized option to $unwind stage: {name:.80}")
        if not path:
            raise fault(28812, "no path specified to $unwind stage")
        if not path.startswith("$"):
            raise fault(28818, f"path option to $unwind stage should be prefixed with a '$': {path:.80}")
        self.path: Final = field_path(path[1:])
        self.reads = frozenset({self.path[0], *(self._index or ())[:1]})

    def keeps(self, names: frozenset[str]) -> bool:
        return self.path[0] not in names and (self._index is None or self._index[0] not in names)

    def take(self, row: Row) -> Iterable[Row]:
        document = row.document
        name = self.path[0]
        value = document.get(name, MISSING) if len(self.path) == 1 else inner_value(document, self.path)
        if type(value) is list and value:
            if len(value) <= _FEW and len(self.path) == 1 and self._index is None:
                return [Row(None, {**document, name: item}) for item in value]
            return (Row(document=self.with_item(document, item, number)) for number, item in enumerate(value))
        if type(value) is list or is_null(value):
            if not self.keeps_empty:
                return ()
        elif self._index is None:
            return (row,)
        return (Row(document=self.with_item(document, MISSING if type(value) is list else value, None)),)

    def with_item(self, document: Mapping[str, Any], item: Any, number: int | None) -> dict[str, Any]:
        """Return the document with an item in the place of the array, MISSING for none; number: its index, if any."""
        made = with_value(document, self.path, item)
        if self._index is None:
            return made
        return with_value(made, self._index, None if number is None else Int64(number))


def inner_value(document: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """Return the value at a path through documents alone, or MISSING."""
    value: Any = document
    for name in path:
        if not isinstance(value, Mapping):
            return MISSING
        value = value.get(name, MISSING)
    return value


def with_value(document: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Return a copy with the value at a path, MISSING for without one. What is no document on the way becomes one."""
    copy = dict(document)
    name = path[0]
    if len(path) > 1:
        inner = copy.get(name)
        if value is MISSING and not isinstance(inner, Mapping):
            return copy
        copy[name] = with_value(inner if isinstance(inner, Mapping) else {}, path[1:], value)
    elif value is MISSING:
        copy.pop(name, None)
    else:
        copy[name] = value
    return copy

"""Where an update changes a document: its paths checked, and one value at a path replaced without touching the input.

Containers on the way are copied only when something below them changes, so a document that comes back is the same
object where nothing changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from replset.bson import MAX_DEPTH, DateTime, Timestamp
from replset.errors import ErrorCode, ReplError
from replset.query.order import MISSING, Predicate, identical
from replset.query.paths import array_index
from replset.query.refusals import (
    BadValueError,
    ConflictingUpdateOperatorsError,
    DollarPrefixedFieldNameError,
    EmptyFieldNameError,
    PathNotViableError,
    show,
)
from replset.query.time_limit import check_time

MAX_PADDING = 1_500_000
ALL_ITEMS = "$[]"
POSITIONAL = "$"
_DBREF_NAMES = frozenset({"$ref", "$id", "$db"})


@dataclass(frozen=True, slots=True)
class Context:
    """What a change may depend on beside the value it meets. doc_id: for messages."""

    now: DateTime
    timestamp: Timestamp
    doc_id: object


Change = Callable[[object, Context], object]
"""The value that takes the place of the one given; MISSING stands for none, on both sides."""


def update_path(path: str) -> tuple[str, ...]:
    """The field names of a path in an update: `$`, `$[]` and `$[name]` among them, but not in front.

    Raises EmptyFieldName (56), DollarPrefixedFieldName (52), BadValue (2), Overflow (15) for more than 200 names.
    """
    if not path:
        raise EmptyFieldNameError("An empty update path is not valid.")
    parts = tuple(path.split("."))
    if len(parts) > MAX_DEPTH:
        raise ReplError(f"The update path has more than {MAX_DEPTH} field names", code=ErrorCode.OVERFLOW)
    if "" in parts:
        raise EmptyFieldNameError(f"The update path '{path}' contains an empty field name, which is not allowed.")
    for part in parts:
        if part.startswith("$") and not is_dynamic(part) and part not in _DBREF_NAMES:
            raise DollarPrefixedFieldNameError(
                f"The dollar ($) prefixed field '{part}' in '{path}' is not valid for storage."
            )
    if is_dynamic(parts[0]):
        kind = "positional (i.e. '$')" if parts[0] == POSITIONAL else "array filter identifier (i.e. '$[<id>]')"
        raise BadValueError(f"Cannot have {kind} element in the first position in path '{path}'")
    if parts.count(POSITIONAL) > 1:
        raise BadValueError(f"Too many positional (i.e. '$') elements found in path '{path}'")
    return parts


def is_dynamic(part: str) -> bool:
    return part == POSITIONAL or (part.startswith("$[") and part.endswith("]"))


class PathTree:
    """The paths of one update; refuses one that another one changes too, or leads through."""

    def __init__(self) -> None:
        self._root: dict[str, object] = {}

    def add(self, parts: tuple[str, ...]) -> None:
        """ConflictingUpdateOperators (40) names the path and where it meets the other one."""
        node = self._root
        for depth, part in enumerate(parts):
            last = depth == len(parts) - 1
            child = node.get(part)
            if child is None and not last:
                child = node[part] = {}
            if last and child is None:
                node[part] = MISSING  # a leaf: no path goes on from here
                return
            if last or not isinstance(child, dict):
                raise ConflictingUpdateOperatorsError(
                    f"Updating the path '{'.'.join(parts)}' would create a conflict at '{'.'.join(parts[: depth + 1])}'"
                )
            node = child


@dataclass(frozen=True, slots=True)
class Place:
    """One change of one update at `parts`, in which `$` is an index by now.

    creates: documents and nulls on the way are made; else a path that leads nowhere changes nothing.
    filters: what `$[name]` asks the items of an array.
    """

    parts: tuple[str, ...]
    change: Change
    creates: bool
    context: Context
    filters: Mapping[str, Predicate] = field(default_factory=dict)

    def rewritten(self, doc: dict[str, object]) -> dict[str, object]:
        """`doc` with the change made: a new document, or `doc` itself when nothing changed."""
        return self._in_document(doc, 0)

    def _in_document(self, doc: dict[str, object], depth: int) -> dict[str, object]:
        name = self.parts[depth]
        if is_dynamic(name):
            raise BadValueError(f"Cannot apply array updates to non-array element {self._shown(depth - 1, doc)}")
        old = doc.get(name, MISSING)
        new = self._value(old, depth)
        if new is old:
            return doc
        changed = dict(doc)
        if new is MISSING:
            del changed[name]
        else:
            changed[name] = new
        return changed

    def _value(self, old: object, depth: int) -> object:
        """What takes the place of `old`, which stands at parts[depth]; `old` itself when nothing changes."""
        if depth == len(self.parts) - 1:
            new = self.change(old, self.context)
            return old if old is not MISSING and new is not MISSING and identical(old, new) else new
        if old is MISSING:
            if is_dynamic(self.parts[depth + 1]):
                path = ".".join(self.parts[: depth + 1])
                raise BadValueError(f"The path '{path}' must exist in the document in order to apply array updates.")
            if not self.creates:
                return old
            return self._in_document({}, depth + 1) or MISSING
        if isinstance(old, dict):
            return self._in_document(old, depth + 1)
        if type(old) is list:
            return self._in_array(old, depth + 1)
        if is_dynamic(self.parts[depth + 1]):
            raise BadValueError(f"Cannot apply array updates to non-array element {self._shown(depth, old)}")
        return self._blocked(old, depth)

    def _in_array(self, items: list[object], depth: int) -> list[object]:
        name = self.parts[depth]
        if is_dynamic(name):
            holds = None if name == ALL_ITEMS else self.filters[name[2:-1]]
            new_items: list[object] = []
            for item in items:
                check_time()
                new_items.append(item if holds and not holds(item) else _null(self._value(item, depth)))
            return new_items if any(new is not old for new, old in zip(new_items, items, strict=True)) else items
        index = array_index(name)
        if index is None:
            self._blocked(items, depth - 1)
            return items
        old = items[index] if index < len(items) else MISSING
        new = self._value(old, depth)
        if new is old:
            return items
        missing = index + 1 - len(items)
        if missing > MAX_PADDING:
            raise BadValueError(f"can't backfill more than {MAX_PADDING} elements")
        changed = items + [None] * missing
        changed[index] = _null(new)
        return changed

    def _blocked(self, value: object, depth: int) -> object:
        """The path goes on from a value that has no such field: PathNotViable (28), or nothing to do."""
        if self.creates:
            raise PathNotViableError(
                f"Cannot create field '{self.parts[depth + 1]}' in element {self._shown(depth, value)}"
            )
        return value

    def _shown(self, depth: int, value: object) -> str:
        return f"{{{self.parts[depth]}: {show(value)}}}"


def _null(value: object) -> object:
    """An array keeps its places: what is removed from one becomes null."""
    return None if value is MISSING else value


def static_value(doc: Mapping[str, object], parts: tuple[str, ...], role: str) -> object:
    """The value at a path of $rename, MISSING when there is none; BadValueError where it stands in an array.

    role: `source` or `destination`, for the message.
    """
    value: object = doc
    for depth, part in enumerate(parts):
        if type(value) is list:
            raise BadValueError(
                f"The {role} field cannot be an array element, '{'.'.join(parts)}' in doc with "
                f"_id: {show(doc.get('_id'))} has an array field called '{parts[depth - 1]}'"
            )
        if not isinstance(value, Mapping):
            return MISSING
        value = value.get(part, MISSING)
    return value

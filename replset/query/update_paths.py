"""Checks the paths of an update, and replaces the value at a path without a change to the input document.

Documents and arrays on the path are copied only when something in them changes. So the result is the input object
itself when nothing changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from replset.bson import MAX_DEPTH, DateTime, Timestamp
from replset.errors import ErrorCode, ReplError
from replset.query.errors import (
    BadValueError,
    ConflictingUpdateOperatorsError,
    DollarPrefixedFieldNameError,
    EmptyFieldNameError,
    PathNotViableError,
    show,
)
from replset.query.order import MISSING, Predicate, identical
from replset.query.paths import DBREF_NAMES, array_index
from replset.query.time_limit import check_time

MAX_PADDING = 1_500_000
ALL_ITEMS = "$[]"
POSITIONAL = "$"


@dataclass(frozen=True, slots=True)
class UpdateContext:
    """The time of an update, and the `_id` of its document for messages."""

    now: DateTime
    timestamp: Timestamp
    doc_id: object


Change = Callable[[object, UpdateContext], object]
"""Returns the new value for an old one. MISSING means that there is none, on both sides."""


def update_path(path: str) -> tuple[str, ...]:
    """Return the field names of a path in an update. `$`, `$[]` and `$[name]` are allowed, but not as the first name.

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
        if part.startswith("$") and not is_dynamic(part) and part not in DBREF_NAMES:
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
    """The paths of one update. A path that equals another one, or is below or above it, is refused."""

    def __init__(self) -> None:
        self._root: dict[str, object] = {}

    def add(self, parts: tuple[str, ...]) -> None:
        """Add a path. ConflictingUpdateOperators (40) names the path and the part at which it meets another one."""
        node = self._root
        for depth, part in enumerate(parts):
            last = depth == len(parts) - 1
            child = node.get(part)
            if child is None and not last:
                child = node[part] = {}
            if last and child is None:
                node[part] = MISSING  # the end of a path: no other path goes on from here
                return
            if last or not isinstance(child, dict):
                raise ConflictingUpdateOperatorsError(
                    f"Updating the path '{'.'.join(parts)}' would create a conflict at '{'.'.join(parts[: depth + 1])}'"
                )
            node = child


def path_order(part: str) -> tuple[str, int, str]:
    """Return the sort key of a path's part. MongoDB applies an update in the order of its paths.

    Names are ordered as text, but those that begin with a digit by their length first, which is the order of numbers by
    value. A name with a leading zero is no number.
    """
    return ("1", len(part), part) if "1" <= part[0] <= "9" else (part[0], 0, part)


@dataclass(frozen=True, slots=True)
class PathUpdate:
    """One change of one update at the path `parts`, in which the positional `$` is an index already.

    creates: missing documents on the path are made; else a path without a value changes nothing.
    filters: the test of each `$[name]` for the items of an array.
    """

    parts: tuple[str, ...]
    change: Change
    creates: bool
    context: UpdateContext
    filters: Mapping[str, Predicate] = field(default_factory=dict)

    def apply(self, doc: dict[str, object]) -> dict[str, object]:
        """Return a new document with the change, or `doc` itself when nothing changes."""
        return self._in_document(doc, 0)

    def _in_document(self, doc: dict[str, object], depth: int) -> dict[str, object]:
        name = self.parts[depth]
        if is_dynamic(name):
            raise BadValueError(f"Cannot apply array updates to non-array element {self._describe(depth - 1, doc)}")
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
        """Return the new value for `old`, the value at parts[depth]; `old` itself when nothing changes."""
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
            raise BadValueError(f"Cannot apply array updates to non-array element {self._describe(depth, old)}")
        return self._not_viable(old, depth)

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
            self._not_viable(items, depth - 1)
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

    def _not_viable(self, value: object, depth: int) -> object:
        """Handle a path that goes on from a value without fields: PathNotViable (28), or no change."""
        if self.creates:
            raise PathNotViableError(
                f"Cannot create field '{self.parts[depth + 1]}' in element {self._describe(depth, value)}"
            )
        return value

    def _describe(self, depth: int, value: object) -> str:
        return f"{{{self.parts[depth]}: {show(value)}}}"


def _null(value: object) -> object:
    """Return null for MISSING. A value removed from an array becomes null, so that the others keep their index."""
    return None if value is MISSING else value


def static_value(doc: Mapping[str, object], parts: tuple[str, ...], role: str) -> object:
    """Return the value at a path of $rename, MISSING when there is none. BadValueError for a path through an array.

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

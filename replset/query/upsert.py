"""Makes the document that an upsert starts from: the fields that its filter requires to equal one value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from replset.bson import Regex
from replset.errors import ErrorCode, ReplError
from replset.query.conditions import are_for_values, condition_on, is_field, is_operators
from replset.query.errors import ConflictingUpdateOperatorsError
from replset.query.update_paths import PathTree


def upsert_base(query: Mapping[str, object]) -> dict[str, object]:
    """Return the document that an upsert's update is applied to when nothing matched.

    query: a filter that compile_filter accepted. Raises 54 when it requires two values for one path, 111 when it names
    only a part of `_id`.
    """
    base: dict[str, object] = {}
    tree = PathTree()
    for path, value in _equalities(query):
        if path.startswith("_id."):
            raise ReplError(
                f"field at '_id' must be exactly specified, field at sub-path '{path}'found",
                code=ErrorCode.NOT_EXACT_VALUE_FIELD,
            )
        parts = tuple(path.split("."))
        try:
            tree.add(parts)
        except ConflictingUpdateOperatorsError:
            raise ReplError(
                f"cannot infer query fields to set, path '{path}' is matched twice",
                code=ErrorCode.NOT_SINGLE_VALUE_FIELD,
            ) from None
        holder: dict[str, Any] = base
        for part in parts[:-1]:
            holder = holder.setdefault(part, {})
        holder[parts[-1]] = value
    return base


def _equalities(query: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in query.items():
        if type(value) is list and (name == "$and" or (name == "$or" and len(value) == 1)):
            for branch in value:
                yield from _equalities(branch)
        elif is_field(name):
            yield from _equality(name, condition_on(name, value))


def _equality(name: str, condition: object) -> Iterator[tuple[str, object]]:
    if not is_operators(condition):
        if type(condition) is not Regex:
            yield name, condition
    elif "$eq" in condition:
        yield name, condition["$eq"]
    else:
        every = condition.get("$all")
        if isinstance(every, list) and len(every) == 1 and type(every[0]) is not Regex:
            (only,) = every
            if not (isinstance(only, Mapping) and are_for_values(only)):
                yield name, only

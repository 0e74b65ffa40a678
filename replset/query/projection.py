"""Projections: which fields of a document are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from replset.bson import Decimal128
from replset.errors import ErrorCode
from replset.query.conditions import item_finder
from replset.query.match import compile_item_filter
from replset.query.order import is_number, is_true, type_name
from replset.query.paths import field_path
from replset.query.refusals import BadValueError, ProjectionError, not_built, show

Document = dict[str, object]
Projection = Callable[[Document], Document]


@dataclass(frozen=True, slots=True)
class _Shown:
    """A field that is named with 1 or true."""


@dataclass(frozen=True, slots=True)
class _Hidden:
    """A field that is named with 0 or false."""


@dataclass(frozen=True, slots=True)
class _Slice:
    """Part of an array: from `skip`, counted from the end where negative, `limit` items, or all the rest."""

    skip: int
    limit: int | None

    def of(self, value: object) -> object:
        if type(value) is not list:
            return value
        start = max(len(value) + self.skip, 0) if self.skip < 0 else self.skip
        return value[start:] if self.limit is None else value[start : start + self.limit]


@dataclass(frozen=True, slots=True)
class _FirstItem:
    """The first item of an array that matches."""

    position: Callable[[object], int | None]


_Leaf = _Shown | _Hidden | _Slice | _FirstItem
_Node = dict[str, Any]
"""By field name a leaf, or the node of the fields below."""
_SHOWN = _Shown()
_HIDDEN = _Hidden()


def compile_projection(spec: Mapping[str, object] | None) -> Projection | None:
    """A function from a document to what is shown of it, a new document; None where all is shown.

    Raises 31253 and 31254 where fields are both named to be shown and to be hidden, 31249 and 31250 where paths
    collide, BadValue and others for operands; expressions, `$meta` and the positional `$` are refused by name (40415).
    """
    if not spec:
        return None
    leaves = _leaves(spec, "")
    is_inclusion = _is_inclusion(leaves)
    tree: _Node = {}
    for path, leaf in leaves.items():
        if path == "_id" and isinstance(leaf, _Shown if not is_inclusion else _Hidden):
            continue
        _add(tree, path, leaf)
    if is_inclusion and "_id" not in tree and "_id" not in leaves:
        tree["_id"] = _SHOWN
    first_items = {name: leaf for name, leaf in tree.items() if isinstance(leaf, _FirstItem)}
    show_fields = _only if is_inclusion else _without
    if not first_items:
        return lambda doc: show_fields(doc, tree)
    return lambda doc: _with_first_items(show_fields(doc, tree), doc, first_items)


def _leaves(spec: Mapping[str, object], prefix: str) -> dict[str, _Leaf]:
    """By dotted path what is asked for each field, nested documents spelled out."""
    leaves: dict[str, _Leaf] = {}
    for name, value in spec.items():
        path = f"{prefix}{name}"
        if name.endswith(".$") or (prefix and name == "$"):
            raise not_built(f"the positional projection '{path}'")
        field_path(path)
        if isinstance(value, Mapping):
            if not value:
                raise ProjectionError(
                    f"An empty sub-projection is not a valid value. Found empty object at path {path}",
                    code=ErrorCode.EMPTY_SUB_PROJECTION,
                )
            first = next(iter(value))
            leaves.update(
                {path: _operator(path, first, value)} if first.startswith("$") else _leaves(value, f"{path}.")
            )
        elif is_number(value) or type(value) is bool:
            leaves[path] = _SHOWN if is_true(value) else _HIDDEN
        else:
            raise not_built(f"the expression in the projection of '{path}' (a {type_name(value)})")
    return leaves


def _operator(path: str, name: str, value: Mapping[str, object]) -> _Leaf:
    if name not in ("$slice", "$elemMatch"):
        raise not_built(f"{name} in a projection")
    if len(value) > 1:
        raise BadValueError(f"an operator stands alone in a projection: {path}: {show(value)}")
    if name == "$slice":
        return _slice(value[name])
    if not isinstance(value[name], Mapping):
        raise ProjectionError(
            f"elemMatch: Invalid argument, object required, but got {type_name(value[name])}",
            code=ErrorCode.ELEM_MATCH_TYPE,
        )
    if "." in path:
        raise ProjectionError("Cannot use $elemMatch projection on a nested field.", code=ErrorCode.ELEM_MATCH_NESTED)
    return _FirstItem(item_finder(value[name], path, compile_item_filter))


def _slice(operand: object) -> _Slice:
    if type(operand) is list:
        if len(operand) != 2:
            raise ProjectionError(
                "$slice array argument should be of form [skip, limit]", code=ErrorCode.SLICE_ARRAY_LENGTH
            )
        skip, limit = (_whole(number) for number in operand)
        if limit <= 0:
            raise ProjectionError(
                f"$slice limit must be positive, got {limit}", code=ErrorCode.SLICE_LIMIT_NOT_POSITIVE
            )
        return _Slice(skip, limit)
    count = _whole(operand)
    return _Slice(0, count) if count >= 0 else _Slice(count, None)


def _whole(number: Any) -> int:
    """A number cut to a whole one, held to 32 bits: no array is longer."""
    if not is_number(number):
        raise ProjectionError("$slice only supports numbers and [skip, limit] arrays", code=ErrorCode.SLICE_TYPE)
    decimal = number.to_decimal() if type(number) is Decimal128 else number
    if decimal != decimal:
        return 0
    bound = 1 << 31
    return int(max(-bound, min(bound - 1, decimal)))


def _is_inclusion(leaves: dict[str, _Leaf]) -> bool:
    inclusion: bool | None = None
    for path, leaf in leaves.items():
        if path == "_id" or not isinstance(leaf, _Shown | _Hidden):
            continue
        shown = isinstance(leaf, _Shown)
        if inclusion is True and not shown:
            raise ProjectionError(
                f"Cannot do exclusion on field {path} in inclusion projection",
                code=ErrorCode.PROJECTION_EXCLUDES_IN_INCLUSION,
            )
        if inclusion is False and shown:
            raise ProjectionError(
                f"Cannot do inclusion on field {path} in exclusion projection",
                code=ErrorCode.PROJECTION_INCLUDES_IN_EXCLUSION,
            )
        inclusion = shown
    if inclusion is None:
        inclusion = isinstance(leaves.get("_id"), _Shown) or any(
            isinstance(leaf, _FirstItem) for leaf in leaves.values()
        )
    return inclusion


def _add(tree: _Node, path: str, leaf: _Leaf) -> None:
    parts = path.split(".")
    node = tree
    for depth, part in enumerate(parts[:-1]):
        child = node.setdefault(part, {})
        if not isinstance(child, dict):
            rest = ".".join(parts[depth + 1 :])
            raise ProjectionError(
                f"Path collision at {path} remaining portion {rest}", code=ErrorCode.PROJECTION_PATH_COLLISION_BELOW
            )
        node = child
    if parts[-1] in node:
        raise ProjectionError(f"Path collision at {path}", code=ErrorCode.PROJECTION_PATH_COLLISION)
    node[parts[-1]] = leaf


def _only(doc: Document, node: _Node) -> Document:
    result: Document = {}
    for name, value in doc.items():
        leaf = node.get(name)
        if isinstance(leaf, _Shown):
            result[name] = value
        elif isinstance(leaf, _Slice):
            result[name] = leaf.of(value)
        elif isinstance(leaf, dict):
            if isinstance(value, dict):
                result[name] = _only(value, leaf)
            elif type(value) is list:
                result[name] = _only_in_items(value, leaf)
    return result


def _only_in_items(items: list[object], node: _Node) -> list[object]:
    """Documents and arrays among the items; what has no fields is left out."""
    return [
        _only(item, node) if isinstance(item, dict) else _only_in_items(item, node)
        for item in items
        if isinstance(item, dict | list)
    ]


def _without(doc: Document, node: _Node) -> Document:
    result: Document = {}
    for name, value in doc.items():
        leaf = node.get(name)
        if leaf is None:
            result[name] = value
        elif isinstance(leaf, _Slice):
            result[name] = leaf.of(value)
        elif isinstance(leaf, dict):
            result[name] = _without_in(value, leaf)
    return result


def _without_in(value: object, node: _Node) -> object:
    if isinstance(value, dict):
        return _without(value, node)
    return [_without_in(item, node) for item in value] if type(value) is list else value


def _with_first_items(result: Document, doc: Document, first_items: Mapping[str, _FirstItem]) -> Document:
    """The fields with $elemMatch come behind all others; one without a matching item is left out."""
    for name, leaf in first_items.items():
        value: Any = doc.get(name)
        position = leaf.position(value)
        if position is not None:
            result[name] = [value[position]]
    return result

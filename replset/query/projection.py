"""Compiles projections, which select the fields of a document, and those of find and findAndModify with `$`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from replset.bson import Decimal128
from replset.errors import ErrorCode, ReplError
from replset.query.collation import Fold
from replset.query.conditions import item_finder
from replset.query.errors import BadValueError, ProjectionError, not_built, show
from replset.query.expressions import Expression, compile_expression, fault, top_fields
from replset.query.match import NO_VARIABLES, Matcher, item_filter_by
from replset.query.order import MISSING, is_number, is_true, type_name
from replset.query.paths import field_path
from replset.query.sizes import size_of
from replset.query.time_limit import check_time, count_part

Document = dict[str, object]


@dataclass(frozen=True, slots=True)
class Projection:
    """Makes the projected document. fields: the top-level fields that it shows or reads, None for all."""

    make: Callable[[Document, Mapping[str, Any]], Document]
    fields: frozenset[str] | None = None

    def __call__(self, doc: Document, variables: Mapping[str, Any] = NO_VARIABLES) -> Document:
        """variables: those of the names that it was compiled with."""
        return self.make(doc, variables)


@dataclass(frozen=True, slots=True)
class _Included:
    """A field that is named with 1 or true."""


@dataclass(frozen=True, slots=True)
class _Excluded:
    """A field that is named with 0 or false."""


@dataclass(frozen=True, slots=True)
class _Slice:
    """A $slice: `limit` items of an array, or all, from `skip` on; a negative `skip` counts from the end."""

    skip: int
    limit: int | None

    def of(self, value: object) -> object:
        if type(value) is not list:
            return value
        start = max(len(value) + self.skip, 0) if self.skip < 0 else self.skip
        return value[start:] if self.limit is None else value[start : start + self.limit]


@dataclass(frozen=True, slots=True)
class _ElemMatch:
    """An $elemMatch: the first item of an array that matches."""

    position: Callable[[object], int | None]


_Leaf = _Included | _Excluded | _Slice | _ElemMatch | Expression


class _Node(dict[str, Any]):
    """Maps a field name to a leaf, or to the node of the fields below it."""

    computes = False
    """Whether there is a computed field below it."""


_LARGE: Final = frozenset({dict, list})
_MANY: Final = 1000
"""Values that a stored document has beside each other without being larger than an expression may make it."""
_INCLUDED = _Included()
_EXCLUDED = _Excluded()


def compile_projection(
    spec: Mapping[str, object] | None,
    names: Iterable[str] = (),
    *,
    is_find: bool = True,
    fold: Fold | None = None,
) -> Projection | None:
    """Return a function that makes the projected document, None when the projection shows everything.

    names: the variables that expressions may use. is_find: with $elemMatch and find's $slice; otherwise $slice is an
    expression. fold: of the collation by which it compares values.
    Raises 31253 and 31254 when some fields are included and others excluded, 31249 and 31250 when paths collide,
    BadValue and others for operands. `$meta` and the positional `$` are refused by name (238).
    """
    if not spec:
        return None
    leaves = _leaves(spec, "", frozenset(names), is_find, fold)
    is_inclusion = _is_inclusion(leaves)
    tree: _Node = _Node()
    for path, leaf in leaves.items():
        if path == "_id" and isinstance(leaf, _Included if not is_inclusion else _Excluded):
            continue
        _add(tree, path, leaf)
    if is_inclusion and "_id" not in tree and "_id" not in leaves:
        tree["_id"] = _INCLUDED
    elem_matches = {name: leaf for name, leaf in tree.items() if isinstance(leaf, _ElemMatch)}
    select = _include if is_inclusion else _exclude
    computed = _computed(tree)
    light = [(name, leaf.run) for name, leaf in computed.items() if isinstance(leaf, Expression) and leaf.is_light]
    is_light = len(light) == len(computed)
    shown = {name for name, leaf in tree.items() if isinstance(leaf, _Included)}
    is_flat = is_inclusion and len(shown) + sum(isinstance(leaf, Expression) for leaf in tree.values()) == len(tree)

    def project(doc: Document, variables: Mapping[str, Any]) -> Document:
        result = {name: doc[name] for name in doc if name in shown} if is_flat else select(doc, tree)
        if computed:
            if is_light:
                result.update([(name, run(doc, variables)) for name, run in light])
            else:
                _compute(result, computed, doc, variables)
            if not is_light or not _LARGE.isdisjoint(map(type, result.values())) or len(result) > _MANY:
                size_of(result)
        return _add_elem_matches(result, doc, elem_matches) if elem_matches else result

    read = [leaf.paths for leaf in leaves.values() if isinstance(leaf, Expression)]
    return Projection(project, top_fields({"_id", *leaves}.union(*read)) if is_inclusion else None)


def is_computed(spec: Mapping[str, object]) -> bool:
    """Whether a projection computes fields, beside showing or hiding them."""
    return any(
        is_computed(value) if isinstance(value, Mapping) else not (is_number(value) or type(value) is bool)
        for value in spec.values()
    ) or any(name.startswith("$") for name in spec)


def compile_added_fields(
    spec: Mapping[str, object], names: Iterable[str] = (), fold: Fold | None = None
) -> tuple[Projection, frozenset[str]]:
    """Return the function that adds computed fields to a document, and the paths that it reads.

    names, fold: as in compile_projection.
    Raises 40176, 40177, 40180, 40181 and 40183 for the form, and what expressions raise.
    """
    leaves: dict[str, Expression] = {}
    _add_expressions(leaves, spec, "", frozenset(names), fold)
    tree: _Node = _Node()
    for path, leaf in leaves.items():
        try:
            _add(tree, path, leaf)
        except ProjectionError:
            raise _added_fault(40176, f"specification contains two conflicting paths. One is '{path:.80}'") from None
    if not tree:
        raise _added_fault(40177, "specification must have at least one field")

    def add(doc: Document, variables: Mapping[str, Any]) -> Document:
        result = dict(doc)
        _compute(result, tree, doc, variables)
        size_of(result)
        return result

    return Projection(add), frozenset().union(*(leaf.paths for leaf in leaves.values()))


def _added_fault(code: int, message: str) -> ReplError:
    return fault(code, f"Invalid $addFields :: caused by :: {message}")


def _add_expressions(
    leaves: dict[str, Expression], spec: Mapping[str, object], prefix: str, names: frozenset[str], fold: Fold | None
) -> None:
    for name, value in spec.items():
        path = f"{prefix}{name}"
        field_path(path)
        if prefix and "." in name:
            raise _added_fault(40183, f"cannot use dotted field name '{name:.80}' in a sub object")
        if not isinstance(value, Mapping) or next(iter(value), "").startswith("$"):
            if isinstance(value, Mapping) and len(value) != 1:
                raise _added_fault(
                    40181, f"an expression specification must contain exactly one field. Found {len(value)} in {path}"
                )
            leaves[path] = compile_expression(value, names, fold)
        elif not value:
            raise _added_fault(40180, f"an empty object is not a valid value. Found empty object at path {path}")
        else:
            _add_expressions(leaves, value, f"{path}.", names, fold)


def _leaves(
    spec: Mapping[str, object], prefix: str, names: frozenset[str], is_find: bool, fold: Fold | None
) -> dict[str, _Leaf]:
    """Return the leaf of each dotted path. Nested documents become dotted paths."""
    leaves: dict[str, _Leaf] = {}
    for name, value in spec.items():
        count_part()
        path = f"{prefix}{name}"
        if name.endswith(".$") or (prefix and name == "$"):
            if not is_find:
                raise fault(31324, "Cannot use positional projection in aggregation projection")
            raise not_built(f"the positional projection '{path}'")
        field_path(path)
        if isinstance(value, Mapping):
            if not value:
                raise ProjectionError(
                    f"An empty sub-projection is not a valid value. Found empty object at path {path}",
                    code=ErrorCode.EMPTY_SUB_PROJECTION,
                )
            first = next(iter(value))
            if not first.startswith("$"):
                leaves.update(_leaves(value, f"{path}.", names, is_find, fold))
            elif is_find and first in ("$slice", "$elemMatch"):
                leaves[path] = _find_operator(path, first, value, fold)
            else:
                leaves[path] = compile_expression(value, names, fold)
        elif is_number(value) or type(value) is bool:
            leaves[path] = _INCLUDED if is_true(value) else _EXCLUDED
        else:
            leaves[path] = compile_expression(value, names, fold)
    return leaves


def _find_operator(path: str, name: str, value: Mapping[str, object], fold: Fold | None) -> _Leaf:
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
    return _ElemMatch(item_finder(value[name], path, item_filter_by(fold), fold))


def _slice(operand: object) -> _Slice:
    if type(operand) is list:
        if len(operand) != 2:
            raise ProjectionError(
                "$slice array argument should be of form [skip, limit]", code=ErrorCode.SLICE_ARRAY_LENGTH
            )
        skip, limit = (_to_int32(number) for number in operand)
        if limit <= 0:
            raise ProjectionError(
                f"$slice limit must be positive, got {limit}", code=ErrorCode.SLICE_LIMIT_NOT_POSITIVE
            )
        return _Slice(skip, limit)
    count = _to_int32(operand)
    return _Slice(0, count) if count >= 0 else _Slice(count, None)


def _to_int32(number: Any) -> int:
    """Return a number without its fraction, limited to 32 bits, because no array is longer."""
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
        if not isinstance(leaf, _Included | _Excluded | Expression) or (
            path == "_id" and not isinstance(leaf, Expression)
        ):
            continue
        shown = not isinstance(leaf, _Excluded)
        if inclusion is True and not shown:
            raise ProjectionError(
                f"Cannot do exclusion on field {path} in inclusion projection",
                code=ErrorCode.PROJECTION_EXCLUDES_IN_INCLUSION,
            )
        if inclusion is False and isinstance(leaf, Expression):
            raise fault(31252, "Cannot use expression other than $meta in exclusion projection")
        if inclusion is False and shown:
            raise ProjectionError(
                f"Cannot do inclusion on field {path} in exclusion projection",
                code=ErrorCode.PROJECTION_INCLUDES_IN_EXCLUSION,
            )
        inclusion = shown
    if inclusion is None:
        inclusion = isinstance(leaves.get("_id"), _Included) or any(
            isinstance(leaf, _ElemMatch) for leaf in leaves.values()
        )
    return inclusion


def _add(tree: _Node, path: str, leaf: _Leaf) -> None:
    parts = path.split(".")
    node = tree
    for depth, part in enumerate(parts[:-1]):
        child = node.setdefault(part, _Node())
        if not isinstance(child, _Node):
            rest = ".".join(parts[depth + 1 :])
            raise ProjectionError(
                f"Path collision at {path} remaining portion {rest}", code=ErrorCode.PROJECTION_PATH_COLLISION_BELOW
            )
        node = child
        node.computes = node.computes or isinstance(leaf, Expression)
    if parts[-1] in node:
        raise ProjectionError(f"Path collision at {path}", code=ErrorCode.PROJECTION_PATH_COLLISION)
    node[parts[-1]] = leaf


def _include(doc: Document, node: _Node) -> Document:
    result: Document = {}
    for name, value in doc.items():
        leaf = node.get(name)
        if isinstance(leaf, _Included):
            result[name] = value
        elif isinstance(leaf, _Slice):
            result[name] = leaf.of(value)
        elif isinstance(leaf, _Node):
            if isinstance(value, dict):
                result[name] = _include(value, leaf)
            elif type(value) is list:
                result[name] = _include_in_items(value, leaf)
    return result


def _include_in_items(items: list[object], node: _Node) -> list[object]:
    """Return the projected documents and arrays among the items.

    Items without fields are left out, unless a computed field makes documents of them.
    """
    found: list[object] = []
    for item in items:
        check_time()
        if isinstance(item, dict):
            found.append(_include(item, node))
        elif type(item) is list:
            found.append(_include_in_items(item, node))
        elif node.computes:
            found.append(None)
    return found


def _exclude(doc: Document, node: _Node) -> Document:
    result: Document = {}
    for name, value in doc.items():
        leaf = node.get(name)
        if leaf is None:
            result[name] = value
        elif isinstance(leaf, _Slice):
            result[name] = leaf.of(value)
        elif isinstance(leaf, _Node):
            result[name] = _exclude_in(value, leaf)
    return result


def _exclude_in(value: object, node: _Node) -> object:
    check_time()
    if isinstance(value, dict):
        return _exclude(value, node)
    return [_exclude_in(item, node) for item in value] if type(value) is list else value


def _computed(node: _Node) -> _Node:
    """Return what is left of the tree when only computed fields are in it."""
    computed: _Node = _Node()
    for name, leaf in node.items():
        if isinstance(leaf, Expression):
            computed[name] = leaf
        elif isinstance(leaf, _Node) and (inner := _computed(leaf)):
            computed[name] = inner
    return computed


def _compute(result: Document, node: _Node, root: Document, variables: Mapping[str, Any]) -> None:
    """Set the computed fields of a document of our own. root: the whole document before."""
    for name, leaf in node.items():
        if isinstance(leaf, Expression):
            value = (leaf.run if leaf.is_light else leaf.evaluate)(root, variables)
            if value is not MISSING:
                result[name] = value
            else:
                result.pop(name, None)
        else:
            result[name] = _compute_in(result.get(name), leaf, root, variables)


def _compute_in(value: object, node: _Node, root: Document, variables: Mapping[str, Any]) -> object:
    """Return the value with computed fields in it: in each item of an array, and a document in place of others."""
    check_time()
    if type(value) is list:
        return [_compute_in(item, node, root, variables) for item in value]
    inner = dict(value) if isinstance(value, dict) else {}
    _compute(inner, node, root, variables)
    return inner


def _add_elem_matches(result: Document, doc: Document, elem_matches: Mapping[str, _ElemMatch]) -> Document:
    """Add the fields with $elemMatch after all others. A field without a matching item is left out."""
    for name, leaf in elem_matches.items():
        value: Any = doc.get(name)
        position = leaf.position(value)
        if position is not None:
            result[name] = [value[position]]
    return result


def compile_find_projection(
    spec: Mapping[str, object],
    variables: Mapping[str, Any] = NO_VARIABLES,
    matcher: Matcher | None = None,
    fold: Fold | None = None,
) -> Projection | None:
    """Return a function that makes the projected document, None when the projection shows everything.

    variables: of its expressions. matcher: of the filter, by which the item for the positional `$` is found. fold: as
    in compile_projection.
    Raises what compile_projection raises, 31276, 31394 and 31395 for the positional `$`.
    """
    path = _positional_path(spec)
    if path is not None:
        spec = {name.removesuffix(".$"): value for name, value in spec.items()}
    projection = compile_projection(spec, variables, fold=fold)
    if projection is None:
        return None
    project = projection.make
    if path is None:
        return Projection(lambda doc, _: project(doc, variables), projection.fields)
    parts = path.split(".")

    def shown(doc: Document, _variables: Mapping[str, Any]) -> Document:
        position = None if matcher is None else matcher.position(doc)
        if position is None:
            raise fault(51246, "Executor error: positional operator '.$' couldn't find a matching element in the array")
        return project(_with_item(doc, parts, position), variables)

    return Projection(shown)


def _positional_path(spec: Mapping[str, object]) -> str | None:
    """Return the path in front of `.$`, None if there is no such path."""
    found: str | None = None
    for name, value in spec.items():
        if ".$." in name or name.startswith("$."):
            raise fault(31394, f"the positional operator may only be at the end of a path, not as in '{name:.80}'")
        if not name.endswith(".$"):
            continue
        if found is not None:
            raise fault(31276, "Cannot specify more than one positional projection per query.")
        if isinstance(value, Mapping | str | list):
            raise fault(31271, f"the positional projection '{name:.80}' cannot have an expression or literal")
        if not is_true(value):
            raise fault(31395, f"the positional projection '{name:.80}' cannot exclude")
        found = name[:-2]
    if found is not None and any(
        isinstance(value, Mapping) and next(iter(value), "") == "$elemMatch" for value in spec.values()
    ):
        raise fault(31255, "Cannot specify positional operator and $elemMatch.")
    return found


def _with_item(doc: Document, parts: list[str], position: int) -> Document:
    """Return the document with one item alone in the first array on the path."""
    name, *rest = parts
    value: Any = doc.get(name)
    if type(value) is list:
        if position >= len(value):
            raise fault(51247, "Executor error: the positional operator '.$' element mismatch")
        return {**doc, name: [value[position]]}
    if isinstance(value, dict) and rest:
        return {**doc, name: _with_item(value, rest, position)}
    return doc

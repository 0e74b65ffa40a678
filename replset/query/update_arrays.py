"""Compiles the update operators on arrays: $push, $addToSet, $pull, $pullAll, $pop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from replset.bson import Regex
from replset.query.collation import Fold, key_by
from replset.query.conditions import are_for_values, equals_by, literal, value_predicate
from replset.query.errors import BadValueError, FailedToParseError, TypeMismatchError, show
from replset.query.match import compile_item_filter, compile_value_filter
from replset.query.numbers import whole_number
from replset.query.order import MISSING, Predicate, equals, is_number, type_name
from replset.query.sort import ItemKey, compile_item_sort, sort_by_key
from replset.query.time_limit import check_time
from replset.query.update_operators import UpdateOperation, last_name
from replset.query.update_paths import UpdateContext

_PUSH_CLAUSES = frozenset({"$each", "$position", "$slice", "$sort"})


def push(path: str, operand: object, fold: Fold | None) -> UpdateOperation:
    """Insert items at $position, then sort the array by $sort, then cut it by $slice, in MongoDB's order.

    fold: of the collation, here and below.
    """
    if not (isinstance(operand, Mapping) and "$each" in operand):
        return _push_at(path, [operand], None, None, None)
    for name in operand:
        if name not in _PUSH_CLAUSES:
            raise BadValueError(f"Unrecognized clause in $push: {name}")
    items = operand["$each"]
    if type(items) is not list:
        raise BadValueError(f"The argument to $each in $push must be an array but it was of type: {type_name(items)}")
    sort_key = compile_item_sort(operand["$sort"], fold) if "$sort" in operand else None
    return _push_at(path, items, _push_number(operand, "$position"), sort_key, _push_number(operand, "$slice"))


def _push_at(
    path: str, items: Sequence[object], position: int | None, sort_key: ItemKey | None, keep: int | None
) -> UpdateOperation:
    def change(old: object, context: UpdateContext) -> object:
        result = [] if old is MISSING else list(_array(old, path, context))
        at = len(result) if position is None else position
        result[at:at] = items  # as in Python: beyond the end means the end, and a negative number counts from the end
        if sort_key is not None:
            result = sort_by_key([(sort_key(item), item) for item in result])
        if keep is not None:
            result = result[:keep] if keep >= 0 else result[keep:]
        return result

    return UpdateOperation(change)


def _push_number(clauses: Mapping[str, object], name: str) -> int | None:
    if name not in clauses:
        return None
    number = whole_number(clauses[name])
    if number is None:
        kind = type_name(clauses[name])
        raise BadValueError(f"The value for {name} must be an integer value but was given type: {kind}")
    return number


def add_to_set(path: str, operand: object, fold: Fold | None) -> UpdateOperation:
    items: list[object] = [operand]
    if isinstance(operand, Mapping) and next(iter(operand), "") == "$each":
        each = operand["$each"]
        if type(each) is not list:
            raise TypeMismatchError(
                f"The argument to $each in $addToSet must be an array but it was of type {type_name(each)}"
            )
        if len(operand) > 1:
            raise BadValueError(f"Found unexpected fields after $each in $addToSet: {show(operand)}")
        items = each
    key_of = key_by(fold)

    def change(old: object, context: UpdateContext) -> object:
        if old is not MISSING and type(old) is not list:
            raise BadValueError(
                f"Cannot apply $addToSet to non-array field. Field named '{last_name(path)}' has non-array type "
                f"{type_name(old)}"
            )
        result: list[object] = [] if old is MISSING else list(old)
        keys = set()
        for item in result:
            check_time()
            keys.add(key_of(item))
        for item in items:
            key = key_of(item)
            if key not in keys:
                keys.add(key)
                result.append(item)
        return result

    return UpdateOperation(change)


def pull(path: str, operand: object, fold: Fold | None) -> UpdateOperation:
    """Remove the items that equal a value, match operators, or match a filter over documents."""
    if isinstance(operand, Mapping):
        if are_for_values(operand):
            return _removal(compile_value_filter(operand, path, fold))
        holds = compile_item_filter(operand, fold)
        return _removal(lambda item: isinstance(item, Mapping) and holds(item))
    return _removal(value_predicate(literal(operand)) if type(operand) is Regex else equals_by(operand, fold))


def pull_all(path: str, operand: object, fold: Fold | None) -> UpdateOperation:
    if type(operand) is not list:
        raise BadValueError(f"$pullAll requires an array argument but was given a {type_name(operand)}")
    key_of = key_by(fold)
    keys = set(map(key_of, operand))
    return _removal(lambda item: key_of(item) in keys)


def _removal(is_pulled: Predicate) -> UpdateOperation:
    def change(old: object, context: UpdateContext) -> object:
        if old is MISSING:
            return MISSING
        if type(old) is not list:
            raise BadValueError("Cannot apply $pull to a non-array value")
        kept: list[object] = []
        for item in old:
            check_time()
            if not is_pulled(item):
                kept.append(item)
        return kept

    return UpdateOperation(change, creates=False)


def pop(path: str, operand: object) -> UpdateOperation:
    """Remove the last item with 1, the first with -1."""
    if not is_number(operand):
        raise FailedToParseError(f"Expected a number in: {path}: {show(operand)}")
    if not (equals(1)(operand) or equals(-1)(operand)):
        raise FailedToParseError(f"$pop expects 1 or -1, found: {show(operand)}")
    last = equals(1)(operand)

    def change(old: object, context: UpdateContext) -> object:
        if old is MISSING:
            return MISSING
        if type(old) is not list:
            raise TypeMismatchError(f"Path '{path}' contains an element of non-array type '{type_name(old)}'")
        return old[:-1] if last else old[1:]

    return UpdateOperation(change, creates=False)


def _array(value: object, path: str, context: UpdateContext) -> list[object]:
    if type(value) is not list:
        raise BadValueError(
            f"The field '{path}' must be an array but is of type {type_name(value)} in document "
            f"{{_id: {show(context.doc_id)}}}"
        )
    return value

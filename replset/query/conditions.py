"""Parses the operators below a field name of a filter into conditions.

A condition is tested on a path in a document, where arrays are searched, or on one value alone: an item of an array in
$elemMatch, $all and $pull. match.py does the first, `value_predicate` the second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeGuard

from replset.bson import Decimal128, Regex, Undefined
from replset.bson.types import TYPE_BYTES, TYPE_NAMES, type_byte
from replset.errors import ErrorCode, ReplError
from replset.query import regex
from replset.query.bits import bits_predicate
from replset.query.collation import Fold, key_by
from replset.query.errors import BadValueError, FailedToParseError, TypeMismatchError, not_built, show
from replset.query.numbers import whole_number
from replset.query.order import (
    MISSING,
    Predicate,
    compares,
    equals,
    is_null,
    is_number,
    is_true,
)
from replset.query.paths import DBREF_NAMES
from replset.query.time_limit import check_time, count_part

NOT_BUILT = frozenset(
    {
        *("$where", "$text", "$near", "$nearSphere", "$geoWithin", "$geoIntersects", "$within", "$geoNear"),
        *("$maxDistance", "$minDistance"),
    }
)
_NUMBER_TYPES = frozenset(TYPE_BYTES[name] for name in ("double", "int", "long", "decimal"))
_MIN_KEY_NUMBER, _MIN_KEY_BYTE = -1, TYPE_BYTES["minKey"]
"""A number after $type is a type byte, except that MinKey is -1, the signed form of its byte."""
_WHOLE_DBREF = frozenset({"$ref", "$id"})
_BESIDE_FIELDS = DBREF_NAMES.union(
    ("$and", "$or", "$nor", "$comment", "$expr", "$jsonSchema", "$sampleRate", "$alwaysTrue", "$alwaysFalse"),
    ("$where", "$text"),
)
"""Names with a dollar that stand beside field names in a filter, not below one."""


@dataclass(frozen=True, slots=True)
class ValueCondition:
    """A test of one value. into_array: an array at the end of the path is tested item by item too."""

    predicate: Predicate
    into_array: bool = True


@dataclass(frozen=True, slots=True)
class ItemCondition:
    """A test of a whole array that holds when one item matches. position: returns the index of that item."""

    position: Callable[[object], int | None]


@dataclass(frozen=True, slots=True)
class ConditionGroup:
    """All of `conditions` hold or, if negated, at least one does not."""

    conditions: tuple[Condition, ...]
    negated: bool = False


Condition = ValueCondition | ItemCondition | ConditionGroup
ItemFilter = Callable[[Mapping[str, object]], Callable[[object], bool]]
"""Compiles the filter of an $elemMatch over documents. It is match.py's function, which imports this file."""


def is_operators(value: object) -> TypeGuard[Mapping[str, object]]:
    """Return True for a document of operators: its first name begins with a dollar, and it is not a DBRef.

    A DBRef has a $ref and an $id.
    """
    return isinstance(value, Mapping) and next(iter(value), "").startswith("$") and not value.keys() >= _WHOLE_DBREF


def are_for_values(condition: Mapping[str, object]) -> bool:
    """Return True if the condition of $elemMatch, $pull or $all has operators for values, False for a filter.

    `{$gt: 5}` has operators; `{a: 1}`, `{$or: [...]}` and what has a name of a DBRef, `{$id: 1}`, are filters over
    documents.
    """
    first = next(iter(condition), "")
    return first.startswith("$") and first not in _BESIDE_FIELDS and DBREF_NAMES.isdisjoint(condition)


def is_field(name: str) -> bool:
    """Return True for a field name in a filter, False for an operator. The names of a DBRef are field names."""
    return not name.startswith("$") or name in DBREF_NAMES


def condition_on(name: str, value: object) -> object:
    """Return the condition of `{name: value}`. Behind a name of a DBRef it is always a value, as in MongoDB."""
    return {"$eq": value} if name in DBREF_NAMES else value


def literal(value: object, name: str = "$eq", fold: Fold | None = None) -> Condition:
    """Return the condition of `{field: value}`. A regular expression matches the strings that contain it."""
    count_part()
    if type(value) is Regex:
        return ValueCondition(regex.regex_predicate(value.pattern, value.options))
    return ValueCondition(_equals(value, name, fold))


def _equals(operand: object, name: str, fold: Fold | None) -> Predicate:
    return equals_by(_comparable(operand, name), fold)


def equals_by(operand: object, fold: Fold | None) -> Predicate:
    """Return the test for equality with `operand`. fold: of the collation."""
    return equals(operand) if fold is None else _folded(equals(fold(operand)), fold)


def _folded(predicate: Predicate, fold: Fold) -> Predicate:
    return lambda value: predicate(fold(value))


def parse(
    operators: Mapping[str, object], path: str, item_filter: ItemFilter, fold: Fold | None = None
) -> list[Condition]:
    """Return the conditions of operators such as `{$gt: 5, $lt: 9}`. BadValueError for a wrong operator or operand.

    fold: of the collation that strings are compared by.
    """
    conditions: list[Condition] = []
    for name, operand in operators.items():
        count_part()
        match name:
            case "$eq":
                conditions.append(ValueCondition(_equals(operand, name, fold)))
            case "$ne":
                if type(operand) is Regex:
                    raise BadValueError("Can't have regex as arg to $ne.")
                conditions.append(ConditionGroup((ValueCondition(_equals(operand, name, fold)),), negated=True))
            case "$gt" | "$gte" | "$lt" | "$lte":
                if type(operand) is Regex:
                    raise BadValueError(f"Can't have RegEx as arg to predicate over field '{path}'.")
                operand = _comparable(operand, name)
                compared = compares(name, operand) if fold is None else _folded(compares(name, fold(operand)), fold)
                conditions.append(ValueCondition(compared))
            case "$in":
                conditions.append(ValueCondition(_in(operand, name, fold)))
            case "$nin":
                conditions.append(ConditionGroup((ValueCondition(_in(operand, name, fold)),), negated=True))
            case "$not":
                conditions.append(_not(operand, path, item_filter, fold))
            case "$exists":
                present = ValueCondition(lambda value: value is not MISSING)
                conditions.append(present if is_true(operand) else ConditionGroup((present,), negated=True))
            case "$type":
                conditions.append(ValueCondition(type_predicate(operand)))
            case "$size":
                conditions.append(ValueCondition(_size(operand), into_array=False))
            case "$all":
                conditions.append(_all(operand, path, item_filter, fold))
            case "$elemMatch":
                conditions.append(_elem_match(operand, path, item_filter, fold))
            case "$mod":
                conditions.append(ValueCondition(_mod(operand)))
            case "$bitsAllSet" | "$bitsAllClear" | "$bitsAnySet" | "$bitsAnyClear":
                conditions.append(ValueCondition(bits_predicate(name, operand)))
            case "$regex":
                conditions.append(ValueCondition(_regex(operand, operators.get("$options", MISSING))))
            case "$options":
                if "$regex" not in operators:
                    raise BadValueError("$options needs a $regex")
            case "$comment":
                pass
            case _ if name in NOT_BUILT:
                raise not_built(name)
            case _:
                raise BadValueError(f"unknown operator: {name}")
    return conditions


def value_predicate(condition: Condition) -> Predicate:
    """Return the test of one value alone, without a search in arrays."""
    match condition:
        case ValueCondition(predicate=predicate):
            return predicate
        case ItemCondition(position=position):
            return lambda value: position(value) is not None
        case ConditionGroup(conditions=conditions, negated=negated):
            return all_predicates([value_predicate(inner) for inner in conditions], negated)


def all_predicates(predicates: list[Predicate], negated: bool = False) -> Predicate:
    if len(predicates) == 1:
        only = predicates[0]
        return (lambda value: not only(value)) if negated else only
    return lambda value: all(predicate(value) for predicate in predicates) is not negated


def _comparable(operand: object, name: str) -> object:
    if type(operand) is Undefined:
        raise BadValueError("cannot compare to undefined" if name != "$in" else "cannot use undefined in $in")
    return operand


def _not(operand: object, path: str, item_filter: ItemFilter, fold: Fold | None) -> Condition:
    if type(operand) is Regex:
        return ConditionGroup((literal(operand),), negated=True)
    if not isinstance(operand, Mapping):
        raise BadValueError("$not needs a regex or a document")
    if not operand:
        raise BadValueError("$not cannot be empty")
    return ConditionGroup(tuple(parse(operand, path, item_filter, fold)), negated=True)


def _in(operand: object, name: str, fold: Fold | None) -> Predicate:
    if type(operand) is not list:
        raise BadValueError(f"{name} needs an array")
    keys, key_of = set(), key_by(fold)
    expressions: list[Predicate] = []
    with_null = False
    for value in operand:
        if is_operators(value):
            raise BadValueError(f"cannot nest $ under {name}")
        if type(value) is Regex:
            count_part()
            expressions.append(regex.regex_predicate(value.pattern, value.options))
        value = _comparable(value, "$in")
        keys.add(key_of(value))
        with_null = with_null or value is None

    def is_in(value: object) -> bool:
        if is_null(value) and with_null:
            return True
        if value is MISSING:
            return False
        return key_of(value) in keys or any(expression(value) for expression in expressions)

    return is_in


def type_predicate(operand: object) -> Predicate:
    """Return the test of `$type`."""
    wanted: set[int] = set()
    operands = operand if type(operand) is list else [operand]
    if not operands:
        raise FailedToParseError("$type must match at least one type")
    for value in operands:
        if isinstance(value, str):
            if value != "number" and value not in TYPE_BYTES:
                raise BadValueError(f"Unknown type name alias: {value}")
            wanted |= _NUMBER_TYPES if value == "number" else {TYPE_BYTES[value]}
        elif is_number(value):
            number = whole_number(value)
            if number != _MIN_KEY_NUMBER and (number not in TYPE_NAMES or number == _MIN_KEY_BYTE):
                raise BadValueError(f"Invalid numerical type code: {show(value)}")
            wanted.add(_MIN_KEY_BYTE if number == _MIN_KEY_NUMBER else number)
        else:
            raise TypeMismatchError("type must be represented as a number or a string")
    return lambda value: value is not MISSING and type_byte(value) in wanted


def _size(operand: object) -> Predicate:
    if not is_number(operand):
        raise BadValueError(f"Failed to parse $size. Expected a number in: $size: {show(operand)}")
    size = whole_number(operand)
    if size is None:
        raise BadValueError(f"Failed to parse $size. Expected an integer: $size: {show(operand)}")
    if size < 0:
        raise BadValueError(f"Failed to parse $size. Expected a non-negative number in: $size: {show(operand)}")
    return lambda value: type(value) is list and len(value) == size


def _all(operand: object, path: str, item_filter: ItemFilter, fold: Fold | None) -> Condition:
    if type(operand) is not list:
        raise BadValueError("$all needs an array")
    if not operand:
        return ValueCondition(lambda value: False)
    conditions: list[Condition] = []
    elem_matches = [isinstance(value, Mapping) and next(iter(value), "") == "$elemMatch" for value in operand]
    for value, is_elem_match in zip(operand, elem_matches, strict=True):
        if elem_matches[0]:
            if not is_elem_match or len(value) != 1:
                raise BadValueError("$all/$elemMatch has to be consistent")
            conditions.append(_elem_match(value["$elemMatch"], path, item_filter, fold))
        elif isinstance(value, Mapping) and are_for_values(value):
            raise BadValueError("no $ expressions in $all")
        else:
            conditions.append(literal(value, fold=fold))
    return ConditionGroup(tuple(conditions))


def _elem_match(operand: object, path: str, item_filter: ItemFilter, fold: Fold | None) -> Condition:
    return ItemCondition(item_finder(operand, path, item_filter, fold))


def item_finder(
    operand: object, path: str, item_filter: ItemFilter, fold: Fold | None = None
) -> Callable[[object], int | None]:
    """Return a function that finds the first item of an array that matches an $elemMatch, None if there is none.

    An operand with operators tests values, any other tests documents. An array among the items counts as a document.
    """
    if not isinstance(operand, Mapping):
        raise BadValueError("$elemMatch needs an Object")
    if are_for_values(operand):
        holds = all_predicates([value_predicate(condition) for condition in parse(operand, path, item_filter, fold)])
    else:
        holds = item_filter(operand)

    def position(value: object) -> int | None:
        if type(value) is not list:
            return None
        for index, item in enumerate(value):
            check_time()
            if holds(item):
                return index
        return None

    return position


def _mod(operand: object) -> Predicate:
    if type(operand) is not list:
        raise BadValueError("malformed mod, needs to be an array")
    if len(operand) < 2:
        raise BadValueError("malformed mod, not enough elements")
    if len(operand) > 2:
        raise BadValueError("malformed mod, too many elements")
    for value, name in zip(operand, ("divisor", "remainder"), strict=True):
        if not is_number(value):
            raise BadValueError(f"malformed mod, {name} not a number")
        if _cut(value) is None:
            raise BadValueError(f"malformed mod, {name} value is invalid :: caused by :: {show(value)} is out of range")
    divisor, remainder = _cut(operand[0]), _cut(operand[1])
    if not divisor:
        raise BadValueError("divisor cannot be 0")

    def leaves(value: object) -> bool:
        number = _cut(value) if is_number(value) else None
        if number is None:
            return False
        rest = abs(number) % abs(divisor)  # the sign is the dividend's, as in C
        return (rest if number >= 0 else -rest) == remainder

    return leaves


def _regex(operand: object, options: object) -> Predicate:
    if type(operand) is Regex:
        if options is not MISSING and operand.options:
            raise ReplError("options set in both $regex and $options", code=ErrorCode.REGEX_OPTIONS_TWICE)
        pattern, flags = operand.pattern, operand.options
    elif isinstance(operand, str):
        pattern, flags = operand, ""
    else:
        raise BadValueError("$regex has to be a string")
    if options is not MISSING:
        if not isinstance(options, str):
            raise BadValueError("$options has to be a string")
        flags = options
    return regex.regex_predicate(pattern, flags)


def _cut(value: object) -> int | None:
    """Return a number without its fraction, None for NaN, an infinity or a number that does not fit into 64 bits."""
    if isinstance(value, Decimal128):
        decimal = value.to_decimal()
        if not decimal.is_finite() or decimal.adjusted() > 18:
            return None
        number = int(decimal)
    elif isinstance(value, float):
        if not math.isfinite(value):
            return None
        number = int(value)
    elif isinstance(value, int):
        number = value
    else:
        return None
    return number if -(1 << 63) <= number < 1 << 63 else None

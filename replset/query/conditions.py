"""What one field is asked: the operators below a field name, parsed into conditions.

A condition can be asked of a path in a document (arrays are looked into) or of one value alone (an item of an array,
in $elemMatch, $all and $pull). Which is which is match.py's business.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeGuard

from replset.bson import Decimal128, Int64, Regex, Undefined, encode_key
from replset.errors import ErrorCode, ReplError
from replset.query import regex
from replset.query.order import (
    MISSING,
    NUMBER_TYPES,
    TYPE_NAMES,
    TYPE_NUMBERS,
    Predicate,
    compares,
    equals,
    is_null,
    is_number,
    is_true,
    type_number,
)
from replset.query.refusals import BadValueError, FailedToParseError, TypeMismatchError, not_built, show
from replset.query.time_limit import check_time

NOT_BUILT = frozenset(
    {
        *("$expr", "$where", "$text", "$jsonSchema", "$sampleRate", "$rand"),
        *(
            "$near",
            "$nearSphere",
            "$geoWithin",
            "$geoIntersects",
            "$within",
            "$geoNear",
            "$maxDistance",
            "$minDistance",
        ),
        *("$bitsAllSet", "$bitsAllClear", "$bitsAnySet", "$bitsAnyClear"),
    }
)
_DBREF_NAMES = frozenset({"$ref", "$id", "$db"})
_LOGICAL = frozenset({"$and", "$or", "$nor"})


@dataclass(frozen=True, slots=True)
class Leaf:
    """One question about one value. into_array: asked of an array's items too, when it stands at the path's end."""

    predicate: Predicate
    into_array: bool = True


@dataclass(frozen=True, slots=True)
class ItemLeaf:
    """A question about an array as a whole that one of its items answers: `position` gives the item's index."""

    position: Callable[[object], int | None]


@dataclass(frozen=True, slots=True)
class Group:
    """All of `conditions` hold, or, negated, not all of them."""

    conditions: tuple[Condition, ...]
    negated: bool = False


Condition = Leaf | ItemLeaf | Group
ItemFilter = Callable[[Mapping[str, object]], Callable[[object], bool]]
"""Compiles the filter of an $elemMatch over documents; match.py's, handed in because it stands above this file."""


def is_operators(value: object) -> TypeGuard[Mapping[str, object]]:
    """Whether a value in a filter is made of operators: its first name has a dollar and it is no DBRef."""
    if not isinstance(value, Mapping):
        return False
    first = next(iter(value), "")
    return first.startswith("$") and first not in _DBREF_NAMES


def literal(value: object, name: str = "$eq") -> Condition:
    """Equality with `value`; a regular expression asks whether a string contains it."""
    if type(value) is Regex:
        return Leaf(regex.matcher(value.pattern, value.options))
    return Leaf(equals(_comparable(value, name)))


def parse(operators: Mapping[str, object], path: str, item_filter: ItemFilter) -> list[Condition]:
    """The conditions of `{$gt: 5, $lt: 9}`. Raises BadValueError and what each operator raises for its operand."""
    conditions: list[Condition] = []
    for name, operand in operators.items():
        match name:
            case "$eq":
                conditions.append(Leaf(equals(_comparable(operand, name))))
            case "$ne":
                if type(operand) is Regex:
                    raise BadValueError("Can't have regex as arg to $ne.")
                conditions.append(Group((Leaf(equals(_comparable(operand, name))),), negated=True))
            case "$gt" | "$gte" | "$lt" | "$lte":
                if type(operand) is Regex:
                    raise BadValueError(f"Can't have RegEx as arg to predicate over field '{path}'.")
                conditions.append(Leaf(compares(name, _comparable(operand, name))))
            case "$in":
                conditions.append(Leaf(_in(operand, name)))
            case "$nin":
                conditions.append(Group((Leaf(_in(operand, name)),), negated=True))
            case "$not":
                conditions.append(_not(operand, path, item_filter))
            case "$exists":
                present = Leaf(lambda value: value is not MISSING)
                conditions.append(present if is_true(operand) else Group((present,), negated=True))
            case "$type":
                conditions.append(Leaf(_type(operand)))
            case "$size":
                conditions.append(Leaf(_size(operand), into_array=False))
            case "$all":
                conditions.append(_all(operand, path, item_filter))
            case "$elemMatch":
                conditions.append(_elem_match(operand, path, item_filter))
            case "$mod":
                conditions.append(Leaf(_mod(operand)))
            case "$regex":
                conditions.append(Leaf(_regex(operand, operators.get("$options", MISSING))))
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


def on_value(condition: Condition) -> Predicate:
    """Asks one value alone; an array is not looked into."""
    match condition:
        case Leaf(predicate=predicate):
            return predicate
        case ItemLeaf(position=position):
            return lambda value: position(value) is not None
        case Group(conditions=conditions, negated=negated):
            return all_of([on_value(inner) for inner in conditions], negated)


def all_of(predicates: list[Predicate], negated: bool = False) -> Predicate:
    if len(predicates) == 1:
        only = predicates[0]
        return (lambda value: not only(value)) if negated else only
    return lambda value: all(predicate(value) for predicate in predicates) is not negated


def _comparable(operand: object, name: str) -> object:
    if type(operand) is Undefined:
        raise BadValueError("cannot compare to undefined" if name != "$in" else "cannot use undefined in $in")
    return operand


def _not(operand: object, path: str, item_filter: ItemFilter) -> Condition:
    if type(operand) is Regex:
        return Group((literal(operand),), negated=True)
    if not isinstance(operand, Mapping):
        raise BadValueError("$not needs a regex or a document")
    if not operand:
        raise BadValueError("$not cannot be empty")
    return Group(tuple(parse(operand, path, item_filter)), negated=True)


def _in(operand: object, name: str) -> Predicate:
    if type(operand) is not list:
        raise BadValueError(f"{name} needs an array")
    keys = set()
    expressions: list[Predicate] = []
    with_null = False
    for value in operand:
        if is_operators(value):
            raise BadValueError(f"cannot nest $ under {name}")
        if type(value) is Regex:
            expressions.append(regex.matcher(value.pattern, value.options))
        keys.add(encode_key(_comparable(value, "$in")))
        with_null = with_null or value is None

    def is_in(value: object) -> bool:
        if is_null(value) and with_null:
            return True
        if value is MISSING:
            return False
        return encode_key(value) in keys or any(expression(value) for expression in expressions)

    return is_in


def _type(operand: object) -> Predicate:
    wanted: set[int] = set()
    operands = operand if type(operand) is list else [operand]
    if not operands:
        raise FailedToParseError("$type must match at least one type")
    for value in operands:
        if isinstance(value, str):
            if value != "number" and value not in TYPE_NUMBERS:
                raise BadValueError(f"Unknown type name alias: {value}")
            wanted |= NUMBER_TYPES if value == "number" else {TYPE_NUMBERS[value]}
        elif is_number(value):
            number = _whole(value)
            if number is None or number not in TYPE_NAMES:
                raise BadValueError(f"Invalid numerical type code: {show(value)}")
            wanted.add(number)
        else:
            raise TypeMismatchError("type must be represented as a number or a string")
    return lambda value: value is not MISSING and type_number(value) in wanted


def _size(operand: object) -> Predicate:
    if not is_number(operand):
        raise BadValueError(f"Failed to parse $size. Expected a number in: $size: {show(operand)}")
    size = _whole(operand)
    if size is None:
        raise BadValueError(f"Failed to parse $size. Expected an integer: $size: {show(operand)}")
    if size < 0:
        raise BadValueError(f"Failed to parse $size. Expected a non-negative number in: $size: {show(operand)}")
    return lambda value: type(value) is list and len(value) == size


def _all(operand: object, path: str, item_filter: ItemFilter) -> Condition:
    if type(operand) is not list:
        raise BadValueError("$all needs an array")
    if not operand:
        return Leaf(lambda value: False)
    conditions: list[Condition] = []
    elem_matches = [isinstance(value, Mapping) and next(iter(value), "") == "$elemMatch" for value in operand]
    for value, is_elem_match in zip(operand, elem_matches, strict=True):
        if elem_matches[0]:
            if not is_elem_match or len(value) != 1:
                raise BadValueError("$all/$elemMatch has to be consistent")
            conditions.append(_elem_match(value["$elemMatch"], path, item_filter))
        elif is_operators(value):
            raise BadValueError("no $ expressions in $all")
        else:
            conditions.append(literal(value))
    return Group(tuple(conditions))


def _elem_match(operand: object, path: str, item_filter: ItemFilter) -> Condition:
    return ItemLeaf(item_finder(operand, path, item_filter))


def item_finder(operand: object, path: str, item_filter: ItemFilter) -> Callable[[object], int | None]:
    """The index of the first item of an array that matches an $elemMatch; None for none, and for what is no array.

    Over values when it holds operators, else over documents; an array among the items counts as a document.
    """
    if not isinstance(operand, Mapping):
        raise BadValueError("$elemMatch needs an Object")
    if is_operators(operand) and next(iter(operand)) not in _LOGICAL:
        holds = all_of([on_value(condition) for condition in parse(operand, path, item_filter)])
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
    return regex.matcher(pattern, flags)


def _whole(value: object) -> int | None:
    """The whole number that a number of any type is; None when it is none of 64 bits."""
    number = _cut(value)
    return number if number is not None and equals(Int64(number))(value) else None


def _cut(value: object) -> int | None:
    """A number without its fraction; None for NaN, infinities and what 64 bits cannot hold."""
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

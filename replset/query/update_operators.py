"""Compiles the update operators on single values. Each turns its operand into a change of the value at a path.

update_arrays.py has the operators on arrays. update_paths.py finds the value and makes the documents on its path.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from replset.query.collation import Fold, key_by
from replset.query.errors import BadValueError, TypeMismatchError, show
from replset.query.numbers import add, is_long, multiply, to_stored_int, zero_like
from replset.query.order import MISSING, is_number, type_name
from replset.query.update_paths import Change, UpdateContext

_BITWISE: dict[str, Callable[[int, int], int]] = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}


@dataclass(frozen=True, slots=True)
class UpdateOperation:
    """A change of one value. creates: make missing documents on the path. only_on_insert: for upserts that insert."""

    change: Change
    creates: bool = True
    only_on_insert: bool = False


def set_value(path: str, operand: object) -> UpdateOperation:
    return UpdateOperation(lambda old, context: operand)


def set_on_insert(path: str, operand: object) -> UpdateOperation:
    return UpdateOperation(lambda old, context: operand, only_on_insert=True)


def unset(path: str, operand: object) -> UpdateOperation:
    return UpdateOperation(lambda old, context: MISSING, creates=False)


def increment(path: str, operand: object) -> UpdateOperation:
    """Add `operand`. TypeMismatch (14) for a value that is not a number, BadValue (2) for a sum beyond 64 bits."""
    if not is_number(operand):
        raise TypeMismatchError(f"Cannot increment with non-numeric argument: {{{path}: {show(operand)}}}")
    return UpdateOperation(_calculation("$inc", path, add, operand, operand))


def multiply_by(path: str, operand: object) -> UpdateOperation:
    """Multiply by `operand`, with the errors of increment. A missing field becomes zero of the operand's type."""
    if not is_number(operand):
        raise TypeMismatchError(f"Cannot multiply with non-numeric argument: {{{path}: {show(operand)}}}")
    return UpdateOperation(_calculation("$mul", path, multiply, operand, zero_like(operand)))


def _calculation(
    name: str, path: str, calculate: Callable[[object, object], object], operand: object, when_missing: object
) -> Change:
    def change(old: object, context: UpdateContext) -> object:
        if old is MISSING:
            return when_missing
        if not is_number(old):
            raise TypeMismatchError(
                f"Cannot apply {name} to a value of non-numeric type. {{_id: {show(context.doc_id)}}} has the field "
                f"'{last_name(path)}' of non-numeric type {type_name(old)}"
            )
        try:
            return calculate(old, operand)
        except OverflowError:
            raise BadValueError(
                f"Failed to apply {name} operations to current value ({show(old)}) for document "
                f"{{_id: {show(context.doc_id)}}}"
            ) from None

    return change


def minimum(path: str, operand: object, fold: Fold | None) -> UpdateOperation:
    """Set the lesser of two values. fold: of the collation."""
    key_of = key_by(fold)
    return UpdateOperation(lambda old, context: operand if old is MISSING or key_of(operand) < key_of(old) else old)


def maximum(path: str, operand: object, fold: Fold | None) -> UpdateOperation:
    """Set the greater of two values. fold: of the collation."""
    key_of = key_by(fold)
    return UpdateOperation(lambda old, context: operand if old is MISSING or key_of(operand) > key_of(old) else old)


def current_date(path: str, operand: object) -> UpdateOperation:
    """Set the present time. operand: a boolean, or {$type: "date" | "timestamp"}."""
    if type(operand) is bool:
        return UpdateOperation(lambda old, context: context.now)
    if not isinstance(operand, Mapping):
        raise BadValueError(
            f"{type_name(operand)} is not valid type for $currentDate. Please use a boolean ('true') or a $type "
            "expression ({$type: 'timestamp/date'})."
        )
    for name in operand:
        if name != "$type":
            raise BadValueError(f"Unrecognized $currentDate option: {name}")
    match operand.get("$type"):
        case "date":
            return UpdateOperation(lambda old, context: context.now)
        case "timestamp":
            return UpdateOperation(lambda old, context: context.timestamp)
    raise BadValueError(
        "The '$type' string field is required to be 'date' or 'timestamp': {$currentDate: {field : {$type: 'date'}}}"
    )


def bitwise(path: str, operand: object) -> UpdateOperation:
    """Apply {and | or | xor: whole number, ...} in order. A missing field counts as 0."""
    if not isinstance(operand, Mapping):
        raise BadValueError(
            f"The $bit modifier is not compatible with a {type_name(operand)}. You must pass in an embedded document: "
            "{$bit: {field: {and/or/xor: #}}"
        )
    if not operand:
        raise BadValueError("You must pass in at least one bitwise operation. The format is: {$bit: {field: {and: #}}}")
    steps: list[tuple[Callable[[int, int], int], int]] = []
    for name, number in operand.items():
        if name not in _BITWISE:
            raise BadValueError(f"The $bit modifier only supports 'and', 'or', and 'xor', not '{name}'")
        if not _is_whole(number):
            raise BadValueError(f"The $bit modifier field must be an Integer(32/64 bit); a {type_name(number)} is not")
        steps.append((_BITWISE[name], number))

    def change(old: Any, context: UpdateContext) -> object:
        number: Any = 0 if old is MISSING else old
        if not _is_whole(number):
            raise BadValueError(
                f"Cannot apply $bit to a value of non-integral type. {{_id: {show(context.doc_id)}}} has the field "
                f"'{last_name(path)}' of non-integer type {type_name(old)}"
            )
        for calculate, mask in steps:
            number = to_stored_int(calculate(int(number), int(mask)), is_long(number) or is_long(mask))
        return number

    return UpdateOperation(change)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and type(value) is not bool


def last_name(path: str) -> str:
    return path.rpartition(".")[2]

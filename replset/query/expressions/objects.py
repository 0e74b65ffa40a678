"""Operators on documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from replset.query.errors import show
from replset.query.expressions.compiler import (
    Document,
    Expression,
    Operator,
    Scope,
    Variables,
    apply,
    arguments,
    combine,
    constant,
    fault,
    need_array,
    plain,
    spend_items,
)
from replset.query.order import MISSING, is_null, type_name

_FIELD_ITEMS: Final = 32
"""What a document of two fields takes, in items of an array."""


def merged(*values: Any) -> dict[str, Any]:
    """Return the fields of all documents, the last of each name. Null and missing values count as empty."""
    result: dict[str, Any] = {}
    for value in values:
        if is_null(value):
            continue
        if not isinstance(value, Mapping):
            raise fault(
                40400, f"$mergeObjects requires object inputs, but input {show(value)} is of type {type_name(value)}"
            )
        spend_items(_FIELD_ITEMS + len(value))
        result.update(value)
    return result


def _merge_objects(*values: Any) -> dict[str, Any]:
    # As with the other accumulators, one array is the list of the values.
    return merged(*(values[0] if len(values) == 1 and type(values[0]) is list else values))


def _to_array(document: Any) -> list[dict[str, Any]]:
    if not isinstance(document, Mapping):
        raise fault(40390, f"$objectToArray requires a document input, found: {type_name(document)}")
    spend_items(_FIELD_ITEMS * len(document))
    return [{"k": name, "v": value} for name, value in document.items()]


def _to_object(array: Any) -> dict[str, Any]:
    items = need_array("$arrayToObject", array, 40386)
    spend_items(_FIELD_ITEMS * len(items))
    if items and type(items[0]) is not list and not isinstance(items[0], Mapping):
        raise fault(40398, f"Unrecognised input type format for $arrayToObject: {type_name(items[0])}")
    pair_of = _pair_of_list if items and type(items[0]) is list else _pair_of_document
    return dict(map(pair_of, items))


def _pair_of_list(item: Any) -> tuple[str, Any]:
    if type(item) is not list:
        raise fault(40396, f"$arrayToObject: all items must be arrays, as the first is, found: {type_name(item)}")
    if len(item) != 2:
        raise fault(40397, f"$arrayToObject requires an array of size 2 arrays, found array of size: {len(item)}")
    return _key(item[0], 40395), item[1]


def _pair_of_document(item: Any) -> tuple[str, Any]:
    if not isinstance(item, Mapping):
        raise fault(40391, f"$arrayToObject: all items must be objects, as the first is, found: {type_name(item)}")
    if len(item) != 2:
        raise fault(40392, f"$arrayToObject requires objects with the keys 'k' and 'v', found {len(item)} keys")
    if "k" not in item or "v" not in item:
        raise fault(40393, f"$arrayToObject requires objects with the keys 'k' and 'v', found: {show(item)}")
    return _key(item["k"], 40394), item["v"]


def _key(value: Any, code: int) -> str:
    if type(value) is not str:
        raise fault(code, f"$arrayToObject requires the keys to be of type string, found: {type_name(value)}")
    if "\0" in value:
        raise fault(4940400, "Key field cannot contain an embedded null byte")
    return value


def _field_name(name: str, value: Any, scope: Scope, codes: tuple[int, int, int]) -> str:
    """Return the constant name of a field. codes: for a path, for what is no constant, for what is no string."""
    if type(value) is str and value.startswith("$"):
        raise fault(
            codes[0], f"'{value:.80}' is a path, which {name} cannot take. Did you mean {{$literal: '{value:.80}'}}?"
        )
    field = scope.compile(value)
    if not field.is_constant:
        raise fault(codes[1], f"{name} requires 'field' to evaluate to a constant, but got a non-constant argument")
    if type(field.value) is not str:
        raise fault(codes[2], f"{name} requires 'field' to evaluate to type String, but got {type_name(field.value)}")
    return field.value


def _get_field(argument: Any, scope: Scope) -> Expression:
    given: Mapping[str, Any] = {"field": argument, "input": "$$CURRENT"}
    if isinstance(argument, Mapping) and next(iter(argument), "")[:1] != "$":
        codes = {"field": 3041702, "input": 3041703}
        given = arguments("$getField", argument, tuple(codes), unknown=3041701, missing=codes)
    field = _field_name("$getField", given["field"], scope, (5654600, 5654601, 5654602))
    source = scope.compile(given["input"])

    def read(value: Any) -> Any:
        if isinstance(value, Mapping):
            return value.get(field, MISSING)
        return None if value is not MISSING and is_null(value) else MISSING

    return apply(read, [source])


def _set_field(argument: Any, scope: Scope) -> Expression:
    codes = {"field": 4161102, "value": 4161103, "input": 4161109}
    given = arguments("$setField", argument, tuple(codes), no_document=4161100, unknown=4161101, missing=codes)
    return _field_setter("$setField", given, scope.compile(given["value"]), scope)


def _unset_field(argument: Any, scope: Scope) -> Expression:
    codes = {"field": 4161102, "input": 4161109}
    given = arguments("$unsetField", argument, tuple(codes), no_document=4161100, unknown=4161101, missing=codes)
    return _field_setter("$unsetField", given, constant(MISSING), scope)


def _field_setter(name: str, given: Mapping[str, Any], new: Expression, scope: Scope) -> Expression:
    field = _field_name(name, given["field"], scope, (4161108, 4161106, 4161107))
    source = scope.compile(given["input"])

    def run(root: Document, variables: Variables) -> Any:
        document = source.run(root, variables)
        if is_null(document):
            return None
        if not isinstance(document, Mapping):
            raise fault(4161105, f"{name} requires 'input' to evaluate to type Object")
        spend_items(_FIELD_ITEMS + len(document))
        result = {**document, field: new.run(root, variables)}
        if result[field] is MISSING:
            del result[field]
        return result

    return combine(run, source, new)


OPERATORS: Final = (
    plain("$mergeObjects", _merge_objects, 0, None),
    plain("$objectToArray", _to_array, null_if_null=True),
    plain("$arrayToObject", _to_object, null_if_null=True),
    Operator("$getField", _get_field),
    Operator("$setField", _set_field),
    Operator("$unsetField", _unset_field),
)

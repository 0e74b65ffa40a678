"""Operators on arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from replset.errors import ReplError
from replset.query.collation import Fold
from replset.query.errors import show
from replset.query.expressions.compiler import (
    Document,
    Expression,
    KeyOf,
    Operator,
    Run,
    Scope,
    Variables,
    apply,
    arguments,
    check_argument_count,
    combine,
    constant,
    fault,
    keyed,
    need_array,
    plain,
    spend,
    spend_items,
)
from replset.query.expressions.logic import variable_name
from replset.query.expressions.shared import index_argument
from replset.query.numbers import INT32, whole_number
from replset.query.order import MISSING, is_null, is_number, is_true, type_name
from replset.query.sizes import size_of
from replset.query.sort import SORT_RUN, compile_item_sort, sort_by_key
from replset.query.time_limit import check_time

_INT_BYTES: Final = 40
"""What Python takes for a number in a list."""


def _int32(value: Any, no_number: int, no_int: int, what: str) -> int:
    """Return the argument as an int of 32 bits. Raises `no_number` or `no_int`."""
    if not is_number(value):
        raise fault(no_number, f"{what} must be a numeric value, but is {type_name(value)}")
    number = whole_number(value, INT32)
    if number is None:
        raise fault(no_int, f"{what} must be representable as a 32-bit integer: {show(value)}")
    return number


def _element_at(name: str) -> Callable[[Any, Any], Any]:
    def element_at(array: Any, index: Any) -> Any:
        items = need_array(name, array, 28689)
        place = _int32(index, 28690, 28691, f"{name}'s second argument")
        return items[place] if -len(items) <= place < len(items) else MISSING

    return element_at


def _end(name: str, place: int) -> Operator:
    """Return $first or $last."""
    element_at = _element_at(name)
    return plain(name, lambda array: element_at(array, place), null_if_null=True)


def _concat(*arrays: Any) -> Any:
    for array in arrays:
        if is_null(array):
            return None
        need_array("$concatArrays", array, 28664)
    spend_items(sum(map(len, arrays)))
    return [item for array in arrays for item in array]


def _in(argument: Any, scope: Scope) -> Expression:
    values = argument if type(argument) is list else [argument]
    check_argument_count("$in", len(values), 2, 2)
    value, array = scope.compile_all(values)
    key_of = scope.key_of
    if value.is_constant or type(array.value) is not list:
        return apply(partial(_is_item, key_of), [value, array])
    keys = frozenset(map(key_of, array.value))
    return apply(lambda found: key_of(found) in keys, [value])


def _is_item(key_of: KeyOf, value: Any, array: Any) -> bool:
    key = key_of(value)
    return any(_keys_equal(key_of, item, key) for item in need_array("$in", array, 40081))


def _keys_equal(key_of: KeyOf, item: Any, key: bytes) -> bool:
    check_time()
    return key_of(item) == key


def _index_of(key_of: KeyOf, array: Any, value: Any, start: Any = 0, end: Any = None) -> Any:
    if is_null(array):
        return None
    items = need_array("$indexOfArray", array, 40090)
    first = index_argument("$indexOfArray", "starting", start)
    last = len(items) if end is None else min(len(items), index_argument("$indexOfArray", "ending", end))
    key = key_of(value)
    return next((place for place in range(first, last) if _keys_equal(key_of, items[place], key)), -1)


def _range(start: Any, end: Any, step: Any = 1) -> list[int]:
    first = _int32(start, 34443, 34444, "$range's starting value")
    last = _int32(end, 34445, 34446, "$range's ending value")
    by = _int32(step, 34447, 34448, "$range's step value")
    if by == 0:
        raise fault(34449, "$range requires a non-zero step value")
    numbers = range(first, last, by)
    spend(len(numbers) * _INT_BYTES)
    found: list[int] = []
    for start_of_run in range(0, len(numbers), SORT_RUN):  # a long run would let no other thread in
        found += numbers[start_of_run : start_of_run + SORT_RUN]
    return found


def _reverse(array: Any) -> list[Any]:
    items = need_array("$reverseArray", array, 34435)
    spend_items(len(items))
    return items[::-1]


def _slice(array: Any, start: Any, count: Any = MISSING) -> Any:
    items = need_array("$slice", array, 28724)
    first = _int32(start, 28725, 28726, "the second argument to $slice")
    if count is MISSING:
        result = items[:first] if first >= 0 else items[first:]
    else:
        number = _int32(count, 28727, 28728, "the third argument to $slice")
        if number <= 0:
            raise fault(28729, f"the third argument to $slice must be positive: {number}")
        first = max(0, len(items) + first) if first < 0 else first
        result = items[first : first + number]
    spend_items(len(result))
    return result


# --- operators that make a variable of each item --------------------------------------------------------------------


def _input_of(given: Mapping[str, Any], scope: Scope, name: str, code: int) -> tuple[Expression, Run]:
    """Return the expression of `input`, and what gives its array, or None if it is null."""
    part = scope.compile(given["input"])
    of = part.run

    def items(root: Document, variables: Variables) -> Any:
        value = of(root, variables)
        return None if is_null(value) else need_array(name, value, code)

    return part, items


def _map(argument: Any, scope: Scope) -> Expression:
    codes = {"input": 16880, "in": 16882}
    given = arguments("$map", argument, tuple(codes), ("as",), no_document=16878, unknown=16879, missing=codes)
    source, items_of = _input_of(given, scope, "$map", 16883)
    name = variable_name(given.get("as", "this"), "$map")
    body = scope.with_names(name).compile(given["in"])
    each = body.run

    def run(root: Document, variables: Variables) -> Any:
        items = items_of(root, variables)
        if items is None:
            return None
        spend_items(len(items))
        inner = {**variables}
        result = []
        for item in items:
            check_time()
            inner[name] = item
            value = each(root, inner)
            result.append(None if value is MISSING else value)
        return result

    return combine(run, source, body)


def _filter(argument: Any, scope: Scope) -> Expression:
    codes = {"input": 28648, "cond": 28650}
    given = arguments(
        "$filter", argument, tuple(codes), ("as", "limit"), no_document=28646, unknown=28647, missing=codes
    )
    source, items_of = _input_of(given, scope, "$filter", 28651)
    name = variable_name(given.get("as", "this"), "$filter")
    condition = scope.with_names(name).compile(given["cond"])
    test = condition.run
    limit = scope.compile(given.get("limit"))

    def run(root: Document, variables: Variables) -> Any:
        items = items_of(root, variables)
        if not items:
            return items
        most = _limit(limit.run(root, variables), len(items))
        spend_items(min(most, len(items)))
        inner = {**variables}
        result: list[Any] = []
        for item in items:
            check_time()
            inner[name] = item
            if is_true(test(root, inner)):
                result.append(item)
                if len(result) == most:
                    break
        return result

    return combine(run, source, condition, limit)


def _limit(value: Any, default: int) -> int:
    if is_null(value):
        return default
    number = whole_number(value, INT32)
    if number is None:
        raise fault(327391, f"$filter: limit must be represented as a 32-bit integral value: {show(value)}")
    if number <= 0:
        raise fault(327392, f"$filter: limit must be greater than 0: {number}")
    return number


def _reduce(argument: Any, scope: Scope) -> Expression:
    codes = {"input": 40077, "initialValue": 40078, "in": 40079}
    given = arguments("$reduce", argument, tuple(codes), no_document=40075, unknown=40076, missing=codes)
    source, items_of = _input_of(given, scope, "$reduce", 40080)
    initial = scope.compile(given["initialValue"])
    body = scope.with_names("this", "value").compile(given["in"])
    step = body.run

    def run(root: Document, variables: Variables) -> Any:
        items = items_of(root, variables)
        if items is None:
            return None
        inner = {**variables, "value": initial.run(root, variables)}
        for item in items:
            check_time()
            inner["this"] = item
            inner["value"] = step(root, inner)
        return inner["value"]

    return combine(run, source, initial, body)


# --- operators with options -----------------------------------------------------------------------------------------


def _sort_array(argument: Any, scope: Scope) -> Expression:
    codes = {"input": 2942502, "sortBy": 2942503}
    given = arguments("$sortArray", argument, tuple(codes), no_document=2942500, unknown=2942501, missing=codes)
    sort_key = _item_sort_key(given["sortBy"], scope.fold)

    def ordered(array: Any) -> list[Any]:
        items = need_array("$sortArray", array, 2942504)
        size_of(items)
        spend_items(len(items))
        pairs = []
        for item in items:
            key = sort_key(item)
            spend(len(key))
            pairs.append((key, item))
        return sort_by_key(pairs)

    return apply(ordered, [scope.compile(given["input"])], null_if_null=True)


def _item_sort_key(sort_by: Any, fold: Fold | None) -> Callable[[Any], bytes]:
    try:
        return compile_item_sort(sort_by, fold)
    except ReplError as error:
        number = 2942505 if isinstance(sort_by, Mapping) else 2942506 if is_number(sort_by) else 2942507
        raise fault(number, f"the sortBy of $sortArray: {error.message}") from None


def _zip(argument: Any, scope: Scope) -> Expression:
    names = ("inputs", "useLongestLength", "defaults")
    given = arguments("$zip", argument, (), names, no_document=34460, unknown=34464)
    inputs, longest, defaults = given.get("inputs", []), given.get("useLongestLength", False), given.get("defaults", [])
    for value, kind, code, what in (
        (inputs, list, 34461, "inputs must be an array of expressions"),
        (defaults, list, 34462, "defaults must be an array of expressions"),
        (longest, bool, 34463, "useLongestLength must be a bool"),
    ):
        if type(value) is not kind:
            raise fault(code, f"$zip: {what}, found {type_name(value)}")
    if not inputs:
        raise fault(34465, "$zip requires at least one input array")
    if defaults and not longest:
        raise fault(34466, "cannot specify defaults unless useLongestLength is true")
    if defaults and len(defaults) != len(inputs):
        raise fault(34467, "defaults and inputs must have the same length")
    parts = scope.compile_all(inputs)
    fills = scope.compile_all(defaults) or [constant(None)] * len(parts)

    def run(root: Document, variables: Variables) -> Any:
        arrays = []
        for part in parts:
            value = part.run(root, variables)
            if is_null(value):
                return None
            arrays.append(need_array("$zip", value, 34468))
        lengths = [len(array) for array in arrays]
        length = max(lengths) if longest else min(lengths)
        spend_items(length * (len(arrays) + 8))
        missing = [fill.run(root, variables) for fill in fills] if length > min(lengths) else []
        result = []
        for row in range(length):
            check_time()
            result.append([array[row] if row < len(array) else missing[column] for column, array in enumerate(arrays)])
        return result

    return combine(run, *parts, *fills)


# --- sets -----------------------------------------------------------------------------------------------------------


def _as_set(key_of: KeyOf, name: str, code: int, array: Any) -> dict[bytes, Any]:
    """Return the items of an array by their keys, without repetition."""
    found: dict[bytes, Any] = {}
    for item in need_array(name, array, code):
        key = key_of(item)
        spend(0 if key in found else len(key))
        found.setdefault(key, item)
    return found


def _sorted(items: Mapping[bytes, Any]) -> list[Any]:
    spend_items(len(items))
    return sort_by_key(list(items.items()))


def _union(key_of: KeyOf, *arrays: Any) -> Any:
    found: dict[bytes, Any] = {}
    for array in arrays:
        if is_null(array):
            return None
        found = _as_set(key_of, "$setUnion", 17043, array) | found
    return _sorted(found)


def _intersection(key_of: KeyOf, *arrays: Any) -> Any:
    found: dict[bytes, Any] | None = None
    for array in arrays:
        if is_null(array):
            return None
        items = _as_set(key_of, "$setIntersection", 17047, array)
        found = items if found is None else {key: item for key, item in found.items() if key in items}
    return _sorted(found or {})


def _difference(key_of: KeyOf, a: Any, b: Any) -> list[Any]:
    kept = _as_set(key_of, "$setDifference", 17048, a)
    without = _as_set(key_of, "$setDifference", 17049, b)
    return [item for key, item in kept.items() if key not in without]


def _set_equals(key_of: KeyOf, *arrays: Any) -> bool:
    if len(arrays) < 2:
        raise fault(17045, f"$setEquals needs at least two arguments had: {len(arrays)}")
    first, *others = [_as_set(key_of, "$setEquals", 17044, array).keys() for array in arrays]
    return all(first == other for other in others)


def _is_subset(key_of: KeyOf, a: Any, b: Any) -> bool:
    return _as_set(key_of, "$setIsSubset", 17046, a).keys() <= _as_set(key_of, "$setIsSubset", 17042, b).keys()


OPERATORS: Final = (
    plain("$arrayElemAt", _element_at("$arrayElemAt"), 2, null_if_null=True),
    _end("$first", 0),
    _end("$last", -1),
    plain("$concatArrays", _concat, 0, None),
    Operator("$in", _in),
    keyed("$indexOfArray", _index_of, 2, 4),
    plain("$isArray", lambda value: type(value) is list),
    plain("$range", _range, 2, 3),
    plain("$reverseArray", _reverse, null_if_null=True),
    plain("$size", lambda array: len(need_array("$size", array, 17124))),
    plain("$slice", _slice, 2, 3, null_if_null=True),
    Operator("$map", _map),
    Operator("$filter", _filter),
    Operator("$reduce", _reduce),
    Operator("$sortArray", _sort_array),
    Operator("$zip", _zip),
    keyed("$setUnion", _union, 0, None),
    keyed("$setIntersection", _intersection, 0, None),
    keyed("$setDifference", _difference, 2, null_if_null=True),
    keyed("$setEquals", _set_equals, 0, None),
    keyed("$setIsSubset", _is_subset, 2),
    plain("$allElementsTrue", lambda array: all(map(is_true, need_array("$allElementsTrue", array, 17040)))),
    plain("$anyElementTrue", lambda array: any(map(is_true, need_array("$anyElementTrue", array, 17041)))),
)

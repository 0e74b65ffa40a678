"""Evaluates expressions and pipelines as slowly and plainly as MongoDB's manual describes them. For tests only.

It shares nothing with the product but the classes of BSON's values. Every refusal is `Refused`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import cmp_to_key
from typing import Any

from replset.bson import DateTime, Int64

Doc = dict[str, Any]


class Refused(Exception):
    """The manual says that this is an error."""


class Unsure(Exception):
    """The manual does not say what comes out."""


MISSING: Any = object()


def null(value: Any) -> bool:
    return value is None or value is MISSING


def number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def true(value: Any) -> bool:
    return not (null(value) or value is False or (number(value) and value == 0))


def rank(value: Any) -> int:
    """The order of types: missing, null, numbers, strings, objects, arrays, booleans, dates."""
    if value is MISSING:
        return 0
    if number(value):
        return 2
    kinds: tuple[Any, ...] = (type(None), (), str, dict, list, bool, DateTime)
    return 1 + next(place for place, kind in enumerate(kinds) if isinstance(value, kind))


def compare(a: Any, b: Any) -> int:
    if rank(a) != rank(b):
        return -1 if rank(a) < rank(b) else 1
    if number(a):
        if a != a or b != b:  # NaN comes first
            return (b != b) - (a != a)
        if math.isinf(a) or math.isinf(b):
            return (a > b) - (a < b)
        return (Fraction(a) > Fraction(b)) - (Fraction(a) < Fraction(b))
    if isinstance(a, str):
        return (a.encode() > b.encode()) - (a.encode() < b.encode())
    if isinstance(a, DateTime):
        return (a.ms > b.ms) - (a.ms < b.ms)
    if isinstance(a, list):
        found = [compare(x, y) for x, y in zip(a, b, strict=False)]
        return next((one for one in found if one), (len(a) > len(b)) - (len(a) < len(b)))
    if isinstance(a, dict):
        for (name, x), (other, y) in zip(a.items(), b.items(), strict=False):
            for one in ((rank(x) > rank(y)) - (rank(x) < rank(y)), compare(name, other), compare(x, y)):
                if one:
                    return one
        return (len(a) > len(b)) - (len(a) < len(b))
    return 0 if null(a) else (a > b) - (a < b)


def equal(a: Any, b: Any) -> bool:
    return compare(a, b) == 0


def path(value: Any, names: list[str]) -> Any:
    if not names:
        return value
    if isinstance(value, dict):
        return path(value[names[0]], names[1:]) if names[0] in value else MISSING
    if isinstance(value, list):
        found = [path(item, names) for item in value if isinstance(item, dict)]
        return [item for item in found if item is not MISSING]
    return MISSING


def typed(result: Any, *operands: Any) -> Any:
    """The result with the widest type of the operands."""
    if any(isinstance(one, float) for one in operands):
        return float(result)
    if not -(2**63) <= result < 2**63:
        return float(result)
    is_long = any(isinstance(one, Int64) for one in operands) or not -(2**31) <= result < 2**31
    return Int64(result) if is_long else int(result)


def need(condition: bool) -> None:
    if not condition:
        raise Refused


def array(value: Any) -> list[Any]:
    need(isinstance(value, list))
    return list(value)


def whole(value: Any) -> int:
    need(number(value) and value == value and abs(value) < 2**31 and value == int(value))
    return int(value)


# --- operators on values --------------------------------------------------------------------------------------------


def add(*values: Any) -> Any:
    for value in values:
        if null(value):
            return None
        need(number(value) or isinstance(value, DateTime))
    dates = [value for value in values if isinstance(value, DateTime)]
    need(len(dates) <= 1)
    plain = [value.ms if isinstance(value, DateTime) else value for value in values]
    if dates:
        return DateTime(round(sum(plain)))
    return typed(sum(plain), *plain)


def unless_null(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values: None if any(map(null, values)) else function(*values)


@unless_null
def subtract(a: Any, b: Any) -> Any:
    if isinstance(a, DateTime):
        return Int64(a.ms - b.ms) if isinstance(b, DateTime) else DateTime(a.ms - int(checked(b)))
    return typed(checked(a) - checked(b), a, b)


def checked(value: Any) -> Any:
    need(number(value))
    return value


def multiply(*values: Any) -> Any:
    result: Any = 1
    for value in values:
        if null(value):
            return None
        result *= checked(value)
    return typed(result, *values)


@unless_null
def divide(a: Any, b: Any) -> Any:
    need(checked(b) != 0)
    return checked(a) / b


@unless_null
def mod(a: Any, b: Any) -> Any:
    need(checked(b) != 0)
    result = math.fmod(checked(a), b)
    if isinstance(a, float) or (isinstance(b, float) and b != int(b)):
        return result
    return typed(int(result), *[int(one) if isinstance(one, float) else one for one in (a, b)])


def rounding(function: Callable[[Any], int]) -> Callable[[Any], Any]:
    return unless_null(lambda value: float(function(value)) if isinstance(checked(value), float) else value)


def index_of(items: Any, value: Any) -> Any:
    if null(items):
        return None
    return next((place for place, item in enumerate(array(items)) if equal(item, value)), -1)


@unless_null
def element(items: Any, index: Any) -> Any:
    listed, place = array(items), whole(index)
    return listed[place] if -len(listed) <= place < len(listed) else MISSING


@unless_null
def slice_of(items: Any, count: Any) -> Any:
    listed, n = array(items), whole(count)
    return listed[:n] if n >= 0 else listed[max(0, len(listed) + n) :]


def unique(items: list[Any]) -> list[Any]:
    found: list[Any] = []
    for item in items:
        if not any(equal(item, other) for other in found):
            found.append(item)
    return found


def ordered(items: list[Any]) -> list[Any]:
    return sorted(items, key=cmp_to_key(compare))


def as_sets(function: Callable[..., Any]) -> Callable[..., Any]:
    return unless_null(lambda *values: function(*map(array, values)))


def in_order(function: Callable[..., Any]) -> Callable[..., Any]:
    """As `as_sets`, where the first value that is null or no array decides."""

    def of(*values: Any) -> Any:
        for value in values:
            if null(value):
                return None
            array(value)
        return function(*values)

    return of


def has(items: list[Any], value: Any) -> bool:
    return any(equal(item, value) for item in items)


def merge(*values: Any) -> Any:
    result: Doc = {}
    for value in values[0] if len(values) == 1 and isinstance(values[0], list) else values:
        if not null(value):
            need(isinstance(value, dict))
            result |= value
    return result


def concat(*values: Any) -> Any:
    for value in values:
        if null(value):
            return None
        need(isinstance(value, str))
    return "".join(values)


def of_text(function: Callable[..., Any]) -> Callable[..., Any]:
    def of(*values: Any) -> Any:
        need(all(isinstance(value, str) for value in values))
        return function(*values)

    return unless_null(of)


def changed_case(function: Callable[[str], str]) -> Callable[[Any], str]:
    def of(value: Any) -> str:
        if not isinstance(value, str) and not null(value):
            raise Unsure
        return "" if null(value) else function(value)

    return of


def split(text: str, by: str) -> list[str]:
    need(by != "")
    return text.split(by)


def of_date(function: Callable[[datetime], Any]) -> Callable[[Any], Any]:
    def of(value: Any) -> Any:
        need(isinstance(value, DateTime))
        return function(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=value.ms))

    return unless_null(of)


def numbers(values: tuple[Any, ...]) -> list[Any]:
    items = values[0] if len(values) == 1 and isinstance(values[0], list) else values
    return [item for item in items if number(item)]


def total(items: list[Any]) -> Any:
    return typed(sum(items), *items)


def mean(items: list[Any]) -> Any:
    return sum(items) / len(items) if items else None


def extreme(values: tuple[Any, ...], place: int) -> Any:
    items = values[0] if len(values) == 1 and isinstance(values[0], list) else values
    kept = ordered([item for item in items if not null(item)])
    return kept[place] if kept else None


def type_of(value: Any) -> str:
    if value is MISSING:
        return "missing"
    kinds = {Int64: "long", int: "int", float: "double", str: "string", dict: "object", list: "array"}
    return {**kinds, bool: "bool", type(None): "null", DateTime: "date"}[type(value)]


VALUES: dict[str, Callable[..., Any]] = {
    "$add": add,
    "$subtract": subtract,
    "$multiply": multiply,
    "$divide": divide,
    "$mod": mod,
    "$abs": unless_null(lambda value: typed(abs(checked(value)), value)),
    "$ceil": rounding(math.ceil),
    "$floor": rounding(math.floor),
    "$trunc": rounding(math.trunc),
    "$eq": equal,
    "$ne": lambda a, b: not equal(a, b),
    "$gt": lambda a, b: compare(a, b) > 0,
    "$gte": lambda a, b: compare(a, b) >= 0,
    "$lt": lambda a, b: compare(a, b) < 0,
    "$lte": lambda a, b: compare(a, b) <= 0,
    "$cmp": compare,
    "$not": lambda value: not true(value),
    "$arrayElemAt": element,
    "$first": lambda items: element(items, 0),
    "$last": lambda items: element(items, -1),
    "$concatArrays": in_order(lambda *lists: [item for items in lists for item in items]),
    "$in": lambda value, items: has(array(items), value),
    "$indexOfArray": index_of,
    "$isArray": lambda value: isinstance(value, list),
    "$reverseArray": as_sets(lambda items: items[::-1]),
    "$size": lambda items: len(array(items)),
    "$slice": slice_of,
    "$setUnion": in_order(lambda *lists: ordered(unique([item for items in lists for item in items]))),
    "$setIntersection": in_order(lambda a, b: ordered([item for item in unique(a) if has(b, item)])),
    "$setDifference": as_sets(lambda a, b: [item for item in unique(a) if not has(b, item)]),
    "$setEquals": lambda a, b: all(has(array(b), one) for one in array(a)) and all(has(a, one) for one in array(b)),
    "$setIsSubset": lambda a, b: all([has(array(b), one) for one in array(a)]) and array(b) is not None,
    "$allElementsTrue": lambda items: all(map(true, array(items))),
    "$anyElementTrue": lambda items: any(map(true, array(items))),
    "$mergeObjects": merge,
    "$concat": concat,
    "$toUpper": changed_case(str.upper),
    "$toLower": changed_case(str.lower),
    "$strLenCP": lambda text: len(text) if isinstance(text, str) else need(False),
    "$split": of_text(split),
    "$isNumber": number,
    "$type": type_of,
    "$year": of_date(lambda date: date.year),
    "$month": of_date(lambda date: date.month),
    "$dayOfMonth": of_date(lambda date: date.day),
    "$dayOfYear": of_date(lambda date: date.timetuple().tm_yday),
    "$dayOfWeek": of_date(lambda date: date.isoweekday() % 7 + 1),
    "$isoDayOfWeek": of_date(lambda date: date.isoweekday()),
    "$isoWeek": of_date(lambda date: date.isocalendar().week),
    "$hour": of_date(lambda date: date.hour),
    "$minute": of_date(lambda date: date.minute),
    "$second": of_date(lambda date: date.second),
    "$millisecond": of_date(lambda date: date.microsecond // 1000),
    "$sum": lambda *values: total(numbers(values)),
    "$avg": lambda *values: mean(numbers(values)),
    "$min": lambda *values: extreme(values, 0),
    "$max": lambda *values: extreme(values, -1),
}


# --- expressions ----------------------------------------------------------------------------------------------------


def evaluate(expression: Any, document: Doc, variables: Doc | None = None) -> Any:
    variables = {"ROOT": document, "CURRENT": document, **(variables or {})}

    def of(inner: Any, **more: Any) -> Any:
        return evaluate(inner, document, {**variables, **more})

    if isinstance(expression, str) and expression.startswith("$$"):
        name, *names = expression[2:].split(".")
        return path(variables[name], names)
    if isinstance(expression, str) and expression.startswith("$"):
        return path(variables["CURRENT"], expression[1:].split("."))
    if isinstance(expression, list):
        return [None if value is MISSING else value for value in map(of, expression)]
    if not isinstance(expression, dict):
        return expression
    name = next(iter(expression), "")
    if not name.startswith("$"):
        fields = {name: of(inner) for name, inner in expression.items()}
        return {name: value for name, value in fields.items() if value is not MISSING}
    argument = expression[name]
    if name in VALUES:
        values = [of(inner) for inner in (argument if isinstance(argument, list) else [argument])]
        return VALUES[name](*values)
    return _special(name, argument, of)


def _special(name: str, argument: Any, of: Callable[..., Any]) -> Any:
    if name == "$literal":
        return argument
    if name in ("$and", "$or"):
        return _decided(argument, name == "$or", of)
    if name == "$cond":
        return of(argument[1]) if true(of(argument[0])) else of(argument[2])
    if name == "$ifNull":
        for inner in argument[:-1]:
            value = of(inner)
            if not null(value):
                return value
        return of(argument[-1])
    if name == "$switch":
        found = (branch["then"] for branch in argument["branches"] if true(of(branch["case"])))
        return of(next(found, argument["default"]))
    if name == "$let":
        return of(argument["in"], **{name: of(inner) for name, inner in argument["vars"].items()})
    items = of(argument["input"])
    if null(items):
        return None
    if name == "$map":
        found = [of(argument["in"], this=item) for item in array(items)]
        return [None if value is MISSING else value for value in found]
    if name == "$filter":
        return [item for item in array(items) if true(of(argument["cond"], this=item))]
    assert name == "$reduce"
    value = of(argument["initialValue"])
    for item in array(items):
        value = of(argument["in"], this=item, value=value)
    return value


# --- pipelines ------------------------------------------------------------------------------------------------------


def run_pipeline(stages: list[Doc], documents: list[Doc]) -> list[Doc]:
    for stage in stages:
        ((name, argument),) = stage.items()
        documents = STAGES[name](argument, documents)
    return documents


def _computed(document: Doc, fields: Doc, base: Doc) -> Doc:
    result = dict(base)
    for name, inner in fields.items():
        value = evaluate(inner, document)
        if value is MISSING:
            result.pop(name, None)
        else:
            result[name] = value
    return result


def _project(argument: Doc, documents: list[Doc]) -> list[Doc]:
    kept = [name for name, inner in argument.items() if inner == 1]
    fields = {name: inner for name, inner in argument.items() if inner != 1}
    return [
        _computed(one, fields, {name: value for name, value in one.items() if name in kept or name == "_id"})
        for one in documents
    ]


def _group(argument: Doc, documents: list[Doc]) -> list[Doc]:
    groups: list[tuple[Any, list[Doc]]] = []
    for document in documents:
        key = evaluate(argument["_id"], document)
        if isinstance(argument["_id"], dict) and len(argument["_id"]) == 1:
            ((name, inner),) = argument["_id"].items()
            key = {name: None} if not name.startswith("$") and evaluate(inner, document) is MISSING else key
        key = None if key is MISSING else key
        found = next((members for other, members in groups if equal(other, key)), None)
        if found is None:
            groups.append((key, [document]))
        else:
            found.append(document)
    fields = {name: inner for name, inner in argument.items() if name != "_id"}
    return [
        {"_id": key} | {name: accumulate(inner, members) for name, inner in fields.items()} for key, members in groups
    ]


def accumulate(spec: Doc, documents: list[Doc]) -> Any:
    ((name, argument),) = spec.items()
    if name == "$count":
        return len(documents)
    if name == "$topN":
        outputs = {id(one): evaluate(argument["output"], one) for one in documents}  # of those that are left out, too
        values = [outputs[id(one)] for one in _sort(argument["sortBy"], documents)[: argument["n"]]]
        return [None if value is MISSING else value for value in values]
    if name == "$minN":
        values = [evaluate(argument["input"], one) for one in documents]
        return ordered([value for value in values if not null(value)])[: argument["n"]]
    values = [evaluate(argument, document) for document in documents]
    single = {
        "$sum": lambda: total([value for value in values if number(value)]),
        "$avg": lambda: mean([value for value in values if number(value)]),
        "$min": lambda: extreme((values,), 0),
        "$max": lambda: extreme((values,), -1),
        "$first": lambda: None if values[0] is MISSING else values[0],
        "$last": lambda: None if values[-1] is MISSING else values[-1],
        "$push": lambda: [value for value in values if value is not MISSING],
    }
    return single[name]()


def _sort(argument: Doc, documents: list[Doc]) -> list[Doc]:
    for name, direction in reversed(argument.items()):

        def key(document: Doc, name: str = name, direction: int = direction) -> Any:
            value = path(document, name.split("."))
            if isinstance(value, list):
                value = (ordered(value)[0 if direction == 1 else -1]) if value else MISSING
            elif value is MISSING:
                value = None
            return cmp_to_key(compare)(value)

        documents = sorted(documents, key=key, reverse=direction == -1)
    return documents


def _unwind(argument: str, documents: list[Doc]) -> list[Doc]:
    name = argument[1:]
    found = []
    for document in documents:
        value = document.get(name)
        if not null(value):
            found += [{**document, name: item} for item in (value if isinstance(value, list) else [value])]
    return found


def _replace(argument: Doc, documents: list[Doc]) -> list[Doc]:
    found = [evaluate(argument["newRoot"], document) for document in documents]
    need(all(isinstance(value, dict) for value in found))
    return found


STAGES: dict[str, Callable[[Any, list[Doc]], list[Doc]]] = {
    "$match": lambda argument, documents: [one for one in documents if true(evaluate(argument["$expr"], one))],
    "$project": _project,
    "$addFields": lambda argument, documents: [_computed(one, argument, one) for one in documents],
    "$group": _group,
    "$sort": _sort,
    "$unwind": _unwind,
    "$replaceRoot": _replace,
    "$limit": lambda count, documents: documents[:count],
    "$skip": lambda count, documents: documents[count:],
    "$unset": lambda name, documents: [{n: v for n, v in one.items() if n != name} for one in documents],
    "$count": lambda name, documents: [{name: len(documents)}] if documents else [],
}


def _decided(parts: list[Any], ends: bool, of: Callable[..., Any]) -> bool:
    """Return what $and or $or gives. Unsure where a constant could decide behind a part that is refused."""
    refused = False
    for part in parts:
        try:
            if true(of(part)) is ends:
                if refused:
                    raise Unsure
                return ends
        except Refused:
            refused = True
    if refused:
        raise Refused
    return not ends

"""The functions of $setWindowFields. Each gives one value for each document of a partition, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, TypeAlias

from replset.bson import DateTime, Decimal128, Int64, encode_key
from replset.errors import FailedToParseError
from replset.query.alike import FieldsReader
from replset.query.errors import show
from replset.query.expressions import Expression, fault
from replset.query.expressions.accumulator_states import as_double
from replset.query.expressions.accumulators import ACCUMULATORS
from replset.query.expressions.dates import UNITS, shifted
from replset.query.expressions.time_zones import ZULU
from replset.query.numbers import add, to_decimal
from replset.query.order import MISSING, is_null, is_number, type_name
from replset.query.sort import Sort
from replset.query.stages.stage import StageScope
from replset.query.stages.unwind import inner_value
from replset.query.time_limit import check_time

Order: TypeAlias = tuple[tuple[str, int], ...]
"""The fields of the sort, with 1 or -1."""
_MS: Final = {
    "week": 7 * 86_400_000,
    "day": 86_400_000,
    "hour": 3_600_000,
    "minute": 60_000,
    "second": 1000,
    "millisecond": 1,
}


class Documents(Sequence[dict[str, Any]]):
    """Documents that are kept as bytes, since decoded they take several times as much. Some are kept decoded."""

    _KEPT: ClassVar = 4096
    _TOGETHER: ClassVar = 32

    def __init__(self, reader: FieldsReader) -> None:
        self._rows: list[bytes] = []
        self._reader = reader
        self._decoded: dict[int, dict[str, Any]] = {}

    def add(self, raw: bytes, document: dict[str, Any]) -> None:
        """Add a document, which comes as bytes and decoded."""
        if len(self._rows) < self._KEPT:
            self._decoded[len(self._rows)] = document
        self._rows.append(raw)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: Any) -> Any:
        document = self._decoded.get(number)
        if document is None:
            if len(self._decoded) >= self._KEPT:
                self._decoded.clear()
            together = self._rows[number : number + self._TOGETHER]
            self._decoded.update(enumerate(self._reader.documents(together), number))
            document = self._decoded[number]
        return document


@dataclass(slots=True)
class Partition:
    """The documents of one partition in order."""

    documents: Sequence[dict[str, Any]]
    order: Order
    sort: Sort | None
    variables: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.documents)

    def value(self, expression: Expression, number: int) -> Any:
        return expression.evaluate(self.documents[number], self.variables)

    def position(self, number: int) -> Any:
        """Return the value of the only field of the sort."""
        return inner_value(self.documents[number], tuple(self.order[0][0].split(".")))

    def key(self, number: int) -> bytes:
        return b"" if self.sort is None else self.sort(self.documents[number])


Compute: TypeAlias = Callable[[Partition], Iterator[Any]]
Bounds: TypeAlias = Callable[[Partition], Iterator[tuple[int, int]]]
"""Gives for each document where its window begins and ends (exclusive). Neither ever moves back."""


def compile_function(spec: Mapping[str, Any], order: Order, scope: StageScope) -> Compute:
    """Return the function of `{$function: argument, window: {...}}`."""
    names = [name for name in spec if name != "window"]
    if len(names) != 1 or not names[0].startswith("$"):
        raise FailedToParseError(f"a window function needs exactly one operator, and perhaps 'window': {show(spec)}")
    name = names[0]
    argument = spec[name]
    if name in _WITHOUT_WINDOW:
        if "window" in spec:
            raise fault(5371601, f"{name} does not accept a 'window' field")
        return _WITHOUT_WINDOW[name](name, argument, order, scope)
    bounds = _bounds(spec.get("window"), order)
    if name in _WITH_WINDOW:
        return _WITH_WINDOW[name](name, argument, order, scope, bounds)
    if name not in ACCUMULATORS or name == "$mergeObjects":
        raise FailedToParseError(f"Unrecognized window function, {name:.80}")
    accumulator = scope.accumulator({name: argument}, name)

    def compute(partition: Partition) -> Iterator[Any]:
        state = accumulator.new_window(partition.variables)
        return _slide(partition, bounds, accumulator.argument, state)

    return compute


def paths_read(spec: Mapping[str, Any], scope: StageScope) -> frozenset[str]:
    """Return the paths that a function, which has been compiled, reads beside the sort's, as `Expression.paths`."""
    name = next(name for name in spec if name != "window")
    argument = spec[name]
    if name in ACCUMULATORS:
        return scope.accumulator({name: argument}, name).argument.paths
    is_expression = not isinstance(argument, Mapping) or next(iter(argument), "").startswith("$")
    parts = [argument] if is_expression else list(argument.values())
    return scope.expression(parts).paths


def _slide(partition: Partition, bounds: Bounds, argument: Expression, state: Any) -> Iterator[Any]:
    documents, variables, read = partition.documents, partition.variables, argument.quickly
    start = end = 0
    result: Any = MISSING
    for low, high in bounds(partition):
        if result is MISSING or start < low or end < high:
            while end < high:
                check_time()
                state.add(read(documents[end], variables))
                end += 1
            while start < low and start < end:
                check_time()
                state.remove(read(documents[start], variables))
                start += 1
            result = state.result()
        yield result


# --- windows ------------------------------------------------------------------------------------------------------


def _bounds(window: Any, order: Order) -> Bounds:
    """Return the bounds of `{documents: [lower, upper]}` or `{range: [lower, upper], unit}`; without one, of all."""
    if window is None:
        return partial(_documents_bounds, lower=None, upper=None)
    if not isinstance(window, Mapping):
        raise FailedToParseError("'window' field must be an object")
    kind = "range" if "range" in window else "documents"
    if "documents" in window and ("range" in window or "unit" in window):
        raise FailedToParseError("a window has either 'documents', or 'range' and 'unit'")
    if not window.keys() <= {"documents", "range", "unit"}:
        raise FailedToParseError(f"'window' field has an unknown field: {show(window)}")
    if kind not in window:
        if window:
            raise FailedToParseError("Window bounds can only specify 'unit' with range-based bounds.")
        return partial(_documents_bounds, lower=None, upper=None)
    pair = window[kind]
    if type(pair) is not list or len(pair) != 2:
        raise FailedToParseError(f"Window bounds must be a 2-element array: {show(pair)}")
    lower, upper = (_bound(value, kind) for value in pair)
    if lower is not None and upper is not None and encode_key(lower) > encode_key(upper):
        raise fault(5339900, f"Lower bound must not exceed upper bound: {show(pair)}")
    if kind == "documents":
        if not order and pair != ["unbounded", "unbounded"]:
            raise fault(5339901, "Document-based bounds require a sortBy")
        return partial(_documents_bounds, lower=lower, upper=upper)
    if len(order) != 1 or order[0][1] < 0:
        raise fault(5339902, "Range-based bounds require a sortBy of a single ascending field")
    unit = window.get("unit")
    if unit is not None and unit not in UNITS:
        raise FailedToParseError(f"unknown time unit value: {show(unit)}")
    if unit is not None and any(type(value) is float and value % 1 for value in (lower, upper)):
        raise FailedToParseError("With 'unit', range-based bounds must be an integer")
    return partial(_range_bounds, lower=lower, upper=upper, unit=unit)


def _bound(value: Any, kind: str) -> Any:
    """Return a bound relative to the document, None for an unbounded one."""
    if value == "unbounded":
        return None
    if value == "current":
        return 0
    if not is_number(value):
        raise FailedToParseError(f"Window bounds must be 'unbounded', 'current', or a number, not {type_name(value)}")
    if kind == "documents":
        if type(value) is Decimal128 or value % 1:
            raise FailedToParseError("Numeric document-based bounds must be an integer")
        return int(value)
    return value


def _documents_bounds(partition: Partition, lower: int | None, upper: int | None) -> Iterator[tuple[int, int]]:
    count = len(partition)
    for number in range(count):
        low = 0 if lower is None else max(0, number + lower)
        yield low, count if upper is None else min(count, max(0, number + upper + 1))


def _range_bounds(partition: Partition, lower: Any, upper: Any, unit: str | None) -> Iterator[tuple[int, int]]:
    count = len(partition)
    positions = [_checked(partition.position(number), unit) for number in range(count)]
    keys = [encode_key(value) for value in positions]
    low = high = 0
    for value in positions:
        if lower is not None:
            least = encode_key(_moved(value, lower, unit))
            while low < count and keys[low] < least:
                low += 1
        if upper is None:
            high = count
        else:
            greatest = encode_key(_moved(value, upper, unit))
            while high < count and keys[high] <= greatest:
                high += 1
        yield low, high


def _checked(value: Any, unit: str | None) -> Any:
    if unit is not None and type(value) is not DateTime:
        raise fault(5429513, f"Invalid range: Expected the sortBy field to be a Date, but it was {type_name(value)}")
    if unit is None and not is_number(value):
        raise fault(5429414, f"Invalid range: Expected the sortBy field to be a number, but it was {type_name(value)}")
    return value


def _moved(value: Any, by: Any, unit: str | None) -> Any:
    if unit is not None:
        return DateTime(max(-(1 << 63), min((1 << 63) - 1, shifted(value.ms, unit, int(by), ZULU))))
    try:
        return add(value, by)
    except OverflowError:
        return float(value) + float(by)


# --- functions with a window of their own ---------------------------------------------------------------------------


def _need_order(name: str, order: Order, code: int) -> None:
    if len(order) != 1:
        raise fault(code, f"{name} must be specified with a top level sortBy expression with exactly one element")


def _rank(name: str, argument: Any, order: Order, _scope: StageScope) -> Compute:
    if argument != {}:
        raise fault(5371603, f"(None) {name} must be specified with '{{}}' as the value")
    if name != "$documentNumber":
        _need_order(name, order, 5371602)
    elif not order:
        raise fault(5371602, f"{name} must be specified with a top level sortBy")

    def compute(partition: Partition) -> Iterator[int]:
        rank = dense = 0
        before: bytes | None = None
        for number in range(len(partition)):
            key = partition.key(number)
            if key != before:
                rank, dense, before = number + 1, dense + 1, key
            yield {"$rank": rank, "$denseRank": dense}.get(name, number + 1)

    return compute


def _shift(name: str, argument: Any, order: Order, scope: StageScope) -> Compute:
    if not isinstance(argument, Mapping) or not {"output", "by"} <= argument.keys() <= {"output", "by", "default"}:
        raise FailedToParseError(f"{name} requires 'output' and 'by', and takes 'default': {show(argument)}")
    if not order:
        raise FailedToParseError(f"{name} requires a sortBy")
    by = argument["by"]
    if not is_number(by) or type(by) is Decimal128 or by % 1:
        raise FailedToParseError(f"'{name}:by' field must be an integer, but found by: {show(by)}")
    output = scope.expression(argument["output"])
    default = scope.expression(argument.get("default"))
    if not default.is_constant:
        raise FailedToParseError(f"'{name}:default' expression must yield a constant value.")

    def compute(partition: Partition) -> Iterator[Any]:
        for number in range(len(partition)):
            place = number + int(by)
            yield partition.value(output, place) if 0 <= place < len(partition) else default.value

    return compute


def _moving_average(name: str, argument: Any, order: Order, scope: StageScope) -> Compute:
    if not order:
        raise FailedToParseError(f"{name} requires an explicit 'sortBy'")
    if not isinstance(argument, Mapping) or "input" not in argument or len(argument) != 2:
        raise FailedToParseError(f"{name} needs 'input' and either 'N' or 'alpha': {show(argument)}")
    source = scope.expression(argument["input"])
    alpha: float
    if "N" in argument:
        count = argument["N"]
        if type(count) not in (int, Int64, float) or count % 1 or count <= 0:
            raise FailedToParseError(f"'N' field must be an integer greater than zero, but found {show(count)}")
        alpha = 2 / (count + 1)
    elif "alpha" in argument and is_number(argument["alpha"]):
        alpha = as_double(argument["alpha"])
        if not 0 < alpha < 1:
            raise FailedToParseError(f"'alpha' must be between 0 and 1 (exclusive), found alpha: {show(alpha)}")
    else:
        raise FailedToParseError(f"{name} needs 'input' and either 'N' or 'alpha': {show(argument)}")

    def compute(partition: Partition) -> Iterator[Any]:
        average: Any = None
        is_decimal = False
        for number in range(len(partition)):
            value = partition.value(source, number)
            if is_number(value):
                is_decimal = is_decimal or type(value) is Decimal128
                exact: Any = to_decimal(value) if is_decimal else float(value)
                if average is None:
                    average = exact
                elif is_decimal:
                    average = to_decimal(alpha) * exact + (1 - to_decimal(alpha)) * to_decimal(average)
                else:
                    average = alpha * exact + (1 - alpha) * average
            yield Decimal128.from_decimal(average) if is_decimal else average

    return compute


def _last_known(_name: str, argument: Any, _order: Order, scope: StageScope) -> Compute:
    source = scope.expression(argument)

    def compute(partition: Partition) -> Iterator[Any]:
        known: Any = None
        for number in range(len(partition)):
            value = partition.value(source, number)
            known = known if is_null(value) else value
            yield known

    return compute


def _linear_fill(name: str, argument: Any, order: Order, scope: StageScope) -> Compute:
    if len(order) != 1:
        raise fault(6050001, f"{name} must be specified with a top level sortBy expression with exactly one element")
    source = scope.expression(argument)

    def compute(partition: Partition) -> Iterator[Any]:
        before: tuple[Any, Any] | None = None  # position and value of the last known one
        number, count = 0, len(partition)
        while number < count:
            value = partition.value(source, number)
            if not is_null(value):
                before = _position(partition, number), _number(value, name)
                yield value
                number += 1
                continue
            end = number
            while end < count and is_null(partition.value(source, end)):
                end += 1
            after = None
            if before is not None and end < count:
                after = _position(partition, end), _number(partition.value(source, end), name)
            for place in range(number, end):
                yield None if before is None or after is None else _between(before, after, _position(partition, place))
            number = end

    return compute


def _number(value: Any, name: str) -> Any:
    if not is_number(value):
        raise fault(6050106, f"Value to be filled by {name} must be numeric or nullish, but found {type_name(value)}")
    return value


def _position(partition: Partition, number: int) -> Any:
    """Return where a document lies in the order, as a number."""
    value = partition.position(number)
    if type(value) is DateTime:
        return value.ms
    if not is_number(value):
        raise fault(6050102, f"the sortBy field must be a number or a date here, but it was {type_name(value)}")
    return value


def _between(before: tuple[Any, Any], after: tuple[Any, Any], place: Any) -> Any:
    values: tuple[Any, ...] = (*before, *after, place)
    is_decimal = any(type(value) is Decimal128 for value in values)
    exact: list[Any] = [to_decimal(value) if is_decimal else as_double(value) for value in values]
    x0, y0, x1, y1, x = exact
    if x1 == x0:
        raise fault(6050106, "There can be no repeated values in the sort field")
    result: Any = y0 + (x - x0) * (y1 - y0) / (x1 - x0)
    return Decimal128.from_decimal(result) if is_decimal else result


# --- functions with a window ---------------------------------------------------------------------------------------


def _steps(name: str, argument: Any, order: Order, scope: StageScope) -> tuple[Expression, int]:
    """Return the input of $derivative or $integral, and the milliseconds of its unit, 0 without one."""
    if not isinstance(argument, Mapping) or not {"input"} <= argument.keys() <= {"input", "unit"}:
        raise FailedToParseError(f"{name} requires 'input', and takes 'unit': {show(argument)}")
    _need_order(name, order, 5624901)
    unit = argument.get("unit")
    if unit is not None and unit not in _MS:
        raise fault(5490710, f"{name}'s unit must be 'week' or smaller: {show(unit)}")
    return scope.expression(argument["input"]), 0 if unit is None else _MS[unit]


def _point(partition: Partition, source: Expression, unit_ms: int, number: int, name: str) -> tuple[float, Any]:
    """Return position and value of a document, as floats."""
    position, value = partition.position(number), partition.value(source, number)
    if unit_ms and type(position) is not DateTime:
        raise fault(5624900, f"{name} with 'unit' expects the sortBy field to be a Date")
    if not unit_ms and not is_number(position):
        raise fault(5624902, f"{name} where the sortBy is a Date requires an 'unit'")
    if not is_number(value):
        raise fault(5624903, f"{name} needs numbers as its input, not {type_name(value)}")
    return position.ms / unit_ms if unit_ms else as_double(position), as_double(value)


def _derivative(name: str, argument: Any, order: Order, scope: StageScope, bounds: Bounds) -> Compute:
    source, unit_ms = _steps(name, argument, order, scope)

    def compute(partition: Partition) -> Iterator[Any]:
        for low, high in bounds(partition):
            if high - low < 2:
                yield None
                continue
            x0, y0 = _point(partition, source, unit_ms, low, name)
            x1, y1 = _point(partition, source, unit_ms, high - 1, name)
            yield (y1 - y0) / (x1 - x0) if x1 != x0 else None

    return compute


def _integral(name: str, argument: Any, order: Order, scope: StageScope, bounds: Bounds) -> Compute:
    source, unit_ms = _steps(name, argument, order, scope)

    def compute(partition: Partition) -> Iterator[Any]:
        sums = [0.0]
        before: tuple[float, Any] | None = None
        for number in range(len(partition)):
            x, y = _point(partition, source, unit_ms, number, name)
            if before is not None:
                sums.append(sums[-1] + (x - before[0]) * (y + before[1]) / 2)
            before = x, y
        for low, high in bounds(partition):
            yield sums[high - 1] - sums[low] if high > low else None

    return compute


class _Covariance:
    """The covariance of pairs of numbers, of all or of a sample; null of fewer than two for a sample."""

    def __init__(self, is_sample: bool) -> None:
        self._is_sample = is_sample
        self._count = 0
        self._x = self._y = self._sum = 0.0

    def add(self, pair: Any) -> None:
        if (values := _pair(pair)) is not None:
            x, y = values
            self._count += 1
            dx = x - self._x
            self._x += dx / self._count
            self._y += (y - self._y) / self._count
            self._sum += dx * (y - self._y)

    def remove(self, pair: Any) -> None:
        if (values := _pair(pair)) is not None:
            x, y = values
            self._count -= 1
            if not self._count:
                self._x = self._y = self._sum = 0.0
                return
            dy = y - self._y
            self._x -= (x - self._x) / self._count
            self._y -= dy / self._count
            self._sum -= (x - self._x) * dy

    def result(self) -> float | None:
        divisor = self._count - self._is_sample
        return self._sum / divisor if divisor > 0 else None


def _pair(pair: Any) -> tuple[float, float] | None:
    if type(pair) is not list or len(pair) != 2 or not (is_number(pair[0]) and is_number(pair[1])):
        return None
    return as_double(pair[0]), as_double(pair[1])


def _covariance(name: str, argument: Any, _order: Order, scope: StageScope, bounds: Bounds) -> Compute:
    if type(argument) is not list or len(argument) != 2:
        raise FailedToParseError(f"{name} needs an array of two expressions: {show(argument)}")
    source = scope.expression(argument)
    return lambda partition: _slide(partition, bounds, source, _Covariance(name == "$covarianceSamp"))


_WITHOUT_WINDOW: Final[dict[str, Callable[[str, Any, Order, StageScope], Compute]]] = {
    "$rank": _rank,
    "$denseRank": _rank,
    "$documentNumber": _rank,
    "$shift": _shift,
    "$expMovingAvg": _moving_average,
    "$locf": _last_known,
    "$linearFill": _linear_fill,
}
_WITH_WINDOW: Final[dict[str, Callable[[str, Any, Order, StageScope, Bounds], Compute]]] = {
    "$derivative": _derivative,
    "$integral": _integral,
    "$covariancePop": _covariance,
    "$covarianceSamp": _covariance,
}

"""Groups documents by a value and sums numbers for each group, as the stage $group does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from replset.bson import Decimal128, Int64, encode_key
from replset.errors import ErrorCode, ReplError
from replset.query.arithmetic import add, to_stored_int
from replset.query.errors import not_built
from replset.query.order import MISSING
from replset.query.paths import field_path
from replset.query.pipeline_names import ACCUMULATORS, EXPRESSIONS
from replset.query.row import Row

Expression = Callable[[Row], object]
"""Gives the value of an expression for a document, MISSING when there is none."""
MAX_BYTES: Final = 100 << 20
_GROUP_BYTES: Final = 200
"""What Python takes for a group beside its key and value."""


@dataclass(frozen=True, slots=True)
class Constant:
    """An expression with the same value for every document."""

    value: object

    def __call__(self, _row: Row) -> object:
        return self.value


class Sum:
    """The sum of the numbers that are added; other values count as nothing. See arithmetic.py for the result's type."""

    __slots__ = ("_decimal", "_error", "_float", "_int", "_is_long")

    def __init__(self) -> None:
        self._int = 0
        self._is_long = False
        self._float: float | None = None
        self._error = 0.0
        """What was lost by rounding, as Kahan and Babuska keep it."""
        self._decimal: object = None

    def add(self, value: object, times: int = 1) -> None:
        """Add the value once, or a whole number so many times."""
        if type(value) is int or type(value) is Int64:
            self._int += value * times
            self._is_long = self._is_long or type(value) is Int64
        elif type(value) is float:
            before = self._float or 0.0
            total = before + value
            larger, smaller = (before, value) if abs(before) >= abs(value) else (value, before)
            self._error += (larger - total) + smaller
            self._float = total
        elif type(value) is Decimal128:
            self._decimal = value if self._decimal is None else add(self._decimal, value)

    def result(self) -> object:
        """Return the sum. An int that does not fit 64 bits becomes a double."""
        try:
            total: object = to_stored_int(self._int, self._is_long)
        except OverflowError:
            total = float(self._int)
        if self._float is not None:
            exact = self._float + self._error
            total = float(self._int) + (exact if exact == exact else self._float)
        return total if self._decimal is None else add(self._decimal, total)


class Group:
    """The groups of a $group. A group's value is the first that was seen: 1 and 1.0 are one group."""

    def __init__(self, key: Expression, fields: Mapping[str, Expression]) -> None:
        """fields: the argument of $sum by the name of the field that shows it."""
        self._key = key
        self._fields = fields
        self._groups: dict[bytes, tuple[object, list[Sum]]] = {}
        self.memory_bytes = 0

    def add(self, row: Row, times: int = 1) -> None:
        """Count the document in its group, with `only_counts` so many documents. 292 over 100 MiB of groups."""
        value = self._key(row)
        if value is MISSING:
            value = None
        key = encode_key(value)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = value, [Sum() for _ in self._fields]
            self.memory_bytes += 2 * len(key) + _GROUP_BYTES * (1 + len(self._fields))
            if self.memory_bytes > MAX_BYTES:
                raise ReplError(
                    "Exceeded memory limit for $group, but didn't allow external sort. Pass allowDiskUse:true to opt"
                    " in.",
                    code=ErrorCode.SORT_EXCEEDED_MEMORY_LIMIT,
                )
        for total, of in zip(group[1], self._fields.values(), strict=True):
            total.add(of(row), times)

    @property
    def only_counts(self) -> bool:
        """Whether the documents do not matter, only how many there are."""
        return all(
            isinstance(of, Constant) and type(of.value) not in (float, Decimal128)
            for of in (self._key, *self._fields.values())
        )

    def rows(self) -> list[Row]:
        """Return the groups as documents."""
        return [
            Row(document={"_id": value, **{name: sum_.result() for name, sum_ in zip(self._fields, sums, strict=True)}})
            for value, sums in self._groups.values()
        ]


def compile_expression(value: object) -> Expression:
    """Return the function of a constant or of a path such as "$a.b". Other expressions are not built."""
    if type(value) is str and value.startswith("$"):
        return _path_expression(value)
    if isinstance(value, Mapping) and value:
        name = next(iter(value))
        if name.startswith("$") and name not in EXPRESSIONS:
            raise ReplError(f"Unrecognized expression '{name:.80}'", code=ErrorCode.INVALID_PIPELINE_OPERATOR)
        raise not_built(f"the expression {name:.80}" if name.startswith("$") else "an expression that makes a document")
    if type(value) is list and value:
        raise not_built("an expression that makes an array")
    return Constant(value)


def _path_expression(text: str) -> Expression:
    if text == "$":
        raise ReplError("'$' by itself is not a valid FieldPath", code=ErrorCode.DOLLAR_ALONE)
    if text.startswith("$$"):
        raise not_built(f"the variable {text:.80}")
    path = field_path(text[1:])
    return lambda row: _value_at(row.document, path)


def _value_at(value: Mapping[str, object], path: tuple[str, ...]) -> object:
    """Return the value at a path. Below an array it is the list of the values in the array's documents."""
    for depth, name in enumerate(path[:-1]):
        inner = value.get(name)
        if type(inner) is list:
            rest = path[depth + 1 :]
            found = [_value_at(item, rest) for item in inner if isinstance(item, Mapping)]
            return [item for item in found if item is not MISSING]
        if not isinstance(inner, Mapping):
            return MISSING
        value = inner
    return value.get(path[-1], MISSING)


def compile_group(spec: object) -> Group:
    """Return the groups of `{_id: expression, name: {$sum: expression}}`, still without a document.

    Raises 15947, 15952, 15955, 40234, 40235, 40236 and 40238 as MongoDB, 238 for another accumulator.
    """
    if not isinstance(spec, Mapping):
        raise ReplError("a group's fields must be specified in an object", code=ErrorCode.GROUP_NO_OBJECT)
    if "_id" not in spec:
        raise ReplError("a group specification must include an _id", code=ErrorCode.GROUP_WITHOUT_ID)
    fields: dict[str, Expression] = {}
    for name, accumulator in spec.items():
        if name != "_id":
            fields[name] = _sum_argument(name, accumulator)
    return Group(compile_expression(spec["_id"]), fields)


def _sum_argument(name: str, accumulator: object) -> Expression:
    if "." in name:
        raise ReplError(f"The field name '{name:.80}' cannot contain '.'", code=ErrorCode.GROUP_FIELD_DOT)
    if name.startswith("$"):
        raise ReplError(f"The field name '{name:.80}' cannot be an operator name", code=ErrorCode.GROUP_FIELD_DOLLAR)
    if not isinstance(accumulator, Mapping):
        raise ReplError(
            f"The field '{name:.80}' must be an accumulator object", code=ErrorCode.GROUP_FIELD_NO_ACCUMULATOR
        )
    if len(accumulator) != 1:
        raise ReplError(
            f"The field '{name:.80}' must specify one accumulator", code=ErrorCode.GROUP_FIELD_TWO_ACCUMULATORS
        )
    ((operator, operand),) = accumulator.items()
    if operator not in ACCUMULATORS:
        raise ReplError(f"unknown group operator '{operator:.80}'", code=ErrorCode.UNKNOWN_GROUP_OPERATOR)
    if operator != "$sum":
        raise not_built(f"the accumulator {operator}")
    return compile_expression(operand)

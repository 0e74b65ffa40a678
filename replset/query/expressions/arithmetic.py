"""Operators on numbers, and on dates as numbers of milliseconds.

The result has the widest type of the arguments: int, long, double, decimal. An int that does not fit becomes a long, a
long that does not fit a double.
"""

from __future__ import annotations

import decimal
import math
import operator
from collections.abc import Callable
from typing import Any, Final

from replset.bson import DateTime, Decimal128, Int64
from replset.bson.values import INT64_MAX, INT64_MIN
from replset.errors import BadValueError, ErrorCode, TypeMismatchError
from replset.query.expressions.compiler import Operator, fault, plain
from replset.query.numbers import DECIMAL128, INT32, is_long, to_decimal, whole_number
from replset.query.order import is_null, is_number, type_name

WIDE: Final = decimal.Context(prec=12_500, Emin=-decimal.MAX_EMAX, Emax=decimal.MAX_EMAX, traps=[])
"""A context that holds every decimal exactly."""
_PRECISE: Final = decimal.Context(prec=50, traps=[])
_MAX_DIGITS: Final = 34
_PLAIN: Final = frozenset({int, float})
"""The types of most numbers, which Python adds and multiplies as BSON does."""


def to_value(number: decimal.Decimal) -> Decimal128:
    """Return the decimal, rounded to 34 digits."""
    return Decimal128.from_decimal(DECIMAL128.plus(number))


def stored(number: int, long: bool) -> Any:
    """Return an int result: a long if a number was `long` or it does not fit into an int, a double beyond that."""
    if not INT64_MIN <= number <= INT64_MAX:
        return float(number)
    return Int64(number) if long or is_long(number) else number


def _date(ms: Any, name: str) -> DateTime:
    if not INT64_MIN <= ms <= INT64_MAX:
        raise fault(ErrorCode.OVERFLOW, f"date overflow in {name}")
    return DateTime(int(ms))


def _add(*values: Any) -> Any:
    if len(values) == 2 and type(values[0]) in _PLAIN and type(values[1]) in _PLAIN:
        return _widest(*values, operator.add, DECIMAL128.add)
    total: Any = 0
    long = has_date = False
    for value in values:
        kind = type(value)
        if kind is int or kind is Int64 or kind is DateTime:
            if kind is DateTime:
                if has_date:
                    raise fault(16612, "only one date allowed in an $add expression")
                has_date = True
                value = value.ms
            long = long or kind is Int64 or is_long(value)
            value = int(value)
        elif is_null(value):
            return None
        elif not is_number(value):
            raise TypeMismatchError(f"$add only supports numeric or date types, not {type_name(value)}")
        if type(total) is decimal.Decimal:
            total = DECIMAL128.add(total, to_decimal(value))
        elif kind is Decimal128:
            total = DECIMAL128.add(DECIMAL128.create_decimal(total), to_decimal(value))
        elif type(total) is float or kind is float:
            total = float(total) + value
        else:
            total += value
            if not INT64_MIN <= total <= INT64_MAX:
                total = float(total)  # and stays one
    if has_date:
        if total != total or total in (math.inf, -math.inf):
            raise fault(ErrorCode.OVERFLOW, "date overflow in $add")
        return _date(round(total), "$add")
    if type(total) is decimal.Decimal:
        return Decimal128.from_decimal(total)
    return total if type(total) is float else stored(total, long)


def _subtract(a: Any, b: Any) -> Any:
    if is_number(a) and is_number(b):
        return _widest(a, b, operator.sub, DECIMAL128.subtract)
    if is_null(a) or is_null(b):
        return None
    if type(a) is DateTime and type(b) is DateTime:
        difference = a.ms - b.ms
        if not INT64_MIN <= difference <= INT64_MAX:
            raise fault(ErrorCode.OVERFLOW, "date overflow in $subtract")
        return Int64(difference)
    if type(a) is DateTime and is_number(b):
        number = b.to_decimal() if type(b) is Decimal128 else b
        if number != number or number in (math.inf, -math.inf):
            raise fault(ErrorCode.OVERFLOW, "date overflow in $subtract")
        return _date(a.ms - int(number), "$subtract")
    raise TypeMismatchError(f"can't $subtract {type_name(b)} from {type_name(a)}")


def _multiply(a: Any = 1, b: Any = 1, *more: Any) -> Any:
    if type(a) in _PLAIN and type(b) in _PLAIN and not more:
        product = a * b
        return product if type(product) is float else stored(product, is_long(a) or is_long(b))
    total: Any = 1
    for value in (a, b, *more):
        if is_null(value):
            return None
        if not is_number(value):
            raise TypeMismatchError(f"$multiply only supports numeric types, not {type_name(value)}")
        total = _widest(total, value, operator.mul, DECIMAL128.multiply)
    return total


def _widest(a: Any, b: Any, calculate: Callable[[Any, Any], Any], with_decimals: Callable[..., Any]) -> Any:
    """Return the result in the widest of the two types. A long that does not fit becomes a double."""
    if type(a) in _PLAIN and type(b) in _PLAIN:
        result = calculate(a, b)
        return result if type(result) is float else stored(result, is_long(a) or is_long(b))
    if type(a) is Decimal128 or type(b) is Decimal128:
        return Decimal128.from_decimal(with_decimals(to_decimal(a), to_decimal(b)))
    if type(a) is float or type(b) is float:
        return calculate(float(a), float(b))
    return stored(calculate(int(a), int(b)), is_long(a) or is_long(b))


def _divide(a: Any, b: Any) -> Any:
    if not (is_number(a) and is_number(b)):
        if is_null(a) or is_null(b):
            return None
        raise TypeMismatchError(f"$divide only supports numeric types, not {type_name(a)} and {type_name(b)}")
    if type(a) is Decimal128 or type(b) is Decimal128:
        divisor = to_decimal(b)
        if divisor == 0:
            raise BadValueError("can't $divide by zero")
        return Decimal128.from_decimal(DECIMAL128.divide(to_decimal(a), divisor))
    if b == 0:
        raise BadValueError("can't $divide by zero")
    return float(a) / float(b)


def _mod(a: Any, b: Any) -> Any:
    """Return the remainder, which has the sign of `a`."""
    if not (is_number(a) and is_number(b)):
        if is_null(a) or is_null(b):
            return None
        raise fault(16611, f"$mod only supports numeric types, not {type_name(a)} and {type_name(b)}")
    if type(a) is Decimal128 or type(b) is Decimal128:
        divisor = to_decimal(b)
        if divisor == 0:
            raise fault(5733415, "can't $mod by zero")
        return to_value(WIDE.remainder(to_decimal(a), divisor))
    if b == 0:
        raise fault(16610, "can't $mod by zero")
    if type(a) is float or (type(b) is float and whole_number(b, INT32) is None):
        return math.fmod(a, b) if math.isfinite(a) else math.nan
    x, y = int(a), int(b)
    return stored(int(math.copysign(1, x)) * (abs(x) % abs(y)), is_long(a) or is_long(b))


def numeric(name: str, function: Callable[[Any], Any], with_decimal: Callable[[decimal.Decimal], Any]) -> Operator:
    """Return an operator on one number. with_decimal: the function of a decimal; its result is rounded."""

    def run(value: Any) -> Any:
        if type(value) is Decimal128:
            number = value.to_decimal()
            return value if number.is_nan() else to_value(with_decimal(number))
        if not is_number(value):
            raise fault(28765, f"{name} only supports numeric types, not {type_name(value)}")
        return function(value)

    return plain(name, run, null_if_null=True)


def _abs(value: Any) -> Any:
    if value == INT64_MIN and type(value) is not float:
        raise fault(28680, "can't take $abs of long long min")
    return abs(value) if type(value) is float else stored(abs(int(value)), type(value) is Int64)


def _whole(function: Callable[[float], int]) -> Callable[[Any], Any]:
    """Return $ceil or $floor of a number that is no decimal."""
    return lambda value: (
        math.copysign(float(function(value)), value) if type(value) is float and math.isfinite(value) else value
    )


def quantized(number: decimal.Decimal, places: int, rounding: str) -> decimal.Decimal:
    """Return the decimal with so many places, or as many as 34 digits allow."""
    if not number.is_finite():
        return number
    return number.quantize(decimal.Decimal(1).scaleb(-min(places, _MAX_DIGITS - 1 - number.adjusted())), rounding, WIDE)


def _rounded(name: str, rounding: str) -> Operator:
    """Return $round or $trunc."""

    def run(value: Any, places: Any = 0) -> Any:
        if is_null(value) or is_null(places):
            return None
        if not is_number(value):
            raise fault(51081, f"{name} only supports numeric types, not {type_name(value)}")
        precision = whole_number(places, INT32)
        if precision is None:
            raise fault(51082, f"precision argument to {name} must be a integral value")
        if not -20 <= precision <= 100:
            raise fault(51083, f"cannot apply {name} with precision value {precision} value must be in [-20, 100]")
        if type(value) is Decimal128:
            return to_value(quantized(value.to_decimal(), precision, rounding))
        if (type(value) is not float and precision >= 0) or value != value or value in (math.inf, -math.inf):
            return value
        exact = decimal.Decimal(value).quantize(decimal.Decimal(1).scaleb(-precision), rounding, WIDE)
        if type(value) is float:
            return float(exact)
        result = int(exact)
        if not INT64_MIN <= result <= INT64_MAX:
            raise fault(51080, f"the result of {name} of [{value}, {precision}] does not fit into 64 bits")
        return stored(result, is_long(value))

    return plain(name, run, 1, 2)


def _pow(base: Any, exponent: Any) -> Any:
    for value, code, what in ((base, 28762, "base"), (exponent, 28763, "exponent")):
        if not is_number(value):
            raise fault(code, f"$pow's {what} must be numeric, not {type_name(value)}")
    if type(base) is Decimal128 or type(exponent) is Decimal128:
        x, y = to_decimal(base), to_decimal(exponent)
        _refuse_zero_to_negative(x == 0 and not y.is_nan() and y < 0)
        return Decimal128.from_decimal(DECIMAL128.power(x, y) if y != 0 else decimal.Decimal(1))
    _refuse_zero_to_negative(base == 0 and exponent < 0)
    if type(base) is not float and type(exponent) is not float:
        result = _int_power(int(base), int(exponent))
        if INT64_MIN <= result <= INT64_MAX:
            return stored(result, is_long(base) or is_long(exponent))
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return -math.inf if base < 0 and exponent % 2 == 1 else math.inf
    except ValueError:
        return math.nan


def _int_power(base: int, exponent: int) -> int:
    """Return the power, something beyond 64 bits if it is no such int."""
    if abs(base) <= 1:
        return base ** (exponent % 2 + 2) if exponent else 1
    return base**exponent if 0 <= exponent <= 63 else 1 << 64


def _refuse_zero_to_negative(is_it: bool) -> None:
    if is_it:
        raise fault(28764, "$pow cannot take a base of 0 and a negative exponent")


def _exp(value: Any) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def _root(value: Any) -> Any:
    if value < 0:
        raise fault(28714, "$sqrt's argument must be greater than or equal to 0")
    return DECIMAL128.sqrt(value) if type(value) is decimal.Decimal else math.sqrt(value)


def _logarithm(
    name: str, code: int, function: Callable[[float], float], with_decimal: Callable[[decimal.Decimal], decimal.Decimal]
) -> Operator:
    """Return $ln or $log10."""

    def checked(value: Any) -> Any:
        if value <= 0:
            raise fault(code, f"{name}'s argument must be a positive number, but is {value}")
        return with_decimal(value) if type(value) is decimal.Decimal else function(value)

    return numeric(name, checked, checked)


def _log(value: Any, base: Any) -> Any:
    for number, code, what in ((value, 28756, "argument"), (base, 28757, "base")):
        if not is_number(number):
            raise fault(code, f"$log's {what} must be numeric, not {type_name(number)}")
    has_decimal = type(value) is Decimal128 or type(base) is Decimal128
    x, b = (to_decimal(value), to_decimal(base)) if has_decimal else (float(value), float(base))
    if x != x or b != b:
        return Decimal128("NaN") if has_decimal else math.nan
    if x <= 0:
        raise fault(28758, f"$log's argument must be a positive number, but is {x}")
    if b <= 0 or b == 1:
        raise fault(28759, f"$log's base must be a positive number not equal to 1, but is {b}")
    if isinstance(x, decimal.Decimal):
        return to_value(_PRECISE.divide(_PRECISE.ln(x), _PRECISE.ln(to_decimal(base))))
    return math.log(x) / math.log(b)


OPERATORS: Final = (
    plain("$add", _add, 0, None, is_light=True),
    plain("$subtract", _subtract, 2, is_light=True),
    plain("$multiply", _multiply, 0, None, is_light=True),
    plain("$divide", _divide, 2, is_light=True),
    plain("$mod", _mod, 2),
    numeric("$abs", _abs, decimal.Decimal.copy_abs),
    numeric("$ceil", _whole(math.ceil), lambda number: quantized(number, 0, decimal.ROUND_CEILING)),
    numeric("$floor", _whole(math.floor), lambda number: quantized(number, 0, decimal.ROUND_FLOOR)),
    _rounded("$round", decimal.ROUND_HALF_EVEN),
    _rounded("$trunc", decimal.ROUND_DOWN),
    plain("$pow", _pow, 2, null_if_null=True),
    numeric("$exp", _exp, DECIMAL128.exp),
    numeric("$sqrt", _root, _root),
    _logarithm("$ln", 28766, math.log, DECIMAL128.ln),
    _logarithm("$log10", 28761, math.log10, DECIMAL128.log10),
    plain("$log", _log, 2, null_if_null=True),
)

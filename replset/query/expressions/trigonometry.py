"""Trigonometric operators: doubles by the C library, decimals by series to 34 digits."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from replset.bson import Decimal128
from replset.query.expressions.arithmetic import numeric, to_value
from replset.query.expressions.compiler import Operator, fault, plain
from replset.query.numbers import to_decimal
from replset.query.order import is_number, type_name

_PRECISE: Final = decimal.Context(prec=90, Emin=-99_999, Emax=99_999, traps=[])
"""More digits than a result has, since a difference of two close numbers loses some."""
_PI: Final = Decimal(
    "3.1415926535897932384626433832795028841971693993751058209749445923078164062862089986280348253421170679"
)
_LARGEST_ANGLE: Final = Decimal("1E+40")
"""Beyond it the digits of _PI do not suffice."""
_NEGLIGIBLE: Final = Decimal("1E-80")


def _series(first: Decimal, step: Callable[[int, Decimal], Decimal]) -> Decimal:
    """Return the sum of terms of which each comes from the one before, until they are negligible."""
    total = term = first
    count = 1
    while abs(term) > _NEGLIGIBLE * abs(total):
        term = step(count, term)
        total += term
        count += 1
    return total


def _sine(x: Decimal) -> Decimal:
    x = x.remainder_near(2 * _PI) if x else x
    return _series(x, lambda n, term: -term * x * x / ((2 * n) * (2 * n + 1)))


def _cosine(x: Decimal) -> Decimal:
    return _sine(_PI / 2 - x.remainder_near(2 * _PI))


def _arc_tangent(x: Decimal) -> Decimal:
    if not x.is_finite():
        return (_PI / 2).copy_sign(x)
    if abs(x) > 1:
        return (_PI / 2).copy_sign(x) - _arc_tangent(1 / x)
    if abs(x) > Decimal("0.1"):  # halves the angle, since the series is slow close to 1
        return 2 * _arc_tangent(x / (1 + (1 + x * x).sqrt()))
    odd_power = x

    def step(n: int, _term: Decimal) -> Decimal:
        nonlocal odd_power
        odd_power *= -x * x
        return odd_power / (2 * n + 1)

    return _series(x, step)


def _arc_tangent_2(y: Decimal, x: Decimal) -> Decimal:
    if y.is_infinite() and x.is_infinite():
        angle = _PI / 4 if x > 0 else 3 * _PI / 4
    elif x == 0 and y != 0:
        angle = _PI / 2
    elif y == 0:
        angle = Decimal(0) if not x.is_signed() else _PI
    else:
        angle = _arc_tangent(abs(y / x))
        angle = angle if x > 0 else _PI - angle
    return angle.copy_sign(y)


def _arc_sine(x: Decimal) -> Decimal:
    return _arc_tangent_2(x, (1 - x * x).sqrt())


def _arc_cosine(x: Decimal) -> Decimal:
    return _arc_tangent_2((1 - x * x).sqrt(), x)


def _hyperbolic_sine(x: Decimal) -> Decimal:
    if abs(x) < 1:
        return _series(x, lambda n, term: term * x * x / ((2 * n) * (2 * n + 1)))
    return (x.exp() - (-x).exp()) / 2


def _hyperbolic_tangent(x: Decimal) -> Decimal:
    return _hyperbolic_sine(x) / ((x.exp() + (-x).exp()) / 2) if abs(x) < 100 else Decimal(1).copy_sign(x)


def _arc_hyperbolic_sine(x: Decimal) -> Decimal:
    size = abs(x)
    if size < Decimal("1E-20"):
        return x  # the next term is the cube
    return (size + (size * size + 1).sqrt()).ln().copy_sign(x)


def _arc_hyperbolic_tangent(x: Decimal) -> Decimal:
    return x if abs(x) < Decimal("1E-20") else ((1 + x) / (1 - x)).ln() / 2


def _trigonometric(
    name: str,
    function: Callable[[float], float],
    with_decimal: Callable[[Decimal], Decimal],
    least: float = -math.inf,
    greatest: float = math.inf,
    takes_bounds: bool = True,
) -> Operator:
    """Return an operator on one number within bounds."""

    def check(value: Any) -> None:
        if value < least or value > greatest or (not takes_bounds and value in (least, greatest)):
            left, right = ("[", "]") if takes_bounds else ("(", ")")
            raise fault(50989, f"cannot apply {name} to {value}, value must be in {left}{least},{greatest}{right}")

    def of_double(value: Any) -> float:
        check(value)
        try:
            return function(value)
        except OverflowError:
            return math.copysign(math.inf, value) if name == "$sinh" else math.inf
        except ValueError:  # only $atanh of 1 and -1
            return math.copysign(math.inf, value)

    def of_decimal(value: Decimal) -> Decimal:
        check(value)
        if name in ("$sin", "$cos", "$tan") and abs(value) > _LARGEST_ANGLE:
            raise fault(50989, f"cannot apply {name} to {value}, a decimal beyond {_LARGEST_ANGLE}")
        with decimal.localcontext(_PRECISE):
            return with_decimal(value)

    return numeric(name, of_double, of_decimal)


def _scaled(name: str, factor: float, exact: Decimal) -> Operator:
    return numeric(name, lambda value: value * factor, lambda value: _PRECISE.multiply(value, exact))


def _atan2(y: Any, x: Any) -> Any:
    for value, code in ((y, 51044), (x, 51045)):
        if not is_number(value):
            raise fault(code, f"$atan2 only supports numeric types, not {type_name(value)}")
    if type(y) is not Decimal128 and type(x) is not Decimal128:
        return math.atan2(y, x)
    first, second = to_decimal(y), to_decimal(x)
    if first.is_nan() or second.is_nan():
        return Decimal128("NaN")
    with decimal.localcontext(_PRECISE):
        return to_value(_arc_tangent_2(first, second))


OPERATORS: Final = (
    _trigonometric("$sin", math.sin, _sine, takes_bounds=False),
    _trigonometric("$cos", math.cos, _cosine, takes_bounds=False),
    _trigonometric("$tan", math.tan, lambda x: _sine(x) / _cosine(x), takes_bounds=False),
    _trigonometric("$asin", math.asin, _arc_sine, -1, 1),
    _trigonometric("$acos", math.acos, _arc_cosine, -1, 1),
    _trigonometric("$atan", math.atan, _arc_tangent),
    plain("$atan2", _atan2, 2, null_if_null=True),
    _trigonometric("$sinh", math.sinh, _hyperbolic_sine),
    _trigonometric("$cosh", math.cosh, lambda x: (x.exp() + (-x).exp()) / 2),
    _trigonometric("$tanh", math.tanh, _hyperbolic_tangent),
    _trigonometric("$asinh", math.asinh, _arc_hyperbolic_sine),
    _trigonometric("$acosh", math.acosh, lambda x: (x + (x * x - 1).sqrt()).ln(), 1),
    _trigonometric("$atanh", math.atanh, _arc_hyperbolic_tangent, -1, 1),
    _scaled("$degreesToRadians", math.pi / 180, _PRECISE.divide(_PI, 180)),
    _scaled("$radiansToDegrees", 180 / math.pi, _PRECISE.divide(180, _PI)),
)

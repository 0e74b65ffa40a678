"""The expression language: compiles an expression to closures, which give its value for one document after the other.

`compiler.py` has what all share; each other file has the operators of one subject, a table `OPERATORS` of one row each.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from replset.query.collation import Fold
from replset.query.expressions import (
    accumulators,
    arithmetic,
    arrays,
    convert,
    dates,
    logic,
    objects,
    regexes,
    strings,
    trigonometry,
)
from replset.query.expressions.accumulators import Accumulator, build_accumulator
from replset.query.expressions.compiler import (
    WHOLE,
    Expression,
    Operator,
    Scope,
    begin_evaluation,
    fault,
    too_deep,
    top_fields,
    value_at,
)

__all__ = [
    "OPERATORS",
    "WHOLE",
    "Accumulator",
    "Expression",
    "compile_accumulator",
    "compile_expression",
    "fault",
    "top_fields",
    "value_at",
]

_MODULES: Final = (logic, arithmetic, trigonometry, arrays, objects, accumulators, strings, regexes, dates, convert)
OPERATORS: Final[dict[str, Operator]] = {row.name: row for module in _MODULES for row in module.OPERATORS}


def compile_expression(value: Any, names: Iterable[str] = (), fold: Fold | None = None) -> Expression:
    """Return the expression that a value of a pipeline is.

    names: the variables in scope besides the system's, which `Expression.evaluate` is then given. `CURRENT` among them
    means that "$a" is a field of that variable. fold: of the collation by which it compares values.
    Raises 168 for an operator that MongoDB does not know, 238 for one that is not built, 17276 for an unknown variable,
    and what the operators raise, about constants too. The message names the operator.
    """
    begin_evaluation()
    try:
        return Scope(frozenset(names), OPERATORS, fold).compile(value).checked()
    except RecursionError:
        raise too_deep() from None


def compile_accumulator(spec: Any, names: Iterable[str] = (), field: str = "", fold: Fold | None = None) -> Accumulator:
    """Return the accumulator that `{$sum: expression}` and its like are. field: what shows it, for messages.

    Raises 15952 for one that MongoDB does not know, 238 for one that is not built, 40234, 40238 and 40237 for its form.
    """
    begin_evaluation()
    try:
        found = build_accumulator(spec, Scope(frozenset(names), OPERATORS, fold), field)
        if found.count is not None:
            found.count.checked()
        found.argument.checked()
        return found
    except RecursionError:
        raise too_deep() from None

"""The expression language: compiles an expression to closures, which give its value for one document after the other.

`frame.py` has what all share; each other file has the operators of one subject, a table `OPERATORS` of one row each.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from replset.query.expressions import (
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
from replset.query.expressions.frame import WHOLE, Expression, Operator, Scope, fault, value_at

__all__ = ["OPERATORS", "WHOLE", "Expression", "compile_expression", "fault", "value_at"]

_MODULES: Final = (logic, arithmetic, trigonometry, arrays, objects, strings, regexes, dates, convert)
OPERATORS: Final[dict[str, Operator]] = {row.name: row for module in _MODULES for row in module.OPERATORS}


def compile_expression(value: Any, names: Iterable[str] = ()) -> Expression:
    """Return the expression that a value of a pipeline is.

    names: the variables in scope besides the system's, which `Expression.evaluate` is then given. `CURRENT` among them
    means that "$a" is a field of that variable.
    Raises 168 for an operator that MongoDB does not know, 238 for one that is not built, 17276 for an unknown variable,
    and what the operators raise, about constants too. The message names the operator.
    """
    return Scope(frozenset(names), OPERATORS).compile(value)

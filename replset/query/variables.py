"""The variables that a command gives to its expressions: the values of `let` and `c`, beside the system's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replset.query.expressions import compile_expression, fault
from replset.query.expressions.logic import variable_name


def let_values(let: Mapping[str, object], system: Mapping[str, Any]) -> dict[str, Any]:
    """Return `system` with the value of each variable of `let`, whose expression may use those before it.

    Raises 4890500 for an expression that reads a field, 9 for a name that none can have, and what expressions raise.
    """
    variables = dict(system)
    for name, value in let.items():
        expression = compile_expression(value, variables)
        if expression.paths:
            raise fault(
                4890500,
                f"let.{name:.80} tried to access a field, but expressions of a command's let run before any document is"
                " read",
            )
        variables[variable_name(name, "let")] = expression.evaluate({}, variables)
    return variables


def with_constants(constants: Mapping[str, object], variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables and the constants of an update, which are values as they are."""
    return {**variables, **{variable_name(name, "c"): value for name, value in constants.items()}}

"""What operators of several files share beside `compiler.py`: indexes, and values to fall back to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from replset.errors import ErrorCode, ReplError
from replset.query.errors import show
from replset.query.expressions.compiler import (
    Document,
    Expression,
    Operator,
    Scope,
    Variables,
    arguments,
    combine,
    constant,
    fault,
)
from replset.query.numbers import INT32, whole_number
from replset.query.order import type_name


class Mark(Enum):
    """Values that no document has. ABSENT: an argument that was not given. NO_INPUT: there is nothing to convert."""

    ABSENT = "absent"
    NO_INPUT = "no input"


ABSENT: Final = Mark.ABSENT
NO_INPUT: Final = Mark.NO_INPUT


def index_argument(name: str, what: str, value: object) -> int:
    """Return the third or fourth argument of $indexOfBytes and its like."""
    number = whole_number(value, INT32)
    if number is None:
        raise fault(40096, f"{name} requires an integral {what} index, found {type_name(value)}: {show(value)}")
    if number < 0:
        raise fault(40097, f"{name} requires a nonnegative {what} index, found: {number}")
    return number


def conversion_failure(message: str) -> ReplError:
    return ReplError(message, code=ErrorCode.CONVERSION_FAILURE)


def with_fallbacks(
    name: str,
    function: Callable[..., Any],
    required: Sequence[str],
    optional: Mapping[str, Any],
    codes: tuple[int, int, int],
    fallbacks: Sequence[str],
) -> Operator:
    """Return an operator with named arguments and with `onNull`, `onError` or both, which are evaluated by need.

    The function gives NO_INPUT for `onNull` and raises 241 for `onError`. The others are as in `named`.
    """

    def build(argument: Any, scope: Scope) -> Expression:
        given = arguments(name, argument, required, (*optional, *fallbacks), *codes)
        parts = {field: scope.compile(value) for field, value in given.items()}
        values = [parts.get(field, constant(optional.get(field))).run for field in (*required, *optional)]
        on_null, on_error = parts.get("onNull"), parts.get("onError")

        def run(root: Document, variables: Variables) -> Any:
            try:
                result = function(*[value(root, variables) for value in values])
            except ReplError as error:
                if on_error is None or error.code != ErrorCode.CONVERSION_FAILURE:
                    raise
                return on_error.run(root, variables)
            if result is not NO_INPUT:
                return result
            return None if on_null is None else on_null.run(root, variables)

        return combine(run, *parts.values())

    return Operator(name, build)

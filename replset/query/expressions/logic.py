"""Operators that compare, decide and name values."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from replset.bson import Int64
from replset.errors import FailedToParseError
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
    first_error,
    keyed,
    plain,
)
from replset.query.order import is_null, is_true

_NATIVE: Final = frozenset({str, int, bool})
"""Types of which Python's order is BSON's."""
_FAST_NUMBERS: Final = frozenset({int, Int64, float})
"""Types of numbers that Python compares exactly with each other, but for NaN."""
_VARIABLE_NAME: Final = re.compile(r"[a-z\x80-\U0010ffff][\w\x80-\U0010ffff]*", re.ASCII)


def _comparison(name: str, holds: Callable[[Any, Any], bool]) -> Operator:
    def build(argument: Any, scope: Scope) -> Expression:
        key_of = scope.key_of
        native = _NATIVE if scope.fold is None else _NATIVE - {str}

        def compare(a: Any, b: Any) -> bool:
            kind = type(a)
            if (kind is type(b) and kind in native) or (
                kind in _FAST_NUMBERS and type(b) in _FAST_NUMBERS and a == a and b == b
            ):
                return holds(a, b)
            return holds(key_of(a), key_of(b))

        values = argument if type(argument) is list else [argument]
        check_argument_count(name, len(values), 2, 2)
        first, second = scope.compile_all(values)
        if second.is_constant and (type(second.value) in (list, dict) or (scope.fold and type(second.value) is str)):
            key = cache(lambda: key_of(second.value))  # once, not for each document
            return combine(lambda root, variables: holds(key_of(first.run(root, variables)), key()), first, second)
        return apply(compare, (first, second))

    return Operator(name, build)


def _compare(key_of: KeyOf, a: Any, b: Any) -> int:
    key_a, key_b = key_of(a), key_of(b)
    return (key_a > key_b) - (key_a < key_b)


def _all_or_any(ends: bool) -> Callable[[Any, Scope], Expression]:
    """Return what compiles $and (which a false value ends) or $or (which a true value ends)."""

    def build(argument: Any, scope: Scope) -> Expression:
        parts = scope.compile_all(argument if type(argument) is list else [argument])
        constants = [is_true(part.value) for part in parts if part.is_constant]
        if ends in constants and first_error(parts) is None:
            return constant(ends)  # as in MongoDB, whatever the parts before it would raise
        runs = [part.run for part in parts if not part.is_constant]

        def run(root: Document, variables: Variables) -> bool:
            for of in runs:
                if is_true(of(root, variables)) is ends:
                    return ends
            return not ends

        return combine(run, *parts)

    return build


def _cond(argument: Any, scope: Scope) -> Expression:
    if type(argument) is list:
        if len(argument) != 3:
            raise fault(16020, f"Expression $cond takes exactly 3 arguments. {len(argument)} were passed in.")
        values = argument
    else:
        codes = {"if": 17080, "then": 17081, "else": 17082}
        given = arguments("$cond", argument, tuple(codes), no_document=16020, unknown=17083, missing=codes)
        values = [given[name] for name in codes]
    test, then, other = parts = [scope.compile(value) for value in values]
    return combine(
        lambda root, variables: (then.run if is_true(test.run(root, variables)) else other.run)(root, variables), *parts
    )


def _if_null(argument: Any, scope: Scope) -> Expression:
    parts = scope.compile_all(argument if type(argument) is list else [argument])
    if len(parts) < 2:
        raise fault(1257300, f"$ifNull needs at least two arguments, had: {len(parts)}")
    *firsts, last = [part.run for part in parts]

    def run(root: Document, variables: Variables) -> Any:
        for of in firsts:
            value = of(root, variables)
            if not is_null(value):
                return value
        return last(root, variables)

    return combine(run, *parts)


def _switch(argument: Any, scope: Scope) -> Expression:
    given = arguments("$switch", argument, (), ("branches", "default"), no_document=40060, unknown=40067)
    branches = given.get("branches", [])
    if type(branches) is not list:
        raise fault(40061, f"$switch expected an array for 'branches', found: {show(branches)}")
    if not branches:
        raise fault(40068, "$switch requires at least one branch.")
    cases: list[tuple[Run, Run]] = []
    codes = {"case": 40064, "then": 40065}
    default = scope.compile(given["default"]) if "default" in given else None
    parts = [] if default is None else [default]
    is_decided = False
    for branch in branches:
        arguments("a branch of $switch", branch, tuple(codes), no_document=40062, unknown=40063, missing=codes)
        case, then = [scope.compile(branch[name]) for name in codes]
        if is_decided or (case.is_constant and not is_true(case.value)):
            continue  # no document comes here, so what its constants raise is nobody's error
        is_decided = case.is_constant
        parts += [case, then]
        cases.append((case.run, then.run))
    if not parts:
        never = "One cannot execute a switch statement where all the cases evaluate to false without a default."
        return Expression(constant(None).run, error=fault(40069, never))

    def run(root: Document, variables: Variables) -> Any:
        for case, then in cases:
            if is_true(case(root, variables)):
                return then(root, variables)
        if default is None:
            raise fault(40066, "$switch could not find a matching branch for an input, and no default was specified.")
        return default.run(root, variables)

    return combine(run, *parts)


def variable_name(name: object, operator: str) -> str:
    """Return the name of a user's variable. 9 for one that cannot be."""
    if name == "CURRENT":
        return "CURRENT"
    if type(name) is not str or not _VARIABLE_NAME.fullmatch(name):
        raise FailedToParseError(
            f"{show(name)} in {operator} is not a variable's name: a small letter, then letters, digits and _"
        )
    return name


def _let(argument: Any, scope: Scope) -> Expression:
    codes = {"vars": 16876, "in": 16877}
    given = arguments("$let", argument, tuple(codes), no_document=16874, unknown=16875, missing=codes)
    if not isinstance(given["vars"], dict):
        raise fault(10065, f"the 'vars' of $let must be an object: {show(given['vars'])}")
    parts = {variable_name(name, "$let"): scope.compile(value) for name, value in given["vars"].items()}
    body = scope.with_names(*parts).compile(given["in"])
    runs = {name: part.run for name, part in parts.items()}

    def run(root: Document, variables: Variables) -> Any:
        values = {name: of(root, variables) for name, of in runs.items()}
        return body.run(root, {**variables, **values})

    return combine(run, *parts.values(), body)


OPERATORS: Final = (
    _comparison("$eq", lambda a, b: a == b),
    _comparison("$ne", lambda a, b: a != b),
    _comparison("$gt", lambda a, b: a > b),
    _comparison("$gte", lambda a, b: a >= b),
    _comparison("$lt", lambda a, b: a < b),
    _comparison("$lte", lambda a, b: a <= b),
    keyed("$cmp", _compare, 2),
    Operator("$and", _all_or_any(ends=False)),
    Operator("$or", _all_or_any(ends=True)),
    plain("$not", lambda value: not is_true(value)),
    Operator("$cond", _cond),
    Operator("$ifNull", _if_null),
    Operator("$switch", _switch),
    Operator("$let", _let),
    Operator("$literal", lambda argument, _scope: constant(argument)),
    Operator("$const", lambda argument, _scope: constant(argument)),
)

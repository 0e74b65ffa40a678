"""Compiles expressions to closures: values, paths, variables, documents, arrays, and the table of operators.

`compile_expression` (in the package) makes an `Expression`, which the caller evaluates on one document after the other.
An operator is one row, most of them made by `plain` or `named`. Constants are folded, so what is wrong with them is
raised at once, as in MongoDB; but in branches of $switch that no document can reach.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from replset.bson import encode_key
from replset.bson.values import Undefined
from replset.errors import ErrorCode, FailedToParseError, ReplError
from replset.query.collation import Fold
from replset.query.errors import not_built, show
from replset.query.order import MISSING, is_null, type_name
from replset.query.paths import check_field_name, field_path
from replset.query.pipeline_names import NOT_BUILT_EXPRESSIONS
from replset.query.sizes import MAX_BYTES, size_of, sized_key, too_large
from replset.query.time_limit import check_time, count_part

Document = Mapping[str, Any]
Variables = Mapping[str, Any]
Run = Callable[[Document, Variables], Any]
"""Gives the value of an expression for a document and the variables in scope, or MISSING."""
KeyOf = Callable[[Any], bytes]
"""Gives the key that orders a value, or MISSING, among others: by the collation, if there is one."""

WHOLE: Final = ""
"""Stands in `Expression.paths`: the expression may look at every field."""
SYSTEM_VARIABLES: Final = frozenset({"ROOT", "CURRENT", "REMOVE", "NOW", "CLUSTER_TIME", "USER_ROLES"})
_ITEM_BYTES: Final = 8
_CONSTANT_BYTES: Final = 64 << 10
_UNDEFINED_KEY: Final = encode_key(Undefined())


def fault(code: int, message: str) -> ReplError:
    """Return the error with one of MongoDB's numbers. Those of operators have no names; docs/expressions.md has all."""
    return ReplError(message, code=code)


def top_fields(paths: Iterable[str]) -> frozenset[str] | None:
    """Return the top-level fields of `Expression.paths`; None for all."""
    names = frozenset([path.partition(".")[0] for path in paths])
    return None if WHOLE in names else names


class _Budget(threading.local):
    """What the evaluation that this thread runs may still allocate, of MAX_BYTES."""

    left = MAX_BYTES


_budget = _Budget()


def too_deep() -> ReplError:
    return fault(ErrorCode.OVERFLOW, "an expression is nested too deeply")


def begin_evaluation() -> None:
    """Let this thread allocate MAX_BYTES. An expression that is compiled is evaluated too: its constants."""
    _budget.left = MAX_BYTES


def spend(size: int) -> None:
    """Count bytes that an operator allocates. 146 when one evaluation takes more than 100 MiB, 50 after its time.

    Every operator whose result can be larger than its arguments calls this before it makes the result.
    """
    check_time()
    _budget.left -= size
    if _budget.left < 0:
        raise too_large("one expression, for one document,", MAX_BYTES)


def spend_items(count: int) -> None:
    """Count the items of an array that an operator makes, as `spend`."""
    spend(count * _ITEM_BYTES)


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled expression.

    run: gives the value; operators call it. Everybody else calls `evaluate`, which also limits the memory.
    paths: the dotted paths of the document that it looks at; WHOLE among them when it may look at all.
    is_constant: whether the value is `value` for every document.
    is_path: whether it only finds what is there.
    is_light: whether its value is a number, a date or null, and each step takes as little as one of its own.
    error: what a constant part of it raises.
    """

    run: Run
    paths: frozenset[str] = frozenset()
    is_constant: bool = False
    value: Any = MISSING
    is_path: bool = False
    is_light: bool = False
    error: ReplError | None = None

    def checked(self) -> Expression:
        """Return the expression itself. Raises its error."""
        if self.error is not None:
            raise self.error
        return self

    @property
    def quickly(self) -> Run:
        """`evaluate`, or what gives the same without its checks where they find nothing. Its caller gives turns."""
        return self.run if self.needs_no_limit else self.evaluate

    @property
    def needs_no_limit(self) -> bool:
        """Whether it can take neither much memory nor much time."""
        is_small = self.is_constant and type(self.value) is not list and type(self.value) is not dict
        return self.is_path or self.is_light or is_small

    def evaluate(self, root: Document, variables: Variables) -> Any:
        """Return the value for the document, or MISSING. variables: at least those that were in scope.

        146 for a value that is too large, 15 for one that is nested too deeply (sizes.py).
        """
        check_time()
        _budget.left = MAX_BYTES
        try:
            value = self.run(root, variables)
        except RecursionError:
            raise too_deep() from None
        if not self.is_path and (type(value) is list or type(value) is dict):
            size_of(value)
        return value


def constant(value: Any) -> Expression:
    return Expression(lambda _root, _variables: value, is_constant=True, value=value)


@dataclass(frozen=True, slots=True)
class Operator:
    """One row of the table: how `build(argument, scope)` makes an expression of the argument of `name`."""

    name: str
    build: Callable[[Any, Scope], Expression]


@dataclass(frozen=True, slots=True)
class Scope:
    """Where an expression stands: the variables that it may use, beside the system's, and the operators there are.

    fold: of the collation by which values are compared.
    """

    names: frozenset[str]
    operators: Mapping[str, Operator]
    fold: Fold | None = None

    @property
    def key_of(self) -> KeyOf:
        return key_of if self.fold is None else partial(key_of, fold=self.fold)

    def with_names(self, *names: str) -> Scope:
        return replace(self, names=self.names.union(names))

    def compile(self, value: Any) -> Expression:
        """Return the expression. See `compile_expression`."""
        count_part()
        if type(value) is str:
            return _path_expression(value, self.names) if value.startswith("$") else constant(value)
        if isinstance(value, Mapping):
            name = next(iter(value), "")
            return self._operator(name, value).build(value[name], self) if name[:1] == "$" else _document(value, self)
        return _array(value, self) if type(value) is list else constant(value)

    def compile_all(self, values: Iterable[Any]) -> list[Expression]:
        """Return the expressions. A comprehension would take one more frame of the stack for each level."""
        parts = []
        for value in values:
            parts.append(self.compile(value))
        return parts

    def _operator(self, name: str, value: Document) -> Operator:
        if len(value) != 1:
            raise fault(15983, f"an object that is an expression must have exactly one field: {show(value)}")
        operator = self.operators.get(name)
        if operator is None:
            if name in NOT_BUILT_EXPRESSIONS:
                raise not_built(f"the expression {name}")
            raise ReplError(f"Unrecognized expression '{name:.80}'", code=ErrorCode.INVALID_PIPELINE_OPERATOR)
        return operator


def combine(run: Run, *parts: Expression) -> Expression:
    """Return the expression that `run` computes from its parts: a constant if all parts are."""
    error = first_error(parts)
    if error is None and all([part.is_constant for part in parts]):
        try:
            value = run({}, {})
        except ReplError as raised:
            error = raised
        else:
            if _is_small(value):
                return constant(value)
    return Expression(run, frozenset().union(*[part.paths for part in parts]), error=error)


def first_error(parts: Iterable[Expression]) -> ReplError | None:
    return next((part.error for part in parts if part.error is not None), None)


def apply(
    function: Callable[..., Any], parts: Sequence[Expression], null_if_null: bool = False, is_light: bool = False
) -> Expression:
    """Return the expression that a function of the values of all parts is; see `plain`."""
    found = combine(_call(function, [part.run for part in parts], null_if_null), *parts)
    if is_light and not found.is_constant and all([part.needs_no_limit for part in parts]):
        return replace(found, is_light=True)
    return found


def _is_small(value: Any) -> bool:
    """Whether a value can be kept as a constant. A short pipeline can make thousands of large ones."""
    if type(value) is not list and type(value) is not dict:
        return not isinstance(value, str) or len(value) <= _CONSTANT_BYTES
    try:
        return size_of(value, _CONSTANT_BYTES) <= _CONSTANT_BYTES
    except ReplError:
        return False


_LOOPS: Final = frozenset(
    {
        *("$concat", "$filter", "$let", "$map", "$range", "$reduce", "$replaceAll", "$split", "$zip"),
        *("$regexFind", "$regexFindAll", "$regexMatch"),
    }
)


def has_loops(value: Any) -> bool:
    """Return True if a decoded statement has an operator whose cost its size and the document's say nothing about."""
    if type(value) is dict:
        return any(name in _LOOPS or has_loops(inner) for name, inner in value.items())
    return type(value) is list and any(map(has_loops, value))


# --- rows of the table --------------------------------------------------------------------------------------------


def plain(
    name: str,
    function: Callable[..., Any],
    least: int = 1,
    most: int | None = -1,
    null_if_null: bool = False,
    is_light: bool = False,
) -> Operator:
    """Return an operator that is a function of its values, which are MISSING where there is none.

    least, most: how many arguments; most is as `least` if not given, None for any number.
    null_if_null: the result is null if a value is null, undefined or missing; the function never sees them.
    is_light: see Expression.
    """
    limit = least if most == -1 else most

    def build(argument: Any, scope: Scope) -> Expression:
        values = argument if type(argument) is list else [argument]
        check_argument_count(name, len(values), least, limit)
        return apply(function, scope.compile_all(values), null_if_null, is_light)

    return Operator(name, build)


def keyed(
    name: str, function: Callable[..., Any], least: int, most: int | None = -1, null_if_null: bool = False
) -> Operator:
    """Return an operator that compares values, else as `plain`. The function gets what makes their keys first."""

    def build(argument: Any, scope: Scope) -> Expression:
        return plain(name, partial(function, scope.key_of), least, most, null_if_null).build(argument, scope)

    return Operator(name, build)


def named(
    name: str,
    function: Callable[..., Any],
    required: Sequence[str],
    optional: Mapping[str, Any] | None = None,
    no_document: int = ErrorCode.FAILED_TO_PARSE,
    unknown: int = ErrorCode.FAILED_TO_PARSE,
    missing: int | Mapping[str, int] = ErrorCode.FAILED_TO_PARSE,
) -> Operator:
    """Return an operator with named arguments. The function gets the values in the order of `required`, `optional`.

    optional: the value of each argument that is not given. no_document, unknown, missing: the codes of the errors for
    an argument that is no document, that has a field too many, that lacks a required one (one code, or one for each).
    """
    defaults = dict(optional or {})

    def build(argument: Any, scope: Scope) -> Expression:
        given = arguments(name, argument, required, tuple(defaults), no_document, unknown, missing)
        parts = []
        for field in (*required, *defaults):
            parts.append(scope.compile(given[field]) if field in given else constant(defaults[field]))
        return apply(function, parts)

    return Operator(name, build)


def arguments(
    name: str,
    argument: Any,
    required: Sequence[str],
    optional: Sequence[str] = (),
    no_document: int = ErrorCode.FAILED_TO_PARSE,
    unknown: int = ErrorCode.FAILED_TO_PARSE,
    missing: int | Mapping[str, int] = ErrorCode.FAILED_TO_PARSE,
) -> dict[str, Any]:
    """Return the named arguments of an operator, not compiled. See `named` for the codes."""
    if not isinstance(argument, Mapping):
        raise fault(no_document, f"{name} takes a document as its argument, not {show(argument)}")
    for field in argument:
        if field not in required and field not in optional:
            raise fault(unknown, f"{name} has no argument '{field:.80}'")
    for field in required:
        if field not in argument:
            code = missing if isinstance(missing, int) else missing[field]
            raise fault(code, f"{name} needs the argument '{field}'")
    return dict(argument)


def check_argument_count(name: str, count: int, least: int, most: int | None) -> None:
    if least <= count and (most is None or count <= most):
        return
    if most is not None and least != most:
        raise fault(
            28667,
            f"Expression {name} takes at least {least} arguments, and at most {most}, but {count} were passed in.",
        )
    at_least = "at least" if most is None else "exactly"
    raise fault(16020, f"Expression {name} takes {at_least} {least} arguments. {count} were passed in.")


def _call(function: Callable[..., Any], runs: Sequence[Run], null_if_null: bool) -> Run:
    """Return the closure that calls `function` with the values of `runs`."""
    if null_if_null:

        def call_with_values(root: Document, variables: Variables) -> Any:
            values = []
            for run in runs:
                values.append(run(root, variables))
            for value in values:
                if is_null(value):
                    return None
            return function(*values)

        return call_with_values
    if len(runs) == 1:
        (only,) = runs
        return lambda root, variables: function(only(root, variables))
    if len(runs) == 2:
        first, second = runs
        return lambda root, variables: function(first(root, variables), second(root, variables))

    def call(root: Document, variables: Variables) -> Any:
        values = []
        for run in runs:
            values.append(run(root, variables))
        return function(*values)

    return call


# --- values, paths, variables -------------------------------------------------------------------------------------


def _document(value: Document, scope: Scope) -> Expression:
    names = list(value)
    parts = []
    for name, inner in value.items():
        check_field_name(name, name)
        if "." in name:
            raise fault(16412, f"FieldPath field names may not contain '.': {name:.80}; see $setField")
        parts.append(scope.compile(inner))
    runs = [(name, part.run) for name, part in zip(names, parts, strict=True)]

    def run(root: Document, variables: Variables) -> dict[str, Any]:
        result = {}
        for name, of in runs:
            found = of(root, variables)
            if found is not MISSING:
                result[name] = found
        return result

    return combine(run, *parts)


def _array(items: list[Any], scope: Scope) -> Expression:
    parts = scope.compile_all(items)
    runs = [part.run for part in parts]

    def run(root: Document, variables: Variables) -> list[Any]:
        result = []
        for of in runs:
            found = of(root, variables)
            result.append(None if found is MISSING else found)
        return result

    return combine(run, *parts)


def _path_expression(text: str, names: frozenset[str]) -> Expression:
    """Return the expression of "$a.b", "$$name" or "$$name.a.b"."""
    if text == "$":
        raise ReplError("'$' by itself is not a valid FieldPath", code=ErrorCode.DOLLAR_ALONE)
    if not text.startswith("$$"):
        path = field_path(text[1:])
        if "CURRENT" in names:
            return _variable("CURRENT", path)
        return Expression(_reader(path), frozenset({text[1:]}), is_path=True)
    variable, dot, rest = text[2:].partition(".")
    path = field_path(rest) if dot else ()
    if not variable:
        raise FailedToParseError("empty variable names are not allowed")
    if variable not in names and variable not in SYSTEM_VARIABLES:
        raise fault(17276, f"Use of undefined variable: {variable:.80}")
    if variable == "REMOVE" and "REMOVE" not in names:
        return constant(MISSING)
    if variable in ("ROOT", "CURRENT") and variable not in names:
        return Expression(_reader(path), frozenset({rest or WHOLE}), is_path=True)
    return _variable(variable, path)


def _variable(name: str, path: tuple[str, ...]) -> Expression:
    # The caller of `evaluate` can make a variable of any part of the document. Who makes it counts its paths.
    if name in SYSTEM_VARIABLES:

        def read(_root: Document, variables: Variables) -> Any:
            if name not in variables:
                raise fault(51144, f"Builtin variable '$${name}' is not available here")
            return value_below(variables[name], path)

        return Expression(read, is_path=True)
    if path:
        return Expression(lambda _root, variables: value_below(variables[name], path), is_path=True)
    return Expression(lambda _root, variables: variables[name], is_path=True)


def _reader(path: tuple[str, ...]) -> Run:
    if not path:
        return lambda root, _variables: root
    if len(path) == 1:
        (name,) = path
        return lambda root, _variables: root.get(name, MISSING)
    return lambda root, _variables: value_at(root, path)


def value_at(document: Document, path: Sequence[str]) -> Any:
    """Return the value at a path. Below an array it is the list of the values in the array's documents."""
    value: Any = document
    for depth, name in enumerate(path):
        if type(value) is dict or isinstance(value, Mapping):
            value = value.get(name, MISSING)
        elif type(value) is list:
            return _values_in(value, path[depth:])
        else:
            return MISSING
    return value


def value_below(value: Any, path: Sequence[str]) -> Any:
    """Return the value at a path below a value of any type."""
    if not path or isinstance(value, Mapping):
        return value_at(value, path)
    return _values_in(value, path) if type(value) is list else MISSING


def _values_in(items: list[Any], path: Sequence[str]) -> list[Any]:
    check_time()
    found = [value_at(item, path) for item in items if type(item) is dict or isinstance(item, Mapping)]
    return [value for value in found if value is not MISSING]


# --- what operators share -----------------------------------------------------------------------------------------


def key_of(value: Any, fold: Fold | None = None) -> bytes:
    """Return the key that orders values of expressions: as encode_key, with a missing value before all but MinKey."""
    return _UNDEFINED_KEY if value is MISSING else sized_key(value, fold)


def need_array(name: str, value: Any, code: int) -> list[Any]:
    """Return the value if it is an array, else raise `code`."""
    if type(value) is not list:
        raise fault(code, f"The argument to {name} must be an array, but was of type: {type_name(value)}")
    return value

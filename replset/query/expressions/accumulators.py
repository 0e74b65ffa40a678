"""Accumulators: compiled for $group and for windows, and those that are operators of expressions too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from replset.errors import BadValueError, ErrorCode, ReplError, TypeMismatchError, UnknownFieldError
from replset.query.errors import not_built, show
from replset.query.expressions.accumulator_states import (
    AddToSet,
    Average,
    Ends,
    Extreme,
    MergeObjects,
    Percentile,
    Push,
    Ranked,
    RankedValues,
    StandardDeviation,
    State,
    Sum,
    Window,
    as_double,
)
from replset.query.expressions.compiler import (
    Document,
    Expression,
    Operator,
    Scope,
    Variables,
    apply,
    arguments,
    constant,
    fault,
    need_array,
)
from replset.query.expressions.objects import merged
from replset.query.numbers import whole_number
from replset.query.order import is_number
from replset.query.pipeline_names import NOT_BUILT_EXPRESSIONS
from replset.query.sort import compile_sort
from replset.query.time_limit import check_time

NO_FIELDS: Final[Document] = {}
_COMPARING: Final = frozenset({AddToSet, Extreme, RankedValues})
"""States that compare values. `make` of each takes the fold of a collation."""


@dataclass(frozen=True, slots=True)
class Accumulator:
    """A compiled accumulator: its states take the values of `argument` for the documents.

    count: how many values the state keeps, None for an accumulator without `n`.
    """

    argument: Expression
    make: Callable[..., State]
    count: Expression | None = None

    def new(self, group: Document = NO_FIELDS, variables: Variables = NO_FIELDS) -> State:
        """Return a new state. group: the group's `_id` if it is a document, of which `n` can depend."""
        return self.maker(group, variables)()

    def new_window(self, variables: Variables = NO_FIELDS) -> Any:
        """Return a new state that has `remove(value)`, which takes back the oldest value."""
        make = self.maker(NO_FIELDS, variables)
        state = make()
        return state if hasattr(state, "remove") else Window(make)

    def maker(self, group: Document, variables: Variables) -> Callable[[], State]:
        if self.count is None:
            return self.make
        return partial(self.make, check_count(self.count.evaluate(group, variables)))


def check_count(value: Any) -> int:
    """Return the number `n` of an accumulator such as $firstN."""
    if not is_number(value):
        raise fault(5787902, f"Value for 'n' must be of integral type, but found {show(value)}")
    number = whole_number(value)
    if number is None:
        raise fault(5787903, f"Value for 'n' must be of integral type, but found {show(value)}")
    if number <= 0:
        raise fault(5787908, f"'n' must be greater than 0, found {number}")
    return number


Build = Callable[[str, Any, Scope], Accumulator]


def build_accumulator(spec: Any, scope: Scope, field: str) -> Accumulator:
    """Return the accumulator of `{$sum: expression}`. field: the name of the field that shows it, for messages."""
    if not isinstance(spec, Mapping):
        raise ReplError(
            f"The field '{field:.80}' must be an accumulator object", code=ErrorCode.GROUP_FIELD_NO_ACCUMULATOR
        )
    if len(spec) != 1:
        raise ReplError(
            f"The field '{field:.80}' must specify one accumulator", code=ErrorCode.GROUP_FIELD_TWO_ACCUMULATORS
        )
    ((name, argument),) = spec.items()
    if name in NOT_BUILT_EXPRESSIONS:
        raise not_built(f"the accumulator {name}")
    if name not in ACCUMULATORS:
        raise ReplError(f"unknown group operator '{name:.80}'", code=ErrorCode.UNKNOWN_GROUP_OPERATOR)
    return ACCUMULATORS[name](name, argument, scope)


def _with_fold(make: Callable[..., State], scope: Scope) -> Callable[..., State]:
    """Return what makes states that compare by the collation, if they compare."""
    kind = make.func if isinstance(make, partial) else make
    return make if scope.fold is None or kind not in _COMPARING else partial(make, fold=scope.fold)


def _simple(make: Callable[[], State]) -> Build:
    """Return what builds an accumulator with one expression as its argument."""

    def build(name: str, argument: Any, scope: Scope) -> Accumulator:
        if type(argument) is list:
            raise fault(40237, f"The {name} accumulator is a unary operator")
        return Accumulator(scope.compile(argument), _with_fold(make, scope))

    return build


def _count(name: str, argument: Any, _scope: Scope) -> Accumulator:
    if argument != {}:
        raise TypeMismatchError(f"{name} takes no arguments, i.e. {name}:{{}}")
    return Accumulator(constant(1), Sum)


def _several(no_document: int, make: Callable[[int], State]) -> Build:
    """Return what builds an accumulator with `n` and `input`."""

    def build(name: str, argument: Any, scope: Scope) -> Accumulator:
        codes = {"n": 5787906, "input": 5787907}
        given = arguments(name, argument, tuple(codes), no_document=no_document, unknown=5787901, missing=codes)
        return Accumulator(scope.compile(given["input"]), _with_fold(make, scope), scope.compile(given["n"]))

    return build


def _ranked(is_bottom: bool, single: bool) -> Build:
    """Return what builds $top, $bottom, $topN or $bottomN."""

    def build(name: str, argument: Any, scope: Scope) -> Accumulator:
        codes = {"n": 5788003, "output": 5788004, "sortBy": 5788005}
        if single:
            del codes["n"]
        given = arguments(name, argument, tuple(codes), no_document=5788001, unknown=5788002, missing=codes)
        if not isinstance(given["sortBy"], Mapping):
            raise fault(10065, f"the sortBy of {name} must be an object: {show(given['sortBy'])}")
        sort_key = compile_sort(given["sortBy"], scope.fold)
        output = scope.compile(given["output"])

        def key_and_value(root: Document, variables: Variables) -> tuple[bytes, Any]:
            return sort_key(root), output.run(root, variables)

        paths = output.paths.union(given["sortBy"])
        make = partial(_make_ranked, is_bottom=is_bottom, single=single)
        count = constant(1) if single else scope.compile(given["n"])
        return Accumulator(Expression(key_and_value, paths, error=output.error), make, count)

    return build


def _make_ranked(count: int, is_bottom: bool, single: bool) -> State:
    return Ranked(count, is_bottom, ascending=True, single=single)


def _percentile(name: str, argument: Any, scope: Scope) -> Accumulator:
    source, ps = _percentile_arguments(name, argument, scope)
    return Accumulator(source, partial(Percentile, ps, name == "$median"))


def _percentile_arguments(name: str, argument: Any, scope: Scope) -> tuple[Expression, list[float]]:
    names = ("input", "method") if name == "$median" else ("input", "p", "method")
    if not isinstance(argument, Mapping):
        number = 7436100 if name == "$median" else 7429703
        raise fault(number, f"the argument of {name} must be an object; found {show(argument)}")
    for field in argument:
        if field not in names:
            raise UnknownFieldError(f"BSON field '{name}.{field:.80}' is an unknown field.")
    for field in names:
        if field not in argument:
            raise ReplError(
                f"BSON field '{name}.{field}' is missing but a required field", code=ErrorCode.MISSING_FIELD
            )
    if type(argument["method"]) is not str:
        raise TypeMismatchError(f"BSON field '{name}.method' is the wrong type, expected type 'string'")
    if argument["method"] != "approximate":
        raise BadValueError(f"Currently only 'approximate' can be used as percentile 'method' of {name}")
    return scope.compile(argument["input"]), [0.5] if name == "$median" else _parts(argument["p"], scope)


def _parts(p: Any, scope: Scope) -> list[float]:
    """Return the list `p` of $percentile."""
    wanted = "The $percentile 'p' field must be an array of numbers from [0.0, 1.0]"
    part = scope.compile(p)
    if not part.is_constant:
        raise fault(7750300, f"{wanted}, and constant, but found: {show(p)}")
    if type(part.value) is not list or not part.value:
        raise fault(7750301, f"{wanted}, but found: {show(p)}")
    for number in part.value:
        if not is_number(number):
            raise fault(7750302, f"{wanted}, but found: {show(number)}")
        if not 0 <= as_double(number) <= 1:
            raise fault(7750303, f"{wanted}, but found: {show(number)}")
    return [as_double(number) for number in part.value]


_SIMPLE: Final[dict[str, Callable[[], State]]] = {
    "$sum": Sum,
    "$avg": Average,
    "$min": partial(Extreme, False),
    "$max": partial(Extreme, True),
    "$stdDevPop": partial(StandardDeviation, False),
    "$stdDevSamp": partial(StandardDeviation, True),
}
"""Accumulators that as operators take several values, or one array of them."""
_SEVERAL: Final[dict[str, tuple[int, Callable[[int], State]]]] = {
    "$firstN": (5787801, partial(Ends, is_last=False)),
    "$lastN": (5787801, partial(Ends, is_last=True)),
    "$minN": (5787900, partial(RankedValues, is_reversed=False, ascending=True)),
    "$maxN": (5787900, partial(RankedValues, is_reversed=True, ascending=False)),
}
ACCUMULATORS: Final[dict[str, Build]] = {
    **{name: _simple(make) for name, make in _SIMPLE.items()},
    **{name: _several(code, make) for name, (code, make) in _SEVERAL.items()},
    "$first": _simple(partial(Ends, 1, is_last=False, single=True)),
    "$last": _simple(partial(Ends, 1, is_last=True, single=True)),
    "$push": _simple(Push),
    "$addToSet": _simple(AddToSet),
    "$mergeObjects": _simple(partial(MergeObjects, merged)),
    "$count": _count,
    "$top": _ranked(is_bottom=False, single=True),
    "$topN": _ranked(is_bottom=False, single=False),
    "$bottom": _ranked(is_bottom=True, single=True),
    "$bottomN": _ranked(is_bottom=True, single=False),
    "$percentile": _percentile,
    "$median": _percentile,
}


# --- as operators ---------------------------------------------------------------------------------------------------


def _operator(name: str, make: Callable[[], State]) -> Operator:
    """Return the operator that accumulates its values, or the items of its one value if that is an array."""

    def build(argument: Any, scope: Scope) -> Expression:
        new = _with_fold(make, scope)

        def accumulated(*values: Any) -> Any:
            return _result(new(), values[0] if len(values) == 1 and type(values[0]) is list else values)

        return apply(accumulated, scope.compile_all(argument if type(argument) is list else [argument]))

    return Operator(name, build)


def _result(state: State, values: Iterable[Any]) -> Any:
    for value in values:
        check_time()
        state.add(value)
    return state.result()


def _operator_with_count(name: str) -> Operator:
    """Return $firstN, $lastN, $minN or $maxN as an operator on an array."""

    def build(argument: Any, scope: Scope) -> Expression:
        accumulator = ACCUMULATORS[name](name, argument, scope)

        def accumulated(count: Any, array: Any) -> Any:
            return _result(accumulator.make(check_count(count)), need_array(name, array, 5788200))

        return apply(accumulated, [accumulator.count or constant(1), accumulator.argument])

    return Operator(name, build)


def _percentile_operator(name: str) -> Operator:
    def build(argument: Any, scope: Scope) -> Expression:
        if not isinstance(argument, Mapping):
            number = 7436201 if name == "$median" else 7436200
            raise fault(number, f"the argument of {name} must be an object; found {show(argument)}")
        source, ps = _percentile_arguments(name, argument, scope)

        def accumulated(value: Any) -> Any:
            return _result(Percentile(ps, name == "$median"), value if type(value) is list else [value])

        return apply(accumulated, [source])

    return Operator(name, build)


OPERATORS: Final = (
    *(_operator(name, make) for name, make in _SIMPLE.items()),
    *(_operator_with_count(name) for name in _SEVERAL),
    _percentile_operator("$percentile"),
    _percentile_operator("$median"),
)

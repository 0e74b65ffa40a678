"""Compiles filters into closures, which then test one document after the other."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from replset.bson import Regex, Undefined
from replset.bson.decoding import decode_fields, names_by_bytes
from replset.query.collation import Fold
from replset.query.conditions import (
    NOT_BUILT,
    Condition,
    ConditionGroup,
    ItemCondition,
    ItemFilter,
    ValueCondition,
    all_predicates,
    condition_on,
    is_field,
    is_operators,
    literal,
    parse,
    value_predicate,
)
from replset.query.errors import BadValueError, not_built, show
from replset.query.expressions import WHOLE, compile_expression, top_fields
from replset.query.order import MISSING, Predicate, is_number, is_true
from replset.query.paths import split_path, values_at
from replset.query.time_limit import check_time, count_part

if TYPE_CHECKING:
    from replset.query.json_schema import Schema

Document = Mapping[str, object]
Found = list[int]
"""A test puts the index of the array item that matched into this list. It stays empty without one."""
Test = Callable[[Document, Found | None], bool]


class Matcher:
    """A compiled filter.

    id_equality: the value that `_id` must equal, MISSING when the filter names none. id_in: a list of which `_id` must
    equal one value, None when the filter names none. Both only limit the search; `matches` still decides.
    paths: what the filter reads, as `Expression.paths`. fields: the top-level fields of these, None for all. fold: of
    the collation.
    """

    __slots__ = ("_names", "fields", "filter", "fold", "id_equality", "id_in", "paths", "test")

    def __init__(self, test: Test, query: Document, paths: frozenset[str], fold: Fold | None = None) -> None:
        self.fold = fold
        self.test = test
        self.paths = paths
        self.fields = top_fields(paths)
        self._names = names_by_bytes(self.fields)
        self.filter = query
        self.id_equality: object = MISSING
        self.id_in: list[object] | None = None
        for condition in _id_conditions(query):
            _narrow(self, condition)

    @property
    def needle(self) -> bytes:
        """Bytes that each document has that matches; those without them need not be decoded. Empty for none.

        Of a string that a field must equal by the first condition: only then no other one could raise before.
        """
        for name, value in self.filter.items():
            wanted = value["$eq"] if isinstance(value, Mapping) and value.keys() == {"$eq"} else value
            if is_field(name) and type(wanted) is str and self.fold is None:
                text = wanted.encode()
                return (len(text) + 1).to_bytes(4, "little") + text + b"\0"
            break
        return b""

    def matches(self, doc: Document) -> bool:
        return self.test(doc, None)

    def matches_raw(self, raw: bytes) -> bool:
        """Whether the document with these bytes matches. Only the fields that the filter reads are decoded."""
        return self.test(decode_fields(raw, self._names), None)

    def position(self, doc: Document) -> int | None:
        """Return the index of the array item by which `doc` matches, for the positional `$`, None if there is none."""
        found: Found = []
        return found[0] if self.test(doc, found) and found else None


@dataclass(frozen=True, slots=True)
class _FilterScope:
    """The variables of $expr. names: those that it may use. values: looked up when it is evaluated.

    paths: gets what the filter reads, as `Expression.paths`.
    """

    names: frozenset[str]
    values: Mapping[str, Any]
    paths: set[str] = field(default_factory=set)


NO_VARIABLES: Final[Mapping[str, Any]] = MappingProxyType({})


def compile_filter(
    query: Document,
    variables: Mapping[str, Any] = NO_VARIABLES,
    names: Iterable[str] | None = None,
    fold: Fold | None = None,
) -> Matcher:
    """Return the matcher of a filter document.

    variables: those that an $expr may use. It looks up their values for each document, so they may change between two.
    names: all of them, if `variables` has not got them yet. fold: of the collation that strings are compared by.
    Raises BadValueError for unknown operators and bad operands, 238 for operators that are not built, FailedToParse
    and TypeMismatch where MongoDB does. The message names the operator or the place.
    """
    scope = _FilterScope(frozenset(variables if names is None else names), variables)
    test = _all_tests(_tests(query, scope, fold))
    return Matcher(test, query, frozenset(scope.paths), fold)


def item_filter_by(fold: Fold | None) -> ItemFilter:
    """Return what compiles the filter of an $elemMatch. fold: of its collation."""
    return compile_item_filter if fold is None else partial(compile_item_filter, fold=fold)


def compile_item_filter(query: Document, fold: Fold | None = None) -> Predicate:
    """Return the test of an array's item by a filter over documents. An array counts as a document of its indexes."""
    test = _all_tests(_tests(query, None, fold))

    def holds(item: object) -> bool:
        if isinstance(item, Mapping):
            return test(item, None)
        return type(item) is list and test({str(index): value for index, value in enumerate(item)}, None)

    return holds


def compile_value_filter(operators: Document, path: str = "", fold: Fold | None = None) -> Predicate:
    """Return the test of one value by operators such as `{$gt: 5, $lt: 9}`, without a search in arrays."""
    return all_predicates(
        [value_predicate(condition) for condition in parse(operators, path, item_filter_by(fold), fold)]
    )


def _tests(query: Document, scope: _FilterScope | None, fold: Fold | None) -> list[Test]:
    """Return the tests of a filter. scope: None below the top level of the document."""
    tests: list[Test] = []
    item_filter = item_filter_by(fold)
    for name, value in query.items():
        if is_field(name):
            wanted = condition_on(name, value)
            if is_operators(wanted):
                conditions = parse(wanted, name, item_filter, fold)
            else:
                conditions = [literal(wanted, fold=fold)]
            tests += [path_test(condition, name) for condition in conditions]
            if scope is not None:
                scope.paths.add(name)
            continue
        match name:
            case "$and":
                tests += _branches(name, value, scope, fold)
            case "$or":
                tests.append(_any_test(_branches(name, value, scope, fold)))
            case "$nor":
                tests.append(_negated(_any_test(_branches(name, value, scope, fold))))
            case "$comment":
                pass
            case "$alwaysTrue" | "$alwaysFalse":
                if not is_true(value) or value != 1:
                    raise BadValueError(f"{name} must be an integer value of 1, but found: {show(value)}")
                if name == "$alwaysFalse":
                    tests.append(lambda doc, found: False)
            case "$jsonSchema":
                from replset.query.json_schema import Schema  # few filters need it

                tests.append(_schema_test(Schema(value)))
                if scope is not None:
                    scope.paths.add(WHOLE)
            case "$expr":
                if scope is None:
                    raise BadValueError("$expr can only be applied to the top-level document")
                tests.append(_expression_test(value, scope, fold))
            case "$sampleRate":
                tests.append(_sample_test(value))
            case _ if name in NOT_BUILT:
                raise not_built(name)
            case _:
                raise BadValueError(
                    f"unknown top level operator: {name}. If you have a field name that starts with a '$' symbol, "
                    "consider using $getField or $setField."
                )
    return tests


def _schema_test(schema: Schema) -> Test:
    return lambda doc, found: schema.matches(doc)


def _expression_test(value: object, scope: _FilterScope, fold: Fold | None) -> Test:
    expression, variables = compile_expression(value, scope.names, fold), scope.values
    scope.paths.update(expression.paths)
    return lambda doc, found: is_true(expression.evaluate(doc, variables))


def _sample_test(rate: Any) -> Test:
    if not is_number(rate):
        raise BadValueError("argument to $sampleRate must be a numeric type")
    number = float(str(rate))
    if not 0 <= number <= 1:
        raise BadValueError("numeric argument to $sampleRate must be in [0, 1]")
    return lambda doc, found: random.random() < number  # noqa: TID251 - a sample need not repeat


def _branches(name: str, value: object, scope: _FilterScope | None, fold: Fold | None) -> list[Test]:
    if type(value) is not list:
        raise BadValueError(f"{name} must be an array")
    if not value:
        raise BadValueError("$and/$or/$nor must be a nonempty array")
    tests: list[Test] = []
    for branch in value:
        count_part()
        if not isinstance(branch, Mapping):
            raise BadValueError("$or/$and/$nor entries need to be full objects")
        tests.append(_all_tests(_tests(branch, scope, fold)))
    return tests


def path_test(condition: Condition, path: str) -> Test:
    """Return the test of a document by a condition on the values at `path`."""
    match condition:
        case ValueCondition(predicate=predicate, into_array=into_array):
            parts = split_path(path)
            if len(parts) == 1 and into_array:
                return _field_test(path, predicate)
            return _parts_test(parts, predicate, into_array)
        case ItemCondition(position=position):
            return _array_test(split_path(path), position)
        case ConditionGroup(conditions=conditions, negated=negated):
            test = _all_tests([path_test(inner, path) for inner in conditions])
            return _negated(test) if negated else test


def _field_test(name: str, predicate: Predicate) -> Test:
    def test(doc: Document, found: Found | None) -> bool:
        value = doc.get(name, MISSING)
        if type(value) is list:
            for index, item in enumerate(value):
                if not index & 63:
                    check_time()
                if predicate(item):
                    if found is not None:
                        found[:] = (index,)
                    return True
        return predicate(value)

    return test


def _parts_test(parts: tuple[str, ...], predicate: Predicate, into_array: bool) -> Test:
    def test(doc: Document, found: Found | None) -> bool:
        for value, index in values_at(doc, parts, into_array):
            check_time()
            if predicate(value):
                if found is not None and index is not None:
                    found[:] = (index,)
                return True
        return False

    return test


def _array_test(parts: tuple[str, ...], position: Callable[[object], int | None]) -> Test:
    def test(doc: Document, found: Found | None) -> bool:
        for value, outer in values_at(doc, parts, into_last=False):
            check_time()
            index = position(value)
            if index is not None:
                if found is not None:
                    found[:] = (index if outer is None else outer,)
                return True
        return False

    return test


def _all_tests(tests: list[Test]) -> Test:
    if len(tests) == 1:
        return tests[0]

    def test(doc: Document, found: Found | None) -> bool:
        for inner in tests:  # noqa: SIM110 - a generator costs more than the simple tests in it
            if not inner(doc, found):
                return False
        return True

    return test


def _any_test(tests: list[Test]) -> Test:
    return lambda doc, found: any(inner(doc, found) for inner in tests)


def _negated(test: Test) -> Test:
    return lambda doc, found: not test(doc, None)


def _id_conditions(query: Document) -> Iterator[object]:
    """Yield the conditions on `_id` at the top of the filter and in each top-level $and."""
    for name, value in query.items():
        if name == "_id":
            yield value
        elif name == "$and" and type(value) is list:
            for branch in value:
                yield from _id_conditions(branch)


def _narrow(matcher: Matcher, condition: object) -> None:
    if not is_operators(condition):
        if type(condition) is not Regex:
            matcher.id_equality = condition
        return
    # An _id is never an array. Null is searched like any value, because no stored document lacks an _id.
    if "$eq" in condition:
        matcher.id_equality = condition["$eq"]
    values = condition.get("$in")
    if type(values) is list and not any(type(value) in (Regex, Undefined) for value in values):
        matcher.id_in = values

"""Filters, updates, projections and sorts over random input: no error but ours, nothing changed that was handed in,
and answers that agree with the order of values."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cmp_to_key
from itertools import pairwise
from typing import Any, TypeVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from replset.bson import (
    Binary,
    Code,
    CodeWithScope,
    DateTime,
    Decimal128,
    Int64,
    MaxKey,
    MinKey,
    ObjectId,
    Regex,
    Symbol,
    Timestamp,
    Undefined,
    decode,
    encode,
)
from replset.errors import ReplError
from replset.query.diff import apply_update_object, update_entry_object
from replset.query.distinct import Distinct
from replset.query.match import compile_filter
from replset.query.projection import compile_projection
from replset.query.sort import compile_sort
from replset.query.update import compile_update, upsert_base
from tests.examples import examples
from tests.keys import compare

Doc = dict[str, Any]
T = TypeVar("T")

EXAMPLES = examples(200)
NOW = DateTime(5)
TIMESTAMP = Timestamp(5, 1)

NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.integers(-3, 3).map(Int64),
    st.sampled_from([2**31 - 1, -(2**31), Int64(2**63 - 1), Int64(-(2**63)), 2**53 + 1]),
    st.sampled_from([0.5, -0.0, 1.0, 1e300, float("nan"), float("inf"), float("-inf")]),
    st.sampled_from(["1", "0.5", "NaN", "Infinity", "9.999E6144", "1E-6176"]).map(Decimal128),
)
SCALARS = st.one_of(
    NUMBERS,
    st.none(),
    st.booleans(),
    st.sampled_from(["", "a", "b", "ab", "\0"]),
    st.sampled_from([MinKey(), MaxKey(), Undefined(), DateTime(0), Timestamp(0, 1), ObjectId("0" * 24)]),
    st.sampled_from([Regex("a"), Regex("^b", "i"), Regex("("), Symbol("a"), Code("a"), Binary(b"a", 5), b"a"]),
    st.just(CodeWithScope("a", {"b": 1})),
)
FIELDS = st.sampled_from(["a", "b", "c", "0", "1", "_id", "$id"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(FIELDS, inner, max_size=3)),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(FIELDS, VALUES, max_size=5)
PATHS = st.one_of(
    st.lists(FIELDS, min_size=1, max_size=3).map(".".join),
    st.sampled_from(
        ["a.$", "a.$[]", "a.$[].b", "a.$[x]", "$", "", ".", "a.", "a..b", "$a", "a.$b", "00", "a.-1", "a.9"]
    ),
)
OPERATORS = st.sampled_from(
    [
        *("$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin", "$and", "$or", "$nor", "$not", "$exists", "$type"),
        *("$size", "$all", "$elemMatch", "$mod", "$regex", "$options", "$comment", "$expr", "$slice", "$meta", "$each"),
        *("$position", "$sort", "$natural", "$foo", "$ref", "$id", "and", "or", "xor"),
    ]
)
MODIFIERS = st.sampled_from(
    [
        *("$set", "$unset", "$inc", "$mul", "$min", "$max", "$rename", "$push", "$pull", "$pullAll", "$addToSet"),
        *("$pop", "$currentDate", "$setOnInsert", "$bit", "$foo", "a"),
    ]
)
SPECS = st.recursive(
    st.one_of(SCALARS, PATHS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(PATHS, OPERATORS, OPERATORS), inner, max_size=3)
    ),
    max_leaves=8,
)
FILTERS = st.dictionaries(st.one_of(PATHS, PATHS, OPERATORS), SPECS, max_size=3)
GOOD_PATHS = st.lists(FIELDS.filter("_id".__ne__), min_size=1, max_size=3).map(".".join)
ARRAYS = st.lists(VALUES, max_size=4)
PUSHES = st.fixed_dictionaries(
    {"$each": st.one_of(ARRAYS, SCALARS)},
    optional={
        "$position": st.one_of(st.integers(-3, 3), NUMBERS),
        "$slice": st.one_of(st.integers(-3, 3), NUMBERS),
        "$sort": st.sampled_from([1, -1, 2, {"a": 1}, {"a.b": -1, "c": 1}]),
    },
)
RANGES = st.dictionaries(st.sampled_from(["$gt", "$lte", "$ne"]), NUMBERS, min_size=1)
OPERANDS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("$set", "$setOnInsert", "$min", "$max"), VALUES),
    **dict.fromkeys(("$inc", "$mul"), NUMBERS),
    "$unset": SCALARS,
    "$rename": st.one_of(GOOD_PATHS, st.sampled_from(["a", "b", "_id"])),
    "$push": st.one_of(VALUES, PUSHES),
    "$addToSet": st.one_of(VALUES, ARRAYS.map(lambda items: {"$each": items})),
    "$pull": st.one_of(VALUES, RANGES, st.fixed_dictionaries({"$in": ARRAYS})),
    "$pullAll": ARRAYS,
    "$pop": st.sampled_from([1, -1, 2]),
    "$currentDate": st.sampled_from([True, {"$type": "timestamp"}, {"$type": "x"}]),
    "$bit": st.dictionaries(st.sampled_from(["and", "or", "xor"]), st.sampled_from([1, 6, Int64(-1)]), min_size=1),
}
ONE_CHANGE = st.sampled_from(sorted(OPERANDS)).flatmap(
    lambda name: st.fixed_dictionaries({name: st.dictionaries(GOOD_PATHS, OPERANDS[name], min_size=1, max_size=2)})
)
CHANGES = st.lists(ONE_CHANGE, min_size=1, max_size=3).map(
    lambda changes: {name: fields for change in changes for name, fields in change.items()}
)
UPDATES = st.one_of(
    CHANGES,
    CHANGES,
    st.dictionaries(MODIFIERS, st.one_of(SPECS, st.dictionaries(PATHS, SPECS, max_size=3)), max_size=3),
    DOCUMENTS,
)


def answered(ask: Callable[[], T], codes: set[int]) -> T | None:
    """What `ask` gives; None when it is refused with one of `codes`."""
    try:
        return ask()
    except ReplError as error:
        if error.code not in codes:
            raise
        return None


@EXAMPLES
@given(FILTERS, DOCUMENTS)
def test_a_filter_answers_or_is_refused(query: Doc, doc: Doc) -> None:
    before = encode(doc)
    try:
        matcher = compile_filter(query)
    except ReplError:
        return
    found = matcher.matches(doc)
    assert found == matcher.matches(decode(before))
    assert found or matcher.position(doc) is None
    assert encode(doc) == before


@EXAMPLES
@given(UPDATES, DOCUMENTS, FILTERS, st.booleans())
@example({"$set": {"a.$[x]": 1}}, {"a": [1]}, {}, False)
def test_an_update_applies_or_is_refused(update: Doc, doc: Doc, query: Doc, is_insert: bool) -> None:
    before = encode(doc), encode(update)
    try:
        matcher = compile_filter(query)
        compiled = compile_update(update)
        base = upsert_base(query) if is_insert else {"_id": 1, **doc}
        after = compiled.apply(base, now=NOW, timestamp=TIMESTAMP, is_insert=is_insert, matcher=matcher)
    except ReplError:
        return
    assert (encode(doc), encode(update)) == before
    if not is_insert:
        assert compare(after["_id"], base["_id"]) == 0
        entry = update_entry_object(base, after)
        assert encode(apply_update_object(base, decode(encode(entry))) if entry is not None else base) == encode(after)
    elif "_id" in after:
        assert next(iter(after)) == "_id"


PLACES = st.one_of(st.just("a"), st.sampled_from(["b", "a.b", "a.0", "a.1", "a.0.b", "a.5", "_id", "a.$[]", "a.$"]))


@pytest.mark.parametrize("name", OPERANDS)
@examples(80)
@given(st.data(), st.one_of(NUMBERS, ARRAYS, VALUES), st.booleans())
def test_an_update_comes_back_through_its_oplog_entry(
    name: str, data: st.DataObject, value: object, is_insert: bool
) -> None:
    """Operands and values mostly fit the operator: few updates of any form get as far as changing a document."""
    doc: Doc = {"_id": 1, "a": value}
    update: Doc = {name: data.draw(st.dictionaries(PLACES, OPERANDS[name], min_size=1, max_size=2))}
    before, matcher = (encode(doc), encode(update)), compile_filter({"a": {"$ne": "nothing"}})
    try:
        after = compile_update(update).apply(doc, now=NOW, timestamp=TIMESTAMP, is_insert=is_insert, matcher=matcher)
    except ReplError:
        return
    finally:
        assert (encode(doc), encode(update)) == before
    assert compare(after["_id"], 1) == 0
    entry = update_entry_object(doc, after)
    assert (entry is None) == (encode(after) == before[0])
    if entry is not None:
        wire = decode(encode(entry))
        once = apply_update_object(doc, wire)
        assert encode(once) == encode(after)
        assert encode(apply_update_object(once, wire)) == encode(after)


NAMES = st.text("0129-a", min_size=1, max_size=5).filter(lambda name: name[0] not in "129" or name.isdigit())


@given(st.lists(NAMES, unique=True))
def test_new_fields_come_in_the_order_of_their_names(names: list[str]) -> None:
    update = compile_update({"$set": dict.fromkeys(names, 1)})
    after = update.apply({"_id": 1}, now=NOW, timestamp=TIMESTAMP)
    assert sorted(after) == sorted(["_id", *names])
    for one, following in pairwise(list(after)[1:]):
        if all(name.isdigit() and str(int(name)) == name for name in (one, following)):
            assert int(one) < int(following)
        else:
            assert one < following


@EXAMPLES
@given(st.dictionaries(st.one_of(PATHS, OPERATORS), SPECS, max_size=3), DOCUMENTS)
def test_a_projection_shows_or_is_refused(spec: Doc, doc: Doc) -> None:
    before = encode(doc)
    try:
        project = compile_projection(spec)
    except ReplError:
        return
    if project is not None:
        assert set(project(doc)) <= set(doc) | {path.split(".")[0] for path in spec}
    assert encode(doc) == before


@EXAMPLES
@given(st.dictionaries(PATHS, st.one_of(st.sampled_from([1, -1, 1.0, Int64(-1)]), SPECS), max_size=3), DOCUMENTS)
def test_a_sort_gives_keys_or_is_refused(spec: Doc, doc: Doc) -> None:
    key = answered(lambda: compile_sort(spec)(doc), {2, 15974, 15975, 15998, 16410, 40352, 40353, 238})
    assert key is None or isinstance(key, bytes)


@EXAMPLES
@given(PATHS, DOCUMENTS)
def test_distinct_gives_values_or_is_refused(key: str, doc: Doc) -> None:
    distinct = answered(lambda: Distinct(key), {15998, 16410, 40352, 40353})
    if distinct is None:
        return
    distinct.add(doc)
    distinct.add(doc)
    assert len({encode({"": value}) for value in distinct.values}) == len(distinct.values)


PLAIN = st.one_of(NUMBERS, st.sampled_from(["", "a", "ab", Symbol("a")]), st.booleans(), st.just(DateTime(1)))


def is_nan(value: object) -> bool:
    return value != value or value == Decimal128("NaN")


def bracket(value: object) -> type:
    for kind, kinds in ((str, (str, Symbol)), (float, (int, Int64, float, Decimal128))):
        if type(value) in kinds:
            return kind
    return type(value)


@EXAMPLES
@given(PLAIN, PLAIN)
def test_comparisons_agree_with_the_order_of_values(value: object, operand: object) -> None:
    """Within a type class as the order says, NaN equal to itself only; across classes nothing holds."""
    order = compare(value, operand)
    comparable = bracket(value) is bracket(operand)
    ordered = comparable and not is_nan(value) and not is_nan(operand)
    expected = {
        "$eq": order == 0,
        "$ne": order != 0,
        "$gt": ordered and order > 0,
        "$gte": comparable and (order == 0 or (ordered and order > 0)),
        "$lt": ordered and order < 0,
        "$lte": comparable and (order == 0 or (ordered and order < 0)),
        "$in": order == 0,
        "$nin": order != 0,
    }
    for name, answer in expected.items():
        wanted = [operand] if name in ("$in", "$nin") else operand
        for doc in ({"a": value}, {"a": [value]}):
            assert compile_filter({"a": {name: wanted}}).matches(doc) is answer, (name, doc)
    assert compile_filter({"a": operand}).matches({"a": value}) is (order == 0)


LEAVES = st.one_of(st.sampled_from([0, 1]), st.lists(st.sampled_from([0, 1]), max_size=2))
INNER = st.dictionaries(st.sampled_from("bc"), LEAVES, max_size=2)
ITEMS = st.lists(st.one_of(LEAVES, INNER, st.fixed_dictionaries({"b": st.lists(INNER, max_size=2)})), max_size=3)


def with_first_array(value: Any, names: list[str], change: Callable[[list[Any]], list[Any]]) -> Any:
    """`value` with another array in place of the first one on the path."""
    if isinstance(value, list):
        return change(value)
    if not names or not isinstance(value, dict) or names[0] not in value:
        return value
    return {**value, names[0]: with_first_array(value[names[0]], names[1:], change)}


@EXAMPLES
@given(
    st.one_of(st.fixed_dictionaries({"a": ITEMS}), st.fixed_dictionaries({"a": st.fixed_dictionaries({"b": ITEMS})})),
    st.sampled_from(["a", "a.b", "a.b", "a.b.b", "a.b.c"]),
    st.sampled_from([0, {"$exists": True}, {"$elemMatch": {"$gte": 1}}, {"$elemMatch": {"b": 1}}]),
)
def test_the_position_is_the_first_item_that_matches_alone(doc: Doc, path: str, condition: object) -> None:
    matcher, names = compile_filter({path: condition}), path.split(".")
    position = matcher.position(doc)
    arrays: list[list[Any]] = []
    with_first_array(doc, names, lambda items: arrays.append(items) or items)
    items = arrays[0] if arrays else []
    alone = [with_first_array(doc, names, lambda _, item=item: [item]) for item in items]
    assert position == next((index for index, one in enumerate(alone) if matcher.matches(one)), None)


@EXAMPLES
@given(st.lists(st.fixed_dictionaries({}, optional={"a": PLAIN, "b": PLAIN}), max_size=8), st.sampled_from([1, -1]))
def test_a_sort_agrees_with_the_order_of_values(docs: list[Doc], direction: int) -> None:
    def by_hand(one: Doc, other: Doc) -> int:
        order = direction * compare(one.get("a"), other.get("a"))
        return order or compare(one.get("b"), other.get("b"))

    key = compile_sort({"a": direction, "b": 1})
    assert encode({"": sorted(docs, key=key)}) == encode({"": sorted(docs, key=cmp_to_key(by_hand))})


@EXAMPLES
@given(st.text("ab[]\\^-.*?()zQE|:lph ", max_size=10), st.text("ab-[] ", max_size=6))
def test_a_regular_expression_answers_or_is_refused(pattern: str, text: str) -> None:
    matcher = answered(lambda: compile_filter({"a": Regex(pattern)}), {51091})
    if matcher is None:
        return
    found = matcher.matches({"a": text})
    if re.fullmatch(r"[ab .*?()|-]*", pattern):
        assert found is (re.search(pattern, text) is not None)


@pytest.mark.parametrize("depth", [50, 98])
def test_deep_filters_are_answered(depth: int) -> None:
    query: Doc = {"a": 1}
    for _ in range(depth):
        query = {"$and": [query]}
    assert compile_filter(decode(encode(query))).matches({"a": 1})
    query = {"a": 1}
    for _ in range(depth):
        query = {"a": {"$elemMatch": query}}
    assert not compile_filter(decode(encode(query))).matches({"a": [{"a": [{"a": 1}]}]})
    negated: Doc = {"$gt": 1}
    for _ in range(depth):
        negated = {"$not": negated}
    assert compile_filter({"a": negated}).matches({"a": 2}) is (depth % 2 == 0)

"""Sort orders, and the distinct values of a path."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from replset.bson import DateTime, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp, encode
from replset.errors import ReplError
from replset.query import sort
from replset.query.distinct import Distinct
from replset.query.sort import compile_sort

Doc = dict[str, Any]

# sort, documents in the order asked for
ORDERS: list[tuple[Doc, list[Doc]]] = [
    ({"a": 1}, [{"a": 1}, {"a": 1.5}, {"a": Int64(2)}, {"a": Decimal128("2.5")}, {"a": 10}]),
    ({"a": -1}, [{"a": "b"}, {"a": "a"}, {"a": 5}, {}]),
    (
        {"a": 1},
        [
            {"a": MinKey()},
            {"a": []},
            {"a": None},
            {"a": float("nan")},
            {"a": -1},
            {"a": "x"},
            {"a": {"b": 1}},
            {"a": b"x"},
            {"a": ObjectId("0" * 24)},
            {"a": False},
            {"a": DateTime(0)},
            {"a": Timestamp(0, 0)},
            {"a": Regex("x")},
            {"a": MaxKey()},
        ],
    ),
    ({"a": 1, "b": -1}, [{"a": 1, "b": 2}, {"a": 1, "b": 1}, {"a": 1}, {"a": 2, "b": 9}]),
    ({"a": 1}, [{"a": [9, 1]}, {"a": 2}, {"a": [3]}]),
    ({"a": -1}, [{"a": [9, 1]}, {"a": [3]}, {"a": 2}, {"a": None}, {"a": []}]),
    ({"a": 1}, [{"a": [3]}, {"a": [[1]]}]),
    ({"a.b": 1}, [{"a": 5}, {"a": {"b": 1}}, {"a": [{"b": 7}, {"b": 2}]}, {"a": {"b": 3}}]),
    ({"a.b": -1}, [{"a": [{"b": 7}, {"b": 2}]}, {"a": {"b": 3}}, {"a": []}, {"a": {"b": []}}]),
    ({"a.b": 1}, [{"a": [{"c": 1}, {"b": 9}]}, {"a": {"b": 3}}]),
    ({"a.0": 1}, [{"a": [1, 9]}, {"a": [2, 0]}]),
    ({"a.1.b": 1}, [{"a": [{"b": 9}, {"b": 1}]}, {"a": [{"b": 0}, {"b": 2}]}]),
    ({"a.b.c": 1}, [{"a": [{"b": [{"c": 5}, {"c": 1}]}]}, {"a": {"b": {"c": 2}}}]),
    ({"r.$id": -1}, [{"r": {"$ref": "c", "$id": 2}}, {"r": {"$ref": "c", "$id": 1}}]),
    # both fields come from the same item of an array
    ({"a.x": 1, "a.y": 1}, [{"a": [{"x": 1, "y": 5}, {"x": 2, "y": 0}]}, {"a": [{"x": 1, "y": 9}, {"x": 3, "y": 0}]}]),
    ({"b": 1, "a.x": 1}, [{"b": 1, "a": [{"x": 5}, {"x": 3}]}, {"b": 1, "a": {"x": 4}}, {"b": 2, "a": {"x": 0}}]),
]


@pytest.mark.parametrize("keys", [1, 5, 100, 100_000])
def test_many_pairs_are_sorted_in_parts(keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sort, "SORT_RUN", 64)
    rng = Random(keys)
    for count in (0, 1, 64, 65, 200, 5000):
        pairs = [(b"%d" % rng.randrange(keys), number) for number in range(count)]
        assert list(sort.sorted_pairs(pairs)) == sorted(pairs, key=lambda pair: pair[0])


@pytest.mark.parametrize(("spec", "docs"), ORDERS, ids=[f"{spec} {docs}"[:80] for spec, docs in ORDERS])
def test_order(spec: Doc, docs: list[Doc]) -> None:
    key = compile_sort(spec)
    keys = [key(doc) for doc in docs]
    assert sorted(docs[::-1], key=key) == docs
    assert keys == sorted(set(keys)), "each differs from its neighbour"


@pytest.mark.parametrize(
    ("spec", "one", "other"),
    [
        ({"a": 1}, {"a": 1}, {"a": Int64(1)}),
        ({"a": 1}, {"a": None}, {}),
        ({"a": -1}, {"a": [1, 3]}, {"a": 3.0}),
        ({"a": 1, "b": 1}, {"a": 1, "c": 1}, {"a": 1, "b": None}),
        ({}, {"a": 1}, {"a": 2}),
        ({"a.b": 1}, {"a": [1, 2]}, {"a": None}),
    ],
    ids=str,
)
def test_equal_keys_keep_the_order_there_was(spec: Doc, one: Doc, other: Doc) -> None:
    key = compile_sort(spec)
    assert key(one) == key(other)
    assert sorted([one, other], key=key) == [one, other]
    assert sorted([other, one], key=key) == [other, one]


@pytest.mark.parametrize(
    ("spec", "natural"), [({"$natural": 1}, 1), ({"$natural": -1.0}, -1), ({"a": 1}, 0), ({}, 0)], ids=str
)
def test_natural_order_is_reported(spec: Doc, natural: int) -> None:
    assert compile_sort(spec).natural == natural


REFUSED: list[tuple[Doc, int, str]] = [
    ({"a": "x"}, 15974, 'Illegal key in $sort specification: a: "x"'),
    ({"a": True}, 15974, "Illegal key"),
    ({"a": 0}, 15975, "must be 1 (for ascending) or -1 (for descending)"),
    ({"a": 2}, 15975, "must be 1"),
    ({"a": float("nan")}, 15975, "must be 1"),
    ({"": 1}, 40352, "empty string"),
    ({"a..b": 1}, 15998, "empty strings"),
    ({"$a": 1}, 16410, "may not start with '$'"),
    ({"$natural": 1, "a": 1}, 2, "Cannot include '$natural' in compound sort"),
    ({"$natural": 5}, 2, "$natural sort cannot be set to a value other than -1 or 1"),
    ({"a": {"$meta": "textScore"}}, 238, "$meta"),
    ({f"f{number}": 1 for number in range(33)}, 2, "too many compound keys"),
]


@pytest.mark.parametrize(("spec", "code", "text"), REFUSED, ids=[str(spec)[:60] for spec, _, _ in REFUSED])
def test_refused(spec: Doc, code: int, text: str) -> None:
    with pytest.raises(ReplError) as caught:
        compile_sort(spec)
    assert (caught.value.code, text in caught.value.message) == (code, True), caught.value.message


def test_two_arrays_in_one_document_give_no_order() -> None:
    with pytest.raises(ReplError, match="parallel arrays") as caught:
        compile_sort({"a": 1, "b": 1})({"a": [1], "b": [1]})
    assert caught.value.code == 2


# key, documents, values
DISTINCT: list[tuple[str, list[Doc], list[Any]]] = [
    ("a", [{"a": 2}, {"a": 1}, {"a": 2.0}, {"a": Int64(1)}], [2, 1]),
    ("a", [{"a": [1, 2]}, {"a": []}, {"a": 3}, {}], [1, 2, 3]),
    ("a", [{"a": [[1, 2], 1]}], [[1, 2], 1]),
    ("a", [{"a": None}, {}], [None]),
    ("a", [{"a": {"b": 1, "c": 2}}, {"a": {"c": 2, "b": 1}}], [{"b": 1, "c": 2}, {"c": 2, "b": 1}]),
    ("a.b", [{"a": [{"b": 1}, {"b": [2, 3]}, 5, {}]}, {"a": {"b": 4}}, {"a": 7}], [1, 2, 3, 4]),
    ("a.0", [{"a": [5, 6]}, {"a": []}, {"a": {"0": 7}}], [5, 7]),
    ("a.1.b", [{"a": [{"b": 1}, {"b": 2}]}], [2]),
    ("a.b.c", [{"a": [{"b": [{"c": 1}, {"c": 2}]}]}], [1, 2]),
    ("_id", [{"_id": "x"}, {"_id": "y"}], ["x", "y"]),
    ("r.$id", [{"r": {"$ref": "c", "$id": 1}}, {"r": [{"$ref": "c", "$id": 2}]}], [1, 2]),
]


@pytest.mark.parametrize(("key", "docs", "values"), DISTINCT, ids=[f"{key} {docs}"[:70] for key, docs, _ in DISTINCT])
def test_distinct(key: str, docs: list[Doc], values: list[Any]) -> None:
    distinct = Distinct(key)
    for doc in docs:
        distinct.add(doc)
    assert encode({"": distinct.values}) == encode({"": values})


@pytest.mark.parametrize(("key", "code"), [("", 40352), ("a.", 40353), ("a..b", 15998), ("$a", 16410)])
def test_distinct_refuses_what_is_no_path(key: str, code: int) -> None:
    with pytest.raises(ReplError) as caught:
        Distinct(key)
    assert caught.value.code == code

"""Collations in expressions, pipelines, projections and updates: known results, and that they agree with find."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replset.bson import DateTime, Timestamp, decode, encode
from replset.errors import ReplError
from replset.query.collation import LONGEST, Fold, fold_of
from replset.query.expressions import compile_expression, compiler
from replset.query.match import compile_filter
from replset.query.pipeline import compile_pipeline
from replset.query.projection import compile_find_projection
from replset.query.sort import compile_sort
from replset.query.stages import group
from replset.query.stages.stage import Chain, Run, StageScope
from replset.query.update import compile_update
from tests.examples import examples
from tests.unit.query.test_stages import MemoryFile

Doc = dict[str, Any]
BASE: Doc = {"locale": "en", "strength": 1}
LOOSE: Doc = {"locale": "en", "strength": 2}
NUMERIC: Doc = {"locale": "en", "numericOrdering": True}
UPPER: Doc = {"locale": "en", "caseFirst": "upper"}
LOWER: Doc = {"locale": "en", "caseFirst": "lower"}


def fold(collation: Doc) -> Fold:
    made = fold_of(collation)
    assert made is not None
    return made


def run(stages: list[Any], documents: list[Doc], collation: Doc, **how: Any) -> list[Doc]:
    chain = Chain(compile_pipeline(stages, StageScope(compile_pipeline, fold=fold(collation))), Run(**how))
    found = [*chain.feed(map(encode, documents)), *chain.end()]
    chain.close()
    return [decode(raw) for raw in found if raw is not None]


# --- known results ----------------------------------------------------------------------------------------------

EXPRESSIONS: list[tuple[Doc, Any, Any]] = [
    (LOOSE, {"$eq": ["$a", "cafe"]}, True),
    (LOOSE, {"$eq": ["cafe", "$a"]}, True),
    (LOOSE, {"$eq": ["cafe", "CAFE"]}, True),
    (LOOSE, {"$eq": ["$a", "caf\u00e9"]}, False),
    (BASE, {"$eq": ["$a", "caf\u00e9"]}, True),
    ({"locale": "en"}, {"$eq": ["$a", "cafe"]}, False),
    (LOOSE, {"$eq": ["$a", {"$concat": ["ca", "fe"]}]}, True),
    (LOOSE, {"$eq": ["$d", {"k": ["X"]}]}, True),
    (LOOSE, {"$eq": ["$d", {"K": ["x"]}]}, False),
    (LOOSE, {"$eq": ["$a", 1]}, False),
    (LOOSE, {"$ne": ["$a", "cafe"]}, False),
    (LOOSE, {"$gt": ["$a", "cafe"]}, False),
    (LOOSE, {"$gte": ["$a", "cafe"]}, True),
    (LOOSE, {"$lt": ["$a", "DA"]}, True),
    (LOOSE, {"$lte": ["$a", "cafe"]}, True),
    (LOOSE, {"$cmp": ["$a", "cafe"]}, 0),
    (NUMERIC, {"$cmp": ["a2", "a10"]}, -1),
    (NUMERIC, {"$lt": ["$n", "a10"]}, True),
    (LOOSE, {"$in": ["cafe", ["$a"]]}, True),
    (LOOSE, {"$in": ["$a", ["x", "cafe"]]}, True),
    (LOOSE, {"$indexOfArray": ["$l", "B"]}, 1),
    (LOOSE, {"$setEquals": ["$l", ["B", "A"]]}, True),
    (LOOSE, {"$setIsSubset": [["B"], "$l"]}, True),
    (LOOSE, {"$setIntersection": ["$l", ["B"]]}, ["b"]),
    (LOOSE, {"$setUnion": ["$l", ["B", "C"]]}, ["a", "b", "C"]),
    (LOOSE, {"$setDifference": ["$l", ["B"]]}, ["a"]),
    (LOOSE, {"$max": ["a", "B"]}, "B"),
    (LOOSE, {"$min": ["a", "A"]}, "a"),
    (LOOSE, {"$maxN": {"n": 1, "input": ["a", "B"]}}, ["B"]),
    (LOOSE, {"$minN": {"n": 2, "input": ["b", "A"]}}, ["A", "b"]),
    (LOOSE, {"$sortArray": {"input": ["b", "A", "a", "B"], "sortBy": 1}}, ["A", "a", "b", "B"]),
    (LOOSE, {"$sortArray": {"input": [{"x": "b"}, {"x": "A"}], "sortBy": {"x": 1}}}, [{"x": "A"}, {"x": "b"}]),
    (UPPER, {"$sortArray": {"input": ["b", "a", "A"], "sortBy": 1}}, ["A", "a", "b"]),
    (LOWER, {"$sortArray": {"input": ["b", "A", "a"], "sortBy": 1}}, ["a", "A", "b"]),
    (LOOSE, {"$switch": {"branches": [{"case": {"$eq": ["$a", "cafe"]}, "then": 1}], "default": 2}}, 1),
    (LOOSE, {"$cond": [{"$eq": ["$a", "cafe"]}, 1, 2]}, 1),
    (LOOSE, {"$filter": {"input": "$l", "cond": {"$eq": ["$$this", "B"]}}}, ["b"]),
    (LOOSE, {"$let": {"vars": {"x": "CAFE"}, "in": {"$eq": ["$a", "$$x"]}}}, True),
    (LOOSE, {"$anyElementTrue": [{"$map": {"input": "$l", "in": {"$eq": ["$$this", "B"]}}}]}, True),
    # These compare bytes or case by themselves.
    (LOOSE, {"$indexOfBytes": ["$a", "c"]}, -1),
    (BASE, {"$strcasecmp": ["cafe", "caf\u00e9"]}, -1),
    (LOOSE, {"$regexMatch": {"input": "$a", "regex": "cafe"}}, False),
    (LOOSE, {"$split": ["aXb", "x"]}, ["aXb"]),
    (LOOSE, {"$replaceAll": {"input": "aXb", "find": "x", "replacement": ""}}, "aXb"),
    (LOOSE, {"$mergeObjects": [{"a": 1}, {"A": 2}]}, {"a": 1, "A": 2}),
]


@pytest.mark.parametrize(("collation", "expression", "value"), EXPRESSIONS, ids=str)
def test_expressions(collation: Doc, expression: Any, value: Any) -> None:
    document = {"a": "CAFE", "l": ["a", "b"], "d": {"k": ["x"]}, "n": "a9"}
    assert compile_expression(expression, fold=fold(collation)).evaluate(document, {}) == value


WORDS: list[Doc] = [{"_id": n, "a": text, "n": n} for n, text in enumerate(["b", "A", "B", "a", "\u00e1"])]

STAGES: list[tuple[Doc, list[Any], list[Any]]] = [
    (LOOSE, [{"$match": {"a": "B"}}, {"$project": {"a": 1}}], [{"_id": 0, "a": "b"}, {"_id": 2, "a": "B"}]),
    (LOOSE, [{"$match": {"$expr": {"$eq": ["$a", "B"]}}}, {"$count": "n"}], [{"n": 2}]),
    (BASE, [{"$match": {"a": "a"}}, {"$count": "n"}], [{"n": 3}]),
    (LOOSE, [{"$sort": {"a": 1}}, {"$project": {"a": 1}}], [{"_id": i, "a": WORDS[i]["a"]} for i in (1, 3, 4, 0, 2)]),
    (UPPER, [{"$sort": {"a": -1}}, {"$project": {"a": 1}}], [{"_id": i, "a": WORDS[i]["a"]} for i in (0, 2, 4, 3, 1)]),
    (
        LOOSE,
        [{"$group": {"_id": "$a", "n": {"$sum": "$n"}}}],
        [{"_id": "b", "n": 2}, {"_id": "A", "n": 4}, {"_id": "\u00e1", "n": 4}],
    ),
    (
        BASE,
        [{"$group": {"_id": {"x": "$a"}, "n": {"$sum": 1}}}],
        [{"_id": {"x": "b"}, "n": 2}, {"_id": {"x": "A"}, "n": 3}],
    ),
    (BASE, [{"$group": {"_id": ["$a"], "n": {"$sum": 1}}}], [{"_id": ["b"], "n": 2}, {"_id": ["A"], "n": 3}]),
    (
        BASE,
        [{"$group": {"_id": {"$concat": ["$a", "x"]}, "n": {"$sum": 1}}}],
        [{"_id": "bx", "n": 2}, {"_id": "Ax", "n": 3}],
    ),
    (LOOSE, [{"$sortByCount": "$a"}, {"$limit": 1}], [{"_id": "b", "count": 2}]),
    (LOOSE, [{"$group": {"_id": "$a"}}, {"$match": {"_id": {"$in": ["B"]}}}], [{"_id": "b"}]),
    (
        LOOSE,
        [{"$bucket": {"groupBy": "$a", "boundaries": ["A", "b", "C"]}}],
        [{"_id": "A", "count": 3}, {"_id": "b", "count": 2}],
    ),
    (
        BASE,
        [{"$bucketAuto": {"groupBy": "$a", "buckets": 2}}],
        [{"_id": {"min": "A", "max": "b"}, "count": 3}, {"_id": {"min": "b", "max": "B"}, "count": 2}],
    ),
    (BASE, [{"$facet": {"x": [{"$match": {"a": "A"}}, {"$count": "n"}]}}], [{"x": [{"n": 3}]}]),
    (
        LOOSE,
        [{"$group": {"_id": None, "s": {"$addToSet": "$a"}, "g": {"$max": "$a"}, "l": {"$min": "$a"}}}],
        [{"_id": None, "s": ["b", "A", "\u00e1"], "g": "b", "l": "A"}],
    ),
    (
        LOOSE,
        [
            {
                "$group": {
                    "_id": None,
                    "t": {"$top": {"sortBy": {"a": 1}, "output": "$_id"}},
                    "b": {"$bottomN": {"n": 2, "sortBy": {"a": 1}, "output": "$_id"}},
                    "g": {"$maxN": {"n": 2, "input": "$a"}},
                    "l": {"$minN": {"n": 3, "input": "$a"}},
                }
            }
        ],
        [{"_id": None, "t": 1, "b": [0, 2], "g": ["b", "B"], "l": ["A", "a", "\u00e1"]}],
    ),
    (
        BASE,
        [
            {"$setWindowFields": {"partitionBy": "$a", "sortBy": {"_id": 1}, "output": {"r": {"$documentNumber": {}}}}},
            {"$project": {"r": 1}},
        ],
        [{"_id": 1, "r": 1}, {"_id": 3, "r": 2}, {"_id": 4, "r": 3}, {"_id": 0, "r": 1}, {"_id": 2, "r": 2}],
    ),
    (
        BASE,
        [
            {"$setWindowFields": {"sortBy": {"a": 1}, "output": {"r": {"$denseRank": {}}, "s": {"$addToSet": "$a"}}}},
            {"$project": {"r": 1, "s": 1}},
        ],
        [{"_id": i, "r": r, "s": ["A", "b"]} for i, r in ((1, 1), (3, 1), (4, 1), (0, 2), (2, 2))],
    ),
    (
        BASE,
        [
            {"$match": {"n": {"$in": [1, 3]}}},
            {"$densify": {"field": "n", "partitionByFields": ["a"], "range": {"step": 1, "bounds": "partition"}}},
            {"$project": {"_id": 0}},
        ],
        [{"a": "A", "n": 1}, {"a": "A", "n": 2}, {"a": "a", "n": 3}],
    ),
    (
        BASE,
        [
            {"$set": {"n": {"$cond": [{"$eq": ["$_id", 3]}, None, "$n"]}}},
            {"$fill": {"partitionByFields": ["a"], "sortBy": {"_id": 1}, "output": {"n": {"method": "locf"}}}},
            {"$match": {"_id": 3}},
        ],
        [{"_id": 3, "a": "a", "n": 1}],
    ),
    (BASE, [{"$redact": {"$cond": [{"$eq": ["$a", "A"]}, "$$KEEP", "$$PRUNE"]}}, {"$count": "n"}], [{"n": 3}]),
    (BASE, [{"$project": {"x": {"$eq": ["$a", "A"]}}}, {"$limit": 1}], [{"_id": 0, "x": False}]),
    (BASE, [{"$replaceWith": {"x": {"$eq": ["$a", "B"]}}}, {"$limit": 1}], [{"x": True}]),
]


@pytest.mark.parametrize(("collation", "stages", "found"), STAGES, ids=str)
def test_stages(collation: Doc, stages: list[Any], found: list[Any]) -> None:
    assert run(stages, WORDS, collation) == found


def test_bounds_of_buckets_are_in_the_order_of_the_collation() -> None:
    for boundaries in (["B", "a"], ["a", "A"]):
        with pytest.raises(ReplError) as raised:
            run([{"$bucket": {"groupBy": "$a", "boundaries": boundaries}}], [], LOOSE)
        assert raised.value.code == 40194


def test_groups_on_the_disk_know_the_collation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "MAX_BYTES", 10_000)
    texts = [("a\u00e9" if n % 2 else "Ae") + str(n % 50) for n in range(300)]
    output = {"n": {"$sum": 1}, "s": {"$addToSet": "$t"}, "g": {"$max": "$t"}, "l": {"$minN": {"n": 1, "input": "$t"}}}
    files: list[MemoryFile] = []
    found = run(
        [{"$group": {"_id": "$a", **output}}, {"$sort": {"_id": 1}}],
        [{"a": text, "t": text} for text in [*texts, *map(str.upper, texts)]],
        BASE | {"numericOrdering": True},
        spill=lambda: files.append(MemoryFile()) or files[-1],
    )
    assert files
    # Of each of 50 groups only one value is in the set, the first: all are equal.
    assert [(row["n"], len(row["s"])) for row in found] == [(12, 1)] * 50
    assert all(row["s"] == [row["_id"]] == row["l"] and row["g"] == row["_id"] for row in found)


UPDATES: list[tuple[Doc, Doc, Any, Doc]] = [
    (LOOSE, {"a": ["x"]}, {"$addToSet": {"a": "X"}}, {"a": ["x"]}),
    (LOOSE, {"a": ["x"]}, {"$addToSet": {"a": {"$each": ["X", "y", "Y"]}}}, {"a": ["x", "y"]}),
    (LOOSE, {"a": "B"}, {"$max": {"a": "a"}}, {"a": "B"}),
    (LOOSE, {"a": "B"}, {"$max": {"a": "b"}}, {"a": "B"}),
    (LOOSE, {"a": "B"}, {"$max": {"a": "c"}}, {"a": "c"}),
    (LOOSE, {"a": "B"}, {"$min": {"a": "a"}}, {"a": "a"}),
    (LOOSE, {"a": ["x", "X", "y"]}, {"$pull": {"a": "x"}}, {"a": ["y"]}),
    (LOOSE, {"a": ["x", "X", "y"]}, {"$pull": {"a": {"$in": ["x"]}}}, {"a": ["y"]}),
    (LOOSE, {"a": [{"k": "x"}, {"k": "Y"}]}, {"$pull": {"a": {"k": "y"}}}, {"a": [{"k": "x"}]}),
    (LOOSE, {"a": ["x", "X", "y"]}, {"$pullAll": {"a": ["x"]}}, {"a": ["y"]}),
    (LOOSE, {"a": ["b"]}, {"$push": {"a": {"$each": ["A", "C"], "$sort": 1}}}, {"a": ["A", "b", "C"]}),
    (NUMERIC, {"a": ["a10"]}, {"$push": {"a": {"$each": ["a9"], "$sort": 1}}}, {"a": ["a9", "a10"]}),
    (LOOSE, {"a": "X"}, [{"$set": {"b": {"$eq": ["$a", "x"]}}}], {"a": "X", "b": True}),
]


@pytest.mark.parametrize(("collation", "before", "update", "after"), UPDATES, ids=str)
def test_updates(collation: Doc, before: Doc, update: Any, after: Doc) -> None:
    made = compile_update(update, fold=fold(collation))
    assert made.apply(before, now=DateTime(0), timestamp=Timestamp(0, 0)) == after


def test_array_filters() -> None:
    made = compile_update({"$set": {"a.$[x].n": 1}}, array_filters=[{"x.k": "b"}], fold=fold(LOOSE))
    after = made.apply({"a": [{"k": "B"}, {"k": "c"}]}, now=DateTime(0), timestamp=Timestamp(0, 0))
    assert after == {"a": [{"k": "B", "n": 1}, {"k": "c"}]}


def test_projections() -> None:
    spec = {"a": {"$elemMatch": {"k": "b"}}, "same": {"$eq": ["$t", "x"]}}
    projection = compile_find_projection(spec, fold=fold(LOOSE))
    assert projection is not None
    shown = projection.make({"_id": 1, "a": [{"k": "a"}, {"k": "B"}], "t": "X"}, {})
    assert shown == {"_id": 1, "a": [{"k": "B"}], "same": True}


def test_what_an_expression_makes_is_bounded() -> None:
    """ICU lets no other thread run: a string that $concat made is no longer than one that a client may send."""
    many = {"$reduce": {"input": {"$range": [0, 5]}, "initialValue": "$a", "in": {"$concat": ["$$value", "$$value"]}}}
    compared = compile_expression({"$eq": [many, "$a"]}, fold=fold(LOOSE))
    with pytest.raises(ReplError, match="at most 262144 characters") as raised:
        compared.evaluate({"a": "a" * (LONGEST // 16)}, {})
    assert raised.value.code == 2


@pytest.mark.parametrize("expression", [{"$setUnion": ["$l"]}, {"$sortArray": {"input": "$l", "sortBy": 1}}], ids=str)
def test_the_sort_keys_of_an_array_are_counted(expression: Doc, monkeypatch: pytest.MonkeyPatch) -> None:
    """A character may have a sort key of 17 bytes."""
    compared = compile_expression(expression, fold=fold(LOOSE))
    items = [f"{number}" + "\u3315" * 100 for number in range(10)]
    assert len(compared.evaluate({"l": items}, {})) == 10
    monkeypatch.setattr(compiler, "MAX_BYTES", 5000)
    with pytest.raises(ReplError) as raised:
        compared.evaluate({"l": items}, {})
    assert raised.value.code == 146


# --- agreement with find ----------------------------------------------------------------------------------------

COLLATIONS = st.builds(
    lambda locale, strength, case_level, numeric, alternate: {
        "locale": locale,
        "strength": strength,
        "caseLevel": case_level,
        "numericOrdering": numeric,
        "alternate": alternate,
    },
    st.sampled_from(["en", "de", "sv", "ja"]),
    st.integers(1, 5),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["non-ignorable", "shifted"]),
)
TEXTS = st.text("aAbB\u00e4\u00c401-", max_size=4)
VALUES = st.one_of(
    TEXTS, st.integers(0, 2), st.builds(lambda text: {"k": text}, TEXTS), st.builds(lambda t: {"k": [t, 1]}, TEXTS)
)
"""Neither arrays, in which find searches, nor null, which for find is a missing field too."""
DOCUMENTS = st.lists(st.builds(lambda value: {"a": value}, VALUES), min_size=1, max_size=12)


@examples(200)
@given(COLLATIONS, DOCUMENTS, VALUES)
def test_a_comparison_by_an_expression_is_that_of_find(collation: Doc, documents: list[Doc], value: Any) -> None:
    wanted = [one for one in documents if compile_filter({"a": value}, fold=fold(collation)).matches(one)]
    literal = {"$literal": value}
    for test in ({"$eq": ["$a", literal]}, {"$in": ["$a", [literal]]}, {"$setEquals": [["$a"], [literal]]}):
        assert run([{"$match": {"$expr": test}}], documents, collation) == wanted
    assert run([{"$match": {"a": value}}], documents, collation) == wanted


@examples(200)
@given(COLLATIONS, DOCUMENTS)
def test_groups_are_those_of_equality(collation: Doc, documents: list[Doc]) -> None:
    wanted: list[list[Any]] = []
    for document in documents:
        for values in wanted:
            if compile_filter({"a": values[0]}, fold=fold(collation)).matches(document):
                values.append(document["a"])
                break
        else:
            wanted.append([document["a"]])
    for key in ("$a", {"$ifNull": ["$a", 1]}):
        found = run([{"$group": {"_id": key, "all": {"$push": "$a"}}}], documents, collation)
        assert [row["all"] for row in found] == wanted
        assert [row["_id"] for row in found] == [values[0] for values in wanted]
    (row,) = run([{"$group": {"_id": 1, "s": {"$addToSet": "$a"}}}], documents, collation)
    assert row["s"] == [values[0] for values in wanted]


@examples(200)
@given(COLLATIONS, DOCUMENTS)
def test_the_order_is_that_of_find(collation: Doc, documents: list[Doc]) -> None:
    in_order = sorted(documents, key=compile_sort({"a": 1}, fold(collation)))
    assert run([{"$sort": {"a": 1}}], documents, collation) == in_order
    values = [document["a"] for document in in_order]
    by_expression = {"$sortArray": {"input": "$l", "sortBy": 1}}
    shuffled = {"l": [document["a"] for document in documents]}
    assert compile_expression(by_expression, fold=fold(collation)).evaluate(shuffled, {}) == values
    rises = compile_expression({"$lte": ["$x", "$y"]}, fold=fold(collation))
    assert all(rises.evaluate({"x": x, "y": y}, {}) for x, y in pairwise(values))

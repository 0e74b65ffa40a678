"""Rewritten pipelines: what moves where, and that the result is the same."""

from __future__ import annotations

import random
from typing import Any

import pytest

from replset.query import pipeline
from replset.query.pipeline import compile_pipeline
from replset.query.stages.basic import MatchStage
from tests.unit.query.test_stages import Doc, run

A: Doc = {"$match": {"a": 1}}
JOIN: Doc = {"$lookup": {"from": "f", "localField": "b", "foreignField": "b", "as": "x.y"}}
UNION: Doc = {"$unionWith": {"coll": "f", "pipeline": [{"$set": {"c": 1}}, {"$limit": 9}]}}
UNWIND: Doc = {"$unwind": {"path": "$x.y", "includeArrayIndex": "i"}}
# a pipeline ending in matches: the filters in the order of the stages, None for any other stage
MOVES: list[tuple[list[Doc], list[Doc | None]]] = [
    ([{"$sort": {"b": 1}}, A], [{"a": 1}, None]),
    ([{"$set": {"b": 1}}, A], [{"a": 1}, None]),
    ([{"$set": {"a.b": 1}}, A], [None, {"a": 1}]),
    ([{"$set": {"b": 1}}, {"$match": {"a": 1, "b": 1}}], [{"a": 1}, None, {"b": 1}]),
    ([{"$set": {"b": 1}}, {"$match": {"$and": [{"a": 1}, {"c": 2}]}}], [{"$and": [{"a": 1}, {"c": 2}]}, None]),
    ([{"$set": {"b": 1}}, {"$match": {"$or": [{"a": 1}, {"b": 2}]}}], [None, {"$or": [{"a": 1}, {"b": 2}]}]),
    ([{"$project": {"a": 1, "x": "$y"}}, A], [{"a": 1}, None]),
    ([{"$project": {"a.b": 1}}, A], [None, {"a": 1}]),
    ([{"$project": {"_id.x": 1}}, {"$match": {"_id": 1}}], [None, {"_id": 1}]),
    ([{"$project": {"b": 0}}, A], [{"a": 1}, None]),
    ([{"$project": {"a": 0}}, A], [None, {"a": 1}]),
    ([{"$project": {"_id": 0}}, A], [{"a": 1}, None]),
    ([{"$unset": "b"}, A], [{"a": 1}, None]),
    ([{"$unset": "a.x"}, A], [None, {"a": 1}]),
    ([{"$unwind": "$b"}, A], [{"a": 1}, None]),
    ([{"$unwind": "$a.b"}, A], [None, {"a": 1}]),
    ([{"$unwind": {"path": "$b", "includeArrayIndex": "a"}}, A], [None, {"a": 1}]),
    ([{"$limit": 3}, A], [None, {"a": 1}]),
    ([{"$skip": 3}, A], [None, {"a": 1}]),
    ([{"$replaceWith": "$x"}, A], [None, {"a": 1}]),
    ([{"$group": {"_id": "$a"}}, {"$match": {"_id": {"$gt": 1}}}], [{"a": {"$gt": 1}}, None]),
    ([{"$group": {"_id": "$a"}}, {"$match": {"_id": {"$exists": True}}}], [None, {"_id": {"$exists": True}}]),
    ([{"$group": {"_id": "$a.b"}}, {"$match": {"_id": 1}}], [None, {"_id": 1}]),
    ([{"$group": {"_id": "$a", "n": {"$sum": 1}}}, {"$match": {"n": 1}}], [None, {"n": 1}]),
    ([{"$set": {"b": 1}}, {"$sort": {"b": 1}}, A], [{"a": 1}, None, None]),
    ([JOIN, A], [{"a": 1}, None]),
    ([JOIN, {"$match": {"x.z": 1}}], [None, {"x.z": 1}]),
    ([JOIN, UNWIND, A, {"$match": {"i": 1}}], [{"a": 1}, None, {"i": 1}]),
    ([UNION, A], [{"a": 1}, None]),
    ([UNION, UNION, {"$set": {"b": 1}}, {"$match": {"a": 1, "b": 1}}], [{"a": 1}, None, None, None, {"b": 1}]),
    ([{"$limit": 3}, UNION, A], [None, {"a": 1}, None]),
    ([UNION, {"$match": {"$sampleRate": 0.5}}], [None, {"$sampleRate": 0.5}]),
]


@pytest.mark.parametrize(("stages", "wanted"), MOVES, ids=[str(stages)[:80] for stages, _ in MOVES])
def test_where_conditions_move(stages: list[Doc], wanted: list[Doc | None]) -> None:
    assert [stage.filter if isinstance(stage, MatchStage) else None for stage in compile_pipeline(stages)] == wanted


@pytest.mark.parametrize(
    ("behind", "limit"),
    [
        ([], 0),
        ([{"$limit": 3}], 3),
        ([{"$skip": 2}, {"$limit": 3}], 5),
        ([{"$set": {"x": 1}}, {"$skip": 2}, {"$limit": 3}], 5),
        ([{"$unwind": "$x"}, {"$limit": 3}], 0),
        ([{"$skip": 2}], 0),
    ],
)
def test_a_sort_knows_how_many_are_wanted(behind: list[Doc], limit: int) -> None:
    assert compile_pipeline([{"$sort": {"a": 1}}, *behind])[0].limit == limit


SET, FEW = {"$set": {"b": 1}}, {"$limit": 2}
ORDERS: list[tuple[list[Doc], list[Doc]]] = [
    ([SET, JOIN, FEW, {"$replaceWith": "$b"}, {"$skip": 1}], [FEW, {"$skip": 1}, SET, JOIN, {"$replaceWith": "$b"}]),
    ([{"$unwind": "$b"}, SET, FEW], [{"$unwind": "$b"}, FEW, SET]),
    ([JOIN, {"$unwind": "$x"}, FEW], [JOIN, {"$unwind": "$x"}, FEW]),
    ([JOIN, UNWIND, FEW], [{"$lookup": {**JOIN["$lookup"], "unwinding": UNWIND["$unwind"]}}, FEW]),
    ([JOIN, SET, UNWIND], [JOIN, SET, UNWIND]),
    (
        [{"$unionWith": "f"}, {"$unionWith": {"coll": "g", "pipeline": [SET]}}, A],
        [A, {"$unionWith": {"coll": "f", "pipeline": [A]}}, {"$unionWith": {"coll": "g", "pipeline": [A, SET]}}],
    ),
]


@pytest.mark.parametrize(("stages", "wanted"), ORDERS, ids=[str(stages)[:80] for stages, _ in ORDERS])
def test_what_limits_pass_and_joins_and_unions_take_over(stages: list[Doc], wanted: list[Doc]) -> None:
    assert [stage.shown for stage in compile_pipeline(stages)] == wanted


STAGES: list[Doc] = [
    {"$match": {"a": {"$in": [1, 2]}}},
    {"$match": {"b": {"$gt": 1}, "c.d": 1}},
    {"$match": {"_id": {"$ne": 3}}},
    {"$match": {"$or": [{"a": 2}, {"b": None}]}},
    {"$sort": {"b": -1}},
    {"$limit": 4},
    {"$skip": 1},
    {"$set": {"b": {"$ifNull": ["$a", "$_id"]}}},
    {"$set": {"c.d": "$a"}},
    {"$project": {"a": 1, "b": "$c.d"}},
    {"$project": {"b": 0}},
    {"$unset": "c"},
    {"$unwind": "$b"},
    {"$unwind": {"path": "$c", "preserveNullAndEmptyArrays": True}},
    {"$group": {"_id": "$a", "b": {"$max": "$b"}, "n": {"$sum": 1}}},
    {"$replaceWith": {"a": "$b", "b": "$a"}},
]


@pytest.mark.parametrize("seed", range(60))
def test_the_result_is_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    values: list[Any] = [1, 2, 3, None, [1, 2], [], {"d": 1}, [{"d": 1}]]
    documents = [
        {"_id": number, **{name: rng.choice(values) for name in "abc" if rng.random() < 0.8}} for number in range(12)
    ]
    for _ in range(5):
        stages = [rng.choice(STAGES) for _ in range(rng.randrange(2, 6))]
        found = run(stages, documents)
        with monkeypatch.context() as patch:
            patch.setattr(pipeline, "rewrite", lambda stages, _scope: stages)
            assert found == run(stages, documents), stages

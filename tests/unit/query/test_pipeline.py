"""Pipelines: what each stage makes of its documents, and each way to be refused."""

from __future__ import annotations

from typing import Any

import pytest

from replset.bson import Decimal128, Int64, decode, encode
from replset.errors import ReplError
from replset.query import pipeline, sorter
from replset.query.pipeline import compile_pipeline
from replset.query.pipeline_names import COLLECTIONLESS_STAGES, NOT_BUILT_STAGES
from replset.query.stages import group
from replset.query.stages.stage import Chain

DOCS: list[dict[str, Any]] = [
    {"_id": 1, "a": 1, "n": 5, "o": {"x": 1}},
    {"_id": 2, "a": 2, "n": 7, "o": [{"x": 1}, {"x": 2}, 5]},
    {"_id": 3, "a": 1.0, "n": 2.5},
    {"_id": 4, "n": "no number", "o": {"x": {"y": 1}}},
    {"_id": 5, "a": None, "n": Int64(1)},
]


def run(stages: list[Any], documents: list[dict[str, Any]] = DOCS) -> list[dict[str, Any]]:
    chain = Chain(compile_pipeline(stages))
    found: list[bytes | None] = []
    for document in documents:
        if chain.is_full:
            break
        found += chain.feed([encode(document)])
    found += chain.end()
    return [decode(raw) for raw in found if raw is not None]


RESULTS: dict[str, tuple[list[Any], list[Any]]] = {
    "nothing": ([], DOCS),
    "match": ([{"$match": {"a": 1}}, {"$project": {"_id": 1}}], [{"_id": 1}, {"_id": 3}]),
    "skip-and-limit": (
        [{"$skip": 1}, {"$limit": Int64(2)}, {"$project": {"a": 1}}],
        [{"_id": 2, "a": 2}, {"_id": 3, "a": 1.0}],
    ),
    "limit-then-skip": ([{"$limit": 2.0}, {"$skip": 1}, {"$project": {"_id": 1}}], [{"_id": 2}]),
    "sort": (
        [{"$sort": {"a": -1, "_id": -1}}, {"$project": {"_id": 1}}],
        [{"_id": 2}, {"_id": 3}, {"_id": 1}, {"_id": 5}, {"_id": 4}],
    ),
    "sort-in-between": ([{"$limit": 3}, {"$sort": {"n": 1}}, {"$limit": 1}, {"$project": {"_id": 1}}], [{"_id": 3}]),
    "hide": ([{"$limit": 1}, {"$project": {"o": 0, "n": 0}}], [{"_id": 1, "a": 1}]),
    "below": ([{"$limit": 1}, {"$project": {"o": {"x": 1}, "_id": 0}}], [{"o": {"x": 1}}]),
    "count": ([{"$match": {"_id": {"$gt": 2}}}, {"$count": "n"}], [{"n": 3}]),
    "count-none": ([{"$match": {"_id": 77}}, {"$count": "n"}], []),
    "count-documents": ([{"$group": {"_id": 1, "n": {"$sum": 1}}}], [{"_id": 1, "n": 5}]),
    "group-none": ([{"$match": {"_id": 77}}, {"$group": {"_id": None, "n": {"$sum": 1}}}], []),
    "group-by-a-path": (
        [{"$group": {"_id": "$a", "n": {"$sum": 1}, "of": {"$sum": "$n"}}}],
        [{"_id": 1, "n": 2, "of": 7.5}, {"_id": 2, "n": 1, "of": 7}, {"_id": None, "n": 2, "of": Int64(1)}],
    ),
    "group-below": (
        [{"$group": {"_id": "$o.x", "n": {"$sum": 1}}}],
        [{"_id": 1, "n": 1}, {"_id": [1, 2], "n": 1}, {"_id": None, "n": 2}, {"_id": {"y": 1}, "n": 1}],
    ),
    "group-by-an-empty-document": ([{"$group": {"_id": {}}}], [{"_id": {}}]),
    "sum-of-no-number": ([{"$group": {"_id": None, "n": {"$sum": "x"}}}], [{"_id": None, "n": 0}]),
    "a-stage-behind-a-group": (
        [{"$group": {"_id": "$a", "n": {"$sum": 1}}}, {"$match": {"n": {"$gt": 1}}}, {"$sort": {"_id": 1}}],
        [{"_id": None, "n": 2}, {"_id": 1, "n": 2}],
    ),
}


@pytest.mark.parametrize(("stages", "wanted"), RESULTS.values(), ids=RESULTS)
def test_what_comes_out(stages: list[Any], wanted: list[Any]) -> None:
    found = run(stages)
    assert found == wanted
    assert encode({"": found}) == encode({"": wanted})


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([1, 2], 3),
        ([1, Int64(2)], Int64(3)),
        ([(1 << 31) - 1, 1], Int64(1 << 31)),
        ([Int64((1 << 63) - 1), 1], float(1 << 63)),
        ([1, 0.5], 1.5),
        ([0.1] * 10, 1.0),
        ([1e100, 1.0, -1e100], 1.0),
        ([float("inf"), 1.0, 1], float("inf")),
        ([1, Decimal128("0.1"), Decimal128("0.2")], Decimal128("1.3")),
        ([0.5, Decimal128("1")], Decimal128("1.5")),
        ([None, "x", [5], {}], 0),
    ],
)
def test_sums(values: list[Any], wanted: object) -> None:
    ((result),) = run([{"$group": {"_id": 0, "s": {"$sum": "$v"}}}], [{"v": value} for value in values])
    shown = result["s"].to_decimal() if isinstance(wanted, Decimal128) else result["s"]
    assert shown == (wanted.to_decimal() if isinstance(wanted, Decimal128) else wanted)
    assert type(result["s"]) is type(wanted)


def test_a_count_without_documents_is_the_same() -> None:
    for stages in ([{"$count": "n"}], [{"$group": {"_id": "x", "n": {"$sum": Int64(3)}, "m": {"$sum": "y"}}}]):
        chain = Chain(compile_pipeline(stages))
        assert chain.stages[0].only_counts
        chain.stages[0].take_count(len(DOCS))
        assert [decode(raw) for raw in chain.end() if raw is not None] == run(stages)
    for spec in ({"_id": "$a"}, {"_id": 1, "n": {"$sum": "$a"}}, {"_id": 1, "n": {"$sum": 0.1}}):
        assert not compile_pipeline([{"$group": spec}])[0].only_counts


REFUSALS: list[tuple[Any, int]] = [
    (5, 14),
    ({}, 40323),
    ({"$match": {}, "$limit": 1}, 40323),
    ({"$nonsense": 1}, 40324),
    ({"match": {}}, 40324),
    *(({name: {}}, 238) for name in sorted(NOT_BUILT_STAGES)),
    ({"$match": 1}, 15959),
    ({"$match": {"$nonsense": 1}}, 2),
    ({"$match": {"$where": "1"}}, 238),
    ({"$project": 1}, 15969),
    ({"$project": {}}, 51272),
    ({"$project": {"a": 1, "b": 0}}, 31254),
    ({"$project": {"a": 0, "b": "$c"}}, 31252),
    ({"$sort": 1}, 15973),
    ({"$sort": {}}, 15976),
    ({"$sort": {"a": 2}}, 15975),
    ({"$sort": {"$natural": 1}}, 16410),
    ({"$skip": "x"}, 5107200),
    ({"$skip": -1}, 5107200),
    ({"$skip": 1.5}, 5107200),
    ({"$skip": float("nan")}, 5107200),
    ({"$skip": 1e30}, 5107200),
    ({"$limit": None}, 5107201),
    ({"$limit": 0}, 15958),
    ({"$count": 1}, 40156),
    ({"$count": ""}, 40157),
    ({"$count": "$a"}, 40158),
    ({"$count": "a\0"}, 40159),
    ({"$count": "a.b"}, 40160),
    ({"$group": 1}, 15947),
    ({"$group": {}}, 15955),
    ({"$group": {"_id": "$"}}, 16872),
    ({"$group": {"_id": "$a."}}, 40353),
    ({"$group": {"_id": "$a..b"}}, 15998),
    ({"$group": {"_id": {"$nonsense": 1}}}, 168),
    ({"$group": {"_id": 1, "a": 1}}, 40234),
    ({"$group": {"_id": 1, "a.b": {"$sum": 1}}}, 40235),
    ({"$group": {"_id": 1, "$a": {"$sum": 1}}}, 40236),
    ({"$group": {"_id": 1, "a": {}}}, 40238),
    ({"$group": {"_id": 1, "a": {"$nonsense": 1}}}, 15952),
    ({"$group": {"_id": 1, "a": {"$accumulator": {}}}}, 238),
    ({"$collStats": 1}, 14),
    ({"$collStats": {"nonsense": {}}}, 40415),
    ({"$collStats": {"count": 1}}, 14),
    ({"$collStats": {"latencyStats": {"histograms": True}}}, 238),
    ({"$collStats": {"storageStats": {"scale": 0}}}, 2),
    ({"$currentOp": 1}, 9),
    ({"$currentOp": {"nonsense": True}}, 9),
    ({"$currentOp": {"allUsers": 1}}, 9),
]


@pytest.mark.parametrize(("stage", "code"), REFUSALS)
def test_refusals(stage: Any, code: int) -> None:
    with pytest.raises(ReplError) as failure:
        compile_pipeline([stage])
    assert failure.value.code == code


def test_more_refusals() -> None:
    for stages, code in (([{"$skip": 0}, {"$collStats": {}}], 40602), ([{"$skip": 0}] * 1001, 7749501)):
        with pytest.raises(ReplError) as failure:
            compile_pipeline(stages)
        assert failure.value.code == code


@pytest.mark.parametrize("stage", [{"$sort": {"a": 1}}, {"$group": {"_id": "$_id"}}])
def test_memory_is_limited(monkeypatch: pytest.MonkeyPatch, stage: dict[str, Any]) -> None:
    monkeypatch.setattr(sorter, "MAX_BYTES", 1000)
    monkeypatch.setattr(group, "MAX_BYTES", 1000)
    chain = Chain(compile_pipeline([stage]))
    list(chain.feed([encode({"_id": 0, "a": 1})]))
    assert 0 < chain.memory_bytes < 1000
    with pytest.raises(ReplError) as failure:
        list(chain.feed(encode({"_id": number, "a": 1}) for number in range(100)))
    assert failure.value.code == 292


def test_the_names_are_told_apart() -> None:
    assert not NOT_BUILT_STAGES & pipeline.STAGES.keys()
    assert NOT_BUILT_STAGES | pipeline.STAGES.keys() >= COLLECTIONLESS_STAGES


def test_stages_that_make_values_grow_are_not_simple_together() -> None:
    twice = {"$set": {"a": ["$a", "$a"]}}
    assert Chain(compile_pipeline([twice, {"$match": {}}])).is_simple
    assert not Chain(compile_pipeline([twice, twice])).is_simple
    assert not Chain(compile_pipeline([{"$group": {"_id": ["$a", "$a"]}}, twice])).is_simple

"""A command's time limit reaches into every loop of the language: it asks for the time at least once for 100 items."""

from __future__ import annotations

from typing import Any

import pytest

from replset.bson import DateTime, Regex, Timestamp, encode
from replset.errors import ErrorCode, MaxTimeMSExpiredError, ReplError
from replset.query import time_limit
from replset.query.distinct import Distinct
from replset.query.expressions import compile_expression
from replset.query.match import compile_filter
from replset.query.pipeline import compile_pipeline
from replset.query.projection import compile_projection
from replset.query.sort import compile_sort
from replset.query.stages.stage import Chain, Run
from replset.query.update import compile_update

ITEMS = 500
DOC: dict[str, Any] = {
    "_id": 1,
    "a": list(range(ITEMS)),
    "d": [{"k": str(number), "v": number, "i": [number]} for number in range(ITEMS)],
    "s": "ab" * ITEMS,
}
EXPRESSIONS = [
    {"$map": {"input": "$a", "in": 1}},
    {"$filter": {"input": "$a", "cond": False}},
    {"$reduce": {"input": "$a", "initialValue": 0, "in": 1}},
    {"$map": {"input": {"$range": [0, ITEMS]}, "in": {"$map": {"input": [], "in": 1}}}},
    {"$zip": {"inputs": ["$a", "$a"]}},
    {"$sortArray": {"input": "$a", "sortBy": -1}},
    {"$sortArray": {"input": "$d", "sortBy": {"v": 1}}},
    {"$in": [-1, "$a"]},
    {"$indexOfArray": ["$a", -1]},
    {"$setUnion": ["$a", []]},
    {"$setIntersection": ["$a", "$a"]},
    {"$setDifference": ["$a", []]},
    {"$setEquals": ["$a", "$a"]},
    {"$setIsSubset": ["$a", "$a"]},
    {"$mergeObjects": "$d"},
    {"$size": "$d.i.x"},
    {"$regexFindAll": {"input": "$s", "regex": "a"}},
    *[{name: "$a"} for name in ("$sum", "$avg", "$min", "$max", "$stdDevPop", "$stdDevSamp")],
    *[{name: {"n": 3, "input": "$a"}} for name in ("$firstN", "$lastN", "$minN", "$maxN")],
    {"$percentile": {"input": "$a", "p": [0.5], "method": "approximate"}},
    {"$median": {"input": "$a", "method": "approximate"}},
]
FILTERS = [
    {"a": {"$gt": ITEMS}},
    {"a": {"$in": [-1, "x"]}},
    {"a": {"$elemMatch": {"$gt": ITEMS}}},
    {"a": {"$not": {"$gt": ITEMS}}},
    {"d.v": -1},
    {"d.i": -1},
    {"d": {"$elemMatch": {"v": -1}}},
    {"d.i": {"$size": 7}},
    {"a": {"$all": [-1]}},
    {"a": {"$type": "string"}},
    {"a": {"$mod": [ITEMS, -1]}},
    {"a": {"$bitsAllSet": 1 << 20}},
    {"a": {"$regex": "x"}},
    {"$expr": {"$in": [-1, "$a"]}},
    {"$jsonSchema": {"properties": {"a": {"items": {"bsonType": "number"}}}}},
    {"$jsonSchema": {"properties": {"a": {"uniqueItems": True}}}},
    {"$jsonSchema": {"properties": {"s": {"enum": list(range(ITEMS))}}}},
]
PROJECTIONS = [{"d.v": 1}, {"d.v": 0}, {"d.w": {"$literal": 1}}, {"a": {"$elemMatch": {"$gt": ITEMS}}}]
UPDATES = [
    {"$pull": {"a": -1}},
    {"$pull": {"d": {"v": -1}}},
    {"$pullAll": {"a": [-1]}},
    {"$push": {"a": {"$each": [], "$sort": -1}}},
    {"$push": {"d": {"$each": [], "$sort": {"v": -1}}}},
    {"$addToSet": {"a": {"$each": [-1]}}},
    {"$inc": {"a.$[]": 1}},
    {"$set": {"d.$[].w": 1}},
    [{"$set": {"b": {"$map": {"input": "$a", "in": 1}}}}],
]
STAGES = [
    [{"$unwind": "$a"}, {"$group": {"_id": {"$add": ["$a", 1]}, "n": {"$sum": 1}}}],
    [
        {"$project": {"a": 1}},
        {"$unwind": "$a"},
        {"$setWindowFields": {"sortBy": {"a": 1}, "output": {"n": {"$sum": "$a"}}}},
    ],
    [{"$redact": {"$cond": [{"$eq": ["$v", -1]}, "$$PRUNE", "$$DESCEND"]}}],
    [{"$project": {"a": 1}}, {"$redact": "$$DESCEND"}],
    [{"$project": {"d.w": {"$literal": 1}}}],
    [{"$facet": {"x": [{"$unwind": "$a"}, {"$sortByCount": "$a"}]}}],
    [{"$sort": {"a": 1}}],
]


def update(operators: Any) -> Any:
    return compile_update(operators).apply(dict(DOC), now=DateTime(0), timestamp=Timestamp(1, 1))


def chain(stages: list[dict[str, Any]]) -> None:
    work = Chain(compile_pipeline(stages), Run())
    list(work.feed([encode(DOC)]))
    list(work.end())


WORK = [
    *[pytest.param(lambda e=e: compile_expression(e, {}).evaluate(DOC, {}), id=f"{e}"[:60]) for e in EXPRESSIONS],
    *[pytest.param(lambda e=e: compile_filter(e).matches(DOC), id=f"{e}") for e in FILTERS],
    *[pytest.param(lambda e=e: compile_projection(e)(DOC), id=f"projection {e}") for e in PROJECTIONS],
    *[pytest.param(lambda e=e: update(e), id=f"{e}") for e in UPDATES],
    *[pytest.param(lambda e=e: chain(e), id=f"{e}"[:60]) for e in STAGES],
    pytest.param(lambda: compile_sort({"a": 1})(DOC), id="sort"),
    pytest.param(lambda: Distinct("d.v").add(DOC), id="distinct"),
]


@pytest.mark.parametrize("work", WORK)
def test_every_loop_asks_whether_the_time_is_up(work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limit, "POLL_S", 0.0)  # at each look
    asked = 0

    def is_time_up() -> bool:
        nonlocal asked
        asked += 1
        return asked > ITEMS // 100

    with time_limit.time_limit(is_time_up), pytest.raises(MaxTimeMSExpiredError, match="exceeded time limit"):
        work()
    with time_limit.time_limit(lambda: False):
        work()


PARTS: list[tuple[Any, int]] = [
    (lambda: compile_filter({"a": 1, "b": {"$gt": 1, "$lt": 5}}), 3),
    (lambda: compile_filter({"$or": [{"a": 1}, {"b": 1}]}), 4),
    (lambda: compile_filter({"a": {"$in": list(range(ITEMS))}}), 1),
    (lambda: compile_filter({"a": {"$in": [Regex("a", ""), Regex("b", ""), 1]}}), 3),
    (lambda: compile_filter({"a": {"$all": [1, 2, 3]}}), 4),
    (lambda: compile_filter({"a": {"$elemMatch": {"b": 1, "c": {"$ne": 2}}}}), 3),
    (lambda: compile_filter({"$jsonSchema": {"properties": {"a": {}, "b": {"items": {}}}}}), 3),
    (lambda: compile_filter({"$expr": {"$add": ["$a", 1]}}), 3),
    (lambda: compile_expression({"$literal": list(range(ITEMS))}, {}), 1),
    (lambda: compile_projection({"a": 1, "b": {"c": 1}}), 3),
    (lambda: compile_update({"$set": {"a": list(range(ITEMS)), "b": {"c": 1}}, "$inc": {"d": 1}}), 3),
    (lambda: compile_pipeline([{"$match": {"a": 1, "b": 1}}]), 2),
    (lambda: compile_update({"a": 1, "b": list(range(ITEMS))}), 0),
]


@pytest.mark.parametrize(("work", "parts"), PARTS)
def test_the_parts_of_a_statement_are_counted_and_limited(
    work: Any, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is compiled into objects that take many times its bytes; values are not."""
    work()  # without a limit on the event loop, where only small statements are compiled
    before = time_limit.parts_compiled()
    with time_limit.time_limit():
        work()
    assert time_limit.parts_compiled() - before == parts
    monkeypatch.setattr(time_limit, "MOST_PARTS", parts)
    with time_limit.time_limit():
        work()
    if parts:
        monkeypatch.setattr(time_limit, "MOST_PARTS", parts - 1)
        with time_limit.time_limit(), pytest.raises(ReplError, match="make it smaller") as error:
            work()
        assert error.value.code == ErrorCode.EXCEEDED_MEMORY_LIMIT
    work()


def test_compiling_looks_at_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limit, "POLL_S", 0.0)
    with time_limit.time_limit(lambda: True), pytest.raises(MaxTimeMSExpiredError):
        compile_filter({"a": 1})

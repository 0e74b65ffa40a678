"""Stages: what each makes of its documents, and each way to be refused."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from replset.bson import Int64, Undefined, decode, encode
from replset.errors import ReplError
from replset.query import sorter
from replset.query.pipeline import compile_pipeline
from replset.query.row import Row
from replset.query.stages import group
from replset.query.stages.stage import Chain, Run, fields_read

Doc = dict[str, Any]


def run(stages: list[Any], documents: list[Doc], **variables: Any) -> list[Doc]:
    """Feed the documents one by one, as a cursor does."""
    chain = Chain(compile_pipeline(stages), Run(variables))
    found: list[bytes | None] = []
    for document in documents:
        if not chain.is_full:
            found += chain.feed([encode(document)])
    found += chain.end()
    chain.close()
    return [decode(raw) for raw in found if raw is not None]


def of(name: str, *rows: tuple[Any, ...]) -> list[Any]:
    """Rows that begin with this stage's argument."""
    return [({name: argument}, *rest) for argument, *rest in rows]


@pytest.mark.parametrize(
    ("stages", "fields"),
    [
        ([{"$match": {"a.b": 1, "$or": [{"c": 1}]}}, {"$group": {"_id": "$d.e", "f": {"$sum": "$g"}}}], "acdg"),
        ([{"$match": {"a": {"$elemMatch": {"b": 1}}}}, {"$count": "c"}], "a"),
        ([{"$match": {"$expr": {"$eq": ["$a.b", "$$ROOT.c"]}}}, {"$limit": 5}, {"$count": "n"}], "ac"),
        ([{"$addFields": {"a.b": "$c"}}, {"$unset": "d"}, {"$replaceWith": {"e": "$f"}}], "acf"),
        ([{"$project": {"_id": 0, "a.b": 1, "c": {"$slice": ["$d", 1]}}}, {"$match": {"z": 1}}], ["_id", *"acd"]),
        ([{"$unwind": {"path": "$a.b", "includeArrayIndex": "c.d"}}, {"$sortByCount": "$e"}], "ace"),
        ([{"$sort": {"a.b": 1}}, {"$bucket": {"groupBy": "$c", "boundaries": [1, 2]}}], "ac"),
        ([{"$group": {"_id": 1, "x": {"$top": {"sortBy": {"a": 1}, "output": "$b"}}}}], "ab"),
        ([{"$group": {"_id": 1, "x": {"$push": "$$ROOT"}}}], None),
        ([{"$match": {"$jsonSchema": {"required": ["a"]}}}, {"$count": "n"}], None),
        ([{"$match": {"a": 1}}, {"$addFields": {"b": 1}}], None),
        ([{"$project": {"a": 0}}, {"$count": "n"}], None),
        ([{"$redact": "$$KEEP"}, {"$count": "n"}], None),
    ],
    ids=str,
)
def test_only_what_matters_is_decoded(stages: list[Any], fields: Iterable[str] | None) -> None:
    found = fields_read(Chain(compile_pipeline(stages)).stages)
    assert found == (None if fields is None else {name.encode(): name for name in fields})


ITEMS: list[Doc] = [
    {"_id": 1, "a": [1, 2], "z": 1},
    {"_id": 2, "a": []},
    {"_id": 3, "a": None},
    {"_id": 4},
    {"_id": 5, "a": "x"},
    {"_id": 6, "a": [[3]]},
]
TREE: list[Doc] = [{"_id": 1, "n": 1, "in": {"n": 5, "t": 1}, "of": [{"n": 2}, {"n": 9}, 4, [{"n": 9}]]}]
RESULTS: list[tuple[list[Any], list[Doc], list[Doc]]] = [
    # $addFields, $set, $unset
    ([{"$addFields": {"b": "$a", "c": {"d": 1}}}], [{"a": 1}], [{"a": 1, "b": 1, "c": {"d": 1}}]),
    ([{"$set": {"a.b": "$c", "c": "$$REMOVE"}}], [{"a": [1, {"x": 2}], "c": 5}], [{"a": [{"b": 5}, {"x": 2, "b": 5}]}]),
    ([{"$set": {"a": {"b": {"$literal": "$x"}}}}], [{"a": 1}], [{"a": {"b": "$x"}}]),
    ([{"$set": {"a": "$b", "b": "$a"}}], [{"a": 1, "b": 2}], [{"a": 2, "b": 1}]),
    ([{"$unset": "a"}], [{"_id": 1, "a": 1, "b": 2}], [{"_id": 1, "b": 2}]),
    ([{"$unset": ["_id", "a.b"]}], [{"_id": 1, "a": [{"b": 1, "c": 1}]}], [{"a": [{"c": 1}]}]),
    # $project
    ([{"$project": {"x": "$a.b", "_id": 0}}], [{"_id": 1, "a": [{"b": 1}, {"b": 2}]}], [{"x": [1, 2]}]),
    ([{"$project": {"a": 1, "x": {"y": "$a"}}}], [{"_id": 1, "a": 2, "b": 3}], [{"_id": 1, "a": 2, "x": {"y": 2}}]),
    # $replaceRoot
    ([{"$replaceRoot": {"newRoot": "$a"}}], [{"a": {"b": 1}}], [{"b": 1}]),
    ([{"$replaceWith": {"x": "$a", "y": "$no"}}], [{"a": 1}], [{"x": 1}]),
    # $unwind
    (
        [{"$unwind": "$a"}],
        ITEMS,
        [{"_id": 1, "a": 1, "z": 1}, {"_id": 1, "a": 2, "z": 1}, {"_id": 5, "a": "x"}, {"_id": 6, "a": [3]}],
    ),
    (
        [{"$unwind": {"path": "$a", "preserveNullAndEmptyArrays": True, "includeArrayIndex": "i"}}],
        ITEMS[:5],
        [
            {"_id": 1, "a": 1, "z": 1, "i": Int64(0)},
            {"_id": 1, "a": 2, "z": 1, "i": Int64(1)},
            {"_id": 2, "i": None},
            {"_id": 3, "a": None, "i": None},
            {"_id": 4, "i": None},
            {"_id": 5, "a": "x", "i": None},
        ],
    ),
    ([{"$unwind": "$a.b"}], [{"a": {"b": [1, 2], "c": 3}}], [{"a": {"b": 1, "c": 3}}, {"a": {"b": 2, "c": 3}}]),
    ([{"$unwind": "$a.b"}], [{"a": [{"b": [1]}]}], []),
    ([{"$unwind": "$a"}, {"$limit": 1}, {"$skip": 0}], [{"a": list(range(9))}] * 2, [{"a": 0}]),
    ([{"$unwind": "$a"}, {"$unwind": "$a"}], [{"a": [[1, 2], 3]}], [{"a": 1}, {"a": 2}, {"a": 3}]),
    # $redact
    (
        [{"$redact": {"$cond": [{"$gt": ["$n", 4]}, "$$PRUNE", "$$DESCEND"]}}],
        TREE,
        [{"_id": 1, "n": 1, "of": [{"n": 2}, 4, []]}],
    ),
    ([{"$redact": {"$cond": [{"$eq": ["$$ROOT.n", 1]}, "$$KEEP", "$$PRUNE"]}}], TREE, TREE),
    ([{"$redact": "$$PRUNE"}], TREE, []),
    # $facet
    (
        [{"$facet": {"n": [{"$count": "n"}], "one": [{"$limit": 1}], "none": [{"$match": {"a": 9}}]}}],
        [{"a": 1}, {"a": 2}],
        [{"n": [{"n": 2}], "one": [{"a": 1}], "none": []}],
    ),
    # $group and what is made of it
    (
        [{"$group": {"_id": {"k": "$k", "no": "$no"}, "all": {"$push": "$v"}, "top": {"$max": "$v"}}}],
        [{"k": 1, "v": 5}, {"k": 2}, {"k": 1, "v": 7}],
        [{"_id": {"k": 1}, "all": [5, 7], "top": 7}, {"_id": {"k": 2}, "all": [], "top": None}],
    ),
    (
        [{"$group": {"_id": {"p": "$p"}, "n": {"$sum": 1}}}],
        [{"a": 1}, {"p": None}, {"p": Undefined()}, {"p": {}}],
        [{"_id": {"p": None}, "n": 2}, {"_id": {"p": Undefined()}, "n": 1}, {"_id": {"p": {}}, "n": 1}],
    ),
    (
        [{"$group": {"_id": {"p": "$p", "q": "$q"}, "n": {"$sum": 1}}}],
        [{"a": 1}, {"p": None}, {"q": 1}],
        [{"_id": {}, "n": 1}, {"_id": {"p": None}, "n": 1}, {"_id": {"q": 1}, "n": 1}],
    ),
    ([{"$group": {"_id": {"$mod": ["$a", 2]}}}], [{"a": 3}, {"a": 1}, {"a": 2}], [{"_id": 1}, {"_id": 0}]),
    (
        [{"$sortByCount": "$a"}],
        [{"a": 1}, {"a": "x"}, {"a": "x"}, {}],
        [{"_id": "x", "count": 2}, {"_id": 1, "count": 1}, {"_id": None, "count": 1}],
    ),
    (
        [{"$bucket": {"groupBy": "$a", "boundaries": [0, 2.5, 10], "default": "other"}}],
        [{"a": 2.5}, {"a": 0}, {"a": 10}, {"a": "x"}, {}, {"a": 9.9}],
        [{"_id": 0, "count": 1}, {"_id": 2.5, "count": 2}, {"_id": "other", "count": 3}],
    ),
    (
        [{"$bucket": {"groupBy": "$a", "boundaries": [0, 5], "output": {"of": {"$push": "$a"}}}}],
        [{"a": 4}, {"a": 1}],
        [{"_id": 0, "of": [4, 1]}],
    ),
    (
        [{"$bucketAuto": {"groupBy": "$a", "buckets": 3}}],
        [{"a": a} for a in (5, 1, 2, 2, 2, 7, 9, 3)],
        [
            {"_id": {"min": 1, "max": 3}, "count": 4},
            {"_id": {"min": 3, "max": 9}, "count": 3},
            {"_id": {"min": 9, "max": 9}, "count": 1},
        ],
    ),
    ([{"$bucketAuto": {"groupBy": "$a", "buckets": 5}}], [{"a": 1}], [{"_id": {"min": 1, "max": 1}, "count": 1}]),
    ([{"$bucketAuto": {"groupBy": "$a", "buckets": 5}}], [], []),
    # $facet
    ([{"$match": {"a": 9}}, {"$facet": {"n": [{"$sort": {"a": 1}}]}}], [{"a": 1}], [{"n": []}]),
    ([{"$facet": {"all": []}}], [{"a": 1}, {}], [{"all": [{"a": 1}, {}]}]),
    (
        [{"$facet": {"n": [{"$sort": {"a": -1}}, {"$limit": 1}]}}, {"$unwind": "$n"}],
        [{"a": 1}, {"a": 2}],
        [{"n": {"a": 2}}],
    ),
]


@pytest.mark.parametrize(("stages", "documents", "wanted"), RESULTS, ids=[str(stages)[:70] for stages, _, _ in RESULTS])
def test_what_comes_out(stages: list[Any], documents: list[Doc], wanted: list[Doc]) -> None:
    found = run(stages, documents)
    assert found == wanted
    assert encode({"": found}) == encode({"": wanted})


REFUSED: list[tuple[Any, int]] = [
    *of("$addFields", (1, 40272), ({}, 40177)),
    *of("$set", ({"a": {}}, 40180), ({"a": {"$add": 1, "b": 1}}, 40181), ({"a": {"b.c": 1}}, 40183)),
    *of("$set", ({"a": 1, "a.b": 1}, 40176), ({"$a": 1}, 16410)),
    *of("$unset", (1, 31002), ([], 31119), (["a", 1], 31120), (["a", "a.b"], 31249)),
    *of("$project", ({"a.$": 1}, 31324), ({"a": {"$elemMatch": {"b": 1}}}, 168)),
    *of("$replaceRoot", (1, 40229), ({}, 40414), ({"newRoot": "$a", "x": 1}, 40415)),
    *of("$unwind", (1, 15981), ({"path": 1}, 28808), ({"path": "$a", "preserveNullAndEmptyArrays": 1}, 28809)),
    ({"$unwind": {"path": "$a", "includeArrayIndex": ""}}, 28810),
    *of("$unwind", ({"path": "$a", "includeArrayIndex": "$i"}, 28822), ({"path": "$a", "x": 1}, 28811), ({}, 28812)),
    ({"$unwind": "a"}, 28818),
    ({"$redact": "$$NOPE"}, 17276),
    *of("$group", ({"_id": {"a": 1}}, 17390), ({"_id": {"a": "$a", "b": True}}, 17390)),
    *of("$sortByCount", (1, 40149), ("a", 40148), ({"a": 1}, 40147)),
    *of("$bucket", (1, 40201), ({}, 40198), ({"x": 1}, 40197), ({"groupBy": "a", "boundaries": [1, 2]}, 40202)),
    *of("$bucket", ({"groupBy": "$a", "boundaries": 1}, 40200), ({"groupBy": "$a", "boundaries": [1]}, 40192)),
    ({"$bucket": {"groupBy": "$a", "boundaries": ["$a", 2]}}, 40191),
    ({"$bucket": {"groupBy": "$a", "boundaries": [1, "x"]}}, 40193),
    ({"$bucket": {"groupBy": "$a", "boundaries": [2, 1]}}, 40194),
    ({"$bucket": {"groupBy": "$a", "boundaries": [1, 2], "default": "$x"}}, 40195),
    ({"$bucket": {"groupBy": "$a", "boundaries": [1, 3], "default": 2}}, 40199),
    ({"$bucket": {"groupBy": "$a", "boundaries": [1, 3], "output": 2}}, 40196),
    *of("$bucketAuto", (1, 40240), ({"x": 1}, 40245), ({}, 40246), ({"groupBy": 1, "buckets": 1}, 40239)),
    *of("$bucketAuto", ({"groupBy": "$a", "buckets": "x"}, 40241), ({"groupBy": "$a", "buckets": 1.5}, 40242)),
    ({"$bucketAuto": {"groupBy": "$a", "buckets": 0}}, 40243),
    ({"$bucketAuto": {"groupBy": "$a", "buckets": 1, "output": 1}}, 40244),
    ({"$bucketAuto": {"groupBy": "$a", "buckets": 1, "granularity": "R5"}}, 238),
    *of("$sample", (1, 28745), ({"size": "x"}, 28746), ({"size": 0}, 28747), ({"x": 1}, 28748), ({}, 28749)),
    *of("$facet", ({}, 40169), ({"a": 1}, 40170), ({"a": [5]}, 40171), ({"a": [{}]}, 40323), ({"a.b": []}, 16412)),
    *of("$facet", ({"$a": []}, 16410), ({"a": [{"$facet": {"b": []}}]}, 40600), ({"a": [{"$collStats": {}}]}, 40600)),
]


@pytest.mark.parametrize(("stage", "code"), REFUSED, ids=[str(stage) for stage, _ in REFUSED])
def test_refused(stage: Any, code: int) -> None:
    with pytest.raises(ReplError) as failure:
        compile_pipeline([stage])
    assert failure.value.code == code, failure.value.message


FAILS: list[tuple[Any, Doc, int]] = [
    ({"$replaceRoot": {"newRoot": "$a"}}, {"a": 1}, 40228),
    ({"$replaceWith": "$a"}, {}, 40228),
    ({"$redact": "$a"}, {"a": 1}, 17053),
    ({"$bucket": {"groupBy": "$a", "boundaries": [1, 3]}}, {"a": 7}, 40066),
]


@pytest.mark.parametrize(("stage", "document", "code"), FAILS, ids=[str(stage) for stage, _, _ in FAILS])
def test_a_document_that_fails(stage: Any, document: Doc, code: int) -> None:
    with pytest.raises(ReplError) as failure:
        run([stage], [document])
    assert failure.value.code == code


FAILING: Doc = {"$match": {"$expr": {"$divide": [1, "$a"]}}}


@pytest.mark.parametrize(
    "stages",
    [
        [FAILING, {"$limit": 1}],
        [{"$unwind": "$all"}, FAILING, {"$limit": 1}, {"$unwind": "$all"}],
        [{"$facet": {"x": [FAILING, {"$limit": 1}], "y": [{"$limit": 1}, FAILING]}}],
    ],
    ids=str,
)
def test_nothing_is_made_that_no_limit_lets_through(stages: list[Doc]) -> None:
    chain = Chain(compile_pipeline(stages))
    documents = [{"a": 1, "all": [1, 2]}, {"a": 0, "all": 1}]
    assert len([raw for raw in [*chain.feed(map(encode, documents)), *chain.end()] if raw]) == 1
    assert chain.is_full


def test_a_stage_runs_again() -> None:
    """A compiled pipeline serves one run after the other."""
    stages = compile_pipeline([{"$skip": 1}, {"$limit": 1}, {"$facet": {"a": [{"$count": "n"}]}}])
    for _ in range(2):
        chain = Chain(stages)
        assert [decode(raw) for raw in [*chain.feed([encode({})] * 3), *chain.end()] if raw] == [{"a": [{"n": 1}]}]


class MemoryFile:
    """A temporary file in memory."""

    def __init__(self) -> None:
        self._records: list[bytes] = []

    def append(self, records: Iterable[bytes]) -> tuple[int, int]:
        start = len(self._records)
        self._records += records
        return start, len(self._records)

    def read(self, place: tuple[int, int]) -> Iterator[bytes]:
        return iter(self._records[slice(*place)])

    def close(self) -> None:
        self._records = []


BLOCKING: list[dict[str, Any]] = [
    {"$setWindowFields": {"partitionBy": "$k", "sortBy": {"_id": 1}, "output": {"r": {"$rank": {}}}}},
    {"$densify": {"field": "_id", "range": {"step": 1, "bounds": [-5, 1020]}}},
    {"$sort": {"k": 1, "_id": -1}},
    {"$group": {"_id": "$k", "n": {"$sum": 1}, "of": {"$push": "$_id"}, "mean": {"$avg": "$_id"}}},
    {"$group": {"_id": "$_id", "k": {"$first": "$k"}}},
    {"$bucketAuto": {"groupBy": "$_id", "buckets": 7, "output": {"k": {"$addToSet": "$k"}}}},
]


@pytest.mark.parametrize("stage", BLOCKING, ids=str)
def test_what_goes_to_the_disk_is_the_same(stage: Doc, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [{"_id": (number * 37) % 1009, "k": number % 61} for number in range(1000)]
    wanted = run([stage], documents)
    for module in (sorter, group):
        monkeypatch.setattr(module, "MAX_BYTES", 10_000)
    chain = Chain(compile_pipeline([stage]), Run(spill=MemoryFile))
    found = []
    for document in documents:
        found += chain.feed([encode(document)])
        assert chain.memory_bytes < 11_000
    assert chain.stages[0].used_disk
    found += chain.end()
    results = [decode(raw) for raw in found if raw is not None]
    if "$group" in stage:
        results.sort(key=lambda document: int(document["_id"]))
        wanted.sort(key=lambda document: int(document["_id"]))
    assert results == wanted
    with pytest.raises(ReplError) as failure:
        list(Chain(compile_pipeline([stage])).feed(map(encode, documents)))
    assert failure.value.code == 292


def test_one_group_that_fits_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "MAX_BYTES", 10_000)
    chain = Chain(compile_pipeline([{"$group": {"_id": 1, "of": {"$push": "$_id"}}}]), Run(spill=MemoryFile))
    list(chain.feed(encode({"_id": number}) for number in range(1000)))
    with pytest.raises(ReplError) as failure:
        list(chain.end())
    assert failure.value.code == 146


def test_a_sample_is_of_all_documents() -> None:
    documents = [{"_id": number} for number in range(100)]
    chain = Chain(compile_pipeline([{"$sample": {"size": 10}}]), Run(rng=random.Random(3)))
    found = [*chain.feed(map(encode, documents)), *chain.end()]
    ids = [decode(raw)["_id"] for raw in found if raw]
    assert len(set(ids)) == 10
    assert max(ids) > 50
    assert len(run([{"$sample": {"size": 1000}}], documents)) == 100


def test_a_row_makes_what_it_was_not_given_and_nothing_else() -> None:
    raw = encode({"a": 1})
    assert (Row(raw).document, Row(document={"a": 1}).raw) == ({"a": 1}, raw)
    with pytest.raises(AttributeError):
        _ = Row(raw).doc  # type: ignore[attr-defined]
    assert copy.deepcopy(Row(raw)).raw == raw

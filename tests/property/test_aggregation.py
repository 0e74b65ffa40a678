"""Random expressions and pipelines give what a naive evaluator gives, and never fail but with an error of ours."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from replset.bson import (
    Binary,
    Code,
    DateTime,
    Decimal128,
    Int64,
    MaxKey,
    MinKey,
    ObjectId,
    Regex,
    Symbol,
    Timestamp,
    decode,
    encode,
)
from replset.errors import ReplError
from replset.features.crud.filters import filter_of
from replset.query.alike import FieldsReader
from replset.query.expressions import OPERATORS, compile_accumulator, compile_expression
from replset.query.expressions.accumulators import ACCUMULATORS
from replset.query.match import compile_filter
from replset.query.order import MISSING
from replset.query.pipeline import compile_pipeline
from replset.query.stages.stage import Chain
from tests.property import naive_aggregation as naive

NUMBERS = [0, 1, 2, 3, -2, 2.0, 0.5, -1.25, Int64(2), Int64(5), 2**31 - 1]
TEXTS = ["", "a", "b", "ab", "a b"]
DATES = [DateTime(0), DateTime(951_782_400_123), DateTime(1_735_603_199_999)]
NAMES = ["n", "m", "s", "d", "l", "o", "gone"]


class Maker:
    """Makes random documents and expressions. Most arguments have a type that the operator takes."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)

    def value(self, depth: int = 2) -> Any:
        rng = self.rng
        kind = rng.randrange(8 if depth else 5)
        if kind == 5:
            return [self.value(depth - 1) for _ in range(rng.randrange(4))]
        if kind >= 6:
            return {name: self.value(depth - 1) for name in rng.sample(["x", "y", "z"], rng.randrange(3))}
        return rng.choice([NUMBERS, TEXTS, DATES, [None], [True, False]][kind])

    def document(self) -> dict[str, Any]:
        rng = self.rng
        fields = {
            "n": rng.choice(NUMBERS),
            "m": rng.choice(NUMBERS),
            "s": rng.choice(TEXTS),
            "d": rng.choice(DATES),
            "l": [self.value(1) for _ in range(rng.randrange(4))],
            "o": {"x": self.value(1), "y": rng.choice(NUMBERS)},
        }
        return {"_id": rng.randrange(100)} | {name: value for name, value in fields.items() if rng.random() < 0.85}

    def expression(self, depth: int, wanted: str = "any", names: tuple[str, ...] = ()) -> Any:
        rng = self.rng
        if rng.random() < 0.1:
            wanted = "any"
        if wanted == "any":
            wanted = rng.choice(["number", "text", "date", "list", "object", "bool"])
        if names and rng.random() < 0.3:
            return "$$" + rng.choice(names)
        if depth == 0 or rng.random() < 0.25:
            return self._leaf(wanted)
        return self._operator(depth - 1, wanted, names)

    def _leaf(self, wanted: str) -> Any:
        leaves: dict[str, list[Any]] = {
            "number": [*NUMBERS, "$n", "$m", "$o.y", "$n"],
            "text": [*TEXTS, "$s"],
            "date": [*DATES, "$d"],
            "list": ["$l", "$l", "$l.x", [1, "$n"], {"$literal": [1, 2.0, "a"]}],
            "object": ["$o", "$$ROOT", {"x": "$n", "z": "$gone"}, {}],
            "bool": [True, False, "$gone", None],
        }
        return self.rng.choice(leaves[wanted])

    def _operator(self, depth: int, wanted: str, names: tuple[str, ...]) -> Any:
        rng = self.rng

        def e(kind: str = "any", *more: str) -> Any:
            return self.expression(depth, kind, names + more)

        plain: dict[str, list[tuple[str, list[str]]]] = {
            "number": [
                *((name, ["number", "number"]) for name in ("$add", "$subtract", "$multiply", "$divide", "$mod")),
                *((name, ["number"]) for name in ("$abs", "$ceil", "$floor", "$trunc")),
                ("$cmp", ["any", "any"]), ("$size", ["list"]), ("$indexOfArray", ["list", "any"]),
                *((name, ["list"]) for name in ("$sum", "$avg")), ("$sum", ["number", "any"]), ("$strLenCP", ["text"]),
                *((name, ["date"]) for name in (
                    "$year", "$month", "$dayOfMonth", "$dayOfYear", "$dayOfWeek", "$isoDayOfWeek", "$isoWeek", "$hour",
                    "$minute", "$second", "$millisecond")),
                ("$subtract", ["date", "date"]), ("$arrayElemAt", ["list", "number"]), ("$max", ["list"]),
            ],
            "text": [("$concat", ["text", "text"]), ("$toUpper", ["text"]), ("$toLower", ["text"]), ("$type", ["any"])],
            "date": [("$add", ["date", "number"]), ("$subtract", ["date", "number"]), ("$min", ["date", "any"])],
            "list": [
                ("$concatArrays", ["list", "list"]), ("$reverseArray", ["list"]), ("$slice", ["list", "number"]),
                *((name, ["list", "list"]) for name in ("$setUnion", "$setIntersection", "$setDifference")),
                ("$split", ["text", "text"]),
            ],
            "object": [("$mergeObjects", ["object", "object"]), ("$first", ["list"]), ("$last", ["list"])],
            "bool": [
                *((name, ["any", "any"]) for name in ("$eq", "$ne", "$gt", "$gte", "$lt", "$lte")),
                *((name, ["number", "number"]) for name in ("$gt", "$lte", "$eq")), ("$in", ["any", "list"]),
                ("$not", ["bool"]), ("$isArray", ["any"]), ("$isNumber", ["any"]), ("$anyElementTrue", ["list"]),
                ("$allElementsTrue", ["list"]), ("$setEquals", ["list", "list"]), ("$setIsSubset", ["list", "list"]),
            ],
        }  # fmt: skip
        special: list[Any] = [
            lambda: {"$cond": [e("bool"), e(wanted), e(wanted)]},
            lambda: {"$ifNull": [e(wanted), e(wanted)]},
            lambda: {"$switch": {"branches": [{"case": e("bool"), "then": e(wanted)}], "default": e(wanted)}},
            lambda: {"$let": {"vars": {"v": e(), "w": e(wanted)}, "in": e(wanted, "v", "w")}},
            lambda: {"$reduce": {"input": e("list"), "initialValue": e(wanted), "in": e(wanted, "this", "value")}},
            lambda: {"$map": {"input": e("list"), "in": e("any", "this")}},
            lambda: {"$filter": {"input": e("list"), "cond": e("bool", "this")}},
            lambda: {rng.choice(["$and", "$or"]): [e("bool"), e("bool")]},
            lambda: [e(), e()],
            lambda: {"x": e(), "y": e(wanted)},
        ]
        if rng.random() < 0.3:
            return rng.choice(special)()
        name, kinds = rng.choice(plain[wanted])
        return {name: [e(kind) for kind in kinds]}

    def stage(self) -> dict[str, Any]:
        rng = self.rng

        def e(kind: str = "any") -> Any:
            return self.expression(2, kind)

        def accumulator() -> Any:
            name = rng.choice(["$sum", "$avg", "$min", "$max", "$first", "$last", "$push", "$count", "$topN", "$minN"])
            if name == "$topN":
                return {name: {"n": 2, "sortBy": {"n": 1, "_id": -1}, "output": e()}}
            return {name: {"n": 2, "input": e()} if name == "$minN" else {} if name == "$count" else {"x": e()}}

        def group_id() -> Any:
            return rng.choice(
                [e, lambda: {"k": e()}, lambda: {"k": "$" + rng.choice(NAMES)}, lambda: {"k": e(), "m": e()}]
            )()

        name = rng.choice(NAMES[:6])
        return rng.choice(
            [
                lambda: {"$match": {"$expr": e("bool")}},
                lambda: {"$project": {"n": 1, "l": 1, "p": {"$ifNull": [e(), None]}}},
                lambda: {"$addFields": {"f": {"$ifNull": [e(), None]}, name: {"$ifNull": [e(), None]}}},
                lambda: {
                    "$group": {"_id": group_id(), "n": accumulator(), "l": accumulator(), "s": {"$sum": e("number")}}
                },
                lambda: {"$sort": {name: rng.choice([1, -1]), "o.y": 1}},
                lambda: {"$unwind": "$l"},
                lambda: {"$replaceRoot": {"newRoot": {"n": e(), "l": e("list")}}},
                lambda: {"$limit": rng.randrange(1, 6)},
                lambda: {"$skip": rng.randrange(3)},
                lambda: {"$unset": name},
                lambda: {"$count": "n"},
            ]
        )()


def outcome_of(expression: Any, document: dict[str, Any]) -> Any:
    """Return the encoded value, or what there is instead."""
    try:
        compiled = compile_expression(expression)
    except ReplError:
        return "refused at once"  # for its constants, perhaps of a branch that is never taken
    try:
        value = compiled.evaluate(document, {})
    except ReplError:
        return "refused"
    return "missing" if value is MISSING else encode({"": value})


def naive_outcome_of(expression: Any, document: dict[str, Any]) -> Any:
    try:
        value = naive.evaluate(expression, document)
    except naive.Refused:
        return "refused"
    except naive.Unsure:
        return "unsure"
    return "missing" if value is naive.MISSING else encode({"": value})


def test_expressions_give_what_the_manual_says() -> None:
    outcomes: list[Any] = []
    for seed in range(3000):
        maker = Maker(seed)
        document, expression = maker.document(), maker.expression(3)
        outcome = outcome_of(expression, document)
        wanted = naive_outcome_of(expression, document)
        assert outcome == wanted or outcome == "refused at once" or wanted == "unsure", (seed, expression, document)
        outcomes.append(outcome)
    assert outcomes.count("refused") + outcomes.count("refused at once") < 1500
    assert len(set(outcomes)) > 400


def test_pipelines_give_what_the_manual_says() -> None:
    sizes = []
    for seed in range(1500):
        maker = Maker(seed)
        documents = [maker.document() | {"_id": number} for number in range(8)]
        stages = [maker.stage() for _ in range(maker.rng.randrange(1, 5))]
        try:
            chain = Chain(compile_pipeline(stages))
        except ReplError:
            continue  # see outcome_of
        try:
            wanted: Any = [encode(document) for document in naive.run_pipeline(stages, documents)]
        except naive.Unsure:
            continue
        except naive.Refused:
            wanted = "refused"
        try:
            found: Any = list(filter(None, [*chain.feed(map(encode, documents)), *chain.end()]))
        except ReplError:
            found = "refused"
        # $limit does not look at the documents behind it, and a $match can move in front of what fails.
        if wanted != "refused" or not {"$limit", "$match"} & {name for stage in stages for name in stage}:
            assert found == wanted, (seed, stages)
        sizes.append(len(found))
    assert sum(1 for size in sizes if size > 1) > 400


ANYTHING: list[Any] = [
    *NUMBERS, *TEXTS, *DATES, None, True, [], {}, "$a", "$b.c", "$$ROOT", "$$NOW", "$gone", 2**53 + 1, 1e300,
    float("nan"), float("-inf"), Int64(2**63 - 1), Int64(-(2**63)), Decimal128("NaN"), Decimal128("-Infinity"),
    Decimal128("1E+6000"), Decimal128("0.1"), MinKey(), MaxKey(), Timestamp(5, 1), ObjectId("0" * 24), Regex("a*"),
    Binary(b"abc", 4), "UTC", "Europe/Berlin", "day", "%Y-%m-%d", "2024-02-30T00:00:00Z", "approximate",
    [1, "a", None], [[1, 2], {"a": 1}], {"k": "a", "v": 1},
]  # fmt: skip
ARGUMENTS = {
    "input in as": "$map",
    "input cond limit": "$filter",
    "input initialValue in": "$reduce",
    "vars in": "$let",
    "input sortBy": "$sortArray",
    "inputs useLongestLength": "$zip",
    "n input": "$firstN $lastN $minN $maxN",
    "input p method": "$percentile",
    "input method": "$median",
    "field input": "$getField $unsetField",
    "field input value": "$setField",
    "input chars": "$trim $ltrim $rtrim",
    "input find replacement": "$replaceOne $replaceAll",
    "input regex options": "$regexFind $regexFindAll $regexMatch",
    "input to onError onNull": "$convert",
    "date timezone": "$year $hour $isoWeek $dateToParts",
    "date format timezone onNull": "$dateToString",
    "dateString format timezone onError": "$dateFromString",
    "year month day hour timezone": "$dateFromParts",
    "isoWeekYear isoWeek isoDayOfWeek": "$dateFromParts",
    "startDate unit amount timezone": "$dateAdd $dateSubtract",
    "startDate endDate unit timezone": "$dateDiff",
    "date unit binSize timezone startOfWeek": "$dateTrunc",
    "branches default": "$switch",
    "if then else": "$cond",
}
LIKELY: dict[str, list[Any]] = {
    "in": ["$$this", "$$i", {"$add": ["$$value", "$$this"]}, {"$concatArrays": ["$$value", ["$$this"]]}],
    "as": ["i"], "vars": [{"i": "$a"}], "cond": ["$$this"], "input": ["$a", "$b.c", "a b", [3, 1.5, "x"]],
    "sortBy": [1, -1, {"c": 1}], "inputs": [["$a", [1]]], "n": [1, 2.0], "p": [[0.5]], "method": ["approximate"],
    "field": ["c", "x.y"], "regex": ["a(.)?", Regex("b", "i")], "options": ["i"], "find": ["a"], "replacement": ["bb"],
    "to": ["string", "int", "long", "double", "decimal", "bool", "date", "objectId"], "date": ["$b.d", *DATES],
    "startDate": ["$b.d", *DATES], "endDate": DATES, "unit": ["day", "month", "hour", "week"], "amount": [1, -3],
    "timezone": ["UTC", "Europe/Berlin", "+05:30"], "format": ["%Y-%m-%d %H:%M"], "dateString": ["2024-02-29"],
    "year": [2024], "month": [2, 14], "isoWeekYear": [2024], "binSize": [2], "startOfWeek": ["mon"],
    "branches": [[{"case": "$a", "then": 1}]],
}  # fmt: skip
NAMED = [(name, names.split()) for names, operators in ARGUMENTS.items() for name in operators.split()]


PLAIN = sorted(OPERATORS)


def anything(rng: Random, depth: int) -> Any:
    """Return an expression that is quite likely wrong."""
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(ANYTHING)
    if rng.random() < 0.5:
        return {name: [anything(rng, depth - 1) for _ in range(rng.randrange(1, 4))] for name in [rng.choice(PLAIN)]}
    name, names = rng.choice(NAMED)
    chosen = [argument for argument in names if rng.random() < 0.9]
    return {
        name: {
            argument: rng.choice(LIKELY[argument])
            if argument in LIKELY and rng.random() < 0.8
            else anything(rng, depth - 1)
            for argument in chosen
        }
    }


@pytest.mark.parametrize("seed", range(4))
def test_nothing_fails_but_with_an_error_of_ours(seed: int) -> None:
    rng = Random(seed)
    document = {"a": [1, {"c": 2}], "b": {"c": "text", "d": DateTime(5)}}
    done = 0
    for _ in range(3000):
        expression = anything(rng, 2)
        try:
            found = compile_expression(expression).evaluate(document, {"NOW": DateTime(7)})
            encode({} if found is MISSING else {"": found})
            done += 1
            accumulator = compile_accumulator({rng.choice(sorted(ACCUMULATORS)): expression})
            state = accumulator.new_window()
            state.add(accumulator.argument.evaluate(document, {"NOW": DateTime(7)}))
            encode({"": state.result()})
        except ReplError:
            pass
    assert done > 500


WINDOW = {"documents": ["unbounded", "current"]}
STAGES: list[dict[str, Any]] = [
    {"$match": {"s": "ab"}},
    {"$match": {"n": {"$gte": 1}}},
    {"$match": {"$expr": {"$gt": ["$n", {"$add": ["$m", 1]}]}}},
    {"$unwind": "$l"},
    {"$unwind": {"path": "$l", "preserveNullAndEmptyArrays": True, "includeArrayIndex": "o.at"}},
    {"$addFields": {"p": {"$multiply": ["$n", "$m"]}, "o.z": "$s"}},
    {"$unset": ["d"]},
    {"$sort": {"n": 1, "o.y": -1, "_id": 1}},
    {"$sort": {"s": -1, "_id": 1}},
    {"$skip": 3},
    {"$limit": 20},
    {
        "$setWindowFields": {
            "partitionBy": "$s",
            "sortBy": {"_id": 1, "n": 1},
            "output": {"w": {"$sum": "$n", "window": WINDOW}},
        }
    },
    {
        "$setWindowFields": {
            "sortBy": {"_id": 1},
            "output": {"o.w": {"$shift": {"output": "$m", "by": -1}}, "r": {"$rank": {}}},
        }
    },
    {"$fill": {"sortBy": {"_id": 1}, "output": {"s": {"method": "locf"}, "m": {"value": "$n"}}}},
]
LAST_STAGES: list[dict[str, Any]] = [
    {"$count": "n"},
    {"$project": {"n": 1, "o.x": 1, "p": {"$multiply": ["$n", "$m"]}}},
    {"$project": {"s": 0}},
    {"$group": {"_id": "$s", "n": {"$sum": 1}, "sum": {"$sum": "$n"}, "mean": {"$avg": "$m"}, "all": {"$push": "$w"}}},
    {"$group": {"_id": {"s": "$s", "n": "$n"}, "most": {"$max": "$p"}, "o": {"$last": "$o"}}},
    {"$group": {"_id": {"$dateTrunc": {"date": "$d", "unit": "month"}}, "sum": {"$sum": {"$multiply": ["$n", "$m"]}}}},
    {"$group": {"_id": {"only": "$l"}, "top": {"$top": {"sortBy": {"n": 1}, "output": ["$s", "$r"]}}}},
    {"$group": {"_id": "$o.x", "whole": {"$first": "$$ROOT"}}},
    {"$sortByCount": "$l"},
    {"$replaceRoot": {"newRoot": {"a": "$o", "n": "$n"}}},
    {"$skip": 0},
]


def results(stages: list[dict[str, Any]], raws: list[bytes]) -> list[bytes | int]:
    """Return what a pipeline makes of documents that come in slices, and the code of the error that ends it."""
    found: list[bytes | int | None] = []
    try:
        chain = Chain(compile_pipeline(stages))
        for start in range(0, len(raws), 50):
            found += chain.feed(raws[start : start + 50])
        found += chain.end()
    except ReplError as error:
        found.append(int(error.code))
    return [one for one in found if one is not None]


@pytest.mark.parametrize("seed", range(60))
def test_a_pipeline_that_reads_some_fields_gives_what_it_gives_with_whole_documents(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = Maker(seed)
    raws = [encode(maker.document()) for _ in range(100)]
    alike = encode({"_id": 7, "n": 2, "m": 3.5, "s": "ab", "d": DATES[1], "l": [1, "a"], "o": {"x": 1, "y": 2}})
    raws += [alike] * 50
    pipelines = [[*maker.rng.sample(STAGES, maker.rng.randrange(4)), maker.rng.choice(LAST_STAGES)] for _ in range(8)]
    found = [results(stages, raws) for stages in pipelines]
    monkeypatch.setattr("replset.query.stages.stage.fields_read", lambda _stages: None)
    monkeypatch.setattr(FieldsReader, "documents", lambda _reader, whole: map(decode, whole))
    for stages, one in zip(pipelines, found, strict=True):
        assert one == results(stages, raws), stages


@pytest.mark.parametrize("seed", range(20))
def test_a_filter_on_a_text_reads_only_what_may_match(seed: int) -> None:
    maker = Maker(seed)
    values = [Symbol("ab"), ["x", "ab"], {"x": "ab"}, "ab", "abc", Code("ab")]
    documents = [maker.document() | {"o": maker.rng.choice(values)} for _ in range(60)]
    for query in ({"s": "ab"}, {"o": {"$eq": "ab"}}, {"o.x": "ab"}, {"s": "a", "n": {"$gt": 0}}, {"s": {"$ne": "a"}}):
        matcher = compile_filter(query)
        wanted = [matcher.matches(document) or None for document in documents]
        assert list(filter_of(query).test()([encode(document) for document in documents])) == wanted

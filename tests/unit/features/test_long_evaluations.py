"""Whatever a filter, an update, a sort or a projection holds, and however large the document: the loop goes on.

The yardstick is what the loop's own thread does between two of its turns, in lines of Python; the clock goes on with
them. What runs beside it in a thread lets it go on, as long as no single call into C keeps the interpreter to itself.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

import pytest

from replset.bson import Binary, Int64, RawDocument, RawDocuments, Regex, decode, encode, encode_key, keystring
from replset.features.all import COMMANDS
from replset.ids import Millis
from replset.operations.command import GENERIC_FIELDS
from replset.operations.dispatcher import LARGEST_FIELD, LARGEST_GENERIC
from replset.query import conditions, match, sort, time_limit
from replset.query.diff import update_entry_object
from replset.query.match import compile_filter
from replset.query.sort import compile_sort, sort_by_key
from replset.query.update import OPERATORS, compile_update
from replset.replication.write_ops import WriteGroup, do_delete, do_update, update_object
from tests.rig import Client, Rig, a_set
from tests.simulation.kit.clock import SimClock
from tests.steps import Steps, steps_of
from tests.unit.features.test_odd_input import EXTRA, NAMED

T = TypeVar("T")
STEPS_PER_MS = 15_000
"""Lines of Python that run in a millisecond."""
HELD = 50 * STEPS_PER_MS
"""The promise: nothing holds the loop longer than 50 ms."""
ITEMS = 20_000
Document = dict[str, Any]


class Thread:
    """Beside the loop: what it runs is none of the loop's steps."""

    def __init__(self) -> None:
        self.steps = Steps()
        """Of the command that runs now."""
        self.runs = 0

    async def run(self, work: Callable[[], T]) -> T:
        self.runs += 1
        await asyncio.sleep(0)
        with self.steps.paused():
            return work()


class StepsTime:
    """From now on a member's time goes on with the steps of the loop too, and a little whenever anybody looks."""

    def __init__(self, clock: SimClock, thread: Thread) -> None:
        self._now, self._thread = clock.now, thread
        self._before = 0
        self._looks = 0
        clock.now = self.now  # type: ignore[method-assign]

    def now(self) -> Millis:
        self._looks += 1
        steps = self._before + self._thread.steps.count
        return Millis(self._now() + self._looks // 100 + steps // STEPS_PER_MS)

    def count(self, steps: Steps) -> None:
        self._before, self._thread.steps = self._before + self._thread.steps.count, steps


class LoopClient(Client):
    """A client of a member whose thread and time are these."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig, "a")
        member, self.thread = self.member, Thread()
        self.time = StepsTime(rig.cluster.machines["a"].clock, self.thread)
        member.evaluations = self.thread  # type: ignore[assignment]
        member.snapshots._context = replace(member.context, workers=self.thread)


@pytest.fixture(scope="module")
def client() -> Iterator[LoopClient]:
    with a_set() as rig:
        client = LoopClient(rig)
        client.ok({"insert": "c"}, documents=[LARGE])
        client.ok({"insert": "one"}, documents=[{"_id": 0}])
        client.ok({"insert": "small"}, documents=[{"_id": n, "a": n, "b": [n], "c": {"d": n}} for n in range(200)])
        yield client


LARGE: Document = {
    "_id": 0,
    "a": list(range(ITEMS)),
    "d": [{"b": n, "s": f"text {n}", "e": [n]} for n in range(ITEMS // 4)],
    "n": 1,
    "t": "word " * 100_000,
}


def run(client: LoopClient, command: Document, db: str = "test", **sequences: Any) -> tuple[Document, int]:
    """The reply, and the most steps for which the command held the loop."""
    longest = before = 0

    def look() -> None:
        nonlocal longest, before
        longest, before = max(longest, steps.count - before), steps.count

    task = client.begin(command, db, **sequences)
    on_step = client.rig.cluster.on_step
    on_step.append(look)
    try:
        with Steps() as steps:
            client.time.count(steps)
            return client.decoded(task), longest
    finally:
        on_step.remove(look)
        client.time.count(Steps())


MANY = list(range(ITEMS))
FILTERS: dict[str, Document] = {
    "$eq": {"a": {"$eq": MANY}},
    "$ne": {"a": {"$ne": -1}},
    "$gt": {"a": {"$gt": ITEMS}},
    "$gte": {"d.b": {"$gte": ITEMS}},
    "$lt": {"d.e": {"$lt": -1}},
    "$lte": {"a": {"$lte": MANY}},
    "$in": {"d.b": {"$in": [str(n) for n in MANY]}},
    "$nin": {"a": {"$nin": [-n for n in range(1, ITEMS)]}},
    "$not": {"a": {"$not": {"$elemMatch": {"$lt": 0}}}},
    "$exists": {"d.x": {"$exists": True}},
    "$type": {"a": {"$type": "regex"}},
    "$size": {"a": {"$size": 5}},
    "$all": {"a": {"$all": MANY[:300]}},
    "$elemMatch": {"d": {"$elemMatch": {"b": {"$lt": 0}, "s": {"$gt": "a"}}}},
    "$mod": {"a": {"$mod": [ITEMS * 2, -1]}},
    "$regex": {"d.s": {"$regex": "^(?:t+e+)+y", "$options": "i"}},
    "$options": {"d.s": {"$regex": "nothing", "$options": "x"}},
    "$comment": {"$comment": "x" * 1_000_000, "a": -1},
    "$and": {"$and": [{"n": {"$gte": -n}} for n in range(8_000)]},
    "$or": {"$or": [{"n": -n} for n in range(2, 8_000)]},
    "$nor": {"$nor": [{"d.b": -1 - n} for n in range(20)]},
    "$expr": {"$expr": {"$eq": ["$$ROOT", {"$literal": {**LARGE, "n": 2}}]}},
    "$bitsAllSet": {"a": {"$bitsAllSet": [*range(60), 2_000_000_000]}},
    "$bitsAllClear": {"a": {"$bitsAllClear": -1 + (1 << 40)}},
    "$bitsAnySet": {"a": {"$bitsAnySet": bytes(10_000)}},
    "$bitsAnyClear": {"a": {"$bitsAnyClear": []}},
    "$sampleRate": {"$sampleRate": 0.0},
    "$alwaysTrue": {"$alwaysTrue": 1, "a": -1},
    "$alwaysFalse": {"$alwaysFalse": 1},
    "nothing": {},
    "_id of many": {"_id": {"$in": MANY}},
    "nested": {"d": {"$elemMatch": {"$or": [{"e": {"$elemMatch": {"$lt": -n}}} for n in range(1, 10)]}}},
}
NESTED: Document = {"a": 1}
for _ in range(90):
    NESTED = {"$and": [NESTED]}
FILTERS["deep"] = NESTED
FILTERS["$jsonSchema"] = {
    "$jsonSchema": {"properties": {"a": {"items": {"bsonType": "int"}}, "d": {"uniqueItems": True}}}
}

UPDATES: dict[str, Any] = {
    "$set": {"$set": {"a.19999": "x", "new": MANY}},
    "$unset": {"$unset": {"a": 1, "d.7.s": 1}},
    "$inc": {"$inc": {"a.$[]": 1}},
    "$mul": {"$mul": {"a.$[]": 2}},
    "$min": {"$min": {"a.$[]": -1}},
    "$max": {"$max": {"a.$[]": ITEMS}},
    "$currentDate": {"$currentDate": {"d.$[].b": True}},
    "$setOnInsert": {"$setOnInsert": {"a": MANY}, "$set": {"n": 3}},
    "$bit": {"$bit": {"a.$[]": {"xor": Int64(5)}}},
    "$push": {"$push": {"d": {"$each": MANY, "$sort": {"s": -1, "b": 1}, "$slice": -ITEMS, "$position": 3}}},
    "$addToSet": {"$addToSet": {"a": {"$each": [-n for n in MANY]}}},
    "$pull": {"$pull": {"d": {"b": {"$gt": 100}, "s": {"$ne": "text 900"}}}},
    "$pullAll": {"$pullAll": {"a": MANY[: ITEMS // 2]}},
    "$pop": {"$pop": {"a": -1}},
    "$rename": {"$rename": {"a": "z", "d": "y"}},
    "a replacement": {"a": MANY[::-1], "d": LARGE["d"][::-1]},
    "a far index": {"$set": {"few.200000": 1}},
    "a pipeline": [{"$set": {"a": {"$map": {"input": "$a", "in": {"$add": ["$$this", 1]}}}}}],
}


def names_in(function: Callable[..., object]) -> set[str]:
    """The operators that a function tells apart."""
    cases = re.findall(r"case ((?:\"\$\w+\"(?: \| )?)+)", inspect.getsource(function))
    return {name for case in cases for name in re.findall(r"\$\w+", case)}


def test_every_operator_is_here() -> None:
    assert names_in(conditions.parse) | names_in(match._tests) <= set(FILTERS)
    assert {*OPERATORS, "$rename"} <= set(UPDATES)


@pytest.mark.in_turns
@pytest.mark.parametrize("name", FILTERS)
def test_a_read_does_not_hold_the_loop(client: LoopClient, name: str) -> None:
    for collection in ("c", "small"):
        reply, held = run(client, {"find": collection, "filter": FILTERS[name]})
        assert reply["ok"] == 1.0, reply
        assert held < HELD, collection


@pytest.mark.in_turns
@pytest.mark.parametrize("name", FILTERS)
def test_a_write_that_looks_for_its_documents_does_not_hold_the_loop(client: LoopClient, name: str) -> None:
    for collection in ("c", "small"):
        statement = {"q": {"$and": [FILTERS[name], {"none": 1}]} if FILTERS[name] else {"none": 1}, "limit": 0}
        reply, held = run(client, {"delete": collection}, deletes=[statement])
        assert "writeErrors" not in reply, reply
        assert held < HELD, collection


@pytest.mark.in_turns
@pytest.mark.parametrize("name", UPDATES)
def test_an_update_does_not_hold_the_loop(client: LoopClient, name: str) -> None:
    document = {**LARGE, "_id": name, "few": [1]}
    client.ok({"insert": "u"}, documents=[document])
    reply, held = run(client, {"update": "u"}, updates=[{"q": {"_id": name}, "u": UPDATES[name]}])
    assert (reply["nModified"], "writeErrors" in reply) == (1, False), reply
    assert held < HELD
    replacement = UPDATES[name] if name == "a replacement" else None
    after = client.ok({"find": "u", "filter": {"_id": name}})["cursor"]["firstBatch"][0]
    if replacement is not None:
        assert after == {"_id": name, **replacement}
    elif name not in ("$currentDate",):
        update = compile_update(UPDATES[name])
        now: Any = None
        assert after == decode(encode(update.apply(document, now=now, timestamp=now)))


@pytest.mark.in_turns
@pytest.mark.parametrize(
    "command",
    [
        pytest.param({"find": "c", "projection": {"d": {"$elemMatch": {"b": -1}}}}, id="elemMatch"),
        pytest.param({"find": "c", "projection": {"a": {"$slice": [5, 50_000]}, "d.s": 0}}, id="slice"),
        pytest.param({"find": "c", "projection": {"d.e": 1}}, id="shown"),
        pytest.param({"find": "c", "projection": {str(n): 1 for n in range(20_000)}}, id="many names"),
        pytest.param({"find": "c", "sort": {"d.s": -1, "n": 1, "t": 1}}, id="sort"),
        pytest.param({"find": "c", "sort": {"a": 1}, "projection": {"d": 0}}, id="sort and projection"),
        pytest.param({"find": "small", "sort": {"b": -1}, "skip": 190}, id="sort of many"),
        pytest.param(
            {
                "find": "one",
                "filter": {"$expr": {"$in": ["$n", "$$v"]}},
                "projection": {"v": {"$size": "$$v"}},
                "let": {"v": {"$range": [3, 200_000]}},
            },
            id="a large variable",
        ),
        pytest.param(
            {
                "findAndModify": "one",
                "query": {"$expr": {"$in": [-1, "$$v"]}},
                "remove": True,
                "let": {"v": {"$range": [0, 200_000]}},
            },
            id="a write with a large variable",
        ),
        pytest.param({"distinct": "c", "key": "d.s"}, id="distinct"),
        pytest.param({"distinct": "c", "key": "a", "query": {"d.b": {"$gte": 5}}}, id="distinct with a filter"),
        pytest.param({"count": "c", "query": {"d.e": {"$lt": 0}}}, id="count"),
        pytest.param({"count": "small", "query": {"$or": [{"a": -n} for n in range(1, 8_000)]}}, id="count of many"),
        pytest.param({"listCollections": 1, "filter": {"$or": [{"name": str(n)} for n in range(8_000)]}}, id="lists"),
    ],
)
def test_a_read_of_another_kind_does_not_hold_the_loop(client: LoopClient, command: Document) -> None:
    reply, held = run(client, command)
    assert reply["ok"] == 1.0, reply
    assert held < HELD


@pytest.mark.in_turns
def test_a_pipeline_that_doubles_a_document_does_not_hold_the_loop(client: LoopClient) -> None:
    client.ok({"insert": "u"}, documents=[{"_id": 1, "a": 1}])
    change = [{"$set": {"a": ["$a", "$a"]}}] * 40
    for command, more in (
        ({"update": "u"}, {"updates": [{"q": {"_id": 1}, "u": change}]}),
        ({"findAndModify": "u", "query": {"_id": 1}, "update": change}, {}),
        ({"aggregate": "u", "pipeline": [{"$merge": {"into": "u", "whenMatched": change}}], "cursor": {}}, {}),
    ):
        reply, held = run(client, command, **more)
        assert 146 in (reply.get("code"), *(error["code"] for error in reply.get("writeErrors", []))), reply
        assert held < HELD


@pytest.mark.parametrize("sort", [1, -1])
def test_reading_the_oplog_does_not_hold_the_loop(client: LoopClient, sort: int) -> None:
    command = {"find": "oplog.rs", "filter": {"o.d.s": {"$lt": "a"}}, "sort": {"$natural": sort}}
    reply, held = run(client, command, "local")
    assert reply["cursor"]["firstBatch"] == []
    assert held < HELD


@pytest.mark.in_turns
def test_large_and_many_inserts_do_not_hold_the_loop(client: LoopClient) -> None:
    many = [{"_id": n, "a": "x" * 50, "b": list(range(20))} for n in range(5000)]
    for documents in ([{**LARGE, "_id": -1}], [{"d": LARGE["d"], "_id": -2}], many):
        reply, held = run(client, {"insert": "i"}, documents=documents)
        assert reply["n"] == len(documents)
        assert held < HELD
    again, held = run(client, {"insert": "i", "ordered": False}, documents=many)
    assert len(again["writeErrors"]) == 5000
    assert held < HELD


@pytest.mark.in_turns
def test_many_statements_do_not_hold_the_loop(client: LoopClient) -> None:
    statements = [{"q": {"_id": f"new {n}"}, "u": {"$set": {"a": n}}, "upsert": True} for n in range(5000)]
    reply, held = run(client, {"update": "i"}, updates=statements)
    assert len(reply["upserted"]) == 5000
    assert held < HELD
    reply, held = run(client, {"delete": "i"}, deletes=[{"q": {"_id": f"new {n}"}, "limit": 1} for n in range(5000)])
    assert reply["n"] == 5000
    assert held < HELD


def test_a_large_upsert_does_not_hold_the_loop(client: LoopClient) -> None:
    statement = {"q": {"_id": "up"}, "u": {"$set": {f"f{n}": n for n in range(5_000)}}, "upsert": True}
    reply, held = run(client, {"update": "u"}, updates=[statement])
    assert reply["upserted"] == [{"index": 0, "_id": "up"}]
    assert held < HELD


@cache
def large_array(size: int) -> RawDocuments:
    """About so many bytes that take long to read."""
    return RawDocuments(encode({"a": number}) for number in range(size // 23))


@cache
def large(size: int) -> RawDocument:
    return RawDocument(encode({"a": large_array(size)}))


@pytest.mark.in_turns
@pytest.mark.parametrize("name", COMMANDS)
def test_no_field_of_any_command_holds_the_loop(client: LoopClient, name: str) -> None:
    command, generic = COMMANDS[name], frozenset({"readConcern", *GENERIC_FIELDS} - {"$db"})
    base: Document = {name: "x" if "." not in name else 1, **EXTRA.get(name, {})}
    db = "admin" if command.admin_only else "test"
    # In order: what one field leaves behind changes what the next one costs.
    for field in sorted({name, *(command.fields or ()), *NAMED.get(name, ()), *(generic if name == "find" else ())}):
        size = LARGEST_GENERIC if field in generic else LARGEST_FIELD
        for value in (large(size), large_array(size)):
            reply, held = run(client, {**base, field: value}, db)
            assert reply.get("code") not in (1, 10334), (field, reply)
            assert held < HELD, field


def test_large_options_of_a_collection_do_not_hold_the_loop(client: LoopClient) -> None:
    validator, pipeline = large(LARGEST_FIELD), [{"$match": {"a": {"$in": list(range(20_000))}}}]
    create, view = {"create": "opt", "validator": validator}, {"create": "v", "viewOn": "c", "pipeline": pipeline}
    for command, code in (
        (create, None),
        (create, None),
        ({"create": "opt"}, 48),
        ({"create": "opt", "capped": True, "size": 1 << 20}, 48),
        ({"collMod": "opt", "validator": validator}, None),
        ({"collMod": "opt", "validationLevel": "off"}, None),
        ({"collMod": "opt", "validator": {}}, None),
        ({"applyOps": [{"op": "c", "ns": "test.$cmd", "o": {"collMod": "opt", "validator": validator}}]}, None),
        ({"applyOps": [{"op": "c", "ns": "test.$cmd", "o": {**create, "create": "opt2"}}]}, None),
        (view, None),
        ({**view, "pipeline": []}, 48),
        ({"collMod": "v", "viewOn": "c", "pipeline": pipeline}, None),
    ):
        reply, held = run(client, command, "admin" if "applyOps" in command else "test")
        assert reply.get("code") == code, (command, reply)
        assert held < HELD, command


def test_a_field_that_takes_long_to_read_is_refused(client: LoopClient) -> None:
    for field in ("hint", "min", "let"):
        assert client.code({"find": "c", field: large(2 * LARGEST_FIELD)}) == 10334
    for field in ("readConcern", "lsid", "apiVersion", "$readPreference", "maxTimeMS"):
        assert client.code({"find": "c", field: large(2 * LARGEST_GENERIC)}) == 10334
    sessions = [{"id": Binary(number.to_bytes(16, "big"), 4)} for number in range(10_000)]
    assert client.ok({"endSessions": sessions})
    assert client.ok({"ping": 1, "comment": large(2 * LARGEST_FIELD)})


def test_what_is_small_needs_no_thread(client: LoopClient) -> None:
    before = client.thread.runs
    client.ok({"find": "small", "filter": {"a": {"$gt": 5}, "c.d": {"$lt": 900}}, "sort": {"b": 1}})
    client.ok({"update": "small"}, updates=[{"q": {"_id": 3}, "u": {"$inc": {"a": 0}}, "upsert": True}])
    client.ok({"delete": "small"}, deletes=[{"q": {"_id": -3}, "limit": 1}])
    assert client.thread.runs == before


# --- what may happen between the evaluation and the group that takes it ----------------------------------------------


def write_between(client: Client, *operations: Callable[[WriteGroup], object]) -> None:
    """Somebody else writes after each of the next evaluations."""
    left = list(operations)

    class Between:
        async def run(self, work: Callable[[], T]) -> T:
            done = work()
            if left:
                await client.member.write(left.pop(0))
            return done

    client.member.evaluations = Between()  # type: ignore[assignment]


def test_a_change_by_somebody_else_meanwhile_is_not_lost() -> None:
    with a_set() as rig:
        client = rig.client()
        client.ok({"insert": "c"}, documents=[{"_id": 1, "n": 0, "a": MANY}])

        def add_ten(group: WriteGroup) -> None:
            coll, key = group.txn.catalog.by_ns["test.c"], encode_key(1)
            raw = group.txn.get(coll, key) or b""
            before = decode(raw)
            after: Document = {**before, "n": before["n"] + 10}
            o = update_object(before, after, encode(after)) or b""
            do_update(group, coll, key, raw, encode(after), o)

        write_between(client, add_ten, add_ten)
        reply = client.ok({"update": "c"}, updates=[{"q": {"_id": 1}, "u": {"$inc": {"n": 1}, "$push": {"a": "x"}}}])
        assert (reply["n"], reply["nModified"]) == (1, 1)
        found = client.ok({"find": "c"})["cursor"]["firstBatch"][0]
        assert (found["n"], found["a"][-1], len(found["a"])) == (21, "x", ITEMS + 1)


def test_a_document_that_goes_meanwhile_is_not_there() -> None:
    with a_set() as rig:
        client = rig.client()
        client.ok({"insert": "c"}, documents=[{"_id": 1, "a": MANY}, {"_id": 2, "a": MANY}])

        def remove(group: WriteGroup) -> None:
            coll = group.txn.catalog.by_ns["test.c"]
            do_delete(group, coll, encode_key(1), group.txn.get(coll, encode_key(1)) or b"")

        write_between(client, remove)
        reply = client.ok({"update": "c"}, updates=[{"q": {"a": 5}, "u": {"$set": {"n": 1}}, "multi": True}])
        assert (reply["n"], reply["nModified"]) == (1, 1)


# --- the limit -------------------------------------------------------------------------------------------------------


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("command", "sequences"),
    [
        ({"find": "c", "filter": {"d": {"$elemMatch": {"$or": [{"b": -1 - n} for n in range(3000)]}}}}, {}),
        ({"count": "c", "query": {"a": {"$all": MANY}}}, {}),
        ({"update": "c"}, {"updates": [{"q": {}, "u": {"$set": {f"f{n}": n for n in range(40_000)}}}]}),
        ({"delete": "c"}, {"deletes": [{"q": {"$nor": [{"a": -1 - n} for n in range(2000)]}, "limit": 1}]}),
    ],
    ids=["find", "count", "update", "delete"],
)
def test_what_takes_for_ever_is_refused(
    client: LoopClient, monkeypatch: pytest.MonkeyPatch, command: Document, sequences: Document
) -> None:
    monkeypatch.setattr("replset.operations.evaluation.time_limit", lambda _: time_limit.time_limit(seconds=0.2))
    reply, held = run(client, command, **sequences)
    error = reply["writeErrors"][0] if "writeErrors" in reply else reply
    assert error["code"] == 50, error
    assert held < HELD
    assert client.ok({"ping": 1})


def test_numbers_in_a_path_do_not_double_the_ways_with_each_array() -> None:
    nested: object = "x"
    for _ in range(60):
        nested = [{"0": nested}]
    path = ".".join(["a"] + ["0"] * 90)
    matcher = compile_filter({path: "nothing"})
    assert steps_of(lambda: matcher.matches({"a": nested}), most=1_000_000) > 60


def test_a_deep_document_is_compared_level_by_level_once() -> None:
    def nested(last: int, levels: int = 150) -> Document:
        doc: Document = {"items": [*(10_000 + n for n in range(3000)), last]}
        for _ in range(levels):
            doc = {"d": doc}
        return doc

    def steps(levels: int) -> int:
        return steps_of(lambda: update_entry_object(nested(1, levels), nested(2, levels)))

    assert steps(150) < 1.2 * steps(15)
    entry = update_entry_object(nested(1), nested(2))
    assert entry is not None
    assert len(encode(entry)) < 2000


def test_a_large_value_beside_an_array_is_encoded_once_for_a_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    document = {"t": "x" * 500_000, "a": list(range(2000))}
    encoded: list[object] = []

    def counted(value: object) -> bytes:
        encoded.append(value)
        return encode_key(value)

    monkeypatch.setattr(sort, "encode_key", counted)
    key = compile_sort({"t": 1, "a": -1})(document)
    assert encoded.count(document["t"]) == 1
    assert key.startswith(encode_key(document["t"]))


# --- calls into C, which let no other thread run ---------------------------------------------------------------------


SORTS: dict[str, Callable[[], object]] = {
    "sort": lambda: sort_by_key([(encode_key(n * 7919 % 100_003), n) for n in range(100_000)]),
    "push and sort": lambda: compile_update({"$push": {"a": {"$each": [], "$sort": 1}}}).apply(
        {"a": [n * 7919 % 100_003 for n in range(100_000)]},
        now=None,  # type: ignore[arg-type]
        timestamp=None,  # type: ignore[arg-type]
    ),
}


@pytest.mark.parametrize("name", SORTS)
def test_no_call_sorts_so_much_that_it_keeps_the_interpreter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []

    def counted(items: list[Any], **options: Any) -> list[Any]:
        counts.append(len(items))
        return sorted(items, **options)

    monkeypatch.setattr(sort, "sorted", counted, raising=False)
    SORTS[name]()
    assert sum(counts) >= 100_000
    assert max(counts) <= 8192


@pytest.mark.parametrize("text", ["\1" * 8_000_000, "x" * 15_000_000], ids=["escapes", "plain"])
def test_no_call_encodes_so_much_that_it_keeps_the_interpreter(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    escaped = keystring._escaped

    def counted(piece: str) -> bytes:
        sizes.append(len(piece))
        return escaped(piece)

    monkeypatch.setattr(keystring, "_escaped", counted)
    encode_key(text)
    assert sizes[0] == sum(sizes[1:]) == len(text), "all of it in pieces"
    assert max(sizes[1:]) <= 1 << 18


def test_an_expression_lets_others_run_while_it_searches(client: LoopClient) -> None:
    document = {"_id": "re", "t": "x" * 10_000 + "zy"}
    client.ok({"insert": "re"}, documents=[document])
    reply, held = run(client, {"find": "re", "filter": {"t": Regex("^(?:x+x+)+y")}})
    assert reply["code"] == 51156
    assert held < HELD


NESTED = {"$map": {"input": {"$range": [0, 3000]}, "in": {"$sum": {"$range": [0, {"$ifNull": ["$nowhere", 3000]}]}}}}


@pytest.mark.parametrize(
    "command",
    [
        {"find": "c", "filter": {"$expr": {"$eq": [NESTED, 1]}}},
        {"aggregate": "c", "pipeline": [{"$project": {"x": NESTED}}], "cursor": {}},
        {"aggregate": 1, "pipeline": [{"$documents": [{"x": {"$sum": NESTED}}]}], "cursor": {}},
        {"update": "c", "updates": [{"q": {}, "u": [{"$set": {"x": NESTED}}]}]},
        {"findAndModify": "c", "query": {}, "update": [{"$set": {"x": NESTED}}]},
        {"count": "c", "query": {"$expr": {"$eq": [NESTED, 1]}}},
        {"distinct": "c", "key": "a", "query": {"$expr": {"$eq": [NESTED, 1]}}},
    ],
    ids=lambda command: next(iter(command)),
)
def test_an_evaluation_ends_with_the_time_of_its_command(
    client: LoopClient, monkeypatch: pytest.MonkeyPatch, command: Document
) -> None:
    client.ok({"insert": "c", "documents": [{"_id": 1}]})
    monkeypatch.setattr(time_limit, "POLL_S", 0.0)
    looks = 0
    now = client.member.clock.now

    def later() -> int:
        nonlocal looks
        looks += 1
        return now() + 10 * looks

    monkeypatch.setattr(client.member.clock, "now", later)
    reply = client.run({**command, "maxTimeMS": 1000})
    error = reply["writeErrors"][0] if "writeErrors" in reply else reply
    assert (error["code"], error["errmsg"]) == (50, "operation exceeded time limit")
    assert looks < 200  # and not one for each of nine million values

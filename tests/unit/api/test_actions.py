"""`/v1/action/*`: the command of each action, its answer, and its errors."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from api import lines
from api.action_table import ACTIONS
from api.lines import BATCH_BYTES
from replset.bson import Binary, Int64, ObjectId, RawDocument, Timestamp, encode
from replset.ejson import from_ejson
from replset.operations.replies import finish
from replset.operations.session_request import KEYED, parse_session
from replset.operations.turns import BYTES
from tests.rig import a_set
from tests.unit.api.kit import NEWEST, Api, plain, refused

ID = ObjectId("0123456789abcdef01234567")
EJSON_ID = {"$oid": str(ID)}


def cursor(*documents: dict[str, Any], cursor_id: int = 0, name: str = "firstBatch") -> dict[str, Any]:
    rows = [RawDocument(encode(document)) for document in documents]
    return {"ok": 1.0, "cursor": {"id": Int64(cursor_id), "ns": "shop.orders", name: rows}}


# --- to a command -----------------------------------------------------------------------------------------------

COMMANDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "find-everything": ("find", {}, {"find": "orders", "batchSize": 100_000}),
    "find": (
        "find",
        {"filter": {"a": EJSON_ID}, "projection": {"a": 1}, "sort": {"a": -1}, "skip": 2, "limit": 3},
        {
            "find": "orders",
            "filter": {"a": ID},
            "projection": {"a": 1},
            "sort": {"a": -1},
            "skip": 2,
            "limit": 3,
            "batchSize": 100_000,
        },
    ),
    "find-one": (
        "findOne",
        {"filter": {"a": 1}, "collation": {"locale": "en"}},
        {"find": "orders", "filter": {"a": 1}, "collation": {"locale": "en"}, "limit": 1, "singleBatch": True},
    ),
    "reads-say-how": (
        "find",
        {"readConcern": {"level": "majority"}, "readPreference": {"mode": "nearest"}, "maxTimeMS": 5},
        {
            "find": "orders",
            "batchSize": 100_000,
            "maxTimeMS": 5,
            "readConcern": {"level": "majority"},
            "$readPreference": {"mode": "nearest"},
        },
    ),
    "a-read-preference-as-a-word": (
        "find",
        {"readPreference": "nearest"},
        {"find": "orders", "batchSize": 100_000, "$readPreference": {"mode": "nearest"}},
    ),
    "null-is-absent": ("find", {"filter": None, "limit": None}, {"find": "orders", "batchSize": 100_000}),
    "a-data-source-is-ignored": ("find", {"dataSource": "x"}, {"find": "orders", "batchSize": 100_000}),
    "count": (
        "countDocuments",
        {"filter": {"a": 1}, "limit": 5, "skip": 1, "collation": {"locale": "en"}},
        {"count": "orders", "limit": 5, "skip": 1, "collation": {"locale": "en"}, "query": {"a": 1}},
    ),
    "count-everything": ("countDocuments", {}, {"count": "orders", "query": {}}),
    "aggregate": (
        "aggregate",
        {
            "pipeline": [{"$match": {"a": 1}}, {"$count": "n"}],
            "readConcern": {"level": "majority"},
            "collation": {"locale": "en"},
        },
        {
            "aggregate": "orders",
            "pipeline": [{"$match": {"a": 1}}, {"$count": "n"}],
            "collation": {"locale": "en"},
            "cursor": {"batchSize": 100_000},
            "readConcern": {"level": "majority"},
        },
    ),
    "distinct": (
        "distinct",
        {"key": "item", "filter": {"a": 1}},
        {"distinct": "orders", "key": "item", "query": {"a": 1}},
    ),
    "insert-one": (
        "insertOne",
        {"document": {"_id": 1}, "writeConcern": {"w": 1}},
        {"insert": "orders", "documents": [{"_id": 1}], "writeConcern": {"w": 1}},
    ),
    "insert-many": (
        "insertMany",
        {"documents": [{"_id": 1}, {"_id": 2}], "ordered": False},
        {"insert": "orders", "documents": [{"_id": 1}, {"_id": 2}], "ordered": False},
    ),
    "update-one": (
        "updateOne",
        {"filter": {"a": 1}, "update": {"$inc": {"b": 1}}, "upsert": True},
        {"update": "orders", "updates": [{"q": {"a": 1}, "u": {"$inc": {"b": 1}}, "multi": False, "upsert": True}]},
    ),
    "update-many": (
        "updateMany",
        {"filter": {}, "update": {"$set": {"b.$[x]": 1}}, "arrayFilters": [{"x": 1}]},
        {
            "update": "orders",
            "updates": [{"q": {}, "u": {"$set": {"b.$[x]": 1}}, "multi": True, "arrayFilters": [{"x": 1}]}],
        },
    ),
    "replace-one": (
        "replaceOne",
        {"filter": {"a": 1}, "replacement": {"b": 1}, "collation": {"locale": "en"}},
        {
            "update": "orders",
            "updates": [{"q": {"a": 1}, "u": {"b": 1}, "multi": False, "collation": {"locale": "en"}}],
        },
    ),
    "find-one-and-update": (
        "findOneAndUpdate",
        {
            "filter": {"a": 1},
            "update": {"$inc": {"b.$[x]": 1}},
            "arrayFilters": [{"x": 1}],
            "upsert": False,
            "sort": {"b": -1},
            "projection": {"b": 1},
            "returnNewDocument": True,
            "writeConcern": {"w": 1},
        },
        {
            "findAndModify": "orders",
            "upsert": False,
            "arrayFilters": [{"x": 1}],
            "query": {"a": 1},
            "update": {"$inc": {"b.$[x]": 1}},
            "sort": {"b": -1},
            "fields": {"b": 1},
            "new": True,
            "writeConcern": {"w": 1},
        },
    ),
    "find-one-and-replace": (
        "findOneAndReplace",
        {"filter": {"a": 1}, "replacement": {"b": 1}},
        {"findAndModify": "orders", "query": {"a": 1}, "update": {"b": 1}},
    ),
    "find-one-and-delete": (
        "findOneAndDelete",
        {"filter": {"a": 1}, "sort": {"b": 1}, "collation": {"locale": "en"}},
        {
            "findAndModify": "orders",
            "query": {"a": 1},
            "remove": True,
            "sort": {"b": 1},
            "collation": {"locale": "en"},
        },
    ),
    "delete-one": ("deleteOne", {"filter": {"a": 1}}, {"delete": "orders", "deletes": [{"q": {"a": 1}, "limit": 1}]}),
    "delete-many": (
        "deleteMany",
        {"filter": {}, "collation": {"locale": "en"}},
        {"delete": "orders", "deletes": [{"q": {}, "limit": 0, "collation": {"locale": "en"}}]},
    ),
}


@pytest.mark.parametrize(("name", "fields", "command"), COMMANDS.values(), ids=COMMANDS)
def test_an_action_becomes_a_command(api: Api, name: str, fields: dict[str, Any], command: dict[str, Any]) -> None:
    assert api.act(name, **fields).status_code in (200, 201)
    assert api.command == command
    (request,) = api.requests
    assert (request.database, request.source) == ("shop", "http")


def test_every_action_of_the_table_is_tried_above() -> None:
    assert {name for name, _, _ in COMMANDS.values()} == set(ACTIONS) - {"bulkWrite"}, "test_bulk_write.py has that one"


@pytest.mark.parametrize("content_type", ["application/json", "application/ejson", "application/json; charset=utf-8"])
def test_the_same_in_bson_and_in_extended_json(api: Api, content_type: str) -> None:
    seen = []
    fields = {
        "database": "shop",
        "collection": "orders",
        "filter": {"a": {"$gt": 1}},
        "update": {"$set": {"b": [1, {}]}},
    }
    for kind, body in ((content_type, json.dumps(fields)), ("application/bson", encode(fields))):
        assert api.post("/v1/action/updateOne", body, headers={"content-type": kind}).status_code == 200
        seen.append(api.command)
    assert seen[0] == seen[1]


@pytest.mark.parametrize("given", ["json", "bson"])
def test_a_document_without_an_id_gets_one_in_front(api: Api, given: str) -> None:
    fields = {"database": "shop", "collection": "orders", "document": {"a": 1, "b": {"c": 2}}}
    if given == "json":
        response = api.post("/v1/action/insertOne", fields)
    else:
        response = api.post("/v1/action/insertOne", encode(fields), headers={"content-type": "application/bson"})
    (document,) = api.command["documents"]
    assert list(document) == ["_id", "a", "b"]
    assert plain(response) == {"insertedId": {"$oid": str(document["_id"])}}
    assert document["_id"].seconds == 1_700_000_000


# --- to an answer -----------------------------------------------------------------------------------------------

ANSWERS: dict[str, tuple[list[dict[str, Any]], str, dict[str, Any], int, dict[str, Any]]] = {
    "find": ([{"_id": 1}, {"_id": ID}], "find", {}, 200, {"documents": [{"_id": 1}, {"_id": EJSON_ID}]}),
    "find-nothing": ([], "find", {}, 200, {"documents": []}),
    "find-one": ([{"_id": ID}], "findOne", {}, 200, {"document": {"_id": EJSON_ID}}),
    "find-no-one": ([], "findOne", {}, 200, {"document": None}),
    "count": ([{}, {}, {}], "countDocuments", {}, 200, {"count": 3}),
    "distinct": ([{"a": 1}, {"a": ID}], "distinct", {"key": "a"}, 200, {"values": [1, EJSON_ID]}),
    "insert-one": ([], "insertOne", {"document": {"_id": EJSON_ID}}, 201, {"insertedId": EJSON_ID}),
    "insert-one-null": ([], "insertOne", {"document": {"_id": None}}, 201, {"insertedId": None}),
    "insert-many": (
        [],
        "insertMany",
        {"documents": [{"_id": 1}, {"a": 1, "_id": "x"}]},
        201,
        {"insertedIds": [1, "x"]},
    ),
    "update": (
        [{"a": 1}],
        "updateOne",
        {"filter": {}, "update": {"$set": {"a": 1}}},
        200,
        {"matchedCount": 1, "modifiedCount": 0},
    ),
    "upsert": (
        [],
        "updateOne",
        {"filter": {"_id": EJSON_ID}, "update": {"$set": {"a": 1}}, "upsert": True},
        200,
        {"matchedCount": 0, "modifiedCount": 0, "upsertedId": EJSON_ID},
    ),
    "aggregate": ([{}, {}], "aggregate", {"pipeline": [{"$count": "n"}]}, 200, {"documents": [{"n": 2}]}),
    "find-one-and-delete": ([{"_id": ID}], "findOneAndDelete", {"filter": {}}, 200, {"document": {"_id": EJSON_ID}}),
    "find-one-and-replace-nothing": (
        [],
        "findOneAndReplace",
        {"filter": {"_id": EJSON_ID}, "replacement": {}, "upsert": True},
        200,
        {"document": None, "upsertedId": EJSON_ID},
    ),
    "delete": ([{}, {}], "deleteMany", {"filter": {}}, 200, {"deletedCount": 2}),
}


@pytest.mark.parametrize(("there", "name", "fields", "status", "answer"), ANSWERS.values(), ids=ANSWERS)
def test_a_reply_becomes_an_answer(
    api: Api, there: list[dict[str, Any]], name: str, fields: dict[str, Any], status: int, answer: dict[str, Any]
) -> None:
    if there:
        api.insert(*there)
    response = api.act(name, **fields)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert plain(response) == answer


def test_an_answer_has_the_time_of_its_write(api: Api) -> None:
    document, newest = api.act("insertOne", document={"_id": 1}).json(), api.rig.newest()
    assert document["operationTime"] == {"$timestamp": {"t": newest.seconds, "i": newest.increment}}


def test_a_member_without_an_oplog_has_no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_set(initiates=False) as rig:
        assert {"operationTime", "$clusterTime"}.isdisjoint(Api(rig, monkeypatch).act("nothing").json())


def test_all_batches_make_one_answer(api: Api) -> None:
    api.answers["find"] = encode(finish(cursor({"_id": 1}, cursor_id=77), NEWEST.ts))
    pages = iter([cursor({"_id": 2}, cursor_id=77, name="nextBatch"), cursor({"_id": 3}, name="nextBatch")])
    api.answers["getMore"] = lambda command: next(pages)
    assert plain(api.act("find"))["documents"] == [{"_id": 1}, {"_id": 2}, {"_id": 3}]
    assert api.command_names() == ["find", "getMore", "getMore"]
    assert api.command == {"getMore": 77, "collection": "orders"}


def test_an_answer_that_is_too_large_ends_its_cursor(api: Api) -> None:
    big = {"_id": 1, "pad": "x" * (15 << 20)}
    api.answers["find"] = cursor(big, cursor_id=77)
    api.answers["getMore"] = cursor(big, cursor_id=77, name="nextBatch")
    refused(api.act("find"), 413, 10334, "use limit and skip")
    assert api.command == {"killCursors": "orders", "cursors": [77]}


LINES = {"accept": "application/x-ndjson"}


@pytest.mark.parametrize("name", ["find", "aggregate"])
def test_documents_as_lines(api: Api, name: str) -> None:
    api.answers[name] = cursor({"_id": 1, "at": ID}, cursor_id=77)
    api.answers["getMore"] = cursor({"_id": 2}, name="nextBatch")
    response = api.act(name, pipeline=[], headers=LINES) if name == "aggregate" else api.act(name, headers=LINES)
    assert (response.status_code, response.headers["content-type"]) == (200, "application/x-ndjson")
    assert [json.loads(line) for line in response.text.splitlines()] == [{"_id": 1, "at": EJSON_ID}, {"_id": 2}]


def test_lines_are_read_in_small_batches_for_which_memory_is_reserved(api: Api) -> None:
    used: list[int] = []

    def reply(command: dict[str, Any]) -> dict[str, Any]:
        used.append(api.member.admission.in_use)
        name = "firstBatch" if "find" in command else "nextBatch"
        return cursor({"_id": 1}, name=name, cursor_id=7 * (len(used) < 3))

    api.answers |= {"find": reply, "getMore": reply}
    assert api.act("find", headers=LINES).text.count("\n") == 3
    assert {request.batch_bytes for request in api.requests} == {BATCH_BYTES}
    assert min(used) >= 2 * BATCH_BYTES
    assert api.member.admission.in_use == 0
    api.member.admission.add(api.member.admission.left - BATCH_BYTES)
    refused(api.act("find", headers=LINES), 503, 462)
    assert len(used) == 3
    api.act("find")
    assert api.requests[-1].batch_bytes > BATCH_BYTES, "an answer in one piece"


def test_exports_share_each_turn_of_the_loop(api: Api) -> None:
    """Hundreds of exports that all went on in each turn would take a quarter of a second of it."""
    api.insert(*({"_id": number, "pad": "x" * BATCH_BYTES} for number in range(4)))

    async def most_in_a_turn() -> int:
        fields = {"database": "shop", "collection": "orders"}
        asked = (api.ask("POST", "/v1/action/find", json=fields, headers=LINES) for _ in range(100))
        exports = asyncio.gather(*asked)
        most = before = 0
        while not exports.done():
            await asyncio.sleep(0)
            most, before = max(most, len(api.requests) - before), len(api.requests)
        assert {answer.text.count("\n") for answer in exports.result()} == {4}
        return most

    assert api.rig.do(most_in_a_turn()) <= BYTES // BATCH_BYTES


def test_one_thread_makes_lines_of_large_documents(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many threads at it would keep the loop from running."""
    locked: list[bool] = []
    encoded = lines.encoded

    async def noted(*arguments: Any) -> bytes:
        locked.append(api.member.one_export.locked())
        return await encoded(*arguments)

    monkeypatch.setattr(lines, "encoded", noted)
    api.answers["find"] = cursor({"_id": 1}, cursor_id=77)
    api.answers["getMore"] = cursor({"_id": 2}, name="nextBatch")
    assert api.act("find", headers=LINES).text.count("\n") == 2
    assert locked == [True, True]
    assert not api.member.one_export.locked()


def test_an_answer_in_one_piece_counts_while_its_batches_are_read(api: Api) -> None:
    page = {"_id": 1, "pad": "x" * 1_000_000}
    used: list[int] = []

    def more(_: dict[str, Any]) -> dict[str, Any]:
        used.append(api.member.admission.in_use)
        return cursor(page, name="nextBatch", cursor_id=77)

    api.answers |= {"find": cursor(page, cursor_id=77), "getMore": more}
    api.member.admission.add(api.member.admission.left - 3_500_000)
    before = api.member.admission.in_use
    refused(api.act("find"), 503, 462)
    assert [(size - before) // 1_000_000 for size in used] == [1, 2, 3]
    assert api.member.admission.in_use == before
    assert api.command_names()[-1] == "killCursors"


def test_lines_are_not_limited_by_the_size_of_the_answer(api: Api) -> None:
    big = {"_id": 1, "pad": "x" * (15 << 20)}
    pages = iter([*[cursor(big, cursor_id=77, name="nextBatch")] * 3, cursor(name="nextBatch")])
    api.answers |= {"find": cursor(big, cursor_id=77), "getMore": lambda command: next(pages)}
    assert len(api.act("find", headers=LINES).content) > 60 << 20


def test_an_error_before_the_first_line_is_an_ordinary_one(api: Api) -> None:
    api.answers["find"] = {"ok": 0.0, "code": 2, "errmsg": "because"}
    refused(api.act("find", headers=LINES), 400, 2, "because")


def test_an_error_behind_the_first_line_is_the_last_line_and_the_answer_has_no_end(api: Api) -> None:
    api.answers["find"] = cursor({"_id": 1}, cursor_id=77)
    api.answers["getMore"] = {"ok": 0.0, "code": 175, "errmsg": "dropped"}
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if sent:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": b'{"database": "shop", "collection": "orders"}'}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    api.exchange(receive, send, accept=b"application/x-ndjson")
    assert sent[0]["status"] == 200
    assert all(message["more_body"] for message in sent[1:])
    lines = b"".join(message["body"] for message in sent[1:]).decode().splitlines()
    assert json.loads(lines[0]) == {"_id": 1}
    assert json.loads(lines[1])["error"]["errmsg"] == "dropped"


def test_a_client_that_leaves_ends_the_cursor(api: Api) -> None:
    api.answers["find"] = cursor({"_id": 1}, cursor_id=77)
    api.answers["getMore"] = cursor({"_id": 2}, cursor_id=77, name="nextBatch")
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if len(sent) > 2:
            return {"type": "http.disconnect"}
        if sent:
            await asyncio.sleep(0)
            return {"type": "http.request"}
        return {"type": "http.request", "body": b'{"database": "shop", "collection": "orders"}'}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)
        await asyncio.sleep(0)

    api.exchange(receive, send, accept=b"application/x-ndjson")
    assert api.command == {"killCursors": "orders", "cursors": [77]}


def test_a_large_answer_is_encoded_in_a_worker(api: Api) -> None:
    rows = [{"_id": number, "pad": "x" * 1000} for number in range(300)]
    api.answers["find"] = cursor(*rows)
    assert plain(api.act("find"))["documents"] == rows
    assert api.worked == 1


def test_a_large_body_is_parsed_in_a_worker(api: Api) -> None:
    assert api.act("insertOne", document={"_id": 1, "pad": "x" * 200_000}).status_code == 201
    assert api.worked == 1


# --- forms ------------------------------------------------------------------------------------------------------

RICH = {"_id": ID, "n": 1, "long": Int64(5), "f": 1.5, "b": Binary(b"\1"), "ts": Timestamp(1, 2)}


def test_canonical_extended_json_keeps_every_type(api: Api) -> None:
    api.answers["find"] = cursor(RICH)
    response = api.act("findOne", headers={"accept": "application/ejson; canonical=true"})
    assert response.headers["content-type"] == "application/ejson; canonical=true"
    document = from_ejson(response.content)
    assert encode({"d": document["document"]}) == encode({"d": RICH})
    assert response.json()["document"]["n"] == {"$numberInt": "1"}
    assert document["operationTime"] == Timestamp(NEWEST.seconds, NEWEST.increment)
    assert response.json()["$clusterTime"]["signature"]["keyId"] == {"$numberLong": "0"}


def test_bson_comes_out_byte_for_byte(api: Api) -> None:
    api.answers["find"] = cursor(RICH)
    response = api.act("findOne", headers={"accept": "application/bson"})
    assert response.headers["content-type"] == "application/bson"
    answer = RawDocument(response.content)
    assert answer.get_raw("document") == encode(RICH)
    assert answer.keys() == ["document", "operationTime", "$clusterTime"]


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("*/*", "application/json"),
        ("text/html", "application/json"),
        ("application/ejson", "application/ejson"),
        ("application/ejson;canonical=true", "application/ejson; canonical=true"),
        ("application/ejson; canonical=false", "application/ejson"),
        ("application/bson;q=0.2, application/json;q=0.7", "application/json"),
        ("application/json;q=0.2, APPLICATION/BSON", "application/bson"),
        ("application/bson;q=0", "application/json"),
        ("application/bson;q=x", "application/json"),
        ("a/b, " * 100 + "application/bson", "application/bson"),
    ],
)
def test_accept_is_weighed(api: Api, accept: str, content_type: str) -> None:
    api.answers["find"] = cursor()
    assert api.act("find", headers={"accept": accept}).headers["content-type"] == content_type


def test_an_error_comes_in_the_same_form(api: Api) -> None:
    response = api.act("nothing", headers={"accept": "application/bson"})
    assert RawDocument(response.content).get("code") == 59


# --- refused before anything runs -------------------------------------------------------------------------------


def nested(levels: int) -> str:
    return '{"a":' * (levels - 1) + "{}" + "}" * (levels - 1)


def insert_text(document: str) -> str:
    return f'{{"database":"shop","collection":"orders","document":{document}}}'


BAD_BODIES = {
    "empty": ("", 400, 9, "empty"),
    "blank": (" \n ", 400, 9, "empty"),
    "no-json": ("{", 400, 9, "line 1 column"),
    "half-a-document": ('{"database":"shop",', 400, 9, "malformed JSON"),
    "more-than-one": ("{}{}", 400, 9, "malformed JSON"),
    "an-array": ("[]", 400, 9, "not an array"),
    "a-number": ("7", 400, 9, "not an array or a single value"),
    "not-utf-8": (b'{"database":"\xff"}', 400, 9, "malformed JSON"),
    "a-lone-surrogate": ('{"database":"\\ud800"}', 400, 9, "malformed JSON"),
    "a-nul-in-a-name": (insert_text('{"a\\u0000b":1}'), 400, 9, "field 'document'"),
    "201-levels": (insert_text(nested(201)), 400, 9, "more than 200 levels"),
    "thousands-of-levels": (insert_text(nested(5000)), 400, 9, "malformed JSON"),
    "a-bad-wrapper": (insert_text('{"a":{"b":{"$oid":"zz"}}}'), 400, 9, "at 'a.b.$oid'"),
    "a-wrapper-and-more": (insert_text('{"a":{"$oid":"0123456789abcdef01234567","x":1}}'), 400, 9, "$oid"),
}


@pytest.mark.parametrize(("body", "status", "code", "text"), BAD_BODIES.values(), ids=BAD_BODIES)
def test_bodies_that_cannot_be_parsed(api: Api, body: str | bytes, status: int, code: int, text: str) -> None:
    refused(api.post("/v1/action/insertOne", body), status, code, text)
    assert api.requests == []


def test_200_levels_are_accepted_and_returned(api: Api) -> None:
    assert api.post("/v1/action/insertOne", insert_text(nested(200))).status_code == 201
    rows = [json.loads(nested(200)), {"_id": {"$oid": "0" * 24}}]
    assert api.act("insertMany", documents=rows).status_code == 201
    assert api.command["documents"][1] == {"_id": ObjectId("0" * 24)}
    api.answers["find"] = cursor(json.loads(nested(200)))
    for name, field in (("findOne", "document"), ("find", "documents")):
        assert nested(200) in json.dumps(plain(api.act(name))[field], separators=(",", ":"))


BAD_BSON = {
    "empty": b"",
    "too-short": b"\5\0\0",
    "a-wrong-length": encode({"database": "shop"}) + b"\0",
    "cut": encode({"database": "shop", "collection": "orders"})[:-4] + b"\0",
    "bad-text": encode({"database": "shop", "collection": "orders", "filter": {"a": "b"}}).replace(b"b\0", b"\xff\0"),
    "bad-text-in-an-array": encode({"database": "shop", "documents": [{"a": "b"}]}).replace(b"b\0", b"\xff\0"),
    "an-unknown-type": encode({"database": "shop", "filter": {"a": 1}}).replace(b"\x10a\0", b"\x66a\0"),
}


@pytest.mark.parametrize("body", BAD_BSON.values(), ids=BAD_BSON)
def test_bytes_that_are_no_bson(api: Api, body: bytes) -> None:
    refused(api.post("/v1/action/find", body, headers={"content-type": "application/bson"}), 400, 22, "offset")
    assert api.requests == []


BAD_FIELDS: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "no-database": ("find", {"database": None}, 14, "find.database"),
    "a-number-as-database": ("find", {"database": 5}, 14, "'find.database' is the wrong type 'int', expected"),
    "a-document-as-collection": ("find", {"collection": {}}, 14, "'find.collection' is the wrong type 'object'"),
    "an-unknown-field": ("find", {"fliter": {}}, 40415, "'find.fliter' is an unknown field"),
    "a-write-concern-for-a-read": ("find", {"writeConcern": {"w": 1}}, 40415, "find.writeConcern"),
    "a-read-concern-for-a-write": ("deleteOne", {"filter": {}, "readConcern": {}}, 40415, "deleteOne.readConcern"),
    "a-limit-for-one": ("findOne", {"limit": 1}, 40415, "findOne.limit"),
    "text-as-filter": ("find", {"filter": "x"}, 14, "'find.filter' is the wrong type 'string', expected type 'object'"),
    "an-array-as-filter": ("deleteOne", {"filter": []}, 14, "wrong type 'array'"),
    "an-id-as-filter": ("find", {"filter": EJSON_ID}, 14, "wrong type 'objectId'"),
    "a-date-as-limit": ("find", {"limit": {"$date": "2020-01-01T00:00:00Z"}}, 14, "wrong type 'date'"),
    "true-as-limit": ("find", {"limit": True}, 14, "wrong type 'bool', expected type 'number'"),
    "a-number-as-upsert": ("updateOne", {"filter": {}, "update": {"$set": {}}, "upsert": 1}, 14, "updateOne.upsert"),
    "no-document": ("insertOne", {}, 40414, "insertOne.document"),
    "null-as-document": ("insertOne", {"document": None}, 14, "wrong type 'null'"),
    "no-documents": ("insertMany", {}, 40414, "insertMany.documents"),
    "a-document-as-documents": ("insertMany", {"documents": {}}, 14, "expected type 'array'"),
    "a-number-among-documents": ("insertMany", {"documents": [{}, 7]}, 14, "insertMany.documents.1"),
    "no-filter": ("deleteMany", {}, 40414, "deleteMany.filter"),
    "no-update": ("updateOne", {"filter": {}}, 40414, "updateOne.update"),
    "a-document-as-one-update": (
        "findOneAndUpdate",
        {"filter": {}, "update": {"a": 1}},
        9,
        "findOneAndReplace takes a whole document",
    ),
    "operators-as-one-replacement": (
        "findOneAndReplace",
        {"filter": {}, "replacement": {"$set": {"a": 1}}},
        9,
        "findOneAndUpdate takes operators",
    ),
    "a-document-as-update": ("updateOne", {"filter": {}, "update": {"a": 1}}, 9, "replaceOne takes a whole document"),
    "an-empty-update": ("updateMany", {"filter": {}, "update": {}}, 9, "updateMany.update"),
    "operators-as-replacement": ("replaceOne", {"filter": {}, "replacement": {"$set": {}}}, 9, "updateOne takes"),
    "no-key": ("distinct", {}, 40414, "distinct.key"),
    "a-number-as-key": ("distinct", {"key": 3}, 14, "distinct.key"),
    "a-number-as-preference": ("find", {"readPreference": 3}, 14, "find.readPreference"),
}


@pytest.mark.parametrize(("name", "fields", "code", "text"), BAD_FIELDS.values(), ids=BAD_FIELDS)
def test_fields_that_are_refused(api: Api, name: str, fields: dict[str, Any], code: int, text: str) -> None:
    refused(api.act(name, **fields), 400, code, text)
    assert api.requests == []


@pytest.mark.parametrize("path", ["/v1/action/insertOne", "/v1/command/shop"])
def test_a_body_over_the_limit(api: Api, path: str) -> None:
    refused(api.post(path, b" " * 48_000_001), 413, 10334, "48000000")
    assert api.requests == []


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/xml", "application/x-www-form-urlencoded", "application/json; charset=latin-1"],
)
def test_content_types_that_are_not_read(api: Api, content_type: str) -> None:
    response = api.post("/v1/action/find", "{}", headers={"content-type": content_type})
    document = refused(response, 415, 9)
    assert ("curl" in document["errmsg"]) == ("form" in content_type)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_methods_that_are_not_allowed(api: Api, method: str) -> None:
    response = api.request(method, "/v1/action/find")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert (response.content == b"") == (method == "HEAD")


@pytest.mark.parametrize("body", ['{"database": "a", "database": "b", "collection": "c"}', '{"a": {"b": 1, "b": 2}}'])
@pytest.mark.parametrize("path", ["/v1/action/find", "/v1/command/a", "/v1/login", "/v1/replset/freeze"])
def test_a_key_that_is_there_twice_is_refused(api: Api, path: str, body: str) -> None:
    refused(api.post(path, body), 400, 9, "twice in one object")
    assert api.command_names() == []


@pytest.mark.parametrize("name", ["nothing", "find/", "", "find/x", "FIND"])
def test_unknown_actions(api: Api, name: str) -> None:
    refused(api.post(f"/v1/action/{name}", {}), 404, 59, "countDocuments")


def test_an_idempotency_key_names_a_session(api: Api) -> None:
    def sent(key: str, **document: object) -> dict[str, Any]:
        api.act("insertOne", document=document, headers={"Idempotency-Key": key})
        return api.command

    first, again, other_body, other_key = sent("k", a=1), sent("k", a=1), sent("k", a=2), sent("l", a=1)
    assert first == again, "the generated _id too"
    assert first["lsid"]["uid"] == KEYED
    assert (other_body["lsid"], other_body["txnNumber"] != first["txnNumber"]) == (first["lsid"], True)
    assert other_key["lsid"]["id"] != first["lsid"]["id"]
    assert other_key["documents"][0]["_id"] != first["documents"][0]["_id"]
    parse_session(RawDocument(encode(first)), "insert", is_retryable=True, ends_transaction=False)


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "k"}], ids=["alone", "with a key"])
def test_generated_ids_rise(api: Api, headers: dict[str, str]) -> None:
    made = []
    for _ in range(1 if headers else 2):
        api.act("insertMany", documents=[{"a": number} for number in range(20)], headers=headers)
        made += [document["_id"] for document in api.command["documents"]]
    assert made == sorted(set(made))


def test_a_command_cannot_name_the_session_of_an_idempotency_key(api: Api) -> None:
    uid = {"$binary": {"base64": base64.b64encode(KEYED).decode(), "subType": "00"}}
    session = {"id": {"$uuid": "00010203-0405-4607-8809-0a0b0c0d0e0f"}, "uid": uid}
    command = {"insert": "c", "documents": [{"_id": 1}], "lsid": session, "txnNumber": {"$numberLong": "1"}}
    refused(api.post("/v1/command/shop", command), 403, 13, "user digest")


@pytest.mark.parametrize("key", ["", "x" * 256])
def test_an_idempotency_key_of_the_wrong_length_is_refused(api: Api, key: str) -> None:
    refused(api.act("insertOne", document={}, headers={"Idempotency-Key": key}), 400, 2, "Idempotency-Key")
    assert api.requests == []


@pytest.mark.parametrize("name", ["find", "deleteMany"])
@pytest.mark.parametrize(
    ("query", "code", "text"),
    [("?forward=maybe", 2, "'maybe'"), ("?froward=false", 40415, "'froward'"), ("?forward", 2, "true or false")],
)
def test_query_parameters(api: Api, name: str, query: str, code: int, text: str) -> None:
    refused(api.act(name, query, filter={}), 400, code, text)
    assert api.requests == []

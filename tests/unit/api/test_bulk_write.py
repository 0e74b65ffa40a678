"""`/v1/action/bulkWrite`: its commands, their one answer, and what an error among them says."""

from __future__ import annotations

from typing import Any

import pytest

from replset.bson import ObjectId
from tests.unit.api.kit import NEWEST, Api, plain, refused, whole_command

INSERT = {"insertOne": {"document": {"_id": 1}}}
UPDATE = {"updateOne": {"filter": {"_id": 1}, "update": {"$set": {"a": 1}}}}
UPSERT = {"updateOne": {"filter": {"_id": 9}, "update": {"$set": {"a": 1}}, "upsert": True}}
REPLACE = {"replaceOne": {"filter": {"_id": 2}, "replacement": {"a": 2}}}
DELETE = {"deleteMany": {"filter": {}}}


def bulk(api: Api, *operations: Any, **fields: Any) -> Any:
    return api.act("bulkWrite", operations=list(operations), **fields)


def sent(api: Api) -> list[dict[str, Any]]:
    return [whole_command(request) for request in api.requests]


def test_operations_of_one_kind_are_one_command(api: Api) -> None:
    api.insert({"_id": 2}, {"_id": 3})
    response = bulk(
        api, INSERT, UPDATE, UPSERT, REPLACE, DELETE, {"insertOne": {"document": {}}}, writeConcern={"w": 1}
    )
    assert response.status_code == 200
    answer = plain(response)
    made = answer["insertedIds"][1]["_id"]
    assert answer == {
        "insertedCount": 2,
        "matchedCount": 2,
        "modifiedCount": 2,
        "deletedCount": 4,
        "insertedIds": [{"index": 0, "_id": 1}, {"index": 5, "_id": made}],
        "upsertedIds": [{"index": 2, "_id": 9}],
    }
    shared = {"ordered": True, "writeConcern": {"w": 1}}
    assert sent(api) == [
        {"insert": "orders", "documents": [{"_id": 1}], **shared},
        {
            "update": "orders",
            "updates": [
                {"q": {"_id": 1}, "u": {"$set": {"a": 1}}, "multi": False},
                {"q": {"_id": 9}, "u": {"$set": {"a": 1}}, "multi": False, "upsert": True},
                {"q": {"_id": 2}, "u": {"a": 2}, "multi": False},
            ],
            **shared,
        },
        {"delete": "orders", "deletes": [{"q": {}, "limit": 0}], **shared},
        {"insert": "orders", "documents": [{"_id": ObjectId(made["$oid"])}], **shared},
    ]


@pytest.mark.parametrize(("ordered", "commands", "deleted"), [(True, 1, 0), (False, 2, 2)])
def test_an_operation_fails(api: Api, ordered: bool, commands: int, deleted: int) -> None:
    api.insert({"_id": 1}, {"_id": 2})
    document = refused(bulk(api, INSERT, DELETE, ordered=ordered), 409, 11000, "E11000")
    assert (document["insertedCount"], document["deletedCount"], document["insertedIds"]) == (0, deleted, [])
    assert [row["index"] for row in document["writeErrors"]] == [0]
    assert len(api.requests) == commands


def test_what_an_ordered_error_left_out_is_not_called_inserted(api: Api) -> None:
    api.insert({"_id": 1})
    document = refused(bulk(api, *[{"insertOne": {"document": {"_id": n}}} for n in range(3)]), 409, 11000)
    assert document["insertedIds"] == [{"index": 0, "_id": 0}]


def test_a_failure_behind_applied_operations_is_not_called_nothing_applied(api: Api) -> None:
    api.answers |= {"insert": {"ok": 1.0, "n": 1}, "delete": {"ok": 0.0, "code": 10107, "errmsg": "left"}}
    response = bulk(api, INSERT, DELETE)
    document = refused(response, 504, 10107, "applied before operation 1")
    assert document["applied"] == response.headers["x-replset-applied"] == "unknown"
    assert (document["insertedCount"], document["failedOperation"]) == (1, 1)


def test_a_failure_of_the_first_command_applied_nothing(api: Api) -> None:
    api.answers["insert"] = {"ok": 0.0, "code": 14031, "errmsg": "the disk is full"}
    assert "applied" not in refused(bulk(api, INSERT, DELETE), 503, 14031)


def test_an_unmet_write_concern_is_504_with_the_result(api: Api) -> None:
    optime = {"ts": NEWEST.ts, "t": NEWEST.term}
    unmet = {"code": 64, "codeName": "WriteConcernTimeout", "errmsg": "timed out", "errInfo": {"wtimeout": True}}
    api.answers |= {
        "insert": {"ok": 1.0, "n": 1, "writeConcernError": unmet, "opTime": optime},
        "delete": {"ok": 1.0, "n": 2},
    }
    document = refused(bulk(api, INSERT, DELETE), 504, 64, "timed out")
    assert (document["applied"], document["insertedCount"], document["deletedCount"]) == (True, 1, 2)


def test_w_0_promises_nothing(api: Api) -> None:
    response = bulk(api, INSERT, DELETE, writeConcern={"w": 0})
    assert (response.status_code, plain(response)) == (202, {"insertedIds": [{"index": 0, "_id": 1}]})


def test_an_idempotency_key_names_a_session_for_each_command(api: Api) -> None:
    def sessions() -> list[Any]:
        api.requests.clear()
        bulk(api, {"insertOne": {"document": {}}}, DELETE, headers={"Idempotency-Key": "k"})
        return [(command["lsid"], command["txnNumber"], command.get("documents")) for command in sent(api)]

    first = sessions()
    assert sessions() == first, "the generated _id too"
    assert first[0][0] != first[1][0]


@pytest.mark.parametrize(
    ("operations", "code", "text"),
    [
        ([], 16, "1 to 100000 operations, not 0"),
        ([3], 14, "bulkWrite.operations.0"),
        ([INSERT, {}], 9, "bulkWrite.operations.1"),
        ([{**INSERT, **DELETE}], 9, "one field"),
        ([{"find": {}}], 9, "deleteMany"),
        ([{"insertOne": 1}], 14, "bulkWrite.operations.0.insertOne"),
        ([{"insertOne": {}}], 40414, "bulkWrite.operations.0.insertOne.document"),
        ([{"insertOne": {"document": 1}}], 14, "insertOne.document"),
        ([{"deleteOne": {"filter": {}, "limit": 1}}], 40415, "bulkWrite.operations.0.deleteOne.limit"),
        ([{"updateOne": {"filter": {}, "update": {"a": 1}}}], 9, "whole document"),
        ([{"insertOne": {"document": {}, "writeConcern": {}}}], 40415, "writeConcern"),
    ],
)
def test_operations_that_are_refused(api: Api, operations: list[Any], code: int, text: str) -> None:
    refused(bulk(api, *operations), 400, code, text)
    assert api.requests == []

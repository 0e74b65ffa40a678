"""Which documents a validator lets in, at which level, and what the refusal says."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest

from replset.bson import DateTime, Decimal128, Int64
from replset.errors import MaxTimeMSExpiredError
from replset.features.crud import validators
from replset.member.member import RunningMember
from replset.query.json_schema import Schema
from replset.query.match import Matcher
from replset.query.time_limit import time_limit
from tests.rig import Client

Document = dict[str, Any]
CHANGING = {"$expr": {"$and": [{"$gte": ["$a", 5]}, "$$NOW", "$$CLUSTER_TIME"]}}
SCHEMA = {"$jsonSchema": {"required": ["a"], "properties": {"a": {"bsonType": "int", "minimum": 5}}}}


def error_of(reply: Document) -> Document:
    (error,) = reply["writeErrors"]
    return dict(error)


@pytest.mark.parametrize(
    "validator", [{"a": {"$gte": 5}}, SCHEMA, {"a": {"$gte": 5}, "b": {"$exists": False}}, CHANGING]
)
def test_every_way_of_writing_is_validated(client: Client, validator: Document) -> None:
    client.ok({"create": "c", "validator": validator})
    bad, good = {"_id": 1, "a": 1}, {"_id": 2, "a": 7}
    reply = client.ok({"insert": "c", "documents": [bad, good], "ordered": False})
    assert reply["n"] == 1
    assert (error_of(reply)["code"], error_of(reply)["errInfo"]["failingDocumentId"]) == (121, 1)
    for update in (
        {"q": {"_id": 2}, "u": {"$set": {"a": 1}}},
        {"q": {"_id": 2}, "u": {"a": 2}},
        {"q": {"_id": 9}, "u": {"$set": {"a": 1}}, "upsert": True},
    ):
        reply = client.ok({"update": "c", "updates": [update]})
        assert (reply["n"], error_of(reply)["code"]) == (0, 121), update
    modify = {"findAndModify": "c", "query": {"_id": 2}, "update": {"$set": {"a": 1}}}
    reply = client.run(modify)
    assert (reply["code"], reply["errInfo"]["failingDocumentId"]) == (121, 2)
    assert client.ok({"find": "c"})["cursor"]["firstBatch"] == [good]
    client.ok({"insert": "c", "documents": [bad], "bypassDocumentValidation": True})
    client.ok({**modify, "bypassDocumentValidation": True})
    update = {"q": {}, "u": {"$set": {"a": 3}}, "multi": True}
    client.ok({"update": "c", "updates": [update], "bypassDocumentValidation": True})
    assert client.ok({"count": "c", "query": {"a": 3}})["n"] == 2


def test_now_is_the_time_of_the_write(client: Client, member: RunningMember) -> None:
    client.ok({"create": "c", "validator": {"$expr": {"$lt": ["$a", "$$NOW"]}}})
    insert = {"insert": "c", "documents": [{"a": DateTime(member.clock.wall_ms() + 1000)}]}
    assert error_of(client.ok(insert))["code"] == 121
    client.rig.wait(2)
    assert client.ok(insert)["n"] == 1


def test_levels_and_actions(client: Client) -> None:
    client.ok({"insert": "c", "documents": [{"_id": 1, "a": 1}, {"_id": 2, "a": 9}]})
    client.ok({"collMod": "c", "validator": {"a": {"$gte": 5}}, "validationLevel": "moderate"})
    update = {"update": "c", "updates": [{"q": {}, "u": {"$set": {"a": 2}}, "multi": True}], "ordered": False}
    assert error_of(client.ok(update))["errInfo"]["failingDocumentId"] == 2  # it was valid before
    client.ok({"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": 2}}}]})
    assert error_of(client.ok({"insert": "c", "documents": [{"a": 1}]}))["code"] == 121
    client.ok({"collMod": "c", "validationLevel": "strict", "validationAction": "warn"})
    assert client.ok({"insert": "c", "documents": [{"a": 1}]})["n"] == 1
    client.ok({"collMod": "c", "validationLevel": "off", "validationAction": "error"})
    assert client.ok({"insert": "c", "documents": [{"a": 1}]})["n"] == 1


def test_large_documents_are_validated_in_the_thread(client: Client) -> None:
    items = {"$jsonSchema": {"properties": {"a": {"items": {"bsonType": "int", "pattern": "x"}}}}}
    client.ok({"create": "c", "validator": items})
    documents = [{"_id": number, "a": [1] * 3000} for number in range(20)]
    documents[13]["a"].append("no")
    reply = client.ok({"insert": "c", "documents": documents})
    assert (reply["n"], error_of(reply)["index"]) == (13, 13)
    reply = client.ok({"update": "c", "updates": [{"q": {}, "u": {"$push": {"a": "no"}}, "multi": True}]})
    assert error_of(reply)["code"] == 121
    assert client.ok({"count": "c", "query": {"a": "no"}})["n"] == 0


@pytest.mark.parametrize(
    ("validator", "document", "details"),
    [
        (
            {"a": {"$gt": 5}},
            {"a": 3},
            {
                "operatorName": "$gt",
                "specifiedAs": {"a": {"$gt": 5}},
                "reason": "comparison failed",
                "consideredValue": 3,
            },
        ),
        ({"a": 5}, {}, {"operatorName": "$eq", "specifiedAs": {"a": 5}, "reason": "field was missing"}),
        (
            {"$expr": {"$cond": [{"$gt": ["$a", "$$NOW"]}, None, "$a"]}},
            {"a": DateTime(1 << 62)},
            {
                "operatorName": "$expr",
                "specifiedAs": {"$expr": {"$cond": [{"$gt": ["$a", "$$NOW"]}, None, "$a"]}},
                "reason": "expression did not match",
                "expressionResult": None,
            },
        ),
        (
            SCHEMA,
            {"b": 1},
            {
                "operatorName": "$jsonSchema",
                "schemaRulesNotSatisfied": [
                    {"operatorName": "required", "specifiedAs": {"required": ["a"]}, "missingProperties": ["a"]}
                ],
            },
        ),
        (
            {"$jsonSchema": {"title": "T", "properties": {"a": {"bsonType": "int", "description": "whole"}}}},
            {"a": "x"},
            {
                "operatorName": "$jsonSchema",
                "title": "T",
                "schemaRulesNotSatisfied": [
                    {
                        "operatorName": "properties",
                        "propertiesNotSatisfied": [
                            {
                                "propertyName": "a",
                                "description": "whole",
                                "details": [
                                    {
                                        "operatorName": "bsonType",
                                        "specifiedAs": {"bsonType": "int"},
                                        "reason": "type did not match",
                                        "consideredValue": "x",
                                        "consideredType": "string",
                                    }
                                ],
                            }
                        ],
                    }
                ],
            },
        ),
        (
            {"$jsonSchema": {"properties": {"_id": {}}, "additionalProperties": False}},
            {"b": 1},
            {
                "operatorName": "$jsonSchema",
                "schemaRulesNotSatisfied": [
                    {
                        "operatorName": "additionalProperties",
                        "specifiedAs": {"additionalProperties": False},
                        "additionalProperties": ["b"],
                    }
                ],
            },
        ),
    ],
)
def test_what_the_refusal_says(client: Client, validator: Document, document: Document, details: Document) -> None:
    client.ok({"create": "c", "validator": validator})
    error = error_of(client.ok({"insert": "c", "documents": [{"_id": 1, **document}]}))
    assert error["errmsg"] == "Document failed validation"
    assert error["errInfo"] == {"failingDocumentId": 1, "details": details}


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"bsonType": "object"}, [{}], []),
        ({"properties": {"a": {"bsonType": ["int", "long"]}}}, [{"a": 1}, {"a": Int64(1)}, {}], [{"a": 1.0}]),
        (
            {"properties": {"a": {"bsonType": "number"}}},
            [{"a": 1.5}, {"a": Decimal128("1")}],
            [{"a": "1"}, {"a": True}],
        ),
        ({"properties": {"a": {"type": "number"}}}, [{"a": 1}], [{"a": None}]),
        ({"properties": {"a": {"type": ["string", "null"]}}}, [{"a": None}, {"a": ""}], [{"a": 0}]),
        (
            {"properties": {"a": {"maximum": 5, "exclusiveMaximum": True}}},
            [{"a": 4}, {"a": "x"}],
            [{"a": 5}, {"a": 5.0}],
        ),
        ({"properties": {"a": {"minimum": 5}}}, [{"a": 5}, {"a": Decimal128("5.0")}], [{"a": 4.9}]),
        ({"properties": {"a": {"multipleOf": 2.5}}}, [{"a": 5}, {"a": 7.5}], [{"a": 3}]),
        ({"properties": {"a": {"enum": [1, "x", None]}}}, [{"a": 1.0}, {"a": None}], [{"a": True}, {"a": "y"}]),
        (
            {"properties": {"a": {"minLength": 2, "maxLength": 3, "pattern": "^a"}}},
            [{"a": "ab"}],
            [{"a": "a"}, {"a": "bb"}],
        ),
        (
            {"properties": {"a": {"minItems": 1, "maxItems": 2, "uniqueItems": True}}},
            [{"a": [1, "1"]}],
            [{"a": []}, {"a": [1, 1.0]}],
        ),
        (
            {"properties": {"a": {"items": [{"bsonType": "int"}], "additionalItems": False}}},
            [{"a": [1]}],
            [{"a": [1, 2]}],
        ),
        ({"minProperties": 1, "maxProperties": 2}, [{"a": 1}], [{}, {"a": 1, "b": 1, "c": 1}]),
        (
            {"patternProperties": {"^x": {"bsonType": "int"}}, "additionalProperties": {"bsonType": "string"}},
            [{"x1": 1, "y": "s"}],
            [{"x1": "s"}, {"y": 1}],
        ),
        ({"dependencies": {"a": ["b"]}}, [{"a": 1, "b": 1}, {}], [{"a": 1}]),
        ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, [{"a": 1}], [{}, {"a": 1, "b": 1}]),
        ({"allOf": [{"required": ["a"]}], "not": {"required": ["b"]}}, [{"a": 1}], [{"a": 1, "b": 1}]),
        (
            {"properties": {"a": {"multipleOf": Decimal128("0.1")}}},
            [{"a": Decimal128("1E+6000")}, {"a": 1e100}],
            [{"a": math.inf}, {"a": Decimal128("NaN")}, {"a": Decimal128("1E-6000")}],
        ),
        (
            {"properties": {"a": {"minItems": Decimal128("2"), "maxLength": Int64(1), "minProperties": 1.0}}},
            [{"a": [1, 2]}, {"a": "x"}, {"a": {"b": 1}}],
            [{"a": [1]}, {"a": "xx"}, {"a": {}}],
        ),
        (
            {"allOf": [{"properties": {"x": {"items": {"oneOf": [{"required": ["q"]}, {"bsonType": "int"}]}}}}]},
            [{"x": [{"q": 1}]}],
            [{"x": [{"z": 1}]}],
        ),
        ({"patternProperties": {"required": {"bsonType": "int"}}}, [{"required": 1}], [{"required": "x"}]),
        ({"items": {}, "properties": {"a": {"items": [{"allOf": [{"enum": [1]}]}]}}}, [{"a": [1]}], [{"a": [2]}]),
        ({"oneOf": [{}, {"required": ["a"]}]}, [{}], [{"a": 1}]),
        ({"additionalProperties": {"properties": {"not": {"enum": [1]}}}}, [{"a": {"not": 1}}], [{"a": {"not": 2}}]),
    ],
)
def test_keywords(schema: Document, valid: list[Document], invalid: list[Document]) -> None:
    compiled = Schema(schema)
    assert [document for document in valid if not compiled.matches(document)] == []
    for document in invalid:
        assert not compiled.matches(document), document
        assert compiled.details(document)["schemaRulesNotSatisfied"]


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"properties": {"a": {"uniqueItems": True}}}] * 100},
        {"properties": {"a": {"items": {"allOf": [{"minimum": -1}] * 100}}}},
        {"enum": [{"a": number} for number in range(500)]},
    ],
)
def test_a_schema_times_a_document_ends_in_time(schema: Document) -> None:
    compiled = Schema(schema)
    with time_limit(seconds=0.1), pytest.raises(MaxTimeMSExpiredError):
        compiled.matches({"a": list(range(20_000))})


def test_a_filter_may_hold_a_schema(client: Client) -> None:
    client.ok({"insert": "c", "documents": [{"_id": 1, "a": 7}, {"_id": 2, "a": "x"}]})
    assert client.ok({"find": "c", "filter": SCHEMA})["cursor"]["firstBatch"] == [{"_id": 1, "a": 7}]


def test_the_library_is_imported_by_need() -> None:
    code = "import sys, replset.features.all; print([name for name in sys.modules if name.startswith('jsonschema')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_large_validator_is_compiled_in_the_thread(
    client: Client, member: RunningMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is kept compiled, but not for ever: it may have to be done anew for any write."""
    client.ok({"create": "c", "validator": {"$or": [{"a": {"$gte": number}} for number in range(1_500)]}})
    compiled: list[str] = []
    place = ["loop"]
    run, compile_ = member.evaluations.run, validators.compile_filter

    async def in_thread(work: Any) -> Any:
        place[0] = "thread"
        try:
            return await run(work)
        finally:
            place[0] = "loop"

    def compile_filter(query: Document, variables: Document, fold: None) -> Matcher:
        compiled.append(place[0])
        return compile_(query, variables, fold=fold)

    monkeypatch.setattr(member.evaluations, "run", in_thread)
    monkeypatch.setattr(validators, "compile_filter", compile_filter)
    for command in (
        {"insert": "c", "documents": [{"_id": 1, "a": 1}]},
        {"update": "c", "updates": [{"q": {}, "u": {"$set": {"a": 2}}}]},
        {"findAndModify": "c", "query": {}, "update": {"$set": {"a": 3}}},
    ):
        validators._compiled.cache_clear()
        client.ok(command)
    assert compiled == ["thread"] * 3

"""The outcome of a write over HTTP: applied, refused, applied without its write concern, or unknown; and forwarding."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from api import commands
from replset.bson import Int64, Timestamp
from replset.errors import HostUnreachableError, NothingSentError
from replset.ids import HostPort
from tests.unit.api.kit import NEWEST, OTHER, Api, plain, refused

OPTIME = {"ts": Timestamp(NEWEST.seconds, NEWEST.increment), "t": Int64(3)}
TIMED_OUT = {
    "code": 64,
    "codeName": "WriteConcernTimeout",
    "errmsg": "waiting for replication timed out",
    "errInfo": {
        "wtimeout": True,
        "writeConcern": {"w": "majority", "wtimeout": 100, "provenance": "clientSupplied"},
        "progress": [{"_id": 0, "host": "127.0.0.1:27017", "appliedOpTime": OPTIME}],
    },
}
DUPLICATE = {"index": 0, "code": 11000, "keyPattern": {"_id": 1}, "keyValue": {"_id": 1}, "errmsg": "E11000 _id"}


def insert(api: Api, query: str = "", **fields: Any) -> Any:
    return api.act("insertOne", query, document={"_id": 1}, **fields)


# --- here -------------------------------------------------------------------------------------------------------


def test_a_duplicate_key(api: Api) -> None:
    api.dispatcher.answers["insert"] = {"ok": 1.0, "n": 0, "writeErrors": [DUPLICATE]}
    document = refused(insert(api), 409, 11000, "E11000")
    assert document["keyPattern"] == {"_id": 1}
    assert document["keyValue"] == {"_id": 1}
    assert "insertedId" not in document


@pytest.mark.parametrize(("ordered", "inserted"), [(True, [1]), (False, [1, 3])])
def test_an_error_lists_what_was_inserted_before_a_duplicate_key(api: Api, ordered: bool, inserted: list[int]) -> None:
    error = {**DUPLICATE, "index": 1}
    api.dispatcher.answers["insert"] = {"ok": 1.0, "n": len(inserted), "writeErrors": [error]}
    documents = [{"_id": 1}, {"_id": 2}, {"_id": 3}]
    document = refused(api.act("insertMany", documents=documents, ordered=ordered), 409, 11000)
    assert document["insertedIds"] == inserted
    assert [row["index"] for row in document["writeErrors"]] == [1]


@pytest.mark.parametrize(
    ("code", "status"),
    [(2, 400), (9, 400), (66, 400), (17419, 413), (10334, 413), (11000, 409), (13, 403), (26, 404), (14031, 503)],
)
def test_a_write_error_has_the_status_of_its_code(api: Api, code: int, status: int) -> None:
    error = {"index": 0, "code": code, "errmsg": "because"}
    api.dispatcher.answers["update"] = {"ok": 1.0, "n": 0, "nModified": 0, "writeErrors": [error]}
    refused(api.act("updateMany", filter={}, update={"$set": {"a": 1}}), status, code, "because")


def test_a_failure_amid_many_is_not_called_nothing_applied(api: Api) -> None:
    error = {"index": 0, "code": 14031, "errmsg": "the disk is full"}
    api.dispatcher.answers["update"] = {"ok": 1.0, "n": 200, "nModified": 200, "writeErrors": [error]}
    response = api.act("updateMany", filter={}, update={"$set": {"a": 1}})
    document = refused(response, 504, 14031)
    assert document["applied"] == response.headers["x-replset-applied"] == "unknown"
    assert document["modifiedCount"] == 200


def test_an_unmet_write_concern_is_504_with_the_result(api: Api) -> None:
    api.dispatcher.answers["insert"] = {"ok": 1.0, "n": 1, "opTime": OPTIME, "writeConcernError": TIMED_OUT}
    response = insert(api, writeConcern={"w": "majority", "wtimeout": 100})
    assert response.headers["x-replset-applied"] == "true"
    document = refused(response, 504, 64, "timed out")
    assert document["applied"] is True
    assert document["insertedId"] == 1
    assert document["optime"] == str(NEWEST)
    assert document["writeConcernError"]["errInfo"]["writeConcern"]["w"] == "majority"
    assert document["writeConcernError"]["errInfo"]["progress"][0]["host"] == "127.0.0.1:27017"


@pytest.mark.parametrize("code", [100, 79, 91, 189, 50])
def test_other_reasons_for_an_unmet_write_concern(api: Api, code: int) -> None:
    concern = {"code": code, "errmsg": "because", "errInfo": {}}
    api.dispatcher.answers["delete"] = {"ok": 1.0, "n": 1, "opTime": OPTIME, "writeConcernError": concern}
    document = refused(api.act("deleteOne", filter={}), 504, code)
    assert (document["applied"], document["deletedCount"]) == (True, 1)


def test_a_write_error_and_an_unmet_write_concern_are_both_reported(api: Api) -> None:
    reply = {"ok": 1.0, "n": 1, "writeErrors": [DUPLICATE], "writeConcernError": TIMED_OUT}
    api.dispatcher.answers["insert"] = reply
    document = refused(api.act("insertMany", documents=[{"_id": 1}, {"_id": 2}], ordered=False), 409, 11000)
    assert document["writeConcernError"]["code"] == 64


@pytest.mark.parametrize(
    ("code", "status"), [(100, 400), (79, 400), (94, 503), (14031, 503), (91, 503), (11600, 503), (13436, 503)]
)
def test_a_write_that_was_refused_as_a_whole(api: Api, code: int, status: int) -> None:
    api.dispatcher.answers["insert"] = {"ok": 0.0, "code": code, "codeName": "x", "errmsg": "because"}
    document = refused(insert(api), status, code, "because")
    assert "applied" not in document


@pytest.mark.parametrize("code", [1, 189, 11602])
def test_a_write_with_an_unknown_outcome(api: Api, code: int) -> None:
    api.dispatcher.answers["insert"] = {"ok": 0.0, "code": code, "errmsg": "because", "n": 3, "opTime": OPTIME}
    response = insert(api)
    assert response.headers["x-replset-applied"] == "unknown"
    document = refused(response, 504, code)
    assert document["applied"] == "unknown"
    assert document["n"] == 3


@pytest.mark.parametrize(
    ("code", "status"), [(1, 503), (50, 503), (189, 503), (13435, 503), (43, 404), (239, 503), (292, 400)]
)
def test_a_read_that_fails(api: Api, code: int, status: int) -> None:
    api.dispatcher.answers["find"] = {"ok": 0.0, "code": code, "errmsg": "because"}
    document = refused(api.act("find"), status, code)
    assert "applied" not in document


@pytest.mark.parametrize("w", [0, {"$numberDouble": "0"}, {"$numberLong": "0"}])
def test_w_0_promises_nothing(api: Api, w: object) -> None:
    api.dispatcher.answers["insert"] = {"ok": 1.0, "n": 0, "writeErrors": [DUPLICATE]}
    api.dispatcher.answers["delete"] = {"ok": 1.0, "n": 3}
    response = insert(api, writeConcern={"w": w})
    assert (response.status_code, plain(response)) == (202, {"insertedId": 1})
    documents = [{"_id": 1}, {"_id": 2}]
    response = api.act("insertMany", documents=documents, writeConcern={"w": w})
    assert (response.status_code, plain(response)) == (202, {"insertedIds": [1, 2]})
    response = api.act("deleteMany", filter={}, writeConcern={"w": w})
    assert (response.status_code, plain(response)) == (202, {})


def test_false_is_not_w_0(api: Api) -> None:
    api.dispatcher.answers["insert"] = {"ok": 1.0, "n": 1}
    assert insert(api, writeConcern={"w": False}).status_code == 201


# --- on the primary ---------------------------------------------------------------------------------------------


def test_a_write_to_a_secondary_is_answered_by_the_primary(api: Api) -> None:
    api.member.become_secondary()
    response = api.act("insertOne", document={"a": 1}, writeConcern={"w": 2, "wtimeout": 500})
    assert response.status_code == 201
    assert response.headers["x-replset-forwarded-to"] == OTHER
    ((host, command, database, timeout_ms),) = api.member.peer.calls
    assert (host, database) == (OTHER, "shop")
    assert command["$replsetForwarded"] is True
    assert command["writeConcern"] == {"w": 2, "wtimeout": 500}
    assert timeout_ms == 500 + commands.MARGIN_MS
    (document,) = command["documents"]
    assert plain(response) == {"insertedId": {"$oid": str(document["_id"])}}, "the _id was fixed here"
    assert api.dispatcher.requests == []


def test_the_primarys_errors_come_back_with_where_they_came_from(api: Api) -> None:
    api.member.become_secondary()
    api.member.peer.answer = {"ok": 1.0, "n": 1, "opTime": OPTIME, "writeConcernError": TIMED_OUT}
    response = insert(api)
    refused(response, 504, 64)
    assert response.headers["x-replset-forwarded-to"] == OTHER
    assert response.headers["x-replset-applied"] == "true"
    api.member.peer.answer = {"ok": 0.0, "code": 10107, "errmsg": "not primary"}
    refused(insert(api), 503, 10107)
    assert len(api.member.peer.calls) == 2, "once forwarded, never again"


def test_reads_are_not_forwarded(api: Api) -> None:
    api.member.become_secondary()
    api.dispatcher.answers["find"] = {"ok": 0.0, "code": 13435, "errmsg": "not primary and secondaryOk=false"}
    refused(api.act("find"), 503, 13435)
    assert api.member.peer.calls == []


def test_a_primary_that_steps_down_meanwhile_forwards(api: Api) -> None:
    def steps_down(_: dict[str, Any]) -> dict[str, Any]:
        api.member.become_secondary()
        return {"ok": 0.0, "code": 10107, "errmsg": "not primary"}

    api.dispatcher.answers["insert"] = steps_down
    response = insert(api)
    assert (response.status_code, response.headers["x-replset-forwarded-to"]) == (201, OTHER)


@pytest.mark.parametrize("query", ["", "?forward=true", "?forward=false"])
@pytest.mark.parametrize("known", [None, HostPort("127.0.0.1:27017")])
def test_without_a_primary_nothing_is_applied(api: Api, known: HostPort | None, query: str) -> None:
    api.member.become_secondary(known)
    refused(insert(api, query), 503, 10107, "nothing was applied")
    assert api.dispatcher.requests == []
    assert api.member.peer.calls == []


def test_without_forwarding_the_primary_is_named(api: Api) -> None:
    api.member.become_secondary()
    response = insert(api, "?forward=false")
    refused(response, 307, 10107, "http://127.0.0.1:28018")
    assert response.headers["location"] == "http://127.0.0.1:28018/v1/action/insertOne"
    assert api.member.peer.calls == []


def test_without_forwarding_to_a_primary_whose_address_is_not_known_yet(api: Api) -> None:
    api.member.become_secondary()
    api.member.node.http_addresses.clear()
    refused(insert(api, "?forward=false"), 503, 10107, OTHER)


def test_a_write_concern_that_can_never_be_met_is_refused_before_it_is_forwarded(api: Api) -> None:
    api.member.become_secondary()
    refused(insert(api, writeConcern={"w": 5}), 400, 100)
    refused(insert(api, writeConcern={"w": "nowhere"}), 400, 79)
    refused(insert(api, writeConcern={"w": -1}), 400, 9)
    assert api.member.peer.calls == []


def unreachable(cause: Exception) -> HostUnreachableError:
    error = HostUnreachableError(f"{OTHER} cannot be reached")
    error.__cause__ = cause
    return error


def test_a_primary_that_cannot_be_reached(api: Api) -> None:
    api.member.become_secondary()
    api.member.peer.answer = NothingSentError(f"{OTHER} cannot be reached")
    refused(insert(api), 503, 6, "nothing was applied")


@pytest.mark.parametrize("cause", [ConnectionResetError(), TimeoutError()])
def test_a_connection_that_breaks_leaves_the_outcome_unknown(api: Api, cause: Exception) -> None:
    api.member.become_secondary()
    api.member.peer.answer = unreachable(cause)
    response = insert(api)
    assert refused(response, 504, 6, "unknown")["applied"] == "unknown"
    assert response.headers["x-replset-applied"] == "unknown"
    assert response.headers["x-replset-forwarded-to"] == OTHER


@pytest.mark.parametrize("successor", [None, "127.0.0.1:27019"])
def test_the_wait_ends_when_the_primary_is_replaced(
    api: Api, successor: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "PRIMARY_CHECK_S", 0.01)
    cancelled = asyncio.Event()

    async def silent() -> dict[str, Any]:
        api.member.node.primary_host = None if successor is None else HostPort(successor)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return {}

    api.member.become_secondary()
    api.member.peer.answer = silent
    assert refused(insert(api), 504, 6, "is not primary any more")["applied"] == "unknown"
    assert cancelled.is_set()


@pytest.mark.parametrize(
    ("fields", "timeout_ms"),
    [
        ({}, commands.FORWARD_MS),
        ({"maxTimeMS": 3}, 3 + commands.MARGIN_MS),
        ({"maxTimeMS": 9, "writeConcern": {"w": 1, "wtimeout": 2}}, 2 + commands.MARGIN_MS),
        ({"maxTimeMS": 2_000_000_000}, commands.FORWARD_MS),
        ({"maxTimeMS": 0, "writeConcern": {"wtimeout": 0}}, commands.FORWARD_MS),
    ],
)
def test_the_primary_gets_the_time_limit_of_the_client(api: Api, fields: dict[str, Any], timeout_ms: int) -> None:
    api.member.become_secondary()
    insert(api, **fields)
    assert api.member.peer.calls[0][3] == timeout_ms

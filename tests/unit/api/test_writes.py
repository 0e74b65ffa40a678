"""The outcome of a write over HTTP: applied, refused, applied without its write concern, or unknown; and forwarding."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from api import commands
from replset.bson import Timestamp
from replset.errors import HostUnreachableError, NothingSentError
from tests.rig import a_set, step_down
from tests.unit.api.kit import NEWEST, Api, plain, refused

PRIMARY = "a:27017"
OPTIME = {"ts": Timestamp(NEWEST.seconds, NEWEST.increment), "t": NEWEST.term}
DUPLICATE = {"index": 0, "code": 11000, "errmsg": "E11000 _id"}
IDS = [{"_id": 1}, {"_id": 2}, {"_id": 3}]


def insert(api: Api, query: str = "", **fields: Any) -> Any:
    return api.act("insertOne", query, document={"_id": 1}, **fields)


# --- here -------------------------------------------------------------------------------------------------------


def test_a_duplicate_key(api: Api) -> None:
    assert insert(api).status_code == 201
    document = refused(insert(api), 409, 11000, "E11000")
    assert (document["keyPattern"], document["keyValue"]) == ({"_id": 1}, {"_id": 1})
    assert "insertedId" not in document


@pytest.mark.parametrize(("ordered", "inserted"), [(True, [1]), (False, [1, 3])])
def test_an_error_lists_what_was_inserted_before_a_duplicate_key(api: Api, ordered: bool, inserted: list[int]) -> None:
    api.insert({"_id": 2})
    document = refused(api.act("insertMany", documents=IDS, ordered=ordered), 409, 11000)
    assert document["insertedIds"] == inserted
    assert [row["index"] for row in document["writeErrors"]] == [1]
    assert plain(api.act("countDocuments"))["count"] == len(inserted) + 1


@pytest.mark.parametrize(
    ("code", "status"),
    [(2, 400), (9, 400), (66, 400), (17419, 413), (10334, 413), (11000, 409), (13, 403), (26, 404), (14031, 503)],
)
def test_a_write_error_has_the_status_of_its_code(api: Api, code: int, status: int) -> None:
    error = {"index": 0, "code": code, "errmsg": "because"}
    api.answers["update"] = {"ok": 1.0, "n": 0, "nModified": 0, "writeErrors": [error]}
    refused(api.act("updateMany", filter={}, update={"$set": {"a": 1}}), status, code, "because")


def test_a_failure_amid_many_is_not_called_nothing_applied(api: Api) -> None:
    error = {"index": 0, "code": 14031, "errmsg": "the disk is full"}
    api.answers["update"] = {"ok": 1.0, "n": 200, "nModified": 200, "writeErrors": [error]}
    response = api.act("updateMany", filter={}, update={"$set": {"a": 1}})
    document = refused(response, 504, 14031)
    assert document["applied"] == response.headers["x-replset-applied"] == "unknown"
    assert document["modifiedCount"] == 200


def test_an_unmet_write_concern_is_504_with_the_result(api: Api) -> None:
    api.rig.stop_disk()
    response = insert(api, writeConcern={"w": "majority", "wtimeout": 100})
    newest = api.rig.newest()
    api.rig.start_disk()
    assert response.headers["x-replset-applied"] == "true"
    document = refused(response, 504, 64, "timed out")
    assert (document["applied"], document["insertedId"], document["optime"]) == (True, 1, str(newest))
    about = document["writeConcernError"]["errInfo"]
    assert (about["writeConcern"]["w"], about["progress"][0]["host"]) == ("majority", PRIMARY)


@pytest.mark.parametrize("code", [100, 79, 91, 189, 50])
def test_other_reasons_for_an_unmet_write_concern(api: Api, code: int) -> None:
    concern = {"code": code, "errmsg": "because", "errInfo": {}}
    api.answers["delete"] = {"ok": 1.0, "n": 1, "opTime": OPTIME, "writeConcernError": concern}
    document = refused(api.act("deleteOne", filter={}), 504, code)
    assert (document["applied"], document["deletedCount"]) == (True, 1)


def test_a_write_error_and_an_unmet_write_concern_are_both_reported(api: Api) -> None:
    concern = {"code": 64, "errmsg": "timed out"}
    api.answers["insert"] = {"ok": 1.0, "n": 1, "writeErrors": [DUPLICATE], "writeConcernError": concern}
    document = refused(api.act("insertMany", documents=IDS, ordered=False), 409, 11000)
    assert document["writeConcernError"]["code"] == 64


@pytest.mark.parametrize(
    ("action", "code", "status", "applied"),
    [
        *(("insertOne", code, 400, None) for code in (100, 79)),
        *(("insertOne", code, 503, None) for code in (94, 14031, 91, 11600, 13436)),
        *(("insertOne", code, 504, "unknown") for code in (1, 189, 11602)),
        *(("find", code, 503, None) for code in (1, 50, 189, 13435, 239)),
        ("find", 43, 404, None),
        ("find", 292, 400, None),
    ],
)
def test_what_failed_as_a_whole(api: Api, action: str, code: int, status: int, applied: str | None) -> None:
    api.answers["insert"] = api.answers["find"] = {"ok": 0.0, "code": code, "errmsg": "because", "n": 3}
    response = api.act(action, **({"document": {}} if action == "insertOne" else {}))
    document = refused(response, status, code, "because")
    assert (document.get("applied"), response.headers.get("x-replset-applied"), document["n"]) == (applied, applied, 3)


@pytest.mark.parametrize("w", [0, {"$numberDouble": "0"}, {"$numberLong": "0"}])
def test_w_0_promises_nothing(api: Api, w: object) -> None:
    for name, fields, said in (
        ("insertOne", {"document": {"_id": 1}}, {"insertedId": 1}),
        ("insertOne", {"document": {"_id": 1}}, {"insertedId": 1}),
        ("insertMany", {"documents": IDS}, {"insertedIds": [1, 2, 3]}),
        ("deleteMany", {"filter": {}}, {}),
    ):
        response = api.act(name, writeConcern={"w": w}, **fields)
        assert (response.status_code, plain(response)) == (202, said)


def test_false_is_not_w_0(api: Api) -> None:
    refused(insert(api, writeConcern={"w": False}), 400, 9, "w has to be")


# --- on the primary ---------------------------------------------------------------------------------------------


def test_a_write_to_a_secondary_is_answered_by_the_primary(secondary: Api) -> None:
    response = secondary.act("insertOne", document={"a": 1}, writeConcern={"w": 2, "wtimeout": 500})
    assert (response.status_code, response.headers["x-replset-forwarded-to"]) == (201, PRIMARY)
    ((host, command, database, _),) = secondary.forwarded
    assert (host, database, command["writeConcern"]) == (PRIMARY, "shop", {"w": 2, "wtimeout": 500})
    found = secondary.rig.client().ok({"find": "orders"}, "shop")["cursor"]["firstBatch"]
    assert found == command["documents"]
    assert plain(response) == {"insertedId": {"$oid": str(found[0]["_id"])}}, "the _id was fixed here"
    assert secondary.requests == []


def test_the_primarys_errors_come_back_with_where_they_came_from(secondary: Api) -> None:
    insert(secondary)
    response = insert(secondary)
    refused(response, 409, 11000)
    assert response.headers["x-replset-forwarded-to"] == PRIMARY
    secondary.primary = {"ok": 0.0, "code": 10107, "errmsg": "not primary"}
    refused(insert(secondary), 503, 10107)
    assert len(secondary.forwarded) == 3, "once forwarded, never again"


def test_reads_are_not_forwarded(secondary: Api) -> None:
    refused(secondary.act("find"), 503, 13435)
    assert secondary.forwarded == []


def test_a_primary_that_steps_down_meanwhile_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_set(3) as rig:
        api = Api(rig, monkeypatch)

        async def steps_down(_: dict[str, Any]) -> Any:
            request = api.requests[-1]
            await rig.member().dispatcher.run(rig.client().request(step_down(600), "admin"))
            while rig.cluster.primary() in (None, "a") or rig.member().node.primary_host in (None, PRIMARY):
                await rig.member().wait_for_change(100)
            return await api.run(request)

        api.answers["insert"] = steps_down
        response = insert(api)
        assert response.status_code == 201
        assert response.headers["x-replset-forwarded-to"] == rig.member().node.primary_host


@pytest.mark.parametrize("query", ["", "?forward=true", "?forward=false"])
@pytest.mark.parametrize("known", [False, True])
def test_without_a_primary_nothing_is_applied(
    api: Api, monkeypatch: pytest.MonkeyPatch, known: bool, query: str
) -> None:
    """known: this member leads, and takes no writes yet."""
    state = api.member.node._state
    monkeypatch.setattr(state, "writable", False)
    if not known:
        monkeypatch.setattr(state, "primary_id", None)
    refused(insert(api, query), 503, 10107, "nothing was applied")
    assert api.requests == api.forwarded == []


def test_without_forwarding_the_primary_is_named(secondary: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    response = insert(secondary, "?forward=false")
    refused(response, 307, 10107, "http://a:28017")
    assert response.headers["location"] == "http://a:28017/v1/action/insertOne"
    peer: Any = secondary.member.node.peer_at(secondary.rig.cluster.host("a"))
    monkeypatch.setattr(peer, "http_address", "")
    refused(insert(secondary, "?forward=false"), 503, 10107, PRIMARY)
    assert secondary.forwarded == []


@pytest.mark.parametrize(("w", "code"), [(5, 100), ("nowhere", 79), (-1, 9)])
def test_a_write_concern_that_can_never_be_met_is_refused_before_it_is_forwarded(
    secondary: Api, w: object, code: int
) -> None:
    refused(insert(secondary, writeConcern={"w": w}), 400, code)
    assert secondary.forwarded == []


def unreachable(cause: Exception) -> HostUnreachableError:
    error = HostUnreachableError(f"{PRIMARY} cannot be reached")
    error.__cause__ = cause
    return error


def test_a_primary_that_cannot_be_reached(secondary: Api) -> None:
    secondary.primary = NothingSentError(f"{PRIMARY} cannot be reached")
    refused(insert(secondary), 503, 6, "nothing was applied")


@pytest.mark.parametrize("cause", [ConnectionResetError(), TimeoutError()])
def test_a_connection_that_breaks_leaves_the_outcome_unknown(secondary: Api, cause: Exception) -> None:
    secondary.primary = unreachable(cause)
    response = insert(secondary)
    assert refused(response, 504, 6, "unknown")["applied"] == "unknown"
    assert response.headers["x-replset-applied"] == "unknown"
    assert response.headers["x-replset-forwarded-to"] == PRIMARY


@pytest.mark.parametrize("is_alone", [False, True])
def test_the_wait_ends_when_the_primary_is_replaced(monkeypatch: pytest.MonkeyPatch, is_alone: bool) -> None:
    """is_alone: nobody leads then."""
    with a_set(3) as rig:
        api, cancelled = Api(rig, monkeypatch, "b"), asyncio.Event()

        async def silent() -> dict[str, Any]:
            rig.cluster.cut(["b"] if is_alone else ["a"])
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            return {}

        api.primary = silent
        assert refused(insert(api), 504, 6, "is not primary any more")["applied"] == "unknown"
        assert cancelled.is_set()
        rig.cluster.heal()


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
def test_the_primary_gets_the_time_limit_of_the_client(secondary: Api, fields: dict[str, Any], timeout_ms: int) -> None:
    secondary.primary = {"ok": 1.0, "n": 1}
    insert(secondary, **fields)
    assert secondary.forwarded[0][3] == timeout_ms

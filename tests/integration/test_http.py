"""The HTTP API of a real set: forwarding, reads, streams and consumers through failovers, keys, generated requests."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from pymongo.read_preferences import Secondary

from replset.local_set import LocalMember, wait_until
from tests.integration.conftest import MakeSet
from tests.integration.forked import ForkedSet, run_program
from tests.integration.talk import (
    DATABASE,
    a_secondary,
    all_counted,
    connect,
    cut,
    insert,
    others_of,
    reconfigure,
    row_of,
    run,
)
from tests.programs import run_to_end

READ_FROM = "x-replset-read-from"
MAJORITY = {"writeConcern": {"w": "majority"}}


def ask(member: LocalMember, method: str, path: str, body: object = None, **headers: str) -> httpx.Response:
    return httpx.request(method, f"{member.http}{path}", json=body, headers=headers, timeout=60)


def act(member: LocalMember, name: str, query: str = "", *, key: str = "", **fields: object) -> httpx.Response:
    """Run an action. key: an Idempotency-Key."""
    headers = {"idempotency-key": key} if key else {}
    body = {"database": DATABASE, "collection": "orders", **fields}
    return ask(member, "POST", f"/v1/action/{name}{query}", body, **headers)


def test_a_write_to_any_member_and_a_read_of_it_anywhere(local: ForkedSet) -> None:
    primary, secondary = local.wait_for_primary(), a_secondary(local)
    answer = act(secondary, "insertOne", document={"item": "pen"}, **MAJORITY)
    assert (answer.status_code, answer.headers["x-replset-forwarded-to"]) == (201, primary.host)
    concern = {"level": "majority", "afterClusterTime": answer.json()["operationTime"]}
    for member in local.members:
        options = {"readConcern": concern, "readPreference": {"mode": "nearest"}}
        found = act(member, "findOne", filter={"item": "pen"}, **options)
        assert found.json()["document"]["_id"] == answer.json()["insertedId"]
    answer = act(secondary, "insertOne", "?forward=false", document={})
    assert (answer.status_code, answer.headers["location"]) == (307, f"{primary.http}/v1/action/insertOne")
    answer = act(secondary, "find")
    assert (answer.status_code, answer.headers[READ_FROM]) == (503, primary.http.removeprefix("http://"))
    for member in others_of(local, primary):
        local.kill(member)
    answer = act(primary, "insertOne", document={"_id": 1}, writeConcern={"w": "majority", "wtimeout": 300})
    assert (answer.status_code, answer.headers["x-replset-applied"], answer.json()["code"]) == (504, "true", 64)
    progress = answer.json()["writeConcernError"]["errInfo"]["progress"]
    assert {row["host"] for row in progress} == {member.host for member in local.members}


def test_a_write_under_a_key_is_applied_once_by_whomever(local: ForkedSet) -> None:
    primary, secondary = local.wait_for_primary(), a_secondary(local)
    insert_many = {"documents": [{"n": 1}, {"n": 1}], **MAJORITY}
    change = {"filter": {"n": {"$gt": 0}}, "update": {"$inc": {"n": 1}}, **MAJORITY}
    rows = [{"insertOne": {"document": {"m": 1}}}, {"updateMany": {"filter": {"m": 1}, "update": {"$inc": {"m": 1}}}}]
    bulk = {"operations": [*rows, {"insertOne": {"document": {"m": 1}}}], **MAJORITY}

    def all_three(member: LocalMember) -> list[Any]:
        answers = [act(member, "insertMany", key="a", **insert_many), act(member, "updateMany", key="b", **change)]
        answers.append(act(member, "bulkWrite", key="c", **bulk))
        return [(one.status_code, one.json().get("insertedIds"), one.json().get("modifiedCount")) for one in answers]

    first = all_three(secondary)
    assert [(status, modified) for status, _, modified in first] == [(201, None), (200, 2), (200, 1)]
    assert all_three(primary) == first
    local.kill(primary)
    there = local.wait_for_primary(among=others_of(local, primary))
    wait_until(lambda: all_three(there) == first, 30, "the new primary's answers")
    assert act(there, "updateMany", key="b", **{**change, "filter": {}}).status_code == 422
    found = act(there, "find", filter={}).json()["documents"]
    assert [document.get("n", document.get("m")) for document in found] == [2, 2, 2, 1]


# --- reads --------------------------------------------------------------------------------------------------------


def test_hidden_and_stale_members_refuse_and_name_others(local: ForkedSet) -> None:
    primary = local.wait_for_primary()
    hidden, other = others_of(local, primary)
    config = ask(primary, "GET", "/v1/replset/config").json()["config"]
    next(row for row in config["members"] if row["host"] == hidden.host).update(hidden=True, priority=0)
    changed = {"config": {**config, "version": config["version"] + 1}}
    assert ask(primary, "POST", "/v1/replset/reconfig", changed).status_code == 200
    wait_until(lambda: ask(hidden, "GET", "/secondary").status_code == 503, 30, "it to know that it is hidden")
    assert ask(hidden, "GET", "/ready").json()["why"] == "it is hidden"
    refused = act(hidden, "find", readPreference="nearest")
    assert (refused.status_code, refused.json()["code"]) == (503, 133)
    assert set(refused.headers[READ_FROM].split(", ")) == {one.http.removeprefix("http://") for one in (primary, other)}

    def is_stale() -> bool:
        return ask(other, "GET", "/secondary?maxLag=3").status_code == 503

    assert not is_stale()
    cut(other, [primary, hidden])
    wait_until(is_stale, 60, "the cut-off member to count as stale")
    assert ask(other, "GET", "/secondary?maxLag=3000").status_code == 200


@pytest.mark.in_turns
def test_reads_move_away_from_an_overloaded_member(local: ForkedSet) -> None:
    """Its loop is late: its process is stopped for a tenth of a second again and again. Another one serves the holder
    of a consumer, and a change stream, meanwhile.
    """
    reconfigure(local, {"electionTimeoutMillis": 10_000})
    busy, other = local.wait_for_primary(), a_secondary(local)
    feed = "/v1/consumers/feed"
    made = {"name": "feed", "ns": "shop.feed", "mode": "failover", "startAt": "oldest"}
    assert ask(busy, "POST", "/v1/consumers", made).status_code == 201
    run(busy, {"insert": "feed", "documents": [{"_id": 1}, {"_id": 2}, {"_id": 3}], "writeConcern": {"w": 3}}, "shop")
    place: dict[str, object] = {"reader": "a", "waitMS": 5_000}

    def names_another_one() -> bool:
        os.kill(busy.pid, signal.SIGSTOP)
        time.sleep(0.12)
        os.kill(busy.pid, signal.SIGCONT)
        hint = act(busy, "findOne", readPreference="nearest").headers.get(READ_FROM, "")
        answer = ask(busy, "POST", f"{feed}/read", {"reader": "a", "maxEvents": 1})
        if "readFrom" not in answer.json() or READ_FROM not in answer.headers:
            return False
        place.update(generation=answer.json()["generation"], after=answer.json()["next"])
        return other.http.removeprefix("http://") in hint and row_of(busy, by=other).get("overloaded") is True

    wait_until(names_another_one, 60, "the busy member to name another one, which knows why", every_s=0.01)
    os.kill(busy.pid, signal.SIGSTOP)
    try:
        found = ask(other, "POST", f"{feed}/readHere", place).json()
        assert keys(found["events"]) == [2, 3]
        body = {"database": "shop", "collection": "feed", "resumeAfter": place["after"]}
        assert keys(events(other, "/v1/watch", 2, body)) == [2, 3]
    finally:
        os.kill(busy.pid, signal.SIGCONT)
    assert ask(other, "POST", f"{feed}/ack", {"generation": found["generation"], "token": found["next"]}).is_success
    assert ask(other, "DELETE", feed).is_success
    assert READ_FROM not in act(busy, "findOne", readPreference="primary").headers
    wait_until(lambda: "overloaded" not in row_of(busy, by=other), 60, "the load to be over")


# --- change streams and consumers ---------------------------------------------------------------------------------


def events(
    member: LocalMember, path: str, count: int, body: object = None, accept: str = "", last: str = ""
) -> list[dict[str, Any]]:
    """The first events of a stream, each with its `id`; as lines where these are asked for."""
    headers = {name: value for name, value in {"accept": accept, "last-event-id": last}.items() if value}
    found: list[dict[str, Any]] = []
    block: dict[str, str] = {}
    with httpx.stream(
        "POST" if body else "GET", f"{member.http}{path}", json=body, headers=headers, timeout=30
    ) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            name, _, value = line.partition(": ")
            if accept:
                found.append(json.loads(line))
            elif name:
                block[name] = value
            elif "data" in block:
                found.append({"id": block.get("id", ""), "event": block["event"], **json.loads(block["data"])})
                block = {}
            if len(found) == count:
                break
    return found


def keys(found: list[dict[str, Any]]) -> list[object]:
    return [event["documentKey"]["_id"] for event in found]


@pytest.mark.in_turns
def test_a_change_stream_through_a_failover_and_over_http(local: ForkedSet) -> None:
    primary = local.wait_for_primary()
    with connect(local, heartbeatFrequencyMS=500) as client:
        items = client[DATABASE]["items"]
        with items.watch() as stream, items.with_options(read_preference=Secondary()).watch() as other:
            items.insert_many([{"_id": 1}, {"_id": 2}])
            assert keys([stream.next() for _ in range(2)]) == [1, 2]
            local.kill(primary)
            new = local.wait_for_primary()
            items.insert_many([{"_id": 3}, {"_id": 4}])
            assert keys([stream.next() for _ in range(2)]) == [3, 4]
            assert keys([other.next() for _ in range(4)]) == [1, 2, 3, 4]
            token = stream.resume_token
        local.start(primary)
        all_counted(local)

        # Over HTTP: the same tokens, on any member.
        where, lines = f"/v1/watch?database={DATABASE}", "application/x-ndjson"
        items.insert_one({"_id": 5})
        items.update_one({"_id": 5}, {"$set": {"a": 1}})
        path = f"{where}&collection=items"
        five, changed = events(a_secondary(local), f"{path}&resumeAfter={token['_data']}", 2)
        assert (five["operationType"], changed["operationType"], five["id"]) == (
            "insert",
            "update",
            five["_id"]["_data"],
        )
        assert events(new, path, 1, last=five["id"])[0]["id"] == changed["id"]
        assert events(new, f"{where}&resumeAfter={five['id']}", 1, accept=lines)[0]["_id"]["_data"] == changed["id"]
        with items.watch(resume_after={"_data": five["id"]}) as stream:
            assert stream.next()["_id"]["_data"] == changed["id"]
        items.delete_one({"_id": 5})
        body = {"database": DATABASE, "pipeline": [{"$match": {"operationType": "delete"}}], "resumeAfter": five["id"]}
        assert keys(events(new, "/v1/watch", 1, body)) == [5]
        items.drop()
        ends = events(new, f"{path}&resumeAfter={changed['id']}", 9, accept=lines)
        assert [event["operationType"] for event in ends] == ["delete", "drop", "invalidate"]
        assert ask(new, "GET", "/v1/watch?resumeAfter=00").json()["code"] == 260


def replset(member: LocalMember, *arguments: str) -> str:
    done = run_program("replset.cli.main", "consumers", *arguments, "--host", member.host)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.in_turns
def test_a_consumer_over_http_on_the_command_line_and_through_a_failover(local: ForkedSet) -> None:
    primary, secondary = local.wait_for_primary(), a_secondary(local)

    # Any member takes the requests; the primary answers them.
    made = {"name": "mailer", "ns": "shop.orders", "mode": "failover", "ackTimeoutMS": 2_000}
    assert ask(secondary, "POST", "/v1/consumers", made).status_code == 201
    insert(primary, 1, 2, 3)
    mailer = "/v1/consumers/mailer"
    found = ask(secondary, "POST", f"{mailer}/read", {"reader": "a", "maxEvents": 2, "waitMS": 5_000}).json()
    assert keys(found["events"]) == [1, 2]
    done = {"generation": found["generation"], "token": found["events"][0]["_id"]["_data"]}
    assert ask(secondary, "POST", f"{mailer}/ack", done).status_code == 200
    assert ask(primary, "POST", f"{mailer}/ack", {**done, "generation": 1}).status_code == 409
    assert 'replset_consumer_lag_seconds{consumer="mailer"}' in ask(primary, "GET", "/metrics").text

    # As events; a new stream goes on behind the id of the last one that was read.
    about, *both = events(secondary, f"{mailer}/events?reader=a", 3)
    assert (about["event"], both[0]["event"], keys(both)) == ("reader", "change", [2, 3])
    assert keys(events(primary, f"{mailer}/events?reader=a", 2, last=both[0]["id"])[1:]) == [3]

    # The primary dies. What was acknowledged does not come again, and nothing is skipped.
    local.kill(primary)
    new = local.wait_for_primary()
    insert(new, 4)
    seen: list[object] = []
    while not seen or seen[-1] != 4:
        found = ask(new, "POST", f"{mailer}/read", {"reader": "b", "waitMS": 4_000}).json()
        seen += keys(found["events"])
        if found["events"]:
            done = {"generation": found["generation"], "token": found["next"]}
            assert ask(new, "POST", f"{mailer}/ack", done).status_code == 200
    assert seen == [2, 3, 4]

    # The command line.
    assert "begins at" in replset(new, "create", "shop-wide", "--ns", "shop", "--mode", "shared")
    insert(new, 5)
    run(new, {"insert": "other", "documents": [{"_id": 6}]})
    assert keys([json.loads(line) for line in replset(new, "read", "shop-wide").splitlines()]) == [5, 6]
    assert replset(new, "read", "shop-wide") == ""
    assert "goes on at" in replset(new, "reset", "shop-wide", "--to", "oldest")
    assert {"mailer", "shop-wide"} <= set(replset(new, "list").split())
    replset(new, "remove", "shop-wide")
    assert ask(new, "DELETE", mailer).status_code == 200
    assert ask(new, "GET", "/v1/consumers").json()["consumers"] == []


@pytest.mark.night("a search for requests; what it found is in the tables of the unit tests")
@pytest.mark.timeout(240)
def test_generated_requests_find_no_server_error(make_set: MakeSet, tmp_path: Path) -> None:
    """schemathesis over the OpenAPI document. What the schema cannot say (operators, names) may be refused; 503 and 504
    are answers too (maxTimeMS: 1), 500 is none.
    """
    expected = 'expected-statuses = ["2xx", "3xx", "4xx", "503", "504"]'
    (tmp_path / "schemathesis.toml").write_text(f"[checks.not_a_server_error]\n{expected}\n", encoding="utf-8")
    member = make_set(members=1).wait_for_primary()
    paths = "^/v1/(action|command|replset/(oplog|rollbacks|status|config))"
    done = run_to_end(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{member.http}/openapi.json"),
            *("--include-path-regex", paths, "--max-examples", "25", "--seed", "1", "--no-color"),
            *("--phases", "examples,coverage,fuzzing", "--exclude-checks", "positive_data_acceptance"),
        ],
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert act(member, "countDocuments").status_code == 200

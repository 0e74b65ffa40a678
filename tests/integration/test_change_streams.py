"""Change streams on real members: a driver's watch through a failover and on a secondary, and over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pymongo
import pytest
from pymongo.read_preferences import Secondary

from replset.cli.local_set import LocalMember
from tests.integration.conftest import MakeSet
from tests.integration.talk import DATABASE, all_counted

LINES = "application/x-ndjson"


def open_http(member: LocalMember, query: str, last: str = "", accept: str = "") -> Any:
    headers = {"last-event-id": last} if last else {}
    headers |= {"accept": accept} if accept else {}
    return urllib.request.urlopen(
        urllib.request.Request(f"{member.http}/v1/watch?{query}", headers=headers), timeout=30
    )


def events(answer: Any, count: int) -> list[dict[str, Any]]:
    """The next server-sent events, each with its `id`."""
    found: list[dict[str, Any]] = []
    block: dict[str, str] = {}
    while len(found) < count:
        name, _, value = answer.readline().decode().rstrip("\n").partition(": ")
        if name:
            block[name] = value
        elif "data" in block:
            found.append({"id": block["id"], **json.loads(block["data"])})
            block = {}
    return found


def keys(found: list[dict[str, Any]]) -> list[object]:
    return [event["documentKey"]["_id"] for event in found]


def test_a_stream_through_a_failover_and_over_http(make_set: MakeSet) -> None:
    local = make_set()
    primary = local.wait_for_primary()
    hosts = [member.host for member in local.members]
    client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(
        hosts, replicaSet="rs0", heartbeatFrequencyMS=500, serverSelectionTimeoutMS=4_000
    )
    items = client[DATABASE]["items"]

    # A driver's stream goes on through the death of the primary by itself. It first tries for the time of a server
    # selection to kill its cursor on the dead one.
    behind = items.with_options(read_preference=Secondary())
    with items.watch() as stream, behind.watch() as other:
        for number in (1, 2):
            items.insert_one({"_id": number})
        assert keys([stream.next() for _ in range(2)]) == [1, 2]
        local.kill(primary)
        new = local.wait_for_primary()
        for number in (3, 4):
            items.insert_one({"_id": number})
        assert keys([stream.next() for _ in range(2)]) == [3, 4]
        assert keys([other.next() for _ in range(4)]) == [1, 2, 3, 4]
        token = stream.resume_token
    local.start(primary)
    all_counted(local)
    secondary = next(member for member in local.members if member is not new)

    # Over HTTP: the same tokens, on any member.
    where = f"database={DATABASE}&collection=items"
    with open_http(secondary, where + f"&resumeAfter={token['_data']}") as answer:
        items.insert_one({"_id": 5})
        items.update_one({"_id": 5}, {"$set": {"a": 1}})
        five, changed = events(answer, 2)
        assert (five["operationType"], changed["operationType"]) == ("insert", "update")
        assert five["id"] == five["_id"]["_data"]
    with open_http(new, where, last=five["id"]) as answer:
        assert keys(events(answer, 1)) == [5]
    with open_http(new, f"database={DATABASE}&resumeAfter={five['id']}", accept=LINES) as answer:
        assert json.loads(answer.readline())["_id"]["_data"] == changed["id"]
    with items.watch(resume_after={"_data": five["id"]}) as stream:
        assert stream.next()["_id"]["_data"] == changed["id"]
    body = {"database": DATABASE, "pipeline": [{"$match": {"operationType": "delete"}}], "resumeAfter": five["id"]}
    kind = {"content-type": "application/json"}
    request = urllib.request.Request(f"{new.http}/v1/watch", json.dumps(body).encode(), kind)
    with urllib.request.urlopen(request, timeout=30) as answer:
        items.delete_one({"_id": 5})
        assert events(answer, 1)[0]["operationType"] == "delete"
    items.drop()
    with open_http(new, where + f"&resumeAfter={changed['id']}", accept=LINES) as answer:
        assert [json.loads(line)["operationType"] for line in answer] == ["delete", "drop", "invalidate"]
    for query, code in (("resumeAfter=00", 260), ("wrong=1", 40415), ("collection=c", 2), ("database=admin", 73)):
        with pytest.raises(urllib.error.HTTPError) as refusal:
            open_http(new, query)
        assert refusal.value.code == 400
        assert json.loads(refusal.value.read())["code"] == code
    client.close()

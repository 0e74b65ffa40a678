"""Named consumers on real members: over HTTP, as server-sent events, on the command line, and through a failover."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from replset.cli.local_set import LocalMember
from tests.integration.conftest import MakeSet
from tests.integration.forked import run_program
from tests.integration.talk import all_counted, insert, run, status
from tests.integration.test_http import ask

TIMEOUT_MS = 2_000


def call(member: LocalMember, method: str, path: str = "", **fields: object) -> tuple[int, dict[str, Any]]:
    body = json.dumps(fields).encode() if method == "POST" else None
    code, _, answer = ask(member, method, f"/v1/consumers{path}", body)
    return code, json.loads(answer)


def ids(found: dict[str, Any]) -> list[object]:
    return [event["documentKey"]["_id"] for event in found["events"]]


def streamed(member: LocalMember, path: str, count: int, last: str = "") -> list[tuple[str, str, dict[str, Any]]]:
    """The first `count` server-sent events of a stream: (id, event, data)."""
    headers = {"last-event-id": last} if last else {}
    request = urllib.request.Request(f"{member.http}/v1/consumers/{path}", headers=headers)
    found: list[tuple[str, str, dict[str, Any]]] = []
    with urllib.request.urlopen(request, timeout=30) as answer:
        block: dict[str, str] = {}
        while len(found) < count:
            name, _, value = answer.readline().decode().rstrip("\n").partition(": ")
            if name:
                block[name] = value
            elif "data" in block:
                found.append((block.get("id", ""), block["event"], json.loads(block["data"])))
                block = {}
    return found


def replset(member: LocalMember, *arguments: str) -> str:
    done = run_program("replset.cli.main", "consumers", *arguments, "--host", member.host)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_consumer_over_http_on_the_command_line_and_through_a_failover(make_set: MakeSet) -> None:
    local = make_set()
    primary = local.wait_for_primary()
    secondary = next(member for member in local.members if member is not primary)

    # Any member takes the requests; the primary answers them.
    made = {"name": "mailer", "ns": "shop.orders", "mode": "failover", "ackTimeoutMS": TIMEOUT_MS}
    assert call(secondary, "POST", **made)[0] == 201
    insert(primary, 1, 2, 3)
    code, found = call(secondary, "POST", "/mailer/read", reader="a", maxEvents=2, waitMS=5_000)
    assert (code, ids(found)) == (200, [1, 2])
    done = {"generation": found["generation"], "token": found["events"][0]["_id"]["_data"]}
    assert call(secondary, "POST", "/mailer/ack", **done)[0] == 200
    assert call(primary, "GET", "/mailer")[1]["consumers"][0]["holder"] == "a"
    assert call(primary, "GET", "/nobody")[0] == 404
    assert call(primary, "POST", "/mailer/ack", generation=1, token=done["token"])[0] == 409
    assert status(primary)["consumers"][0]["name"] == "mailer"
    metrics = ask(primary, "GET", "/metrics")[2].decode()
    assert 'replset_consumer_lag_seconds{consumer="mailer"}' in metrics

    # As events; a new stream goes on behind the id of the last one that was read.
    about, second, third = streamed(secondary, "mailer/events?reader=a", 3)
    assert (about[1], second[1], third[1]) == ("reader", "change", "change")
    assert [event[2]["documentKey"]["_id"] for event in (second, third)] == [2, 3]
    again = streamed(primary, "mailer/events?reader=a", 2, last=second[0])
    assert again[1][2]["documentKey"]["_id"] == 3

    # The primary dies. What was acknowledged does not come again, and nothing is skipped.
    local.kill(primary)
    new = local.wait_for_primary()
    insert(new, 4)
    seen: list[object] = []
    while not seen or seen[-1] != 4:
        code, found = call(new, "POST", "/mailer/read", reader="b", waitMS=2 * TIMEOUT_MS)
        assert code == 200, found
        seen += ids(found)
        if found["events"]:
            assert call(new, "POST", "/mailer/ack", generation=found["generation"], token=found["next"])[0] == 200
    assert seen == [2, 3, 4]
    local.start(primary)
    all_counted(local)

    # The command line.
    assert "begins at" in replset(new, "create", "shop-wide", "--ns", "shop", "--mode", "shared")
    insert(local.wait_for_primary(), 5)
    run(local.wait_for_primary(), {"insert": "other", "documents": [{"_id": 6}]})
    printed = [json.loads(line) for line in replset(new, "read", "shop-wide").splitlines()]
    assert [event["documentKey"]["_id"] for event in printed] == [5, 6]
    assert replset(new, "read", "shop-wide") == ""
    assert "goes on at" in replset(new, "reset", "shop-wide", "--to", "oldest")
    listed = replset(new, "list")
    assert "mailer" in listed
    assert "shop-wide" in listed
    replset(new, "remove", "shop-wide")
    assert call(new, "DELETE", "/mailer")[0] == 200
    assert call(local.wait_for_primary(), "GET")[1]["consumers"] == []

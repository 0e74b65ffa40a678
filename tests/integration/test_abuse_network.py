"""What strangers and web pages try on real members, over real sockets: nothing of it may change the set."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from replset.bson import Binary, Int64, Timestamp
from replset.cli.local_set import LocalMember, LocalSet, wait_until
from replset.client import WireClient
from tests.integration.conftest import FAST, MakeSet, next_ports
from tests.integration.forked import running_set
from tests.integration.talk import all_counted, insert, run, status
from tools.chaos.hostile import prove_without_key_file

FAR = Int64(2**63 - 1)
UNAUTHORIZED = 13


@pytest.fixture
def local(make_set: MakeSet) -> LocalSet:
    return make_set(electionTimeoutMillis=4000)


# --- web pages ----------------------------------------------------------------------------------------------------


def ask(
    member: LocalMember, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    """One request with just these headers; `Host` is the member's own unless given."""
    connection = http.client.HTTPConnection("127.0.0.1", int(member.http.rpartition(":")[2]), timeout=20)
    given = dict(headers or {})
    try:
        connection.putrequest(method, path, skip_host="host" in given, skip_accept_encoding=True)
        for name, value in {**given, "content-length": str(len(body))}.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        response = connection.getresponse()
        return response.status, json.loads(response.read() or b"{}")
    finally:
        connection.close()


INSERT = b'{"database": "shop", "collection": "orders", "document": {"_id": 666}}'
DROP = b'{"dropDatabase": 1}'
JSON = {"content-type": "application/json"}
PAGES: dict[str, tuple[str, str, bytes, dict[str, str], int]] = {
    "fetch-without-a-type": ("POST", "/v1/action/insertOne", INSERT, {"origin": "https://x.example"}, 403),
    "a-body-without-a-type": ("POST", "/v1/action/insertOne", INSERT, {}, 415),
    "a-form": ("POST", "/v1/replset/stepDown", b"", {"content-type": "application/x-www-form-urlencoded"}, 415),
    "a-form-without-fields": ("POST", "/v1/replset/resync", b"", {}, 415),
    "a-text": ("POST", "/v1/command/shop", DROP, {"content-type": "text/plain"}, 415),
    "a-foreign-origin": ("POST", "/v1/command/shop", DROP, {**JSON, "origin": "http://127.0.0.1:8080"}, 403),
    "a-sandboxed-page": ("POST", "/v1/command/shop", DROP, {**JSON, "origin": "null"}, 403),
    "a-rebound-name": ("POST", "/v1/command/shop", DROP, {**JSON, "host": "x.example:28017"}, 403),
    "a-rebound-read": ("GET", "/v1/replset/oplog", b"", {"host": "x.example"}, 403),
    "a-foreign-delete": ("DELETE", "/v1/replset/members/MEMBER", b"", {"origin": "https://x.example"}, 403),
}


def test_a_page_in_somebodys_browser_changes_nothing(local: LocalSet) -> None:
    primary = local.wait_for_primary()
    insert(primary, 1)
    before = status(primary)
    for name, (method, path, body, headers, expected) in PAGES.items():
        path = path.replace("MEMBER", local.members[1].host)
        assert ask(primary, method, path, body, headers)[0] == expected, name
    private = [command for command in ("replSetHeartbeat", "replSetRequestVotes", "replSetUpdatePosition")]
    for command in (*private, "replSetOplogFetch", "replSetSnapshot", "replSetGetRBID", "replSetProve"):
        found, answer = ask(primary, "POST", "/v1/command/admin", json.dumps({command: 1}).encode(), JSON)
        assert (found, answer["code"]) == (404, 59), command
    after = status(primary)
    assert (after["term"], after["myState"]) == (before["term"], before["myState"])
    assert run(primary, {"count": "orders"})["n"] == 1
    assert ask(primary, "POST", "/v1/action/insertOne", INSERT, {**JSON, "origin": primary.http})[0] == 201


# --- strangers ----------------------------------------------------------------------------------------------------


def forgeries(local: LocalSet, config: dict[str, Any]) -> dict[str, dict[str, object]]:
    """What somebody who read the code could say in a member's name."""
    name, other = local.name, local.members[1].host
    optime = {"ts": Timestamp(2**31 - 1, 1), "t": Int64(config["term"])}
    mine = {**config, "version": 999, "members": config["members"][:1]}
    place = {"memberId": 1, "appliedOpTime": optime, "durableOpTime": optime, "incarnation": "0" * 16}
    beat = {"replSetHeartbeat": name, "from": other, "fromId": 1, "configVersion": 999, "configTerm": FAR}
    return {
        "a-term-near-the-end": {**beat, "term": FAR},
        "a-term-a-little-before": {**beat, "term": Int64(2**63 - 2)},
        "a-higher-term": {**beat, "term": Int64(config["term"] + 1)},
        "a-newer-configuration": {**beat, "term": Int64(config["term"]), "config": mine},
        "positions": {"replSetUpdatePosition": 1, "senderId": 1, "term": Int64(config["term"]), "optimes": [place]},
        "a-candidate": {
            "replSetRequestVotes": 1,
            "setName": name,
            "term": Int64(config["term"] + 1),
            "candidateId": 1,
            "configVersion": 999,
            "configTerm": Int64(1),
            "lastAppliedOpTime": optime,
            "dryRun": False,
        },
        "the-oplog": {"replSetOplogFetch": 1, "after": {"ts": Timestamp(0, 0), "t": Int64(-1)}, "maxBytes": 1000},
        "a-copy": {"replSetSnapshot": 1, "step": "begin"},
        "the-rollback-id": {"replSetGetRBID": 1},
    }


def test_a_stranger_cannot_speak_as_a_member(local: LocalSet) -> None:
    """Also not one that goes half of the way of a proof."""
    primary = local.wait_for_primary()
    insert(primary, 1)
    config = run(primary, {"replSetGetConfig": 1}, "admin")["config"]
    before = status(primary)
    other = next(member for member in local.members if member is not primary)
    for member in local.members:
        with WireClient(member.host) as client:
            assert not prove_without_key_file(client, other.host), "the key that is no secret proves nothing here"
            begin = {"replSetProve": 1, "member": other.host, "address": member.host, "nonce": Binary(bytes(32))}
            assert client.command("admin", begin)["ok"] == 1.0
            for name, command in forgeries(local, config).items():
                reply = client.command("admin", command)
                assert (reply["ok"], reply["code"]) == (0.0, UNAUTHORIZED), (name, reply)
            assert client.command("admin", {"replSetProve": 2, "proofs": [Binary(bytes(32))]})["code"] == 18
    after = status(primary)
    assert (after["term"], after["myState"]) == (before["term"], 1)
    assert run(primary, {"replSetGetConfig": 1}, "admin")["config"] == config
    insert(primary, 2)


def test_forged_positions_acknowledge_nothing(local: LocalSet) -> None:
    primary = local.wait_for_primary()
    config = run(primary, {"replSetGetConfig": 1}, "admin")["config"]
    for member in local.members:
        if member is not primary:
            local.kill(member)
    write: dict[str, object] = {
        "insert": "orders",
        "documents": [{"_id": 1}],
        "writeConcern": {"w": "majority", "wtimeout": 1500},
    }
    with WireClient(primary.host) as stranger:
        for command in forgeries(local, config).values():
            stranger.command("admin", command)
    reply = primary.command(write, "shop", timeout_s=30)
    assert reply.get("writeConcernError") or reply.get("ok") == 0.0, reply


@pytest.fixture
def unkeyed(tmp_path: Path) -> Iterator[LocalSet]:
    """A set without a key file, on loopback: who knows this program and reaches it can act as a member."""
    with running_set(tmp_path / "unkeyed") as local:
        for port in next_ports(3):
            local.plan(port)
        local.key_file.unlink()
        for member in local.members:
            local.start(member)
        local.initiate(FAST)
        all_counted(local)
        yield local


def test_without_a_key_file_what_a_stranger_says_is_bounded(unkeyed: LocalSet) -> None:
    """No term near the end of all terms, no position that was never written, no configuration that nobody has: a
    stranger who proves that he knows this program may cost an election, but never ends a member nor leaves the set
    without a primary.
    """
    primary = unkeyed.wait_for_primary()
    insert(primary, 1)
    before = status(primary)
    config = run(primary, {"replSetGetConfig": 1}, "admin")["config"]
    for member in unkeyed.members:
        with WireClient(member.host) as stranger:
            for command in forgeries(unkeyed, config).values():
                assert stranger.command("admin", command)["code"] == UNAUTHORIZED
            assert prove_without_key_file(stranger, unkeyed.members[1].host)
            for name, command in forgeries(unkeyed, config).items():
                reply = stranger.command("admin", command)
                assert reply.get("code") not in (1, 8, UNAUTHORIZED), (name, reply)
    primary = unkeyed.wait_for_primary()

    def written() -> bool:
        now = unkeyed.primary()
        return now is not None and insert_everywhere(now)

    wait_until(written, 60, "all three to acknowledge")
    after = status(unkeyed.wait_for_primary())
    assert after["term"] < before["term"] + (1 << 21)
    assert [row["host"] for row in config["members"]] == [row["name"] for row in after["members"]]
    for member in unkeyed.members:
        assert member.is_running(), member.last_log_line()


def test_members_with_another_key_stay_strangers_until_they_have_the_sets(local: LocalSet) -> None:
    """Their own set of proofs is refused, and the file says what to change; with both keys they are members again."""
    primary = local.wait_for_primary()
    other = next(member for member in local.members if member is not primary)
    right = local.key_file.read_text()
    local.stop(other)
    local.key_file.write_text("d3JvbmcgYWx0b2dldGhlcg==")
    local.start(other)

    def refusal() -> str | None:
        row = next(row for row in status(primary)["members"] if row["name"] == other.host)
        return row["lastHeartbeatMessage"] if "key file" in row.get("lastHeartbeatMessage", "") else None

    assert wait_until(refusal, 30, "the primary to say why it does not hear the member")
    local.stop(other)
    both = json.dumps(["d3JvbmcgYWx0b2dldGhlcg==", "".join(right.split())])
    local.key_file.write_text(both)
    local.start(other)
    local.key_file.write_text(right)
    wait_until(lambda: insert_everywhere(primary), 60, "all three to acknowledge")


def insert_everywhere(primary: LocalMember) -> bool:
    write: dict[str, object] = {"insert": "orders", "documents": [{}], "writeConcern": {"w": 3, "wtimeout": 2000}}
    reply = primary.command(write, "shop", timeout_s=30)
    return reply.get("ok") == 1.0 and "writeConcernError" not in reply

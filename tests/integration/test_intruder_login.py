"""The intruder at the login, and as a user with less than he wants. test_intruder.py has the rest."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from replset.auth.scram import ClientExchange
from replset.bson import Binary, Int64, Timestamp
from replset.cli.local_set import LocalMember, wait_until
from replset.client import WireClient
from replset.errors import HostUnreachableError
from tests.integration.intruder import PASSWORD, READER, ROOT, GuardedSet, go_on, guarded_set, log_in, start

UNAUTHORIZED, AUTHENTICATION_FAILED = 13, 18
PROTOCOL_ERROR, MECHANISM_UNAVAILABLE = 17, 334
JSON = {"content-type": "application/json"}
MESSAGE = "Authentication failed."


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedSet]:
    with guarded_set(tmp_path_factory.mktemp("guarded")) as made:
        yield made


@pytest.fixture(autouse=True)
def healthy_afterwards(guarded: GuardedSet) -> Iterator[None]:
    before = guarded.leads()
    yield
    guarded.check_healthy(before)


# --- the exchange ------------------------------------------------------------------------------------------------


def exchange(user: str = ROOT, password: str = PASSWORD) -> ClientExchange:
    return ClientExchange(user, password, os.urandom(24))


def begun(client: WireClient, one: ClientExchange) -> bytes:
    """The server's first message."""
    return bytes(start(client, one.first())["payload"])


def wrong_password(client: WireClient, other: WireClient) -> dict[str, Any]:
    return log_in(client, ROOT, "wrong")


def unknown_user(client: WireClient, other: WireClient) -> dict[str, Any]:
    """He gets a salt as everybody, the same one each time, and learns nothing."""
    first, second = begun(client, one := exchange("nobody")), begun(other, exchange("nobody"))
    assert first.split(b",s=")[1] == second.split(b",s=")[1]
    return go_on(client, one.final(first))


def another_database(client: WireClient, other: WireClient) -> dict[str, Any]:
    return log_in(client, database="shop")


def proof_of_another_exchange(client: WireClient, other: WireClient) -> dict[str, Any]:
    """A right message that somebody overheard, on another connection."""
    overheard = (one := exchange()).final(begun(client, one))
    begun(other, exchange())
    return go_on(other, overheard)


def same_beginning_and_proof(client: WireClient, other: WireClient) -> dict[str, Any]:
    """The whole of an overheard login, message by message: the member's nonce is another one."""
    one = exchange()
    final = one.final(begun(client, one))
    assert go_on(client, final)["ok"] == 1.0
    start(other, one.first())
    return go_on(other, final)


def cut_final(client: WireClient, other: WireClient) -> dict[str, Any]:
    return go_on(client, (one := exchange()).final(begun(client, one))[:-8])


def final_without_proof(client: WireClient, other: WireClient) -> dict[str, Any]:
    return go_on(client, (one := exchange()).final(begun(client, one)).rpartition(b",p=")[0])


def empty_proof(client: WireClient, other: WireClient) -> dict[str, Any]:
    return go_on(client, (one := exchange()).final(begun(client, one)).rpartition(b",p=")[0] + b",p=")


def proof_of_zeros(client: WireClient, other: WireClient) -> dict[str, Any]:
    text = (one := exchange()).final(begun(client, one)).rpartition(b",p=")[0]
    return go_on(client, text + b",p=" + base64.b64encode(bytes(32)))


def first_nonce_alone(client: WireClient, other: WireClient) -> dict[str, Any]:
    """The proof is right, for an exchange in which the member's part of the nonce is missing."""
    one = exchange()
    reply = begun(client, one)
    mine = one.first().rpartition(b"r=")[2]
    return go_on(client, one.final(b"r=" + mine + b",s=" + reply.split(b",s=")[1]))


def another_count(client: WireClient, other: WireClient) -> dict[str, Any]:
    """Who sits between lowers the number of rounds."""
    one = exchange()
    return go_on(client, one.final(begun(client, one).rpartition(b",i=")[0] + b",i=4096"))


def channel_binding(client: WireClient, other: WireClient) -> dict[str, Any]:
    return start(client, b"p=tls-unique,," + exchange().first()[3:])


def as_another_user(client: WireClient, other: WireClient) -> dict[str, Any]:
    return start(client, b"n,a=" + ROOT.encode() + b"," + exchange(READER).first()[3:])


def no_text(client: WireClient, other: WireClient) -> dict[str, Any]:
    return start(client, b"n,,n=\xff\xfe,r=abc")


def no_message(client: WireClient, other: WireClient) -> dict[str, Any]:
    return start(client, b"")


def very_long_name(client: WireClient, other: WireClient) -> dict[str, Any]:
    return start(client, b"n,,n=" + b"x" * 3_000 + b",r=abc")


def name_not_escaped(client: WireClient, other: WireClient) -> dict[str, Any]:
    return start(client, b"n,,n=ro=ot,r=abc")


FAILED_LOGINS = (
    wrong_password,
    unknown_user,
    another_database,
    proof_of_another_exchange,
    same_beginning_and_proof,
    cut_final,
    final_without_proof,
    empty_proof,
    proof_of_zeros,
    first_nonce_alone,
    another_count,
    channel_binding,
    as_another_user,
    no_text,
    no_message,
    very_long_name,
    name_not_escaped,
)


@pytest.mark.parametrize("attempt", FAILED_LOGINS, ids=lambda attempt: attempt.__name__)
def test_a_login_that_is_not_right_fails_and_says_no_more(
    guarded: GuardedSet, attempt: Callable[[WireClient, WireClient], dict[str, Any]]
) -> None:
    with guarded.wire() as client, guarded.wire() as other:
        reply = attempt(client, other)
        assert (reply["ok"], reply["code"], reply["errmsg"]) == (0.0, AUTHENTICATION_FAILED, MESSAGE), reply
        assert other.command("shop", {"find": "orders"})["code"] == UNAUTHORIZED


def proof_before_the_beginning(client: WireClient) -> dict[str, Any]:
    return go_on(client, b"c=biws,r=abc,p=" + base64.b64encode(bytes(32)))


def a_second_guess(client: WireClient) -> dict[str, Any]:
    """After a wrong proof the right one comes too late."""
    one = exchange()
    final = one.final(begun(client, one))
    assert go_on(client, final[:-8])["code"] == AUTHENTICATION_FAILED
    return go_on(client, final)


def another_conversation(client: WireClient) -> dict[str, Any]:
    one = exchange()
    return go_on(client, one.final(begun(client, one)), 2)


def last_step_first(client: WireClient) -> dict[str, Any]:
    """The empty message that ends a login, before the proof."""
    begun(client, exchange())
    return go_on(client, b"")


def old_mechanism(client: WireClient) -> dict[str, Any]:
    return client.command("admin", {"saslStart": 1, "mechanism": "SCRAM-SHA-1", "payload": Binary(exchange().first())})


def password_in_the_clear(client: WireClient) -> dict[str, Any]:
    payload = Binary(f"\0{ROOT}\0{PASSWORD}".encode())
    return client.command("$external", {"saslStart": 1, "mechanism": "PLAIN", "payload": payload})


def as_a_member(client: WireClient) -> dict[str, Any]:
    """MongoDB's members log in as __system; here nobody can."""
    return log_in(client, "__system", PASSWORD, "local")


def payload_that_is_none(client: WireClient) -> dict[str, Any]:
    return client.command("admin", {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": {"$gt": ""}})


def with_hello(client: WireClient) -> dict[str, Any]:
    """A hello that begins a login with a wrong message, and one that says that it is a user."""
    begin = {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": Binary(b"n,,n=root"), "db": "admin"}
    assert "speculativeAuthenticate" not in client.command("admin", {"hello": 1, "speculativeAuthenticate": begin})
    return client.command("admin", {"replSetGetStatus": 1, "$audit": {"$impersonatedUsers": [{"user": ROOT}]}})


OUT_OF_ORDER = (
    (proof_before_the_beginning, PROTOCOL_ERROR),
    (a_second_guess, PROTOCOL_ERROR),
    (another_conversation, PROTOCOL_ERROR),
    (last_step_first, AUTHENTICATION_FAILED),
    (old_mechanism, MECHANISM_UNAVAILABLE),
    (password_in_the_clear, MECHANISM_UNAVAILABLE),
    (as_a_member, AUTHENTICATION_FAILED),
    (payload_that_is_none, 2),
    (with_hello, UNAUTHORIZED),
)


@pytest.mark.parametrize(("attempt", "code"), OUT_OF_ORDER, ids=[attempt.__name__ for attempt, _ in OUT_OF_ORDER])
def test_steps_out_of_order_and_other_ways_in_are_refused(
    guarded: GuardedSet, attempt: Callable[[WireClient], dict[str, Any]], code: int
) -> None:
    with guarded.wire() as client:
        reply = attempt(client)
        assert (reply["ok"], reply["code"]) == (0.0, code), reply
        assert client.command("shop", {"find": "orders"})["code"] == UNAUTHORIZED


def test_two_hundred_wrong_passwords_at_once_keep_nobody_out(guarded: GuardedSet) -> None:
    def guess(number: int) -> int:
        with guarded.wire() as client:
            return int(log_in(client, ROOT, f"guess {number}")["code"])

    with ThreadPoolExecutor(8) as threads:
        guesses = [threads.submit(guess, number) for number in range(200)]
        with guarded.wire() as client:
            assert log_in(client)["done"]
        assert {one.result() for one in guesses} == {AUTHENTICATION_FAILED}


# --- a user with less than he wants ------------------------------------------------------------------------------

GRANT = {"grantRolesToUser": READER, "roles": ["root"]}
ENTRY = {"op": "i", "ns": "shop.orders", "o": {"_id": "forged"}}
TOO_MUCH: dict[str, tuple[str, dict[str, object]]] = {
    "insert": ("shop", {"insert": "orders", "documents": [{"_id": "forged"}]}),
    "update": ("shop", {"update": "orders", "updates": [{"q": {}, "u": {"$set": {"x": 1}}, "multi": True}]}),
    "delete": ("shop", {"delete": "orders", "deletes": [{"q": {}, "limit": 0}]}),
    "find-and-modify": ("shop", {"findAndModify": "orders", "query": {}, "remove": True}),
    "read-of-another-database": ("other", {"find": "c"}),
    "read-of-the-users": ("admin", {"find": "system.users"}),
    "count-of-the-users": ("admin", {"count": "system.users"}),
    "aggregate-of-the-users": ("admin", {"aggregate": "system.users", "pipeline": [], "cursor": {}}),
    "read-of-the-oplog": ("local", {"find": "oplog.rs"}),
    "step-down": ("admin", {"replSetStepDown": 1, "force": True}),
    "step-up": ("admin", {"replSetStepUp": 1}),
    "reconfig": ("admin", {"replSetReconfig": {"_id": "rs0", "version": 99, "members": []}, "force": True}),
    "resync": ("admin", {"replSetResync": 1}),
    "a-user-of-his-own": ("admin", {"createUser": "mine", "pwd": "x", "roles": ["root"]}),
    "more-roles": ("admin", GRANT),
    "another-password-for-root": ("admin", {"updateUser": ROOT, "pwd": "mine"}),
    "the-end-of-root": ("admin", {"dropUser": ROOT}),
    "apply-ops": ("admin", {"applyOps": [ENTRY]}),
    "drop": ("shop", {"drop": "orders"}),
    "drop-database": ("shop", {"dropDatabase": 1}),
    "index": ("shop", {"createIndexes": "orders", "indexes": [{"key": {"x": 1}, "name": "x"}]}),
    "parameter": ("admin", {"setParameter": 1, "logLevel": 5}),
    "fail-point": ("admin", {"configureFailPoint": "failCommand", "mode": "alwaysOn"}),
    "test-cut": ("admin", {"replSetTestCut": 1, "hosts": ["127.0.0.1:9"]}),
    "certificates": ("admin", {"rotateCertificates": 1}),
    "log": ("admin", {"getLog": "global"}),
    "note": ("admin", {"appendOplogNote": 1, "data": {"x": 1}}),
    "a-heartbeat": ("admin", {"replSetHeartbeat": "rs0", "term": Int64(9)}),
    "the-oplog-as-a-member": ("admin", {"replSetOplogFetch": 1, "after": {"ts": Timestamp(0, 0), "t": Int64(-1)}}),
}


@pytest.mark.parametrize(("database", "command"), TOO_MUCH.values(), ids=TOO_MUCH)
def test_a_reader_of_one_database_does_nothing_else(
    guarded: GuardedSet, database: str, command: dict[str, object]
) -> None:
    documents = guarded.root.shop.orders.count_documents({})
    with guarded.wire() as client:
        assert log_in(client, READER)["done"]
        reply = client.command(database, command)
        assert (reply["ok"], reply["code"]) == (0.0, UNAUTHORIZED), reply
        assert client.command("shop", {"count": "orders"})["n"] == documents


def test_root_itself_writes_no_user_by_hand(guarded: GuardedSet) -> None:
    with guarded.wire() as client:
        assert log_in(client)["done"]
        forged = {"_id": "admin.forged", "user": "forged", "db": "admin", "roles": [], "credentials": {}}
        for command in (
            {"insert": "system.users", "documents": [forged]},
            {"update": "system.users", "updates": [{"q": {}, "u": {"$set": {"roles": []}}}]},
            {"delete": "system.users", "deletes": [{"q": {}, "limit": 0}]},
            {"drop": "system.users"},
        ):
            assert client.command("admin", command).get("ok") == 0.0, command
    assert guarded.root.admin.command({"usersInfo": 1})["users"]


def test_another_users_cursor_is_not_his(guarded: GuardedSet) -> None:
    with guarded.wire() as owner, guarded.wire() as thief:
        assert log_in(owner)["done"]
        assert log_in(thief, READER)["done"]
        cursor = owner.command("shop", {"find": "orders", "batchSize": 1})["cursor"]["id"]
        reply = thief.command("shop", {"getMore": cursor, "collection": "orders"})
        assert (reply["ok"], reply["code"]) == (0.0, UNAUTHORIZED), reply
        thief.command("shop", {"killCursors": "orders", "cursors": [cursor]})
        reply = owner.command("shop", {"getMore": cursor, "collection": "orders", "batchSize": 1})
        assert reply["ok"] == 1.0, reply


def test_who_logs_out_or_is_dropped_is_a_stranger_again(guarded: GuardedSet) -> None:
    guarded.root.admin.command({"createUser": "guest", "pwd": PASSWORD, "roles": [{"role": "read", "db": "shop"}]})
    with guarded.wire() as one, guarded.wire() as two:
        assert log_in(one, "guest")["done"]
        assert log_in(two, "guest")["done"]
        assert one.command("admin", {"logout": 1})["ok"] == 1.0
        assert one.command("shop", {"find": "orders"})["code"] == UNAUTHORIZED
        guarded.root.admin.command({"dropUser": "guest"})
        with pytest.raises(HostUnreachableError, match="closed"):
            two.command("shop", {"find": "orders"})


# --- HTTP --------------------------------------------------------------------------------------------------------


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode("latin-1")).decode()


def token_of(guarded: GuardedSet, user: str = READER) -> str:
    body = json.dumps({"user": user, "password": PASSWORD, "db": "admin"}).encode()
    status, answer = guarded.http("POST", "/v1/login", body, JSON)
    assert status == 200, answer
    return str(json.loads(answer.split(b"\r\n\r\n", 1)[1])["token"])


def changed(token: str) -> str:
    """A token of the reader that says that it is root's."""
    body, _, signature = token.partition(".")
    claim = json.loads(base64.urlsafe_b64decode(body))
    claim[0] = ROOT
    return f"{base64.urlsafe_b64encode(json.dumps(claim).encode()).decode()}.{signature}"


WRONG_LOGINS: dict[str, Callable[[GuardedSet], str]] = {
    "a-wrong-password": lambda guarded: basic(f"{ROOT}:wrong"),
    "no-password": lambda guarded: basic(ROOT),
    "an-empty-password": lambda guarded: basic(f"{ROOT}:"),
    "no-base64": lambda guarded: "Basic %%%",
    "no-text": lambda guarded: basic("\xff\xfe:x"),
    "a-nul": lambda guarded: basic(f"{ROOT}\0:{PASSWORD}"),
    "another-database": lambda guarded: basic(f"shop/{ROOT}:{PASSWORD}"),
    "another-scheme": lambda guarded: "Negotiate YII=",
    "no-token": lambda guarded: "Bearer ",
    "a-made-up-token": lambda guarded: "Bearer WyJyb290IiwiYWRtaW4iLCIiLDk5OTk5OTk5OTld.AAAA",
    "a-token-without-a-signature": lambda guarded: "Bearer " + token_of(guarded).partition(".")[0] + ".",
    "a-token-cut-off": lambda guarded: "Bearer " + token_of(guarded)[:-4],
    "a-token-changed-to-root": lambda guarded: "Bearer " + changed(token_of(guarded)),
    "a-jwt-without-algorithm": lambda guarded: "Bearer eyJhbGciOiJub25lIn0.eyJ1c2VyIjoicm9vdCJ9.",
    "a-very-long-token": lambda guarded: "Bearer " + "A" * 60_000,
}


@pytest.mark.parametrize("made", WRONG_LOGINS.values(), ids=WRONG_LOGINS)
def test_over_http_a_wrong_login_gets_401(guarded: GuardedSet, made: Callable[[GuardedSet], str]) -> None:
    for method, path in (("GET", "/v1/replset/status"), ("POST", "/v1/action/find")):
        status, answer = guarded.http(method, path, b"{}", {**JSON, "authorization": made(guarded)})
        assert status == 401, answer[:300]
        assert guarded.local.name.encode() not in answer


FORBIDDEN = (
    ("POST", "/v1/action/insertOne", {"database": "shop", "collection": "orders", "document": {"_id": "forged"}}),
    ("POST", "/v1/action/find", {"database": "admin", "collection": "system.users"}),
    ("POST", "/v1/action/deleteMany", {"database": "shop", "collection": "orders", "filter": {}}),
    ("POST", "/v1/command/admin", {"replSetStepDown": 1}),
    ("POST", "/v1/replset/stepDown", {"force": True}),
    ("POST", "/v1/replset/freeze", {"seconds": 60}),
    ("POST", "/v1/replset/resync", {"force": True}),
    ("GET", "/v1/replset/oplog", {}),
    ("GET", "/metrics", {}),
    ("DELETE", "/v1/replset/members/127.0.0.1:9", {}),
)


@pytest.mark.parametrize(
    ("method", "path", "body"), FORBIDDEN, ids=[f"{row[0]}{row[1]}{next(iter(row[2]), '')}" for row in FORBIDDEN]
)
def test_over_http_a_reader_gets_403(guarded: GuardedSet, method: str, path: str, body: dict[str, object]) -> None:
    headers = {**JSON, "authorization": f"Bearer {token_of(guarded)}"}
    status, answer = guarded.http(method, path, json.dumps(body).encode() if method == "POST" else b"", headers)
    assert status == 403, answer[:300]


def test_a_token_ends_with_its_user_on_every_member(guarded: GuardedSet) -> None:
    guarded.root.admin.command({"createUser": "guest", "pwd": PASSWORD, "roles": ["clusterMonitor"]})
    headers = {"authorization": f"Bearer {token_of(guarded, 'guest')}"}
    for member in guarded.local.members:
        assert guarded.http("GET", "/v1/replset/status", headers=headers, member=member)[0] == 200
    guarded.root.admin.command({"dropUser": "guest"})
    for member in guarded.local.members:
        wait_until(lambda member=member: asks(guarded, headers, member) == 401, 10, "the end of the token")


def asks(guarded: GuardedSet, headers: dict[str, str], member: LocalMember) -> int:
    return guarded.http("GET", "/v1/replset/status", headers=headers, member=member)[0]

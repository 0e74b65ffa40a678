"""Real members with every guard on (key file, users, TLS), and an intruder: nothing that he does may change the set.

What each guard refuses is in the unit tests of the wire port, the logins, the roles, the HTTP API and the proofs of
members. Here are real handshakes and sockets, many connections at once, and all guards together: after each attempt the
same member leads in the same term, all members take a write, and their memory is back.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import ssl
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import psutil
import pymongo
import pytest
from pymongo.errors import OperationFailure

from replset.bson import Binary, Int64, Timestamp, encode
from replset.client import PASSWORD_VARIABLE, TLS_CA_VARIABLE, USER_VARIABLE, WireClient
from replset.ids import HostPort
from replset.key_file import NONCE_BYTES, Handshake, read_key_file
from replset.local_set import HTTP_OFFSET, LocalMember, wait_until
from replset.wire.framing import encode_msg
from tests.certificates import Authority, flags_of
from tests.integration.conftest import FAST, MakeSet, begin_with_logins, next_ports
from tests.integration.forked import ForkedSet, running_set
from tests.integration.talk import all_counted, insert, run, status
from tools.chaos.hostile import prove_without_key_file

UNAUTHORIZED, AUTHENTICATION_FAILED = 13, 18
FAR = Int64(2**63 - 1)
MOST_MORE_BYTES = 64 << 20
"""What a member's memory may be above what it was before, for SQLite's cache and what the allocator keeps."""
READER, READERS_PASSWORD = "reader", "milk"


@dataclass
class GuardedSet:
    """Three members and the CA of their certificates. memory: of each process before the first attempt."""

    local: ForkedSet
    ca: Authority
    memory: list[int] = field(default_factory=list)

    @cached_property
    def primary(self) -> LocalMember:
        return self.local.wait_for_primary()

    def leads(self) -> list[tuple[object, ...]]:
        """Who leads, in which term, and who is in the set, as each member says it."""
        rows = [member.command({"hello": 1}) for member in self.local.members]
        return [(row.get("primary"), row.get("electionId"), row.get("hosts")) for row in rows]

    def used_bytes(self) -> list[int]:
        return [psutil.Process(member.pid).memory_info().rss for member in self.local.members]

    def has_its_memory_back(self) -> bool:
        return all(now <= size + MOST_MORE_BYTES for now, size in zip(self.used_bytes(), self.memory, strict=True))

    def client(self, user: str, password: str, **options: Any) -> pymongo.MongoClient[dict[str, Any]]:
        uri = f"mongodb://{self.primary.host}/?tls=true&tlsCAFile={self.ca.ca}&directConnection=true"
        return pymongo.MongoClient(uri, username=user, password=password, **options)

    def plain(self, *, http: bool = False) -> socket.socket:
        """A TCP connection to the primary, before any handshake."""
        return socket.create_connection(("127.0.0.1", self.primary.port + HTTP_OFFSET * http), timeout=20)

    def context(self) -> ssl.SSLContext:
        """A client's that believes the set's CA."""
        return ssl.create_default_context(cafile=str(self.ca.ca))

    def secured(self, *, http: bool = False) -> ssl.SSLSocket:
        return self.context().wrap_socket(self.plain(http=http), server_hostname="127.0.0.1")

    def http(self, method: str, path: str, **options: Any) -> httpx.Response:
        url = self.primary.http.replace("http:", "https:")
        return httpx.request(method, f"{url}{path}", verify=self.context(), timeout=20, **options)


def stranger(member: LocalMember) -> WireClient:
    """A client that does not log in, as others here do."""
    return WireClient(member.host, login=lambda client: None)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedSet]:
    folder = tmp_path_factory.mktemp("guarded")
    ca = Authority(folder)
    files = ca.issue()
    with pytest.MonkeyPatch.context() as patch, running_set(folder / "set") as local:
        patch.setenv(TLS_CA_VARIABLE, str(ca.ca))
        for port in next_ports(3):
            local.add(port, flags=[*flags_of(files), "--auth", "--enable-test-commands"])
        begin_with_logins(local, patch)
        made = GuardedSet(local, ca)
        run(
            made.primary,
            {"createUser": READER, "pwd": READERS_PASSWORD, "roles": [{"role": "read", "db": "shop"}]},
            "admin",
        )
        insert(made.primary, *range(1000), w=3)
        made.memory = made.used_bytes()
        yield made


@pytest.fixture(autouse=True)
def healthy_afterwards(request: pytest.FixtureRequest) -> Iterator[None]:
    if "guarded" not in request.fixturenames:
        yield
        return
    guarded: GuardedSet = request.getfixturevalue("guarded")
    before = guarded.leads()
    yield
    assert all(member.is_running() for member in guarded.local.members)
    assert guarded.leads() == before
    assert "writeConcernError" not in run(
        guarded.primary, {"insert": "more", "documents": [{}], "writeConcern": {"w": 3}}
    )
    wait_until(guarded.has_its_memory_back, 20, f"the memory to be back at {guarded.memory}")


# --- all guards together -----------------------------------------------------------------------------------------


def forged(local: ForkedSet, config: dict[str, Any]) -> dict[str, dict[str, object]]:
    """What only members say, as somebody would who knows this program and the set's configuration."""
    name, other, term = local.name, local.members[1].host, int(config["term"])
    ahead = {"ts": Timestamp(2**31 - 1, 1), "t": Int64(term)}
    place = {"memberId": 1, "appliedOpTime": ahead, "durableOpTime": ahead, "incarnation": "0" * 24}
    beat = {"replSetHeartbeat": name, "from": other, "fromId": 1, "primaryId": 1, "incarnation": "0" * 24}
    beat |= {"configVersion": 999, "configTerm": FAR}
    vote = {"replSetRequestVotes": 1, "setName": name, "candidateId": 1, "candidateIncarnation": "0" * 24}
    vote |= {"configVersion": 999, "configTerm": Int64(1), "lastAppliedOpTime": ahead, "dryRun": False}
    stolen = {**config, "version": 999, "members": config["members"][:1]}
    return {
        "a-term-near-the-end": {**beat, "term": Int64(2**63 - 2)},
        "the-last-term": {**beat, "term": FAR},
        "a-higher-term": {**beat, "term": Int64(term + 1)},
        "a-configuration": {**beat, "term": Int64(term), "config": stolen},
        "a-candidate": {**vote, "term": Int64(term + 1)},
        "positions": {"replSetUpdatePosition": 1, "senderId": 1, "term": Int64(term), "optimes": [place]},
        "the-oplog": {"replSetOplogFetch": 1, "after": {"ts": Timestamp(0, 0), "t": Int64(-1)}, "maxBytes": 1000},
        "a-probe": {"replSetOplogProbe": 1, "optimes": [ahead]},
        "a-copy": {"replSetSnapshot": 1, "step": "begin", "id": "", "offset": Int64(0), "length": 10},
        "the-rollback-id": {"replSetGetRBID": 1},
    }


def test_who_lacks_a_proof_a_login_or_a_role_is_refused_on_every_member(guarded: GuardedSet) -> None:
    config = run(guarded.primary, {"replSetGetConfig": 1}, "admin")["config"]
    for member in guarded.local.members:
        with stranger(member) as client:
            assert not prove_without_key_file(client, guarded.local.members[1].host), "its key is no secret"
            for name, command in forged(guarded.local, config).items():
                assert client.command("admin", command)["code"] == UNAUTHORIZED, name
            assert client.command("shop", {"find": "orders"})["code"] == UNAUTHORIZED
    for user, password, code in ((READER, "wrong", AUTHENTICATION_FAILED), (READER, READERS_PASSWORD, UNAUTHORIZED)):
        with guarded.client(user, password) as client, pytest.raises(OperationFailure) as refusal:
            client.shop.orders.insert_one({"_id": "forged"})
        assert refusal.value.code == code
    page = {"origin": "https://x.example"}
    reader = {"auth": (READER, READERS_PASSWORD)}
    rows: list[tuple[str, str, dict[str, Any], int]] = [
        ("GET", "/health", {}, 200),
        ("GET", "/v1/replset/status", {}, 401),
        ("POST", "/v1/action/insertMany", {"content": bytes(60_000_000)}, 401),
        ("POST", "/v1/command/shop", {"json": {"dropDatabase": 1}, "headers": page}, 403),
        ("POST", "/v1/command/shop", {"json": {"dropDatabase": 1}, **reader}, 403),
        ("GET", "/v1/replset/oplog", reader, 403),
    ]
    for method, path, options, code in rows:
        with contextlib.suppress(httpx.WriteError):  # it may close before all of a body was sent
            assert guarded.http(method, path, **options).status_code == code, path


class Prover:
    """Goes through the steps of a proof by hand, as one who has a member's key or overheard its proof."""

    def __init__(self, guarded: GuardedSet, client: WireClient) -> None:
        self._client, self._keys = client, read_key_file(guarded.local.key_file)
        self._me, self.member = HostPort(guarded.local.members[1].host), HostPort(client.host)
        self._nonce = bytes(NONCE_BYTES)

    def begin(self, **changes: object) -> bytes:
        step = {"replSetProve": 1, "member": self._me, "address": self.member, "nonce": Binary(self._nonce), **changes}
        return bytes(self._client.command("admin", step).get("nonce", bytes(NONCE_BYTES)))

    def proofs(self, theirs: bytes, role: str = "asking") -> list[Binary]:
        handshake = Handshake(self._me, self.member, self._nonce, theirs)
        return [Binary(proof) for proof in self._keys.proofs(role, handshake)]  # type: ignore[arg-type]

    def end(self, proofs: list[Binary]) -> int:
        return int(self._client.command("admin", {"replSetProve": 2, "proofs": proofs}).get("code", 0))


def another_connections(one: Prover, two: Prover) -> int:
    proofs = one.proofs(one.begin())
    two.begin()
    return two.end(proofs)


def sent_again(one: Prover, two: Prover) -> int:
    proofs = one.proofs(one.begin())
    one.begin()
    return one.end(proofs)


def reflected(one: Prover, two: Prover) -> int:
    """What the other end would answer, sent to it as one's own."""
    return one.end(one.proofs(one.begin(), role="asked"))


def for_another_address(one: Prover, two: Prover) -> int:
    """A member that was made to connect to a stranger: its proof for the stranger is passed on."""
    one.member = HostPort("127.0.0.1:9")
    return one.end(one.proofs(one.begin()))


@pytest.mark.parametrize("attempt", [another_connections, sent_again, reflected, for_another_address])
def test_a_proof_is_of_one_connection_and_one_address(
    guarded: GuardedSet, attempt: Callable[[Prover, Prover], int]
) -> None:
    with stranger(guarded.primary) as first, stranger(guarded.primary) as second:
        assert attempt(Prover(guarded, first), Prover(guarded, second)) == AUTHENTICATION_FAILED
        for client in (first, second):
            assert client.command("admin", {"replSetGetRBID": 1})["code"] == UNAUTHORIZED


@pytest.mark.in_turns
def test_two_hundred_wrong_passwords_at_once_keep_nobody_out(guarded: GuardedSet) -> None:
    def guess(number: int) -> int | None:
        with guarded.client(READER, f"guess {number}") as client, pytest.raises(OperationFailure) as failure:
            client.shop.orders.find_one()
        return failure.value.code

    with ThreadPoolExecutor(8) as threads:
        guesses = [threads.submit(guess, number) for number in range(200)]
        with guarded.client(READER, READERS_PASSWORD) as client:
            assert client.shop.orders.find_one()
        assert {one.result() for one in guesses} == {AUTHENTICATION_FAILED}


# --- TLS, and connections that are not used ----------------------------------------------------------------------


def message(command: dict[str, object]) -> bytes:
    return encode_msg(7, 0, encode({**command, "$db": "admin"}))


def read_all(connection: socket.socket) -> bytes:
    """Read until the other end closes; an error ends it too."""
    parts = b""
    with contextlib.suppress(OSError):
        while data := connection.recv(1 << 16):
            parts += data
    return parts


def answer_to(guarded: GuardedSet, data: bytes, context: ssl.SSLContext | None = None, *, http: bool = False) -> bytes:
    """In TLS 1.3 a client learns with its first read that it was refused."""
    with guarded.plain(http=http) as plain, contextlib.suppress(OSError):
        connection = plain if context is None else context.wrap_socket(plain, server_hostname="127.0.0.1")
        with connection:
            connection.sendall(data)
            if context is None:
                plain.shutdown(socket.SHUT_WR)
            return connection.recv(4096) if context else read_all(plain)
    return b""


def old_version(guarded: GuardedSet) -> ssl.SSLContext:
    context = guarded.context()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    return context


def showing(guarded: GuardedSet, authority: Authority, **how: bool) -> ssl.SSLContext:
    """A client that shows a certificate of this authority."""
    files = authority.issue(name="shown", **how)  # type: ignore[arg-type]
    context = guarded.context()
    context.load_cert_chain(files.cert, files.key)
    return context


def test_without_the_right_tls_nothing_is_answered(guarded: GuardedSet, tmp_path: Path) -> None:
    hello, get = message({"hello": 1}), b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    assert b"ismaster" not in answer_to(guarded, hello)
    assert b"HTTP/1.1 200" not in answer_to(guarded, get, http=True)
    for seed in range(20):
        noise = b"\x16\x03\x01" + random.Random(seed).randbytes(5_000 if seed else 1 << 20)
        assert answer_to(guarded, noise, http=seed % 2 == 0)[:1] in (b"", b"\x15"), "an alert, or the end"
    for _ in range(200):
        with guarded.plain() as connection:
            connection.sendall(b"\x16\x03\x01\x02")  # and it leaves in the middle
    for context in (
        old_version(guarded),
        showing(guarded, Authority(tmp_path)),
        showing(guarded, guarded.ca, expired=True),
    ):
        assert answer_to(guarded, hello, context) == b""
    assert b"Unauthorized" in answer_to(guarded, message({"replSetGetRBID": 1}), showing(guarded, guarded.ca)), (
        "a member's certificate is not enough where there is a key file"
    )


def test_silent_and_slow_connections_keep_nobody_out_and_end(guarded: GuardedSet) -> None:
    """Hundreds that begin no handshake, or say nothing behind it, and requests whose head does not end."""
    beginnings = (b"GET /health HTT", b"GET /v1/replset/status\r\n", b"")
    with contextlib.ExitStack() as opened:
        silent = [opened.enter_context(guarded.plain(http=http)) for http in (False, True) for _ in range(150)]
        for _ in range(150):
            opened.enter_context(guarded.secured())
        slow = [(opened.enter_context(guarded.secured(http=True)), text) for text in beginnings for _ in range(15)]
        for connection, beginning in slow:
            connection.sendall(beginning)
        assert guarded.http("GET", "/health").status_code == 200
        assert run(guarded.primary, {"ping": 1}, "admin")
        for connection, beginning in slow:
            answer = read_all(connection)
            assert b" 408 " in answer if beginning else answer == b""
        assert all(read_all(connection) == b"" for connection in silent)


# --- members without a key file, or with another one -------------------------------------------------------------


def all_acknowledge(local: ForkedSet) -> bool:
    primary = local.primary()
    write = {"insert": "orders", "documents": [{}], "writeConcern": {"w": 3, "wtimeout": 2000}}
    reply = primary.command(write, "shop", timeout_s=30) if primary else {}
    return reply.get("ok") == 1.0 and "writeConcernError" not in reply


@pytest.fixture
def plain_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients neither log in nor speak TLS."""
    for name in (TLS_CA_VARIABLE, USER_VARIABLE, PASSWORD_VARIABLE):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("plain_clients")
def test_without_a_key_file_what_a_stranger_says_is_bounded(tmp_path: Path) -> None:
    """No term near the end of all terms, no position that was never written, no configuration that nobody has: a
    stranger who proves that he knows this program may cost an election, but never ends a member nor leaves the set
    without a primary.
    """
    with running_set(tmp_path / "unkeyed") as unkeyed:
        for port in next_ports(3):
            unkeyed.plan(port)
        unkeyed.key_file.unlink()
        for member in unkeyed.members:
            unkeyed.start(member)
        unkeyed.initiate(FAST)
        all_counted(unkeyed)
        primary = unkeyed.wait_for_primary()
        before, config = status(primary), run(primary, {"replSetGetConfig": 1}, "admin")["config"]
        for member in unkeyed.members:
            with WireClient(member.host) as client:
                assert client.command("admin", {"replSetGetRBID": 1})["code"] == UNAUTHORIZED
                assert prove_without_key_file(client, unkeyed.members[1].host)
                for name, command in forged(unkeyed, config).items():
                    reply = client.command("admin", command)
                    assert reply.get("code") not in (1, 8, UNAUTHORIZED), (name, reply)
        wait_until(lambda: all_acknowledge(unkeyed), 60, "all three to acknowledge")
        after = status(unkeyed.wait_for_primary())
        assert after["term"] < before["term"] + (1 << 21)
        assert [row["host"] for row in config["members"]] == [row["name"] for row in after["members"]]
        assert all(member.is_running() for member in unkeyed.members)


@pytest.mark.in_turns
@pytest.mark.usefixtures("plain_clients")
def test_members_with_another_key_stay_strangers_until_they_have_the_sets(make_set: MakeSet) -> None:
    """Their own set of proofs is refused, and the file says what to change; with both keys they are members again."""
    local = make_set()
    primary = local.wait_for_primary()
    other = next(member for member in local.members if member is not primary)
    right, wrong = local.key_file.read_text(), "d3JvbmcgYWx0b2dldGhlcg=="
    local.stop(other)
    local.key_file.write_text(wrong)
    local.start(other)

    def is_refused() -> bool:
        row = next(row for row in status(primary)["members"] if row["name"] == other.host)
        return "key file" in row.get("lastHeartbeatMessage", "")

    wait_until(is_refused, 30, "the primary to say why it does not hear the member")
    local.stop(other)
    local.key_file.write_text(json.dumps([wrong, "".join(right.split())]))
    local.start(other)
    local.key_file.write_text(right)
    wait_until(lambda: all_acknowledge(local), 60, "all three to acknowledge")

"""The intruder without a login: forged messages of members, bytes against TLS, bombs on both ports, web pages, paths.

Each attempt gets the refusal that it should, and afterwards the same member leads in the same term, all members take a
write, and their memory is back. test_intruder_login.py has the attempts with and around a login.
"""

from __future__ import annotations

import json
import random
import socket
import ssl
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator

import pytest

from replset.bson import Binary, Int64, Timestamp, encode
from replset.client import WireClient
from replset.errors import HostUnreachableError
from replset.ids import HostPort
from replset.key_file import NONCE_BYTES, Handshake, Keys, read_key_file
from tests.certificates import Authority
from tests.integration.intruder import (
    GuardedSet,
    frame,
    guarded_set,
    is_closed,
    message,
    read_all,
)

UNAUTHORIZED, AUTHENTICATION_FAILED = 13, 18
FAR = Int64(2**63 - 1)
JSON = {"content-type": "application/json"}
HTTP_DEADLINE_S = 14


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedSet]:
    with guarded_set(tmp_path_factory.mktemp("guarded")) as made:
        yield made


@pytest.fixture(autouse=True)
def healthy_afterwards(guarded: GuardedSet) -> Iterator[None]:
    before = guarded.leads()
    yield
    guarded.check_healthy(before)


# --- messages of members -----------------------------------------------------------------------------------------


def forged(guarded: GuardedSet) -> dict[str, dict[str, object]]:
    """What only members say, as somebody would who knows this program and the set's configuration."""
    name, other = guarded.local.name, guarded.local.members[1].host
    ahead = {"ts": Timestamp(2**31 - 1, 1), "t": Int64(9)}
    place = {"memberId": 1, "appliedOpTime": ahead, "durableOpTime": ahead, "incarnation": "0" * 24}
    beat = {"replSetHeartbeat": name, "from": other, "fromId": 1, "primaryId": 1, "incarnation": "0" * 24}
    beat |= {"configVersion": Int64(1), "configTerm": Int64(1)}
    vote = {"replSetRequestVotes": 1, "setName": name, "term": FAR, "candidateId": 1, "configVersion": Int64(1)}
    vote |= {"configTerm": Int64(1), "lastAppliedOpTime": ahead, "candidateIncarnation": "0" * 24}
    stolen = {"_id": name, "version": 999, "members": [{"_id": 0, "host": "127.0.0.1:9"}]}
    return {
        "a-heartbeat-of-the-last-term": {**beat, "term": FAR},
        "a-heartbeat-with-a-configuration": {**beat, "term": Int64(1), "configVersion": 999, "config": stolen},
        "a-candidate": {**vote, "dryRun": False},
        "a-candidate-who-only-asks": {**vote, "dryRun": True},
        "positions": {"replSetUpdatePosition": 1, "senderId": 1, "term": Int64(1), "optimes": [place]},
        "a-fetch-of-the-oplog": {"replSetOplogFetch": 1, "after": {"ts": Timestamp(0, 0), "t": Int64(-1)}},
        "a-probe-of-the-oplog": {"replSetOplogProbe": 1, "optimes": [ahead]},
        "a-copy": {"replSetSnapshot": 1, "step": "begin", "id": "", "offset": Int64(0), "length": 10},
        "the-rollback-id": {"replSetGetRBID": 1},
    }


FORGED = (
    "a-heartbeat-of-the-last-term",
    "a-heartbeat-with-a-configuration",
    "a-candidate",
    "a-candidate-who-only-asks",
    "positions",
    "a-fetch-of-the-oplog",
    "a-probe-of-the-oplog",
    "a-copy",
    "the-rollback-id",
)


@pytest.mark.parametrize("kind", FORGED)
def test_who_has_not_proved_that_he_is_a_member_is_not_served_as_one(guarded: GuardedSet, kind: str) -> None:
    for member in guarded.local.members:
        with guarded.wire(member) as stranger:
            reply = stranger.command("admin", forged(guarded)[kind])
            assert (reply["ok"], reply["code"]) == (0.0, UNAUTHORIZED), reply
    command = json.dumps({next(iter(forged(guarded)[kind])): 1}).encode()
    assert guarded.http("POST", "/v1/command/admin", command, JSON)[0] == 401, "over HTTP there is not even that"


class Prover:
    """Goes through the steps of a proof by hand."""

    def __init__(self, guarded: GuardedSet, client: WireClient, keys: Keys) -> None:
        self.client, self.keys = client, keys
        self.me, self.member = HostPort(guarded.local.members[1].host), HostPort(client.host)
        self.nonce = bytes(NONCE_BYTES)

    def begin(self, **changes: object) -> bytes:
        step = {"replSetProve": 1, "member": self.me, "address": self.member, "nonce": Binary(self.nonce), **changes}
        self.reply = self.client.command("admin", step)
        return bytes(self.reply.get("nonce", b""))

    def proofs(self, theirs: bytes, role: str = "asking") -> list[Binary]:
        handshake = Handshake(self.me, self.member, self.nonce, theirs)
        return [Binary(proof) for proof in self.keys.proofs(role, handshake)]  # type: ignore[arg-type]

    def end(self, proofs: list[Binary]) -> int:
        return int(self.client.command("admin", {"replSetProve": 2, "proofs": proofs}).get("code", 0))


def public_key(guarded: GuardedSet, one: Prover, two: Prover) -> int:
    one.keys = Keys.public()
    return one.end(one.proofs(one.begin()))


def no_beginning(guarded: GuardedSet, one: Prover, two: Prover) -> int:
    return one.end(one.proofs(bytes(NONCE_BYTES)))


def another_connections(guarded: GuardedSet, one: Prover, two: Prover) -> int:
    """The right proof, that somebody overheard."""
    proofs = one.proofs(one.begin())
    two.begin()
    return two.end(proofs)


def sent_again(guarded: GuardedSet, one: Prover, two: Prover) -> int:
    proofs = one.proofs(one.begin())
    one.begin()
    return one.end(proofs)


def reflected(guarded: GuardedSet, one: Prover, two: Prover) -> int:
    """What the other end would answer, sent to it as one's own."""
    return one.end(one.proofs(one.begin(), role="asked"))


def for_another_address(guarded: GuardedSet, one: Prover, two: Prover) -> int:
    """A member that was made to connect to a stranger: its proof for the stranger is passed on."""
    one.begin(address="127.0.0.1:9")
    assert "this member is" in one.reply["errmsg"]
    one.member = HostPort("127.0.0.1:9")
    return one.end(one.proofs(bytes(NONCE_BYTES)))


def cut_off(guarded: GuardedSet, one: Prover, two: Prover) -> int:
    proof = one.proofs(one.begin())[0]
    assert one.end([Binary(bytes(proof)[:16])]) == 9
    return one.end([proof])


def a_thousand_guesses(guarded: GuardedSet, one: Prover, two: Prover) -> int:
    one.begin()
    assert one.end([Binary(random.Random(n).randbytes(32)) for n in range(1000)]) == 9
    return one.end([Binary(bytes(32))])


PROOFS = (
    public_key,
    no_beginning,
    another_connections,
    sent_again,
    reflected,
    for_another_address,
    cut_off,
    a_thousand_guesses,
)


@pytest.mark.parametrize("attempt", PROOFS, ids=lambda attempt: attempt.__name__)
def test_a_proof_is_of_one_connection_and_one_address(
    guarded: GuardedSet, attempt: Callable[[GuardedSet, Prover, Prover], int]
) -> None:
    """Even one who has the key of a member, or overheard its proof, cannot use it elsewhere."""
    keys = read_key_file(guarded.local.key_file)
    with guarded.wire() as first, guarded.wire() as second:
        one, two = Prover(guarded, first, keys), Prover(guarded, second, keys)
        assert attempt(guarded, one, two) == AUTHENTICATION_FAILED
        for client in (first, second):
            assert client.command("admin", {"replSetGetRBID": 1})["code"] == UNAUTHORIZED


# --- TLS ---------------------------------------------------------------------------------------------------------


def plain_command(guarded: GuardedSet) -> bool:
    with guarded.plain() as connection:
        connection.sendall(message({"hello": 1}))
        return b"ismaster" not in read_all(connection)


def plain_request(guarded: GuardedSet) -> bool:
    with guarded.plain(http=True) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        return b"HTTP/1.1 200" not in read_all(connection)


def noise(guarded: GuardedSet) -> bool:
    for seed in range(20):
        with guarded.plain(http=seed % 2 == 0) as connection:
            connection.sendall(b"\x16\x03\x01" + random.Random(seed).randbytes(5000))
            connection.shutdown(socket.SHUT_WR)
            read_all(connection)
    return True


def much_noise(guarded: GuardedSet) -> bool:
    with guarded.plain() as connection:
        try:
            for _ in range(64):
                connection.sendall(b"\x16\x03\x03\x40\x00" + bytes(1 << 14))
        except OSError:
            return True
        return read_all(connection)[:1] in (b"", b"\x15")


def old_version(guarded: GuardedSet) -> bool:
    context = ssl.create_default_context(cafile=str(guarded.ca.ca))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    return refuses(guarded, context)


def strangers_certificate(guarded: GuardedSet) -> bool:
    folder = guarded.ca.ca.parent / "stranger"
    folder.mkdir(exist_ok=True)
    return refuses(guarded, showing(guarded, Authority(folder), {}))


def expired_certificate(guarded: GuardedSet) -> bool:
    return refuses(guarded, showing(guarded, guarded.ca, {"expired": True}))


def showing(guarded: GuardedSet, authority: Authority, how: dict[str, bool]) -> ssl.SSLContext:
    """A client that shows a certificate of this authority."""
    files = authority.issue(name="shown", **how)  # type: ignore[arg-type]
    context = ssl.create_default_context(cafile=str(guarded.ca.ca))
    context.load_cert_chain(files.cert, files.key)
    return context


def refuses(guarded: GuardedSet, context: ssl.SSLContext) -> bool:
    """Whether no command is answered. In TLS 1.3 a client learns with its first read that it was refused."""
    with guarded.plain() as plain:
        try:
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as secured:
                secured.sendall(message({"hello": 1}))
                return not secured.recv(100)
        except OSError:
            return True


def right_certificate_but_no_key(guarded: GuardedSet) -> bool:
    """A member's certificate is not enough where there is a key file."""
    with guarded.plain() as plain:
        context = showing(guarded, guarded.ca, {})
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as secured:
            secured.sendall(message({"replSetGetRBID": 1}))
            return b"Unauthorized" in secured.recv(4096)


def leaves_in_the_middle(guarded: GuardedSet) -> bool:
    for _ in range(200):
        with guarded.plain() as connection:
            connection.sendall(b"\x16\x03\x01\x02")
    return True


@pytest.mark.parametrize(
    "attempt",
    [
        plain_command,
        plain_request,
        noise,
        much_noise,
        old_version,
        strangers_certificate,
        expired_certificate,
        right_certificate_but_no_key,
        leaves_in_the_middle,
    ],
    ids=lambda attempt: attempt.__name__,
)
def test_without_the_right_tls_nothing_is_answered(guarded: GuardedSet, attempt: Callable[[GuardedSet], bool]) -> None:
    assert attempt(guarded)


@pytest.mark.parametrize("http", [False, True], ids=["wire", "http"])
def test_who_does_not_end_his_handshake_makes_room_for_others(guarded: GuardedSet, http: bool) -> None:
    """A hundred and fifty connections that say nothing: others are served, and the first of the silent ones end."""
    silent = [guarded.plain(http=http) for _ in range(150)]
    try:
        for _ in range(5):
            guarded.secured(http=http).close()
        assert is_closed(silent[0])
    finally:
        for connection in silent:
            connection.close()


def test_a_member_with_another_ca_is_asked_nothing(guarded: GuardedSet) -> None:
    """Who took a member's address over shows a certificate that the set's CA did not sign."""
    folder = guarded.ca.ca.parent / "impostor"
    folder.mkdir()
    impostor = Authority(folder).issue()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(impostor.cert, impostor.key)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(20)
        host = f"127.0.0.1:{listening.getsockname()[1]}"
        heard: list[bytes] = []
        guarded.root.admin.command({"ping": 1})
        added = {"replSetAddMember": {"host": host, "priority": 0, "votes": 0}}
        config = guarded.root.admin.command({"replSetGetConfig": 1})["config"]
        guarded.root.admin.command(added)
        try:
            for _ in range(3):
                accepted, _ = listening.accept()
                with accepted:
                    accepted.settimeout(5)
                    try:
                        with context.wrap_socket(accepted, server_side=True) as secured:
                            heard.append(secured.recv(1000))
                    except OSError:
                        heard.append(b"")
        finally:
            guarded.root.admin.command({"replSetRemoveMember": host})
    assert heard == [b"", b"", b""]
    left = guarded.root.admin.command({"replSetGetConfig": 1})["config"]
    assert [row["host"] for row in left["members"]] == [row["host"] for row in config["members"]]


# --- the wire port -----------------------------------------------------------------------------------------------


def nested(levels: int) -> bytes:
    """A document with so many levels."""
    body = b"\x05\0\0\0\0"
    for _ in range(levels):
        body = struct.pack("<i", len(body) + 8) + b"\x03a\0" + body + b"\0"
    return body


def section(document: bytes) -> bytes:
    return struct.pack("<i", 0) + b"\0" + document


PING = encode({"ping": 1, "$db": "admin"})
COMPRESSED = struct.pack("<iiB", 2013, 1 << 30, 2) + zlib.compress(bytes(1 << 24))
WIRE_BOMBS: dict[str, bytes] = {
    "two-gigabytes-announced": frame(b"", length=(1 << 31) - 1),
    "a-length-below-its-head": frame(b"", length=3),
    "a-length-below-nothing": frame(b"", length=-1),
    "an-unknown-opcode": frame(b"xxxx", code=99),
    "a-bomb-of-zeros-compressed": frame(COMPRESSED, code=2012),
    "two-bodies": frame(section(PING) + b"\0" + PING),
    "no-body": frame(struct.pack("<i", 0)),
    "an-unknown-section": frame(struct.pack("<i", 0) + b"\7" + PING),
    "a-required-flag-that-nobody-knows": frame(struct.pack("<i", 1 << 5) + b"\0" + PING),
    "a-wrong-checksum": frame(struct.pack("<i", 1) + b"\0" + PING + b"\1\2\3\4"),
    "ten-thousand-levels": frame(section(nested(10_000))),
    "a-document-longer-than-its-message": frame(section(struct.pack("<i", 1 << 20) + PING[4:])),
    "an-old-query": frame(struct.pack("<i", 0) + b"shop.orders\0" + struct.pack("<ii", 0, 0) + PING, code=2004),
    "an-old-insert": frame(struct.pack("<i", 0) + b"shop.orders\0" + PING, code=2002),
    "an-http-request": b"POST /v1/command/admin HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n{}",
}


@pytest.mark.parametrize("data", WIRE_BOMBS.values(), ids=WIRE_BOMBS)
def test_a_message_that_is_none_is_refused_or_ends_its_connection(guarded: GuardedSet, data: bytes) -> None:
    with guarded.secured() as connection:
        connection.settimeout(10)
        connection.sendall(data + message({"endSessions": []}))
        answer = connection.recv(1 << 16)
    assert b"ok\0\0\0\0\0\0\0\xf0\x3f" not in answer[:200], "an error, or the end of the connection"


def test_large_messages_that_are_never_finished_take_little_and_end(guarded: GuardedSet) -> None:
    """Sixty beginnings of 48 MB each are not kept ready in memory."""
    before = guarded.used_bytes()
    connections = [guarded.secured() for _ in range(60)]
    try:
        for connection in connections:
            connection.sendall(frame(bytes(1 << 14), length=48_000_000))
        assert guarded.hello(guarded.primary)["ok"] == 1.0
        assert all(now < size + (160 << 20) for now, size in zip(guarded.used_bytes(), before, strict=True))
    finally:
        for connection in connections:
            connection.close()


def test_idle_connections_keep_nobody_out(guarded: GuardedSet) -> None:
    connections = []
    try:
        for _ in range(150):
            connections.append(guarded.secured())
        with guarded.wire() as client:
            assert client.command("admin", {"ping": 1})["ok"] == 1.0
    finally:
        for connection in connections:
            connection.close()


# --- HTTP: bombs -------------------------------------------------------------------------------------------------


def head(*lines: str, request: str = "GET /v1/replset/status HTTP/1.1") -> bytes:
    return "\r\n".join([request, "host: 127.0.0.1", *lines, "", ""]).encode("latin-1")


POST = "POST /v1/action/find HTTP/1.1"
FIND = "content-type: application/json"
HTTP_BOMBS: dict[str, tuple[bytes, set[int]]] = {
    "a-header-of-a-megabyte": (head("x: " + "y" * (1 << 20)), {431}),
    "two-hundred-headers": (head(*(f"x{n}: y" for n in range(200))), {431}),
    "a-path-of-a-megabyte": (head(request=f"GET /{'a' * (1 << 20)} HTTP/1.1"), {431}),
    "two-lengths": (head("content-length: 2", "content-length: 3", FIND, request=POST) + b"{}", {400}),
    "a-length-and-chunks": (
        head("content-length: 2", "transfer-encoding: chunked", FIND, request=POST)
        + b"0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        {400, 401},
    ),
    "a-length-that-is-no-number": (head("content-length: many", request=POST), {400}),
    "a-length-below-nothing": (head("content-length: -1", request=POST), {400}),
    "a-length-of-18-digits": (head(f"content-length: {10**18}", FIND, request=POST) + b"{}", {401, 413}),
    "a-chunk-of-17-digits": (
        head("transfer-encoding: chunked", FIND, request=POST) + b"fffffffffffffffff\r\n{}",
        {400, 401},
    ),
    "a-header-with-a-line-in-it": (head("x: a\rb: c"), {400}),
    "http-2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {0, 400}),
    "no-http": (b"\0" * 4096, {0, 400}),
    "a-web-socket": (head("connection: Upgrade", "upgrade: websocket", "sec-websocket-version: 13"), {400, 401}),
}


@pytest.mark.parametrize(("request_bytes", "expected"), HTTP_BOMBS.values(), ids=HTTP_BOMBS)
def test_a_request_that_is_a_bomb_is_refused(guarded: GuardedSet, request_bytes: bytes, expected: set[int]) -> None:
    closing = request_bytes.replace(b"host: 127.0.0.1\r\n", b"host: 127.0.0.1\r\nconnection: close\r\n")
    assert guarded.ask(closing)[0] in expected


def test_bodies_without_a_login_are_not_kept(guarded: GuardedSet) -> None:
    """Bodies of sixty megabytes each, to a path that asks for a login."""
    for _ in range(4):
        status, _ = guarded.http("POST", "/v1/action/insertMany", bytes(60_000_000), JSON)
        assert status in (0, 401, 413), "an answer, or the end of the connection before all was sent"


def test_slow_requests_end(guarded: GuardedSet) -> None:
    """Half a head, no head, and half a handshake keep nobody out, and end by themselves."""
    beginnings = (b"GET /health HTT", b"GET /v1/replset/status\r\n", b"")
    slow = [(guarded.secured(http=True), beginning) for beginning in beginnings for _ in range(15)]
    silent = [guarded.plain(http=http) for http in (False, True) for _ in range(10)]
    try:
        for connection, beginning in slow:
            connection.settimeout(HTTP_DEADLINE_S)
            connection.sendall(beginning)
        assert guarded.http("GET", "/health")[0] == 200
        for connection, beginning in slow:
            answer = read_all(connection)
            assert b" 408 " in answer if beginning else answer == b""
        assert all(is_closed(connection) for connection in silent)
    finally:
        for each in (*silent, *(connection for connection, _ in slow)):
            each.close()


# --- HTTP: web pages ---------------------------------------------------------------------------------------------

DROP = b'{"dropDatabase": 1}'
PAGES: dict[str, tuple[str, str, dict[str, str], int]] = {
    "another-sites-page": ("POST", "/v1/command/shop", {**JSON, "origin": "https://x.example"}, 403),
    "a-page-of-another-port": ("POST", "/v1/command/shop", {**JSON, "origin": "https://127.0.0.1:8080"}, 403),
    "a-sandboxed-page": ("POST", "/v1/command/shop", {**JSON, "origin": "null"}, 403),
    "a-page-that-asks-before": ("OPTIONS", "/v1/command/shop", {"origin": "https://x.example"}, 403),
    "a-rebound-name": ("POST", "/v1/command/shop", {**JSON, "host": "x.example:28017"}, 403),
    "a-rebound-name-that-reads": ("GET", "/v1/replset/oplog", {"host": "x.example"}, 403),
    "a-name-with-a-user": ("GET", "/v1/replset/status", {"host": "127.0.0.1@x.example"}, 403),
    "an-empty-name": ("GET", "/v1/replset/status", {"host": ""}, 403),
    "a-form": ("POST", "/v1/replset/stepDown", {"content-type": "application/x-www-form-urlencoded"}, 401),
    "a-page-that-tries-to-log-in": ("POST", "/v1/login", {"content-type": "text/plain"}, 415),
    "a-page-that-logs-in-from-elsewhere": ("POST", "/v1/login", {**JSON, "origin": "https://x.example"}, 403),
}


@pytest.mark.parametrize(("method", "path", "headers", "expected"), PAGES.values(), ids=PAGES)
def test_a_page_in_the_operators_browser_does_nothing(
    guarded: GuardedSet, method: str, path: str, headers: dict[str, str], expected: int
) -> None:
    status, answer = guarded.http(method, path, DROP if method == "POST" else b"", headers)
    assert status == expected, answer[:300]
    assert b"access-control-allow" not in answer.lower()


# --- HTTP: paths, and what asks for a login ----------------------------------------------------------------------

ROLLBACK = "/v1/replset/rollbacks/rollback-2026-01-01T00-00-00.0"
PATHS = (
    f"{ROLLBACK}/../../../../etc/passwd",
    f"{ROLLBACK}/..%2f..%2f..%2fetc%2fpasswd",
    f"{ROLLBACK}/%2e%2e/%2e%2e/member.db",
    f"{ROLLBACK}/..%252f..%252fmember.db",
    f"{ROLLBACK}/..%5c..%5cmember.db",
    f"{ROLLBACK}/member.db%00.bson",
    "/v1/replset/rollbacks/..%2f../member.db",
    "/v1/replset/rollbacks//etc/passwd/x",
    "/docs/..%2f..%2f..%2fetc%2fpasswd",
    "/page/../../../../etc/passwd",
    "/page/..%2f..%2fapp.py",
    "/page/vendor/%2e%2e/%2e%2e/app.py",
    "//etc/passwd",
    "/%00",
)


@pytest.mark.parametrize("path", PATHS)
def test_no_path_leads_to_a_file_that_is_not_served(guarded: GuardedSet, path: str) -> None:
    status, answer = guarded.http("GET", path)
    assert status in (400, 401, 404), answer[:300]
    assert not any(secret in answer for secret in (b"root:x", b"SQLite format", b"import "))


NEED_A_LOGIN = (
    ("GET", "/v1/replset/status"),
    ("GET", "/v1/replset/config"),
    ("GET", "/v1/replset/oplog"),
    ("GET", "/v1/replset/rollbacks"),
    ("GET", "/v1/replset/elections"),
    ("GET", "/metrics"),
    ("POST", "/v1/command/admin"),
    ("POST", "/v1/action/find"),
    ("POST", "/v1/action/insertOne"),
    ("POST", "/v1/replset/stepDown"),
    ("POST", "/v1/replset/reconfig"),
    ("DELETE", "/v1/replset/members/127.0.0.1:9"),
)


@pytest.mark.parametrize(("method", "path"), NEED_A_LOGIN, ids=lambda value: value.strip("/").replace("/", "-"))
def test_over_http_nothing_but_health_is_told_to_a_stranger(guarded: GuardedSet, method: str, path: str) -> None:
    status, answer = guarded.http(method, path, b"{}" if method == "POST" else b"", JSON)
    assert status == 401, answer[:300]
    assert guarded.local.name.encode() not in answer.split(b"\r\n\r\n", 1)[1]


def test_without_a_login_no_command_runs_but_those_that_a_driver_begins_with(guarded: GuardedSet) -> None:
    """Every command of the table, on each member."""
    from replset.auth.roles import Action
    from replset.commands.table import COMMANDS

    open_to_all = {name for name, command in COMMANDS.items() if command.needs is Action.OPEN}
    for member in guarded.local.members:
        with guarded.wire(member) as stranger:
            for name, command in COMMANDS.items():
                if name not in open_to_all and not command.private:
                    reply = stranger.command("admin", {name: 1})
                    assert (reply["ok"], reply["code"]) == (0.0, UNAUTHORIZED), (name, reply)
    assert open_to_all == {
        *("hello", "ping", "buildInfo", "whatsmyuri", "connectionStatus", "saslStart", "saslContinue", "logout"),
        *("replSetProve", "testDeprecation", "testVersion2", "testVersions1And2"),
    }, "what a stranger may run"


def test_a_wrong_port_says_so(guarded: GuardedSet) -> None:
    """The wire protocol, with TLS, on the HTTP port."""
    with (
        WireClient(f"127.0.0.1:{guarded.primary.port + 1000}") as client,
        pytest.raises(HostUnreachableError, match=r"another protocol|closed"),
    ):
        client.command("admin", {"ping": 1})

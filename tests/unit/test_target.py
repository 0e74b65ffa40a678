"""A set named by a connection string: who logs in and how, TLS as the string says, and servers of every age."""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from replset.bson import Binary, decode, encode
from replset.client import PASSWORD_VARIABLE, USER_VARIABLE
from replset.errors import AuthenticationFailedError, BadValueError, HostUnreachableError
from replset.features.recovery import live_set
from replset.features.recovery.live_set import LiveSet
from replset.target import Target
from replset.wire.framing import FrameReader, encode_reply
from tests.certificates import Authority

SALT, COUNT = b"salt" * 4, 4096
PASSWORDS = {"SCRAM-SHA-1": hashlib.md5(b"ann:mongo:p@ss").hexdigest(), "SCRAM-SHA-256": "p@ss"}


class Scram:
    """The server's end, for a user `ann` whose password is `p@ss`."""

    def __init__(self, mechanism: str, first: str) -> None:
        self._digest = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
        self._bare = first.removeprefix("n,,")
        assert self._bare.startswith("n=ann,r=")
        self._first = f"r={self._bare.split('r=')[1]}server,s={base64.b64encode(SALT).decode()},i={COUNT}"
        self._salted = hashlib.pbkdf2_hmac(self._digest, PASSWORDS[mechanism].encode(), SALT, COUNT)

    def first(self) -> str:
        return self._first

    def final(self, message: str) -> str | None:
        rest, _, proof = message.rpartition(",p=")
        said = ",".join((self._bare, self._first, rest)).encode()
        key = hmac.digest(self._salted, b"Client Key", self._digest)
        signature = hmac.digest(hashlib.new(self._digest, key).digest(), said, self._digest)
        if bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True)) != key:
            return None
        server = hmac.digest(self._salted, b"Server Key", self._digest)
        return f"v={base64.b64encode(hmac.digest(server, said, self._digest)).decode()}"


class Mongod:
    """A server with one user. mechanisms: those that the user has. is_old: before 4.4.2."""

    def __init__(self, mechanisms: list[str], *, is_old: bool = False, tls: ssl.SSLContext | None = None) -> None:
        self.mechanisms, self.is_old, self._tls = mechanisms, is_old, tls
        self.asked: list[dict[str, Any]] = []
        self.primary, self.more = True, dict[str, Any]()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                plain, _ = self._listening.accept()
            except OSError:
                return
            try:
                connection = plain if self._tls is None else self._tls.wrap_socket(plain, server_side=True)
            except OSError:
                plain.close()
                continue
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        reader = FrameReader()
        scram: list[Scram] = []
        with connection:
            while data := connection.recv(1 << 16):
                for message in reader.feed(data):
                    command = decode(message.body.raw)
                    self.asked.append(command)
                    try:
                        answer = self._answer(command, scram)
                    except ConnectionError:
                        return
                    connection.sendall(encode_reply(9, message, encode(answer)))

    def _answer(self, command: dict[str, Any], scram: list[Scram]) -> dict[str, Any]:
        payload = bytes(command.get("payload", b"")).decode()
        match next(iter(command)):
            case "hello" if self.is_old:
                return {"ok": 0.0, "code": 59, "errmsg": "no such command: 'hello'"}
            case "hello" | "isMaster" as name:
                role = {"isWritablePrimary" if name == "hello" else "ismaster": self.primary}
                known = command.get("saslSupportedMechs") == "users.ann"
                offered = {"saslSupportedMechs": self.mechanisms} if known else {}
                return {"ok": 1.0, "setName": "rs0", "hosts": ["elsewhere:1"], **role, **offered, **self.more}
            case "saslStart":
                if command["mechanism"] not in self.mechanisms or command["$db"] != "users":
                    return {"ok": 0.0, "code": 18, "errmsg": "Authentication failed."}
                scram.append(Scram(command["mechanism"], payload))
                return {"ok": 1.0, "conversationId": 1, "done": False, "payload": Binary(scram[-1].first().encode())}
            case "saslContinue" if payload:
                final = scram[-1].final(payload)
                if final is None:
                    return {"ok": 0.0, "code": 18, "errmsg": "Authentication failed."}
                return {"ok": 1.0, "conversationId": 1, "done": not self.is_old, "payload": Binary(final.encode())}
        return {"ok": 1.0, "done": True}

    def names(self) -> list[str]:
        return [next(iter(command)) for command in self.asked]

    def close(self) -> None:
        self._listening.close()


@contextmanager
def mongod(*mechanisms: str, is_old: bool = False, tls: ssl.SSLContext | None = None) -> Iterator[Mongod]:
    found = Mongod(list(mechanisms), is_old=is_old, tls=tls)
    try:
        yield found
    finally:
        found.close()


def connect(text: str) -> None:
    target = Target(text)
    target.connect(target.hosts[0]).close()


@pytest.mark.parametrize(
    ("has", "option", "used"),
    [
        (["SCRAM-SHA-1", "SCRAM-SHA-256"], "", "SCRAM-SHA-256"),
        (["SCRAM-SHA-1"], "", "SCRAM-SHA-1"),
        (["SCRAM-SHA-1", "SCRAM-SHA-256"], "&authMechanism=SCRAM-SHA-1", "SCRAM-SHA-1"),
    ],
)
def test_the_mechanism_is_negotiated_unless_it_is_named(has: list[str], option: str, used: str) -> None:
    with mongod(*has) as server:
        connect(f"mongodb://ann:p%40ss@{server.host}/?authSource=users{option}&appName=tool")
        assert server.names() == ["hello", "saslStart", "saslContinue"]
        hello, start, _ = server.asked
    assert start["mechanism"] == used
    assert hello["client"]["application"] == {"name": "tool"}
    assert {"driver", "os"} <= hello["client"].keys()


def test_a_server_before_hello_and_with_an_empty_message_more() -> None:
    with mongod("SCRAM-SHA-1", is_old=True) as server:
        text = f"mongodb://ann:p%40ss@{server.host}/users?directConnection=true"
        with LiveSet(text, "rs0") as live:
            assert live.primary == server.host
        login = ["hello", "isMaster", "saslStart", "saslContinue", "saslContinue"]
        assert server.names() == [*login, *login, "hello", "isMaster"]


def test_a_wrong_password_and_one_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with mongod("SCRAM-SHA-1", "SCRAM-SHA-256") as server:
        with pytest.raises(AuthenticationFailedError, match="ann of users cannot log in: Authentication failed"):
            connect(f"mongodb://ann:wrong@{server.host}/users")
        monkeypatch.delenv(PASSWORD_VARIABLE, raising=False)
        with pytest.raises(BadValueError, match="user ann: neither REPLSET_PASSWORD nor"):
            connect(f"mongodb://ann@{server.host}/users")
        monkeypatch.setenv(PASSWORD_VARIABLE, "p@ss")
        connect(f"mongodb://ann@{server.host}/users")
        monkeypatch.setenv(USER_VARIABLE, "users/ann")
        server.asked.clear()
        connect(f"mongodb://{server.host}")
        assert server.names() == ["hello", "saslStart", "saslContinue"]


def test_tls_as_the_string_says(tmp_path: Path) -> None:
    ca, other = Authority(tmp_path), Authority(tmp_path, "other")
    right, wrong_name = ca.issue(), ca.issue("elsewhere", name="elsewhere")
    both = tmp_path / "client.pem"
    both.write_bytes(right.cert.read_bytes() + right.key.read_bytes())

    def context(files: Any, *, asks: bool = False) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.load_cert_chain(files.cert, files.key)
        if asks:
            made.load_verify_locations(ca.ca)
            made.verify_mode = ssl.CERT_REQUIRED
            made.maximum_version = ssl.TLSVersion.TLSv1_2  # with 1.3 a client learns of it later
        return made

    for files, asks, options, is_accepted in (
        (right, False, f"tlsCAFile={ca.ca}", True),
        (right, False, f"tlsCAFile={other.ca}", False),
        (right, False, "tls=true", False),
        (right, False, "tlsInsecure=true", True),
        (right, False, "tlsAllowInvalidCertificates=true", True),
        (right, False, f"tlsAllowInvalidHostnames=true&tlsCAFile={other.ca}", False),
        (wrong_name, False, f"tlsCAFile={ca.ca}", False),
        (wrong_name, False, f"tlsCAFile={ca.ca}&tlsAllowInvalidHostnames=true", True),
        (right, True, f"tlsCAFile={ca.ca}", False),
        (right, True, f"tlsCAFile={ca.ca}&tlsCertificateKeyFile={both}", True),
    ):
        with mongod(tls=context(files, asks=asks)) as server:
            text = f"mongodb://{server.host}/?{options}"
            if is_accepted:
                connect(text)
            else:
                with pytest.raises(HostUnreachableError, match=r"TLS|closed|reset|reached"):
                    connect(text)
    for option in ("tlsCAFile", "tlsCertificateKeyFile"):
        with pytest.raises(BadValueError, match=r"nowhere\.pem cannot be read"):
            Target(f"mongodb://a/?{option}=/nowhere.pem")


def test_one_host_that_answers_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_set, "PAUSE_S", 0)
    with mongod() as server, socket.create_server(("127.0.0.1", 0)) as nobody:
        closed = f"127.0.0.1:{nobody.getsockname()[1]}"
        nobody.close()
        with LiveSet(Target(f"mongodb://{closed},{server.host}/?replicaSet=rs0")) as live:
            assert live.primary == server.host
        with pytest.raises(HostUnreachableError, match=f"{closed} cannot be reached"):
            LiveSet(f"mongodb://{closed}")
        with pytest.raises(BadValueError, match="is a member of rs0, the connection string says rs1"):
            LiveSet(f"mongodb://{server.host}/?replicaSet=rs1")
        server.more = {"msg": "isdbgrid"}
        with pytest.raises(BadValueError, match="is a mongos: give the members of the shard"):
            LiveSet(f"mongodb://{server.host}")
        server.more = {}
        server.primary = False
        with pytest.raises(BadValueError, match="no primary, and directConnection=true"):
            LiveSet(f"mongodb://{server.host}/?directConnection=true")


def test_srv_needs_dnspython(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dns", None)
    with pytest.raises(BadValueError, match=r"mongodb\+srv:// needs dnspython: pip install '.\[srv\]'"):
        Target("mongodb+srv://db.example.com")


def test_the_records_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = pytest.importorskip("dns.resolver")
    import dns.rdata
    import dns.rdataclass
    import dns.rdatatype

    records = {
        ("_mongodb._tcp.db.example.com", "SRV"): ["0 0 27018 a.example.com.", "0 0 27017 b.example.com."],
        ("db.example.com", "TXT"): ['"replicaSet=" "rs0"'],
        ("_mongodb._tcp.bare.example.com", "SRV"): ["0 0 27017 a.example.com."],
    }

    def answer(name: str, kind: str, *, lifetime: float) -> list[Any]:
        if (name, kind) not in records:
            raise resolver.NXDOMAIN
        rows = records[name, kind]
        return [dns.rdata.from_text(dns.rdataclass.IN, dns.rdatatype.from_text(kind), row) for row in rows]

    monkeypatch.setattr(resolver, "resolve", answer)
    found = Target("mongodb+srv://db.example.com")
    assert (found.hosts, found.set_name) == (("a.example.com:27018", "b.example.com:27017"), "rs0")
    assert Target("mongodb+srv://bare.example.com").set_name is None
    with pytest.raises(BadValueError, match=r"gone.example.com cannot be looked up"):
        Target("mongodb+srv://gone.example.com")

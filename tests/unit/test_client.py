"""The small blocking clients: answers, errors as errors, and trouble with the connection in one line."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from replset.bson import encode
from replset.client import HttpAnswerError, HttpClient, WireClient
from replset.errors import BadValueError, HostUnreachableError
from replset.wire.framing import FrameReader, WireMessage, encode_reply

Answer = Callable[[WireMessage], bytes]


@contextmanager
def wire_server(answer: Answer) -> Iterator[str]:
    """Serves one connection; `answer` gives the bytes to send for a message, none closes the connection."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listening.accept()
        reader = FrameReader()
        with connection:
            while data := connection.recv(1 << 16):
                for message in reader.feed(data):
                    reply = answer(message)
                    if not reply:
                        return
                    connection.sendall(reply)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield "127.0.0.1:%d" % listening.getsockname()[1]  # noqa: UP031 - a port
    finally:
        listening.close()
        thread.join(5)


def test_a_command_and_its_reply() -> None:
    def echo(message: WireMessage) -> bytes:
        return encode_reply(9, message, encode({"ok": 0.0, "db": message.body.get("$db"), "n": message.body.get("n")}))

    with wire_server(echo) as host, WireClient(host, timeout_s=5) as client:
        for n in range(3):
            assert client.command("shop", {"count": "orders", "n": n}) == {"ok": 0.0, "db": "shop", "n": n}


def test_an_answer_to_something_else_is_passed_over() -> None:
    def two(message: WireMessage) -> bytes:
        other = WireMessage(message.request_id + 1000, 0, message.body)
        return encode_reply(8, other, encode({"n": 1})) + encode_reply(9, message, encode({"n": 2}))

    with wire_server(two) as host, WireClient(host, timeout_s=5) as client:
        assert client.command("admin", {"ping": 1}) == {"n": 2}


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        pytest.param(lambda _: b"", "closed the connection", id="closed"),
        pytest.param(lambda _: struct.pack("<iiii", 5, 1, 1, 2013), "uses another protocol", id="no-protocol"),
        pytest.param(lambda _: b"\1", "did not answer in time", id="half-an-answer"),
    ],
)
def test_trouble_names_the_host(answer: Answer, text: str) -> None:
    with wire_server(answer) as host, WireClient(host, timeout_s=0.3) as client:
        with pytest.raises(HostUnreachableError, match=text) as caught:
            client.command("admin", {"ping": 1})
        assert host in caught.value.message
        assert "\n" not in caught.value.message


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def test_no_server_listens() -> None:
    port = free_port()
    with pytest.raises(HostUnreachableError, match=f"127.0.0.1:{port} cannot be reached"):
        WireClient(f"127.0.0.1:{port}", timeout_s=2)
    for host in (f"127.0.0.1:{port}", "a..b:28017"):  # the second is a name that no machine can have
        with pytest.raises(HostUnreachableError, match="cannot be reached"):
            HttpClient(f"http://{host}", timeout_s=2).get("/health")


@pytest.mark.parametrize(
    ("client", "address", "form"),
    [
        *(
            (WireClient, host, "HOST:PORT")
            for host in ("", ":27017", "localhost:http", "localhost:", "127.0.0.1:99999")
        ),
        *((WireClient, host, "HOST:PORT") for host in ("a..b:27017", "x" * 300)),
        *((HttpClient, url, "http://HOST:PORT") for url in ("ftp://x", "http://", "127.0.0.1:99999", "h:x")),
        (HttpClient, "http://[::1", "http://HOST:PORT"),
    ],
)
def test_what_is_no_address(client: Callable[[str], object], address: str, form: str) -> None:
    with pytest.raises(BadValueError, match=form):
        client(address)


# --- HTTP -------------------------------------------------------------------------------------------------------


@pytest.fixture
def asked() -> list[tuple[str, str, Any]]:
    return []


@pytest.fixture
def http(asked: list[tuple[str, str, Any]]) -> Iterator[HttpClient]:
    """A server that answers each path /STATUS?TEXT with that status and body."""

    class Handler(BaseHTTPRequestHandler):
        def handle_one(self) -> None:
            size = int(self.headers.get("content-length", 0))
            body = json.loads(self.rfile.read(size)) if size else None
            asked.append((self.command, self.path, body))
            status, _, text = self.path[1:].partition("?")
            self.send_response(int(status))
            if status == "307":
                self.send_header("location", "http://other:1/x")
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST = do_DELETE = handle_one

        def log_message(self, *_: object) -> None:
            return None

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield HttpClient(f"127.0.0.1:{server.server_port}", timeout_s=5)
    server.shutdown()
    server.server_close()
    thread.join(5)


def test_methods_and_bodies(http: HttpClient, asked: list[tuple[str, str, Any]]) -> None:
    assert http.get('/200?{"a":{"$oid":"x"}}') == {"a": {"$oid": "x"}}, "answers are plain JSON"
    assert http.post('/201?{"b":1}', {"c": 2}) == {"b": 1}
    assert [(method, body) for method, _, body in asked] == [("GET", None), ("POST", {"c": 2})]


def test_an_error_is_raised_with_the_servers_words(http: HttpClient) -> None:
    with pytest.raises(HttpAnswerError, match="504: no") as caught:
        http.post('/504?{"ok":0,"code":64,"errmsg":"no","applied":true}', {})
    assert (caught.value.status, caught.value.code) == (504, 64)
    for path, text in (("/500?<html>", "500: <html>"), ("/404?[1]", "404: not a document")):
        with pytest.raises(HttpAnswerError, match=text):
            http.get(path)


def test_a_redirection_is_not_followed(http: HttpClient) -> None:
    with pytest.raises(HttpAnswerError, match="http://other:1/x") as caught:
        http.post("/307?", {})
    assert caught.value.status == 307

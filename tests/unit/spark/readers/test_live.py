"""The reader of a live member: what happens to the connection, and between two pages."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from threading import Thread

import pytest

from replset.bson import encode
from spark.oplog import EVERYTHING, OplogError, OplogRolledBackError, OplogTrimmedError, Span
from spark.readers import live
from spark.readers.live import LiveOplog
from tests.spark.kit import T0
from tests.unit.spark.readers.conftest import StandIn, history, rows_of


def on_page(number: int, act: Callable[[StandIn], object]) -> Callable[[StandIn, int], None]:
    return lambda member, page: act(member) if page == number else None


def test_a_head_that_moves_away(member: StandIn) -> None:
    pinned, rows = member.oplog.pin(), member.rows
    member.before_page = on_page(member.pages + 3, lambda member: member.trim(rows[50].ts))
    for _ in range(2):
        with pytest.raises(OplogTrimmedError, match=rf"m1: .* up to {T0 + 5}:1 were trimmed away"):
            rows_of(pinned)
    assert len(rows_of(pinned, Span(rows[51].ts, EVERYTHING.end_ts))) == len(rows_of(member.oplog)) == 49


@pytest.mark.parametrize(("page", "is_pinned"), [(1, True), (2, True), (5, True), (3, False)])
def test_a_rollback_in_between(member: StandIn, page: int, is_pinned: bool) -> None:
    oplog = member.oplog.pin() if is_pinned else member.oplog
    others_from = 40 if is_pinned else 10  # without a pin it is noticed where pages do not follow
    member.before_page = on_page(
        member.pages + page, lambda member: setattr(member, "rows", history(110, others_from=others_from))
    )
    with pytest.raises(OplogRolledBackError, match=r"m1: its entry .* the member rolled back"):
        rows_of(oplog)


def error_text(oplog: LiveOplog) -> str:
    with pytest.raises(OplogError) as caught:
        rows_of(oplog)
    assert caught.value.name == "m1"
    assert "\n" not in caught.value.reason
    return caught.value.reason


def test_a_member_that_dies_in_the_middle(member: StandIn) -> None:
    def die(_member: StandIn) -> None:
        raise ConnectionAbortedError

    member.before_page = on_page(3, die)
    assert error_text(member.oplog) == "the member went away while it was read"
    member.broken_answer = b"\x10"  # and then nothing
    assert "the member went away while it was read" in error_text(member.oplog)


def test_a_member_that_stops_in_the_middle_of_a_page(member: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has sent the beginning and then hangs, its connection open."""
    monkeypatch.setattr(live, "_TIMEOUT_S", 0.2)
    member.before_page = on_page(2, lambda member: setattr(member, "stalls", True))
    assert error_text(member.oplog) == "the member did not answer within 0.2 s"
    member.done.set()


def test_what_is_no_member(member: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = json.dumps({"ok": 0, "code": 13436, "errmsg": "initial sync goes on"}).encode()
    for status, data, reason in (
        (404, b"<html>", "what answers there (404 Not Found) is no member's HTTP API"),
        (200, b"<html>", "answers what is no oplog"),
        (200, encode({"optime": "1:2:3"}), "answers what is no oplog"),
        (503, refusal, "the member answers 503: initial sync goes on"),
    ):
        monkeypatch.setattr(member, "answer", lambda *_, found=(status, {}, data): found)
        assert reason in error_text(member.oplog)
    wrong_type = b'{"first": 5, "last": 6, "bytes": '
    for data in (b"[]", b"5", b"{}", wrong_type + b"null}", wrong_type + b"7}"):
        monkeypatch.setattr(member, "answer", lambda *_, data=data: (200, {}, data))
        with pytest.raises(OplogError, match=r"m1: http://127.0.0.1:[0-9]+ answers what is no oplog: "):
            member.oplog.bounds()


def test_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(live, "_TIMEOUT_S", 0.2)
        assert "did not answer within" in error_text(LiveOplog("m1", url))
    assert error_text(LiveOplog("m1", url)) == f"nobody answers at {url}"


def test_no_such_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert error_text(LiveOplog("m1", "http://m7:1")).startswith("there is no host m7: ")


def test_another_protocol() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def talk() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"\x10\0\0\0 something else\r\n")

        thread = Thread(target=talk)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert error_text(LiveOplog("m1", url)) == f"{url} does not speak HTTP"
        thread.join()

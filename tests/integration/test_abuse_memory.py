"""What one client may make a real member hold: heads without end, half-sent requests, sorted cursors left open."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from pathlib import Path

from replset.bson import encode
from replset.cli.local_set import LocalMember, wait_until
from replset.client import WireClient
from replset.errors import HostUnreachableError
from tests.integration.conftest import MakeSet
from tests.integration.talk import run

MOST_MB = 450
"""Less than what any of these made a member hold; about twice what one holds after ordinary load."""


def held_mb(member: LocalMember) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{member.pid}/status").read_text())
    assert found
    return int(found[1]) >> 10


def open_files(member: LocalMember) -> int:
    return len(list(Path(f"/proc/{member.pid}/fd").iterdir()))


def http_port(member: LocalMember) -> int:
    return member.port + 1000


def send_head(member: LocalMember, megabytes: int) -> None:
    """A header that goes on and on."""
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", http_port(member)), timeout=20) as stranger,
    ):
        stranger.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: ")
        for _ in range(megabytes):
            stranger.sendall(b"y" * (1 << 20))


def test_heads_without_end_are_cut_off(make_set: MakeSet) -> None:
    member = make_set(members=1).wait_for_primary()
    strangers = [threading.Thread(target=send_head, args=(member, 100)) for _ in range(6)]
    for stranger in strangers:
        stranger.start()
    for stranger in strangers:
        stranger.join(timeout=60)
        assert run(member, {"ping": 1}, "admin")["ok"] == 1.0
    assert held_mb(member) < MOST_MB


def test_requests_that_are_not_sent_to_their_end_are_ended(make_set: MakeSet) -> None:
    member = make_set(members=1).wait_for_primary()
    with contextlib.ExitStack() as opened:
        halves = [
            opened.enter_context(socket.create_connection(("127.0.0.1", http_port(member)), timeout=40))
            for _ in range(300)
        ]
        for half in halves:
            half.sendall(b"POST /v1/action/find HTTP/1.1\r\nhost: localhost\r\ncontent-le")
        for half in halves:
            assert half.recv(1 << 16).startswith(b"HTTP/1.1 408"), "its time is over"
    assert run(member, {"ping": 1}, "admin")["ok"] == 1.0


def test_requests_sent_ahead_by_who_reads_nothing_hold_little(make_set: MakeSet) -> None:
    member = make_set(members=1).wait_for_primary()
    requests = b"GET / HTTP/1.1\r\nhost:\r\n\r\n" * 40_000
    with contextlib.ExitStack() as opened:
        for _ in range(60):
            stranger = opened.enter_context(socket.create_connection(("127.0.0.1", http_port(member)), timeout=40))
            stranger.setblocking(False)
            with contextlib.suppress(OSError):
                stranger.send(requests)
        for _ in range(20):
            assert run(member, {"ping": 1}, "admin")["ok"] == 1.0
        assert held_mb(member) < MOST_MB // 2


def test_exports_that_nobody_reads_hold_little_and_end(make_set: MakeSet) -> None:
    member = make_set(members=1).wait_for_primary()
    with WireClient(member.host, timeout_s=60) as client:
        for batch in range(10):
            documents = [encode({"_id": batch * 2000 + number, "x": "x" * 2_000}) for number in range(2_000)]
            assert client.ask("shop", {"insert": "orders"}, ("documents", documents)).get("ok") == 1.0
    body = b'{"database": "shop", "collection": "orders"}'
    head = (
        b"POST /v1/action/find HTTP/1.1\r\nhost: localhost\r\naccept: application/x-ndjson\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    )
    before = open_files(member)
    with contextlib.ExitStack() as opened:
        for _ in range(100):
            reader = opened.enter_context(socket.socket())
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect(("127.0.0.1", http_port(member)))
            reader.sendall(head + body)
        wait_until(lambda: open_files(member) > before + 50, 60, "the exports to begin")

        def all_ended() -> bool:
            assert held_mb(member) < MOST_MB // 2
            if open_files(member) > before + 50:
                raise HostUnreachableError("exports are open")
            return True

        wait_until(all_ended, 180, "the exports to end")


def test_sorted_cursors_left_open_hold_a_bounded_part_of_the_memory(make_set: MakeSet) -> None:
    member = make_set(members=1).wait_for_primary()
    with WireClient(member.host, timeout_s=60) as client:
        for batch in range(8):
            documents = [encode({"_id": batch * 1000 + number, "x": "x" * 2_000}) for number in range(1_000)]
            assert client.ask("shop", {"insert": "orders"}, ("documents", documents)).get("ok") == 1.0
    sort = {"find": "orders", "sort": {"x": 1, "_id": -1}, "batchSize": 1}
    with contextlib.ExitStack() as opened:
        clients = [opened.enter_context(WireClient(member.host, timeout_s=60)) for _ in range(4)]
        replies = [client.command("shop", sort) for _ in range(8) for client in clients]
        done = [reply for reply in replies if reply["ok"] == 1.0]
        assert 1 <= len(done) < len(replies)
        assert {reply["code"] for reply in replies if reply not in done} == {462}
        assert held_mb(member) < MOST_MB
        assert clients[0].command("admin", {"ping": 1})["ok"] == 1.0

    def room() -> bool:
        with WireClient(member.host, timeout_s=60) as client:
            reply = client.command("shop", sort)
            if reply["ok"] != 1.0:
                raise HostUnreachableError(str(reply["errmsg"]))
            return True

    wait_until(room, 30, "the cursors to end with their clients")

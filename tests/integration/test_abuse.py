"""What one client may make a real member hold, and what surrounds it may fail it: it goes on, and it stops."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replset.bson import encode
from replset.client import WireClient
from replset.errors import HostUnreachableError
from replset.local_set import HTTP_OFFSET, LocalMember, wait_until
from tests.integration.conftest import MakeSet, next_ports, start_set
from tests.integration.forked import ForkedSet, running_set
from tests.integration.talk import insert, run, status

pytestmark = pytest.mark.in_turns

MOST_MB = 450
"""Less than what any of these made a member hold; about twice what one holds after ordinary load."""
MOST_AHEAD = 64 << 20
"""More than the system's buffers hold of one connection."""
REQUESTS = b"GET / HTTP/1.1\r\nhost:\r\n\r\n" * 40_000


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalMember]:
    """A primary alone, with 8,000 documents of 2 kB."""
    with running_set(tmp_path_factory.mktemp("abuse") / "set") as local:
        start_set(local, members=1)
        (one,) = local.members
        with WireClient(one.host, timeout_s=60) as client:
            for first in range(0, 8_000, 1_000):
                documents = [encode({"_id": number, "x": "x" * 2_000}) for number in range(first, first + 1_000)]
                assert client.ask("shop", {"insert": "orders"}, ("documents", documents)).get("ok") == 1.0
        yield one


def held_mb(member: LocalMember) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{member.pid}/status").read_text())
    assert found
    return int(found[1]) >> 10


def open_files(member: LocalMember) -> int:
    return len(list(Path(f"/proc/{member.pid}/fd").iterdir()))


def connect_http(member: LocalMember) -> socket.socket:
    return socket.create_connection(("127.0.0.1", member.port + HTTP_OFFSET), timeout=40)


def send_head(member: LocalMember) -> None:
    """A header that goes on and on."""
    with contextlib.suppress(OSError), connect_http(member) as stranger:
        stranger.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: ")
        for _ in range(100):
            stranger.sendall(b"y" * (1 << 20))


def test_heads_without_end_and_requests_sent_ahead_hold_little(member: LocalMember) -> None:
    before = open_files(member)
    strangers = [threading.Thread(target=send_head, args=(member,)) for _ in range(6)]
    for stranger in strangers:
        stranger.start()
    for stranger in strangers:
        stranger.join(timeout=60)
    with contextlib.ExitStack() as opened:
        for _ in range(60):  # who reads no answer
            stranger = opened.enter_context(connect_http(member))
            stranger.setblocking(False)
            with contextlib.suppress(OSError):
                stranger.send(REQUESTS)
        stranger.settimeout(2)
        sent = 0
        with contextlib.suppress(OSError):  # TimeoutError: no more is taken
            while sent < MOST_AHEAD:
                sent += stranger.send(REQUESTS)
        assert sent < MOST_AHEAD
        for _ in range(20):
            assert run(member, {"ping": 1}, "admin")
        assert held_mb(member) < MOST_MB // 2
    wait_until(lambda: open_files(member) <= before + 5, 60, "the connections to end with their clients")


def test_exports_that_nobody_reads_hold_little_and_end(member: LocalMember) -> None:
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
            reader.connect(("127.0.0.1", member.port + HTTP_OFFSET))
            reader.sendall(head + body)
        wait_until(lambda: open_files(member) > before + 50, 60, "the exports to begin")

        def all_ended() -> bool:
            assert held_mb(member) < MOST_MB // 2
            return open_files(member) <= before + 50

        wait_until(all_ended, 180, "the exports to end")


def test_sorted_cursors_left_open_hold_a_bounded_part_of_the_memory(member: LocalMember) -> None:
    sort = {"find": "orders", "sort": {"x": 1, "_id": -1}, "batchSize": 1}
    with contextlib.ExitStack() as opened:
        clients = [opened.enter_context(WireClient(member.host, timeout_s=60)) for _ in range(4)]
        replies = [client.command("shop", sort) for _ in range(8) for client in clients]
        refused = [reply["code"] for reply in replies if reply["ok"] != 1.0]
        assert 1 <= len(refused) < len(replies)
        assert set(refused) == {462}
        assert held_mb(member) < MOST_MB

    def has_room() -> bool:
        with WireClient(member.host, timeout_s=60) as client:
            return bool(client.command("shop", sort)["ok"] == 1.0)

    wait_until(has_room, 30, "the cursors to end with their clients")


# --- a log that nobody reads, no descriptor left -----------------------------------------------------------------


def answers(port: int) -> bool:
    with contextlib.suppress(HostUnreachableError), WireClient(f"127.0.0.1:{port}") as client:
        return bool(client.command("admin", {"ping": 1})["ok"] == 1.0)
    return False


def test_a_log_that_nobody_reads_stops_neither_the_member_nor_its_end(tmp_path: Path) -> None:
    (port,) = next_ports(1)
    command = [sys.executable, "-m", "replset.cli.main", "start", "--replSet", "rs0", "--port", str(port)]
    bare = {name: value for name, value in os.environ.items() if not name.startswith("REPLSET_")}
    options: dict[str, Any] = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "env": bare}
    with subprocess.Popen([*command, "--dbpath", str(tmp_path / "data")], **options) as process:
        try:
            wait_until(lambda: answers(port), 60, "the member to answer")
            for _ in range(1_500):  # each is a line; a pipe takes some 500 of them
                with socket.create_connection(("127.0.0.1", port), timeout=20) as stranger:
                    stranger.sendall(b"\x05\0\0\0garbage-that-is-no-message")
                    with contextlib.suppress(ConnectionResetError):
                        assert stranger.recv(10) == b"", "it is closed"
            assert answers(port)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=40) == 0
        finally:
            process.kill()


IDLE_CLOSED = "each new one closes the client idle longest"


def test_idle_connections_up_to_the_last_descriptor_keep_no_election_from_being_won(
    make_set: MakeSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vote is saved in a file that is opened for it; the others' and the watcher's connections find room too."""
    monkeypatch.setattr(ForkedSet, "descriptors", 256)
    local = make_set()
    primary = local.wait_for_primary()
    rest = [member for member in local.members if member is not primary]
    with flooding([port for member in rest for port in (member.port, member.port, member.port + HTTP_OFFSET)]):
        wait_until(lambda: all(IDLE_CLOSED in member.log.read_text() for member in rest), 60, "no descriptor is left")
        local.kill(primary)  # what its connections held is taken at once
        new = local.wait_for_primary(among=rest)
        insert(new, 1)
        assert status(new)["myState"] == 1
        with urllib.request.urlopen(f"{new.http}/primary", timeout=20) as answer:
            assert answer.status == 200
    for member in rest:
        assert member.is_running(), member.last_log_line()
        log = member.log.read_text()
        assert "Too many open files" not in log, "connections took only the descriptors that are theirs"
        assert 1 <= log.count(IDLE_CLOSED) <= 4, "a line a minute and port"


@contextlib.contextmanager
def flooding(ports: list[int]) -> Iterator[None]:
    """Somebody opens connections to these ports, says nothing on them, and opens more as room comes about."""
    ends, full = threading.Event(), threading.Event()

    def flood() -> None:
        opened: deque[socket.socket] = deque()
        while not ends.is_set():
            for port in ports:
                with contextlib.suppress(OSError):
                    opened.append(socket.create_connection(("127.0.0.1", port), timeout=2))
            if len(opened) >= 800:
                full.set()
                opened.popleft().close()
            ends.wait(0.02 if full.is_set() else 0)
        for one in opened:
            one.close()

    thread = threading.Thread(target=flood, daemon=True)
    thread.start()
    try:
        full.wait(30)
        yield
    finally:
        ends.set()
        thread.join(timeout=20)

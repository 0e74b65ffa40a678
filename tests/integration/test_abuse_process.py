"""What surrounds a real member may fail it: nobody reads its log, its descriptors run out. It goes on, and it stops."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from replset.cli.local_set import wait_until
from replset.client import WireClient
from tests.integration.conftest import MakeSet, next_ports
from tests.integration.forked import ForkedSet
from tests.integration.talk import all_counted, insert, status

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("REPLSET_")}
IDLE_CLOSED = "each new one closes the client idle longest"
GARBAGE = b"\x05\0\0\0garbage-that-is-no-message"


@pytest.fixture
def unread(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A member whose standard error is a pipe that nobody reads, and its port."""
    (port,) = next_ports(1)
    command = [sys.executable, "-m", "replset.cli.main", "start", "--replSet", "rs0", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--dbpath", str(tmp_path / "data")],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=ENVIRONMENT,
    )
    try:
        wait_until(lambda: ping(port), 60, "the member to answer")
        yield process, port
    finally:
        process.kill()
        process.communicate(timeout=20)


def ping(port: int) -> bool:
    with WireClient(f"127.0.0.1:{port}") as client:
        return bool(client.command("admin", {"ping": 1})["ok"] == 1.0)


def test_a_log_that_nobody_reads_stops_neither_the_member_nor_its_end(
    unread: tuple[subprocess.Popen[bytes], int],
) -> None:
    process, port = unread
    for _ in range(1_500):  # each is a line; a pipe takes some 500 of them
        with socket.create_connection(("127.0.0.1", port), timeout=20) as stranger:
            stranger.sendall(GARBAGE)
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(10) == b"", "it is closed"
    assert ping(port)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=40) == 0


@pytest.fixture
def few_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members are started with `ulimit -n 256`."""
    monkeypatch.setattr(ForkedSet, "descriptors", 256)


@pytest.mark.usefixtures("few_descriptors")
def test_idle_connections_up_to_the_last_descriptor_keep_no_election_from_being_won(make_set: MakeSet) -> None:
    """A vote is saved in a file that is opened for it; the others' and the watcher's connections find room too."""
    local = make_set()
    all_counted(local)  # a member in its initial sync could not be elected
    primary = local.wait_for_primary()
    rest = [member for member in local.members if member is not primary]
    with flooding([port for member in rest for port in (member.port, member.port, member.port + 1000)]):
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

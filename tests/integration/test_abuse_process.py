"""What surrounds a real member may fail it: nobody reads its log, its descriptors run out. It goes on, and it stops."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from replset.cli.local_set import wait_until
from replset.client import WireClient
from tests.integration.conftest import next_ports

pytestmark = pytest.mark.slow

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("REPLSET_")}
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

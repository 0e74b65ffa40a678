"""The guard process of a role hook holds the role in time and no longer, whatever the member or the hook does."""

from __future__ import annotations

import http.server
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from replset.features.role_hook.guard import MODULE
from replset.local_set import wait_until

MakeGuard = Callable[..., "Guard"]


class Guard:
    """One guard, and the member's end of its pipes. `calls`: what its hook was called with."""

    def __init__(self, folder: Path, script: str, limit_s: float, hook: str = "") -> None:
        self.log = folder / "calls"
        path = folder / "hook.sh"
        path.write_text(f'#!/bin/sh\n{script}\necho "$1 $ROLE_EVENT $ROLE_TERM" >> {self.log}\n')
        path.chmod(0o755)
        self.process = subprocess.Popen(
            [sys.executable, "-m", MODULE, hook or str(path), str(limit_s), str(folder / "lock")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._number = 0

    @property
    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def tell(self, for_ms: int, term: int = 3) -> None:
        self._number += 1
        until = time.monotonic_ns() // 1_000_000 + for_ms if for_ms else 0
        assert self.process.stdin is not None
        self.process.stdin.write(f"{self._number} {until} {term}\n")
        self.process.stdin.flush()

    def read_until(self, line: str) -> list[str]:
        """Read what it says to the member, up to this line."""
        assert self.process.stdout is not None
        said: list[str] = []
        while not said or said[-1] != line:
            said.append(self.process.stdout.readline().rstrip())
            assert said[-1], said
        return [line for line in said if not line.startswith("read ")]

    def wait_for(self, *calls: str) -> None:
        wait_until(lambda: self.calls == list(calls), 10, f"calls {calls}", every_s=0.01)

    def end(self) -> None:
        """The member is gone."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(10) == 0


GAINED, RELEASED = "gain gain 3", "release release 3"
FIRST = "release release 0"


@pytest.fixture
def make_guard(tmp_path: Path) -> Iterator[MakeGuard]:
    made: list[Guard] = []

    def make(script: str = "", limit_s: float = 5, hook: str = "") -> Guard:
        made.append(Guard(tmp_path, script, limit_s, hook))
        return made[-1]

    yield make
    for guard in made:
        guard.process.kill()
        guard.process.wait()
        for pipe in (guard.process.stdin, guard.process.stdout):
            assert pipe is not None
            pipe.close()


def test_it_releases_first_gains_when_told_and_answers_a_release_once_it_is_over(make_guard: MakeGuard) -> None:
    guard = make_guard()
    guard.tell(0)
    guard.read_until("released 1")
    assert guard.calls == [FIRST]
    guard.tell(60_000)
    guard.wait_for(FIRST, GAINED)
    guard.tell(0)
    said = guard.read_until("released 3")
    assert said == ["info role hook: gain is done (term 3)", "info role hook: release is done (term 3)", "released 3"]
    assert guard.calls == [FIRST, GAINED, RELEASED]


def test_it_releases_when_the_time_is_over_and_the_member_says_nothing(make_guard: MakeGuard) -> None:
    """A member that hangs or is stopped sends no line; its pipe stays open."""
    guard = make_guard()
    guard.wait_for(FIRST)
    guard.tell(1_000)
    guard.wait_for(FIRST, GAINED, RELEASED)
    guard.tell(60_000)
    guard.wait_for(FIRST, GAINED, RELEASED, GAINED)


def test_it_releases_when_the_member_is_gone(make_guard: MakeGuard) -> None:
    guard = make_guard()
    guard.tell(60_000)
    guard.wait_for(FIRST, GAINED)
    guard.process.send_signal(signal.SIGTERM)  # to all of a service; the member still hands over
    guard.end()
    assert guard.calls == [FIRST, GAINED, RELEASED]


@pytest.mark.parametrize("how", ["killed", "hangs"])
@pytest.mark.parametrize("event", ["gain", "release"])
def test_the_next_one_ends_it_and_its_call_before_it_releases(
    make_guard: MakeGuard, tmp_path: Path, how: str, event: str
) -> None:
    """A call that went on alone would give the role back to a member that has released it, or take it later."""
    wait = f"(while [ ! -e {tmp_path}/go ]; do sleep 0.02; done)"
    script = f"[ ! -e {tmp_path}/wait-$1 ] || {{ touch {tmp_path}/waits; {wait}; }}"
    guard = make_guard(script)
    guard.wait_for(FIRST)
    if event == "release":
        guard.tell(60_000)
        guard.wait_for(FIRST, GAINED)
    (tmp_path / f"wait-{event}").touch()
    guard.tell(60_000 if event == "gain" else 0)
    wait_until((tmp_path / "waits").exists, 10, "the call", every_s=0.01)
    guard.process.send_signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    (tmp_path / f"wait-{event}").unlink()
    after = make_guard(script)
    after.tell(0)
    after.read_until("released 1")
    (tmp_path / "go").touch()
    assert guard.process.wait(10) == -signal.SIGKILL
    time.sleep(0.1)  # for what the call that was ended would do
    assert after.calls[-1] in (FIRST, RELEASED)
    assert len(after.calls) == (2 if event == "gain" else 3)


def test_it_needs_no_disk_that_takes_writes(make_guard: MakeGuard) -> None:
    """A member may hang, or have stopped, because its disk is full or does not answer."""
    guard = make_guard("ulimit -f unlimited")  # for what the hook itself writes
    guard.wait_for(FIRST)
    resource.prlimit(guard.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    guard.tell(60_000)
    guard.wait_for(FIRST, GAINED)
    guard.tell(0)
    guard.read_until("released 2")
    guard.end()
    assert guard.calls == [FIRST, GAINED, RELEASED]


def test_the_next_one_does_not_wait_for_what_a_hook_has_left_running(make_guard: MakeGuard, tmp_path: Path) -> None:
    """A hook may start a service, in a session of its own, that has what the hook had open."""
    script = f"[ -e {tmp_path}/service ] || {{ setsid sleep 60 & echo $! > {tmp_path}/service; sleep 60; }}"
    guard = make_guard(script, limit_s=60)
    service = wait_until(lambda: (tmp_path / "service").exists() and (tmp_path / "service").read_text(), 10, "a call")
    try:
        guard.process.kill()
        after = make_guard(script, limit_s=60)
        after.tell(0)
        after.read_until("released 1")
        assert is_running(int(service)), "so nobody waited for its end"
    finally:
        os.kill(int(service), signal.SIGKILL)


def test_a_gain_under_way_is_broken_off_with_all_that_it_started(make_guard: MakeGuard, tmp_path: Path) -> None:
    guard = make_guard(f"[ $1 = release ] || {{ sleep 60 & echo $! > {tmp_path}/child; wait; }}", limit_s=60)
    guard.tell(60_000)
    child = wait_until(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text().strip(), 10, "a gain")
    guard.tell(0)
    guard.read_until("released 2")
    assert guard.calls == [FIRST, RELEASED]
    wait_until(lambda: not is_running(int(child)), 10, "the child of the hook to be gone")


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_call_that_fails_or_hangs_is_said_and_repeated(make_guard: MakeGuard, tmp_path: Path) -> None:
    guard = make_guard(f"[ -e {tmp_path}/ok ] || {{ touch {tmp_path}/ok; exit 7; }}")
    guard.tell(0)
    (failed, *_) = guard.read_until("released 1")
    assert "release failed" in failed
    assert "ended with status 7; THE ROLE MAY EXIST TWICE; it is called again" in failed
    (tmp_path / "ok").unlink()
    slow = make_guard(f"[ -e {tmp_path}/ok ] || {{ touch {tmp_path}/ok; sleep 60; }}", limit_s=0.3)
    guard.end()
    slow.tell(0)
    said = slow.read_until("released 1")
    assert "took over 0.3 s" in said[0]


def test_a_webhook_gets_the_event(make_guard: MakeGuard) -> None:
    bodies: list[dict[str, object]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204 if len(bodies) != 1 else 503)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        guard = make_guard(hook=f"http://127.0.0.1:{server.server_port}/role")
        guard.tell(0, term=9)
        said = guard.read_until("released 1")
        server.shutdown()
    assert "ended with status 1" in said[0]
    assert bodies == [{"event": "release", "set": "", "member": "", "term": term} for term in (0, 9)]

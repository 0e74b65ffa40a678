"""The process that runs a member's role hook: `MODULE HOOK SECONDS LOCK` (docs/hooks.md).

It is a process of its own so that it releases the role when the member hangs, is stopped or killed. The member writes
lines to it, `NUMBER UNTIL TERM`: it may hold the role until this moment of the machine's monotonic clock, in
milliseconds. It answers `read NUMBER` at once, so that the member sees that the guard itself does not hang, and
`released NUMBER` once the role is released and nothing newer was asked for. It sends what the member shall log too. It
imports next to nothing but the standard library.

A guard ends the guard before it, and the hook's call that this one left: a `gain` that goes on alone would come after
the release of its successor. It finds them by the locks that they have on one file. Nothing is written there: the disk
may be what hangs.
"""

from __future__ import annotations

import fcntl
import json
import os
import selectors
import signal
import struct
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from typing import Final

from replset.own_process import command_of
from replset.text import is_url

GAIN, RELEASE = "gain", "release"
RETRY_S: Final = 1.0
SOON_S: Final = 0.02
LAST_TRIES: Final = 10
"""How often the release is tried after the member is gone."""
KILL_S: Final = 1.0
"""A process that was killed, and still has its lock after that, hangs in the kernel and does nothing more."""
GUARD, CALL = 0, 1
"""The bytes of the lock file: the guard locks the first one, the hook's call under way the second."""
_LOCK: Final = "hhqqi" if sys.platform == "linux" else "qqihh"
"""C's struct flock: type, whence, start, length and process; elsewhere start, length, process, type and whence."""
POST: Final = "--post"
MODULE: Final = "replset.features.role_hook.guard"


class RoleGuard:
    """Holds the role while the member says so, and in time. `run` returns when the member is gone."""

    def __init__(self, hook: str, limit_s: float, lock_file: int) -> None:
        """limit_s: of one call of the hook; then it is killed, and called again. lock_file: its descriptor."""
        self._hook = hook
        self._limit_s = limit_s
        self._lock_file = lock_file
        self._pid = os.getpid()
        self._number, self._until_ms, self._term = 0, 0, 0
        self._has_member = True
        self._is_held: bool | None = None  # None: unknown, so it is released first
        self._answered = 0
        self._call: subprocess.Popen[bytes] | None = None
        self._event = ""
        self._call_ends = self._next_call = 0.0
        self._failures = 0
        self._input = b""

    def run(self) -> None:
        os.set_blocking(sys.stdin.fileno(), False)
        selector = selectors.DefaultSelector()
        selector.register(sys.stdin, selectors.EVENT_READ)
        os.set_blocking(sys.stdout.fileno(), False)
        while self._has_member or self._has_to_release:
            self._step()
            if not self._has_member:
                time.sleep(SOON_S)
            elif selector.select(self._pause_s()):
                self._read()

    @property
    def _is_wanted(self) -> bool:
        return self._has_member and self._until_ms > time.monotonic_ns() // 1_000_000

    @property
    def _has_to_release(self) -> bool:
        return self._call is not None or (self._is_held is not False and self._failures < LAST_TRIES)

    def _pause_s(self) -> float:
        """How long nothing is due, unless the member says something."""
        if self._call is not None or self._is_held is None:
            return SOON_S
        return max(SOON_S, self._until_ms / 1000 - time.monotonic()) if self._is_held else 1.0

    def _read(self) -> None:
        data = os.read(sys.stdin.fileno(), 1 << 16)
        self._has_member = bool(data)
        *lines, self._input = (self._input + data).split(b"\n")
        for line in lines:
            self._number, self._until_ms, self._term = map(int, line.split())
        if lines:
            self._answer("read")

    def _step(self) -> None:
        """Look after the call under way; begin the next one when one is due; answer."""
        now = time.monotonic()
        if self._call is not None:
            must_end = now > self._call_ends or (self._event == GAIN and not self._is_wanted)
            if self._call.poll() is None and not must_end:
                return
            self._end_call(now)
        event = GAIN if self._is_wanted else RELEASE
        if self._is_held is not (event == GAIN):
            if event != self._event or now >= self._next_call:
                self._begin(event, now)
        elif self._is_held is False and not self._until_ms and self._answered != self._number:
            self._answered = self._number
            self._answer("released")

    def _begin(self, event: str, now: float) -> None:
        if event != self._event:
            self._failures = 0
        self._event, self._is_held = event, None
        command = command_of(MODULE, POST, self._hook) if is_url(self._hook) else [self._hook]
        environment = {**os.environ, "ROLE_EVENT": event, "ROLE_TERM": str(self._term)}
        try:
            self._call = subprocess.Popen(
                [*command, event],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
                start_new_session=True,
                pass_fds=(self._lock_file,),
                preexec_fn=self._lock_call,
            )
        except OSError as error:
            self._fail(f"cannot be run: {error.strerror}", now)
            return
        self._call_ends = now + self._limit_s

    def _lock_call(self) -> None:
        """Runs in the call's process, before the hook. The lock stays with this process, and does not go to others."""
        lock(self._lock_file, CALL)
        if os.getppid() != self._pid:  # the guard was killed, and its successor may have found no lock yet
            os._exit(1)

    def _end_call(self, now: float) -> None:
        call = self._call
        if call is None:
            return
        status = call.poll()
        if status is None:
            os.killpg(call.pid, signal.SIGKILL)  # with all that it started
            call.wait()
        self._call = None
        if status == 0:
            self._is_held, self._failures = self._event == GAIN, 0
            self._say(f"info role hook: {self._event} is done (term {self._term})")
        elif self._event == GAIN and not self._is_wanted:
            self._say("info role hook: gain was broken off, because the role is lost")
        else:
            self._fail(f"took over {self._limit_s:g} s" if status is None else f"ended with status {status}", now)

    def _fail(self, why: str, now: float) -> None:
        self._failures += 1
        self._next_call = now + RETRY_S
        warning = "; THE ROLE MAY EXIST TWICE" if self._event == RELEASE else ""
        self._say(f"warning role hook: {self._event} failed, {self._hook} {why}{warning}; it is called again")

    def _answer(self, what: str) -> None:
        with suppress(OSError):  # nobody waits for it any more
            os.write(sys.stdout.fileno(), f"{what} {self._number}\n".encode())

    def _say(self, text: str) -> None:
        """Send a line to the member; where that reads nothing any more, print it."""
        try:
            os.write(sys.stdout.fileno(), text.encode() + b"\n")
        except OSError:
            with suppress(OSError):  # nobody reads the log either; the role matters more
                print(text, file=sys.stderr, flush=True)


def lock(file: int, byte: int) -> bool:
    """Lock this byte of the file until this process ends. False: another process has it."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
    except (BlockingIOError, PermissionError):
        return False
    return True


def holder(file: int, byte: int) -> int:
    """Return the process that has locked this byte of the file; 0: none, or one that cannot be seen from here."""
    if sys.platform == "linux":
        wanted = struct.pack(_LOCK, fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        kind, *_, process = struct.unpack(_LOCK, fcntl.fcntl(file, fcntl.F_GETLK, wanted))
    else:
        wanted = struct.pack(_LOCK, byte, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
        *_, process, kind, _ = struct.unpack(_LOCK, fcntl.fcntl(file, fcntl.F_GETLK, wanted))
    return 0 if kind == fcntl.F_UNLCK else max(0, process)


def end_earlier(path: str) -> int:
    """Kill the guard that has locked this file, and the call that it left. Return the file's descriptor, locked."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for byte, kill in ((GUARD, os.kill), (CALL, os.killpg)):
        until = time.monotonic() + KILL_S
        while not lock(file, byte) and time.monotonic() < until:
            process = holder(file, byte)
            if process:
                with suppress(OSError):  # it has ended, or is another user's now
                    kill(process, signal.SIGKILL)
            time.sleep(SOON_S)
    fcntl.lockf(file, fcntl.LOCK_UN, 1, CALL)
    return file


def post(url: str, event: str) -> int:
    """Send the event to a webhook; return 0 if it answers with a status below 300."""
    body = {
        "event": event,
        "set": os.environ.get("ROLE_SET", ""),
        "member": os.environ.get("ROLE_MEMBER", ""),
        "term": int(os.environ.get("ROLE_TERM", "0")),
    }
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            return 0 if answer.status < 300 else 1
    except OSError as error:
        print(f"role hook: {url}: {error}", file=sys.stderr)
        return 1


def main(arguments: list[str]) -> int:
    if arguments[0] == POST:
        return post(*arguments[1:])
    hook, limit_s, lock_path = arguments
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        # The member ends it, by closing the pipe. A handler, since what is ignored would be ignored in the hook too.
        signal.signal(name, lambda *_: None)
    # The guard of the member's earlier process may still release, or hang. What it did is done again.
    RoleGuard(hook, float(limit_s), end_earlier(lock_path)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""How long a set takes no majority write: the primary's process is killed, or hands over; default settings.

Each kill has a set of its own, since a primary that lasted under a minute makes the next fast election wait.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from replset.client import WireClient
from replset.errors import ReplError
from replset.local_set import LocalMember, LocalSet, free_ports, running_set, wait_until

HAND_OVERS = 10  # at most
LOOK_EVERY_S = 0.002
WITHIN_S = 60.0


class Writer:
    """Writes one document after the other to whichever member takes it, as a driver that retries at once does."""

    def __init__(self, members: Sequence[LocalMember], concern: object) -> None:
        self._members = list(members)
        self._concern = concern
        self._clients: dict[str, WireClient] = {}
        self._at = 0

    def write(self) -> str | None:
        """Try one write. Return the member that acknowledged it; None: try the next one."""
        member = self._members[self._at]
        try:
            if member.host not in self._clients:
                self._clients[member.host] = WireClient(member.host, timeout_s=5.0)
            concern = {"w": self._concern, "wtimeout": 5_000}
            command = {"insert": "failover", "documents": [{"padding": "x" * 100}], "writeConcern": concern}
            reply = self._clients[member.host].command("bench", command)
        except ReplError:
            client = self._clients.pop(member.host, None)
            if client is not None:
                client.close()
            reply = {}
        if reply.get("ok") == 1.0 and not reply.get("writeErrors") and not reply.get("writeConcernError"):
            return member.host
        self._at = (self._at + 1) % len(self._members)
        return None

    def write_until(self, within_s: float = WITHIN_S) -> str:
        """Try until a member acknowledges a write; return that member."""
        deadline = time.monotonic() + within_s
        while (host := self.write()) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no write was acknowledged within {within_s:g} s")
            time.sleep(LOOK_EVERY_S)
        return host

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


@contextlib.contextmanager
def writing(members: Sequence[LocalMember], concern: object):  # type: ignore[no-untyped-def]
    writer = Writer(members, concern)
    try:
        yield writer
    finally:
        writer.close()


def started(local: LocalSet, count: int) -> tuple[LocalMember, float]:
    """Start and initiate a set. Return its primary, and the seconds from the initiate to the first majority write."""
    for port in free_ports(count, 24017):
        local.add(port)
    began = time.monotonic()
    local.initiate()
    with writing(local.members, "majority") as writer:
        writer.write_until()
    ready = time.monotonic() - began
    primary = local.wait_for_primary()
    wait_until(lambda: _all_counted(primary), 60, f"{count} counted members")
    return primary, ready


def _all_counted(primary: LocalMember) -> bool:
    rows = primary.command({"replSetGetStatus": 1}).get("members")
    return isinstance(rows, list) and all(row["counted"] and row["state"] in (1, 2) for row in rows)


def kill_once(folder: Path, count: int) -> tuple[float, float]:
    """Return the seconds from kill -9 of the primary to the next acknowledged majority write, and from the initiate."""
    with running_set(folder) as local:
        primary, ready = started(local, count)
        others = [member for member in local.members if member is not primary]
        with writing([primary, *others], "majority") as writer:
            for _ in range(20):
                writer.write_until()
            began = time.monotonic()
            local.kill(primary)
            writer.write_until()
            return time.monotonic() - began, ready


def hand_overs(folder: Path, count: int, times: int, *, by_signal: bool) -> list[float]:
    """Return the seconds from the old primary's last write to the new one's first: of stepdowns, or of SIGTERMs."""
    found: list[float] = []
    with running_set(folder) as local:
        started(local, count)
        for _ in range(times):
            primary = local.wait_for_primary()
            wait_until(lambda primary=primary: _all_counted(primary), 60, "counted members")  # type: ignore[misc]
            found.append(_hand_over(local, primary, by_signal=by_signal))
            if by_signal:
                local.stop(primary)
                local.start(primary)
            time.sleep(1.5)  # the old primary may stand again
    return found


def _hand_over(local: LocalSet, primary: LocalMember, *, by_signal: bool) -> float:
    others = [member for member in local.members if member is not primary]
    last = first = 0.0
    with writing([primary, *others], 1) as writer:
        asked = threading.Timer(0.3, lambda: os.kill(primary.pid, signal.SIGTERM) if by_signal else _step_down(primary))
        asked.start()
        while (host := writer.write_until()) == primary.host:
            last = time.monotonic()
        first = time.monotonic()
        asked.join()
    assert host != primary.host
    return first - last


def _step_down(primary: LocalMember) -> None:
    primary.command({"replSetStepDown": 1, "secondaryCatchUpPeriodSecs": 1})


def run(folder: Path, kills: int, members: int) -> int:
    """Print both tables. Exit status 1: a figure misses its limit."""
    killed: list[float] = []
    ready: list[float] = []
    for number in range(kills):
        seconds, first_write = kill_once(folder / f"kill{number}", members)
        killed.append(seconds)
        ready.append(first_write)
        print(
            f"kill {number + 1}: {seconds:.2f} s; after the initiate: {first_write:.2f} s", file=sys.stderr, flush=True
        )
    times = min(HAND_OVERS, kills)
    stepped_down = hand_overs(folder / "stepdown", members, times, by_signal=False)
    stopped = hand_overs(folder / "stop", members, times, by_signal=True)
    rows: list[tuple[str, list[float], Callable[[list[float]], bool], str]] = [
        ("kill -9 to the next majority write", killed, lambda s: statistics.median(s) < 1 and max(s) < 2, "1 / 2 s"),
        ("stepdown, last write to first", stepped_down, lambda s: statistics.median(s) < 0.2, "0.2 s"),
        ("SIGTERM, last write to first", stopped, lambda s: statistics.median(s) < 0.2, "0.2 s"),
        ("initiate to the first majority write", ready, lambda s: statistics.median(s) < 3, "3 s"),
    ]
    failed = 0
    for name, each, is_good, limit in rows:
        if each:
            failed |= not is_good(each)
            median, best, worst = statistics.median(each), min(each), max(each)
            print(f"{name:37} {len(each):3} times: median {median:.3f} s, best {best:.3f}, worst {worst:.3f}", end="")
            print(f" (wanted: under {limit}){'' if is_good(each) else ' MISSED'}")
    return int(failed)

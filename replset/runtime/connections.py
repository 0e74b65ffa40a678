"""How many connections a member takes on, within the process's file descriptors.

Each port has its own number. When it is reached, the client that has been idle longest is let go for the one that
comes; where nobody is idle, some kept slots are left, for members and for who asks how the member is. So files that
must be written (a vote), other members and `replset status` always find a descriptor.
"""

from __future__ import annotations

import logging
import resource
import time
from collections import deque
from typing import Final, Protocol

log = logging.getLogger("replset.server")

MOST_DESCRIPTORS: Final = 1 << 20
RESERVED: Final = 256
"""Descriptors for files, threads and connections to other members; a quarter of all where there are few."""
HTTP_CONNECTIONS: Final = 4096
KEPT: Final = 64
"""Slots of a port that clients' ordinary requests do not get; an eighth of all where there are few."""
BACKLOG: Final = 1024
FEW_DESCRIPTORS: Final = 8192
"""Below it the backlog is an eighth: those that wait to be accepted all get descriptors before they are counted."""
TELL_EVERY_S: Final = 60.0
MANY: Final = 512
"""From so many connections on, a look at all of them takes too long for each that comes."""
LOOK_EVERY_S: Final = 0.05
"""How long nobody of many is looked for again after all were found at work."""


class Holder(Protocol):
    """One connection."""

    @property
    def idle_since(self) -> float | None:
        """Seconds of the loop's clock since when it waits for its client; None: it works, or is a member's."""
        ...

    def let_go(self) -> None:
        """Close, so that another one finds room."""
        ...


class Slots:
    """The connections of one port. let_go: how many were closed for others so far."""

    def __init__(self, most: int, name: str = "") -> None:
        self.most = most
        self.let_go = 0
        self._name = name
        self._held: dict[Holder, None] = {}
        self._kept: set[Holder] = set()
        self._told_at = 0.0
        self._idle: deque[tuple[float, Holder]] = deque()  # as of the last look at all, the longest idle first
        self._look_again_at = 0.0

    def __len__(self) -> int:
        return len(self._held)

    def is_kept(self, holder: Holder) -> bool:
        """Whether it has one of the kept slots: it is served only what these are for."""
        return holder in self._kept and len(self._held) > self._for_clients

    @property
    def _for_clients(self) -> int:
        return self.most - min(KEPT, self.most // 8)

    def take(self, holder: Holder) -> bool:
        """Count one more connection; False when there is no room for it."""
        if len(self._held) >= self._for_clients:
            is_full = len(self._held) >= self.most
            oldest = self._longest_idle(or_kept=is_full)
            self._tell()
            if oldest is not None:
                self.release(oldest)
                oldest.let_go()
                self.let_go += 1
            elif is_full:
                return False
            if len(self._held) >= self._for_clients:
                self._kept.add(holder)
        self._held[holder] = None
        return True

    def release(self, holder: Holder) -> None:
        """The connection is closed. Nothing happens the second time."""
        self._held.pop(holder, None)
        self._kept.discard(holder)

    def _longest_idle(self, *, or_kept: bool) -> Holder | None:
        """or_kept: also one on a kept slot, which may be a member that has not said so yet."""
        found = self._next_idle(or_kept=or_kept)
        if found is None and (len(self._held) < MANY or time.monotonic() >= self._look_again_at):
            idle = [(since, one) for one in self._held if (since := one.idle_since) is not None]
            self._idle = deque(sorted(idle, key=lambda row: row[0]))
            found = self._next_idle(or_kept=or_kept)
            if found is None:
                self._look_again_at = time.monotonic() + LOOK_EVERY_S
        return found

    def _next_idle(self, *, or_kept: bool) -> Holder | None:
        """The first of `_idle` that has been idle since. Who became so later is idle for a shorter time than these."""
        passed: list[tuple[float, Holder]] = []
        found = None
        while self._idle and found is None:
            since, one = self._idle.popleft()
            if one not in self._held or one.idle_since != since:
                continue
            if or_kept or one not in self._kept:
                found = one
            else:
                passed.append((since, one))
        self._idle.extendleft(reversed(passed))
        return found

    def _tell(self) -> None:
        now = time.monotonic()
        if now - self._told_at >= TELL_EVERY_S or not self._told_at:
            self._told_at = now
            text = "%d connections are open on the %s port, as many as it takes: idle clients are let go as others come"
            log.warning(text, len(self._held), self._name)


def raise_descriptor_limit() -> int:
    """Let this process open as many files as the system allows; how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY:
        return MOST_DESCRIPTORS
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(soft, wanted)


def backlog_for(limit: int) -> int:
    """How many connections may wait to be accepted."""
    return BACKLOG if limit >= FEW_DESCRIPTORS else BACKLOG // 8


def share_descriptors(limit: int, wire: Slots, http: Slots) -> None:
    """Lower what both ports take on to what `limit` descriptors allow."""
    room = limit - min(RESERVED, limit // 4)
    if wire.most + http.most > room:
        http.most = min(http.most, max(room // 4, room - wire.most))
        wire.most = min(wire.most, room - http.most)
        log.warning(
            "%d file descriptors: at most %d connections on the wire port and %d on the HTTP port (see ulimit -n)",
            *(limit, wire.most, http.most),
        )

"""Limits the connections of each port, so that the process always has file descriptors left.

When a port is full, a new connection takes the place of the client that has been idle longest. When nobody is idle, the
last slots are reserved for other members and for status commands. A connection has a descriptor before it has a slot
and after it has lost it; these descriptors are counted too. Without these limits clients could use up all descriptors,
and the member could neither save a vote nor reach another member nor answer `replset status`.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Final, Protocol

log = logging.getLogger("replset.server")

HTTP_CONNECTIONS: Final = 4096
RESERVED_SLOTS: Final = 64
"""ConnectionSlots of a port that clients' ordinary requests do not get; an eighth of all where there are few."""
SPARE_DESCRIPTORS: Final = 128
"""Descriptors of a port beyond its slots, for connections that are being opened or closed. Where there are few
descriptors: an eighth of those that are left beside both ports' slots."""
BACKLOG: Final = 1024
WARN_EVERY_S: Final = 60.0
MANY_OPEN: Final = 512
"""How many open connections are many: to search all of them for each new one takes too long."""
SEARCH_EVERY_S: Final = 0.05
"""Pause before the next search after one that found no idle connection among many."""


class SlotUser(Protocol):
    """Is one connection of a port, as `ConnectionSlots` needs it."""

    @property
    def idle_since(self) -> float | None:
        """Second of the loop's clock since which it waits for its client; None: it is in use, or a member's."""
        ...

    def close_idle(self) -> None:
        """Close, so that another connection can have the slot."""
        ...


class ConnectionSlots:
    """Counts the connections of one port. closed_idle: how many were closed for others so far."""

    def __init__(self, most: int, name: str = "") -> None:
        self.most = most
        self.spare = SPARE_DESCRIPTORS
        self.closed_idle = 0
        self._descriptors = 0
        self._name = name
        self._open: dict[SlotUser, None] = {}
        self._on_reserved: set[SlotUser] = set()
        self._warned_at = 0.0
        self._idle: deque[tuple[float, SlotUser]] = deque()  # as of the last look at all, the longest idle first
        self._search_again_at = 0.0

    def __len__(self) -> int:
        return len(self._open)

    def is_reserved(self, user: SlotUser) -> bool:
        """Whether it uses a reserved slot now: then it is served only members' and status commands."""
        return user in self._on_reserved and len(self._open) > self._for_clients

    @property
    def _for_clients(self) -> int:
        return self.most - min(RESERVED_SLOTS, self.most // 8)

    def has_room(self, opening: int) -> bool:
        """Whether a connection may be accepted. opening: how many were accepted that have not called `take` yet.

        An idle connection that is closed for another has its descriptor until the loop's next turn. If all that wait
        were accepted at once, they would take the descriptors that are left for files.
        """
        return self._descriptors + opening < self.most + self.spare

    def take(self, user: SlotUser) -> bool:
        """Count one more connection, if needed in the place of an idle one; False when there is no slot for it.

        In both cases its descriptor counts until it is given back.
        """
        self._descriptors += 1
        if len(self._open) >= self._for_clients:
            is_full = len(self._open) >= self.most
            oldest = self._longest_idle(or_reserved=is_full)
            self._warn_full()
            if oldest is not None:
                self.release(oldest)
                oldest.close_idle()
                self.closed_idle += 1
            elif is_full:
                return False
            if len(self._open) >= self._for_clients:
                self._on_reserved.add(user)
        self._open[user] = None
        return True

    def release(self, user: SlotUser) -> None:
        """Give back the slot of a connection that is being closed. A second call does nothing."""
        self._open.pop(user, None)
        self._on_reserved.discard(user)

    def give_back_descriptor(self) -> None:
        """Note that the descriptor of a connection is closed. Called once for each `take`."""
        self._descriptors -= 1

    def _longest_idle(self, *, or_reserved: bool) -> SlotUser | None:
        """Find a connection to close. or_reserved: also on a reserved slot; it may be an unknown member."""
        found = self._next_idle(or_reserved=or_reserved)
        if found is None and (len(self._open) < MANY_OPEN or time.monotonic() >= self._search_again_at):
            idle = [(since, one) for one in self._open if (since := one.idle_since) is not None]
            self._idle = deque(sorted(idle, key=lambda row: row[0]))
            found = self._next_idle(or_reserved=or_reserved)
            if found is None:
                self._search_again_at = time.monotonic() + SEARCH_EVERY_S
        return found

    def _next_idle(self, *, or_reserved: bool) -> SlotUser | None:
        """Take the first of `_idle` that is still idle. Whoever became idle later has been so for a shorter time."""
        passed: list[tuple[float, SlotUser]] = []
        found = None
        while self._idle and found is None:
            since, one = self._idle.popleft()
            if one not in self._open or one.idle_since != since:
                continue
            if or_reserved or one not in self._on_reserved:
                found = one
            else:
                passed.append((since, one))
        self._idle.extendleft(reversed(passed))
        return found

    def _warn_full(self) -> None:
        now = time.monotonic()
        if now - self._warned_at >= WARN_EVERY_S or not self._warned_at:
            self._warned_at = now
            text = "%d connections are open on the %s port, which is full: each new one closes the client idle longest"
            log.warning(text, len(self._open), self._name)

"""Elections before the election timeout: the primary's process is gone, as a refused fresh connect shows.

A refused connect is only a hint. It lets a member ask earlier; votes decide, as after a timeout. A primary that is
slow, paused or cut off refuses nothing, so it is left to the timeout. `Elections` holds the elections themselves.
"""

from __future__ import annotations

from typing import Final

from replset.core.state import NEVER, NodeState, Peer
from replset.ids import MemberId, Millis

FAST_FAILOVER: Final = "fastFailover"
"""The reason of such an election, as the others and the journal see it."""
TRIES: Final = 3
FIRST_DELAY_MS, RANK_DELAY_MS, RANDOM_DELAY_MS = 20, 80, 40
RETRY_MS: Final = 150
"""The time until the next try, and up to as much more at random."""
MAX_DOUBLINGS: Final = 6


class FastFailover:
    """When this member asks for votes, or agrees to another one that asks, because the primary's process is gone."""

    def __init__(self, node: NodeState) -> None:
        self.node = node
        self.due = NEVER
        self._lost: tuple[MemberId, int] | None = None  # the primary, and its term, that the newest one was for
        self._began = Millis(0)  # the newest one of this set, as far as this member knows
        self._tries = 0

    def on_refused(self, peer: Peer) -> None:
        """Plan an election if it was the primary that refused a fresh connect.

        Members of higher priority ask first, so that votes are rarely split.
        """
        node, last = self.node, self.node.last_primary
        if last is None or last.id != peer.id or not node.is_electable or self.refusal() is not None:
            return
        if self._lost == (last.id, last.term):
            if node.now - self._began < self._pause_ms():
                return
            self._lost = None  # it was heard again since
        delay = FIRST_DELAY_MS + self._rank() * RANK_DELAY_MS + int(node.rng.random() * RANDOM_DELAY_MS)
        self.due = min(self.due, Millis(node.now + delay))

    def _rank(self) -> int:
        """How many other members ask before this one: those of higher priority, then those of lower `_id`."""
        node, last = self.node, self.node.last_primary
        if node.config is None or last is None:
            return 0
        able = [member for member in node.config.voters if member.is_electable and member.id != last.id]
        order = sorted(able, key=lambda member: (-member.priority, member.id))
        return next((rank for rank, member in enumerate(order) if member.host == node.host), len(order))

    def begin(self) -> bool:
        """Count a try that is due. Return whether it is to be made."""
        self.due = NEVER
        if self.refusal() is not None:
            return False
        self.note_election()
        self._tries += 1
        return True

    def retry(self) -> None:
        """Plan the next try after one that found no majority. After the last one the election timeout rules."""
        if self._tries < TRIES:
            self.postpone(Millis(self.node.now))

    def postpone(self, due: Millis) -> None:
        """Plan a try a little after `due`, so that another candidate of this moment can win."""
        self.due = Millis(due + RETRY_MS + int(self.node.rng.random() * RETRY_MS))

    def note_election(self) -> None:
        """Note that some member starts such an election now."""
        node, last = self.node, self.node.last_primary
        if last is not None and self._lost != (last.id, last.term):
            self._lost, self._began, self._tries = (last.id, last.term), node.now, 0

    def refusal(self) -> str | None:
        """Why neither this member nor another one should stand before its timeout; None: nothing speaks against it.

        A connect that is not answered at all is no refusal: the primary may be well behind a broken link.
        """
        node, last = self.node, self.node.last_primary
        peer = None if last is None else node.peer_of(last.id)
        if not node.settings.fast_failover:
            return "settings.fastFailover is false"
        if last is None or peer is None:
            return "this member knows of no other primary that is gone"
        if peer.refused_at is None or node.now - peer.refused_at >= node.settings.election_timeout_ms:
            return f"{peer.host} has not refused a fresh connect of this member"
        pause = self._pause_ms()
        if self._lost not in (None, (last.id, last.term)) and node.now - self._began < pause:
            return f"the last election before a timeout was {node.now - self._began} of {pause} ms ago"
        return None

    def _pause_ms(self) -> int:
        """The least time between two such elections: an election timeout, doubled for each primary in a row that did
        not last. If members die of what a client does, the set must not go through all of them in a second.
        """
        node, last = self.node, self.node.last_primary
        short = 0 if last is None else last.short_before + last.is_recent(node.now, node.settings)
        return node.settings.election_timeout_ms << min(short, MAX_DOUBLINGS)

"""Lets the members that make the majority have each page before the others, while clients wait for a majority only.

Another member's page, commit and sync take as much of the primary, and of a machine with few processors, though no
client waits for them. So that member gets what is new once it is committed, and not sooner than LATER_MS after its last
page: its pages are fewer and larger. It also gets it where the commit point does not come within LATER_MS. After a
second all get their pages at once again, and those that make the majority then are the first ones of the next second.
"""

from __future__ import annotations

from typing import Final

from replset.core.messages import ProgressRequest
from replset.ids import MemberId, OpTime
from replset.member.positions import Positions
from replset.operations.kernel import Kernel

LATER_MS: Final = 5
FIRST_MS: Final = 1_000


class MajorityFirst:
    """Knows the members that told first that they have new entries. Times are on the loop's clock, in seconds."""

    def __init__(self, member: Kernel) -> None:
        self._member = member
        self._first: set[MemberId] = set()
        self._until = 0.0  # they are the first ones; then all get their pages at once, and `_first` is filled again
        self._behind: OpTime | None = None  # who has an entry behind this one by then is among them

    def on_position(self, told: ProgressRequest, now: float, *, moved_commit_point: bool) -> None:
        """Handle the position that came with a fetch."""
        sender, newest = told.sender_id, self._member.store.last_applied
        if now < self._until:
            if not moved_commit_point or sender in self._first:
                return
            self._until = now  # one of the first is slow now, or away
        if self._behind is None:
            self._first, self._behind = set(), newest
        config = self._member.node.config
        row = next(iter(told.progress), None)  # its own, unless it does not count
        if config is None or row is None or row.member_id != sender or row.position.last_applied <= self._behind:
            return
        if any(voter.id == sender for voter in config.voters):
            self._first.add(sender)
        if len(self._first) >= config.majority_vote_count - 1:
            self._until, self._behind = now + FIRST_MS / 1000, None

    def comes_later(self, asking: MemberId | None, now: float) -> bool:
        """Whether the member that asks gets its page after the first ones."""
        if now >= self._until or asking is None or asking in self._first:
            return False
        return self._member.node.writable and self._member[Positions].awaits_only_majority

"""Takeovers: a secondary stands against a primary that works (map E9, E10).

A member of higher priority takes over once it is fresh. While a new primary cannot catch up, the member that has what
that one lacks takes over after a while, so that the entries are not rolled back.
"""

from __future__ import annotations

from typing import Final

from replset.core.member_state import MemberState
from replset.core.state import NEVER, NodeState
from replset.ids import MemberId, Millis, OpTime

PRIORITY: Final = "priorityTakeover"
CATCH_UP: Final = "catchupTakeover"
TAKEOVERS: Final = (PRIORITY, CATCH_UP)
FRESHNESS_MS: Final = 2_000
FIRST_PAUSE: Final = 6
"""In election timeouts: how long a member that took over does not do so again. Doubled for each one within MEMORY."""
MEMORY: Final = 360
"""In election timeouts, so an hour by default."""


class Takeovers:
    """What this member plans, and who took over when, as far as it was asked for its vote."""

    def __init__(self, node: NodeState) -> None:
        self.node = node
        self.due = NEVER
        self._reason = ""
        self._done: dict[MemberId, list[Millis]] = {}

    def plan(self) -> None:
        """Plan a takeover, keep the plan or drop it; after each heartbeat of the primary."""
        node = self.node
        reason = self._reason_now()
        if reason == self._reason and self.due != NEVER:
            return
        self.drop()
        if reason:
            timeout = node.settings.election_timeout_ms
            delay = node.settings.catch_up_takeover_delay_ms if reason == CATCH_UP else (self._rank() + 1) * timeout
            self._reason = reason
            self.due = Millis(node.now + delay + int(node.rng.random() * timeout * 0.15))

    def drop(self) -> None:
        self.due, self._reason = NEVER, ""

    def take(self) -> str:
        """Return the reason to stand with, now that the plan is due; empty: it does not hold any more."""
        planned, reason, node = self._reason, self._reason_now(), self.node
        self.drop()
        if reason != planned or not reason:
            return ""
        refusal = None if node.self_id is None else self.refusal(node.self_id)
        if refusal is not None:
            node.journal("not standing", f"{reason}: {refusal}")
            return ""
        return reason

    # --- how often ---------------------------------------------------------------------------------------------------

    def note(self, candidate: MemberId) -> None:
        """Note that this member starts a takeover's real election now."""
        since = self.node.now - MEMORY * self.node.settings.election_timeout_ms
        self._done[candidate] = [*(at for at in self._done.get(candidate, ()) if at > since), self.node.now]

    def refusal(self, candidate: MemberId) -> str | None:
        """Why this member should not take over yet; None: it may. One that flaps would change the primary for ever.

        The voters count too, since a member that flaps may have restarted and know nothing of it.
        """
        node = self.node
        timeout = node.settings.election_timeout_ms
        times = [at for at in self._done.get(candidate, ()) if node.now - at < MEMORY * timeout]
        if not times:
            return None
        pause, ago = min(FIRST_PAUSE << (len(times) - 1), MEMORY) * timeout, node.now - times[-1]
        return f"member {candidate} took over {ago} ms ago, and may again after {pause} ms" if ago < pause else None

    # --- whether -----------------------------------------------------------------------------------------------------

    def _reason_now(self) -> str:
        """Why this member wants to take over from the primary that it knows; empty: it does not."""
        by_priority, by_catch_up = self._has_priority(), self._has_what_the_primary_lacks()
        if by_priority and (not by_catch_up or self._rank() == 0):
            return PRIORITY
        return CATCH_UP if by_catch_up else ""

    def _rank(self) -> int:
        """How many members have a higher priority than this one."""
        node = self.node
        own = node.self_member
        return 0 if node.config is None or own is None else sum(m.priority > own.priority for m in node.config.members)

    def _has_priority(self) -> bool:
        node = self.node
        primary = None if node.config is None else node.config.member(node.primary_id)
        own, peer = node.self_member, node.peer_of(node.primary_id)
        if primary is None or own is None or peer is None or peer.state is not MemberState.PRIMARY:
            return False
        return own.priority > primary.priority and node.is_electable and self._is_fresh()

    def _has_what_the_primary_lacks(self) -> bool:
        """Whether the primary has not caught up, and no other member that is up is fresher than this one."""
        node = self.node
        peer = node.peer_of(node.primary_id)
        if peer is None or peer.state is not MemberState.PRIMARY or not node.is_electable:
            return False
        # An entry of the present term is the primary's own, so it is only the primary's last heartbeat that is older.
        # What is of an earlier term the primary lacks, and it will be rolled back here unless this member leads. (Map
        # E10.)
        return (
            node.settings.catch_up_takeover_delay_ms >= 0
            and peer.position.last_applied < self._own()
            and self._own().term < node.term
            and self._own() >= max(other.position.last_applied for other in node.peers.values() if other.is_up)
        )

    def _is_fresh(self) -> bool:
        """Whether this member is near enough to the newest entry to take over by its priority.

        MongoDB compares the seconds of the optimes, and within one second the increments. Those say nothing after a
        clock that was ahead: all that is written until the time gets there is of one second.
        """
        node, own, newest = self.node, self._own(), self._newest()
        is_near = node.ages.covers(own) and node.ages.lag_ms(own, node.now) <= FRESHNESS_MS
        return own >= newest or (own.term == newest.term and is_near)

    def _own(self) -> OpTime:
        return self.node.position.last_applied

    def _newest(self) -> OpTime:
        return max((peer.position.last_applied for peer in self.node.peers.values()), default=self._own())

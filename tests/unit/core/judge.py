"""The invariants of the core, checked after every event: one primary per term, one vote per member and term, a commit
point that names what a primary has, one committed history that no rollback touches.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from replset.core.effects import LastVote
from replset.core.member_state import MemberState
from replset.ids import HostPort, MemberId, OpTime

if TYPE_CHECKING:
    from tests.unit.core.box import Box, Entry


class Judge:
    """What the members have said so far; each method raises AssertionError with the invariant that it breaks."""

    def __init__(self) -> None:
        self.primaries: dict[int, tuple[HostPort, int]] = {}
        self.votes: dict[tuple[HostPort, str, int], MemberId | None] = {}
        self.committed_log: list[Entry] = []
        self.committed_in: dict[OpTime, int] = {}  # the term of the commit point that covered it first
        self.uncounted_undone = 0  # copies of committed entries that had not been counted for them
        self.exempt = False  # a forced reconfig voids the invariants

    def vote(self, box: Box, vote: LastVote) -> None:
        key = (box.host, box.disk.incarnation, vote.term)
        if vote.candidate is not None:
            before = self.votes.setdefault(key, vote.candidate)
            assert before == vote.candidate, f"invariant 1: {box.host} voted twice in term {vote.term}"

    def check(self, box: Box) -> None:
        """To be asked after every event."""
        node = box.node
        if node.state is MemberState.PRIMARY and not self.exempt:
            leader, me = self.primaries.setdefault(node.term, (box.host, box.life)), (box.host, box.life)
            assert leader == me, f"invariant 1: two primaries in term {node.term}, {leader} and {me} (member, life)"
        if node.state is MemberState.PRIMARY and node.commit_point.term == node.term and not self.exempt:
            self._check_committed(box)

    def _check_committed(self, box: Box) -> None:
        """A primary has what it says is committed."""
        log, point = box.disk.log, box.node.commit_point
        place = bisect_right(log, point, key=lambda entry: entry[0])
        assert place, f"invariant 3: {box.host} commits {point}, its log is empty up to there"
        assert log[place - 1][0] == point, f"invariant 3: {box.host} commits {point}, which it does not have"

    def committed(self, box: Box) -> None:
        """What this member knows to be committed goes on from what was committed before."""
        if self.exempt:
            return
        log, known = box.disk.log, self.committed_log
        place = bisect_right(log, box.node.commit_point, key=lambda entry: entry[0])
        for mine, theirs in zip(log[:place], known, strict=False):
            assert mine == theirs, f"invariant 3: {box.host} commits {mine} where {theirs} was committed"
        for entry in log[len(known) : place]:
            known.append(entry)
            self.committed_in[entry[0]] = box.node.commit_point.term

    def undone(self, box: Box, entries: list[Entry], down_to: OpTime) -> None:
        if self.exempt:
            return
        below = f"{box.host} would roll back to {down_to}, below its commit point {box.committed}"
        assert down_to >= box.committed, f"invariant 3: {below}"
        # Who has nothing of the term in which an entry was committed was not counted for it: its copy may go.
        newest = entries[-1][0].term if entries else 0
        lost = [entry for entry in entries if self.committed_in.get(entry[0], newest + 1) <= newest]
        assert not lost, f"invariant 3: {box.host} rolls back {lost[0]}, which was committed"
        self.uncounted_undone += sum(entry[0] in self.committed_in for entry in entries)

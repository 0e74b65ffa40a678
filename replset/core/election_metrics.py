"""What replSetGetStatus and serverStatus tell of elections: the last one here, the last vote, and counts (map A11)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from replset.ids import MemberId, Millis, OpTime


@dataclass(slots=True)
class CandidateMetrics:
    """The last election that this member stood in. Wall times in milliseconds, None for not yet.

    new_term_wall_ms: when it wrote the first entry of its term; available_wall_ms: when a majority had one.
    catch_up_target: the newest entry of the others that it had to catch up to; None: it had all.
    """

    reason: str
    wall_ms: int
    term: int
    committed: OpTime
    last_seen: OpTime
    votes_needed: int
    priority: float
    election_timeout_ms: Millis
    prior_primary: MemberId | None
    new_term_wall_ms: int | None = None
    available_wall_ms: int | None = None
    catch_up_target: OpTime | None = None


@dataclass(frozen=True, slots=True)
class ParticipantMetrics:
    """The last real vote that this member was asked for. reason: why it refused, empty when it granted."""

    granted: bool
    term: int
    wall_ms: int
    candidate: MemberId
    reason: str
    last_applied: OpTime
    newest_in_set: OpTime
    priority: float


@dataclass(slots=True)
class ElectionMetrics:
    """called, successful: how many elections this member began, and won, by their reason."""

    candidate: CandidateMetrics | None = None
    participant: ParticipantMetrics | None = None
    called: dict[str, int] = field(default_factory=dict)
    successful: dict[str, int] = field(default_factory=dict)

    def on_called(self, reason: str) -> None:
        self.called[reason] = self.called.get(reason, 0) + 1

    def on_won(self, reason: str) -> None:
        self.successful[reason] = self.successful.get(reason, 0) + 1

    def on_catch_up(self, target: OpTime) -> None:
        if self.candidate is not None:
            self.candidate.catch_up_target = target

    def on_new_term(self, wall_ms: int) -> None:
        if self.candidate is not None:
            self.candidate.new_term_wall_ms = wall_ms

    def on_committed(self, optime: OpTime, wall_ms: Callable[[], int]) -> None:
        """Note when the first entry of this member's own term was committed."""
        candidate = self.candidate
        if candidate is not None and candidate.available_wall_ms is None and optime.term == candidate.term:
            candidate.available_wall_ms = wall_ms()

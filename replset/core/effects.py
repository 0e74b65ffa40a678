"""The output of the core: a closed union of effects, which the shell carries out in list order (docs/adr/0001).

`Persist` is complete when durable. Every effect after it, in its own list and in every later list of the same
node, waits for that; so what must be durable comes before the message that promises it. Only an effect that ends
writes (`ends_writes`) waits for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from replset.config import ReplSetConfig
from replset.core.member_state import MemberState
from replset.core.messages import (
    HeartbeatRequest,
    ProgressRequest,
    ReplyBody,
    StepUpRequest,
    VoteRequest,
)
from replset.ids import HostPort, MemberId, Millis, OpTime


@dataclass(frozen=True, slots=True)
class LastVote:
    """The newest vote of this member (local.replset.election): `candidate` in `term`. None: term seen, no vote."""

    term: int
    candidate: MemberId | None


NO_VOTE = LastVote(0, None)


class ElectionEvent(StrEnum):
    """The events by which `features/administration/election_journal.py` puts the lines of an election together."""

    DRY_RUN = "dry run"
    ELECTION = "election"
    VOTE_NOT_GRANTED = "vote not granted"
    DRY_RUN_LOST = "dry run lost"
    ELECTION_LOST = "election lost"
    WON = "won"
    DRAINING = "draining"
    LEADING = "leading"
    STEPPED_DOWN = "stepped down"


@dataclass(frozen=True, slots=True)
class ElectionRecord:
    """One line of the election journal: what happened, and why. wall_ms: when, UTC."""

    term: int
    event: str  # an ElectionEvent, or what else belongs to the reasons of an election
    detail: str
    wall_ms: int = 0


@dataclass(frozen=True, slots=True)
class InitialSyncNotNeeded:
    """Remove the initial-sync marker: the member initiates the set with its empty data, or gives up a resync."""


PersistedRecord = LastVote | ReplSetConfig | InitialSyncNotNeeded


@dataclass(frozen=True, slots=True)
class Persist:
    """Write to member.db and sync."""

    record: PersistedRecord


@dataclass(frozen=True, slots=True)
class RecordElectionEvent:
    """Add a line to the election journal. No later effect waits for it."""

    record: ElectionRecord


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request to another member. A `messages.Response` with the same id follows within `timeout_ms`."""

    request_id: int
    to: HostPort
    body: HeartbeatRequest | VoteRequest | ProgressRequest | StepUpRequest
    timeout_ms: Millis


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the `messages.Request` with this id."""

    request_id: int
    body: ReplyBody


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The member's state, term or primary changed: wake `hello`, and fail waiting writes on leaving PRIMARY."""

    state: MemberState
    term: int
    primary: MemberId | None


@dataclass(frozen=True, slots=True)
class StopFetching:
    """Drop the sync source and whatever is fetched but not applied (unless a drain asked for it)."""


@dataclass(frozen=True, slots=True)
class StartFetching:
    """Fetch the oplog of `source` from this member's newest entry on."""

    source: HostPort


@dataclass(frozen=True, slots=True)
class Drain:
    """Stop fetching, apply what is fetched, then report `DrainFinished(term)`."""

    term: int


@dataclass(frozen=True, slots=True)
class AppendNoop:
    """Write a no-op entry in `term` ("initiating set", "new primary", "periodic noop", "Reconfig set").

    `message` is o.msg; the shell fills in what only it knows (member, host, commitPoint).
    """

    term: int
    message: str


@dataclass(frozen=True, slots=True)
class AcceptWrites:
    """From here on (True) clients may write in `term`; False ends it at once, whatever is still being saved."""

    accept: bool
    term: int


@dataclass(frozen=True, slots=True)
class CommitPointAdvanced:
    """The commit point advanced: release waiting writes, delete old undo rows, trim the oplog."""

    commit_point: OpTime


@dataclass(frozen=True, slots=True)
class ProgressChanged:
    """A member's position changed: check the writes that wait for `w: n` again, as at CommitPointAdvanced."""


@dataclass(frozen=True, slots=True)
class RelayProgress:
    """A member that fetches from this one has come farther: report its position to the sync source."""


@dataclass(frozen=True, slots=True)
class ConfigInstalled:
    """A new configuration was installed; a `Persist` of it came before."""

    config: ReplSetConfig


@dataclass(frozen=True, slots=True)
class CompareChains:
    """Check this member's entry `at` and ask these members for their hash chain there.

    Then report `ChainsCompared`, or `DamageFound` if this member's entry is damaged.
    """

    at: OpTime
    hosts: tuple[HostPort, ...]


@dataclass(frozen=True, slots=True)
class StartRollback:
    """Find the common point with `source`, write the files, undo; then report `RollbackEnded`."""

    source: HostPort


@dataclass(frozen=True, slots=True)
class StartInitialSync:
    """Set the marker, export what would be lost, copy `source`, install.

    Reports `InitialSyncStarted` and then `InitialSyncEnded`. forced: the copy may lack what this member acknowledged.
    oplog_only: for a witness, which copies no documents. is_stale: the documents here are sound, only too old.
    """

    source: HostPort
    reason: str
    forced: bool = False
    oplog_only: bool = False
    is_stale: bool = False


Effect = (
    Persist
    | RecordElectionEvent
    | Send
    | Reply
    | StateChanged
    | StopFetching
    | StartFetching
    | Drain
    | AppendNoop
    | AcceptWrites
    | CommitPointAdvanced
    | ProgressChanged
    | RelayProgress
    | ConfigInstalled
    | CompareChains
    | StartRollback
    | StartInitialSync
)


def ends_writes(effect: Effect) -> bool:
    """Whether the effect stops writes or fails waiting ones. It promises nothing, so it need not wait for a Persist."""
    match effect:
        case AcceptWrites(accept=accept):
            return not accept
        case StateChanged(state=state):
            return state is not MemberState.PRIMARY
        case _:
            return False

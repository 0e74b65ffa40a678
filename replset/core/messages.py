"""The input of the core, as values. `member/peers/message_documents.py` holds the documents of the same messages.

`Node.receive` takes three kinds. A `Request` comes from another member or an administrator; exactly one `Reply` effect
with its `request_id` answers it. A `Response` answers an earlier `Send` effect. A `Report` comes from this member's own
storage and replication, and nothing answers it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from replset.bson import ObjectId
from replset.config import ReplSetConfig
from replset.config.feature_version import OLDEST, FeatureVersion
from replset.core.member_state import MemberState
from replset.ids import OPTIME_NULL, HostPort, MemberId, Millis, OpTime

# A term never falls. If a forged or damaged message raised it to the highest number, no term would be left in which a
# member could be elected.
MAX_TERM: Final = (1 << 53) - 1
"""The highest term. It is far below 2^63, so that every sum with a term fits into 64 bits."""
MAX_TERM_JUMP: Final = 1 << 20
"""How far above its own term a member accepts one. A set with one election a second needs twelve days for so many."""


def is_plausible_term(own: int, received: int) -> bool:
    """Whether a member in term `own` accepts the term `received` of another member.

    A member without a term yet (0) has nothing to compare with and accepts any up to MAX_TERM.
    """
    return received <= MAX_TERM and (own == 0 or received <= own + MAX_TERM_JUMP)


# --- between members -----------------------------------------------------------------------------------------


class Position(NamedTuple):
    """The newest applied and the newest durable entry of a member, with the wall times of these entries."""

    last_applied: OpTime
    last_durable: OpTime
    applied_wall_ms: int
    durable_wall_ms: int


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    """replSetHeartbeat (map H2). `config_version` is -2 and `config_term` -1 while the sender has no config.

    set_id: settings.replicaSetId of the sender's configuration, None while it has none. A member of another set refuses
    the request, so a reply always comes from the sender's own set. expected: with check_empty, the hosts of
    --expect-members, sorted; a member that was started with others refuses. holds_role: its role hook may not have
    released the primary's role yet (docs/hooks.md).
    """

    set_name: str
    sender: HostPort
    sender_id: MemberId | None
    term: int
    config_version: int
    config_term: int
    primary_id: MemberId | None
    incarnation: str
    check_empty: bool = False
    set_id: ObjectId | None = None
    expected: tuple[HostPort, ...] = ()
    holds_role: bool = False


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """Answer to a heartbeat (map H3). `config` is set when the receiver's is newer than the sender's.

    commit_term: the term of the primary that committed `commit_point`, which may name an entry of an older term.
    """

    set_name: str
    term: int
    state: MemberState
    member_id: MemberId | None
    config_version: int
    config_term: int
    config: ReplSetConfig | None
    primary_id: MemberId | None
    position: Position
    commit_point: OpTime
    electable: bool
    election_wall_ms: int | None
    sync_source: HostPort | None
    incarnation: str
    rollback_id: int
    http_address: str
    has_data: bool  # its oplog has an entry; replSetInitiate asks for empty members
    unacknowledged_rollbacks: int = 0  # whose files exist and that no operator acknowledged
    quarantine: str = ""  # why it is out of service; "" when it is not
    commit_term: int = 0
    overloaded: bool = False  # it has more to do than it can; clients should read elsewhere
    holds_role: bool = False
    release: FeatureVersion = OLDEST  # up to which one it can run a set


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """replSetRequestVotes (map E4): `candidate` asks for a vote in `term`. A dry run binds no voter.

    reason: why the election was started, as in the candidate's journal.
    """

    set_name: str
    term: int
    candidate: MemberId
    candidate_incarnation: str
    config_version: int
    config_term: int
    last_applied: OpTime
    dry_run: bool
    reason: str = ""
    set_id: ObjectId | None = None


@dataclass(frozen=True, slots=True)
class VoteReply:
    """`reason` is empty when granted. Counted only while the config names `incarnation` for the voter."""

    term: int
    granted: bool
    reason: str
    voter: MemberId | None
    incarnation: str


class MemberProgress(NamedTuple):
    """One member's position in a replSetUpdatePosition (map R8)."""

    member_id: MemberId
    incarnation: str
    position: Position


class ProgressRequest(NamedTuple):
    """replSetUpdatePosition: the position of the sender, and of members that sync from it."""

    sender_id: MemberId
    term: int
    config_version: int
    config_term: int
    progress: tuple[MemberProgress, ...]
    set_id: ObjectId | None = None


@dataclass(frozen=True, slots=True)
class ProgressReply:
    """Answer to a replSetUpdatePosition. commit_point, commit_term: see HeartbeatReply."""

    term: int
    accepted: bool
    commit_point: OpTime = OPTIME_NULL
    commit_term: int = 0


@dataclass(frozen=True, slots=True)
class StepUpRequest:
    """replSetStepUp: start an election now. The handoff of a stepdown skips the dry run (map E12)."""

    skip_dry_run: bool


# --- from an administrator (through the command table) ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InitiateRequest:
    """replSetInitiate (map C9). `config` has been parsed; its validation against this node is the core's."""

    config: ReplSetConfig


@dataclass(frozen=True, slots=True)
class ReconfigRequest:
    """replSetReconfig (map C10 to C16). `max_time_ms` 0 waits for ever."""

    config: ReplSetConfig
    force: bool
    max_time_ms: int


@dataclass(frozen=True, slots=True)
class StepDownRequest:
    """replSetStepDown (map E11). hand_over_to: the only successor that will do; None: the best one."""

    step_down_ms: int
    catch_up_ms: int
    force: bool
    hand_over_to: HostPort | None = None


@dataclass(frozen=True, slots=True)
class AbortCatchUpRequest:
    """replSetAbortPrimaryCatchUp: a new primary takes writes without the entries that it still fetches (map E8)."""


@dataclass(frozen=True, slots=True)
class FreezeRequest:
    """replSetFreeze (map E13)."""

    freeze_ms: int


@dataclass(frozen=True, slots=True)
class ResyncRequest:
    """replSetResync: export what only this member holds, then replace its data by a copy of another member's.

    force: also copy a source that lacks what this member acknowledged or knows to be committed.
    """

    force: bool = False


@dataclass(frozen=True, slots=True)
class SyncFromRequest:
    """replSetSyncFrom: take this member as sync source, until it is no good source any more (map R1)."""

    host: HostPort


@dataclass(frozen=True, slots=True)
class MaintenanceRequest:
    """replSetMaintenance: go to RECOVERING, and serve no reads, until it is switched off as often (map R9)."""

    on: bool


# --- answers to requests ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Done:
    """An administrator's request was carried out. `info` is for the person, may be empty."""

    info: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal is an answer: MongoDB's code and the reason."""

    code: int
    reason: str


RequestBody = (
    HeartbeatRequest
    | VoteRequest
    | ProgressRequest
    | StepUpRequest
    | InitiateRequest
    | ReconfigRequest
    | StepDownRequest
    | AbortCatchUpRequest
    | FreezeRequest
    | ResyncRequest
    | SyncFromRequest
    | MaintenanceRequest
)
ReplyBody = HeartbeatReply | VoteReply | ProgressReply | Done | Refused


@dataclass(frozen=True, slots=True)
class Request:
    """A request; the node answers with one `effects.Reply(request_id, ...)`, at once or later."""

    request_id: int
    body: RequestBody


@dataclass(frozen=True, slots=True)
class Response:
    """The result of an `effects.Send(request_id)`. body: None when `to` could not be reached in time; error says why.

    A reply with an error document arrives as `Refused`.
    """

    request_id: int
    to: HostPort
    body: ReplyBody | None
    error: str
    round_trip_ms: Millis
    refused: bool = False  # `to` refused a fresh connect: no process listens there
    unproven: bool = False  # a process answers at `to` and did not prove to be a member of this set


# --- reports of this member's own storage and replication -----------------------------------------------------


class LocalPosition(NamedTuple):
    """The store's newest committed and newest synced entries (after each group, each sync, a rollback, a copy)."""

    position: Position


class FetchProgress(NamedTuple):
    """The position that came with another member's fetch request. The page answers it, so the core does not."""

    progress: ProgressRequest


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """A connection to another member broke at the other end. Its process may be gone, or only that connection."""

    host: HostPort


class SourceProblem(Enum):
    UNREACHABLE = "unreachable"
    DIVERGED = "diverged"  # the source's oplog lacks this member's newest entry
    CHAIN_DIFFERS = "chain differs"  # same entry, another hash chain: corruption, not rollback
    NOT_READABLE = "not readable"  # the source is in a state that serves no oplog
    NOT_APPLIED = "not applied"  # the source's entry does not fit what is on this member's disk


class SourceBatch(NamedTuple):
    """A batch from the sync source matched this member's oplog and was applied. It may be empty.

    `term`, `commit_point` and `commit_term` (see HeartbeatReply) are the source's at the time it answered.
    """

    source: HostPort
    term: int
    commit_point: OpTime
    source_is_primary: bool
    commit_term: int = 0


@dataclass(frozen=True, slots=True)
class SourceFailed:
    """Fetching from `source` ended. For DIVERGED, its newest and oldest entries are given."""

    source: HostPort
    problem: SourceProblem
    detail: str
    term: int  # the source's term, 0 when unknown
    newest: OpTime
    oldest: OpTime


@dataclass(frozen=True, slots=True)
class DamageFound:
    """An oplog entry on this member's disk does not match its own hash or chain."""

    detail: str


@dataclass(frozen=True, slots=True)
class ChainMismatch:
    """A member that fetches from this one has another hash chain at the entry `at`."""

    at: OpTime


@dataclass(frozen=True, slots=True)
class ChainsCompared:
    """What `effects.CompareChains` found at `at`. same: members with this member's chain, itself included. other: the
    most that share one other chain. silent: members that did not answer, or do not hold the entry.
    """

    at: OpTime
    same: int
    other: int
    silent: int
    detail: str


@dataclass(frozen=True, slots=True)
class RollbackEnded:
    """`ok` False with `retry` True: the source broke or changed; nothing was undone yet, try again.

    `ok` False and `retry` False: refused; the member quarantines itself in RECOVERING.
    `too_stale`: there is no common point; resync. `chain_differs_at`: the source has another hash chain at this entry.
    `not_undone`: what is on this member's disk cannot be undone.
    """

    source: HostPort
    ok: bool
    retry: bool
    too_stale: bool
    detail: str
    chain_differs_at: OpTime = OPTIME_NULL
    not_undone: bool = False


@dataclass(frozen=True, slots=True)
class InitialSyncEnded:
    """The snapshot is installed (`ok`) or the attempt failed and may be tried again.

    refused: the source lacks what this member acknowledged or knows to be committed. holds_committed: False when the
    copy that was installed, by force, lacks it. oplog_only: the copy has no documents.
    """

    source: HostPort
    ok: bool
    detail: str
    refused: bool = False
    holds_committed: bool = True
    oplog_only: bool = False


@dataclass(frozen=True, slots=True)
class InitialSyncStarted:
    """The initial-sync marker is durable, or the copy requires a new incarnation. The member now has `incarnation`."""

    incarnation: str


@dataclass(frozen=True, slots=True)
class DiskStalled:
    """No sync finished for half an election timeout (`stalled`), or syncs finish again."""

    stalled: bool


@dataclass(frozen=True, slots=True)
class VoteSaved:
    """The vote that this member gave in `term` is durable. A vote for itself counts from here on."""

    term: int


@dataclass(frozen=True, slots=True)
class DrainFinished:
    """The shell has applied everything that was fetched before the node won `term`."""

    term: int


@dataclass(frozen=True, slots=True)
class ShutdownStarted:
    """SIGTERM: a primary hands over; a secondary answers hello with 91."""


@dataclass(frozen=True, slots=True)
class RoleReleased:
    """The role hook has released the primary's role."""


Report = (
    LocalPosition
    | FetchProgress
    | ConnectionLost
    | SourceBatch
    | SourceFailed
    | DamageFound
    | ChainMismatch
    | ChainsCompared
    | RollbackEnded
    | InitialSyncEnded
    | InitialSyncStarted
    | DiskStalled
    | VoteSaved
    | DrainFinished
    | ShutdownStarted
    | RoleReleased
)
Message = Request | Response | Report

"""replSetGetStatus and replSetGetConfig: the set as this member sees it (map A11)."""

from __future__ import annotations

from contextlib import suppress

from replset.auth.roles import Action
from replset.bson import DateTime, Int64, Timestamp
from replset.config import ReplSetConfig
from replset.core.election_metrics import CandidateMetrics
from replset.core.member_state import MemberState
from replset.core.status import MemberStatus, Remark, Status
from replset.errors import NotYetInitializedError, ReplError, StorageError
from replset.features.administration.remarks import find_remarks
from replset.features.diagnostics.hello import wall_of
from replset.features.diagnostics.server_status import candidate_document, flow_control_document, participant_document
from replset.ids import Millis
from replset.member.feature import Features
from replset.member.peers.flows import Flows
from replset.operations import fields
from replset.operations.command import Command, CommandContext
from replset.operations.flow_control import FlowControl
from replset.operations.kernel import Kernel
from replset.operations.lag import behind_ms
from replset.operations.request import Reply
from replset.optime import optime_document, timestamp
from replset.replication.initial_sync_progress import InitialSyncProgress
from replset.replication.rollback_list import RollbackList
from replset.replication.rollback_progress import RollbackProgress
from replset.storage.retention import falls_off_in_s

AHEAD_S = 60
UNREACHABLE = "(not reachable/healthy)"
MOST_ENTRIES_BEHIND = 1000
MOST_CAUGHT_UP = 10_000
LAGGING_MS = 10_000
SOON_S = 24 * 3600


def status_of(member: Kernel) -> Status:
    """NotYetInitializedError (94) while there is no configuration."""
    status = member.node.status(member.clock.now())
    if status is None:
        waits = f"; --expect-members: {member.awaited_members}" if member.awaited_members else ""
        raise NotYetInitializedError(f"no replset config has been received{waits}")
    return status


async def get_status(ctx: CommandContext) -> Reply:
    """Every member's state, newest entry and health, and the set's majorities."""
    await ctx.member[RollbackList].refresh()
    document = status_document(ctx.member)
    _add_lag(ctx.member, document)
    progress = ctx.member[InitialSyncProgress]
    if progress.running or (fields.boolean(ctx.body, "initialSync", ctx.name) and progress.source):
        document["initialSyncStatus"] = _sync_document(progress, ctx.member.clock.now())
    return document


def _add_lag(member: Kernel, document: dict[str, object]) -> None:
    """Add how many entries of this member's oplog the others lack, and since when the commit point waits."""
    status = status_of(member)
    rows = document["members"]
    try:
        for row, found in zip(rows if isinstance(rows, list) else (), status.members, strict=True):
            if found.position is not None:
                behind = member.store.entries_behind(found.position.last_applied, most=MOST_ENTRIES_BEHIND)
                row["entriesBehind"] = Int64(behind)
    except ReplError:  # the data is being replaced, or what the member lacks was trimmed
        return
    if status.blocking and status.commit_point < member.store.last_applied:
        document["blockingSince"] = DateTime(member.clock.wall_ms() - behind_ms(member, status.commit_point))


def _sync_document(progress: InitialSyncProgress, now: Millis) -> dict[str, object]:
    """Return the progress of the initial sync (map I5)."""
    document: dict[str, object] = {
        "failedInitialSyncAttempts": progress.failed,
        "initialSyncStart": DateTime(progress.began_wall_ms),
        "syncSourceHost": str(progress.source),
        "approxTotalDataSize": Int64(progress.total),
        "approxTotalBytesCopied": Int64(progress.copied),
        "resumedAtBytes": Int64(progress.resumed_at),
        "totalInitialSyncElapsedMillis": Int64((now if progress.running else progress.ended) - progress.began),
        "initialSyncAttempts": [
            {
                "durationMillis": Int64(one.duration_ms),
                "status": one.reason,
                "syncSource": str(one.source),
                "operationsRetried": one.retried,
                "totalTimeUnreachableMillis": Int64(one.unreachable_ms),
            }
            for one in progress.attempts
        ],
        "operationsRetried": progress.retried,
        "totalTimeUnreachableMillis": Int64(progress.unreachable_for(now)),
    }
    if progress.unreachable_since is not None:
        document["syncSourceUnreachableSince"] = DateTime(progress.unreachable_since_wall_ms)
    if progress.begins_at.ts:
        document["initialSyncOplogStart"] = timestamp(progress.begins_at.ts)
    remaining = progress.remaining_ms(now) if progress.running else None
    if remaining is not None:
        document["remainingInitialSyncEstimatedMillis"] = Int64(remaining)
    if progress.waiting_for:
        document["waitingFor"] = progress.waiting_for
    if not progress.running:
        document["initialSyncEnd"] = DateTime(progress.ended_wall_ms)
    return document


def status_document(member: Kernel) -> dict[str, object]:
    status = status_of(member)
    position, committed = status.position, status.commit_point
    committed_wall = DateTime(wall_of(member.store, committed))
    reply: dict[str, object] = {
        "set": status.set_name,
        "date": DateTime(member.clock.wall_ms()),
        "myState": int(status.state),
        "term": Int64(status.term),
        "syncSourceHost": str(status.sync_source or ""),
        "syncSourceId": status.sync_source_id,
        "heartbeatIntervalMillis": Int64(status.heartbeat_interval_ms),
        "majorityVoteCount": status.majority_vote_count,
        "writeMajorityCount": status.write_majority,
        "votingMembersCount": status.voters,
        "writableVotingMembersCount": status.writable_voters,
        "optimes": {
            "lastCommittedOpTime": optime_document(committed),
            "lastCommittedWallTime": committed_wall,
            "readConcernMajorityOpTime": optime_document(committed),
            "appliedOpTime": optime_document(position.last_applied),
            "durableOpTime": optime_document(position.last_durable),
            "lastAppliedWallTime": DateTime(position.applied_wall_ms),
            "lastDurableWallTime": DateTime(position.durable_wall_ms),
        },
        "commitPointLagMillis": Int64(0 if committed >= position.last_applied else behind_ms(member, committed)),
        "lastStableRecoveryTimestamp": timestamp(min(committed, position.last_durable).ts),
    }
    if status.state is MemberState.PRIMARY and status.election_reason:
        reply["electionCandidateMetrics"] = {
            "lastElectionReason": status.election_reason,
            "electionTerm": Int64(status.term),
            "numVotesNeeded": status.election_votes_needed,
        }
        if status.elections.candidate is not None:
            reply["electionCandidateMetrics"] = _candidate_document(status.elections.candidate, member)
    if status.state is not MemberState.PRIMARY and status.elections.participant is not None:
        reply["electionParticipantMetrics"] = participant_document(status.elections.participant)
    if member.warnings:
        reply["startupWarnings"] = list(member.warnings)
    if status.blocking:
        reply["blocking"] = status.blocking
    if member[RollbackProgress].running:
        reply["rollbackStatus"] = _rollback_document(member[RollbackProgress])
    for part in member[Features]:
        reply.update(part.status())
    reply["remarks"] = [{"why": remark.why, "next": remark.next_step} for remark in _remarks(status, member)]
    if status.state is MemberState.PRIMARY:
        reply["inSync"] = [str(host) for host in member.node.in_sync_hosts]
        if member.node.lowered_levels:
            reply["loweredDurabilityLevels"] = dict(member.node.lowered_levels)
    if member[FlowControl].is_lagged:
        reply["flowControl"] = flow_control_document(member)
    reply["unacknowledgedRollbacks"] = sum(row.unacknowledged_rollbacks for row in status.members)
    reply["members"] = [_member_document(row, member) for row in status.members]
    return reply


def _candidate_document(metrics: CandidateMetrics, member: Kernel) -> dict[str, object]:
    target, caught_up = metrics.catch_up_target, 0
    if target is not None:
        with suppress(ReplError):  # the data is being replaced
            caught_up = member.store.entries_behind(metrics.last_seen, most=MOST_CAUGHT_UP, until=target)
    return candidate_document(metrics, caught_up)


def _falls_off_in_s(row: MemberStatus, member: Kernel) -> int | None:
    """When a member that lags behind, or is gone, finds no more in this member's oplog what it goes on from."""
    if row.is_self or row.position is None or (row.lag_ms or 0) < LAGGING_MS:
        return None
    return falls_off_in_s(member.store, row.position.last_applied)


def _remarks(status: Status, member: Kernel) -> tuple[Remark, ...]:
    """The core's; before them that this member's own disk is too full: then it takes no writes and cannot lead; behind
    them what the features say, that writers are slowed, or that a member falls off the oplog.
    """
    store = member.store
    about_oplog = (remark for row in status.members if (remark := _about_oplog(row, member)))
    remarks = (
        *find_remarks(member.node.known, member.clock.now()),
        *(remark for part in member[Features] for remark in part.remarks()),
        *_slowed(member),
        *_clock(member),
        *about_oplog,
    )
    try:
        if store.has_disk_space():
            return remarks
    except StorageError:  # the disk is gone: the member stops by itself, and a status is still an answer
        return remarks
    least_mb = store.options.min_free_bytes >> 20
    full = Remark(
        f"the disk of {store.dbpath} on {member.host} has less than {least_mb} MiB free: this member takes no"
        " writes and is not elected",
        f"free disk space there, or start the member again with a --min-free-mb below {least_mb}",
    )
    return (full, *remarks)


def _clock(member: Kernel) -> tuple[Remark, ...]:
    """What a wall clock that was ahead leaves behind: the optimes stay ahead until the time gets there."""
    ahead_s = member.store.last_applied.seconds - member.store.last_wall_ms // 1000
    if ahead_s < AHEAD_S:
        return ()
    return (
        Remark(
            f"the optimes of this set are {ahead_s} s ahead of the wall time of its newest entry: a primary's clock was"
            " ahead, or is behind now",
            "set the members' clocks right (an NTP client on each); until the time gets there, name optimes, not times"
            " (docs/production.md, Clock)",
        ),
    )


def _slowed(member: Kernel) -> tuple[Remark, ...]:
    flow = member[FlowControl]
    if flow.per_second is None:
        return ()
    hosts = " and ".join(str(host) for host in flow.waits_for) or "members that are catching up"
    return (
        Remark(
            f"writers are slowed to {int(flow.per_second) >> 10} KiB of oplog a second: the majority is"
            f" {flow.lag_ms / 1000:.1f} s behind and waits for {hosts}",
            "look at the disk, the network and the load there; settings.flowControlTargetLagSecs: 0 switches this off",
        ),
    )


def _about_oplog(row: MemberStatus, member: Kernel) -> Remark | None:
    """A member is about to become too stale: then it must copy everything anew (map D11)."""
    left_s = _falls_off_in_s(row, member)
    if left_s is None or left_s > SOON_S:
        return None
    return Remark(
        f"{row.host} falls off the oplog of {member.host} in about {max(1, left_s // 60)} min, and must then copy"
        " everything anew",
        f"start it again before that; or for more time: replset resize-oplog MB --host {member.host}",
    )


def _rollback_document(progress: RollbackProgress) -> dict[str, object]:
    """Return the progress of the rollback that runs here."""
    document: dict[str, object] = {
        "phase": progress.phase.value,
        "source": str(progress.source or ""),
        "began": DateTime(progress.began_wall_ms),
        "entries": Int64(progress.entries),
        "entriesWritten": Int64(progress.written),
        "documentsWritten": Int64(progress.documents),
        "bytesWritten": Int64(progress.size),
        "entriesUndone": Int64(progress.undone),
        "waitingFor": progress.waiting_for,
        "text": progress.text(),
    }
    if progress.common_point is not None:
        document["commonPoint"] = optime_document(progress.common_point)
    if progress.manifest:
        document["manifest"] = progress.manifest
    return document


def _member_document(row: MemberStatus, member: Kernel) -> dict[str, object]:
    document: dict[str, object] = {
        "_id": int(row.id),
        "name": str(row.host),
        "health": 1.0 if row.healthy else 0.0,
        "state": int(row.state),
        "stateStr": UNREACHABLE if row.state is MemberState.DOWN else row.state.name,
        "uptime": row.uptime_ms // 1000,
    }
    position = row.position
    if position is not None:
        document["optime"] = optime_document(position.last_applied)
        if not row.is_self:
            document["optimeDurable"] = optime_document(position.last_durable)
        document["optimeDate"] = DateTime(position.applied_wall_ms)
        if not row.is_self:
            document["optimeDurableDate"] = DateTime(position.durable_wall_ms)
        document["lastAppliedWallTime"] = DateTime(position.applied_wall_ms)
        if row.lag_ms is not None:
            document["lagMillis"] = Int64(row.lag_ms)
        document["lastDurableWallTime"] = DateTime(position.durable_wall_ms)
    if not row.is_self:
        document["lastHeartbeat"] = DateTime(row.last_heartbeat_wall_ms)
        document["lastHeartbeatRecv"] = DateTime(row.last_heartbeat_recv_wall_ms)
        document["pingMs"] = Int64(row.ping_ms)
        if (left_s := _falls_off_in_s(row, member)) is not None:
            document["fallsOffOplogInSecs"] = Int64(left_s)
        flow = member[Flows].of(row.id)
        if flow.sent:
            document["flow"] = {
                "sentBytesPerSec": Int64(flow.bytes_per_s()),
                "limitBytesPerSec": Int64(flow.limit),
                "heldMillis": Int64(round(1000 * flow.held_s)),
            }
    document["lastHeartbeatMessage"] = "" if row.is_self else row.message
    document["syncSourceHost"] = str(row.sync_source or "")
    document["syncSourceId"] = row.sync_source_id
    document["infoMessage"] = _info(row, member) if row.is_self else ""
    if row.state is MemberState.PRIMARY and row.election_wall_ms is not None:
        document["electionTime"] = Timestamp(row.election_wall_ms // 1000, 1)
        document["electionDate"] = DateTime(row.election_wall_ms)
    document["configVersion"] = row.config_version
    document["configTerm"] = row.config_term
    document["counted"] = row.counted
    document["unacknowledgedRollbacks"] = row.unacknowledged_rollbacks
    if row.quarantine:
        document["quarantine"] = row.quarantine
    if row.newly_added:
        document["newlyAdded"] = True
    if row.overloaded:
        document["overloaded"] = True
    if row.release is not None:
        document["release"] = str(row.release)
    if row.witness:
        document["witness"] = True
    address = member.node.http_address_of(row.host)
    if address:
        document["httpAddress"] = address
    if row.is_self:
        if member.node.maintenance:
            document["maintenanceMode"] = member.node.maintenance
        document["self"] = True
    return document


def _info(row: MemberStatus, member: Kernel) -> str:
    progress = member[InitialSyncProgress]
    return row.message or (progress.text(member.clock.now()) if progress.running else "")


async def get_config(ctx: CommandContext) -> Reply:
    """The configuration in force; with commitmentStatus whether a majority of its voters has it."""
    config = ctx.member.node.config
    if config is None:
        raise NotYetInitializedError("no replset config has been received")
    reply: dict[str, object] = {"config": config.document()}
    if fields.boolean(ctx.body, "commitmentStatus", ctx.name):
        reply["commitmentStatus"] = _is_committed(config, status_of(ctx.member))
    return reply


def _is_committed(config: ReplSetConfig, status: Status) -> bool:
    voters = {member.id for member in config.voters}
    having = sum(
        row.id in voters and row.healthy and (row.config_version, row.config_term) == (config.version, config.term)
        for row in status.members
    )
    return having >= config.majority_vote_count


COMMANDS: tuple[Command, ...] = (
    Command("replSetGetStatus", get_status, frozenset({"initialSync"}), admin_only=True, needs=Action.SET_STATUS),
    Command("replSetGetConfig", get_config, frozenset({"commitmentStatus"}), admin_only=True, needs=Action.SET_CONFIG),
)

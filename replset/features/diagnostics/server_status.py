"""serverStatus: counters and state of the process, in MongoDB's form as far as tools look at it."""

from __future__ import annotations

import os
from resource import RUSAGE_SELF, getrusage

from replset.auth.roles import Action
from replset.bson import DateTime, Int64
from replset.core.election_metrics import CandidateMetrics, ElectionMetrics, ParticipantMetrics
from replset.features.diagnostics.diagnostics import SERVER_VERSION
from replset.features.diagnostics.hello import set_fields
from replset.member.net.server import WireServer
from replset.operations.command import Command, CommandContext
from replset.operations.current_operations import KINDS, WRITES, OperationTable
from replset.operations.dispatcher import Dispatcher
from replset.operations.flow_control import FlowControl
from replset.operations.kernel import Kernel
from replset.operations.request import Reply
from replset.operations.transactions import TransactionTable
from replset.optime import optime_document

ELECTION_COUNTERS = {
    "stepUpCmd": ("stepUpRequest", "stepUpRequestSkipDryRun"),
    "priorityTakeover": ("priorityTakeover",),
    "catchUpTakeover": ("catchupTakeover",),
    "electionTimeout": ("electionTimeout",),
    "freezeTimeout": ("singleNodePromptElection",),
    "fastFailover": ("fastFailover",),
    "initiate": ("initiate",),
    "standsAgain": ("standsAgain",),
}
"""Name in serverStatus -> reasons. The last three are not MongoDB's."""


def candidate_document(metrics: CandidateMetrics, caught_up: int) -> dict[str, object]:
    """caught_up: how many entries it fetched in its catch-up."""
    document: dict[str, object] = {
        "lastElectionReason": metrics.reason,
        "lastElectionDate": DateTime(metrics.wall_ms),
        "electionTerm": Int64(metrics.term),
        "lastCommittedOpTimeAtElection": optime_document(metrics.committed),
        "lastSeenOpTimeAtElection": optime_document(metrics.last_seen),
        "numVotesNeeded": metrics.votes_needed,
        "priorityAtElection": float(metrics.priority),
        "electionTimeoutMillis": Int64(metrics.election_timeout_ms),
    }
    if metrics.prior_primary is not None:
        document["priorPrimaryMemberId"] = int(metrics.prior_primary)
    if metrics.catch_up_target is not None:
        document["targetCatchupOpTime"] = optime_document(metrics.catch_up_target)
        document["numCatchUpOps"] = Int64(caught_up)
    if metrics.new_term_wall_ms is not None:
        document["newTermStartDate"] = DateTime(metrics.new_term_wall_ms)
    if metrics.available_wall_ms is not None:
        document["wMajorityWriteAvailabilityDate"] = DateTime(metrics.available_wall_ms)
    return document


def participant_document(metrics: ParticipantMetrics) -> dict[str, object]:
    return {
        "votedForCandidate": metrics.granted,
        "electionTerm": Int64(metrics.term),
        "lastVoteDate": DateTime(metrics.wall_ms),
        "electionCandidateMemberId": int(metrics.candidate),
        "voteReason": metrics.reason,
        "lastAppliedOpTimeAtElection": optime_document(metrics.last_applied),
        "maxAppliedOpTimeInSet": optime_document(metrics.newest_in_set),
        "priorityAtElection": float(metrics.priority),
    }


def counts_document(metrics: ElectionMetrics) -> dict[str, object]:
    """How many elections this process began and won, by their reason."""
    return {
        name: {
            "called": Int64(sum(metrics.called.get(reason, 0) for reason in reasons)),
            "successful": Int64(sum(metrics.successful.get(reason, 0) for reason in reasons)),
        }
        for name, reasons in ELECTION_COUNTERS.items()
    }


UNLIMITED = 1_000_000_000
COUNTERS = {"insert": "insert", "query": "find", "update": "update", "delete": "delete", "getmore": "getMore"}


async def server_status(ctx: CommandContext) -> Reply:
    """Counters and state of this process; a section that is given as 0 is left out."""
    member, store = ctx.member, ctx.member.store
    uptime_ms = member.clock.now() - member.started_at
    sections: dict[str, object] = {
        "host": str(member.host),
        "version": SERVER_VERSION,
        "process": "replset",
        "pid": Int64(os.getpid()),
        "uptime": float(uptime_ms // 1000),
        "uptimeMillis": Int64(uptime_ms),
        "uptimeEstimate": Int64(uptime_ms // 1000),
        "localTime": DateTime(member.clock.wall_ms()),
        "asserts": _asserts(ctx),
        "connections": _connections(ctx),
        "extra_info": {"note": "fields vary by platform", "page_faults": Int64(getrusage(RUSAGE_SELF).ru_majflt)},
        "globalLock": _global_lock(ctx, uptime_ms),
        "mem": _memory(),
        "network": {
            "bytesIn": Int64(member[WireServer].traffic.bytes_in),
            "bytesOut": Int64(member[WireServer].traffic.bytes_out),
            "numRequests": Int64(sum(ctx.member[Dispatcher].counts.values())),
        },
        "opcounters": _opcounters(ctx),
        "storageEngine": {
            "name": "sqlite",
            "supportsCommittedReads": True,
            "supportsSnapshotReadConcern": False,
            "persistent": True,
            "readOnly": False,
        },
        "electionMetrics": _elections(ctx),
        "flowControl": flow_control_document(member),
        "repl": {**set_fields(member, legacy=False), "ismaster": member.node.writable, "rbid": store.rollback_id},
        "oplog": {"latestOptime": optime_document(store.last_applied), "earliestOptime": optime_document(store.oldest)},
        "transactions": {"currentOpen": Int64(member[TransactionTable].open_count)},
        "metrics": {"cursor": {"open": {"total": Int64(len(ctx.cursors))}}},
    }
    left_out = {name for name in ctx.body.keys() if name in sections and not ctx.body.get(name)}  # noqa: SIM118
    return {name: section for name, section in sections.items() if name not in left_out}


def flow_control_document(member: Kernel) -> dict[str, object]:
    """What flow control does. The rate is in bytes of oplog in a second; MongoDB's, without a limit, is 10^9."""
    flow = member[FlowControl]
    limit = UNLIMITED if flow.per_second is None else int(flow.per_second)
    return {
        "enabled": member.node.flow_control_target_ms() > 0,
        "targetRateLimit": limit,
        "timeAcquiringMicros": Int64(flow.held_ms * 1000),
        "isLagged": flow.is_lagged,
        "isLaggedCount": flow.times_lagged,
        "lagMillis": Int64(flow.lag_ms),
        "waitsFor": [str(host) for host in flow.waits_for],
    }


def _elections(ctx: CommandContext) -> dict[str, object]:
    status = ctx.member.node.status(ctx.member.clock.now())
    return counts_document(ElectionMetrics() if status is None else status.elections)


def _asserts(ctx: CommandContext) -> dict[str, object]:
    """Commands that failed, as MongoDB counts them: all of them are the clients'."""
    return {
        "regular": 0,
        "warning": 0,
        "msg": 0,
        "user": ctx.member[OperationTable].failed,
        "tripwire": 0,
        "rollovers": 0,
    }


def _connections(ctx: CommandContext) -> dict[str, object]:
    member = ctx.member
    return {
        "current": member[WireServer].connection_count,
        "available": max(0, member[WireServer].slots.most - member[WireServer].connection_count),
        "totalCreated": Int64(member[WireServer].traffic.connections),
        "active": len(ctx.member[OperationTable].running),
    }


def _global_lock(ctx: CommandContext, uptime_ms: int) -> dict[str, object]:
    """Who reads and writes now; nobody queues for a lock here."""
    names = [operation.ctx.command.name for operation in ctx.member[OperationTable].running.values()]
    writers = sum(name in WRITES for name in names)
    readers = sum(name in KINDS for name in names) - writers
    return {
        "totalTime": Int64(uptime_ms * 1000),
        "currentQueue": {"total": 0, "readers": 0, "writers": 0},
        "activeClients": {"total": readers + writers, "readers": readers, "writers": writers},
    }


def _memory() -> dict[str, object]:
    """What the process takes, in MiB."""
    try:
        with open("/proc/self/statm", "rb") as file:
            virtual, resident = (int(pages) * os.sysconf("SC_PAGE_SIZE") >> 20 for pages in file.read().split()[:2])
    except (OSError, ValueError):  # not Linux: the most that it ever took
        virtual = resident = getrusage(RUSAGE_SELF).ru_maxrss >> 10
    return {"bits": 64, "resident": resident, "virtual": virtual, "supported": True}


def _opcounters(ctx: CommandContext) -> dict[str, object]:
    counts = ctx.member[Dispatcher].counts
    counters: dict[str, object] = {name: Int64(counts.get(command, 0)) for name, command in COUNTERS.items()}
    counters["command"] = Int64(sum(count for name, count in counts.items() if name not in COUNTERS.values()))
    return counters


COMMANDS: tuple[Command, ...] = (Command("serverStatus", server_status, None, needs=Action.SERVER_STATUS),)

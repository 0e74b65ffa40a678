"""electionCandidateMetrics, electionParticipantMetrics and electionMetrics, with MongoDB's fields (map A11)."""

from __future__ import annotations

from replset.bson import DateTime, Int64
from replset.core.election_metrics import CandidateMetrics, ElectionMetrics, ParticipantMetrics
from replset.optime import optime_document

COUNTERS = {
    "stepUpCmd": ("stepUpRequest", "stepUpRequestSkipDryRun"),
    "priorityTakeover": ("priorityTakeover",),
    "catchUpTakeover": ("catchupTakeover",),
    "electionTimeout": ("electionTimeout",),
    "freezeTimeout": ("singleNodePromptElection",),
    "fastFailover": ("fastFailover",),
    "initiate": ("initiate",),
}
"""Name in serverStatus -> reasons. The last two are not MongoDB's."""


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
        for name, reasons in COUNTERS.items()
    }

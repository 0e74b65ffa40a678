"""What a member keeps of elections: its own, its votes for others, and counts."""

from __future__ import annotations

from replset.core.election_metrics import ElectionMetrics
from replset.core.messages import VoteRequest
from replset.features.diagnostics.server_status import candidate_document, counts_document, participant_document
from replset.ids import MemberId
from tests.simulation.core_kit.machine import WALL
from tests.unit.core.single_node import NOW, SingleNode, asked, at, leading_three, ready


def metrics_of(node: SingleNode) -> ElectionMetrics:
    status = node.status(NOW)
    return status.elections


def test_a_won_election() -> None:
    metrics = metrics_of(leading_three())
    candidate = metrics.candidate
    assert (candidate.reason, candidate.term, candidate.votes_needed) == ("stepUpRequestSkipDryRun", 2, 2)
    assert (candidate.last_seen, candidate.wall_ms, candidate.new_term_wall_ms) == (at(1), WALL, WALL)
    assert candidate.available_wall_ms == WALL, "its first entry is committed"
    assert list(candidate_document(candidate, 0)) == [
        "lastElectionReason",
        "lastElectionDate",
        "electionTerm",
        "lastCommittedOpTimeAtElection",
        "lastSeenOpTimeAtElection",
        "numVotesNeeded",
        "priorityAtElection",
        "electionTimeoutMillis",
        "newTermStartDate",
        "wMajorityWriteAvailabilityDate",
    ]
    assert counts_document(metrics)["stepUpCmd"] == {"called": 1, "successful": 1}
    assert counts_document(metrics)["electionTimeout"] == {"called": 0, "successful": 0}


def test_votes_for_others() -> None:
    node = ready()
    request = VoteRequest("rs0", 2, MemberId(1), "i1", 1, 1, at(1), True)
    asked(node, request)
    assert metrics_of(node).participant is None, "a dry run is no vote"
    asked(node, VoteRequest("rs0", 2, MemberId(1), "i1", 1, 1, at(1), False))
    granted = metrics_of(node).participant
    assert (granted.granted, granted.term, granted.candidate, granted.reason) == (True, 2, MemberId(1), "")
    asked(node, VoteRequest("rs0", 2, MemberId(2), "i2", 1, 1, at(1, 9), False))
    refused = metrics_of(node).participant
    document = participant_document(refused)
    assert (document["votedForCandidate"], document["electionCandidateMemberId"]) == (False, 2)
    assert "has voted for" in str(document["voteReason"])
    assert refused.newest_in_set == at(1, 9)

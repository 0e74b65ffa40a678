"""Elections: terms, votes for others, elections of this member (map A4)."""

from __future__ import annotations

from dataclasses import dataclass, field

from replset.config import Member
from replset.core.effects import ElectionEvent, LastVote, Persist
from replset.core.election_metrics import CandidateMetrics, ParticipantMetrics
from replset.core.fast_failover import FAST_FAILOVER, RETRY_MS, TRIES, FastFailover
from replset.core.leader import Leader
from replset.core.member_state import MemberState
from replset.core.messages import MAX_TERM, Done, Refused, StepUpRequest, VoteReply, VoteRequest
from replset.core.quorum import has_majority
from replset.core.state import NEVER, NodeState, Peer
from replset.core.takeover import TAKEOVERS, Takeovers
from replset.errors import ErrorCode
from replset.ids import HostPort, MemberId, Millis, invariant

ELECTION_TIMEOUT = "electionTimeout"
INITIATE = "initiate"
STEP_UP, HANDED_OVER = "stepUpRequest", "stepUpRequestSkipDryRun"
AGAIN = "standsAgain"
"""The reason of an election after one that ended a working primary and was lost."""
FIRST_RETRY_MS = 200


@dataclass(slots=True)
class ElectionRound:
    """A dry run or a real election. pending: request id -> voter, for voters that have not answered yet."""

    reason: str
    term: int
    dry_run: bool
    needed: int
    deadline: Millis
    granted: set[MemberId] = field(default_factory=set)
    pending: dict[int, MemberId] = field(default_factory=dict)
    request_id: int | None = None  # of the replSetStepUp that this election answers


class Elections:
    """The votes that this member gives, and the elections in which it is the candidate."""

    def __init__(self, node: NodeState, leader: Leader) -> None:
        self.node = node
        self._leader = leader
        self.election: ElectionRound | None = None
        self.fast = FastFailover(node)
        self._first_due = self._first_until = NEVER  # of the first election of a set that this member initiated
        self._again_due = NEVER
        self._tries_again = 0
        self.takeovers = Takeovers(node)
        self.last_reason = ""
        self.last_needed = 0

    # --- terms ---------------------------------------------------------------------------------------------------

    def observe_term(self, term: int) -> None:
        """Take over a higher term, before anything else of a message: a primary then steps down (map H6).

        The caller has checked that the sender is a member and the term plausible; `accept_term` checks both itself.
        """
        node = self.node
        if term <= node.term:
            return
        # A member that has voted in the higher term may still report entries of this primary. Counted, such a report
        # would complete a majority, while the candidate that the member voted for lacks the entry and may lead already:
        # the acknowledged write is then rolled back. So a higher term ends a primary before anything else is counted.
        # (Raft, 5.1; map H6.)
        self._leader.step_down(f"another member is in term {term}")
        self.end_round(f"another member is in term {term}")
        node.term = term
        node.primary_id = None
        self.takeovers.drop()
        node.emit_state()

    def accept_term(self, host: HostPort, term: int) -> bool:
        """Take over the term of `host`. Return False if it is no member or the term is not plausible; the caller then
        ignores the whole message.
        """
        node = self.node
        # A member that was removed hears no heartbeats, starts elections and raises its term. If its term counted, it
        # would depose one primary after the other. (Raft, 6.) For a term that cannot be true see term_limits.py.
        if not node.is_member(host) or node.term_refusal(term) is not None:
            return False
        self.observe_term(term)
        return True

    # --- voting --------------------------------------------------------------------------------------------------

    def on_vote_request(self, request_id: int, request: VoteRequest) -> None:
        node = self.node
        if self._is_candidate(request) and node.term_refusal(request.term) is None:
            self.observe_term(request.term)
            if (peer := node.peer_of(request.candidate)) is not None:
                peer.on_message(node.now, node.settings)
        refusal = self.vote_refusal(request)
        if refusal is None and not request.dry_run:
            # The vote is on disk before the reply leaves. A member that forgot its vote in a crash could vote again in
            # the same term, and two primaries of one term could each acknowledge majority writes (docs/adr/0007).
            last = node.last_vote
            invariant(
                request.term == node.term
                and (request.term > last.term or (request.term == last.term and last.candidate is None)),
                "a member votes once in a term, and in its own",
            )
            node.last_vote = LastVote(request.term, request.candidate)
            node.emit(Persist(node.last_vote))
            node.push_election_timer()
            if self.fast.due != NEVER:
                self.fast.postpone(node.now)
            self._again_due = NEVER
        if not request.dry_run:
            if self._is_candidate(request):
                self._note_election(request.reason, request.candidate)
            self._note_vote(request, refusal)
            verdict = "granted" if refusal is None else f"refused: {refusal}"
            node.journal("vote", f"for {node.name_of(request.candidate)} in term {request.term}: {verdict}")
        node.reply(request_id, VoteReply(node.term, refusal is None, refusal or "", node.self_id, node.incarnation))

    def _note_vote(self, request: VoteRequest, refusal: str | None) -> None:
        """Keep what electionParticipantMetrics shows."""
        node, member = self.node, self.node.self_member
        own = node.position.last_applied
        node.election_metrics.participant = ParticipantMetrics(
            refusal is None,
            request.term,
            node.wall_ms(),
            request.candidate,
            refusal or "",
            own,
            max([own, request.last_applied, *(peer.position.last_applied for peer in node.peers.values())]),
            0.0 if member is None else member.priority,
        )

    def _note_election(self, reason: str, candidate: MemberId) -> None:
        """Note a real election of this or another member, for those kinds that must not come too often."""
        if reason == FAST_FAILOVER:
            self.fast.note_election()
        elif reason in TAKEOVERS:
            self.takeovers.note(candidate)

    def _is_candidate(self, request: VoteRequest) -> bool:
        """Whether the request comes from a member of this set whose incarnation the configuration names."""
        node = self.node
        member = None if node.config is None else node.config.member(request.candidate)
        matches = member is not None and member.incarnation == request.candidate_incarnation
        return matches and not node.is_other_set(request.set_name, request.set_id)

    def vote_refusal(self, request: VoteRequest) -> str | None:
        """Why this member refuses its vote; None: it grants it. The order of the checks is MongoDB's (map E5)."""
        node = self.node
        if node.config is None or node.self_member is None:
            return "this member is not in the set's configuration"
        # A member whose disk was replaced has forgotten for whom it voted in this term, and the entries that it
        # acknowledged. Its vote could be its second of one term, or elect a candidate that lacks a committed entry.
        # (docs/adr/0007.)
        if not node.self_member.is_voter or not node.incarnation_matches:
            return "this member has no vote: the configuration does not name its incarnation"
        # A candidate with an older configuration counts voters that the newer one may have replaced. Elected by them,
        # it would lead beside a primary that the new voters elected. Since a majority has a committed configuration,
        # this check leaves a candidate with an older one without a majority. (Map C11, E5.)
        if node.config.is_newer_than(request.config_version, request.config_term):
            return (
                f"the candidate's configuration (version {request.config_version}, term {request.config_term}) "
                f"is older than this member's (version {node.config.version}, term {node.config.term})"
            )
        # Elected now, the candidate would commit entries in a term that is over. A primary of the higher term need not
        # have them, and whoever follows that one rolls them back. (Raft, 5.1.)
        if request.term < node.term:
            return f"the candidate's term {request.term} is lower than this member's, {node.term}"
        if node.is_other_set(request.set_name, request.set_id):
            return f"the candidate's set {request.set_name!r} is not {node.set_name!r} with id {node.set_id}"
        # The candidate's disk was replaced, or is not known yet. It may lack entries that its old disk was counted for,
        # and as primary it would have them rolled back. (docs/adr/0007.)
        if not self._is_candidate(request):
            return "the configuration does not name the candidate's incarnation"
        if request.term > node.term:
            return f"the candidate's {node.term_refusal(request.term)}"
        # A candidate that lacks a committed entry would have it rolled back everywhere. A majority holds each committed
        # entry, so one of the voters refuses here. An arbiter has no entries and compares the commit point that it
        # knows, as MongoDB's does (map K1).
        own = node.commit_point if node.is_arbiter else node.position.last_applied
        if request.last_applied < own:
            return f"the candidate is at {request.last_applied}, this member at {own}"
        # With a second vote of one member, two candidates could each have a majority in one term. Two primaries of one
        # term give the same optime to different entries, and a member cannot tell their histories apart. (Raft, 5.2.)
        if not request.dry_run and node.last_vote.term == request.term and node.last_vote.candidate is not None:
            return f"this member has voted for member {node.last_vote.candidate} in term {request.term}"
        if not request.dry_run and node.last_vote.term > request.term:
            return f"this member has voted in term {node.last_vote.term}"
        if request.dry_run and request.reason in TAKEOVERS:
            refusal = self.takeovers.refusal(request.candidate)
            if refusal is not None:
                return refusal
        return self._healthy_primary_refusal(request) or self._arbiter_refusal(request)

    def _healthy_primary_refusal(self, request: VoteRequest) -> str | None:
        """Refuse a dry run after an election timeout while this member is in contact with a primary.

        Otherwise one broken link between the primary and a member would change the primary again and again. A takeover
        or a step-up wants another primary on purpose and is not refused. Nor is a real vote, so that a handoff works.
        """
        node = self.node
        if not request.dry_run or request.reason not in (ELECTION_TIMEOUT, FAST_FAILOVER, AGAIN):
            return None
        peer = node.peer_of(node.primary_id)
        if node.is_primary:
            return f"this member is a healthy primary: {node.host}"
        if request.reason == FAST_FAILOVER:
            return self._fast_refusal()
        if peer is None or peer.state is not MemberState.PRIMARY or peer.id == request.candidate:
            return None
        return f"this member has contact with a healthy primary: {peer.host}" if self._is_in_contact(peer) else None

    def _fast_refusal(self) -> str | None:
        """Refuse unless a fresh connect of this member was refused too. If it was not, find out for the next try."""
        node = self.node
        refusal = self.fast.refusal()
        peer = None if node.last_primary is None else node.peer_of(node.last_primary.id)
        if refusal is not None and peer is not None and peer.refused_at is None:
            peer.heartbeat_due = min(peer.heartbeat_due, node.now)
        return refusal

    def _is_in_contact(self, primary: Peer) -> bool:
        """Whether the last contact is newer than an election timeout less one heartbeat interval.

        The candidate had no contact for a whole election timeout. This member's last contact with the same primary may
        be one heartbeat later. If it refused for that, a dead primary would be replaced a whole timeout later.
        """
        timeout, interval = self.node.settings.election_timeout_ms, self.node.settings.heartbeat_interval_ms
        return self.node.now - primary.last_contact < max(timeout // 2, timeout - interval)

    def _arbiter_refusal(self, request: VoteRequest) -> str | None:
        """Why an arbiter refuses: it has contact with a primary of no lower priority (map E5)."""
        node = self.node
        if not node.is_arbiter or node.config is None:
            return None
        if node.config.version_and_term != (request.config_version, request.config_term):
            return None
        candidate = node.config.member(request.candidate)
        for peer in node.sorted_peers():
            primary = node.config.member(peer.id)
            if peer.state is not MemberState.PRIMARY or peer.id == request.candidate or primary is None:
                continue
            if candidate is not None and primary.priority >= candidate.priority and self._is_in_contact(peer):
                return f"this arbiter has contact with a healthy primary of no lower priority: {peer.host}"
        return None

    # --- candidate -----------------------------------------------------------------------------------------------

    def tick(self) -> None:
        node = self.node
        if self.election is not None and node.now >= self.election.deadline:
            self.end_round("not enough votes in time")
        if self.election is not None and not node.is_electable:
            self.end_round("it is not electable any more")
        if node.state is not MemberState.SECONDARY:
            return
        if self._may_elect_itself():
            self.start_election("singleNodePromptElection")
        elif self._may_elect_first():
            self._first_due = Millis(node.now + FIRST_RETRY_MS)
            self.start_election(INITIATE)
        elif node.settings.manual_failover:
            return
        elif node.now >= self.fast.due:
            if self.election is not None:
                self.fast.postpone(node.now)
            elif self.fast.begin() and self.start_election(FAST_FAILOVER) is not None:
                self.fast.retry()
        elif node.now >= self._again_due:
            self._again_due = NEVER
            if node.primary_id is None and self.election is None:
                self.start_election(AGAIN)
        elif node.now >= node.election_due:
            self.start_election(ELECTION_TIMEOUT)
        elif node.now >= self.takeovers.due and (reason := self.takeovers.take()):
            self.start_election(reason)

    def on_initiated(self) -> None:
        """Stand as soon as a majority can vote; nobody else has data yet."""
        node = self.node
        self._first_due = node.now
        # The timeout rules afterwards. With manual failover there is none.
        self._first_until = (
            NEVER if node.settings.manual_failover else Millis(node.now + node.settings.election_timeout_ms)
        )

    @property
    def awaits_first_primary(self) -> bool:
        """Whether this member has just initiated the set and waits until the others can vote."""
        return self._first_due != NEVER

    def _may_elect_first(self) -> bool:
        """Whether the set is new, this member made it, and a majority has its configuration and data."""
        node = self.node
        if node.now < self._first_due or node.config is None or self.election is not None:
            return False
        if node.last_primary is not None or node.term > node.config.term or node.now >= self._first_until:
            self._first_due = NEVER
            return False
        peers = [node.peers.get(voter.host) for voter in node.config.voters]
        able = sum(peer is None or peer.state in (MemberState.SECONDARY, MemberState.ARBITER) for peer in peers)
        return able >= node.config.majority_vote_count and node.is_config_committed

    def next_due(self) -> Millis:
        node = self.node
        due = NEVER if self.election is None else self.election.deadline
        if node.state is MemberState.SECONDARY:
            if self._first_due > node.now:
                due = min(due, self._first_due)
            if not node.settings.manual_failover:
                due = min(due, node.election_due, self.takeovers.due, self.fast.due, self._again_due)
            if self._may_elect_itself():
                due = node.now
            if node.frozen_until > node.now:
                due = min(due, node.frozen_until)
        return due

    def on_step_up_request(self, request_id: int, request: StepUpRequest) -> None:
        """replSetStepUp: start an election now. The reply follows when it has ended (map E14)."""
        node = self.node
        if node.is_primary:
            node.reply(request_id, Done())
            return
        reason = HANDED_OVER if request.skip_dry_run else STEP_UP
        refusal = self.start_election(reason, skip_dry_run=request.skip_dry_run)
        if self.election is not None and refusal is None:
            self.election.request_id = request_id
        elif not node.is_primary:
            node.reply(request_id, Refused(ErrorCode.COMMAND_FAILED, f"election failed: {refusal or 'lost'}"))
        else:
            node.reply(request_id, Done())

    def start_election(self, reason: str, *, skip_dry_run: bool = False) -> str | None:
        """Start an election. Returns why it did not start, None when it did."""
        node = self.node
        if reason != FAST_FAILOVER:  # where it fails the timeout rules, and no later than without it
            node.push_election_timer()
        refusal = self.election_refusal()
        if refusal is not None:
            if node.is_electable:
                node.journal("not standing", f"{reason}: {refusal}")
            return refusal
        self.end_round("a new election begins")
        self.last_reason = reason
        node.election_metrics.on_called(reason)
        if skip_dry_run:
            self._start_real_election(reason)
        else:
            self._request_votes(reason, dry_run=True)
        return None

    def election_refusal(self) -> str | None:
        """Why this member may not start an election (map E2); None: it may."""
        node = self.node
        if node.config is None or not node.is_electable:
            return "it is not electable now"
        if node.term >= MAX_TERM:
            return f"there is no term above {node.term}; `replset repair` puts such a term right"
        up = sum(
            voter.host == node.host or ((peer := node.peers.get(voter.host)) is not None and peer.is_up)
            for voter in node.config.voters
        )
        if up < node.config.majority_vote_count:
            return f"it sees {up} of {len(node.config.voters)} voters"
        return None

    def _may_elect_itself(self) -> bool:
        """Whether this is the only voter. It needs no dry run and no timeout, only its own durable vote."""
        node, config = self.node, self.node.config
        only_voter = config is not None and [voter.host for voter in config.voters] == [node.host]
        return only_voter and node.is_electable and self.election is None and not node.settings.manual_failover

    def _start_real_election(self, reason: str) -> None:
        """Start the real election in a new term (map E3).

        The own vote is durable before it counts and before the requests leave: see `on_vote_request`.
        """
        node = self.node
        invariant(node.self_id is not None, "a candidate is in its configuration")
        node.term += 1
        # A candidacy is a vote for itself. In a term in which this member has voted already, that would be its second.
        invariant(node.term > node.last_vote.term, "a candidate has not voted in its new term")
        node.primary_id = None
        if node.self_id is not None:
            self._note_election(reason, node.self_id)
        node.last_vote = LastVote(node.term, node.self_id)
        node.emit(Persist(node.last_vote))
        node.emit_state()
        self._request_votes(reason, dry_run=False)

    def _request_votes(self, reason: str, *, dry_run: bool) -> None:
        node = self.node
        config, me = node.config, node.self_id
        if config is None or me is None:
            return
        timeout = node.settings.election_timeout_ms
        before, request_id = self.election, None if self.election is None else self.election.request_id
        own = {me} if dry_run else set()  # a real vote counts once it is durable
        election = ElectionRound(
            reason, node.term, dry_run, config.majority_vote_count, Millis(node.now + timeout), own
        )
        election.request_id = request_id
        self.election = election
        self.last_needed = election.needed
        if not dry_run:
            self._note_candidacy(election, config.member(me))
        asked = ", ".join(str(voter.host) for voter in config.voters if voter.host != node.host) or "nobody else"
        text = f"{reason}: asking {asked}; {election.needed} of {len(config.voters)} votes needed"
        if before is not None:
            text += f"; the dry run was granted by {self._granted_by(before)}"
        node.journal(ElectionEvent.DRY_RUN if dry_run else ElectionEvent.ELECTION, text)
        request = VoteRequest(
            node.set_name,
            node.term,
            me,
            node.incarnation,
            config.version,
            config.term,
            node.position.last_applied,
            dry_run,
            reason,
            node.set_id,
        )
        for voter in config.voters:
            if voter.host != node.host:
                election.pending[node.send(voter.host, request, timeout)] = voter.id
        self._count(election)

    def _note_candidacy(self, election: ElectionRound, member: Member | None) -> None:
        """Keep what electionCandidateMetrics shows."""
        node = self.node
        node.election_metrics.candidate = CandidateMetrics(
            election.reason,
            node.wall_ms(),
            election.term,
            node.commit_point,
            node.position.last_applied,
            election.needed,
            0.0 if member is None else member.priority,
            node.settings.election_timeout_ms,
            None if node.last_primary is None else node.last_primary.id,
        )

    def awaits(self, request_id: int) -> bool:
        return self.election is not None and request_id in self.election.pending

    def on_vote_saved(self, term: int) -> None:
        """Count the own vote, now that it is durable.

        Before that a power loss could make a lone voter primary twice in one term, with different entries.
        """
        election, me = self.election, self.node.self_id
        if election is not None and me is not None and not election.dry_run and election.term == term:
            election.granted.add(me)
            self._count(election)

    def on_vote_reply(self, request_id: int, reply: VoteReply | None, why_not: str) -> None:
        """Count a reply. None: the voter could not be reached, and why_not says why."""
        node = self.node
        voter = None if self.election is None else self.election.pending.pop(request_id, None)
        if reply is not None:
            refusal = node.term_refusal(reply.term)
            if refusal is None:
                self.observe_term(reply.term)
            else:
                reply, why_not = None, f"its {refusal}"
        election = self.election
        if election is None or voter is None or node.config is None:
            return
        member = node.config.member(voter)
        reason = why_not if reply is None else reply.reason
        # A voter goes by its own configuration, which may still name the disk that it had before. This member's may be
        # newer. So the candidate checks the voter's incarnation too: the vote of a new disk may be a second one in this
        # term.
        if reply is not None and reply.granted and member is not None and member.incarnation == reply.incarnation:
            election.granted.add(voter)
        else:
            reason = reason or "the configuration does not name its incarnation"
            node.journal(ElectionEvent.VOTE_NOT_GRANTED, f"{node.name_of(voter)}: {reason}")
        self._count(election)

    def _count(self, election: ElectionRound) -> None:
        node = self.node
        # Since the votes were asked for, its disk may have stopped, or its data be about to be replaced. A primary's
        # history becomes the set's: see `is_electable`.
        if not node.is_electable:
            self.end_round("it is not electable any more")
        elif election.term != node.term:
            self.end_round("the term has passed")
        elif len(election.granted) >= election.needed:
            if election.dry_run:
                self._start_real_election(election.reason)
            else:
                self._win(election)
        elif len(election.granted | {node.self_id}) + len(election.pending) < election.needed:
            self.end_round(f"{len(election.granted)} of {election.needed} votes")

    def _win(self, election: ElectionRound) -> None:
        node = self.node
        invariant(election.term == node.term, "an election is won in its own term")
        voters = set() if node.config is None else {voter.id for voter in node.config.voters}
        # Two majorities of one configuration share a voter, and that one votes once in a term. With fewer votes two
        # members could win the same term.
        invariant(
            election.granted <= voters and has_majority(len(election.granted), len(voters)),
            "an election is won by a majority of the voters",
        )
        # The others are asked once the own vote is on disk, and it counts then. Without it this member could restart,
        # vote for somebody else in this term, and a second primary of the term would lead.
        invariant(node.self_id in election.granted, "a winner has its own vote")
        self.election = None
        self._first_due = self._again_due = NEVER
        self.takeovers.drop()
        node.election_metrics.on_won(election.reason)
        node.journal(ElectionEvent.WON, f"{election.reason}: votes of {self._granted_by(election)}")
        self._leader.step_up()
        if election.request_id is not None:
            node.reply(election.request_id, Done())

    def _granted_by(self, election: ElectionRound) -> str:
        return ", ".join(self.node.name_of(voter) for voter in sorted(election.granted))

    def end_round(self, why: str) -> None:
        """End the election without a winner. Does nothing while there is none."""
        election, self.election = self.election, None
        if election is None:
            return
        self.node.journal(ElectionEvent.DRY_RUN_LOST if election.dry_run else ElectionEvent.ELECTION_LOST, why)
        if election.reason == FAST_FAILOVER:
            self.fast.retry()
        elif election.reason == AGAIN:
            self._stand_again_soon(self._tries_again + 1)
        elif not election.dry_run and election.reason in (*TAKEOVERS, STEP_UP, HANDED_OVER):
            self._stand_again_soon(0)
        if election.request_id is not None:
            self.node.reply(election.request_id, Refused(ErrorCode.COMMAND_FAILED, f"election failed: {why}"))

    def _stand_again_soon(self, tries: int) -> None:
        """Plan a next try after an election that ended a working primary in vain; else nobody leads until a timeout.

        The primary wrote between the dry run and the votes, so voters with a newer entry refused, as they must (Raft,
        5.4.1). Now nobody writes. This member asks the others for their positions, and fetches that entry from them.
        """
        node, self._tries_again = self.node, tries
        if tries < TRIES:
            self._again_due = Millis(node.now + RETRY_MS + int(node.rng.random() * RETRY_MS))
            for peer in node.peers.values():
                peer.heartbeat_due = min(peer.heartbeat_due, node.now)

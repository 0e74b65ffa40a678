"""Who leads: terms, votes, campaigns, takeovers (map A4). A vote is durable before anybody hears of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from replset.core.bounds import MAX_TERM
from replset.core.effects import LastVote, Persist
from replset.core.leading import Leading
from replset.core.member_state import MemberState
from replset.core.memory import NEVER, Memory, Peer
from replset.core.messages import Done, Refused, StepUpRequest, VoteReply, VoteRequest
from replset.ids import HostPort, MemberId, Millis, OpTime, invariant

COMMAND_FAILED = 125
ELECTION_TIMEOUT = "electionTimeout"
TAKEOVER_FRESHNESS_SECS = 2
TAKEOVER_FRESHNESS_INCREMENTS = 1000


@dataclass(slots=True)
class Campaign:
    """One round of asking for votes. `asked`: request id -> voter, for those who have not answered yet."""

    reason: str
    term: int
    dry_run: bool
    needed: int
    deadline: Millis
    granted: set[MemberId] = field(default_factory=set)
    asked: dict[int, MemberId] = field(default_factory=dict)
    request_id: int | None = None  # of the replSetStepUp that wants to know how it ends


class Elections:
    """Votes for others and campaigns of its own."""

    def __init__(self, memory: Memory, leading: Leading) -> None:
        self.m = memory
        self._leading = leading
        self.campaign: Campaign | None = None
        self._takeover_due = NEVER
        self.last_reason = ""
        self.last_needed = 0

    # --- terms ---------------------------------------------------------------------------------------------------

    def observe_term(self, term: int) -> None:
        """Take a higher term first of all: a primary then steps down and counts nothing (map H6).

        For callers that know who speaks; `hear_term` asks that first.
        """
        m = self.m
        if term <= m.term:
            return
        self._leading.step_down(f"it heard of term {term}")
        self._end_campaign(f"somebody is in term {term}")
        m.term = term
        m.primary_id = None
        self._takeover_due = NEVER
        m.tell_state()

    def hear_term(self, host: HostPort, term: int) -> bool:
        """Take the term that `host` says, if it is a member of mine and the term can be true; else nothing it says is
        to be taken (False).
        """
        m = self.m
        if not m.is_member(host) or m.term_refusal(term) is not None:
            return False
        self.observe_term(term)
        return True

    # --- voting --------------------------------------------------------------------------------------------------

    def on_vote_request(self, request_id: int, request: VoteRequest) -> None:
        m = self.m
        if self._is_candidate(request) and m.term_refusal(request.term) is None:
            self.observe_term(request.term)
        refusal = self.vote_refusal(request)
        if refusal is None and not request.dry_run:
            m.last_vote = LastVote(request.term, request.candidate)
            m.emit(Persist(m.last_vote))  # durable before the reply leaves
            m.push_election_timer()
        if not request.dry_run:
            verdict = "granted" if refusal is None else f"refused: {refusal}"
            m.journal("vote", f"for member {request.candidate} in term {request.term} {verdict}")
        m.reply(request_id, VoteReply(m.term, refusal is None, refusal or "", m.self_id, m.incarnation))

    def _is_candidate(self, request: VoteRequest) -> bool:
        """Whether a member that my configuration names asks."""
        m = self.m
        member = None if m.config is None else m.config.member(request.candidate)
        is_named = member is not None and member.incarnation == request.candidate_incarnation
        return is_named and not m.is_other_set(request.set_name, request.set_id)

    def vote_refusal(self, request: VoteRequest) -> str | None:
        """Why not, None to grant; changes nothing. In MongoDB's order (map E5)."""
        m = self.m
        if m.config is None or m.self_member is None:
            return "I am not in the set's configuration"
        if not m.self_member.is_voter or not m.is_named:
            return "I have no vote: the configuration does not name my data"
        if m.config.is_newer_than(request.config_version, request.config_term):
            return (
                f"the candidate's configuration (version {request.config_version}, term {request.config_term}) "
                f"is older than mine (version {m.config.version}, term {m.config.term})"
            )
        if request.term < m.term:
            return f"the candidate's term {request.term} is lower than mine, {m.term}"
        if m.is_other_set(request.set_name, request.set_id):
            return f"the candidate's set {request.set_name!r} is not mine, {m.set_name!r} with id {m.set_id}"
        if not self._is_candidate(request):
            return "the configuration does not name the candidate's data"
        if request.term > m.term:
            return f"the candidate's {m.term_refusal(request.term)}"
        # An arbiter stands for what it knows to be committed, as MongoDB's does by echoing the commit point (map K1).
        mine = m.commit_point if m.is_arbiter else m.position.last_applied
        if request.last_applied < mine:
            return f"the candidate is at {request.last_applied}, I am at {mine}"
        if not request.dry_run and m.last_vote.term == request.term and m.last_vote.candidate is not None:
            return f"I voted for member {m.last_vote.candidate} in term {request.term} already"
        if not request.dry_run and m.last_vote.term > request.term:
            return f"I voted in term {m.last_vote.term} already"
        return self._healthy_primary_refusal(request) or self._arbiter_refusal(request)

    def _healthy_primary_refusal(self, request: VoteRequest) -> str | None:
        """Why a dry run that is held because its candidate hears no primary is refused: I hear one.

        One broken link between the primary and a member would else change the primary again and again. Takeovers and
        step-up want another primary although there is one; a real vote binds its term and is no place to ask this.
        """
        m = self.m
        if not request.dry_run or request.reason != ELECTION_TIMEOUT:
            return None
        peer = m.peer_of(m.primary_id)
        if m.is_primary:
            return f"I am a healthy primary: {m.host}"
        if peer is None or peer.state is not MemberState.PRIMARY or peer.id == request.candidate:
            return None
        return f"I hear a healthy primary: {peer.host}" if self._is_heard(peer) else None

    def _is_heard(self, primary: Peer) -> bool:
        """Whether the primary was heard lately: within an election timeout, less the time between two heartbeats.

        The candidate heard nothing for a whole election timeout. I may have heard the same primary one heartbeat later
        than it did. Were I to refuse for that, a primary that fell silent would be replaced a whole timeout later.
        """
        timeout, interval = self.m.settings.election_timeout_ms, self.m.settings.heartbeat_interval_ms
        return self.m.now - primary.last_contact < max(timeout // 2, timeout - interval)

    def _arbiter_refusal(self, request: VoteRequest) -> str | None:
        """An arbiter that sees a healthy primary of no lower priority keeps it (map E5)."""
        m = self.m
        if not m.is_arbiter or m.config is None:
            return None
        if m.config.version_and_term != (request.config_version, request.config_term):
            return None
        candidate = m.config.member(request.candidate)
        for peer in m.sorted_peers():
            primary = m.config.member(peer.id)
            if peer.state is not MemberState.PRIMARY or peer.id == request.candidate or primary is None:
                continue
            if candidate is not None and primary.priority >= candidate.priority and self._is_heard(peer):
                return f"I see a healthy primary of no lower priority: {peer.host}"
        return None

    # --- standing ------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        m = self.m
        if self.campaign is not None and m.now >= self.campaign.deadline:
            self._end_campaign("not enough votes in time")
        if self.campaign is not None and not m.is_electable:
            self._end_campaign("it is not electable any more")
        if m.state is not MemberState.SECONDARY:
            return
        if self._may_elect_itself():
            self.stand("singleNodePromptElection")
        elif m.now >= m.election_due:
            self.stand(ELECTION_TIMEOUT)
        elif m.now >= self._takeover_due:
            self._takeover_due = NEVER
            if self._takeover_refusal() is None:
                self.stand("priorityTakeover")

    def next_due(self) -> Millis:
        m = self.m
        due = NEVER if self.campaign is None else self.campaign.deadline
        if m.state is MemberState.SECONDARY:
            due = min(due, m.election_due, self._takeover_due)
            if self._may_elect_itself():
                due = m.now
            if m.frozen_until > m.now:
                due = min(due, m.frozen_until)
        return due

    def on_step_up_request(self, request_id: int, request: StepUpRequest) -> None:
        """replSetStepUp: stand now; answered when the campaign has ended (map E14)."""
        m = self.m
        if m.is_primary:
            m.reply(request_id, Done())
            return
        reason = "stepUpRequestSkipDryRun" if request.skip_dry_run else "stepUpRequest"
        refusal = self.stand(reason, skip_dry_run=request.skip_dry_run)
        if self.campaign is not None and refusal is None:
            self.campaign.request_id = request_id
        elif not m.is_primary:
            m.reply(request_id, Refused(COMMAND_FAILED, f"election failed: {refusal or 'lost'}"))
        else:
            m.reply(request_id, Done())

    def stand(self, reason: str, *, skip_dry_run: bool = False) -> str | None:
        """Start a campaign, or return why not."""
        m = self.m
        m.push_election_timer()
        refusal = self.standing_refusal()
        if refusal is not None:
            if m.is_electable:
                m.journal("not standing", f"{reason}: {refusal}")
            return refusal
        self._end_campaign("a new one begins")
        self.last_reason = reason
        if skip_dry_run:
            self._ask_for_votes(reason)
        else:
            self._ask(reason, dry_run=True)
        return None

    def standing_refusal(self) -> str | None:
        """Why this member may not stand (map E2), None when it may."""
        m = self.m
        if m.config is None or not m.is_electable:
            return "it is not electable now"
        if m.term >= MAX_TERM:
            return f"there is no term above {m.term}; `replset repair` puts such a term right"
        up = sum(
            voter.host == m.host or ((peer := m.peers.get(voter.host)) is not None and peer.is_up)
            for voter in m.config.voters
        )
        if up < m.config.majority_vote_count:
            return f"it sees {up} of {len(m.config.voters)} voters"
        return None

    def _may_elect_itself(self) -> bool:
        """The only voter, which waits for nobody, but for its own vote to be saved."""
        m, config = self.m, self.m.config
        only_voter = config is not None and [voter.host for voter in config.voters] == [m.host]
        return only_voter and m.is_electable and self.campaign is None

    def _ask_for_votes(self, reason: str) -> None:
        """The real round: a new term, my own vote durable before it counts and before anybody is asked (map E3)."""
        m = self.m
        me = m.self_id
        invariant(me is not None, "a candidate is in its configuration")
        if me is None:
            return
        m.term += 1
        m.primary_id = None
        m.last_vote = LastVote(m.term, me)
        m.emit(Persist(m.last_vote))
        m.tell_state()
        self._ask(reason, dry_run=False)

    def _ask(self, reason: str, *, dry_run: bool) -> None:
        m = self.m
        config, me = m.config, m.self_id
        if config is None or me is None:
            return
        timeout = m.settings.election_timeout_ms
        request_id = None if self.campaign is None else self.campaign.request_id
        own = {me} if dry_run else set()  # a real one counts when it is saved
        campaign = Campaign(reason, m.term, dry_run, config.majority_vote_count, Millis(m.now + timeout), own)
        campaign.request_id = request_id
        self.campaign = campaign
        self.last_needed = campaign.needed
        m.journal("dry run" if dry_run else "election", f"{reason}: asking for {campaign.needed} votes")
        request = VoteRequest(
            m.set_name,
            m.term,
            me,
            m.incarnation,
            config.version,
            config.term,
            m.position.last_applied,
            dry_run,
            reason,
            m.set_id,
        )
        for voter in config.voters:
            if voter.host != m.host:
                campaign.asked[m.send(voter.host, request, timeout)] = voter.id
        self._count(campaign)

    def is_asked(self, request_id: int) -> bool:
        return self.campaign is not None and request_id in self.campaign.asked

    def on_vote_saved(self, term: int) -> None:
        """My own vote counts: a member that leads alone must not lead in one term twice, whenever its power goes."""
        campaign, me = self.campaign, self.m.self_id
        if campaign is not None and me is not None and not campaign.dry_run and campaign.term == term:
            campaign.granted.add(me)
            self._count(campaign)

    def on_vote_reply(self, request_id: int, reply: VoteReply | None, why_not: str) -> None:
        """Count an answer; `reply` None: the voter could not be reached."""
        m = self.m
        voter = None if self.campaign is None else self.campaign.asked.pop(request_id, None)
        if reply is not None:
            refusal = m.term_refusal(reply.term)
            if refusal is None:
                self.observe_term(reply.term)
            else:
                reply, why_not = None, f"its {refusal}"
        campaign = self.campaign
        if campaign is None or voter is None or m.config is None:
            return
        member = m.config.member(voter)
        reason = why_not if reply is None else reply.reason
        if reply is not None and reply.granted and member is not None and member.incarnation == reply.incarnation:
            campaign.granted.add(voter)
        else:
            m.journal("vote not granted", f"by member {voter}: {reason or 'its data is not named'}")
        self._count(campaign)

    def _count(self, campaign: Campaign) -> None:
        m = self.m
        if not m.is_electable:
            self._end_campaign("it is not electable any more")
        elif campaign.term != m.term:
            self._end_campaign("the term has passed")
        elif len(campaign.granted) >= campaign.needed:
            if campaign.dry_run:
                self._ask_for_votes(campaign.reason)
            else:
                self._win(campaign)
        elif len(campaign.granted | {m.self_id}) + len(campaign.asked) < campaign.needed:
            self._end_campaign(f"{len(campaign.granted)} of {campaign.needed} votes")

    def _win(self, campaign: Campaign) -> None:
        m = self.m
        invariant(campaign.term == m.term, "an election is won in its own term")
        self.campaign = None
        self._takeover_due = NEVER
        m.journal("won", f"{campaign.reason}: votes of members {sorted(campaign.granted)}")
        self._leading.begin()
        if campaign.request_id is not None:
            m.reply(campaign.request_id, Done())

    def _end_campaign(self, why: str) -> None:
        campaign, self.campaign = self.campaign, None
        if campaign is None:
            return
        self.m.journal("dry run lost" if campaign.dry_run else "election lost", why)
        if campaign.request_id is not None:
            self.m.reply(campaign.request_id, Refused(COMMAND_FAILED, f"election failed: {why}"))

    def cancel(self, why: str) -> None:
        """The configuration or the state changed: the votes asked for mean nothing any more."""
        self._end_campaign(why)

    # --- priority takeover (map E9) ------------------------------------------------------------------------------

    def consider_takeover(self) -> None:
        """Called with news of the primary: plan to take over from one of lower priority."""
        m = self.m
        if self._takeover_refusal() is not None:
            self._takeover_due = NEVER
        elif self._takeover_due == NEVER and m.config is not None:
            member = m.self_member
            rank = sum(other.priority > (member.priority if member else 0) for other in m.config.members)
            timeout = m.settings.election_timeout_ms
            self._takeover_due = Millis(m.now + (rank + 1) * timeout + int(m.rng.random() * timeout * 0.15))

    def _takeover_refusal(self) -> str | None:
        m = self.m
        primary = None if m.config is None else m.config.member(m.primary_id)
        member, peer = m.self_member, m.peer_of(m.primary_id)
        if primary is None or member is None or peer is None or peer.state is not MemberState.PRIMARY:
            return "no primary is known"
        if member.priority <= primary.priority or not m.is_electable:
            return "it has no higher priority, or is not electable"
        newest = max((other.position.last_applied for other in m.peers.values()), default=m.position.last_applied)
        if not _is_fresh(m.position.last_applied, newest):
            return "it is too far behind"
        return None


def _is_fresh(mine: OpTime, newest: OpTime) -> bool:
    if mine >= newest:
        return True
    if mine.term != newest.term:
        return False
    if mine.seconds == newest.seconds:
        return newest.increment - mine.increment <= TAKEOVER_FRESHNESS_INCREMENTS
    return newest.seconds - mine.seconds <= TAKEOVER_FRESHNESS_SECS

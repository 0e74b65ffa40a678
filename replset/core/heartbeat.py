"""Heartbeats: who is asked when, what an answer teaches, when a member counts as DOWN (map A3)."""

from __future__ import annotations

from replset.core.election import Elections
from replset.core.leading import Leading
from replset.core.member_state import MemberState
from replset.core.memory import NEVER, NO_CONFIG_VERSION, Memory, Peer
from replset.core.messages import (
    HeartbeatReply,
    HeartbeatRequest,
    ProgressReply,
    ProgressRequest,
    Refused,
    ReplyBody,
    Response,
)
from replset.core.reconfig import Reconfigs
from replset.ids import HostPort, Millis, OpTime

MAX_RETRIES = 2
BAD_VALUE, SET_NAMES_DIFFER = 2, 108


def other_set(m: Memory) -> Refused:
    """The answer to another set's member. It has no term: neither set takes the other one's."""
    return Refused(SET_NAMES_DIFFER, f"this member belongs to set {m.set_name!r} with id {m.set_id}, not to yours")


class Heartbeats:
    """Every member asks every other one, all the time."""

    def __init__(self, memory: Memory, elections: Elections, leading: Leading, reconfigs: Reconfigs) -> None:
        self.m = memory
        self._elections = elections
        self._leading = leading
        self._reconfigs = reconfigs
        self._asked: dict[int, HostPort] = {}

    # --- asking --------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        for peer in self.m.sorted_peers():
            if peer.heartbeat_id is None and self.m.now >= peer.heartbeat_due:
                peer.round_began = self.m.now
                peer.failures = 0
                self._beat(peer)

    def next_due(self) -> Millis:
        return min((peer.heartbeat_due for peer in self.m.peers.values() if peer.heartbeat_id is None), default=NEVER)

    def interval_ms(self) -> int:
        """Shorter while there is nobody to sync from; an arbiter never lets an election timeout pass (map H1)."""
        m = self.m
        interval, half = m.settings.heartbeat_interval_ms, m.settings.election_timeout_ms // 2
        if m.is_arbiter:
            return max(1, min(half, interval))
        if m.state is not MemberState.PRIMARY and m.sync_source is None:
            return max(1, min(half, interval // 4))
        return max(1, interval)

    def request(self, *, check_empty: bool = False) -> HeartbeatRequest:
        """What I say of myself when I ask."""
        m = self.m
        told = m.config
        return HeartbeatRequest(
            m.set_name,
            m.host,
            m.self_id,
            m.term,
            NO_CONFIG_VERSION if told is None else told.version,
            -1 if told is None else told.term,
            m.primary_id,
            m.incarnation,
            check_empty,
            m.set_id,
        )

    def _beat(self, peer: Peer) -> None:
        left = self.m.settings.heartbeat_timeout_ms - (self.m.now - peer.round_began)
        peer.heartbeat_id = self.m.send(peer.host, self.request(), max(1, left))
        self._asked[peer.heartbeat_id] = peer.host

    def is_asked(self, request_id: int) -> bool:
        return request_id in self._asked

    # --- being answered ------------------------------------------------------------------------------------------

    def on_response(self, response: Response) -> None:
        m = self.m
        host = self._asked.pop(response.request_id)
        body = response.body
        if isinstance(body, HeartbeatReply):
            refusal = self._reply_refusal(host, body)
            if refusal is not None:
                body = Refused(BAD_VALUE, refusal)
            elif m.is_member(host):
                self._elections.observe_term(body.term)
                self._take_config(body)
            elif m.config is None:
                self._take_config(body)
        peer = m.peers.get(host)
        if peer is None or peer.heartbeat_id != response.request_id:
            return
        peer.heartbeat_id = None
        if isinstance(body, HeartbeatReply):
            self._on_alive(peer, body, response.round_trip_ms)
        else:
            self._on_failure(peer, body, response.error)

    def _reply_refusal(self, host: HostPort, reply: HeartbeatReply) -> str | None:
        """Why nothing of an answer is taken: it cannot be true, or it comes from another set."""
        m = self.m
        if reply.set_name != m.set_name:
            return f"{host} belongs to set {reply.set_name!r}, not {m.set_name!r}"
        newest = max(reply.position.last_applied, reply.position.last_durable, reply.commit_point).term
        highest = max(newest, reply.commit_term, -1 if reply.config is None else reply.config.term)
        if highest > reply.term:
            return f"{host} is in term {reply.term} and speaks of term {highest}"
        return m.term_refusal(reply.term)

    def _on_alive(self, peer: Peer, reply: HeartbeatReply, round_trip_ms: int) -> None:
        m = self.m
        was_up, before = peer.is_up, peer.state
        peer.ping_ms = round_trip_ms if not was_up else (4 * peer.ping_ms + round_trip_ms) // 5
        peer.failures = 0
        peer.is_fresh = True
        peer.message = ""
        peer.last_contact = m.now
        peer.last_reply_wall_ms = m.wall_ms()
        peer.state = reply.state
        peer.told_incarnation(reply.incarnation)
        m.accept_position(peer, reply.position)
        peer.config_version, peer.config_term = reply.config_version, reply.config_term
        peer.term = reply.term
        peer.primary_id = reply.primary_id
        peer.rollback_id = reply.rollback_id
        peer.unacknowledged_rollbacks = reply.unacknowledged_rollbacks
        peer.quarantine = reply.quarantine
        peer.http_address = reply.http_address
        peer.sync_source = reply.sync_source
        peer.election_wall_ms = reply.election_wall_ms
        peer.has_data = reply.has_data
        peer.electable = reply.electable
        peer.heartbeat_due = Millis(m.now + self.interval_ms())
        self._learn_primary(peer, reply)
        self.accept_commit_point(reply.commit_point, reply.commit_term)
        if before is not peer.state:
            m.journal("member", f"{peer.host} is {peer.state.name}")
        self._leading.progress_moved()
        self._leading.advance_catch_up()
        self._reconfigs.advance()

    def _learn_primary(self, peer: Peer, reply: HeartbeatReply) -> None:
        m = self.m
        if reply.term != m.term:
            return
        if reply.state is MemberState.PRIMARY:
            m.set_primary(peer.id)
            m.push_election_timer()
            self._elections.consider_takeover()
        elif m.primary_id == peer.id:
            m.set_primary(None)

    def accept_commit_point(self, optime: OpTime, term: int = 0) -> None:
        """From a heartbeat only in the term of my newest entry, and never beyond it (map K2); arbiters take all. In an
        initial sync none: it would speak of entries that are about to be replaced.
        """
        m = self.m
        if m.state is MemberState.PRIMARY or m.must_sync:
            return
        if m.is_arbiter:
            self._leading.move_commit_point(optime, max(term, optime.term))
        elif optime.term == m.position.last_applied.term:
            self._leading.move_commit_point(min(optime, m.position.last_applied), max(term, optime.term))

    def _on_failure(self, peer: Peer, body: ReplyBody | None, error: str) -> None:
        """Up to two retries at once, within the timeout; then the member is DOWN until it answers again (map H4)."""
        m = self.m
        peer.failures += 1
        peer.message = body.reason if isinstance(body, Refused) else error
        in_time = m.now - peer.round_began < m.settings.heartbeat_timeout_ms
        if peer.failures <= MAX_RETRIES and in_time and not isinstance(body, Refused):
            self._beat(peer)
            return
        if peer.state is not MemberState.DOWN:
            m.journal("member", f"{peer.host} is not reachable: {peer.message}")
        peer.state = MemberState.DOWN
        peer.is_fresh = True
        peer.heartbeat_due = Millis(m.now + self.interval_ms())
        if m.primary_id == peer.id:
            m.set_primary(None)
        self._leading.advance_catch_up()
        self._reconfigs.advance()

    def _take_config(self, reply: HeartbeatReply) -> None:
        if reply.config is not None:
            self._reconfigs.install_from_heartbeat(reply.config)

    # --- being asked ---------------------------------------------------------------------------------------------

    def on_request(self, request_id: int, request: HeartbeatRequest) -> None:
        m = self.m
        if m.is_other_set(request.set_name, request.set_id):
            m.reply(request_id, other_set(m))
            return
        if m.is_member(request.sender):
            refusal = m.term_refusal(request.term)
            if refusal is not None:
                m.reply(request_id, Refused(BAD_VALUE, refusal))
                return
            self._elections.observe_term(request.term)
        peer = m.peers.get(request.sender)
        if peer is not None:
            peer.last_contact = m.now
            peer.last_request_wall_ms = m.wall_ms()
            peer.told_incarnation(request.incarnation)
            peer.config_version, peer.config_term = request.config_version, request.config_term
            if request.term == m.term and request.primary_id is not None and request.primary_id == request.sender_id:
                m.set_primary(request.primary_id)
            elif peer.state is MemberState.PRIMARY and request.primary_id != peer.id:
                peer.state = MemberState.SECONDARY  # it stepped down; an arbiter shall not wait for its next answer
                if m.primary_id == peer.id:
                    m.set_primary(None)
            self._leading.advance_commit_point()  # it may be the one by which a majority has the configuration
            self._reconfigs.advance()
        if not request.check_empty and self._knows_newer_config(request):
            self._fetch_config(request.sender, peer)
        m.reply(request_id, self.answer(request))

    def answer(self, request: HeartbeatRequest) -> HeartbeatReply:
        """What I say of myself when I am asked."""
        m = self.m
        config = m.config
        mine_is_newer = config is not None and config.is_newer_than(request.config_version, request.config_term)
        return HeartbeatReply(
            m.set_name,
            m.term,
            m.state,
            m.self_id,
            NO_CONFIG_VERSION if config is None else config.version,
            -1 if config is None else config.term,
            config if mine_is_newer else None,
            m.primary_id,
            m.told_position(),
            m.commit_point,
            m.is_electable,
            m.election_wall_ms,
            m.sync_source,
            m.incarnation,
            m.rollback_id(),
            m.http_address,
            m.has_data,
            m.unacknowledged_rollbacks(),
            m.quarantine,
            m.commit_term,
        )

    def _knows_newer_config(self, request: HeartbeatRequest) -> bool:
        config = self.m.config
        if request.config_version <= 0:
            return False
        if config is None:
            return True
        newer = request.config_version > config.version
        if config.term != -1 and request.config_term != -1 and config.term != request.config_term:
            newer = request.config_term > config.term
        return newer

    def _fetch_config(self, sender: HostPort, peer: Peer | None) -> None:
        """Ask the sender in return: its answer brings the configuration. A stranger is asked only by a member that has
        none: else one message would put this member into another set.
        """
        m = self.m
        if peer is not None:
            if peer.heartbeat_id is None:
                peer.heartbeat_due = m.now
        elif (m.config is None or m.is_member(sender)) and sender not in self._asked.values():
            self._asked[m.send(sender, self.request(), m.settings.heartbeat_timeout_ms)] = sender

    # --- progress (map R8) ---------------------------------------------------------------------------------------

    def on_progress(self, request_id: int, request: ProgressRequest) -> None:
        """replSetUpdatePosition: only a member's, and only in my own term, does it count."""
        m = self.m
        if m.is_other_set(m.set_name, request.set_id):
            m.reply(request_id, other_set(m))
            return
        is_heard = m.config is not None and m.config.member(request.sender_id) is not None
        if is_heard and m.term_refusal(request.term) is None:
            self._elections.observe_term(request.term)
        if not is_heard or request.term != m.term:
            m.reply(request_id, ProgressReply(m.term, accepted=False))
            return
        for progress in request.progress:
            peer, position = m.peer_of(progress.member_id), progress.position
            if peer is None or max(position.last_applied, position.last_durable).term > request.term:
                continue
            peer.last_contact = m.now
            peer.told_incarnation(progress.incarnation)
            m.accept_position(peer, position)
        self._leading.progress_moved()
        self._leading.advance_catch_up()
        self._reconfigs.advance()
        m.reply(request_id, ProgressReply(m.term, accepted=True))

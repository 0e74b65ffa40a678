"""Heartbeats and progress reports: when they are sent, what they change, when a member counts as DOWN (map A3)."""

from __future__ import annotations

from replset.config.feature_version import LATEST
from replset.core.effects import RelayProgress
from replset.core.election import Elections
from replset.core.leader import Leader
from replset.core.member_state import MemberState
from replset.core.messages import (
    HeartbeatReply,
    HeartbeatRequest,
    MemberProgress,
    ProgressReply,
    ProgressRequest,
    Refused,
    ReplyBody,
    Response,
)
from replset.core.reconfig import Reconfigs, other_members_reason
from replset.core.state import NEVER, NO_CONFIG_VERSION, NodeState, Peer
from replset.errors import ErrorCode
from replset.ids import HostPort, Millis, OpTime

MAX_RETRIES = 2
LEAST_PAUSE_MS = 100


def other_set_refusal(node: NodeState) -> Refused:
    """The reply to a member of another set. It has no term, since neither set may take the other one's."""
    return Refused(
        ErrorCode.INCONSISTENT_REPLICA_SET_NAMES,
        f"this member belongs to set {node.set_name!r} with id {node.set_id}, not to yours",
    )


class Heartbeats:
    """Sends heartbeats to every other member and handles theirs."""

    def __init__(self, node: NodeState, elections: Elections, leader: Leader, reconfigs: Reconfigs) -> None:
        self.node = node
        self._elections = elections
        self._leader = leader
        self._reconfigs = reconfigs
        self._pending: dict[int, HostPort] = {}

    # --- requests ------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        for peer in self.node.sorted_peers():
            if peer.heartbeat_id is None and self.node.now >= peer.heartbeat_due:
                peer.heartbeat_began = self.node.now
                peer.failures = 0
                self._send_heartbeat(peer)

    def next_due(self) -> Millis:
        return min(
            (peer.heartbeat_due for peer in self.node.peers.values() if peer.heartbeat_id is None), default=NEVER
        )

    def interval_ms(self) -> int:
        """The time between two heartbeats (map H1).

        A follower without a sync source asks more often, and most often who has just initiated the set. An arbiter
        never waits longer than half an election timeout.
        """
        node = self.node
        interval, half = node.settings.heartbeat_interval_ms, node.settings.election_timeout_ms // 2
        if node.is_arbiter:
            return max(1, min(half, interval))
        if self._elections.awaits_first_primary:
            return min(LEAST_PAUSE_MS, interval)
        if node.state is not MemberState.PRIMARY and node.sync_source is None:
            return max(1, min(half, interval // 4))
        if node.state is MemberState.PRIMARY and node.role_hook_ms:
            return max(1, min(interval, node.role_hook_ms // 4))
        return max(1, interval)

    def _send_heartbeat(self, peer: Peer) -> None:
        left = self.node.settings.heartbeat_timeout_ms - (self.node.now - peer.heartbeat_began)
        peer.heartbeat_id = self.node.send(peer.host, self.node.heartbeat_request(), max(1, left))
        self._pending[peer.heartbeat_id] = peer.host

    def awaits(self, request_id: int) -> bool:
        return request_id in self._pending

    # --- replies -------------------------------------------------------------------------------------------------

    def on_response(self, response: Response) -> None:
        node = self.node
        host = self._pending.pop(response.request_id)
        body = response.body
        if isinstance(body, HeartbeatReply):
            refusal = self._reply_refusal(host, body)
            if refusal is not None:
                body = Refused(ErrorCode.BAD_VALUE, refusal)
            elif node.is_member(host) or (body.config is not None and node.is_former_member(host)):
                self._elections.observe_term(body.term)
                self._reconfigs.install_from_heartbeat(body.config)
            elif node.config is None:
                self._reconfigs.install_from_heartbeat(body.config)
        peer = node.peers.get(host)
        if peer is None or peer.heartbeat_id != response.request_id:
            return
        peer.heartbeat_id = None
        if isinstance(body, HeartbeatReply):
            self._on_reply(peer, body, response.round_trip_ms)
        else:
            self._on_failure(peer, body, response.error, refused=response.refused)

    def _reply_refusal(self, host: HostPort, reply: HeartbeatReply) -> str | None:
        """Why a reply is ignored: it contradicts itself, or comes from another set; None: it is used."""
        node = self.node
        if reply.set_name != node.set_name:
            return f"{host} belongs to set {reply.set_name!r}, not {node.set_name!r}"
        # Whoever has an entry, a commit point or a configuration of a term is in that term at least. If a later commit
        # term were believed, this member would leave every source, since none has an entry of that term
        # (`SyncSources`).
        newest = max(reply.position.last_applied, reply.position.last_durable, reply.commit_point).term
        highest = max(newest, reply.commit_term, -1 if reply.config is None else reply.config.term)
        if highest > reply.term:
            return f"{host} is in term {reply.term} and names term {highest}"
        return node.term_refusal(reply.term)

    def _on_reply(self, peer: Peer, reply: HeartbeatReply, round_trip_ms: int) -> None:
        node = self.node
        before = peer.state
        peer.note_round_trip(round_trip_ms)
        peer.failures = 0
        peer.has_answered = True
        peer.message = ""
        peer.last_contact = node.now
        peer.answered_since = peer.heartbeat_began
        peer.role_free_in = -1 if reply.holds_role else reply.term
        peer.last_reply_wall_ms = node.wall_ms()
        peer.state = reply.state
        peer.set_incarnation(reply.incarnation)
        node.accept_position(peer, reply.position)
        peer.config_version, peer.config_term = reply.config_version, reply.config_term
        peer.unacknowledged_rollbacks = reply.unacknowledged_rollbacks
        peer.quarantine = reply.quarantine
        peer.overloaded = reply.overloaded
        peer.release = reply.release
        peer.http_address = reply.http_address
        peer.sync_source = reply.sync_source
        peer.election_wall_ms = reply.election_wall_ms
        peer.has_data = reply.has_data
        peer.electable = reply.electable
        peer.heartbeat_due = Millis(node.now + self.interval_ms())
        self._update_primary(peer, reply)
        self.accept_commit_point(reply.commit_point, reply.commit_term)
        if before is not peer.state:
            peer.state_since = node.now
            node.journal("member", f"{peer.host} is {peer.state.name}")
        self._leader.on_progress_changed()
        self._reconfigs.advance()

    def _update_primary(self, peer: Peer, reply: HeartbeatReply) -> None:
        node = self.node
        # Whoever says that it is primary in an earlier term may be replaced by now. Believed, it would keep this member
        # from standing for election, and be named to clients.
        if reply.term != node.term:
            return
        if reply.state is MemberState.PRIMARY:
            peer.refused_at = None
            node.set_primary(peer.id)
            node.ages.note(peer.position.last_applied, node.now)
            node.push_election_timer()
            self._elections.takeovers.plan()
        elif node.primary_id == peer.id:
            node.set_primary(None)

    def accept_commit_point(self, optime: OpTime, term: int = 0) -> None:
        """Take over a commit point from a heartbeat (map K2).

        A member with data takes it only in the term of its newest entry, and never beyond that entry. Else it could
        count an entry as committed that a rollback will replace. An arbiter has no entries and takes every one.
        During initial sync none is taken, since the data is about to be replaced.
        """
        node = self.node
        if node.state is MemberState.PRIMARY or node.must_sync:
            return
        if node.is_arbiter:
            self._leader.advance_commit_point(optime, max(term, optime.term))
        elif optime.term == node.position.last_applied.term:
            self._leader.advance_commit_point(min(optime, node.position.last_applied), max(term, optime.term))

    def on_connection_lost(self, host: HostPort) -> None:
        """Send a heartbeat soon: if the process is gone, a fresh connect of it is refused."""
        peer = self.node.peers.get(host)
        if peer is not None and peer.heartbeat_id is None and peer.state is not MemberState.DOWN:
            # Not at once after the last one: a member that answers and then breaks the connection would be asked for
            # ever without a pause.
            soon = Millis(max(self.node.now, peer.heartbeat_began + LEAST_PAUSE_MS))
            peer.heartbeat_due = min(peer.heartbeat_due, soon)

    def _on_failure(self, peer: Peer, body: ReplyBody | None, error: str, *, refused: bool) -> None:
        """Retry up to twice within the timeout; then the member is DOWN until it answers again (map H4).

        A member that sends messages lives. After a cut has healed, the heartbeat that waited on a broken connection is
        no reason to call it DOWN: each of its retries has the whole time.
        """
        node = self.node
        peer.failures += 1
        if refused:
            was_refused, peer.refused_at = peer.refused_at is not None, node.now
            if not was_refused:
                self._elections.fast.on_refused(peer)
        reason = body.reason if isinstance(body, Refused) else error
        peer.message = reason.removeprefix(f"{peer.host} cannot be reached: ")  # it is shown beside the name
        if peer.is_heard(node.now, node.settings):
            peer.heartbeat_began = node.now
        in_time = node.now - peer.heartbeat_began < node.settings.heartbeat_timeout_ms
        if peer.failures <= MAX_RETRIES and in_time and not isinstance(body, Refused):
            self._send_heartbeat(peer)
            return
        if peer.state is not MemberState.DOWN:
            node.journal("member", f"{peer.host} is not reachable: {peer.message}")
            peer.state_since = node.now
        peer.state = MemberState.DOWN
        peer.has_answered = True
        peer.heartbeat_due = Millis(node.now + self.interval_ms())
        if node.primary_id == peer.id:
            node.set_primary(None)
        self._reconfigs.advance()

    # --- heartbeats of other members -----------------------------------------------------------------------------

    def on_request(self, request_id: int, request: HeartbeatRequest) -> None:
        node = self.node
        if node.is_other_set(request.set_name, request.set_id):
            node.reply(request_id, other_set_refusal(node))
            return
        if node.is_member(request.sender):
            refusal = node.term_refusal(request.term)
            if refusal is not None:
                node.reply(request_id, Refused(ErrorCode.BAD_VALUE, refusal))
                return
            self._elections.observe_term(request.term)
        if request.check_empty and node.config is None and request.expected != node.expected:
            node.reply(request_id, Refused(ErrorCode.NEW_CONFIG_INCOMPATIBLE, other_members_reason(node.expected)))
            return
        peer = node.peers.get(request.sender)
        if peer is not None:
            peer.last_contact = node.now
            peer.on_message(node.now, node.settings)
            peer.last_request_wall_ms = node.wall_ms()
            peer.role_free_in = -1 if request.holds_role else request.term
            peer.set_incarnation(request.incarnation)
            peer.config_version, peer.config_term = request.config_version, request.config_term
            if request.term == node.term and request.primary_id is not None and request.primary_id == request.sender_id:
                peer.refused_at = None
                node.set_primary(request.primary_id)
            elif peer.state is MemberState.PRIMARY and request.primary_id != peer.id:
                peer.state = MemberState.SECONDARY  # it stepped down; an arbiter need not wait for its next reply
                if node.primary_id == peer.id:
                    node.set_primary(None)
            self._leader.advance_role_wait()
            self._leader.update_commit_point()  # a majority may have the configuration now
            self._reconfigs.advance()
        if not request.check_empty and self._has_newer_config(request):
            self._fetch_config(request.sender, peer)
        node.reply(request_id, self.reply(request))

    def reply(self, request: HeartbeatRequest) -> HeartbeatReply:
        node = self.node
        config = node.config
        is_newer = config is not None and config.is_newer_than(request.config_version, request.config_term)
        return HeartbeatReply(
            node.set_name,
            node.term,
            node.state,
            node.self_id,
            NO_CONFIG_VERSION if config is None else config.version,
            -1 if config is None else config.term,
            config if is_newer else None,
            node.primary_id,
            node.advertised_position(),
            node.commit_point,
            node.is_electable,
            node.election_wall_ms,
            node.sync_source,
            node.incarnation,
            node.rollback_id(),
            node.http_address,
            node.has_data,
            node.unacknowledged_rollbacks(),
            node.quarantine,
            node.commit_term,
            node.is_overloaded(),
            node.holds_role(),
            LATEST,
        )

    def _has_newer_config(self, request: HeartbeatRequest) -> bool:
        config = self.node.config
        if request.config_version <= 0:
            return False
        if config is None:
            return True
        newer = request.config_version > config.version
        if config.term != -1 and request.config_term != -1 and config.term != request.config_term:
            newer = request.config_term > config.term
        return newer

    def _fetch_config(self, sender: HostPort, peer: Peer | None) -> None:
        """Send a heartbeat back: the reply brings the sender's configuration.

        Of those that are no members it asks only one that the last reconfig removed: this configuration may never have
        been committed, and the others may have gone on without it. Otherwise one message of a stranger could put this
        member into another set. A member without a configuration asks everybody.
        """
        node = self.node
        if peer is not None:
            if peer.heartbeat_id is None:
                peer.heartbeat_due = node.now
        elif sender not in self._pending.values() and (
            node.config is None or node.is_member(sender) or node.is_former_member(sender)
        ):
            self._pending[node.send(sender, node.heartbeat_request(), node.settings.heartbeat_timeout_ms)] = sender

    # --- progress (map R8) ---------------------------------------------------------------------------------------

    def on_progress_request(self, request_id: int, request: ProgressRequest) -> None:
        """Answer a replSetUpdatePosition."""
        node = self.node
        if node.is_other_set(node.set_name, request.set_id):
            node.reply(request_id, other_set_refusal(node))
            return
        accepted = self.on_progress(request)
        node.reply(request_id, ProgressReply(node.term, accepted, node.commit_point, node.commit_term))

    def on_progress_reply(self, reply: ProgressReply) -> None:
        """Take over the commit point of the member that this one reports to, as from a heartbeat."""
        if max(reply.commit_point.term, reply.commit_term) <= reply.term:
            self.accept_commit_point(reply.commit_point, reply.commit_term)

    def on_progress(self, request: ProgressRequest) -> bool:
        """Note the positions of a replSetUpdatePosition or of a fetch; they count only from a member of this set and in
        this node's term. Return whether they do.

        A report of an earlier term may name a position from which its member has rolled back since.
        """
        node = self.node
        if node.is_other_set(node.set_name, request.set_id):
            return False
        if node.config is None or node.config.member(request.sender_id) is None:
            return False
        if request.term != node.term:
            if node.term_refusal(request.term) is not None or request.term < node.term:
                return False
            self._elections.observe_term(request.term)
        is_new = False
        for progress in request.progress:
            is_new |= self._accept_progress(request, progress)
        if is_new and node.sync_source is not None and not node.is_primary:
            node.emit(RelayProgress())
        self._leader.on_progress_changed(request.progress[0].position if len(request.progress) == 1 else None)
        self._leader.advance_catch_up()
        self._reconfigs.advance()
        return True

    def _accept_progress(self, request: ProgressRequest, progress: MemberProgress) -> bool:
        """Note one member's position. Return whether it is a new one.

        A position that another member passes on says nothing of how the member itself is. It counts only for the
        incarnation that the member named here, so that an old one cannot bring back what its disk has lost.
        """
        node = self.node
        peer, position = node.peer_of(progress.member_id), progress.position
        # As in `_reply_refusal`. Without a primary, this member would take such a one for the newest, and for its
        # source.
        if peer is None or max(position.last_applied, position.last_durable).term > request.term:
            return False
        if progress.member_id == request.sender_id:
            peer.last_contact = node.now
            peer.on_message(node.now, node.settings)
            peer.set_incarnation(progress.incarnation)
        elif peer.incarnation != progress.incarnation:
            return False
        peer.reported_at, peer.reported_term = node.now, node.term
        before, known = peer.position, peer.position.last_durable
        # Reports and fetches come on connections of their own, so that an older position may come later. In one
        # term what is on disk only grows, but for a disk that lost it, of which heartbeats tell.
        if known.term < node.term or position.last_durable >= known:
            node.accept_position(peer, position)
        return peer.position != before

"""The invariants of the core, checked after every event: one primary per term, one vote per member and term, a commit
point that names what a primary has, one committed history that no rollback touches.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from replset.config import Member, ReplSetConfig
from replset.core.effects import LastVote
from replset.core.member_state import MemberState
from replset.core.messages import (
    FetchProgress,
    HeartbeatReply,
    Message,
    Position,
    ProgressRequest,
    Request,
    Response,
)
from replset.ids import OPTIME_NULL, HostPort, MemberId, OpTime

if TYPE_CHECKING:
    from tests.simulation.core_kit.machine import CoreMachine, Entry

Known = tuple[HostPort, MemberState, str, Position, int]
"""What a member last took from another one: its state, incarnation, place and version of the configuration."""


class CoreCheckers:
    """What the members have said so far; each method raises AssertionError with the invariant that it breaks."""

    def __init__(self) -> None:
        self.primaries: dict[int, tuple[HostPort, int]] = {}
        self.votes: dict[tuple[HostPort, str, int], MemberId | None] = {}
        self.committed_log: list[Entry] = []
        self.committed_in: dict[OpTime, int] = {}  # the term of the commit point that covered it first
        self.uncounted_undone = 0  # copies of committed entries that had not been counted for them
        self.version_in_force = 0  # the highest version of a configuration that a majority saved
        self._configs: dict[tuple[int, int], ReplSetConfig] = {}
        self._savers: dict[tuple[int, int], set[HostPort]] = {}
        self.exempt = False  # a forced reconfig voids the invariants

    def on_vote(self, machine: CoreMachine, vote: LastVote) -> None:
        key = (machine.host, machine.disk.incarnation, vote.term)
        if vote.candidate is not None:
            before = self.votes.setdefault(key, vote.candidate)
            assert before == vote.candidate, f"invariant 1: {machine.host} voted twice in term {vote.term}"

    def check_primary(self, machine: CoreMachine) -> None:
        """To be asked after every event."""
        node = machine.node
        self._check_kind(machine)
        if node.state is MemberState.PRIMARY and not self.exempt:
            me = (machine.host, machine.start_number)
            leader = self.primaries.setdefault(node.term, me)
            assert leader == me, f"invariant 1: two primaries in term {node.term}, {leader} and {me} (member, start)"
        if node.state is MemberState.PRIMARY and node.commit_point.term == node.term and not self.exempt:
            self._check_committed(machine)

    def _check_kind(self, machine: CoreMachine) -> None:
        """Who leads or serves reads has documents, and a witness has none that would grow old."""
        node, disk = machine.node, machine.disk
        in_service = node.state in (MemberState.PRIMARY, MemberState.SECONDARY)
        what = f"invariant 16: {machine.host} is {node.state.name} with the oplog of a witness"
        assert not (in_service and disk.oplog_only), what
        is_witness = node.is_witness and node.state is MemberState.ARBITER and not disk.marker
        assert not is_witness or disk.oplog_only or not disk.log, f"invariant 16: {machine.host} has documents"

    def check_copy(self, machine: CoreMachine, source: CoreMachine) -> None:
        what = f"invariant 16: {machine.host} copies {source.host}, which is a witness without documents"
        assert not source.disk.oplog_only, what

    def _check_committed(self, machine: CoreMachine) -> None:
        """A primary has what it says is committed."""
        log, point = machine.disk.log, machine.node.commit_point
        place = bisect_right(log, point, key=lambda entry: entry[0])
        assert place, f"invariant 3: {machine.host} commits {point}, its log is empty up to there"
        assert log[place - 1][0] == point, f"invariant 3: {machine.host} commits {point}, which it does not have"

    def on_commit(self, machine: CoreMachine) -> None:
        """What this member knows to be committed goes on from what was committed before.

        An arbiter vouches for no entry of its own: on its disk may be what it wrote as a data-bearing member once.
        """
        config = machine.node.config
        member = None if config is None else config.member_at(machine.host)
        if self.exempt or (member is not None and member.arbiter_only):
            return
        log, known = machine.disk.log, self.committed_log
        place = bisect_right(log, machine.node.commit_point, key=lambda entry: entry[0])
        for mine, theirs in zip(log[:place], known, strict=False):
            assert mine == theirs, f"invariant 3: {machine.host} commits {mine} where {theirs} was committed"
        for entry in log[len(known) : place]:
            known.append(entry)
            self.committed_in[entry[0]] = machine.node.commit_point.term

    # --- what a member makes of what it hears ----------------------------------------------------------------------

    def sender_of_late_message(self, machine: CoreMachine, message: Message) -> Known | None:
        """What is known of the sender of something late: a report of an earlier term, an answer to a heartbeat that is
        not waited for any more. None: it is not late.
        """
        node = machine.node
        match message:
            case Response(to=sender, body=HeartbeatReply()):
                peer = node.peer_at(sender)
                return None if peer is None or peer.heartbeat_id == message.request_id else self._known(machine, sender)
            case Request(body=ProgressRequest(term=term, sender_id=number)) | FetchProgress(
                ProgressRequest(term=term, sender_id=number)
            ) if term < node.term:
                row = None if node.config is None else node.config.member(number)
                return None if row is None else self._known(machine, row.host)
        return None

    def check_late_message(self, machine: CoreMachine, message: Message, known: Known | None) -> None:
        """What is late changes nothing of what is known of its sender."""
        now = None if known is None else self._known(machine, known[0])
        what = "" if known is None else f"{machine.host} takes something late from {known[0]}: {known[1:]}, then {now}"
        assert known is None or now in (None, known), f"invariant 11: {what}"

    def _known(self, machine: CoreMachine, sender: HostPort) -> Known | None:
        peer = machine.node.peer_at(sender)
        return None if peer is None else (sender, peer.state, peer.incarnation, peer.position, peer.config_version)

    # --- what the disks hold, whatever was reported -----------------------------------------------------------------

    def check_commit_point(self, machine: CoreMachine, point: OpTime, configs: list[ReplSetConfig]) -> None:
        """What a primary takes for committed is on the disks of a write majority, by its configuration before this
        event or after it. A named disk that was lost meanwhile had it, as far as anybody can know.
        """
        if self.exempt or machine.node.state is not MemberState.PRIMARY:
            return
        holders = [
            (config, [v.host for v in config.oplog_voters if self._has(machine, v, point)]) for config in configs
        ]
        held_by = [f"{config.write_majority} by {config.version_and_term}: {hosts}" for config, hosts in holders]
        on_enough = any(len(hosts) >= config.write_majority for config, hosts in holders)
        assert on_enough, f"invariant 3: {machine.host} commits {point}, which is on the disks of fewer than {held_by}"
        for other in machine.cluster.machines.values():
            voters = self._voters_for(other)
            lacks = all(optime != point for optime, _ in reversed(other.disk.log))
            assert not (voters and lacks), (
                f"invariant 3: {machine.host} commits {point}; {voters} can elect {other.host}"
            )

    def _voters_for(self, candidate: CoreMachine) -> list[HostPort]:
        """Who would vote for it, by what is on everybody's disk; nobody where that is no majority."""
        config, members = candidate.disk.config, candidate.cluster.machines
        mine = None if config is None else config.member_at(candidate.host)
        if config is None or mine is None or not mine.is_voter or not mine.is_electable or not candidate.disk.log:
            return []
        if mine.incarnation != candidate.disk.incarnation or candidate.disk.marker:
            return []
        newest = candidate.disk.log[-1][0]
        voters = [candidate.host]
        for voter in config.voters:
            machine = members[voter.host]
            theirs, disk = machine.disk.config, machine.disk
            own = None if theirs is None else theirs.member_at(voter.host)
            if (
                voter.host == candidate.host
                or theirs is None
                or own is None
                or theirs.is_newer_than(*config.version_and_term)
            ):
                continue
            known = theirs.member(mine.id)
            incarnation_matches = (
                own.is_voter and own.incarnation == disk.incarnation and (own.arbiter_only or not disk.marker)
            )
            if not incarnation_matches or known is None or known.incarnation != mine.incarnation:
                continue
            log = disk.log[: disk.durable]
            place = machine.node.commit_point if own.arbiter_only else log[-1][0] if log else OPTIME_NULL
            if place <= newest:
                voters.append(voter.host)
        return voters if len(voters) >= config.majority_vote_count else []

    def _has(self, machine: CoreMachine, voter: Member, point: OpTime) -> bool:
        disk = machine.cluster.machines[voter.host].disk
        if disk.incarnation != voter.incarnation:
            return True
        place = bisect_right(disk.log, point, hi=disk.durable, key=lambda entry: entry[0])
        return place > 0 and disk.log[place - 1][0] == point

    def check_reconfig(self, machine: CoreMachine, before: ReplSetConfig, after: ReplSetConfig) -> None:
        """A primary changes a configuration that a majority of its voters has, so that their majorities meet and
        nobody can be elected who lacks what is committed.

        A primary whose configuration was forced may learn of a change that the primary before it made of the same one,
        and judged by what it knew.
        """
        if self.exempt or machine.node.state is not MemberState.PRIMARY or after.term == -1:
            return
        newest = self.version_in_force
        assert after.version >= newest, (
            f"invariant 10: {machine.host} makes version {after.version}, {newest} was in force"
        )
        if after.version == before.version:
            return
        members, what = (
            machine.cluster.machines,
            f"{machine.host} makes {after.version_and_term} of {before.version_and_term}",
        )
        hosts = {voter.host for voter in (*before.voters, *after.voters)}
        apart = before.majority_vote_count + after.majority_vote_count <= len(hosts)
        assert not apart, f"invariant 10: {what}: a majority of each may be of other members"
        if before.term == -1 and after.term < machine.node.term:
            return
        holders = [
            voter for voter in before.voters if voter.host == machine.host or self._holds(machine, voter, before)
        ]
        assert len(holders) >= before.majority_vote_count, f"invariant 10: {what}, which {len(holders)} voters have"
        written = [voter for voter in before.oplog_voters if self._has_term(machine, voter)]
        is_written = len(written) >= before.write_majority or self._meets_term(machine, before, after)
        assert is_written, f"invariant 10: {what} before its term's writes are on a majority"
        able = [voter for voter in after.voters if members[voter.host].disk.incarnation == voter.incarnation]
        lacking = [voter for voter in able if not self._knows_committed(machine, voter)]
        can_elect = len(lacking) >= after.majority_vote_count and any(voter.is_electable for voter in lacking)
        assert not can_elect, f"invariant 3: {what}: {[v.host for v in lacking]} lack what is committed, and can elect"

    def _meets_term(self, machine: CoreMachine, before: ReplSetConfig, after: ReplSetConfig) -> bool:
        """For a spare, and where a vote is taken and none given, it is enough that every majority of the next
        configuration meets who has the term's writes: the voter may be needed for the write majority of the one before,
        or count for its size alone, as an arbiter does. Not where it was forced: others may have changed it too.
        """
        has_spare = any(row.spare_for is not None for row in (*before.members, *after.members))
        takes_vote = {voter.host for voter in after.voters} < {voter.host for voter in before.voters}
        if before.term == -1 or not (has_spare or takes_vote):
            return False
        written = [voter for voter in after.oplog_voters if self._has_term(machine, voter)]
        same = [voter.host for voter in before.voters] == [voter.host for voter in after.voters]
        return same or len(after.voters) - len(written) < after.majority_vote_count

    def on_config_saved(self, machine: CoreMachine, config: ReplSetConfig) -> None:
        """One that a majority of its voters saved in its own term is in force: whoever has it refuses older ones.

        A member that lost its disk since may have forgotten a newer one, and its vote does not count.
        """
        if config.term != -1:  # a forced one draws its version
            same = self._configs.setdefault(config.version_and_term, config)
            assert same == config, f"invariant 10: {machine.host} saves {config}, and there was {same}"
        if machine.node.term == config.term:
            savers = self._savers.setdefault(config.version_and_term, set())
            voter = config.member_at(machine.host)
            if voter is not None and voter.is_voter and voter.incarnation == machine.disk.incarnation:
                savers.add(machine.host)
            if len(savers) >= config.majority_vote_count:
                self.version_in_force = max(self.version_in_force, config.version)

    def _has_term(self, machine: CoreMachine, voter: Member) -> bool:
        """Whether its disk holds an entry of the primary's term, and so all that came before."""
        disk = machine.cluster.machines[voter.host].disk
        if disk.incarnation != voter.incarnation:
            return True
        return disk.durable > 0 and disk.log[disk.durable - 1][0].term == machine.node.term

    def _holds(self, machine: CoreMachine, voter: Member, config: ReplSetConfig) -> bool:
        disk = machine.cluster.machines[voter.host].disk
        if disk.incarnation != voter.incarnation or disk.config is None:
            return disk.incarnation != voter.incarnation
        return disk.config.version >= config.version and not config.is_newer_than(*disk.config.version_and_term)

    def _knows_committed(self, machine: CoreMachine, voter: Member) -> bool:
        """Whether this voter would refuse its vote to who lacks the newest committed entry."""
        if not self.committed_log:
            return True
        newest, other = self.committed_log[-1][0], machine.cluster.machines[voter.host]
        if voter.arbiter_only:
            return other.node.commit_point >= newest
        return any(optime == newest for optime, _ in reversed(other.disk.log))

    def check_rollback(self, machine: CoreMachine, entries: list[Entry], down_to: OpTime) -> None:
        if self.exempt:
            return
        below = f"{machine.host} would roll back to {down_to}, below its commit point {machine.committed}"
        assert down_to >= machine.committed, f"invariant 3: {below}"
        # Who has nothing of the term in which an entry was committed was not counted for it: its copy may go.
        newest = entries[-1][0].term if entries else 0
        lost = [entry for entry in entries if self.committed_in.get(entry[0], newest + 1) <= newest]
        assert not lost, f"invariant 3: {machine.host} rolls back {lost[0]}, which was committed"
        self.uncounted_undone += sum(entry[0] in self.committed_in for entry in entries)

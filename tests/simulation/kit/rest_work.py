"""What operators do with a set at rest, and what has to come of it: each run draws one thing.

It comes behind the faults, from a generator of its own, so a run is the same up to there whatever is drawn.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from replset.config import Member
from replset.core.election import AGAIN
from replset.core.takeover import FIRST_PAUSE, PRIORITY, TAKEOVERS
from replset.features.backup.backup_folder import MANIFEST_FILE, BackupManifest, restore_backup
from replset.member.member import RunningMember
from replset.replication.copy_transfer import InitialSyncOptions
from replset.replication.initial_sync_progress import InitialSyncProgress
from replset.replication.partial_copy import RECORD_NAME
from replset.storage import DATABASE_FILE
from tests.simulation.kit.cluster import SimCluster
from tests.simulation.kit.disk import SimDisk
from tests.simulation.kit.faults import Faults
from tests.simulation.kit.machine import Machine
from tests.simulation.kit.workers import SLOWEST

TAKEOVER, COPY, BACKUP, REPAIR = "takeover", "copy", "backup", "repair"
WORK: Final = (TAKEOVER, COPY, BACKUP, REPAIR)
WELL_WITHIN_S = 90.0
TAKES_OVER_WITHIN_S = 150.0
"""Who took over three times while there were faults waits for so long until it may again."""
ROUNDS_MS = 3_500
"""Of heartbeats, votes and a slow disk: what a takeover takes besides the time that it is planned for."""
CHUNKS = 60
"""Of a copy that breaks."""
KEPT_EVERY = InitialSyncOptions().keep_chunks + 2
"""At most so many chunks came since the last record of it, and one may be under way."""
LOST_AND_FOUND = "lost+found"
"""Which a restore leaves alone."""


def has_slow_disks(cluster: SimCluster) -> bool:
    """Whether two writes one after the other may take longer than an election: who leads steps down then."""
    nodes = [machine.running.node for machine in cluster.machines.values() if machine.running]
    timeouts = [node.config.settings.election_timeout_ms for node in nodes if node.config is not None]
    return 2 * SLOWEST * cluster.environment.worker_ms >= min(timeouts, default=0)


class RestWork:
    """Does one thing with a set at rest."""

    def __init__(self, cluster: SimCluster, faults: Faults, fail: Callable[[str, str], None]) -> None:
        """fail: given the broken invariant and what was seen."""
        self._cluster = cluster
        self._faults = faults
        self._fail = fail
        self._rng = cluster.random_for("work at rest")
        self.drawn = self._rng.sample(WORK, len(WORK))
        self.done = ""

    def carry_out(self) -> None:
        """Once the member of the highest priority leads, do the first that was drawn and that the set allows."""
        if has_slow_disks(self._cluster):
            return
        self._cluster.run_until(self._highest_leads, TAKES_OVER_WITHIN_S, "the member of the highest priority leads")
        work = {TAKEOVER: self._take_over, COPY: self._copy, BACKUP: self._restore, REPAIR: self._repair}
        self.done = next((name for name in self.drawn if work[name]()), "")
        self._cluster.run_until(self._is_well, WELL_WITHIN_S, f"converged after {self.done} at rest")

    def _is_well(self) -> bool:
        """Whether all have the same entries, and the same configuration: a heartbeat brings the one after a vote."""
        nodes = [machine.running.node for machine in self._cluster.members() if machine.running is not None]
        return len({node.config and node.config.version for node in nodes}) == 1 and self._cluster.converged()

    def _highest_leads(self) -> bool:
        config, primary = self._cluster.config(), self._cluster.primary()
        own = None if config is None or primary is None else config.member_at(self._cluster.host(primary))
        if config is None or own is None or not self._cluster.converged():
            return False
        return all(row.priority <= own.priority for row in config.members)

    # --- a higher priority -------------------------------------------------------------------------------------------

    def _take_over(self) -> bool:
        """A secondary gets the highest priority and leads soon, then the former primary; the first one again only after
        the pause that keeps two members from taking over from each other all the time.
        """
        primary, config = self._cluster.primary(), self._cluster.config()
        able = [] if config is None else [row for row in config.members if row.is_electable and row.votes]
        former = next((row for row in able if primary is not None and row.host == self._cluster.host(primary)), None)
        others = [row for row in able if row is not former]
        if former is None or not others:
            return False
        heir = self._rng.choice(others)
        is_first = not any(self._cluster.elections[reason] for reason in TAKEOVERS)
        is_free = not (self._faults.done["freeze"] or self._faults.done["step_down"] or self._faults.done["step_up"])
        first = self._lead(heir, 0, within_ms=ROUNDS_MS if is_first and is_free else None)
        if is_first and self._rng.random() < 0.5:
            self._lead(former, 0, within_ms=ROUNDS_MS)
            self._lead(heir, first + FIRST_PAUSE * self._timeout_ms(), within_ms=ROUNDS_MS)
        return True

    def _lead(self, row: Member, since_ms: int, within_ms: int | None) -> int:
        """Give it the highest priority; returns when it leads, which is not before `since_ms`.

        within_ms: so soon behind the earliest moment; None: it may have to wait for what was before.
        """
        cluster, name = self._cluster, self._cluster.name_of(row.host)
        asked_ms, term = cluster.loop.now_ms, self._member(cluster.primary() or name).node.term
        self._give_highest_priority(row)
        cluster.run_until(lambda: cluster.primary() == name, WELL_WITHIN_S, f"{name}, of the highest priority, leads")
        now_ms, timeout_ms = cluster.loop.now_ms, self._timeout_ms()
        reason = self._member(name).node._elections.last_reason
        # An entry that the primary writes between the dry run and the votes refuses them. The member stands again, or
        # another one leads first and it has to wait for its pause.
        was_refused = self._member(name).node.term > term + 1
        if reason != PRIORITY and not (was_refused and reason == AGAIN):
            self._fail("26", f"{name} leads by {reason!r}, and should by its priority")
        earliest_ms = max(asked_ms + timeout_ms, since_ms - ROUNDS_MS // 2)
        if now_ms < earliest_ms:
            self._fail("26", f"{name} took over at {now_ms} ms, {earliest_ms - now_ms} ms too early")
        latest_ms = max(asked_ms, since_ms) + int(2.3 * timeout_ms if since_ms else 1.15 * timeout_ms)
        if within_ms is not None and now_ms > latest_ms + within_ms and not was_refused:
            self._fail("26", f"{name} took over at {now_ms} ms only, and {latest_ms} ms was time enough")
        return now_ms

    def _give_highest_priority(self, row: Member) -> None:
        primary = self._cluster.primary() or ""

        def change(config: dict[str, Any]) -> str:
            highest = max(member["priority"] for member in config["members"])
            next(member for member in config["members"] if member["host"] == row.host)["priority"] = highest + 1
            return f"give {row.host} the highest priority"

        reply = self._cluster.run(self._faults._change_config(primary, change))
        if reply is None or reply["ok"] != 1:
            self._fail("26", f"a set at rest does not take another priority: {reply}")

    def _timeout_ms(self) -> int:
        config = self._cluster.config()
        assert config is not None
        return config.settings.election_timeout_ms

    # --- a copy that breaks ------------------------------------------------------------------------------------------

    def _copy(self) -> bool:
        """A secondary begins with an empty disk, dies in the middle of its initial sync, and goes on where it was."""
        machine = self._a_member_that_may_go()
        if machine is None or machine.running is None:
            return False
        cluster, name = self._cluster, machine.name
        size = max(
            self._member(other).store.data_bytes() for other in cluster.alive() if cluster.machines[other].bears_data
        )
        chunk_bytes = size // CHUNKS + 1
        before, cluster.environment = cluster.environment, replace(cluster.environment, chunk_bytes=chunk_bytes)
        cluster.kill(name, wipe=True)
        cluster.restart(name)
        part, has_power = self._rng.uniform(0.3, 0.95), self._rng.random() < 0.5
        cluster.run_until(lambda: _part_of(machine) >= part, WELL_WITHIN_S, f"{name} copies")
        going_on = None if machine.running is None else machine.running[InitialSyncProgress]
        cluster.kill(name, power_loss=not has_power and cluster.journal_default)
        kept = _kept_by(machine.disk)
        if going_on is not None and going_on.running and kept < going_on.copied - KEPT_EVERY * chunk_bytes:
            self._fail("26", f"{name} has kept {kept} of {going_on.copied} bytes that it copied")
        cluster.restart(name)
        cluster.environment = before
        cluster.run_until(lambda: self._is_named(name), WELL_WITHIN_S, f"{name} has copied what it lacked")
        done = self._member(name)[InitialSyncProgress]
        if going_on is not None and going_on.running and kept and done.resumed_at != kept:
            self._fail("26", f"{name} had {kept} bytes of its copy, and went on at {done.resumed_at}")
        return True

    def _a_member_that_may_go(self) -> Machine | None:
        """A secondary whose disk may be lost: the others are enough to elect."""
        cluster, config = self._cluster, self._cluster.config()
        names = [name for name in cluster.secondaries() if not cluster.machines[name].is_spare]
        if config is None or len(config.voters) - 1 < config.majority_vote_count or not names:
            return None
        return cluster.machines[self._rng.choice(names)]

    def _is_named(self, name: str) -> bool:
        """Whether all is well and the set's configuration has the incarnation that the member has now, if it votes."""
        cluster, member = self._cluster, self._cluster.machines[name].running
        config = cluster.config() if cluster.all_counted() else None
        row = None if config is None else config.member_at(cluster.host(name))
        if row is None or member is None:
            return False
        return not row.votes or row.incarnation == member.node.incarnation

    # --- a backup ----------------------------------------------------------------------------------------------------

    def _restore(self) -> bool:
        """A member is backed up, there are writes, another one's disk is lost and comes from the backup: it catches up
        from the oplog and copies nothing.
        """
        cluster, machine = self._cluster, self._a_member_that_may_go()
        bearers = [name for name in cluster.alive() if cluster.machines[name].bears_data]
        source = self._rng.choice(bearers)
        if machine is None or cluster.machines[source].is_spare:
            return False
        backup = self._back_up(source)
        for number in range(3):
            command = {"insert": "proofs", "documents": [{"_id": f"behind a backup {number}"}]}
            cluster.command(cluster.primary() or "", {**command, "writeConcern": {"w": "majority"}}, "app")
        incarnation = self._member(machine.name).node.incarnation
        cluster.kill(machine.name, wipe=True)
        place = os.path.join(machine.disk.folder, LOST_AND_FOUND)
        machine.disk.make_folder(place)
        for file, data in backup.items():
            machine.disk.write_file(os.path.join(place, file), [data])
        restore_backup(machine.disk, place, machine.disk.folder, None, lambda _size: None)
        for file in backup:
            machine.disk.remove(os.path.join(place, file))
        cluster.restart(machine.name)
        cluster.run_until(lambda: self._is_named(machine.name), WELL_WITHIN_S, f"{machine.name} is back from a backup")
        member = self._member(machine.name)
        if member[InitialSyncProgress].source or member.node.incarnation == incarnation:
            self._fail("26", f"{machine.name} came from a backup, and copied all the same or counts as it was")
        return True

    def _back_up(self, name: str) -> dict[str, bytes]:
        """What `POST /v1/replset/backup` gives."""
        cluster, member = self._cluster, self._member(name)
        found = cluster.command(name, {"replSetBackup": 1}, timeout_s=60)
        if found["ok"] != 1:
            self._fail("26", f"a member of a set at rest is not backed up: {found}")
        data = b""
        while len(data) < found["size"]:
            data += cluster.run(member.snapshots.chunk(found["id"], len(data), 20_000)).data
        cluster.run(member.snapshots.end(found["id"]))
        manifest = BackupManifest(
            *(found[key] for key in ("setName", "setId", "member", "newest", "size", "sha256", "made")), {}
        )
        return {MANIFEST_FILE: manifest.encode(), DATABASE_FILE: data}

    # --- changed documents -------------------------------------------------------------------------------------------

    def _repair(self) -> bool:
        """See DocumentFaults. False: this run did so already, or cannot."""
        if self._faults.done["damage_document"] or self._cluster.delay_s:
            return False
        self._cluster.run(self._faults._damage_and_repair_documents())
        self._cluster.run_until(lambda: not self._faults._repairs, WELL_WITHIN_S, "who lost its power is back")
        return True

    def _member(self, name: str) -> RunningMember:
        member = self._cluster.machines[name].running
        assert member is not None, f"{name} runs"
        return member


def _part_of(machine: Machine) -> float:
    """How much of its copy a member has."""
    progress = None if machine.running is None else machine.running[InitialSyncProgress]
    if progress is None or not progress.total:
        return 0.0
    return progress.copied / progress.total if progress.running else 1.0


def _kept_by(disk: SimDisk) -> int:
    """How much of a copy a machine's disk says to have."""
    path = os.path.join(disk.folder, RECORD_NAME)
    return int(json.loads(disk.read_file(path))["kept"]) if disk.exists(path) else 0

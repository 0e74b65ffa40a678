"""The invariants, judged from outside: the members' stores through SQL and files, and the clients' history.

A `Mirror` follows each store's oplog row by row. What holds at the end of a run only is in final_checks.py.
"""

from __future__ import annotations

import os
import zlib
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import apsw

from replset.core.member_state import MemberState
from replset.ids import OPTIME_NULL, OpTime
from tests.simulation.kit.cluster import FORGED_TERMS
from tests.simulation.kit.entries import (
    Entry,
    mark_of_optime,
    mark_of_write,
    operations_of,
    read_entry,
    rolled_back_marks,
)
from tests.simulation.kit.errors import SimulationError
from tests.simulation.kit.final_checks import FinalChecks
from tests.simulation.kit.index_model import definitions_of, index_fault_on
from tests.simulation.kit.operations import ClientOperation
from tests.simulation.kit.replay import documents_of, first_difference, replay
from tests.simulation.kit.retries import RetriedWrite
from tests.simulation.kit.rollback_checks import Histories, rollback_fault
from tests.simulation.kit.stored_state import stored_fault
from tests.simulation.kit.transfers import Transfers
from tests.simulation.kit.workload import History, Write

if TYPE_CHECKING:
    from tests.simulation.kit.cluster import SimCluster
    from tests.simulation.kit.machine import Machine, RunningNode

_DAMAGED = "not the one that was written"
_MEMBER_ONLY = {"member.db"}
WHOLE_LOOK_EVERY = 6
"""Thousands of steps."""


@dataclass(slots=True)
class Mirror:
    """What one member's oplog holds, as far as it was seen. committed: so many are at or below a commit point."""

    entries: list[Entry] = field(default_factory=list)
    marks: set[str] = field(default_factory=set)
    committed: int = 0
    database: object = None  # the file's identity: another one after an initial sync

    def newest(self) -> OpTime:
        return self.entries[-1].optime if self.entries else OPTIME_NULL

    def clear(self) -> None:
        self.entries.clear()
        self.marks.clear()
        self.committed = 0


class Checkers:
    """Attach to a cluster; a broken invariant raises SimulationError out of the run, with its number."""

    def __init__(
        self,
        cluster: SimCluster,
        history: History | None = None,
        operations: list[ClientOperation] | None = None,
        transfers: Transfers | None = None,
    ) -> None:
        self.transfers = transfers
        self.cluster = cluster
        self.history = history or History()
        self.operations = [] if operations is None else operations
        self.retried: list[RetriedWrite] = []
        self.mirrors = {name: Mirror() for name, m in cluster.machines.items() if not m.arbiter}
        self.known: dict[OpTime, Entry] = {}
        self.primaries: dict[int, str] = {}  # term -> the process that was primary in it
        self.commit_points: dict[str, OpTime] = {}  # by process
        self.votes: dict[str, tuple[Any, Any]] = {}  # by member: term, candidate
        self.committed: list[OpTime] = []
        self.uncounted_undone = 0
        self.committed_in: dict[OpTime, int] = {}  # the term of the commit point that covered it first
        self.lost_in_crashes: set[str] = set()  # marks of entries that a power loss took, unsynced
        self.erased_by_hand: set[str] = set()  # marks of entries that only a wiped disk held
        self.undone: dict[OpTime, Entry] = {}
        self.histories: Histories = {}  # each oplog of which something was undone, as it was before
        self.rollbacks = 0
        self.copies = 0
        self.replaced_ms: dict[str, list[int]] = {name: [] for name in self.mirrors}  # when it lost entries, or all
        self.holders: dict[OpTime, set[str]] = {}  # who ever had the entry
        self.wiped: set[str] = set()
        self._whole_looks = 0
        self._rng = cluster.random_for("points of reads")
        self._seen_processes: dict[str, str] = {}
        self._last_points: dict[str, OpTime] = {}
        cluster.on_change.append(self.look_at)
        cluster.on_many_steps.append(self.every_thousand)
        cluster.on_wipe.append(self.note_wipe)
        cluster.on_wal_loss.append(self.note_lost_wal)

    def fail(self, invariant: str, why: str) -> None:
        now = self.cluster.loop.now_ms
        raise SimulationError(f"invariant {invariant} broken at {now} ms: {why}\n{self.cluster.summary()}")

    # --- after every step

    def look_at(self, row: RunningNode) -> None:
        """Something of this member changed."""
        machine = row.machine
        if self.cluster.broken:
            self.cluster.check_unbroken()
        if row.state is MemberState.PRIMARY:
            self.note_primary(row.term, machine)
        if row.changed and row.term >= FORGED_TERMS:
            self.fail("1", f"{row.name} took the term {row.term}, which a stranger sent")
        if row.state is MemberState.RECOVERING and _DAMAGED in row.node.quarantine:
            damaged_entry = self.cluster.damaged_entry
            if (damaged_entry is None or damaged_entry.name != row.name) and row.name not in self.cluster.damaged:
                self.fail("2", f"{row.name} takes itself for damaged: {row.node.quarantine}")
        disk = machine.disk
        if disk.changed:
            # A failed save leaves a hot journal, and a read of the file rolls it back: that needs a disk that works.
            unread = disk.written & _MEMBER_ONLY if disk.failing else set()
            if "member.db" in disk.written and not unread:
                self.look_at_vote(row.name, machine)
            if row.name in self.mirrors and (disk.written != _MEMBER_ONLY or row.changed):
                self.follow(row.name, machine)
            disk.written = unread
            disk.changed = bool(unread)
        if row.point is not self._last_points.get(row.name):
            self.note_commit_point(row.name, machine, row.point)

    def note_primary(self, term: int, machine: Machine) -> None:
        """Invariant 1."""
        assert machine.process is not None
        process = machine.process.name
        first = self.primaries.setdefault(term, process)
        if first != process:
            self.fail("1", f"{first} and {process} are both primary in term {term}")

    def note_commit_point(self, name: str, machine: Machine, point: OpTime) -> None:
        """Invariant 8."""
        assert machine.process is not None
        self._last_points[name] = point
        before = self.commit_points.get(machine.process.name, OPTIME_NULL)
        if point < before:
            self.fail("8", f"{name}'s commit point moved back from {before} to {point}")
        self.commit_points[machine.process.name] = point
        if name in self.mirrors:
            self.note_committed(name, point)

    def look_at_vote(self, name: str, machine: Machine) -> None:
        """One vote per member and term, across restarts, as its file says; only an emptied disk forgets."""
        connection = machine.disk.reader(os.path.join(machine.disk.folder, "member.db"))
        if connection is None:
            return
        values = dict(connection.execute("SELECT name, value FROM member WHERE name LIKE 'vote%'").fetchall())
        now = (values.get("vote_term", 0), values.get("vote_candidate"))
        before = self.votes.get(name, (0, None))
        if now == before:
            return
        self.votes[name] = now
        if now[0] < before[0] or (now[0] == before[0] and before[1] is not None):
            self.fail("1", f"{name} voted for member {before[1]} in term {before[0]}, and now {now}")

    def follow(self, name: str, machine: Machine) -> None:
        """Bring the mirror up to the store, as far as a damaged one can be read."""
        with suppress(apsw.CorruptError) if name in self.cluster.damaged else nullcontext():
            self._follow(name, machine)

    def _follow(self, name: str, machine: Machine) -> None:
        """Bring the mirror up to the store; check invariant 2 on what is new and that nothing committed was undone."""
        path = os.path.join(machine.disk.folder, "replset.db")
        connection = machine.disk.reader(path)
        if connection is None or machine.process is None:
            return
        mirror = self.mirrors[name]
        is_new_process = self._seen_processes.get(name) != machine.process.name
        database = machine.disk.tree.names.get("replset.db")
        if name in self.cluster.damaged and not is_new_process and mirror.database is not database:
            self.cluster.damaged.discard(name)
        before: list[Entry] = []
        if not is_new_process and mirror.database is not database:
            before = list(mirror.entries)
            mirror.clear()  # an initial sync put another file there
            self.copies += 1
            self.replaced_ms[name].append(self.cluster.loop.now_ms)
        was_there_at_death = machine.dead_disk is None or mirror.database is machine.database_at_death
        mirror.database = database
        removed = self._take_back(mirror, connection)
        if is_new_process:
            self._seen_processes[name] = machine.process.name
            self._judge_death(name, machine, removed, was_there_at_death)
        elif removed:
            self.rollbacks += 1
            self.replaced_ms[name].append(self.cluster.loop.now_ms)
            self.note_undone(name, removed)
        self._read_on(name, mirror, connection)
        self._note_replaced(name, mirror, before)

    def _take_back(self, mirror: Mirror, connection: apsw.Connection) -> list[Entry]:
        """Drop what the store has no more; returns it, newest first."""
        removed = []
        while mirror.entries:
            last = mirror.entries[-1]
            row = _first(connection, "SELECT term, hash FROM oplog WHERE ts = ?", (last.optime.ts,))
            if row == (last.optime.term, last.hash):
                break
            removed.append(mirror.entries.pop())
            mirror.marks.difference_update(last.marks)
        mirror.committed = min(mirror.committed, len(mirror.entries))
        return removed

    def note_undone(self, name: str, removed: list[Entry]) -> None:
        """removed: newest first. Who has nothing of the term in which an entry was committed was not counted for it.
        Its copy may go.
        """
        newest = removed[0].optime.term if removed else 0
        if removed:
            self.histories[name, str(removed[0].optime)] = [*self.mirrors[name].entries, *reversed(removed)]
        for entry in removed:
            if self.committed_in.get(entry.optime, newest + 1) <= newest:
                self.fail("3", f"{name} rolled back {entry.optime}, which was below a commit point")
            self.undone[entry.optime] = entry
            self.uncounted_undone += entry.optime in self.committed_in

    def _note_replaced(self, name: str, mirror: Mirror, before: list[Entry]) -> None:
        """What a copy does not have of the data that it replaced went into a rollback's files, unless it is committed:
        then it comes again.
        """
        kept = {entry.optime for entry in mirror.entries} if before else set()
        if before:
            self.histories[name, str(before[-1].optime)] = before
        for entry in before:
            if entry.optime not in kept and entry.optime not in self.committed_in:
                self.undone[entry.optime] = entry

    def _judge_death(self, name: str, machine: Machine, removed: list[Entry], was_there_at_death: bool) -> None:
        """What a restart may have lost: with the power what was not synced, else nothing.

        was_there_at_death: the database that was followed, not a copy that was put in its place just before.
        """
        state, durable = machine.state_at_death, machine.durable_at_death
        if state is None or not was_there_at_death:
            return  # its disk was emptied, or a copy is there now
        if state is MemberState.ROLLBACK:
            # The start goes on with it. What was synced can have gone by the undo only, so it is in the files.
            synced = [entry for entry in removed if durable is None or entry.optime <= durable]
            self.note_undone(name, removed if not machine.lost_power else synced)
            removed = [entry for entry in removed if entry not in synced] if machine.lost_power else []
        if not removed:
            return
        if not machine.lost_power:
            self.fail("4", f"{name} lost {removed[0].optime} by being killed in {state.name}")
        if durable is not None and any(entry.optime <= durable for entry in removed):
            self.fail("4", f"{name} had reported {durable} as durable and lost {removed[-1].optime} with the power")
        for entry in removed:
            if not self._is_synced_elsewhere(name, entry):
                self.lost_in_crashes.update(entry.marks)

    def _is_synced_elsewhere(self, name: str, entry: Entry) -> bool:
        for other, mirror in self.mirrors.items():
            member = self.cluster.machines[other].running
            holds = other != name and member is not None and entry.marks[0] in mirror.marks
            if holds and member.node.position.last_durable >= entry.optime:
                return True
        return False

    def _read_on(self, name: str, mirror: Mirror, connection: apsw.Connection) -> None:
        sql = "SELECT term, ts, hash, entry FROM oplog WHERE ts > ? ORDER BY ts"
        rows = connection.execute(sql, (mirror.newest().ts,)).fetchall()
        if rows and not mirror.entries:
            self._add_trimmed(name, mirror, OpTime(*rows[0][:2]))
        for term, ts, hash_value, raw in rows:
            optime = OpTime(term, ts)
            entry = self.known.get(optime)
            if entry is None:
                entry = self.known[optime] = read_entry(term, ts, hash_value, raw)
            elif entry.hash != hash_value:
                self.fail("2", f"{name} has another entry at {optime} than was seen before")
            elif entry.crc != zlib.crc32(raw) and not self._is_damaged(name, ts):
                self.fail("2", f"{name} took over the damaged entry at {optime}")
            if mirror.entries and term < mirror.entries[-1].optime.term:
                self.fail("2", f"{name} appended {optime} behind {mirror.newest()}")
            mirror.entries.append(entry)
            mirror.marks.update(entry.marks)
            self.holders.setdefault(optime, set()).add(name)

    def _is_damaged(self, name: str, ts: int) -> bool:
        damaged_entry = self.cluster.damaged_entry
        return damaged_entry is not None and (damaged_entry.name, damaged_entry.ts) == (name, ts)

    def _add_trimmed(self, name: str, mirror: Mirror, oldest: OpTime) -> None:
        """A copy whose source had trimmed its oplog: what is missing at the head was committed, and is known."""
        if not self.committed or oldest == self.committed[0]:
            return
        if oldest not in self.committed_in:
            self.fail("3", f"the oplog of {name} begins at {oldest}, which was never committed")
        place = self.committed.index(oldest)
        mirror.entries = [self.known[optime] for optime in self.committed[:place]]
        mirror.marks = {mark for entry in mirror.entries for mark in entry.marks}
        mirror.committed = place

    def note_committed(self, name: str, point: OpTime) -> None:
        """What a commit point covers is the same everywhere: the n-th committed entry is one entry (invariant 3)."""
        mirror = self.mirrors[name]
        while mirror.committed < len(mirror.entries) and mirror.entries[mirror.committed].optime <= point:
            place, optime = mirror.committed, mirror.entries[mirror.committed].optime
            if place == len(self.committed):
                self.committed.append(optime)
                self.committed_in[optime] = point.term
            elif self.committed[place] != optime:
                self.fail("3", f"{name} has committed {optime} where {self.committed[place]} was committed before")
            mirror.committed += 1

    def note_wipe(self, name: str) -> None:
        """A disk was emptied by hand: what only it held is nobody's to keep."""
        self.votes.pop(name, None)
        if name in self.mirrors:
            self._note_erased(name)
            self.mirrors[name].clear()
        self.wiped.add(name)

    def note_lost_wal(self, name: str) -> None:
        """As far as it was in the WAL only."""
        self.wiped.add(name)
        self._note_erased(name)

    def _note_erased(self, name: str) -> None:
        elsewhere = set().union(*(mirror.marks for other, mirror in self.mirrors.items() if other != name))
        files = set(rolled_back_marks(self.cluster.machines[name].dead_disk))
        self.erased_by_hand |= (self.mirrors[name].marks | files) - elsewhere

    # --- when a client got an answer

    def note_acknowledged(self, write: Write) -> None:
        """Invariant 4: the answer names the entry that holds the write; and what `w: 2` says of it is so: two members
        have it, with `j: true` on their disks.
        """
        named = self.known.get(write.optime)
        if named is not None and mark_of_write(write) not in named.marks:
            self.fail("4", f"{write} is acknowledged by another entry, {named.body}")
        if not write.concern.startswith("two") or self.wiped:
            return
        entry = self.known.get(write.optime)
        bearing = {name for name in self.mirrors if self.cluster.machines[name].bears_data}
        holders = self.holders.get(write.optime, set()) & bearing
        # A copy brings the document of an entry that its source has trimmed.
        holders |= {name for name in bearing if mark_of_write(write) in self.mirrors[name].marks}
        if entry is None or len(holders) < 2:
            self.fail("4", f"{write} is acknowledged, and {sorted(holders)} have it")
        if write.concern == "two journaled" and write.optime not in self.undone and write.optime not in self._lost():
            durable = [name for name in bearing if self._durable(name) >= write.optime]
            if len(durable) < 2:
                self.fail("4", f"{write} is acknowledged, and {durable} have it on their disks")

    def _lost(self) -> set[OpTime]:
        """Entries that some loss of power took."""
        return {optime for optime in self.holders if mark_of_optime(optime) in self.lost_in_crashes}

    def _durable(self, name: str) -> OpTime:
        """The newest entry that it reported to be on its disk, as this process or as the one before."""
        machine = self.cluster.machines[name]
        now = OPTIME_NULL if machine.running is None else machine.running.node.position.last_durable
        return max(now, machine.durable_at_death or OPTIME_NULL)

    # --- every thousand steps

    def every_thousand(self) -> None:
        """Invariant 3 on the primary, as soon as it may write in the newest term; now and then invariants 5 and 6."""
        self.cluster.check_unbroken()
        self._whole_looks += 1
        if self._whole_looks % WHOLE_LOOK_EVERY == 0:
            self.is_whole_on_the_way()
        name = self.cluster.primary()
        if name is None:
            return
        machine = self.cluster.machines[name]
        newest_term = max(m.running.node.term for m in self.cluster.machines.values() if m.running is not None)
        if machine.running is None or machine.running.node.term < newest_term:
            return
        self.follow(name, machine)
        self.majority_writes_are_on(name)

    def is_whole_on_the_way(self) -> None:
        """Invariants 5 and 6 in the middle of everything: the next member's documents are its oplog, in whatever state
        it is, and up to the newest entry that it shares with another member both have the same ones. Not where the
        disk lost pages or a part of the WAL and the member knows it: such a database mixes what it was at two moments,
        and is copied anew.
        """
        damaged = self.cluster.damaged
        rows = [
            row
            for row in self.cluster.running_nodes
            if row.name in self.mirrors
            and row.name not in damaged
            and row.name != self.cluster.rotten
            and not (row.machine.may_have_lost_data and (row.node.has_lost_data or row.node.quarantine))
        ]
        if not rows:
            return
        row = rows[self._whole_looks // WHOLE_LOOK_EVERY % len(rows)]
        self.follow(row.name, row.machine)
        mine = self.mirrors[row.name].entries
        if not row.machine.witness:
            found = documents_of(row.machine.disk)
            if found is None:
                return
            expected = replay(mine)
            if found != expected:
                self.fail("5", f"{row.name} in {row.node_state.state.name}: {first_difference(expected, found)}")
            self.check_indexes(row.name, mine)
        self.check_stored(row.name)
        places = {entry.optime: place for place, entry in enumerate(mine)}
        for other, mirror in self.mirrors.items():
            theirs = mirror.entries
            last = next((n for n in range(len(theirs) - 1, -1, -1) if theirs[n].optime in places), -1)
            if last >= 0 and theirs[: last + 1] != mine[: places[theirs[last].optime] + 1]:
                self.fail("6", f"{row.name} and {other} share {theirs[last].optime} and differ before it")

    def check_indexes(self, name: str, entries: list[Entry]) -> None:
        """Invariant 15."""
        expected = definitions_of(body for _, body in operations_of(entries))
        fault = index_fault_on(self.cluster.machines[name].disk, expected)
        if fault is not None:
            self.fail("15", f"{name}: {fault}")

    def check_rollbacks(self, name: str) -> None:
        """Invariant 4, of the manifests and the documents in the files."""
        machine = self.cluster.machines[name]
        fault = None if self.cluster.is_unsound(machine) else rollback_fault(self.cluster, machine, self.histories)
        if fault is not None:
            self.fail("4", f"{name}: {fault}")

    def check_stored(self, name: str) -> None:
        """Invariant 23."""
        machine = self.cluster.machines[name]
        member = machine.running
        in_service = (MemberState.PRIMARY, MemberState.SECONDARY)
        if member is None or self.cluster.is_unsound(machine) or member.node.state not in in_service:
            return
        # An update keeps the version before it, also one that the disk changed; no repair reaches that (docs/scrub.md).
        reads_back = name not in self.cluster.rotted
        fault = stored_fault(member.store, machine.disk, self.mirrors[name].entries, self._rng, reads_back=reads_back)
        if fault is not None:
            self.fail("23", f"{name}: {fault}")

    def majority_writes_are_on(self, name: str) -> None:
        marks = self.mirrors[name].marks
        for write in self.history.acknowledged("majority"):
            if mark_of_write(write) not in marks:
                self.fail("3", f"the primary {name} lacks {write}")

    # --- at the end, after heal and quiet

    def at_the_end(self) -> None:
        for name in [name for name in self.mirrors if self.cluster.machines[name].is_spare]:
            del self.mirrors[name]  # nobody added it
        for name in self.mirrors:
            machine = self.cluster.machines[name]
            machine.disk.changed = True
            self.follow(name, machine)
        primary = self.cluster.primary()
        if primary is None:
            self.fail("6", "no primary at the end")
        assert primary is not None
        self.majority_writes_are_on(primary)
        FinalChecks(self).run(primary)


def _first(connection: apsw.Connection, sql: str, bindings: tuple[int, ...]) -> tuple[Any, ...] | None:
    rows = connection.execute(sql, bindings).fetchall()
    return rows[0] if rows else None

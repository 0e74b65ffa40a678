"""What the disk of a member holds before each of its steps, and the judgement of a member that starts on it.

A step is one write, truncation, sync, removal or rename of a file, SQLite's own included. Before each of them the disk
is copied twice, as a killed process leaves it and as a loss of power may leave it, and a member is started on each.
"""

from __future__ import annotations

import functools
import os
import random
import shutil
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from unittest import mock

from replset.bson import decode
from replset.core.effects import LastVote
from replset.ids import HostPort, OpTime
from replset.oplog_entry import OplogEntry
from replset.replication.context import Identity, MemberContext
from replset.replication.rollback import finish_rollbacks
from replset.replication.write_queue import WriteQueue
from replset.storage.copies import check_database
from replset.storage.member_file import MemberFile
from replset.storage.store import Store
from replset.storage.undo import rollback_done_marks, rollback_in_progress
from tests.simulation.kit.checkers import Checkers
from tests.simulation.kit.cluster import SimCluster
from tests.simulation.kit.disk import SimDisk
from tests.simulation.kit.disk import _RecordingFile as RecordingFile
from tests.simulation.kit.disk import _RecordingVFS as RecordingVFS
from tests.simulation.kit.entries import Entry, bson_documents, manifests, operations_of, read_entry
from tests.simulation.kit.errors import SimulationError
from tests.simulation.kit.index_model import definitions_of, index_fault_on
from tests.simulation.kit.loop import current_process
from tests.simulation.kit.replay import documents_of, first_difference, replay

T = TypeVar("T")
FILE_STEPS = ("write_file", "sync_file", "truncate", "rename", "remove", "sync_folder", "make_folder")
SQLITE_STEPS = ("xWrite", "xTruncate", "xSync")
ALL_ENTRIES = 1_000_000


def nothing(*_: object) -> None:
    """A callback that nobody needs."""


class InlineWorkers:
    """The Workers port for a judgement: work is done where it stands."""

    async def run(self, work: Callable[[], T]) -> T:
        return work()


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run what waits for nothing but its own turns."""
    while True:
        try:
            work.send(None)
        except StopIteration as done:
            result: T = done.value
            return result


@dataclass(slots=True)
class CrashImages:
    """Judges an image before each disk step of one member, against what the member had promised by then."""

    cluster: SimCluster
    checkers: Checkers
    name: str
    votes: dict[str, LastVote]
    written: dict[OpTime, Entry] = field(default_factory=dict)  # every entry that it ever committed
    durable: dict[OpTime, Entry] = field(default_factory=dict)  # every entry that it ever said is on its disk
    steps: list[str] = field(default_factory=list)

    def note_promises(self) -> None:
        machine = self.cluster.machines[self.name]
        member = machine.running
        entries = self.checkers.mirrors[self.name].entries
        self.written.update((entry.optime, entry) for entry in entries)
        point = machine.durable_at_death if member is None else member.node.position.last_durable
        if point is not None:
            self.durable.update((entry.optime, entry) for entry in entries if entry.optime <= point)

    def take(self, step: str) -> None:
        """One image of each kind, judged at once; of several steps alike in a row, of every fourth."""
        is_alike = self.steps[-1:] == [step]
        self.steps.append(step)
        if is_alike and len(self.steps) % 4:
            return
        self.note_promises()
        disk = self.cluster.machines[self.name].disk
        rng = random.Random(f"{self.cluster.seed} {self.name} {len(self.steps)}")
        for power_loss, owed in ((False, self.written), (True, self.durable)):
            folder = os.path.join(self.cluster.root, "images", f"{len(self.steps)}-{power_loss:d}")
            after = disk.crash(folder, rng, power_loss=power_loss)
            try:
                self.judge(after, owed)
            except Exception as error:
                kind = "power lost" if power_loss else "killed"
                raise SimulationError(f"{kind} before step {len(self.steps)}, {step}: {error!r}") from error
            finally:
                after.close()
                shutil.rmtree(folder)

    def judge(self, disk: SimDisk, owed: dict[OpTime, Entry]) -> None:
        """Start a member, up to where it would begin to send messages."""
        file = MemberFile.open(disk, disk.folder, new_incarnation=lambda: "another")
        expect_vote(file.last_vote, self.votes.get(self.name))
        store = Store.open(disk, disk.folder)
        context = MemberContext(
            disk=disk,
            dbpath=disk.folder,
            clock=self.cluster.machines[self.name].clock,
            workers=InlineWorkers(),
            store=store,
            write_queue=WriteQueue(),
            identity=Identity("", HostPort("")),
            on_report=nothing,
            on_undone=nothing,
            on_broken=nothing,
        )
        drive(finish_rollbacks(context, nothing))
        assert rollback_in_progress(store) is None
        assert rollback_done_marks(store) == []
        states = {manifest["state"] for manifest in manifests(disk)}
        assert states <= {"finished", "abandoned", "exported"}, states
        entries = self.entries_of(disk, store)
        held = {entry.optime: entry.hash for entry in entries}
        saved = dict(saved_entries(disk))
        for optime, entry in owed.items():
            if held.get(optime) != entry.hash and saved.get(optime) != entry.body:
                trimmed = optime in self.checkers.committed_in and optime.ts <= store.trimmed_through
                assert trimmed, f"the entry {optime} is neither in the oplog nor in a rollback's files"
        found, expected = documents_of(disk), replay(entries)
        assert found == expected, first_difference(expected, found)
        fault = index_fault_on(disk, definitions_of(body for _, body in operations_of(entries)))
        assert fault is None, fault
        store.close()
        file.close()
        check_database(disk, store.path, ALL_ENTRIES)

    def entries_of(self, disk: SimDisk, store: Store) -> list[Entry]:
        """The oplog, before it what was trimmed of it, which was committed and is known."""
        connection = disk.reader(store.path)
        assert connection is not None
        rows = connection.execute("SELECT term, ts, hash, entry FROM oplog ORDER BY ts").fetchall()
        entries = [read_entry(*row) for row in rows]
        if entries and store.trimmed_through:
            oldest = entries[0].optime
            trimmed = [self.checkers.known[optime] for optime in self.checkers.committed if optime < oldest]
            return [*trimmed, *entries]
        return entries


def expect_vote(found: LastVote | None, saved: LastVote | None) -> None:
    """What a member finds after a death is the vote that it saved, or a later one."""
    if saved is not None:
        assert found is not None, f"{saved} is forgotten"
        assert found == saved or found.term > saved.term or saved.candidate is None, f"{saved} was saved, {found} found"


def saved_entries(disk: SimDisk) -> Iterator[tuple[OpTime, dict[str, Any]]]:
    """The entries in the oplog files of finished and exported rollbacks."""
    for manifest in manifests(disk):
        if manifest["state"] in ("finished", "exported"):
            for file in manifest["files"]:
                if file["kind"] == "oplog":
                    path = os.path.join(disk.folder, "rollback", file["name"])
                    for raw in bson_documents(disk.read_file(path)):
                        yield OplogEntry(raw).optime, decode(raw)


@contextmanager
def at_every_disk_step(cluster: SimCluster, name: str, look: Callable[[str], None]) -> Iterator[None]:
    """Within the block `look` is called before each step of the member called `name`, with what the step is."""
    machine = cluster.machines[name]
    looking = False

    def note(disk: SimDisk, method: str, path: str) -> None:
        nonlocal looking
        if (
            disk is machine.disk
            and machine.process is not None
            and current_process.get() is machine.process
            and not looking
        ):
            looking = True
            try:
                look(f"{method} {os.path.basename(path)}")
            finally:
                looking = False

    def on_disk(method: str) -> Callable[..., Any]:
        original = getattr(SimDisk, method)

        @functools.wraps(original)
        def step(disk: SimDisk, path: str, *arguments: Any, **named: Any) -> Any:
            note(disk, method, path)
            return original(disk, path, *arguments, **named)

        return step

    def on_file(method: str) -> Callable[..., Any]:
        original = getattr(RecordingFile, method)

        @functools.wraps(original)
        def step(file: Any, *arguments: Any) -> Any:
            note(file._disk, method, file._path)
            return original(file, *arguments)

        return step

    delete = RecordingVFS.xDelete

    def deleted(vfs: Any, path: str, syncdir: bool) -> None:
        note(vfs.disk(), "xDelete", path)
        delete(vfs, path, syncdir)

    with ExitStack() as patched:
        for method in FILE_STEPS:
            patched.enter_context(mock.patch.object(SimDisk, method, on_disk(method)))
        for method in SQLITE_STEPS:
            patched.enter_context(mock.patch.object(RecordingFile, method, on_file(method)))
        patched.enter_context(mock.patch.object(RecordingVFS, "xDelete", deleted))
        yield

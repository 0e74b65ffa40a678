"""The member dies, or loses its power, at any step of an initial sync: it comes back right, and goes on."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from replset.replication.initial_sync import InitialSyncMarker, InitialSyncOptions, RequiredEntries
from replset.replication.rollback import finish_rollbacks
from replset.replication.rollback_manifest import RollbackState, manifests_on
from replset.storage.copies import install_copy
from replset.storage.member_file import MemberFile
from replset.storage.store import Store
from tests.simulation.kit.disk import SimDisk
from tests.unit.replication.diverged import Crash, entries_in
from tests.unit.replication.kit import (
    MINE,
    NS,
    OPTIONS,
    SOURCE,
    Member,
    Network,
    copies_asked,
    copy_log,
    left_at_source,
    numbered,
)

FILE_STEPS = ("write_file", "sync_file", "rename", "sync_folder", "make_folder", "truncate", "remove", "connect")
SMALL = InitialSyncOptions(chunk_bytes=12_000, keep_chunks=2, pause_ms=0, spare_bytes=0)


class DurableMember(Member):
    """With a member file on the recording disk, as the runtime has it."""

    def __init__(self, disk: SimDisk, network: Network) -> None:
        super().__init__(MINE, Path(disk.folder).parent, network, disk)
        self.file = MemberFile.open(disk, self.dbpath, new_incarnation=lambda: f"{self.rng.getrandbits(64):016x}")
        self.initial_sync.transfer.options = SMALL
        if not self.file.initial_sync_pending:
            self.initial_sync.clear_leftovers()

    async def set_marker(self, known: RequiredEntries) -> InitialSyncMarker:
        held, committed = known
        sync_id = self.file.begin_initial_sync(newest=held, committed=committed, rollback_id=self.store.rollback_id)
        return InitialSyncMarker(sync_id, self.file.incarnation)

    async def claim(self, newest: Any) -> str:
        return self.file.claim_copy(newest)

    async def install(self, copy: str) -> None:
        floor = max(self.store.rollback_id, self.file.rollback_id_floor)
        self.store.close()
        install_copy(self.disk, self.dbpath, copy, rollback_id_before=floor, check_entries=0)
        self.file.end_initial_sync()
        self.context.store = Store.open(self.disk, self.dbpath, OPTIONS)
        self.moved()


@dataclass
class Life:
    """What one process did, in order, and when it is to die: before the step number `dies_at`, or never (0)."""

    dies_at: int = 0
    steps: list[str] = field(default_factory=list)

    def take(self, what: str) -> None:
        if self.dies_at and len(self.steps) + 1 >= self.dies_at:
            raise Crash  # and whatever it still tries
        self.steps.append(what)

    def watch(self, mine: DurableMember) -> None:
        for name in FILE_STEPS:
            setattr(mine.disk, name, self._counted(name, getattr(mine.disk, name)))
        mine.network.before_call = lambda command: self.take(f"ask {command.get('step')}")
        mine.network.before_reply = lambda command, reply: self.take(f"hear {command.get('step')}")

    def _counted(self, name: str, do: Callable[..., Any]) -> Callable[..., Any]:
        def step(path: str, *arguments: Any, **named: Any) -> Any:
            to = f" to {os.path.basename(arguments[0])}" if name == "rename" else ""
            self.take(f"{name} {os.path.basename(path)}{to}")
            return do(path, *arguments, **named)

        return step


@dataclass
class Story:
    """A source that is ahead in a later term, and a member with entries of its own that has to sync anew."""

    folder: Path
    source: Member
    mine: DurableMember
    own: list[bytes]
    lives: int = 0

    @classmethod
    def begin(cls, folder: Path) -> Story:
        network = Network()
        source = Member(SOURCE, folder, network)
        source.create(NS)
        source.insert(NS, *numbered(range(20)))
        mine = DurableMember(SimDisk(str(folder / "life-0" / MINE)), network)
        mine.file.end_initial_sync()
        copy_log(source, mine)
        mine.node.commit_point = mine.store.last_applied
        mine.insert(NS, *({"_id": f"only here {n}"} for n in range(3)), term=1)
        source.noop(term=2)
        source.insert(NS, *numbered(range(100, 160)), term=2)
        mine.store.wal.sync()
        return cls(folder, source, mine, mine.oplog())

    def run(self, dies_at: int = 0) -> Life:
        life = Life(dies_at)
        life.watch(self.mine)
        with suppress(Crash):
            asyncio.run(self.mine.initial_sync.run(SOURCE, "too stale"))
        return life

    def die(self, rng: random.Random, *, power_loss: bool) -> None:
        """The next process starts on what is left, and everything that must hold does."""
        self.lives += 1
        disk: Any = self.mine.disk
        after = disk.crash(str(self.folder / f"life-{self.lives}" / MINE), rng, power_loss=power_loss)
        disk.close()
        network, commit_point = self.mine.network, self.mine.node.commit_point
        network.before_call = lambda command: None
        network.before_reply = lambda command, reply: None
        self.mine = mine = DurableMember(after, network)
        mine.node.commit_point = commit_point
        asyncio.run(finish_rollbacks(mine.context, lambda: None))
        saved: set[bytes] = set()
        for manifest in manifests_on(mine.disk, mine.dbpath):
            if manifest.state is RollbackState.EXPORTED:
                saved |= entries_in(mine, manifest)
        assert set(self.own) <= set(mine.oplog()) | saved, "an entry of its own is nowhere"
        if not mine.file.initial_sync_pending:
            assert mine.oplog() in (self.own, self.source.oplog()), "without a marker the data is whole"

    def end(self) -> None:
        """It gets through, and nothing stays behind."""
        self.run()
        mine, source = self.mine, self.source
        ended = mine.reports[-1]
        assert ended.ok, ended.detail
        assert not mine.file.initial_sync_pending
        assert mine.everything() == source.everything()
        assert mine.oplog() == source.oplog()
        assert not [name for name in mine.disk.list_folder(mine.dbpath) if name.startswith("initial-sync")]
        source.clock.ms += 600_001  # a copy may be left that was asked for and never put on record
        asyncio.run(source.snapshots.expire())
        assert left_at_source(source) == []
        mine.file.close()
        mine.store.close()
        source.store.close()
        last: Any = mine.disk
        last.close()


def steps_of_a_whole_sync(folder: Path) -> list[str]:
    story = Story.begin(folder)
    steps = story.run().steps
    story.die(random.Random(0), power_loss=False)
    story.end()
    return steps


@pytest.mark.in_turns
@pytest.mark.parametrize("power_loss", [False, True], ids=["killed", "power-lost"])
def test_a_death_before_any_step_is_survived(tmp_path: Path, power_loss: bool) -> None:
    steps = steps_of_a_whole_sync(tmp_path / "whole")
    first_kept = steps.index("rename initial-sync.json.tmp to initial-sync.json", steps.index("hear chunk"))
    installed = steps.index("rename initial-sync.db to replset.db")
    assert 20 < first_kept < installed < len(steps), steps
    for dies_at in range(1, len(steps) + 1, 1 + power_loss):
        story = Story.begin(tmp_path / str(dies_at))
        assert story.run(dies_at).steps == steps[: dies_at - 1], "the same story each time"
        story.die(random.Random(dies_at), power_loss=power_loss)
        story.end()
        if first_kept + 3 < dies_at <= installed + 1:
            assert copies_asked(story.mine) == 1, f"before {steps[dies_at - 1]}: it goes on with the copy that it has"


@pytest.mark.in_turns
@pytest.mark.parametrize("seed", range(25))
def test_it_gets_through_though_it_dies_again_and_again(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    story = Story.begin(tmp_path)
    for _ in range(5):
        story.run(rng.randrange(1, 60))
        story.source.clock.ms += rng.choice((0, 0, 300_000))
        story.die(rng, power_loss=rng.random() < 0.6)
    story.source.clock.ms += 600_001  # what was asked for and lost must not use up all that the source gives
    story.end()

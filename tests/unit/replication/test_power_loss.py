"""Power goes at any moment of a rollback: every durable entry is in the log or in a finished rollback's files."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from replset.bson import encode
from replset.replication import rollback as rollback_module
from replset.replication.rollback import finish_rollbacks
from replset.replication.rollback_manifest import FOLDER, FileKind, Manifest, RollbackState, manifests_on
from tests.simulation.kit.disk import SimDisk
from tests.unit.replication.diverged import MINE, SOURCE, Crash, diverge, two_members
from tests.unit.replication.kit import Member, Network, split_bson

OWN_FILES = ("write_file", "sync_file", "rename", "sync_folder", "make_folder")


def member_on(disk: SimDisk, network: Network) -> Member:
    return Member(MINE, Path(disk.folder).parent, network, disk)


def crash_somewhere(mine: Member, rng: random.Random) -> None:
    """Arm one crash: at the n-th operation on files, or after the n-th undo step."""
    left = rng.randrange(1, 24)

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Crash

    def counted(do: Callable[..., None]) -> Callable[..., None]:
        def step(*arguments: Any, **named: Any) -> None:
            count()
            do(*arguments, **named)

        return step

    if rng.random() < 0.5:
        left = rng.randrange(1, 8)
        mine.context.on_undone = count
        return
    for name in OWN_FILES:
        setattr(mine.disk, name, counted(getattr(mine.disk, name)))


def entries_in(mine: Member, manifest: Manifest) -> set[bytes]:
    """The oplog entries that a rollback's files hold; checks every file on the way."""
    found: set[bytes] = set()
    for file in manifest.files:
        data = mine.disk.read_file(os.path.join(mine.dbpath, FOLDER, file.name))
        assert (len(data), hashlib.sha256(data).hexdigest()) == (file.size, file.sha256)
        if file.kind is FileKind.OPLOG:
            found |= {encode(entry) for entry in split_bson(data)}
    return found


@pytest.mark.parametrize("seed", range(40))
def test_a_power_loss_in_a_rollback_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(rollback_module, "UNDO_STEP_ENTRIES", 4)
    rng = random.Random(seed)
    source, other = two_members(tmp_path)
    mine = member_on(SimDisk(str(tmp_path / "life-0" / MINE)), other.network)
    for raw in other.oplog():
        mine.apply(raw)
    at_common, log_at_common = mine.everything(), mine.oplog()
    common = diverge(source, mine)
    durable = mine.oplog()
    mine.store.wal.sync()

    for life in range(1, 5):
        crash_somewhere(mine, rng)
        with suppress(Crash):
            asyncio.run(mine.rollback.run(SOURCE))
        disk: Any = mine.disk
        after = disk.crash(str(tmp_path / f"life-{life}" / MINE), rng, power_loss=rng.random() < 0.6)
        disk.close()
        mine = member_on(after, other.network)
        asyncio.run(finish_rollbacks(mine.context, lambda: None))
        manifests = manifests_on(mine.disk, mine.dbpath)
        assert {manifest.state for manifest in manifests} <= {RollbackState.FINISHED, RollbackState.ABANDONED}
        saved: set[bytes] = set()
        for manifest in manifests:
            if manifest.state is RollbackState.FINISHED:
                saved |= entries_in(mine, manifest)
        assert set(durable) <= set(mine.oplog()) | saved
        assert mine.store.last_applied == common or mine.oplog() == durable

    asyncio.run(mine.rollback.run(SOURCE))
    assert mine.everything() == at_common
    assert mine.oplog() == log_at_common
    states = [manifest.state for manifest in manifests_on(mine.disk, mine.dbpath)]
    assert states.count(RollbackState.FINISHED) == 1
    mine.store.close()
    last: Any = mine.disk
    last.close()

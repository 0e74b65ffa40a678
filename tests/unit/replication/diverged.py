"""Two members whose histories part, and deaths on purpose: for the tests of rollback."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

import replset.replication.rollback as rollback_module
from replset.core.messages import RollbackEnded
from replset.ids import HostPort, OpTime
from replset.replication.rollback_manifest import Manifest
from replset.storage.disk import RealDisk
from replset.storage.store import Store
from replset.storage.undo import undo_step
from tests.unit.replication.kit import Member, Network, copy_log, numbered

SOURCE = HostPort("source:1")
MINE = "mine:1"
NS = "app.orders"
OTHER = "app.parts"
DISK_OPERATIONS = 23  # of the rollback in these tests; the last six are behind the undo


def two_members(tmp_path: Path) -> tuple[Member, Member]:
    """A source and me with a common history: documents 1 to 20 and a second collection."""
    network = Network()
    source, mine = Member(SOURCE, tmp_path, network), Member(MINE, tmp_path, network)
    source.create(NS)
    source.insert(NS, *numbered(range(1, 21)))
    source.create(OTHER)
    source.insert(OTHER, {"_id": "bolt"}, {"_id": "nut"})
    copy_log(source, mine)
    return source, mine


def diverge(source: Member, mine: Member) -> OpTime:
    """I go on in term 1 with everything that there is, the source in term 2; returns the common point."""
    common = mine.store.last_applied
    mine.clock.ms += 5_000
    mine.insert(NS, *numbered(range(100, 105)))
    mine.replace(NS, {"_id": 1, "text": "mine"})
    mine.change(NS, 2, {"u": {"text": "changed here"}, "i": {"extra": True}})
    mine.change(NS, 2, {"u": {"text": "changed again"}})
    mine.delete(NS, 3)
    mine.insert(NS, {"_id": 200})
    mine.delete(NS, 200)
    mine.replace(NS, {**mine.documents(NS)[4], "text": "away"})
    mine.replace(NS, {**mine.documents(NS)[4], "text": "document 4"})  # and back: nothing is lost
    mine.create("app.new")
    mine.insert("app.new", {"_id": "only here"})
    mine.insert(OTHER, {"_id": "washer"})
    mine.drop(OTHER)
    mine.create(OTHER)  # the same name, another collection
    mine.insert(OTHER, {"_id": "bolt", "size": 8})
    mine.noop()
    source.clock.ms += 9_000
    source.node.term = 2
    source.noop()
    source.insert(NS, {"_id": 100, "text": "theirs"})
    return common


def run_rollback(mine: Member) -> RollbackEnded:
    asyncio.run(mine.rollback.run(SOURCE))
    ended = mine.reports[-1]
    assert isinstance(ended, RollbackEnded)
    return ended


def files_of(mine: Member, manifest: Manifest) -> dict[tuple[str, str], list[list[dict[str, object]]]]:
    """Documents by (kind, namespace), one list per file."""
    found: dict[tuple[str, str], list[list[dict[str, object]]]] = {}
    for file in manifest.files:
        found.setdefault((file.kind.value, file.ns), []).append(mine.rollback_file(file.name))
    return found


def by_id(documents: Iterable[dict[str, object]]) -> dict[object, dict[str, object]]:
    return {document["_id"]: document for document in documents}


def stamp_of(manifest: Manifest) -> str:
    return manifest.id.removeprefix("rollback-").rpartition(".")[0]


class Crash(BaseException):
    """The process is gone."""


class FailingDisk(RealDisk):
    """Fails at the n-th operation on our own files, and, as after a crash, at every later one."""

    def __init__(self) -> None:
        super().__init__()
        self.fail_at = 0
        self.dead_after = True
        self.operations = 0

    def _step(self, do: Callable[[], None], *, torn: Callable[[], None] | None = None) -> None:
        self.operations += 1
        if self.fail_at and (self.operations == self.fail_at or (self.dead_after and self.operations > self.fail_at)):
            if torn is not None and self.operations == self.fail_at:
                torn()
            raise Crash if self.dead_after else OSError(28, "No space left on device")
        do()

    def write_file(self, path: str, chunks: Iterable[bytes], *, append: bool = False) -> None:
        data = b"".join(chunks)
        write = super().write_file
        self._step(
            lambda: write(path, [data], append=append),
            torn=lambda: write(path, [data[: len(data) // 2]], append=append),
        )

    def sync_file(self, path: str) -> None:
        sync = super().sync_file
        self._step(lambda: sync(path))

    def rename(self, source: str, target: str) -> None:
        rename = super().rename
        self._step(lambda: rename(source, target))

    def sync_folder(self, path: str) -> None:
        sync = super().sync_folder
        self._step(lambda: sync(path))

    def make_folder(self, path: str) -> None:
        make = super().make_folder
        self._step(lambda: make(path))


def reopened(mine: Member, tmp_path: Path, network: Network) -> Member:
    """What a restart finds: the files as they are, without the shared memory of SQLite."""
    left = tmp_path / "left"
    shutil.copytree(mine.folder, left / MINE, ignore=shutil.ignore_patterns("*-shm"))
    return Member(MINE, left, network)


def crash_around_step(mine: Member, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0

    def counted(store: Store, common: OpTime, *, stem: str, limit: int = 0) -> bool:
        nonlocal count
        count += 1
        if count == -step:
            raise Crash
        more = undo_step(store, common, stem=stem, limit=limit)
        if count == step:
            raise Crash
        return more

    monkeypatch.setattr(rollback_module, "undo_step", counted)

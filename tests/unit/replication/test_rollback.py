"""Rollback end to end on real stores: the common point, files and manifest, the undo, and crashes at every step."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from uuid import UUID

import bson as pymongo_bson
import pytest

from replset.bson import decode, encode
from replset.core.member_state import MemberState
from replset.core.messages import RollbackEnded, SourceBatch
from replset.errors import OutOfDiskSpaceError, UnrecoverableRollbackError
from replset.ids import OPTIME_NULL, HostPort, OpTime
from replset.replication import rollback as rollback_module
from replset.replication.rollback import (
    CommonPoint,
    Identity,
    NoCommonPointError,
    SourceChangedError,
    export_before_wipe,
    settle,
)
from replset.replication.rollback_files import (
    FileKind,
    Manifest,
    RollbackState,
    RollbackWriter,
    list_manifests,
    read_manifest,
    verify_file,
)
from replset.storage.disk import RealDisk
from tests.unit.replication.kit import Member, Network, copy_log, numbered, split_bson, until

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


def test_rollback_takes_back_every_kind_of_operation_and_writes_it_down(tmp_path: Path) -> None:
    source, mine = two_members(tmp_path)
    before, log_before = mine.everything(), mine.oplog()
    common = diverge(source, mine)
    undone = mine.oplog()[len(log_before) :]
    id_before = mine.store.rollback_id

    ended = run_rollback(mine)

    assert (ended.ok, ended.retry, ended.too_stale) == (True, False, False)
    assert mine.everything() == before
    assert mine.oplog() == log_before
    assert mine.store.last_applied == common
    assert mine.store.rollback_id == id_before + 1
    assert mine.store.rollback_in_progress() is None
    assert mine.store.rollback_done_marks() == []

    (manifest,) = list_manifests(mine.dbpath)
    assert manifest.state is RollbackState.FINISHED
    assert manifest.settled is not None
    assert (manifest.set_name, manifest.member, manifest.source) == ("rs0", MINE, SOURCE)
    assert manifest.common_point == common
    assert manifest.entries == len(undone)
    assert dict(manifest.operations) == {"c": 3, "d": 2, "i": 9, "n": 1, "u": 5}
    assert (manifest.first.term, manifest.last.term) == (1, 1)
    assert all(verify_file(mine.folder / "rollback", file) is None for file in manifest.files)

    found = files_of(mine, manifest)
    assert found[("oplog", "local.oplog.rs")] == [[decode(entry) for entry in undone]]
    (orders,) = found[("documents", NS)]
    assert by_id(orders) == {
        1: {"_id": 1, "text": "mine"},
        2: {"_id": 2, "text": "changed again", "n": 2, "extra": True},
        **by_id(numbered(range(100, 105))),
    }
    (orders_before,) = found[("before", NS)]
    assert by_id(orders_before) == by_id(numbered([1, 2]))
    assert found[("documents", "app.new")] == [[{"_id": "only here"}]]
    assert found[("documents", OTHER)] == [[{"_id": "bolt", "size": 8}]]
    assert set(found) == {
        ("oplog", "local.oplog.rs"),
        ("documents", NS),
        ("before", NS),
        ("documents", "app.new"),
        ("documents", OTHER),
    }

    # Then it goes on from the source, and both are equal.
    async def tail() -> None:
        mine.fetcher.start(SOURCE)
        await until(lambda: mine.store.last_applied == source.store.last_applied)
        mine.fetcher.stop()

    asyncio.run(tail())
    assert isinstance(mine.reports[-1], SourceBatch)
    assert mine.everything() == source.everything()
    assert mine.store.chain == source.store.chain


def test_rollback_files_are_plain_bson(tmp_path: Path) -> None:
    source, mine = two_members(tmp_path)
    diverge(source, mine)
    assert run_rollback(mine).ok
    (manifest,) = list_manifests(mine.dbpath)
    for file in manifest.files:
        data = (mine.folder / "rollback" / file.name).read_bytes()
        documents = pymongo_bson.decode_all(data)
        assert len(documents) == file.count > 0
        assert len(data) == file.size
        assert b"".join(map(pymongo_bson.encode, documents)) == data
    assert {file.name for file in manifest.files if file.ns == NS} == {
        f"app.orders.{stamp_of(manifest)}.0.bson",
        f"before.app.orders.{stamp_of(manifest)}.0.bson",
    }


def stamp_of(manifest: Manifest) -> str:
    return manifest.id.removeprefix("rollback-").rpartition(".")[0]


def test_two_collections_of_one_name_get_a_file_each(tmp_path: Path) -> None:
    source, mine = two_members(tmp_path)
    uuid = mine.store.collection(OTHER)
    mine.insert(OTHER, {"_id": "old table"})
    mine.drop(OTHER)
    mine.create(OTHER)
    mine.insert(OTHER, {"_id": "new table"})
    source.node.term = 2
    source.noop()
    assert run_rollback(mine).ok
    (manifest,) = list_manifests(mine.dbpath)
    # What was written to the dropped one is in the oplog's file; its documents at the common point are back.
    (file,) = [file for file in manifest.files if file.kind is FileKind.DOCUMENTS]
    assert uuid is not None
    assert file.uuid is not None
    assert file.uuid.bytes != uuid.uuid
    assert mine.rollback_file(file.name) == [{"_id": "new table"}]
    assert set(mine.documents(OTHER)) == {"bolt", "nut"}


def test_a_second_rollback_in_the_same_second_overwrites_nothing(tmp_path: Path) -> None:
    source, mine = two_members(tmp_path)
    mine.insert(NS, {"_id": "first"})
    source.node.term = 2
    source.noop()
    assert run_rollback(mine).ok
    copy_log_from(source, mine)
    mine.insert(NS, {"_id": "second"}, term=2)
    source.node.term = 3
    source.noop()
    assert run_rollback(mine).ok
    first, second = list_manifests(mine.dbpath)
    assert (first.id.rpartition(".")[2], second.id.rpartition(".")[2]) == ("0", "1")
    names = [file.name for manifest in (first, second) for file in manifest.files]
    assert len(set(names)) == len(names) == 4
    assert [
        mine.rollback_file(file.name)
        for manifest in (first, second)
        for file in manifest.files
        if file.kind is FileKind.DOCUMENTS
    ] == [[{"_id": "first"}], [{"_id": "second"}]]


def copy_log_from(source: Member, mine: Member) -> None:
    async def tail() -> None:
        mine.fetcher.start(SOURCE)
        await until(lambda: mine.store.last_applied == source.store.last_applied)
        mine.fetcher.stop()

    asyncio.run(tail())


def test_members_without_anything_in_common_are_too_stale(tmp_path: Path) -> None:
    network = Network()
    source, mine = Member(SOURCE, tmp_path, network), Member(MINE, tmp_path, network)
    mine.create(NS)
    mine.insert(NS, {"_id": 1})
    source.clock.ms += 60_000
    source.node.term = 2
    source.create(NS)
    ended = run_rollback(mine)
    assert (ended.ok, ended.retry, ended.too_stale) == (False, False, True)
    assert list_manifests(mine.dbpath) == []
    assert mine.documents(NS) == {1: {"_id": 1}}


def test_below_the_commit_point_it_is_refused_and_exported(tmp_path: Path) -> None:
    source, mine = two_members(tmp_path)
    common = mine.store.last_applied
    mine.node.commit_point = mine.insert(NS, {"_id": "committed"})
    mine.insert(NS, {"_id": "not known"})
    source.clock.ms += 5_000
    source.node.term = 2
    source.noop()
    everything, log = mine.everything(), mine.oplog()
    ended = run_rollback(mine)
    assert (ended.ok, ended.retry, ended.too_stale) == (False, False, False)
    assert str(mine.node.commit_point) in ended.detail
    assert mine.everything() == everything
    assert mine.oplog() == log
    (manifest,) = list_manifests(mine.dbpath)
    assert manifest.state is RollbackState.EXPORTED
    assert manifest.common_point == common, "what was committed once is not in the set either"
    assert files_of(mine, manifest)[("documents", NS)] == [[{"_id": "committed"}, {"_id": "not known"}]]
    assert [entry["o"] for entry in files_of(mine, manifest)[("oplog", "local.oplog.rs")][0]] == [
        {"_id": "committed"},
        {"_id": "not known"},
    ]
    assert manifest.id in ended.detail
    # Asked again, it refuses again and writes nothing new; after a restart too, when it knows of no commit point.
    assert not run_rollback(mine).ok
    mine.node.commit_point = OPTIME_NULL
    mine.store.commit_point = OPTIME_NULL
    ended = run_rollback(mine)
    assert (ended.ok, ended.retry, ended.too_stale) == (False, False, False)
    assert mine.oplog() == log
    assert list_manifests(mine.dbpath) == [manifest]


def test_below_what_the_undo_reaches_it_is_refused(tmp_path: Path) -> None:
    source, mine = two_members(tmp_path)
    common = mine.store.last_applied
    mine.insert(NS, {"_id": "pruned"})
    mine.replace(NS, {"_id": 1, "text": "changed"})
    mine.delete(NS, 2)
    mine.clock.ms += 400_000
    newest = mine.insert(NS, {"_id": "late"})
    mine.store.set_commit_point(newest)
    while mine.store.housekeeping(mine.clock.wall_ms()):
        pass
    assert mine.store.pruned_through > 0
    source.clock.ms += 500_000
    source.node.term = 2
    source.noop()
    ended = run_rollback(mine)
    assert (ended.ok, ended.retry, ended.too_stale) == (False, False, False)
    (manifest,) = list_manifests(mine.dbpath)
    assert (manifest.state, manifest.common_point, manifest.entries) == (RollbackState.EXPORTED, common, 4)
    files = files_of(mine, manifest)
    assert by_id(files[("documents", NS)][0]) == {
        "pruned": {"_id": "pruned"},
        "late": {"_id": "late"},
        1: {"_id": 1, "text": "changed"},
    }
    assert ("before", NS) not in files, "what it was at the common point is not known any more"
    assert len(files[("oplog", "local.oplog.rs")][0]) == 4


def test_different_chains_at_the_common_point_are_corruption(tmp_path: Path) -> None:
    source, mine = two_members(tmp_path)
    diverge(source, mine)

    def damage(command: dict[str, object], reply: dict[str, object]) -> None:
        if "chains" in reply:
            chains: Any = reply["chains"]
            reply["chains"] = [chain if chain is None else type(chain)(int(chain) ^ 1) for chain in chains]

    mine.network.before_reply = damage
    ended = run_rollback(mine)
    assert (ended.ok, ended.retry, ended.too_stale) == (False, False, False)
    assert "corruption" in ended.detail
    assert mine.documents(NS)[1]["text"] == "mine"


def test_a_source_that_rolls_back_meanwhile_voids_the_search(tmp_path: Path) -> None:
    source, mine = two_members(tmp_path)
    diverge(source, mine)
    everything = mine.everything()

    def later(command: dict[str, object], reply: dict[str, object]) -> None:
        if len(mine.network.calls) > 1:
            reply["rbid"] = 99

    mine.network.before_reply = later
    ended = run_rollback(mine)
    assert (ended.ok, ended.retry) == (False, True)
    assert mine.everything() == everything
    assert list_manifests(mine.dbpath) == []
    mine.network.before_reply = lambda command, reply: None
    assert run_rollback(mine).ok


@pytest.mark.parametrize("state", [MemberState.ROLLBACK, MemberState.STARTUP2])
def test_a_source_that_serves_no_oplog_is_tried_again(tmp_path: Path, state: MemberState) -> None:
    source, mine = two_members(tmp_path)
    diverge(source, mine)
    source.node.state = state
    ended = run_rollback(mine)
    assert (ended.ok, ended.retry) == (False, True)
    assert state.name in ended.detail


def test_a_source_in_no_later_term_is_none(tmp_path: Path) -> None:
    _, mine = two_members(tmp_path)
    mine.insert(NS, {"_id": "ahead"})
    ended = run_rollback(mine)
    assert (ended.ok, ended.retry) == (False, True)
    assert mine.documents(NS)["ahead"] == {"_id": "ahead"}


def test_nothing_to_undo(tmp_path: Path) -> None:
    source, mine = two_members(tmp_path)
    source.node.term = 2
    source.noop()
    assert run_rollback(mine).ok
    assert list_manifests(mine.dbpath) == []


class FullDisk(RealDisk):
    """Full from its n-th operation on, until `left` tries have failed; SQLite's own files are not touched."""

    def __init__(self, full_at: int) -> None:
        super().__init__()
        self.operations = 0
        self.full_at = full_at
        self.left = 3
        self.on_full: Callable[[], None] = lambda: None

    def _step(self, path: str) -> None:
        self.operations += 1
        if self.operations >= self.full_at and self.left:
            self.left -= 1
            self.on_full()
            raise OSError(28, "No space left on device", path)

    def write_file(self, path: str, chunks: Iterable[bytes], *, append: bool = False) -> None:
        data = b"".join(chunks)
        try:
            self._step(path)
        except OSError:
            super().write_file(path, [data[: len(data) // 2]], append=append)
            raise
        super().write_file(path, [data], append=append)

    def sync_file(self, path: str) -> None:
        self._step(path)
        super().sync_file(path)

    def rename(self, source: str, target: str) -> None:
        self._step(source)
        super().rename(source, target)

    def sync_folder(self, path: str) -> None:
        self._step(path)
        super().sync_folder(path)

    def make_folder(self, path: str) -> None:
        self._step(path)
        super().make_folder(path)


@pytest.mark.parametrize("operation", range(1, DISK_OPERATIONS + 1))
def test_a_full_disk_is_waited_for_and_nothing_is_undone_unrecorded(
    tmp_path: Path, operation: int, caplog: pytest.LogCaptureFixture
) -> None:
    source, mine = two_members(tmp_path)
    at_common = mine.everything()
    diverge(source, mine)
    everything = mine.everything()
    disk = FullDisk(operation)
    seen: list[tuple[bool, list[RollbackState]]] = []

    def look() -> None:
        manifests = list_manifests(mine.dbpath)
        seen.append((mine.everything() == everything, [manifest.state for manifest in manifests]))

    disk.on_full = look
    mine.rollback._disk = disk
    ended = run_rollback(mine)
    assert ended.ok
    assert len(mine.reports) == 1
    assert mine.broken == []
    assert disk.left == 0
    undone_already = operation > DISK_OPERATIONS - 6
    for untouched, states in seen:
        assert untouched is not undone_already
        assert untouched or states in ([RollbackState.PLANNED], [RollbackState.FINISHED])
    assert mine.everything() == at_common
    (manifest,) = list_manifests(mine.dbpath)
    assert manifest.state is RollbackState.FINISHED
    folder = mine.folder / "rollback"
    assert all(verify_file(folder, file) is None for file in manifest.files)
    assert {path.name for path in folder.iterdir()} == {f"{manifest.id}.json", *(file.name for file in manifest.files)}
    assert sum("rollback waits" in record.message for record in caplog.records) == 1, "said once"
    assert sum("rollback goes on" in record.message for record in caplog.records) == 1
    assert (mine.rollback.progress.running, mine.rollback.progress.waiting_for) == (False, "")


@pytest.mark.parametrize("name", ["undo_step", "sync_wal", "clear_rollback_done"])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_database_that_cannot_grow_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, nth: int
) -> None:
    monkeypatch.setattr(rollback_module, "UNDO_STEP_ENTRIES", 4)
    source, mine = two_members(tmp_path)
    at_common = mine.everything()
    diverge(source, mine)
    real = getattr(mine.store, name)
    calls = 0
    texts: list[str] = []

    def failing(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if nth <= calls < nth + 3:
            texts.append(mine.rollback.progress.text())
            raise OutOfDiskSpaceError("replset.db: no space left on the disk")
        return real(*arguments, **named)

    monkeypatch.setattr(mine.store, name, failing)
    ended = run_rollback(mine)
    assert ended.ok
    assert mine.everything() == at_common
    (manifest,) = list_manifests(mine.dbpath)
    assert manifest.state is RollbackState.FINISHED
    assert mine.store.rollback_done_marks() == []
    assert [text for text in texts if "waits for room on the disk: replset.db" in text] == texts[1:]


def test_files_are_begun_anew_once_the_disk_takes_what_they_had_come_to(tmp_path: Path) -> None:
    source, mine = two_members(tmp_path)
    diverge(source, mine)
    disk = FullDisk(4)
    disk.left = 1
    free = [0, 0, (1 << 20) - 1, 1 << 40]
    disk.free_bytes = lambda path: free.pop(0)  # type: ignore[method-assign]
    mine.rollback._disk = disk
    assert run_rollback(mine).ok
    assert free == []


def test_a_start_without_room_finishes_an_interrupted_rollback_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollback_module, "UNDO_STEP_ENTRIES", 4)
    source, mine = two_members(tmp_path)
    at_common = mine.everything()
    diverge(source, mine)
    crash_around_step(mine, 2, monkeypatch)
    with pytest.raises(Crash):
        asyncio.run(mine.rollback.run(SOURCE))
    again = reopened(mine, tmp_path, mine.network)
    disk = FullDisk(1)
    again.rollback._disk = disk
    asyncio.run(again.rollback.finish())
    (ended,) = again.reports
    assert isinstance(ended, RollbackEnded)
    assert ended.ok
    assert again.everything() == at_common
    assert [manifest.state for manifest in list_manifests(again.dbpath)] == [RollbackState.FINISHED]


def test_a_full_disk_in_the_middle_of_mongodb_s_layout(tmp_path: Path) -> None:
    """Every operation on its files fails once; at the end they are what the plain ones are."""
    operation = 0
    while True:
        operation += 1
        folder = tmp_path / str(operation)
        source, mine = two_members(folder)
        diverge(source, mine)
        disk = FullDisk(operation)
        disk.left = 1
        mine.rollback._disk = disk
        mine.rollback._identity = lambda: Identity("rs0", HostPort(MINE), mongodb_layout=True)
        assert run_rollback(mine).ok
        (manifest,) = list_manifests(mine.dbpath)
        documents = [file for file in manifest.files if file.kind is FileKind.DOCUMENTS]
        assert sorted(manifest.mongodb_files) == sorted(
            f"{file.uuid}/removed.{stamp_of(manifest)}.0.bson" for file in documents
        )
        for file in documents:
            (path,) = (mine.folder / "rollback" / str(file.uuid)).iterdir()
            assert path.read_bytes() == (mine.folder / "rollback" / file.name).read_bytes()
        if disk.left:
            break
    assert operation > DISK_OPERATIONS + 6


def test_a_read_that_is_cut_off_undoes_nothing_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, mine = two_members(tmp_path)
    diverge(source, mine)
    everything = mine.everything()
    add = RollbackWriter.add

    def cutting(self: RollbackWriter, kind: FileKind, ns: str, uuid: UUID | None, document: bytes) -> None:
        add(self, kind, ns, uuid, document)
        mine.store.cut_readers()

    with monkeypatch.context() as patched:
        patched.setattr(RollbackWriter, "add", cutting)
        ended = run_rollback(mine)
    assert (ended.ok, ended.retry) == (False, True)
    assert mine.everything() == everything
    assert list((mine.folder / "rollback").iterdir()) == []
    assert run_rollback(mine).ok


# --- the common point -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [1, 2, 3, 17, 64, 299])
def test_common_point_is_found_with_few_probes(tmp_path: Path, shared: int) -> None:
    network = Network()
    source, mine = Member(SOURCE, tmp_path, network), Member(MINE, tmp_path, network)
    source.create(NS)
    for number in range(shared - 1):
        source.clock.ms += (number % 7) * 1_000 * (number % 5)
        source.insert(NS, {"_id": number})
    copy_log(source, mine)
    common = mine.store.last_applied
    mine.clock.ms = source.clock.ms
    for number in range(300 - shared):
        mine.clock.ms += (number % 3) * 2_000
        mine.insert(NS, {"_id": f"mine {number}"})
    source.node.term = 2
    for number in range(50):
        source.clock.ms += 3_000
        source.insert(NS, {"_id": f"theirs {number}"})

    found = asyncio.run(CommonPoint(network, mine.store, SOURCE).find())

    assert found == (common if shared < 300 else mine.store.last_applied)
    assert len(network.calls) <= 10


def test_common_point_when_the_source_trimmed_its_oldest(tmp_path: Path) -> None:
    source, mine = two_members(tmp_path)
    mine.insert(NS, {"_id": "mine"})
    source.node.term = 2
    newest = source.noop()
    trim(source, newest)
    oldest = source.store.oldest
    assert mine.store.oldest < oldest <= mine.store.last_applied
    assert (
        asyncio.run(CommonPoint(mine.network, mine.store, SOURCE).find())
        == mine.store.row_at_or_before(OpTime(1, mine.store.last_applied.ts - 1)).optime
    )  # type: ignore[union-attr]


def trim(member: Member, commit_point: OpTime) -> None:
    """Drop the oldest half of the oplog."""
    rows = member.store.oplog_after(OPTIME_NULL, limit=10_000, max_bytes=1 << 30)
    keep = sum(len(row.entry) for row in rows[len(rows) // 2 :])
    object.__setattr__(member.store.options, "oplog_max_bytes", keep)
    member.store.set_commit_point(commit_point)
    while member.store.housekeeping(member.clock.wall_ms()):
        pass


def test_common_point_trimmed_away_is_too_stale(tmp_path: Path) -> None:
    source, mine = two_members(tmp_path)
    mine.insert(NS, {"_id": "mine"})
    source.clock.ms += 100_000
    source.node.term = 2
    for number in range(100):
        source.insert(NS, {"_id": f"theirs {number}"})
    trim(source, source.store.last_applied)
    assert source.store.oldest > mine.store.last_applied
    with pytest.raises(NoCommonPointError):
        asyncio.run(CommonPoint(mine.network, mine.store, SOURCE).find())


def test_common_point_with_an_unreachable_source(tmp_path: Path) -> None:
    source, mine = two_members(tmp_path)
    diverge(source, mine)
    mine.network.down.add(SOURCE)
    with pytest.raises(SourceChangedError):
        asyncio.run(CommonPoint(mine.network, mine.store, SOURCE).find())


def test_the_store_refuses_to_undo_below_the_commit_point(tmp_path: Path) -> None:
    _, mine = two_members(tmp_path)
    mine.store.set_commit_point(mine.store.last_applied)
    common = mine.store.oldest
    with pytest.raises(UnrecoverableRollbackError):
        mine.store.undo_step(common, stem="x")


# --- crashes ----------------------------------------------------------------------------------------------------


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


def crash_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, operation: int = 0, step: int = 0) -> int:
    """Roll back with a crash at one disk operation or around one undo step, restart, finish and check everything.

    operation 0 and step 0: no crash; returns how many operations there are. Negative step: before it commits.
    """
    monkeypatch.setattr(rollback_module, "UNDO_STEP_ENTRIES", 4)
    source, mine = two_members(tmp_path)
    at_common, log_at_common = mine.everything(), mine.oplog()
    common = diverge(source, mine)
    at_newest, undone = mine.everything(), mine.oplog()[len(log_at_common) :]
    disk = FailingDisk()
    disk.fail_at = operation
    mine.rollback._disk = disk
    crash_around_step(mine, step, monkeypatch)
    try:
        asyncio.run(mine.rollback.run(SOURCE))
    except Crash:
        again = reopened(mine, tmp_path, mine.network)
    else:
        assert operation == step == 0
        return disk.operations

    begun = again.store.rollback_in_progress() is not None or again.store.rollback_done_marks() != []
    changed = again.oplog() != log_at_common + undone
    asyncio.run(settle(again.store, again.disk, again.dbpath, again.clock, again.workers))
    states = [manifest.state for manifest in list_manifests(again.dbpath)]
    if again.store.last_applied == common:
        assert again.everything() == at_common
        assert states == [RollbackState.FINISHED]
        if not begun:
            assert changed  # all of it was over, the manifest included
    else:
        assert not begun
        assert again.everything() == at_newest, "nothing was undone, so nothing may be missing"
        assert again.oplog() == log_at_common + undone
        assert states in ([], [RollbackState.ABANDONED])
    asyncio.run(again.rollback.run(SOURCE))
    assert again.everything() == at_common
    assert again.oplog() == log_at_common
    finished = [m for m in list_manifests(again.dbpath) if m.state is RollbackState.FINISHED]
    (manifest,) = finished
    assert all(verify_file(again.folder / "rollback", file) is None for file in manifest.files)
    (log_file,) = [file for file in manifest.files if file.kind is FileKind.OPLOG]
    assert again.rollback_file(log_file.name) == [decode(entry) for entry in undone]
    assert {file.ns for file in manifest.files if file.kind is FileKind.DOCUMENTS} == {NS, OTHER, "app.new"}
    assert again.store.rollback_done_marks() == []
    again.close()
    return disk.operations


def crash_around_step(mine: Member, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    undo_step = mine.store.undo_step
    count = 0

    def counted(common: OpTime, *, stem: str, limit: int = 0) -> bool:
        nonlocal count
        count += 1
        if count == -step:
            raise Crash
        more = undo_step(common, stem=stem, limit=limit)
        if count == step:
            raise Crash
        return more

    monkeypatch.setattr(mine.store, "undo_step", counted)


def test_how_many_disk_operations_a_rollback_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert crash_at(tmp_path, monkeypatch) == DISK_OPERATIONS


@pytest.mark.parametrize("operation", range(1, DISK_OPERATIONS + 1))
def test_a_crash_at_any_disk_operation_is_finished_or_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: int
) -> None:
    crash_at(tmp_path, monkeypatch, operation=operation)


@pytest.mark.parametrize("step", [-1, 1, -2, 2, 3, -4, 4])
def test_a_crash_around_any_undo_step_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    crash_at(tmp_path, monkeypatch, step=step)


def test_a_planned_manifest_without_a_committed_step_is_abandoned(tmp_path: Path) -> None:
    source, mine = two_members(tmp_path)
    diverge(source, mine)
    common = asyncio.run(CommonPoint(mine.network, mine.store, SOURCE).find())
    planned = asyncio.run(mine.rollback._write(common, RollbackState.PLANNED, "rollback", SOURCE))
    (settled,) = asyncio.run(settle(mine.store, mine.disk, mine.dbpath, mine.clock, mine.workers))
    assert settled.state is RollbackState.ABANDONED
    assert read_manifest(mine.folder / "rollback" / f"{planned.id}.json") == settled
    assert asyncio.run(settle(mine.store, mine.disk, mine.dbpath, mine.clock, mine.workers)) == []


def test_a_damaged_manifest_of_an_earlier_rollback_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, mine = two_members(tmp_path)
    at_common = mine.everything()
    diverge(source, mine)
    damaged = mine.folder / "rollback" / "rollback-2020-01-01T00-00-00.0.json"
    damaged.parent.mkdir()
    damaged.write_bytes(b"{")
    assert asyncio.run(settle(mine.store, mine.disk, mine.dbpath, mine.clock, mine.workers)) == []
    assert run_rollback(mine).ok
    assert mine.everything() == at_common
    assert mine.broken == []
    assert damaged.read_bytes() == b"{"
    assert damaged.name in caplog.text


def test_a_storage_failure_in_the_middle_stops_the_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, mine = two_members(tmp_path)
    diverge(source, mine)
    monkeypatch.setattr(rollback_module, "UNDO_STEP_ENTRIES", 4)
    undo_step = mine.store.undo_step
    steps = iter([None, OSError(5, "Input/output error")])

    def failing(common: OpTime, *, stem: str, limit: int = 0) -> bool:
        error = next(steps)
        if error is not None:
            raise error
        return undo_step(common, stem=stem, limit=limit)

    monkeypatch.setattr(mine.store, "undo_step", failing)
    asyncio.run(mine.rollback.run(SOURCE))
    assert [type(error) for error in mine.broken] == [OSError]
    assert mine.reports == []


# --- before a wipe ----------------------------------------------------------------------------------------------


def export(mine: Member, commit_point: OpTime) -> Manifest | None:
    return asyncio.run(
        export_before_wipe(
            mine.store,
            mine.disk,
            mine.dbpath,
            mine.workers,
            mine.clock.wall_ms(),
            Identity("rs0", mine.host),
            commit_point,
            "resync",
            None,
        )
    )


def test_export_holds_all_that_is_not_known_to_be_committed(tmp_path: Path) -> None:
    _, mine = two_members(tmp_path)
    committed = mine.store.last_applied
    mine.replace(NS, {"_id": 1, "text": "later"})
    mine.delete(NS, 2)
    everything, log = mine.everything(), mine.oplog()
    manifest = export(mine, committed)
    assert manifest is not None
    assert manifest.state is RollbackState.EXPORTED
    assert (manifest.common_point, manifest.entries, manifest.reason) == (committed, 2, "resync")
    assert files_of(mine, manifest)[("documents", NS)] == [[{"_id": 1, "text": "later"}]]
    assert files_of(mine, manifest)[("before", NS)] == [numbered([1])]
    assert mine.everything() == everything
    assert mine.oplog() == log
    assert export(mine, committed) == manifest, "the same again is there already"
    assert list_manifests(mine.dbpath) == [manifest]


def test_export_without_any_known_commit_point_holds_everything(tmp_path: Path) -> None:
    _, mine = two_members(tmp_path)
    manifest = export(mine, OPTIME_NULL)
    assert manifest is not None
    assert manifest.common_point == OPTIME_NULL
    assert manifest.entries == len(mine.oplog())
    assert len(files_of(mine, manifest)[("documents", NS)][0]) == 20


def test_export_of_what_is_all_committed_is_nothing(tmp_path: Path) -> None:
    _, mine = two_members(tmp_path)
    assert export(mine, mine.store.last_applied) is None
    assert not (mine.folder / "rollback").exists()


def test_split_bson_reads_what_encode_writes() -> None:
    assert split_bson(encode({"a": 1}) + encode({"b": "x"})) == [{"a": 1}, {"b": "x"}]

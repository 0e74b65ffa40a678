"""A transfer that broke goes on where it stopped, of the same copy and no other; a full disk makes it wait."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest

from replset.core.messages import InitialSyncEnded
from replset.errors import (
    BadValueError,
    CorruptDataError,
    ErrorCode,
    HostUnreachableError,
    NotPrimaryOrSecondaryError,
    OutOfDiskSpaceError,
    RemoteProtocolError,
    ReplError,
)
from replset.features.compared_copies.difference_protocol import CompareRequest
from replset.ids import HostPort, Millis, OpTime
from replset.replication import initial_sync_progress
from replset.replication.copy_transfer import is_temporary
from replset.replication.partial_copy import CopyRecord, PartialCopy
from replset.replication.rollback_manifest import list_manifests
from replset.storage.disk import RealDisk
from replset.storage.undo import undo_step
from tests.unit.replication.kit import (
    NS,
    SOURCE,
    Member,
    NotingDisk,
    Pair,
    catch_up,
    copies_asked,
    copy_log,
    left_at_source,
    pair,
    until,
)

OTHER = HostPort("other:1")
CHUNK = 10_000


@pytest.fixture
def members(tmp_path: Path) -> Pair:
    return pair(tmp_path, 300)


async def sync(mine: Member, source: HostPort = SOURCE) -> InitialSyncEnded:
    await mine.initial_sync.run(source, "first sync")
    ended = mine.reports[-1]
    assert isinstance(ended, InitialSyncEnded)
    return ended


def chunks_asked(mine: Member) -> list[int]:
    """The offsets of all pieces that were asked for so far."""
    return [int(call["offset"]) for call in mine.network.calls if call.get("step") == "chunk"]


def lose_after(mine: Member, chunks: int) -> None:
    """The source goes out of reach with the answer to so many pieces."""

    def lose(command: dict[str, object], reply: dict[str, object]) -> None:
        if command.get("step") == "chunk" and len(chunks_asked(mine)) > chunks:
            mine.network.down.add(SOURCE)

    mine.network.before_reply = lose


def back(mine: Member) -> None:
    mine.network.before_reply = lambda command, reply: None
    mine.network.down.clear()


async def broken(mine: Member) -> int:
    """The transfer breaks behind three pieces, and the source comes back. How many were asked for."""
    lose_after(mine, 3)
    assert not (await sync(mine)).ok
    back(mine)
    return len(chunks_asked(mine))


async def test_a_broken_transfer_goes_on_where_it_stopped(source: Member, mine: Member) -> None:
    asked = await broken(mine)
    source.insert(NS, {"_id": "not in the copy"})
    assert (await sync(mine)).ok
    assert chunks_asked(mine)[asked] == 3 * CHUNK, "the very byte"
    assert copies_asked(mine) == 1
    await catch_up(source, mine)
    assert mine.everything() == source.everything()
    assert mine.oplog() == source.oplog()
    assert mine.initial_sync.progress.failed == 1
    assert mine.initial_sync.progress.resumed_at == 3 * CHUNK
    assert not list(mine.folder.glob("initial-sync*"))
    assert left_at_source(source) == []


async def test_a_long_transfer_writes_lines_about_itself(
    mine: Member, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "replset.initial_sync")
    monkeypatch.setattr(initial_sync_progress, "LINE_EVERY_MS", 0)
    mine.clock.ms = 50
    mine.network.before_reply = lambda command, reply: setattr(mine.clock, "ms", 90)
    assert (await sync(mine)).ok
    progress = mine.initial_sync.progress
    attributes = [record.attr for record in caplog.records if "attr" in vars(record)]
    assert attributes == [{"source": SOURCE, "bytes": progress.total, "ms": 40}]
    assert (progress.began, progress.ended) == (50, 90)
    lines = [line for line in caplog.messages if " bytes (" in line]
    assert re.fullmatch(r"initial sync from source:1: 10000 of \d+ bytes \(\d+ %\), about \d+ s left", lines[0])
    assert re.fullmatch(r"initial sync from source:1: (\d+) of \1 bytes \(100 %\), about 0 s left", lines[-1])


async def test_a_killed_member_goes_on_from_what_was_on_record(source: Member, mine: Member, tmp_path: Path) -> None:
    killed: list[Member] = []

    def kill(command: dict[str, object]) -> None:
        if chunks_asked(mine)[-1:] == [5 * CHUNK] and not killed:
            killed.append(mine.reborn(tmp_path / "second"))
            syncing.cancel()

    mine.network.before_call = kill
    syncing = asyncio.ensure_future(sync(mine))
    with pytest.raises(asyncio.CancelledError):
        await syncing
    (again,) = killed
    assert (again.folder / "initial-sync.db").stat().st_size == 5 * CHUNK
    asked = len(chunks_asked(again))
    assert (await sync(again)).ok
    assert chunks_asked(again)[asked] == 4 * CHUNK, "every second piece is put on record"
    assert copies_asked(again) == 1
    assert again.everything() == source.everything()


@pytest.mark.parametrize("why", ["expired", "restarted", "rolled back", "another copy", "another sync"])
async def test_a_copy_that_is_gone_or_another_one_is_begun_again(source: Member, mine: Member, why: str) -> None:
    asked = await broken(mine)
    if why == "expired":
        source.clock.ms += 600_001
        await source.snapshots.expire()
    elif why == "restarted":
        source.snapshots._copies.clear()
        source.snapshots.clear_leftovers()
    elif why == "rolled back":
        before = source.store.row_at_or_before(OpTime(1, source.store.last_applied.ts - 1))
        undo_step(source.store, before.optime, stem="x")
    elif why == "another sync":
        mine.marker = False  # the next marker is another one's
    else:
        (copy,) = source.snapshots._copies.values()
        copy.sha256 = "0" * 64
    ended = await sync(mine)
    assert ended.ok, ended.detail
    assert chunks_asked(mine)[asked] == 0
    assert copies_asked(mine) == 2
    assert mine.everything() == source.everything()


async def test_a_copy_that_changes_under_its_name_is_given_up(source: Member, mine: Member) -> None:
    def change(command: dict[str, object], reply: dict[str, object]) -> None:
        if command["offset"] == 4 * CHUNK:
            reply["sha256"] = "0" * 64

    mine.network.before_reply = change
    ended = await sync(mine)
    assert "another copy" in ended.detail
    assert not list(mine.folder.glob("initial-sync*"))
    back(mine)
    assert (await sync(mine)).ok
    assert mine.everything() == source.everything()
    assert left_at_source(source) == []


async def test_bytes_that_rotted_meanwhile_are_fetched_again(source: Member, mine: Member) -> None:
    await broken(mine)
    with (mine.folder / "initial-sync.db").open("r+b") as file:
        file.seek(CHUNK)
        file.write(b"rot")
    ended = await sync(mine)
    assert "SHA-256" in ended.detail
    assert (await sync(mine)).ok
    assert mine.everything() == source.everything()
    assert left_at_source(source) == []


def test_what_sqlite_left_beside_an_earlier_copy_does_not_get_into_the_next(source: Member, mine: Member) -> None:
    for ending in ("-journal", "-wal", "-shm"):
        (mine.folder / f"initial-sync.db{ending}").write_bytes(b"of another copy")
    asyncio.run(sync(mine))
    assert mine.everything() == source.everything()
    assert not list(mine.folder.glob("initial-sync*"))


async def test_another_source_was_chosen_but_the_first_still_has_the_rest(
    source: Member, mine: Member, tmp_path: Path
) -> None:
    other = Member(OTHER, tmp_path, mine.network)
    copy_log(source, other)
    asked = await broken(mine)
    assert (await sync(mine, OTHER)).ok
    assert (copies_asked(mine), chunks_asked(mine)[asked]) == (1, 3 * CHUNK)
    assert mine.everything() == source.everything()
    assert left_at_source(source) == []


async def test_another_source_was_chosen_and_the_first_is_out_of_reach(
    source: Member, mine: Member, tmp_path: Path
) -> None:
    other = Member(OTHER, tmp_path, mine.network)
    copy_log(source, other)
    lose_after(mine, 3)
    assert not (await sync(mine)).ok
    asked = len(chunks_asked(mine))
    assert not (await sync(mine)).ok, "still its only choice: the bytes are kept"
    assert (mine.folder / "initial-sync.db").stat().st_size == 3 * CHUNK
    assert (await sync(mine, OTHER)).ok
    assert (copies_asked(mine), chunks_asked(mine)[asked]) == (2, 0)
    assert mine.initial_sync.progress.source == OTHER
    assert mine.everything() == source.everything()


async def test_a_member_that_became_a_witness_gives_its_copy_back(source: Member, mine: Member) -> None:
    asked = await broken(mine)
    await mine.initial_sync.run(SOURCE, "first sync", oplog_only=True)
    assert (mine.store.oplog_only, mine.oplog()) == (True, source.oplog())
    assert (copies_asked(mine), chunks_asked(mine)[asked]) == (2, 0)
    assert left_at_source(source) == []


@pytest.mark.parametrize("about", ["documents", "the copy"])
async def test_a_source_out_of_reach_is_asked_so_often_and_one_that_refuses_once(mine: Member, about: str) -> None:
    transfer, progress, clock = mine.initial_sync.transfer, mine.initial_sync.progress, asyncio.get_running_loop().time
    transfer.options = replace(transfer.options, attempts=3, pause_ms=500)
    progress.begin(SOURCE, Millis(0), 0)
    asked: list[float] = []
    away, late = HostUnreachableError("away"), ReplError("late", code=ErrorCode.NETWORK_TIMEOUT)

    def fail(_command: dict[str, object]) -> None:
        asked.append(clock() - began)
        raise error

    mine.network.before_call = fail
    for error, times in ((away, [0, 0.5, 1]), (late, [0, 0.5, 1]), (BadValueError("odd"), [0])):
        asked.clear()
        began = clock()
        record = CopyRecord("", SOURCE, "x", 0)
        question = CompareRequest("spans", "x", bytes(16), 0).document()
        with pytest.raises(type(error)):
            await (transfer.compare(record, question) if about == "documents" else transfer._await_copy(record))
        assert asked == pytest.approx(times)
        assert progress.retried in (3, 6)


async def test_a_copy_is_asked_for_once_a_pause_while_the_source_makes_it(mine: Member) -> None:
    transfer, clock = mine.initial_sync.transfer, asyncio.get_running_loop().time
    transfer.options = replace(transfer.options, pause_ms=500)
    asked, began = list[float](), clock()

    def late(command: dict[str, object], reply: dict[str, object]) -> None:
        if command.get("step") == "begin" and command["id"]:
            asked.append(clock() - began)
            reply["ready"] = len(asked) > 3

    mine.network.before_reply = late
    assert (await sync(mine)).ok
    assert asked == pytest.approx([0, 0.5, 1, 1.5])


@pytest.mark.parametrize(
    ("error", "is_passing"),
    [
        (HostUnreachableError("away"), True),
        (NotPrimaryOrSecondaryError("serves nothing"), True),
        (OutOfDiskSpaceError("full"), True),
        (OSError(errno.EIO, "Input/output error"), True),
        (RemoteProtocolError("another copy"), False),
        (CorruptDataError("damaged"), False),
        (ValueError("a bug"), False),
    ],
)
def test_which_errors_say_nothing_about_a_copy(error: Exception, is_passing: bool) -> None:
    assert is_temporary(error) is is_passing


async def test_a_source_is_told_of_the_entry_that_is_damaged_in_its_copy(source: Member, mine: Member) -> None:
    """It finds the damage itself then, and is no source any more."""
    newest = source.store.last_applied.ts
    source.store._connection.execute("UPDATE oplog SET entry = entry || x'00' WHERE ts = ?", (newest,))
    assert not (await sync(mine)).ok
    assert source.damage
    assert left_at_source(source) == []


async def test_a_whole_copy_is_not_fetched_again(source: Member, mine: Member, tmp_path: Path) -> None:
    """The member dies between the checksum and the install; what SQLite wrote into the copy meanwhile is its own."""

    async def die(copy: str) -> None:
        raise asyncio.CancelledError

    mine.initial_sync._install = die
    with pytest.raises(asyncio.CancelledError):
        await sync(mine)
    again = mine.reborn(tmp_path / "second")
    asked = len(chunks_asked(again))
    assert (await sync(again)).ok
    assert len(chunks_asked(again)) == asked
    assert again.everything() == source.everything()
    assert left_at_source(source) == []


async def test_an_unsound_copy_is_not_installed_and_not_used_again(
    source: Member, mine: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_damage(disk: RealDisk, path: str, entries: int) -> None:
        raise CorruptDataError(f"{path} is damaged")

    monkeypatch.setattr("replset.replication.initial_sync.check_database", find_damage)
    ended = await sync(mine)
    assert "damaged" in ended.detail
    assert mine.store.collection(NS) is None, "the store was not touched"
    monkeypatch.undo()
    assert (await sync(mine)).ok
    assert copies_asked(mine) == 2
    assert mine.everything() == source.everything()


def test_leftovers_go_at_a_start_without_a_marker(mine: Member) -> None:
    for name in ("initial-sync.db", "initial-sync.json", "initial-sync.json.tmp", "initial-sync.db-journal"):
        (mine.folder / name).write_bytes(b"x")
    mine.initial_sync.clear_leftovers()
    assert not list(mine.folder.glob("initial-sync*"))


# --- a full disk ------------------------------------------------------------------------------------------------


async def test_a_full_disk_makes_it_wait_and_say_so(
    source: Member, mine: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 1 << 40
    monkeypatch.setattr(mine.disk, "free_bytes", lambda path: free)
    progress = mine.initial_sync.progress

    def fill(command: dict[str, object]) -> None:
        nonlocal free
        if command["offset"] == 2 * CHUNK:
            free = 100

    mine.network.before_call = fill
    syncing = asyncio.ensure_future(sync(mine))
    await until(lambda: progress.waiting_for)
    assert "100" in progress.waiting_for
    assert progress.text(Millis(0)).startswith("initial sync waits for disk space")
    calls = len(mine.network.calls)
    await asyncio.sleep(0.02)
    assert not syncing.done()
    assert progress.copied == 3 * CHUNK
    assert len(chunks_asked(mine)) == 3
    assert len(mine.network.calls) == calls, "the source is left alone meanwhile"
    assert mine.marker
    free = progress.total - progress.copied
    assert (await syncing).ok
    assert not progress.waiting_for
    assert chunks_asked(mine) == sorted(set(chunks_asked(mine))), "nothing was fetched twice"
    assert mine.everything() == source.everything()
    assert (copies_asked(mine), progress.failed) == (1, 0)


async def test_no_copy_is_asked_for_while_there_is_no_room_at_all(
    source: Member, mine: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = -1
    monkeypatch.setattr(mine.disk, "free_bytes", lambda path: free)
    syncing = asyncio.ensure_future(sync(mine))
    await until(lambda: mine.initial_sync.progress.waiting_for)
    assert mine.network.calls == []
    free = 1 << 40
    assert (await syncing).ok
    assert mine.everything() == source.everything()


async def test_the_disk_has_some_bytes_left_behind_a_copy(
    source: Member, mine: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    spare, free, transfer = 1_000_000, 0, mine.initial_sync.transfer
    transfer.options = replace(transfer.options, spare_bytes=spare)
    monkeypatch.setattr(mine.disk, "free_bytes", lambda path: free)
    waiting = asyncio.ensure_future(transfer._wait_for_space(500))
    for free in (499, 500, spare, spare + 499):  # noqa: B007 - the disk reads it
        await asyncio.sleep(10)
        assert not waiting.done()
    free = spare + 500
    await waiting


@pytest.mark.parametrize("torn", [0, 77])
async def test_a_write_that_finds_no_room_leaves_nothing_behind(
    source: Member, mine: Member, monkeypatch: pytest.MonkeyPatch, torn: int
) -> None:
    """The file system says there is room, and then a part of a piece is written and no more (a quota)."""
    write, failures = mine.disk.write_file, 0

    def full(path: str, chunks: list[bytes], *, append: bool = False) -> None:
        nonlocal failures
        if append and mine.disk.size(path) == 3 * CHUNK and failures < 3:
            failures += 1
            write(path, [chunks[0][:torn]], append=True)
            raise OSError(errno.ENOSPC, "No space left on device", path)
        write(path, chunks, append=append)

    monkeypatch.setattr(mine.disk, "write_file", full)
    assert (await sync(mine)).ok
    assert failures == 3
    assert mine.everything() == source.everything()


async def test_a_record_that_cannot_be_written_gives_the_copy_back(
    source: Member, mine: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = mine.disk.write_file

    def fail(path: str, chunks: list[bytes], *, append: bool = False) -> None:
        if path.endswith(".json.tmp"):
            raise OSError(errno.EIO, "Input/output error", path)
        write(path, chunks, append=append)

    monkeypatch.setattr(mine.disk, "write_file", fail)
    for _ in range(3):
        ended = await sync(mine)
        assert "Input/output error" in ended.detail
    assert left_at_source(source) == []
    monkeypatch.setattr(mine.disk, "write_file", write)
    assert (await sync(mine)).ok
    assert mine.everything() == source.everything()


async def test_the_export_is_written_once_however_often_it_breaks(mine: Member) -> None:
    mine.create(NS)
    mine.insert(NS, {"_id": "only here"})
    lose_after(mine, 3)
    assert not (await sync(mine)).ok
    assert not (await sync(mine)).ok
    back(mine)
    assert (await sync(mine)).ok
    assert len(list_manifests(mine.dbpath)) == 1


# --- the record -------------------------------------------------------------------------------------------------

TRANSFER = CopyRecord("sync 1", SOURCE, "ab12", 3, 100, "f" * 64, 10)
SHA_256 = hashlib.sha256(b"x" * 100).hexdigest()


@pytest.fixture
def partial(tmp_path: Path) -> PartialCopy:
    copy = PartialCopy(RealDisk(), str(tmp_path))
    copy.begin(TRANSFER)
    copy.append(b"x" * 12, 0)
    return copy


def test_bytes_are_durable_before_the_record_of_them_and_that_before_anything_relies_on_it(tmp_path: Path) -> None:
    disk, folder = NotingDisk(), f"sync folder {tmp_path.name}"
    partial = PartialCopy(disk, str(tmp_path))
    partial.save(TRANSFER)
    name = disk.done[2].removeprefix("rename to ")
    saved = [f"write 1 to {name}.tmp", f"sync {name}.tmp", f"rename to {name}", folder]
    assert disk.done == saved
    partial.append(b"x" * 100, 0)
    for keep in (lambda: partial.keep(TRANSFER, 12), lambda: partial.seal(replace(TRANSFER, sha256=SHA_256))):
        disk.done.clear()
        assert keep()
        assert disk.done == ["sync initial-sync.db", *saved]
    (tmp_path / "initial-sync-built.db").write_bytes(b"built")
    disk.done.clear()
    partial.replace_by_built()
    partial.discard()
    partial.discard()
    assert disk.done == ["rename to initial-sync.db", folder, folder]


def test_a_record_is_read_back_and_the_file_cut_to_it(partial: PartialCopy, tmp_path: Path) -> None:
    assert partial.load("sync 1") == TRANSFER
    assert (tmp_path / "initial-sync.db").stat().st_size == 10
    assert partial.load("sync 2") is None


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b"{}",
        b"\xff\xfe",
        b'{"sync_id": "sync 1"}',
        json.dumps({**json.loads('{"sync_id": "sync 1", "source": "a:1", "snapshot_id": "x"}'), "more": 1}).encode(),
    ],
)
def test_a_damaged_record_is_none(partial: PartialCopy, tmp_path: Path, record: bytes) -> None:
    (tmp_path / "initial-sync.json").write_bytes(record)
    assert partial.load("sync 1") is None


@pytest.mark.parametrize(
    ("name", "value"), [("kept", "10"), ("kept", True), ("size", 1.5), ("whole", 1), ("source", 3)]
)
def test_a_record_with_a_field_of_another_type_is_none(
    partial: PartialCopy, tmp_path: Path, name: str, value: object
) -> None:
    path = tmp_path / "initial-sync.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), name: value}))
    assert partial.load("sync 1") is None


def test_a_file_that_lacks_what_is_on_record_is_none(partial: PartialCopy, tmp_path: Path) -> None:
    (tmp_path / "initial-sync.db").write_bytes(b"x" * 9)
    assert partial.load("sync 1") is None
    (tmp_path / "initial-sync.db").unlink()
    assert partial.load("sync 1") is None
    begun = replace(TRANSFER, kept=0)
    partial.begin(begun)
    (tmp_path / "initial-sync.db").unlink()
    assert partial.load("sync 1") == begun, "it needs no file yet"

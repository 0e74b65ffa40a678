"""member.db keeps votes, config and incarnation; each save is durable and survives a new start."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from replset.config import ReplSetConfig
from replset.core.effects import LastVote
from replset.errors import CorruptDataError, OutOfDiskSpaceError, StorageError
from replset.ids import OPTIME_NULL, HostPort, MemberId, OpTime
from replset.member.disk.member_files import place_note
from replset.storage.disk import RealDisk
from replset.storage.member_file import MEMBER_FILE, JournalLine, MemberFile, OplogLimits
from replset.storage.store import Store, StoreOptions
from replset.storage.undo import undo_step

CONFIG = {
    "_id": "rs0",
    "version": 3,
    "term": 7,
    "members": [{"_id": 0, "host": "a:27017"}, {"_id": 1, "host": "b:27017", "priority": 2.5}],
}


Opener = Callable[..., MemberFile]
NOWHERE = HostPort("")


@pytest.fixture
def open_file(tmp_path: Path) -> Iterator[Opener]:
    """Opens the same file again, at an address where one is given; incarnations are i1, i2, ..."""
    numbers = itertools.count(1)
    opened: list[MemberFile] = []

    def open_(host: HostPort = NOWHERE) -> MemberFile:
        if opened:
            opened[-1].close()
        opened.append(MemberFile.open(RealDisk(), tmp_path, new_incarnation=lambda: f"i{next(numbers)}", host=host))
        return opened[-1]

    yield open_
    opened[-1].close()


def test_a_new_member_has_an_incarnation_and_has_to_sync(open_file: Opener) -> None:
    for _ in range(2):
        file = open_file()
        assert (file.incarnation, file.initial_sync_pending, file.rollback_id_floor) == ("i1", True, 0)
        assert (file.last_vote, file.config) == (None, None)


@pytest.mark.parametrize("vote", [LastVote(5, MemberId(2)), LastVote(6, MemberId(0)), LastVote(7, None)])
def test_votes_survive(open_file: Opener, vote: LastVote) -> None:
    file = open_file()
    file.save_vote(LastVote(4, MemberId(1)))
    file.save_vote(vote)
    assert file.last_vote == open_file().last_vote == vote


def test_configs_survive_whole(open_file: Opener) -> None:
    config = ReplSetConfig.parse(CONFIG)
    file = open_file()
    file.save_config(config)
    assert file.config == open_file().config == config


def test_the_limits_of_the_oplog_survive_one_by_one(open_file: Opener) -> None:
    file = open_file()
    assert file.oplog_limits == (None, None)
    file.save_oplog_limits(OplogLimits(size_mb=2_000.5))
    file.save_oplog_limits(OplogLimits(min_retention_hours=0.0))
    assert file.oplog_limits == open_file().oplog_limits == (2_000.5, 0.0)


def test_an_initial_sync_keeps_its_id_until_it_ends(open_file: Opener) -> None:
    file = open_file()
    assert (file.initial_sync_id, file.incarnation) == ("i1", "i1")  # a new member has to sync
    assert file.begin_initial_sync() == "i1"
    file.end_initial_sync()
    file = open_file()
    assert (file.incarnation, file.initial_sync_pending) == ("i1", False)
    assert file.begin_initial_sync(newest=OpTime(3, 7), committed=OpTime(3, 5), rollback_id=4) == "i2"
    file = open_file()
    assert file.initial_sync_committed == OpTime(3, 5)
    assert (file.initial_sync_id, file.initial_sync_newest, file.rollback_id_floor) == ("i2", OpTime(3, 7), 4)
    assert file.begin_initial_sync(newest=OpTime(1, 1), rollback_id=3) == "i2"
    assert (open_file().initial_sync_newest, open_file().rollback_id_floor) == (OpTime(3, 7), 4)
    assert open_file().begin_initial_sync(newest=OpTime(3, 9)) == "i2"  # acknowledged since, by a resync given up
    assert (open_file().initial_sync_newest, open_file().initial_sync_committed) == (OpTime(3, 9), OpTime(3, 5))
    open_file().end_initial_sync()
    file = open_file()
    assert (file.incarnation, file.initial_sync_pending, file.initial_sync_newest, file.rollback_id_floor) == (
        "i1",
        False,
        OPTIME_NULL,
        0,
    )


def test_that_a_resync_was_asked_for_is_kept_until_a_copy_is_claimed(open_file: Opener) -> None:
    open_file().end_initial_sync()
    open_file().begin_initial_sync(newest=OpTime(3, 7), requested=True)
    assert open_file().initial_sync_requested
    file = open_file()
    file.claim_copy(OpTime(3, 7))  # from here on the data on the disk may be the copy's
    assert not file.initial_sync_requested
    assert not open_file().initial_sync_requested
    open_file().begin_initial_sync(newest=OpTime(3, 7), requested=True)  # another attempt
    file = open_file()
    assert file.initial_sync_requested
    file.end_initial_sync()
    assert not file.initial_sync_requested
    assert not open_file().initial_sync_requested


@pytest.mark.parametrize(
    ("held", "newest", "incarnation"),
    [
        pytest.param(OpTime(3, 7), OpTime(3, 7), "i1", id="just what was held"),
        pytest.param(OpTime(3, 7), OpTime(4, 2), "i1", id="of a later term"),
        pytest.param(OpTime(3, 7), OpTime(3, 6), "i3", id="one entry is missing"),
        pytest.param(OpTime(3, 7), OpTime(2, 9), "i3", id="of an earlier term"),
        pytest.param(OPTIME_NULL, OpTime(4, 2), "i2", id="nobody knows what was held"),
    ],
)
def test_a_copy_that_reaches_the_newest_entry_keeps_the_incarnation(
    open_file: Opener, held: OpTime, newest: OpTime, incarnation: str
) -> None:
    open_file().end_initial_sync()
    open_file().begin_initial_sync(newest=held)
    assert open_file().claim_copy(newest) == incarnation
    assert open_file().claim_copy(newest) == incarnation  # a crash in between changes nothing
    file = open_file()
    file.end_initial_sync()
    assert open_file().incarnation == incarnation


def test_the_journal_keeps_the_newest_lines(open_file: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replset.storage.member_file._JOURNAL_ROWS", 5)
    file = open_file()
    for term in range(8):
        file.append_journal(wall_ms=1000 + term, term=term, event="won", detail=f"by {term}")
    assert open_file().journal(3) == [JournalLine(1000 + term, term, "won", f"by {term}") for term in (7, 6, 5)]
    assert len(open_file().journal(100)) == 5


def test_every_save_is_synced_with_its_folder(open_file: Opener) -> None:
    file = open_file()
    connection = file._connection
    assert connection.execute("PRAGMA synchronous").get == 3  # EXTRA
    assert connection.execute("PRAGMA journal_mode").get == "delete"


def test_an_undo_and_a_copy_never_touch_it(tmp_path: Path) -> None:
    file = MemberFile.open(RealDisk(), tmp_path)
    file.save_vote(LastVote(5, MemberId(2)))
    before = (tmp_path / "member.db").stat().st_mtime_ns
    disk = RealDisk()
    store = Store.open(disk, tmp_path, StoreOptions(min_free_bytes=0))
    with store.group() as txn:
        optime = txn.next_optime(1, 0)
        txn.append(b"entry", optime, op="n", ns="", wall_ms=0)
    store.copy_to(str(tmp_path / "copy.db"))
    undo_step(store, type(optime)(0, 0), stem="r")
    store.close()
    assert (tmp_path / "member.db").stat().st_mtime_ns == before
    file.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [("config", b"\x05\0\0\0\0"), ("config", b"junk"), ("config", "text"), ("vote_term", "x"), ("", b"")],
)
def test_damage_is_named(tmp_path: Path, name: str, value: str | bytes) -> None:
    if name:
        MemberFile.open(RealDisk(), tmp_path).close()
        connection = apsw.Connection(str(tmp_path / "member.db"))
        connection.execute("INSERT INTO member VALUES (?, ?)", (name, value))
        connection.close()
    else:
        (tmp_path / "member.db").write_bytes(b"no database, however long it is" * 200)
    with pytest.raises(CorruptDataError, match=r"member\.db is damaged: .+"):
        MemberFile.open(RealDisk(), tmp_path)


def test_failures_are_storage_errors(open_file: Opener, tmp_path: Path) -> None:
    file = open_file()
    other = apsw.Connection(str(tmp_path / "member.db"))
    other.execute("BEGIN EXCLUSIVE")
    file._connection.set_busy_timeout(1)
    with pytest.raises(StorageError):
        file.save_vote(LastVote(9, None))
    with pytest.raises(StorageError):
        file.append_journal(wall_ms=0, term=0, event="", detail="")
    other.execute("ROLLBACK")
    other.close()
    assert file.last_vote is None


def test_a_full_disk_is_named_and_what_was_there_stays(open_file: Opener, tmp_path: Path) -> None:
    file = open_file()
    file.save_vote(LastVote(7, MemberId(2)))
    lines = [JournalLine(wall_ms=1, term=7, event="voted", detail="x" * 4000)] * 100
    connection = file._connection
    before = connection.pragma("max_page_count")
    connection.pragma("max_page_count", connection.pragma("page_count"))
    with pytest.raises(OutOfDiskSpaceError, match=r"member\.db: no space left on the disk"):
        file.append_lines(lines)
    connection.pragma("max_page_count", before)
    file.save_vote(LastVote(8, None))
    file.append_lines(lines)
    again = open_file()
    assert again.last_vote == LastVote(8, None)
    assert len(again.journal(1000)) == 100


def test_the_durability_mark_moves_up_with_votes_and_by_itself_and_down_for_a_rollback(tmp_path: Path) -> None:
    file = MemberFile.open(RealDisk(), tmp_path)
    file.raise_mark(lambda: OpTime(1, 7))
    assert file.durability_mark == OPTIME_NULL, "a new member has an initial sync before it"
    file.end_initial_sync()
    file.save_vote(LastVote(3, MemberId(1)), lambda: OpTime(1, 7))
    assert file.durability_mark == OpTime(1, 7)
    file.raise_mark(lambda: OpTime(1, 5))
    assert file.durability_mark == OpTime(1, 7), "it never goes down by itself"
    file.raise_mark(lambda: OpTime(2, 9))
    file.lower_mark(OpTime(3, 1))
    file.close()
    again = MemberFile.open(RealDisk(), tmp_path)
    assert again.durability_mark == OpTime(2, 9)
    again.lower_mark(OpTime(1, 6))
    assert again.durability_mark == OpTime(1, 6)
    again.close()
    assert MemberFile.open(RealDisk(), tmp_path).durability_mark == OpTime(1, 6)


def test_what_a_checkpoint_copies_is_noted_with_the_mark(tmp_path: Path) -> None:
    file = MemberFile.open(RealDisk(), tmp_path)
    file.end_initial_sync()
    assert file.checkpointed_wal == ""
    file.raise_mark(lambda: OpTime(1, 7), "salt:5")
    file.raise_mark(lambda: OpTime(1, 8))
    assert file.checkpointed_wal == "salt:5", "no checkpoint, and what was noted stays"
    file.close()
    again = MemberFile.open(RealDisk(), tmp_path)
    assert (again.checkpointed_wal, again.durability_mark) == ("salt:5", OpTime(1, 8))
    again.raise_mark(lambda: OpTime(1, 8), "")
    again.close()
    assert MemberFile.open(RealDisk(), tmp_path).checkpointed_wal == ""


def test_an_initial_sync_takes_the_mark_with_it_and_a_loss_makes_another_incarnation(tmp_path: Path) -> None:
    names = iter(("first", "second", "third"))
    file = MemberFile.open(RealDisk(), tmp_path, new_incarnation=lambda: next(names))
    file.end_initial_sync()
    file.raise_mark(lambda: OpTime(2, 9))
    file.begin_initial_sync(newest=OpTime(2, 9), data_lost=True)
    assert file.incarnation == "second"
    file.raise_mark(lambda: OpTime(2, 9))
    file.end_initial_sync()
    file.close()
    again = MemberFile.open(RealDisk(), tmp_path)
    assert again.durability_mark == OPTIME_NULL
    again.close()


# --- the place that an incarnation belongs to ------------------------------------------------------------------------

AT_A, AT_B = HostPort("a:27017"), HostPort("b:27017")


def config_of(**named: str | None) -> ReplSetConfig:
    """A configuration of members at these hosts with these incarnations."""
    rows = [
        {"_id": number, "host": f"{host}:27017", **({} if incarnation is None else {"incarnation": incarnation})}
        for number, (host, incarnation) in enumerate(named.items())
    ]
    return ReplSetConfig.parse({"_id": "rs0", "version": 3, "term": 7, "members": rows})


@pytest.fixture
def start_at(open_file: Opener) -> Opener:
    def start(host: HostPort) -> MemberFile:
        file = open_file(host)
        file.save_place()
        return file

    return start


def test_a_copy_at_another_address_has_another_incarnation_and_the_original_keeps_its_own(
    tmp_path: Path, start_at: Opener
) -> None:
    file = start_at(AT_A)
    file.save_config(config_of(a="i1"))
    file.save_vote(LastVote(8, MemberId(0)))
    shutil.copytree(tmp_path, tmp_path / "copy")
    copy = MemberFile.open(RealDisk(), tmp_path / "copy", new_incarnation=lambda: "other", host=AT_B)
    assert (copy.incarnation, copy.moved_from, copy.last_vote) == ("other", AT_A, LastVote(8, MemberId(0)))
    copy.close()
    file = start_at(AT_A)
    assert (file.incarnation, file.moved_from, file.is_other_file) == ("i1", "", False)


def test_the_new_incarnation_stays_once_a_configuration_has_it(start_at: Opener) -> None:
    start_at(AT_A).save_config(config_of(a="i1"))
    assert start_at(AT_B).incarnation == "i2"
    start_at(AT_B).save_config(config_of(a="i1", b=None))
    assert start_at(AT_B).incarnation == "i3"
    assert start_at(AT_A).moved_from == AT_B


def test_after_a_start_at_a_wrong_address_nothing_is_lost(start_at: Opener) -> None:
    """Also where it is another member's address."""
    start_at(AT_A).save_config(config_of(a="i1", b="its own"))
    start_at(AT_B).save_config(config_of(a="i1", b="its own"))
    assert start_at(AT_A).incarnation == "i1"


@pytest.mark.parametrize(
    ("config", "incarnation", "moved_from"),
    [
        pytest.param(None, "i2", "", id="made-ready"),
        pytest.param(config_of(a="i1"), "i1", "", id="named-here"),
        pytest.param(config_of(b="i1"), "i2", AT_B, id="named-elsewhere"),
        pytest.param(config_of(b=None), "i1", "", id="not-named"),
    ],
)
def test_a_file_without_a_saved_address_belongs_to_the_member_that_the_configuration_names(
    config: ReplSetConfig | None, incarnation: str, moved_from: str, start_at: Opener
) -> None:
    """A tool made it, or an earlier version. Before a member is in a set, its files may be copied for others."""
    file = start_at(HostPort(""))
    if config is not None:
        file.save_config(config)
    file = start_at(AT_A)
    assert (file.incarnation, file.moved_from) == (incarnation, moved_from)


def test_another_file_at_the_same_address_is_told_once_and_keeps_its_incarnation(
    tmp_path: Path, start_at: Opener
) -> None:
    """Moved to a larger disk, or an older state that was restored: whole sets are, so no vote is lost by it."""
    start_at(AT_A).close()
    shutil.copy(tmp_path / MEMBER_FILE, tmp_path / "copy")
    os.replace(tmp_path / "copy", tmp_path / MEMBER_FILE)
    file = start_at(AT_A)
    assert (file.incarnation, file.moved_from, file.is_other_file) == ("i1", "", True)
    assert "remove member.db" in place_note(file)
    file = start_at(AT_A)
    assert (file.is_other_file, place_note(file)) == (False, "")


def test_a_configuration_of_a_newer_release_is_kept(open_file: Opener) -> None:
    config = ReplSetConfig.parse({**CONFIG, "later": {"a": 1}}, keep=True)
    open_file().save_config(config)
    again = open_file().config
    assert again == config
    assert again is not None
    assert again.others == {"later": {"a": 1}}

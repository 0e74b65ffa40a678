"""`replset repair DBPATH`: a stopped member's terms are shown, and put right; a refusal changes nothing."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

import pytest

from replset.cli.main import main
from replset.config import ReplSetConfig
from replset.core.effects import LastVote
from replset.core.member_state import MemberState
from replset.ids import MemberId, OpTime, pack_ts
from replset.replication.write_ops import WriteGroup, do_noop
from replset.storage.disk import RealDisk
from replset.storage.member_file import MemberFile
from replset.storage.store import Store, StoreOptions, lock_dbpath
from tests.unit.core.single_node import place, single_node

Capture = pytest.CaptureFixture[str]
ABSURD = (1 << 63) - 2


@pytest.fixture
def dbpath(tmp_path: Path) -> Path:
    """A member whose newest entry is of term 4, and which believed an absurd term once."""
    folder = tmp_path / "data"
    file = MemberFile.open(RealDisk(), folder, new_incarnation=lambda: "i0")
    file.save_vote(LastVote(ABSURD, MemberId(1)))
    members = [{"_id": 0, "host": "m0:27017", "incarnation": "i0"}, {"_id": 1, "host": "m1:27017"}]
    file.save_config(ReplSetConfig.parse({"_id": "rs0", "version": 3, "term": ABSURD - 1, "members": members}))
    file.close()
    with closing(Store.open(RealDisk(), str(folder), StoreOptions(min_free_bytes=0))) as store, store.group() as txn:
        do_noop(WriteGroup(txn, 4, 1_790_000_000_000, random.Random(1)), {"msg": "new primary"})
    return folder


def held(dbpath: Path) -> tuple[LastVote | None, int]:
    file = MemberFile.open(RealDisk(), dbpath)
    file.close()
    assert file.config is not None
    return file.last_vote, file.config.term


def test_it_shows_the_terms_and_changes_nothing(dbpath: Path, capsys: Capture) -> None:
    assert main(["repair", str(dbpath)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "set: rs0",
        f"last vote: term {ABSURD}",
        f"configuration: version 3, term {ABSURD - 1}",
        "newest entry: 4:1790000000:1 (term 4)",
        "durability mark: 0:0:0",
    ]
    assert held(dbpath) == (LastVote(ABSURD, MemberId(1)), ABSURD - 1)


def test_a_repaired_member_takes_part_in_that_term(dbpath: Path, capsys: Capture) -> None:
    assert main(["repair", str(dbpath), "--term", "7"]) == 0
    assert "last vote: term 7" in capsys.readouterr().out
    vote, _ = held(dbpath)
    assert held(dbpath) == (LastVote(7, None), 7)
    file = MemberFile.open(RealDisk(), dbpath)
    file.close()
    with closing(Store.open(RealDisk(), str(dbpath), StoreOptions(min_free_bytes=0))) as store:
        node = single_node(config=file.config, last_vote=vote, position=place(store.last_applied))
    assert node.term == 7


def test_a_lower_configuration_keeps_its_term(dbpath: Path) -> None:
    """A member that was away while the term of its set rose too far to be believed is put into it."""
    assert main(["repair", str(dbpath), "--term", "7"]) == 0
    assert main(["repair", str(dbpath), "--term", str(1 << 40)]) == 0
    assert held(dbpath) == (LastVote(1 << 40, None), 7)


@pytest.mark.parametrize(
    ("term", "says"),
    [("3", "newest entry"), ("0", "--term must be"), (str(ABSURD), "--term must be"), (str(1 << 70), "--term must be")],
)
def test_a_term_that_cannot_go_on_is_refused(dbpath: Path, capsys: Capture, term: str, says: str) -> None:
    before = held(dbpath)
    assert main(["repair", str(dbpath), "--term", term]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert says in captured.err
    assert held(dbpath) == before


def test_a_member_that_runs_is_left_alone(dbpath: Path, capsys: Capture) -> None:
    lock = lock_dbpath(RealDisk(), str(dbpath))
    try:
        assert main(["repair", str(dbpath), "--term", "7"]) == 2
    finally:
        lock.release()
    assert "holds the data folder" in capsys.readouterr().err
    assert held(dbpath)[1] == ABSURD - 1


def test_a_folder_without_a_member_is_left_as_it_is(tmp_path: Path, capsys: Capture) -> None:
    assert main(["repair", str(tmp_path)]) == 2
    assert "no member's files" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_loss_is_shown_and_only_accepted_when_it_is_asked_for(dbpath: Path, capsys: Capture) -> None:
    file = MemberFile.open(RealDisk(), dbpath)
    file.end_initial_sync()
    file.raise_mark(lambda: OpTime(4, pack_ts(1_790_000_000, 9)))
    file.close()
    assert main(["repair", str(dbpath)]) == 0
    assert "durability mark: 4:1790000000:9 (entries behind the newest one are lost)" in capsys.readouterr().out
    assert main(["repair", str(dbpath), "--accept-data-loss"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "durability mark: 4:1790000000:1"
    file = MemberFile.open(RealDisk(), dbpath)
    (line,) = file.journal(5)
    assert line.event == "data loss accepted"
    assert "4:1790000000:9" in line.detail
    file.close()


def emptied(folder: Path, others: tuple[str, ...], *, witness: bool = False) -> None:
    """A member of a set with these other members; its data file was lost, and a start made an empty one."""
    file = MemberFile.open(RealDisk(), folder, new_incarnation=lambda: "i0")
    file.end_initial_sync()
    hosts = ("m0:27017", *others)
    members = [{"_id": number, "host": name, "incarnation": f"i{number}"} for number, name in enumerate(hosts)]
    if witness:
        members[-1]["witness"] = True
    file.save_config(ReplSetConfig.parse({"_id": "rs0", "version": 3, "term": 5, "members": members}))
    file.save_vote(LastVote(6, MemberId(0)), lambda: OpTime(4, pack_ts(1_990_000_000, 9)))
    file.close()
    Store.open(RealDisk(), str(folder), StoreOptions(min_free_bytes=0)).close()


def test_the_only_copy_begins_anew_after_all_that_is_lost(tmp_path: Path, capsys: Capture) -> None:
    emptied(tmp_path, ())
    assert main(["repair", str(tmp_path), "--accept-data-loss"]) == 0
    assert "newest entry: 6:1990000001:1 (term 6)" in capsys.readouterr().out
    file = MemberFile.open(RealDisk(), tmp_path)
    (line,) = file.journal(5)
    assert line.event == "data loss accepted"
    assert "everything" in line.detail
    file.close()
    with closing(Store.open(RealDisk(), str(tmp_path), StoreOptions(min_free_bytes=0))) as store:
        node = single_node(config=file.config, last_vote=file.last_vote, position=place(store.last_applied))
    assert node.state is MemberState.PRIMARY
    assert main(["repair", str(tmp_path), "--accept-data-loss"]) == 0
    assert "newest entry: 6:1990000001:1 (term 6)" in capsys.readouterr().out


def test_a_member_of_a_set_that_lost_everything_copies_anew(tmp_path: Path, capsys: Capture) -> None:
    emptied(tmp_path, ("m1:27017", "m2:27017"))
    assert main(["repair", str(tmp_path), "--accept-data-loss"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ["newest entry: 0:0:0 (term 0)", "durability mark: 0:0:0"]


def test_the_only_copy_beside_a_witness_does_not_begin_anew(tmp_path: Path, capsys: Capture) -> None:
    """The witness would drop its entries for the new oplog's, and they may be all that is left."""
    emptied(tmp_path, ("m1:27017",), witness=True)
    assert main(["repair", str(tmp_path), "--accept-data-loss"]) == 2
    assert "m1:27017 may hold the newest entries of this set" in capsys.readouterr().err
    with closing(Store.open(RealDisk(), str(tmp_path), StoreOptions(min_free_bytes=0))) as store:
        assert store.oplog_row_at(store.last_applied) is None

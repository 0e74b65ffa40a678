"""`diff --bytes` and `diff --documents` by the local engine: what a comparison of stored hashes cannot see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from replset.bson import encode_key
from replset.storage.disk import RealDisk
from replset.storage.store import Store
from spark.cli import main
from spark.oplog import OplogError
from spark.readers.sqlite import SqliteOplog
from spark.reports.diff.documents import document_diff
from spark.reports.replay.base import DbpathBase
from spark.runners import LocalRunner
from tests.spark.kit import change
from tests.spark.stores import NS, UUID, change_document, change_entry, entries_of, optime_of, write_member

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def members(tmp_path: Path) -> list[SqliteOplog]:
    """Three of one history; m3 has applied five entries less."""
    made = entries_of(40)
    return [write_member(tmp_path / name, made[:end]) for name, end in (("m1", 44), ("m2", 44), ("m3", 39))]


def diff(capsys: Capture, oplogs: list[SqliteOplog], *options: str) -> tuple[int, dict[str, Any]]:
    status = main(["diff", "--engine", "local", "--json", *options, *(oplog.path for oplog in oplogs)])
    out, err = capsys.readouterr()
    assert err == ""
    return status, json.loads(out)


def test_a_changed_byte_is_seen_by_its_bytes_alone(members: list[SqliteOplog], capsys: Capture) -> None:
    made = entries_of(40)
    change_entry(members[1], optime_of(made[-1]))
    pair = members[:2]
    assert diff(capsys, pair)[0] == 0
    status, found = diff(capsys, pair, "--bytes")
    assert (status, found["differing"]["divergent"], found["byBytes"]) == (1, 1, True)
    (sample,) = found["samples"]
    assert [version["members"] for version in sample["versions"]] == [["m1"], ["m2"]]
    assert [version["does"]["name"] for version in sample["versions"]] == ["Ada", "Eve"]
    sound = [diff(capsys, members[::2], *options)[1] for options in ((), ("--bytes",))]
    assert {**sound[0], "byBytes": True} == sound[1]


def test_the_documents_of_members_at_different_places(members: list[SqliteOplog], capsys: Capture) -> None:
    """m3 is behind: the others are taken back to its newest entry."""
    status, found = diff(capsys, members, "--documents")
    point = str(optime_of(entries_of(40)[38]))
    counts = {row["documents"] for row in found["documentsAt"]["members"]}
    assert (status, found["documentsAt"]["optime"], found["documentsAt"]["differing"]) == (1, point, 0)
    assert len(counts) == 1
    assert found["same"] is False, "m3 is behind"
    assert found["documentsAt"]["collections"] == []


def test_a_witness_has_no_documents_to_compare_or_to_begin_from(members: list[SqliteOplog], tmp_path: Path) -> None:
    """All documents would be missing there, and a replay from it would give those of its oplog alone."""
    store = Store.open(RealDisk(), Path(members[0].path).parent)
    copy = tmp_path / "witness" / "replset.db"
    copy.parent.mkdir()
    store.copy_to(str(copy), oplog_bytes=1 << 20)
    store.close()
    witness, point = SqliteOplog("w", str(copy)), optime_of(entries_of(40)[38])
    with pytest.raises(OplogError, match="no documents"):
        document_diff(LocalRunner(), [members[1], witness], point)
    with pytest.raises(OplogError, match="no documents"):
        DbpathBase("w", str(copy)).find(NS, point)


def test_a_changed_and_a_lost_document_are_found(members: list[SqliteOplog], capsys: Capture) -> None:
    point = optime_of(entries_of(40)[38])
    touched = document_diff(LocalRunner(), members, point)
    assert touched.same
    keys = [key for key in range(7) if _unchanged_since(members, key)]
    change_document(members[1], keys[0], {"_id": keys[0], "n": "rot"})
    change_document(members[0], keys[1], None)
    assert diff(capsys, members[:2])[0] == 0, "the oplogs are the same"
    status, found = diff(capsys, members[:2], "--documents")
    assert (status, found["same"], found["sameOplogs"]) == (1, False, True)
    assert found["documentsAt"]["differing"] == 2
    by_id = {row["_id"]: row["versions"] for row in found["documentsAt"]["samples"]}
    assert by_id[keys[0]][1] == {"member": "m2", "document": {"_id": keys[0], "n": "rot"}}
    assert by_id[keys[1]][0] == {"member": "m1", "document": None}
    assert main(["diff", "--engine", "local", "--documents", *(oplog.path for oplog in members[:2])]) == 1
    shown = capsys.readouterr().out
    assert "2 documents are not the same in all data files" in shown
    assert '"rot"' in shown
    assert diff(capsys, members[:2], "--documents", "--ns", "shop.users")[0] == 0


@pytest.mark.parametrize("made", ["CAST(doc AS TEXT)", "CAST(doc || x'ff00' AS TEXT)", "7"])
def test_a_row_of_another_type_is_found(members: list[SqliteOplog], capsys: Capture, made: str) -> None:
    """One bit of its header is changed: what cannot be read as it was written is a difference."""
    key = next(key for key in range(7) if _unchanged_since(members, key))
    assert change(members[1].path, f"UPDATE d_{UUID.hex()} SET doc = {made} WHERE key = ?", encode_key(key)) == 1
    status, found = diff(capsys, members[:2], "--documents")
    assert (status, found["documentsAt"]["differing"]) == (1, 1)
    assert found["documentsAt"]["samples"][0]["_id"] == key


def _unchanged_since(members: list[SqliteOplog], key: int) -> bool:
    """Whether the document is there, and as it was left by the entries before the newest five."""
    base = DbpathBase("m1", members[0].path)
    made = entries_of(40)
    then, now = (base.document(NS, encode_key(key), optime_of(made[end])) for end in (38, 43))
    return then is not None and then == now


def test_a_point_that_the_undo_does_not_reach_is_refused(tmp_path: Path, capsys: Capture) -> None:
    made = entries_of(40)
    ahead = write_member(tmp_path / "ahead", made, keep_undo=False)
    behind = write_member(tmp_path / "behind", made[:20])
    assert main(["diff", "--engine", "local", "--documents", ahead.path, behind.path]) == 2
    error = capsys.readouterr().err
    assert f"ahead: its documents cannot be taken back to {optime_of(made[19])}" in error
    assert error.count("\n") == 1
    with pytest.raises(OplogError, match="cannot be taken back"):
        document_diff(LocalRunner(), [ahead, behind], optime_of(made[19]))
    assert document_diff(LocalRunner(), [ahead, write_member(tmp_path / "level", made)], optime_of(made[-1])).same


def test_a_collection_that_only_one_has_is_named(tmp_path: Path) -> None:
    made = entries_of(5)
    one, other = write_member(tmp_path / "one", made), write_member(tmp_path / "other", made)
    change(other.path, "UPDATE catalog SET ns = 'shop.guests' WHERE ns = 'shop.users'")
    found = document_diff(LocalRunner(), [one, other], optime_of(made[-1]))
    assert found.catalogs == {"shop.guests": ("other",), "shop.users": ("one",)}
    assert not found.same


def test_only_a_members_files_hold_documents(tmp_path: Path, capsys: Capture) -> None:
    member = write_member(tmp_path / "m1", entries_of(3))
    dump = tmp_path / "dump.bson"
    dump.write_bytes(entries_of(3)[0])
    assert main(["diff", "--engine", "local", "--documents", member.path, str(dump)]) == 2
    assert "dump.bson is no dbpath; only a member's files hold its documents" in capsys.readouterr().err

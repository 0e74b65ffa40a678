"""replSetGetWriteState: committed, pending, not in the set (and which rollback has it), or unknown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from replset.core.member_state import MemberState
from replset.features.administration.write_state import NAME, MemberView, WriteState, decide, has_entry
from replset.ids import OPTIME_NULL, HostPort, OpTime, pack_ts
from replset.member.member import RunningMember
from replset.oplog_entry import noop_entry
from replset.replication.rollback_files import RollbackWriter
from replset.replication.rollback_manifest import FileKind, RollbackFile, RollbackState
from replset.storage.disk import RealDisk
from replset.storage.store import Store, StoreOptions
from tests.rig import Client, Rig
from tests.unit.replication.test_rollback_files import WALL_MS, manifest

A, B = HostPort("b:27017"), HostPort("c:27017")


def at(term: int, seconds: int) -> OpTime:
    return OpTime(term, pack_ts(seconds, 1))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store.open(RealDisk(), tmp_path, StoreOptions(min_free_bytes=0))) as made:
        yield made


def fill(store: Store, *optimes: OpTime) -> None:
    for optime in optimes:
        with store.group() as txn:
            txn.append(noop_entry({"msg": "x"}, optime, 1), optime, op="n", ns="", wall_ms=1)


def view(holds: bool | None, committed: OpTime, *rollbacks: str, state: str = "finished") -> MemberView:
    return MemberView(A, holds, committed, [{"id": one, "state": state} for one in rollbacks])


HISTORY = (at(1, 10), at(1, 11), at(1, 12), at(3, 20), at(3, 21))
IN_HISTORY: dict[str, tuple[OpTime, bool | None]] = {
    "the-first": (at(1, 10), True),
    "the-newest": (at(3, 21), True),
    "never-written": (at(1, 13), False),
    "of-another-primary": (at(2, 12), False),
    "rolled-back": (at(1, 15), False),
    "still-to-come": (at(3, 22), False),
}


@pytest.mark.parametrize(("optime", "expected"), IN_HISTORY.values(), ids=IN_HISTORY)
def test_what_the_oplog_has(store: Store, optime: OpTime, expected: bool | None) -> None:
    fill(store, *HISTORY)
    assert has_entry(store, optime) is expected


TRIMMED: dict[str, tuple[OpTime, bool | None]] = {
    "the-first": (at(1, 10), True),
    "in-between": (at(1, 11), True),
    "behind-the-end-of-its-term": (at(1, 15), False),
    "of-a-term-without-entries": (at(2, 12), False),
    "before-everything": (at(1, 9), None),
    "kept": (at(3, 21), True),
}


@pytest.mark.parametrize(("optime", "expected"), TRIMMED.values(), ids=TRIMMED)
def test_what_a_trimmed_oplog_had(store: Store, optime: OpTime, expected: bool | None) -> None:
    fill(store, *HISTORY)
    with store.maintenance() as txn:
        txn.connection.execute("DELETE FROM oplog WHERE ts < ?", (at(3, 21).ts,))
    store.on_trimmed(at(3, 20).ts, 0)
    assert store.oldest == at(3, 21)
    assert has_entry(store, optime) is expected


def test_an_empty_oplog_knows_nothing(store: Store) -> None:
    assert has_entry(store, at(1, 10)) is None


DECIDED: dict[str, tuple[list[MemberView], WriteState]] = {
    "committed": ([view(True, at(1, 12))], WriteState.COMMITTED),
    "committed-by-a-later-term": ([view(True, at(3, 20))], WriteState.COMMITTED),
    "pending": ([view(True, at(1, 11)), view(False, at(1, 11))], WriteState.PENDING),
    "passed-over": ([view(True, at(1, 11)), view(False, at(3, 20))], WriteState.NOT_IN_SET),
    "one-that-cannot-tell": ([view(None, at(3, 20))], WriteState.UNKNOWN),
    "nobody-has-it": ([view(False, at(1, 11))], WriteState.UNKNOWN),
    "no-data": ([view(False, OPTIME_NULL)], WriteState.UNKNOWN),
    "a-forced-change-between": ([view(True, at(1, 12)), view(False, at(3, 20))], WriteState.NOT_IN_SET),
}


@pytest.mark.parametrize(("views", "expected"), DECIDED.values(), ids=DECIDED)
def test_what_members_show_together(views: list[MemberView], expected: WriteState) -> None:
    assert decide(views, at(1, 12)) is expected


def ask(client: Client, optime: OpTime) -> dict[str, Any]:
    return client.ok({NAME: str(optime), "all": True}, "admin")


@pytest.fixture
def written(rig: Rig) -> OpTime:
    """A committed write, of the member that is one of three now."""
    rig.client().ok({"insert": "c", "documents": [{"_id": 1}]})
    rig.use_config({"members": [{"_id": n, "host": f"{name}:27017"} for n, name in enumerate("abc")]})
    return rig.newest()


def lost(written: OpTime) -> OpTime:
    """The place of an entry of an earlier primary that this member does not have."""
    return OpTime(written.term - 1, written.ts - 1)


def test_a_committed_write_is_known_without_the_others(client: Client, rig: Rig, written: OpTime) -> None:
    reply = ask(client, written)
    assert (reply["state"], "unreachable" in reply) == ("committed", False)
    client.ok({"insert": "c", "documents": [{"_id": 2}], "writeConcern": {"w": 1}})
    rig.answer_peers({})
    pending = ask(client, rig.newest())
    assert (pending["state"], pending["heldBy"]) == ("pending", ["a:27017"])
    assert set(pending["unreachable"]) == {A, B}


def test_the_others_are_asked_and_their_rollbacks_named(client: Client, rig: Rig, written: OpTime) -> None:
    one = view(False, written, "rollback-1").document()
    rig.answer_peers({A: one, B: {"ok": 0, "errmsg": "no such command"}})
    reply = ask(client, lost(written))
    assert reply["state"] == "notInSet"
    (row,) = reply["rollbacks"]
    assert (row["id"], row["state"], row["member"]) == ("rollback-1", "finished", A)
    assert f"rollback-1 on {A}" in reply["why"]
    assert reply["unreachable"] == {B: "no such command"}


def test_a_write_that_its_member_still_holds(client: Client, rig: Rig, written: OpTime) -> None:
    missing = view(False, written).document()
    rig.answer_peers({A: view(True, lost(written)).document(), B: missing})
    reply = ask(client, lost(written))
    assert (reply["state"], reply["heldBy"], reply["rollbacks"]) == ("notInSet", [A], [])
    assert f"{A} will roll it back" in reply["why"]
    rig.answer_peers({B: missing})
    assert "is not back yet" in ask(client, lost(written))["why"]


def test_a_member_that_follows_no_history_says_nothing_of_its_oplog(client: Client, rig: Rig, written: OpTime) -> None:
    rig.answer_peers({})
    for state in (MemberState.ROLLBACK, MemberState.RECOVERING, MemberState.STARTUP2, MemberState.REMOVED):
        rig.member().node._state.state = state
        assert client.ok({NAME: str(written)}, "admin")["holds"] is None
        assert ask(client, written)["state"] == "unknown"


@pytest.mark.parametrize("given", ["", "1:2", "x", 7, "1:2:3:4", {"ts": 1}])
def test_an_optime_that_is_none(client: Client, given: object) -> None:
    assert client.code({NAME: given}, "admin") == 2


# --- which rollback ---------------------------------------------------------------------------------------------


def rollback(member: RunningMember, *optimes: OpTime, state: RollbackState = RollbackState.FINISHED) -> str:
    """Write a rollback that removed the entries at these optimes."""
    disk, folder = member.store.disk, f"{member.store.dbpath}/rollback"
    if not disk.exists(folder):
        disk.make_folder(folder)
    name = f"local.oplog.rs.{len(disk.list_folder(folder))}.bson"
    disk.write_file(f"{folder}/{name}", [noop_entry({"msg": "x" * 400_000}, optime, 1) for optime in optimes])
    file = RollbackFile(name, FileKind.OPLOG, "local.oplog.rs", None, len(optimes), 0, "")
    fields: dict[str, Any] = {"first": optimes[0], "last": optimes[-1], "files": (file,), "state": state}
    return RollbackWriter(disk, member.store.dbpath, WALL_MS).write_manifest(manifest(**fields)).id


def rollbacks_of(client: Client, optime: OpTime) -> list[str]:
    return [row["id"] for row in client.ok({NAME: str(optime)}, "admin")["rollbacks"]]


def test_only_the_rollback_that_has_the_entry_is_named(client: Client, member: RunningMember) -> None:
    one = rollback(member, at(1, 13), at(1, 14), at(3, 1), at(3, 2), at(5, 1))
    two = rollback(member, at(2, 1), at(2, 2), at(2, 3))
    rollback(member, at(1, 13), at(2, 2), at(5, 1), state=RollbackState.ABANDONED)
    for optime in (at(1, 13), at(1, 14), at(3, 2), at(5, 1)):
        assert rollbacks_of(client, optime) == [one]
    assert rollbacks_of(client, at(2, 2)) == [two], "term 2 lies between the other one's first and last entry"
    assert rollbacks_of(client, at(4, 1)) == []


def test_a_damaged_file_is_passed_over(client: Client, member: RunningMember) -> None:
    one = rollback(member, at(2, 1), at(2, 2), at(2, 3))
    disk, path = member.store.disk, f"{member.store.dbpath}/rollback/local.oplog.rs.0.bson"
    for damage in (b"\xff\xff\xff\x7f" * 9, b"\1\0\0\0" * 9, b"\x20\0\0\0", b"\x09\0\0\0\x10a\0\0\0"):
        disk.write_file(path, [damage])
        assert rollbacks_of(client, at(2, 2)) == []
    disk.remove(path)
    assert rollbacks_of(client, at(2, 2)) == []
    assert rollbacks_of(client, at(2, 1)) == [one], "the manifest itself names it"

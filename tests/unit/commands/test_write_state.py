"""replSetGetWriteState: committed, pending, not in the set (and which rollback has it), or unknown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from replset.bson import RawDocument, encode
from replset.commands.admin.write_state import NAME, MemberView, WriteState, decide, has_entry
from replset.core.member_state import MemberState
from replset.errors import HostUnreachableError
from replset.ids import OPTIME_NULL, HostPort, Millis, OpTime, pack_ts
from replset.oplog_entry import noop_entry
from replset.replication.rollback_files import RollbackWriter
from replset.replication.rollback_manifest import FileKind, RollbackFile, RollbackState
from replset.storage.disk import RealDisk
from replset.storage.store import Store
from tests.unit.commands.conftest import Client, FakeMember
from tests.unit.replication.test_rollback_files import WALL_MS, manifest

A, B = HostPort("localhost:27018"), HostPort("localhost:27019")


def at(term: int, seconds: int) -> OpTime:
    return OpTime(term, pack_ts(seconds, 1))


def fill(store: Store, *optimes: OpTime) -> None:
    for optime in optimes:
        with store.group() as txn:
            txn.append(noop_entry({"msg": "x"}, optime, 1), optime, op="n", ns="", wall_ms=1)


class Others:
    """Answers for the other members of the set."""

    def __init__(self, **answers: object) -> None:
        self.answers = answers

    async def call(
        self, host: HostPort, command: Mapping[str, object], *, timeout_ms: Millis, database: str = "admin"
    ) -> RawDocument:
        assert list(command) == [NAME]
        answer = self.answers.get("a" if host == A else "b")
        if answer is None:
            raise HostUnreachableError(f"{host} is away")
        return RawDocument(encode(answer.document() if isinstance(answer, MemberView) else answer))  # type: ignore[arg-type]


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
def test_what_the_oplog_has(member: FakeMember, optime: OpTime, expected: bool | None) -> None:
    fill(member.store, *HISTORY)
    assert has_entry(member.store, optime) is expected


TRIMMED: dict[str, tuple[OpTime, bool | None]] = {
    "the-first": (at(1, 10), True),
    "in-between": (at(1, 11), True),
    "behind-the-end-of-its-term": (at(1, 15), False),
    "of-a-term-without-entries": (at(2, 12), False),
    "before-everything": (at(1, 9), None),
    "kept": (at(3, 21), True),
}


@pytest.mark.parametrize(("optime", "expected"), TRIMMED.values(), ids=TRIMMED)
def test_what_a_trimmed_oplog_had(member: FakeMember, optime: OpTime, expected: bool | None) -> None:
    fill(member.store, *HISTORY)
    with member.store.maintenance() as txn:
        txn.connection.execute("DELETE FROM oplog WHERE ts < ?", (at(3, 21).ts,))
    member.store.on_trimmed(at(3, 20).ts, 0)
    assert member.store.oldest == at(3, 21)
    assert has_entry(member.store, optime) is expected


def test_an_empty_oplog_knows_nothing(member: FakeMember) -> None:
    assert has_entry(member.store, at(1, 10)) is None


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


def test_a_committed_write_is_known_without_the_others(client: Client, member: FakeMember) -> None:
    fill(member.store, *HISTORY)
    member.node.commit_point = at(3, 20)
    reply = ask(client, at(1, 12))
    assert (reply["state"], "unreachable" in reply) == ("committed", False)
    pending = ask(client, at(3, 21))
    assert (pending["state"], pending["heldBy"]) == ("pending", [member.host])
    assert set(pending["unreachable"]) == {A, B}


def test_the_others_are_asked_and_their_rollbacks_named(client: Client, member: FakeMember) -> None:
    fill(member.store, *HISTORY)
    member.node.commit_point = at(3, 20)
    member.peer = Others(a=view(False, at(3, 20), "rollback-1"), b={"ok": 0, "errmsg": "no such command"})  # type: ignore[assignment]
    reply = ask(client, at(1, 15))
    assert reply["state"] == "notInSet"
    assert reply["rollbacks"] == [
        {"id": "rollback-1", "state": "finished", "member": A, "httpAddress": "localhost:127018"}
    ]
    assert "rollback-1 on localhost:27018" in reply["why"]
    assert reply["unreachable"] == {B: "no such command"}


def test_a_write_that_its_member_still_holds(client: Client, member: FakeMember) -> None:
    fill(member.store, *HISTORY)
    member.node.commit_point = at(3, 20)
    member.peer = Others(a=view(True, at(1, 12)), b=view(False, at(3, 20)))  # type: ignore[assignment]
    reply = ask(client, at(1, 15))
    assert (reply["state"], reply["heldBy"], reply["rollbacks"]) == ("notInSet", [A], [])
    assert f"{A} will roll it back" in reply["why"]
    member.peer = Others(b=view(False, at(3, 20)))  # type: ignore[assignment]
    assert "is not back yet" in ask(client, at(1, 15))["why"]


def test_a_member_that_follows_no_history_says_nothing_of_its_oplog(client: Client, member: FakeMember) -> None:
    fill(member.store, *HISTORY)
    member.node.commit_point = at(3, 20)
    for state in (MemberState.ROLLBACK, MemberState.RECOVERING, MemberState.STARTUP2, MemberState.REMOVED):
        member.node.state = state
        assert client.ok({NAME: str(at(1, 12))}, "admin")["holds"] is None
        assert ask(client, at(1, 12))["state"] == "unknown"


@pytest.mark.parametrize("given", ["", "1:2", "x", 7, "1:2:3:4", {"ts": 1}])
def test_an_optime_that_is_none(client: Client, given: object) -> None:
    assert client.code({NAME: given}, "admin") == 2


# --- which rollback ---------------------------------------------------------------------------------------------


def rollback(member: FakeMember, *optimes: OpTime, state: RollbackState = RollbackState.FINISHED) -> str:
    """Write a rollback that removed the entries at these optimes."""
    folder = Path(member.store.dbpath) / "rollback"
    folder.mkdir(exist_ok=True)
    name = f"local.oplog.rs.{len(list(folder.iterdir()))}.bson"
    (folder / name).write_bytes(b"".join(noop_entry({"msg": "x" * 400_000}, optime, 1) for optime in optimes))
    file = RollbackFile(name, FileKind.OPLOG, "local.oplog.rs", None, len(optimes), 0, "")
    fields: dict[str, Any] = {"first": optimes[0], "last": optimes[-1], "files": (file,), "state": state}
    return RollbackWriter(RealDisk(), member.store.dbpath, WALL_MS).write_manifest(manifest(**fields)).id


def rollbacks_of(client: Client, optime: OpTime) -> list[str]:
    return [row["id"] for row in client.ok({NAME: str(optime)}, "admin")["rollbacks"]]


def test_only_the_rollback_that_has_the_entry_is_named(client: Client, member: FakeMember) -> None:
    one = rollback(member, at(1, 13), at(1, 14), at(3, 1), at(3, 2), at(5, 1))
    two = rollback(member, at(2, 1), at(2, 2), at(2, 3))
    rollback(member, at(1, 13), at(2, 2), at(5, 1), state=RollbackState.ABANDONED)
    for optime in (at(1, 13), at(1, 14), at(3, 2), at(5, 1)):
        assert rollbacks_of(client, optime) == [one]
    assert rollbacks_of(client, at(2, 2)) == [two], "term 2 lies between the other one's first and last entry"
    assert rollbacks_of(client, at(4, 1)) == []


def test_a_damaged_file_is_passed_over(client: Client, member: FakeMember) -> None:
    one = rollback(member, at(2, 1), at(2, 2), at(2, 3))
    folder = Path(member.store.dbpath) / "rollback"
    for damage in (b"\xff\xff\xff\x7f" * 9, b"\1\0\0\0" * 9, b"\x20\0\0\0", b"\x09\0\0\0\x10a\0\0\0"):
        (folder / "local.oplog.rs.0.bson").write_bytes(damage)
        assert rollbacks_of(client, at(2, 2)) == []
    (folder / "local.oplog.rs.0.bson").unlink()
    assert rollbacks_of(client, at(2, 2)) == []
    assert rollbacks_of(client, at(2, 1)) == [one], "the manifest itself names it"

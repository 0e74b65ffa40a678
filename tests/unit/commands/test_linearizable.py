"""readConcern linearizable: on the primary only, each batch proven by an entry that a majority has."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from replset.bson import Int64, RawDocument, Timestamp, encode
from replset.commands.ports import CommandRequest
from replset.commands.read_concern import append_confirmation
from replset.commands.reads import scan
from replset.commands.write_concern import WriteConcernFailure
from replset.core.member_state import MemberState
from replset.core.write_concern import WriteConcern
from replset.errors import OutOfDiskSpaceError
from replset.ids import HostPort, MemberId, Millis
from replset.replication.write_ops import WriteGroup
from tests.unit.commands.conftest import Client, FakeMember

LINEARIZABLE: dict[str, object] = {"readConcern": {"level": "linearizable"}}
READS: list[dict[str, object]] = [
    {"find": "c"},
    {"find": "none"},
    {"find": "c", "filter": {"_id": 1}},
    {"find": "c", "sort": {"n": 1}, "singleBatch": True},
    {"count": "c"},
    {"count": "none"},
    {"distinct": "c", "key": "n"},
]


@pytest.fixture(autouse=True)
def documents(client: Client, member: FakeMember) -> None:
    client.ok({"insert": "c", "documents": [{"_id": i, "n": i % 3} for i in range(5)], "writeConcern": {"w": 1}})
    member.waited.clear()
    member.node.commit_point = member.store.last_applied


@pytest.mark.parametrize("command", READS)
def test_a_read_is_followed_by_an_entry_that_a_majority_must_have(
    client: Client, member: FakeMember, command: dict[str, object]
) -> None:
    plain = client.ok(command)
    before = len(client.entries())
    proven = client.ok({**command, **LINEARIZABLE})
    (noop,) = client.entries()[before:]
    assert (noop["op"], noop["o"]) == ("n", {"msg": "linearizable read"})
    assert member.waited == [(member.store.last_applied, WriteConcern("majority"))]
    for name in ("cursor", "n", "values"):
        assert plain.get(name) == proven.get(name)


def test_reads_at_once_share_one_entry(client: Client, member: FakeMember) -> None:
    """The entry has to be written after the read, not for it alone: what is in the group already will do."""
    before = len(client.entries())
    with member.store.group() as txn:
        group = WriteGroup(txn, 1, member.clock.wall_ms(), member.rng)
        first = append_confirmation(group, 1)
        assert append_confirmation(group, 1) == first
    assert len(client.entries()) == before + 1


@pytest.mark.parametrize("command", READS)
@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (WriteConcernFailure(50, "operation exceeded time limit"), 50),
        (WriteConcernFailure(189, "the primary stepped down"), 189),
        (WriteConcernFailure(64, "waiting for replication timed out", timed_out=True), 187),
    ],
)
def test_what_is_not_proven_is_not_told(
    client: Client, member: FakeMember, command: dict[str, object], failure: WriteConcernFailure, code: int
) -> None:
    member.concern_failure = failure
    reply = client.run({**command, **LINEARIZABLE})
    assert (reply["ok"], reply["code"]) == (0.0, code)
    assert not {"cursor", "n", "values"} & set(reply)
    assert len(client.dispatcher.cursors) == 0


def test_every_batch_is_proven_and_maxtimems_counts_for_all_of_them(client: Client, member: FakeMember) -> None:
    deadlines: list[Millis | None] = []
    wait = member.wait_until_met

    async def note(optime: Any, concern: WriteConcern, deadline: Millis | None) -> WriteConcernFailure | None:
        deadlines.append(None if deadline is None else Millis(deadline - member.clock.time))
        member.clock.time = Millis(member.clock.time + 300)
        return await wait(optime, concern, deadline)

    member.wait_until_met = note  # type: ignore[method-assign]
    reply = client.ok({"find": "c", "batchSize": 2, "maxTimeMS": 1_000, **LINEARIZABLE})
    more: dict[str, object] = {"getMore": reply["cursor"]["id"], "collection": "c", "batchSize": 2}
    member.clock.time = Millis(member.clock.time + 50_000)  # the client thinks; that is no time of the query
    assert [row["_id"] for row in client.ok(more)["cursor"]["nextBatch"]] == [2, 3]
    assert deadlines == [1_000, 700]
    assert len(member.waited) == 2
    member.concern_failure = WriteConcernFailure(189, "the primary stepped down")
    assert client.code(more) == 189
    assert deadlines == [1_000, 700, 400]
    assert client.code(more) == 43, "a batch is gone, so the cursor is"


def test_a_cursor_whose_member_is_no_longer_primary(client: Client, member: FakeMember) -> None:
    reply = client.ok({"find": "c", "batchSize": 2, **LINEARIZABLE})
    member.node.state, member.node.writable = MemberState.SECONDARY, False
    assert client.code({"getMore": reply["cursor"]["id"], "collection": "c"}) == 10107


def test_a_proof_of_another_term_is_none(client: Client, member: FakeMember, monkeypatch: pytest.MonkeyPatch) -> None:
    """The member led when it read, lost that, and leads again when it comes to the proof."""
    begin = scan.read_point

    async def and_lead_again(*arguments: Any) -> Any:
        point = await begin(*arguments)
        asyncio.get_running_loop().call_soon(setattr, member.node, "term", 3)
        return point

    monkeypatch.setattr(scan, "read_point", and_lead_again)
    before = len(client.entries())
    assert client.code({"find": "c", **LINEARIZABLE}) == 189
    assert len(client.entries()) == before


def test_only_the_primary_answers(client: Client, member: FakeMember) -> None:
    member.node.state, member.node.writable = MemberState.SECONDARY, False
    member.node.primary, member.node.primary_host = MemberId(1), HostPort("localhost:27018")
    anywhere = {"$readPreference": {"mode": "secondaryPreferred"}}
    assert client.code({"find": "c", **LINEARIZABLE}) == 13435
    reply = client.run({"find": "c", **LINEARIZABLE, **anywhere})
    assert (reply["code"], reply["codeName"]) == (10107, "NotWritablePrimary")
    assert "topologyVersion" in reply


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"find": "c", "readConcern": {"level": "linearizable", "afterClusterTime": Timestamp(1, 1)}}, 72),
        ({"insert": "c", "documents": [{}], **LINEARIZABLE}, 72),
        ({"ping": 1, **LINEARIZABLE}, 72),
        ({"aggregate": "c", "pipeline": [{"$out": "d"}], "cursor": {}, **LINEARIZABLE}, 72),
    ],
)
def test_where_it_is_refused(client: Client, command: dict[str, object], code: int) -> None:
    assert client.code(command) == code


def test_the_oplog_is_not_read_so(client: Client) -> None:
    assert client.code({"find": "oplog.rs", **LINEARIZABLE}, "local") == 72


def test_it_cannot_be_the_default(client: Client) -> None:
    command = {"setDefaultRWConcern": 1, "defaultReadConcern": {"level": "linearizable"}}
    assert client.code(command, "admin") == 2


def test_a_full_disk_proves_nothing(client: Client, member: FakeMember) -> None:
    async def full(operation: object) -> None:
        raise OutOfDiskSpaceError("the disk is nearly full")

    member.write = full  # type: ignore[assignment,method-assign]
    assert client.code({"count": "c", **LINEARIZABLE}) == 14031


def test_a_killed_cursor_stays_dead(client: Client, member: FakeMember) -> None:
    reply = client.ok({"find": "c", "batchSize": 1, **LINEARIZABLE})
    cursor_id = reply["cursor"]["id"]
    body = RawDocument(encode({"getMore": Int64(cursor_id), "collection": "c", "batchSize": 1, "$db": "test"}))

    async def test() -> Any:
        getting = asyncio.ensure_future(client.dispatcher.run(CommandRequest("test", body)))
        await asyncio.sleep(0)
        client.dispatcher.cursors.close_all()
        return await getting

    client.loop.run_until_complete(test())
    assert len(client.dispatcher.cursors) == 0
    assert client.code({"getMore": cursor_id, "collection": "c"}) == 43

"""readConcern linearizable: on the primary only, each batch proven by an entry that a majority has."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from replset.bson import Timestamp
from replset.core.quorum import WriteConcern
from replset.errors import OutOfDiskSpaceError
from replset.ids import Millis
from replset.member.member import RunningMember
from replset.operations import read_concern
from replset.operations.read_concern import append_confirmation
from replset.operations.write_concern import WriteConcernFailure
from tests.rig import Client, Rig, note_waits

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
def documents(client: Client) -> None:
    client.ok({"insert": "c", "documents": [{"_id": i, "n": i % 3} for i in range(5)]})


@pytest.mark.parametrize("command", READS)
def test_a_read_is_followed_by_an_entry_that_a_majority_must_have(
    client: Client, member: RunningMember, monkeypatch: pytest.MonkeyPatch, command: dict[str, object]
) -> None:
    plain, waited = client.ok(command), note_waits(monkeypatch)
    before = len(client.entries())
    proven = client.ok({**command, **LINEARIZABLE})
    (noop,) = client.entries()[before:]
    assert (noop["op"], noop["o"]) == ("n", {"msg": "linearizable read"})
    assert waited == [(member.store.last_applied, WriteConcern("majority"))]
    for name in ("cursor", "n", "values"):
        assert plain.get(name) == proven.get(name)


def test_reads_at_once_share_one_entry(client: Client, member: RunningMember) -> None:
    """The entry has to be written after the read, not for it alone: what is in the group already will do."""
    before, term = len(client.entries()), member.node.term
    first, again = client.rig.write(lambda group: [append_confirmation(group, term) for _ in range(2)])
    assert first == again
    assert len(client.entries()) == before + 1


@pytest.mark.parametrize("command", READS)
def test_what_is_not_proven_is_not_told(
    client: Client, monkeypatch: pytest.MonkeyPatch, command: dict[str, object]
) -> None:
    for code, expected, timed_out in ((50, 50, False), (189, 189, False), (64, 187, True)):
        with monkeypatch.context() as patch:
            note_waits(patch, WriteConcernFailure(code, "it is not met", timed_out))
            reply = client.run({**command, **LINEARIZABLE})
        assert (reply["ok"], reply["code"]) == (0.0, expected)
        assert not {"cursor", "n", "values"} & set(reply)
        assert len(client.dispatcher.cursors) == 0


def test_every_batch_is_proven_and_maxtimems_counts_for_all_of_them(
    client: Client, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlines: list[float] = []
    wait = read_concern.wait_until_met

    async def note(member: Any, optime: Any, concern: WriteConcern, deadline: Millis) -> WriteConcernFailure | None:
        deadlines.append(round(deadline - member.clock.now(), -2))
        await asyncio.sleep(0.3)
        return await wait(member, optime, concern, deadline)

    monkeypatch.setattr(read_concern, "wait_until_met", note)
    reply = client.ok({"find": "c", "batchSize": 2, "maxTimeMS": 1_000, **LINEARIZABLE})
    more: dict[str, object] = {"getMore": reply["cursor"]["id"], "collection": "c", "batchSize": 2}
    rig.wait(50)  # the client thinks; that is no time of the query
    assert [row["_id"] for row in client.ok(more)["cursor"]["nextBatch"]] == [2, 3]
    assert deadlines == [1_000, 700]
    note_waits(monkeypatch, WriteConcernFailure(189, "the primary stepped down"))
    assert client.code(more) == 189
    assert client.code(more) == 43, "a batch is gone, so the cursor is"


def test_a_cursor_whose_member_is_no_longer_primary(client: Client, rig: Rig) -> None:
    reply = client.ok({"find": "c", "batchSize": 2, **LINEARIZABLE})
    rig.step_down()
    assert client.code({"getMore": reply["cursor"]["id"], "collection": "c"}) == 10107


def test_a_proof_of_another_term_is_none(client: Client, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The member led when it read, lost that, and leads again when it comes to the proof."""
    write = rig.member().write

    async def lead_again_and_write(operation: Any) -> Any:
        await rig.lead_again()
        return await write(operation)

    monkeypatch.setattr(rig.member(), "write", lead_again_and_write)
    assert client.code({"find": "c", **LINEARIZABLE}) == 189
    assert not [entry for entry in client.entries() if entry["o"] == {"msg": "linearizable read"}]


def test_only_the_primary_answers(client: Client, rig: Rig) -> None:
    rig.step_down()
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


def test_a_full_disk_proves_nothing(client: Client, member: RunningMember) -> None:
    async def full(operation: object) -> None:
        raise OutOfDiskSpaceError("the disk is nearly full")

    member.write = full  # type: ignore[assignment,method-assign]
    assert client.code({"count": "c", **LINEARIZABLE}) == 14031


def test_a_killed_cursor_stays_dead(client: Client, rig: Rig) -> None:
    reply = client.ok({"find": "c", "batchSize": 1, **LINEARIZABLE})
    getting = client.begin({"getMore": reply["cursor"]["id"], "collection": "c", "batchSize": 1})
    rig.turn(1)
    client.dispatcher.cursors.close_all()
    client.decoded(getting)
    assert len(client.dispatcher.cursors) == 0

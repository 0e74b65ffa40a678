"""Answers of sources and entries that are malformed, too late or done already: nothing is made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from replset.bson import Binary, RawDocument, encode
from replset.errors import RemoteProtocolError
from replset.features.compared_copies.difference_protocol import CompareReply
from replset.ids import HostPort, Millis
from replset.oplog_entry import OplogEntry, command_entry
from replset.replication.applier import apply_entry
from replset.replication.common_point import CommonPoint, NoCommonPointError, SourceChangedError
from replset.replication.initial_sync_progress import InitialSyncProgress
from replset.replication.protocol import SnapshotRequest
from tests.unit.replication.diverged import diverge, two_members
from tests.unit.replication.kit import NS, SOURCE, Member, Pair, pair, trim


@pytest.fixture
def members(tmp_path: Path) -> Pair:
    return pair(tmp_path)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"rows": 1, "gone": b""}, "'rows' is not an array"),
        ({"rows": [], "gone": 1}, "not binary data"),
        ({"rows": [], "gone": b"123"}, "no pairs"),
        ({"rows": [1], "gone": b""}, "more than rows"),
        ({"digests": "x"}, "not binary data"),
    ],
)
def test_malformed_answers_of_a_comparison(fields: dict[str, object], says: str) -> None:
    with pytest.raises(RemoteProtocolError, match=says):
        CompareReply.parse(RawDocument(encode({"ok": 1.0, "rbid": 1, **fields})))


def test_the_first_question_for_a_copy_names_no_part_of_it() -> None:
    document = SnapshotRequest("begin").document().decode()
    assert document == {"replSetSnapshot": 1, "step": "begin", "id": "", "offset": 0, "length": 0}


async def test_a_source_that_loses_the_common_point_meanwhile(tmp_path: Path) -> None:
    """The last question is whether it is still there."""
    source, mine = two_members(tmp_path / "diverged")
    diverge(source, mine)
    asked: list[object] = []

    def forget(_command: dict[str, object], reply: dict[str, object]) -> None:
        asked.append(reply["chains"])
        if len(asked) > 1:
            reply["chains"] = [None for _ in reply["chains"]]  # type: ignore[attr-defined]

    source.network.before_reply = forget
    with pytest.raises(SourceChangedError, match="does not hold"):
        await CommonPoint(source.network, mine.store, SOURCE).find()


async def test_a_source_that_shares_no_entry_that_is_left(source: Member, mine: Member) -> None:
    """All that the two share is trimmed there, and the oplogs overlap in time."""
    source.create(NS)
    mine.create("app.other")
    source.clock.ms = mine.clock.ms = 10_000
    source.insert(NS, {"_id": 1})
    mine.clock.ms = 20_000
    mine.insert("app.other", {"_id": 1})
    source.node.term = 2
    source.clock.ms = 15_000
    source.noop()
    trim(source, oplog_max_bytes=1)
    assert mine.store.oldest.ts < source.store.oldest.ts < mine.store.last_applied.ts
    with pytest.raises(NoCommonPointError, match="holds none of my entries"):
        await CommonPoint(source.network, mine.store, SOURCE).find()


def applied(member: Member, uuid: bytes, o: dict[str, object]) -> None:
    with member.store.group() as txn:
        at = txn.next_optime(1, member.clock.wall_ms())
        apply_entry(txn, OplogEntry(command_entry("app", uuid, o, at, member.clock.wall_ms())))


def test_changes_of_collections_that_cannot_be_or_are_done(mine: Member) -> None:
    mine.create(NS)
    mine.create("app.taken")
    store = mine.store
    coll, taken = store.collection(NS), store.collection("app.taken")
    assert coll is not None
    assert taken is not None
    with pytest.raises(RemoteProtocolError, match="without its new name"):
        applied(mine, coll.uuid, {"renameCollection": NS})
    applied(mine, coll.uuid, {"renameCollection": NS, "to": "app.taken"})
    applied(mine, coll.uuid, {"renameCollection": NS, "to": "app.taken", "dropTarget": Binary(coll.uuid, 4)})
    applied(mine, bytes(16), {"collMod": "gone", "validator": {"a": 1}})
    assert [one.ns for one in store.collections("app")] == [NS, "app.taken"]
    for name in ("a", "b"):
        spec = {"v": 2, "key": {name: 1}, "name": name}
        applied(mine, coll.uuid, {"createIndexes": NS.partition(".")[2], **spec})
    applied(mine, coll.uuid, {"collMod": "orders", "index": {"name": "b", "hidden": True}})
    hidden = [index.spec.get("hidden") for index in store.collection(NS).indexes]  # type: ignore[union-attr]
    assert hidden == [None, True]


def test_a_comparison_says_how_much_came() -> None:
    progress = InitialSyncProgress()
    progress.begin(HostPort("a:1"), Millis(0), 0)
    progress.on_compared(300)
    progress.on_compared(45)
    assert progress.text(Millis(5)) == "initial sync from a:1 compares documents: 345 bytes came for that"

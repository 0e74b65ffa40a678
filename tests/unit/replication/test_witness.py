"""A witness's storage: a copy without documents, entries without effect, a rollback of entries, a source of entries."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from replset.bson import RawDocument, encode
from replset.core.member_state import MemberState
from replset.core.messages import InitialSyncEnded
from replset.errors import IllegalOperationError
from replset.features.recovery.lost_writes import LostWrites
from replset.ids import OPTIME_NULL, HostPort, OpTime
from replset.oplog_entry import insert_entry
from replset.replication.applier import _CHECK_TIME_EVERY, apply_batch
from replset.replication.rollback_manifest import FileKind, list_manifests
from replset.storage.retention import remove_old_data
from replset.storage.store import Store
from tests.unit.replication.kit import NS, OPTIONS, SOURCE, Member, Network, Pair, numbered, run, until

WITNESS = HostPort("witness:1")


@pytest.fixture
def members(tmp_path: Path) -> Pair:
    """A primary with documents, indexes and a witness whose first sync is done."""
    network = Network()
    source, witness = Member(SOURCE, tmp_path, network), Member(WITNESS, tmp_path, network)
    source.node.state = MemberState.PRIMARY
    source.create(NS)
    source.insert(NS, *numbered(range(50)))
    assert begin(witness).ok
    return source, witness


@pytest.fixture
def witness(members: Pair) -> Member:
    return members[1]


def begin(
    member: Member, *, oplog_only: bool = True, source: HostPort = SOURCE, is_stale: bool = False
) -> InitialSyncEnded:
    asyncio.run(member.initial_sync.run(source, "first sync", oplog_only=oplog_only, is_stale=is_stale))
    ended = member.reports[-1]
    assert isinstance(ended, InitialSyncEnded)
    return ended


def follow(member: Member, source: Member) -> None:
    async def test() -> None:
        member.fetcher.start(source.host)
        await until(lambda: member.store.last_applied == source.store.last_applied)
        member.fetcher.stop()

    run(test)


def tables(store: Store) -> list[str]:
    rows = store.query(lambda db: list(db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")))
    return [name for (name,) in rows]


def test_it_gets_the_oplog_and_no_document(source: Member, witness: Member) -> None:
    assert witness.store.oplog_only
    assert not source.store.oplog_only
    assert witness.oplog() == source.oplog()
    assert witness.store.chain == source.store.chain
    assert witness.store.terms() == source.store.terms()
    assert witness.store.collections() == []
    lacking = set(tables(source.store)) - set(tables(witness.store))
    assert len(lacking) == 1
    assert lacking.pop().startswith("d_")


def test_an_entry_that_is_there_already_is_left_out(source: Member, witness: Member) -> None:
    source.insert(NS, *numbered(range(100, 103)))
    entries, chain = source.oplog()[-4:], source.store.chain
    assert apply_batch(witness.store, entries, 0, 4, lambda: False) == 4
    assert (witness.oplog(), witness.store.chain) == (source.oplog(), chain)


def test_groups_are_bounded_by_bytes_and_time(source: Member, witness: Member) -> None:
    """A witness keeps entries without their effect, but a group of it holds the write queue as long."""
    follow(witness, source)
    count = 2 * _CHECK_TIME_EVERY
    source.insert(NS, *({"_id": -1 - n, "x": "x" * 400_000} for n in range(5)), *numbered(range(100, 100 + count)))
    entries = source.oplog()[-5 - count :]
    assert apply_batch(witness.store, entries, 0, 5, lambda: False) == 3
    assert apply_batch(witness.store, entries, 3, 5, lambda: False) == 2
    assert apply_batch(witness.store, entries, 5, 5 + count, lambda: True) == _CHECK_TIME_EVERY


def test_entries_of_every_kind_are_kept_and_change_nothing_else(source: Member, witness: Member) -> None:
    source.update(NS, {"_id": 1, "text": "changed"})
    source.delete(NS, 2)
    source.create("app.more")
    source.insert("app.more", *numbered(range(600)))
    source.rename("app.more", "app.other")
    source.drop("app.other")
    follow(witness, source)
    assert witness.oplog() == source.oplog()
    assert [row.key for row in witness.store.oplog_after(OPTIME_NULL, limit=1 << 20, max_bytes=1 << 30)] == [
        row.key for row in source.store.oplog_after(OPTIME_NULL, limit=1 << 20, max_bytes=1 << 30)
    ]
    assert witness.store.collections() == []
    assert witness.store.query(lambda db: list(db.execute("SELECT * FROM undo"))) == []


def test_a_data_member_follows_it_through_entries_that_only_it_has(
    source: Member, witness: Member, tmp_path: Path
) -> None:
    """The primary is gone; the secondary fetches from the witness what it lacks, and has the documents then."""
    second = Member("second:1", tmp_path, source.network)
    asyncio.run(second.initial_sync.run(SOURCE, "first sync"))
    source.insert(NS, {"_id": "acknowledged by primary and witness"})
    follow(witness, source)
    source.network.down.add(SOURCE)
    witness.node.state = MemberState.SECONDARY
    follow(second, witness)
    assert second.everything() == source.everything()
    assert second.store.chain == source.store.chain


def test_nobody_gets_a_copy_from_it(members: Pair, tmp_path: Path) -> None:
    second = Member("second:1", tmp_path, members[0].network)
    for oplog_only in (False, True):
        ended = begin(second, oplog_only=oplog_only, source=WITNESS)
        assert not ended.ok
        assert "witness" in ended.detail
    assert second.store.last_applied == OPTIME_NULL


@pytest.mark.parametrize("was_witness", [True, False])
def test_a_copy_of_the_other_kind_replaces_what_is_there(source: Member, witness: Member, was_witness: bool) -> None:
    if not was_witness:
        assert begin(witness, oplog_only=False).ok
    source.insert(NS, {"_id": "meanwhile"})
    assert begin(witness, oplog_only=not was_witness, is_stale=True).oplog_only is not was_witness
    assert not any(call.get("compare") for call in witness.network.calls), "one of the two has no documents"
    assert witness.store.oplog_only is not was_witness
    assert (witness.everything() == source.everything()) is was_witness
    assert witness.oplog() == source.oplog()


def test_a_copy_of_the_wrong_kind_is_not_installed(source: Member, witness: Member) -> None:
    """As of a source of a version that does not know what a witness is."""
    before = witness.oplog()
    serve = source.snapshots.serve

    async def as_an_older_one(body: RawDocument) -> dict[str, object]:
        known = {name: value for name, value in body.decode().items() if name != "oplogBytes"}
        return await serve(RawDocument(encode(known)))

    source.snapshots.serve = as_an_older_one
    ended = begin(witness)
    assert not ended.ok
    assert "with documents" in ended.detail
    assert witness.oplog() == before


def test_a_copy_has_no_more_than_the_witness_keeps_but_all_from_the_commit_point_on(tmp_path: Path) -> None:
    network = Network()
    source, witness = Member(SOURCE, tmp_path, network), Member(WITNESS, tmp_path, network)
    source.create(NS)
    source.insert(NS, *numbered(range(100)))
    log = [row.optime for row in source.store.oplog_after(OPTIME_NULL, limit=1_000, max_bytes=1 << 30)]
    witness.store.options = replace(OPTIONS, oplog_max_bytes=2_000)
    source.store.set_commit_point(log[-1])
    assert begin(witness).ok
    assert 2 < len(witness.oplog()) < 50
    assert witness.store.trimmed_through == log[-len(witness.oplog()) - 1].ts
    source.store.commit_point = log[20]
    witness.store.options = replace(OPTIONS, oplog_max_bytes=2_000)
    assert begin(witness).ok
    assert witness.store.oldest == log[20]


def test_its_oplog_is_trimmed_at_its_cap(witness: Member) -> None:
    witness.store.options = replace(OPTIONS, oplog_max_bytes=2_000)
    witness.store.set_commit_point(witness.store.last_applied)
    while remove_old_data(witness.store, witness.clock.now()):
        pass
    assert witness.store.oplog_bytes <= 2_000
    assert witness.store.oldest > OpTime(0, 1)


def test_it_takes_entries_back_and_writes_them_to_a_file(source: Member, witness: Member) -> None:
    """There are no documents to put back, and none in the rollback's files."""
    shared = witness.oplog()
    common = witness.store.last_applied
    for optime, entry in diverged_entries(source, common):
        with witness.store.group() as txn:
            txn.append(entry, optime, op="i", ns=NS, key=b"k", wall_ms=1)
    source.node.term = 2
    source.insert(NS, {"_id": "of the new primary"})
    witness.node.state = MemberState.ROLLBACK
    asyncio.run(witness.rollback.run(SOURCE))
    assert witness.reports[-1].ok
    assert witness.oplog() == shared
    (manifest,) = list_manifests(witness.dbpath)
    assert [file.kind for file in manifest.files] == [FileKind.OPLOG]
    assert (manifest.entries, manifest.oplog_only) == (3, True)
    with pytest.raises(IllegalOperationError, match="a witness: it has the entries and no documents"):
        LostWrites(witness.folder / "rollback", manifest)
    follow(witness, source)
    assert witness.oplog() == source.oplog()


def diverged_entries(source: Member, common: OpTime) -> list[tuple[OpTime, bytes]]:
    """Three inserts of term 1 that the source does not have."""
    uuid = source.store.collection(NS).uuid
    found = []
    for number in range(1, 4):
        at = OpTime(1, common.ts + number)
        found.append((at, insert_entry(NS, uuid, encode({"_id": f"lost {number}"}), at, 1)))
    return found

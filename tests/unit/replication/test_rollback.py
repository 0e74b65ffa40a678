"""Rollback end to end on real stores: files and manifest, the undo, and the export before a wipe."""

from __future__ import annotations

import asyncio
from pathlib import Path

import bson as pymongo_bson
import pytest

from replset.bson import decode
from replset.core.member_state import MemberState
from replset.core.messages import DamageFound, RollbackEnded, SourceBatch
from replset.ids import OPTIME_NULL, OpTime
from replset.replication.rollback import export_before_wipe
from replset.replication.rollback_manifest import FileKind, Manifest, RollbackState, list_manifests, verify_file
from replset.storage.retention import note_ages, remove_old_data
from replset.storage.undo import rollback_done_marks, rollback_in_progress
from tests.unit.replication.diverged import OTHER, by_id, diverge, files_of, run_rollback, stamp_of
from tests.unit.replication.kit import MINE, NS, SOURCE, Member, Network, catch_up, copy_log, numbered, run, trim


def test_rollback_takes_back_every_kind_of_operation_and_writes_it_down(source: Member, mine: Member) -> None:
    before, log_before = mine.everything(), mine.oplog()
    common = diverge(source, mine)
    undone = mine.oplog()[len(log_before) :]
    id_before, newest = mine.store.rollback_id, mine.store.last_applied

    ended = run_rollback(mine)

    assert (ended.ok, ended.retry, ended.too_stale) == (True, False, False)
    assert mine.everything() == before
    assert mine.oplog() == log_before
    assert mine.store.last_applied == common
    assert mine.lowered == [(common, newest)], "the durability mark goes down before the first step"
    assert mine.store.rollback_id == id_before + 1
    assert rollback_in_progress(mine.store) is None
    assert rollback_done_marks(mine.store) == []

    (manifest,) = list_manifests(mine.dbpath)
    assert manifest.state is RollbackState.FINISHED
    assert manifest.settled is not None
    assert (manifest.set_name, manifest.member, manifest.source) == ("rs0", MINE, SOURCE)
    assert manifest.common_point == common
    assert manifest.entries == len(undone)
    assert dict(manifest.operations) == {"c": 3, "d": 2, "i": 9, "n": 1, "u": 5}
    assert (manifest.first.term, manifest.last.term) == (1, 1)
    assert all(verify_file(mine.folder / "rollback", file) is None for file in manifest.files)
    progress = mine.rollback.progress
    assert progress.entries == progress.written == progress.undone == len(undone)
    assert progress.documents == sum(file.count for file in manifest.files if file.kind is FileKind.DOCUMENTS)
    assert progress.size == sum(file.size for file in manifest.files)

    found = files_of(mine, manifest)
    assert found[("oplog", "local.oplog.rs")] == [[decode(entry) for entry in undone]]
    (orders,) = found[("documents", NS)]
    assert by_id(orders) == {
        1: {"_id": 1, "text": "mine"},
        2: {"_id": 2, "text": "changed again", "n": 2, "extra": True},
        **by_id(numbered(range(100, 105))),
    }
    (orders_before,) = found[("before", NS)]
    assert by_id(orders_before) == by_id(numbered([1, 2]))
    assert found[("documents", "app.new")] == [[{"_id": "only here"}]]
    assert found[("documents", OTHER)] == [[{"_id": "bolt", "size": 8}]]
    assert set(found) == {
        ("oplog", "local.oplog.rs"),
        ("documents", NS),
        ("before", NS),
        ("documents", "app.new"),
        ("documents", OTHER),
    }

    # Then it goes on from the source, and both are equal.
    run(lambda: catch_up(source, mine))
    assert isinstance(mine.reports[-1], SourceBatch)
    assert mine.everything() == source.everything()
    assert mine.store.chain == source.store.chain


def test_views_and_the_swap_of_an_out_are_taken_back(source: Member, mine: Member) -> None:
    source.create("app.view", viewOn="orders", pipeline=[{"$match": {"n": 1}}])
    copy_log(source, mine)

    def catalog(member: Member) -> list[tuple[str, dict[str, object]]]:
        return [(coll.ns, coll.options.decode()) for coll in member.store.collections()]

    before, content = catalog(mine), mine.everything()
    mine.create("app.more", viewOn="view", pipeline=[])
    mine.coll_mod("app.view", {"viewOn": "parts", "pipeline": []})
    mine.create("app.tmp.agg_out.1", temp=True, validator={"size": {"$gt": 1}})
    mine.insert("app.tmp.agg_out.1", {"_id": "bolt", "size": 8})
    mine.coll_mod("app.tmp.agg_out.1", {"temp": False})
    mine.rename("app.tmp.agg_out.1", OTHER, drop_target=True)
    assert catalog(mine) == [
        ("app.more", {"viewOn": "view", "pipeline": []}),
        (NS, {}),
        (OTHER, {"validator": {"size": {"$gt": 1}}}),
        ("app.view", {"viewOn": "parts", "pipeline": []}),
    ]
    source.clock.ms += 9_000
    source.node.term = 2
    source.noop()

    assert run_rollback(mine).ok
    assert catalog(mine) == before
    assert mine.everything() == content


def test_rollback_files_are_plain_bson(source: Member, mine: Member) -> None:
    diverge(source, mine)
    assert run_rollback(mine).ok
    (manifest,) = list_manifests(mine.dbpath)
    for file in manifest.files:
        data = (mine.folder / "rollback" / file.name).read_bytes()
        documents = pymongo_bson.decode_all(data)
        assert len(documents) == file.count > 0
        assert len(data) == file.size
        assert b"".join(map(pymongo_bson.encode, documents)) == data
    assert {file.name for file in manifest.files if file.ns == NS} == {
        f"app.orders.{stamp_of(manifest)}.0.bson",
        f"before.app.orders.{stamp_of(manifest)}.0.bson",
    }


def test_two_collections_of_one_name_get_a_file_each(source: Member, mine: Member) -> None:
    uuid = mine.store.collection(OTHER)
    mine.insert(OTHER, {"_id": "old table"})
    mine.drop(OTHER)
    mine.create(OTHER)
    mine.insert(OTHER, {"_id": "new table"})
    source.node.term = 2
    source.noop()
    assert run_rollback(mine).ok
    (manifest,) = list_manifests(mine.dbpath)
    # What was written to the dropped one is in the oplog's file; its documents at the common point are back.
    (file,) = [file for file in manifest.files if file.kind is FileKind.DOCUMENTS]
    assert file.uuid.bytes != uuid.uuid
    assert mine.rollback_file(file.name) == [{"_id": "new table"}]
    assert set(mine.documents(OTHER)) == {"bolt", "nut"}


def test_a_second_rollback_in_the_same_second_overwrites_nothing(source: Member, mine: Member) -> None:
    mine.insert(NS, {"_id": "first"})
    source.node.term = 2
    source.noop()
    assert run_rollback(mine).ok
    run(lambda: catch_up(source, mine))
    mine.insert(NS, {"_id": "second"}, term=2)
    source.node.term = 3
    source.noop()
    assert run_rollback(mine).ok
    first, second = list_manifests(mine.dbpath)
    assert (first.id.rpartition(".")[2], second.id.rpartition(".")[2]) == ("0", "1")
    names = [file.name for manifest in (first, second) for file in manifest.files]
    assert len(set(names)) == len(names) == 4
    assert [
        mine.rollback_file(file.name)
        for manifest in (first, second)
        for file in manifest.files
        if file.kind is FileKind.DOCUMENTS
    ] == [[{"_id": "first"}], [{"_id": "second"}]]


def test_members_without_anything_in_common_are_too_stale(tmp_path: Path) -> None:
    network = Network()
    source, mine = Member(SOURCE, tmp_path, network), Member(MINE, tmp_path, network)
    mine.create(NS)
    mine.insert(NS, {"_id": 1})
    source.clock.ms += 60_000
    source.node.term = 2
    source.create(NS)
    ended = run_rollback(mine)
    assert (ended.ok, ended.retry, ended.too_stale) == (False, False, True)
    assert list_manifests(mine.dbpath) == []
    assert mine.documents(NS) == {1: {"_id": 1}}


def test_below_the_commit_point_it_is_refused_and_exported(source: Member, mine: Member) -> None:
    common = mine.store.last_applied
    mine.node.commit_point = mine.insert(NS, {"_id": "committed"})
    mine.insert(NS, {"_id": "not known"})
    source.clock.ms += 5_000
    source.node.term = 2
    source.noop()
    everything, log = mine.everything(), mine.oplog()
    ended = run_rollback(mine)
    assert (ended.ok, ended.retry, ended.too_stale) == (False, False, False)
    assert str(mine.node.commit_point) in ended.detail
    assert mine.everything() == everything
    assert mine.oplog() == log
    (manifest,) = list_manifests(mine.dbpath)
    assert manifest.state is RollbackState.EXPORTED
    assert manifest.common_point == common, "what was committed once is not in the set either"
    assert files_of(mine, manifest)[("documents", NS)] == [[{"_id": "committed"}, {"_id": "not known"}]]
    assert [entry["o"] for entry in files_of(mine, manifest)[("oplog", "local.oplog.rs")][0]] == [
        {"_id": "committed"},
        {"_id": "not known"},
    ]
    assert manifest.id in ended.detail
    # Asked again, it refuses again and writes nothing new; after a restart too, when it knows of no commit point.
    assert not run_rollback(mine).ok
    mine.node.commit_point = OPTIME_NULL
    mine.store.commit_point = OPTIME_NULL
    ended = run_rollback(mine)
    assert (ended.ok, ended.retry, ended.too_stale) == (False, False, False)
    assert mine.oplog() == log
    assert list_manifests(mine.dbpath) == [manifest]


def test_below_what_the_undo_reaches_it_is_refused(source: Member, mine: Member) -> None:
    common = mine.store.last_applied
    mine.insert(NS, {"_id": "pruned"})
    mine.replace(NS, {"_id": 1, "text": "changed"})
    mine.delete(NS, 2)
    note_ages(mine.store, mine.clock.now())
    mine.clock.ms += 400_000
    newest = mine.insert(NS, {"_id": "late"})
    mine.store.set_commit_point(newest)
    while remove_old_data(mine.store, mine.clock.now()):
        pass
    assert mine.store.pruned_through > 0
    source.clock.ms += 500_000
    source.node.term = 2
    source.noop()
    ended = run_rollback(mine)
    assert (ended.ok, ended.retry, ended.too_stale) == (False, False, False)
    (manifest,) = list_manifests(mine.dbpath)
    assert mine.rollback.progress.documents == 3
    assert (manifest.state, manifest.common_point, manifest.entries) == (RollbackState.EXPORTED, common, 4)
    files = files_of(mine, manifest)
    assert by_id(files[("documents", NS)][0]) == {
        "pruned": {"_id": "pruned"},
        "late": {"_id": "late"},
        1: {"_id": 1, "text": "changed"},
    }
    assert ("before", NS) not in files, "what it was at the common point is not known any more"
    assert len(files[("oplog", "local.oplog.rs")][0]) == 4


def test_different_chains_at_the_common_point_are_for_both_to_compare(
    source: Member, mine: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose is the set's is not known yet: nothing is undone or exported, and the source hears of it too."""
    common = diverge(source, mine)
    everything = mine.everything()
    row = mine.store.row_at_or_before(common)
    sound = row._replace(chain=row.chain ^ 1)  # it gives its own hash and chain, and not the source's
    monkeypatch.setattr(mine.store, "sound_row_at", lambda at: sound if at == common else None)
    ended = run_rollback(mine)
    assert (ended.ok, ended.retry, ended.too_stale, ended.chain_differs_at) == (False, True, False, common)
    assert source.doubts == [common]
    assert mine.everything() == everything
    assert list_manifests(mine.dbpath) == []


def test_damage_of_my_own_at_the_common_point_is_reported_and_nothing_undone(source: Member, mine: Member) -> None:
    common = diverge(source, mine)
    newest = mine.store.last_applied
    mine.store._connection.execute("UPDATE oplog SET hash = hash + 1 WHERE ts = ?", (common.ts,))
    ended = run_rollback(mine)
    assert (ended.ok, ended.retry) == (False, True)
    assert [type(report) for report in mine.reports] == [DamageFound, RollbackEnded]
    assert mine.store.last_applied == newest


def test_a_source_that_rolls_back_meanwhile_voids_the_search(source: Member, mine: Member) -> None:
    diverge(source, mine)
    everything = mine.everything()

    def later(command: dict[str, object], reply: dict[str, object]) -> None:
        if len(mine.network.calls) > 1:
            reply["rbid"] = 99

    mine.network.before_reply = later
    ended = run_rollback(mine)
    assert (ended.ok, ended.retry) == (False, True)
    assert mine.everything() == everything
    assert list_manifests(mine.dbpath) == []
    mine.network.before_reply = lambda command, reply: None
    assert run_rollback(mine).ok


@pytest.mark.parametrize("state", [MemberState.ROLLBACK, MemberState.STARTUP2])
def test_a_source_that_serves_no_oplog_is_tried_again(source: Member, mine: Member, state: MemberState) -> None:
    diverge(source, mine)
    source.node.state = state
    ended = run_rollback(mine)
    assert (ended.ok, ended.retry) == (False, True)
    assert state.name in ended.detail


def test_a_source_in_no_later_term_is_none(mine: Member) -> None:
    mine.insert(NS, {"_id": "ahead"})
    ended = run_rollback(mine)
    assert (ended.ok, ended.retry) == (False, True)
    assert mine.documents(NS)["ahead"] == {"_id": "ahead"}


def test_nothing_to_undo(source: Member, mine: Member) -> None:
    source.node.term = 2
    source.noop()
    assert run_rollback(mine).ok
    assert list_manifests(mine.dbpath) == []


# --- before a wipe ----------------------------------------------------------------------------------------------


def export(mine: Member, commit_point: OpTime) -> Manifest | None:
    return asyncio.run(export_before_wipe(mine.context, commit_point, "resync", None))


def test_export_holds_all_that_is_not_known_to_be_committed(mine: Member) -> None:
    committed = mine.store.last_applied
    assert export(mine, committed) is None
    assert not (mine.folder / "rollback").exists()
    mine.replace(NS, {"_id": 1, "text": "later"})
    mine.delete(NS, 2)
    everything, log = mine.everything(), mine.oplog()
    manifest = export(mine, committed)
    assert manifest.state is RollbackState.EXPORTED
    assert (manifest.common_point, manifest.entries, manifest.reason) == (committed, 2, "resync")
    assert files_of(mine, manifest)[("documents", NS)] == [[{"_id": 1, "text": "later"}]]
    assert files_of(mine, manifest)[("before", NS)] == [numbered([1])]
    assert mine.everything() == everything
    assert mine.oplog() == log
    assert export(mine, committed) == manifest, "the same again is there already"
    assert list_manifests(mine.dbpath) == [manifest]


def test_an_earlier_export_that_holds_less_does_not_do(mine: Member) -> None:
    """Whatever is not in a file is gone after the wipe: more may count as uncommitted by now, or be written since."""
    mine.replace(NS, {"_id": 1, "text": "later"})
    committed = mine.store.last_applied
    mine.delete(NS, 2)
    less = export(mine, committed)
    more = export(mine, OPTIME_NULL)
    mine.delete(NS, 3)
    newest = export(mine, OPTIME_NULL)
    assert [manifest and manifest.entries for manifest in (less, more, newest)] == [
        *(1, len(mine.oplog()) - 1, len(mine.oplog())),
    ]


def test_an_export_from_where_the_undo_begins_says_what_there_was_before(mine: Member) -> None:
    committed = mine.store.last_applied
    mine.replace(NS, {"_id": 1, "text": "later"})
    trim(mine, committed, snapshot_history_s=0)
    assert mine.store.pruned_through == committed.ts
    assert files_of(mine, export(mine, committed))[("before", NS)] == [numbered([1])]


def test_export_without_any_known_commit_point_holds_everything(mine: Member) -> None:
    manifest = export(mine, OPTIME_NULL)
    assert manifest.common_point == OPTIME_NULL
    assert manifest.entries == len(mine.oplog())
    assert len(files_of(mine, manifest)[("documents", NS)][0]) == 20

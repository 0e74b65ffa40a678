"""A member that is too stale fetches only the documents that differ, and is then exactly as after a whole copy."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest

from replset.bson import Binary, Int64, RawDocument, encode, encode_key
from replset.core.messages import InitialSyncEnded
from replset.errors import RemoteProtocolError, ReplError
from replset.features.compared_copies import differences
from replset.features.compared_copies.difference_protocol import CompareReply, CompareRequest
from replset.features.compared_copies.differences import Differences, Row, Spans, pack_pairs
from replset.replication import copy_transfer
from replset.replication.index_ops import do_commit_build, do_drop_index, do_start_build
from replset.replication.write_ops import WriteGroup
from replset.storage.catalog import Collection
from replset.storage.copies import OPLOG_ONLY
from replset.storage.index_build import fill_slice
from replset.storage.txn import read_meta
from replset.storage.undo import undo_step
from tests.unit.replication import kit
from tests.unit.replication.kit import (
    NS,
    SOURCE,
    Member,
    Pair,
    catch_up,
    indexes_are_sound,
    left_at_source,
    numbered,
    pair,
    run,
    synced,
    undo_to,
)


@pytest.fixture
def members(tmp_path: Path) -> Pair:
    return pair(tmp_path, 400, shared=True)


def sync(mine: Member) -> InitialSyncEnded:
    return synced(mine, "too stale", is_stale=True)


def trim(source: Member) -> None:
    """Everything is committed, and the oplog keeps its newest entry alone."""
    source.node.commit_point = source.store.last_applied
    kit.trim(source, oplog_max_bytes=1, snapshot_history_s=0)


def places(member: Member) -> dict[str, list[tuple[int, bytes]]]:
    """Natural order, with the places."""
    with member.store.read() as snapshot:
        return {c.ns: [row[:2] for row in snapshot.natural_scan(c)] for c in member.store.collections()}


def steps(mine: Member) -> list[object]:
    return [call["step"] for call in mine.network.calls if "step" in call]


def assert_alike(source: Member, mine: Member) -> None:
    assert mine.everything() == source.everything()
    assert places(mine) == places(source)
    assert mine.oplog() == source.oplog()
    assert (mine.store.chain, mine.store.terms()) == (source.store.chain, source.store.terms())
    assert indexes_are_sound(mine.store)
    assert all(index.ready for coll in mine.store.collections() for index in coll.indexes)
    assert not mine.store.oplog_only
    assert not list(mine.folder.glob("initial-sync*"))
    assert left_at_source(source) == []


def test_only_what_differs_is_fetched(source: Member, mine: Member) -> None:
    for number in range(0, 400, 20):
        source.replace(NS, {"_id": number, "text": "changed"})
    source.delete(NS, 77)
    source.insert(NS, *numbered(range(400, 410)))
    trim(source)
    ended = sync(mine)
    assert ended.ok, ended.detail
    assert "31 documents differed" in ended.detail
    assert "chunk" in steps(mine)
    progress = mine.initial_sync.progress
    assert 0 < progress.compared < 15_000
    assert ended.detail.startswith(f"{progress.copied + progress.compared} bytes in ")
    assert_alike(source, mine)
    source.insert(NS, {"_id": "later"})
    mine.reports.clear()

    run(lambda: catch_up(source, mine))
    assert_alike(source, mine)


@pytest.mark.parametrize("whose", ["mine", "the source's"])
def test_rows_of_another_type_are_written_anew(source: Member, mine: Member, whose: str) -> None:
    """One bit of a row's header says that its document is text."""
    member = mine if whose == "mine" else source
    coll = member.store.collection(NS)
    member.store._connection.execute(f"UPDATE {coll.table} SET doc = CAST(doc AS TEXT) WHERE rowid < 10")
    member.store._connection.execute(f"UPDATE {coll.table} SET doc = 7 WHERE rowid = 10 AND ?", (member is mine,))
    source.replace(NS, {"_id": 5, "text": "changed"})
    trim(source)
    assert sync(mine).ok
    assert_alike(source, mine)
    with mine.store.read() as snapshot:
        assert not snapshot.mistyped(coll, b"", b"\xff")


def spec(field: str) -> RawDocument:
    return RawDocument(encode({"v": 2, "key": {field: 1}, "name": f"{field}_1"}))


def build_index(member: Member, field: str, *, ends: bool = True) -> None:
    def coll(group: WriteGroup) -> Collection:
        return group.txn.catalog.by_ns[NS]

    builds: list[bytes] = []
    member.do(lambda group: builds.append(do_start_build(group, coll(group), [spec(field)])))
    member.do(lambda group: fill_slice(group.txn, coll(group).uuid, builds[0], lambda: False))
    if ends:
        member.do(lambda group: do_commit_build(group, coll(group), builds[0]))


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happened_meanwhile(source: Member, mine: Member, seed: int) -> None:
    """Collections come, go and are renamed; documents move to other places; indexes are made and dropped."""
    rng = random.Random(seed)
    build_index(source, "n")
    build_index(source, "text")
    begin = mine.store.last_applied
    for row in source.store.oplog_after(begin, limit=100, max_bytes=1 << 20):
        mine.apply(row.entry)
    here = set(source.documents(NS))
    for _ in range(80):
        key = rng.randrange(450)
        if key in here and rng.random() < 0.3:
            source.delete(NS, key)
            here.remove(key)
        elif key in here:
            source.replace(NS, {"_id": key, "n": rng.randrange(50), "tags": ["a", "b"]})
        else:
            source.insert(NS, {"_id": key, "n": -1})
            here.add(key)
    source.create("app.new")
    source.insert("app.new", *numbered(range(rng.randrange(40))))
    build_index(source, "tags")
    source.do(lambda group: do_drop_index(group, group.txn.catalog.by_ns[NS], group.txn.catalog.by_ns[NS].indexes[1]))
    if seed % 2:
        source.create("app.capped", capped=True, size=100_000)
        source.insert("app.capped", *numbered(range(30)))
        source.rename(NS, "app.renamed")
    if seed % 3 == 0:
        mine.create("app.gone")
        mine.insert("app.gone", {"_id": 1})
    trim(source)
    ended = sync(mine)
    assert ended.ok, ended.detail
    assert "rows" in steps(mine)
    assert_alike(source, mine)
    coll = next(coll for coll in mine.store.collections() if coll.name in ("orders", "renamed"))
    assert sorted(index.name for index in coll.indexes) == ["n_1", "tags_1"]
    assert next(index for index in coll.indexes if index.name == "tags_1").multikey


def test_an_index_under_build_at_the_source_is_built_here_from_its_beginning(source: Member, mine: Member) -> None:
    source.replace(NS, {"_id": 5, "n": 7})
    build_index(source, "n", ends=False)
    trim(source)
    assert sync(mine).ok
    (coll,) = mine.store.collections()
    (index,) = coll.indexes
    assert (index.ready, index.position) == (False, b"")
    assert mine.everything() == source.everything()


def test_what_is_not_committed_yet_can_be_taken_back(source: Member, mine: Member) -> None:
    """The source's newest entries may be undone by the next primary, so the undo for them comes, too."""
    source.replace(NS, {"_id": 1, "text": "committed"})
    trim(source)
    source.store.options = replace(source.store.options, oplog_max_bytes=1 << 30)
    committed, documents = source.store.last_applied, source.everything()
    source.replace(NS, {"_id": 2, "text": "not committed"})
    source.insert(NS, {"_id": "not committed"})
    assert sync(mine).ok
    assert mine.everything() == source.everything()
    undo_to(mine, committed)
    assert mine.everything() == documents


def test_a_document_is_larger_than_an_answer(source: Member, mine: Member) -> None:
    for number in range(8, 13):
        source.replace(NS, {"_id": number, "text": "x" * (3 << 20)})
    source.delete(NS, 14)
    source.delete(NS, 7)
    trim(source)
    assert sync(mine).ok
    assert steps(mine).count("rows") > 1
    assert_alike(source, mine)


@pytest.mark.parametrize(("spans", "rows"), [(1, 8 << 20), (3, 8 << 20), (4096, 1), (2, 2_000)])
def test_answers_that_end_in_the_midst_lack_nothing(
    source: Member, mine: Member, monkeypatch: pytest.MonkeyPatch, spans: int, rows: int
) -> None:
    """Of spans, or of the rows of one span: the next answer begins where the last one ended."""
    monkeypatch.setattr(differences, "SPANS_MAX", spans)
    monkeypatch.setattr(differences, "ROWS_BYTES", rows)
    for number in (*range(0, 400, 15), *range(1, 400, 15)):
        source.replace(NS, {"_id": number, "text": "changed"})
    source.delete(NS, 76)
    trim(source)
    assert "54 documents differed" in sync(mine).detail
    assert_alike(source, mine)


def test_of_documents_that_are_alike_none_is_asked_for(source: Member, mine: Member, monkeypatch: Any) -> None:
    monkeypatch.setattr(differences, "SPANS_MAX", 2)
    trim(source)
    assert sync(mine).ok
    assert steps(mine).count("spans") > 10
    assert "rows" not in steps(mine)
    assert_alike(source, mine)


@pytest.mark.parametrize("spare", [0, -1])
def test_comparing_leaves_some_of_the_disk(source: Member, mine: Member, monkeypatch: Any, spare: int) -> None:
    least, transfer, progress = 1 << 30, mine.initial_sync.transfer, mine.initial_sync.progress
    transfer.options = replace(transfer.options, spare_bytes=least)
    is_there = lambda: progress.copied == progress.total > 0  # noqa: E731
    monkeypatch.setattr(mine.disk, "free_bytes", lambda _: least + spare if is_there() else 1 << 40)
    trim(source)
    ended = sync(mine)
    assert (ended.ok, "as much disk space" in ended.detail) == (spare == 0, spare < 0), ended.detail
    assert mine.documents(NS) == source.documents(NS)


def test_a_disk_that_fails_meanwhile_is_named(source: Member, mine: Member, monkeypatch: Any) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(mine.store, "copy_to", fail)
    trim(source)
    ended = sync(mine)
    assert (ended.ok, "Input/output error" in ended.detail) == (False, True), ended.detail


def test_what_consumers_need_of_the_oplog_comes_along(source: Member, mine: Member, monkeypatch: Any) -> None:
    """Else it would be gone once this member leads."""
    trim(source)
    source.store.options = replace(source.store.options, oplog_max_bytes=1 << 30)
    begin = source.store.last_applied
    for number in range(10):
        source.replace(NS, {"_id": number, "text": "x" * 3_000})
    source.node.commit_point = source.store.last_applied
    source.store.set_commit_point(source.store.last_applied)
    monkeypatch.setattr(copy_transfer, "COMPARED_OPLOG_BYTES", 100)
    assert sync(mine).ok
    assert mine.store.oldest > begin
    source.snapshots._needed = lambda: begin
    source.insert(NS, {"_id": "later"})
    source.rng.seed(3)
    mine.network.calls.clear()
    assert sync(mine).ok
    assert mine.store.oldest == begin


# --- what goes wrong ------------------------------------------------------------------------------------------------


def test_a_source_of_an_older_version_sends_another_copy(source: Member, mine: Member) -> None:
    source.replace(NS, {"_id": 1, "text": "changed"})
    trim(source)
    mine.network.before_call = lambda call: call.pop("compare", None)
    serve = source.serve

    async def older(body: RawDocument) -> dict[str, object]:
        return await serve(RawDocument(encode({k: v for k, v in body.decode().items() if k != "compare"})))

    source.serve = older
    assert not sync(mine).ok
    assert sync(mine).ok
    assert_alike(source, mine)


@pytest.mark.parametrize("first", [1, 14, 15])
def test_wrong_documents_are_noticed_and_everything_is_copied(
    source: Member, mine: Member, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """Each answer has one document. The span of the forged one may end with it."""
    monkeypatch.setattr(differences, "ROWS_BYTES", 1)
    for number in range(first, first + 3):
        source.replace(NS, {"_id": number, "text": "changed"})
    trim(source)
    before = mine.everything()

    def forge(command: dict[str, object], reply: dict[str, object]) -> None:
        for row in reply.get("rows") or ():
            if row["key"] == encode_key(first):
                row["doc"] = Binary(encode({"_id": first, "text": "forged"}))

    mine.network.before_reply = forge
    ended = sync(mine)
    assert (ended.ok, "differ from the source's" in ended.detail) == (False, True)
    assert mine.everything() == before
    assert not list(mine.folder.glob("initial-sync*"))
    assert sync(mine).ok
    assert steps(mine).count("spans") == 1
    assert_alike(source, mine)


@pytest.mark.parametrize("other", [True, False])
@pytest.mark.parametrize(
    ("step", "says"), [("spans", "did not say what its documents are"), ("rows", "did not send its documents")]
)
def test_a_source_that_answers_another_question_or_goes_no_further_is_left(
    source: Member, mine: Member, step: str, says: str, other: bool
) -> None:
    source.replace(NS, {"_id": 1, "text": "changed"})
    trim(source)
    before = mine.everything()

    def confuse(command: dict[str, object], reply: dict[str, object]) -> None:
        if command.get("step") != step:
            return
        if not other:
            reply["next"] = Int64(command["low"])
            return
        for name in ("digests", "rows", "gone"):
            reply.pop(name, None)
        reply |= {"rows": [], "gone": Binary(b"")} if step == "spans" else {"digests": Binary(b"")}

    mine.network.before_reply = confuse
    ended = sync(mine)
    assert (ended.ok, says in ended.detail) == (False, True), ended.detail
    assert mine.everything() == before


@pytest.mark.parametrize("step", ["spans", "rows", "chunk"])
def test_a_broken_connection_is_no_reason_to_copy_everything(source: Member, mine: Member, step: str) -> None:
    source.replace(NS, {"_id": 1, "text": "changed"})
    trim(source)

    def lose(command: dict[str, object]) -> None:
        if command.get("step") == step:
            mine.network.down.add(SOURCE)

    mine.network.before_call = lose
    assert not sync(mine).ok
    mine.network.before_call = lambda command: None
    mine.network.down.clear()
    source.rng.seed(7)
    ended = sync(mine)
    assert ended.ok
    assert "1 documents differed" in ended.detail
    assert mine.everything() == source.everything()


def test_a_source_that_rolls_back_meanwhile_is_left(source: Member, mine: Member) -> None:
    source.replace(NS, {"_id": 1, "text": "changed"})
    trim(source)
    source.store.options = replace(source.store.options, oplog_max_bytes=1 << 30)
    committed = source.store.last_applied
    source.insert(NS, {"_id": "doomed"})

    def undo(command: dict[str, object]) -> None:
        if command.get("step") == "rows" and source.store.last_applied > committed:
            undo_step(source.store, committed, stem="test")

    mine.network.before_call = undo
    assert not sync(mine).ok
    assert "doomed" not in mine.documents(NS)


def test_a_member_that_died_meanwhile_copies_everything(source: Member, mine: Member, tmp_path: Path) -> None:
    """A start finds the marker, and does not know whether the documents here are sound."""
    source.replace(NS, {"_id": 1, "text": "changed"})
    trim(source)

    def die(command: dict[str, object]) -> None:
        if command.get("step") == "rows":
            raise KeyboardInterrupt

    mine.network.before_call = die
    with pytest.raises(KeyboardInterrupt):
        sync(mine)
    mine.network.before_call = lambda command: None
    assert list(mine.folder.glob("initial-sync-built.db"))
    copy = mine.folder / "initial-sync.db"
    with contextlib.closing(apsw.Connection(str(copy))) as frame:  # the frame says that it is none
        assert read_meta(frame, OPLOG_ONLY) == 1
    mine.network.calls.clear()
    asyncio.run(mine.initial_sync.run(SOURCE, "this member has no data yet"))
    assert mine.reports[-1].ok
    assert "spans" not in steps(mine)
    assert_alike(source, mine)


def test_odd_questions_are_refused(source: Member) -> None:
    for odd in (
        {"collection": b"short"},
        {"spans": b"odd"},
        {"spans": Binary(pack_pairs([(1 << 60, 0)]))},
        {"low": "x"},
    ):
        document = {**CompareRequest("rows", "id", bytes(16), 0).document(), **odd}
        with pytest.raises(RemoteProtocolError):
            CompareRequest.parse(RawDocument(encode(document)))
    with pytest.raises(ReplError):
        asyncio.run(source.serve(RawDocument(encode(CompareRequest("spans", "none", bytes(16), 0).document()))))


def test_messages_come_back_as_they_were() -> None:
    request = CompareRequest("rows", "id", bytes(16), -5, [1, 3], {17: -1, 50: 2})
    assert CompareRequest.parse(RawDocument(encode(request.document()))) == request
    for reply in (
        CompareReply(3, spans=Spans({1: 5, -2: 7}, None)),
        CompareReply(3, differences=Differences([Row(1, b"k", b"d")], [4, -9], 12)),
    ):
        assert CompareReply.parse(RawDocument(encode(reply.document()))) == reply


@pytest.mark.parametrize(
    "row", [5, {"place": 1, "key": b"k"}, {"place": 1, "doc": b"d"}, {"place": "x", "key": b"k", "doc": b"d"}]
)
def test_a_row_that_lacks_something_is_refused(row: object) -> None:
    reply = {**CompareReply(3, differences=Differences([], [], None)).document(), "rows": [row]}
    with pytest.raises(RemoteProtocolError):
        CompareReply.parse(RawDocument(encode(reply)))

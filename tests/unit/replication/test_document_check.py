"""Documents are compared range by range as of one optime; the majority's version replaces what differs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from replset.bson import RawDocument, decode, encode, encode_key
from replset.errors import NamespaceNotFoundError, OutOfDiskSpaceError, ReplError
from replset.features.recovery.lost_writes import LostKind, LostWrites
from replset.features.recovery.verify import verify_rollback
from replset.features.scrub import document_repair, range_digests, scrubber
from replset.features.scrub.document_check import ScrubStatus, find_differences
from replset.features.scrub.document_ranges import Give, RangeReply, RangeRequest, RangeRow
from replset.features.scrub.document_repair import DocumentRepair, RepairedRange, majority_version
from replset.features.scrub.scrubber import Scrubber
from replset.ids import HostPort
from replset.replication.rollback_manifest import RollbackState, list_manifests
from replset.storage.txn import next_key
from tests.unit.replication.kit import WALL_MS, Member, trim, undo_to
from tests.unit.replication.three import NS, A, B, C, Three, auto_repair, document, rot


@pytest.fixture
def three(tmp_path: Path) -> Any:
    members = Three(tmp_path)
    yield members
    members.close()


def test_members_with_the_same_documents_do_not_differ(three: Three) -> None:
    assert three.differing(three.a) == three.differing(three.c) == []
    assert {str(call["give"]) for call in three.network.calls} == {"digest"}


@pytest.mark.parametrize(("documents", "size"), [(1, 1 << 20), (3, 1 << 20), (1_000, 1), (1_000, 60), (1_000, 1 << 20)])
def test_a_digest_is_that_of_the_same_documents(
    three: Three, monkeypatch: pytest.MonkeyPatch, documents: int, size: int
) -> None:
    """With each beginning and end, and however much a range holds. Where both end, the digest may name one more range,
    which is empty, but none that begins at the end.
    """
    monkeypatch.setattr(range_digests, "RANGE_DOCUMENTS", documents)
    monkeypatch.setattr(range_digests, "RANGE_BYTES", size)
    coll, at = three.a.store.collection(NS), three.a.store.last_applied
    keys = [b"", *map(encode_key, range(6)), *(next_key(encode_key(number)) for number in range(6)), encode_key(99)]
    with three.a.store.read() as snapshot:
        for low in keys:
            for high in (None, *(key for key in keys if key > low)):
                whole = range_digests.read_range(snapshot, coll, at, low, high)
                found = range_digests.read_digest(snapshot, coll, at, low, high)
                assert replace(found, end=whole.end) == replace(whole, documents=())
                if found.end != whole.end:
                    assert (whole.end, found.end is None or high is None or found.end < high) == (None, True)


@pytest.mark.parametrize("at_once", [1, 3, 1_000])
def test_each_kind_of_difference_is_named(three: Three, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """at_once: how many documents a range has at most."""
    monkeypatch.setattr(range_digests, "RANGE_DOCUMENTS", at_once)
    documents = 20
    last = documents - 1
    rot(three.b, 3, {"_id": 3, "n": 999})
    rot(three.c, last, None)
    rot(three.b, documents + 5, {"_id": documents + 5})
    rot(three.c, 7, b"no document")
    for member in (three.a, three.b, three.c):
        assert three.differing(member) == [3, 7, last, documents + 5]


def test_each_range_is_compared_as_of_one_optime(three: Three) -> None:
    """Later writes, which not all members have yet, are no difference."""
    three.a.replace(NS, {"_id": 1, "n": "later"})
    three.a.delete(NS, 2)
    three.a.insert(NS, {"_id": 100})
    assert three.differing(three.b) == three.differing(three.c) == three.differing(three.a) == []
    three.replicate()
    assert three.differing(three.b) == []


def test_what_cannot_be_compared_is_no_difference(three: Three) -> None:
    three.network.down.add(B)
    three.c.node.term = 2
    one = asyncio.run(three.check(three.a).compare(NS, b"", [B, C]))
    assert one.failed == {B: "b:1 is down"}
    three.a.insert(NS, {"_id": 200})
    three.a.store.set_commit_point(three.a.store.last_applied)
    one = asyncio.run(three.check(three.a).compare(NS, b"", [B, C]))
    assert set(one.failed) == {B, C}
    assert "not yet at" in one.failed[C]
    assert not one.differing


def test_a_delayed_member_is_compared_as_of_what_it_has(three: Three) -> None:
    reached = three.c.store.last_applied
    three.a.replace(NS, {"_id": 1, "n": "later"})
    three.a.store.set_commit_point(three.a.store.last_applied)
    rot(three.c, 7, None)
    one = asyncio.run(three.check(three.a).compare(NS, b"", [C], reached))
    assert not one.failed
    assert [difference.id for difference in one.differing] == [7]


def test_a_member_that_is_too_far_behind_keeps_nobody_from_being_compared(three: Three) -> None:
    reached = three.c.store.last_applied
    three.a.replace(NS, {"_id": 1, "n": "later"})
    for row in three.a.store.oplog_after(reached, limit=10, max_bytes=1 << 20):
        three.b.apply(row.entry)
    rot(three.b, 7, None)
    three.a.clock.ms = WALL_MS
    trim(three.a, snapshot_history_s=0)
    one = asyncio.run(three.check(three.a).compare(NS, b"", [B, C], reached))
    assert set(one.failed) == {C}
    assert [difference.id for difference in one.differing] == [7]


def test_a_collection_that_is_removed_elsewhere_stays_on_a_delayed_member(three: Three) -> None:
    """The others dropped it, and keep nothing of it any more. For the delayed member the drop has not come yet."""
    three.a.drop(NS)
    for row in three.a.store.oplog_after(three.c.store.last_applied, limit=10, max_bytes=1 << 20):
        three.c.apply(row.entry)
    for member in (three.a, three.c):
        member.clock.ms = WALL_MS
        trim(member, snapshot_history_s=0)
    done = three.repair(three.b)
    assert set(done.compared.failed) == {A, C}
    assert not done.corrected
    assert document(three.b, 3) == {"_id": 3, "n": 3}


def test_another_history_is_not_compared(three: Three) -> None:
    at = three.a.store.last_applied
    request = RangeRequest(NS, at, three.a.store.chain + 1)
    with pytest.raises(ReplError, match="has another entry at"):
        asyncio.run(three.check(three.a).read_own(request))


def test_requests_and_replies_survive_the_wire(three: Three) -> None:
    request = RangeRequest(NS, three.a.store.last_applied, -5, b"\x01", b"\x02", Give.HASHES)
    assert RangeRequest.parse(RawDocument(encode(request.document()))) == request
    reply = RangeReply(b"\x05", 1, 10, -7, (RangeRow(b"\x01", -3, "x", b"bytes"), RangeRow(b"\x02", 4)))
    assert RangeReply.parse(RawDocument(encode(reply.document()))) == reply


@pytest.mark.parametrize(
    ("versions", "members", "expected"),
    [
        pytest.param((1, 1, 2), 3, (True, 1), id="two-of-three"),
        pytest.param((None, None, 2), 3, (True, None), id="two-without-it"),
        pytest.param((1, 2), 2, (False, 1), id="one-of-two"),
        pytest.param((1, 1, 2), 4, (False, 1), id="two-of-four-with-one-silent"),
        pytest.param((1, 2, 3), 3, (False, 1), id="all-differ"),
    ],
)
def test_majority_version(versions: tuple[int | None, ...], members: int, expected: tuple[bool, int | None]) -> None:
    rows = {number: () if one is None else (RangeRow(b"k", one),) for number, one in enumerate(versions)}
    replies = {HostPort(f"m{number}:1"): RangeReply(None, 1, 1, 1, row) for number, row in rows.items()}
    (difference,) = find_differences(NS, replies, None)
    assert majority_version(difference, members) == expected


def test_a_member_takes_over_what_the_majority_has_and_keeps_what_it_had(three: Three) -> None:
    rot(three.b, 3, {"_id": 3, "n": 999})
    rot(three.b, 5, None)
    rot(three.b, 77, {"_id": 77, "only": "here"})
    rot(three.b, 9, b"\x07\0\0\0bad")
    before = three.b.store.last_applied
    for member in (three.a, three.c):
        assert not three.repair(member).corrected
        assert not list_manifests(member.dbpath)
    done = three.repair(three.b)
    assert [one.id for one in done.corrected] == [3, 5, 9, 77]
    assert three.differing(three.a) == []
    assert document(three.b, 77) is None
    assert document(three.b, 9) == {"_id": 9, "n": 9}
    assert three.b.store.last_applied == before, "no entry says it"
    manifests = list_manifests(three.b.dbpath)
    assert [one.id for one in manifests] == list(done.records)
    assert {(one.state, one.entries) for one in manifests} == {(RollbackState.EXPORTED, 0)}
    folder = three.b.folder / "rollback"
    sound, damaged = ((folder / one.files[0].name).read_bytes() for one in manifests)
    assert sound == encode({"_id": 3, "n": 999}) + encode({"_id": 77, "only": "here"})
    assert damaged == b"\x07\0\0\0bad"
    assert verify_rollback(folder / f"{manifests[0].id}.json", manifests[0]).is_sound
    with LostWrites(folder, manifests[0]) as lost:
        assert [(row.id, row.kind, row.before_is_known) for row in lost.documents] == [
            (3, LostKind.INSERT, True),
            (77, LostKind.INSERT, True),
        ]
    assert not three.repair(three.b).corrected


def test_a_row_that_lost_its_bytes_is_put_right(three: Three) -> None:
    rot(three.b, 3, b"")
    assert [one.id for one in three.repair(three.b).corrected] == [3]
    assert document(three.b, 3) == {"_id": 3, "n": 3}


def mistype(member: Member, _id: int, made: str) -> None:
    """One bit of a row's header says that its document is text, or a number."""
    coll = member.store.collection(NS)
    sql = f"UPDATE {coll.table} SET doc = {made} WHERE key = ?"
    member.store._connection.execute(sql, (encode_key(_id),))


@pytest.mark.parametrize("ranges", ["digests", "documents"])
@pytest.mark.parametrize("made", ["CAST(doc AS TEXT)", "CAST(doc || x'ff00' AS TEXT)", "7", "7.5"])
def test_a_row_of_another_type_is_a_difference_and_is_put_right(three: Three, made: str, ranges: str) -> None:
    """SQLite gives text for it, or an error, where documents are bytes."""
    mistype(three.b, 3, made)
    if ranges == "documents":
        three.a.insert(NS, {"_id": 3.5})  # an entry behind what all have committed: read one by one
    assert three.differing(three.a) == [3]
    if made == "CAST(doc AS TEXT)":
        assert document(three.b, 3) == {"_id": 3, "n": 3}, "its bytes are there"
    assert [one.id for one in three.repair(three.b).corrected] == [3]
    assert three.differing(three.a) == []
    coll = three.b.store.collection(NS)
    with three.b.store.read() as snapshot:
        assert snapshot.mistyped(coll, b"", b"\xff") == set()
        assert snapshot.get(coll, encode_key(3)) == encode({"_id": 3, "n": 3})


def test_what_is_put_back_takes_no_place_that_a_rollback_needs(three: Three) -> None:
    """The newest document is deleted, and the delete is rolled back."""
    rot(three.b, 3, None)
    common = three.b.store.last_applied
    three.b.delete(NS, 19)
    three.b.insert(NS, {"_id": "new"})
    three.b.delete(NS, "new")
    assert [one.id for one in three.repair(three.b).corrected] == [3]
    three.b.insert(NS, {"_id": "newer"})
    undo_to(three.b, common, limit=1)
    assert three.differing(three.a) == []
    coll = three.b.store.collection(NS)
    with three.b.store.read() as snapshot:
        assert [decode(doc)["_id"] for _, _, doc in snapshot.natural_scan(coll)][-2:] == [19, 3]


@pytest.mark.parametrize("is_there", ["another document", "the document itself"])
def test_a_rollback_goes_on_where_the_disk_brought_a_document_back(three: Three, is_there: str) -> None:
    common = three.b.store.last_applied
    three.b.delete(NS, 19)
    coll = three.b.store.collection(NS)
    _id = 77 if is_there == "another document" else 19
    sql = f"INSERT INTO {coll.table} (rowid, key, doc) VALUES (20, ?, ?)"
    three.b.store._connection.execute(sql, (encode_key(_id), encode({"_id": _id})))
    undo_to(three.b, common)
    assert document(three.b, 19) == {"_id": 19, "n": 19}
    assert three.differing(three.a) == ([77] if is_there == "another document" else [])


def test_without_a_majority_nothing_changes_unless_a_member_is_trusted(three: Three) -> None:
    three.network.down.add(C)
    rot(three.b, 3, {"_id": 3, "n": 999})
    rot(three.a, 3, {"_id": 3, "n": 998})
    done = three.repair(three.b)
    assert [one.id for one in done.undecided] == [3]
    assert document(three.b, 3) == {"_id": 3, "n": 999}
    done = three.repair(three.b, trusted=A)
    assert [one.id for one in done.corrected] == [3]
    assert document(three.b, 3) == {"_id": 3, "n": 998}


def test_a_document_that_is_written_meanwhile_is_left_alone(three: Three) -> None:
    """The write comes between the comparison and the correction."""
    rot(three.b, 3, {"_id": 3, "n": 999})
    rot(three.b, 5, None)

    def write(command: dict[str, object]) -> None:
        if command.get("give") == "documents" and three.a.store.last_applied == three.b.store.last_applied:
            three.a.change(NS, 3, {"u": {"x": 1}})
            three.a.delete(NS, 5)
            three.replicate()

    three.network.before_call = write
    done = three.repair(three.b)
    assert [one.id for one in done.skipped] == [3, 5]
    assert not done.corrected
    assert document(three.b, 5) is None, "it was deleted everywhere"
    three.network.before_call = lambda command: None
    done = three.repair(three.b)
    assert [one.id for one in done.corrected] == [3]
    assert document(three.b, 3) == {"_id": 3, "n": 3, "x": 1}


def test_nothing_changes_where_the_entries_since_the_comparison_are_trimmed(three: Three) -> None:
    """Nobody can tell then what was written meanwhile."""
    rot(three.b, 5, None)

    def write(command: dict[str, object]) -> None:
        if command.get("give") == "documents" and not three.b.store.trimmed_through:
            three.a.delete(NS, 5)
            three.a.insert(NS, {"_id": "more"}, {"_id": "and more"})
            three.replicate()
            trim(three.b, oplog_max_bytes=1)

    three.network.before_call = write
    assert not three.repair(three.b).corrected
    assert document(three.b, 5) is None, "it was deleted everywhere"


def test_a_document_that_a_transaction_holds_is_left_alone(three: Three) -> None:
    rot(three.a, 3, {"_id": 3, "n": 999})
    coll = three.a.store.collection(NS)
    held = (coll.uuid, encode_key(3))
    assert [one.id for one in three.repair(three.a, is_held=lambda place: place == held).skipped] == [3]
    assert document(three.a, 3) == {"_id": 3, "n": 999}


def test_nothing_changes_when_what_was_there_cannot_be_kept(three: Three, monkeypatch: pytest.MonkeyPatch) -> None:
    rot(three.b, 3, {"_id": 3, "n": 999})

    def full(*_: object, **__: object) -> None:
        raise OutOfDiskSpaceError("no space")

    monkeypatch.setattr(three.b.disk, "write_file", full)
    with pytest.raises(OutOfDiskSpaceError):
        three.repair(three.b)
    assert document(three.b, 3) == {"_id": 3, "n": 999}


def test_nothing_is_kept_of_a_collection_that_was_dropped_meanwhile(three: Three) -> None:
    work = DocumentRepair(three.a.context, three.check(three.a), lambda _: False)
    with pytest.raises(NamespaceNotFoundError):
        asyncio.run(
            work._keep("replset repair db.gone", "db.gone", three.a.store.last_applied, [encode({"_id": 1})], True)
        )


def test_large_documents_are_not_decoded_on_the_event_loop(three: Three, monkeypatch: pytest.MonkeyPatch) -> None:
    rot(three.b, 3, {"_id": 3, "n": 999})
    works: list[object] = []
    is_sound = document_repair.is_document_of

    def note(key: bytes, doc: bytes) -> bool:
        works.append(three.b.workers.work)
        return is_sound(key, doc)

    monkeypatch.setattr(document_repair, "is_document_of", note)
    assert three.repair(three.b).corrected
    assert works
    assert all(works)


class Threads:
    async def run(self, work: Callable[[], Any]) -> Any:
        return await asyncio.to_thread(work)


def test_two_repairs_at_once_keep_a_record_each(three: Three, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two administrators repair two collections of one member in the same second."""
    other = "db.d"
    three.a.create(other)
    three.a.insert(other, {"_id": 3})
    three.replicate()
    rot(three.b, 3, {"_id": 3, "n": 999})
    coll = three.b.store.collection(other)
    three.b.store._connection.execute(coll.sql_update, (encode({"_id": 3, "x": 998}), encode_key(3)))
    write_file = three.b.disk.write_file

    def write_slowly(path: str, chunks: Any, *, append: bool = False) -> None:
        time.sleep(0.05)
        write_file(path, chunks, append=append)

    monkeypatch.setattr(three.b.disk, "write_file", write_slowly)
    three.b.context.workers = Threads()
    work = DocumentRepair(three.b.context, three.check(three.b), lambda _: False)

    async def both() -> list[RepairedRange]:
        return await asyncio.gather(*(work.repair(ns, b"", [A, C], None) for ns in (NS, other)))

    done = asyncio.run(both())
    manifests = list_manifests(three.b.dbpath)
    assert sorted(record for one in done for record in one.records) == [one.id for one in manifests]
    kept = {(three.b.folder / "rollback" / file.name).read_bytes() for one in manifests for file in one.files}
    assert kept == {encode({"_id": 3, "n": 999}), encode({"_id": 3, "x": 998})}


# --- in the background


async def scrubbed(three: Three, member: Member, until: Callable[[ScrubStatus], bool]) -> ScrubStatus:
    work = Scrubber(member.context, three.check(member), lambda: A, 1000.0, auto_repair(three, member, wanted=False))
    task = asyncio.create_task(work.run())
    async with asyncio.timeout(20):
        while not until(work.found):  # noqa: ASYNC110 - a status has no event
            await asyncio.sleep(0.005)
    task.cancel()
    return work.found


def test_a_secondary_finds_by_itself_what_differs_from_the_primary(
    three: Three, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("START_AFTER_S", "PAUSE_S", "SHORTEST_PAUSE_S", "RETRY_S"):
        monkeypatch.setattr(scrubber, name, 0.001)
    rot(three.b, 3, {"_id": 3, "n": 999})
    status = asyncio.run(scrubbed(three, three.b, lambda status: status.passes > 0))
    assert status.summary == "1 of db.c"
    assert "documents differ from the primary's (1 of db.c): db.c 3; see replset check" in caplog.text
    done = three.repair(three.b)
    status.on_compared(done.compared)
    assert status.summary == "1 of db.c", "it differed in this comparison"
    three.network.down.add(A)
    again = asyncio.run(three.check(three.b).compare(NS, b"", [A]))
    status.on_compared(again)
    assert status.summary == "1 of db.c", "nobody compared it"
    three.network.down.clear()
    status.on_compared(asyncio.run(three.check(three.b).compare(NS, b"", [A])))
    assert status.summary == ""
    assert asyncio.run(scrubbed(three, three.c, lambda status: status.passes > 1)).summary == ""


def test_a_member_that_becomes_primary_says_no_more_that_it_differs_from_the_primary(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It did until it was compared again, as a secondary. Also when it becomes primary while it compares."""
    for name in ("START_AFTER_S", "PAUSE_S", "SHORTEST_PAUSE_S", "RETRY_S"):
        monkeypatch.setattr(scrubber, name, 0.001)
    rot(three.b, 3, {"_id": 3, "n": 999})
    primary = A
    work = Scrubber(
        three.b.context, three.check(three.b), lambda: primary, 1000.0, auto_repair(three, three.b, wanted=False)
    )

    def becomes_primary(_command: dict[str, object]) -> None:
        nonlocal primary
        primary = B
        work.on_topology_changed()

    async def differing() -> bool:
        task = asyncio.create_task(work.run())
        async with asyncio.timeout(20):
            while primary == A and not work.found.passes:  # noqa: ASYNC110 - a status has no event
                await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        task.cancel()
        return bool(list(work.remarks()))

    assert asyncio.run(differing())
    becomes_primary({})
    assert not list(work.remarks())
    primary, work.found.passes = A, 0
    three.network.before_call = becomes_primary
    assert not asyncio.run(differing())


async def test_what_is_put_right_during_a_pass_is_not_reported_at_its_end(
    three: Three, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("START_AFTER_S", "SHORTEST_PAUSE_S"):
        monkeypatch.setattr(scrubber, name, 0.001)
    three.a.create("db.later")
    three.replicate()
    rot(three.b, 3, {"_id": 3, "n": 999})
    work = Scrubber(three.b.context, three.check(three.b), lambda: A, 1000.0, auto_repair(three, three.b, wanted=False))

    def put_right(command: dict[str, object]) -> None:
        if command.get("replSetDocuments") == "db.later":
            assert work.found.summary == "1 of db.c"
            work.found.differing.clear()

    three.network.before_call = put_right
    task = asyncio.create_task(work.run())
    async with asyncio.timeout(20):
        while not work.found.passes:  # noqa: ASYNC110 - a status has no event
            await asyncio.sleep(0.005)
    task.cancel()
    assert work.found.summary == ""
    assert "documents differ" not in caplog.text

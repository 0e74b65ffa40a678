"""The copy: made under writes, fetched over a bad network, verified, installed; and what the source refuses."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from replset.bson import Int64, RawDocument, encode
from replset.core.member_state import MemberState
from replset.core.messages import InitialSyncEnded, InitialSyncStarted
from replset.errors import (
    BadValueError,
    CursorNotFoundError,
    InvalidSyncSourceError,
    NotPrimaryOrSecondaryError,
    ReplError,
)
from replset.ids import OPTIME_NULL, HostPort, OpTime, pack_ts
from replset.member.peers.snapshot_server import SnapshotOptions
from replset.optime import optime_document
from replset.replication.initial_sync import CopyContents, RequiredEntries, _is_complete, _refuse_unless_complete
from replset.replication.protocol import SnapshotReply, SnapshotRequest
from replset.replication.rollback_list import RollbackList
from replset.replication.rollback_manifest import FileKind, RollbackState, list_manifests
from replset.storage.retention import remove_old_data
from replset.storage.undo import rollback_in_progress, undo_step
from tests.unit.replication.kit import (
    NS,
    SOURCE,
    Member,
    Pair,
    catch_up,
    copies_asked,
    copy_log,
    left_at_source,
    numbered,
    pair,
    synced,
    trim,
    undo_to,
)


@pytest.fixture
def members(tmp_path: Path) -> Pair:
    return pair(tmp_path, 200)


def sync(mine: Member, reason: str = "first sync", *, forced: bool = False) -> InitialSyncEnded:
    return synced(mine, reason, forced=forced)


async def test_an_empty_member_gets_everything_while_writes_go_on(source: Member, mine: Member) -> None:
    syncing = asyncio.get_running_loop().create_task(mine.initial_sync.run(SOURCE, "first sync"))
    number = 1_000
    while not syncing.done():
        source.insert(NS, {"_id": number})
        number += 1
        await asyncio.sleep(0)
    assert number > 1_005
    assert mine.network.calls[0].keys() >= {"replSetSnapshot"}, "it has nothing that a source could lack"
    assert mine.reports == [
        InitialSyncStarted("first"),
        InitialSyncEnded(SOURCE, ok=True, detail=mine.reports[-1].detail),
    ]
    assert not mine.marker
    await catch_up(source, mine)
    assert mine.everything() == source.everything()
    assert mine.oplog() == source.oplog()
    assert mine.store.chain == source.store.chain
    assert mine.store.rollback_id > source.store.rollback_id
    assert left_at_source(source) == []
    assert mine.initial_sync.progress.copied == mine.initial_sync.progress.total > 10_000
    assert not mine.initial_sync.progress.running
    assert not list(mine.folder.glob("initial-sync*"))
    assert list_manifests(mine.dbpath) == []


def test_what_would_be_lost_is_exported_first(source: Member, mine: Member) -> None:
    mine.create(NS)
    mine.insert(NS, {"_id": "only here"})
    mine.node.commit_point = mine.store.oldest
    assert sync(mine, "too stale").ok
    (manifest,) = list_manifests(mine.dbpath)
    assert (manifest.state, manifest.reason, manifest.source) == (RollbackState.EXPORTED, "too stale", SOURCE)
    (documents,) = [file for file in manifest.files if file.kind is FileKind.DOCUMENTS]
    assert mine.rollback_file(documents.name) == [{"_id": "only here"}]
    assert mine.everything() == source.everything()


def test_nothing_is_wiped_when_the_export_fails(mine: Member) -> None:
    mine.create(NS)
    mine.insert(NS, {"_id": "only here"})
    (mine.folder / "rollback").write_bytes(b"in the way")
    assert not sync(mine).ok
    assert mine.marker
    assert mine.reports[0] == InitialSyncStarted("first")
    assert mine.documents(NS) == {"only here": {"_id": "only here"}}


# --- a source that lacks what this member acknowledged or knows to be committed --------------------------------------


def test_a_source_that_is_behind_is_refused_and_nothing_is_changed(source: Member, mine: Member) -> None:
    copy_log(source, mine)
    mine.insert(NS, {"_id": "acknowledged"})
    ended = sync(mine)
    assert (ended.ok, ended.refused) == (False, True)
    assert "force" in ended.detail
    assert mine.reports == [ended]
    assert not mine.marker
    assert list_manifests(mine.dbpath) == []
    assert copies_asked(mine) == 0


def diverged(source: Member, mine: Member, term: int = 1) -> OpTime:
    """Both go on alone: what this member has is committed, the source's newest entry is of an old primary's term. The
    commit point.
    """
    copy_log(source, mine)
    source.insert(NS, {"_id": "doomed"}, term=2)
    mine.insert(NS, {"_id": "committed"}, term=term)
    mine.node.commit_point = mine.store.last_applied
    return mine.node.commit_point


def test_a_source_that_lacks_the_commit_point_is_refused_though_its_newest_entry_is_newer(
    source: Member, mine: Member
) -> None:
    committed = diverged(source, mine)
    assert source.store.last_applied > committed
    ended = sync(mine)
    assert (ended.ok, ended.refused) == (False, True)
    assert str(committed) in ended.detail
    assert not mine.marker
    assert mine.documents(NS)["committed"] == {"_id": "committed"}


@pytest.mark.parametrize("lacks", ["newest", "commit point"])
def test_the_copy_is_looked_at_again_before_it_is_installed(source: Member, mine: Member, lacks: str) -> None:
    """The source answered well and went back after it."""
    if lacks == "newest":
        copy_log(source, mine)
        mine.insert(NS, {"_id": "acknowledged"})
    else:
        diverged(source, mine)
    mine_before, known = mine.everything(), mine.store.last_applied

    def agree(command: dict[str, object], reply: dict[str, object]) -> None:
        if "replSetOplogProbe" in command:
            reply["chains"] = [Int64(1)]
            reply["lastApplied"] = optime_document(known)

    mine.network.before_reply = agree
    ended = sync(mine)
    assert (ended.ok, ended.refused) == (False, True)
    assert copies_asked(mine) == 1
    assert mine.marker  # the core takes it back, or tries another source
    assert mine.everything() == mine_before
    assert not list(mine.folder.glob("initial-sync*"))


def at(term: int, number: int) -> OpTime:
    return OpTime(term, pack_ts(10, number))


@pytest.mark.parametrize(
    ("newest", "oldest", "has_committed", "required", "lacks"),
    [
        pytest.param(at(1, 5), at(1, 1), True, RequiredEntries(at(1, 5), at(1, 3)), None, id="all"),
        pytest.param(at(1, 5), at(1, 1), True, RequiredEntries(at(1, 3), at(1, 5)), None, id="up-to-the-commit-point"),
        pytest.param(at(1, 5), at(1, 1), False, RequiredEntries(at(1, 5), OPTIME_NULL), None, id="none-is-committed"),
        pytest.param(at(2, 5), at(1, 4), False, RequiredEntries(at(1, 5), at(1, 3)), None, id="trimmed"),
        pytest.param(at(2, 5), at(2, 3), False, RequiredEntries(at(1, 5), at(1, 3)), "does not hold", id="not-trimmed"),
        pytest.param(at(1, 4), at(1, 1), True, RequiredEntries(at(1, 5), at(1, 3)), "is at", id="behind"),
        pytest.param(at(1, 9), at(1, 1), True, RequiredEntries(at(2, 5), at(1, 3)), "is at", id="of-an-older-term"),
        pytest.param(at(1, 5), at(1, 1), False, RequiredEntries(at(1, 5), at(1, 3)), "does not hold", id="another-log"),
        pytest.param(at(1, 5), at(1, 1), True, RequiredEntries(at(1, 5), at(1, 6)), "does not hold", id="lags-behind"),
    ],
)
def test_what_a_source_must_hold(
    newest: OpTime, oldest: OpTime, has_committed: bool, required: RequiredEntries, lacks: str | None
) -> None:
    contents = CopyContents(newest, oldest, has_committed)
    assert _is_complete(contents, required) is (lacks is None)
    with nullcontext() if lacks is None else pytest.raises(InvalidSyncSourceError, match=f"{lacks} 1:10:"):
        _refuse_unless_complete(SOURCE, contents, required)


@pytest.mark.parametrize("term", [1, 3])
def test_an_operator_may_force_it_and_the_core_is_told_what_is_missing(source: Member, mine: Member, term: int) -> None:
    diverged(source, mine, term)
    ended = sync(mine, forced=True)
    assert (ended.ok, ended.holds_committed) == (True, False)
    assert mine.everything() == source.everything()
    (manifest,) = list_manifests(mine.dbpath)
    assert manifest.state is RollbackState.EXPORTED, "what was committed is nowhere else then"
    (documents,) = [file for file in manifest.files if file.kind is FileKind.DOCUMENTS]
    assert mine.rollback_file(documents.name) == [{"_id": "committed"}]


def test_a_copy_whose_oplog_begins_behind_the_commit_point_holds_it(source: Member, mine: Member) -> None:
    """The oplog is trimmed before the commit point only: what is not there any more was committed."""
    copy_log(source, mine)
    mine.node.commit_point = mine.store.last_applied
    source.insert(NS, *numbered(range(1_000, 1_020)))
    trim(source, oplog_max_bytes=500, commit_point=source.store.last_applied)
    assert source.store.oldest > mine.node.commit_point
    ended = sync(mine, "too stale")
    assert (ended.ok, ended.holds_committed) == (True, True)


# --- what is exported, and what is not lost --------------------------------------------------------------------------


def test_what_is_exported_before_a_copy_that_holds_it_is_no_rollback(source: Member, mine: Member) -> None:
    """After a restart nothing is known to be committed, so that everything is exported; the copy tells."""
    copy_log(source, mine)
    source.insert(NS, *numbered(range(900, 903)))
    assert sync(mine).ok
    (manifest,) = list_manifests(mine.dbpath)
    assert manifest.state is RollbackState.ABANDONED
    assert manifest.files


@pytest.mark.parametrize("term", [1, 2])
@pytest.mark.parametrize(
    ("doomed", "state"),
    [pytest.param(0, RollbackState.ABANDONED, id="held"), pytest.param(1, RollbackState.EXPORTED, id="diverged")],
)
def test_a_copy_whose_oplog_begins_later_tells_what_it_held(
    source: Member, mine: Member, term: int, doomed: int, state: RollbackState
) -> None:
    """A member that was too stale holds only committed entries: that is no rollback. The terms of a log stay when it is
    trimmed, so that an entry which the set lost is told apart.
    """
    copy_log(source, mine)
    source.insert(NS, *numbered(range(1_000, 1_020)), term=term + doomed)
    mine.insert(NS, *numbered(range(2_000, 2_000 + doomed)), term=term)
    trim(source, oplog_max_bytes=500, commit_point=source.store.last_applied)
    assert source.store.oldest > mine.store.last_applied
    counted: list[int] = []

    def count(command: dict[str, object], _: dict[str, object]) -> None:
        if command.get("step") == "chunk":
            counted.append(rollbacks._count())

    rollbacks = RollbackList(
        mine.context.disk, mine.context.dbpath, mine.context.workers, undecided=lambda: mine.initial_sync.exported
    )
    mine.network.before_reply = count
    assert sync(mine, "too stale").ok
    assert [manifest.state for manifest in list_manifests(mine.dbpath)] == [state]
    assert set(counted) == {0}  # no alarm while the copy is on its way
    assert rollbacks._count() == doomed


@pytest.mark.parametrize("stopped", [True, False])
def test_a_restart_remembers_what_was_committed(source: Member, mine: Member, stopped: bool) -> None:
    """Noted at a clean stop, and about every second before a kill."""
    copy_log(source, mine)
    mine.store.set_commit_point(mine.store.last_applied)
    if not stopped:
        while remove_old_data(mine.store, mine.clock.now()):
            pass  # noted behind all else that a slice may do
        mine.store._note_at_the_end = lambda txn: None
    mine.reopen()
    assert mine.store.saved_commit_point() == mine.store.last_applied
    source.insert(NS, *numbered(range(1_000, 1_020)), term=2)
    trim(source, oplog_max_bytes=500, commit_point=source.store.last_applied)
    assert sync(mine, "too stale").ok
    assert list_manifests(mine.dbpath) == []


def test_a_noted_commit_point_whose_entry_was_taken_back_says_nothing(source: Member, mine: Member) -> None:
    copy_log(source, mine)
    common = mine.store.last_applied
    mine.insert(NS, {"_id": "committed once"})
    mine.store.set_commit_point(mine.store.last_applied)
    mine.reopen()
    assert mine.store.saved_commit_point() == mine.store.last_applied
    undo_to(mine, common)
    assert mine.store.saved_commit_point() == OPTIME_NULL


def test_an_interrupted_rollback_is_finished_before_the_copy(source: Member, mine: Member) -> None:
    copy_log(source, mine)
    common = mine.store.last_applied
    mine.insert(NS, *numbered(range(900, 910)))
    assert undo_step(mine.store, common, stem="rollback-x.0", limit=2)
    assert sync(mine).ok
    assert rollback_in_progress(mine.store) is None
    assert mine.everything() == source.everything()


@pytest.mark.parametrize("nth", [2, 5, 9])
def test_a_lost_answer_is_asked_for_again(source: Member, mine: Member, nth: int) -> None:
    def lose(command: dict[str, object], reply: dict[str, object]) -> None:
        if len(mine.network.calls) == nth:
            mine.network.down.add(SOURCE)
            asyncio.get_running_loop().call_later(0.001, mine.network.down.discard, SOURCE)

    mine.network.before_reply = lose
    assert sync(mine).ok
    assert mine.everything() == source.everything()
    progress = mine.initial_sync.progress
    assert progress.retried
    assert (progress.unreachable_since, progress.begins_at) == (None, source.store.last_applied)


def test_a_source_that_goes_away_fails_the_attempt(source: Member, mine: Member) -> None:
    mine.create(NS)

    def lose(command: dict[str, object]) -> None:
        if len(mine.network.calls) == 4:
            mine.network.down.add(SOURCE)

    mine.network.before_call = lose
    assert not sync(mine).ok
    assert mine.marker
    assert mine.documents(NS) == {}
    mine.network.down.clear()
    mine.reports.clear()
    assert sync(mine).ok
    assert mine.reports[0] == InitialSyncStarted("first")
    assert mine.everything() == source.everything()


def test_a_damaged_copy_is_never_installed(mine: Member) -> None:
    mine.create(NS)

    def damage(command: dict[str, object], reply: dict[str, object]) -> None:
        data = reply.get("data")
        if command.get("offset") and isinstance(data, bytes) and data:
            reply["data"] = data[:-1] + bytes([data[-1] ^ 1])

    mine.network.before_reply = damage
    ended = sync(mine)
    assert not ended.ok
    assert "SHA-256" in ended.detail
    assert not (mine.folder / "initial-sync.db").exists()
    assert mine.store.collection(NS) is not None


@pytest.mark.parametrize("data", [b"", b"x" * 20_000])
def test_a_chunk_of_the_wrong_size_fails_the_attempt(mine: Member, data: bytes) -> None:
    def damage(command: dict[str, object], reply: dict[str, object]) -> None:
        if command["step"] == "chunk":
            reply["data"] = data

    mine.network.before_reply = damage
    assert not sync(mine).ok


@pytest.mark.parametrize(("size", "ends_well"), [(None, True), (0, False), (-1, False)])
def test_a_copy_is_waited_for_and_has_a_size(mine: Member, size: int | None, ends_well: bool) -> None:
    asked: list[object] = []

    def late(command: dict[str, object], reply: dict[str, object]) -> None:
        if command.get("step") == "begin" and command.get("id"):
            asked.append(command["id"])
            if len(asked) < 4:
                reply["ready"] = False
            elif size is not None:
                reply["size"] = Int64(size)

    mine.network.before_reply = late
    ended = sync(mine)
    assert ended.ok is ends_well
    assert len(asked) >= 4
    assert ends_well or f"offers a copy of {size} bytes" in ended.detail


def test_an_answer_to_no_question_names_no_source(source: Member, mine: Member) -> None:
    copy_log(source, mine)

    def nothing(_command: dict[str, object], reply: dict[str, object]) -> None:
        if "chains" in reply:
            reply["chains"] = []

    mine.network.before_reply = nothing
    ended = sync(mine)
    assert (ended.ok, "answered 0 of 1 question" in ended.detail) == (False, True)
    assert copies_asked(mine) == 0


def test_a_source_that_rolls_back_meanwhile_voids_its_copy(source: Member, mine: Member) -> None:
    def roll_back(command: dict[str, object]) -> None:
        if len(mine.network.calls) == 4:
            newest = source.store.last_applied
            before = source.store.row_at_or_before(type(newest)(1, newest.ts - 1))
            undo_step(source.store, before.optime, stem="x")

    mine.network.before_call = roll_back
    ended = sync(mine)
    assert not ended.ok
    assert "rolled back" in ended.detail
    assert mine.store.collection(NS) is None


def test_the_copy_is_claimed_before_it_is_installed(source: Member, mine: Member) -> None:
    """A copy that lacks what this member held makes it another incarnation, and the core hears of it."""
    mine.claims_as = "second"
    reported: list[object] = []
    mine.network.before_call = lambda command: reported.extend(mine.reports[-1:] if command["step"] == "end" else [])
    assert sync(mine).ok
    assert reported == [mine.reports[-1]], "before the source is to remove its copy, which may take long"
    assert mine.claimed == [source.store.last_applied]
    assert [report for report in mine.reports if isinstance(report, InitialSyncStarted)] == [
        InitialSyncStarted("first"),
        InitialSyncStarted("second"),
    ]


def test_a_crash_after_the_install_exports_nothing_again(source: Member, mine: Member, tmp_path: Path) -> None:
    """The marker is still set, so it all begins again; but the data is the copy, none of it is this member's own."""
    mine.create("app.own")
    assert sync(mine).ok
    before = list_manifests(mine.dbpath)
    assert [manifest.state for manifest in before] == [RollbackState.EXPORTED]
    mine.marker = True
    mine.store.close()
    again = mine.reborn(tmp_path / "left")
    source.insert(NS, {"_id": "later"})
    assert sync(again).ok
    assert list_manifests(again.dbpath) == before
    assert again.everything() == source.everything()


# --- the source -------------------------------------------------------------------------------------------------


async def ask(
    source: Member, step: str, snapshot_id: str = "", offset: int = 0, length: int = 0, by: HostPort | None = None
) -> SnapshotReply:
    body = RawDocument(encode(SnapshotRequest(step, snapshot_id, offset, length).document()))
    return SnapshotReply.parse(RawDocument(encode(await source.snapshots.serve(body, by))))


async def ready(source: Member, by: HostPort | None = None) -> SnapshotReply:
    offer = await ask(source, "begin", by=by)
    while not offer.ready:
        await asyncio.sleep(0)
        offer = await ask(source, "begin", offer.snapshot_id, by=by)
    return offer


async def test_a_copy_is_served_by_offset_until_it_ends(source: Member) -> None:
    offer = await ready(source)
    whole = (await ask(source, "chunk", offer.snapshot_id, 0, offer.size)).data
    assert len(whole) == offer.size
    part = (await ask(source, "chunk", offer.snapshot_id, 1_000, 77)).data
    assert part == whole[1_000:1_077]
    for offset, length in ((-1, 5), (offer.size, 5), (0, 0)):
        with pytest.raises(BadValueError):
            await ask(source, "chunk", offer.snapshot_id, offset, length)
    assert left_at_source(source) == [f"{offer.snapshot_id}.db"]
    await ask(source, "end", offer.snapshot_id)
    assert left_at_source(source) == []
    with pytest.raises(CursorNotFoundError):
        await ask(source, "chunk", offer.snapshot_id, 0, 5)
    with pytest.raises(BadValueError):
        await ask(source, "middle")


async def test_a_forgotten_copy_expires(source: Member) -> None:
    offer = await ready(source)
    source.clock.ms += 600_001
    await source.snapshots.expire()
    assert left_at_source(source) == []
    with pytest.raises(CursorNotFoundError):
        await ask(source, "begin", offer.snapshot_id)


async def test_the_entries_behind_a_copy_are_needed_until_its_member_has_had_time_to_catch_up(source: Member) -> None:
    begin = source.store.last_applied
    offer = await ready(source)
    source.insert(NS, {"_id": "later"})
    assert source.snapshots.needed() == begin
    source.clock.ms += 100_000
    await ask(source, "end", offer.snapshot_id)
    source.clock.ms += 99_999
    assert source.snapshots.needed() == begin, "as long again as the copy took"
    source.clock.ms += 1
    assert source.snapshots.needed() is None
    backup, _ = await source.snapshots.copy_for_backup()
    assert source.snapshots.needed() is None
    await source.snapshots.end(backup)
    assert source.snapshots.needed() is None


async def test_the_entries_behind_a_copy_that_expires_stay_as_long_as_behind_one_that_is_ended(source: Member) -> None:
    """Its member fetched it and still works on it: it fills indexes and checks them for longer than a copy stays."""
    begin = source.store.last_applied
    await ready(source)
    source.insert(NS, {"_id": "later"})
    source.clock.ms += 600_001
    await source.snapshots.expire()
    assert left_at_source(source) == []
    source.clock.ms += 600_000
    assert source.snapshots.needed() == begin
    source.clock.ms += 1
    assert source.snapshots.needed() is None
    await source.snapshots.copy_for_backup()
    source.clock.ms += 60_001
    await source.snapshots.expire()
    assert source.snapshots.needed() is None, "a backup has all that it needs"
    one = HostPort("one:1")
    await ready(source, by=one)
    source.clock.ms += 600_001
    later = source.store.last_applied
    source.insert(NS, {"_id": "much later"})
    await source.snapshots.expire()
    assert source.snapshots.needed() == later
    await ready(source, by=one)
    assert source.snapshots.needed() == source.store.last_applied, "it begins anew"


async def test_a_member_that_begins_again_gives_up_its_copy(source: Member) -> None:
    """It was killed and its disk is another one. Nobody can ask for the first copy any more."""
    one, other = HostPort("one:1"), HostPort("other:1")
    begun = await ask(source, "begin", by=one)  # and is killed while the source still makes it
    others = await ready(source, by=other)
    source.insert(NS, {"_id": "later"})
    await asyncio.sleep(0)
    later = source.store.last_applied
    await ask(source, "end", others.snapshot_id, by=other)
    source.clock.ms += 60_000
    assert source.snapshots.needed() < later, "its member may come back and go on"
    again = await ready(source, by=one)
    assert source.snapshots.needed() == later
    assert left_at_source(source) == [f"{again.snapshot_id}.db"]
    with pytest.raises(CursorNotFoundError):
        await ask(source, "begin", begun.snapshot_id, by=one)
    await ready(source, by=other)  # there is room for it


def test_copies_of_an_earlier_run_are_removed(source: Member) -> None:
    (source.folder / "snapshots").mkdir()
    (source.folder / "snapshots" / "old.db").write_bytes(b"x")
    source.snapshots.clear_leftovers()
    assert left_at_source(source) == []


async def test_only_so_many_copies_at_a_time(source: Member) -> None:
    await ready(source)
    await ready(source)
    with pytest.raises(ReplError) as refused:
        await ask(source, "begin")
    assert refused.value.code == 117
    await source.snapshots.close()
    assert left_at_source(source) == []


def test_no_copy_without_data_or_in_a_state_that_serves_none(source: Member, mine: Member) -> None:
    with pytest.raises(NotPrimaryOrSecondaryError):
        asyncio.run(ask(mine, "begin"))
    source.node.state = MemberState.STARTUP2
    with pytest.raises(NotPrimaryOrSecondaryError):
        asyncio.run(ask(source, "begin"))


def test_no_copy_on_a_disk_without_room(source: Member, mine: Member) -> None:
    source.store.options = replace(source.store.options, min_free_bytes=1 << 60)
    ended = sync(mine)
    assert not ended.ok
    assert "disk" in ended.detail
    assert left_at_source(source) == []


@pytest.mark.parametrize("spare", [0, -1])
def test_a_copy_leaves_as_much_of_a_small_disk_as_writes_must(
    source: Member, mine: Member, monkeypatch: pytest.MonkeyPatch, spare: int
) -> None:
    """And no more: a new set is made on a disk of some ten MB."""
    least = 10 << 20
    source.store.options = replace(source.store.options, min_free_bytes=least)
    free = source.store.data_bytes() + least + spare
    monkeypatch.setattr(source.disk, "free_bytes", lambda _: free)
    monkeypatch.setattr(source.store, "has_disk_space", lambda **_: True)
    ended = sync(mine)
    assert ended.ok is (spare == 0), ended.detail


def test_a_copy_stops_when_the_disk_fills_meanwhile(
    source: Member, mine: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source.store, "has_disk_space", lambda **_: False)
    ended = sync(mine)
    assert (ended.ok, "nearly full" in ended.detail) == (False, True)
    assert left_at_source(source) == []


async def test_the_set_s_limit_for_a_follower_is_kept_if_it_is_lower(source: Member) -> None:
    offer = await ready(source)
    source.node.bytes_per_s = 10_000
    began = asyncio.get_running_loop().time()
    for offset in (0, 10_000, 20_000):
        reply = await ask(source, "chunk", offer.snapshot_id, offset, 4 << 20)
        assert len(reply.data) == 10_000
    assert asyncio.get_running_loop().time() - began > 2


async def test_the_rate_is_kept(source: Member) -> None:
    offer = await ready(source)
    source.snapshots._options = SnapshotOptions(bytes_per_s=100_000)
    loop = asyncio.get_running_loop()
    began = loop.time()
    for _ in range(3):
        await ask(source, "chunk", offer.snapshot_id, 0, 5_000)
    assert loop.time() - began >= 0.05


def test_a_copy_that_is_not_waited_for_is_given_back(source: Member, mine: Member) -> None:
    """Or a few attempts that fail while the copy is made would use up all that the source gives."""
    calls = 0

    def lose(command: dict[str, object], reply: dict[str, object]) -> None:
        nonlocal calls
        if command.get("step") == "begin":
            calls += 1
            if calls > 1:
                reply.clear()
                reply |= {"ok": 0.0, "code": 11602, "errmsg": "the source is busy"}

    mine.network.before_reply = lose
    for _ in range(3):
        calls = 0
        assert not sync(mine).ok
    assert left_at_source(source) == []

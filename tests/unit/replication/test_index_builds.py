"""Index builds on a primary and a secondary: while writes go on, over crashes, rollbacks and changes of the primary."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from replset.bson import RawDocument, encode
from replset.errors import (
    BadValueError,
    CannotBuildIndexKeysError,
    CannotCreateIndexError,
    CannotIndexParallelArraysError,
    DuplicateKeyError,
    IndexBuildAbortedError,
    InterruptedDueToReplStateChangeError,
    MaxTimeMSExpiredError,
    NotWritablePrimaryError,
    RemoteProtocolError,
)
from replset.ids import OpTime
from replset.oplog_entry import OplogEntry, command_entry
from replset.replication.applier import UnfinishedBuildError, apply_batch
from replset.replication.index_builder import FULL_DISK_PAUSE_S, IndexBuilder, IndexBuildOptions, write_slice
from replset.replication.index_ops import do_create_index, do_drop_index, do_start_build
from replset.replication.write_ops import WriteGroup, do_insert
from replset.storage import index_build
from replset.storage.copies import install_copy
from replset.storage.index_build import fill_slice, refused_in
from replset.storage.indexes import LARGE, Index, keys_of
from replset.storage.store import Store
from replset.storage.undo import undo_step
from tests.unit.replication.kit import NS, OPTIONS, Member, Network, copy_log, indexes_are_sound, key_of, run, until

T = TypeVar("T")


class Builds:
    """A member with its index builder, and the writes of a primary."""

    def __init__(self, member: Member, options: IndexBuildOptions | None = None) -> None:
        self.member = member
        self.leads = True
        self.builder = IndexBuilder(
            member.context,
            busy=asyncio.Lock(),
            leads_in=lambda: member.node.term if self.leads else None,
            write=self.write,
            options=options,
        )

    async def write(self, operation: Callable[[WriteGroup], T]) -> T:
        await asyncio.sleep(0)
        if not self.leads:
            raise NotWritablePrimaryError()
        return self.do(operation)

    def do(self, operation: Callable[[WriteGroup], T]) -> T:
        return self.member.do(operation)

    def start(self, **options: object) -> bytes:
        return self.do(lambda group: do_start_build(group, self.coll(group), [spec(**options)]))

    def coll(self, group: WriteGroup) -> Any:
        return group.txn.catalog.by_ns[NS]


def spec(field: str = "a", **options: object) -> RawDocument:
    return RawDocument(encode({"v": 2, "key": {field: 1}, "name": f"{field}_1", **options}))


def indexes(store: Store) -> dict[str, bool]:
    coll = store.collection(NS)
    return {} if coll is None else {index.name: index.ready for index in coll.indexes}


@pytest.fixture
def source(tmp_path: Path) -> Member:
    member = Member("source:1", tmp_path, Network())
    member.create(NS)
    member.insert(NS, *[{"_id": n, "a": n % 7, "b": n} for n in range(40)])
    return member


async def test_a_build_beside_writes_and_a_secondary_that_follows(source: Member, tmp_path: Path) -> None:
    mine = Member("mine:1", tmp_path, source.network)
    copy_log(source, mine)
    builds = Builds(source)
    rng = random.Random(1)
    ticks = iter(range(0, 1_000_000, 3))  # each look at the clock takes 3 ms: a slice is a few documents
    mine.fetcher.start(source.host)
    source.clock.now = lambda: next(ticks)
    builds.builder._find_refused = None  # who refused documents while it filled the index looks for none
    result = builds.builder.result(builds.start())
    work = asyncio.create_task(builds.builder.work())
    while not result.done():
        key = rng.randrange(60)
        if key in source.documents(NS):
            source.delete(NS, key) if rng.random() < 0.5 else source.replace(NS, {"_id": key, "a": [key, "x"]})
        else:
            source.insert(NS, {"_id": key, "a": "new"})
        await asyncio.sleep(0)
    await work
    assert (await result).ts <= source.store.last_applied.ts
    await until(lambda: mine.store.last_applied == source.store.last_applied)
    mine.fetcher.stop()
    for member in (source, mine):
        assert indexes(member.store) == {"a_1": True}
        assert indexes_are_sound(member.store)
        assert member.store.collection(NS).indexes[0].multikey
    assert mine.everything() == source.everything()


def test_a_member_without_indexes_skips_what_the_oplog_says_of_them(source: Member, tmp_path: Path) -> None:
    """`buildIndexes: false`: one that a copy brought is gone too, and a rollback brings none back."""
    mine = Member("mine:1", tmp_path, source.network)
    builds = Builds(source)
    builds.start()
    run(builds.builder.work)
    log = source.oplog()
    done = 0
    while done < len(log):
        done += apply_batch(mine.store, log, done, len(log), lambda: False, builds_indexes=False)
    assert indexes(source.store) == {"a_1": True}
    assert indexes(mine.store) == {}
    assert mine.documents(NS) == source.documents(NS)
    assert mine.store.chain == source.store.chain

    copy, folder = str(tmp_path / "copy.db"), tmp_path / "copied"
    folder.mkdir()
    source.store.copy_to(copy)
    install_copy(source.disk, folder, copy, rollback_id_before=0, keep_indexes=False)
    store = Store.open(source.disk, folder, OPTIONS)
    assert indexes(store) == {}
    undo_step(store, OplogEntry(log[-3]).optime, stem="r", limit=1_000)
    assert store.last_applied == OplogEntry(log[-3]).optime
    assert indexes(store) == {}
    store.close()


def test_the_commit_waits_for_a_secondary_that_has_not_finished(source: Member, tmp_path: Path) -> None:
    mine = Member("mine:1", tmp_path, source.network)
    builds = Builds(source)
    builds.start()
    run(builds.builder.work)
    log = source.oplog()
    done = 0
    while done < len(log) - 1:
        done += apply_batch(mine.store, log, done, len(log), lambda: False)
    assert indexes(mine.store) == {"a_1": False}
    with pytest.raises(UnfinishedBuildError):
        apply_batch(mine.store, log, done, len(log), lambda: False)
    mine.apply(log[-1])  # one entry by itself is applied whole
    assert indexes(mine.store) == {"a_1": True}
    assert indexes_are_sound(mine.store)


def test_a_start_goes_on_where_the_build_was(source: Member) -> None:
    builds = Builds(source)
    build = builds.start()
    coll = source.store.collection(NS)
    with source.store.group() as txn:
        assert fill_slice(txn, coll.uuid, build, lambda: True)
    source.reopen()
    (index,) = source.store.collection(NS).indexes
    assert index.position not in (None, b"")
    assert indexes_are_sound(source.store)
    source.delete(NS, 0)
    source.delete(NS, 39)
    run(builds.builder.work)
    assert indexes(source.store) == {"a_1": True}
    assert indexes_are_sound(source.store)


def test_who_only_applies_a_build_refuses_no_document(source: Member) -> None:
    """The entry that commits the build or ends it decides."""
    build = Builds(source).start(unique=True)
    with source.store.group() as txn:
        assert not fill_slice(txn, source.store.collection(NS).uuid, build, lambda: False)


def test_a_former_primarys_duplicate_ends_a_unique_build(source: Member) -> None:
    """A write that the former primary took may break the part that this member had filled."""
    builds = Builds(source)
    builds.leads = False
    builds.start(unique=True, key={"b": 1})
    run(builds.builder.work)
    assert indexes(source.store) == {"a_1": False}
    source.insert(NS, {"_id": 100, "b": 5})
    builds.leads = True
    run(builds.builder.work)
    assert indexes(source.store) == {}
    o = OplogEntry(source.oplog()[-1]).o.decode()
    assert next(iter(o)) == "abortIndexBuild"
    assert {**o["cause"], "errmsg": ""} == {"ok": False, "code": 11000, "codeName": "DuplicateKey", "errmsg": ""}


def test_a_duplicate_is_refused_while_a_build_runs(source: Member) -> None:
    builds = Builds(source)
    build = builds.start(unique=True, key={"b": 1})
    coll = source.store.collection(NS)
    with source.store.group() as txn:
        assert fill_slice(txn, coll.uuid, build, lambda: True, refuses=True)
    document = encode({"_id": -1, "b": 0})
    with pytest.raises(DuplicateKeyError):
        builds.do(lambda group: do_insert(group, builds.coll(group), key_of(-1), document))
    run(builds.builder.work)
    assert indexes(source.store) == {"a_1": True}


@pytest.mark.parametrize("unique", [False, True])
async def test_who_waits_is_answered(source: Member, unique: bool) -> None:
    builds = Builds(source)

    async def outcome(act: Callable[[bytes], object]) -> OpTime:
        result = builds.builder.result(build := builds.start(unique=unique))
        act(build)
        await builds.builder.work()
        return await result

    with pytest.raises(InterruptedDueToReplStateChangeError):
        await outcome(lambda build: [builds.builder.abort(build, BadValueError("x")), builds.builder.on_stepdown()])
    assert indexes(source.store) == ({} if unique else {"a_1": True}), "what was to be aborted is the next primary's"
    builds.do(lambda group: [do_drop_index(group, builds.coll(group), i) for i in builds.coll(group).indexes])
    with pytest.raises(MaxTimeMSExpiredError):
        await outcome(lambda build: builds.builder.abort(build, MaxTimeMSExpiredError("over")))
    assert indexes(source.store) == {}
    if unique:
        with pytest.raises(DuplicateKeyError):
            await outcome(lambda _: None)
    else:
        assert await outcome(lambda _: None) == source.store.last_applied
        builds.do(lambda group: [do_drop_index(group, builds.coll(group), i) for i in builds.coll(group).indexes])
    with pytest.raises(IndexBuildAbortedError):
        await outcome(lambda _: source.drop(NS))


async def test_nobody_has_to_take_an_answer(source: Member) -> None:
    builds, unhandled = Builds(source), list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    builder, build = builds.builder, builds.start()
    builder.result(build).cancel()
    builder.result(build)
    builder.on_stepdown()
    await asyncio.sleep(0)
    gc.collect()
    assert not unhandled


async def test_what_a_secondary_is_to_abort_stays_until_it_leads_or_the_build_is_gone(source: Member) -> None:
    builds = Builds(source)
    builder, build = builds.builder, builds.start()
    builds.leads = False
    for one in (build, b"another"):
        builder.abort(one, BadValueError("x"))
    await builder.work()
    assert builder._aborts.keys() == {build}
    builds.leads = True
    await builder.work()
    assert (builder._aborts, indexes(source.store)) == ({}, {})


async def test_builds_are_looked_for_twice_a_second_and_at_once_where_somebody_waits(source: Member) -> None:
    builder, clock = Builds(source).builder, asyncio.get_running_loop().time
    looks, began = list[float](), clock()

    async def look() -> None:
        looks.append(clock() - began)

    builder.work = look
    running = asyncio.ensure_future(builder.run())
    await asyncio.sleep(1.2)
    builder.result(b"build")
    await asyncio.sleep(0.4)
    builder.abort(b"build", BadValueError("x"))
    await asyncio.sleep(1.2)
    running.cancel()
    assert looks == pytest.approx([0.5, 1, 1.2, 1.6, 2.1, 2.6])


async def test_a_slice_takes_five_milliseconds_and_refuses_nothing_by_itself(source: Member) -> None:
    build, coll = Builds(source).start(unique=True), source.store.collection(NS)
    source.clock.now = iter([0, 4, 5, 6, 7]).__next__  # looked at once in eight documents
    assert await write_slice(source.context, coll.uuid, build)
    assert [index.position for index in source.store.collection(NS).indexes] == [key_of(15)]


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 41, 42])
async def test_a_new_primary_looks_at_an_index_in_slices_and_others_have_their_turn(
    source: Member, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    builds, turns, clock = Builds(source), 0, asyncio.get_running_loop().time
    builds.leads = False
    build, coll = builds.start(unique=True, field="b"), source.store.collection(NS)
    await builds.builder.work()
    monkeypatch.setattr(index_build, "VERIFY_ROWS", rows)
    monkeypatch.setattr(index_build, "CHECK_ROWS", rows)

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other, began = asyncio.ensure_future(take_turns()), clock()
    for look in (builds.builder._find_refused, builds.builder._find_duplicate):
        turns = 0
        assert await look(coll.uuid, build) is None
        assert turns >= 40 // rows
    assert clock() == began
    other.cancel()
    source.insert(NS, {"_id": 100, "b": 11})
    assert isinstance(await builds.builder._find_duplicate(coll.uuid, build), DuplicateKeyError)


async def test_what_was_dropped_meanwhile_is_looked_at_no_more(source: Member) -> None:
    """Nor does a member end a build that belongs to another term, or that is not filled."""
    builds = Builds(source)
    builder, build, coll = builds.builder, builds.start(unique=True), source.store.collection(NS)
    assert coll is not None
    (index,) = source.store.collection_by_uuid(coll.uuid).indexes  # type: ignore[union-attr]
    before = len(source.oplog())
    waiting = builder.result(build)
    for term in (source.node.term + 1, source.node.term):
        await builder._end(coll.uuid, build, term, None)
    assert len(source.oplog()) == before
    assert indexes(source.store) == {"a_1": False}
    waiting.cancel()
    builder._settle(build, source.store.last_applied)
    source.drop(NS)
    assert await builder._find_refused(coll.uuid, build) is None
    assert builder._duplicate_in(index, (b"", b"")) == (None, None)
    await builder._end(coll.uuid, build, source.node.term, None)
    assert len(source.oplog()) == before + 1


def test_a_secondary_builds_and_leaves_the_end_to_the_primary(source: Member) -> None:
    builds = Builds(source)
    builds.leads = False
    builds.start()
    run(builds.builder.work)
    (index,) = source.store.collection(NS).indexes
    assert (index.ready, index.position) == (False, None)


async def test_a_new_primary_looks_for_documents_that_it_did_not_refuse(source: Member) -> None:
    source.insert(NS, {"_id": 100, "a": [1], "b": [2]})
    builds = Builds(source)
    builds.leads = False
    of_both = RawDocument(encode({"v": 2, "key": {"a": 1, "b": 1}, "name": "both"}))
    build = builds.do(lambda group: do_start_build(group, builds.coll(group), [of_both]))
    await builds.builder.work()
    builds.leads = True
    result = builds.builder.result(build)
    await builds.builder.work()
    with pytest.raises(CannotIndexParallelArraysError):
        await result
    assert indexes(source.store) == {}


async def test_a_new_primary_counts_the_values_that_it_did_not_refuse(
    source: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All indexes together would read too many; the removal of such a document costs as much, and is not refused."""
    builds = Builds(source)
    builds.start(field="b")
    await builds.builder.work()
    source.insert(NS, {"_id": 100, "a": [1] * 60, "b": [2] * 60, "padding": "x" * LARGE})
    builds.leads = False
    build = builds.start()
    await builds.builder.work()
    builds.leads = True
    monkeypatch.setattr("replset.storage.indexes.VALUES_MAX", 100)
    result = builds.builder.result(build)
    await builds.builder.work()
    with pytest.raises(CannotBuildIndexKeysError, match="together"):
        await result
    assert indexes(source.store) == {"b_1": True}


def test_a_new_primary_looks_for_refused_documents_in_slices_of_keys(
    source: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.insert(NS, *[{"_id": number, "a": list(range(100))} for number in range(100, 110)])
    monkeypatch.setattr(index_build, "KEYS_IN_SLICE", 250)
    build = Builds(source).start()
    coll = source.store.collection(NS)
    made: list[int] = []

    def counted(index: Index, document: bytes) -> list[bytes]:
        keys = keys_of(index, document)
        made.append(len(keys))
        return keys

    monkeypatch.setattr(index_build, "keys_of", counted)
    after: bytes | None = b""
    while after is not None:
        before = len(made)
        error, after = source.store.query(partial(refused_in, coll=coll, build=build, after=after))
        assert error is None
        assert sum(made[before:-1]) <= 250
    assert made == [1] * 40 + [100] * 10


def test_a_build_whose_end_may_not_fit_an_entry_does_not_begin(source: Member) -> None:
    builds = Builds(source)
    with pytest.raises(CannotCreateIndexError):
        builds.start(partialFilterExpression={"a": {"$gt": "x" * (9 << 20)}})
    assert indexes(source.store) == {}


@pytest.mark.parametrize(
    "wrong", [{"indexBuildUUID": None}, {"indexBuildUUID": "x"}, {"indexes": None}, {"indexes": 5}]
)
def test_a_build_without_its_uuid_or_its_indexes_is_the_sources_fault(
    source: Member, tmp_path: Path, wrong: dict[str, object]
) -> None:
    mine = Member("mine:1", tmp_path, source.network)
    copy_log(source, mine)
    Builds(source).start()
    entry = OplogEntry(source.oplog()[-1])
    bad = command_entry("app", entry.ui, {**entry.o.decode(), **wrong}, entry.optime, entry.wall_ms)
    with pytest.raises(RemoteProtocolError, match="index build"):
        apply_batch(mine.store, [bad], 0, 1, lambda: False)
    assert indexes(mine.store) == {}


# --- random histories -------------------------------------------------------------------------------------------


class History:
    """Random writes and changes of indexes on one member, and what there was after each entry."""

    def __init__(self, builds: Builds, rng: random.Random) -> None:
        self.builds, self.member, self.rng = builds, builds.member, rng
        self.seen: list[tuple[OpTime, dict[str, bool], dict[object, dict[str, object]]]] = []

    def note(self) -> None:
        self.seen.append((self.member.store.last_applied, indexes(self.member.store), self.member.documents(NS)))

    def step(self) -> None:
        rng, store = self.rng, self.member.store
        coll = store.collection(NS)
        kind = rng.choices(["write", "start", "slice", "end", "drop", "create"], [60, 8, 25, 10, 6, 3])[0]
        if kind == "slice" and coll.builds:
            with store.group() as txn:
                fill_slice(txn, coll.uuid, rng.choice(coll.builds), lambda: rng.random() < 0.3)
        elif kind == "start" and len(coll.indexes) < 3:
            field = rng.choice([name for name in "abc" if f"{name}_1" not in indexes(store)])
            options: dict[str, object] = rng.choice(
                [{}, {"sparse": True}, {"partialFilterExpression": {"b": {"$gt": 3}}}]
            )
            self.builds.do(lambda group: do_start_build(group, self.builds.coll(group), [spec(field, **options)]))
        elif kind == "end" and coll.builds:
            build = rng.choice(coll.builds)
            if rng.random() < 0.5:
                self.builds.builder.abort(build, IndexBuildAbortedError("drawn"))
            run(self.builds.builder.work)
        elif kind == "drop" and any(indexes(store).values()):
            index = rng.choice([index for index in coll.indexes if index.ready])
            self.builds.do(lambda group: do_drop_index(group, self.builds.coll(group), index))
        elif kind == "create" and not self.member.documents(NS) and not coll.indexes:
            self.builds.do(lambda group: do_create_index(group, self.builds.coll(group), spec("a")))
        elif kind == "write":
            self.write()
        self.note()

    def write(self) -> None:
        rng, known = self.rng, self.member.documents(NS)
        key = rng.randrange(12)
        document: dict[str, object] = {"_id": key}
        for name in "abc":
            value = rng.choice([None, rng.randrange(4), [1, rng.randrange(4)], [], "text", {"b": 1}])
            if rng.random() < 0.8:
                document[name] = value
        if key not in known:
            self.member.insert(NS, document)
        elif rng.random() < 0.4:
            self.member.delete(NS, key)
        else:
            self.member.replace(NS, document)


@pytest.mark.in_turns
@pytest.mark.parametrize("seed", range(12))
def test_random_histories_with_undo(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    member = Member("source:1", tmp_path, Network())
    member.create(NS)
    builds = Builds(member)
    for _ in range(4):
        history = History(builds, rng)
        history.note()
        for _ in range(60):
            history.step()
            assert indexes_are_sound(member.store)
        common, names, documents = rng.choice(history.seen)
        while undo_step(member.store, common, stem="s", limit=rng.choice([3, 500])):
            assert indexes_are_sound(member.store)
        assert indexes_are_sound(member.store)
        assert member.documents(NS) == documents
        assert indexes(member.store) == names
        if rng.random() < 0.5:
            member.reopen()
            assert indexes_are_sound(member.store)
            assert indexes(member.store) == names
    mine = Member("mine:1", tmp_path, Network())
    copy_log(member, mine)
    assert mine.everything() == member.everything()
    assert indexes(mine.store) == indexes(member.store)
    run(Builds(mine).builder.work)
    assert indexes_are_sound(mine.store)


async def test_others_have_their_turn_between_two_slices(source: Member) -> None:
    builds = Builds(source, IndexBuildOptions(slice_documents=5))
    builds.start()
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.ensure_future(take_turns())
    await builds.builder.work()
    other.cancel()
    assert turns >= len(source.documents(NS)) // 5
    assert indexes(source.store) == {"a_1": True}


async def test_a_build_tries_a_full_disk_once_a_second(source: Member) -> None:
    clock, builds = asyncio.get_running_loop().time, Builds(source)
    builds.start()
    source.store.options = replace(source.store.options, min_free_bytes=1 << 60)
    began = clock()
    for _ in range(3):
        await builds.builder.work()
    assert clock() - began == pytest.approx(3 * FULL_DISK_PAUSE_S)
    source.store.options = replace(source.store.options, min_free_bytes=0)
    await builds.builder.work()
    assert indexes(source.store) == {"a_1": True}

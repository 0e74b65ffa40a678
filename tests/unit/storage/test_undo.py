"""Undo and reads at a point: any earlier state comes back exactly, by rollback and by overlay."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replset.bson import RawDocument, encode
from replset.errors import (
    CatalogChangedError,
    NamespaceNotFoundError,
    SnapshotCutError,
    SnapshotTooOldError,
    UnrecoverableRollbackError,
)
from replset.ids import OPTIME_NULL, OpTime
from replset.oplog_entry import noop_entry
from replset.storage import natural_order
from replset.storage.catalog import Collection
from replset.storage.snapshot import Snapshot
from replset.storage.store import StoreOptions
from replset.storage.undo import RollbackMark, clear_rollback_done, rollback_done_marks, rollback_in_progress, undo_step
from tests.examples import examples

from .conftest import Driver, State, doc_of, key_of

NAMESPACES = ("db.a", "db.b", "other.c")
Operation = tuple[object, ...]

operations = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"), st.sampled_from(NAMESPACES), st.integers(0, 5), st.sampled_from(["x", "y" * 30, "z"])
        ),
        st.tuples(st.just("delete"), st.sampled_from(NAMESPACES), st.integers(0, 5)),
        st.tuples(st.sampled_from(["create", "drop"]), st.sampled_from(NAMESPACES)),
        st.tuples(st.just("rename"), st.sampled_from(NAMESPACES), st.sampled_from(NAMESPACES)),
        st.just(("noop",)),
        st.just(("term",)),
        st.just(("reopen",)),
    ),
    min_size=1,
    max_size=40,
)


@contextmanager
def fresh_driver() -> Iterator[Driver]:
    with tempfile.TemporaryDirectory() as folder:
        driver = Driver(Path(folder), StoreOptions(min_free_bytes=0, snapshot_history_s=0))
        yield driver
        driver.store.close()


def play(driver: Driver, script: list[Operation]) -> None:
    """Runs what fits: a namespace is created before it is written to, and not twice."""
    for operation in script:
        name, exists = operation[0], len(operation) > 1 and operation[1] in driver.state
        if name == "term":
            driver.term += 1
        elif name == "reopen":
            driver.reopen()
        elif name == "create" and exists:
            continue
        elif name == "rename":
            if exists and operation[2] not in driver.state:
                driver.apply(operation)
        elif name in ("put", "delete", "drop") and not exists:
            driver.apply(("create", operation[1]))
            driver.apply(operation)
        else:
            driver.apply(operation)


def natural(
    snapshot: Snapshot, coll: Collection, at: OpTime | None = None, *, backwards: bool = False
) -> list[tuple[bytes, bytes]]:
    return [(key, doc) for _, key, doc in snapshot.natural_scan(coll, at, backwards=backwards) if doc]


def in_natural_order(driver: Driver) -> dict[str, list[tuple[bytes, bytes]]]:
    with driver.store.read() as snapshot:
        return {coll.ns: natural(snapshot, coll) for coll in driver.store.collections()}


def state_in_oplog(driver: Driver) -> list[OpTime]:
    rows = driver.store.oplog_after(OPTIME_NULL, limit=1000, max_bytes=1 << 30)
    return [row.optime for row in rows]


@examples(40)
@given(script=operations, data=st.data())
def test_undo_restores_exactly_the_state_at_any_point(script: list[Operation], data: st.DataObject) -> None:
    with fresh_driver() as driver:
        play(driver, script)
        point, state = data.draw(st.sampled_from(driver.history))
        limit = data.draw(st.sampled_from([1, 2, 7, 500]))
        kept = [optime for optime, _ in driver.history if OPTIME_NULL < optime <= point]
        before = driver.store.rollback_id
        steps = 1
        while undo_step(driver.store, point, stem="rollback-x", limit=limit):
            steps += 1
            assert rollback_in_progress(driver.store) == RollbackMark("rollback-x", point)
            if data.draw(st.booleans()):
                driver.reopen()
        assert driver.documents() == state
        assert in_natural_order(driver) == {ns: list(documents.items()) for ns, documents in state.items()}
        check_capped(driver)
        assert state_in_oplog(driver) == kept
        assert (driver.store.last_applied, driver.store.rollback_id) == (point, before + 1)
        assert rollback_in_progress(driver.store) is None
        assert rollback_done_marks(driver.store) == [RollbackMark("rollback-x", point)]
        assert steps <= (len(driver.history) - len(kept)) // limit + 2

        driver.state, driver.history = state, driver.history[: len(kept) + 1]
        play(driver, [("put", "db.a", 1, "again"), ("drop", "db.a"), ("put", "db.a", 2, "anew")])
        assert driver.documents() == driver.state
        assert in_natural_order(driver) == {ns: list(documents.items()) for ns, documents in driver.state.items()}
        with driver.reopen().read() as snapshot:
            snapshot.check_chain(0, 1000)
        assert driver.store.oplog_bytes == sum(
            len(row.entry) for row in driver.store.oplog_after(OPTIME_NULL, limit=1000, max_bytes=1 << 30)
        )
        check_terms(driver)


def check_capped(driver: Driver) -> None:
    """The triggers count what is there."""
    for coll in driver.store.collections():
        if coll.capped is not None:
            documents = driver.documents()[coll.ns].values()
            with driver.store.maintenance() as txn:
                assert txn.capped_size(coll) == (len(documents), sum(map(len, documents)))


def check_terms(driver: Driver) -> None:
    by_term: dict[int, list[OpTime]] = {}
    for optime in state_in_oplog(driver):
        by_term.setdefault(optime.term, []).append(optime)
    newest = max(by_term)
    assert [(span.first, span.last) for span in driver.store.terms()] == [
        (optimes[0], None if term == newest else optimes[-1]) for term, optimes in by_term.items()
    ]


def changed_after(driver: Driver, ns: str, point: OpTime) -> bool:
    later = [ns in state for optime, state in driver.history if optime >= point]
    return len(set(later)) > 1


@examples(40)
@given(script=operations, data=st.data())
def test_a_read_at_c_gives_the_state_at_c(script: list[Operation], data: st.DataObject) -> None:
    with fresh_driver() as driver:
        play(driver, script)
        point, state = data.draw(st.sampled_from(driver.history))
        with driver.store.read() as snapshot:
            for ns in NAMESPACES:
                expected = state.get(ns)
                try:
                    coll = snapshot.collection(ns, point)
                except CatalogChangedError:
                    assert changed_after(driver, ns, point)
                    continue
                assert (coll is None) == (expected is None)
                if coll is None or expected is None:
                    continue
                assert dict(snapshot.scan(coll, point)) == expected
                assert [key for key, _ in snapshot.scan(coll, point)] == sorted(expected)
                assert natural(snapshot, coll, point) == list(expected.items())
                assert natural(snapshot, coll, point, backwards=True) == list(reversed(expected.items()))
                assert snapshot.count(coll, point) == len(expected)
                for number in range(6):
                    assert snapshot.get(coll, key_of(number), point) == expected.get(key_of(number))


@examples(30)
@given(script=operations, rows=st.integers(1, 3), data=st.data())
def test_a_natural_scan_in_small_pages_goes_on_where_it_was(
    script: list[Operation], rows: int, data: st.DataObject
) -> None:
    with fresh_driver() as driver, pytest.MonkeyPatch.context() as patch:
        patch.setattr("replset.storage.natural_order.PAGE_ROWS", rows)
        play(driver, [("put", "db.a", number, "x") for number in range(4)])
        point, state = driver.history[-1]
        backwards = data.draw(st.booleans())
        seen: list[tuple[bytes, bytes]] = []
        place: int | None = None
        pages = data.draw(st.integers(1, 4))
        rest = [operation for operation in script if operation[0] in ("put", "delete", "reopen")]
        for _ in range(200):
            with driver.store.read() as snapshot:
                scan = snapshot.natural_scan(driver.coll("db.a"), point, after=place, backwards=backwards, rows=rows)
                page = list(islice(scan, pages))
            if not page and not rest:
                break
            seen += [(key, doc) for _, key, doc in page if doc]
            place = page[-1][0] if page else place
            play(driver, rest[:3])
            del rest[:3]
        expected = list(state["db.a"].items())
        assert seen == (expected[::-1] if backwards else expected)


@examples(25)
@given(script=operations, pruned_to=st.integers(0, 60))
def test_pruning_takes_only_what_no_read_and_no_rollback_needs(script: list[Operation], pruned_to: int) -> None:
    with fresh_driver() as driver:
        play(driver, script)
        commit, state = driver.history[min(pruned_to, len(driver.history) - 1)]
        driver.commit(commit)
        assert driver.store.pruned_through <= commit.ts
        check_readable(driver, commit, state)
        driver.undo_to(commit, limit=3)
        assert driver.documents() == state


def check_readable(driver: Driver, point: OpTime, state: State) -> None:
    with driver.store.read() as snapshot:
        for ns, expected in state.items():
            coll = driver.store.collection(ns)
            if coll is not None and coll.created_ts <= point.ts:
                assert dict(snapshot.scan(coll, point)) == expected


def test_several_changes_at_one_optime_are_undone_together_in_one_step(driver: Driver) -> None:
    driver.apply(("create", "db.c"), ("put", "db.c", 0, "old"))
    point, state = driver.history[-1]
    with driver.store.group() as txn:
        optime = txn.next_optime(1, driver.wall_ms)
        coll = driver.coll("db.c")
        txn.put(coll, key_of(0), doc_of(0, "one"), ts=optime.ts, before=doc_of(0, "old"))
        txn.put(coll, key_of(0), doc_of(0, "two"), ts=optime.ts, before=doc_of(0, "one"))
        for number in range(1, 9):
            txn.put(coll, key_of(number), doc_of(number, "new"), ts=optime.ts, before=None)
        txn.append(b"entry", optime, op="c", ns="db.$cmd", wall_ms=1)
    with driver.store.read() as snapshot:
        assert dict(snapshot.scan(coll, point)) == state["db.c"]
    assert not undo_step(driver.store, point, stem="r", limit=2)
    assert driver.documents() == state


def test_each_step_deletes_its_entries_in_the_same_transaction(driver: Driver) -> None:
    driver.apply(("create", "db.c"), *(("put", "db.c", number, "x") for number in range(9)))
    point = driver.history[1][0]
    sizes = []
    while undo_step(driver.store, point, stem="r", limit=2):
        assert len(driver.documents()["db.c"]) == len(state_in_oplog(driver)) - 1
        sizes.append(len(state_in_oplog(driver)))
    assert sizes == [8, 6, 4, 2]


def test_the_first_step_marks_the_rollback_and_raises_the_id_once(driver: Driver) -> None:
    driver.apply(("create", "db.c"), *(("put", "db.c", number, "x") for number in range(5)))
    point = driver.history[2][0]
    before = driver.store.rollback_id
    assert undo_step(driver.store, point, stem="r1", limit=1)
    assert (driver.store.rollback_id, rollback_in_progress(driver.store)) == (before + 1, RollbackMark("r1", point))
    driver.reopen()
    assert (driver.store.rollback_id, rollback_in_progress(driver.store)) == (before + 1, RollbackMark("r1", point))
    with pytest.raises(UnrecoverableRollbackError, match="in progress"):
        undo_step(driver.store, driver.history[1][0], stem="r2")
    assert not undo_step(driver.store, point, stem="r1", limit=100)
    assert not undo_step(driver.store, driver.history[1][0], stem="r2")
    assert driver.store.rollback_id == before + 2
    assert [mark.stem for mark in rollback_done_marks(driver.reopen())] == ["r1", "r2"]
    clear_rollback_done(driver.store, "r1")
    assert [mark.stem for mark in rollback_done_marks(driver.reopen())] == ["r2"]
    clear_rollback_done(driver.store, "r2")
    assert rollback_done_marks(driver.store) == []


def test_undo_below_the_commit_point_or_the_pruned_undo_is_refused(make_driver: Callable[..., Driver]) -> None:
    driver = make_driver()
    driver.apply(("create", "db.c"), *(("put", "db.c", number, "x") for number in range(6)))
    driver.store.set_commit_point(driver.history[4][0])
    with pytest.raises(UnrecoverableRollbackError, match="commit point"):
        undo_step(driver.store, driver.history[3][0], stem="r")
    driver.settle(driver.wall_ms)
    driver.reopen()  # the commit point is forgotten, what was pruned is not
    with pytest.raises(UnrecoverableRollbackError, match="undo reaches"):
        undo_step(driver.store, driver.history[3][0], stem="r")
    with pytest.raises(UnrecoverableRollbackError, match="not in the oplog"):
        undo_step(driver.store, OpTime(9, driver.history[5][0].ts), stem="r")
    assert driver.documents() == driver.state
    assert rollback_in_progress(driver.store) is None
    assert not undo_step(driver.store, driver.history[4][0], stem="r")
    assert driver.documents() == driver.history[4][1]


def test_a_trimmed_oplog_does_not_go_back_to_its_beginning(make_driver: Callable[..., Driver]) -> None:
    driver = make_driver(options=StoreOptions(min_free_bytes=0, snapshot_history_s=0, oplog_max_bytes=500))
    driver.apply(*[("noop",)] * 20)
    driver.commit()
    assert driver.store.trimmed_through
    driver.store.commit_point = OPTIME_NULL
    with pytest.raises(UnrecoverableRollbackError, match="does not reach back to its beginning"):
        undo_step(driver.store, OPTIME_NULL, stem="x")


@pytest.mark.parametrize("backwards", [False, True])
def test_a_natural_scan_reads_what_was_deleted_in_pages_of_any_size(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, backwards: bool
) -> None:
    driver.apply(("create", "db.a"), *[("put", "db.a", number, "x" * number) for number in range(12)])
    then = driver.store.last_applied
    driver.apply(*[("delete", "db.a", number) for number in range(12) if number % 4])
    driver.apply(*[("put", "db.a", number, "again") for number in (2, 3, 4, 20)], ("delete", "db.a", 3))
    expected = [key_of(number) for number in range(12)][:: -1 if backwards else 1]
    for rows, size in ((100, 1 << 20), (1, 1 << 20), (2, 1 << 20), (100, 1), (100, 40), (3, 60)):
        monkeypatch.setattr(natural_order, "PAGE_ROWS", rows)
        monkeypatch.setattr(natural_order, "PAGE_BYTES", size)
        with driver.store.read() as snapshot:
            found = list(snapshot.natural_scan(driver.coll("db.a"), then, backwards=backwards, rows=rows))
        assert [key for _, key, doc in found if doc] == expected
        places = [place for place, _, _ in found]
        assert places == sorted(places, reverse=backwards)


def test_a_point_before_pruned_through_is_snapshot_too_old(driver: Driver) -> None:
    driver.apply(("create", "db.c"), *(("put", "db.c", number, "x") for number in range(6)))
    driver.commit(driver.history[4][0])
    coll = driver.coll("db.c")
    with driver.store.read() as snapshot:
        with pytest.raises(SnapshotTooOldError):
            snapshot.get(coll, key_of(0), driver.history[3][0])
        with pytest.raises(SnapshotTooOldError):
            snapshot.scan(coll, driver.history[3][0])
        assert dict(snapshot.scan(coll, driver.history[4][0])) == driver.history[4][1]["db.c"]


def test_a_read_before_a_catalog_change_names_when_to_retry(driver: Driver) -> None:
    driver.apply(("noop",), ("create", "db.c"), ("put", "db.c", 1, "x"), ("drop", "db.c"), ("noop",))
    optimes = [optime for optime, _ in driver.history]
    with driver.store.read() as snapshot:
        for at, until in ((1, 4), (2, 4), (3, 4)):
            with pytest.raises(CatalogChangedError) as caught:
                snapshot.collection("db.c", optimes[at])
            assert caught.value.until == optimes[until].ts
        assert snapshot.collection("db.c", optimes[4]) is None
        assert snapshot.collection("db.c") is None
    driver.apply(("create", "db.d"))
    coll = driver.coll("db.d")
    with driver.store.read() as snapshot, pytest.raises(CatalogChangedError):
        snapshot.get(coll, key_of(1), optimes[5])


def test_a_read_before_a_rename_names_when_to_retry(driver: Driver) -> None:
    driver.apply(("create", "db.c"), ("put", "db.c", 1, "x"), ("noop",), ("rename", "db.c", "db.d"), ("noop",))
    optimes = [optime for optime, _ in driver.history]
    with driver.store.read() as snapshot:
        for ns in ("db.c", "db.d"):
            with pytest.raises(CatalogChangedError) as caught:
                snapshot.collection(ns, optimes[3])
            assert caught.value.until == optimes[4].ts
        assert snapshot.collection("db.c", optimes[4]) is None
        found = snapshot.collection("db.d", optimes[4])
        assert snapshot.get(found, key_of(1), optimes[2]) is not None
    driver.store.options = StoreOptions(min_free_bytes=0, snapshot_history_s=0)
    driver.commit()
    assert driver.store.query(lambda connection: connection.execute("SELECT * FROM name_changes").fetchall()) == []


def test_undo_restores_options_and_a_dropped_target(driver: Driver) -> None:
    driver.apply(("create", "db.c"), ("create", "db.d"), ("put", "db.d", 1, "x"))
    point, before = driver.store.last_applied, driver.documents()
    coll, target = driver.coll("db.c"), driver.coll("db.d")
    with driver.store.group() as txn:
        optime = txn.next_optime(1, driver.wall_ms)
        txn.set_options(coll, RawDocument(encode({"validator": {"a": 1}})), ts=optime.ts)
        txn.drop_collection(target, ts=optime.ts)
        txn.rename_collection(coll, "db.d", ts=optime.ts)
        txn.append(noop_entry({}, optime, 0), optime, op="n", ns="", wall_ms=0)
    driver.reopen()
    assert driver.coll("db.d").has_validator
    assert driver.store.collection("db.c") is None
    driver.undo_to(point)
    assert driver.documents() == before
    assert (driver.coll("db.c"), driver.coll("db.d")) == (coll, target)


def test_a_snapshot_sees_nothing_that_commits_later(driver: Driver) -> None:
    driver.apply(("create", "db.c"), ("put", "db.c", 1, "a"))
    state, newest = driver.documents(), driver.store.last_applied
    coll = driver.coll("db.c")
    with driver.store.read() as snapshot:
        driver.apply(("put", "db.c", 1, "b"), ("put", "db.c", 2, "c"))
        assert dict(snapshot.scan(coll)) == state["db.c"]
        assert (snapshot.newest, snapshot.count(coll)) == (newest, 1)
    assert driver.documents() == driver.state


def test_a_scan_goes_on_after_a_key_at_the_same_point_while_documents_change(driver: Driver) -> None:
    driver.apply(("create", "db.c"), *(("put", "db.c", number, "x") for number in range(700)))
    point, state = driver.history[-1]
    coll = driver.coll("db.c")
    seen: list[tuple[bytes, bytes]] = []
    pin = driver.store.pin(point)
    round_ = 0
    while True:
        with driver.store.read() as snapshot:
            page = list(islice(snapshot.scan(coll, point, low=seen[-1][0] + b"\0" if seen else b""), 150))
        if not page:
            break
        seen += page
        round_ += 1
        driver.apply(*(("delete", "db.c", number) for number in range(round_, 700, 5)))
        driver.apply(("put", "db.c", 1000 + round_, "new"), ("put", "db.c", -round_, "new"))
        driver.commit()
    pin.release()
    assert dict(seen) == state["db.c"]
    assert len(seen) == 700


def test_which_documents_were_touched_after_a_point(driver: Driver) -> None:
    driver.apply(("create", "db.c"), ("put", "db.c", 1, "a"), ("put", "db.c", 2, "a"))
    since = driver.store.last_applied.ts
    driver.apply(("put", "db.c", 2, "b"), ("put", "db.c", 3, "b"), ("put", "db.c", 3, "c"), ("delete", "db.c", 1))
    uuid = driver.coll("db.c").uuid
    with driver.store.read() as snapshot:
        expected = [(uuid, key_of(number)) for number in (1, 2, 3)]
        assert snapshot.touched_after(since, None, 100) == expected
        assert snapshot.touched_after(since, expected[0], 1) == expected[1:2]
        assert snapshot.collection_by_uuid(uuid) == driver.coll("db.c")
        assert snapshot.meta("opened") == 1


def test_cut_readers_end_with_an_error(driver: Driver) -> None:
    driver.apply(("create", "db.c"), *(("put", "db.c", number, "x") for number in range(300)))
    coll = driver.coll("db.c")
    snapshot = driver.store.read()
    documents = snapshot.scan(coll)
    next(documents)
    assert driver.store.readers.cut() == 1
    with pytest.raises(SnapshotCutError):
        list(documents)
    with pytest.raises(SnapshotCutError):
        snapshot.get(coll, key_of(1))
    snapshot.close()
    snapshot.close()
    assert driver.store.readers.cut() == 0
    assert driver.documents() == driver.state


def test_a_removed_collection_is_not_found(driver: Driver) -> None:
    driver.apply(("create", "db.c"), ("put", "db.c", 1, "a"))
    coll = driver.coll("db.c")
    driver.apply(("drop", "db.c"), ("noop",))
    driver.commit()
    with driver.store.read() as snapshot, pytest.raises(NamespaceNotFoundError):
        snapshot.get(coll, key_of(1))


@contextmanager
def reader_in_a_thread(driver: Driver, look: Callable[[Snapshot, Collection], object]) -> Iterator[None]:
    """It looks at many documents again and again, until it is cut off within the block."""
    driver.apply(("create", "db.c"), *(("put", "db.c", number, "x" * 100) for number in range(2000)))
    coll, started = driver.coll("db.c"), threading.Event()

    def read() -> None:
        with driver.store.read() as snapshot:
            started.set()
            while True:
                look(snapshot, coll)

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        started.wait()
        yield
        with pytest.raises(SnapshotCutError):
            reading.result(timeout=30)


@pytest.mark.in_turns
def test_a_reader_in_another_thread_is_cut_off_in_the_middle(driver: Driver) -> None:
    with reader_in_a_thread(driver, lambda snapshot, coll: snapshot.count(coll, driver.history[2][0])):
        assert driver.store.readers.cut() == 1
    driver.apply(("put", "db.c", 1, "goes on"))
    assert driver.store.wal.last_pass()


@pytest.mark.in_turns
def test_closing_the_store_ends_readers_in_other_threads(driver: Driver) -> None:
    with reader_in_a_thread(driver, lambda snapshot, coll: list(snapshot.scan(coll))):
        driver.store.close()
    driver.disk.rename(driver.store.path, driver.store.path + "2")  # nobody has it open any more
    driver.disk.rename(driver.store.path + "2", driver.store.path)
    driver.reopen()
    assert driver.documents() == driver.state


def test_an_entry_with_more_changes_than_a_step_undoes_goes_alone(driver: Driver) -> None:
    """A step that took older entries with it would hold the event loop for as long as they take."""
    driver.apply(("create", "db.a"), *(("put", "db.a", number, "x") for number in range(4)))
    before = driver.store.last_applied
    with driver.store.group() as txn:
        driver.run(txn, "noop")
        for number in range(10, 15):
            txn.put(driver.coll("db.a"), key_of(number), doc_of(number, "y"), ts=txn.last.ts, before=None)
    for left in (before, driver.history[3][0], driver.history[1][0]):
        undo_step(driver.store, driver.history[1][0], stem="s", limit=2)
        assert driver.store.last_applied == left


def test_the_documents_that_were_changed_since_are_those_of_one_collection(driver: Driver) -> None:
    driver.apply(("create", "db.a"), ("create", "db.b"), ("put", "db.a", 1, "x"), ("put", "db.b", 2, "x"))
    since = driver.store.last_applied.ts
    driver.apply(("put", "db.a", 3, "x"), ("put", "db.b", 4, "x"))
    with driver.store.group() as txn:
        driver.run(txn, "put", "db.a", 5, "x")
        driver.run(txn, "put", "db.b", 6, "x")
        driver.run(txn, "delete", "db.a", 1)
        found = {ns: txn.changed_keys(driver.coll(ns), since) for ns in ("db.a", "db.b")}
    assert found == {"db.a": {key_of(1), key_of(3), key_of(5)}, "db.b": {key_of(4), key_of(6)}}

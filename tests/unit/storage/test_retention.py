"""What keeps the database small never takes what someone still needs, and works in bounded slices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from replset.errors import CappedPositionLostError, CorruptDataError
from replset.ids import OPTIME_NULL, Millis, OpTime
from replset.storage import retention
from replset.storage import store as store_module
from replset.storage.retention import SAVE_AGES_EVERY_MS, falls_off_in_s, note_ages, remove_old_data
from replset.storage.store import RECHECK_BYTES, RECHECK_ROWS, StoreOptions
from replset.storage.undo import undo_step

from .conftest import WALL, Driver, key_of


def count(driver: Driver, sql: str) -> int:
    connection = driver.disk.connect(driver.store.path)
    try:
        found = connection.execute(sql).get
    finally:
        connection.close()
    assert isinstance(found, int)
    return found


def undo_rows(driver: Driver) -> int:
    return count(driver, "SELECT count(*) FROM undo")


def test_undo_is_kept_until_the_commit_point(driver: Driver) -> None:
    driver.apply(("create", "db.c"), *(("put", "db.c", number, "x") for number in range(9)))
    assert driver.settle() == 0
    assert undo_rows(driver) == 10
    driver.commit(driver.history[6][0], now=0)
    assert undo_rows(driver) == 4
    assert driver.store.pruned_through == driver.history[6][0].ts
    assert driver.reopen().pruned_through == driver.history[6][0].ts


def test_undo_is_kept_for_the_oldest_open_snapshot(driver: Driver) -> None:
    driver.apply(("create", "db.c"), *(("put", "db.c", number, "x") for number in range(9)))
    driver.store.set_commit_point(driver.store.last_applied)
    pins = [driver.store.pin(driver.history[at][0]) for at in (3, 5)]
    driver.settle()
    assert undo_rows(driver) == 7
    pins[0].release()
    pins[0].release()
    driver.settle()
    assert undo_rows(driver) == 5
    pins[1].release()
    driver.settle()
    assert undo_rows(driver) == 0


YEARS = 3650 * 86_400_000
AHEAD = pytest.mark.parametrize(
    "ahead_ms",
    [
        pytest.param(0, id="right"),
        pytest.param(3_600_000, id="an-hour-ahead-once"),
        pytest.param(YEARS, id="ten-years-ahead-once"),
        pytest.param(-YEARS, id="ten-years-behind-once"),
    ],
)


@AHEAD
def test_undo_is_kept_for_the_snapshot_history(make_driver: Callable[..., Driver], ahead_ms: int) -> None:
    driver = make_driver(options=StoreOptions(min_free_bytes=0, snapshot_history_s=10))
    driver.apply(("create", "db.c"))
    for second in range(20):
        driver.wall_ms = WALL + second * 1000 + (ahead_ms if second == 3 else 0)
        driver.apply(("put", "db.c", 1, f"at {second}"))
        note_ages(driver.store, Millis(second * 1000))
    driver.commit(now=19_500)
    # The state of second 9 may be asked for until the write of second 10 is ten seconds old.
    at_nine, state = driver.history[11]
    assert driver.store.pruned_through <= at_nine.ts
    assert 10 <= undo_rows(driver) <= 11
    with driver.store.read() as snapshot:
        assert dict(snapshot.scan(driver.coll("db.c"), at_nine)) == state["db.c"]
    driver.settle(40_000)
    assert undo_rows(driver) == 0


def test_pruned_through_is_an_entry_whose_state_can_still_be_read(make_driver: Callable[..., Driver]) -> None:
    """The limit of the history falls between two entries; the older of them stays a point to read at, as an export of
    what is not known to be committed does.
    """
    driver = make_driver(options=StoreOptions(min_free_bytes=0, snapshot_history_s=5))
    driver.apply(("create", "db.c"))
    for second in (0, 1, 20):
        driver.apply(("put", "db.c", second, "x"))
        note_ages(driver.store, Millis(second * 1000))
    driver.commit(now=20_000)
    at, state = driver.history[-2]
    assert driver.store.pruned_through == at.ts
    with driver.store.read() as snapshot:
        assert dict(snapshot.scan(driver.coll("db.c"), at)) == state["db.c"]


def test_undo_is_kept_while_a_rollback_is_in_progress(driver: Driver) -> None:
    driver.apply(("create", "db.c"), *(("put", "db.c", number, "x") for number in range(9)))
    assert undo_step(driver.store, driver.history[2][0], stem="r", limit=3)
    driver.reopen().set_commit_point(driver.store.last_applied)
    assert driver.settle() == 0


def test_pruning_goes_in_bounded_slices_of_whole_entries(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_ROWS", 4)
    driver.apply(("create", "db.c"), *(("put", "db.c", number, "x") for number in range(20)))
    driver.store.set_commit_point(driver.store.last_applied)
    before = undo_rows(driver)
    assert remove_old_data(driver.store, Millis(0))
    assert before - undo_rows(driver) == 5
    assert driver.settle() >= 3
    assert undo_rows(driver) == 0


@pytest.mark.parametrize(
    ("lagging_bytes", "kept"),
    [
        pytest.param(0, False, id="not-asked-for"),
        pytest.param(1 << 20, True, id="within-the-larger-limit"),
        pytest.param(3_000, False, id="beyond-it"),
    ],
)
def test_what_another_member_needs_stays_up_to_a_limit(
    make_driver: Callable[..., Driver], lagging_bytes: int, kept: bool
) -> None:
    driver = small_oplog(make_driver, oplog_lagging_bytes=lagging_bytes)
    driver.store.set_commit_point(driver.store.last_applied)
    needed = driver.history[5][0]
    driver.settle(needed=needed)
    assert (driver.store.oldest == needed) is kept
    assert driver.store.oplog_bytes <= max(lagging_bytes, 2_000)
    driver.settle(needed=driver.store.last_applied)
    assert driver.store.oplog_bytes <= 2_000


@pytest.mark.parametrize("needed", [None, 5, 20])
def test_what_stands_behind_a_copy_stays_beyond_every_limit(
    make_driver: Callable[..., Driver], needed: int | None
) -> None:
    driver = small_oplog(make_driver)
    store, history = driver.store, driver.history
    store.set_commit_point(store.last_applied)
    lagging = None if needed is None else history[needed][0]
    driver.settle(needed=lagging, copied=history[10][0])
    assert store.oldest == history[10][0]
    store.options = replace(store.options, min_free_bytes=store.disk.free_bytes(store.dbpath) * 2 // 3)
    driver.settle(needed=lagging, copied=history[10][0])
    assert store.oplog_bytes <= 2_000, "it goes before writes are refused"


def test_what_another_member_needs_goes_before_writes_are_refused(make_driver: Callable[..., Driver]) -> None:
    """The file never shrinks: a disk that the oplog filled would refuse writes until somebody makes space."""
    driver = small_oplog(make_driver, oplog_lagging_bytes=1 << 20)
    store = driver.store
    store.set_commit_point(store.last_applied)
    needed, free = driver.history[5][0], store.disk.free_bytes(store.dbpath)
    store.options = replace(store.options, min_free_bytes=free * 2 // 3)
    assert store.has_disk_space()
    driver.settle(needed=needed)
    assert store.oldest > needed
    assert store.oplog_bytes <= 2_000


def test_when_a_member_falls_off_the_oplog(make_driver: Callable[..., Driver]) -> None:
    driver = small_oplog(make_driver)
    store = driver.store
    store.set_commit_point(store.last_applied)
    driver.settle()
    newest = store.last_applied
    window_s = store.window_s()
    assert window_s == newest.seconds - store.oldest.seconds
    assert window_s - 5 < (falls_off_in_s(store, newest) or 0) <= window_s + 5  # the log is full
    assert (falls_off_in_s(store, store.oldest) or 0) <= 5
    assert falls_off_in_s(store, OPTIME_NULL) is None
    store.options = replace(store.options, oplog_max_bytes=2 * store.oplog_bytes)
    assert (falls_off_in_s(store, newest) or 0) >= 2 * window_s - 1


def small_oplog(make_driver: Callable[..., Driver], ahead_ms: int = 0, **more: float) -> Driver:
    """An entry each second; that of second 3 is written by a wall clock that is ahead."""
    driver = make_driver(
        options=StoreOptions(min_free_bytes=0, snapshot_history_s=0, oplog_max_bytes=2000, tail_bytes=500, **more)
    )
    driver.apply(("create", "db.c"))
    for second in range(40):
        driver.wall_ms = WALL + second * 1000 + (ahead_ms if second == 3 else 0)
        driver.apply(("put", "db.c", second, "x" * 50))
        note_ages(driver.store, Millis(second * 1000))
    return driver


def test_a_rollback_to_the_commit_point_finds_its_entry_after_trimming(make_driver: Callable[..., Driver]) -> None:
    """It is the common point that every rollback may have to go back to: without it there is only a new copy."""
    driver = small_oplog(make_driver)
    point = driver.history[5][0]
    driver.commit(point, now=0)
    driver.undo_to(point)
    assert driver.store.last_applied == driver.store.oldest == point


def test_the_oplog_is_trimmed_by_bytes_and_never_past_the_commit_point(make_driver: Callable[..., Driver]) -> None:
    driver = small_oplog(make_driver)
    assert driver.store.oplog_bytes > 5000
    driver.settle()
    assert driver.store.oldest == driver.history[1][0]
    driver.commit(driver.history[5][0], now=0)
    assert driver.store.oldest == driver.history[5][0]
    assert driver.store.trimmed_through == driver.history[4][0].ts
    driver.commit(now=0)
    assert 1500 < driver.store.oplog_bytes <= 2000
    assert driver.reopen().oplog_bytes == sum(
        len(row.entry) for row in driver.store.oplog_after(OPTIME_NULL, limit=100, max_bytes=1 << 30)
    )
    assert driver.documents() == driver.state


def test_the_newest_entry_is_never_trimmed(make_driver: Callable[..., Driver]) -> None:
    driver = make_driver(options=StoreOptions(min_free_bytes=0, oplog_max_bytes=1))
    driver.apply(("noop",), ("noop",), ("noop",))
    driver.commit(now=0)
    chain = driver.store.chain
    assert driver.store.oldest == driver.store.last_applied == driver.history[-1][0]
    assert (driver.reopen().last_applied, driver.store.chain) == (driver.history[-1][0], chain)


@AHEAD
def test_young_entries_are_kept_beyond_the_limit_of_bytes(make_driver: Callable[..., Driver], ahead_ms: int) -> None:
    driver = small_oplog(make_driver, ahead_ms, oplog_min_retention_s=30)
    driver.commit(now=39_000)
    assert driver.store.oldest == driver.history[12][0]  # of second 10
    driver.settle(50_000)
    assert driver.store.oldest == driver.history[23][0]


def test_a_restart_does_not_forget_how_old_entries_are(make_driver: Callable[..., Driver]) -> None:
    driver = small_oplog(make_driver, oplog_min_retention_s=300)
    driver.commit(now=39_000 + SAVE_AGES_EVERY_MS)
    another_clock, measured = 7_000_000, 39_000 + SAVE_AGES_EVERY_MS
    driver.reopen().set_commit_point(driver.store.last_applied)
    driver.settle(another_clock)
    driver.settle(another_clock + 299_000 - measured)
    assert driver.store.oldest == driver.history[1][0]
    driver.settle(another_clock + 310_000 - measured)
    assert driver.store.oldest > driver.history[5][0]


def test_what_a_rollback_undid_does_not_make_new_entries_old(make_driver: Callable[..., Driver]) -> None:
    driver = small_oplog(make_driver, oplog_min_retention_s=300)
    driver.settle(39_000 + SAVE_AGES_EVERY_MS)
    point = driver.history[5][0]
    driver.undo_to(point)
    written, _ = driver.history[20]
    assert driver.store.ages.age_ms(written, Millis(500_000)) == (0, 0)
    driver.reopen()
    note_ages(driver.store, Millis(500_000))
    assert driver.store.ages.age_ms(written, Millis(600_000)) == (0, 0)


def test_a_reader_whose_place_is_gone_gets_capped_position_lost(make_driver: Callable[..., Driver]) -> None:
    driver = small_oplog(make_driver)
    driver.commit(driver.history[5][0], now=0)
    for reopened in (False, True):
        store = driver.reopen() if reopened else driver.store
        with pytest.raises(CappedPositionLostError):
            store.oplog_after(driver.history[3][0], limit=1, max_bytes=1)
        assert store.oplog_after(driver.history[4][0], limit=1, max_bytes=1)[0].optime == driver.history[5][0]
        assert store.oplog_after(OPTIME_NULL, limit=1, max_bytes=1)[0].optime == driver.history[5][0]
        with store.read() as snapshot:
            with pytest.raises(CappedPositionLostError):
                snapshot.oplog_after(driver.history[3][0], limit=1, max_bytes=1)
            assert snapshot.oplog_after(OPTIME_NULL, limit=1, max_bytes=1)[0].optime == driver.history[5][0]


def test_first_and_last_optime_of_each_term_survive_trimming(make_driver: Callable[..., Driver]) -> None:
    driver = small_oplog(make_driver)
    driver.term = 2
    driver.apply(*(("put", "db.c", number, "y" * 50) for number in range(40)))
    driver.commit(now=0)
    assert driver.store.oldest.term == 2
    first, second = driver.reopen().terms()
    assert first == (driver.history[1][0], driver.history[41][0])
    assert second == (driver.history[42][0], None)


def test_a_drop_hides_the_collection_until_it_is_committed_then_removes_it(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_ROWS", 4)
    driver.apply(("create", "db.c"), *(("put", "db.c", number, "x") for number in range(10)))
    table = driver.coll("db.c").table
    driver.apply(("drop", "db.c"))
    dropped = driver.store.last_applied
    driver.apply(("create", "db.c"), ("put", "db.c", 1, "a new one of that name"))
    driver.commit(OpTime(1, dropped.ts - 1), now=0)
    assert count(driver, f"SELECT count(*) FROM {table}") == 10
    driver.store.set_commit_point(dropped)
    assert driver.settle() >= 3
    assert count(driver, f"SELECT count(*) FROM sqlite_schema WHERE name = '{table}'") == 0
    assert count(driver, "SELECT count(*) FROM catalog") == 1
    assert driver.documents() == driver.state
    driver.reopen()
    assert driver.documents() == {"db.c": {key_of(1): driver.state["db.c"][key_of(1)]}}


def test_undo_of_a_drop_brings_the_documents_back(driver: Driver) -> None:
    driver.apply(("create", "db.c"), *(("put", "db.c", number, "x") for number in range(10)))
    point, state = driver.history[-1]
    driver.apply(("drop", "db.c"), ("create", "db.c"), ("put", "db.c", 1, "new"))
    driver.reopen()
    driver.undo_to(point, limit=1)
    assert driver.documents() == state


def test_the_count_of_bytes_is_noted_now_and_then(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_SAVE_SIZE_EVERY", 300)
    driver.apply(("create", "db.c"), *(("put", "db.c", number, "x") for number in range(10)))
    assert driver.settle() == 1
    assert count(driver, "SELECT value FROM meta WHERE name = 'oplog_bytes'") == driver.store.oplog_bytes


def rechecked(driver: Driver) -> int:
    """Slices of one pass; each begins behind the last one's newest row."""
    slices, after = 0, 0
    while (place := driver.store.recheck(after)) > after:
        after, slices = place, slices + 1
    assert after == driver.store.last_applied.ts
    return slices


def test_old_entries_are_checked_in_bounded_slices(make_driver: Callable[..., Driver]) -> None:
    driver = small_oplog(make_driver)
    driver.apply(*[("noop",)] * (2 * RECHECK_ROWS + 1))
    assert rechecked(driver) == 3
    driver.apply(*[("put", "db.c", number, "x" * (RECHECK_BYTES // 2)) for number in range(4)])
    assert rechecked(driver) == 3 + 3, "of large ones fewer in a slice: one each"
    driver.commit(now=0)
    assert driver.store.trimmed_through > 0
    assert rechecked(driver) > 0, "from the oldest that is left"


@pytest.mark.parametrize("change", ["entry = entry || x'00'", "chain = chain + 1", "op = CAST(x'ff' AS TEXT)"])
def test_a_check_finds_what_the_disk_changed_while_memory_has_it_whole(driver: Driver, change: str) -> None:
    driver.apply(*[("noop",)] * 9)
    ts = driver.history[5][0].ts
    driver.store._connection.execute(f"UPDATE oplog SET {change} WHERE ts = ?", (ts,))
    with pytest.raises(CorruptDataError):
        driver.store.recheck(driver.store.recheck(0))

"""Pages of a log, by a naive list; whether a log holds another member's entry, or held it before it was trimmed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate, product

from replset.oplog_row import OplogRow
from replset.storage import oplog
from replset.storage.oplog import DROP_PARTS, ROW_BYTES, OplogTail, is_in_history, row_at
from replset.storage.store import StoreOptions
from tests.unit.storage.conftest import Driver


def test_a_log_holds_its_entries_and_those_that_were_trimmed(make_driver: Callable[..., Driver]) -> None:
    driver = make_driver(options=StoreOptions(min_free_bytes=0, snapshot_history_s=0, oplog_max_bytes=1_500))
    store = driver.store

    def holds(row: OplogRow) -> bool:
        return store.query(lambda connection: is_in_history(connection, row))

    some = OplogRow(1, 1, "n", "", None, 0, 0, 0, b"")
    assert not holds(some), "an empty log holds nothing"
    for term in (1, 3):
        driver.term = term
        driver.apply(*[("noop",)] * 20)
    optimes = [optime for optime, _ in driver.history[1:]]
    rows = [row for at in optimes if (row := store.query(lambda connection, at=at: row_at(connection, at))) is not None]
    assert all(map(holds, rows))
    store.set_commit_point(store.last_applied)
    driver.settle()
    assert optimes[20] < store.oldest, "the whole first term is gone"
    assert all(map(holds, rows))
    newest, end_of_term, gone = rows[-1], rows[19], rows[5]
    assert not holds(newest._replace(chain=newest.chain + 1)), "the history before it is another one"
    assert not holds(newest._replace(term=4)), "another primary wrote at that time"
    assert not holds(newest._replace(ts=newest.ts + 1)), "it ends before"
    assert not holds(end_of_term._replace(ts=end_of_term.ts + 1)), "the term had no entry after its last one here"
    assert not holds(gone._replace(term=2)), "there was no such term here"


# --- pages -----------------------------------------------------------------------------------------------------------


def page(rows: Iterable[OplogRow], limit: int, max_bytes: int) -> list[OplogRow]:
    taken: list[OplogRow] = []
    for row in rows:
        if taken and (len(taken) == limit or sum(len(one.entry) for one in (*taken, row)) > max_bytes):
            break
        taken.append(row)
    return taken


def test_each_page_of_a_log_is_that_of_a_list(driver: Driver) -> None:
    """Wherever it begins and ends: by rows, by bytes, on the very byte; from the file and from memory."""
    driver.apply(("create", "db.a"), ("create", "db.c"), ("put", "db.a", 1, "x"), ("put", "db.c", 2, "x" * 40))
    driver.wall_ms += 5_000
    driver.apply(("put", "db.a", 1, "y" * 7), ("delete", "db.c", 2), ("noop",), ("put", "db.c", 3, "z"))
    store = driver.store
    rows = store.query(lambda connection: oplog.rows_after(connection, 0, limit=99, max_bytes=1 << 20))
    assert len(rows) == 8
    sizes = list(accumulate(len(row.entry) for row in rows))
    places = sorted({ts for row in rows for ts in (row.ts - 1, row.ts, row.ts + 1)})
    limits = sorted({0, 1, *(size + more for size in sizes for more in (-1, 0))})
    for after in places:
        behind = [row for row in rows if row.ts > after]
        for limit, max_bytes in product((1, 2, 7, 8, 9), limits):
            expected = page(behind, limit, max_bytes)
            read = store.query(
                lambda connection, at=(after, limit, max_bytes): oplog.rows_after(
                    connection, at[0], limit=at[1], max_bytes=at[2]
                )
            )
            assert read == expected
            kept = store.tail.after(after, limit, max_bytes)
            assert kept == (None if after < rows[0].ts else [tuple(row) for row in expected])
    for after, (ns, op), limit in product(places, (("db.a", None), ("db.c", None), ("db.c", "i")), (1, 2, 3)):
        wanted = [row for row in rows if row.ts > after and row.ns == ns and op in (None, row.op)]
        for max_bytes in limits:
            read = store.query(
                lambda connection, at=(after, limit, max_bytes, ns, op): oplog.rows_after(
                    connection, at[0], limit=at[1], max_bytes=at[2], ns=at[3], op=at[4]
                )
            )
            assert read == page(wanted, limit, max_bytes)


def test_each_place_of_a_log_is_that_of_a_list(driver: Driver) -> None:
    driver.apply(("create", "db.a"), *[("put", "db.a", number, "x" * number) for number in range(5)])
    driver.wall_ms += 5_000
    driver.apply(("noop",), ("delete", "db.a", 3))
    store = driver.store
    rows = store.query(lambda connection: oplog.rows_after(connection, 0, limit=99, max_bytes=1 << 20))
    places = sorted({ts for row in rows for ts in (row.ts - 1, row.ts, row.ts + 1)})
    every = [row.ts for row in rows]
    sizes = list(accumulate(len(row.entry) for row in rows))
    for count, size in enumerate(sizes, 1):
        for max_bytes, expected in ((size - 1, count), (size, count + 1)):
            assert store.oplog_rows_at(every, max_bytes=max_bytes) == rows[:expected]
    for at in places:
        behind = [row for row in rows if row.ts > at]
        from_here = [row for row in rows if row.ts >= at]
        kept = store.tail.row_at(at)
        assert kept == next((row for row in rows if row.ts == at), None)
        for number in range(1, 10):
            further = store.query(lambda connection, n=(at, number): oplog.ts_further_on(connection, *n))
            assert further == (behind[number - 1].ts if number <= len(behind) else None)
            checked = store.query(
                lambda connection, n=(at, number): oplog.check_chain(connection, "", after_ts=n[0], limit=n[1])
            )
            assert checked == (from_here[: number + 1][-1].ts if len(from_here) > 1 else None)
            sliced = store.query(
                lambda connection, n=(at, number): oplog.check_slice(
                    connection, "", n[0], limit=n[1], max_bytes=1 << 20
                )
            )
            assert sliced == (behind[:number][-1].ts if behind else 0)
        wall_ms = store.query(lambda connection, ts=at: oplog.wall_ms_at(connection, ts))
        assert wall_ms == (from_here[0].wall_ms if from_here else None)
        for until, most in product(places, (1, 3, 99)):
            between = [row for row in rows if at < row.ts <= until]
            count = store.query(lambda connection, n=(at, until, most): oplog.count_between(connection, *n))
            assert count == len(between[:most])
    for limit in (1, 3, 99):
        assert [head.optime for head in store.newest_heads(limit)] == [row.optime for row in rows[-limit:]]


def test_the_newest_rows_stay_in_memory_up_to_a_size() -> None:
    """Some more than that may be there, so that few are dropped often."""
    rows = [(ts, 1, "n", "", None, 0, 0, 0, b"x" * 100) for ts in range(1, 12)]
    size = ROW_BYTES + 100
    tail = OplogTail(DROP_PARTS * (size * 10 // (DROP_PARTS + 1)))
    tail._max_bytes = 10 * size * DROP_PARTS // (DROP_PARTS + 1) + 1
    assert tail._max_bytes + tail._max_bytes // DROP_PARTS == 10 * size
    tail.add(rows[:10], 1_000)
    assert tail.rows == rows[:10], "as much as may be"
    tail.add(rows[10:], 100)
    assert tail.rows == rows[2:], "one more, and it goes back to the size"
    assert tail.row_at(2) is None
    assert tail.row_at(3) is not None
    tail.clear()
    assert tail.after(5, 9, 999) is None
    tail.add(rows[:1], 100)
    assert tail._size == size

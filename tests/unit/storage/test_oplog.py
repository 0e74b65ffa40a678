"""Whether a log holds the entry of another member, or held it before it was trimmed."""

from __future__ import annotations

from collections.abc import Callable

from replset.oplog_row import OplogRow
from replset.storage.oplog import is_in_history, row_at
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

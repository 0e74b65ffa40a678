"""Rules of retryable writes, each broken on purpose. See `mutants.py`."""

from __future__ import annotations

from typing import Any

import apsw
import pytest

from replset.errors import ErrorCode, ReplError
from replset.features.crud.retryable import RetryableWrite
from replset.features.transactions.session_expiry import SessionExpiry
from replset.ids import OPTIME_NULL, Millis
from replset.operations.transactions import TransactionTable
from replset.replication import applier
from replset.replication.session_write import SessionWrite
from replset.replication.write_ops import WriteGroup
from replset.storage import copies, txn, undo
from replset.storage.schema import SESSIONS_UUID, collection_table
from tests.simulation.kit.kinds import ROLLBACK_RUNS
from tests.simulation.kit.mutant import Mutant


def session_record_not_undone(patch: pytest.MonkeyPatch) -> None:
    """A rollback leaves the records of sessions as they are: a retry is answered by a write that is gone."""
    real = txn.revert

    def revert(connection: apsw.Connection, catalog: Any, kind: str, coll: bytes | None, *rest: Any) -> None:
        if coll is not None:
            real(connection, catalog, kind, coll, *rest)

    patch.setattr(undo, "revert", revert)


def session_records_not_copied(patch: pytest.MonkeyPatch) -> None:
    """An initial sync leaves the records of sessions behind."""
    real = copies.write_meta

    def write_meta(connection: apsw.Connection, name: str, value: Any) -> None:
        real(connection, name, value)
        connection.execute(f"DELETE FROM {collection_table(SESSIONS_UUID)}")

    patch.setattr(copies, "write_meta", write_meta)


def session_record_not_derived(patch: pytest.MonkeyPatch) -> None:
    """A secondary applies a retryable write without its session's record: the next primary applies a retry again."""
    patch.setattr(applier, "record_applied", lambda *_: None)


def sessions_forgotten_early(patch: pytest.MonkeyPatch) -> None:
    """Sessions end while their clients still send writes again."""
    real = SessionExpiry.__init__

    def init(self: SessionExpiry, context: Any, node: Any, writer: Any, sessions: Any, timeout_ms: Millis) -> None:
        real(self, context, node, writer, sessions, Millis(300))

    patch.setattr(SessionExpiry, "__init__", init)


def trimmed_history_is_none(patch: pytest.MonkeyPatch) -> None:
    """A retry whose first attempt's entries are trimmed away is taken for a first attempt."""
    real = RetryableWrite.read_chain

    async def read_chain(self: RetryableWrite) -> None:
        await real(self)
        self._is_complete = True

    patch.setattr(RetryableWrite, "read_chain", read_chain)


def image_not_recorded(patch: pytest.MonkeyPatch) -> None:
    """The record does not keep what a findAndModify answered."""
    real = SessionWrite.record

    def record(self: SessionWrite, *args: Any, **images: Any) -> None:
        real(self, *args)

    patch.setattr(SessionWrite, "record", record)


def older_number_taken(patch: pytest.MonkeyPatch) -> None:
    """A write comes late, when its session has used a greater number, and is applied."""
    real = RetryableWrite.begin

    def begin(self: RetryableWrite, group: WriteGroup) -> bool:
        try:
            return real(self, group)
        except ReplError as error:
            if error.code != ErrorCode.TRANSACTION_TOO_OLD:
                raise
        self.write.previous = OPTIME_NULL
        group.session_write = self.write
        return True

    patch.setattr(RetryableWrite, "begin", begin)


def older_transaction_begins(patch: pytest.MonkeyPatch) -> None:
    """A transaction begins under a number behind what its session's record has."""
    patch.setattr(TransactionTable, "newest_number", lambda self, key: -1)


def untried_though_trimmed(patch: pytest.MonkeyPatch) -> None:
    """Many inserts are done again if all of their first attempt's entries are trimmed away."""
    real = RetryableWrite.untried

    def untried(self: RetryableWrite, start: int, stop: int) -> Any:
        return real(self, start, stop) or (() if self._executed else self.ids[start:stop])

    patch.setattr(RetryableWrite, "untried", untried)


WRITES = "tests/unit/features/test_retryable_writes.py"
SESSION_MUTANTS = (
    Mutant(session_record_not_undone, (11, 2), "invariant", ROLLBACK_RUNS),
    Mutant(session_records_not_copied, (2, 1), "invariant"),
    Mutant(session_record_not_derived, (0, 1), "invariant"),
    Mutant(sessions_forgotten_early, (0, 1), "invariant 13"),
    Mutant(trimmed_history_is_none, test=f"{WRITES}::test_history_that_is_trimmed_away_is_an_error"),
    Mutant(image_not_recorded, (1,), "invariant"),
    Mutant(older_number_taken, (1,), "invariant 13"),
    Mutant(older_transaction_begins, test="tests/unit/features/test_transactions.py::test_numbers_of_one_session"),
    Mutant(
        untried_though_trimmed, test=f"{WRITES}::test_inserts_whose_whole_history_is_trimmed_away_are_not_done_again"
    ),
)

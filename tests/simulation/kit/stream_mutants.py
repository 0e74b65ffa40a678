"""Rules of change streams, each broken on purpose. See `mutants.py`."""

from __future__ import annotations

from typing import Any

import pytest

from replset.features.change_streams.change_stream import ChangeStreamCursor
from replset.ids import OpTime
from replset.operations.history import History
from replset.oplog_row import OplogRow
from replset.query.change_tokens import Token
from tests.simulation.kit.mutant import Mutant


def streams_show_uncommitted(patch: pytest.MonkeyPatch) -> None:
    """Change streams show entries that are not committed."""
    patch.setattr(History, "committed", property(lambda self: self._member.store.last_applied))


def token_ahead_of_the_batch(patch: pytest.MonkeyPatch) -> None:
    """The token of a batch stands behind events that wait for the next one."""
    real = ChangeStreamCursor.batch

    async def batch(self: ChangeStreamCursor, *args: Any) -> list[bytes]:
        documents = await real(self, *args)
        self.resume_token = self._at.document()
        return documents

    patch.setattr(ChangeStreamCursor, "batch", batch)


def rest_of_transaction_skipped(patch: pytest.MonkeyPatch) -> None:
    """Who resumes within a transaction goes on behind it."""
    patch.setattr(Token, "read_after", Token.optime)


def waiting_passes_entries(patch: pytest.MonkeyPatch) -> None:
    """A stream that waits passes entries that nobody has looked at."""

    async def wait(self: History, position: OpTime, *_: object) -> OpTime:
        await self._member.wait_for_change(100)
        return max(position, self.committed)

    patch.setattr(History, "wait", wait)


def trimmed_history_not_noticed(patch: pytest.MonkeyPatch) -> None:
    """A reader whose entries were trimmed away goes on with those that are left."""

    async def after(self: History, position: OpTime, *, limit: int = 512, max_bytes: int = 1 << 20) -> list[OplogRow]:
        is_there = position.ts >= self._member.store.trimmed_through
        return self._live(position if is_there else OpTime(0, 0), limit, max_bytes)

    patch.setattr(History, "after", after)


TESTS = "tests/unit/features/test_change_stream.py"
STREAM_MUTANTS = (
    Mutant(streams_show_uncommitted, (5,), "invariant 19"),
    Mutant(token_ahead_of_the_batch, (5,), "invariant 19"),
    Mutant(rest_of_transaction_skipped, (5,), "invariant 19"),
    Mutant(waiting_passes_entries, (5,), "invariant 19"),
    Mutant(trimmed_history_not_noticed, test=f"{TESTS}::test_history_that_is_gone_is_said_with_the_oldest_token"),
)

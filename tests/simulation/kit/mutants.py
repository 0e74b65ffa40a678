"""Rules broken on purpose: each mutant takes one rule out of the members, and a recorded run must notice.

A mutant that no checker notices means that the simulation does not test that rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from replset.core import leading
from replset.core.effects import LastVote
from replset.ids import OPTIME_NULL, MemberId, OpTime
from replset.runtime.durability import Durability
from replset.runtime.member import RunningMember
from replset.storage.catalog import Collection
from replset.storage.txn import Txn

Break = Callable[[pytest.MonkeyPatch], None]


def vote_not_durable(patch: pytest.MonkeyPatch) -> None:
    """A vote is told before it is on disk, and a restart forgets it."""
    real = RunningMember.save

    def save(self: RunningMember, record: Any) -> None:
        if not isinstance(record, LastVote):
            real(self, record)

    patch.setattr(RunningMember, "save", save)


def commit_point_in_an_old_term(patch: pytest.MonkeyPatch) -> None:
    """Entries of earlier terms are counted as committed without one of the primary's own term (Raft, 5.4.2)."""

    def commit_point(
        durable: Mapping[MemberId, OpTime], holders: list[MemberId], write_majority: int, term: int
    ) -> OpTime:
        newest_first = sorted((durable.get(holder, OPTIME_NULL) for holder in holders), reverse=True)
        return newest_first[write_majority - 1]

    patch.setattr(leading, "commit_point", commit_point)


def undo_row_skipped(patch: pytest.MonkeyPatch) -> None:
    """An insert writes no undo row, so a rollback leaves the document."""
    real = Txn.insert_new

    def insert_new(self: Txn, coll: Collection, key: bytes, doc: bytes, ts: int) -> bool:
        done = real(self, coll, key, doc, ts)
        if done:
            self._undo.pop()
        return done

    patch.setattr(Txn, "insert_new", insert_new)


def durable_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    """last_durable is told as soon as an entry is committed in memory; the sync comes later."""
    real = Durability.committed

    def committed(self: Durability) -> None:
        store = self._store()
        self.last_durable, self.durable_wall_ms = store.last_applied, store.last_wall_ms
        real(self)

    patch.setattr(Durability, "committed", committed)


def votes_for_members_behind(patch: pytest.MonkeyPatch) -> None:
    """A voter does not mind that the candidate lacks entries that it has itself."""
    from replset.core.election import Elections

    real = Elections.vote_refusal

    def vote_refusal(self: Elections, request: Any) -> str | None:
        refusal = real(self, request)
        return None if refusal is not None and refusal.startswith("the candidate is at ") else refusal

    patch.setattr(Elections, "vote_refusal", vote_refusal)

"""Connections between the parts of a member, taken away on purpose; the check of this number must notice each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any

import pytest

from replset.core.quorum import WriteConcern
from replset.ids import OPTIME_NULL, Millis, OpTime
from replset.member import shell
from replset.member.disk import data_replacement
from replset.member.disk.writer import Writer
from replset.member.member import RunningMember
from replset.operations import read_concern, write_concern
from replset.operations.kernel import Kernel
from replset.operations.waiters import WaiterList
from replset.storage.store import Pin, Store
from tests.simulation.kit import wiring

Break = Callable[[pytest.MonkeyPatch], None]


def cursor_survives_a_rollback(patch: pytest.MonkeyPatch) -> None:
    """A cursor goes on in a history that was taken back."""

    def undone(self: RunningMember) -> None:
        self.durability.on_undone()
        self._on_moved()
        self._changes.notify()

    patch.setattr(RunningMember, "_on_undone", undone)


def entry_of_an_old_term_acknowledged(patch: pytest.MonkeyPatch) -> None:
    """An entry of an earlier term is acknowledged by its position, though it may have been rolled back."""
    real = write_concern.wait_until_met

    async def wait(member: Kernel, optime: OpTime, concern: WriteConcern, deadline: Millis | None) -> Any:
        if member.node.is_satisfied(concern, optime):
            return None
        return await real(member, optime, concern, deadline)

    patch.setattr(write_concern, "wait_until_met", wait)


def waiters_without_j(patch: pytest.MonkeyPatch) -> None:
    """Writes that wait for disks are released with those that do not."""
    real = WaiterList.add

    def add(
        self: WaiterList, key: Hashable, optime: OpTime, satisfied: Callable[[OpTime], bool]
    ) -> asyncio.Future[None]:
        assert isinstance(key, tuple)
        return real(self, key[0], optime, satisfied)

    patch.setattr(WaiterList, "add", add)


def majority_read_before_the_own_term(patch: pytest.MonkeyPatch) -> None:
    """A primary's majority read is answered at a commit point of an earlier term."""
    real = read_concern.newest_readable

    def newest_readable(member: Kernel, level: Any) -> OpTime | None:
        if level != "majority":
            return real(member, level)
        point = min(member.node.commit_point, member.store.last_applied)
        return None if point == OPTIME_NULL else point

    patch.setattr(read_concern, "newest_readable", newest_readable)


def majority_cursor_without_its_pin(patch: pytest.MonkeyPatch) -> None:
    """Undo that a majority cursor still needs is pruned."""
    patch.setattr(Store, "pin", lambda _self, at: Pin(at, lambda _pin: None))


def noop_in_a_past_term(patch: pytest.MonkeyPatch) -> None:
    """A no-op that waited for a save is written after the stepdown."""

    patch.setattr(Writer, "append_noop", Writer._write_noop)


def writes_end_behind_the_save(patch: pytest.MonkeyPatch) -> None:
    """A stepdown ends writes only once what is being saved is on disk."""
    patch.setattr(shell, "ends_writes", lambda _effect: False)


def rollback_id_of_the_source(patch: pytest.MonkeyPatch) -> None:
    """An installed copy takes its rollback id from the source alone."""
    real = data_replacement.install_copy

    def install(*arguments: Any, **named: Any) -> None:
        real(*arguments, **{**named, "rollback_id_before": 0})

    patch.setattr(data_replacement, "install_copy", install)


def wtimeout_answered_as_success(patch: pytest.MonkeyPatch) -> None:
    """A write concern that was not met in time is answered as met."""
    real = write_concern.done_within

    async def done_within(future: asyncio.Future[None], timeout_ms: int | None) -> bool:
        await real(future, timeout_ms)
        return True

    patch.setattr(write_concern, "done_within", done_within)


WIRING_MUTANTS: tuple[tuple[Break, int], ...] = tuple(
    (break_rule, wiring.CHECKS.index(check))
    for break_rule, check in (
        (cursor_survives_a_rollback, wiring.cursor_of_an_undone_history),
        (entry_of_an_old_term_acknowledged, wiring.entry_of_an_old_term),
        (waiters_without_j, wiring.journaled_beside_not_journaled),
        (majority_read_before_the_own_term, wiring.majority_read_of_a_new_primary),
        (majority_cursor_without_its_pin, wiring.majority_cursor_with_its_pin),
        (noop_in_a_past_term, wiring.noop_of_a_past_term),
        (writes_end_behind_the_save, wiring.writes_behind_a_save),
        (rollback_id_of_the_source, wiring.rollback_id_of_a_copy),
        (wtimeout_answered_as_success, wiring.wtimeout_is_no_success),
    )
)

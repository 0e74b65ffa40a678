"""Which sets follow: the one that was told to, and none that was made of its backup."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from replset.ids import OpTime
from replset.replication.followed import FollowMode, FollowState, read_state, save_state
from replset.replication.write_ops import WriteGroup
from replset.runtime.jobs.set_follower import SetFollower
from replset.storage.disk import RealDisk
from replset.storage.store import Store, StoreOptions
from tests.simulation.kit.clock import SimClock
from tests.unit.runtime.kit import context_of, on_virtual_time

POSITION = OpTime(3, 70 << 32)


class Writer:
    term = 2

    def __init__(self, store: Store) -> None:
        self._store = store

    async def write(self, operation: Callable[[WriteGroup], Any]) -> Any:
        with self._store.group() as txn:
            return operation(WriteGroup(txn, 2, 1_790_000_000_000, random.Random(1)))


@pytest.mark.parametrize(("set_id", "mode"), [("a1", FollowMode.FOLLOWING), ("b2", FollowMode.STOPPED)])
def test_a_set_made_of_a_followers_backup_follows_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_id: str, mode: FollowMode
) -> None:
    followed: list[str] = []

    async def follow(_self: SetFollower, state: FollowState, _term: int) -> None:
        followed.append(state.set_name)
        if len(followed) == 1:
            raise ValueError("odd")  # no ReplError: a fault of the product, or of what came

    monkeypatch.setattr(SetFollower, "_follow", follow)
    store = Store.open(RealDisk(), tmp_path, StoreOptions(min_free_bytes=0))
    writer = Writer(store)
    begun = FollowState(FollowMode.FOLLOWING, ("a:1",), "site1", "follower-site2", POSITION, POSITION, "a1")

    async def main(clock: SimClock) -> None:
        await writer.write(lambda group: save_state(group, begun))
        node: Any = SimpleNamespace(set_id=set_id)
        follower = SetFollower(context_of(store, clock), node, writer, lambda: None)  # type: ignore[arg-type]
        task = asyncio.create_task(follower.run())
        await asyncio.sleep(1)
        assert follower.progress.error.startswith("ValueError: odd" if mode is FollowMode.FOLLOWING else "")
        await asyncio.sleep(2)
        assert not task.done()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    on_virtual_time(main)
    state = read_state(store)
    assert state is not None
    assert (state.mode, state.position, bool(followed)) == (mode, POSITION, mode is FollowMode.FOLLOWING)
    assert len(followed) != 1, "it is tried again"
    store.close()

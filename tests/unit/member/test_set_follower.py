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

from replset.bson import encode
from replset.errors import HostUnreachableError
from replset.features.follower import set_follower
from replset.features.follower.follow_source import SourceSet
from replset.features.follower.followed import (
    FOLLOW_NS,
    FollowMode,
    FollowState,
    own_entry,
    position_in,
    read_state,
    save_state,
)
from replset.features.follower.set_follower import SetFollower
from replset.ids import OPTIME_NULL, OpTime
from replset.oplog_entry import insert_entry
from replset.replication.applier import apply_batch
from replset.replication.write_ops import WriteGroup, do_noop
from replset.storage.disk import RealDisk
from replset.storage.store import Store, StoreOptions
from tests.simulation.kit.clock import SimClock
from tests.unit.member.kit import context_of

POSITION = OpTime(3, 70 << 32)


class Writer:
    term = 2

    def __init__(self, store: Store) -> None:
        self._store = store

    async def write(self, operation: Callable[[WriteGroup], Any]) -> Any:
        with self._store.group() as txn:
            return operation(WriteGroup(txn, 2, 1_790_000_000_000, random.Random(1)))


@pytest.mark.parametrize(("set_id", "mode"), [("a1", FollowMode.FOLLOWING), ("b2", FollowMode.STOPPED)])
async def test_a_set_made_of_a_followers_backup_follows_nobody(
    clock: SimClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_id: str, mode: FollowMode
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

    await writer.write(lambda group: save_state(group, begun))
    node: Any = SimpleNamespace(set_id=set_id)
    follower = SetFollower(context_of(store, clock), node, writer)  # type: ignore[arg-type]
    task = asyncio.create_task(follower.run())
    await asyncio.sleep(1)
    assert follower.progress.error.startswith("ValueError: odd" if mode is FollowMode.FOLLOWING else "")
    await asyncio.sleep(2)
    assert not task.done()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task

    state = read_state(store)
    assert state is not None
    assert (state.mode, state.position, bool(followed)) == (mode, POSITION, mode is FollowMode.FOLLOWING)
    assert len(followed) != 1, "it is tried again"
    store.close()


@pytest.mark.parametrize(("most", "notes", "saves"), [(10, 40, range(4, 8)), (1_000, 3, range(2, 3))])
async def test_while_the_source_is_gone_the_place_stays_near_the_end_of_the_oplog(
    clock: SimClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, notes: int, saves: range
) -> None:
    """The document has it from the first try on: the oplog is trimmed, and with it the entries that came."""

    async def gone(_self: SourceSet, *_: object) -> None:
        raise HostUnreachableError("gone")

    monkeypatch.setattr(SourceSet, "run", gone)
    monkeypatch.setattr(set_follower, "MOST_OWN_ENTRIES", most)
    store = Store.open(RealDisk(), tmp_path, StoreOptions(min_free_bytes=0))
    writer, came = Writer(store), OpTime(3, POSITION.ts + 1)
    begun = FollowState(FollowMode.FOLLOWING, ("a:1",), "site1", "follower-site2", POSITION, POSITION, "a1")

    await writer.write(lambda group: save_state(group, begun))
    entry = insert_entry("app.c", bytes(16), encode({"_id": 1}), came, 0)
    own = own_entry(entry, OpTime(2, store.last_applied.ts + 1), "site1")
    assert apply_batch(store, [own], 0, 1, lambda: False) == 1
    node: Any = SimpleNamespace(set_id="a1", commit_point=OPTIME_NULL)
    follower = SetFollower(context_of(store, clock), node, writer)  # type: ignore[arg-type]
    task = asyncio.create_task(follower.run())
    for _ in range(notes):
        await writer.write(lambda group: do_noop(group, {"msg": "note"}))
        await asyncio.sleep(2)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task

    state = read_state(store)
    assert state is not None
    assert state.position == came
    assert store.query(lambda connection: position_in(connection, state)).looked_at <= 12
    saved = [row for row in store.oplog_after(OPTIME_NULL, limit=1_000, max_bytes=1 << 20) if row.ns == FOLLOW_NS]
    assert len(saved) in saves, "each time that enough entries are behind it, not with each try"
    store.close()

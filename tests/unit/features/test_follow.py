"""replSetFollow on the set that begins to follow, and what its source gives it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest

from replset.bson import encode, encode_key
from replset.errors import ErrorCode
from replset.features.follower import follow
from replset.features.follower.follow_source import OwnHistory, SourceSet
from replset.features.follower.followed import FollowMode, read_state
from replset.ids import OPTIME_NULL, OpTime
from replset.oplog_row import OplogRow
from replset.optime import optime_document, timestamp
from replset.replication.write_ops import WriteGroup, do_create, do_insert
from tests.rig import Client
from tests.unit.features.test_history import trim

T = TypeVar("T")
START = OpTime(7, 7)


class Source(SourceSet):
    """Finds the place, while a client of the other set may write."""

    client: Client
    is_written = False
    asked: OwnHistory | None = None

    async def run(self, work: Callable[..., T], *args: object) -> T:
        result = work(*args)  # a real thread would be none of the virtual time
        await asyncio.sleep(0.1)
        return result

    def find_start(self, own: OwnHistory) -> OpTime:
        self.set_name, type(self).asked = "site1", own
        if self.is_written:
            self.client.rig.begin(_write(self.client))
        return START


async def _write(client: Client) -> None:
    await client.member.write(_insert)


def _insert(group: WriteGroup) -> None:
    do_insert(group, do_create(group, "app.c"), encode_key(1), encode({"_id": 1}))


@pytest.mark.parametrize("has_data", [False, True])
def test_the_place_is_looked_for_by_what_is_here(
    client: Client, monkeypatch: pytest.MonkeyPatch, has_data: bool
) -> None:
    monkeypatch.setattr(follow, "SourceSet", Source)
    if has_data:
        client.ok({"insert": "c", "documents": [{"_id": 1}]}, "app")
    client.ok({"replSetFollow": "start", "source": "a:1"}, "admin")
    assert Source.asked is not None
    assert Source.asked.has_data is has_data


@pytest.mark.parametrize("is_written", [False, True])
def test_what_is_written_meanwhile_is_noticed(
    client: Client, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    monkeypatch.setattr(Source, "client", client, raising=False)
    monkeypatch.setattr(Source, "is_written", is_written)
    monkeypatch.setattr(follow, "SourceSet", Source)
    command = {"replSetFollow": "start", "source": "a:1"}
    if is_written:
        assert client.code(command, db="admin") == 20
        assert read_state(client.member.store) is None
    else:
        client.ok(command, db="admin")
        state = read_state(client.member.store)
        assert state is not None
        assert (state.mode, state.position) == (FollowMode.FOLLOWING, START)


class Older:
    """An archive of the first entries."""

    missing_through = 0

    def __init__(self, rows: list[OplogRow]) -> None:
        self._rows = rows
        self.oldest = rows[0].optime

    async def after(self, position: OpTime, *, limit: int, max_bytes: int) -> list[OplogRow]:
        return [row for row in self._rows if row.ts > position.ts][:limit]


@pytest.mark.parametrize("is_archived", [False, True])
def test_a_source_gives_committed_entries_behind_one_that_it_has(client: Client, is_archived: bool) -> None:
    member = client.member
    client.ok({"insert": "c", "documents": [{"_id": n} for n in range(3)]})
    client.rig.stop_disk()
    client.ok({"insert": "c", "documents": [{"_id": 3}], "writeConcern": {"w": 1}})
    rows = member.store.oplog_after(OPTIME_NULL, limit=100, max_bytes=1 << 20)[client.begins_at :]

    def asked(at: OpTime) -> list[object] | int:
        reply = client.run({"replSetFollowEntries": optime_document(at)}, db="admin")
        return [entry["ts"] for entry in reply["entries"]] if reply["ok"] else reply["code"]

    committed = [timestamp(row.ts) for row in rows[:-1]]
    assert asked(rows[0].optime) == committed[1:]
    assert asked(rows[-2].optime) == []
    assert asked(rows[-1].optime) == [], "a new primary does not know yet whether it is committed"
    assert asked(OpTime(99, rows[1].ts)) == ErrorCode.CAPPED_POSITION_LOST, "of another history"
    trim(member, rows[2].optime)
    member.history.older = Older(rows[:4]) if is_archived else None
    assert asked(rows[0].optime) == (committed[1:4] if is_archived else ErrorCode.CAPPED_POSITION_LOST)
    assert client.code({"replSetFollowEntries": 1}, db="admin") == 14
    assert client.code({"replSetFollowEntries": {"from": 1}}, db="admin") == 2

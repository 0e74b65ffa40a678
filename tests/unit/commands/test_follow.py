"""replSetFollow on the set that begins to follow: what is written while the source is asked is noticed."""

from __future__ import annotations

import asyncio

import pytest

from replset.bson import encode, encode_key
from replset.commands.streams import follow
from replset.commands.streams.follow_source import OwnHistory, SourceSet
from replset.ids import OpTime
from replset.replication.followed import FollowMode, read_state
from replset.replication.write_ops import WriteGroup, do_create, do_insert
from tests.unit.commands.conftest import Client

START = OpTime(7, 7)


class Source(SourceSet):
    """Finds the place, while a client of the other set may write."""

    client: Client
    is_written = False

    def find_start(self, own: OwnHistory) -> OpTime:
        self.set_name = "site1"
        if self.is_written:
            asyncio.run_coroutine_threadsafe(self.client.member.write(_insert), self.client.loop).result(30)
        return START

    def hold(self, consumer: str, position: OpTime) -> None:
        """Nothing keeps entries here."""


def _insert(group: WriteGroup) -> None:
    do_insert(group, do_create(group, "app.c"), encode_key(1), encode({"_id": 1}))


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

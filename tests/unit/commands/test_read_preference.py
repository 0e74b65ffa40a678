"""$readPreference: its form everywhere, and over HTTP what a driver would not have sent to this member."""

from __future__ import annotations

from typing import Any

import pytest

from replset.config import ReplSetConfig
from replset.core.member_state import MemberState
from tests.unit.commands.conftest import Client, FakeMember

EAST = {"dc": "east", "use": "reports"}


def config(**mine: object) -> ReplSetConfig:
    members: list[dict[str, Any]] = [{"_id": number, "host": f"localhost:{27017 + number}"} for number in range(3)]
    members[0] |= mine
    return ReplSetConfig.parse({"_id": "rs0", "version": 3, "term": 1, "members": members})


@pytest.fixture(autouse=True)
def documents(client: Client) -> None:
    client.ok({"insert": "c", "documents": [{"_id": 1}]})


def code(client: Client, preference: object, source: Any = "http") -> int:
    reply = client.run({"find": "c", "$readPreference": preference}, source=source)
    return 0 if reply["ok"] == 1 else int(reply["code"])


FORMS = [
    ({"mode": "nearest", "tags": [EAST, {}], "maxStalenessSeconds": 90}, 0),
    ({"mode": "primary", "tags": [{}]}, 0),
    ({"mode": "primary", "maxStalenessSeconds": 0}, 0),
    ({"mode": "secondary", "maxStalenessSeconds": 120.0}, 0),
    ({"mode": "best"}, 9),
    ({}, 9),
    ("nearest", 14),
    ({"mode": "nearest", "tags": {"dc": "east"}}, 14),
    ({"mode": "nearest", "tags": ["east"]}, 14),
    ({"mode": "nearest", "tags": [{"dc": 1}]}, 14),
    ({"mode": "nearest", "maxStalenessSeconds": "90"}, 14),
    ({"mode": "nearest", "maxStalenessSeconds": 89}, 160),
    ({"mode": "nearest", "maxStalenessSeconds": 1 << 31}, 160),
    ({"mode": "nearest", "maxStalenessSeconds": -1}, 2),
    ({"mode": "primary", "tags": [EAST]}, 2),
    ({"mode": "primary", "maxStalenessSeconds": 90}, 2),
    ({"mode": "nearest", "maxStaleness": 90}, 40415),
    ({"mode": "nearest", "tag": []}, 40415),
]


@pytest.mark.parametrize("source", ["wire", "http"])
@pytest.mark.parametrize(("preference", "expected"), FORMS, ids=str)
def test_its_form_is_checked(client: Client, preference: object, expected: int, source: str) -> None:
    assert code(client, preference, source) == expected


def test_what_is_for_a_mongos_is_taken_from_drivers_alone(client: Client) -> None:
    assert code(client, {"mode": "nearest", "hedge": {"enabled": True}}, "wire") == 0
    assert code(client, {"mode": "primary", "hedge": {"enabled": True}}, "wire") == 72
    assert code(client, {"mode": "nearest", "hedge": {"enabled": True}}) == 40415


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ([], 0),
        ([{}], 0),
        ([{"dc": "east"}], 0),
        ([EAST], 0),
        ([{"dc": "west"}, {"use": "reports"}], 0),
        ([{"dc": "west"}], 133),
        ([{**EAST, "rack": "1"}], 133),
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", ["nearest", "secondary", "secondaryPreferred", "primaryPreferred"])
def test_tags_choose_a_secondary(
    client: Client, member: FakeMember, tags: list[object], expected: int, mode: str
) -> None:
    member.node.config = config(tags=EAST)
    member.node.state, member.node.writable = MemberState.SECONDARY, False
    assert code(client, {"mode": mode, "tags": tags}) == expected
    assert code(client, {"mode": mode, "tags": tags}, "wire") == 0, "the driver chose"


def test_tags_choose_a_primary_where_it_is_one_of_many(client: Client, member: FakeMember) -> None:
    member.node.config = config(tags=EAST)
    west = [{"dc": "west"}]
    modes = ("nearest", "secondary", "primaryPreferred", "secondaryPreferred")
    assert [code(client, {"mode": mode, "tags": west}) for mode in modes] == [133, 133, 0, 0]


def test_a_secondary_that_is_too_far_behind_refuses(client: Client, member: FakeMember) -> None:
    member.node.state, member.node.writable = MemberState.SECONDARY, False
    preference = {"mode": "secondaryPreferred", "maxStalenessSeconds": 90}
    assert code(client, preference) == 0
    member.clock.ahead_ms = 91_000
    assert code(client, preference) == 133
    assert code(client, preference, "wire") == 0
    assert code(client, {"mode": "secondaryPreferred", "maxStalenessSeconds": 100}) == 0
    assert code(client, {"mode": "secondaryPreferred"}) == 0
    member.node.state = MemberState.PRIMARY
    assert code(client, preference) == 0, "nothing is newer"


@pytest.mark.parametrize("mine", [{"hidden": True}, {"secondaryDelaySecs": 60}], ids=str)
def test_hidden_and_delayed_members_are_chosen_by_nobody(
    client: Client, member: FakeMember, mine: dict[str, object]
) -> None:
    member.node.config = config(**mine, priority=0)
    member.node.state, member.node.writable = MemberState.SECONDARY, False
    for command in ({"find": "c"}, {"count": "c"}, {"distinct": "c", "key": "_id"}):
        reply = client.run({**command, "$readPreference": {"mode": "nearest"}}, source="http")
        assert reply["code"] == 133
        assert client.ok({**command, "$readPreference": {"mode": "nearest"}})

"""$readPreference: its form everywhere, and over HTTP what a driver would not have sent to this member."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from replset.bson import RawDocument, encode
from replset.core.member_state import MemberState
from replset.core.status import MemberStatus, Status
from replset.ids import HostPort, MemberId
from replset.operations.read_preference import other_readers, parse_read_preference
from tests.rig import Client, Rig, a_set

EAST = {"dc": "east", "use": "reports"}


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
    ({"mode": "secondaryPreferred", "maxStalenessSeconds": 120.0}, 0),
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


TAGS: list[tuple[list[object], int]] = [
    ([], 0),
    ([{}], 0),
    ([{"dc": "east"}], 0),
    ([EAST], 0),
    ([{"dc": "west"}, {"use": "reports"}], 0),
    ([{"dc": "west"}], 133),
    ([{**EAST, "rack": "1"}], 133),
]


def test_tags_choose_a_secondary() -> None:
    with a_set(2, options={"b": {"tags": EAST}}) as rig:
        client = rig.client("b")
        for tags, expected in TAGS:
            for mode in ("nearest", "secondary", "secondaryPreferred", "primaryPreferred"):
                assert code(client, {"mode": mode, "tags": tags}) == expected, (mode, tags)
                assert code(client, {"mode": mode, "tags": tags}, "wire") == 0, "the driver chose"


def test_tags_choose_a_primary_where_it_is_one_of_many() -> None:
    west = [{"dc": "west"}]
    modes = ("nearest", "secondary", "primaryPreferred", "secondaryPreferred")
    with a_set(2, options={"a": {"tags": EAST}}) as rig:
        assert [code(rig.client(), {"mode": mode, "tags": west}) for mode in modes] == [133, 133, 0, 0]


def test_a_primary_is_no_secondary(client: Client) -> None:
    assert code(client, {"mode": "secondary"}) == 133
    assert code(client, {"mode": "secondary"}, "wire") == 0, "a driver with a direct connection"


def test_a_secondary_that_is_too_far_behind_refuses() -> None:
    preference = {"mode": "secondaryPreferred", "maxStalenessSeconds": 90}
    with a_set(2) as rig:
        client, node = rig.client("b"), rig.member("b").node
        assert code(client, preference) == 0
        for lag_ms, expected in ((91_000, 133), (None, 133)):
            node.lag_ms = lambda lag_ms=lag_ms: lag_ms  # type: ignore[method-assign, misc]
            assert code(client, preference) == expected
            assert code(client, preference, "wire") == 0
            assert code(client, {"mode": "secondaryPreferred"}) == 0
            more = {"mode": "secondaryPreferred", "maxStalenessSeconds": 100}
            assert code(client, more) == (0 if lag_ms else 133)
        rig.member().node.lag_ms = lambda: None  # type: ignore[method-assign]
        assert code(rig.client(), preference) == 0, "nothing is newer"


@pytest.mark.parametrize("mine", [{"hidden": True}, {"secondaryDelaySecs": 60}], ids=str)
def test_hidden_and_delayed_members_are_chosen_by_nobody(mine: dict[str, object]) -> None:
    with a_set(2, options={"b": {**mine, "priority": 0, "votes": 0}}) as rig:
        client = rig.client("b")
        for command in ({"find": "c"}, {"count": "c"}, {"distinct": "c", "key": "_id"}):
            nearest = {**command, "$readPreference": {"mode": "nearest"}}
            assert client.code(nearest, source="http") == 133
            assert client.ok(nearest)


def row(number: int, **changes: Any) -> MemberStatus:
    """A healthy secondary that is up to date."""
    host = HostPort(f"{'abcde'[number]}:27017")
    healthy = MemberStatus(
        MemberId(number),
        host,
        is_self=number == 0,
        state=MemberState.SECONDARY,
        healthy=True,
        counted=True,
        newly_added=False,
        position=None,
        uptime_ms=0,
        sync_source=None,
        sync_source_id=-1,
        election_wall_ms=None,
        config_version=1,
        config_term=1,
        last_heartbeat_wall_ms=0,
        last_heartbeat_recv_wall_ms=0,
        ping_ms=0,
        message="",
        lag_ms=0,
    )
    return replace(healthy, **changes)


PRIMARY = {"state": MemberState.PRIMARY}
READERS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], list[int]]] = {
    "primary": ({"mode": "primary"}, PRIMARY, {}, [1]),
    "primary-first": ({"mode": "primaryPreferred"}, {}, PRIMARY, [2, 1]),
    "secondary": ({"mode": "secondary"}, PRIMARY, {}, [2]),
    "secondary-first": ({"mode": "secondaryPreferred"}, PRIMARY, {}, [2, 1]),
    "the-less-behind": ({"mode": "nearest"}, {"lag_ms": 2_000}, {}, [2, 1]),
    "the-nearer": ({"mode": "nearest"}, {"ping_ms": 9}, {"ping_ms": 3}, [2, 1]),
    "stale": ({"mode": "nearest", "maxStalenessSeconds": 90}, {"lag_ms": 91_000}, {}, [2]),
    "tags": ({"mode": "nearest", "tags": [{"dc": "east"}]}, {}, {}, [1]),
    "down": ({"mode": "nearest"}, {"healthy": False}, {}, [2]),
    "overloaded": ({"mode": "nearest"}, {}, {"overloaded": True}, [1]),
    "no-data": ({"mode": "nearest"}, {"lag_ms": None}, {"state": MemberState.RECOVERING}, []),
}


@pytest.mark.parametrize(("preference", "one", "two", "expected"), READERS.values(), ids=READERS)
def test_who_can_answer_instead(
    rig: Rig, preference: dict[str, Any], one: dict[str, Any], two: dict[str, Any], expected: list[int]
) -> None:
    members = [{"_id": number, "host": f"{name}:27017"} for number, name in enumerate("abcde")]
    members[1] |= {"tags": EAST}
    members[3] |= {"hidden": True, "priority": 0}
    members[4] |= {"secondaryDelaySecs": 60, "priority": 0}
    rig.use_config({"members": members})
    rows = (row(0), row(1, **one), row(2, **two), row(3), row(4))
    rig.member().node.status = lambda now: cast("Status", SimpleNamespace(members=rows))  # type: ignore[method-assign]
    wanted = parse_read_preference(RawDocument(encode(preference)), over_http=True)
    assert other_readers(rig.member(), wanted) == [f"{'abcde'[number]}:27017" for number in expected]

"""`x-replset-read-from`: a read that is refused, or served by a busy member, names the members that can answer it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from replset.core.status import Status
from replset.ids import HostPort
from replset.member.process.machine import Load
from tests.unit.api.kit import OTHER, Api
from tests.unit.features.test_read_preference import PRIMARY, row

THIRD = HostPort("127.0.0.1:27019")
HEADER = "x-replset-read-from"


@pytest.fixture
def api() -> Api:
    """Its member is a secondary, OTHER the primary and THIRD a secondary."""
    made = Api()
    made.member.become_secondary()
    made.member.node.http_addresses[THIRD] = "127.0.0.1:28019"
    rows = (row(0), row(1, host=OTHER, **PRIMARY), row(2, host=THIRD))
    made.member.node.status_value = cast("Status", SimpleNamespace(members=rows))
    return made


def busy(load: Load) -> None:
    for _ in range(20):
        load.on_beat(0.1)


ANY = "127.0.0.1:28018, 127.0.0.1:28019"
REFUSED: dict[str, tuple[int, object, str | None]] = {
    "only-the-primary": (13435, None, "127.0.0.1:28018"),
    "not-readable": (13436, "nearest", ANY),
    "not-suitable": (133, {"mode": "secondary"}, "127.0.0.1:28019"),
    "no-tags": (133, {"mode": "secondary", "tags": [{"dc": "east"}]}, None),
    "overloaded": (462, "secondaryPreferred", "127.0.0.1:28019, 127.0.0.1:28018"),
    "shutting-down": (91, "nearest", ANY),
    "linearizable": (10107, "nearest", "127.0.0.1:28018"),
    "bad-input": (9, "nearest", None),
    "bad-preference": (9, "best", None),
}


@pytest.mark.parametrize(("code", "preference", "expected"), REFUSED.values(), ids=REFUSED)
def test_a_refused_read(api: Api, code: int, preference: object, expected: str | None) -> None:
    api.dispatcher.answers["find"] = {"ok": 0.0, "code": code, "errmsg": "no"}
    fields = {} if preference is None else {"readPreference": preference}
    assert api.act("find", **fields).headers.get(HEADER) == expected
    command = {"find": "orders"}
    if preference is not None:
        command["$readPreference"] = preference if isinstance(preference, dict) else {"mode": preference}  # type: ignore[assignment]
    assert api.post("/v1/command/shop", command).headers.get(HEADER) == expected


def test_a_read_that_is_refused_before_its_body_is_read(api: Api) -> None:
    api.member.admission.add(1 << 30)
    assert api.act("find").headers[HEADER] == ANY
    assert HEADER not in api.act("insertOne", document={}).headers


def test_refusals_look_for_readers_ten_times_a_second_at_most(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    node, asked, times = api.member.node, 0, [1_000]

    def status(now: object) -> Status | None:
        nonlocal asked
        asked += 1
        return node.status_value

    monkeypatch.setattr(node, "status", status)
    monkeypatch.setattr(api.member.clock, "now", lambda: times[0])
    api.member.admission.add(1 << 30)
    for times[0], expected in ((1_000, 1), (1_099, 1), (1_100, 2), (1_150, 2)):
        assert api.act("find").headers[HEADER] == ANY
        assert asked == expected


@pytest.mark.parametrize(("preference", "expected"), [("nearest", ANY), ("primary", None), (None, None)])
def test_an_overloaded_member_answers_and_says_where_to_go(api: Api, preference: Any, expected: str | None) -> None:
    api.dispatcher.answers["count"] = {"ok": 1.0, "n": 1}
    fields = {} if preference is None else {"readPreference": preference}
    assert HEADER not in api.act("countDocuments", **fields).headers
    busy(api.member.load)
    response = api.act("countDocuments", **fields)
    assert (response.status_code, response.headers.get(HEADER)) == (200, expected)


def test_nobody_else_can_answer(api: Api) -> None:
    api.member.node.status_value = None
    api.dispatcher.answers["find"] = {"ok": 0.0, "code": 13435, "errmsg": "no"}
    assert HEADER not in api.act("find").headers

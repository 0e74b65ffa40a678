"""`x-replset-read-from`: a read that is refused, or served by a busy member, names the members that can answer it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from replset.member.process.machine import Load
from tests.rig import Rig
from tests.unit.api.conftest import shared
from tests.unit.api.kit import Api

HEADER = "x-replset-read-from"


@pytest.fixture
def api(three: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """Its member is the secondary c: a is the primary, and b another secondary."""
    monkeypatch.setattr(three.member("c"), "load", Load())
    yield from shared(three, monkeypatch, "c")


def busy(api: Api) -> None:
    for _ in range(20):
        api.member.load.on_beat(0.1)


ANY = "a:28017, b:28017"
REFUSED: dict[str, tuple[int, object, str | None]] = {
    "only-the-primary": (13435, None, "a:28017"),
    "not-readable": (13436, "nearest", ANY),
    "not-suitable": (133, {"mode": "secondary"}, "b:28017"),
    "no-tags": (133, {"mode": "secondary", "tags": [{"dc": "east"}]}, None),
    "overloaded": (462, "secondaryPreferred", "b:28017, a:28017"),
    "shutting-down": (91, "nearest", ANY),
    "linearizable": (10107, "nearest", "a:28017"),
    "bad-input": (9, "nearest", None),
    "bad-preference": (9, "best", None),
}


@pytest.mark.parametrize(("code", "preference", "expected"), REFUSED.values(), ids=REFUSED)
def test_a_refused_read(api: Api, code: int, preference: object, expected: str | None) -> None:
    api.answers["find"] = {"ok": 0.0, "code": code, "errmsg": "no"}
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
    asked, times, status = 0, [1_000], api.member.node.status

    def noted(now: Any) -> object:
        nonlocal asked
        asked += 1
        return status(now)

    monkeypatch.setattr(api.member.node, "status", noted)
    monkeypatch.setattr(api.member.clock, "now", lambda: times[0])
    api.member.admission.add(1 << 30)
    for times[0], expected in ((1_000, 1), (1_099, 1), (1_100, 2), (1_150, 2)):
        assert api.act("find").headers[HEADER]
        assert asked == expected


LINES = {"accept": "application/x-ndjson"}
NEAREST = {"readPreference": "nearest"}
READS: dict[str, tuple[str, dict[str, Any], dict[str, str], str | None]] = {
    "nearest": ("action/countDocuments", NEAREST, {}, ANY),
    "primary": ("action/countDocuments", {"readPreference": "primary"}, {}, None),
    "none": ("action/countDocuments", {}, {}, None),
    "an-export": ("action/find", NEAREST, LINES, ANY),
    "a-change-stream": ("watch", {"readPreference": {"mode": "nearest"}}, {}, ANY),
    "a-change-stream-of-the-primary": ("watch", {"readPreference": {"mode": "primary"}}, {}, None),
}


@pytest.mark.parametrize(("path", "fields", "headers", "expected"), READS.values(), ids=READS)
def test_an_overloaded_member_answers_and_says_where_to_go(
    api: Api, path: str, fields: dict[str, Any], headers: dict[str, str], expected: str | None
) -> None:
    cursor = {"id": 0, "ns": "shop.orders", "firstBatch": [], "postBatchResumeToken": {"_data": "82"}}
    api.answers |= {name: {"ok": 1.0, "cursor": cursor, "n": 1} for name in ("count", "find", "aggregate")}
    where = {} if path == "watch" else {"database": "shop", "collection": "orders"}

    def answer() -> tuple[int, str | None]:
        found = api.post(f"/v1/{path}", {**where, **fields}, headers=headers)
        return found.status_code, found.headers.get(HEADER)

    assert answer() == (200, None)
    busy(api)
    assert answer() == (200, expected)


def test_a_consumers_primary_names_a_secondary(api: Api) -> None:
    """The reply has its host; the member that forwards the read knows the HTTP address."""
    api.primary = {"ok": 1.0, "generation": 5, "events": [], "readFrom": "b:27017"}
    answer = api.post("/v1/consumers/mailer/read", {"reader": "a"})
    assert (answer.json()["readFrom"], answer.headers[HEADER]) == ("b:27017", "b:28017")
    api.primary = {"ok": 1.0}
    assert HEADER not in api.post("/v1/consumers/mailer/ack", {"generation": 5}).headers


def test_a_secondary_answers_the_holder_of_a_consumer_itself(api: Api) -> None:
    api.answers["replSetConsumerReadHere"] = {"ok": 1.0, "generation": 5, "events": []}
    body = {"reader": "a", "generation": 5, "after": "82" + "0" * 46}
    answer = api.post("/v1/consumers/mailer/readHere", body)
    assert (answer.status_code, "x-replset-forwarded-to" in answer.headers) == (200, False)
    api.answers["replSetConsumerReadHere"] = {"ok": 0.0, "code": 133, "errmsg": "read at the primary"}
    assert api.post("/v1/consumers/mailer/readHere", body).status_code == 503


def test_nobody_else_can_answer(own: Api) -> None:
    own.rig.step_down()
    refused = own.act("find")
    assert (refused.json()["code"], HEADER in refused.headers) == (13435, False)

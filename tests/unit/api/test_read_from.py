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


def test_a_change_stream_begins_with_where_to_go(api: Api) -> None:
    batch = {"id": 0, "ns": "shop.c", "firstBatch": [], "postBatchResumeToken": {"_data": "82"}}
    api.dispatcher.answers["aggregate"] = {"ok": 1.0, "cursor": batch}
    assert HEADER not in api.get("/v1/watch?database=shop").headers
    busy(api.member.load)
    assert api.get("/v1/watch?database=shop").headers[HEADER] == ANY
    assert HEADER not in api.post("/v1/watch", {"readPreference": {"mode": "primary"}}).headers


def test_an_export_begins_with_where_to_go(api: Api) -> None:
    api.dispatcher.answers["find"] = {"ok": 1.0, "cursor": {"id": 0, "ns": "shop.orders", "firstBatch": []}}
    busy(api.member.load)
    lines = {"accept": "application/x-ndjson"}
    body = {"database": "shop", "collection": "orders", "filter": {}, "readPreference": "nearest"}
    assert api.request("POST", "/v1/action/find", json=body, headers=lines).headers[HEADER] == ANY


def test_a_consumers_primary_names_a_secondary(api: Api) -> None:
    """The reply has its host; the member that forwards the read knows the HTTP address."""
    api.member.peer.answer = {"ok": 1.0, "generation": 5, "events": [], "readFrom": str(THIRD)}
    answer = api.post("/v1/consumers/mailer/read", {"reader": "a"})
    assert (answer.json()["readFrom"], answer.headers[HEADER]) == (THIRD, "127.0.0.1:28019")
    api.member.peer.answer = {"ok": 1.0}
    assert HEADER not in api.post("/v1/consumers/mailer/ack", {"generation": 5}).headers


def test_a_secondary_answers_the_holder_of_a_consumer_itself(api: Api) -> None:
    api.dispatcher.answers["replSetConsumerReadHere"] = {"ok": 1.0, "generation": 5, "events": []}
    body = {"reader": "a", "generation": 5, "after": "82" + "0" * 46}
    answer = api.post("/v1/consumers/mailer/readHere", body)
    assert (answer.status_code, "x-replset-forwarded-to" in answer.headers) == (200, False)
    api.dispatcher.answers["replSetConsumerReadHere"] = {"ok": 0.0, "code": 133, "errmsg": "read at the primary"}
    assert api.post("/v1/consumers/mailer/readHere", body).status_code == 503


def test_nobody_else_can_answer(api: Api) -> None:
    api.member.node.status_value = None
    api.dispatcher.answers["find"] = {"ok": 0.0, "code": 13435, "errmsg": "no"}
    assert HEADER not in api.act("find").headers

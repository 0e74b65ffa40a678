"""An overloaded member counts bodies and answers, refuses the next request, and still answers health and status."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any

import pytest

from api import exchange, limits
from api.exchange import Send
from api.guard import Guard
from replset.bson import MAX_WRITE_BATCH
from replset.member.member import HUGE_BODIES
from replset.operations.admission import MAX_BYTES_IN_USE, Admission
from tests.unit.api.kit import Api

LARGE = "x" * 200_000


def test_a_large_body_beyond_the_limit_is_refused_and_others_are_released(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api.member, "admission", Admission(300_000))
    assert api.act("insertOne", document={"_id": 1, "pad": LARGE}).status_code == 201
    assert api.member.admission.in_use == 0
    api.member.admission.add(200_000)
    answer = api.act("insertOne", document={"_id": 2, "pad": LARGE})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    body = answer.json()
    assert (body["code"], body["codeName"]) == (462, "IngressRequestRateLimitExceeded")
    assert body["errorLabels"] == ["SystemOverloadedError", "RetryableError"]
    assert "nothing was applied" in body["errmsg"]
    assert api.act("insertOne", document={"_id": 3}).status_code == 201
    assert api.command_names() == ["insert", "insert"]
    assert (api.member.admission.in_use, api.member.admission.refused) == (200_000, 1)


@pytest.mark.parametrize("path", ["/v1/action/find", "/v1/command/admin"])
def test_commands_are_refused_while_the_memory_limit_is_reached(api: Api, path: str) -> None:
    api.member.admission.add(MAX_BYTES_IN_USE)
    assert api.post(path, {"ping": 1}).json()["code"] == 462
    assert api.command_names() == []
    assert api.get("/health").status_code == 200
    assert "replset_requests_refused_total 1.0" in api.get("/metrics").text


def test_requests_at_once_are_bounded(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_REQUESTS", 0)
    told = api.act("find").json()
    assert (told["code"], told["errorLabels"]) == (462, ["SystemOverloadedError", "RetryableError"])
    assert told["errmsg"] == "this member is overloaded: 0 requests are under way; nothing was applied, try again"
    assert api.member.admission.refused == 1
    assert api.get("/health").status_code == 200


def run_limits(api: Api, app: Any, send: Send) -> None:
    """Send one GET through the limits to `app`."""

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b""}

    scope = {"type": "http", "path": "/v1/replset/oplog", "headers": [], "method": "GET"}
    api.rig.do(limits.RequestLimits(app, api.member, Guard(api.member, ()))(scope, receive, send))


async def long_answer(_scope: Any, _receive: Any, send: Send) -> None:
    """An application whose answer has a million bytes."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x" * 1_000_000})


def test_a_long_answer_is_sent_in_pieces_and_counts_until_it_is_read(api: Api) -> None:
    sent: list[tuple[int, bool, int]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.body":
            sent.append((len(message["body"]), message["more_body"], api.member.admission.in_use))

    run_limits(api, long_answer, send)
    piece = exchange.PIECE_BYTES
    left = 1_000_000 - 3 * piece
    assert sent == [
        (piece, True, 1_000_000),
        (piece, True, 1_000_000 - piece),
        (piece, True, 1_000_000 - 2 * piece),
        (left, False, left),
    ]
    assert api.member.admission.in_use == 0


def test_an_answer_that_the_client_does_not_read_is_given_up(api: Api) -> None:

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    run_limits(api, long_answer, send)
    assert api.member.admission.in_use == 0


def test_an_answer_in_small_pieces_that_the_client_does_not_read_is_given_up(api: Api) -> None:
    sent_parts = 0

    async def rest(_scope: Any, _receive: Any, send: Send) -> None:
        nonlocal sent_parts
        while True:
            sent_parts += 1
            await send({"type": "http.response.body", "body": b"x", "more_body": True})

    async def send(_: MutableMapping[str, Any]) -> None:
        if sent_parts == 3:
            await asyncio.Event().wait()

    run_limits(api, rest, send)
    assert sent_parts == 3


def test_a_body_that_stops_coming_is_given_up(api: Api) -> None:
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        if api.member.admission.in_use:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": b"x" * 100_000, "more_body": True}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    api.exchange(receive, send)
    assert sent[0]["status"] == 408
    assert b"stopped coming after 100000 bytes" in sent[1]["body"]
    assert api.member.admission.in_use == 0


def test_the_body_of_a_refused_request_is_read_to_its_end(api: Api) -> None:
    api.member.admission.add(MAX_BYTES_IN_USE)
    left = 3
    sent: list[tuple[str, int]] = []

    async def receive() -> MutableMapping[str, Any]:
        nonlocal left
        left -= 1
        return {"type": "http.request", "body": b"x" * 100_000, "more_body": left > 0}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append((message["type"], left))

    api.exchange(receive, send)
    assert sent == [("http.response.start", 0), ("http.response.body", 0)]


def test_a_list_of_more_items_than_any_takes_is_refused_before_they_are_made(api: Api) -> None:
    answer = api.act("insertMany", documents=[0] * (MAX_WRITE_BATCH + 1))
    assert (answer.status_code, answer.json()["code"]) == (400, 16)
    assert "field 'documents' has 100001 items" in answer.json()["errmsg"]
    assert api.command_names() == []


@pytest.mark.parametrize("path", ["/v1/action/insertOne", "/v1/command/test"])
def test_few_huge_bodies_are_under_way_at_once(api: Api, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Each takes ten times its bytes while it is parsed: eight of them took a member to 3.5 GB."""
    monkeypatch.setattr(exchange, "HUGE_BYTES", 150_000)
    is_action = "action" in path
    rest = {"database": "test", "collection": "c"} if is_action else {"insert": "c"}
    under_way = most = 0

    async def answer() -> dict[str, Any]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(1)
        under_way -= 1
        return {"ok": 1.0, "n": 1}

    def body(number: int, size: int) -> str:
        document = {"_id": number, "pad": "x" * size}
        return json.dumps({**rest, **({"document": document} if is_action else {"documents": [document]})})

    async def asked(sizes: list[int]) -> list[int]:
        asks = [api.ask("POST", path, content=body(number, size)) for number, size in enumerate(sizes)]
        return [response.status_code for response in await asyncio.gather(*asks)]

    api.answers["insert"] = lambda _: answer()
    done = 201 if is_action else 200
    assert api.rig.do(asked([200_000] * 5)) == [done] * 5
    assert most == HUGE_BODIES
    most = 0
    assert api.rig.do(asked([140_000] * 5)) == [done] * 5
    assert most == 5
    assert set(api.rig.do(asked([200_000] * 30))) == {done, 503}, "a wait ends after ten seconds"
    assert api.rig.do(asked([200_000] * 2)) == [done] * 2, "and leaves no place taken"

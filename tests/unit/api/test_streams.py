"""How many streams a member opens at once."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from api.lines import BATCH_BYTES
from api.routes import consumers, watch
from replset.bson import RawDocument, encode
from replset.operations.request import CommandRequest
from tests.unit.api.kit import Api

REFUSAL = {"ok": 0.0, "code": 2, "codeName": "BadValue", "errmsg": "no"}


@pytest.mark.parametrize("path", ["/v1/watch?database=shop", "/v1/consumers/mailer/events?reader=a"])
def test_streams_that_are_being_opened_count(api: Api, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (consumers, watch):
        monkeypatch.setattr(module, "STREAMS_MAX", 1)

    async def main() -> list[int]:
        is_asked, may_answer = asyncio.Event(), asyncio.Event()

        async def answer(_request: CommandRequest) -> dict[str, Any]:
            is_asked.set()
            await may_answer.wait()
            return dict(REFUSAL)

        monkeypatch.setattr(api.member.dispatcher, "run", answer)
        transport = httpx.ASGITransport(app=api.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:28017") as client:
            first = asyncio.ensure_future(client.get(path))
            await is_asked.wait()
            second = asyncio.ensure_future(client.get(path))
            await asyncio.wait([second], timeout=1)
            may_answer.set()
            both = [(await first).status_code, (await second).status_code]
            return [*both, (await client.get(path)).status_code]

    assert api.rig.do(main()) == [400, 503, 400]


def nested(levels: int) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for _ in range(levels):
        document = {"a": document}
    return document


DEEP = {"_id": {"_data": "82"}, "fullDocument": RawDocument(encode(nested(199)))}


def test_a_read_gives_an_event_as_deep_as_any_document(api: Api) -> None:
    for is_forwarded in (False, True):
        reply: dict[str, Any] = {"ok": 1.0, "generation": 5, "events": [RawDocument(encode(DEEP))]}
        api.answers["replSetConsumerRead"] = encode(reply) if is_forwarded else reply
        answer = api.post("/v1/consumers/mailer/read", {"reader": "a"})
        assert answer.status_code == 200
        (event,) = answer.json()["events"]
        assert event["_id"] == {"_data": "82"}
        assert event["fullDocument"]["a"]["a"]


def test_an_event_that_is_too_deep_for_json_is_sent_as_binary_data(api: Api) -> None:
    reply = {"ok": 1.0, "generation": 5, "active": True, "events": [RawDocument(encode(DEEP))]}
    answers = iter([reply, dict(REFUSAL)])
    api.answers["replSetConsumerRead"] = lambda _: next(answers)
    text = api.get("/v1/consumers/mailer/events?reader=a").text
    assert [line for line in text.splitlines() if not line.startswith("data")] == [
        *("event: reader", "", "id: 5-82", "event: change", "", "event: error", "")
    ]
    assert '"$binary"' in text


def test_a_fault_ends_a_stream_and_sends_nothing_again(api: Api) -> None:
    def answer(_command: dict[str, Any]) -> dict[str, Any]:
        if len(api.requests) > 1:
            raise RuntimeError("a fault")
        return {"ok": 1.0, "generation": 5, "active": True, "events": []}

    api.answers["replSetConsumerRead"] = answer
    with pytest.raises(RuntimeError, match="a fault"):
        api.get("/v1/consumers/mailer/events?reader=a")


def test_a_change_stream_is_read_in_small_batches(api: Api) -> None:
    batch = {"id": 77, "ns": "shop.c", "firstBatch": [], "nextBatch": [], "postBatchResumeToken": {"_data": "82"}}
    answers = iter([{"ok": 1.0, "cursor": batch}, dict(REFUSAL)])
    api.answers |= dict.fromkeys(("aggregate", "getMore"), lambda _: next(answers))
    api.get("/v1/watch?database=shop")
    assert api.command_names()[:2] == ["aggregate", "getMore"]
    assert {request.batch_bytes for request in api.requests[:2]} == {BATCH_BYTES}


def test_a_consumers_events_as_lines(api: Api) -> None:
    event = {"_id": {"_data": "82"}, "operationType": "drop"}
    first = {"ok": 1.0, "generation": 5, "active": True, "position": "81", "events": [event], "next": "83"}
    answers = iter([first, {**first, "events": []}, dict(REFUSAL)])
    api.answers["replSetConsumerRead"] = lambda _: next(answers)
    answer = api.get("/v1/consumers/mailer/events?reader=a", headers={"accept": "application/x-ndjson"})
    assert answer.headers["content-type"] == "application/x-ndjson"
    about, change, idle, error = map(json.loads, answer.text.splitlines())
    assert about == {"reader": {"generation": 5, "position": "81", "active": True}}
    assert (change, idle, error["error"]["code"]) == (event, {"next": "83", "position": "81", "active": True}, 2)


def test_a_forecast_ends_with_its_client(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    body = json.dumps({"deed": "kill", "host": "127.0.0.1:27017"}).encode()

    async def main() -> tuple[bool, list[int]]:
        begun, gone, cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()
        statuses: list[int] = []
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def answer(_request: CommandRequest) -> dict[str, Any]:
            begun.set()
            try:
                return await asyncio.get_running_loop().create_future()
            finally:
                cancelled.set()

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            statuses.append(message.get("status", 0))

        monkeypatch.setattr(api.member.dispatcher, "run", answer)
        path = "/v1/replset/whatIf"
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        scope = {"type": "http", "path": path, "raw_path": path.encode(), "method": "POST", "query_string": b""}
        running = asyncio.ensure_future(api.app({**scope, "headers": headers}, receive, send))
        await begun.wait()
        gone.set()
        await running
        return cancelled.is_set(), statuses

    assert api.rig.do(main()) == (True, [503, 0])

"""How many streams a member opens at once."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from api.routes import consumers, watch
from replset.commands.ports import CommandRequest
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

        monkeypatch.setattr(api.dispatcher, "run", answer)
        transport = httpx.ASGITransport(app=api.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:28017") as client:
            first = asyncio.ensure_future(client.get(path))
            await is_asked.wait()
            second = asyncio.ensure_future(client.get(path))
            await asyncio.wait([second], timeout=1)
            may_answer.set()
            both = [(await first).status_code, (await second).status_code]
            return [*both, (await client.get(path)).status_code]

    assert asyncio.run(main()) == [400, 503, 400]

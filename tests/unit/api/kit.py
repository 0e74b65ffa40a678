"""Requests to the HTTP API of a whole member, without a socket. What its dispatcher is asked is noted.

A test may give the reply to a command itself: a failure that takes a full disk or the loss of a primary, or an answer
of many megabytes. All else the member answers.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from api import streaming
from api.app import create_routes, with_limits
from api.routes import recovery
from replset.bson import RawDocument, encode
from replset.ids import HostPort, Millis, OpTime, pack_ts
from replset.member.member import RunningMember
from replset.operations.replies import finish
from replset.operations.request import CommandRequest, Reply
from tests.rig import Rig

NEWEST = OpTime(3, pack_ts(1_700_000_000, 5))
"""Of an answer that a test gives."""
OK: dict[str, Any] = {"ok": 1.0}
Answer = dict[str, Any] | bytes | Callable[[dict[str, Any]], Any]
FORWARDED = "$replsetForwarded"


def whole_command(request: CommandRequest) -> dict[str, Any]:
    """Return the command with its document sequences in it."""
    sequences = {name: [row.decode() for row in rows] for name, rows in request.sequences.items()}
    return {**request.body.decode(), **sequences}


class _AskedMember:
    """Stands for the member that was asked last: all tests share one set of routes, which takes longer than a test."""

    now: RunningMember

    def __getattr__(self, name: str) -> Any:
        return getattr(self.now, name)

    def __getitem__(self, kind: type) -> Any:
        return self.now[kind]


routes = cache(lambda: create_routes(cast(Any, _AskedMember())))


class Api:
    """The API of the member `name`. answers: to commands, by name. primary: answers what is forwarded, by itself or not
    at all; None: the primary does.
    """

    def __init__(
        self, rig: Rig, patch: pytest.MonkeyPatch, name: str = "a", allowed_hosts: tuple[str, ...] = ()
    ) -> None:
        self.rig, self.name, self.member = rig, name, rig.member(name)
        self.requests: list[CommandRequest] = []
        self.answers: dict[str, Answer] = {}
        self.forwarded: list[tuple[str, dict[str, Any], str, int]] = []
        self.primary: Exception | dict[str, Any] | Callable[[], Awaitable[dict[str, Any]]] | None = None
        self.run, self._call = self.member.dispatcher.run, self.member.peer.call
        patch.setattr(self.member.dispatcher, "run", self._run_command)
        patch.setattr(self.member.peer, "call", self._call_member)
        self.worked, self._work = 0, self.member.workers.run
        """How often a worker did something."""
        patch.setattr(self.member.workers, "run", self._work_once)
        limited = with_limits(routes(), self.member, allowed_hosts)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            _AskedMember.now = self.member
            await limited(scope, receive, send)

        self.app = app

    async def _run_command(self, request: CommandRequest) -> Reply:
        if request.source != "http":
            return await self.run(request)
        self.requests.append(request)
        answer = self.answers.get(request.body.first_key or "")
        if answer is None:
            return await self.run(request)
        if callable(answer):
            answer = answer(whole_command(request))
            answer = await answer if inspect.isawaitable(answer) else answer
        return answer if isinstance(answer, bytes) else finish({**answer}, NEWEST.ts)

    async def _work_once(self, work: Callable[[], Any]) -> Any:
        self.worked += 1
        return await self._work(work)

    async def _call_member(
        self, host: HostPort, command: Mapping[str, object], *, timeout_ms: Millis, database: str = "admin"
    ) -> RawDocument:
        if FORWARDED in command:
            self.forwarded.append((host, RawDocument(encode(command)).decode(), database, timeout_ms))
            if isinstance(self.primary, Exception):
                raise self.primary
            if self.primary is not None:
                answer = await self.primary() if callable(self.primary) else self.primary
                return RawDocument(encode(finish({**answer}, NEWEST.ts)))
        return await self._call(host, command, timeout_ms=timeout_ms, database=database)

    @property
    def command(self) -> dict[str, Any]:
        """The last command."""
        return whole_command(self.requests[-1])

    def command_names(self) -> list[str]:
        return [str(request.body.first_key) for request in self.requests]

    async def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send one request. A POST has the content type of JSON unless `options` name another."""
        if method == "POST":
            options["headers"] = {"content-type": "application/json", **options.get("headers", {})}
        transport = httpx.ASGITransport(app=self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:28017", timeout=None) as client:
            return await client.request(method, path, **options)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self.rig.do(self.ask(method, path, **options), self.name)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, body: object = None, **options: Any) -> httpx.Response:
        content = body if isinstance(body, bytes | str) else b"" if body is None else json.dumps(body)
        return self.request("POST", path, content=content, **options)

    def act(self, name: str, query: str = "", headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        """Send one action on shop.orders."""
        body = {"database": "shop", "collection": "orders", **fields}
        return self.post(f"/v1/action/{name}{query}", body, headers=headers or {})

    def insert(self, *documents: Mapping[str, object]) -> None:
        self.rig.client().ok({"insert": "orders", "documents": [*documents]}, "shop")

    def exchange(
        self, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]], accept: bytes = b"*/*"
    ) -> None:
        """Send one find, with a body from `receive` and the answer to `send`."""
        headers = [(b"content-type", b"application/json"), (b"accept", accept)]
        scope = {"type": "http", "path": "/v1/action/find", "headers": headers, "method": "POST"}
        self.rig.do(self.app(scope, receive, send), self.name)


def read_rollbacks(api: Api, patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Its rollbacks are those of the folder. The threads that read them are real; virtual time goes on meanwhile."""
    patch.setattr(api.member.rollbacks, "folder", str(folder))
    pool = ThreadPoolExecutor()

    async def run(work: Callable[[], Any]) -> Any:
        future = pool.submit(work)
        while not future.done():
            wait([future], 0.0002)
            await asyncio.sleep(0.001)
        return future.result()

    for module in (recovery, streaming):
        patch.setattr(module, "run_in_thread", run)


def plain(response: httpx.Response) -> dict[str, Any]:
    """Return the answer without its times, which every answer has."""
    document: dict[str, Any] = response.json()
    at, known = document.pop("operationTime"), document.pop("$clusterTime")["clusterTime"]
    assert at == known, "nobody else writes"
    return document


def refused(response: httpx.Response, status: int, code: int, text: str = "") -> dict[str, Any]:
    """Check the form of an error and return its body."""
    document = plain(response)
    assert (response.status_code, document["code"]) == (status, code), document
    assert document["ok"] == 0
    assert isinstance(document["codeName"], str)
    assert text in document["errmsg"], document["errmsg"]
    assert (response.headers.get("retry-after") == "1") == (status == 503)
    return document

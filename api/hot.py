"""The ASGI dispatcher in front of the application: `/v1/action/*` without the cost of a framework's route."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from api.actions import ACTIONS, NOT_BUILT, Action, Body, check_fields, check_write, common, times
from api.ask import check, run, run_write
from api.content import JSON, HttpError, failure, parse_body, render
from api.ports import ApiDispatcher, ApiMember
from replset.bson import ObjectId
from replset.bson.limits import MAX_MESSAGE_SIZE
from replset.errors import ReplError

log = logging.getLogger("replset.http")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PREFIX = "/v1/action/"
MAX_ANSWER_BYTES = MAX_MESSAGE_SIZE


class Actions:
    """Answers `POST /v1/action/NAME`; hands everything else on."""

    def __init__(self, rest: App, dispatcher: ApiDispatcher, member: ApiMember) -> None:
        self._rest = rest
        self._dispatcher = dispatcher
        self._member = member

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await self._rest(scope, receive, send)
            return
        headers = {bytes(name): bytes(value).decode("latin-1") for name, value in scope["headers"]}
        accept = headers.get(b"accept", JSON)
        extra: dict[str, str] = {}
        try:
            status, document, extra = await self._act(scope, receive, headers)
            body, kind = render(accept, document)
        except HttpError as error:
            status, extra = error.status, error.headers
            body, kind = render(accept, error.body)
        except ReplError as error:
            problem = failure(error.code, error.message)
            status, extra = problem.status, problem.headers
            body, kind = render(accept, problem.body)
        lines = [(b"content-type", kind.encode()), (b"content-length", b"%d" % len(body))]
        lines += [(name.encode(), value.encode("latin-1")) for name, value in extra.items()]
        await send({"type": "http.response.start", "status": status, "headers": lines})
        await send({"type": "http.response.body", "body": body})

    async def _act(self, scope: Scope, receive: Receive, headers: dict[bytes, str]) -> tuple[int, Body, dict[str, str]]:
        name = scope["path"][len(PREFIX) :]
        if name not in ACTIONS and name not in NOT_BUILT:
            raise failure(59, f"no action {name!r}; there are: {', '.join(sorted(ACTIONS))}", status=404)
        if scope["method"] != "POST":
            problem = failure(59, f"{name} takes POST, not {scope['method']}", status=405)
            problem.headers = {"allow": "POST"}
            raise problem
        if name in NOT_BUILT:
            raise failure(59, f"{name} is not built yet")
        if b"idempotency-key" in headers:
            raise failure(40415, "the header Idempotency-Key is not built yet")
        action = ACTIONS[name]
        body = parse_body(headers.get(b"content-type", ""), await read_all(receive))
        check_fields(action, body)
        command = common(body, action.command(body, self._new_id), writes=action.writes)
        client = scope.get("client")
        peer = f"{client[0]}:{client[1]}" if client else ""
        if action.writes:
            return await self._write(action, body, command, scope, peer)
        reply = check(await run(self._dispatcher, command, body["database"], peer))
        if "cursor" in reply:
            await self._rest_of_cursor(reply, body, peer)
        return 200, {**action.shape(reply, command), **times(reply)}, {}

    async def _write(
        self, action: Action, body: Body, command: Body, scope: Scope, peer: str
    ) -> tuple[int, Body, dict[str, str]]:
        query = scope.get("query_string", b"").decode("latin-1")
        reply, extra = await run_write(
            self._dispatcher,
            self._member,
            command,
            body["database"],
            path=scope["path"],
            query=query,
            forward="forward=false" not in query.split("&"),
            client=peer,
        )
        try:
            check_write(action, check(reply), command)
        except HttpError as error:
            error.headers = {**extra, **error.headers}
            raise
        concern = command.get("writeConcern", {})
        status = 202 if concern.get("w") == 0 else action.status
        return status, {**action.shape(reply, command), **times(reply)}, extra

    async def _rest_of_cursor(self, reply: Body, body: Body, peer: str) -> None:
        """Fetch what did not fit into the first batch: an answer is whole, or an error says that it is too large."""
        cursor = reply["cursor"]
        batch, size = cursor["firstBatch"], 0
        while cursor["id"]:
            more = {"getMore": cursor["id"], "collection": body["collection"]}
            page = check(await run(self._dispatcher, more, body["database"], peer))["cursor"]
            cursor = page
            batch += page["nextBatch"]
            size += sum(len(str(document)) for document in page["nextBatch"])
            if size > MAX_ANSWER_BYTES:
                kill = {"killCursors": body["collection"], "cursors": [cursor["id"]]}
                await run(self._dispatcher, kill, body["database"], peer)
                raise failure(10334, "the answer is too large; use limit and skip, or the wire port's cursors")

    def _new_id(self) -> ObjectId:
        return ObjectId.generate(self._member.clock.wall_ms() // 1000, self._member.rng)


async def read_all(receive: Receive) -> bytes:
    """The request's body; HttpError 413 as soon as it is too large."""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise failure(9, "the request ended before its body did")
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > MAX_MESSAGE_SIZE:
            raise failure(10334, f"a body of over {MAX_MESSAGE_SIZE} bytes")
        chunks.append(chunk)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)

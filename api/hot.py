"""The ASGI dispatcher in front of the application: `/v1/action/*` without the cost of a framework's route."""

from __future__ import annotations

import asyncio

from api.actions import ACTIONS, NOT_BUILT, Action, Prepared, first_batch, next_batch, prepare, write_answer
from api.ask import Reply, check, run, run_write
from api.content import LARGE_BYTES, MAX_ANSWER_BYTES, Documents, read_fields, times_of
from api.errors import HttpError, failure
from api.exchange import Answer, App, Asked, Receive, Scope, Send, read_body, say
from api.guard import check_content_type
from api.ports import ApiDispatcher, ApiMember
from replset.bson import ObjectId
from replset.errors import ErrorCode, ReplError

PREFIX = "/v1/action/"


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
        asked = Asked(scope)
        try:
            answer = await self._answer(scope, asked, receive)
        except HttpError as error:
            answer = Answer(error.body, error.status, error.headers)
        except ReplError as error:
            problem = failure(error.code, error.message, details=error.details)
            answer = Answer(problem.body, problem.status, problem.headers)
        await say(self._member, asked, answer, send)

    async def _answer(self, scope: Scope, asked: Asked, receive: Receive) -> Answer:
        action = self._action(asked)
        check_content_type(scope)
        if b"idempotency-key" in asked.headers:
            raise failure(ErrorCode.UNKNOWN_FIELD, "the header Idempotency-Key is not built yet")
        data = await read_body(asked, receive)
        if len(data) > LARGE_BYTES:
            prepared = await self._member.workers.run(lambda: self._prepare(action, asked, data))
        else:
            prepared = self._prepare(action, asked, data)
        if action.writes:
            return await self._write(action, prepared, asked)
        asked.forwards()  # a read is answered here; the parameter is checked all the same
        reply = check(await run(self._dispatcher, prepared.command, prepared.database, asked.client))
        shaped = action.shape(reply, prepared)
        if "documents" in shaped:
            shaped["documents"] = await self._all(reply, prepared, asked)
        return Answer(shaped, action.status, times=times_of(reply))

    def _action(self, asked: Asked) -> Action:
        name = asked.path[len(PREFIX) :]
        action = ACTIONS.get(name)
        if action is None and name not in NOT_BUILT:
            raise failure(
                ErrorCode.COMMAND_NOT_FOUND,
                f"no action {name[:80]!r}; there are: {', '.join(sorted(ACTIONS))}",
                status=404,
            )
        if asked.method != "POST":
            text = f"{name} takes POST, not {asked.method[:20]}"
            raise failure(ErrorCode.COMMAND_NOT_FOUND, text, status=405, headers={"allow": "POST"})
        if action is None:
            raise failure(ErrorCode.COMMAND_NOT_FOUND, f"{name} is not built yet")
        return action

    def _prepare(self, action: Action, asked: Asked, data: bytes) -> Prepared:
        return prepare(action, read_fields(asked.content_type, data), self._new_id)

    async def _write(self, action: Action, prepared: Prepared, asked: Asked) -> Answer:
        reply, headers = await run_write(self._dispatcher, self._member, asked, prepared.command, prepared.database)
        try:
            answer = write_answer(action, check(reply, writes=True), prepared)
        except HttpError as error:
            error.headers |= headers
            raise
        answer.headers = headers
        return answer

    async def _all(self, reply: Reply, prepared: Prepared, asked: Asked) -> Documents:
        """The batches behind the first too: an answer is whole, or an error says that it is too large."""
        cursor, documents = first_batch(reply)
        size = sum(len(document.raw) for document in documents)
        collection, database = prepared.command["find"], prepared.database
        try:
            while cursor:
                more = {"getMore": cursor, "collection": collection}
                cursor, page = next_batch(check(await run(self._dispatcher, more, database, asked.client)))
                documents += page
                size += sum(len(document.raw) for document in page)
                if size > MAX_ANSWER_BYTES:
                    raise failure(
                        ErrorCode.DOCUMENT_TOO_LARGE,
                        "the answer is too large; use limit and skip, or the wire port's cursors",
                    )
        except (HttpError, asyncio.CancelledError):
            kill = {"killCursors": collection, "cursors": [cursor]}
            await run(self._dispatcher, kill, database, asked.client)
            raise
        return documents

    def _new_id(self) -> ObjectId:
        return ObjectId.generate(self._member.clock.wall_ms() // 1000, self._member.rng)

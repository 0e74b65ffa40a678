"""Answers `POST /v1/action/NAME` in front of the web framework, which would take longer than most of these commands."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeAlias

from api.action_table import ACTIONS
from api.actions import ActionCommand, ActionType, action_answer, build_command, found, read_cursor
from api.bodies import MAX_ANSWER_BYTES, DocumentList, parse_fields, times_of
from api.bulk_write import BulkWrite, run_bulk
from api.commands import Reply, check_reply, run_command, run_write
from api.errors import HttpError, failure
from api.exchange import (
    App,
    HttpAnswer,
    HttpRequest,
    Receive,
    RequestMemory,
    Scope,
    Send,
    error_answer,
    parsed,
    read_body,
    send_answer,
)
from api.guard import check_content_type
from api.idempotency import KeyedWrite
from api.lines import BATCH_BYTES, NDJSON, send_lines, wants_lines
from api.read_from import add_read_from, advised_elsewhere
from replset.bson import MAX_BSON_SIZE
from replset.errors import ErrorCode, ReplError
from replset.member.member import RunningMember
from replset.operations.admission import SMALL_BYTES

PREFIX = "/v1/action/"
Run: TypeAlias = Callable[[dict[str, Any]], Awaitable[Reply]]
"""Runs a command on the database of an action."""


class ActionRoutes:
    """Answers the actions and passes every other request to `next_app`."""

    def __init__(self, next_app: App, member: RunningMember) -> None:
        self._next_app = next_app
        self._member = member

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await self._next_app(scope, receive, send)
            return
        request = HttpRequest(scope)
        try:
            answer = await self._answer(scope, request, receive, send)
        except (HttpError, ReplError) as error:
            answer = error_answer(error)
        if answer is not None:
            await send_answer(self._member, request, answer, send)

    async def _answer(self, scope: Scope, request: HttpRequest, receive: Receive, send: Send) -> HttpAnswer | None:
        """Return the answer, or None if it has been sent as lines."""
        action = _find_action(request)
        check_content_type(scope)
        key = request.idempotency_key if action.is_write else None
        data = await read_body(request, receive)

        user = "" if request.login is None else str(request.login)
        keyed = None if key is None else KeyedWrite(key, action.name, data, user)

        def build() -> ActionCommand:
            fields = parse_fields(request.content_type, data)
            return build_command(action, fields, self._member.new_id if keyed is None else keyed.new_id)

        command = await parsed(self._member, request, data, build)
        if action.is_write:
            return await self._write(action, command, request, keyed)
        request.wants_forwarding()  # a read is answered here, but a wrong parameter is still refused
        preference = command.body.get("$readPreference")
        try:
            is_stream = action.answer_fields is found and wants_lines(request)
            if is_stream:
                request.memory.reserve(2 * BATCH_BYTES)  # a batch and its lines
            batch_bytes = BATCH_BYTES if is_stream else MAX_BSON_SIZE
            member, database, sender = self._member, command.database, request.sender

            async def run(body: dict[str, Any]) -> Reply:
                if is_stream:  # of hundreds of exports only some make a batch in one turn of the loop
                    await member.slices.take(BATCH_BYTES)
                return await run_command(member, body, database=database, sender=sender, batch_bytes=batch_bytes)

            reply = check_reply(await run(command.body))
            if is_stream:
                advised = advised_elsewhere(self._member, preference)
                await send_lines(self._member, self._batches(reply, command, run), receive, send, advised)
                return None
            fields = action.answer_fields(reply, command)
            if action.answer_fields is found:
                fields["documents"] = await self._all_documents(self._batches(reply, command, run), request.memory)
        except HttpError as error:
            add_read_from(self._member, error, preference)
            raise
        return HttpAnswer(fields, action.status, advised_elsewhere(self._member, preference), times_of(reply))

    async def _write(
        self, action: ActionType, command: ActionCommand, request: HttpRequest, keyed: KeyedWrite | None
    ) -> HttpAnswer:
        if isinstance(command, BulkWrite):
            reply, headers = await run_bulk(self._member, request, command, keyed)
        else:
            body = command.body if keyed is None else {**command.body, **keyed.fields_of(0)}
            reply, headers = await run_write(self._member, request, body, command.database)
        try:
            answer = action_answer(action, check_reply(reply, is_write=True), command)
        except HttpError as error:
            error.headers |= headers
            raise
        answer.headers = headers
        return answer

    async def _all_documents(self, batches: AsyncGenerator[DocumentList], memory: RequestMemory) -> DocumentList:
        """Return the documents of all batches. An answer is complete, or an error says that it is too large."""
        documents, size = DocumentList(), 0
        async with aclosing(batches):
            async for batch in batches:
                documents += batch
                more = sum(len(document.raw) for document in batch)
                size += more
                if size > MAX_ANSWER_BYTES:
                    text = (
                        f"the answer is too large; use limit and skip, 'accept: {NDJSON}', or the wire port's cursors"
                    )
                    raise failure(ErrorCode.DOCUMENT_TOO_LARGE, text)
                if size > SMALL_BYTES:
                    memory.reserve(more)
        return documents

    async def _batches(self, reply: Reply, command: ActionCommand, run: Run) -> AsyncGenerator[DocumentList]:
        """Yield the documents of one batch after the other. A cursor that is not read to its end is killed."""
        cursor, documents = read_cursor(reply, "firstBatch")
        del reply  # its documents are copies, and their client may take long to read them
        collection = next(iter(command.body.values()))
        try:
            yield documents
            while cursor:
                del documents
                more = {"getMore": cursor, "collection": collection}
                cursor, documents = read_cursor(check_reply(await run(more)), "nextBatch")
                yield documents
        finally:
            if cursor:
                await run({"killCursors": collection, "cursors": [cursor]})


def _find_action(request: HttpRequest) -> ActionType:
    """Return the action that the path names. HttpError 404 unknown, 405 not a POST."""
    name = request.path[len(PREFIX) :]
    action = ACTIONS.get(name)
    if action is None:
        raise failure(
            ErrorCode.COMMAND_NOT_FOUND, f"no action {name[:80]!r}; there are: {', '.join(sorted(ACTIONS))}", status=404
        )
    if request.method != "POST":
        text = f"{name} takes POST, not {request.method[:20]}"
        raise failure(ErrorCode.COMMAND_NOT_FOUND, text, status=405, headers={"allow": "POST"})
    return action

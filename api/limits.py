"""Limits how many requests are answered at once, how much memory they use, and how long a client may stop reading."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import MutableMapping
from typing import Any, Final

from api.action_table import ACTIONS
from api.errors import HttpError, http_error
from api.exchange import (
    DRAIN_BYTES,
    PIECE_BYTES,
    App,
    HttpRequest,
    Receive,
    RequestMemory,
    Scope,
    Send,
    error_answer,
    send_answer,
)
from api.guard import Guard
from api.read_from import read_from
from replset.errors import OverloadedError
from replset.member.member import RunningMember
from replset.operations.admission import STALLED_S
from replset.operations.read_preference import ReadPreference

log = logging.getLogger("replset.http")

MAX_REQUESTS: Final = 4096
"""Requests of all connections at once."""
READERS_MS: Final = 100
LIMITED: Final = ("/v1/action/", "/v1/command/")
"""Only these paths are refused by an overloaded member. All others are small, and people need them to see why."""


class UnfinishedAnswerError(Exception):
    """An answer that has begun cannot be sent to its end; the text says why. The connection is closed."""


class RequestLimits:
    """Refuses a request at once when the member has too much to do, or when the guard refuses it."""

    def __init__(self, next_app: App, member: RunningMember, guard: Guard) -> None:
        self._next_app = next_app
        self._guard = guard
        self._member = member
        self._running = 0
        self._readers: dict[str, str] = {}
        self._readers_until = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._next_app(scope, receive, send)
            return
        memory = scope["memory"] = RequestMemory(self._member.admission)
        send = _send_in_pieces(send, memory)
        refusal = self._guard.refusal(scope)
        has_reserved_slot = "has_reserved_slot" in scope
        if refusal is None and scope["path"].startswith(LIMITED):
            refusal = self._overload(memory, has_reserved_slot)
            action = ACTIONS.get(scope["path"].removeprefix("/v1/action/"))
            if refusal is not None and action is not None and not action.is_write:
                refusal.headers |= self._read_from()
        if refusal is not None:
            # A reserved slot is for health checks. A client that never sends its body must not keep the slot.
            if not has_reserved_slot:
                await _drain(receive)
            await send_answer(self._member, HttpRequest(scope), error_answer(refusal), send)
            return
        self._running += 1
        try:
            await self._next_app(scope, receive, send)
        except UnfinishedAnswerError as error:  # uvicorn closes the connection, because the response is incomplete
            log.warning("an answer to %s ended in the middle: %s", HttpRequest(scope).client, error)
        finally:
            self._running -= 1
            memory.release()

    def _read_from(self) -> dict[str, str]:
        """Return the header with who may answer a refused read. It is kept for a while, since a refusal must be cheap.

        The read preference is not read yet: a client that needs the primary passes over the others.
        """
        now = self._member.clock.now()
        if now >= self._readers_until:
            self._readers = read_from(self._member, ReadPreference("nearest"))
            self._readers_until = now + READERS_MS
        return self._readers

    def _overload(self, memory: RequestMemory, has_reserved_slot: bool) -> HttpError | None:
        """Return 503 (462) when the member has too much to do."""
        admission = self._member.admission
        if admission.is_full:
            admission.refused += 1
            return memory.refusal()
        if has_reserved_slot or self._running >= MAX_REQUESTS:
            admission.refused += 1
            many = "too many connections are open" if has_reserved_slot else f"{self._running} requests are under way"
            return http_error(OverloadedError(f"this member is overloaded: {many}; nothing was applied, try again"))
        return None


async def _drain(receive: Receive) -> None:
    """Read a refused body and discard it, because many clients read no response before they have sent everything."""
    size, more = 0, True
    try:
        async with asyncio.timeout(STALLED_S):
            while more and size <= DRAIN_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                more = message.get("more_body", False)
    except TimeoutError:
        return


def _send_in_pieces(send: Send, memory: RequestMemory) -> Send:
    """Return a `send` that splits long bodies and counts them in `memory` until the client has taken them.

    It raises UnfinishedAnswerError when the client takes nothing of a long body, or of a response in many parts, for
    STALLED_S.
    """

    async def send_pieces(message: MutableMapping[str, Any]) -> None:
        body = message.get("body", b"")
        more_follows = message.get("more_body", False)
        if len(body) <= PIECE_BYTES and not more_follows:
            await send(message)
            return
        for at in range(0, len(body), PIECE_BYTES):
            memory.count_response(len(body) - at)
            is_last = at + PIECE_BYTES >= len(body)
            more = not is_last or more_follows
            piece = {"type": message["type"], "body": body[at : at + PIECE_BYTES], "more_body": more}
            try:
                async with asyncio.timeout(STALLED_S):
                    await send(piece)
            except TimeoutError:
                raise UnfinishedAnswerError(f"it read nothing for {STALLED_S:.0f} s") from None

    return send_pieces

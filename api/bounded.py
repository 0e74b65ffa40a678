"""In front of the whole API: how much it takes on, and how long a client may stall."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import MutableMapping
from typing import Any, Final

from api.errors import HttpError
from api.exchange import DRAIN_BYTES, Answer, App, Asked, Receive, Scope, Send, say
from api.guard import Guard
from api.held import Held, overloaded
from api.ports import ApiMember
from replset.errors import OverloadedError
from replset.runtime.admission import STALLED_S

log = logging.getLogger("replset.http")

PIECE_BYTES: Final = 256 << 10
"""A longer body is sent in such pieces, each once the client has taken those before it."""
MAX_UNDER_WAY: Final = 4096
"""Requests of all connections at once."""
LIMITED: Final = ("/v1/action/", "/v1/command/")
"""What is refused when there is too much to do. The rest is small, and says what is the matter."""


class StalledError(Exception):
    """The client takes nothing more of its answer."""


class Bounded:
    """Refuses at once what is too much, and what no client of ours sends (guard.py)."""

    def __init__(self, rest: App, member: ApiMember, guard: Guard) -> None:
        self._rest = rest
        self._guard = guard
        self._member = member
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._rest(scope, receive, send)
            return
        held = scope["held"] = Held(self._member.admission)
        send = _in_pieces(send, held)
        problem = self._guard.refusal(scope)
        kept = "on_kept_slot" in scope
        if problem is None and scope["path"].startswith(LIMITED):
            problem = self._refusal(held, kept=kept)
        if problem is not None:
            if not kept:  # on such a slot a body that never comes would keep those out that the slot is for
                await _drain(receive)
            await say(self._member, Asked(scope), Answer(problem.body, problem.status, problem.headers), send)
            return
        self._under_way += 1
        try:
            await self._rest(scope, receive, send)
        except StalledError:  # an answer that is not whole makes uvicorn close the connection
            log.warning("%s took nothing of its answer for %.0f s", Asked(scope).client, STALLED_S)
        finally:
            self._under_way -= 1
            held.let_go()

    def _refusal(self, held: Held, *, kept: bool) -> HttpError | None:
        if self._member.admission.is_full:
            self._member.admission.refused += 1
            return held.refusal()
        if kept or self._under_way >= MAX_UNDER_WAY:
            self._member.admission.refused += 1
            many = "too many connections are open" if kept else f"{self._under_way} requests are under way"
            return overloaded(OverloadedError(f"this member is overloaded: {many}; nothing was applied, try again"))
        return None


async def _drain(receive: Receive) -> None:
    """Read a body and throw it away, so that its sender hears the answer; not for ever."""
    size, more = 0, True
    try:
        async with asyncio.timeout(STALLED_S):
            while more and size <= DRAIN_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                more = message.get("more_body", False)
    except TimeoutError:
        return


def _in_pieces(send: Send, held: Held) -> Send:
    """Long bodies go out as the client takes them, and count until then. StalledError when it takes none, or none of
    an answer that comes in many.
    """

    async def send_pieces(message: MutableMapping[str, Any]) -> None:
        body = message.get("body", b"")
        more_follows = message.get("more_body", False)
        if len(body) <= PIECE_BYTES and not more_follows:
            await send(message)
            return
        for at in range(0, len(body), PIECE_BYTES):
            held.hold(len(body) - at)
            last = at + PIECE_BYTES >= len(body)
            more = not last or more_follows
            piece = {"type": message["type"], "body": body[at : at + PIECE_BYTES], "more_body": more}
            try:
                async with asyncio.timeout(STALLED_S):
                    await send(piece)
            except TimeoutError:
                raise StalledError from None

    return send_pieces

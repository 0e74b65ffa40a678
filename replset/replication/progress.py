"""Reports this member's position to its sync source (map R8) where no fetch is about to carry it, and at an interval.

One report is under way at a time. What moves meanwhile goes into the next one, so only the newest position is sent. The
core makes the report (`Node.progress_request`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from replset.core.effects import Send
from replset.core.messages import ProgressRequest, ReplyBody, Response
from replset.errors import ReplError
from replset.ids import HostPort, Millis
from replset.replication.ports import Clock

UNHURRIED_MS = 10
"""How long a report waits for others to go with it, if nobody waits for it."""


class ProgressReporter:
    """The task that sends replSetUpdatePosition upstream."""

    def __init__(
        self,
        *,
        clock: Clock,
        source: Callable[[], HostPort | None],
        request: Callable[[], ProgressRequest | None],
        exchange: Callable[[Send], Awaitable[ReplyBody]],
        interval_ms: Callable[[], Millis],
        report: Callable[[Response], None],
    ) -> None:
        """source: whom to report to, None: nobody. request: `node.progress_request`. interval_ms: electionTimeout / 2.

        exchange: sends to another member, raises ReplError when there is no answer. report: feeds the answer to the
        core (request_id 0, which no effect of the core has).
        """
        self._clock = clock
        self._source = source
        self._request = request
        self._exchange = exchange
        self._interval_ms = interval_ms
        self._report = report
        self._moved = asyncio.Event()
        self._soon: asyncio.TimerHandle | None = None

    def notify(self) -> None:
        """Report the new position now, or as soon as the report under way is answered."""
        self._moved.set()

    def notify_soon(self) -> None:
        """Report within UNHURRIED_MS; nobody waits for it."""
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_later(UNHURRIED_MS / 1000, self._notify_now)

    def _notify_now(self) -> None:
        self._soon = None
        self.notify()

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            self._moved.clear()
            source = self._source()
            request = self._request() if source is not None else None
            if source is None or request is None:
                await self._wait()
                continue
            if not await self._send(source, request):
                # The source is gone or refuses: the next move or the interval tries again, not a busy loop.
                await asyncio.sleep(min(self._interval_ms(), 500) / 1000)
                continue
            await self._wait()

    async def _wait(self) -> None:
        timer = asyncio.get_running_loop().call_later(self._interval_ms() / 1000, self._moved.set)
        try:
            await self._moved.wait()
        finally:
            timer.cancel()

    async def _send(self, source: HostPort, request: ProgressRequest) -> bool:
        began = self._clock.now()
        send = Send(0, source, request, self._interval_ms())
        body: ReplyBody | None = None
        error = ""
        try:
            body = await self._exchange(send)
        except ReplError as failure:
            error = failure.message
        self._report(Response(0, source, body, error, Millis(self._clock.now() - began)))
        return body is not None

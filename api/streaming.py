"""Streams a long JSON answer: each chunk is made in a thread when the client has taken the one before it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.responses import Response

from api.bodies import JSON
from api.errors import HttpError, failure, rollback_error, unknown_outcome
from api.exchange import Receive, Scope, Send
from replset.errors import ErrorCode, ReplError
from replset.features.recovery.report import JsonReport

T = TypeVar("T")
CHUNK_CHARS = 1 << 16
CHUNK_S = 0.5
"""A chunk ends when it has so many characters, or when it took so long."""


async def run_in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread of its own.

    A report takes long. It must not occupy one of the member's worker threads, and the member's end must not wait for
    it.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(set_outcome: Callable[[Any], None], value: object) -> None:
        if not done.done():  # a cancelled request does not wait any more
            set_outcome(value)

    def run() -> None:
        outcome: tuple[Callable[[Any], None], object]
        try:
            outcome = done.set_result, work()
        except BaseException as error:
            outcome = done.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(finish, *outcome)

    threading.Thread(target=run, name="replset-rollback", daemon=True).start()
    return await done


# --- the text -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReportSource:
    """The parts of a report: its first fields, its rows and their counts.

    has_written: returns True once the report may have changed the set.
    """

    head: Mapping[str, Any]
    rows: Iterator[Mapping[str, Any]]
    counts: Counter[str]
    has_written: Callable[[], bool] = lambda: False


def report_chunks(open_source: Callable[[ExitStack], ReportSource]) -> Generator[bytes]:
    """Yield the JSON of the tools' --json in chunks. An error before the first row is raised as HttpError.

    A later error ends the answer: `error` is its last member, and `counts` is missing. open_source: opens the files and
    connections of the report on the stack, which closes them.
    """
    out, due = io.StringIO(), time.monotonic() + CHUNK_S
    source: ReportSource | None = None
    text: JsonReport | None = None
    try:
        with ExitStack() as stack:
            source = open_source(stack)
            row = next(source.rows, None)
            text = JsonReport(out, source.head, "writes")
            while row is not None:
                text.row(row)
                if out.tell() > CHUNK_CHARS or time.monotonic() > due:
                    yield _take(out)
                    due = time.monotonic() + CHUNK_S
                row = next(source.rows, None)
        text.close({"counts": source.counts})
    except (HttpError, ReplError, OSError) as error:
        problem = rollback_error(error)
        if text is None:
            # A restore that fails may have written already. Its answer must not say that nothing was applied.
            if source is not None and source.has_written():
                audit = {"audit": source.head.get("audit")}
                raise unknown_outcome(problem.body["code"], problem.body["errmsg"], audit) from error
            raise problem from error
        text.close({"error": problem.body})
    yield _take(out)


def _take(out: io.StringIO) -> bytes:
    data = out.getvalue().encode("utf-8", "replace")
    out.seek(0)
    out.truncate()
    return data


# --- the response -------------------------------------------------------------------------------------------------


class Chunks:
    """Runs a generator in threads, one chunk at a time."""

    def __init__(self, source: Generator[bytes]) -> None:
        self._source = source
        self._lock = threading.Lock()

    async def next(self) -> bytes | None:
        """Return the next chunk, None at the end."""
        return await run_in_thread(self._next)

    def close(self) -> None:
        """Close the generator once its present chunk is made, because the client wants no more."""
        threading.Thread(target=self._close, name="replset-rollback", daemon=True).start()

    def _next(self) -> bytes | None:
        with self._lock:
            return next(self._source, None)

    def _close(self) -> None:
        with self._lock:
            self._source.close()


class ChunkedResponse(Response):
    """Sends chunks of JSON until the end, or until the client closes the connection or takes nothing more."""

    def __init__(self, chunks: Chunks, first: bytes | None) -> None:
        super().__init__()
        self._chunks = chunks
        self._next = first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        disconnected = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            headers = [(b"content-type", JSON.encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            while self._next is not None and not disconnected.done():
                await send({"type": "http.response.body", "body": self._next, "more_body": True})
                self._next = await self._chunks.next()
            if self._next is None:
                await send({"type": "http.response.body", "body": b""})
        finally:
            disconnected.cancel()
            if self._next is not None:
                self._chunks.close()


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """Return the result of `work`, which is cancelled when the client has closed the connection."""
    running, gone = asyncio.ensure_future(work), asyncio.ensure_future(wait_for_disconnect(receive))
    try:
        await asyncio.wait((running, gone), return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            raise failure(ErrorCode.INTERRUPTED, "the client closed the connection")
        return running.result()
    finally:
        running.cancel()
        gone.cancel()


async def stream_response(source: Generator[bytes]) -> Response:
    """Return a response that streams `source`. An error before the first chunk is raised here."""
    chunks = Chunks(source)
    try:
        return ChunkedResponse(chunks, await chunks.next())
    except asyncio.CancelledError:
        chunks.close()
        raise

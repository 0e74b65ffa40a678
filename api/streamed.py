"""Long answers that are made in a thread, piece by piece, as the client takes them."""

from __future__ import annotations

import asyncio
import contextlib
import io
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.responses import Response

from api.content import JSON
from api.errors import HttpError, failure, of, unknown_outcome
from api.exchange import Receive, Scope, Send
from replset.errors import CorruptDataError, ErrorCode, ReplError
from replset.recovery.report import JsonReport
from replset.storage.sqlite import is_disk_full

T = TypeVar("T")
PIECE_CHARS = 1 << 16
PIECE_S = 0.5
"""A piece ends when it is so long or so old."""


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread of its own: the member's workers never queue behind it, nor does its end wait for it."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(set_it: Callable[[Any], None], value: object) -> None:
        if not done.done():  # else nobody waits any more
            set_it(value)

    def run() -> None:
        told: tuple[Callable[[Any], None], object]
        try:
            told = done.set_result, work()
        except BaseException as error:
            told = done.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell, *told)

    threading.Thread(target=run, name="replset-rollback", daemon=True).start()
    return await done


def problem_of(error: Exception) -> HttpError:
    """What a client is told of a failure over the files of a rollback or the set."""
    match error:
        case HttpError():
            return error
        case CorruptDataError():
            return failure(ErrorCode.BAD_VALUE, error.message)
        case ReplError():
            return of(error)
        case FileNotFoundError():
            return failure(ErrorCode.BAD_VALUE, f"{error.filename} is missing")
        case OSError() if is_disk_full(error):
            return failure(ErrorCode.OUT_OF_DISK_SPACE, f"the disk is full: {error}")
    return failure(1, str(error))


# --- the text -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Telling:
    """What a report consists of. has_written: whether the set may be changed by now."""

    head: Mapping[str, Any]
    rows: Iterator[Mapping[str, Any]]
    counts: Counter[str]
    has_written: Callable[[], bool] = lambda: False


def report(begin: Callable[[ExitStack], Telling]) -> Generator[bytes]:
    """The JSON of the tools' --json in pieces; a failure before the first row is raised as HttpError.

    One behind that ends the answer: `error` is its last member, and `counts` is not there. begin: opens what is needed.
    """
    out, due = io.StringIO(), time.monotonic() + PIECE_S
    told: Telling | None = None
    text: JsonReport | None = None
    try:
        with ExitStack() as stack:
            told = begin(stack)
            row = next(told.rows, None)
            text = JsonReport(out, told.head, "writes")
            while row is not None:
                text.row(row)
                if out.tell() > PIECE_CHARS or time.monotonic() > due:
                    yield _taken(out)
                    due = time.monotonic() + PIECE_S
                row = next(told.rows, None)
        text.close({"counts": told.counts})
    except (HttpError, ReplError, OSError) as error:
        problem = problem_of(error)
        if text is None:
            raise _unknown(problem, told.head) if told is not None and told.has_written() else problem from error
        text.close({"error": problem.body})
    yield _taken(out)


def _unknown(problem: HttpError, head: Mapping[str, Any]) -> HttpError:
    return unknown_outcome(problem.body["code"], problem.body["errmsg"], {"audit": head.get("audit")})


def _taken(out: io.StringIO) -> bytes:
    data = out.getvalue().encode("utf-8", "replace")
    out.seek(0)
    out.truncate()
    return data


# --- the answer ---------------------------------------------------------------------------------------------------


class Pieces:
    """What a generator gives, each piece made in a thread while someone waits for it."""

    def __init__(self, source: Generator[bytes]) -> None:
        self._source = source
        self._step = threading.Lock()

    async def next(self) -> bytes | None:
        """None: there are no more."""
        return await in_thread(self._next)

    def abandon(self) -> None:
        """Nobody wants more: the generator is closed once the piece that is being made is made."""
        threading.Thread(target=self._close, name="replset-rollback", daemon=True).start()

    def _next(self) -> bytes | None:
        with self._step:
            return next(self._source, None)

    def _close(self) -> None:
        with self._step:
            self._source.close()


class Streamed(Response):
    """JSON as it comes. It stops when the client goes away or takes nothing more."""

    def __init__(self, pieces: Pieces, first: bytes | None) -> None:
        super().__init__()
        self._pieces = pieces
        self._next = first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(_gone(receive))
        try:
            headers = [(b"content-type", JSON.encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            while self._next is not None and not gone.done():
                await send({"type": "http.response.body", "body": self._next, "more_body": True})
                self._next = await self._pieces.next()
            if self._next is None:
                await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()
            if self._next is not None:
                self._pieces.abandon()


async def _gone(receive: Receive) -> None:
    """Return once the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def streamed(source: Generator[bytes]) -> Response:
    """The answer that `source` gives; what it raises before its first piece is raised here."""
    pieces = Pieces(source)
    try:
        return Streamed(pieces, await pieces.next())
    except asyncio.CancelledError:
        pieces.abandon()
        raise

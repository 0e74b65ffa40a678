"""Evaluates filters, updates, sorts and projections: small work on the event loop, the rest in one thread.

Heartbeats, elections and all clients share the event loop, so no evaluation may block it for long. The cost has a limit
that is known before the work begins: the bytes of the statement times the bytes of the document. Work over SMALL_WORK
runs in a thread. It gives the event loop its turn after every half millisecond (`machine.short_turns`) and ends after
`LIMIT_S`. All clients share this one thread, so that the loop never waits for more than one; each uses it for a slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from itertools import islice, takewhile
from typing import Final, TypeVar

from replset.bson import RawDocument
from replset.operations.kernel import Kernel
from replset.operations.slow_operations import WORK
from replset.query.expressions.compiler import has_loops
from replset.query.regex import begin_time_slice, contains_regex, is_time_slice_over
from replset.query.time_limit import parts_compiled, time_limit
from replset.replication.ports import Clock

T = TypeVar("T")

SMALL_WORK: Final = 2 << 20
"""Bytes of a statement times bytes of a document. In the worst case each takes about 2 ns."""
SMALL_STATEMENT: Final = 16 << 10
"""Limit in bytes on a statement that is read and compiled on the event loop, in about 10 ms."""
_LEAST_WEIGHT: Final = 64
"""Decoding and encoding a document costs as much as about 64 bytes of a statement."""
UNBOUNDED: Final = 1 << 62
"""The weight of a statement whose size says nothing about its cost: one with a regular expression or with loops."""
TURN_MS: Final = 20
_MOST_STEPS: Final = 16
IS_TIME_UP: ContextVar[Callable[[], bool] | None] = ContextVar("is_time_up", default=None)
"""Whether the maxTimeMS of the command under way is over."""


class TimeSlice:
    """The time that a command may use the event loop, or the thread, before others get their turn.

    While steps are short, not every one looks at the clock, which would cost as much as a short step.
    """

    __slots__ = ("_clock", "_looked_at", "_steps", "_steps_left", "_until")

    def __init__(self, clock: Clock, length_ms: int = TURN_MS) -> None:
        self._clock = clock
        self._looked_at = clock.now()
        self._until = self._looked_at + length_ms
        self._steps = self._steps_left = 1
        begin_time_slice()

    def is_over(self) -> bool:
        """Ask behind each step."""
        self._steps_left -= 1
        if self._steps_left:
            return is_time_slice_over()
        now = self._clock.now()
        self._steps = min(2 * self._steps, _MOST_STEPS) if now == self._looked_at else 1
        self._steps_left, self._looked_at = self._steps, now
        return now >= self._until or is_time_slice_over()


def weight_of(size: int, *parts: object) -> int:
    """Return the weight of a statement of `size` bytes. parts: its filter and its update, decoded."""
    is_unbounded = size <= SMALL_STATEMENT and any(contains_regex(part) or has_loops(part) for part in parts)
    return UNBOUNDED if is_unbounded else size


def is_small(weight: int, size: int) -> bool:
    """Whether a statement may be evaluated over a document of `size` bytes on the event loop."""
    return weight <= SMALL_STATEMENT and max(weight, _LEAST_WEIGHT) * size <= SMALL_WORK


async def run_in_thread(member: Kernel, work: Callable[[], T]) -> T:
    """Run `work` in the thread and return its result. It must not use anything that others change meanwhile.

    MaxTimeMSExpiredError: it takes longer than `LIMIT_S`, or than the command may.
    """
    is_time_up = IS_TIME_UP.get()

    def limited() -> tuple[T, int]:
        with time_limit(is_time_up):
            return _counted(work)

    found, parts = await member.evaluations.run(limited)
    _note(parts)
    return found


def _counted(work: Callable[[], T]) -> tuple[T, int]:
    """Do `work`, and return how many parts of a statement it compiled."""
    before = parts_compiled()
    return work(), parts_compiled() - before


def _note(parts: int) -> None:
    """Note what was compiled for the command of this task."""
    work = WORK.get()
    if parts and work is not None:
        work.note_parts(parts)


async def evaluate(
    member: Kernel,
    weight: int,
    documents: Sequence[bytes],
    read: Callable[[bytes], T | None],
    want: int | None = None,
    fits: Callable[[T], bool] | None = None,
) -> tuple[list[T], int]:
    """Return what `read` gives for the documents, without None and up to `want`, and how many documents were read.

    At least one document is read, the others while time allows. weight: of what `read` evaluates; 0 for nothing.
    fits: whether a result is wanted; the first that is not ends it, and its document counts as not read.
    """

    return await evaluate_all(member, weight, documents, partial(map, read), want, fits)


async def evaluate_all(
    member: Kernel,
    weight: int,
    documents: Sequence[bytes],
    read: Callable[[Sequence[bytes]], Iterable[T | None]],
    want: int | None = None,
    fits: Callable[[T], bool] | None = None,
) -> tuple[list[T], int]:
    """Do as `evaluate`. read: gives a result for each of the documents, when it is asked for."""

    def work() -> tuple[list[T], int]:
        results = read(documents)
        if results is documents:  # nothing is evaluated
            wanted: Iterator[T] = islice(results, want)
            found = list(wanted if fits is None else takewhile(fits, wanted))
            return found, len(found)
        time_slice = TimeSlice(member.clock)
        found = []
        looked_at = 0
        for result in results:
            if result is not None and fits is not None and not fits(result):
                break
            looked_at += 1
            if result is not None:
                found.append(result)
                if len(found) == want:
                    break
            if time_slice.is_over():
                break
        return found, looked_at

    if weight and documents and not is_small(weight, max(map(len, documents))):
        return await run_in_thread(member, work)
    return work()


async def read_statement(member: Kernel, document: RawDocument, read: Callable[[], T]) -> T:
    """Return what `read` makes of the document of a command or a statement."""
    return read() if len(document.raw) <= SMALL_STATEMENT else await run_in_thread(member, read)


async def compiled(member: Kernel, weight: int, compile_: Callable[[], T]) -> T:
    """Return what `compile_` makes of decoded documents of this weight, and note its parts for the command."""
    if weight > SMALL_STATEMENT:
        return await run_in_thread(member, compile_)
    found, parts = _counted(compile_)
    _note(parts)
    return found

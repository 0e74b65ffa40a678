"""Counts what a piece of work does, in lines of Python: the same number on every machine, however busy it is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType


class TooManyStepsError(AssertionError):
    """The work took more steps than it may."""


class Steps:
    """Within the block, counts the lines that this thread runs. A call into C is one, however long it takes.

    most: TooManyStepsError once there are more, for what would never end.
    """

    def __init__(self, most: int = 1 << 62) -> None:
        self.count = 0
        self._most = most
        self._before: Callable[..., object] | None = None

    def __enter__(self) -> Steps:
        self._before = sys.gettrace()

        def look(frame: FrameType, event: str, argument: object) -> object:
            self.count += 1
            if self.count > self._most:
                raise TooManyStepsError(f"more than {self._most} steps")
            return look

        sys.settrace(look)  # type: ignore[arg-type]
        return self

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count nothing in this block."""
        counting = sys.gettrace()
        sys.settrace(None)
        try:
            yield
        finally:
            sys.settrace(counting)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        sys.settrace(self._before)  # type: ignore[arg-type]


def steps_of(work: Callable[[], object], most: int = 1 << 62) -> int:
    """Return how many steps `work` takes."""
    with Steps(most) as steps:
        work()
    return steps.count

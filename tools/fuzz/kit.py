"""What all targets share: bytes that are nearly right, a short run that is always the same, and a long one by hand."""

from __future__ import annotations

import logging
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

ROUND = 500
"""Examples of a long run between two looks at the clock."""
SLOW_S = 2.0

Check = Callable[[Any], str]
"""Tries one input and gives a word for what came of it; raises when something is wrong."""


@dataclass(frozen=True)
class Target:
    """One place that takes input. `opened` makes what it needs, for as many inputs as follow. short: examples.

    slow_s: CPU time after which one input counts as a way to hold a member up.
    """

    name: str
    inputs: st.SearchStrategy[Any]
    opened: Callable[[], AbstractContextManager[Check]]
    short: int
    slow_s: float = SLOW_S


@contextmanager
def stateless(check: Check) -> Iterator[Check]:
    yield check


class _Trial:
    """A check with what came of it. first: what broke first, since what was broken may not break so again."""

    def __init__(self, check: Check, told: Counter[str], slow_s: float) -> None:
        self._check = check
        self._told = told
        self._slow_s = slow_s
        self.slowest = 0.0
        self.first: Exception | None = None

    def one(self, value: Any) -> None:
        began = time.thread_time()
        try:
            self._told[self._check(value)] += 1
            took = time.thread_time() - began
            self.slowest = max(self.slowest, took)
            assert took < self._slow_s, f"it took {took:.1f} s"
        except Exception as error:
            error.add_note(f"input: {value!r:.3000}")
            self.first = self.first or error
            raise


_COMMON: dict[str, Any] = {
    "deadline": None,
    "database": None,
    "suppress_health_check": list(HealthCheck),
    "print_blob": False,
    "phases": (Phase.generate, Phase.shrink),
}


def run_short(target: Target) -> Counter[str]:
    """The same inputs every time; what came of them."""
    told: Counter[str] = Counter()
    with target.opened() as check:
        trial = _Trial(check, told, target.slow_s)
        test = given(target.inputs)(trial.one)
        settings(**_COMMON, derandomize=True, max_examples=target.short)(test)()
    return told


def run_long(target: Target, minutes: float, start: int, say: Callable[[str], None]) -> bool:
    """New inputs until the time is over; False when one of them broke something."""
    told: Counter[str] = Counter()
    slowest = 0.0
    began, number = time.monotonic(), start
    logging.disable(logging.CRITICAL)
    try:
        while time.monotonic() - began < minutes * 60:
            with target.opened() as check:
                trial = _Trial(check, told, target.slow_s)
                test = seed(number)(given(target.inputs)(trial.one))
                try:
                    settings(**_COMMON, max_examples=ROUND)(test)()
                except Exception as error:
                    broken = trial.first or error
                    where = "".join(traceback.format_exception(broken)[-6:])
                    say(f"{target.name}: BROKEN in round {number}: {where}")
                    return False
            slowest = max(slowest, trial.slowest)
            number += 1
    finally:
        logging.disable(logging.NOTSET)
    seconds = time.monotonic() - began
    outcomes = ", ".join(f"{count:,} {what}" for what, count in told.most_common(12))
    say(f"{target.name}: {told.total():,} inputs in {seconds:.0f} s, the slowest {slowest:.2f} s; {outcomes}")
    return True


def kept(strategy: st.SearchStrategy[Any], count: int) -> st.SearchStrategy[Any]:
    """Often one of `count` values of `strategy` that are made once, which is quicker than making one."""

    @cache
    def made() -> list[Any]:
        found: list[Any] = []
        settings(**_COMMON, derandomize=True, max_examples=count)(given(strategy)(lambda value: found.append(value)))()
        return found

    few = st.deferred(lambda: st.sampled_from(made()))
    return st.integers(0, 7).flatmap(lambda number: few if number else strategy)


# --- bytes that are nearly right --------------------------------------------------------------------------------

_INTERESTING = [0, 1, 4, 5, 0x7F, 0x80, 0xFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]


@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[bytes], most: int = 4) -> bytes:
    """What `whole` gives, with up to `most` places changed."""
    data = bytearray(draw(whole))
    for _ in range(draw(st.integers(0, most))):
        at = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 5)):
            case 0:
                data[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case 1:
                del data[at : at + draw(st.integers(1, 8))]
            case 2:
                data[at:at] = draw(st.binary(min_size=1, max_size=8))
            case 3:
                data[at : at + 4] = draw(st.sampled_from(_INTERESTING)).to_bytes(4, "little")
            case 4:
                other = draw(st.integers(0, len(data)))
                data[at:at] = data[other : other + draw(st.integers(1, 32))]
            case _:
                del data[at:]
    return bytes(data)

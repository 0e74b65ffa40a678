"""A clock for regular expressions: a search takes as long as a test says, and nothing else takes any time."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from replset.query import regex


class SlowExpressions:
    """While the test runs, expressions are compiled and searched on this clock, by `re`.

    search_s: what each search takes; it ends early, refused, when its limit is less. compile_s: what compiling takes.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        self.search_s = 0.0
        self.compile_s = 0.0
        self.compiled = 0
        self.searched = 0
        patch.setattr(regex, "time", SimpleNamespace(thread_time=self._read, perf_counter=self._read))
        patch.setattr(regex, "_compiled", self._compiled)
        patch.setattr(regex, "_budget", regex._TimeBudget())

    def _read(self) -> float:
        return self.now

    def _compiled(self, pattern: str, options: str) -> tuple[None, Callable[..., Any]]:
        self.compiled += 1
        self.now += self.compile_s
        compiled = re.compile(pattern)

        def search(text: str, place: int, *, timeout: float, concurrent: bool) -> Any:
            self.searched += 1
            self.now += min(self.search_s, timeout)
            if self.search_s > timeout:
                raise TimeoutError
            return compiled.search(text, place)

        return None, search

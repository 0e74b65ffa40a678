"""Searches MongoDB's regular expressions with the `regex` package, in a limited time.

All commands share one time budget. A command that searches many documents calls `begin_time_slice`, and lets others run
when `is_time_slice_over`. Slices of SLICE_S are free. A slice may take up to LIMIT_S before its search is refused. What
it takes beyond SLICE_S is saved up again only by as much time without slow expressions. So many slow expressions at
once cannot stop the member.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Final

from replset.bson import Regex, Symbol
from replset.errors import ErrorCode, ReplError
from replset.query.errors import shorten
from replset.query.order import Predicate
from replset.query.pcre import PatternError, translate

SLICE_S: Final = 0.02
"""CPU time that expressions use before other commands run."""
LIMIT_S: Final = 0.2
MAX_PATTERN_BYTES: Final = 32_764
"""MongoDB's limit, in bytes of UTF-8."""
_MAX_CACHED_NODES: Final = 2_000
"""Nodes of an expression that is kept compiled. A node has about 300 bytes."""
_MAX_INLINE_WORK: Final = 1 << 20
"""Characters of the text times those of the pattern. `regex` checks its timeout every thousand steps, and a step can
read the whole text. So a longer search runs in a thread, for which the caller need not wait."""
_MAX_WORK: Final = 1 << 32
_PLAIN_S, _PLAIN_STEP_S = 3e-7, 3e-10
"""The assumed time of one search by `re`. Measuring it would take longer than the search."""

_FLAGS = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE, "u": re.NOFLAG}


class _TimeBudget:
    """Seconds that the present slice has used and may use, and that are saved up for the next ones."""

    __slots__ = ("began", "limit", "saved", "used")

    def __init__(self) -> None:
        self.began = 0.0
        self.used = 0.0
        self.limit = self.saved = LIMIT_S

    def begin(self) -> None:
        now = time.perf_counter()
        self.saved = max(0.0, self.saved - max(0.0, self.used - SLICE_S))
        self.saved = min(LIMIT_S, self.saved + max(0.0, now - self.began - self.used))
        self.began, self.used, self.limit = now, 0.0, max(2 * SLICE_S, self.saved)

    def left(self, pattern: str) -> float:
        """Return the seconds left, or raise 51156. A caller that begins no slices gets a new one each second."""
        if self.used >= self.limit:
            if time.perf_counter() - self.began < 1.0:
                raise _too_long(pattern)
            self.begin()
        return self.limit - self.used


Search = Callable[..., Any]
"""`search` of a compiled expression: gives a match or None."""
Find = Callable[[str, int], Any]
"""Gives the first match in a text from a place on, or None."""
_budget = _TimeBudget()
_thread_slot = threading.BoundedSemaphore()


def begin_time_slice() -> None:
    """Begin a new slice: some documents are searched without an await."""
    _budget.begin()


def is_time_slice_over() -> bool:
    """Return True when expressions have used up the slice, so that other commands should run first."""
    return _budget.used > SLICE_S


def contains_regex(value: object) -> bool:
    """Return True if a decoded filter or update holds a regular expression anywhere, or a schema, which may."""
    kind = type(value)
    if kind is dict:
        return "$regex" in value or "$jsonSchema" in value or any(map(contains_regex, value.values()))  # type: ignore[operator, attr-defined]
    if kind is list:
        return any(map(contains_regex, value))  # type: ignore[call-overload]
    return kind is Regex


def regex_predicate(pattern: str, options: str) -> Predicate:
    """Return the test that a string or symbol contains the expression, or that a value is the same expression.

    Raises 51108 for an unknown option, 51091 for a pattern that cannot be parsed, 51156 when the slice's time is over.
    The test raises 51156 too.
    """
    find = find_in(pattern, options)
    same = Regex(pattern, options)

    def matches(value: object) -> bool:
        if isinstance(value, str):
            return find(value, 0) is not None
        if type(value) is Symbol:
            return find(value.text, 0) is not None
        return type(value) is Regex and value == same

    return matches


def find_in(pattern: str, options: str) -> Find:
    """Return what searches in texts. Both raise as `regex_predicate` and its test do."""
    limit = _budget.left(pattern)
    began = time.thread_time()
    try:
        plain, search = _compiled(pattern, options)
    finally:
        _budget.used += min(time.thread_time() - began, limit)
    size = len(pattern) + 1

    def find(text: str, place: int) -> Any:
        work = size * len(text)
        limit = _budget.left(pattern)
        if plain is not None and work <= _MAX_INLINE_WORK:
            _budget.used += _PLAIN_S + work * _PLAIN_STEP_S
            return plain(text, place)
        if work > _MAX_WORK:
            raise _too_long(pattern)
        if work > _MAX_INLINE_WORK:
            return _search_in_thread(pattern, search, text, place, limit)
        began = time.thread_time()
        try:
            return search(text, place, timeout=limit, concurrent=True)
        except (TimeoutError, MemoryError):
            raise _too_long(pattern) from None
        finally:
            _budget.used += min(time.thread_time() - began, limit)

    return find


def _search_in_thread(pattern: str, search: Search, text: str, place: int, limit: float) -> Any:
    """Run `search` in a thread, one at a time. 51156 after `limit` seconds, though the thread may go on for a while."""
    found: list[Any] = []
    free, began = _thread_slot, time.perf_counter()

    def run() -> None:
        try:
            with contextlib.suppress(TimeoutError, MemoryError):
                found.append(search(text, place, timeout=limit, concurrent=True))
        finally:
            free.release()

    if free.acquire(timeout=limit):
        thread = threading.Thread(target=run, name="regular expression", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the machine allows no more threads
            free.release()
            raise _too_long(pattern) from None
        thread.join(max(0.0, began + limit - time.perf_counter()))
    _budget.used += min(time.perf_counter() - began, limit)
    if not found:
        raise _too_long(pattern)
    return found[0]


def _too_long(pattern: str) -> ReplError:
    return ReplError(f"Regular expression takes too long to match: {shorten(pattern)}", code=ErrorCode.REGEX_TIME_LIMIT)


# --- compiling --------------------------------------------------------------------------------------------------

_LINEAR = re.compile(r"[^\\*+?{}()|\[\]#]*")
"""Patterns of words, dots and anchors only. `re` searches these in a tenth of the time, and in linear time."""


def _compiled(pattern: str, options: str) -> tuple[Search | None, Search]:
    """Return the search of `re`, None where it is not safe, and that of `regex`, compiled at its first use."""
    flags = re.NOFLAG
    for option in options:
        if option not in _FLAGS:
            raise ReplError(f"invalid flag in regex options: {option}", code=ErrorCode.INVALID_REGEX_OPTION)
        flags |= _FLAGS[option]
    if "\0" in pattern:
        raise PatternError("Regular expression cannot contain an embedded null byte")
    if len(pattern.encode(errors="replace")) > MAX_PATTERN_BYTES:
        raise PatternError(f"Regular expression is longer than {MAX_PATTERN_BYTES} bytes")
    text, nodes = translate(pattern, verbose="x" in options)
    compile_ = _compile_cached if nodes <= _MAX_CACHED_NODES else _compile
    if not _LINEAR.fullmatch(pattern):
        return None, compile_(text, flags)

    @cache
    def compiled() -> Search:
        return compile_(text, flags)

    return _plain(pattern, flags), lambda *text, **timeout: compiled()(*text, **timeout)


def _compile(pattern: str, flags: re.RegexFlag) -> Search:
    import regex  # 1 MB, and `re` serves most expressions

    try:
        return regex.compile(pattern, int(flags) | regex.VERSION1, cache_pattern=False).search
    except (regex.error, OverflowError, RecursionError) as error:
        raise PatternError(f"Regular expression is invalid: {shorten(str(error))}") from None


_compile_cached = lru_cache(maxsize=256)(_compile)


@lru_cache(maxsize=256)
def _plain(pattern: str, flags: re.RegexFlag) -> Search:
    return re.compile(pattern, flags).search

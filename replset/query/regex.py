"""MongoDB's regular expressions on the `regex` package, with a bound on the time that they hold the event loop.

All commands share one allowance. Whoever asks many documents begins a turn with `begin_turn` and ends it when
`turn_is_over`: turns as short as that are free. A turn may go on for LIMIT_S before it is refused, and what it takes
beyond TURN_S has to be earned by as much time without slow expressions, so that many slow ones at once do not add up.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Final

import regex

from replset.bson import Regex, Symbol
from replset.errors import ErrorCode, ReplError
from replset.query.order import Predicate
from replset.query.pcre import PatternError, translated
from replset.query.refusals import shortened

TURN_S: Final = 0.02
"""What expressions use of one turn of the loop before others get theirs."""
LIMIT_S: Final = 0.2
LONGEST_PATTERN: Final = 32_764
"""In bytes of UTF-8; MongoDB's limit."""
_LARGEST_KEPT: Final = 2_000
"""Nodes of an expression that stays compiled; a node has some 300 bytes."""
_INLINE: Final = 1 << 20
"""Characters of the text times those of the pattern. `regex` looks at the clock every thousand steps, and a step can
walk the whole text, so a longer search is left to a thread that one need not wait for."""
_HOPELESS: Final = 1 << 32
_PLAIN_S, _PLAIN_STEP_S = 3e-7, 3e-10
"""What a search of `re` is taken to use: to look at the clock would take longer."""

_FLAGS = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE, "u": re.NOFLAG}


class _Allowance:
    """Seconds: what the present turn has used and may use in all, and what is saved up for the next ones."""

    __slots__ = ("began", "limit", "saved", "used")

    def __init__(self) -> None:
        self.began = 0.0
        self.used = 0.0
        self.limit = self.saved = LIMIT_S

    def begin(self) -> None:
        now = time.perf_counter()
        self.saved = max(0.0, self.saved - max(0.0, self.used - TURN_S))
        self.saved = min(LIMIT_S, self.saved + max(0.0, now - self.began - self.used))
        self.began, self.used, self.limit = now, 0.0, max(2 * TURN_S, self.saved)

    def left(self, pattern: str) -> float:
        """51156 when it is nothing. Who works without turns gets a new one each second."""
        if self.used >= self.limit:
            if time.perf_counter() - self.began < 1.0:
                raise _too_long(pattern)
            self.begin()
        return self.limit - self.used


Search = Callable[..., object]
_allowance = _Allowance()
_apart = threading.BoundedSemaphore()


def begin_turn() -> None:
    """What expressions use from here on is a turn of its own: some documents, looked at without an await."""
    _allowance.begin()


def turn_is_over() -> bool:
    """Whether expressions have used so much of the turn that others are to come first."""
    return _allowance.used > TURN_S


def holds_expression(value: object) -> bool:
    """Whether a filter or an update, decoded, holds a regular expression anywhere."""
    kind = type(value)
    if kind is dict:
        return "$regex" in value or any(map(holds_expression, value.values()))  # type: ignore[operator, attr-defined]
    if kind is list:
        return any(map(holds_expression, value))  # type: ignore[call-overload]
    return kind is Regex


def matcher(pattern: str, options: str) -> Predicate:
    """Asks whether a string or symbol contains the expression, or whether a value is the same expression.

    Raises 51108 for an unknown option, 51091 for a pattern that cannot be read, 51156 when the turn's time is over;
    so does asking.
    """
    is_in = _searcher(pattern, options)
    same = Regex(pattern, options)

    def matches(value: object) -> bool:
        if isinstance(value, str):
            return is_in(value)
        if type(value) is Symbol:
            return is_in(value.text)
        return type(value) is Regex and value == same

    return matches


def _searcher(pattern: str, options: str) -> Callable[[str], bool]:
    limit = _allowance.left(pattern)
    began = time.thread_time()
    try:
        plain, search = _compiled(pattern, options)
    finally:
        _allowance.used += min(time.thread_time() - began, limit)
    size = len(pattern) + 1

    def is_in(text: str) -> bool:
        work = size * len(text)
        limit = _allowance.left(pattern)
        if plain is not None and work <= _INLINE:
            _allowance.used += _PLAIN_S + work * _PLAIN_STEP_S
            return plain(text) is not None
        if work > _HOPELESS:
            raise _too_long(pattern)
        if work > _INLINE:
            return _search_apart(pattern, search, text, limit)
        began = time.thread_time()
        try:
            return search(text, timeout=limit, concurrent=True) is not None
        except (TimeoutError, MemoryError):
            raise _too_long(pattern) from None
        finally:
            _allowance.used += min(time.thread_time() - began, limit)

    return is_in


def _search_apart(pattern: str, search: Search, text: str, limit: float) -> bool:
    """`search` in a thread, one at a time; 51156 after `limit` seconds, though the thread may go on for a while."""
    found: list[bool] = []
    free, began = _apart, time.perf_counter()

    def run() -> None:
        try:
            with contextlib.suppress(TimeoutError, MemoryError):
                found.append(search(text, timeout=limit, concurrent=True) is not None)
        finally:
            free.release()

    if free.acquire(timeout=limit):
        thread = threading.Thread(target=run, name="regular expression", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the machine has no more of them
            free.release()
            raise _too_long(pattern) from None
        thread.join(max(0.0, began + limit - time.perf_counter()))
    _allowance.used += min(time.perf_counter() - began, limit)
    if not found:
        raise _too_long(pattern)
    return found[0]


def _too_long(pattern: str) -> ReplError:
    return ReplError(
        f"Regular expression takes too long to match: {shortened(pattern)}", code=ErrorCode.REGEX_TIME_LIMIT
    )


# --- compiling --------------------------------------------------------------------------------------------------

_WALKS_ONCE = re.compile(r"[^\\*+?{}()|\[\]#]*")
"""Words, dots and anchors, without repetition, groups and escapes: `re` searches these in a tenth of the time."""


def _compiled(pattern: str, options: str) -> tuple[Search | None, Search]:
    """The search of `re` where it is safe, and that of `regex`, read when first used if there are both."""
    flags = re.NOFLAG
    for option in options:
        if option not in _FLAGS:
            raise ReplError(f"invalid flag in regex options: {option}", code=ErrorCode.INVALID_REGEX_OPTION)
        flags |= _FLAGS[option]
    if "\0" in pattern:
        raise PatternError("Regular expression cannot contain an embedded null byte")
    if len(pattern.encode(errors="replace")) > LONGEST_PATTERN:
        raise PatternError(f"Regular expression is longer than {LONGEST_PATTERN} bytes")
    text, nodes = translated(pattern, verbose="x" in options)
    compile_ = _kept if nodes <= _LARGEST_KEPT else _compile
    if not _WALKS_ONCE.fullmatch(pattern):
        return None, compile_(text, flags)

    @cache
    def compiled() -> Search:
        return compile_(text, flags)

    return _plain(pattern, flags), lambda *text, **timeout: compiled()(*text, **timeout)


def _compile(pattern: str, flags: re.RegexFlag) -> Search:
    try:
        return regex.compile(pattern, int(flags) | regex.VERSION1, cache_pattern=False).search
    except (regex.error, OverflowError, RecursionError) as error:
        raise PatternError(f"Regular expression is invalid: {shortened(str(error))}") from None


_kept = lru_cache(maxsize=256)(_compile)


@lru_cache(maxsize=256)
def _plain(pattern: str, flags: re.RegexFlag) -> Search:
    return re.compile(pattern, flags).search

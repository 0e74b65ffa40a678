"""Warnings that others can cause as often as they like: strangers and badly set up members must not fill the log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

EVERY_S: Final = 60.0
MOST_CAUSES: Final = 100


class RepeatedWarnings:
    """Logs a warning once for each cause, then once a minute with the number of those that were left out."""

    def __init__(self, log: logging.Logger, now_s: Callable[[], float]) -> None:
        """now_s: reads any clock, in seconds; one that jumps may add a line, and leaves out none for long."""
        self._log = log
        self._now_s = now_s
        self._causes: dict[str, tuple[float, int]] = {}  # when it was logged, and how often it came since

    def warn(self, cause: str, text: str) -> None:
        now_s = self._now_s()
        logged_at, left_out = self._causes.get(cause, (None, 0))
        if logged_at is not None and abs(now_s - logged_at) < EVERY_S:
            self._causes[cause] = (logged_at, left_out + 1)
            return
        self._log.warning("%s%s", text, f" (and {left_out} times more since the last line)" if left_out else "")
        self._causes.pop(cause, None)
        self._causes[cause] = (now_s, 0)
        if len(self._causes) > MOST_CAUSES:
            del self._causes[next(iter(self._causes))]

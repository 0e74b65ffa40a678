"""How much work over rollbacks a member takes on at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from api.errors import failure, http_error
from replset.errors import ErrorCode, OverloadedError

MOST_AT_ONCE = 2


class RollbackJobLimiter:
    """A few readings and restores at a time, and of each rollback one restore. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._restored: set[str] = set()

    @contextmanager
    def admit_read(self) -> Iterator[None]:
        """While a rollback is read. HttpError 503 (462) where enough are read already."""
        with self._lock:
            if self._running >= MOST_AT_ONCE:
                many = f"it works on {self._running} rollbacks"
                raise http_error(OverloadedError(f"this member is overloaded: {many}; nothing was applied, try again"))
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1

    @contextmanager
    def admit_restore(self, rollback: str) -> Iterator[None]:
        """While a rollback is put back. HttpError 409 (117) where it is already."""
        with self._lock:
            if rollback in self._restored:
                raise failure(
                    ErrorCode.CONFLICTING_OPERATION_IN_PROGRESS,
                    f"a restore of {rollback} is under way on this member",
                    status=409,
                )
            self._restored.add(rollback)
        try:
            yield
        finally:
            with self._lock:
                self._restored.discard(rollback)

"""Limits how much a member does for rollbacks at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from api.errors import failure, http_error
from replset.errors import ErrorCode, OverloadedError

JOBS_MAX = 2


class RollbackJobLimiter:
    """Limits concurrent reads of rollbacks to JOBS_MAX and allows one restore per rollback. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._restored: set[str] = set()

    @contextmanager
    def admit_read(self) -> Iterator[None]:
        """Hold a place while a rollback is read. HttpError 503 (462) when all places are taken."""
        with self._lock:
            if self._running >= JOBS_MAX:
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
        """Lock a rollback while it is restored. HttpError 409 (117) when a restore of it runs already."""
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

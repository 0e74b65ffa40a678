"""What one HTTP exchange holds of the member's memory."""

from __future__ import annotations

from api.errors import HttpError, failure
from replset.errors import OverloadedError
from replset.runtime.admission import SMALL_BYTES, Admission


class Held:
    """What one exchange holds. Raises HttpError 503 with code 462 for what is too much."""

    __slots__ = ("_admission", "_kept", "_size")

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._size = 0
        self._kept = 0

    def take(self, size: int, *, whole: bool = True) -> None:
        """So many bytes of the request's body are here; those of a small body that came at once are not counted."""
        more = size - self._size
        if (whole and size <= SMALL_BYTES) or more <= 0:
            return
        if not self._admission.admit(more):
            raise self.refusal()
        self._size = size

    def hold(self, size: int) -> None:
        """So many bytes of the answer wait to be taken."""
        size = size if size > SMALL_BYTES else 0
        self._admission.hold(size - self._size)
        self._size = size

    def keep(self, size: int) -> None:
        """So many bytes more are held until the exchange is over, however much of its answer is taken meanwhile."""
        if not self._admission.admit(size):
            raise self.refusal()
        self._kept += size

    def let_go(self) -> None:
        """The exchange is over."""
        self.hold(0)
        self._admission.give_back(self._kept)
        self._kept = 0

    def refusal(self) -> HttpError:
        return overloaded(self._admission.refusal())


def overloaded(error: OverloadedError) -> HttpError:
    return failure(error.code, error.message, details={"errorLabels": list(error.labels)})

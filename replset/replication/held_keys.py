"""The documents that open transactions have written: other transactions are refused, plain writes wait."""

from __future__ import annotations

from collections.abc import Iterable

from replset.errors import DocumentHeldError, WriteConflictError
from replset.ids import invariant

Place = tuple[bytes, bytes]
"""The UUID of a collection and encode_key of an `_id`; or no UUID, and the name of a collection that is being made."""


class HeldKeys:
    """Each document that an open transaction has written, with the transaction. Empty most of the time."""

    __slots__ = ("_holders",)

    def __init__(self) -> None:
        self._holders: dict[Place, object] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def is_held(self, place: Place) -> bool:
        return place in self._holders

    def check(self, uuid: bytes, key: bytes) -> None:
        """Raise DocumentHeldError if a transaction holds it: a write outside of transactions must wait."""
        if (uuid, key) in self._holders:
            raise DocumentHeldError((uuid, key))

    def hold(self, uuid: bytes, key: bytes, holder: object) -> bool:
        """Hold it until `release`; False when the holder does already. WriteConflictError: another one does."""
        before = len(self._holders)
        if self._holders.setdefault((uuid, key), holder) is not holder:
            raise WriteConflictError("another transaction has written this document")
        return len(self._holders) > before

    def release(self, places: Iterable[Place], holder: object) -> None:
        """Release what `holder` holds. If it released another one's, a third could write the same document."""
        for place in places:
            invariant(self._holders.pop(place, None) is holder, "a document is released by its holder")


NOTHING_HELD = HeldKeys()

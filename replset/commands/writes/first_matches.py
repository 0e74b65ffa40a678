"""Keeps the documents that come first in the order of a sort, while a write's search goes on over several groups."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Final

KEPT: Final = 100
KEPT_BYTES: Final = 1 << 20
"""How many documents are kept, and how large their sort keys are together; one is always kept."""


class FirstMatches:
    """The first matches in the order of their sort keys. Others may change them until the search is over.

    A document that changes is forgotten, and added again with its new sort key. Those that come behind the kept ones
    are dropped. The first one is right as long as one is kept.
    """

    __slots__ = ("_bound", "_bytes", "_order", "_sort_keys")

    def __init__(self) -> None:
        self._order: list[tuple[bytes, bytes]] = []
        self._sort_keys: dict[bytes, bytes] = {}
        self._bytes = 0
        self._bound: tuple[bytes, bytes] | None = None
        """The first pair that was dropped. Whether there are pairs behind it is not known."""

    @property
    def first(self) -> bytes | None:
        """Return the key of the first document."""
        return self._order[0][1] if self._order else None

    @property
    def is_exhausted(self) -> bool:
        """Return True if nothing is kept, though there may be matches: the search has to begin again."""
        return not self._order and self._bound is not None

    def add(self, sort_key: bytes, key: bytes) -> None:
        """Add a match, or the document with its new sort key."""
        self.forget((key,))
        pair = (sort_key, key)
        if self._bound is not None and pair >= self._bound:
            return
        insort(self._order, pair)
        self._sort_keys[key] = sort_key
        self._bytes += len(sort_key)
        while len(self._order) > 1 and (len(self._order) > KEPT or self._bytes > KEPT_BYTES):
            self._bound = self._order[-1]
            self.forget((self._bound[1],))

    def end_behind(self, sort_key: bytes, key: bytes) -> None:
        """Note that matches behind this one are not known: the search stopped there."""
        self._bound = (sort_key, key + b"\0")

    def forget(self, keys: Iterable[bytes]) -> None:
        """Drop the documents with these keys: they changed, or they are gone."""
        for key in keys:
            sort_key = self._sort_keys.pop(key, None)
            if sort_key is not None:
                del self._order[bisect_left(self._order, (sort_key, key))]
                self._bytes -= len(sort_key)

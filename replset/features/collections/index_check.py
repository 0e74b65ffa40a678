"""Compares what an index holds with the documents."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from replset.errors import ReplError
from replset.storage.catalog import Collection
from replset.storage.index_build import KEYS_IN_SLICE
from replset.storage.indexes import Index, keys_of
from replset.storage.snapshot import Snapshot
from replset.storage.txn import next_key

KEPT: Final = 100
MANY_KEYS: Final = 100
KEPT_DOCUMENTS: Final = 4
"""How many documents with many keystrings it remembers."""


@dataclass(slots=True)
class IndexCheck:
    """Compares an index with the documents, slice by slice. missing, extra: entries that the documents have and the
    index has not, and the other way; the first `KEPT` of each.

    Between two slices writes go on, so each slice takes a snapshot of its own.
    """

    coll: Collection
    index: Index
    documents: int = 0
    entries: int = 0
    missing: list[tuple[bytes, bytes]] = field(default_factory=list)
    extra: list[tuple[bytes, bytes]] = field(default_factory=list)
    _after_key: bytes | None = b""
    _after_entry: tuple[bytes, bytes] | None = None
    _keys: dict[bytes, tuple[bytes, frozenset[bytes]]] = field(default_factory=dict)
    """The bytes and keystrings of some documents: a document may have entries all over the index."""
    _keys_made: int = 0

    def next_slice(self, snapshot: Snapshot, limit: int) -> bool:
        """Compare so many documents, or when these are done entries. True: call again. QueryPlanKilledError."""
        if self._after_key is not None:
            self._after_key = self._check_documents(snapshot, self._after_key, limit)
            return True
        return self._check_entries(snapshot, limit)

    def _check_documents(self, snapshot: Snapshot, after: bytes, limit: int) -> bytes | None:
        count, key, keys = 0, after, 0
        for key, doc in islice(snapshot.scan(self.coll, low=next_key(after)), limit):
            count += 1
            if self.index.position is None or key <= self.index.position:
                for keystring in self._keys_of(doc):
                    keys += 1
                    if not snapshot.has_index_entry(self.index, keystring, key):
                        self._note(self.missing, (keystring, key))
            if keys > KEYS_IN_SLICE:
                break
        self.documents += count
        return key if count == limit or keys > KEYS_IN_SLICE else None

    def _check_entries(self, snapshot: Snapshot, limit: int) -> bool:
        rows = snapshot.index_scan(self.index, b"", None, after=self._after_entry, limit=limit)
        looked_up: dict[bytes, frozenset[bytes]] = {}
        self._keys_made = 0
        for keystring, key in rows:
            if key not in looked_up:
                looked_up[key] = self._keys_in(snapshot, key)
            if keystring not in looked_up[key]:
                self._note(self.extra, (keystring, key))
            self.entries += 1
            self._after_entry = keystring, key
            if self._keys_made > KEYS_IN_SLICE:
                return True
        return len(rows) == limit

    def _keys_in(self, snapshot: Snapshot, key: bytes) -> frozenset[bytes]:
        """The keystrings of a document; none when it is not there."""
        doc = snapshot.get(self.coll, key)
        if doc is None:
            return frozenset()
        known = self._keys.get(key)
        if known is not None and known[0] == doc:
            return known[1]
        keys = frozenset(self._keys_of(doc))
        self._keys_made += len(keys)
        if len(keys) > MANY_KEYS:
            if len(self._keys) == KEPT_DOCUMENTS:
                self._keys.clear()
            self._keys[key] = doc, keys
        return keys

    def _keys_of(self, doc: bytes) -> list[bytes]:
        """Do as `keys_of`; a document that cannot be in the index, or whose bytes a disk has changed, has no key."""
        try:
            return keys_of(self.index, doc)
        except ReplError:
            return []

    @staticmethod
    def _note(found: list[tuple[bytes, bytes]], entry: tuple[bytes, bytes]) -> None:
        if len(found) < KEPT:
            found.append(entry)

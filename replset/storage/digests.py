"""Digests of ranges of documents at one point, so that members can compare what they hold without sending it."""

from __future__ import annotations

from dataclasses import dataclass

from xxhash import xxh3_64

from replset.ids import OpTime
from replset.oplog_row import entry_hash
from replset.storage.catalog import Collection
from replset.storage.snapshot import Snapshot
from replset.storage.txn import next_key

RANGE_DOCUMENTS, RANGE_BYTES = 1_000, 256 << 10
"""Where a range ends at the latest, one document more than these bytes included."""


@dataclass(frozen=True, slots=True)
class KeptDocument:
    """One document of a range. hash: xxh3_64 of its bytes, signed."""

    key: bytes
    hash: int
    doc: bytes


@dataclass(frozen=True, slots=True)
class DocumentRange:
    """The documents from one key on. end: the key before which the range ends; None: all that was asked for is in it.

    digest: of all keys and hashes in their order, signed.
    """

    end: bytes | None
    size: int
    digest: int
    documents: tuple[KeptDocument, ...]


EMPTY_RANGE = DocumentRange(None, 0, 0, ())


def read_range(snapshot: Snapshot, coll: Collection, at: OpTime, low: bytes, high: bytes | None) -> DocumentRange:
    """Return the documents with low <= key < high as they were at `at`, up to the limits of a range. For a worker.

    high: None for the end of the collection. Raises what `Snapshot.scan` raises.
    """
    rows: list[KeptDocument] = []
    hashed = xxh3_64()
    size, last, end = 0, low, None
    for read, (key, doc) in enumerate(snapshot.scan(coll, at, low=low, high=high, pauses=True)):
        if read == RANGE_DOCUMENTS or size > RANGE_BYTES:
            end = next_key(last)
            break
        last = key
        if not doc:
            continue  # it was written later than `at`
        one = KeptDocument(key, entry_hash(doc), doc)
        rows.append(one)
        size += len(doc)
        hashed.update(len(key).to_bytes(4, "little") + key + one.hash.to_bytes(8, "little", signed=True))
    digest = int.from_bytes(hashed.digest(), "big", signed=True) if rows else 0
    return DocumentRange(end, size, digest, tuple(rows))

"""Digests of ranges of documents at one point, so that members can compare what they hold without sending it."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    """One document of a range. hash: xxh3_64 of its bytes, signed; of a row that says that they are none, of others, so
    that it differs from every whole one.
    """

    key: bytes
    hash: int
    doc: bytes


@dataclass(frozen=True, slots=True)
class DocumentRange:
    """The documents from one key on. end: the key before which the range ends; None: all that was asked for is in it.

    digest: xxh3_64 of all keys and documents in their order, signed.
    """

    end: bytes | None
    count: int
    size: int
    digest: int
    documents: tuple[KeptDocument, ...]


_MISTYPED = b" is no blob"
EMPTY_RANGE = DocumentRange(None, 0, 0, 0, ())


def read_range(snapshot: Snapshot, coll: Collection, at: OpTime, low: bytes, high: bytes | None) -> DocumentRange:
    """Return the documents with low <= key < high as they were at `at`, up to the limits of a range. For a worker.

    high: None for the end of the collection. Raises what `Snapshot.scan` raises.
    """
    found: list[tuple[bytes, bytes]] = []
    size, last, end = 0, low, None
    for read, (key, doc) in enumerate(snapshot.scan(coll, at, low=low, high=high, pauses=True)):
        if read == RANGE_DOCUMENTS or size > RANGE_BYTES:
            end = next_key(last)
            break
        last = key
        if not doc:
            continue  # it was written later than `at`
        found.append((key, doc))
        size += len(doc)
    mistyped = snapshot.mistyped(coll, low, next_key(last))
    rows = [KeptDocument(key, entry_hash(doc + _MISTYPED if key in mistyped else doc), doc) for key, doc in found]
    text = ",".join([f"{key.hex()}:{doc.hex()}".upper() + ("!" if key in mistyped else "") for key, doc in found])
    return DocumentRange(end, len(rows), size, _digest(text), tuple(rows))


def read_digest(snapshot: Snapshot, coll: Collection, at: OpTime, low: bytes, high: bytes | None) -> DocumentRange:
    """Do as `read_range` without the documents.

    SQLite puts the whole range together in one call. Between rows, a thread that walks them in Python would take the
    interpreter's lock from the event loop again and again, and halve what writers get done.
    """
    last = snapshot.unchanged_range(coll, at, low, high, RANGE_DOCUMENTS, RANGE_BYTES)
    if last is None:
        return replace(read_range(snapshot, coll, at, low, high), documents=())
    key, is_full = last
    count, size, text, is_mistyped = snapshot.range_text(coll, low, key)
    if is_mistyped:
        return replace(read_range(snapshot, coll, at, low, high), documents=())
    end = next_key(key) if is_full else None
    if end is not None and high is not None and end >= high:
        end = None
    return DocumentRange(end, count, size, _digest(text), ())


def _digest(text: str) -> int:
    return int.from_bytes(xxh3_64(text.encode()).digest(), "big", signed=True) if text else 0

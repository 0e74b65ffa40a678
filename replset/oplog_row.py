"""One row of an oplog as every member stores it, and the hash chain over the rows.

`storage/` keeps these rows in SQLite; tools and Spark jobs read them without opening a member.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from replset.errors import CorruptDataError
from replset.ids import OpTime

_two = Struct("<QQ").pack
_SIGN = 1 << 63
_WHOLE = 1 << 64
COLUMNS = "ts, term, op, ns, key, wall, hash, chain, entry"
READ_COLUMNS = (
    "ts, CAST(term AS INTEGER), CAST(op AS TEXT), CAST(ns AS TEXT), CAST(key AS BLOB), CAST(wall AS INTEGER),"
    " CAST(hash AS INTEGER), CAST(chain AS INTEGER), CAST(entry AS BLOB)"
)
"""The columns of a row, each as it was written: a disk that changes one bit of a row's header makes text of bytes, or a
float of a number.
"""
CHAIN_START = 0
"""The chain before the first entry ever."""


class OplogRow(NamedTuple):
    """One row, in the order of the table's columns. `hash` and `chain` are signed 64-bit, as stored."""

    ts: int
    term: int
    op: str
    ns: str
    key: bytes | None
    wall_ms: int
    hash: int
    chain: int
    entry: bytes

    @property
    def optime(self) -> OpTime:
        return OpTime(self.term, self.ts)


class TermSpan(NamedTuple):
    """First and last optime of a term; kept for ever. `last` is None for the newest term."""

    first: OpTime
    last: OpTime | None


def _signed(value: int) -> int:
    return value - _WHOLE if value >= _SIGN else value


def entry_hash(entry: bytes) -> int:
    """xxh3_64 of the entry's bytes, signed."""
    return _signed(xxh3_64_intdigest(entry))


def next_chain(chain: int, hash_value: int) -> int:
    """xxh3_64 of (previous chain, hash), 8 bytes little-endian each; all signed."""
    return _signed(xxh3_64_intdigest(_two(chain % _WHOLE, hash_value % _WHOLE)))


UnchainedRow = tuple[int, int, str, str, bytes | None, int, bytes]
StoredRow = tuple[int, int, str, str, bytes | None, int, int, int, bytes]
"""The columns of an OplogRow, without their names."""


def stored_rows(pending: Iterable[UnchainedRow], chain: int) -> list[StoredRow]:
    """Rows with hash and chain from (ts, term, op, ns, key, wall, entry) in order. chain: before the first, signed."""
    rows: list[StoredRow] = []
    append, digest, pack = rows.append, xxh3_64_intdigest, _two
    unsigned = chain % _WHOLE
    for ts, term, op, ns, key, wall_ms, entry in pending:
        hashed = digest(entry)
        unsigned = digest(pack(unsigned, hashed))
        append(
            (
                ts,
                term,
                op,
                ns,
                key,
                wall_ms,
                hashed if hashed < _SIGN else hashed - _WHOLE,
                unsigned if unsigned < _SIGN else unsigned - _WHOLE,
                entry,
            )
        )
    return rows


def chained_rows(pending: Iterable[UnchainedRow], chain: int) -> list[OplogRow]:
    """Return `stored_rows` with names."""
    return [OplogRow._make(row) for row in stored_rows(pending, chain)]


def chain_after(entries: Iterable[bytes], chain: int) -> int:
    """The chain behind these entries, signed. chain: before the first."""
    digest, pack = xxh3_64_intdigest, _two
    unsigned = chain % _WHOLE
    for entry in entries:
        unsigned = digest(pack(unsigned, digest(entry)))
    return _signed(unsigned)


def first_damaged(rows: Sequence[OplogRow], chain: int | None) -> int | None:
    """Which of these rows, which follow each other, is the first whose hash or chain is not what its bytes give.

    chain: before the first row; None where that is unknown: then the first row's own chain is taken as right.
    """
    digest, pack = xxh3_64_intdigest, _two
    unsigned = None if chain is None else chain % _WHOLE
    for index, row in enumerate(rows):
        hashed = digest(row.entry)
        if hashed != row.hash % _WHOLE:
            return index
        own = row.chain % _WHOLE
        if unsigned is not None and digest(pack(unsigned, hashed)) != own:
            return index
        unsigned = own
    return None


class DamagedEntryError(CorruptDataError):
    """The oplog entry `at` is not the one that was written. Another member has it whole (1)."""

    def __init__(self, message: str, at: OpTime) -> None:
        super().__init__(message)
        self.at = at

"""The records of sessions, shown as `config.transactions`: what each session's newest `txnNumber` has written so far.

A record is a document of a collection that every member has from the start, under one UUID. Each write of a retryable
write or transaction changes its session's record in the same transaction, on the primary and, derived from the entry,
on secondaries. Undo and copies treat it like any document. `catalog.SESSIONS` is the collection.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from replset.bson import RawDocument
from replset.errors import CorruptDataError
from replset.ids import OpTime, pack_ts

COMMITTED: Final = "committed"
_INC_MASK = (1 << 31) - 1
_ID = b"\x03_id\0"
# txnNum, lastWriteOpTime {ts, t}, lastWriteDate: the same fields behind every _id.
_FIELDS: Final = "8sq17sI4sII3sqx15sq"
_fields = Struct("<" + _FIELDS)
_LSID_SIZE: Final = 72
_record = Struct(f"<i5s{_LSID_SIZE}s{_FIELDS}x")
"""A whole record without more fields, of an lsid {id, uid} as clients have it."""
_number = Struct("<8sq")
_TXN = b"\x12txnNum\0"
_OPTIME = b"\x03lastWriteOpTime\0"
_TS, _T = b"\x11ts\0", b"\x12t\0"
_DATE = b"\x09lastWriteDate\0"
_COMMITTED = b"\x02state\0\x0a\0\0\0committed\0"
_int32 = Struct("<i")


class SessionRecord(NamedTuple):
    """txn_number: the newest of the session. optime, wall_ms: of its last entry."""

    txn_number: int
    optime: OpTime
    wall_ms: int


def encode_record(
    lsid: bytes,
    txn_number: int,
    optime: OpTime,
    wall_ms: int,
    *,
    is_committed: bool = False,
    image: bytes | None = None,
    answer: bytes | None = None,
) -> bytes:
    """The document. lsid: bytes of {id, uid}. txn_number, optime, wall_ms: as in `SessionRecord`.

    is_committed: the entry is the commit of a transaction. image: the document that the retry of a findAndModify
    answers. answer: that of a whole command, for all its retries.
    """
    term, ts = optime
    fields = (_TXN, txn_number, _OPTIME, 28, _TS, ts & _INC_MASK, ts >> 31, _T, term, _DATE, wall_ms)
    if len(lsid) == _LSID_SIZE and not is_committed and image is None and answer is None:
        return _record.pack(_record.size, _ID, lsid, *fields)
    packed = _fields.pack(*fields)
    more = _COMMITTED if is_committed else b""
    if image is not None:
        more += b"\x03image\0" + image
    if answer is not None:
        more += b"\x03answer\0" + answer
    return b"".join((_int32.pack(10 + len(lsid) + len(packed) + len(more)), _ID, lsid, packed, more, b"\0"))


def read_record(document: bytes) -> SessionRecord:
    """What `encode_record` wrote. CorruptDataError for anything else."""
    try:
        at = 9 + _int32.unpack_from(document, 9)[0]
        txn, number, name, _, _, increment, seconds, _, term, date, wall_ms = _fields.unpack_from(document, at)
    except (IndexError, ValueError, StructError) as error:
        raise CorruptDataError("a session's record is damaged") from error
    if txn != _TXN or name != _OPTIME or date != _DATE:
        raise CorruptDataError("a session's record is damaged")
    return SessionRecord(number, OpTime(term, pack_ts(seconds, increment)), wall_ms)


def txn_number_of(document: bytes) -> int:
    """The number of a record, by itself. CorruptDataError as `read_record`."""
    try:
        txn, number = _number.unpack_from(document, 9 + _int32.unpack_from(document, 9)[0])
    except StructError as error:
        raise CorruptDataError("a session's record is damaged") from error
    if txn != _TXN:
        raise CorruptDataError("a session's record is damaged")
    return int(number)


def is_committed(document: bytes) -> bool:
    """Whether the record is of a committed transaction."""
    return RawDocument(document).get("state") == COMMITTED


def image_of(document: bytes) -> RawDocument | None:
    """The document that the retry of a findAndModify answers; None when there is none."""
    raw = RawDocument(document).get_raw("image")
    return None if raw is None else RawDocument(raw)


def answer_of(document: bytes) -> dict[str, object] | None:
    """The answer that all retries of the command get; None when it is not done, or none is kept."""
    raw = RawDocument(document).get_raw("answer")
    return None if raw is None else RawDocument(raw).decode()

"""Writes the session of a retryable write or transaction: fields of the oplog entry, and the session's record.

An entry has `lsid`, `txnNumber`, `stmtId` and `prevOpTime`. The entries of one `txnNumber` are a chain: each names the
one before by its optime, and the record names the newest. A retry finds in the chain which statements were executed.
An entry of findAndModify has `needsRetryImage` too, since its answer is the document before or after the change. The
record keeps that document, so that no entry grows by it (map X3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, count
from struct import Struct
from typing import Literal, TypeAlias

from replset.bson import RawDocument, decode, encode, encode_key
from replset.ids import OPTIME_NULL, OpTime
from replset.oplog_entry import OplogEntry, extra_fields, noop_entry
from replset.storage.sessions import encode_record
from replset.storage.txn import Txn

EXPIRED, ANSWERED = "sessions expired", "answer"
NO_STATEMENT = -1
Image: TypeAlias = Literal["preImage", "postImage"]
"""The document that the retry of a findAndModify answers: as it was before the change, or after it."""
_INC_MASK = (1 << 31) - 1
_FIRST = OpTime(-1, 0)
"""prevOpTime of the first entry of a `txnNumber`."""
_LSID, _TXN_NUMBER, _STMT_ID = b"\x03lsid\0", b"\x12txnNumber\0", b"\x10stmtId\0"
# stmtId, prevOpTime {ts, t}
_tail_fields = Struct("<8si12sI4sII3sqx")
_tail = _tail_fields.pack
_TXN_AT = len(_LSID) + 72  # an lsid {id, uid} has 72 bytes
_NUMBER_AT = _TXN_AT + len(_TXN_NUMBER)
_EXTRA_SIZE = _NUMBER_AT + 8 + _tail_fields.size
_image_fields = {image: extra_fields({"needsRetryImage": image}) for image in ("preImage", "postImage")}


class SessionWrite:
    """The writes of one session under one `txnNumber`, as a write operation makes them inside groups.

    key: of the session's record. previous: the newest entry of this `txnNumber`, OPTIME_NULL before the first.
    stmt_id: of the statement under way. image: of a findAndModify.
    """

    __slots__ = ("_head", "_lsid", "image", "key", "previous", "stmt_id", "txn_number")

    def __init__(self, key: bytes, lsid: bytes, txn_number: int) -> None:
        """lsid: bytes of the document {id, uid}."""
        self.key = key
        self.txn_number = txn_number
        self.previous = OPTIME_NULL
        self.stmt_id = 0
        self.image: Image | None = None
        self._lsid = lsid
        self._head = b"".join((_LSID, lsid, _TXN_NUMBER, txn_number.to_bytes(8, "little")))

    def extra(self, *, has_image: bool = False) -> bytes:
        """The fields of the next entry, as the builders in `oplog_entry` take them. has_image: it changes a document
        that was there before.
        """
        tail = self._chained(self.stmt_id, self.previous)
        return tail + (_image_fields[self.image] if has_image and self.image is not None else b"")

    def extras(self, statements: Iterable[int], first: OpTime) -> list[bytes]:
        """Return the `extra` of an insert for each of these statements, whose `ts` go on from `first`."""
        term, ts = first
        previous = chain((self.previous,), (OpTime(term, later) for later in count(ts)))
        return [self._chained(statement, before) for statement, before in zip(statements, previous, strict=False)]

    def _chained(self, statement: int, previous: OpTime) -> bytes:
        term, ts = previous if previous.ts else _FIRST
        return self._head + _tail(
            _STMT_ID,
            statement,
            b"\x03prevOpTime\0",
            28,
            b"\x11ts\0",
            ts & _INC_MASK,
            ts >> 31,
            b"\x12t\0",
            term,
        )

    def record(
        self, txn: Txn, optime: OpTime, wall_ms: int, *, before: bytes | None = None, after: bytes | None = None
    ) -> None:
        """Write the session's record: the entry at `optime` is its newest. before, after: see `image`."""
        image = None if self.image is None else before if self.image == "preImage" else after
        record = encode_record(self._lsid, self.txn_number, optime, wall_ms, image=image)
        txn.put_session(self.key, record, ts=optime.ts)
        self.previous = optime

    def record_answer(self, txn: Txn, answer: Mapping[str, object], optime: OpTime, wall_ms: int) -> None:
        """End the command: write a no-op entry with its answer, which the record keeps for all retries."""
        self.stmt_id = NO_STATEMENT
        entry = noop_entry({"msg": ANSWERED, "answer": answer}, optime, wall_ms, self.extra())
        txn.append(entry, optime, op="n", ns="", wall_ms=wall_ms)
        record = encode_record(self._lsid, self.txn_number, optime, wall_ms, answer=encode(answer))
        txn.put_session(self.key, record, ts=optime.ts)
        self.previous = optime


def read_extra(extra: bytes) -> tuple[bytes, int] | None:
    """(lsid, txnNumber) of the extra fields that `SessionWrite` gives an insert; None for any others."""
    if len(extra) != _EXTRA_SIZE or extra[:6] != _LSID or extra[_TXN_AT:_NUMBER_AT] != _TXN_NUMBER:
        return None
    if extra[_NUMBER_AT + 8 : _NUMBER_AT + 16] != _STMT_ID:
        return None
    return extra[6:_TXN_AT], int.from_bytes(extra[_NUMBER_AT : _NUMBER_AT + 8], "little")


def record_insert(txn: Txn, session: tuple[bytes, int], optime: OpTime, wall_ms: int) -> None:
    """Do as `record_applied` for an insert. session: see `read_extra`."""
    lsid, txn_number = session
    txn.put_session(session_key(lsid), encode_record(lsid, txn_number, optime, wall_ms), ts=optime.ts)


@lru_cache(maxsize=4096)
def session_key(lsid: bytes) -> bytes:
    """The key of a session's record. lsid: bytes of {id, uid}."""
    return encode_key(decode(lsid))


def record_applied(txn: Txn, entry: OplogEntry, image: bytes | None = None) -> None:
    """Write the record that the primary wrote with this entry, if it has a session. image: of a findAndModify."""
    session = session_of(entry)
    if session is None:
        return
    lsid, txn_number = session
    answer = entry.o.get_raw("answer") if entry.op == "n" else None
    document = encode_record(
        lsid.raw, txn_number, entry.optime, entry.wall_ms, is_committed=entry.op == "c", image=image, answer=answer
    )
    txn.put_session(session_key(lsid.raw), document, ts=entry.optime.ts)


def session_of(entry: OplogEntry) -> tuple[RawDocument, int] | None:
    """(lsid, txnNumber) of an entry of a retryable write or transaction, None of any other."""
    lsid, txn_number = entry.get_document("lsid"), entry.get("txnNumber")
    return None if lsid is None or not isinstance(txn_number, int) else (lsid, int(txn_number))


def image_of_entry(entry: OplogEntry) -> Image | None:
    """Which document the retry of the entry's findAndModify answers; None for every other entry."""
    value = entry.get("needsRetryImage")
    return value if value == "preImage" or value == "postImage" else None


def expiry_note(txn: Txn, records: Sequence[tuple[bytes, bytes]], ts: int) -> dict[str, object]:
    """Remove these records, (key, document) each, and return the `o` of the no-op entry at `ts` that says so."""
    for key, _ in records:
        txn.put_session(key, None, ts=ts)
    return {"msg": EXPIRED, "sessions": [RawDocument(document).get("_id") for _, document in records]}


def expire_applied(txn: Txn, o: RawDocument, ts: int) -> None:
    """Remove the records that a no-op entry names, if it is one of `expiry_note`."""
    sessions = o.get("sessions") if o.get("msg") == EXPIRED else None
    for lsid in sessions if isinstance(sessions, list) else ():
        key = encode_key(lsid)
        if txn.session(key) is not None:
            txn.put_session(key, None, ts=ts)

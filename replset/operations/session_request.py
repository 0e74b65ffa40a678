"""Reads the session of a command: `lsid` and the fields that name a retryable write or a transaction (map B5, X3, X5).

The dispatcher checks once which of these fields go together. What a session keeps is written by
`replication/session_write.py`.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from replset.bson import Binary, Int64, RawDocument, Timestamp, encode, encode_key
from replset.errors import ErrorCode, InvalidOptionsError, ReplError
from replset.ids import INCREMENT_BITS
from replset.operations import fields

if TYPE_CHECKING:
    from replset.operations.kernel import Kernel

NOBODY = Binary(hashlib.sha256(b"").digest())
"""`uid` of the sessions of clients that have not logged in."""
KEYED = Binary(hashlib.sha256(b"Idempotency-Key").digest())
"""`uid` of the session of one Idempotency-Key. It has one `txnNumber`, made of the request's body."""
_KEYED_END = bytes(KEYED) + b"\0"
SESSION_MINUTES = 30
"""A session that writes nothing for so long is forgotten."""
YEAR_S = 365 * 24 * 3600
_PLACE = "OperationSessionInfo"
_CLUSTER_TIME = b"\x11clusterTime\0"
_SECONDS_AT = 4 + len(_CLUSTER_TIME) + 4
_uint32 = Struct("<I").unpack_from


class SessionRequest(NamedTuple):
    """The session of one command.

    key: encode_key of `lsid`, the key of its record. lsid: {id: UUID, uid}. txn_number: of a retryable write or a
    transaction. start_transaction, autocommit: as given; autocommit False means that the command is part of a
    transaction.
    """

    key: bytes
    lsid: RawDocument
    txn_number: int | None = None
    start_transaction: bool = False
    autocommit: bool | None = None

    @property
    def is_keyed(self) -> bool:
        """Whether the session is that of an Idempotency-Key."""
        return self.lsid.raw.endswith(_KEYED_END)

    @property
    def is_retryable_write(self) -> bool:
        return self.txn_number is not None and self.autocommit is None


def session_id(session: bytes, uid: Binary = NOBODY) -> tuple[bytes, RawDocument]:
    """(key, lsid) of the session whose `id` is this UUID of 16 bytes."""
    lsid = {"id": Binary(session, 4), "uid": uid}
    return encode_key(lsid), RawDocument(encode(lsid))


_UID_AT = session_id(bytes(16))[0].index(NOBODY)


_ID_AT = session_id(b"\xa5" * 16)[0].index(b"\xa5" * 16)


def lsid_of(key: bytes) -> RawDocument:
    """Return {id, uid} of the key of a session."""
    return session_id(key[_ID_AT : _ID_AT + 16], Binary(uid_of(key)))[1]


def uid_of(key: bytes) -> bytes:
    """The `uid` in the key of a session."""
    return key[_UID_AT : _UID_AT + len(NOBODY)]


@lru_cache(maxsize=4096)
def parse_lsid(raw: bytes, own: Binary = NOBODY) -> tuple[bytes, RawDocument]:
    """(key, {id, uid}) of the `lsid` that a client sent. 14, 40414, 40415, 72 and 13 as in MongoDB.

    own: the `uid` of the client's user.
    """
    document = RawDocument(raw)
    fields.check_fields(document, frozenset({"id", "uid", "txnNumber", "txnUUID"}), f"{_PLACE}.lsid")
    if "txnNumber" in document or "txnUUID" in document:
        raise InvalidOptionsError("Internal sessions are only for members, not for clients")
    value = document.get("id")
    if value is None:
        raise fields.missing(f"{_PLACE}.lsid", "id")
    if not isinstance(value, Binary) or value.subtype != 4 or len(value) != 16:
        raise fields.wrong_type(f"{_PLACE}.lsid", "id", document.type_of("id"), "UUID")
    uid = document.get("uid")
    if uid not in (None, own, KEYED):
        raise foreign_session()
    return session_id(bytes(value), KEYED if uid == KEYED else own)


def foreign_session() -> ReplError:
    """The error for a client that names a session of somebody else, or one of an Idempotency-Key."""
    return ReplError("Unauthorized to set user digest in LogicalSessionId", code=ErrorCode.UNAUTHORIZED)


def plain_session(body: RawDocument, uid: Binary = NOBODY) -> SessionRequest | None:
    """Do as `parse_session` for a command without `autocommit` and `startTransaction`, perhaps with a `txnNumber`."""
    raw, number = body.get_raw("lsid"), body.get("txnNumber")
    if raw is None and number is None and "lsid" not in body:
        return None
    if raw is None or not (number is None or (type(number) is Int64 and number >= 0)):
        return parse_session(body, "", uid, is_retryable=True, ends_transaction=False)
    return SessionRequest(*parse_lsid(raw, uid), None if number is None else int(number))


def parse_session(
    body: RawDocument, command: str, uid: Binary = NOBODY, *, is_retryable: bool, ends_transaction: bool
) -> SessionRequest | None:
    """Return the session of a command, None when it names none. InvalidOptionsError (72) for fields that do not go
    together, 50768 for a `txnNumber` of a command that is neither a retryable write nor part of a transaction, 263 for
    `startTransaction` in commitTransaction and abortTransaction.

    command: its name. uid: of the client's user. is_retryable: it takes a `txnNumber` outside of a transaction.
    """
    raw = body.get_raw("lsid")
    txn_number = _long(body, "txnNumber")
    autocommit, starts = _flag(body, "autocommit"), _flag(body, "startTransaction")
    if raw is None or body.type_of("lsid") != 3:
        if not fields.is_absent(body, "lsid"):
            raise fields.wrong_type(_PLACE, "lsid", body.type_of("lsid"), "object")
        if txn_number is not None:
            raise InvalidOptionsError("Transaction number requires a session ID to also be specified")
    if txn_number is None and autocommit is not None:
        raise InvalidOptionsError("'autocommit' field requires a transaction number to also be specified")
    if txn_number is not None and txn_number < 0:
        raise InvalidOptionsError("Transaction number cannot be negative")
    if autocommit:
        raise InvalidOptionsError("Specifying autocommit=true is not allowed.")
    if starts is not None and autocommit is None:
        raise InvalidOptionsError("'startTransaction' field requires 'autocommit' field to also be specified")
    if starts is False:
        raise InvalidOptionsError("Specifying startTransaction=false is not allowed.")
    if raw is None:
        return None
    if txn_number is not None and autocommit is None and not is_retryable:
        raise ReplError(
            "txnNumber may only be provided for multi-document transactions and retryable write commands."
            f" autocommit:false was not provided, and {command} is not a retryable write command.",
            code=ErrorCode.TXN_NUMBER_NOT_ALLOWED,
        )
    if starts and ends_transaction:
        raise ReplError(
            f"Cannot start a transaction with {command}", code=ErrorCode.OPERATION_NOT_SUPPORTED_IN_TRANSACTION
        )
    key, lsid = parse_lsid(raw, uid)
    return SessionRequest(key, lsid, txn_number, bool(starts), autocommit)


def check_cluster_time(raw: bytes, member: Kernel) -> None:
    """Check the `$clusterTime` that a client passes on. 205: it lies more than a year ahead of this member's clock, and
    of all entries that it knows of: a client passes on what it got from the set, whose clock may have been ahead.

    Nothing else is done with it. A read that must see a time names it in `afterClusterTime`, and then it is waited for.
    """
    # Drivers send it with every command, clusterTime first: this saves two microseconds.
    if raw.startswith(_CLUSTER_TIME, 4) and len(raw) > _SECONDS_AT + 4:
        (seconds,) = _uint32(raw, _SECONDS_AT)
        if seconds <= member.clock.wall_ms() // 1000:
            return
    value = RawDocument(raw).get("clusterTime")
    if not isinstance(value, Timestamp):
        raise fields.wrong_type("$clusterTime", "clusterTime", RawDocument(raw).type_of("clusterTime"), "timestamp")
    now, newest = member.clock.wall_ms() // 1000, max(member.store.last_applied.ts, member.node.newest_ts)
    if value.time > max(now, newest >> INCREMENT_BITS) + YEAR_S:
        raise ReplError(
            f"New cluster time, {value.time}, is too far from this node's wall clock time, {now}.",
            code=ErrorCode.CLUSTER_TIME_FAILS_RATE_LIMITER,
        )


def _long(body: RawDocument, name: str) -> int | None:
    kind = body.type_of(name)
    if kind is None:
        return None
    if kind != 18:
        raise fields.wrong_type(_PLACE, name, kind, "long")
    return int(body.get(name))  # type: ignore[call-overload,no-any-return]


def _flag(body: RawDocument, name: str) -> bool | None:
    kind = body.type_of(name)
    if kind is None:
        return None
    if kind != 8:
        raise fields.wrong_type(_PLACE, name, kind, "bool")
    return bool(body.get(name))

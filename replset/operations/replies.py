"""Builds replies: the fields that every reply ends with, error documents, and a write's reply as bytes."""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

from replset.bson import Int64, ObjectId, RawDocument, Timestamp, append_fields
from replset.errors import ReplError, Trait, has_trait
from replset.ids import OpTime
from replset.operations import fields
from replset.operations.command import CommandContext
from replset.operations.kernel import Kernel
from replset.operations.request import Reply
from replset.optime import optime_document, timestamp

RETRYABLE, NOTHING_WRITTEN = "RetryableWriteError", "NoWritesPerformed"
RESUMABLE, NOT_RESUMABLE = "ResumableChangeStreamError", "NonResumableChangeStreamError"
_INC_MASK = (1 << 31) - 1


def election_id(term: int) -> ObjectId:
    """Return what MongoDB makes of the term, so that drivers can order primaries (map E7)."""
    return ObjectId(b"\x7f\xff\xff\xff" + term.to_bytes(8, "big"))


class LargeReply(dict[str, object]):
    """A reply that is encoded in a thread, when it is whole: thousands of values would block the event loop."""


def finish(reply: dict[str, object], operation_ts: int) -> dict[str, object]:
    """Add ok, $clusterTime and operationTime. operation_ts 0: there is no oplog yet, and the times are left out."""
    reply.setdefault("ok", 1.0)
    if operation_ts:
        given = reply.pop("operationTime", None)
        now = timestamp(operation_ts)
        time = given if isinstance(given, Timestamp) else now
        cluster = max(time, now)
        reply["$clusterTime"] = RawDocument(_cluster_time(_CLUSTER_HEAD, cluster.inc, cluster.time, _SIGNATURE))
        reply["operationTime"] = time
    return reply


def encode_times(operation_ts: int) -> bytes:
    """The fields that `finish` adds to a reply with ok, as their bytes."""
    if not operation_ts:
        return b""
    inc, seconds = operation_ts & _INC_MASK, operation_ts >> 31
    return _times(_CLUSTER, inc, seconds, _SIGNATURE, _OPERATION, inc, seconds)


def whole(reply: RawDocument, member: Kernel) -> bytes:
    """The bytes of a reply that has its ok, with what `finish` adds."""
    return append_fields(reply, encode_times(member.store.last_applied.ts))


def error_reply(error: ReplError, member: Kernel) -> dict[str, object]:
    reply: dict[str, object] = {
        "ok": 0.0,
        "errmsg": error.message,
        "code": error.code,
        "codeName": error.code_name,
        **error.details,
    }
    if error.labels:
        reply["errorLabels"] = list(error.labels)
    add_topology_version(reply, error.code, member)
    return reply


def add_topology_version(reply: dict[str, object], code: object, member: Kernel) -> None:
    """Add topologyVersion to a failure that tells of a changed role, or of a shutdown that has begun.

    A driver passes over an error whose version it knows already. The version grows when a role changes and when a
    shutdown begins, not for a shutdown error that a fail point made up.
    """
    if has_trait(code, Trait.ROLE) or (has_trait(code, Trait.SHUTDOWN) and member.shutting_down):
        reply["topologyVersion"] = member.topology.document()


def replace_labels(reply: dict[str, object], labels: list[str]) -> None:
    """Replace the error labels of a reply that tells a failure, as a fail point asks; none: take them away."""
    if reply.get("ok") == 0.0 or "writeConcernError" in reply:
        reply.pop("errorLabels", None)
        if labels:
            reply["errorLabels"] = labels


def add_retry_labels(error: ReplError, *, has_written: bool) -> None:
    """Give the error of a retryable write, commitTransaction or abortTransaction the labels that drivers look for."""
    if error.has(Trait.RETRYABLE):
        error.labels += (RETRYABLE,)
    if not has_written and NOTHING_WRITTEN not in error.labels:
        error.labels += (NOTHING_WRITTEN,)


def add_resumable_label(ctx: CommandContext, error: ReplError) -> None:
    """Give the error of a change stream the label by which a driver knows whether it may resume."""
    if error.has(Trait.RESUMABLE) and _is_of_stream(ctx):
        error.labels += (RESUMABLE,)
    elif error.has(Trait.NOT_RESUMABLE) and _is_of_stream(ctx):
        error.labels += (NOT_RESUMABLE,)


def _is_of_stream(ctx: CommandContext) -> bool:
    if ctx.command.name == "getMore":
        return ctx.is_change_stream
    if ctx.command.name != "aggregate":
        return False
    try:
        first = fields.values(ctx.body, "pipeline", ctx.name)[:1]
    except ReplError:
        return False
    return bool(first) and isinstance(first[0], dict) and "$changeStream" in first[0]


def label_concern_error(reply: dict[str, object]) -> None:
    """Do as `add_retry_labels` for the reply of a write that is applied and whose write concern is not met."""
    error = reply["writeConcernError"]
    if isinstance(error, dict) and has_trait(error.get("code"), Trait.RETRYABLE):
        reply["errorLabels"] = [RETRYABLE]


def write_times(optime: OpTime, term: int) -> dict[str, object]:
    """opTime, electionId and operationTime of a write's reply."""
    return {
        "opTime": optime_document(optime),
        "electionId": election_id(term),
        "operationTime": timestamp(optime.ts),
    }


# --- {n, [nModified], electionId, opTime, ok, $clusterTime, operationTime} as bytes ------------------------------

_OPTIME = b"\x03opTime\0\x1c\0\0\0\x11ts\0"
_CLUSTER_HEAD = b"\x58\0\0\0\x11clusterTime\0"
_CLUSTER = b"\x03$clusterTime\0" + _CLUSTER_HEAD
_SIGNATURE = b"\x03signature\0\x33\0\0\0\x05hash\0\x14\0\0\0\0" + bytes(20) + b"\x12keyId\0" + bytes(8) + b"\0\0"
_cluster_time = Struct(f"<{len(_CLUSTER_HEAD)}sII{len(_SIGNATURE)}s").pack
"""The value of $clusterTime, without a signature: a reply has it every time, and to encode it took 10 microseconds."""
_T = b"\x12t\0"
_OK = b"\0\x01ok\0\0\0\0\0\0\0\xf0\x3f"
_OPERATION = b"\x11operationTime\0"


# --- {cursor: {firstBatch: [document], id: 0, ns}, ok, $clusterTime, operationTime} as bytes ---------------------

_CURSOR = b"\x03cursor\0"
_BATCH = b"\x04firstBatch\0"
_NO_OTHER = b"\0\x12id\0" + bytes(8) + b"\x02ns\0"
_times = Struct(f"<{len(_CLUSTER)}sII{len(_SIGNATURE)}s{len(_OPERATION)}sII").pack
_cursor_tail = Struct(f"<x{len(_OK)}s{len(_CLUSTER)}sII{len(_SIGNATURE)}s{len(_OPERATION)}sIIx")
_int32 = Struct("<i").pack
_timestamp = Struct("<II").pack


def encode_only_batch(document: bytes | None, ns: str, operation_ts: int) -> bytes:
    """The reply of a find that found this document alone, None: nothing. operation_ts: as in `finish`, and not 0."""
    name = ns.encode()
    found = b"" if document is None else b"\x030\0" + document
    body = b"".join((_BATCH, _int32(len(found) + 5), found, _NO_OTHER, _int32(len(name) + 1), name))
    inc, seconds = operation_ts & _INC_MASK, operation_ts >> 31
    tail = _cursor_tail.pack(_OK, _CLUSTER, inc, seconds, _SIGNATURE, _OPERATION, inc, seconds)
    size = len(body) + 6
    return b"".join((_int32(size + len(tail) + len(_CURSOR) + 2), _CURSOR, _int32(size), body, tail))


_BATCH_AT = 4 + len(_CURSOR) + 4
_CURSOR_TAIL = (_OK, _CLUSTER, _SIGNATURE, _OPERATION)
_read_cursor_tail = Struct(f"<x{len(_OK)}s{len(_CLUSTER)}s8x{len(_SIGNATURE)}s{len(_OPERATION)}sIIx")
_CLUSTER_AT = 1 + len(_OK) + len(_CLUSTER) - len(_CLUSTER_HEAD)
_CLUSTER_SIZE = len(_CLUSTER_HEAD) + 8 + len(_SIGNATURE)


def decode_only_batch(reply: bytes) -> dict[str, object] | None:
    """Return the fields of a reply of encode_only_batch, the document and $clusterTime as bytes. None: other bytes."""
    start = _BATCH_AT + len(_BATCH)
    if not reply.startswith(_BATCH, _BATCH_AT):
        return None
    end = start + int.from_bytes(reply[start : start + 4], "little") - 1
    document = reply[start + 7 : end]
    if document and (reply[start + 4 : start + 7] != b"\x030\0" or document[:4] != _int32(len(document))):
        return None  # of more than one document
    last = len(reply) - _read_cursor_tail.size
    if last < end or not reply.startswith(_NO_OTHER, end):
        return None
    *found, inc, seconds = _read_cursor_tail.unpack_from(reply, last)
    if tuple(found) != _CURSOR_TAIL:
        return None
    ns = reply[end + len(_NO_OTHER) + 4 : last].decode()
    cursor = {"firstBatch": [RawDocument(document)] if document else [], "id": Int64(0), "ns": ns}
    cluster = RawDocument(reply[last + _CLUSTER_AT : last + _CLUSTER_AT + _CLUSTER_SIZE])
    return {"cursor": cursor, "ok": 1.0, "$clusterTime": cluster, "operationTime": Timestamp(seconds, inc)}


# --- a write's reply ----------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _write_reply_parts(counters: tuple[tuple[str, int], ...], optime_term: int, term: int) -> tuple[bytes, ...]:
    """The bytes before, between and behind the three timestamps of such a reply."""
    numbers = b"".join(b"\x10" + name.encode() + b"\0" + _int32(value) for name, value in counters)
    front = b"".join((numbers, b"\x07electionId\0", election_id(term).binary, _OPTIME))
    middle = b"".join((_T, optime_term.to_bytes(8, "little"), _OK, _CLUSTER))
    end = _SIGNATURE + _OPERATION
    size = 4 + len(front) + 8 + len(middle) + 8 + len(end) + 8 + 1
    return _int32(size) + front, middle, end


def encode_write_reply(counters: tuple[tuple[str, int], ...], optime: OpTime, term: int) -> bytes:
    """The reply of a write without errors: the counters, then electionId, opTime, ok and the times."""
    front, middle, end = _write_reply_parts(counters, optime.term, term)
    ts = _timestamp(optime.ts & _INC_MASK, optime.ts >> 31)
    return b"".join((front, ts, middle, ts, end, ts, b"\0"))


def write_reply_fields(counters: tuple[tuple[str, int], ...], optime: OpTime, _term: int) -> dict[str, object]:
    """Return what `decode_write_reply` gives for the reply that `encode_write_reply` makes."""
    return {**dict(counters), "ok": 1.0, "operationTime": timestamp(optime.ts)}


_write_tail = Struct(
    f"<12s12x{len(_OPTIME)}s8x{len(_T)}s8x{len(_OK)}s{len(_CLUSTER)}s8x{len(_SIGNATURE)}s{len(_OPERATION)}sIIx"
)
_WRITE_TAIL = (b"\x07electionId\0", _OPTIME, _T, _OK, _CLUSTER, _SIGNATURE, _OPERATION)


def decode_write_reply(reply: bytes) -> dict[str, object] | None:
    """Return the counters, ok and operationTime of a reply of encode_write_reply, None for all other bytes.

    To read these few fields one by one from the bytes takes four times as long.
    """
    last = len(reply) - _write_tail.size
    if last < 4:
        return None
    *found, inc, seconds = _write_tail.unpack_from(reply, last)
    if tuple(found) != _WRITE_TAIL:
        return None
    fields: dict[str, object] = {}
    at = 4
    while at < last:
        end = reply.find(0, at)
        if reply[at] != 0x10:
            return None
        fields[reply[at + 1 : end].decode()] = int.from_bytes(reply[end + 1 : end + 5], "little", signed=True)
        at = end + 5
    return {**fields, "ok": 1.0, "operationTime": Timestamp(seconds, inc)}


def list_reply(ctx: CommandContext, ns: str, documents: list[dict[str, object]]) -> Reply:
    """Return the reply with all rows in the first batch, since these lists are short.

    The fields of `cursor` have the order that MongoDB's lists have; `find` has another one.
    """
    cursor = fields.document(ctx.body, "cursor", ctx.name)
    if cursor is not None:
        fields.check_fields(cursor, frozenset({"batchSize"}), f"{ctx.name}.cursor")
        fields.whole(cursor, "batchSize", ctx.name, least=0)
    return {"cursor": {"id": Int64(0), "ns": ns, "firstBatch": documents}}

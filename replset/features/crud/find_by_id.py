"""Answers a find that names one `_id` and nothing unusual, without a query, a plan and a cursor.

It does what find.py does with such a command, at a third of the cost. A command that is not simple in every respect is
left to find.py, which also gives all errors.
"""

from __future__ import annotations

from typing import Final, cast

from replset.bson import RawDocument
from replset.bson.decoding import FIXED_SIZE
from replset.bson.keystring import encode_key_of
from replset.operations.command import CommandContext
from replset.operations.current_operations import OperationTable
from replset.operations.kernel import Kernel
from replset.operations.namespaces import collection_of, namespace
from replset.operations.replies import encode_only_batch
from replset.operations.waiters import Completion

_SIMPLE: Final = frozenset(
    {b"find", b"filter", b"limit", b"batchSize", b"singleBatch"}
    | {b"lsid", b"comment", b"$db", b"$clusterTime", b"$readPreference"}
)
"""Fields of a simple find. The dispatcher has read those that it does not read itself."""
_ID = b"_id\0"
_STRING, _OBJECT, _BOOL, _INT32 = 0x02, 0x03, 0x08, 0x10
_SIMPLE_IDS: Final = frozenset({0x01, _STRING, 0x07, _BOOL, 0x09, _INT32, 0x12})
"""Types of which only an equal value matches, whose key is then the same."""
_LONGEST: Final = 1024
"""Bytes of a filter that is read here."""


def looks_simple(body: RawDocument) -> bool:
    """Whether a find has only fields that are read here, and a filter that begins with an `_id` of a simple type.

    Others are not begun here, since what their checks take would be for nothing.
    """
    raw = body.get_raw("filter") if body.has_only(_SIMPLE) else None
    return raw is not None and raw[5:9] == _ID and raw[4] in _SIMPLE_IDS


def begin_find(ctx: CommandContext, waiter: Completion) -> bool:
    """Answer a simple find at once."""
    reply = find_by_id(ctx)
    if reply is None:
        return False
    ctx.member[OperationTable].count(ctx, 0)
    waiter.set_result(reply)
    return True


def find_by_id(ctx: CommandContext) -> bytes | None:
    """Return the reply; None: the command is not simple."""
    body, member = ctx.body, ctx.member
    if not looks_simple(body) or ctx.database in ("local", "admin"):
        return None
    if not (_is_count(body, "limit") and _is_count(body, "batchSize") and body.type_of("singleBatch") in (None, _BOOL)):
        return None
    raw = body.get_raw("filter") if body.type_of("filter") == _OBJECT else None
    return None if raw is None else reply_of(raw, member, namespace(ctx.database, collection_of(ctx)))


def reply_of(raw: bytes, member: Kernel, ns: str) -> bytes | None:
    """Return the reply to a find with this filter and nothing else; None: the filter is not simple."""
    key, now = only_key(raw), member.store.last_applied.ts
    if key is None or now == 0:
        return None
    coll = member.store.collection(ns)
    if coll is not None and not coll.is_plain:
        return None
    found = None if coll is None else member.store.get(coll, key)
    if found is not None and int.from_bytes(found[:4], "little") != len(found):
        return None  # a disk has changed it; no client could read a reply with it
    return encode_only_batch(found, ns, now)


def _is_count(body: RawDocument, name: str) -> bool:
    """Whether the field is absent, or lets at least one document through."""
    kind = body.type_of(name)
    return kind is None or (kind == _INT32 and cast("int", body.get(name)) > 0)


def only_key(raw: bytes) -> bytes | None:
    """Return the key of the documents that the filter {_id: value} finds; None for another filter or type of value."""
    if len(raw) < 9:
        return None
    kind, last = raw[4], len(raw) - 1
    if kind not in _SIMPLE_IDS or raw[5:9] != _ID or len(raw) > _LONGEST:
        return None
    size = FIXED_SIZE[kind]
    if size < 0:
        size = 4 + int.from_bytes(raw[9:13], "little")
    return encode_key_of(raw, kind, 9, last) if 9 + size == last and not raw[last] else None

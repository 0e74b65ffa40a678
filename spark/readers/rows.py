"""Rows from the bytes of oplog entries, this product's and MongoDB's of any age, for oplogs that keep only those."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from struct import Struct
from typing import NamedTuple

import pyarrow as pa

from replset.bson import DateTime, InvalidBSONError, RawDocument, Timestamp, encode_key
from replset.ids import OpTime, pack_ts
from replset.oplog_row import entry_hash
from spark.columns import arrow_schema
from spark.oplog import EntryFilter

# How nearly every entry ends: ts, t, v, wall. Cheaper than to walk over the document.
_TAIL = re.compile(rb"\x11ts\0(.{8})\x12t\0(.{8})(?:\x10v\0.{4}|\x12v\0.{8})\x09wall\0.{8}\0\Z", re.DOTALL).search
_TAIL_SIZE = 64
_read_timestamp = Struct("<II").unpack
_read_term = Struct("<q").unpack
_HOLDS_ID = {"i": "o", "d": "o", "u": "o2"}


class Row(NamedTuple):
    """In the order of the columns, in plain types, which Spark asks for; chain is None where it is not known."""

    ts: int
    term: int
    op: str
    ns: str
    key: bytes | None
    wall: int
    hash: int
    chain: int | None
    entry: bytes


def entry_optime(raw: bytes) -> OpTime:
    """Entries of before MongoDB 3.2 have no term, and those of its first protocol version -1: both are term 0.

    InvalidBSONError when it is no oplog entry.
    """
    tail = _TAIL(raw, max(0, len(raw) - _TAIL_SIZE))
    if tail is None:
        return _optime(RawDocument(raw))
    increment, seconds = _read_timestamp(tail[1])
    return _checked(seconds, increment, _read_term(tail[2])[0])


def entry_row(raw: bytes) -> Row:
    """With key and hash made anew. InvalidBSONError when it is no oplog entry."""
    document = RawDocument(raw)
    op, ns, wall = document.get("op"), document.get("ns"), document.get("wall")
    if not isinstance(op, str) or not isinstance(ns, str):
        raise InvalidBSONError("it is no oplog entry: it has no op and ns")
    term, ts = _optime(document)
    wall_ms = wall.ms if isinstance(wall, DateTime) else (ts >> 31) * 1000
    return Row(ts, term, op, ns, _key(document, op), wall_ms, entry_hash(raw), None, raw)


def member_row(document: RawDocument) -> Row:
    """A row as a member's HTTP API gives it: {optime, key, hash, chain, entry}. InvalidBSONError when it is none."""
    raw = document.get_raw("entry")
    key, hashed, chain = document.get("key"), document.get("hash"), document.get("chain")
    if raw is None or not isinstance(hashed, int) or not isinstance(chain, int) or not isinstance(key, bytes | None):
        raise InvalidBSONError("it is no row of an oplog: it needs hash, chain and entry")
    return entry_row(raw)._replace(key=key if key is None else bytes(key), hash=int(hashed), chain=int(chain))


def batched(rows: Iterable[Row], count: int) -> Iterator[list[Row]]:
    left = iter(rows)
    while some := list(islice(left, count)):
        yield some


def batch_of(rows: Sequence[Row], columns: Sequence[str]) -> pa.RecordBatch:
    schema = arrow_schema(columns)
    by_name = dict(zip(Row._fields, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(Row._fields, ())
    return pa.RecordBatch.from_arrays(
        [pa.array(by_name[name], schema.field(name).type) for name in columns], schema=schema
    )


def chosen(rows: Iterable[Row], only: EntryFilter) -> Iterator[Row]:
    for row in rows:
        if (not only.ns or row.ns in only.ns) and (not only.op or row.op in only.op):
            yield row


def _optime(document: RawDocument) -> OpTime:
    ts, term = document.get("ts"), document.get("t")
    if not isinstance(ts, Timestamp):
        raise InvalidBSONError("it is no oplog entry: it has no ts")
    return _checked(ts.time, ts.inc, term if isinstance(term, int) else 0)


def _checked(seconds: int, increment: int, term: int) -> OpTime:
    if increment >= 1 << 31:
        raise InvalidBSONError(f"its ts has the increment {increment}, which no oplog entry has")
    return OpTime(max(0, int(term)), pack_ts(seconds, increment))


def _key(document: RawDocument, op: str) -> bytes | None:
    """None also where an old entry names no `_id`: inserts into system.indexes, updates of capped collections."""
    raw = document.get_raw(_HOLDS_ID.get(op, ""))
    about = None if raw is None else RawDocument(raw)
    return encode_key(about.get("_id")) if about is not None and "_id" in about else None

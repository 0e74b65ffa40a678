"""Reads one range of documents as of one optime, of this member or of another: what comparing members needs.

`replSetDocuments` asks for a range's digest, for the hash of each of its documents, or for the documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Self

from replset.bson import Binary, Int64, InvalidBSONError, RawDocument
from replset.errors import ErrorCode, RemoteProtocolError, ReplError, SnapshotCutError, SnapshotTooOldError
from replset.features.scrub.range_digests import EMPTY_RANGE, DocumentRange, KeptDocument, read_digest, read_range
from replset.ids import OpTime
from replset.message_fields import check_ok, parse_chain
from replset.optime import optime_document, parse_optime
from replset.replication.context import MemberContext
from replset.storage.snapshot import Snapshot

CUTS_MAX = 5
"""How often a read is begun again that a checkpoint cut off."""


class Give(Enum):
    """How much of each document the answer holds."""

    DIGEST = "digest"
    HASHES = "hashes"
    DOCUMENTS = "documents"


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """Asks for the documents of `ns` with low <= key < high as they were at `at`, an entry whose chain is `chain`."""

    ns: str
    at: OpTime
    chain: int
    low: bytes = b""
    high: bytes | None = None
    give: Give = Give.DIGEST

    def document(self) -> dict[str, object]:
        return {
            "replSetDocuments": self.ns,
            "at": {**optime_document(self.at), "chain": Int64(self.chain)},
            "low": Binary(self.low),
            "high": None if self.high is None else Binary(self.high),
            "give": self.give.value,
        }

    @classmethod
    def parse(cls, body: RawDocument) -> Self:
        ns, at, give = body.get("replSetDocuments"), body.get("at"), body.get("give")
        if not isinstance(ns, str) or not isinstance(at, dict) or give not in {one.value for one in Give}:
            raise RemoteProtocolError("replSetDocuments takes a namespace, at and give (digest, hashes or documents)")
        high = body.get("high")
        return cls(
            ns,
            parse_optime(at),
            parse_chain(at.get("chain")),
            _bytes(body.get("low")),
            None if high is None else _bytes(high),
            Give(give),
        )


@dataclass(frozen=True, slots=True)
class RangeRow:
    """One document: its hash, its `_id` unless its bytes are damaged, its bytes if they were asked for."""

    key: bytes
    hash: int
    id: object = None
    doc: bytes | None = None


@dataclass(frozen=True, slots=True)
class RangeReply:
    """See range_digests.DocumentRange. rows: unless only the digest was asked for."""

    end: bytes | None
    count: int
    size: int
    digest: int
    rows: tuple[RangeRow, ...] = ()

    def document(self) -> dict[str, object]:
        rows: list[Mapping[str, object]] = []
        for row in self.rows:
            one: dict[str, object] = {"key": Binary(row.key), "hash": Int64(row.hash), "_id": row.id}
            rows.append(one if row.doc is None else {**one, "doc": Binary(row.doc)})
        return {
            "ok": 1.0,
            "end": None if self.end is None else Binary(self.end),
            "count": self.count,
            "size": Int64(self.size),
            "digest": Int64(self.digest),
            "documents": rows,
        }

    @classmethod
    def parse(cls, reply: RawDocument) -> Self:
        check_ok(reply)
        end, rows = reply.get("end"), reply.get("documents")
        if not isinstance(rows, list):
            raise RemoteProtocolError("field 'documents' is not an array")
        found = []
        for row in rows:
            if not isinstance(row, dict):
                raise RemoteProtocolError("field 'documents' holds more than documents")
            doc = _bytes(row["doc"]) if "doc" in row else None
            found.append(RangeRow(_bytes(row.get("key")), _number(row.get("hash")), row.get("_id"), doc))
        return cls(
            None if end is None else _bytes(end),
            _number(reply.get("count")),
            _number(reply.get("size")),
            _number(reply.get("digest")),
            tuple(found),
        )


async def read_own(context: MemberContext, request: RangeRequest) -> RangeReply:
    """Read a range of this member's documents, in a thread; of a collection that is not there none.

    ReplError: its entry `at` is another one, or not there yet; the state at `at` cannot be read any more.
    """
    store = context.store
    if store.last_applied < request.at:
        raise ReplError(
            f"{context.identity.member} is at {store.last_applied}, not yet at {request.at}",
            code=ErrorCode.SNAPSHOT_UNAVAILABLE,
        )
    if store.chain_at(request.at) != request.chain:
        raise ReplError(
            f"{context.identity.member} has another entry at {request.at}", code=ErrorCode.SNAPSHOT_UNAVAILABLE
        )

    def read() -> DocumentRange:
        with store.read() as snapshot:
            return _read(snapshot, request)

    for attempt in range(CUTS_MAX):
        try:
            found = await context.workers.run(read)
            break
        except SnapshotCutError:
            if attempt == CUTS_MAX - 1:
                raise
    rows: tuple[RangeRow, ...] = ()
    if request.give is not Give.DIGEST:
        with_bytes = request.give is Give.DOCUMENTS
        rows = tuple(
            RangeRow(one.key, one.hash, _id_of(one), one.doc if with_bytes else None) for one in found.documents
        )
    return RangeReply(found.end, found.count, found.size, found.digest, rows)


def _read(snapshot: Snapshot, request: RangeRequest) -> DocumentRange:
    if request.at.ts < snapshot.pruned_through:  # a collection that was there then may be removed without a trace
        raise SnapshotTooOldError(
            f"the state at {request.at} is no longer kept; the oldest is {snapshot.pruned_through}"
        )
    coll = snapshot.collection(request.ns, request.at)
    if coll is None:
        return EMPTY_RANGE
    read = read_digest if request.give is Give.DIGEST else read_range
    return read(snapshot, coll, request.at, request.low, request.high)


def _id_of(one: KeptDocument) -> object:
    try:
        return RawDocument(one.doc).get("_id")
    except InvalidBSONError:
        return None


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise RemoteProtocolError(f"not binary data: {value!r:.100}")
    return bytes(value)


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise RemoteProtocolError(f"not a number: {value!r:.100}")
    return int(value)

"""The commands that members send each other for replication, as values that read and write their documents.

`replSetOplogFetch` asks for the entries after a position, and leaves no state on the server. `replSetOplogProbe` asks
which entries exist, and their hash chain. `replSetSnapshot` fetches a copy of the database file in chunks. A field that
is missing or of the wrong type is the peer's fault: RemoteProtocolError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Self, TypeAlias, TypeVar

from replset.bson import Int64, Layout, ObjectId, RawDocument, array_of, document_of, documents_of, encode
from replset.bson.layout import BOOL, INT32, INT64
from replset.errors import RemoteProtocolError, ReplError
from replset.ids import OPTIME_NULL, OpTime
from replset.oplog_entry import optime_of
from replset.optime import OPTIME_LAYOUT, optime_document, optime_of_bits, parse_optime, timestamp_bits

T = TypeVar("T")
Awaited: TypeAlias = Literal["", "applied", "durable"]
"""Which positions of other members somebody waits for."""
_PLACE = {**OPTIME_LAYOUT, "chain": INT64}


def parse_chain(value: object) -> int:
    """A hash chain: signed 64 bits, as stored."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise RemoteProtocolError(f"not a hash chain: {value!r:.100}")
    return int(value)


def _field(document: RawDocument, name: str, kind: type[T]) -> T:
    value = document.get(name)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise RemoteProtocolError(f"field {name!r} is not {kind.__name__}: {value!r:.100}")
    return value


def _document(document: RawDocument, name: str) -> RawDocument:
    raw = document.get_raw(name)
    if raw is None or document.type_of(name) != 3:
        raise RemoteProtocolError(f"field {name!r} is not a document")
    return RawDocument(raw)


def _awaited(value: object) -> Awaited:
    return "applied" if value == "applied" else "durable" if value == "durable" else ""


def check_ok(reply: RawDocument) -> None:
    """Raise the error that a reply with `ok: 0` holds."""
    if reply.get("ok") != 1:
        code = reply.get("code")
        raise ReplError(str(reply.get("errmsg", "no reason given")), code=code if isinstance(code, int) else 1)


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """Asks for the entries after `after`, where this member's hash chain is `chain`; waits up to `max_await_ms`.

    Answered at once when the rollback id is not `known_rollback_id` (-1: unknown, and then no reason to answer at
    once), and soon when the commit point is beyond `known_commit_point`: at once if somebody waits for that here
    (`awaits_commit_point`). progress: this member's position, as a replSetUpdatePosition; None: it does not count.
    set_id: of the sender's set, which is added on the way (`SetMemberClient`).
    """

    after: OpTime
    chain: int
    max_bytes: int
    max_await_ms: int
    term: int
    known_commit_point: OpTime
    known_rollback_id: int
    awaits_commit_point: bool = False
    progress: RawDocument | None = None
    set_id: ObjectId | None = None

    def document(self) -> RawDocument:
        fields = _FETCH.pack(
            timestamp_bits(self.after.ts),
            self.after.term,
            self.chain,
            self.max_bytes,
            self.max_await_ms,
            self.term,
            timestamp_bits(self.known_commit_point.ts),
            self.known_commit_point.term,
            self.known_rollback_id,
        )
        awaits = _AWAITS if self.awaits_commit_point else b""
        progress = b"" if self.progress is None else _PROGRESS + self.progress.raw
        return RawDocument(document_of(fields, awaits, progress))

    @classmethod
    def parse(cls, body: RawDocument) -> Self:
        return cls._parse_layout(body.raw) or cls._parse_fields(body)

    @classmethod
    def _parse_layout(cls, raw: bytes) -> Self | None:
        """Read a request as `document` makes it; None: it is written in another way."""
        found = _FETCH.unpack(raw, 4)
        if found is None:
            return None
        after, after_term, chain, max_bytes, max_await_ms, term, known, known_term, rollback_id = found
        at = 4 + _FETCH.size
        awaits = raw.startswith(_AWAITS, at)
        if awaits:
            at += len(_AWAITS)
        progress = None
        if raw.startswith(_PROGRESS, at):
            start = at + len(_PROGRESS)
            at = start + int.from_bytes(raw[start : start + 4], "little")
            progress = RawDocument(raw[start:at])
        set_id = None
        if raw.startswith(_SET_ID, at):
            set_id = ObjectId(raw[at + len(_SET_ID) : at + len(_SET_ID) + 12])
            at += len(_SET_ID) + 12
        if not raw.startswith(_DB, at) and at != len(raw) - 1:
            return None
        return cls(
            optime_of_bits(after, after_term),
            chain,
            max_bytes,
            max_await_ms,
            term,
            optime_of_bits(known, known_term),
            rollback_id,
            awaits,
            progress,
            set_id,
        )

    @classmethod
    def _parse_fields(cls, body: RawDocument) -> Self:
        after = _field(body, "after", dict)
        return cls(
            parse_optime(after),
            parse_chain(after.get("chain")),
            _field(body, "maxBytes", int),
            _field(body, "maxAwaitMS", int),
            _field(body, "term", int),
            parse_optime(body.get("knownCommitPoint")),
            _field(body, "knownRollbackId", int),
            body.get("awaitsCommitPoint") is True,
            _document(body, "progress") if "progress" in body else None,
            _field(body, "setId", ObjectId) if "setId" in body else None,
        )


_FETCH = Layout(
    {
        "replSetOplogFetch": 1,
        "after": _PLACE,
        "maxBytes": INT32,
        "maxAwaitMS": INT32,
        "term": INT64,
        "knownCommitPoint": OPTIME_LAYOUT,
        "knownRollbackId": INT32,
    }
)
_AWAITS = encode({"awaitsCommitPoint": True})[4:-1]
_PROGRESS = b"\x03progress\0"
_SET_ID, _DB = b"\x07setId\0", b"\x02$db\0"
"""What follows the fields of a request begins so: the fields that every command of a member has."""


@dataclass(frozen=True)
class FetchReply:
    """Holds a page of the source's oplog. `entries` continue exactly behind `prev`, whose chain is `prev_chain`.

    end_chain: the chain at the last of them; a page that does not give it is not applied. matched: whether the entry
    that was asked for is in the source's log; if not, `entries` is empty and `prev` means nothing. commit_term: the
    term of the primary that committed `commit_point`. awaited: which positions somebody at the source waits for, now
    or a moment ago: "applied" (w: 2 without j), "durable" (w: "majority"), "" for none.
    """

    matched: bool
    entries: Sequence[bytes]
    prev: OpTime
    prev_chain: int
    end_chain: int
    rollback_id: int
    term: int
    state: int
    is_primary: bool
    newest: OpTime
    oldest: OpTime
    commit_point: OpTime
    commit_term: int = 0
    awaited: Awaited = ""

    @cached_property
    def last(self) -> OpTime:
        """The newest entry of this page; OPTIME_NULL: it has none."""
        return optime_of(self.entries[-1]) if self.entries else OPTIME_NULL

    @property
    def has_more(self) -> bool:
        """Whether the source has entries behind this page already."""
        return bool(self.entries) and self.last < self.newest

    def document(self) -> RawDocument:
        newest, oldest, committed = self.newest, self.oldest, self.commit_point
        rest = _PAGE.pack(
            timestamp_bits(self.prev.ts),
            self.prev.term,
            self.prev_chain,
            self.end_chain,
            self.rollback_id,
            self.term,
            self.state,
            self.is_primary,
            timestamp_bits(newest.ts),
            newest.term,
            timestamp_bits(oldest.ts),
            oldest.term,
            timestamp_bits(committed.ts),
            committed.term,
            self.commit_term,
        )
        head = _MATCHED.pack(self.matched)
        return RawDocument(document_of(head, _BATCH, array_of(self.entries), rest, _AWAITED[self.awaited]))

    @classmethod
    def parse(cls, reply: RawDocument) -> Self:
        """Read a reply; entries stay the bytes they came in. Raises what an error reply says."""
        return cls._parse_layout(reply.raw) or cls._parse_fields(reply)

    @classmethod
    def _parse_layout(cls, raw: bytes) -> Self | None:
        """Read a reply as `document` makes it; None: it is written in another way."""
        at = 4 + _MATCHED.size
        matched = _MATCHED.unpack(raw, 4)
        if matched is None or not raw.startswith(_BATCH, at):
            return None
        start = at + len(_BATCH)
        at = start + int.from_bytes(raw[start : start + 4], "little")
        found = _PAGE.unpack(raw, at)
        awaited = _AWAITED_BY_BYTES.get(raw[at + _PAGE.size : -1].partition(_TIMES)[0])
        if found is None or awaited is None:
            return None
        prev, prev_term, prev_chain, end_chain, rollback_id, term, state, is_primary = found[:8]
        newest, newest_term, oldest, oldest_term, committed, committed_term, commit_term = found[8:]
        if matched[0] > 1 or is_primary > 1:
            return None
        return cls(
            matched[0] == 1,
            documents_of(raw[start:at]),
            optime_of_bits(prev, prev_term),
            prev_chain,
            end_chain,
            rollback_id,
            term,
            state,
            is_primary == 1,
            optime_of_bits(newest, newest_term),
            optime_of_bits(oldest, oldest_term),
            optime_of_bits(committed, committed_term),
            commit_term,
            awaited,
        )

    @classmethod
    def _parse_fields(cls, reply: RawDocument) -> Self:
        check_ok(reply)
        batch = reply.get_raw("batch")
        if batch is None:
            raise RemoteProtocolError("field 'batch' is not an array")
        prev = _field(reply, "prev", dict)
        return cls(
            _field(reply, "matched", bool),
            documents_of(batch),
            parse_optime(prev),
            parse_chain(prev.get("chain")),
            parse_chain(reply.get("endChain")),
            _field(reply, "rbid", int),
            _field(reply, "term", int),
            _field(reply, "state", int),
            _field(reply, "isPrimary", bool),
            parse_optime(reply.get("lastApplied")),
            parse_optime(reply.get("oldest")),
            parse_optime(reply.get("commitPoint")),
            _field(reply, "commitTerm", int) if "commitTerm" in reply else 0,
            _awaited(reply.get("awaited")),
        )


_MATCHED = Layout({"ok": 1.0, "matched": BOOL})
_BATCH = b"\x04batch\0"
_PAGE = Layout(
    {
        "prev": _PLACE,
        "endChain": INT64,
        "rbid": INT32,
        "term": INT64,
        "state": INT32,
        "isPrimary": BOOL,
        "lastApplied": OPTIME_LAYOUT,
        "oldest": OPTIME_LAYOUT,
        "commitPoint": OPTIME_LAYOUT,
        "commitTerm": INT64,
    }
)
_AWAITED: dict[Awaited, bytes] = {
    "": b"",
    "applied": encode({"awaited": "applied"})[4:-1],
    "durable": encode({"awaited": "durable"})[4:-1],
}
_TIMES = b"\x03$clusterTime\0"
"""What every reply ends with begins so."""
_AWAITED_BY_BYTES = {fields: awaited for awaited, fields in _AWAITED.items()}


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """Asks which of these entries the other member has."""

    optimes: Sequence[OpTime]

    def document(self) -> dict[str, object]:
        return {"replSetOplogProbe": 1, "optimes": [optime_document(optime) for optime in self.optimes]}

    @classmethod
    def parse(cls, body: RawDocument) -> Self:
        return cls([parse_optime(optime) for optime in _field(body, "optimes", list)])


@dataclass(frozen=True, slots=True)
class ProbeReply:
    """Answers with the chain at each optime that was asked for, None where there is no such entry."""

    chains: Sequence[int | None]
    rollback_id: int
    term: int
    newest: OpTime
    oldest: OpTime

    def document(self) -> dict[str, object]:
        return {
            "ok": 1.0,
            "chains": [None if chain is None else Int64(chain) for chain in self.chains],
            "rbid": self.rollback_id,
            "term": Int64(self.term),
            "lastApplied": optime_document(self.newest),
            "oldest": optime_document(self.oldest),
        }

    @classmethod
    def parse(cls, reply: RawDocument) -> Self:
        check_ok(reply)
        return cls(
            [None if chain is None else parse_chain(chain) for chain in _field(reply, "chains", list)],
            _field(reply, "rbid", int),
            _field(reply, "term", int),
            parse_optime(reply.get("lastApplied")),
            parse_optime(reply.get("oldest")),
        )


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """Asks for one step of a copy. step: "begin" (id empty: make one; else: is it ready?), "chunk" or "end".

    oplog_bytes: on a first "begin" of a witness, how much of the oplog it wants, and no documents; None: everything.
    compare: as of a witness, by a member that compares its own documents with the source's (difference_protocol.py).
    """

    step: str
    snapshot_id: str = ""
    offset: int = 0
    length: int = 0
    oplog_bytes: int | None = None
    compare: bool = False

    def document(self) -> dict[str, object]:
        document: dict[str, object] = {
            "replSetSnapshot": 1,
            "step": self.step,
            "id": self.snapshot_id,
            "offset": Int64(self.offset),
            "length": self.length,
        }
        if self.oplog_bytes is not None:
            document["oplogBytes"] = Int64(self.oplog_bytes)
        return {**document, "compare": True} if self.compare else document

    @staticmethod
    def step_of(body: RawDocument) -> str:
        """Return the step, of a comparison too. What is no text is refused before anything else reads it again."""
        return _field(body, "step", str)

    @classmethod
    def parse(cls, body: RawDocument) -> Self:
        return cls(
            cls.step_of(body),
            _field(body, "id", str),
            _field(body, "offset", int),
            _field(body, "length", int),
            _field(body, "oplogBytes", int) if "oplogBytes" in body else None,
            body.get("compare") is True,
        )


@dataclass(frozen=True, slots=True)
class SnapshotReply:
    """Describes the source's copy. `size` and `sha256` (hex) mean something once it is `ready`.

    compared: the source compares documents with it; without this it is a copy as for anybody.
    """

    snapshot_id: str
    ready: bool
    size: int
    sha256: str
    rollback_id: int
    data: bytes = b""
    compared: bool = False

    def document(self) -> dict[str, object]:
        document: dict[str, object] = {
            "ok": 1.0,
            "id": self.snapshot_id,
            "ready": self.ready,
            "size": Int64(self.size),
            "sha256": self.sha256,
            "rbid": self.rollback_id,
            "data": self.data,
        }
        return {**document, "compared": True} if self.compared else document

    @classmethod
    def parse(cls, reply: RawDocument) -> Self:
        check_ok(reply)
        return cls(
            _field(reply, "id", str),
            _field(reply, "ready", bool),
            _field(reply, "size", int),
            _field(reply, "sha256", str),
            _field(reply, "rbid", int),
            bytes(_field(reply, "data", bytes)),
            reply.get("compared") is True,
        )

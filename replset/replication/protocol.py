"""The commands that members send each other for replication, as values that read and write their documents.

`replSetOplogFetch` asks for the entries after a position, and leaves no state on the server. `replSetOplogProbe` asks
which entries exist, and their hash chain. `replSetSnapshot` fetches a copy of the database file in chunks. A field that
is missing or of the wrong type is the peer's fault: RemoteProtocolError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, TypeAlias

from replset import message_fields as kinds
from replset.bson import Binary, Int64, Layout, ObjectId, RawDocument, array_of, documents_of, encode
from replset.bson.layout import TIMESTAMP
from replset.ids import INCREMENT_BITS, OPTIME_NULL, OpTime
from replset.message_fields import Declared, Field, Lack, Message
from replset.oplog_entry import optime_of
from replset.optime import BAD_BIT, INCREMENT_MASK, SECONDS_MASK, optime_document, parse_optime

Awaited: TypeAlias = Literal["", "applied", "durable"]
"""Which positions of other members somebody waits for."""


def _awaited(value: object) -> Awaited:
    return "applied" if value == "applied" else "durable" if value == "durable" else ""


def _scan_awaited(raw: bytes, at: int) -> tuple[Awaited, int]:
    text, end = kinds.scan_text(raw, at)
    return _awaited(text), end


_AWAITED: Final = kinds.Sized(
    b"\x02", kinds.write_text, lambda document, name: _awaited(document.get(name)), _scan_awaited
)
_OPTIMES: Final = kinds.list_of(optime_document, parse_optime)
_CHAINS: Final = kinds.list_of(
    lambda chain: None if chain is None else Int64(chain),
    lambda value: None if value is None else kinds.parse_chain(value),
)


@dataclass(frozen=True)  # without slots, so that it is made faster (`message_fields._maker`)
class FetchRequest(Declared):
    """Asks for the entries after `after`, where this member's hash chain is `chain`; waits up to `max_await_ms`.

    Answered at once when the rollback id is not `known_rollback_id` (-1: unknown, and then no reason to answer at
    once), and soon when the commit point is beyond `known_commit_point`: at once if somebody waits for that here
    (`awaits_commit_point`). progress: this member's position, as a replSetUpdatePosition; None: it does not count.
    set_id: of the sender's set.
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


FetchRequest.message = Message(
    FetchRequest,
    Field("replSetOplogFetch", kinds.constant(1)),
    Field("after", kinds.PLACE, "after", "chain"),
    Field("maxBytes", kinds.INT32),
    Field("maxAwaitMS", kinds.INT32),
    Field("term", kinds.INT64),
    Field("knownCommitPoint", kinds.OPTIME),
    Field("knownRollbackId", kinds.INT32),
    Field("awaitsCommitPoint", kinds.BOOL, lack=Lack.LOOSE),
    Field("progress", kinds.DOCUMENT, lack=Lack.DEFAULT),
    Field("setId", kinds.OBJECT_ID, lack=Lack.DEFAULT),
)


@dataclass(frozen=True)
class FetchReply(Declared):
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

    def reply(self, operation_ts: int) -> bytes:
        """Return the message with the times that every reply ends with. operation_ts: packed. The page matches."""
        prev, newest, oldest, point = self.prev, self.newest, self.oldest, self.commit_point
        time = operation_ts + (operation_ts & SECONDS_MASK)  # here and below as `timestamp_bits`
        batch, layout = array_of(self.entries), _TAILS[self.awaited]
        place = prev.ts + (prev.ts & SECONDS_MASK), prev.term, self.prev_chain
        numbers = self.end_chain, self.rollback_id, self.term, self.state, self.is_primary
        log = newest.ts + (newest.ts & SECONDS_MASK), newest.term, oldest.ts + (oldest.ts & SECONDS_MASK), oldest.term
        committed = point.ts + (point.ts & SECONDS_MASK), point.term, self.commit_term
        tail = layout.pack(*place, *numbers, *log, *committed, time, time)
        size = _BATCH_AT + len(batch) + layout.size + 1
        return b"".join((size.to_bytes(4, "little"), _HEAD, batch, tail, b"\0"))

    @classmethod
    def parse(cls, document: RawDocument) -> FetchReply:
        return _scan_reply(document.raw) or cls.message.parse(document)


_RUN: Final = (
    Field("prev", kinds.PLACE, "prev", "prev_chain"),
    Field("endChain", kinds.INT64),
    Field("rbid", kinds.INT32, "rollback_id"),
    Field("term", kinds.INT64),
    Field("state", kinds.INT32),
    Field("isPrimary", kinds.BOOL),
    Field("lastApplied", kinds.OPTIME, "newest"),
    Field("oldest", kinds.OPTIME),
    Field("commitPoint", kinds.OPTIME),
    Field("commitTerm", kinds.INT64, lack=Lack.OLD),
)
FetchReply.message = Message(
    FetchReply,
    kinds.OK,
    Field("matched", kinds.BOOL),
    Field("batch", kinds.DOCUMENTS, "entries"),
    *_RUN,
    Field("awaited", _AWAITED, lack=Lack.DEFAULT),
)

# The reply of a source with a page that matches: its bytes before the page, and behind it by what is awaited.
_HEAD: Final = encode({"ok": 1.0, "matched": True})[4:-1] + b"\x04batch\0"
_BATCH_AT: Final = 4 + len(_HEAD)
_TIMES: Final = {
    "$clusterTime": {"clusterTime": TIMESTAMP, "signature": {"hash": Binary(bytes(20)), "keyId": Int64(0)}},
    "operationTime": TIMESTAMP,
}
_TAILS: Final[dict[Awaited, Layout]] = {
    awaited: Layout(
        {
            **{field.name: field.kind.layout for field in _RUN if isinstance(field.kind, kinds.Fixed)},
            **({"awaited": awaited} if awaited else {}),
            **_TIMES,
        }
    )
    for awaited in ("durable", "applied", "")
}
_EACH_TAIL: Final = (*_TAILS.items(),)


def _scan_reply(raw: bytes) -> FetchReply | None:
    """Read a reply as `FetchReply.reply` makes it; None: it is another one."""
    if not raw.startswith(_HEAD, 4):
        return None
    end = _BATCH_AT + int.from_bytes(raw[_BATCH_AT : _BATCH_AT + 4], "little")
    for awaited, tail in _EACH_TAIL:
        found = tail.unpack(raw, end) if end + tail.size + 1 == len(raw) else None
        if found is None:
            continue
        prev, t, chain, end_chain, rbid, term, state, is_primary, newest, t2, oldest, t3, point, t4, point_t, *_ = found
        if (prev | newest | oldest | point) & BAD_BIT or (t | t2 | t3 | t4) < 0 or is_primary > 1:
            return None
        new = tuple.__new__
        place = new(OpTime, (t, prev >> 32 << INCREMENT_BITS | prev & INCREMENT_MASK)), chain
        last = new(OpTime, (t2, newest >> 32 << INCREMENT_BITS | newest & INCREMENT_MASK))
        first = new(OpTime, (t3, oldest >> 32 << INCREMENT_BITS | oldest & INCREMENT_MASK))
        committed = new(OpTime, (t4, point >> 32 << INCREMENT_BITS | point & INCREMENT_MASK)), point_t
        numbers = end_chain, rbid, term, state, is_primary == 1
        entries = documents_of(raw[_BATCH_AT:end])
        made: FetchReply = FetchReply.message.make((True, entries, *place, *numbers, last, first, *committed, awaited))
        return made
    return None


@dataclass(frozen=True, slots=True)
class ProbeRequest(Declared):
    """Asks which of these entries the other member has."""

    optimes: Sequence[OpTime]


ProbeRequest.message = Message(ProbeRequest, Field("replSetOplogProbe", kinds.constant(1)), Field("optimes", _OPTIMES))


@dataclass(frozen=True, slots=True)
class ProbeReply(Declared):
    """Answers with the chain at each optime that was asked for, None where there is no such entry."""

    chains: Sequence[int | None]
    rollback_id: int
    term: int
    newest: OpTime
    oldest: OpTime


ProbeReply.message = Message(
    ProbeReply,
    kinds.OK,
    Field("chains", _CHAINS),
    Field("rbid", kinds.INT32, "rollback_id"),
    Field("term", kinds.INT64),
    Field("lastApplied", kinds.OPTIME, "newest"),
    Field("oldest", kinds.OPTIME),
)


@dataclass(frozen=True, slots=True)
class SnapshotRequest(Declared):
    """Asks for one step of a copy. step: "begin" (id empty: make one; else: is it ready?), "chunk" or "end".

    oplog_bytes: on a first "begin" of a witness, how much of the oplog it wants, and no documents; None: everything.
    compare: as of a witness, by a member that compares its own documents with the source's (features/compared_copies).
    """

    step: str
    snapshot_id: str = ""
    offset: int = 0
    length: int = 0
    oplog_bytes: int | None = None
    compare: bool = False

    @staticmethod
    def step_of(body: RawDocument) -> str:
        """Return the step, of a comparison too. What is no text is refused before anything else reads it again."""
        return kinds.typed(body, "step", str)


SnapshotRequest.message = Message(
    SnapshotRequest,
    Field("replSetSnapshot", kinds.constant(1)),
    Field("step", kinds.TEXT),
    Field("id", kinds.TEXT, "snapshot_id"),
    Field("offset", kinds.INT64),
    Field("length", kinds.INT32),
    Field("oplogBytes", kinds.INT64, lack=Lack.DEFAULT),
    Field("compare", kinds.BOOL, lack=Lack.LOOSE),
)


@dataclass(frozen=True, slots=True)
class SnapshotReply(Declared):
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


SnapshotReply.message = Message(
    SnapshotReply,
    kinds.OK,
    Field("id", kinds.TEXT, "snapshot_id"),
    Field("ready", kinds.BOOL),
    Field("size", kinds.INT64),
    Field("sha256", kinds.TEXT),
    Field("rbid", kinds.INT32, "rollback_id"),
    Field("data", kinds.BYTES),
    Field("compared", kinds.BOOL, lack=Lack.LOOSE),
)

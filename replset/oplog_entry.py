"""One oplog entry: a view of its bytes, and builders that make those bytes.

Entries are MongoDB's: {op, ns, ui, o, o2, ts, t, v: 2, wall} and then lsid, txnNumber, stmtId, prevOpTime where
present. Their bytes are made once, on the primary, and travel and are stored as they are. A committed transaction is
one entry, {op: "c", ns: "admin.$cmd", o: {applyOps: [its operations]}}. Each operation is an entry without ts, t, v and
wall. What an entry does to documents is `replication/applier.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import count
from struct import Struct

from replset.bson import Binary, DateTime, InvalidBSONError, RawDocument, Timestamp, encode, encode_key, walk
from replset.ids import INCREMENT_BITS, OpTime, pack_ts

INSERT = "i"
UPDATE = "u"
DELETE = "d"
COMMAND = "c"
NOOP = "n"
VERSION = 2
APPLY_OPS = "applyOps"

_INC_MASK = (1 << 31) - 1
_int32 = Struct("<i").pack
_read_int32 = Struct("<i").unpack_from
# ts (increment, seconds), t, v, wall: the same fields at the end of every entry.
_tail = Struct("<4sII3sq13sq").pack
_read_tail = Struct("<4sII3sq13sq").unpack_from
_TS = b"\x11ts\0"
_T = b"\x12t\0"
_V_WALL = b"\x10v\0\x02\0\0\0\x09wall\0"
_INSERT_HEAD = b"\x02op\0\x02\0\0\0i\0\x02ns\0"
_INSERT_NS = 4 + len(_INSERT_HEAD)
_UI = b"\x05ui\0\x10\0\0\0\x04"
_TAIL_SIZE = Struct("<4sII3sq13sq").size
_KEY_FIELD = {INSERT: "o", DELETE: "o", UPDATE: "o2"}


class OplogEntry:
    """A view of one entry's bytes. Only the top level is walked; InvalidBSONError when it is no oplog entry."""

    __slots__ = ("_document", "_within", "ns", "op", "optime", "raw")

    def __init__(self, raw: bytes, within: OplogEntry | None = None) -> None:
        """within: of an operation of a transaction, the transaction's entry, which gives the optime and the session."""
        self._document = document = RawDocument(raw)
        self._within = within
        self.raw = document.raw
        op, ns = document.get("op"), document.get("ns")
        if not (isinstance(op, str) and isinstance(ns, str)):
            raise InvalidBSONError("no oplog entry: it needs op, ns, ts and t")
        self.op: str = op
        self.ns: str = ns
        self.optime: OpTime = self._own_optime() if within is None else within.optime

    def _own_optime(self) -> OpTime:
        ts, term = self._document.get("ts"), self._document.get("t")
        if not (isinstance(ts, Timestamp) and isinstance(term, int)):
            raise InvalidBSONError("no oplog entry: it needs ts and t")
        return OpTime(int(term), pack_ts(ts.time, ts.inc))

    @property
    def is_in_transaction(self) -> bool:
        """Whether it is an operation of a transaction, and no entry of its own."""
        return self._within is not None

    @property
    def operations(self) -> list[OplogEntry]:
        """The operations of a committed transaction, in order; of any other entry the entry itself."""
        places = self.operation_places
        return [self] if places is None else [self.operation_at(*place) for place in places]

    @property
    def operation_places(self) -> list[tuple[int, int]] | None:
        """Where in `raw` the operations of a committed transaction begin and end; None for any other entry."""
        if self.op != COMMAND or self._within is not None or self.o.first_key != APPLY_OPS:
            return None
        o = self.o
        raw = o.get_raw(APPLY_OPS) if o.type_of(APPLY_OPS) == 4 else None
        if raw is None:
            raise InvalidBSONError("no oplog entry: applyOps is no array")
        first = self.raw.index(raw)
        return [(first + start, first + end) for _, kind, start, end in walk(raw) if kind == 3]

    def operation_at(self, start: int, end: int) -> OplogEntry:
        """The operation at a place of `operation_places`."""
        return OplogEntry(self.raw[start:end], self)

    @property
    def ui(self) -> bytes | None:
        """The collection's UUID, 16 bytes; None where the entry is about no collection."""
        value = self._document.get("ui")
        return bytes(value) if isinstance(value, Binary) and value.subtype == 4 else None

    @property
    def o(self) -> RawDocument:
        return self._sub_document("o")

    @property
    def o2(self) -> RawDocument | None:
        return self.get_document("o2")

    @property
    def wall_ms(self) -> int:
        value = (self._within or self)._document.get("wall")
        return value.ms if isinstance(value, DateTime) else 0

    @property
    def database(self) -> str:
        """The part of `ns` before the first dot; empty for no-ops."""
        return self.ns.partition(".")[0]

    def get(self, name: str) -> object:
        """Any other field, decoded: lsid, txnNumber, stmtId, prevOpTime. None when absent."""
        return (self._within or self)._document.get(name)

    def get_document(self, name: str) -> RawDocument | None:
        """Get a field that is a document; None when it is absent or no document."""
        raw = self._document.get_raw(name)
        return None if raw is None else RawDocument(raw)

    def key(self) -> bytes | None:
        """encode_key of the `_id` of the one document that the entry is about; None for commands and no-ops."""
        field = _KEY_FIELD.get(self.op)
        if field is None:
            return None
        about = self._sub_document(field)
        if "_id" not in about:
            raise InvalidBSONError(f"no oplog entry: {field} has no _id")
        return encode_key(about.get("_id"))

    def _sub_document(self, name: str) -> RawDocument:
        document = self.get_document(name)
        if document is None:
            raise InvalidBSONError(f"no oplog entry: it needs the document {name}")
        return document

    def __eq__(self, other: object) -> bool:
        return self.raw == other.raw if isinstance(other, OplogEntry) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"OplogEntry({self.optime}, {self.op}, {self.ns})"


class InsertReader:
    """Reads inserts into one collection without walking their fields.

    Entries that a primary builds for one collection begin with the same bytes and end with fields of fixed size.
    `OplogEntry` reads every other entry.
    """

    __slots__ = ("_at", "_head", "ns", "ui")

    def __init__(self, ns: str, ui: bytes) -> None:
        self.ns = ns
        self.ui = ui
        self._head = _head(INSERT, ns, ui)
        self._at = 4 + len(self._head)

    @classmethod
    def of(cls, raw: bytes) -> InsertReader | None:
        """The reader for this entry and those like it; None when it is no insert, or not built as a primary does."""
        if not raw.startswith(_INSERT_HEAD, 4) or len(raw) < _INSERT_NS + 4:
            return None
        ui = _INSERT_NS + 4 + _read_int32(raw, _INSERT_NS)[0] + len(_UI)
        try:
            reader = cls(raw[_INSERT_NS + 4 : ui - len(_UI) - 1].decode(), raw[ui : ui + 16])
        except UnicodeDecodeError:
            return None
        return reader if raw.startswith(reader._head, 4) else None

    def read(self, raw: bytes) -> tuple[bytes, int, int, int, bytes] | None:
        """(document, ts, term, wall_ms, extra) when `raw` is such an insert, else None. extra: see `extra_fields`."""
        at = self._at
        if not raw.startswith(self._head, 4) or len(raw) < at + 5 + _TAIL_SIZE:
            return None
        (size,) = _read_int32(raw, at)
        end = at + size
        if size < 5 or len(raw) <= end + _TAIL_SIZE or raw[-1] or raw[end - 1]:
            return None
        ts_name, increment, seconds, t_name, term, v_wall, wall_ms = _read_tail(raw, end)
        if ts_name != _TS or t_name != _T or v_wall != _V_WALL or _read_int32(raw)[0] != len(raw):
            return None
        return raw[at:end], (seconds << INCREMENT_BITS) | increment, term, wall_ms, raw[end + _TAIL_SIZE : -1]


def optime_of(raw: bytes) -> OpTime:
    """Return the optime of an entry. InvalidBSONError when it is none."""
    at = len(raw) - 1 - _TAIL_SIZE
    tail = read_tail(raw, at) if at > 0 else None
    if tail is not None:
        return OpTime(tail[1], tail[0])
    reader = InsertReader.of(raw)
    found = None if reader is None else reader.read(raw)
    return OplogEntry(raw).optime if found is None else OpTime(found[2], found[1])


def read_tail(raw: bytes, at: int) -> tuple[int, int, int] | None:
    """(ts, term, wall_ms) when the entry ends, from `at` on, with the fields that a primary puts last, and no more."""
    if len(raw) != at + _TAIL_SIZE + 1 or raw[-1]:
        return None
    ts_name, increment, seconds, t_name, term, v_wall, wall_ms = _read_tail(raw, at)
    if ts_name != _TS or t_name != _T or v_wall != _V_WALL:
        return None
    return (seconds << INCREMENT_BITS) | increment, term, wall_ms


def insert_entry(ns: str, ui: bytes, doc: bytes, optime: OpTime, wall_ms: int, extra: bytes = b"") -> bytes:
    """{op: "i", o: the document}. doc: its bytes, `_id` first. ui: 16 bytes. extra: see `extra_fields`."""
    return _finish(_head(INSERT, ns, ui), doc, optime, wall_ms, extra)


def insert_entries(
    ns: str, ui: bytes, documents: Iterable[bytes], first: OpTime, wall_ms: int, extras: Iterable[bytes]
) -> list[tuple[int, bytes]]:
    """Do as `insert_entry` with documents under one `ts` after the other from `first` on: (ts, entry) each."""
    head, (term, first_ts) = _head(INSERT, ns, ui), first
    size = 5 + _TAIL_SIZE + len(head)
    return [
        (
            ts,
            b"".join(
                (
                    _int32(size + len(doc) + len(extra)),
                    head,
                    doc,
                    _tail(_TS, ts & _INC_MASK, ts >> 31, _T, term, _V_WALL, wall_ms),
                    extra,
                    b"\0",
                )
            ),
        )
        for ts, doc, extra in zip(count(first_ts), documents, extras, strict=False)
    ]


def update_entry(
    ns: str, ui: bytes, id_element: bytes, o: bytes, optime: OpTime, wall_ms: int, extra: bytes = b""
) -> bytes:
    """{op: "u"}. id_element: bytes of the document {_id: ...}, which is o2. o: a diff ($v: 2) or the replacement."""
    return _finish(_head(UPDATE, ns, ui), b"".join((o, b"\x03o2\0", id_element)), optime, wall_ms, extra)


def delete_entry(ns: str, ui: bytes, id_element: bytes, optime: OpTime, wall_ms: int, extra: bytes = b"") -> bytes:
    """{op: "d"}. id_element: bytes of the document {_id: ...}, which is o."""
    return _finish(_head(DELETE, ns, ui), id_element, optime, wall_ms, extra)


def command_entry(
    database: str,
    ui: bytes | None,
    o: Mapping[str, object],
    optime: OpTime,
    wall_ms: int,
    *,
    o2: Mapping[str, object] | None = None,
    extra: bytes = b"",
) -> bytes:
    """{op: "c", ns: "database.$cmd"}: create, drop and what else is no single document."""
    body = encode(o) if o2 is None else encode(o) + b"\x03o2\0" + encode(o2)
    return _finish(_head(COMMAND, f"{database}.$cmd", ui), body, optime, wall_ms, extra)


def operation_of(entry: bytes) -> bytes:
    """Return the operation that a transaction's entry holds for this entry, which was built without `extra`."""
    end = len(entry) - 1 - _TAIL_SIZE
    return b"".join((_int32(end + 1), entry[4:end], b"\0"))


def transaction_entry(operations: Sequence[bytes], optime: OpTime, wall_ms: int, extra: bytes) -> bytes:
    """{op: "c", o: {applyOps: [...]}}: a committed transaction. extra: lsid, txnNumber and prevOpTime."""
    array = b"".join([b"\x03%d\0%b" % row for row in enumerate(operations)])
    head = b"\x04applyOps\0" + _int32(len(array) + 5)
    body = b"".join((_int32(len(head) + len(array) + 6), head, array, b"\0\0"))
    return _finish(_head(COMMAND, "admin.$cmd", None), body, optime, wall_ms, extra)


def noop_entry(o: Mapping[str, object], optime: OpTime, wall_ms: int, extra: bytes = b"") -> bytes:
    """{op: "n", ns: ""}: o is {msg: ...} and what goes with it."""
    return _finish(_head(NOOP, "", None), encode(o), optime, wall_ms, extra)


def extra_fields(fields: Mapping[str, object]) -> bytes:
    """lsid, txnNumber, stmtId, prevOpTime as the elements that the builders take as `extra`."""
    return encode(fields)[4:-1]


@lru_cache(maxsize=4096)
def _head(op: str, ns: str, ui: bytes | None) -> bytes:
    """The elements up to the name of `o`: the same for every entry of one collection and operation."""
    fields: dict[str, object] = {"op": op, "ns": ns}
    if ui is not None:
        fields["ui"] = Binary(ui, 4)
    return encode(fields)[4:-1] + b"\x03o\0"


def _finish(head: bytes, body: bytes, optime: OpTime, wall_ms: int, extra: bytes) -> bytes:
    term, ts = optime
    return b"".join(
        (
            _int32(5 + _TAIL_SIZE + len(head) + len(body) + len(extra)),
            head,
            body,
            _tail(_TS, ts & _INC_MASK, ts >> 31, _T, term, _V_WALL, wall_ms),
            extra,
            b"\0",
        )
    )

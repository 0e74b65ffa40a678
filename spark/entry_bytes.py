"""What the reports read from an entry's bytes. Most entries are read without a walk over all their fields."""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct

from replset.bson import InvalidBSONError, RawDocument, encode, encode_key, walk
from replset.bson.decoding import read_value
from replset.ejson import to_ejson
from replset.oplog_entry import UPDATE, OplogEntry, read_tail
from replset.query.diff import DIFF_VERSION, is_diff
from spark.mongod_entries import is_modifiers

DIFF_HEAD = encode({"$v": DIFF_VERSION})[4:-1] + b"\x03diff\0"
"""How the `o` of a difference begins, behind its length."""
_HEAD_NAMES = ["op", "ns", "ui", "o"]
_O = b"\x03o\0"
_O2 = b"\x03o2\0"
_ID_FIRST = b"_id\0"
_OBJECT_ID = 7
_OBJECT_ID_KEY = b"\x64"
_MOST_HEADS = 10_000
_read_int32 = Struct("<i").unpack_from


class EntryPrefixes:
    """Entries as primaries write them: all of one collection and operation begin with the same bytes, {op, ns, ui} and
    the name of `o`, and end with fields of fixed size. The beginnings are learned from the entries as they come.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], bytes] = {}

    def start_of_o(self, raw: bytes, op: str, ns: str) -> int:
        """Where the document `o` begins, 0 when the entry does not begin in that way with this op and ns."""
        head = self._known.get((op, ns))
        if head is None or not raw.startswith(head, 4):
            head = self._learn(raw, op, ns)
        return 4 + len(head) if head else 0

    def start_of_checked_o(
        self, raw: bytes, ts: int, term: int, op: str, ns: str, key: bytes | None, wall_ms: int
    ) -> int:
        """Where `o` begins when the entry certainly agrees with its columns; 0 when it must be checked further."""
        at = self.start_of_o(raw, op, ns)
        if not at or len(raw) < at + 5 or (size := _read_int32(raw, at)[0]) < 5:
            return 0
        about, tail = at, at + size
        if op == UPDATE:
            about = tail + 4
            if raw[tail:about] != _O2 or len(raw) < about + 5 or (size := _read_int32(raw, about)[0]) < 5:
                return 0
            tail = about + size
        if read_tail(raw, tail) != (ts, term, wall_ms) or raw[about + 5 : about + 9] != _ID_FIRST:
            return 0
        kind = raw[about + 4]
        if kind == _OBJECT_ID:
            found = _OBJECT_ID_KEY + raw[about + 9 : about + 21]
        else:
            try:
                found = encode_key(read_value(raw, kind, about + 9, tail - 1))
            except InvalidBSONError:
                return 0
        return at if found == key else 0

    def _learn(self, raw: bytes, op: str, ns: str) -> bytes:
        try:
            elements = walk(raw)
            entry = OplogEntry(raw)
        except InvalidBSONError:
            return b""
        names = [name for name, *_ in elements[:4]]
        if names != _HEAD_NAMES or elements[3][1] != 3 or entry.ui is None or (entry.op, entry.ns) != (op, ns):
            return b""
        if len(self._known) >= _MOST_HEADS:
            self._known.clear()
        head = self._known[op, ns] = raw[4 : elements[3][2]]
        return head


def collection_of(raw: bytes, start_of_o: int) -> bytes:
    """The collection's UUID in an entry of which Heads knows where `o` begins: the value before it."""
    end = start_of_o - len(_O)
    return raw[end - 16 : end]


def diff_size(entry: bytes, start_of_o: int = 0) -> int | None:
    """Bytes of the `$v: 2` difference or of the operators in an update's entry; None when it holds a replacement.

    start_of_o: where it is known. InvalidBSONError when it is no update's entry.
    """
    at = start_of_o + 4
    end = at + len(DIFF_HEAD)
    if start_of_o and entry[at:end] == DIFF_HEAD:
        return int(_read_int32(entry, end)[0])
    o = OplogEntry(entry).o
    if is_modifiers(o):
        return len(o.raw)
    if o.type_of("$v") is None or o.get("$v") != DIFF_VERSION:
        return None
    diff = o.get_raw("diff")
    return None if diff is None else len(diff)


def id_text(raw: bytes) -> str | None:
    """The `_id` of the entry's document in Extended JSON; None when there is none, or the entry cannot be read."""
    try:
        entry = OplogEntry(raw)
        about = entry.o2 if entry.op == UPDATE else entry.o if entry.op in ("i", "d") else None
        return to_ejson(about.get("_id")) if about is not None and "_id" in about else None
    except InvalidBSONError:
        return None


def action_of(entry: bytes) -> object:
    """What an entry does: an update's difference in operator form, else its `o`. ReplError: it is no entry."""
    document = RawDocument(entry).decode()
    o = document.get("o")
    if document.get("op") == "u" and isinstance(o, Mapping) and is_diff(o):
        return operator_form(o["diff"])
    return o


def operator_form(diff: Mapping[str, object], path: str = "") -> dict[str, object]:
    """A `$v: 2` difference as the update operators that say the same: {$set, $unset}; and, for arrays that became
    shorter (or longer, by nulls), {$length: {path: elements}}.

    For people: a name with a dot in it reads like a path here.
    """
    forms: dict[str, dict[str, object]] = {}
    _add_forms(diff, path, forms)
    return {name: forms[name] for name in ("$set", "$unset", "$length") if name in forms}


def _add_forms(diff: Mapping[str, object], path: str, forms: dict[str, dict[str, object]]) -> None:
    is_array = diff.get("a") is True
    for section, body in diff.items():
        if is_array and section == "l":
            forms.setdefault("$length", {})[path.rstrip(".")] = body
        elif is_array and section.startswith("u"):
            forms.setdefault("$set", {})[path + section[1:]] = body
        elif section.startswith("s") and isinstance(body, Mapping):
            _add_forms(body, f"{path}{section[1:]}.", forms)
        elif not is_array and section in ("u", "i", "d") and isinstance(body, Mapping):
            values = {path + name: True if section == "d" else value for name, value in body.items()}
            forms.setdefault("$unset" if section == "d" else "$set", {}).update(values)

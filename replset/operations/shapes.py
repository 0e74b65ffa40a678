"""The shapes of a connection's writes and finds: bytes alone, which know no member and no command's meaning.

Drivers send the same message again and again, with another document, statement or filter and another number of the
session. A shape says which bytes of it are constant, and where the rest stands (prepared.py).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from replset.bson import walk
from replset.core.quorum import WriteConcern
from replset.wire.framing import OP_MSG

BODY_AT: Final = 21
"""Where the body begins in an OP_MSG whose first section it is."""
ARRAYS: Final = {"insert": "documents", "update": "updates", "delete": "deletes"}
"""The writes that have shapes, and the field with their statements."""
VARYING: Final = {**ARRAYS, "find": "filter"}
"""The commands that have shapes, and the field with what is another one each time."""
MOST_SHAPES: Final = 4
"""That a connection remembers: a driver sends one or two on each."""
MOST_IN_VAIN: Final = 16
"""How many shapes are made for a connection of which none is used again; then no more are."""
_LSID_BYTES: Final = 30
"""The size of {id: UUID}."""
_LSID_HEAD: Final = _LSID_BYTES.to_bytes(4, "little") + b"\x05id\0\x10\0\0\0\x04"
_CONSTANT: Final = frozenset(
    {*VARYING, "ordered", "limit", "batchSize", "singleBatch", "writeConcern", "comment", "$db", "$readPreference"}
)
"""Fields that the usual way has checked, and whose meaning depends on nothing that changes."""


class Target:
    """The collection that a command names, as its namespace and as `top` counts its use. name: of the command."""

    __slots__ = ("database", "name", "ns", "use")

    def __init__(self, name: str, database: str, collection: str) -> None:
        self.name = name
        self.database = database
        self.ns = f"{database}.{collection}"
        self.use = (database, collection, name)


class Place(NamedTuple):
    """Bytes of a message. is_behind: they stand behind the document, and `at` counts from its end."""

    at: int
    size: int
    is_behind: bool


class Shape:
    """What writes of one document or statement, or finds by a filter, have in common.

    target, concern: of its commands; concern None: they name none, the set's default counts. on_secondary: of finds,
    whether a secondary answers them.
    """

    __slots__ = (
        "_back",
        "_behind",
        "_document_at",
        "_front",
        "_rest",
        "_sizes",
        "cluster_time",
        "concern",
        "lsid",
        "number",
        "on_secondary",
        "target",
    )

    def __init__(self, message: bytes, document: Place, sizes: list[int], slots: dict[str, Place]) -> None:
        """message: one such. sizes: where the lengths stand that grow with the document, its own included."""
        document_end = document.at + document.size
        self._behind = len(message) - document_end
        self._rest = len(message) - document.size
        self._document_at = document.at
        self._sizes = [(at, int.from_bytes(message[at : at + 4], "little") - document.size) for at in sizes]
        free = [(4, 12), (document.at, document_end), *((at, at + 4) for at in sizes)]
        free += [(place.at, place.at + place.size) for place in slots.values()]
        places = {
            name: Place(place.at - document_end, place.size, True) if place.is_behind else place
            for name, place in slots.items()
        }
        self.lsid, self.number, self.cluster_time = (places.get(name) for name in ("lsid", "txnNumber", "$clusterTime"))
        self.target = Target("", "", "")
        self.concern: WriteConcern | None = None
        self.on_secondary = False
        self._front: list[tuple[int, bytes]] = []
        self._back: list[tuple[int, bytes]] = []
        at = 0
        for start, end in (*sorted(free), (len(message), len(message))):
            if at < start and at < document.at:
                self._front.append((at, message[at:start]))
            elif at < start:
                self._back.append((at - document_end, message[at:start]))
            at = max(at, end)

    def is_same(self, other: Shape) -> bool:
        """Whether both take the same messages."""
        mine, theirs = (self._front, self._sizes, self._back), (other._front, other._sizes, other._back)
        return mine == theirs

    def document_in(self, message: bytes) -> bytes | None:
        """Return the document of a message of this shape; None: it is of another one. The document is not validated."""
        size = len(message) - self._rest
        for at, constant in self._front:
            if not message.startswith(constant, at):
                return None
        for at, more in self._sizes:
            if int.from_bytes(message[at : at + 4], "little") != size + more:
                return None
        end = self._document_at + size
        for at, constant in self._back:
            if not message.startswith(constant, end + at):
                return None
        return message[self._document_at : end]

    def read(self, place: Place, message: bytes) -> bytes:
        """Return the bytes of one of the places in a message of this shape."""
        at = place.at + len(message) - self._behind if place.is_behind else place.at
        return message[at : at + place.size]


class KnownShapes:
    """The shapes of a connection's last writes, or finds, the newest first. in_vain: made since one was used."""

    __slots__ = ("in_vain", "shapes")

    def __init__(self) -> None:
        self.shapes: list[Shape] = []
        self.in_vain = 0

    @property
    def is_full(self) -> bool:
        """Whether shapes are of no use here: what is sent differs each time."""
        return self.in_vain >= MOST_IN_VAIN

    def add(self, shape: Shape) -> None:
        others = [known for known in self.shapes if not shape.is_same(known)]
        self.shapes = [shape, *others[: MOST_SHAPES - 1]]
        self.in_vain += 1


def shape_of(body: bytes, varying: str, document: bytes | None) -> Shape | None:
    """Return the shape of a command that was carried out; None: it has fields that are not foreseen.

    body: of its message. varying: the field of its documents or statements, or of its filter. document: the only one of
    the message's sequence; None: it is in the body.
    """
    slots: dict[str, Place] = {}
    sizes = [0]
    place: Place | None = None
    names: set[str] = set()
    for name, kind, start, end in walk(body):
        if name in names:
            return None
        names.add(name)
        at, size = BODY_AT + start, end - start
        if name == "lsid" and kind == 0x03 and size == _LSID_BYTES:
            slots[name] = Place(at + len(_LSID_HEAD), 16, place is not None)
        elif name == "txnNumber" and kind == 0x12:
            slots[name] = Place(at, 8, place is not None)
        elif name == "$clusterTime" and kind == 0x03:
            slots[name] = Place(at + 4, size - 4, place is not None)  # its length is the body's structure
        elif name == varying and kind == 0x03 and document is None:
            place = Place(at, size, False)
            sizes += [BODY_AT, at]
        elif name == varying and kind == 0x04 and document is None:
            elements = walk(body[start:end])
            if len(elements) != 1 or elements[0][:2] != ("0", 0x03):
                return None
            _, _, first, last = elements[0]
            place = Place(at + first, last - first, False)
            sizes += [BODY_AT, at, at + first]
        elif name not in _CONSTANT:
            return None
    message = bytes(12) + OP_MSG.to_bytes(4, "little") + bytes(5) + body
    if document is not None:
        sequence_at, name_of_sequence = len(message) + 1, varying.encode() + b"\0"
        head = message + b"\x01" + (4 + len(name_of_sequence) + len(document)).to_bytes(4, "little") + name_of_sequence
        place = Place(len(head), len(document), False)
        sizes += [sequence_at, len(head)]
        message = head + document
    if place is None:
        return None
    return Shape(len(message).to_bytes(4, "little") + message[4:], place, sizes, slots)


def document_of(content: bytes) -> bytes:
    """Return the bytes of a document, of which a shape has the length and these are the rest."""
    return (len(content) + 4).to_bytes(4, "little") + content


def lsid_of(uuid: bytes) -> bytes:
    """Return the bytes of {id: UUID}."""
    return b"".join((_LSID_HEAD, uuid, b"\0"))

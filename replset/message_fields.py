"""Declares a message between members once: its fields in the order of their bytes, each with a kind and an attribute.

`Message` makes a writer and two readers of it, at import. `scan` takes what the writer makes, and gives up at anything
else. `read` looks at each field, wherever it stands, and says what is wrong with it. Both give the same.
"""

from __future__ import annotations

import dataclasses
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from operator import attrgetter, itemgetter
from struct import Struct
from typing import Any, ClassVar, Final, Generic, NamedTuple, Self, TypeAlias, TypeVar

from replset.bson import DateTime, Layout, ObjectId, RawDocument, array_of, documents_of, encode
from replset.bson import layout as slots
from replset.errors import RemoteProtocolError, ReplError
from replset.ids import OpTime
from replset.optime import OPTIME_LAYOUT, SECONDS_MASK, parse_optime

T = TypeVar("T")
Reader: TypeAlias = Callable[[RawDocument, str], Any]
"""Returns the value of the field with this name. RemoteProtocolError: it is missing, or of another type."""
ScanValue: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
"""Returns the value that begins there, and where it ends. ValueError, IndexError: other bytes are there."""
_NEVER: Final = object()
_int32: Final = Struct("<i").pack
_new: Final[Any] = tuple.__new__
_ADDED: Final = (b"\x02$db\0", b"\x03$clusterTime\0")
"""What is added to a message on its way begins so."""


# --- declaring --------------------------------------------------------------------------------------------------


class Lack(Enum):
    """When a field may be missing. The value is then the attribute's default, None if it has none."""

    NEVER = 0
    OLD = 1
    """Older members do not write it."""
    DEFAULT = 2
    """It is not written when it has its default."""
    LOOSE = 3
    """The same, and a value that cannot be read counts as missing."""


class Part(NamedTuple):
    """Of an attribute in a field of fixed size. to_slot, of_slot: None if the attribute is the number in its slot."""

    read: Reader
    to_slot: Callable[[Any], int] | None = None
    of_slot: Callable[[int], Any] | None = None


class Fixed(NamedTuple):
    """A kind of field whose values have one size. layout: its value in a `Layout`. parts: of each attribute in it."""

    layout: object
    parts: tuple[Part, ...]


def _not_scanned(_raw: bytes, _at: int) -> tuple[Any, int]:
    raise ValueError


class Sized(NamedTuple):
    """A kind of field whose values tell their size. scan: the value at a place, and where it ends."""

    type: bytes
    write: Callable[..., bytes]
    read: Reader
    scan: ScanValue = _not_scanned


class Field:
    """A field of a message. attributes: `name`, or `outer.name`; without any, that of the field in lower case."""

    def __init__(self, name: str, kind: Fixed | Sized, *attributes: str, lack: Lack = Lack.NEVER) -> None:
        self.name: Final = name
        self.kind: Final = kind
        self.lack: Final = lack
        self.is_left_out: Final = lack in (Lack.DEFAULT, Lack.LOOSE)
        self.is_in_run: Final = isinstance(kind, Fixed) and not self.is_left_out
        self.readers: Final = [part.read for part in kind.parts] if isinstance(kind, Fixed) else [kind.read]
        own = re.sub("(?<=[a-z])[A-Z]+", r"_\g<0>", name).lower()
        self.attributes: Final = attributes or ((own,) if self.readers else ())


class Message(Generic[T]):
    """Writes and reads one dataclass."""

    def __init__(self, made: type[T], *fields: Field, **inner: Any) -> None:
        """inner: the named tuple of an attribute whose own attributes are fields of the message."""
        self.make: Final[Callable[[Iterable[Any]], T]] = _maker(made)
        """Makes a message of the values of all its attributes, in their order."""
        self._is_reply = OK in fields
        defaults = {
            one.name: None if one.default is dataclasses.MISSING else one.default
            for one in dataclasses.fields(made)  # type: ignore[arg-type]
        }
        names: list[str] = []
        self._readers: list[tuple[Reader, str]] = []
        for field in fields:
            for name, read in zip(field.attributes, field.readers, strict=True):
                self._readers.append((_lacking(read, field.lack, defaults.get(name)), field.name))
                names.append(name)
        paths: list[str] = []
        self._written: list[tuple[Any, ...]] = []
        self._scanned: list[tuple[Any, ...]] = []
        left = [*fields]
        while left:
            written, scanned = _segment(left, paths, defaults)
            self._written.append(written)
            self._scanned.append(scanned)
        self._get = _getter(paths)
        self._inner = []
        for name, kind in inner.items():
            self._inner.append((kind, _picker([names.index(f"{name}.{one}") for one in kind._fields])))
            names.append(name)
        self._pick = None if names == [*defaults] else _picker([names.index(name) for name in defaults])

    def write(self, message: T) -> bytes:
        """Return the bytes of the message."""
        values = self._get(message)
        parts = []
        for part, template, pack, timestamps, to_slot, others in self._written:
            items = template[:]
            items[1::2] = values[part]
            for at in timestamps:
                items[at] += items[at] & SECONDS_MASK  # as `timestamp_bits`
            for at, convert in to_slot:
                items[at] = convert(items[at])
            parts.append(pack(*items))
            for place, head, default, write in others:
                value = values[place]
                if value is not default:  # None, False, () or "", of which there is one each
                    parts += head, write(value)
        body = b"".join(parts)
        return _int32(len(body) + 5) + body + b"\0"

    def document(self, message: T) -> RawDocument:
        return RawDocument.of_own(self.write(message))

    def parse(self, document: RawDocument) -> T:
        """Read a message. A reply that tells an error raises it."""
        return self.scan(document.raw) or self.read(document)

    def scan(self, raw: bytes) -> T | None:
        """Read a message as `write` makes it; None: it is written in another way."""
        values: list[Any] = []
        at, new, from_bytes = 4, _new, int.from_bytes
        try:
            for size, mask, constant, unpack, optimes, of_slot, pick, others in self._scanned:
                if from_bytes(raw[at : at + size], "little") & mask != constant:
                    return None
                found = [*unpack(raw, at)]
                for slot in optimes:
                    increment, term = found[slot], found[slot + 2]
                    if increment < 0 or term < 0:  # as in `optime_of_bits`
                        return None
                    found[slot] = new(OpTime, (term, found[slot + 1] << 31 | increment))
                for slot, convert in of_slot:
                    found[slot] = convert(found[slot])
                values += pick(found)
                at += size
                for head, head_size, value, scan in others:
                    if raw.startswith(head, at):
                        at += head_size
                        if scan is None:
                            value = True
                        else:
                            value, at = scan(raw, at)
                    elif value is _NEVER:
                        return None
                    values.append(value)
        except (ValueError, IndexError, struct.error):
            return None
        return self._build(values) if at + 1 == len(raw) or raw.startswith(_ADDED, at) else None

    def read(self, document: RawDocument) -> T:
        """Read a message field by field."""
        if self._is_reply:
            check_ok(document)
        return self._build([read(document, name) for read, name in self._readers])

    def _build(self, values: list[Any]) -> T:
        for kind, pick in self._inner:
            values.append(kind(*pick(values)))
        if self._pick is not None:
            values = [*self._pick(values)]
        return self.make(values)


def _maker(made: Any) -> Callable[[Iterable[Any]], Any]:
    """As `made(*values)`, but faster if it has no slots: the fields of a frozen class are set one by one."""
    names, new = [one.name for one in dataclasses.fields(made)], made.__new__

    def make(values: Iterable[Any]) -> Any:
        message = new(made)
        message.__dict__.update(zip(names, values, strict=False))
        return message

    return (lambda values: made(*values)) if "__slots__" in made.__dict__ else make


def _segment(fields: list[Field], paths: list[str], defaults: Mapping[str, object]) -> list[tuple[Any, ...]]:
    """Take fields from the list: some of fixed size, then others. Append the paths of their values.

    Return how `write` and how `scan` treat them: those of fixed size in one step, the others one by one.
    """
    layout: dict[str, object] = {}
    start, read_at = len(paths), 0
    kept, timestamps, optimes, to_slot, of_slot = [], [], [], [], []
    others: list[tuple[Any, ...]] = []
    others_scanned: list[tuple[Any, ...]] = []
    while fields and fields[0].is_in_run:
        field = fields.pop(0)
        assert isinstance(field.kind, Fixed)
        layout[field.name] = field.kind.layout
        for name, part in zip(field.attributes, field.kind.parts, strict=True):
            at = 2 * (len(paths) - start) + 1
            kept.append(read_at)
            if part.read is _read_optime:
                timestamps.append(at)
                optimes.append(read_at)
                paths += [f"{name}.ts", f"{name}.term"]
                read_at += 3
                continue
            paths.append(name)
            if part.to_slot is not None:
                to_slot.append((at, part.to_slot))
            if part.of_slot is not None:
                of_slot.append((read_at, part.of_slot))
            read_at += 1
    end = len(paths)
    while fields and not fields[0].is_in_run:
        field = fields.pop(0)
        kind = _alone(field.kind) if isinstance(field.kind, Fixed) else field.kind
        head, place = kind.type + field.name.encode() + b"\0", len(paths)
        paths.append(field.attributes[0])
        default = defaults.get(field.attributes[0]) if field.is_left_out else _NEVER
        others.append((place, head, default, kind.write))
        if field.kind is BOOL:
            others_scanned.append((head + b"\1", len(head) + 1, default, None))
        else:
            others_scanned.append((head, len(head), default, kind.scan))
    run = Layout(layout)
    unpack = Struct(run.values.format.replace("Q", "iI")).unpack_from  # an increment beyond its bits is below zero
    return [
        (slice(start, end), run.template, run.struct.pack, timestamps, to_slot, others),
        (run.size, run.mask, run.constant, unpack, optimes, of_slot, _picker(kept), others_scanned),
    ]


def _alone(kind: Fixed) -> Sized:
    assert isinstance(kind.layout, slots.Slot), "a field that may be left out has one slot"
    pack, part = Struct("<" + kind.layout.code), kind.parts[0]
    convert = part.of_slot or int

    def scan(raw: bytes, at: int) -> tuple[Any, int]:
        return convert(pack.unpack_from(raw, at)[0]), at + pack.size

    return Sized(kind.layout.kind, pack.pack, part.read, scan)


class Declared:
    """A dataclass with its message."""

    __slots__ = ()
    message: ClassVar[Message[Any]]

    def document(self) -> RawDocument:
        return self.message.document(self)

    @classmethod
    def parse(cls, document: RawDocument) -> Self:
        found: Self = cls.message.parse(document)
        return found


def _lacking(read: Reader, lack: Lack, default: object) -> Reader:
    def read_if_there(document: RawDocument, name: str) -> Any:
        return read(document, name) if name in document else default

    def read_if_it_can_be(document: RawDocument, name: str) -> Any:
        try:
            return read(document, name)
        except RemoteProtocolError:
            return default

    return read if lack is Lack.NEVER else read_if_it_can_be if lack is Lack.LOOSE else read_if_there


def _getter(paths: Sequence[str]) -> Callable[[object], Sequence[Any]]:
    if len(paths) > 1:
        return attrgetter(*paths)
    gets = [attrgetter(path) for path in paths]
    return lambda message: tuple([get(message) for get in gets])


def _picker(places: Sequence[int]) -> Callable[[list[Any]], Iterable[Any]]:
    return itemgetter(*places) if len(places) > 1 else lambda values: [values[place] for place in places]


# --- kinds ------------------------------------------------------------------------------------------------------


def check_ok(reply: RawDocument) -> None:
    """Raise the error that a reply with `ok: 0` holds."""
    if reply.get("ok") != 1:
        code = reply.get("code")
        raise ReplError(str(reply.get("errmsg", "no reason given")), code=code if isinstance(code, int) else 1)


def parse_chain(value: object) -> int:
    """A hash chain: signed 64 bits, as stored."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise RemoteProtocolError(f"not a hash chain: {value!r:.100}")
    return int(value)


def typed(document: RawDocument, name: str, kind: type[T]) -> T:
    value = document.get(name)
    if not isinstance(value, kind):
        raise RemoteProtocolError(f"field {name!r} is not {kind.__name__}: {value!r:.100}")
    return value


def number(document: RawDocument, name: str) -> int:
    value = document.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise RemoteProtocolError(f"field {name!r} is no whole number: {value!r:.100}")
    return int(value)


def _read_optime(document: RawDocument, name: str) -> OpTime:
    return parse_optime(document.get(name))


def scan_text(raw: bytes, at: int) -> tuple[str, int]:
    end = at + 3 + int.from_bytes(raw[at : at + 4], "little")
    if raw[end] or end < at + 4:
        raise ValueError
    return raw[at + 4 : end].decode(), end + 1


def write_text(text: str) -> bytes:
    data = text.encode()
    return (len(data) + 1).to_bytes(4, "little") + data + b"\0"


def nested(kind: int, wanted: str, write: Callable[[Any], bytes], of_bytes: Callable[[bytes], Any]) -> Sized:
    """A document or an array, made of its bytes."""

    def read(document: RawDocument, name: str) -> Any:
        raw = document.get_raw(name)
        if raw is None or document.type_of(name) != kind:
            raise RemoteProtocolError(f"field {name!r} is no {wanted}")
        return of_bytes(raw)

    def scan(raw: bytes, at: int) -> tuple[Any, int]:
        end = at + int.from_bytes(raw[at : at + 4], "little")
        return of_bytes(raw[at:end]), end

    return Sized(bytes([kind]), write, read, scan)


def bson_value(value: object) -> bytes:
    """Return the bytes of a value alone."""
    return encode({"": value})[6:-1]


def list_of(write: Callable[[Any], object], read: Callable[[object], Any]) -> Sized:
    """An array of values, each converted."""
    return Sized(
        b"\x04",
        lambda values: bson_value([write(value) for value in values]),
        lambda document, name: [read(value) for value in typed(document, name, list)],
    )


def number_of(of_slot: Callable[[int], Any], to_slot: Callable[[Any], int] | None = None) -> Fixed:
    """A number of 32 bits that stands for something. of_slot: ValueError says that this one does not."""

    def read(document: RawDocument, name: str) -> Any:
        try:
            return of_slot(number(document, name))
        except ValueError as error:
            raise RemoteProtocolError(f"field {name!r} is {error}") from None

    return Fixed(slots.INT32, (Part(read, to_slot, of_slot),))


def constant(value: object) -> Fixed:
    """A value that is always the same, and that no reader looks at."""
    return Fixed(value, ())


_OPTIME: Final = Part(_read_optime)
_CHAIN: Final = Part(lambda document, name: parse_chain(typed(document, name, dict).get("chain")))
BOOL: Final = Fixed(
    slots.BOOL, (Part(lambda document, name: typed(document, name, bool), None, (False, True).__getitem__),)
)
INT32: Final = Fixed(slots.INT32, (Part(number),))
INT64: Final = Fixed(slots.INT64, (Part(number),))
DATE: Final = Fixed(slots.DATE, (Part(lambda document, name: typed(document, name, DateTime).ms),))
OPTIME: Final = Fixed(OPTIME_LAYOUT, (_OPTIME,))
PLACE: Final = Fixed({**OPTIME_LAYOUT, "chain": slots.INT64}, (_OPTIME, _CHAIN))
"""An optime with the hash chain there."""
TEXT: Final = Sized(b"\x02", write_text, lambda document, name: typed(document, name, str), scan_text)
BYTES: Final = Sized(b"\x05", bson_value, lambda document, name: bytes(typed(document, name, bytes)))
OBJECT_ID: Final = Sized(
    b"\x07",
    lambda value: value.binary,
    lambda document, name: typed(document, name, ObjectId),
    lambda raw, at: (ObjectId(raw[at : at + 12]), at + 12),
)
DOCUMENT: Final = nested(3, "document", attrgetter("raw"), RawDocument)
DOCUMENTS: Final = nested(4, "array", array_of, documents_of)
"""An array of documents, as their bytes."""
OK: Final = Field("ok", constant(1.0))
"""Makes a message a reply."""

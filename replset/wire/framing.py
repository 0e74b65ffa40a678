"""Turns bytes into messages and back: OP_MSG, and OP_QUERY as old drivers send it first (map B1). No sockets.

`FrameReader` takes the bytes in parts of any size and returns whole messages. Bytes that a peer must not send are a
RemoteProtocolError; the caller then closes the connection.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import Final

from replset.bson import Document, InvalidBSONError, RawDocument, append_fields, encode
from replset.bson.limits import MAX_MESSAGE_SIZE, MAX_WRITE_BATCH
from replset.errors import BadValueError, ErrorCode, LocalProtocolError, RemoteProtocolError

# --- CRC-32C, the checksum of OP_MSG. Python's standard library has no fast one: 8 KiB take about a millisecond.

SLICE_BYTES: Final = 8 << 10
_POLYNOMIAL: Final = 0x82F63B78
_START: Final = 0xFFFFFFFF


def _row(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ _POLYNOMIAL if byte & 1 else byte >> 1
    return byte


_TABLE: Final = [_row(byte) for byte in range(256)]


def crc32c(data: bytes) -> int:
    """Return the checksum of `data`. For more than a few slices see `crc32c_in_slices`."""
    return _add(data, _START) ^ _START


def crc32c_in_slices(data: bytes, start: int, end: int) -> Iterator[int | None]:
    """Yield None after each slice of `data[start:end]` but the last, and then the checksum."""
    state = _START
    for at in range(start, end, SLICE_BYTES):
        state = _add(data[at : min(at + SLICE_BYTES, end)], state)
        if at + SLICE_BYTES < end:
            yield None
    yield state ^ _START


def _add(data: bytes, state: int) -> int:
    table = _TABLE
    for byte in data:
        state = table[(state ^ byte) & 0xFF] ^ state >> 8
    return state


OP_REPLY, OP_QUERY, OP_COMPRESSED, OP_MSG = KNOWN_OPCODES = 1, 2004, 2012, 2013
CHECKSUM_PRESENT, MORE_TO_COME, EXHAUST_ALLOWED = 1, 2, 1 << 16
_REQUIRED_BITS = 0xFFFF
_KNOWN_REQUIRED = CHECKSUM_PRESENT | MORE_TO_COME
_HEADER = struct.Struct("<iiii")
_MSG_HEAD = struct.Struct("<iiiiIB")
_REPLY_HEAD = struct.Struct("<iiiiIqii")
_INT32 = struct.Struct("<i")
_UINT32 = struct.Struct("<I")
HEADER_SIZE = 16
_FLAGS_END = HEADER_SIZE + 4
LARGE_BYTES = 64 << 10
"""A message above this size has to be admitted."""
MAX_SEQUENCES: Final = 8
"""Document sequences in one message; no command takes more than two."""
SLICE: Final = 2_000
"""Documents of a large message that are separated before other tasks of the event loop run."""
_MOST_ID = (1 << 31) - 1
_NOTHING = RawDocument(encode({}))


@dataclass(slots=True)
class WireMessage:
    """Holds one message. sequences: OP_MSG's document sequences by name. legacy_query: it was an OP_QUERY on db.$cmd.

    uncut: where the documents of a large message's sequences are; `cut` puts them into `sequences`.
    size: its bytes. admitted: the same if it had to be admitted, else 0. refused: it was not admitted, and only its
    header was read.
    has_checksum: its reply has one too. unverified: the buffer with such a message, where the message begins, and where
    its checksum stands; None: verified.
    """

    request_id: int
    response_to: int
    body: RawDocument
    sequences: dict[str, list[RawDocument]] = field(default_factory=dict)
    more_to_come: bool = False
    exhaust_allowed: bool = False
    legacy_query: bool = False
    database: str = ""  # of a legacy query; OP_MSG has $db in its body
    size: int = 0
    admitted: int = 0
    refused: bool = False
    uncut: list[tuple[list[RawDocument], bytes, int, int]] = field(default_factory=list)
    has_checksum: bool = False
    unverified: tuple[bytes, int, int] | None = field(default=None, compare=False)

    def verify(self) -> Iterator[None]:
        """Compare the checksum in slices, and yield after each. RemoteProtocolError: it is not the message's."""
        if self.unverified is None:
            return
        (buffer, start, end), self.unverified = self.unverified, None
        (given,) = _UINT32.unpack_from(buffer, end)
        for found in crc32c_in_slices(buffer, start, end):
            if found is not None and found != given:
                raise RemoteProtocolError("OP_MSG checksum does not match contents")
            yield

    def cut(self) -> Iterator[None]:
        """Separate the documents of a large message, and yield after each slice, for there may be millions of them.

        Raises RemoteProtocolError, and BadValueError if there are more documents than any command takes.
        """
        while self.uncut:
            documents, buffer, at, stop = self.uncut.pop()
            while at < stop:
                if sum(map(len, self.sequences.values())) > MAX_WRITE_BATCH:
                    raise BadValueError(
                        f"Write batch sizes must be between 1 and {MAX_WRITE_BATCH}. Got more operations.",
                        code=ErrorCode.INVALID_LENGTH,
                    )
                at = _cut(documents, buffer, at, stop, SLICE)
                yield


class FrameReader:
    """Cuts a byte stream into messages. admit: called for each large one when its header is complete.

    A large message that is not admitted is reported at once as `refused`, and its bytes are dropped as they arrive.
    """

    def __init__(self, admit: Callable[[int], bool] = lambda _size: True) -> None:
        self._admit = admit
        self._admitted = 0  # of the message that is not complete yet
        self._refused = 0  # bytes still to come of a message that was not admitted
        self._parts: list[bytes] = []
        self._at = 0  # where the first message begins in the first part
        self._size = 0
        self._needed = 0  # bytes until which parts are only collected: a large message is put together once
        self.has_more = False
        """Whether bytes are left that have not been looked at, since `most` messages were returned."""

    @property
    def pending(self) -> int:
        """Bytes received of messages that were not returned yet."""
        return self._size

    @property
    def is_amid_large(self) -> bool:
        """Whether the bytes that come next belong to a large message."""
        return bool(self._admitted or self._refused)

    def feed(self, data: bytes, most: int = MAX_WRITE_BATCH) -> list[WireMessage]:
        """Add the next bytes and return up to `most` messages that are complete now, in order. RemoteProtocolError.

        What is left is kept as it came, and is returned by the next calls, which may add no bytes.
        """
        if self._refused:
            dropped = min(self._refused, len(data))
            self._refused -= dropped
            data = data[dropped:]
        buffer, at = data, 0
        if self._size:
            if data:
                self._parts.append(data)
                self._size += len(data)
            if self._size < self._needed:
                return []
            buffer, at = self._joined()
        messages: list[WireMessage] = []
        end = len(buffer)
        needed = HEADER_SIZE
        self.has_more = False
        while end - at >= HEADER_SIZE:
            if len(messages) >= most:
                self.has_more, needed = True, 0
                break
            length, request_id, response_to, opcode = _HEADER.unpack_from(buffer, at)
            if length < HEADER_SIZE or length > MAX_MESSAGE_SIZE:
                raise RemoteProtocolError(
                    f"a message of {length} bytes (from {HEADER_SIZE} to {MAX_MESSAGE_SIZE} are taken)"
                )
            if length > LARGE_BYTES and not self._admitted:
                if opcode not in KNOWN_OPCODES:  # as with a client that speaks TLS: nothing of that length follows
                    raise RemoteProtocolError(f"unknown opcode {opcode}")
                if end - at < _FLAGS_END:
                    needed = _FLAGS_END
                    break
                if not self._admit(length):
                    messages.append(_refused(buffer, at, request_id, opcode))
                    self._refused = max(0, at + length - end)
                    at = min(at + length, end)
                    continue
                self._admitted = length
            if end - at < length:
                needed = length
                break
            message = _parse(buffer, at + HEADER_SIZE, at + length, request_id, response_to, opcode)
            message.size = length
            if self._admitted:
                message.admitted, self._admitted = self._admitted, 0
            messages.append(message)
            at += length
        self._size, self._needed = end - at, needed
        if self.has_more:
            self._parts, self._at = [buffer], at
        else:
            self._parts, self._at = [buffer[at:]] if at < end else [], 0
        return messages

    def _joined(self) -> tuple[bytes, int]:
        """Return all bytes that are left in one piece, and where in it they begin."""
        if len(self._parts) == 1:
            return self._parts[0], self._at
        self._parts[0] = self._parts[0][self._at :]
        return b"".join(self._parts), 0


def _refused(buffer: bytes, at: int, request_id: int, opcode: int) -> WireMessage:
    if opcode != OP_MSG:
        raise RemoteProtocolError(f"a large message (opcode {opcode}) while the member is overloaded")
    (flags,) = _UINT32.unpack_from(buffer, at + HEADER_SIZE)
    return WireMessage(request_id, 0, _NOTHING, more_to_come=bool(flags & MORE_TO_COME), refused=True)


def _parse(buffer: bytes, start: int, end: int, request_id: int, response_to: int, opcode: int) -> WireMessage:
    try:
        if opcode == OP_MSG:
            return _parse_msg(buffer, start, end, request_id, response_to)
        if opcode == OP_QUERY:
            return _parse_query(buffer, start, end, request_id, response_to)
        if opcode == OP_REPLY:
            return WireMessage(request_id, response_to, RawDocument(buffer[start + 20 : end]))
    except (InvalidBSONError, struct.error, UnicodeDecodeError, ValueError) as error:
        raise RemoteProtocolError(f"malformed message (opcode {opcode}): {error}") from error
    if opcode == OP_COMPRESSED:
        raise RemoteProtocolError("OP_COMPRESSED, though no compressor was negotiated")
    raise RemoteProtocolError(f"unknown opcode {opcode}")


def _parse_msg(buffer: bytes, start: int, end: int, request_id: int, response_to: int) -> WireMessage:
    (flags,) = _UINT32.unpack_from(buffer, start)
    if flags & _REQUIRED_BITS & ~_KNOWN_REQUIRED:
        raise RemoteProtocolError(f"unknown required flag bits {flags & _REQUIRED_BITS:#x}")
    unverified = None
    if flags & CHECKSUM_PRESENT:
        end -= 4
        unverified = (buffer, start - HEADER_SIZE, end)
    at, is_large = start + 4, end - start > LARGE_BYTES
    body: RawDocument | None = None
    sequences: dict[str, list[RawDocument]] = {}
    uncut: list[tuple[list[RawDocument], bytes, int, int]] = []
    while at < end:
        kind = buffer[at]
        (size,) = _INT32.unpack_from(buffer, at + 1)
        stop = at + 1 + size
        if size < 5 or stop > end:
            raise RemoteProtocolError(f"a section of {size} bytes does not fit its message")
        if kind == 0:
            if body is not None:
                raise RemoteProtocolError("two bodies in one message")
            body = RawDocument(buffer[at + 1 : stop])
        elif kind == 1:
            name_end = buffer.index(b"\0", at + 5, stop)
            name = buffer[at + 5 : name_end].decode()
            if name in sequences:
                raise RemoteProtocolError(f"two document sequences named {name!r}")
            documents: list[RawDocument] = []
            sequences[name] = documents
            if len(sequences) > MAX_SEQUENCES:
                raise RemoteProtocolError(f"more than {MAX_SEQUENCES} document sequences in one message")
            if is_large:
                uncut.append((documents, buffer, name_end + 1, stop))
            else:
                _cut(documents, buffer, name_end + 1, stop)
        else:
            raise RemoteProtocolError(f"unknown section kind {kind}")
        at = stop
    if body is None:
        raise RemoteProtocolError("a message without a body")
    more_to_come, exhaust_allowed = bool(flags & MORE_TO_COME), bool(flags & EXHAUST_ALLOWED)
    message = WireMessage(request_id, response_to, body, sequences, more_to_come, exhaust_allowed, uncut=uncut)
    message.has_checksum, message.unverified = unverified is not None, unverified
    return message


def _cut(documents: list[RawDocument], buffer: bytes, at: int, stop: int, most: int = LARGE_BYTES) -> int:
    """Add up to `most` of the documents from `at` to `stop`. Return where the next one begins."""
    try:
        while at < stop and most > 0:
            (size,) = _INT32.unpack_from(buffer, at)
            if size < 5 or at + size > stop:
                raise RemoteProtocolError(f"a document of {size} bytes does not fit its sequence")
            documents.append(RawDocument(buffer[at : at + size]))
            at += size
            most -= 1
    except (InvalidBSONError, struct.error) as error:
        raise RemoteProtocolError(f"malformed document in a sequence: {error}") from error
    return at


def _parse_query(buffer: bytes, start: int, end: int, request_id: int, response_to: int) -> WireMessage:
    name_end = buffer.index(b"\0", start + 4, end)
    collection = buffer[start + 4 : name_end].decode()
    at = name_end + 9
    (size,) = _INT32.unpack_from(buffer, at)
    if size < 5 or at + size > end:
        raise RemoteProtocolError(f"a query of {size} bytes does not fit its message")
    body = RawDocument(buffer[at : at + size])
    return WireMessage(request_id, response_to, body, legacy_query=True, database=collection.removesuffix(".$cmd"))


# --- writing ----------------------------------------------------------------------------------------------------


def message_ids(first: int = 1) -> Iterator[int]:
    """Count messages as their header can: after 2^31 - 1 comes 0. A connection of members lasts longer than that."""
    return map(_MOST_ID.__and__, count(first))


def encode_msg(request_id: int, response_to: int, document: bytes, *, flags: int = 0) -> bytes:
    """Return an OP_MSG that has only a body; `document` is BSON."""
    length = HEADER_SIZE + 5 + len(document)
    if length > MAX_MESSAGE_SIZE:
        raise LocalProtocolError(f"a message of {length} bytes is over {MAX_MESSAGE_SIZE}")
    return _MSG_HEAD.pack(length, request_id, response_to, OP_MSG, flags, 0) + document


def encode_request(
    request_id: int,
    command: Document,
    database: str,
    sequence: tuple[str, Sequence[bytes]] | None = None,
) -> bytes:
    """Return a command as OP_MSG. sequence: a field of the command and its documents, sent as a separate section."""
    if isinstance(command, RawDocument):
        body = append_fields(command, _database_field(database))
    else:
        body = encode({**command, "$db": database})
    if sequence is None:
        return encode_msg(request_id, 0, body)
    name, documents = sequence
    rows = b"".join((name.encode() + b"\0", *documents))
    section = b"\x01" + (len(rows) + 4).to_bytes(4, "little") + rows
    return encode_msg(request_id, 0, body + section)


@lru_cache(maxsize=64)
def _database_field(database: str) -> bytes:
    return encode({"$db": database})[4:-1]


def encode_reply(request_id: int, to: WireMessage, document: bytes, *, more_to_come: bool = False) -> bytes:
    """Return the reply in the form of its request: OP_MSG, or OP_REPLY to an OP_QUERY.

    The reply to a message with a checksum has one too, unless it is so long that it takes the event loop too much time.
    """
    if to.legacy_query:
        return encode_legacy_reply(request_id, to.request_id, [document])
    flags = MORE_TO_COME if more_to_come else 0
    if not to.has_checksum or len(document) > SLICE_BYTES:
        return encode_msg(request_id, to.request_id, document, flags=flags)
    head = _MSG_HEAD.pack(
        HEADER_SIZE + 5 + len(document) + 4, request_id, to.request_id, OP_MSG, flags | CHECKSUM_PRESENT, 0
    )
    return head + document + _UINT32.pack(crc32c(head + document))


def encode_legacy_reply(request_id: int, response_to: int, documents: Iterable[bytes]) -> bytes:
    """Return an OP_REPLY with awaitCapable set."""
    rows = list(documents)
    body = b"".join(rows)
    length = _REPLY_HEAD.size + len(body)
    return _REPLY_HEAD.pack(length, request_id, response_to, OP_REPLY, 8, 0, 0, len(rows)) + body

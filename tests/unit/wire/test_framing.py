"""Bytes to messages: every portion, every kind of message that is taken, every one that is not."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replset.bson import RawDocument, decode, encode
from replset.bson.limits import MAX_MESSAGE_SIZE, MAX_WRITE_BATCH
from replset.errors import BadValueError, LocalProtocolError, RemoteProtocolError
from replset.wire.framing import (
    CHECKSUM_PRESENT,
    EXHAUST_ALLOWED,
    HEADER_SIZE,
    MAX_SEQUENCES,
    MORE_TO_COME,
    OP_COMPRESSED,
    OP_MSG,
    OP_QUERY,
    OP_REPLY,
    SLICE,
    SLICE_BYTES,
    FrameReader,
    WireMessage,
    crc32c,
    encode_legacy_reply,
    encode_msg,
    encode_reply,
    encode_request,
    message_ids,
)
from tests.examples import examples

PING = encode({"ping": 1, "$db": "admin"})


def frame(opcode: int, payload: bytes, request_id: int = 7, length: int | None = None) -> bytes:
    size = HEADER_SIZE + len(payload) if length is None else length
    return struct.pack("<iiii", size, request_id, 0, opcode) + payload


def body_section(document: bytes = PING) -> bytes:
    return b"\0" + document


def sequence_section(name: bytes, *documents: bytes, size: int | None = None) -> bytes:
    inside = name + b"\0" + b"".join(documents)
    return b"\1" + struct.pack("<i", 4 + len(inside) if size is None else size) + inside


def msg(*sections: bytes, flags: int = 0, tail: bytes = b"") -> bytes:
    return frame(OP_MSG, struct.pack("<I", flags) + b"".join(sections) + tail)


def query(document: bytes, name: bytes = b"admin.$cmd") -> bytes:
    return frame(OP_QUERY, struct.pack("<i", 4) + name + b"\0" + struct.pack("<ii", 0, -1) + document)


def only(data: bytes) -> WireMessage:
    (message,) = FrameReader().feed(data)
    return message


ORDER = encode({"_id": 1, "item": "pen"})
OTHER = encode({"_id": 2})
INSERT = encode({"insert": "orders", "$db": "shop"})
TAKEN = {
    "a-request": encode_request(1, {"ping": 1}, "admin"),
    "a-sequence": msg(body_section(INSERT), sequence_section(b"documents", ORDER, OTHER)),
    "a-sequence-before-the-body": msg(sequence_section(b"documents", ORDER), body_section(INSERT)),
    "an-old-hello": query(encode({"ismaster": 1})),
    "an-old-reply": encode_legacy_reply(3, 1, [ORDER]),
    "a-checksum": msg(body_section(), flags=CHECKSUM_PRESENT, tail=b"\xaa\xbb\xcc\xdd"),
}


@pytest.mark.parametrize("data", TAKEN.values(), ids=TAKEN)
def test_a_message_is_whole_at_its_last_byte_wherever_it_is_cut(data: bytes) -> None:
    whole = only(data)
    for cut in range(1, len(data)):
        reader = FrameReader()
        assert reader.feed(data[:cut]) == []
        assert reader.pending == cut
        assert reader.feed(data[cut:]) == [whole]
        assert reader.pending == 0


def test_bytes_one_by_one_give_every_message_in_order() -> None:
    reader = FrameReader()
    found = [message for byte in b"".join(TAKEN.values()) for message in reader.feed(bytes([byte]))]
    assert found == [only(data) for data in TAKEN.values()]


@examples(60)
@given(st.lists(st.integers(1, 90), max_size=40))
def test_any_portions_give_the_same_messages(sizes: list[int]) -> None:
    data, reader, found, at = b"".join(TAKEN.values()), FrameReader(), [], 0
    for size in sizes:
        found += reader.feed(data[at : at + size])
        at += size
    found += reader.feed(data[at:])
    assert found == FrameReader().feed(data)
    assert len(found) == len(TAKEN)


def test_a_body_and_its_sequences_are_told_apart() -> None:
    message = only(TAKEN["a-sequence"])
    assert message.body == RawDocument(INSERT)
    assert message.sequences == {"documents": [RawDocument(ORDER), RawDocument(OTHER)]}
    assert not message.legacy_query


@pytest.mark.parametrize(
    ("flags", "more_to_come", "exhaust_allowed"),
    [(0, False, False), (MORE_TO_COME, True, False), (EXHAUST_ALLOWED, False, True), (1 << 31, False, False)],
    ids=["none", "more-to-come", "exhaust-allowed", "an-unknown-optional-bit"],
)
def test_flags(flags: int, more_to_come: bool, exhaust_allowed: bool) -> None:
    message = only(msg(body_section(), flags=flags))
    assert (message.more_to_come, message.exhaust_allowed) == (more_to_come, exhaust_allowed)


def test_an_old_query_names_its_database() -> None:
    message = only(TAKEN["an-old-hello"])
    assert message.legacy_query
    assert message.database == "admin"
    assert message.body.first_key == "ismaster"


def checked(document: bytes) -> bytes:
    """A message with its checksum."""
    whole = msg(body_section(document), flags=CHECKSUM_PRESENT, tail=bytes(4))[:-4]
    return whole + struct.pack("<I", crc32c(whole))


@pytest.mark.parametrize(
    ("data", "checksum"),
    [(b"", 0), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)],
)
def test_known_checksums(data: bytes, checksum: int) -> None:
    """The last two are of RFC 3720, appendix B.4."""
    assert crc32c(data) == checksum


@pytest.mark.parametrize("size", [0, SLICE_BYTES - 100, SLICE_BYTES, 3 * SLICE_BYTES + 7])
def test_a_checksum_is_verified_in_slices(size: int) -> None:
    data = checked(encode({"ping": 1, "padding": "x" * size}))
    message = FrameReader().feed(b"".join([TAKEN["a-request"], data]))[1]
    assert message.has_checksum
    slices = len(list(message.verify()))
    assert slices == -(-(len(data) - 4) // SLICE_BYTES)
    assert list(message.verify()) == [], "once is enough"


def test_a_wrong_checksum() -> None:
    message = only(TAKEN["a-checksum"])
    assert message.body.raw == PING
    with pytest.raises(RemoteProtocolError, match="checksum does not match"):
        list(message.verify())


@pytest.mark.parametrize("more_to_come", [False, True])
def test_a_reply_has_a_checksum_where_the_request_had_one(more_to_come: bool) -> None:
    request, reply = only(checked(PING)), encode({"ok": 1.0})
    answer = only(encode_reply(5, request, reply, more_to_come=more_to_come))
    assert (answer.has_checksum, answer.more_to_come, answer.body.raw) == (True, more_to_come, reply)
    list(answer.verify())
    long = only(encode_reply(5, request, encode({"ok": 1.0, "padding": "x" * SLICE_BYTES})))
    assert not long.has_checksum
    assert not only(encode_reply(5, only(TAKEN["a-request"]), reply)).has_checksum


REFUSED = {
    "shorter-than-a-header": (frame(OP_MSG, b"", length=15), "15 bytes"),
    "a-negative-length": (frame(OP_MSG, b"", length=-1), "-1 bytes"),
    "longer-than-the-limit": (frame(OP_MSG, b"", length=MAX_MESSAGE_SIZE + 1), str(MAX_MESSAGE_SIZE + 1)),
    "an-unknown-opcode": (frame(2001, PING), "unknown opcode 2001"),
    "compressed": (frame(OP_COMPRESSED, PING), "no compressor"),
    "no-flags": (frame(OP_MSG, b"\0\0"), "malformed"),
    "an-unknown-required-bit": (msg(body_section(), flags=4), "0x4"),
    "no-body": (msg(sequence_section(b"documents", ORDER)), "without a body"),
    "empty": (msg(), "without a body"),
    "two-bodies": (msg(body_section(), body_section()), "two bodies"),
    "an-unknown-section": (msg(b"\2" + PING), "section kind 2"),
    "a-section-beyond-its-message": (msg(b"\0" + struct.pack("<i", 999) + b"\0"), "999 bytes"),
    "a-section-of-no-size": (msg(b"\0" + struct.pack("<i", 0) + b"\0"), "0 bytes"),
    "a-section-cut-off": (msg(body_section(), b"\1\4"), "malformed"),
    "a-body-without-end": (msg(b"\0" + PING[:-1] + b"\1"), "malformed"),
    "the-same-sequence-twice": (
        msg(body_section(), sequence_section(b"documents", ORDER), sequence_section(b"documents", ORDER)),
        "two document sequences",
    ),
    "more-sequences-than-any-command-takes": (
        msg(body_section(), *(sequence_section(b"%d" % n, ORDER) for n in range(MAX_SEQUENCES + 1))),
        "more than 8 document sequences",
    ),
    "a-sequence-name-without-end": (msg(body_section(), b"\1" + struct.pack("<i", 7) + b"abc"), "malformed"),
    "a-sequence-name-that-is-no-text": (msg(body_section(), sequence_section(b"\xff\xfe", ORDER)), "malformed"),
    "a-document-beyond-its-sequence": (
        msg(body_section(), sequence_section(b"documents", struct.pack("<i", 99) + b"\0")),
        "does not fit its sequence",
    ),
    "a-document-of-no-size": (
        msg(body_section(), sequence_section(b"documents", struct.pack("<i", 0))),
        "does not fit its sequence",
    ),
    "an-old-query-without-a-name": (frame(OP_QUERY, bytes(4) + b"admin"), "malformed"),
    "an-old-query-too-short": (frame(OP_QUERY, bytes(4) + b"admin.$cmd\0" + bytes(8)), "malformed"),
    "an-old-query-beyond-its-message": (query(struct.pack("<i", 99) + b"\0"), "does not fit"),
    "an-old-reply-cut-off": (frame(OP_REPLY, bytes(8)), "malformed"),
}


@pytest.mark.parametrize(("data", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_a_peer_may_not_send(data: bytes, reason: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        FrameReader().feed(data)
    assert reason in caught.value.message
    assert caught.value.code == 9


@examples(300)
@given(st.binary(max_size=120))
def test_any_bytes_are_messages_or_a_protocol_error(data: bytes) -> None:
    reader = FrameReader()
    try:
        reader.feed(data)
    except RemoteProtocolError:
        return
    assert reader.pending <= len(data)


@examples(300)
@given(st.sampled_from(sorted(TAKEN)), st.data())
def test_a_message_with_wrong_bytes_is_a_message_or_a_protocol_error(name: str, data: st.DataObject) -> None:
    damaged = bytearray(TAKEN[name])
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(HEADER_SIZE, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        messages = FrameReader().feed(bytes(damaged))
    except RemoteProtocolError:
        return
    assert len(messages) == 1


def test_a_reply_comes_in_the_form_of_its_request() -> None:
    modern = only(encode_request(41, {"ping": 1}, "admin"))
    answer = only(encode_reply(9, modern, ORDER))
    assert (answer.request_id, answer.response_to, answer.body.raw) == (9, 41, ORDER)
    assert struct.unpack_from("<i", encode_reply(9, modern, ORDER), 12) == (OP_MSG,)
    old = only(query(encode({"ismaster": 1})))
    data = encode_reply(9, old, ORDER)
    assert struct.unpack_from("<iiii", data) == (len(data), 9, 7, OP_REPLY)
    assert only(data).body.raw == ORDER


def test_a_streamed_reply_says_that_more_comes() -> None:
    asked = only(encode_request(1, {"hello": 1}, "admin"))
    assert only(encode_reply(2, asked, PING, more_to_come=True)).more_to_come


def test_a_request_carries_its_database() -> None:
    assert decode(only(encode_request(1, {"ping": 1}, "shop")).body.raw) == {"ping": 1, "$db": "shop"}


def test_a_message_over_the_limit_is_not_written() -> None:
    with pytest.raises(LocalProtocolError):
        encode_msg(1, 0, bytes(MAX_MESSAGE_SIZE))


def test_a_request_with_a_document_sequence() -> None:
    rows = [encode({"_id": 1}), encode({"_id": 2})]
    message = only(encode_request(1, {"insert": "orders"}, "shop", ("documents", rows)))
    assert decode(message.body.raw) == {"insert": "orders", "$db": "shop"}
    assert {name: [row.raw for row in found] for name, found in message.sequences.items()} == {"documents": rows}


# --- many documents ---------------------------------------------------------------------------------------------------


def many(count: int, *, last: bytes = b"", document: bytes = b"\5\0\0\0\0") -> bytes:
    return msg(body_section(INSERT), sequence_section(b"documents", document * count + last))


def test_the_documents_of_a_large_message_are_cut_in_slices() -> None:
    message = only(many(2 * SLICE + 20_000))
    assert len(message.sequences["documents"]) == 0
    most, before = 0, 0
    for _ in message.cut():
        most = max(most, len(message.sequences["documents"]) - before)
        before = len(message.sequences["documents"])
    assert message.sequences["documents"] == [RawDocument(encode({}))] * (2 * SLICE + 20_000)
    assert most == SLICE
    assert list(message.cut()) == []


def test_millions_of_documents_are_not_all_cut() -> None:
    message = only(many(1_000_000))
    with pytest.raises(BadValueError, match="Write batch sizes"):
        list(message.cut())
    assert len(message.sequences["documents"]) <= MAX_WRITE_BATCH + SLICE


@pytest.mark.parametrize("last", [struct.pack("<i", 99) + b"\0", bytes(4), b"\5\0", b"\5\0\0\0\1"])
def test_a_wrong_document_at_the_end_of_many_is_a_protocol_error(last: bytes) -> None:
    message = only(many(20_000, last=last))
    with pytest.raises(RemoteProtocolError):
        list(message.cut())


# --- admission ----------------------------------------------------------------------------------------------------

LARGE = msg(body_section(encode({"insert": "c", "pad": "x" * 100_000, "$db": "d"})))
LARGE_UNANSWERED = msg(body_section(encode({"insert": "c", "pad": "x" * 100_000, "$db": "d"})), flags=MORE_TO_COME)
SMALL = msg(body_section())


def admit_only(*answers: bool) -> tuple[Callable[[int], bool], list[int]]:
    asked: list[int] = []

    def admit(size: int) -> bool:
        asked.append(size)
        return answers[len(asked) - 1]

    return admit, asked


@given(portion=st.integers(1, 150_000))
@examples(60)
def test_a_large_message_that_is_refused_is_told_of_and_thrown_away(portion: int) -> None:
    admit, asked = admit_only(False, True, False)
    reader = FrameReader(admit)
    data = SMALL + LARGE + SMALL + LARGE + LARGE_UNANSWERED + SMALL
    most_pending = 0
    messages = []
    for at in range(0, len(data), portion):
        messages += reader.feed(data[at : at + portion])
        most_pending = max(most_pending, reader.pending)
    assert asked == [len(LARGE)] * 3
    assert [(m.refused, m.admitted, m.more_to_come) for m in messages] == [
        (False, 0, False),
        (True, 0, False),
        (False, 0, False),
        (False, len(LARGE), False),
        (True, 0, True),
        (False, 0, False),
    ]
    assert messages[3].body.get("pad") == "x" * 100_000
    assert messages[1].request_id == 7


def test_a_large_message_is_refused_when_its_head_is_there() -> None:
    admit, _ = admit_only(False)
    reader = FrameReader(admit)
    assert reader.feed(LARGE[:19]) == []
    (message,) = reader.feed(LARGE[19:20])
    assert message.refused
    assert reader.pending == 0


def test_a_large_message_of_another_kind_that_is_refused_ends_the_connection() -> None:
    admit, _ = admit_only(False)
    with pytest.raises(RemoteProtocolError, match="while the member is overloaded"):
        FrameReader(admit).feed(query(encode({"hello": 1, "pad": "x" * 100_000})))


def test_ids_of_messages_fit_into_a_header_for_ever() -> None:
    last = (1 << 31) - 1
    assert list(islice(message_ids(), 2)) == [1, 2]
    for number in islice(message_ids(last), 3):
        (message,) = FrameReader().feed(encode_msg(number, 0, encode({"ping": 1, "$db": "admin"})))
        assert message.request_id == number
    assert list(islice(message_ids(last), 3)) == [last, 0, 1]

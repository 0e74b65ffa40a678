"""Bytes to a connection of a real member: OP_MSG and OP_QUERY that are nearly right, in portions of any size.

Some have a checksum, some ask for a stream of replies; what the member writes has whole frames and right checksums.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import strategies as st

from replset.bson import decode, encode
from replset.wire.framing import (
    CHECKSUM_PRESENT,
    EXHAUST_ALLOWED,
    MORE_TO_COME,
    OP_COMPRESSED,
    OP_MSG,
    OP_QUERY,
    OP_REPLY,
    FrameReader,
    crc32c,
    encode_request,
)
from tests.property.test_bson import DOCUMENTS
from tools.fuzz.commands import TEMPLATES
from tools.fuzz.kit import Check, Target, damaged
from tools.fuzz.member import OneMember, known, one_member

HEADER = struct.Struct("<iiii")
PING_ID = 77
NOT_QUIET = {"replSetStepDown", "replSetResync", "replSetReconfig", "replSetTestCut", "configureFailPoint"}
QUIET_COMMANDS = [(database, command) for database, command in TEMPLATES if next(iter(command)) not in NOT_QUIET]


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """One message, right but perhaps for its head."""
    if draw(st.integers(0, 3)):
        database, command = draw(st.sampled_from(QUIET_COMMANDS))
        sequence = None
        if draw(st.booleans()):
            rows = [encode(row) for row in draw(st.lists(DOCUMENTS, max_size=3))]
            sequence = (draw(st.sampled_from(["documents", "updates", "deletes", "x", ""])), rows)
        whole = bytearray(encode_request(draw(st.integers(-(1 << 31), (1 << 31) - 1)), command, database, sequence))
    else:
        body = (
            b"\0\0\0\0" + draw(st.sampled_from([b"admin.$cmd\0", b"test.c\0", b"\0", b"a"])) + struct.pack("<ii", 0, -1)
        )
        rest = body + encode(
            draw(st.sampled_from([{"hello": 1}, {"ismaster": 1}, {"isMaster": 1, "helloOk": True}, {"ping": 1}]))
        )
        whole = bytearray(HEADER.pack(16 + len(rest), 1, 0, OP_QUERY) + rest)
    if draw(st.booleans()) and whole[12:16] == OP_MSG.to_bytes(4, "little"):
        whole[18] |= EXHAUST_ALLOWED >> 16
    match draw(st.integers(0, 8)):
        case 0:
            flags = draw(st.sampled_from([MORE_TO_COME, EXHAUST_ALLOWED, 1, 3, 4, 1 << 15, 0xFFFFFFFF]))
            whole[16:20] = flags.to_bytes(4, "little")
        case 1:
            length = draw(
                st.sampled_from(
                    [-1, 0, 15, 16, 17, 20, 21, len(whole) - 1, len(whole) + 1, 1 << 20, 48_000_000, 48_000_001]
                )
            )
            whole[0:4] = length.to_bytes(4, "little", signed=True)
        case 3 | 4:
            whole[0:4], whole[16] = (len(whole) + 4).to_bytes(4, "little"), whole[16] | CHECKSUM_PRESENT
            whole += crc32c(bytes(whole)).to_bytes(4, "little")
        case 2:
            opcode = draw(st.sampled_from([OP_REPLY, OP_QUERY, OP_COMPRESSED, OP_MSG, 0, 2010]))
            whole[12:16] = opcode.to_bytes(4, "little")
    return bytes(whole)


STREAMS = st.one_of(
    damaged(st.lists(frames(), min_size=1, max_size=4).map(b"".join), most=2),
    st.lists(frames(), min_size=1, max_size=4).map(b"".join),
    st.binary(max_size=80),
)
INPUTS = st.tuples(STREAMS, st.lists(st.integers(0, 4_000), max_size=4), st.booleans())


def check(one: OneMember, value: tuple[bytes, list[int], bool]) -> str:
    """What the member writes are whole messages, each ok or a documented error; then another connection is answered."""
    data, cuts, client_closes = value
    wire = one.connect()
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})

    async def talk() -> None:
        for begin, end in itertools.pairwise(edges):
            wire.feed(data[begin:end])
            await asyncio.sleep(0.001)
        await asyncio.sleep(0 if client_closes else 0.2)
        wire.close()
        await asyncio.sleep(0.05)

    async def ping() -> bytes:
        other.feed(encode_request(PING_ID, {"ping": 1}, "admin"))
        await asyncio.sleep(0.1)
        other.close()
        await asyncio.sleep(0)
        return other.written

    one.cluster.run(talk())
    outcome = "nothing said"
    for message in FrameReader().feed(wire.written):
        list(message.verify())
        document = decode(message.body.raw)
        outcome = known(document, data)
    other = one.connect()
    (answer,) = FrameReader().feed(one.cluster.run(ping()))
    assert (answer.response_to, decode(answer.body.raw)["ok"]) == (PING_ID, 1.0)
    one.is_well()
    assert one.member.admission.in_use == 0
    return outcome


@contextmanager
def opened() -> Iterator[Check]:
    with one_member() as one:
        yield lambda value: check(one, value)


TARGET = Target("wire", INPUTS, opened, 100)

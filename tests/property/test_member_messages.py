"""The two readers of the messages that each group of writes costs: by layout, and field by field for other layouts."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replset.bson import ObjectId, RawDocument, encode, with_fields
from replset.core.member_state import MemberState
from replset.core.messages import (
    HeartbeatReply,
    HeartbeatRequest,
    MemberProgress,
    Position,
    ProgressReply,
    ProgressRequest,
    VoteReply,
    VoteRequest,
)
from replset.errors import ReplError
from replset.ids import HostPort, MemberId, OpTime, pack_ts
from replset.member.peers.message_documents import (
    MAX_COUNT,
    REPLY_MESSAGES,
    REQUEST_MESSAGES,
    _parse_position,
    parse_progress,
    progress_document,
)
from replset.message_fields import Message
from replset.operations.replies import encode_times, finish
from replset.replication.protocol import FetchReply, FetchRequest, _scan_reply

INT32, INT64 = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
TERMS = st.integers(0, (1 << 63) - 1)
OPTIMES = st.builds(OpTime, TERMS, st.builds(pack_ts, st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 31) - 1)))
SET_IDS = st.none() | st.builds(ObjectId, st.binary(min_size=12, max_size=12))
ROWS = st.builds(
    MemberProgress,
    st.builds(MemberId, INT32),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    st.builds(Position, OPTIMES, OPTIMES, INT64, INT64),
)
PROGRESS = st.builds(
    ProgressRequest, st.builds(MemberId, INT32), INT64, INT64, INT64, st.lists(ROWS, max_size=3).map(tuple), SET_IDS
)
SENT = st.none() | PROGRESS.map(progress_document)
REQUESTS = st.builds(FetchRequest, OPTIMES, INT64, INT32, INT32, INT64, OPTIMES, INT32, st.booleans(), SENT)
ENTRIES = st.lists(st.dictionaries(st.text("ab"), st.integers(0, 9), max_size=2).map(encode), max_size=12)
CONCERNS = st.sampled_from(["", "applied", "durable"])
REPLIES = st.builds(
    *(FetchReply, st.booleans(), ENTRIES, OPTIMES, INT64, INT64, INT32, INT64, INT32),
    *(st.booleans(), OPTIMES, OPTIMES, OPTIMES, INT64, CONCERNS),
)

PAGES = REPLIES.filter(lambda reply: reply.matched)


def reordered(document: RawDocument) -> RawDocument:
    """The same fields but the first one in another order: the reader by layout does not know it."""
    (first, value), *rest = document.decode().items()
    return RawDocument(encode({first: value, **dict(reversed(rest))}))


def of_set(request_: FetchRequest, set_id: ObjectId | None) -> RawDocument:
    """The request as it is sent, with the id of the sender's set."""
    return request_.document() if set_id is None else with_fields(request_.document(), {"setId": set_id})


@given(REQUESTS, SET_IDS)
def test_a_request_for_entries(request_: FetchRequest, set_id: ObjectId | None) -> None:
    body = with_fields(of_set(request_, set_id), {"$db": "admin"})
    expected = replace(request_, set_id=set_id)
    assert FetchRequest.parse(body) == FetchRequest.parse(reordered(body)) == expected
    for sent in (body, of_set(request_, set_id)):
        assert FetchRequest.message.scan(sent.raw) == expected, "what a member sends is read without decoding it"
    assert RawDocument(encode(body.decode())) == body


@given(REPLIES, st.integers(0, (1 << 63) - 1))
def test_a_page_of_entries(reply: FetchReply, ts: int) -> None:
    body = RawDocument(encode(finish({**reply.document().decode()}, ts)))
    assert FetchReply.parse(reply.document()) == FetchReply.parse(body) == FetchReply.parse(reordered(body)) == reply
    assert FetchReply.message.scan(body.raw) == reply, "what a member sends is read without decoding it"
    assert body.raw[-1 - len(encode_times(ts)) : -1] == encode_times(ts)
    if reply.matched and ts:
        assert reply.reply(ts) == body.raw, "the reply is written at once as it is field by field"
        assert _scan_reply(body.raw) == reply


@given(PAGES, st.integers(1, (1 << 63) - 1))
def test_a_page_that_is_cut_or_changed_is_read_as_field_by_field_or_not_at_all(page: FetchReply, ts: int) -> None:
    raw = page.reply(ts)
    for at in range(4, len(raw)):
        for changed in (raw[:at], raw[:at] + raw[at + 1 :], raw[:at] + bytes([raw[at] ^ 0x81]) + raw[at + 1 :]):
            sized = len(changed).to_bytes(4, "little") + changed[4:]
            found = outcome(lambda body: _scan_reply(body.raw), sized)
            assert found is None or found == FetchReply.message.read(RawDocument(sized))


@given(PROGRESS)
def test_a_position(progress: ProgressRequest) -> None:
    document = progress_document(progress)
    body = with_fields(document, {"$db": "admin"})
    assert parse_progress(document) == parse_progress(body) == parse_progress(reordered(body)) == progress
    assert RawDocument(encode(document.decode())) == document


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
IDS = st.none() | st.integers(0, 255).map(MemberId)
HEARTBEATS = st.builds(
    *(HeartbeatRequest, TEXTS, TEXTS.map(HostPort), IDS, TERMS, INT64, INT64, IDS, TEXTS, st.booleans(), SET_IDS),
    *(st.lists(TEXTS.map(HostPort), max_size=2).map(tuple), st.booleans()),
)
BEATS = st.builds(
    *(HeartbeatReply, TEXTS, TERMS, st.sampled_from(MemberState), IDS, INT64, INT64, st.none(), IDS),
    *(st.builds(Position, OPTIMES, OPTIMES, INT64, INT64), OPTIMES, st.booleans(), st.none() | INT64),
    *(st.none() | TEXTS.map(HostPort), TEXTS, INT32, TEXTS, st.booleans(), st.integers(0, MAX_COUNT), TEXTS, TERMS),
    *(st.booleans(), st.booleans()),
)
VOTES = st.builds(
    *(VoteRequest, TEXTS, TERMS, INT32.map(MemberId), TEXTS, INT64, INT64, OPTIMES, st.booleans(), TEXTS, SET_IDS)
)
CORE: dict[str, tuple[st.SearchStrategy[Any], Message[Any]]] = {
    "heartbeat": (HEARTBEATS, REQUEST_MESSAGES[HeartbeatRequest]),
    "heartbeat reply": (BEATS, REPLY_MESSAGES[HeartbeatReply]),
    "vote": (VOTES, REQUEST_MESSAGES[VoteRequest]),
    "vote reply": (st.builds(VoteReply, TERMS, st.booleans(), TEXTS, IDS, TEXTS), REPLY_MESSAGES[VoteReply]),
    "position reply": (st.builds(ProgressReply, TERMS, st.booleans(), OPTIMES, INT64), REPLY_MESSAGES[ProgressReply]),
}


@pytest.mark.parametrize("kind", CORE)
@given(data=st.data())
def test_a_message_of_the_core(kind: str, data: st.DataObject) -> None:
    bodies, message = CORE[kind]
    body = data.draw(bodies)
    document = message.document(body)
    sent = with_fields(document, {"$db": "admin"})
    assert message.parse(document) == message.read(sent) == message.parse(reordered(sent)) == body
    if not getattr(body, "expected", ()):  # a list of hosts is read field by field
        assert message.scan(document.raw) == message.scan(sent.raw) == body, "what a member sends is read at once"
    assert RawDocument(encode(document.decode())) == document


READERS: dict[str, tuple[st.SearchStrategy[bytes], Callable[[RawDocument], object], Callable[[RawDocument], object]]]
READERS = {
    **{kind: (bodies.map(message.write), message.parse, message.read) for kind, (bodies, message) in CORE.items()},
    "request": (
        st.builds(of_set, REQUESTS, SET_IDS).map(lambda body: body.raw),
        FetchRequest.parse,
        FetchRequest.message.read,
    ),
    "page": (REPLIES.map(lambda reply: reply.document().raw), FetchReply.parse, FetchReply.message.read),
    "position": (PROGRESS.map(lambda progress: progress_document(progress).raw), parse_progress, _parse_position),
}


@pytest.mark.parametrize("kind", READERS)
@given(data=st.data())
def test_a_changed_byte_is_read_alike_or_refused(kind: str, data: st.DataObject) -> None:
    raws, parse, parse_fields = READERS[kind]
    raw = data.draw(raws)
    at = data.draw(st.integers(raw.index(b"\0", 5), len(raw) - 2))  # behind the name of the command
    changed = raw[:at] + bytes([data.draw(st.integers(0, 255))]) + raw[at + 1 :]
    assert outcome(parse, changed) == outcome(parse_fields, changed)


@given(REPLIES)
def test_a_boolean_that_is_neither_is_read_alike_or_refused(reply: FetchReply) -> None:
    document = reply.document()
    for name in (name for name, value in document.decode().items() if isinstance(value, bool)):
        at = document.raw.rindex(b"\x08" + name.encode() + b"\0") + len(name) + 2
        changed = document.raw[:at] + b"\x02" + document.raw[at + 1 :]
        assert outcome(FetchReply.parse, changed) == outcome(FetchReply.message.read, changed)


def outcome(parse: Callable[[RawDocument], object], raw: bytes) -> object:
    """What is read, or None if the message is refused."""
    try:
        return parse(RawDocument(raw))
    except ReplError:
        return None


REQUEST = FetchRequest(OpTime(1, 2), 3, 4, 5, 6, OpTime(1, 2), 7)
OF_A_SET = {
    "position": (progress_document(ProgressRequest(MemberId(1), 1, 1, 1, (), ObjectId(b"a" * 12))), parse_progress),
    "request": (of_set(REQUEST, ObjectId(b"a" * 12)), FetchRequest.parse),
}


@pytest.mark.parametrize("kind", OF_A_SET)
@pytest.mark.parametrize("cut", range(1, 13))
def test_a_set_id_that_is_cut_is_refused(cut: int, kind: str) -> None:
    body, parse = OF_A_SET[kind]
    short = (len(body.raw) - cut).to_bytes(4, "little") + body.raw[4 : -1 - cut] + b"\0"
    with pytest.raises(ReplError):
        parse(RawDocument(short))


def test_the_names_of_an_array_mean_nothing() -> None:
    row = MemberProgress(MemberId(1), "a", Position(OpTime(1, 2), OpTime(1, 2), 3, 4))
    raw = progress_document(ProgressRequest(MemberId(1), 1, 1, 1, (row,), None)).raw
    named = raw.replace(b"\x030\0", b"\x03\x80\0")
    assert parse_progress(RawDocument(named)) == _parse_position(RawDocument(named)) == parse_progress(RawDocument(raw))
    assert named != raw

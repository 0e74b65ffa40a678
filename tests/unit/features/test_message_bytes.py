"""Messages between members have the bytes that message_bytes.json records: old and new members read each other."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from replset.bson import Document, ObjectId, RawDocument, encode, with_fields
from replset.config import ReplSetConfig
from replset.core.member_state import MemberState
from replset.core.messages import (
    Done,
    HeartbeatReply,
    HeartbeatRequest,
    MemberProgress,
    Position,
    ProgressReply,
    ProgressRequest,
    Refused,
    ReplyBody,
    StepUpRequest,
    VoteReply,
    VoteRequest,
)
from replset.features.compared_copies.difference_protocol import CompareReply, CompareRequest
from replset.features.compared_copies.differences import FIRST_PLACE, SPAN_BITS, Differences, Row, Spans
from replset.features.scrub.document_ranges import Give, RangeReply, RangeRequest, RangeRow
from replset.ids import OPTIME_NULL, HostPort, MemberId, OpTime, pack_ts
from replset.member.peers.message_documents import (
    MemberRequest,
    parse_reply,
    parse_request,
    progress_document,
    reply_document,
    request_document,
)
from replset.operations.replies import encode_times
from replset.replication.protocol import (
    FetchReply,
    FetchRequest,
    ProbeReply,
    ProbeRequest,
    SnapshotReply,
    SnapshotRequest,
)

RECORDED: dict[str, str] = json.loads(Path(__file__).with_name("message_bytes.json").read_text())
HOST, SET_ID = HostPort("a:27017"), ObjectId(b"abcdefghijkl")
NEW, OLD = OpTime(3, pack_ts(1_700_000_000, 7)), OpTime(2, pack_ts(1_699_999_999, 1))
POSITION = Position(NEW, OLD, 1_700_000_000_123, -5)
CONFIG = ReplSetConfig.parse(
    {
        "_id": "rs0",
        "version": 4,
        "term": 3,
        "members": [{"_id": 0, "host": "a:1", "incarnation": "i0"}, {"_id": 1, "host": "b:1", "newlyAdded": True}],
    }
)
HEARTBEAT = HeartbeatRequest("rs0", HOST, MemberId(1), 3, 4, 3, None, "größe")
VOTE = VoteRequest("rs0", 4, MemberId(2), "inc", 4, 3, NEW, dry_run=True)
ROWS = (MemberProgress(MemberId(1), "inc", POSITION), MemberProgress(MemberId(255), "größe", POSITION))
PROGRESS = ProgressRequest(MemberId(1), 3, 1 << 40, 3, ROWS)
BEAT = HeartbeatReply(
    *("rs0", 3, MemberState.SECONDARY, None, 4, -1, None, None, POSITION, NEW, True, None, None),
    *("inc", 2, "a:80", False),
)
FULL = replace(
    BEAT,
    state=MemberState.PRIMARY,
    member_id=MemberId(0),
    config=CONFIG,
    primary_id=MemberId(255),
    election_wall_ms=0,
    sync_source=HOST,
    has_data=True,
    unacknowledged_rollbacks=7,
    quarantine="it differs",
    commit_term=5,
    overloaded=True,
    holds_role=True,
)
REQUESTS: dict[str, MemberRequest] = {
    "heartbeat": HEARTBEAT,
    "heartbeat-full": replace(
        HEARTBEAT,
        primary_id=MemberId(0),
        sender_id=None,
        check_empty=True,
        set_id=SET_ID,
        expected=(HostPort("a:1"), HostPort("b:2")),
        holds_role=True,
    ),
    "vote": VOTE,
    "vote-full": replace(VOTE, set_id=SET_ID, reason="electionTimeout", dry_run=False),
    "position": PROGRESS,
    "position-full": PROGRESS._replace(set_id=SET_ID),
    "position-empty": PROGRESS._replace(progress=()),
    "step-up": StepUpRequest(True),
}
REPLIES: dict[str, tuple[MemberRequest, ReplyBody]] = {
    "heartbeat-reply": (HEARTBEAT, BEAT),
    "heartbeat-reply-full": (HEARTBEAT, FULL),
    "vote-reply": (VOTE, VoteReply(4, False, "voted already", MemberId(1), "inc")),
    "vote-reply-granted": (VOTE, VoteReply(4, True, "", None, "inc")),
    "position-reply": (PROGRESS, ProgressReply(5, True, NEW, 3)),
    "step-up-reply": (StepUpRequest(True), Done()),
    "step-up-reply-info": (StepUpRequest(True), Done("elected")),
    "refused": (HEARTBEAT, Refused(108, "another set")),
}
FETCH = FetchRequest(NEW, -(1 << 63), 1 << 20, 2000, 3, OLD, -1)
PAGE = FetchReply(True, [encode({"a": 1}), encode({})], OLD, -7, 1 << 62, 3, 4, 2, False, NEW, OLD, OPTIME_NULL, 3)
PROBED = ProbeReply([1, None, -1], 2, 3, NEW, OLD)
COPY = SnapshotReply("id", False, 0, "", 3)
SPAN = FIRST_PLACE >> SPAN_BITS
Sent = (
    FetchRequest | FetchReply | ProbeRequest | ProbeReply | SnapshotRequest | SnapshotReply
    | CompareRequest | CompareReply | RangeRequest | RangeReply
)  # fmt: skip
SENT: dict[str, Sent] = {
    "fetch": FETCH,
    "fetch-full": replace(FETCH, awaits_commit_point=True, progress=progress_document(PROGRESS)),
    "page": PAGE,
    "page-full": replace(PAGE, is_primary=True, awaited="durable", commit_point=NEW),
    "page-unmatched": replace(PAGE, matched=False, entries=[], awaited="applied"),
    "probe": ProbeRequest([NEW, OLD]),
    "probe-empty": ProbeRequest([]),
    "probe-reply": PROBED,
    "snapshot-begin": SnapshotRequest("begin"),
    "snapshot-begin-witness": SnapshotRequest("begin", oplog_bytes=0),
    "snapshot-begin-compare": SnapshotRequest("begin", oplog_bytes=1 << 40, compare=True),
    "snapshot-chunk": SnapshotRequest("chunk", "id", 1 << 40, 1 << 20),
    "snapshot-reply": COPY,
    "snapshot-reply-full": replace(COPY, ready=True, size=1 << 40, sha256="00ff", data=b"\0\xff", compared=True),
    "compare-spans": CompareRequest("spans", "id", bytes(16), 5, [], {}),
    "compare-rows": CompareRequest("rows", "id", bytes(16), -5, [SPAN, SPAN + 1], {1: 2}),
    "compare-spans-reply": CompareReply(3, Spans({SPAN: 9}, None)),
    "compare-rows-reply": CompareReply(3, None, Differences([Row(1, b"k", b"d")], [7], 9)),
    "range": RangeRequest("a.b", NEW, -1),
    "range-full": RangeRequest("a.b", NEW, 1, b"low", b"high", Give.DOCUMENTS),
    "range-reply": RangeReply(None, 0, 0, 0),
    "range-reply-full": RangeReply(b"end", 2, 1 << 40, -9, (RangeRow(b"k", 1, "id"), RangeRow(b"l", 2, 3, b"doc"))),
}
# Each with what writes it, and what reads it.
Example = tuple[object, Document, Callable[[RawDocument], object]]
EXAMPLES: dict[str, Example] = {
    **{name: (body, request_document(body), parse_request) for name, body in REQUESTS.items()},
    **{
        name: (body, reply_document(body), lambda raw, asked=asked: parse_reply(asked, raw))  # type: ignore[misc]
        for name, (asked, body) in REPLIES.items()
    },
    **{name: (body, body.document(), type(body).parse) for name, body in SENT.items()},
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_message_has_the_bytes_that_are_recorded(name: str) -> None:
    assert encode(EXAMPLES[name][1]).hex() == RECORDED[name]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_recorded_bytes_are_read(name: str) -> None:
    expected, _, parse = EXAMPLES[name]
    assert parse(RawDocument(bytes.fromhex(RECORDED[name]))) == expected


@pytest.mark.parametrize("name", EXAMPLES)
def test_they_are_read_with_what_is_added_on_the_way(name: str) -> None:
    expected, _, parse = EXAMPLES[name]
    recorded = bytes.fromhex(RECORDED[name])
    times = encode_times(NEW.ts)
    sent = [with_fields(RawDocument(recorded), {"$db": "admin"}), with_fields(RawDocument(recorded), {"other": 1})]
    sent.append(RawDocument((len(recorded) + len(times)).to_bytes(4, "little") + recorded[4:-1] + times + b"\0"))
    for raw in sent:
        assert parse(raw) == expected


def test_each_record_is_looked_at() -> None:
    assert list(RECORDED) == list(EXAMPLES)

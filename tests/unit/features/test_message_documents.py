"""Requests and replies between members: there and back through bytes, and refused where they are malformed."""

from __future__ import annotations

import dataclasses

import pytest

from replset.bson import Int64, ObjectId, RawDocument, Timestamp, decode, encode
from replset.config import ReplSetConfig
from replset.config.feature_version import LATEST, OLDEST
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
from replset.errors import BadValueError, RemoteProtocolError
from replset.ids import OPTIME_NULL, HostPort, MemberId, OpTime, pack_ts
from replset.member.peers.message_documents import (
    MemberRequest,
    parse_reply,
    parse_request,
    reply_document,
    request_document,
)

HOST = HostPort("a:27017")
NEW = OpTime(3, pack_ts(1_700_000_000, 7))
POSITION = Position(NEW, OPTIME_NULL, 1_700_000_000_123, 0)
CONFIG = ReplSetConfig.parse(
    {
        "_id": "rs0",
        "version": 4,
        "term": 3,
        "members": [{"_id": 0, "host": "a:1", "incarnation": "i0"}, {"_id": 1, "host": "b:1", "newlyAdded": True}],
    }
)
SET_ID = ObjectId(b"a" * 12)
HEARTBEAT = HeartbeatRequest("rs0", HOST, MemberId(1), 3, 4, 3, None, "inc", check_empty=True)
VOTE = VoteRequest("rs0", 4, MemberId(2), "inc", 4, 3, NEW, dry_run=True)
PROGRESS = ProgressRequest(MemberId(1), 3, 4, 3, (MemberProgress(MemberId(1), "inc", POSITION),))
WITH_SET_ID = [
    *(dataclasses.replace(body, set_id=SET_ID) for body in (HEARTBEAT, VOTE)),
    PROGRESS._replace(set_id=SET_ID),
]
STEP_UP = StepUpRequest(skip_dry_run=True)
FULL = HeartbeatReply(
    "rs0",
    3,
    MemberState.PRIMARY,
    MemberId(0),
    4,
    3,
    CONFIG,
    MemberId(0),
    POSITION,
    NEW,
    True,
    17,
    HOST,
    "i",
    2,
    "a:80",
    True,
    3,
    "it differs",
    4,
    release=LATEST,
)
BARE = dataclasses.replace(
    FULL,
    state=MemberState.STARTUP,
    member_id=None,
    config=None,
    primary_id=None,
    election_wall_ms=None,
    sync_source=None,
)


@pytest.mark.parametrize(
    "request_",
    [
        *(HEARTBEAT, dataclasses.replace(HEARTBEAT, sender_id=None, check_empty=False), VOTE, PROGRESS, STEP_UP),
        *WITH_SET_ID,
        dataclasses.replace(VOTE, reason="electionTimeout"),
        dataclasses.replace(HEARTBEAT, expected=(HostPort("a:1"), HostPort("b:2"))),
    ],
)
def test_a_request_survives_the_wire(request_: MemberRequest) -> None:
    assert parse_request(RawDocument(encode(request_document(request_)))) == request_


@pytest.mark.parametrize(
    ("request_", "reply"),
    [
        (HEARTBEAT, FULL),
        (HEARTBEAT, BARE),
        (VOTE, VoteReply(4, False, "voted already", MemberId(1), "inc")),
        (VOTE, VoteReply(4, True, "", None, "inc")),
        (PROGRESS, ProgressReply(5, True)),
        (STEP_UP, Done()),
        (STEP_UP, Done("elected")),
        (HEARTBEAT, Refused(108, "another set")),
    ],
)
def test_a_reply_survives_the_wire(request_: MemberRequest, reply: ReplyBody) -> None:
    assert parse_reply(request_, RawDocument(encode(reply_document(reply)))) == reply


@pytest.mark.parametrize("request_", [HEARTBEAT, VOTE, PROGRESS])
def test_a_request_without_one_of_its_fields_is_refused(request_: MemberRequest) -> None:
    whole = RawDocument(encode(request_document(request_))).decode()
    for name in list(whole)[1:]:
        if name in ("checkEmpty", "hbv", "reason"):  # a member of before does not say why it holds an election
            continue
        missing = {key: value for key, value in whole.items() if key != name}
        with pytest.raises(RemoteProtocolError):
            parse_request(RawDocument(encode(missing)))


def test_a_heartbeat_reply_without_one_of_its_fields_is_refused() -> None:
    whole = decode(encode(reply_document(BARE)))
    for name in whole:
        if name in ("ok", "commitTerm", "release"):  # a member of before does not say these
            continue
        missing = {key: value for key, value in whole.items() if key != name}
        with pytest.raises(RemoteProtocolError):
            parse_reply(HEARTBEAT, RawDocument(encode(missing)))


@pytest.mark.parametrize("release", [None, 1, "", "one", "1", "1.0.0", "1.99999"])
def test_a_release_that_is_none_counts_as_the_oldest(release: object) -> None:
    reply = parse_reply(HEARTBEAT, RawDocument(encode({**decode(encode(reply_document(FULL))), "release": release})))
    assert reply == dataclasses.replace(FULL, release=OLDEST)


@pytest.mark.parametrize("hosts", ["a:1", [1], ["a:1"] * 51])
def test_expected_members_that_are_no_hosts_are_refused(hosts: object) -> None:
    with pytest.raises(RemoteProtocolError, match="expectedMembers"):
        parse_request(RawDocument(encode({**decode(encode(request_document(HEARTBEAT))), "expectedMembers": hosts})))


def test_a_state_that_is_none_is_refused() -> None:
    document = decode(encode(reply_document(BARE))) | {"state": Int64(77)}
    with pytest.raises(RemoteProtocolError, match="state"):
        parse_reply(HEARTBEAT, RawDocument(encode(document)))


@pytest.mark.parametrize(
    "absurd",
    [
        pytest.param({"primaryId": Int64(1 << 40)}, id="an-id-beyond-255"),
        pytest.param({"memberId": -2}, id="an-id-below-nobody"),
        pytest.param({"unacknowledgedRollbacks": Int64((1 << 63) - 1)}, id="more-rollbacks-than-a-sum-holds"),
        pytest.param({"opTime": {"ts": Timestamp(1, 1), "t": Int64(-5)}}, id="a-term-below-zero"),
        pytest.param({"opTime": {"ts": Timestamp(1, 1 << 31), "t": Int64(1)}}, id="an-increment-beyond-31-bits"),
        pytest.param({"term": 1e300}, id="a-term-that-is-no-integer"),
    ],
)
def test_numbers_that_nobody_can_mean_are_refused(absurd: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_reply(HEARTBEAT, RawDocument(encode(decode(encode(reply_document(FULL))) | absurd)))


@pytest.mark.parametrize("name", ["version", "term"])
def test_a_configuration_with_a_number_beyond_64_bits_is_refused(name: str) -> None:
    with pytest.raises(BadValueError, match=name):
        ReplSetConfig.parse(CONFIG.document(internal=True) | {name: 1e300})


def test_another_command_is_no_request_between_members() -> None:
    with pytest.raises(RemoteProtocolError, match="ping"):
        parse_request(RawDocument(encode({"ping": 1})))


def test_a_refusal_without_a_code_is_an_internal_error() -> None:
    assert parse_reply(VOTE, RawDocument(encode({"ok": 0.0}))) == Refused(1, "no reason given")


@pytest.mark.parametrize("request_", [HEARTBEAT, VOTE, PROGRESS])
def test_a_field_of_a_newer_release_is_ignored(request_: MemberRequest) -> None:
    document = decode(request_document(request_).raw)
    assert parse_request(RawDocument(encode({**document, "later": {"a": 1}}))) == request_

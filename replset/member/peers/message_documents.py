"""Declares the messages of the core as the documents that members send each other (map H2, H3, E4, R8).

The field names are MongoDB's. Fields that MongoDB does not have (incarnation,
rollbackId, httpAddress, commitPoint, commitTerm, hasData, memberId, candidateId, unacknowledgedRollbacks, quarantine,
overloaded, setId, reason, expectedMembers, holdsRole) are added. A malformed document or an impossible number is the
fault of the peer: RemoteProtocolError.
"""

from __future__ import annotations

from typing import Any, Final

from replset import message_fields as kinds
from replset.bson import DateTime, Layout, ObjectId, RawDocument, array_of, document_of, documents_of, encode
from replset.bson import layout as slots
from replset.config import MAX_MEMBER_ID, MAX_MEMBERS, ReplSetConfig
from replset.config.feature_version import FeatureVersion
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
from replset.errors import RemoteProtocolError, code_name, cut_message
from replset.ids import HostPort, MemberId, OpTime
from replset.message_fields import Field, Lack, Message
from replset.optime import OPTIME_LAYOUT, optime_of_bits, parse_optime, timestamp_bits

MemberRequest = HeartbeatRequest | VoteRequest | ProgressRequest | StepUpRequest
STEP_UP = "replSetStepUp"
_NOBODY = -1
MAX_PROGRESS = 50
MAX_COUNT = (1 << 31) - 1


# --- kinds of fields --------------------------------------------------------------------------------------------


def _count(value: int) -> int:
    """A number of things, which others are added to."""
    if not 0 <= value <= MAX_COUNT:
        raise ValueError(f"no number of things: {value}")
    return value


def _member(value: int) -> MemberId | None:
    if not _NOBODY <= value <= MAX_MEMBER_ID:
        raise ValueError(f"no member's _id: {value}")
    return None if value == _NOBODY else MemberId(value)


def _hosts(document: RawDocument, name: str) -> tuple[HostPort, ...]:
    rows = kinds.typed(document, name, list)
    if len(rows) > MAX_MEMBERS or not all(isinstance(row, str) for row in rows):
        raise RemoteProtocolError(f"field {name!r} is no list of hosts")
    return tuple(HostPort(str(row)) for row in rows)


_COUNT: Final = kinds.number_of(_count)
_MEMBER: Final = kinds.number_of(_member, lambda member_id: _NOBODY if member_id is None else member_id)
_STATE: Final = kinds.number_of(MemberState)
_CONFIG: Final = kinds.Sized(
    b"\x03",
    lambda config: encode(config.document(internal=True)),
    lambda document, name: ReplSetConfig.parse(kinds.typed(document, name, dict), keep=True),
)
_HOSTS: Final = kinds.Sized(b"\x04", lambda hosts: kinds.bson_value([str(host) for host in hosts]), _hosts)


def _release(document: RawDocument, name: str) -> FeatureVersion:
    try:
        return FeatureVersion.parse(kinds.typed(document, name, str))
    except ValueError as error:
        raise RemoteProtocolError(f"field {name!r} is {error}") from None


def _scan_release(raw: bytes, at: int) -> tuple[FeatureVersion, int]:
    text, end = kinds.scan_text(raw, at)
    return FeatureVersion.parse(text), end


_RELEASE: Final = kinds.Sized(b"\x02", lambda version: kinds.write_text(str(version)), _release, _scan_release)


# --- messages ---------------------------------------------------------------------------------------------------


_SET_ID: Final = Field("setId", kinds.OBJECT_ID, lack=Lack.DEFAULT)
_CONFIG_VERSION: Final = (Field("configVersion", kinds.INT64), Field("configTerm", kinds.INT64))
REQUEST_MESSAGES: Final[dict[Any, Message[Any]]] = {
    HeartbeatRequest: Message(
        HeartbeatRequest,
        Field("replSetHeartbeat", kinds.TEXT, "set_name"),
        Field("checkEmpty", kinds.BOOL, lack=Lack.LOOSE),
        *_CONFIG_VERSION,
        Field("hbv", kinds.constant(1)),
        Field("from", kinds.TEXT, "sender"),
        Field("fromId", _MEMBER, "sender_id"),
        Field("term", kinds.INT64),
        Field("primaryId", _MEMBER),
        Field("incarnation", kinds.TEXT),
        Field("expectedMembers", _HOSTS, "expected", lack=Lack.DEFAULT),
        Field("holdsRole", kinds.BOOL, lack=Lack.LOOSE),
        _SET_ID,
    ),
    VoteRequest: Message(
        VoteRequest,
        Field("replSetRequestVotes", kinds.constant(1)),
        Field("setName", kinds.TEXT),
        Field("dryRun", kinds.BOOL),
        Field("term", kinds.INT64),
        Field("candidateId", kinds.INT32, "candidate"),
        Field("candidateIncarnation", kinds.TEXT),
        *_CONFIG_VERSION,
        Field("lastAppliedOpTime", kinds.OPTIME, "last_applied"),
        Field("reason", kinds.TEXT, lack=Lack.OLD),
        _SET_ID,
    ),
}
_BY_COMMAND: Final = {"replSetHeartbeat": HeartbeatRequest, "replSetRequestVotes": VoteRequest}
REPLY_MESSAGES: Final[dict[Any, Message[Any]]] = {
    HeartbeatReply: Message(
        HeartbeatReply,
        Field("electionTime", kinds.DATE, "election_wall_ms", lack=Lack.LOOSE),
        Field("config", _CONFIG, lack=Lack.LOOSE),
        Field("state", _STATE),
        Field("v", kinds.INT64, "config_version"),
        Field("configTerm", kinds.INT64),
        Field("set", kinds.TEXT, "set_name"),
        Field("syncingTo", kinds.TEXT, "sync_source", lack=Lack.LOOSE),
        Field("term", kinds.INT64),
        Field("primaryId", _MEMBER),
        Field("durableOpTime", kinds.OPTIME, "position.last_durable"),
        Field("durableWallTime", kinds.DATE, "position.durable_wall_ms"),
        Field("opTime", kinds.OPTIME, "position.last_applied"),
        Field("wallTime", kinds.DATE, "position.applied_wall_ms"),
        Field("electable", kinds.BOOL),
        Field("memberId", _MEMBER),
        Field("commitPoint", kinds.OPTIME),
        Field("incarnation", kinds.TEXT),
        Field("rollbackId", kinds.INT32),
        Field("httpAddress", kinds.TEXT),
        Field("hasData", kinds.BOOL),
        Field("unacknowledgedRollbacks", _COUNT),
        Field("quarantine", kinds.TEXT),
        Field("commitTerm", kinds.INT64, lack=Lack.OLD),
        Field("overloaded", kinds.BOOL, lack=Lack.LOOSE),
        Field("holdsRole", kinds.BOOL, lack=Lack.LOOSE),
        Field("release", _RELEASE, lack=Lack.LOOSE),
        kinds.OK,
        position=Position,
    ),
    VoteReply: Message(
        VoteReply,
        Field("term", kinds.INT64),
        Field("voteGranted", kinds.BOOL, "granted"),
        Field("reason", kinds.TEXT),
        Field("voterId", _MEMBER, "voter"),
        Field("incarnation", kinds.TEXT),
        kinds.OK,
    ),
    ProgressReply: Message(
        ProgressReply,
        Field("term", kinds.INT64),
        Field("accepted", kinds.BOOL),
        Field("commitPoint", kinds.OPTIME),
        Field("commitTerm", kinds.INT64),
        kinds.OK,
    ),
}
_REPLY_TO: Final[dict[Any, Any]] = {
    HeartbeatRequest: HeartbeatReply,
    VoteRequest: VoteReply,
    ProgressRequest: ProgressReply,
}


def request_document(body: MemberRequest) -> RawDocument | dict[str, object]:
    """The command document of a request."""
    match body:
        case ProgressRequest():
            return progress_document(body)
        case StepUpRequest():
            return {STEP_UP: 1, "skipDryRun": body.skip_dry_run}
        case _:
            return REQUEST_MESSAGES[type(body)].document(body)


def parse_request(body: RawDocument) -> MemberRequest:
    """The request in a command document; its first field says which."""
    match body.first_key:
        case "replSetUpdatePosition":
            return _parse_position_layout(body.raw) or _parse_position(body)
        case "replSetStepUp":
            return StepUpRequest(body.get("skipDryRun") is True)
        case name if name in _BY_COMMAND:
            request: MemberRequest = REQUEST_MESSAGES[_BY_COMMAND[name]].parse(body)
            return request
        case other:
            raise RemoteProtocolError(f"{other!r:.80} is no request between members")


def parse_progress(document: RawDocument) -> ProgressRequest:
    """The position that comes with a fetch: a replSetUpdatePosition inside of it."""
    request = parse_request(document)
    if not isinstance(request, ProgressRequest):
        raise RemoteProtocolError("field 'progress' is no replSetUpdatePosition")
    return request


def reply_document(body: ReplyBody) -> RawDocument | dict[str, object]:
    """The reply document, `ok` included; a refusal is an error document."""
    match body:
        case Done():
            return {"info": body.info, "ok": 1.0} if body.info else {"ok": 1.0}
        case Refused():
            return {"ok": 0.0, "errmsg": cut_message(body.reason), "code": body.code, "codeName": code_name(body.code)}
        case _:
            return REPLY_MESSAGES[type(body)].document(body)


def parse_reply(request: MemberRequest, reply: RawDocument) -> ReplyBody:
    """The answer to `request`; an error document is `Refused`."""
    message = REPLY_MESSAGES.get(_REPLY_TO.get(type(request)))
    found: ReplyBody | None = None if message is None else message.scan(reply.raw)
    if found is not None:
        return found
    if reply.get("ok") != 1:
        code = reply.get("code")
        return Refused(int(code) if isinstance(code, int) else 1, str(reply.get("errmsg", "no reason given")))
    found = Done(str(reply.get("info", ""))) if message is None else message.read(reply)
    return found  # noqa: RET504 - its type is declared above


# --- positions --------------------------------------------------------------------------------------------------

# Written and read by hand, since a `Message` with rows in it took a third longer: each group of writes has one.


def progress_document(body: ProgressRequest) -> RawDocument:
    """The replSetUpdatePosition of these positions: a command, or a field of a fetch."""
    rows = []
    for progress in body.progress:
        position = progress.position
        incarnation = progress.incarnation.encode() + b"\0"
        row = _ROW.pack(
            timestamp_bits(position.last_durable.ts),
            position.last_durable.term,
            position.durable_wall_ms,
            timestamp_bits(position.last_applied.ts),
            position.last_applied.term,
            position.applied_wall_ms,
            progress.member_id,
            body.config_version,
        )
        rows.append(document_of(row, _INCARNATION, len(incarnation).to_bytes(4, "little"), incarnation))
    rest = _SENDER.pack(body.sender_id, body.term, body.config_version, body.config_term)
    set_id = b"" if body.set_id is None else _SET_ID_HEAD + body.set_id.binary
    return RawDocument(document_of(_OPTIMES, array_of(rows), rest, set_id))


_OPTIMES = encode({"replSetUpdatePosition": 1})[4:-1] + b"\x04optimes\0"
_ROW = Layout(
    {
        "durableOpTime": OPTIME_LAYOUT,
        "durableWallTime": slots.DATE,
        "appliedOpTime": OPTIME_LAYOUT,
        "appliedWallTime": slots.DATE,
        "memberId": slots.INT32,
        "cfgver": slots.INT64,
    }
)
_INCARNATION = b"\x02incarnation\0"
_SENDER = Layout(
    {"senderId": slots.INT32, "term": slots.INT64, "configVersion": slots.INT64, "configTerm": slots.INT64}
)
_SET_ID_HEAD = b"\x07setId\0"
_DB = b"\x02$db\0"


def _parse_position_layout(raw: bytes) -> ProgressRequest | None:
    """Read a position as `progress_document` makes it; None: it is written in another way."""
    start = 4 + len(_OPTIMES)
    end = start + int.from_bytes(raw[start : start + 4], "little")
    sender = _SENDER.unpack(raw, end)
    if sender is None or not raw.startswith(_OPTIMES, 4):
        return None
    at, set_id = end + _SENDER.size, None
    if raw.startswith(_SET_ID_HEAD, at):
        at += len(_SET_ID_HEAD) + 12
        set_id = ObjectId(raw[at - 12 : at])
    if at + 1 != len(raw) and not raw.startswith(_DB, at):
        return None
    rows = documents_of(raw[start:end])
    if len(rows) > MAX_PROGRESS:
        return None
    progress = tuple([row for row in map(_parse_row, rows) if row is not None])
    if len(progress) < len(rows):
        return None
    sender_id, term, config_version, config_term = sender
    return ProgressRequest(MemberId(sender_id), term, config_version, config_term, progress, set_id)


def _parse_row(raw: bytes) -> MemberProgress | None:
    found, at = _ROW.unpack(raw, 4), 4 + _ROW.size
    text = at + len(_INCARNATION) + 4
    if found is None or not raw.startswith(_INCARNATION, at):
        return None
    if int.from_bytes(raw[text - 4 : text], "little") != len(raw) - 1 - text or raw.find(b"\0", text) != len(raw) - 2:
        return None
    durable, durable_term, durable_wall, applied, applied_term, applied_wall, member_id, _ = found
    position = Position(
        optime_of_bits(applied, applied_term), optime_of_bits(durable, durable_term), applied_wall, durable_wall
    )
    try:
        return MemberProgress(MemberId(member_id), raw[text:-2].decode(), position)
    except UnicodeDecodeError:
        return None


def _parse_position(body: RawDocument) -> ProgressRequest:
    optimes = body.get_raw("optimes")
    if optimes is None or body.type_of("optimes") != 4:
        raise RemoteProtocolError("field 'optimes' is not an array")
    rows = documents_of(optimes)
    if len(rows) > MAX_PROGRESS:
        raise RemoteProtocolError(f"at most {MAX_PROGRESS} members in one replSetUpdatePosition")
    return ProgressRequest(
        MemberId(kinds.number(body, "senderId")),
        kinds.number(body, "term"),
        kinds.number(body, "configVersion"),
        kinds.number(body, "configTerm"),
        tuple(_parse_progress(RawDocument(row)) for row in rows),
        kinds.typed(body, "setId", ObjectId) if "setId" in body else None,
    )


def _parse_progress(row: RawDocument) -> MemberProgress:
    member, incarnation = row.get("memberId"), row.get("incarnation")
    if not isinstance(member, int) or not isinstance(incarnation, str):
        raise RemoteProtocolError("an element of optimes without memberId or incarnation")
    return MemberProgress(
        MemberId(int(member)),
        incarnation,
        _position(
            row.get("appliedOpTime"), row.get("durableOpTime"), row.get("appliedWallTime"), row.get("durableWallTime")
        ),
    )


def _position(applied: object, durable: object, applied_wall: object, durable_wall: object) -> Position:
    if not isinstance(applied_wall, DateTime) or not isinstance(durable_wall, DateTime):
        raise RemoteProtocolError("a position without the wall times of its entries")
    applied_at: OpTime = parse_optime(applied)
    return Position(applied_at, parse_optime(durable), applied_wall.ms, durable_wall.ms)

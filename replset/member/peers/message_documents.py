"""Converts core messages to the documents that members send each other, and back (map H2, H3, E4, R8).

The field names are MongoDB's. Fields that MongoDB does not have (incarnation,
rollbackId, httpAddress, commitPoint, commitTerm, hasData, memberId, candidateId, unacknowledgedRollbacks, quarantine,
overloaded, setId, reason, expectedMembers, holdsRole) are added. A malformed document or an impossible number is the
fault of the peer: RemoteProtocolError.
"""

from __future__ import annotations

from typing import TypeVar, assert_never

from replset.bson import DateTime, Int64, Layout, ObjectId, RawDocument, array_of, document_of, documents_of, encode
from replset.bson.layout import DATE, INT32, INT64
from replset.config import MAX_MEMBER_ID, MAX_MEMBERS, ReplSetConfig
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
from replset.optime import OPTIME_LAYOUT, optime_document, optime_of_bits, parse_optime, timestamp_bits

T = TypeVar("T")
MemberRequest = HeartbeatRequest | VoteRequest | ProgressRequest | StepUpRequest
HEARTBEAT, VOTES, POSITION, STEP_UP = (
    "replSetHeartbeat",
    "replSetRequestVotes",
    "replSetUpdatePosition",
    "replSetStepUp",
)
_NOBODY = -1
MAX_PROGRESS = 50
MAX_COUNT = (1 << 31) - 1


# --- requests ---------------------------------------------------------------------------------------------------


def request_document(body: MemberRequest) -> dict[str, object] | RawDocument:
    """The command document of a request."""
    match body:
        case HeartbeatRequest():
            return _heartbeat_request(body)
        case VoteRequest():
            return {
                VOTES: 1,
                "setName": body.set_name,
                "dryRun": body.dry_run,
                "term": Int64(body.term),
                "candidateId": int(body.candidate),
                "candidateIncarnation": body.candidate_incarnation,
                "configVersion": Int64(body.config_version),
                "configTerm": Int64(body.config_term),
                "lastAppliedOpTime": optime_document(body.last_applied),
                "reason": body.reason,
                **_set_id_field(body.set_id),
            }
        case ProgressRequest():
            return progress_document(body)
        case StepUpRequest():
            return {STEP_UP: 1, "skipDryRun": body.skip_dry_run}
        case _:
            assert_never(body)


def parse_request(body: RawDocument) -> MemberRequest:
    """The request in a command document; its first field says which."""
    match body.first_key:
        case "replSetHeartbeat":
            return HeartbeatRequest(
                _field(body, HEARTBEAT, str),
                HostPort(_field(body, "from", str)),
                _member(body, "fromId"),
                _number(body, "term"),
                _number(body, "configVersion"),
                _number(body, "configTerm"),
                _member(body, "primaryId"),
                _field(body, "incarnation", str),
                body.get("checkEmpty") is True,
                _set_id(body),
                _hosts(body, "expectedMembers"),
                body.get("holdsRole") is True,
            )
        case "replSetRequestVotes":
            return VoteRequest(
                _field(body, "setName", str),
                _number(body, "term"),
                MemberId(_number(body, "candidateId")),
                _field(body, "candidateIncarnation", str),
                _number(body, "configVersion"),
                _number(body, "configTerm"),
                parse_optime(body.get("lastAppliedOpTime")),
                _field(body, "dryRun", bool),
                _field(body, "reason", str) if "reason" in body else "",
                _set_id(body),
            )
        case "replSetUpdatePosition":
            return _parse_position_layout(body.raw) or _parse_position(body)
        case "replSetStepUp":
            return StepUpRequest(body.get("skipDryRun") is True)
        case other:
            raise RemoteProtocolError(f"{other!r:.80} is no request between members")


def parse_progress(document: RawDocument) -> ProgressRequest:
    """The position that comes with a fetch: a replSetUpdatePosition inside of it."""
    request = parse_request(document)
    if not isinstance(request, ProgressRequest):
        raise RemoteProtocolError("field 'progress' is no replSetUpdatePosition")
    return request


def _heartbeat_request(body: HeartbeatRequest) -> dict[str, object]:
    document: dict[str, object] = {HEARTBEAT: body.set_name}
    if body.check_empty:
        document["checkEmpty"] = True
    document |= {
        "configVersion": Int64(body.config_version),
        "configTerm": Int64(body.config_term),
        "hbv": 1,
        "from": str(body.sender),
        "fromId": _id_or_nobody(body.sender_id),
        "term": Int64(body.term),
        "primaryId": _id_or_nobody(body.primary_id),
        "incarnation": body.incarnation,
    }
    if body.expected:
        document["expectedMembers"] = [str(host) for host in body.expected]
    if body.holds_role:
        document["holdsRole"] = True
    return document | _set_id_field(body.set_id)


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
    set_id = b"" if body.set_id is None else _SET_ID + body.set_id.binary
    return RawDocument(document_of(_OPTIMES, array_of(rows), rest, set_id))


_OPTIMES = encode({POSITION: 1})[4:-1] + b"\x04optimes\0"
_ROW = Layout(
    {
        "durableOpTime": OPTIME_LAYOUT,
        "durableWallTime": DATE,
        "appliedOpTime": OPTIME_LAYOUT,
        "appliedWallTime": DATE,
        "memberId": INT32,
        "cfgver": INT64,
    }
)
_INCARNATION = b"\x02incarnation\0"
_SENDER = Layout({"senderId": INT32, "term": INT64, "configVersion": INT64, "configTerm": INT64})
_SET_ID = b"\x07setId\0"
_DB = b"\x02$db\0"


def _parse_position_layout(raw: bytes) -> ProgressRequest | None:
    """Read a position as `progress_document` makes it; None: it is written in another way."""
    start = 4 + len(_OPTIMES)
    end = start + int.from_bytes(raw[start : start + 4], "little")
    sender = _SENDER.unpack(raw, end)
    if sender is None or not raw.startswith(_OPTIMES, 4):
        return None
    at, set_id = end + _SENDER.size, None
    if raw.startswith(_SET_ID, at):
        at += len(_SET_ID) + 12
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
        MemberId(_number(body, "senderId")),
        _number(body, "term"),
        _number(body, "configVersion"),
        _number(body, "configTerm"),
        tuple(_parse_progress(RawDocument(row)) for row in rows),
        _set_id(body),
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


# --- replies ----------------------------------------------------------------------------------------------------


def reply_document(body: ReplyBody) -> dict[str, object]:
    """The reply document, `ok` included; a refusal is an error document."""
    match body:
        case HeartbeatReply():
            return _heartbeat_reply(body)
        case VoteReply():
            return {
                "term": Int64(body.term),
                "voteGranted": body.granted,
                "reason": body.reason,
                "voterId": _id_or_nobody(body.voter),
                "incarnation": body.incarnation,
                "ok": 1.0,
            }
        case ProgressReply():
            return {
                "term": Int64(body.term),
                "accepted": body.accepted,
                "commitPoint": optime_document(body.commit_point),
                "commitTerm": Int64(body.commit_term),
                "ok": 1.0,
            }
        case Done():
            return {"info": body.info, "ok": 1.0} if body.info else {"ok": 1.0}
        case Refused():
            return {"ok": 0.0, "errmsg": cut_message(body.reason), "code": body.code, "codeName": code_name(body.code)}
        case _:
            assert_never(body)


def parse_reply(request: MemberRequest, reply: RawDocument) -> ReplyBody:
    """The answer to `request`; an error document is `Refused`."""
    if reply.get("ok") != 1:
        code = reply.get("code")
        return Refused(int(code) if isinstance(code, int) else 1, str(reply.get("errmsg", "no reason given")))
    match request:
        case HeartbeatRequest():
            return _parse_heartbeat_reply(reply)
        case VoteRequest():
            return VoteReply(
                _number(reply, "term"),
                _field(reply, "voteGranted", bool),
                _field(reply, "reason", str),
                _member(reply, "voterId"),
                _field(reply, "incarnation", str),
            )
        case ProgressRequest():
            return ProgressReply(
                _number(reply, "term"),
                _field(reply, "accepted", bool),
                parse_optime(reply.get("commitPoint")),
                _number(reply, "commitTerm"),
            )
        case StepUpRequest():
            return Done(str(reply.get("info", "")))
        case _:
            assert_never(request)


def _heartbeat_reply(body: HeartbeatReply) -> dict[str, object]:
    position = body.position
    document: dict[str, object] = {}
    if body.election_wall_ms is not None:
        document["electionTime"] = DateTime(body.election_wall_ms)
    if body.config is not None:
        document["config"] = body.config.document(internal=True)
    document |= {
        "state": int(body.state),
        "v": Int64(body.config_version),
        "configTerm": Int64(body.config_term),
        "set": body.set_name,
    }
    if body.sync_source is not None:
        document["syncingTo"] = str(body.sync_source)
    return document | {
        "term": Int64(body.term),
        "primaryId": _id_or_nobody(body.primary_id),
        "durableOpTime": optime_document(position.last_durable),
        "durableWallTime": DateTime(position.durable_wall_ms),
        "opTime": optime_document(position.last_applied),
        "wallTime": DateTime(position.applied_wall_ms),
        "electable": body.electable,
        "memberId": _id_or_nobody(body.member_id),
        "commitPoint": optime_document(body.commit_point),
        "incarnation": body.incarnation,
        "rollbackId": body.rollback_id,
        "httpAddress": body.http_address,
        "hasData": body.has_data,
        "unacknowledgedRollbacks": body.unacknowledged_rollbacks,
        "quarantine": body.quarantine,
        "commitTerm": Int64(body.commit_term),
        **({"overloaded": True} if body.overloaded else {}),
        **({"holdsRole": True} if body.holds_role else {}),
        "ok": 1.0,
    }


def _parse_heartbeat_reply(reply: RawDocument) -> HeartbeatReply:
    config, election, source = reply.get("config"), reply.get("electionTime"), reply.get("syncingTo")
    try:
        state = MemberState(_number(reply, "state"))
    except ValueError as error:
        raise RemoteProtocolError(f"no member state: {error}") from None
    return HeartbeatReply(
        _field(reply, "set", str),
        _number(reply, "term"),
        state,
        _member(reply, "memberId"),
        _number(reply, "v"),
        _number(reply, "configTerm"),
        ReplSetConfig.parse(config) if isinstance(config, dict) else None,
        _member(reply, "primaryId"),
        _position(reply.get("opTime"), reply.get("durableOpTime"), reply.get("wallTime"), reply.get("durableWallTime")),
        parse_optime(reply.get("commitPoint")),
        _field(reply, "electable", bool),
        election.ms if isinstance(election, DateTime) else None,
        HostPort(source) if isinstance(source, str) else None,
        _field(reply, "incarnation", str),
        _number(reply, "rollbackId"),
        _field(reply, "httpAddress", str),
        _field(reply, "hasData", bool),
        _count(reply, "unacknowledgedRollbacks"),
        _field(reply, "quarantine", str),
        _number(reply, "commitTerm") if "commitTerm" in reply else 0,
        reply.get("overloaded") is True,
        reply.get("holdsRole") is True,
    )


# --- fields -----------------------------------------------------------------------------------------------------


def _field(document: RawDocument, name: str, kind: type[T]) -> T:
    value = document.get(name)
    if not isinstance(value, kind):
        raise RemoteProtocolError(f"field {name!r} is not {kind.__name__}: {value!r:.100}")
    return value


def _number(document: RawDocument, name: str) -> int:
    value = document.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise RemoteProtocolError(f"field {name!r} is no whole number: {value!r:.100}")
    return int(value)


def _count(document: RawDocument, name: str) -> int:
    """A number of things, which others are added to."""
    number = _number(document, name)
    if not 0 <= number <= MAX_COUNT:
        raise RemoteProtocolError(f"field {name!r} is no number of things: {number}")
    return number


def _member(document: RawDocument, name: str) -> MemberId | None:
    number = _number(document, name)
    if not _NOBODY <= number <= MAX_MEMBER_ID:
        raise RemoteProtocolError(f"field {name!r} is no member's _id: {number}")
    return None if number == _NOBODY else MemberId(number)


def _hosts(document: RawDocument, name: str) -> tuple[HostPort, ...]:
    rows = _field(document, name, list) if name in document else []
    if len(rows) > MAX_MEMBERS or not all(isinstance(row, str) for row in rows):
        raise RemoteProtocolError(f"field {name!r} is no list of hosts")
    return tuple(HostPort(str(row)) for row in rows)


def _set_id(document: RawDocument) -> ObjectId | None:
    """The set that the sender belongs to; absent from a member that has no configuration."""
    return _field(document, "setId", ObjectId) if "setId" in document else None


def _set_id_field(set_id: ObjectId | None) -> dict[str, object]:
    return {} if set_id is None else {"setId": set_id}


def _id_or_nobody(member_id: MemberId | None) -> int:
    return _NOBODY if member_id is None else int(member_id)


def _position(applied: object, durable: object, applied_wall: object, durable_wall: object) -> Position:
    if not isinstance(applied_wall, DateTime) or not isinstance(durable_wall, DateTime):
        raise RemoteProtocolError("a position without the wall times of its entries")
    applied_at: OpTime = parse_optime(applied)
    return Position(applied_at, parse_optime(durable), applied_wall.ms, durable_wall.ms)

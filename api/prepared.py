"""Answers a write of one document whose head its connection has sent before, without uvicorn and the web framework.

A head is remembered once a request with it went the whole way: what the limits, the guard and the routes say of it
depends on its bytes alone, except for what `PreparedActions.begin` looks at. The body is read by the functions that the
usual way uses, and the write joins the next group as one of the wire port does (operations/prepared.py). Whatever
is not foreseen goes the usual way with the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final

from api.action_table import ACTIONS
from api.actions import ActionCommand, ActionType, action_answer, build_command
from api.bodies import Form, form_of, parse_fields
from api.commands import check_reply
from api.errors import HttpError
from api.exchange import IDEMPOTENCY_KEY, HttpAnswer, answer_headers, encode_answer, error_answer
from replset.bson import RawDocument, encode
from replset.core.quorum import MAJORITY
from replset.errors import ErrorCode, ReplError
from replset.member.member import RunningMember
from replset.operations.evaluation import SMALL_STATEMENT
from replset.operations.namespaces import writable_namespace
from replset.operations.prepared import PreparedWrite
from replset.operations.replies import write_reply_fields
from replset.operations.request import CommandRequest, ConnectionContext
from replset.operations.shapes import Target
from replset.operations.user_directory import UserDirectory
from replset.operations.write_concern import parse_write_concern, refuse_unsatisfiable

PATHS: Final = {f"/v1/action/{name}": ACTIONS[name] for name in ("insertOne", "updateOne", "replaceOne", "deleteOne")}
MOST_HEADS: Final = 4
"""That a connection remembers."""
_LENGTH: Final = b"content-length:"
_REFUSED_HEADERS: Final = frozenset({b"authorization", b"expect", b"transfer-encoding", b"upgrade", IDEMPOTENCY_KEY})
_ARRAYS: Final = {"insert": "documents", "update": "updates", "delete": "deletes"}


@dataclass(slots=True, eq=False)
class Head:
    """A request's head. before, after: its bytes around the digits of the body's length. form: of the answer."""

    action: ActionType
    before: bytes
    after: bytes
    content_type: str
    form: Form

    def body_in(self, request: bytes) -> bytes | None:
        """Return the body of a whole request with this head; None: it is another one."""
        if not request.startswith(self.before):
            return None
        start = len(self.before)
        end = request.find(b"\r", start, start + 8)
        if end < 0 or not request.startswith(self.after, end):
            return None
        digits = request[start:end]
        body = request[end + len(self.after) :]
        return body if digits.isdigit() and int(digits) == len(body) else None


def head_of(path: str, status: int, request: bytes, headers: list[tuple[bytes, bytes]]) -> Head | None:
    """Return the head of a request that was answered with this status; None: it has something that is not foreseen.

    headers: of the request, with names in lower case.
    """
    action = PATHS.get(path)
    if action is None or status != action.status:
        return None
    names = [name for name, _ in headers]
    at = request.lower().find(b"\r\n" + _LENGTH)
    if names.count(b"content-length") != 1 or at < 0 or not _REFUSED_HEADERS.isdisjoint(names):
        return None
    start = at + 2 + len(_LENGTH)
    while request[start : start + 1] == b" ":
        start += 1
    end = request.find(b"\r", start)
    head_end = request.find(b"\r\n\r\n") + 4
    if not request[start:end].isdigit() or not end < head_end:
        return None
    fields = dict(headers)
    accept, content_type = (fields.get(name, b"").decode("latin-1") for name in (b"accept", b"content-type"))
    return Head(action, request[:start], request[end:head_end], content_type, form_of(accept))


@lru_cache(maxsize=256)
def _target(name: str, database: str, collection: str) -> Target:
    """Return where a write goes. ReplError: clients may not write there."""
    writable_namespace(database, collection)
    return Target(name, database, collection)


class PreparedActions:
    """Takes requests with a known head, on one member."""

    def __init__(self, member: RunningMember) -> None:
        self._member = member

    def encode(self, form: Form, answer: HttpAnswer) -> tuple[bytes, list[tuple[bytes, bytes]]]:
        """Return the body and the headers of an answer."""
        body = encode_answer(self._member, form, answer)
        return body, answer_headers(form, answer, body)

    def begin(
        self, head: Head, body: bytes, client: str, finish: Callable[[HttpAnswer | None], None]
    ) -> PreparedWrite | None:
        """Put the write of a body into the next group; None: it has to go the usual way.

        finish: called with the answer once there is one; with None if the request has to go the usual way after all.
        """
        member = self._member
        prepared = member.dispatcher.prepared
        if len(body) > SMALL_STATEMENT or member[UserDirectory].required or member.admission.is_full:
            return None
        if not prepared.may_take():
            return None
        try:
            command = build_command(head.action, parse_fields(head.content_type, body), member.new_id)
            fields = command.body
            name = next(iter(fields))
            if not fields.keys() <= {name, _ARRAYS[name], "writeConcern"} or command.is_unacknowledged:
                return None
            concern = None
            if "writeConcern" in fields:
                raw: RawDocument = fields["writeConcern"]
                if "w" not in raw:
                    return None
                concern = parse_write_concern(raw.raw, lambda: MAJORITY)
                refuse_unsatisfiable(member.node.config, concern)
            target = _target(name, command.database, fields[name])
            (statement,) = fields[_ARRAYS[name]]
            prepare = member.dispatcher.commands[name].prepared
            work = prepare and prepare(statement.raw if name == "insert" else encode(statement), member)
            if work is None:
                return None
            request, answered = partial(_request_of, command, client), partial(_finish, finish, head.action, command)
            return prepared.begin(target, work, concern, None, request, answered, write_reply_fields)
        except (HttpError, ReplError):
            return None


def _request_of(command: ActionCommand, client: str) -> CommandRequest:
    """Return the request that the usual way would have made."""
    rest = {**command.body}
    sequences = {"documents": rest.pop("documents")} if "documents" in rest else {}
    body = RawDocument(encode(rest))
    return CommandRequest(command.database, body, sequences, ConnectionContext(peer=client), "http")


def _finish(
    finish: Callable[[HttpAnswer | None], None],
    action: ActionType,
    command: ActionCommand,
    reply: dict[str, Any] | bytes | None,
) -> None:
    """Make the answer of the reply. A member that leads no more forwards the write, which is the usual way's."""
    if reply is None:
        finish(None)
        return
    found = RawDocument(reply) if isinstance(reply, bytes) else reply
    if found.get("ok") != 1 and found.get("code") == ErrorCode.NOT_WRITABLE_PRIMARY:
        finish(None)
        return
    try:
        answer = action_answer(action, check_reply(found, is_write=True), command)
    except HttpError as error:
        answer = error_answer(error)
    finish(answer)

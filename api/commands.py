"""Runs a command on this member, or forwards a write once to the primary."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, quote, urlencode

from api.errors import HttpError, failure, http_error, unknown_outcome
from api.exchange import HttpRequest
from replset.bson import MAX_BSON_SIZE, RawDocument, encode
from replset.core.quorum import MAJORITY, WriteConcern
from replset.errors import ErrorCode, HostUnreachableError, NothingSentError, ReplError, Trait, has_trait
from replset.features.all import COMMANDS
from replset.ids import HostPort, Millis
from replset.member.member import RunningMember
from replset.operations.authorization import authorize
from replset.operations.replies import decode_only_batch, decode_write_reply
from replset.operations.request import CommandRequest, ConnectionContext
from replset.operations.session_request import KEYED, foreign_session
from replset.operations.write_concern import parse_write_concern, refuse_unsatisfiable
from replset.optime import optime_or_none

Reply: TypeAlias = dict[str, Any] | RawDocument

FORWARDED_TO = "x-replset-forwarded-to"
FORWARD_MS = 600_000
"""Time limit of a forwarded write without one of its own."""
MARGIN_MS = 10_000
"""Added to the client's time limit, so that the primary's own answer arrives before the limit here ends."""
PRIMARY_CHECK_S = 0.5
"""A forwarded write checks this often that its primary still is the primary."""
MAX_CHECKS_WITHOUT_PRIMARY = 6
_PATH_SAFE = "/:@!$&'()*+,;=~"
"""Characters that a path may hold unquoted. An unquoted control character would begin a header of its own."""
ERROR_FIELDS = frozenset({"ok", "code", "codeName", "errmsg", "operationTime", "$clusterTime"})


async def run_command(
    member: RunningMember,
    command: Mapping[str, Any] | RawDocument,
    database: str,
    sender: ConnectionContext,
    batch_bytes: int = MAX_BSON_SIZE,
) -> Reply:
    """Run one command on this member and return its reply, also when the reply says ok: 0.

    batch_bytes: of a cursor's documents at once.
    """
    sequences: dict[str, list[RawDocument]] = {}
    try:
        if isinstance(command, RawDocument):
            body = command  # a client's own
            if bytes(KEYED) in (body.get_raw("lsid") or b""):
                raise foreign_session()
        else:
            rest = {**command}
            if "documents" in rest:  # beside the command they need not be copied into it and cut out again
                sequences["documents"] = rest.pop("documents")
            body = RawDocument(encode(rest))
    except ReplError as error:
        raise http_error(error) from error
    request = CommandRequest(database, body, sequences, sender, "http", batch_bytes=batch_bytes)
    reply = await member.dispatcher.run(request)
    return decode_only_batch(reply) or RawDocument(reply) if isinstance(reply, bytes) else reply


def decode_reply(reply: Reply) -> dict[str, Any]:
    return reply.decode() if isinstance(reply, RawDocument) else reply


def check_reply(reply: Reply, *, is_write: bool = False) -> Reply:
    """Return the reply, or raise HttpError when it says ok: 0.

    is_write: with some codes a part of the write may be applied. Then the error is a 504 that says so.
    """
    if reply.get("ok") == 1:
        return reply
    whole = decode_reply(reply)
    details = {name: value for name, value in whole.items() if name not in ERROR_FIELDS}
    code, text = int(whole.get("code", ErrorCode.INTERNAL_ERROR)), str(whole.get("errmsg", ""))
    optime = optime_or_none(details.get("opTime"))
    if optime is not None:
        details["optime"] = str(optime)  # as GET /v1/replset/writes/{optime} takes it
    # A 503 promises that nothing was applied, so the client writes again. For a write whose outcome is unknown that
    # would apply it twice. The 504 tells the client to look first.
    if is_write and (has_trait(code, Trait.UNKNOWN) or (code == ErrorCode.MAX_TIME_EXPIRED and "opTime" in details)):
        raise unknown_outcome(code, text, details)
    raise failure(code, text, details=details)


async def run_write(
    member: RunningMember, request: HttpRequest, command: Mapping[str, Any], database: str
) -> tuple[Reply, dict[str, str]]:
    """Run a write here or, once, on the primary of the newest term known.

    Returns the reply, and headers that name the member that the write was forwarded to. HttpError: 307 with
    forward=false, 503 when no primary takes the write (nothing was applied), 504 when the outcome is unknown.
    """
    forward = request.wants_forwarding()
    if member.node.writable:
        reply = await run_command(member, command, database, request.sender)
        if isinstance(reply, RawDocument):
            reply = decode_write_reply(reply.raw) or reply
        if reply.get("ok") == 1 or reply.get("code") != ErrorCode.NOT_WRITABLE_PRIMARY:
            return reply, {}
    authorize(member, request.sender, COMMANDS[next(iter(command))].needs, database, next(iter(command)))
    primary = member.node.primary_host
    if primary is None or primary == member.host:
        raise failure(ErrorCode.NOT_WRITABLE_PRIMARY, "no primary takes writes now; nothing was applied")
    if not forward:
        raise _redirect(member, primary, request)
    limit_ms = _time_limit(command, _check_write_concern(member, command))
    return await _forward(member, primary, command, database, request.sender, limit_ms), {FORWARDED_TO: primary}


def _redirect(member: RunningMember, primary: HostPort, request: HttpRequest) -> HttpError:
    address = member.node.http_address_of(primary)
    if not address:
        return failure(ErrorCode.NOT_WRITABLE_PRIMARY, f"the primary is {primary}; its HTTP address is not known yet")
    rest = urlencode([(name, value) for name, value in parse_qsl(request.query) if name != "forward"])
    base = f"{request.scheme}://{address}"
    location = f"{base}{quote(request.path, safe=_PATH_SAFE)}{'?' + rest if rest else ''}"
    text = f"this member is not primary; the primary's HTTP API is at {base}"
    return failure(ErrorCode.NOT_WRITABLE_PRIMARY, text, status=307, headers={"location": location})


def _check_write_concern(member: RunningMember, command: Mapping[str, object]) -> WriteConcern | None:
    """Return the command's own write concern; one that can never be met is refused (79, 100) before the write is sent.

    The primary gets a forwarded write on its wire port. There MongoDB's rule holds: the write is applied first, and the
    write concern fails afterwards. Over HTTP such a write must not be applied at all.
    """
    concern, config = command.get("writeConcern"), member.node.config
    if not isinstance(concern, RawDocument) or config is None:
        return None
    try:
        parsed = parse_write_concern(concern.raw, lambda: MAJORITY)
        refuse_unsatisfiable(config, parsed)
    except ReplError as error:
        raise http_error(error) from error
    return parsed


async def _forward(
    member: RunningMember,
    primary: HostPort,
    command: Mapping[str, object],
    database: str,
    sender: ConnectionContext,
    limit_ms: Millis,
) -> Reply:
    """Return the primary's reply. The wait ends early when that member is not the primary any more."""
    forwarded = {**command, "$replsetForwarded": _sender(sender)}
    call = asyncio.ensure_future(member.peer.call(primary, forwarded, timeout_ms=limit_ms, database=database))
    checks_without_primary = 0
    try:
        while not call.done():
            await asyncio.wait([call], timeout=PRIMARY_CHECK_S)
            known = member.node.primary_host
            checks_without_primary = checks_without_primary + 1 if known is None else 0
            is_replaced = known not in (None, primary) or checks_without_primary >= MAX_CHECKS_WITHOUT_PRIMARY
            if not call.done() and is_replaced:
                raise _forwarding_failed(primary, f"{primary} is not primary any more, and did not answer")
        return call.result()
    except NothingSentError as error:
        raise failure(error.code, f"the primary {primary} does not answer; nothing was applied") from error
    except HostUnreachableError as error:
        # The connection broke after the command was sent. The primary may have applied the write, so the answer must
        # not say that nothing was applied.
        raise _forwarding_failed(primary, error.message) from error
    except ReplError as error:  # the command has no BSON form, so nothing was sent
        raise http_error(error) from error
    finally:
        call.cancel()


def _sender(sender: ConnectionContext) -> object:
    """Who sends a forwarded write: the primary decides by his rights there whether he may."""
    login = sender.login
    return True if login is None else {"user": login.name, "db": login.database}


def _forwarding_failed(primary: HostPort, text: str) -> HttpError:
    error = unknown_outcome(ErrorCode.HOST_UNREACHABLE, f"the outcome is unknown: {text}")
    error.headers[FORWARDED_TO] = primary
    return error


def _time_limit(command: Mapping[str, object], concern: WriteConcern | None) -> Millis:
    """Return how long the primary may take: the client's shortest time limit and a margin."""
    given = [command.get("maxTimeMS"), 0 if concern is None else concern.wtimeout_ms]
    limits = [int(value) for value in given if isinstance(value, int) and not isinstance(value, bool) and value > 0]
    return Millis(min(FORWARD_MS, min(limits) + MARGIN_MS) if limits else FORWARD_MS)

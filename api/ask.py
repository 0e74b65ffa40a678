"""Asking members: run a command here, or a write once on the primary when this member is not it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, quote, urlencode

from api.errors import OUTCOME_UNKNOWN, HttpError, failure, of, unknown_outcome
from api.exchange import Asked
from api.ports import ApiDispatcher, ApiMember
from replset.bson import RawDocument, encode
from replset.commands.ports import CommandRequest, ConnectionContext
from replset.commands.write_concern import parse_write_concern
from replset.core.write_concern import WriteConcern, unsatisfiable
from replset.errors import ErrorCode, HostUnreachableError, NothingSentError, ReplError
from replset.ids import HostPort, Millis

Reply: TypeAlias = dict[str, Any] | RawDocument

FORWARDED_TO = "x-replset-forwarded-to"
FORWARD_MS = 600_000
"""How long a forwarded write without a time limit of its own may take, as long as that member stays primary."""
MARGIN_MS = 10_000
LOOK_S = 0.5
"""How often a forwarded write looks whether its primary still is one."""
LOOKS_WITHOUT_PRIMARY = 6
_PATH_SAFE = "/:@!$&'()*+,;=~"
"""What a path may hold as it is; a control character in it would become a header of its own."""
ERROR_FIELDS = frozenset({"ok", "code", "codeName", "errmsg", "operationTime", "$clusterTime"})


async def run(
    dispatcher: ApiDispatcher, command: Mapping[str, object] | RawDocument, database: str, client: str = ""
) -> Reply:
    """Run one command on this member; the reply, whatever it says."""
    try:
        body = command if isinstance(command, RawDocument) else RawDocument(encode(command))
    except ReplError as error:
        raise of(error) from error
    reply = await dispatcher.run(CommandRequest(database, body, {}, ConnectionContext(peer=client), "http"))
    return RawDocument(reply) if isinstance(reply, bytes) else reply


def decoded(reply: Reply) -> dict[str, Any]:
    return reply.decode() if isinstance(reply, RawDocument) else reply


def check(reply: Reply, *, writes: bool = False) -> Reply:
    """The reply; HttpError when it says ok: 0. writes: what may have been applied of it is said to be unknown."""
    if reply.get("ok") == 1:
        return reply
    whole = decoded(reply)
    details = {name: value for name, value in whole.items() if name not in ERROR_FIELDS}
    code, text = int(whole.get("code", 1)), str(whole.get("errmsg", ""))
    if writes and (code in OUTCOME_UNKNOWN or (code == ErrorCode.MAX_TIME_EXPIRED and "opTime" in details)):
        raise unknown_outcome(code, text, details)
    raise failure(code, text, details=details)


async def run_write(
    dispatcher: ApiDispatcher, member: ApiMember, asked: Asked, command: Mapping[str, object], database: str
) -> tuple[Reply, dict[str, str]]:
    """Run a write here or, once, on the primary of the newest term known; the reply, and headers that say where.

    HttpError: 307 with forward=false, 503 when no primary takes it (nothing was applied), 504 when nobody knows.
    """
    forward = asked.forwards()
    if member.node.writable:
        reply = await run(dispatcher, command, database, asked.client)
        if reply.get("ok") == 1 or reply.get("code") != ErrorCode.NOT_WRITABLE_PRIMARY:
            return reply, {}
    primary = member.node.primary_host
    if primary is None or primary == member.host:
        raise failure(ErrorCode.NOT_WRITABLE_PRIMARY, "no primary takes writes now; nothing was applied")
    if not forward:
        raise _redirect(member, primary, asked)
    _refuse_unsatisfiable(member, command)
    return await _forward(member, primary, command, database), {FORWARDED_TO: primary}


def _redirect(member: ApiMember, primary: HostPort, asked: Asked) -> HttpError:
    address = member.http_address_of(primary)
    if not address:
        return failure(ErrorCode.NOT_WRITABLE_PRIMARY, f"the primary is {primary}; its HTTP address is not known yet")
    rest = urlencode([(name, value) for name, value in parse_qsl(asked.query) if name != "forward"])
    location = f"http://{address}{quote(asked.path, safe=_PATH_SAFE)}{'?' + rest if rest else ''}"
    text = f"this member is not primary; the primary's HTTP API is at http://{address}"
    return failure(ErrorCode.NOT_WRITABLE_PRIMARY, text, status=307, headers={"location": location})


def _refuse_unsatisfiable(member: ApiMember, command: Mapping[str, object]) -> None:
    """On the primary it arrives by the wire port, where it is applied first; over HTTP it is refused before (100)."""
    concern, config = command.get("writeConcern"), member.node.config
    if not isinstance(concern, RawDocument) or config is None:
        return
    try:
        w, j, wtimeout_ms = parse_write_concern(concern.raw)
    except ReplError as error:
        raise of(error) from error
    refusal = None if w is None else unsatisfiable(config, WriteConcern(w, j, wtimeout_ms))
    if refusal is not None:
        raise failure(refusal.code, refusal.reason)


async def _forward(member: ApiMember, primary: HostPort, command: Mapping[str, object], database: str) -> Reply:
    """The primary's reply. A primary that is not one any more is not waited for."""
    call = asyncio.ensure_future(
        member.peer.call(
            primary, {**command, "$replsetForwarded": True}, timeout_ms=_patience(command), database=database
        )
    )
    without = 0
    try:
        while not call.done():
            await asyncio.wait([call], timeout=LOOK_S)
            known = member.node.primary_host
            without = without + 1 if known is None else 0
            if not call.done() and (known not in (None, primary) or without >= LOOKS_WITHOUT_PRIMARY):
                raise _lost(primary, f"{primary} is not primary any more, and did not answer")
        return call.result()
    except NothingSentError as error:
        raise failure(error.code, f"the primary {primary} does not answer; nothing was applied") from error
    except HostUnreachableError as error:
        raise _lost(primary, error.message) from error
    except ReplError as error:  # the command has no BSON form: nothing was sent
        raise of(error) from error
    finally:
        call.cancel()


def _lost(primary: HostPort, text: str) -> HttpError:
    error = unknown_outcome(6, f"the outcome is unknown: {text}")
    error.headers[FORWARDED_TO] = primary
    return error


def _patience(command: Mapping[str, object]) -> Millis:
    """How long the primary may take: what the client gives it, and a margin."""
    concern = command.get("writeConcern")
    given = [command.get("maxTimeMS"), concern.get("wtimeout") if isinstance(concern, RawDocument) else None]
    limits = [int(value) for value in given if isinstance(value, int) and not isinstance(value, bool) and value > 0]
    return Millis(min(FORWARD_MS, min(limits) + MARGIN_MS) if limits else FORWARD_MS)

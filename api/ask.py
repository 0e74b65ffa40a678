"""Asking a member: run a command here, or on the primary when it is a write and this member is not it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api.content import HttpError, failure, from_repl_error
from api.ports import ApiDispatcher, ApiMember
from replset.bson import RawDocument, decode, encode
from replset.commands.ports import CommandRequest, ConnectionContext
from replset.commands.write_concern import parse_write_concern
from replset.core.write_concern import WriteConcern, unsatisfiable
from replset.errors import HostUnreachableError, ReplError
from replset.ids import HostPort, Millis

FORWARD_MS = 60_000
FORWARDED_TO = "x-replset-forwarded-to"
NOT_PRIMARY = 10107


async def run(
    dispatcher: ApiDispatcher, command: Mapping[str, object], database: str, client: str = ""
) -> dict[str, Any]:
    """Run one command on this member; the reply, whatever it says."""
    try:
        body = RawDocument(encode(command))
    except ReplError as error:
        raise from_repl_error(error) from error
    request = CommandRequest(database, body, {}, ConnectionContext(peer=client), "http")
    reply = await dispatcher.run(request)
    return decode(reply) if isinstance(reply, bytes) else {**reply}


def check(reply: dict[str, Any]) -> dict[str, Any]:
    """The reply; HttpError when it says ok: 0."""
    if reply.get("ok") != 1:
        more = {name: value for name, value in reply.items() if name not in ("ok", "code", "codeName", "errmsg")}
        raise failure(int(reply.get("code", 1)), str(reply.get("errmsg", "")), details=more)
    return reply


async def run_write(
    dispatcher: ApiDispatcher,
    member: ApiMember,
    command: Mapping[str, object],
    database: str,
    *,
    path: str,
    query: str,
    forward: bool,
    client: str = "",
) -> tuple[dict[str, Any], dict[str, str]]:
    """Run a write here or, once, on the primary of the newest term known; the reply and headers that tell where.

    307 with forward=false; 503 when no primary is known; 504 when the connection to it broke and nobody knows.
    """
    if member.node.writable:
        return await run(dispatcher, command, database, client), {}
    primary = member.node.primary_host
    if primary is None or primary == member.host:
        raise failure(NOT_PRIMARY, "no primary is known now; nothing was applied")
    if not forward:
        raise _redirect(member, primary, path, query)
    _refuse_unsatisfiable(member, command)
    try:
        reply = await member.peer.call(
            primary, {**command, "$replsetForwarded": True}, timeout_ms=_patience(command), database=database
        )
    except HostUnreachableError as error:
        text = f"the outcome is not known: {error.message}"
        raise HttpError(
            504,
            {**failure(6, text).body, "applied": "unknown"},
            {"x-replset-applied": "unknown", FORWARDED_TO: primary},
        ) from error
    return reply.decode(), {FORWARDED_TO: primary}


def _redirect(member: ApiMember, primary: HostPort, path: str, query: str) -> HttpError:
    address = member.http_address_of(primary)
    if address is None:
        return failure(NOT_PRIMARY, f"the primary is {primary}; its HTTP address is not known yet")
    rest = "&".join(part for part in query.split("&") if part and part != "forward=false")
    location = f"http://{address}{path}{'?' + rest if rest else ''}"
    body = failure(NOT_PRIMARY, f"not primary; the primary's HTTP API is at http://{address}").body
    return HttpError(307, body, {"location": location})


def _refuse_unsatisfiable(member: ApiMember, command: Mapping[str, object]) -> None:
    """On the primary it would come in by the wire, where it is applied first; over HTTP it is refused before."""
    concern, config = command.get("writeConcern"), member.node.config
    if not isinstance(concern, Mapping) or config is None:
        return
    try:
        w, j, wtimeout_ms = parse_write_concern(encode(concern))
    except ReplError as error:
        raise from_repl_error(error) from error
    refusal = None if w is None else unsatisfiable(config, WriteConcern(w, j, wtimeout_ms))
    if refusal is not None:
        raise failure(refusal.code, refusal.reason)


def _patience(command: Mapping[str, object]) -> Millis:
    """How long the primary may take: what the client gave it, and a little for the way."""
    concern = command.get("writeConcern")
    given = [command.get("maxTimeMS"), concern.get("wtimeout") if isinstance(concern, Mapping) else None]
    limits = [int(value) for value in given if isinstance(value, int) and value > 0]
    return Millis(min(limits) + 5_000 if limits else FORWARD_MS)

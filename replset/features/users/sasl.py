"""saslStart, saslContinue, logout and connectionStatus: how a client of the wire port shows who it is (map B7)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from replset.auth.roles import Action, Role
from replset.auth.scram import MECHANISM, NONCE_BYTES, ServerExchange
from replset.auth.users import SaslConversation
from replset.bson import Binary, RawDocument
from replset.errors import AuthenticationFailedError, BadValueError, ErrorCode, ReplError
from replset.operations import fields
from replset.operations.audit_trail import AuditTrail
from replset.operations.command import Command, CommandContext
from replset.operations.request import Reply
from replset.operations.user_directory import UserDirectory

CONVERSATION: Final = 1


async def sasl_start(ctx: CommandContext) -> Reply:
    """Begin to log in."""
    return await _start(ctx, ctx.body, ctx.database)


async def start_with_hello(ctx: CommandContext) -> dict[str, object]:
    """The field of hello with the answer to a login that it begins; none where it cannot begin so."""
    begun = fields.document(ctx.body, "speculativeAuthenticate", ctx.name)
    database = None if begun is None else begun.get("db")
    if begun is None or begun.first_key != "saslStart" or not isinstance(database, str):
        return {}
    try:
        return {"speculativeAuthenticate": await _start(ctx, begun, database)}
    except ReplError:
        return {}  # the client begins again, and is told why then


async def _start(ctx: CommandContext, body: RawDocument, database: str) -> dict[str, object]:
    connection, users = ctx.connection, ctx.member[UserDirectory]
    connection.sasl = None
    mechanism = fields.text(body, "mechanism", "saslStart")
    if mechanism != MECHANISM:
        raise ReplError(
            f"Received authentication for mechanism {mechanism:.80} which is not enabled; there is: {MECHANISM}",
            code=ErrorCode.MECHANISM_UNAVAILABLE,
        )
    options = fields.document(body, "options", "saslStart")
    skips = options is not None and options.get("skipEmptyExchange") is True
    try:
        exchange = ServerExchange(_payload(body), ctx.member.rng.randbytes(NONCE_BYTES))
    except AuthenticationFailedError as error:
        raise _failure(ctx, "nobody", error) from None
    user = await users.find(exchange.user, database, for_login=True)
    answer = exchange.answer(users.decoy(exchange.user, database) if user is None else user.credentials)
    connection.sasl = SaslConversation(exchange, database, user, skips)
    return _reply(answer, done=False)


async def sasl_continue(ctx: CommandContext) -> Reply:
    """The next step of a login."""
    connection = ctx.connection
    conversation, connection.sasl = connection.sasl, None
    if conversation is None:
        raise ReplError("No SASL session state found", code=ErrorCode.PROTOCOL_ERROR)
    if fields.whole(ctx.body, "conversationId", ctx.name) != CONVERSATION:
        raise ReplError("sasl: Mismatched conversation id", code=ErrorCode.PROTOCOL_ERROR)
    if conversation.is_proved:  # the empty exchange, which a client may leave out
        connection.login = conversation.login
        return _reply(b"", done=True)
    who = f"{conversation.exchange.user}@{conversation.database}"
    try:
        final = conversation.exchange.finish(_payload(ctx.body))
    except AuthenticationFailedError as error:
        raise _failure(ctx, who, error) from None
    if conversation.user is None:  # nobody can prove to know the decoy's password; it is checked all the same
        raise _failure(ctx, who, AuthenticationFailedError("there is no such user"))
    if conversation.skips_empty_exchange:
        connection.login = conversation.login
    else:
        conversation.is_proved = True
        connection.sasl = conversation
    return _reply(final, done=conversation.skips_empty_exchange)


def _failure(ctx: CommandContext, who: str, error: AuthenticationFailedError) -> AuthenticationFailedError:
    """The error for the client, which does not say what was wrong. The log does."""
    ctx.member[AuditTrail].failed_login(who, ctx.connection.peer, error.message)
    return AuthenticationFailedError("Authentication failed.")


def _payload(body: RawDocument) -> bytes:
    found = body.get("payload")
    if isinstance(found, Binary):
        return bytes(found)
    if isinstance(found, str):
        return found.encode()
    raise BadValueError("a step of a login needs its payload as binary data")


def _reply(payload: bytes, *, done: bool) -> dict[str, object]:
    return {"conversationId": CONVERSATION, "done": done, "payload": Binary(payload)}


async def logout(ctx: CommandContext) -> Reply:
    """Forget who logged in on this connection, if it was with this database."""
    login = ctx.connection.login
    if login is not None and login.database == ctx.database:
        ctx.connection.login = None
    return {}


async def connection_status(ctx: CommandContext) -> Reply:
    """Who has logged in on this connection, and what that allows."""
    login, users = ctx.connection.login, ctx.member[UserDirectory]
    user = None if login is None or users.grants(login) is None else await users.find(login.name, login.database)
    roles: Iterable[Role] = () if user is None else sorted(user.roles)
    info: dict[str, object] = {
        "authenticatedUsers": [] if user is None else [{"user": user.name, "db": user.database}],
        "authenticatedUserRoles": [role.document() for role in roles],
    }
    if fields.boolean(ctx.body, "showPrivileges", ctx.name):
        info["authenticatedUserPrivileges"] = [row for role in roles for row in role.privileges()]
    return {"authInfo": info}


COMMANDS: tuple[Command, ...] = (
    Command(
        "saslStart", sasl_start, frozenset({"mechanism", "payload", "options", "autoAuthorize"}), needs=Action.OPEN
    ),
    Command("saslContinue", sasl_continue, frozenset({"conversationId", "payload"}), needs=Action.OPEN),
    Command("logout", logout, needs=Action.OPEN),
    Command("connectionStatus", connection_status, frozenset({"showPrivileges"}), needs=Action.OPEN),
)

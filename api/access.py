"""Asks who sends a request where the members were started with --auth, and says what each route needs.

Every path but those of PUBLIC needs a user. Which one may use it is said in NEEDS, by the route; a route that is not
there is for nobody.
"""

from __future__ import annotations

import base64
from typing import Final

from starlette.requests import Request

import replset.features.all  # noqa: F401 - it declares the operations
from api.errors import HttpError, failure, http_error
from api.exchange import App, HttpRequest, Receive, Scope, Send, error_answer, send_answer
from api.tokens import PURPOSE, read_token
from replset.auth.roles import AUDITED, Action
from replset.auth.users import Login, User
from replset.errors import AuthenticationFailedError, ErrorCode, ReplError
from replset.member.member import RunningMember
from replset.operations.audit_trail import AuditTrail
from replset.operations.authorization import authorize
from replset.operations.declared import declarations
from replset.operations.user_directory import UserDirectory

PUBLIC: Final = frozenset(
    {"/health", "/ready", "/primary", "/secondary", "/arbiter", "/v1/login", "/", "/favicon.ico"}
    | {"/docs", "/openapi.json"}
)
"""Health checks, the login itself, and pages, whose files hold nothing of the set."""
PUBLIC_FILES: Final = ("/page/", "/docs/")
CHALLENGE: Final = {"www-authenticate": 'Bearer realm="replset"'}
"""No challenge for Basic: a browser would keep the password and send it with every request from then on."""

BY_COMMAND: Final = Action.LOGIN
"""Of routes that run one command, which has a row of its own in the table of commands."""
NEEDS: Final[dict[str, Action]] = {
    "/v1/command/{db}": BY_COMMAND,
    "/v1/replset/status": BY_COMMAND,
    "/v1/replset/config": BY_COMMAND,
    "/v1/replset/writes/{optime}": BY_COMMAND,
    "/v1/writes/{optime}": BY_COMMAND,
    "/v1/replset/elections": BY_COMMAND,
    "/v1/replset/events": Action.IN_PROGRESS,
    "/v1/replset/initiate": BY_COMMAND,
    "/v1/replset/reconfig": BY_COMMAND,
    "/v1/replset/members": BY_COMMAND,
    "/v1/replset/members/{host}": BY_COMMAND,
    "/v1/replset/backup": BY_COMMAND,
    "/v1/replset/oplog": Action.READ_OPLOG,
    "/v1/replset/oplog/info": Action.SET_STATUS,
    "/v1/replset/rollbacks": BY_COMMAND,
    "/v1/replset/rollbacks/{rollback}": Action.SET_STATUS,
    "/v1/replset/rollbacks/{rollback}/writes": Action.READ_ROLLBACKS,
    "/v1/replset/rollbacks/{rollback}/verify": Action.READ_ROLLBACKS,
    "/v1/replset/rollbacks/{rollback}/diff": Action.READ_ROLLBACKS,
    "/v1/replset/rollbacks/{rollback}/restore": Action.RESTORE,
    "/v1/replset/rollbacks/{rollback}/ack": Action.CHANGE_STATE,
    "/v1/replset/rollbacks/{rollback}/{file}": Action.READ_ROLLBACKS,
    "/v1/watch": BY_COMMAND,
    "/v1/consumers/{name}/events": BY_COMMAND,
    "/metrics": Action.SERVER_STATUS,
    **{one.path: BY_COMMAND for one in declarations() if one.path},
}
"""What the sender of a request must be allowed to do, by the path of the route."""


class LoginRequired:
    """Notes in the scope who sends the request; refuses it (401) where nobody has logged in and somebody has to."""

    def __init__(self, next_app: App, member: RunningMember) -> None:
        self._next_app = next_app
        self._member = member

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._member[UserDirectory].required and not is_public(scope["path"]):
            try:
                scope["login"] = await self._login(HttpRequest(scope))
            except (HttpError, ReplError) as error:
                problem = http_error(error)
                if problem.status == 401:
                    problem.headers |= CHALLENGE
                await send_answer(self._member, HttpRequest(scope), error_answer(problem), send)
                return
        await self._next_app(scope, receive, send)

    async def _login(self, request: HttpRequest) -> Login:
        """The user whose name and password, or whose token, the request has. HttpError 401."""
        scheme, _, value = request.header(b"authorization").partition(" ")
        match scheme.lower():
            case "basic":
                return (await user_of_basic(self._member, request, value.strip())).login
            case "bearer":
                return await self._user_of_token(request, value.strip())
        raise failure(ErrorCode.UNAUTHORIZED, "this member asks for a login: Basic, or Bearer of /v1/login", status=401)

    async def _user_of_token(self, request: HttpRequest, token: str) -> Login:
        claim = read_token(token_keys(self._member), token, self._member.clock.wall_ms() / 1000)
        user = None if claim is None else await self._member[UserDirectory].find(claim.user, claim.database)
        if claim is None or user is None or not claim.fits(user):
            self._member[AuditTrail].failed_login("", request.client, "a token that is not valid, or no longer")
            raise failure(ErrorCode.UNAUTHORIZED, "the token is not valid, or no longer: log in again", status=401)
        return user.login


async def user_of_basic(member: RunningMember, request: HttpRequest, value: str) -> User:
    """The user of `Basic VALUE`: NAME:PASSWORD in base64. NAME may be DATABASE/NAME; else the database is admin."""
    try:
        name, colon, password = base64.b64decode(value, validate=True).decode("utf-8").partition(":")
    except ValueError:
        name = colon = password = ""
    database, slash, rest = name.partition("/")
    if not colon:
        raise failure(ErrorCode.AUTHENTICATION_FAILED, "Basic takes NAME:PASSWORD in base64")
    return await user_of_password(member, request, rest if slash else name, database if slash else "admin", password)


async def user_of_password(
    member: RunningMember, request: HttpRequest, name: str, database: str, password: str
) -> User:
    """The user with this password. AuthenticationFailedError (18, 401)."""
    try:
        return await member[UserDirectory].check_password(name, database, password)
    except AuthenticationFailedError as error:
        member[AuditTrail].failed_login(f"{name}@{database}", request.client, error.message)
        raise


def token_keys(member: RunningMember) -> list[bytes]:
    """The keys by which tokens are signed. Without a key file they are this member's own."""
    return member.keys.derive(PURPOSE) if member.keys.is_secret else [member[UserDirectory].secret]


def is_public(path: str) -> bool:
    return path in PUBLIC or path.startswith(PUBLIC_FILES)


def check_route(member: RunningMember, request: Request) -> None:
    """Raise 13 (403) if the sender may not use the route of the request."""
    if is_public(request.scope["path"]):  # as LoginRequired has it: the URL is made of the Host header too
        return
    path = getattr(request.scope.get("route"), "path", "")
    sender, needs, line = HttpRequest(request.scope).sender, NEEDS.get(path, Action.INTERNAL), request.url.path
    try:
        authorize(member, sender, needs, "admin", path)
    except ReplError as error:
        member[AuditTrail].request(sender, f"{request.method} {line}", error.code)
        raise
    if needs in AUDITED:
        member[AuditTrail].request(sender, f"{request.method} {line}", 0)

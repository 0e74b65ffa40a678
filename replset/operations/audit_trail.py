"""The audit log: one JSON line for each administrative command, each refusal and each login that failed.

No line holds a password or a key. Without `--audit-log` nothing is written.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

from replset.auth.roles import AUDITED
from replset.bson import InvalidBSONError, RawDocument
from replset.ejson import to_ejson
from replset.errors import ErrorCode
from replset.operations.command import GENERIC_FIELDS, CommandContext
from replset.operations.repeated_warnings import RepeatedWarnings
from replset.operations.request import CommandRequest, ConnectionContext

log = logging.getLogger("replset.users")

SECRET_FIELDS: Final = frozenset({"pwd", "payload", "speculativeAuthenticate", "proofs", "nonce"})
LONGEST_SHOWN: Final = 4 << 10
MOST_A_SECOND: Final = 20


class AuditTrail:
    """Writes the lines by `write`, which never waits; None: there is no audit log. failed_logins: so far.

    Strangers cannot fill the disk: of refusals and failed logins a bounded number is written down in each second, and
    the next line after those that are left out has their number.
    """

    def __init__(self, write: Callable[[str], None] | None, wall_ms: Callable[[], int]) -> None:
        self._write = write
        self._wall_ms = wall_ms
        self.failed_logins = 0
        self._second = 0
        self._in_second = 0
        self._left_out = 0
        self._repeated = RepeatedWarnings(log, lambda: wall_ms() / 1000)

    def command(self, ctx: CommandContext, code: int) -> None:
        """A command has ended. code: 0, or that of its error. Only administrative ones are written down."""
        if self._write is not None and ctx.command.needs in AUDITED:
            self._add("command", ctx.sender, code, _parameters(ctx.request))

    def refused(self, request: CommandRequest) -> None:
        """Somebody sent a command that he may not run."""
        if self._write is not None and self._may_add():
            self._add("refused", request.sender, ErrorCode.UNAUTHORIZED, _parameters(request))

    def request(self, sender: ConnectionContext, line: str, code: int) -> None:
        """An administrative HTTP request that is no command begins, or was refused."""
        if self._write is not None and (not code or self._may_add()):
            self._add("request" if not code else "refused", sender, code, {"request": line})

    def failed_login(self, user: str, peer: str, reason: str) -> None:
        self.failed_logins += 1
        if not self._may_add():
            return
        log.warning("a login of %s from %s failed: %s", repr(user)[1:-1][:300], peer, reason)
        if self._write is not None:
            fields = {"claimedUser": user[:300], "reason": reason}
            self._add("failedLogin", ConnectionContext(peer=peer), ErrorCode.AUTHENTICATION_FAILED, fields)

    def failed_proof(self, peer: str, reason: str) -> None:
        """Somebody did not prove that he is a member. One without the set's key tries several times a second."""
        host = peer.rpartition(":")[0] or peer
        self._repeated.warn(f"{host} {reason}", f"{peer} did not prove that it is a member: {reason}")

    def _may_add(self) -> bool:
        second = self._wall_ms() // 1000
        if second != self._second:
            self._second, self._in_second = second, 0
        self._in_second += 1
        if self._in_second <= MOST_A_SECOND:
            return True
        self._left_out += 1
        return False

    def _add(self, what: str, sender: ConnectionContext, code: int, rest: Mapping[str, object]) -> None:
        assert self._write is not None
        at = datetime.fromtimestamp(self._wall_ms() / 1000, UTC).isoformat(timespec="milliseconds")
        user = sender.member or sender.login
        row = {"at": at, "what": what, "user": None if user is None else str(user), "from": sender.peer, "code": code}
        if self._left_out:
            row["leftOut"], self._left_out = self._left_out, 0
        self._write(json.dumps({**row, **rest}, ensure_ascii=False, default=str))


def _parameters(request: CommandRequest) -> dict[str, object]:
    body = request.body
    try:
        name, shown = body.first_key, without_secrets(body)
        text = to_ejson({key: value for key, value in shown.items() if key not in GENERIC_FIELDS})
        return {"command": name, "db": request.database, "parameters": json.loads(text)}
    except (InvalidBSONError, ValueError):
        return {"db": request.database, "command": "unreadable"}


def without_secrets(body: RawDocument) -> dict[str, object]:
    """The fields of a command, as far as a person may see them: no password, and no long value."""
    shown: dict[str, object] = {}
    for name in body.keys():  # noqa: SIM118 - a RawDocument is no mapping
        if name in SECRET_FIELDS:
            shown[name] = "(not shown)"
        elif body.size_of(name) > LONGEST_SHOWN:
            shown[name] = f"({body.size_of(name)} bytes)"
        else:
            shown[name] = body.get(name)
    return shown

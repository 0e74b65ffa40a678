"""configureFailPoint, and what a fail point that is hit does to a command (map B6)."""

from __future__ import annotations

import asyncio
from typing import cast

from replset.auth.roles import Action
from replset.errors import ErrorCode, InvalidOptionsError, MaxTimeMSExpiredError, ReplError
from replset.operations import fields
from replset.operations.command import Command, CommandContext, remember_client
from replset.operations.fail_points import (
    FAIL_COMMAND,
    FAIL_GET_MORE,
    FAIL_TRANSACTIONAL_WRITE,
    MAX_TIME_ALWAYS_RUNS_OUT,
    MAX_TIME_NEVER_RUNS_OUT,
)
from replset.operations.request import Reply

_MESSAGE = "Failing command due to 'failCommand' failpoint"
_NEVER_FAILS = "configureFailPoint"


async def configure_fail_point(ctx: CommandContext) -> Reply:
    """Set a fail point, or end it with mode "off". `count`: how often it has been hit so far."""
    name = fields.text(ctx.body, ctx.name, ctx.name)
    if fields.is_absent(ctx.body, "mode"):
        raise ReplError("When setting a failpoint, you must supply a 'mode'", code=ErrorCode.NO_SUCH_KEY)
    data = fields.decoded(ctx.body, "data", ctx.name)
    return {"count": ctx.member.fail_points.set(name, ctx.body.get("mode"), data)}


async def fail_command(ctx: CommandContext) -> None:
    """Do what `failCommand` says about this command: wait, close the connection, raise its error. Then maxTimeMS's two.

    The labels that it gives replace all others in the reply (`CommandRequest.error_labels`).
    """
    if ctx.command.name == "hello":
        remember_client(ctx)  # a fail point for one application is hit by its first hello too
    data = ctx.member.fail_points.hit(FAIL_COMMAND, lambda data: _fails(data) and _matches(ctx, data))
    if data is not None:
        _override_labels(ctx, data)
        if data.get("blockConnection"):
            await _block(ctx, _block_ms(data))
        if data.get("closeConnection"):
            ctx.connection.is_to_close = True
            raise ReplError(_MESSAGE, code=ErrorCode.FAIL_POINT)
        code = data.get("errorCode")
        if code is not None:
            extra = data.get("errorExtraInfo")
            details = extra if isinstance(extra, dict) else None
            raise ReplError(_MESSAGE, code=fields.as_whole(code, "errorCode", FAIL_COMMAND), details=details)
    check_max_time(ctx)


def check_max_time(ctx: CommandContext) -> None:
    """Do what `maxTimeAlwaysTimeOut` and `maxTimeNeverTimeOut` say about a command with a deadline."""
    if ctx.deadline is None:
        return
    points = ctx.member.fail_points
    if points.hit(MAX_TIME_ALWAYS_RUNS_OUT, lambda _: True) is not None:
        raise MaxTimeMSExpiredError("operation exceeded time limit")
    if points.hit(MAX_TIME_NEVER_RUNS_OUT, lambda _: True) is not None:
        ctx.deadline = None


def replaced_write_concern_error(ctx: CommandContext) -> dict[str, object] | None:
    """Return the writeConcernError that `failCommand` gives in the place of the wait for the write concern."""
    data = ctx.member.fail_points.hit(FAIL_COMMAND, lambda data: "writeConcernError" in data and _matches(ctx, data))
    if data is None:
        return None
    _override_labels(ctx, data)
    error = data["writeConcernError"]
    if not isinstance(error, dict):
        raise InvalidOptionsError("'writeConcernError' must be an object")
    return error


def fail_get_more(ctx: CommandContext) -> None:
    """Raise the error of `failGetMoreAfterCursorCheckout`; the cursor is open and in use."""
    data = ctx.member.fail_points.hit(FAIL_GET_MORE, lambda data: _is_whose(ctx, data))
    if data is None:
        return
    _override_labels(ctx, data)
    ctx.connection.is_to_close = bool(data.get("closeConnection"))
    code = fields.as_whole(data.get("errorCode", ErrorCode.INTERNAL_ERROR), "errorCode", FAIL_GET_MORE)
    raise ReplError(f"Hit the '{FAIL_GET_MORE}' failpoint", code=code)


def fail_transactional_write(ctx: CommandContext) -> None:
    """Do what `onPrimaryTransactionalWrite` says. Called for each retryable statement before its group is committed.

    The connection is closed without a reply, unless the fail point says otherwise. An error keeps the statement from
    being applied.
    """
    data = ctx.member.fail_points.hit(FAIL_TRANSACTIONAL_WRITE, lambda _: True)
    if data is None:
        return
    ctx.connection.is_to_close = bool(data.get("closeConnection", True))
    code = data.get("failBeforeCommitExceptionCode")
    if code is not None:
        raise ReplError(
            "Failing write due to failpoint. The write must not be reflected.",
            code=fields.as_whole(code, "failBeforeCommitExceptionCode", FAIL_TRANSACTIONAL_WRITE),
        )


def _fails(data: dict[str, object]) -> bool:
    return bool(data.get("closeConnection") or data.get("blockConnection") or "errorCode" in data)


def _matches(ctx: CommandContext, data: dict[str, object]) -> bool:
    """Whether `data` names this command, by its name or an alias, and its sender."""
    listed = data.get("failCommands")
    names = (ctx.command.name, *ctx.command.aliases)
    is_listed = bool(data.get("failAllCommands")) or (
        isinstance(listed, list) and any(name in names for name in listed)
    )
    return is_listed and ctx.name != _NEVER_FAILS and _is_whose(ctx, data)


def _is_whose(ctx: CommandContext, data: dict[str, object]) -> bool:
    """Whether the command comes from the client, and is for the collection, that `data` asks for."""
    is_internal = ctx.connection.is_member or ctx.request.source == "internal"
    return (
        (not is_internal or bool(data.get("failInternalCommands")))
        and data.get("appName", ctx.connection.app_name) == ctx.connection.app_name
        and "threadName" not in data
        and ("namespace" not in data or data["namespace"] == _namespace(ctx))
    )


def _namespace(ctx: CommandContext) -> str:
    field = "collection" if ctx.name == "getMore" else ctx.name
    return f"{ctx.database}.{ctx.body.get(field)}" if ctx.body.type_of(field) == 2 else ctx.database


def _override_labels(ctx: CommandContext, data: dict[str, object]) -> None:
    labels = data.get("errorLabels")
    if isinstance(labels, list):
        ctx.request.error_labels = [label for label in cast("list[object]", labels) if isinstance(label, str)]


def _block_ms(data: dict[str, object]) -> int:
    if "blockTimeMS" not in data:
        raise InvalidOptionsError("must specify 'blockTimeMS' when 'blockConnection' is true")
    block_ms = fields.as_whole(data["blockTimeMS"], "blockTimeMS", FAIL_COMMAND)
    if block_ms < 0:
        raise InvalidOptionsError("'blockTimeMS' must be non-negative")
    return block_ms


async def _block(ctx: CommandContext, block_ms: int) -> None:
    """Wait so long, or until maxTimeMS is over (50)."""
    left_ms = block_ms if ctx.deadline is None else min(block_ms, ctx.deadline - ctx.member.clock.now())
    await asyncio.sleep(max(0, left_ms) / 1000)
    if left_ms < block_ms:
        raise MaxTimeMSExpiredError("operation exceeded time limit")


COMMANDS: tuple[Command, ...] = (
    Command(
        "configureFailPoint",
        configure_fail_point,
        frozenset({"mode", "data"}),
        admin_only=True,
        test_only=True,
        needs=Action.INTERNAL,
    ),
)

"""How a read may be answered: read preference (may a secondary?), read concern (at which point?)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from replset.bson import RawDocument, Timestamp
from replset.commands.command import CommandContext
from replset.commands.fields import wrong_type
from replset.core.member_state import MemberState
from replset.errors import (
    FailedToParseError,
    InvalidOptionsError,
    NotPrimaryNoSecondaryOkError,
    NotPrimaryOrSecondaryError,
    TypeMismatchError,
    UnknownFieldError,
)
from replset.ids import OpTime, pack_ts

PRIMARY_MODE = "primary"
_MODES = frozenset({PRIMARY_MODE, "primaryPreferred", "secondary", "secondaryPreferred", "nearest"})
_LEVELS: dict[str, Literal["local", "majority"]] = {"local": "local", "available": "local", "majority": "majority"}
_NOT_BUILT = frozenset({"linearizable", "snapshot"})
CLOCK_SLACK_S = 3600
"""How far afterClusterTime may lie ahead of everything that this member knows (its oplog, its wall clock)."""


@dataclass(frozen=True, slots=True)
class ReadConcern:
    """after: a packed timestamp (as OpTime.ts) that the read must cover."""

    level: Literal["local", "majority"] = "local"
    after: int | None = None


def secondary_allowed(body: RawDocument) -> bool:
    """Does the command's `$readPreference` let a secondary answer? Absent: no (map B1)."""
    kind = body.type_of("$readPreference")
    if kind is None:
        return False
    if kind != 3:
        raise TypeMismatchError("$readPreference must be a document")
    mode = RawDocument(body.get_raw("$readPreference") or b"").get("mode")
    if mode not in _MODES:
        raise FailedToParseError(f"unknown read preference mode {mode!r:.80}")
    return mode != PRIMARY_MODE


def check_readable(ctx: CommandContext) -> None:
    """NotPrimaryOrSecondaryError (13436) when no read is answered here, 13435 when only the primary may answer."""
    state = ctx.member.node.state
    if state is MemberState.PRIMARY:
        secondary_allowed(ctx.body)
        return
    allowed = secondary_allowed(ctx.body) or ctx.request.source == "internal"
    if not allowed:
        raise NotPrimaryNoSecondaryOkError("not primary and secondaryOk=false")
    if state is not MemberState.SECONDARY:
        raise NotPrimaryOrSecondaryError(f"node is not in primary or secondary state: {state.name}")


def read_concern_of(ctx: CommandContext) -> ReadConcern:
    """Parse `readConcern`. Levels and fields that are not built are refused by their name."""
    body = ctx.body
    kind = body.type_of("readConcern")
    if kind in (None, 10):
        return _LOCAL
    if kind != 3:
        raise wrong_type(ctx.name, "readConcern", kind, "object")
    document = RawDocument(body.get_raw("readConcern") or b"").decode()
    level, after = document.get("level", "local"), document.get("afterClusterTime")
    for name in document:
        if name not in ("level", "afterClusterTime", "provenance"):
            raise UnknownFieldError(f"readConcern.{name} is not known here")
    if not isinstance(level, str):
        raise TypeMismatchError("readConcern.level must be a string")
    if level in _NOT_BUILT:
        raise UnknownFieldError(f"readConcern level '{level}' is not built yet")
    if level not in _LEVELS:
        raise FailedToParseError(f"readConcern.level must be local, available or majority, not '{level:.80}'")
    if after is None:
        return ReadConcern(_LEVELS[level])
    if not isinstance(after, Timestamp):
        raise TypeMismatchError("readConcern.afterClusterTime must be a timestamp")
    ts = pack_ts(after.time, after.inc)
    _check_reachable(ctx, ts)
    return ReadConcern(_LEVELS[level], ts)


_LOCAL = ReadConcern()


def _check_reachable(ctx: CommandContext, ts: int) -> None:
    """A time that no member can have told yet would make the read wait for ever (map K6)."""
    newest = ctx.member.store.last_applied.ts
    horizon = pack_ts(ctx.member.clock.wall_ms() // 1000 + CLOCK_SLACK_S, 0)
    if ts > max(newest, horizon):
        raise InvalidOptionsError("readConcern afterClusterTime value must not be greater than the current clusterTime")


async def read_point(ctx: CommandContext, concern: ReadConcern) -> OpTime | None:
    """Wait until the read may begin; the point C to read at, None for the newest state."""
    if concern.level == "local" and concern.after is None:
        return None
    return await ctx.member.wait_for_read(concern.level, concern.after, ctx.deadline)

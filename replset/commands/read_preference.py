"""`$readPreference`: which members a client wants to read from.

A driver chooses the member itself. The server then checks the form, and whether a secondary may answer at all. Over
HTTP no driver has chosen, so this member refuses a read that a driver would not have sent to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from replset.bson import RawDocument
from replset.commands import fields
from replset.commands.command import CommandContext
from replset.config import Member
from replset.core.member_state import MemberState
from replset.errors import (
    BadValueError,
    ErrorCode,
    FailedToParseError,
    InvalidOptionsError,
    ReplError,
    TypeMismatchError,
)

FIELD = "$readPreference"
LEAST_STALENESS_S = 90
MOST_STALENESS_S = (1 << 31) - 1
_MODES = frozenset({"primary", "primaryPreferred", "secondary", "secondaryPreferred", "nearest"})
_FIELDS = frozenset({"mode", "tags", "maxStalenessSeconds"})
_ON_THE_WIRE = _FIELDS | {"hedge"}  # for a mongos; drivers send it to every server
_LONGEST = 16 << 10


@dataclass(frozen=True, slots=True)
class ReadPreference:
    """tags: one of these documents must be part of the member's tags; none: any member. max_staleness_s 0: none."""

    mode: str = "primary"
    tags: tuple[Mapping[str, str], ...] = ()
    max_staleness_s: int = 0

    @property
    def allows_secondary(self) -> bool:
        return self.mode != "primary"


_PRIMARY = ReadPreference()


def read_preference_of(ctx: CommandContext) -> ReadPreference:
    """The command's preference, `primary` where there is none (map B1).

    Raises 14 and 9 for what has not its form, 40415 for other fields, 2 for tags or a staleness beside `primary`, 160
    for a staleness out of range.
    """
    body = ctx.body
    kind = body.type_of(FIELD)
    if kind is None:
        return _PRIMARY
    if kind != 3:
        raise TypeMismatchError(f"{FIELD} must be a document")
    document = RawDocument(body.get_raw(FIELD) or b"")
    if len(document.raw) > _LONGEST:
        raise BadValueError(f"{FIELD} is over {_LONGEST} bytes")
    fields.check_fields(document, _FIELDS if ctx.request.source == "http" else _ON_THE_WIRE, FIELD)
    mode = document.get("mode")
    if mode not in _MODES:
        raise FailedToParseError(f"unknown read preference mode {mode!r:.80}")
    preference = ReadPreference(str(mode), _tags(document), _staleness(document))
    if mode == "primary" and any(preference.tags):
        raise BadValueError("Only empty tags are allowed with primary read preference")
    if mode == "primary" and preference.max_staleness_s:
        raise BadValueError("maxStalenessSeconds is not allowed with primary read preference")
    if mode == "primary" and not fields.is_absent(document, "hedge"):
        raise InvalidOptionsError("cannot enable hedging with primary read preference")
    return preference


def _tags(document: RawDocument) -> tuple[Mapping[str, str], ...]:
    if fields.is_absent(document, "tags"):
        return ()
    sets: list[Mapping[str, str]] = []
    for tags in fields.values(document, "tags", FIELD):
        if not isinstance(tags, dict) or not all(isinstance(tag, str) for tag in tags.values()):
            raise TypeMismatchError(f"{FIELD}.tags is an array of documents of strings")
        sets.append(tags)
    return tuple(sets)


def _staleness(document: RawDocument) -> int:
    seconds = fields.whole(document, "maxStalenessSeconds", FIELD)
    if seconds < 0:
        raise BadValueError("maxStalenessSeconds must be a non-negative integer")
    if seconds and not LEAST_STALENESS_S <= seconds <= MOST_STALENESS_S:
        raise ReplError(
            f"maxStalenessSeconds value must be from {LEAST_STALENESS_S} to {MOST_STALENESS_S}, not {seconds}",
            code=ErrorCode.MAX_STALENESS_OUT_OF_RANGE,
        )
    return seconds


def refuse_unsuitable_member(ctx: CommandContext, preference: ReadPreference) -> None:
    """Raise FailedToSatisfyReadPreference (133) if no driver would have sent this read to this member."""
    node, store = ctx.member.node, ctx.member.store
    me = None if node.config is None else next((m for m in node.config.members if m.id == node.self_id), None)
    if me is None:
        return
    if node.state is MemberState.PRIMARY:
        reason = _tags_refusal(preference, me) if preference.mode in ("secondary", "nearest") else None
    elif me.hidden or me.secondary_delay_secs:
        kind = "hidden" if me.hidden else f"{me.secondary_delay_secs} s delayed"
        reason = (
            f"this member is {kind}: no read preference chooses it; read it by a direct connection to its wire port"
        )
    else:
        reason = _tags_refusal(preference, me)
        behind_s = (ctx.member.clock.wall_ms() - store.last_wall_ms) / 1000
        if reason is None and preference.max_staleness_s and behind_s > preference.max_staleness_s:
            reason = f"this member's newest entry is {behind_s:.0f} s old, over maxStalenessSeconds"
    if reason is not None:
        raise ReplError(reason, code=ErrorCode.READ_PREFERENCE_NOT_SATISFIED)


def _tags_refusal(preference: ReadPreference, me: Member) -> str | None:
    if not preference.tags or any(tags.items() <= me.tags.items() for tags in preference.tags):
        return None
    return f"this member's tags {dict(me.tags)} hold none of the read preference's"

"""`$readPreference`: which members a client wants to read from.

A driver chooses the member itself. The server then checks the form, and whether a secondary may answer at all. Over
HTTP no driver has chosen, so this member refuses a read that a driver would not have sent to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from replset.bson import RawDocument
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
from replset.ids import HostPort
from replset.operations import fields
from replset.operations.command import CommandContext
from replset.operations.kernel import Kernel

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
    """The command's preference, `primary` where there is none (map B1). Raises what `parse_read_preference` does."""
    kind = ctx.body.type_of(FIELD)
    if kind is None:
        return _PRIMARY
    if kind != 3:
        raise TypeMismatchError(f"{FIELD} must be a document")
    document = RawDocument(ctx.body.get_raw(FIELD) or b"")
    return parse_read_preference(document, over_http=ctx.request.source == "http")


def parse_read_preference(document: RawDocument, *, over_http: bool) -> ReadPreference:
    """Read a preference. Raises 14 and 9 for what has not its form, 40415 for other fields, 2 for tags or a staleness
    beside `primary`, 160 for a staleness out of range.
    """
    if len(document.raw) > _LONGEST:
        raise BadValueError(f"{FIELD} is over {_LONGEST} bytes")
    fields.check_fields(document, _FIELDS if over_http else _ON_THE_WIRE, FIELD)
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
    node = ctx.member.node
    me = None if node.config is None else node.config.member(node.self_id)
    if me is None:
        return
    lag_ms = node.lag_ms() if preference.max_staleness_s else 0
    reason = _refusal(preference, me, node.state, lag_ms)
    if reason is not None:
        raise ReplError(reason, code=ErrorCode.READ_PREFERENCE_NOT_SATISFIED)


def _refusal(preference: ReadPreference, member: Member, state: MemberState, lag_ms: int | None) -> str | None:
    """Return why no driver would send a read with this preference to a member in `state`; None: one may."""
    if state is MemberState.PRIMARY:
        if preference.mode == "secondary":
            return "this member is primary, and the read preference asks for a secondary"
        return _tags_refusal(preference, member) if preference.mode == "nearest" else None
    if preference.mode == "primary":
        return "this member is not primary"
    if member.hidden or member.secondary_delay_secs:
        kind = "hidden" if member.hidden else f"{member.secondary_delay_secs} s delayed"
        return f"this member is {kind}: no read preference chooses it; read it by a direct connection to its wire port"
    most_s = preference.max_staleness_s
    if most_s and (lag_ms is None or lag_ms > most_s * 1000):
        behind = "has no data" if lag_ms is None else f"may be {lag_ms / 1000:.0f} s behind, over maxStalenessSeconds"
        return f"this member {behind}"
    return _tags_refusal(preference, member)


def _tags_refusal(preference: ReadPreference, member: Member) -> str | None:
    if not preference.tags or any(tags.items() <= member.tags.items() for tags in preference.tags):
        return None
    return f"this member's tags {dict(member.tags)} hold none of the read preference's"


def other_readers(member: Kernel, preference: ReadPreference) -> list[HostPort]:
    """Return the other members that can answer a read with this preference now, the best first.

    A member that is overloaded is none of them. Of equal members the one that is less behind comes first, then the
    nearer one.
    """
    node = member.node
    config, status = node.config, node.status(member.clock.now())
    if config is None or status is None:
        return []
    found: list[tuple[bool, int, int, HostPort]] = []
    for row in status.members:
        one = config.member(row.id)
        if one is None or row.is_self or not row.healthy or row.overloaded or not row.state.is_readable:
            continue
        if row.lag_ms is not None and _refusal(preference, one, row.state, row.lag_ms) is None:
            is_primary = row.state is MemberState.PRIMARY
            is_second_choice = is_primary is preference.mode.startswith("secondary") and preference.mode != "nearest"
            found.append((is_second_choice, row.lag_ms // 1000, row.ping_ms, row.host))
    return [host for *_, host in sorted(found)]

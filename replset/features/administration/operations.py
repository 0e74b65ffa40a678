"""The operations with which an operator changes what one member does, each declared once (operations/declared.py)."""

from __future__ import annotations

from typing import Any, Final

from replset.auth.roles import Action
from replset.bson import RawDocument
from replset.config import MAX_MEMBERS
from replset.errors import BadValueError
from replset.ids import HostPort, OpTime
from replset.operations.declared import (
    BOOLEAN,
    HOST,
    SECONDS,
    TEXT,
    Kind,
    between,
    operation,
    own,
    value,
    whole_between,
)
from replset.operations.fields import text, values

CATCH_UP_S: Final = 10
MOST_OPLOG = 1 << 30
MOST_CONFIRMED: Final = 1_000
MEMBER: Final[dict[str, dict[str, Any]]] = {
    "host": {"type": "string", "example": "127.0.0.1:27020"},
    "priority": {"type": "number", "minimum": 0, "maximum": 1000},
    "votes": {"type": "integer", "enum": [0, 1]},
    "arbiterOnly": {"type": "boolean"},
    "witness": {"type": "boolean"},
    "hidden": {"type": "boolean"},
    "secondaryDelaySecs": {"type": "integer", "minimum": 0},
    "buildIndexes": {"type": "boolean"},
    "spareAfterSecs": {"type": "integer", "minimum": 0},
    "tags": {"type": "object", "additionalProperties": {"type": "string"}},
}
"""The fields of a member that is added, as OpenAPI has them; config/ reads them."""
MEGABYTES, HOURS = between(990, MOST_OPLOG), between(0, MOST_OPLOG)


@operation("replSetStepDown", http="POST /v1/replset/stepDown", needs=Action.CHANGE_STATE)
class StepDown:
    """Let this member, the primary, hand over; it is not elected again for `seconds`."""

    seconds: int = own(SECONDS, default=60, help="how long it may not be elected again")
    catch_up: int | None = value(
        SECONDS,
        default=None,
        name="secondaryCatchUpPeriodSecs",
        help="seconds to wait for an electable secondary (10, at most --seconds)",
    )
    force: bool = value(BOOLEAN, default=False, help="step down even if nobody caught up")
    to: HostPort | None = value(HOST, default=None, name="handOverTo", help="the only successor that will do")

    def catch_up_s(self) -> int:
        """How long it waits for a successor: not at all with force, and not beyond `seconds`."""
        if self.catch_up is not None:
            return self.catch_up
        return 0 if self.force else min(CATCH_UP_S, self.seconds)


@operation("replSetFreeze", http="POST /v1/replset/freeze", needs=Action.CHANGE_STATE)
class Freeze:
    """Keep this member from becoming a candidate for `seconds`; 0 ends it."""

    seconds: int = own(SECONDS, help="0 ends it")


@operation("replSetSyncFrom", http="POST /v1/replset/syncFrom", needs=Action.CHANGE_STATE)
class SyncFrom:
    """Let this member, a secondary, fetch from `host`, until that is no good source any more."""

    host: HostPort = own(HOST, help="HOST:PORT of a member")


@operation("replSetMaintenance", http="POST /v1/replset/maintenance", needs=Action.CHANGE_STATE)
class Maintenance:
    """Keep this member, a secondary, from serving reads (`on`: true), or end that once."""

    on: bool = own(BOOLEAN, help="true or false")


@operation("replSetResync", http="POST /v1/replset/resync", needs=Action.RESYNC)
class Resync:
    """Let this member export what only it has, and copy another member's data; also ends a quarantine."""

    force: bool = value(
        BOOLEAN, default=False, help="also of a member that lacks what this one acknowledged or knows committed"
    )


@operation(
    "setFeatureCompatibilityVersion",
    http="POST /v1/replset/featureVersion",
    needs=Action.SET_FEATURE_VERSION,
    on_primary=True,
)
class SetFeatureVersion:
    """Let the set use what the release `version` brought, or make it ready for that older release."""

    version: str = own(TEXT, help="the first two numbers of a release, such as 1.1")
    confirm: bool = value(BOOLEAN, default=False, help="must be true: members cannot go back behind it")


def _optimes(body: RawDocument, name: str, command: str) -> list[OpTime]:
    given = values(body, name, command)
    if not 0 < len(given) <= MOST_CONFIRMED:
        raise BadValueError(f"{name} takes from 1 to {MOST_CONFIRMED} optimes, not {len(given)}")
    try:
        return [OpTime.parse(one if isinstance(one, str) else f"{one!r:.80}") for one in given]
    except ValueError as error:
        raise BadValueError(f"{name}: {error}") from None


def _members(body: RawDocument, name: str, command: str) -> int:
    given = text(body, name, command)
    kind, _, number = given.partition(":")
    if given == MAJORITY:
        return 0
    if kind != "members" or not number.isdecimal() or not 1 <= int(number[:9]) <= MAX_MEMBERS:
        raise BadValueError(f"{name} must be majority or members:N with N from 1 to 50, not {given!r:.40}")
    return int(number[:9])


MAJORITY: Final = "majority"
OPTIMES: Final = Kind(_optimes, {"type": "array", "items": {"type": "string"}, "example": ["3:1700000000:5"]})
WAIT: Final = Kind(_members, {"type": "string", "example": "members:2"})


@operation("replSetConfirmWrites", http="POST /v1/writes", needs=Action.LOGIN)
class ConfirmWrites:
    """Wait until these writes, which were acknowledged early, are on a majority, or on so many members."""

    optimes: list[OpTime] = own(OPTIMES, help="as the writes' answers named them, TERM:SECONDS:INC")
    wait: int = value(WAIT, default=0, help="majority, or members:N")
    timeout_ms: int = value(whole_between(0, 60_000), default=10_000, name="timeoutMS", help="how long it waits")


@operation("replSetResizeOplog", needs=Action.SET_PARAMETER)
class ResizeOplog:
    """Change the size of this member's oplog (MB) and how long it keeps entries at least; kept over a restart (O10)."""

    size: float | None = value(MEGABYTES, default=None, help="the oplog's new size, at least 990")
    min_retention_hours: float | None = value(
        HOURS, default=None, name="minRetentionHours", help="keep at least so much; 0: by size alone"
    )

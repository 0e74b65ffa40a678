"""Keeps the fail points of one member: errors, delays and lost connections that a test asks for (map B6).

fail_command.py sets them (configureFailPoint) and does what they say. Nothing can be set without
`--enable-test-commands`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from replset.errors import BadValueError, ErrorCode, ReplError, TypeMismatchError

FAIL_COMMAND = "failCommand"
FAIL_GET_MORE = "failGetMoreAfterCursorCheckout"
FAIL_TRANSACTIONAL_WRITE = "onPrimaryTransactionalWrite"
MAX_TIME_ALWAYS_RUNS_OUT = "maxTimeAlwaysTimeOut"
MAX_TIME_NEVER_RUNS_OUT = "maxTimeNeverTimeOut"
STOPS_REPLICATION = frozenset({"rsSyncApplyStop", "stopReplProducer"})
NAMES = STOPS_REPLICATION | {
    FAIL_COMMAND,
    FAIL_GET_MORE,
    FAIL_TRANSACTIONAL_WRITE,
    MAX_TIME_ALWAYS_RUNS_OUT,
    MAX_TIME_NEVER_RUNS_OUT,
}
_MOST = (1 << 31) - 1


class When(Enum):
    """When a fail point is hit. Its number: how often still, how often not yet, or how probably."""

    ALWAYS = "alwaysOn"
    TIMES = "times"
    SKIP = "skip"
    PROBABILITY = "activationProbability"


@dataclass(slots=True)
class FailPoint:
    """One fail point that is set. data: what it does, and to whom."""

    when: When
    number: float
    data: dict[str, object]


class FailPoints:
    """The fail points of one member. `active` is empty, thus false, as long as nobody has set one."""

    def __init__(self, rng: random.Random) -> None:
        self.active: dict[str, FailPoint] = {}
        self._rng = rng
        self._entered: dict[str, int] = {}

    def set(self, name: str, mode: object, data: dict[str, object]) -> int:
        """Set a fail point, or with mode "off" end it. Return how often it has been hit so far. ReplError."""
        if name not in NAMES:
            raise ReplError(f"{name:.80} not found", code=ErrorCode.FAIL_POINT_SET_FAILED)
        parsed = _parse_mode(mode)
        if parsed is None:
            self.active.pop(name, None)
        else:
            self.active[name] = FailPoint(*parsed, data)
        return self._entered.get(name, 0)

    @property
    def stops_replication(self) -> bool:
        """Whether this member takes nothing more from its sync source."""
        return bool(self.active) and not STOPS_REPLICATION.isdisjoint(self.active)

    def hit(self, name: str, applies: Callable[[dict[str, object]], bool]) -> dict[str, object] | None:
        """Return the data of the fail point if it is hit. Only what it applies to uses up its `times` and `skip`."""
        point = self.active.get(name)
        if point is None or not applies(point.data):
            return None
        match point.when:
            case When.TIMES:
                point.number -= 1
                if point.number <= 0:
                    del self.active[name]
            case When.SKIP if point.number > 0:
                point.number -= 1
                return None
            case When.PROBABILITY if self._rng.random() >= point.number:
                return None
            case _:
                pass
        self._entered[name] = self._entered.get(name, 0) + 1
        return point.data


def _parse_mode(mode: object) -> tuple[When, float] | None:
    """Return when the fail point is hit; None for "off"."""
    if isinstance(mode, str):
        if mode not in ("off", When.ALWAYS.value):
            raise BadValueError(f"unknown mode: {mode:.80}")
        return None if mode == "off" else (When.ALWAYS, 0)
    if not isinstance(mode, dict):
        raise TypeMismatchError("'mode' must be a string or JSON object")
    for when in (When.TIMES, When.SKIP, When.PROBABILITY):
        if when.value in mode:
            return when, _number(when, mode[when.value])
    raise BadValueError("'mode' must be one of 'off', 'alwaysOn', 'times', and 'activationProbability'")


def _number(when: When, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeMismatchError(f"the '{when.value}' option to 'mode' must be a number")
    if when is When.PROBABILITY:
        if not 0 <= value <= 1:
            raise BadValueError(f"activationProbability must be between 0.0 and 1.0; found {value}")
        return float(value)
    if not 0 <= value <= _MOST or value != int(value):
        raise BadValueError(f"'{when.value}' option to 'mode' must be a whole number from 0 to {_MOST}")
    return int(value)

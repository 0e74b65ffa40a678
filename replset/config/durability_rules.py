"""settings.durabilityLevels: how safe the writes of a namespace are by default, and how far that may be lowered.

Level 0 is asynchronous, level 1 waits for this member's disk, level 2 for a majority and all members in sync.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from replset.config.fields import other_fields
from replset.errors import BadValueError, TypeMismatchError

HIGHEST = 2
AT = "settings.durabilityLevels"


@dataclass(frozen=True, slots=True)
class DurabilityRule:
    """The level of a namespace. It falls to `at_least` once the majority is degrade_lag_secs behind, and rises again
    once it is at most restore_lag_secs behind.
    """

    level: int
    at_least: int
    degrade_lag_secs: int = 10
    restore_lag_secs: int = 2
    others: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))

    def document(self) -> dict[str, object]:
        document: dict[str, object] = {"level": self.level}
        if self.at_least != self.level:
            document |= {
                "atLeast": self.at_least,
                "degradeLagSecs": self.degrade_lag_secs,
                "restoreLagSecs": self.restore_lag_secs,
            }
        return {**document, **self.others}


_FIELDS = frozenset({"level", "atLeast", "degradeLagSecs", "restoreLagSecs"})


def find_namespace(rules: Mapping[str, DurabilityRule], ns: str) -> str | None:
    """Return the key of the rule for `DB.COLLECTION`: its own, else that of its database; None: there is none."""
    database = ns.partition(".")[0]
    return ns if ns in rules else database if database in rules else None


def parse_rules(value: object, keep: bool = False) -> dict[str, DurabilityRule]:
    """Read the setting. TypeMismatchError (14), BadValueError (2) with the place. keep: see `other_fields`."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeMismatchError(f"{AT} must be a document")
    return {ns: _parse_rule(ns, rule, keep) for ns, rule in value.items()}


def _parse_rule(ns: str, rule: object, keep: bool) -> DurabilityRule:
    if not isinstance(rule, Mapping):
        raise TypeMismatchError(f"{AT}.{ns} must be a document")
    if not ns or ns.startswith(".") or ns.endswith("."):
        raise BadValueError(f"{AT}.{ns}: a namespace is DB or DB.COLLECTION")
    others = other_fields(rule, _FIELDS, f"{AT}.{ns}.", keep)
    level = _number(rule, ns, "level", None, 0, HIGHEST)
    at_least = _number(rule, ns, "atLeast", level, 0, level)
    degrade = _number(rule, ns, "degradeLagSecs", 10, 1, 86_400)
    restore = _number(rule, ns, "restoreLagSecs", min(2, degrade - 1), 0, degrade - 1)
    return DurabilityRule(level, at_least, degrade, restore, others)


def _number(rule: Mapping[str, object], ns: str, name: str, default: int | None, least: int, most: int) -> int:
    value = rule.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeMismatchError(f"{AT}.{ns}.{name} must be a number")
    if value != int(value) or not least <= value <= most:
        raise BadValueError(f"{AT}.{ns}.{name} must be a whole number from {least} to {most}, not {value}")
    return int(value)

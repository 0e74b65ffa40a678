"""The states of a member (map A2) and the legal changes between them. docs/core.md shows them as a diagram."""

from __future__ import annotations

from enum import IntEnum
from types import MappingProxyType


class MemberState(IntEnum):
    """MongoDB's states with their numbers. UNKNOWN and DOWN are how other members see one."""

    STARTUP = 0
    PRIMARY = 1
    SECONDARY = 2
    RECOVERING = 3
    STARTUP2 = 5
    UNKNOWN = 6
    ARBITER = 7
    DOWN = 8
    ROLLBACK = 9
    REMOVED = 10

    @property
    def is_readable(self) -> bool:
        return self in (MemberState.PRIMARY, MemberState.SECONDARY)


_S = MemberState
LEGAL_TRANSITIONS: MappingProxyType[MemberState, frozenset[MemberState]] = MappingProxyType(
    {
        # A config is loaded or installed.
        _S.STARTUP: frozenset({_S.STARTUP2, _S.SECONDARY, _S.RECOVERING, _S.ARBITER, _S.REMOVED, _S.ROLLBACK}),
        # Initial sync ended.
        _S.STARTUP2: frozenset({_S.SECONDARY, _S.RECOVERING, _S.REMOVED}),
        # Won an election, diverged from its source, was quarantined, is too stale.
        _S.SECONDARY: frozenset({_S.PRIMARY, _S.ROLLBACK, _S.RECOVERING, _S.STARTUP2, _S.REMOVED}),
        # Lost the majority, saw a higher term, got replSetStepDown.
        _S.PRIMARY: frozenset({_S.SECONDARY, _S.REMOVED}),
        # Undone, refused, or no common point.
        _S.ROLLBACK: frozenset({_S.SECONDARY, _S.RECOVERING, _S.STARTUP2, _S.REMOVED}),
        _S.RECOVERING: frozenset({_S.SECONDARY, _S.ROLLBACK, _S.STARTUP2, _S.REMOVED}),
        _S.ARBITER: frozenset({_S.REMOVED}),
        # Added again.
        _S.REMOVED: frozenset({_S.STARTUP2, _S.SECONDARY, _S.RECOVERING, _S.ARBITER, _S.ROLLBACK}),
    }
)


def is_legal(before: MemberState, after: MemberState) -> bool:
    return before == after or after in LEGAL_TRANSITIONS.get(before, frozenset())


def diagram() -> str:
    """The table as a Mermaid state diagram: docs/core.md holds it, and a test compares."""
    lines = ["stateDiagram-v2", "    [*] --> STARTUP"]
    for before in sorted(LEGAL_TRANSITIONS):
        lines += [f"    {before.name} --> {after.name}" for after in sorted(LEGAL_TRANSITIONS[before])]
    return "\n".join(lines)

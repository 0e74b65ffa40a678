"""The durability levels in force: a primary lowers them while its majority is far behind (settings.durabilityLevels).

The lag is that of the commit point, so members that are down count: with too few left, level 2 could not be met at all.
"""

from __future__ import annotations

from replset.config.durability_rules import DurabilityRule, find_namespace
from replset.core.quorum import IN_SYNC, MAJORITY, WriteConcern
from replset.core.state import NodeState
from replset.core.waiting import members_waited_for

PROVENANCE = "durabilityLevel"


def update_levels(node: NodeState) -> bool:
    """Lower and raise the levels by the lag of the commit point; return whether one changed."""
    rules = node.settings.durability_levels
    lag_ms = node.ages.lag_ms(node.commit_point, node.now) if rules else 0
    levels = {ns: _next_level(rule, node.levels.get(ns, rule.level), lag_ms) for ns, rule in rules.items()}
    lowered = {ns: level for ns, level in levels.items() if level < rules[ns].level}
    before, node.levels = node.levels, lowered
    for ns, rule in rules.items():
        was, now = before.get(ns, rule.level), levels[ns]
        if was != now:
            node.journal("durability level", f"{ns}: from {was} to {now}, as {_reason(node, lag_ms)}")
    return lowered != before


def _next_level(rule: DurabilityRule, level: int, lag_ms: int) -> int:
    if lag_ms > rule.degrade_lag_secs * 1000:
        return rule.at_least
    return rule.level if lag_ms <= rule.restore_lag_secs * 1000 else min(level, rule.level)


def _reason(node: NodeState, lag_ms: int) -> str:
    waited = members_waited_for(node, WriteConcern(MAJORITY), node.position.last_applied)
    names = ", ".join(f"{row.host} ({row.why})" for row in waited)
    return f"the majority is {lag_ms / 1000:.1f} s behind" + (f" and waits for {names}" if lag_ms and names else "")


def concern_of_level(node: NodeState, ns: str) -> WriteConcern | None:
    """Return what a write to `ns` waits for if it says nothing itself; None: the set's default."""
    key = find_namespace(node.settings.durability_levels, ns)
    if key is None:
        return None
    rule = node.settings.durability_levels[key]
    level = node.levels.get(key, rule.level)
    if level == 0:
        concern = WriteConcern(1, False, provenance=PROVENANCE)
    elif level == 1:
        concern = WriteConcern(1, True, provenance=PROVENANCE)
    else:
        concern = WriteConcern(IN_SYNC, provenance=PROVENANCE, level_of=key if rule.at_least < level else "")
    return concern

"""Compares, before a reconfiguration, how many members may fail before and after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replset.config import ReplSetConfig, is_weaker
from replset.errors import ReplError


class NotAcceptedError(ReplError):
    """Fewer members may fail after the change, or it adds a member that does not answer. `--accept` allows it."""


def effect_of(old: ReplSetConfig, new: ReplSetConfig) -> str:
    """Describe what majority writes and elections need after the change, and what they need now."""

    def copies(config: ReplSetConfig) -> str:
        return f"{config.write_majority} of {len(config.data_voters)}"

    before, after = old.tolerance, new.tolerance
    return (
        f"majority writes will need {copies(new)} copies and go on with {after.majority_writes} data members down"
        f" (now: {copies(old)}, {before.majority_writes} down); a primary can be elected with {after.elections} down"
        f" (now: {before.elections})"
    )


def check_effect(old: Mapping[str, Any], new: Mapping[str, Any], *, accept: bool) -> str:
    """Return the warning for a weaker change that is accepted; empty: the change is not weaker. NotAcceptedError.

    A member that is newlyAdded in `old` has no vote in `new` either: it may never get one.
    """
    before, after = ReplSetConfig.parse(old), ReplSetConfig.parse(_marked(new, old))
    if not is_weaker(after, before):
        return ""
    effect = effect_of(before, after)
    if not accept:
        raise NotAcceptedError(f"this lowers how many members may fail: {effect}; with --accept it is done")
    return effect


def _marked(new: Mapping[str, Any], old: Mapping[str, Any]) -> Mapping[str, Any]:
    waiting = {row["host"] for row in old["members"] if row.get("newlyAdded")}
    rows = new.get("members")
    if not waiting or not isinstance(rows, list):
        return new
    return {**new, "members": [{**row, "newlyAdded": True} if row.get("host") in waiting else row for row in rows]}


def with_members(config: Mapping[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the configuration with these members added, numbered as replSetAddMember does."""
    members = list(config["members"])
    for row in rows:
        members.append({"_id": max(int(member["_id"]) for member in members) + 1, **row})
    return {**config, "members": members}


def without_member(config: Mapping[str, Any], host: str) -> dict[str, Any]:
    return {**config, "members": [row for row in config["members"] if row["host"] != host]}

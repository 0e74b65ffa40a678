"""Judges a reconfiguration before it is done: how many members may fail before and after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replset.config import ReplSetConfig, next_member_id
from replset.errors import ReplError
from replset.features.administration.reconfig_effect import reconfig_warning


class NotAcceptedError(ReplError):
    """Fewer members may fail after the change, or it adds a member that does not answer. `--accept` allows it."""


def check_effect(old: Mapping[str, Any], new: Mapping[str, Any], *, accept: bool) -> str:
    """Return the warning for a weaker change that is accepted; empty: the change is not weaker. NotAcceptedError.

    old: with newlyAdded where a member has no vote yet.
    """
    warning = reconfig_warning(ReplSetConfig.parse(old, keep=True), ReplSetConfig.parse(new, keep=True))
    if warning and not accept:
        raise NotAcceptedError(f"{warning}; with --accept it is done")
    return warning


def with_members(config: Mapping[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the configuration with these members added, numbered as replSetAddMember does."""
    members = list(config["members"])
    for row in rows:
        members.append({"_id": next_member_id(int(member["_id"]) for member in members), **row})
    return {**config, "members": members}


def without_member(config: Mapping[str, Any], host: str) -> dict[str, Any]:
    return {**config, "members": [row for row in config["members"] if row["host"] != host]}

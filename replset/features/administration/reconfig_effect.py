"""What a change of the configuration costs: how many members may fail before and after it, and what would serve."""

from __future__ import annotations

from dataclasses import replace

from replset.config import Member, ReplSetConfig, is_weaker, next_member_id
from replset.ids import HostPort


def describe_effect(old: ReplSetConfig, new: ReplSetConfig) -> str:
    """Describe what majority writes and elections need after the change, and what they need now."""

    def copies(config: ReplSetConfig) -> str:
        return f"{config.write_majority} of {len(config.oplog_voters)}"

    before, after = old.tolerance, new.tolerance
    return (
        f"majority writes will need {copies(new)} copies and go on with {after.majority_writes} data members down"
        f" (now: {copies(old)}, {before.majority_writes} down); a primary can be elected with {after.elections} down"
        f" (now: {before.elections})"
    )


def reconfig_warning(old: ReplSetConfig, new: ReplSetConfig) -> str:
    """The warning before a change after which fewer members may fail, with advice; empty: it is no such change.

    A member that is newlyAdded in `old` has no vote in `new` either: it may never get one.
    """
    new = _with_waiting(old, new)
    if not is_weaker(new, old):
        return ""
    advice = _advice(old, new)
    return f"this lowers how many members may fail: {describe_effect(old, new)}{f'; {advice}' if advice else ''}"


def _with_waiting(old: ReplSetConfig, new: ReplSetConfig) -> ReplSetConfig:
    waiting = {member.host for member in old.members if member.newly_added}
    marked = (replace(each, newly_added=each.newly_added or each.host in waiting) for each in new.members)
    return replace(new, members=tuple(marked))


def _advice(old: ReplSetConfig, new: ReplSetConfig) -> str:
    """What would serve instead of a weaker change."""
    known = {member.host for member in old.members}
    if any(member.arbiter_only and member.host not in known for member in new.members):
        return f"instead: {alternatives_to_arbiter(old)}"
    if len(new.voters) < len(old.voters):
        return "add another data member first (replset add HOST)"
    return "keep more members that vote and have a priority above 0"


def alternatives_to_arbiter(config: ReplSetConfig) -> str:
    """What each member that could be added in place of an arbiter would give, best first; the set as it is too."""
    free = next_member_id(member.id for member in config.members)
    with_member = replace(config, members=(*config.members, Member(free, HostPort("another:1"))))
    with_witness = replace(
        config, members=(*config.members, Member(free, HostPort("another:1"), priority=0.0, witness=True))
    )
    choices = [
        (with_member, "a data member (replset add HOST)"),
        (with_witness, "a witness, which keeps entries and no documents (replset add-witness HOST)"),
        (config, f"stay with {len(config.voters)} voters"),
    ]
    choices.sort(key=lambda choice: (-choice[0].tolerance.majority_writes, -choice[0].tolerance.elections))
    return "; or ".join(
        f"{text}: majority writes go on with {found.tolerance.majority_writes} down, elections with"
        f" {found.tolerance.elections}"
        for found, text in choices
    )

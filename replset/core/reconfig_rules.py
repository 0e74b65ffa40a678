"""Which configuration may follow which (map C10, C13 to C16), and what the primary adds to one that users wrote."""

from __future__ import annotations

from dataclasses import replace

from replset.config import MAX_GIVEN_VERSION, ReplSetConfig
from replset.core.messages import Refused
from replset.core.quorum import implicit_default
from replset.errors import ErrorCode
from replset.ids import HostPort


def reconfig_refusal(
    old: ReplSetConfig, new: ReplSetConfig, me: HostPort, *, force: bool, default_set: bool
) -> Refused | None:
    """Why `new` may not follow `old`, None when it may (map C10, C13, C15, C16). Changes nothing."""
    if new.set_name != old.set_name:
        return Refused(
            ErrorCode.NEW_CONFIG_INCOMPATIBLE, f"the set's name is {old.set_name!r} and cannot become {new.set_name!r}"
        )
    if not force and new.version <= old.version:
        return Refused(
            ErrorCode.NEW_CONFIG_INCOMPATIBLE,
            f"version {new.version} must be greater than the current one, {old.version}",
        )
    if new.version > max(MAX_GIVEN_VERSION, old.version + 1):
        return Refused(
            ErrorCode.BAD_VALUE,
            f"version must be from 1 to {MAX_GIVEN_VERSION}, or one above the current one, {old.version},"
            f" not {new.version}",
        )
    if new.settings.replica_set_id not in (None, old.settings.replica_set_id):
        return Refused(ErrorCode.NEW_CONFIG_INCOMPATIBLE, "settings.replicaSetId cannot change")
    for index, member in enumerate(new.members):
        before = old.member_at(member.host)
        if before is None:
            continue
        at = f"members.{index} ({member.host})"
        if before.id != member.id:
            return Refused(
                ErrorCode.NEW_CONFIG_INCOMPATIBLE, f"{at}: its _id is {before.id} and cannot become {member.id}"
            )
        # What a member counts for rests on its disk: an arbiter keeps no entries, a witness no documents. If its kind
        # changed in place, it would count at once for entries or documents that it does not have. Added again, it has
        # its vote only when its disk is of the new kind and has caught up. (Map C10.)
        for field, old_value, new_value in (
            ("arbiterOnly", before.arbiter_only, member.arbiter_only),
            ("witness", before.witness, member.witness),
            ("buildIndexes", before.build_indexes, member.build_indexes),
        ):
            if old_value != new_value:
                why = f"{at}: {field} cannot change; remove the member, then add it again"
                return Refused(ErrorCode.NEW_CONFIG_INCOMPATIBLE, why)
    own = new.member_at(me)
    if own is None:
        first = "" if force else "; it is the primary: let another member lead first (replset step-down)"
        return Refused(ErrorCode.NODE_NOT_FOUND, f"this member, {me}, is not in the new configuration{first}")
    if not force and (not own.bears_data or own.priority == 0):
        return Refused(ErrorCode.NODE_NOT_ELECTABLE, f"this member, {me}, must stay electable: it is the primary")
    before_voters = {member.id for member in old.members if member.votes}
    after_voters = {member.id for member in new.members if member.votes}
    # Another host under a voter's id is another disk. It begins as newlyAdded, so this removes a voter.
    gone = {member.host for member in old.voters} - {member.host for member in new.members if member.votes}
    # Two changes at once would allow majorities of old and new voters that have no member in common. Each could elect a
    # primary, and writes that both acknowledge as committed would contradict each other.
    if not force and (len(before_voters ^ after_voters) > 1 or len(gone) > 1):
        return Refused(ErrorCode.INVALID_CONFIG, "at most one voter may be added or removed at a time")
    if not default_set and implicit_default(old).w != implicit_default(new).w:
        return Refused(
            ErrorCode.NEW_CONFIG_INCOMPATIBLE,
            "this would change the implicit default write concern from "
            f"{{w: {implicit_default(old).w}}} to {{w: {implicit_default(new).w}}}; run setDefaultRWConcern first",
        )
    return None if force else min_in_sync_refusal(new) or _psa_refusal(old, new)


def min_in_sync_refusal(config: ReplSetConfig) -> Refused | None:
    """Why settings.minInSync could never be met; None when it can.

    It is a rule for what users write. A primary that exchanges a vote may leave one voter less for a moment, and every
    member must be able to read that configuration.
    """
    members = config.members
    most = sum(member.votes == 1 and member.bears_data and not member.secondary_delay_secs for member in members)
    if config.settings.min_in_sync <= most:
        return None
    return Refused(
        ErrorCode.BAD_VALUE,
        f"settings.minInSync must be at most {most}, the number of voting members with data that are not delayed, not"
        f" {config.settings.min_in_sync}",
    )


def _psa_refusal(old: ReplSetConfig, new: ReplSetConfig) -> Refused | None:
    """Why one step from primary and arbiter to primary, secondary and arbiter is refused (map C15).

    The new secondary and the arbiter could elect the secondary before it holds any majority write.
    """
    was = [member for member in old.members if member.votes]
    old_holders = sum(member.holds_oplog for member in was)
    voters = [member for member in new.members if member.votes]
    is_psa = len(voters) == 3 and sum(member.arbiter_only for member in voters) == 1
    electable = sum(member.priority > 0 and member.bears_data for member in voters)
    if old_holders < len(was) // 2 + 1 and is_psa and electable > 1:
        return Refused(
            ErrorCode.NEW_CONFIG_INCOMPATIBLE,
            "from a primary and an arbiter to a primary, a secondary and an arbiter in one step is not safe: add the "
            "secondary with priority 0, let it catch up, then raise its priority",
        )
    return None


def complete_config(old: ReplSetConfig, new: ReplSetConfig, term: int) -> ReplSetConfig:
    """Add what users do not write: term, set id, incarnations, who is removed.

    A new voter begins as newlyAdded (map C14). term: -1 if it is forced. Then it names nobody as removed, so that what
    those have does not undo what an operator forced.
    """
    members = []
    voters = {member.id for member in new.members if member.votes}
    for member in new.members:
        before = old.member_at(member.host)
        if before is not None and before.votes == member.votes:
            # Without its voter a spare is a voter like all others.
            spare_for = before.spare_for if before.spare_for in voters else None
            known = replace(member, newly_added=before.newly_added, incarnation=before.incarnation)
            members.append(replace(known, spare_for=spare_for))
        else:
            # A voter that has nothing yet raises the majority. Until it has copied the data, writes could not be
            # committed without one more of the others. (Map C14; docs/core.md.)
            members.append(replace(member, newly_added=member.votes == 1, incarnation=None, spare_for=None))
    settings = replace(new.settings, replica_set_id=old.settings.replica_set_id)
    removed = () if term == -1 else tuple(row.host for row in old.members if new.member_at(row.host) is None)
    return replace(new, term=term, members=tuple(members), settings=settings, former_hosts=removed)

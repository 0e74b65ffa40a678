"""setFeatureCompatibilityVersion: lets a set use what a newer release brought, or makes it ready for an older one.

The version is a field of the configuration (config/feature_version.py), and a change of it is a reconfig: a majority
has it before the command answers.
"""

from __future__ import annotations

from replset.config import ReplSetConfig
from replset.config.feature_version import FIELD, KNOWN, FeatureVersion
from replset.errors import BadValueError, ErrorCode, ReplError
from replset.features.administration.operations import SetFeatureVersion
from replset.features.administration.replset_admin import change_config, primary_config
from replset.member.feature import Features
from replset.operations.command import Command, CommandContext, declared
from replset.operations.request import Reply
from replset.storage.txn import Txn


async def set_feature_version(ctx: CommandContext, given: SetFeatureVersion) -> Reply:
    """Raise or lower it. Repeating a change does nothing.

    Raises 2 for a version that this release does not know, 7369100 without `confirm`, 344 where the set has what the
    older release cannot read, 103 while a member is not known to run a release that can read what the newer one may
    write.
    """
    known = {str(version): version for version in KNOWN}
    if given.version not in known:
        expected = " or ".join(map(repr, known))
        raise BadValueError(f"Invalid feature compatibility version value {given.version!r:.40}; expected {expected}")
    config, wanted = primary_config(ctx), known[given.version]
    if wanted == config.feature_version:
        return {}
    if not given.confirm:
        raise ReplError(
            "Once the set uses what a newer release brought, its members cannot go back to the older one. Please re-run"
            " this command with 'confirm: true'.",
            code=ErrorCode.CONFIRMATION_NEEDED,
        )
    if wanted < config.feature_version:
        return await _lower(ctx, config, wanted)
    _refuse_old_members(ctx, wanted)
    return await change_config(ctx, config, {**config.document(), FIELD: str(wanted)})


def _refuse_old_members(ctx: CommandContext, wanted: FeatureVersion) -> None:
    """Refuse while a member has not said that its release knows the version: it would read entries as something else.

    Those that answer the reconfig's check are looked at once more there.
    """
    status = ctx.member.node.status(ctx.member.clock.now())
    for row in () if status is None else status.members:
        if row.release is not None and row.release >= wanted:
            continue
        says = "has not said which release it runs" if row.release is None else f"runs release {row.release}"
        raise ReplError(
            f"{row.host} {says}, and {FIELD} {wanted} needs {wanted} on each member",
            code=ErrorCode.NEW_CONFIG_INCOMPATIBLE,
        )


async def _lower(ctx: CommandContext, config: ReplSetConfig, wanted: FeatureVersion) -> Reply:
    """Lower it first, so that nothing more of the newer release is made, and look again: what was begun before is done
    then. If there is something, the version goes back up.
    """
    refuse_newer_content(await ctx.member.write(lambda group: newer_content(ctx, group.txn)), wanted)
    reply = await change_config(ctx, config, {**config.document(), FIELD: str(wanted)})
    left = await ctx.member.write(lambda group: newer_content(ctx, group.txn))
    if left:
        lowered = primary_config(ctx)
        await change_config(ctx, lowered, {**lowered.document(), FIELD: str(config.feature_version)})
    refuse_newer_content(left, wanted)
    return reply


def newer_content(ctx: CommandContext, txn: Txn) -> str:
    """Name what release 1.0 cannot read: a collation, or what a feature has; empty where there is none."""
    for coll in txn.catalog.by_ns.values():
        if "collation" in coll.options:
            return f"collection {coll.ns} has a collation"
        for index in coll.indexes:
            if "collation" in index.spec:
                return f"index {index.name} of {coll.ns} has a collation"
    return next(filter(None, (part.newer_content(txn) for part in ctx.member[Features])), "")


def refuse_newer_content(found: str, wanted: FeatureVersion) -> None:
    if found:
        raise ReplError(
            f"{FIELD} cannot be {wanted}: {found}; drop it first (docs/upgrade.md)", code=ErrorCode.CANNOT_DOWNGRADE
        )


COMMANDS: tuple[Command, ...] = (declared(SetFeatureVersion, set_feature_version),)

"""Which collation a command compares strings by: its own, else that of its collection or view; and who may have one."""

from __future__ import annotations

from replset.bson import RawDocument
from replset.config.feature_version import FeatureVersion, refuse_below
from replset.errors import ReplError
from replset.operations import fields
from replset.operations.command import CommandContext
from replset.operations.kernel import Kernel
from replset.operations.namespaces import collection_here, collection_of
from replset.query.collation import Fold


def default_fold(ctx: CommandContext) -> Fold | None:
    """Return the fold of the collation that the command's collection or view has; None for the simple one."""
    if ctx.body.get_string(ctx.name) is None:  # `aggregate: 1`
        return None
    coll = collection_here(ctx, collection_of(ctx))
    return None if coll is None else coll.fold


def command_fold(ctx: CommandContext) -> Fold | None:
    """Return the fold of the command's collation. Raises what fold_of raises."""
    return fields.collation(ctx.body, ctx.name, default_fold(ctx))


def refuse_newer(member: Kernel, options: RawDocument, error: type[ReplError]) -> None:
    """Raise the error for a collection or an index with a collation in a set whose members may be of release 1.0.

    These would apply the entry without the collation, and find other documents from then on.
    """
    if "collation" in options:
        refuse_below(FeatureVersion(1, 1), member.node.feature_version, "what has a collation", error)

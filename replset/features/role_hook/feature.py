"""The role hook, as a feature of a member."""

from __future__ import annotations

from replset.features.role_hook.hook import RoleHook
from replset.member.feature import Feature, FeaturePart
from replset.member.options import MemberOptions
from replset.operations.kernel import Kernel
from replset.replication.context import MemberContext


def _part(member: Kernel) -> FeaturePart | None:
    context, options = member[MemberContext], member[MemberOptions]
    if options.role_hook is None:
        return None
    names, report = (member.set_name, member.host), context.on_report
    return RoleHook(member.node, options.role_hook, options.role_hook_ms, context.dbpath, member.clock, names, report)


ROLE_HOOK = Feature("role_hook", part=_part)

"""The role hook, as a feature of a member."""

from __future__ import annotations

from replset.features.role_hook.hook import RoleHook
from replset.ids import Millis
from replset.member.feature import Feature, FeaturePart
from replset.member.options import MemberOptions
from replset.operations.kernel import Kernel
from replset.replication.context import MemberContext


def _part(member: Kernel) -> FeaturePart | None:
    context, options = member[MemberContext], member[MemberOptions]
    if options.role_hook is None:
        return None
    hook_ms, names = Millis(int(options.role_hook_secs * 1000)), (member.set_name, member.host)
    return RoleHook(member.node, options.role_hook, hook_ms, context.dbpath, member.clock, names, context.on_report)


ROLE_HOOK = Feature("role_hook", part=_part)

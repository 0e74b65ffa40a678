"""The role hook, as a feature of a member."""

from __future__ import annotations

import os

from replset.features.role_hook.hook import RoleHook
from replset.ids import Millis
from replset.member.feature import Feature, FeaturePart
from replset.member.options import BadOptionError, FeatureOptions, option, options
from replset.operations.kernel import Kernel
from replset.replication.context import MemberContext
from replset.text import is_url


@options
class RoleHookOptions(FeatureOptions):
    role_hook: str | None = option(
        "PROGRAM", "program or http:// address that is called when this member gains or loses the primary's role", None
    )
    role_hook_secs: float = option(
        "SECONDS", "limit of one call; also how long a primary without a majority keeps the role (5)", 5.0
    )

    def check(self) -> None:
        hook = self.role_hook
        if not 0.2 <= self.role_hook_secs <= 3600:
            raise BadOptionError(f"--role-hook-secs: {self.role_hook_secs:g} is not from 0.2 to 3600")
        if hook is not None and not is_url(hook) and not (os.path.isfile(hook) and os.access(hook, os.X_OK)):
            raise BadOptionError(f"--role-hook: {hook} is neither a program nor an http:// address")


def _part(member: Kernel) -> FeaturePart | None:
    context, given = member[MemberContext], member[RoleHookOptions]
    if given.role_hook is None:
        return None
    role_hook_ms = Millis(int(given.role_hook_secs * 1000))
    member.node.keep_role_for(role_hook_ms)
    names, report = (member.set_name, member.host), context.on_report
    return RoleHook(member.node, given.role_hook, role_hook_ms, context.dbpath, member.clock, names, report)


ROLE_HOOK = Feature("role_hook", part=_part, options=RoleHookOptions)

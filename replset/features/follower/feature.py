"""Following another set, as a feature of a member."""

from __future__ import annotations

from replset.features.follower.follow import COMMANDS
from replset.features.follower.followed import FOLLOW_NS, refuse_clients
from replset.features.follower.set_follower import SetFollower
from replset.member.disk.writer import Writer
from replset.member.feature import Feature, FeaturePart
from replset.operations.kernel import Kernel
from replset.replication.context import MemberContext


def _part(member: Kernel) -> FeaturePart:
    writer = member[Writer]
    writer.refusals[FOLLOW_NS] = refuse_clients
    follower = SetFollower(member[MemberContext], member.node, writer)
    member.add(follower.progress)
    return follower


FOLLOWER = Feature("follower", COMMANDS, _part)

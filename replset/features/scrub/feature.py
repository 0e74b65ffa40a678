"""Comparing the members' documents, as a feature of a member."""

from __future__ import annotations

from replset.core.member_state import MemberState
from replset.features.scrub.auto_repair import AutoRepair
from replset.features.scrub.document_check import DocumentCheck
from replset.features.scrub.document_checks import COMMANDS
from replset.features.scrub.document_repair import DocumentRepair
from replset.features.scrub.scrubber import Scrubber
from replset.ids import HostPort
from replset.member.feature import Feature, FeaturePart
from replset.member.options import FeatureOptions, option, options
from replset.operations.kernel import Kernel
from replset.operations.transactions import TransactionTable
from replset.replication.context import MemberContext
from replset.replication.ports import SetMemberClient
from replset.replication.rollback_list import RollbackList
from replset.storage.member_file import MemberFile


@options
class ScrubOptions(FeatureOptions):
    scrub_mb_per_sec: float = option(
        "MB", "how fast a secondary compares its documents with the primary's; 0: not at all (1)", 1.0, least_0=True
    )


def _part(member: Kernel) -> FeaturePart:
    def primary() -> HostPort | None:
        """Who is primary, while this member is it, or a secondary: each secondary compares its documents with it."""
        state = member.node.state
        return member.node.primary_host if state in (MemberState.PRIMARY, MemberState.SECONDARY) else None

    context, check = member[MemberContext], DocumentCheck(member[MemberContext], member[SetMemberClient])
    repair = DocumentRepair(context, check, member[TransactionTable].held.is_held)
    auto = AutoRepair(context, member.node, repair, member[MemberFile], member[RollbackList])
    scrubber = Scrubber(context, check, primary, member[ScrubOptions].scrub_mb_per_sec, auto)
    member.add(check, repair, scrubber.found)
    return scrubber


SCRUB = Feature("scrub", COMMANDS, _part, ScrubOptions)

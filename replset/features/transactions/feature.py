"""Sessions and transactions, as a feature of a member."""

from __future__ import annotations

from replset.features.transactions import commands, session_commands
from replset.features.transactions.session_expiry import SESSION_TIMEOUT_MS, SessionExpiry
from replset.ids import Millis
from replset.member.disk.writer import Writer
from replset.member.feature import Feature, FeaturePart
from replset.operations.dispatcher import Dispatcher
from replset.operations.kernel import Kernel
from replset.replication.context import MemberContext


def transactions_feature(session_timeout_ms: Millis = SESSION_TIMEOUT_MS) -> Feature:
    """session_timeout_ms: after which a session that writes nothing is forgotten."""

    def part(member: Kernel) -> FeaturePart:
        sessions = member[Dispatcher].sessions
        return SessionExpiry(member[MemberContext], member.node, member[Writer], sessions, session_timeout_ms)

    return Feature("transactions", (*commands.COMMANDS, *session_commands.COMMANDS), part)

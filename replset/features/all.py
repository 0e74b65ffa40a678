"""All features of the product, and the table of all commands. docs/commands.md describes each command."""

from __future__ import annotations

from replset.features.administration import (
    apply_ops,
    confirm_writes,
    election_journal,
    feature_version,
    parameters,
    replset_admin,
    replset_status,
    write_state,
)
from replset.features.aggregation import aggregate, view_reads
from replset.features.aggregation.temporary import TemporaryCollections
from replset.features.archive.feature import SEGMENT_BYTES, archive_feature
from replset.features.archive.jobs import ArchivePort
from replset.features.backup import backup
from replset.features.change_streams.change_stream import ChangeStreams
from replset.features.collections import collection_changes, collections, statistics
from replset.features.compared_copies.feature import COMPARED_COPIES
from replset.features.consumers import consumer_commands
from replset.features.consumers.consumer_directory import ConsumerDirectory
from replset.features.crud import count_distinct, delete, find, find_and_modify, get_more, insert, update
from replset.features.diagnostics import current_op, diagnostics, explain, hello, server_status
from replset.features.follower.feature import FOLLOWER
from replset.features.history import document_history
from replset.features.indexes import indexes
from replset.features.indexes.ttl import TtlMonitor
from replset.features.recovery import rollbacks
from replset.features.role_hook.feature import ROLE_HOOK
from replset.features.scrub.feature import SCRUB
from replset.features.transactions.feature import transactions_feature
from replset.features.transactions.session_expiry import SESSION_TIMEOUT_MS
from replset.features.undo import undo
from replset.features.users import sasl, user_commands
from replset.features.what_if.what_if import WHAT_IF
from replset.ids import Millis
from replset.member.feature import Feature
from replset.member.member import KERNEL_COMMANDS
from replset.operations.command import Command


def all_features(
    archive: ArchivePort | None = None,
    *,
    segment_bytes: int = SEGMENT_BYTES,
    session_timeout_ms: Millis = SESSION_TIMEOUT_MS,
) -> tuple[Feature, ...]:
    """What a member is started with. A line that is taken away takes its feature away, and nothing else.

    archive, segment_bytes: see archive_feature. session_timeout_ms: after which a session that writes nothing is
    forgotten.
    """
    return (
        Feature(
            "crud",
            (
                *find.COMMANDS,
                *get_more.COMMANDS,
                *count_distinct.COMMANDS,
                *insert.COMMANDS,
                *update.COMMANDS,
                *delete.COMMANDS,
                *find_and_modify.COMMANDS,
            ),
        ),
        Feature("collections", (*collections.COMMANDS, *collection_changes.COMMANDS, *statistics.COMMANDS)),
        Feature("indexes", indexes.COMMANDS, TtlMonitor),
        Feature("change_streams", part=lambda _member: ChangeStreams()),
        # Behind crud: its find, count and distinct take the place of those, and read views too.
        Feature("aggregation", (*aggregate.COMMANDS, *view_reads.COMMANDS), TemporaryCollections),
        transactions_feature(session_timeout_ms),
        Feature("consumers", consumer_commands.COMMANDS, ConsumerDirectory),
        FOLLOWER,
        archive_feature(archive, segment_bytes),
        Feature("backup", backup.COMMANDS),
        COMPARED_COPIES,
        SCRUB,
        Feature("users", (*sasl.COMMANDS, *user_commands.COMMANDS)),
        ROLE_HOOK,
        Feature("recovery", rollbacks.COMMANDS),
        Feature("history", document_history.COMMANDS),
        Feature("undo", undo.COMMANDS),
        WHAT_IF,
        Feature(
            "administration",
            (
                *replset_admin.COMMANDS,
                *replset_status.COMMANDS,
                *election_journal.COMMANDS,
                *parameters.COMMANDS,
                *feature_version.COMMANDS,
                *write_state.COMMANDS,
                *confirm_writes.COMMANDS,
                *apply_ops.COMMANDS,
            ),
        ),
        Feature(
            "diagnostics",
            (*hello.COMMANDS, *server_status.COMMANDS, *diagnostics.COMMANDS, *current_op.COMMANDS, *explain.COMMANDS),
        ),
    )


OPTIONS = tuple(feature.options for feature in all_features() if feature.options is not None)
"""What features add to the options of `replset start`."""
COMMANDS: dict[str, Command] = {
    command.name: command
    for command in (*KERNEL_COMMANDS, *(command for feature in all_features() for command in feature.commands))
}
PRIVATE: frozenset[str] = frozenset(command.name for command in COMMANDS.values() if command.private)
"""Commands between members; the HTTP API does not serve them."""

"""How the machines and the set of a run are made: sizes, times, clocks."""

from __future__ import annotations

from dataclasses import dataclass

from replset.features.compared_copies import differences
from replset.ids import Millis
from replset.member.outside import StepSizes
from replset.replication.copy_transfer import InitialSyncOptions
from replset.replication.fetcher import FetchOptions
from replset.replication.index_builder import IndexBuildOptions
from replset.storage.store import StoreOptions


@dataclass(frozen=True, slots=True)
class Environment:
    """How the machines and the set are made; a seeded run draws it.

    worker_ms: what work in a thread (a sync, a vote's save) takes at most; a tenth takes ten times as long.
    skew_ms: how wrong wall clocks are at most.
    oplog_bytes: above it the oplog's head is trimmed; oplog_lagging_bytes: up to it what a member still needs stays.
    history_s: how long undo is kept for reads. checkpoint_bytes: of
    WAL between two checkpoints; a last pass, which holds commits, comes at eight times as much. page_bytes: of an oplog
    page; chunk_bytes: of a piece of a copy. undo_step: entries that a rollback takes away in one transaction.
    group_statements: of one command in one group. overlap: how much of the work in threads overlaps with the loop.
    answer_spans, answer_bytes: of one answer to a stale member that compares its documents.
    mixed: each process that starts is one of this tree, or one of the last release.
    archives: members have an archive, which fails now and then.
    keyed: members prove to each other who they are, on every new connection.
    """

    worker_ms: float = 4.0
    oplog_bytes: int = 1 << 30
    oplog_lagging_bytes: int = 0
    history_s: int = 300
    checkpoint_bytes: int = 16 << 20
    catch_up_ms: int = 2_000
    page_bytes: int = 4 << 20
    chunk_bytes: int = 4 << 20
    undo_step: int = 200
    skew_ms: int = 200
    group_statements: int = 500
    overlap: float = 0.0
    keyed: bool = False
    answer_spans: int = differences.SPANS_MAX
    answer_bytes: int = differences.ROWS_BYTES
    archives: bool = False
    mixed: bool = False


DEFAULT_ENVIRONMENT = Environment()
SESSION_TIMEOUT_MS = Millis(45_000)
"""Three times as long as a client sends a write again, and shorter than a run."""
SEGMENT_BYTES = 3_000


def step_sizes(environment: Environment) -> StepSizes:
    """Small steps, so that short runs have several of them."""
    size = environment.checkpoint_bytes
    return StepSizes(
        StoreOptions(checkpoint_bytes=size, wal_limit_bytes=8 * size),
        FetchOptions(max_bytes=environment.page_bytes),
        InitialSyncOptions(chunk_bytes=environment.chunk_bytes),
        index_build=IndexBuildOptions(slice_documents=2, pause_s=0.05),
    )

"""The named steps at which a member may die, and what lets it die at one of them.

Each step is the call, or the return, of one function of the member; nothing in the member knows of it. The list is the
one in docs/storage.md, "Crash points".
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import replset.member.disk.data_replacement as data_replacement
import replset.member.disk.member_files as files
import replset.member.member as member_module
import replset.replication.initial_sync as initial_sync_module
import replset.replication.rollback as rollback_module
import replset.storage.copies as copies_module
import replset.storage.member_file as member_file_module
import replset.storage.retention as retention_module
import replset.storage.store as store_module
from replset.core.effects import LastVote
from replset.member.core_effects import CoreEffects
from replset.member.disk.durability import Durability
from replset.member.disk.writer import Writer
from replset.member.member import RunningMember
from replset.member.net.server import WireServer
from replset.member.shell import Shell
from replset.operations.waiters import WaiterList
from replset.replication.partial_copy import PartialCopy
from replset.replication.rollback import Rollback
from replset.replication.rollback_files import RollbackWriter
from replset.replication.write_queue import WriteQueue
from replset.storage.member_file import MemberFile
from replset.storage.readers import Readers
from replset.storage.store import Store
from replset.storage.wal import Wal
from tests.simulation.kit import disk as disk_module
from tests.simulation.kit.cluster import SimCluster
from tests.simulation.kit.disk import SimDisk
from tests.simulation.kit.loop import current_process


class Phase(StrEnum):
    FIRST_START = "first start"
    START = "start after a death"
    INITIATE = "a set begins"
    COMMIT = "commit"
    APPLY = "commit on a secondary"
    CONFIG = "new configuration"
    CONFIG_APPLIED = "new configuration on a secondary"
    CHECKPOINT = "checkpoint"
    ROLLBACK = "rollback"
    INITIAL_SYNC = "initial sync"
    SOURCE = "source of an initial sync"
    CANDIDATE = "election"
    VOTER = "vote"
    SHUTDOWN = "shutdown"


def _always(*_: Any) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """The `nth` call of `owner.method` whose arguments satisfy `when`: at its beginning, or `after` it returned."""

    phase: Phase
    name: str
    owner: Any
    method: str
    after: bool = False
    nth: int = 1
    when: Callable[..., bool] = _always

    @property
    def title(self) -> str:
        return f"{self.phase}: {self.name}"


def _renames_manifest(_disk: Any, _source: str, target: str) -> bool:
    return "/rollback-" in target


def _renames_database(_disk: Any, _source: str, target: str) -> bool:
    return target.endswith("/replset.db")


def _writes_database(file: Any, *_: Any) -> bool:
    return str(file._path).endswith("/replset.db")


def _has_incarnation(_file: Any, values: Any) -> bool:
    return "incarnation" in values


def _is_new_primary(_writer: Any, _term: int, message: str) -> bool:
    return message == "new primary"


def _begins_set(_writer: Any, _term: int, message: str) -> bool:
    return message == "initiating set"


def _of_a_copy(_disk: Any, path: str, *_: Any) -> bool:
    return "/snapshots/" in path


def _has_entries(_store: Any, txn: Any) -> bool:
    return bool(txn.changed)


def _is_a_vote(_file: Any, vote: LastVote, *_: Any) -> bool:
    return vote.candidate is not None  # else it only notes a newer term


P, C = Phase, CrashPoint
CRASH_POINTS: tuple[CrashPoint, ...] = (
    # A dbpath without anything in it.
    C(P.FIRST_START, "the lock is taken", MemberFile, "_connect"),
    C(P.FIRST_START, "member.db has its schema", member_file_module, "ensure_schema", after=True),
    C(P.FIRST_START, "the incarnation is written", MemberFile, "_put", after=True, when=_has_incarnation),
    C(P.FIRST_START, "replset.db has its schema", store_module, "ensure_schema", after=True),
    C(P.FIRST_START, "both databases are open", files, "open_files", after=True),
    C(P.FIRST_START, "it listens", WireServer, "start", after=True),
    C(P.FIRST_START, "the configuration came and is saved", MemberFile, "save_config", after=True),
    # A dbpath whose member died in the middle of a rollback.
    C(P.START, "the WAL is read, nothing is checkpointed", store_module, "write_meta"),
    C(
        P.START,
        "a page of the WAL is checkpointed",
        disk_module._RecordingFile,
        "xWrite",
        after=True,
        when=_writes_database,
    ),
    C(P.START, "the WAL is checkpointed", Store, "reload"),
    C(P.START, "an undo step is resumed", rollback_module, "undo_step", after=True),
    C(P.START, "the undo is at its end", Wal, "sync"),
    C(P.START, "the undo is synced", Wal, "sync", after=True),
    C(P.START, "the manifest says finished", rollback_module, "settle_manifest", after=True),
    C(P.START, "the done mark is cleared", rollback_module, "clear_rollback_done", after=True),
    C(P.START, "it listens", WireServer, "start", after=True),
    C(P.START, "it takes part", Shell, "start", after=True),
    # The member to which replSetInitiate goes.
    C(P.INITIATE, "the first entry is not written", Writer, "append_noop", when=_begins_set),
    C(P.INITIATE, "the first entry is not synced", Writer, "append_noop", after=True, when=_begins_set),
    C(P.INITIATE, "the configuration is not saved", MemberFile, "save_config"),
    C(P.INITIATE, "the configuration is saved, nobody was answered", MemberFile, "save_config", after=True),
    C(P.INITIATE, "the first marker is cleared", MemberFile, "end_initial_sync", after=True),
    # The primary, with clients that wait at w:1, j:true and w:majority.
    C(P.COMMIT, "the group is written, not committed", Store, "_commit", when=_has_entries),
    C(P.COMMIT, "the group is committed, not synced", Store, "_commit", after=True, when=_has_entries),
    C(P.COMMIT, "the group is about to be synced", Wal, "sync"),
    C(P.COMMIT, "the group is synced, nobody was answered", Wal, "sync", after=True),
    C(P.COMMIT, "the clients are answered", WaiterList, "release", after=True, nth=4),
    C(P.APPLY, "the batch is written, not committed", Store, "_commit", when=_has_entries),
    C(P.APPLY, "the batch is committed, not synced", Store, "_commit", after=True, when=_has_entries),
    C(P.APPLY, "the batch is synced, the source does not know yet", Wal, "sync", after=True),
    C(P.CONFIG, "the primary has not saved it", MemberFile, "save_config"),
    C(P.CONFIG, "the primary saved it, nobody else knows yet", MemberFile, "save_config", after=True),
    C(P.CONFIG_APPLIED, "it has not saved it", MemberFile, "save_config"),
    C(P.CONFIG_APPLIED, "it saved it, nobody else knows yet", MemberFile, "save_config", after=True),
    # A WAL of a few pages, an oplog that is trimmed.
    C(P.CHECKPOINT, "a passive pass begins", Wal, "checkpoint"),
    C(P.CHECKPOINT, "a page is checkpointed", disk_module._RecordingFile, "xWrite", after=True, when=_writes_database),
    C(P.CHECKPOINT, "the pass is done", Wal, "checkpoint", after=True),
    C(P.CHECKPOINT, "a last pass is done, commits are paused", Wal, "last_pass", after=True),
    C(P.CHECKPOINT, "the first commit into the new WAL", WriteQueue, "resume", after=True),
    C(P.CHECKPOINT, "undo is pruned", retention_module, "_prune", after=True, nth=2),
    C(P.CHECKPOINT, "the oplog is trimmed", retention_module, "_trim", after=True, nth=2),
    # An old primary with entries of its own.
    C(P.ROLLBACK, "the common point is known", Rollback, "_write"),
    C(P.ROLLBACK, "a file is written, not synced", RollbackWriter, "_write_out", after=True),
    C(P.ROLLBACK, "the files are synced, no manifest", RollbackWriter, "finish", after=True),
    C(P.ROLLBACK, "the manifest has no name yet", SimDisk, "rename", when=_renames_manifest),
    C(P.ROLLBACK, "the manifest's name is not synced", SimDisk, "rename", after=True, when=_renames_manifest),
    C(P.ROLLBACK, "the manifest is synced", RollbackWriter, "write_manifest", after=True),
    C(P.ROLLBACK, "the first undo step is not committed", Store, "_commit"),
    C(P.ROLLBACK, "the first undo step is done", rollback_module, "undo_step", after=True),
    C(P.ROLLBACK, "the cursor moved back once", Durability, "on_undone", after=True),
    C(P.ROLLBACK, "the second undo step is done", rollback_module, "undo_step", after=True, nth=2),
    C(P.ROLLBACK, "the last undo step is done", rollback_module, "undo", after=True),
    C(P.ROLLBACK, "the manifest says finished", rollback_module, "settle_manifest", after=True),
    C(P.ROLLBACK, "the done mark is cleared", rollback_module, "clear_rollback_done", after=True),
    C(P.ROLLBACK, "the core knows", Rollback, "run", after=True),
    # A member whose oplog ends before everybody else's begins, with entries of its own.
    C(P.INITIAL_SYNC, "the marker is not set", MemberFile, "begin_initial_sync"),
    C(P.INITIAL_SYNC, "the marker is set", MemberFile, "begin_initial_sync", after=True),
    C(P.INITIAL_SYNC, "its own entries are exported", initial_sync_module, "export_before_wipe", after=True),
    C(P.INITIAL_SYNC, "the copy is asked for and on record", PartialCopy, "begin", after=True),
    C(P.INITIAL_SYNC, "a piece is written, not synced", PartialCopy, "append", after=True, nth=3),
    C(P.INITIAL_SYNC, "pieces are synced and on record", PartialCopy, "keep", after=True),
    C(P.INITIAL_SYNC, "the copy is whole and synced", PartialCopy, "seal", after=True),
    C(P.INITIAL_SYNC, "the copy is named for this sync", initial_sync_module, "name_copy", after=True),
    C(P.INITIAL_SYNC, "the copy is checked and claimed", MemberFile, "claim_copy", after=True),
    C(P.INITIAL_SYNC, "the store is closed", data_replacement, "install_copy"),
    C(P.INITIAL_SYNC, "the copy is made this member's", copies_module, "_prepare_copy", after=True),
    C(P.INITIAL_SYNC, "the old WAL is gone", SimDisk, "rename", when=_renames_database),
    C(P.INITIAL_SYNC, "the copy is moved, not synced", SimDisk, "rename", after=True, when=_renames_database),
    C(P.INITIAL_SYNC, "the move is synced", data_replacement, "install_copy", after=True),
    C(P.INITIAL_SYNC, "the marker is cleared", MemberFile, "end_initial_sync", after=True),
    C(P.INITIAL_SYNC, "the store is open again", Durability, "on_store_opened", after=True),
    C(P.INITIAL_SYNC, "the record is removed", PartialCopy, "discard", nth=2, after=True),
    C(P.SOURCE, "the copy is not begun", Store, "copy_to"),
    C(P.SOURCE, "the copy is made, nobody knows", Store, "copy_to", after=True),
    C(P.SOURCE, "a piece of it is read", SimDisk, "read_at", after=True, nth=20, when=_of_a_copy),
    C(P.SOURCE, "the copy is let go", SimDisk, "remove", nth=2, when=_of_a_copy),
    C(P.CANDIDATE, "its own vote is not saved", MemberFile, "save_vote", when=_is_a_vote),
    C(P.CANDIDATE, "its own vote is saved, nobody was asked", MemberFile, "save_vote", after=True, when=_is_a_vote),
    C(P.CANDIDATE, "it won, nothing is drained", CoreEffects, "_report_drained"),
    C(P.CANDIDATE, "the new-primary no-op is not written", Writer, "append_noop", when=_is_new_primary),
    C(P.CANDIDATE, "the new-primary no-op is not synced", Writer, "append_noop", after=True, when=_is_new_primary),
    C(P.CANDIDATE, "the new-primary no-op is synced", Wal, "sync", after=True),
    C(P.CANDIDATE, "the configuration of the new term is saved", MemberFile, "save_config", after=True),
    C(P.CANDIDATE, "the election journal is written", MemberFile, "append_lines", after=True),
    C(P.VOTER, "the vote is not saved", MemberFile, "save_vote", when=_is_a_vote),
    C(P.VOTER, "the vote is saved, not answered", MemberFile, "save_vote", after=True, when=_is_a_vote),
    C(P.SHUTDOWN, "it was asked to stop", member_module, "hand_over_primary"),
    C(P.SHUTDOWN, "it stepped down", RunningMember, "hand_over", after=True),
    C(P.SHUTDOWN, "writes are refused", Writer, "close", after=True),
    C(P.SHUTDOWN, "the core is closed", Shell, "close", after=True),
    C(P.SHUTDOWN, "the sockets are closed", WireServer, "close", after=True),
    C(P.SHUTDOWN, "the final checkpoint begins", Readers, "close", after=True),
    C(P.SHUTDOWN, "the final checkpoint copied a page", disk_module._RecordingFile, "xWrite", when=_writes_database),
    C(P.SHUTDOWN, "replset.db is closed", Store, "close", after=True),
    C(P.SHUTDOWN, "member.db is closed", MemberFile, "close", after=True),
)


@contextmanager
def at_point(cluster: SimCluster, name: str, point: CrashPoint, do: Callable[[], None]) -> Iterator[None]:
    """Within the block: when the member called `name` comes to the point, `do` is called, once."""
    machine = cluster.machines[name]
    original = getattr(point.owner, point.method)
    seen = 0

    def is_here(arguments: tuple[Any, ...]) -> bool:
        nonlocal seen
        process = current_process.get()
        if process is None or process is not machine.process or not point.when(*arguments):
            return False
        seen += 1
        return seen == point.nth

    @functools.wraps(original)
    def called(*arguments: Any, **named: Any) -> Any:
        here = is_here(arguments)
        if here and not point.after:
            do()
        result = original(*arguments, **named)
        if here and point.after:
            do()
        return result

    @functools.wraps(original)
    async def awaited(*arguments: Any, **named: Any) -> Any:
        here = is_here(arguments)
        if here and not point.after:
            do()
        result = await original(*arguments, **named)
        if here and point.after:
            do()
        return result

    own = vars(point.owner)
    was_own, before = point.method in own, own.get(point.method)
    setattr(point.owner, point.method, awaited if inspect.iscoroutinefunction(original) else called)
    try:
        yield
    finally:
        if was_own:
            setattr(point.owner, point.method, before)
        else:
            delattr(point.owner, point.method)

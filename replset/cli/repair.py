"""`replset repair DBPATH [--term N] [--accept-data-loss]`: what a stopped member's files hold, and putting it right.

A term is never taken back while a member runs. When the files hold one that cannot be true (a forged or damaged message
was believed once), or when a member was away while its set's term rose too far, a person says which term goes on. A
member whose disk lost entries below its durability mark waits for a person too, where no other member has them.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from replset.config import ReplSetConfig
from replset.core.effects import LastVote
from replset.core.term_limits import MAX_TERM
from replset.errors import BadValueError, StorageError
from replset.ids import OPTIME_NULL, OpTime
from replset.oplog_entry import noop_entry
from replset.runtime.machine import RealClock
from replset.storage.disk import Disk, RealDisk
from replset.storage.member_file import MEMBER_FILE, MemberFile
from replset.storage.offline import open_oplog
from replset.storage.store import Store, StoreOptions, lock_dbpath


@dataclass(frozen=True, slots=True)
class Terms:
    """Holds the terms in a member's files: after a start its term is the highest of these."""

    vote: LastVote | None
    config: ReplSetConfig | None
    newest: OpTime
    durability_mark: OpTime

    def lines(self) -> list[str]:
        vote, config = self.vote, self.config
        return [
            f"set: {'none' if config is None else config.set_name}",
            f"last vote: {'none' if vote is None else f'term {vote.term}'}",
            f"configuration: {'none' if config is None else f'version {config.version}, term {config.term}'}",
            f"newest entry: {self.newest} (term {self.newest.term})",
            f"durability mark: {self.durability_mark}"
            f"{' (entries behind the newest one are lost)' if self._has_loss else ''}",
        ]

    @property
    def _has_loss(self) -> bool:
        return self.newest < self.durability_mark


def repair(dbpath: Path, term: int | None, accept_data_loss: bool = False) -> list[str]:
    """Put vote and configuration into `term`, None: leave them; returns what the files say then, line by line.

    accept_data_loss: go on with the entries that are there; those between them and the durability mark are lost.

    Raises DbPathLockedError when the member runs, StorageError when there is none, BadValueError for a term that is
    below an entry here.
    """
    if not (dbpath / MEMBER_FILE).is_file():
        raise StorageError(f"no member's files at {dbpath}: {dbpath / MEMBER_FILE} does not exist")
    disk = RealDisk()
    with ExitStack() as opened:
        opened.callback(lock_dbpath(disk, dbpath).release)
        with open_oplog(dbpath) as oplog:
            newest = oplog.newest()
        file = MemberFile.open(disk, dbpath)
        opened.callback(file.close)
        if term is not None:
            _check_term(dbpath, newest, term)
            if file.config is not None and file.config.term > term:
                file.save_config(replace(file.config, term=term))
            file.save_vote(LastVote(term, None))
        if accept_data_loss:
            newest = accept_loss(disk, dbpath, file, newest, RealClock().wall_ms())
        return Terms(file.last_vote, file.config, newest, file.durability_mark).lines()


def accept_loss(disk: Disk, dbpath: str | os.PathLike[str], file: MemberFile, newest: OpTime, wall_ms: int) -> OpTime:
    """Let a member go on without the entries that its disk lost; returns the newest entry then. Its journal says so.

    Where nothing is left it copies the others' data. The only member that bears data has nobody to copy: it begins
    anew, with one entry that says why everything before it is missing.
    """
    nothing_left = newest == OPTIME_NULL and _is_only_copy(file)
    if not nothing_left and newest >= file.durability_mark:
        return newest
    behind = "everything" if newest == OPTIME_NULL else f"all behind {newest}"
    detail = f"the loss of {behind}, up to {file.durability_mark}, was accepted by replset repair"
    file.append_journal(wall_ms=wall_ms, term=newest.term, event="data loss accepted", detail=detail)
    if nothing_left:
        # An optime of the lost entries must not be given to another entry: drivers, arbiters and backups know them.
        wall_ms = max(wall_ms, (file.durability_mark.seconds + 1) * 1000)
        vote, config = file.last_vote, file.config
        term = max(1, file.durability_mark.term, 0 if vote is None else vote.term, 0 if config is None else config.term)
        with closing(Store.open(disk, os.fspath(dbpath), StoreOptions(min_free_bytes=0))) as store:
            with store.group() as txn:
                newest = txn.next_optime(term, wall_ms)
                entry = noop_entry({"msg": "data loss accepted"}, newest, wall_ms)
                txn.append(entry, newest, op="n", ns="", wall_ms=wall_ms)
            store.wal.sync()
    file.lower_mark(newest)
    return newest


def _is_only_copy(file: MemberFile) -> bool:
    """Whether this is the only data-bearing member of its set, and not one that has to copy another's data first."""
    bearers = () if file.config is None else file.config.data_bearing
    return not file.initial_sync_pending and [member.incarnation for member in bearers] == [file.incarnation]


def _check_term(dbpath: Path, newest: OpTime, term: int) -> None:
    if not 0 < term < MAX_TERM:
        raise BadValueError(f"--term must be from 1 to {MAX_TERM - 1}, not {term}")
    if term < newest.term:
        # Entries cannot change their term: other members compare by it, and it is part of what is hashed.
        raise BadValueError(
            f"--term {term}: the newest entry in {dbpath} is of term {newest.term}, and no term below it can go on; "
            "give at least that one to every member, or bring the data into a new set"
        )

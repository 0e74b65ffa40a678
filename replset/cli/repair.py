"""Has `replset repair DBPATH [--term N] [--accept-data-loss]`, which shows and corrects a stopped member's files.

A running member never lowers its term. Its files may hold a term that cannot be true (it accepted a forged or damaged
message), or its set's term may have risen too far while it was away. Then a person decides which term is used. A member
whose disk lost entries below its durability mark also waits for a person, if no other member has them.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from replset.cli.offline import open_oplog
from replset.config import ReplSetConfig
from replset.core.effects import LastVote
from replset.core.messages import MAX_TERM
from replset.errors import BadValueError, StorageError
from replset.ids import OPTIME_NULL, OpTime
from replset.member.process.machine import RealClock
from replset.oplog_entry import noop_entry
from replset.storage.disk import Disk, RealDisk
from replset.storage.member_file import MEMBER_FILE, MemberFile
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
            f"{' (entries behind the newest one are lost)' if self.newest < self.durability_mark else ''}",
        ]


def repair(dbpath: Path, term: int | None, accept_data_loss: bool = False) -> list[str]:
    """Set the term of vote and configuration; None: leave it. Returns what the files then hold, as lines of text.

    accept_data_loss: continue with the entries that are there; those between them and the durability mark are lost.

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
    """Let a member continue without the entries that its disk lost, and return its newest entry. Its journal names it.

    A member that lost everything copies the others' data. The only data-bearing member cannot copy: it starts with a
    new oplog, whose first entry names the reason why everything before it is missing.
    """
    nothing_left = newest == OPTIME_NULL and _is_only_copy(file)
    witnesses = [] if file.config is None else [str(member.host) for member in file.config.members if member.witness]
    if nothing_left and witnesses:
        # A new oplog would make them drop theirs, and with it the last trace of what was acknowledged.
        raise BadValueError(
            f"{', '.join(witnesses)} may hold the newest entries of this set, without documents: keep a copy of that"
            " dbpath; then start this member, take the witness out (replset conf, replset reconfig FILE --force"
            " --accept), stop it and repeat this"
        )
    if not nothing_left and newest >= file.durability_mark:
        return newest
    lost = "everything" if newest == OPTIME_NULL else f"all after {newest}"
    detail = f"the loss of {lost}, up to {file.durability_mark}, was accepted by replset repair"
    file.append_journal(wall_ms=wall_ms, term=newest.term, event="data loss accepted", detail=detail)
    if nothing_left:
        # An optime of the lost entries must not be given to another entry: drivers, arbiters and backups know them.
        at_least_ms = max(wall_ms, (file.durability_mark.seconds + 1) * 1000)
        vote, config = file.last_vote, file.config
        term = max(1, file.durability_mark.term, 0 if vote is None else vote.term, 0 if config is None else config.term)
        with closing(Store.open(disk, os.fspath(dbpath), StoreOptions(min_free_bytes=0))) as store:
            with store.group() as txn:
                newest = txn.next_optime(term, at_least_ms)
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

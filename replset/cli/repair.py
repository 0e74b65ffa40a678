"""`replset repair DBPATH [--term N] [--accept-data-loss]`: what a stopped member's files hold, and putting it right.

A term is never taken back while a member runs. When the files hold one that cannot be true (a forged or damaged message
was believed once), or when a member was away while its set's term rose too far, a person says which term goes on. A
member that vouched for entries which its disk lost waits for a person too, where no other member has them.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from replset.config import ReplSetConfig
from replset.core.bounds import MAX_TERM
from replset.core.effects import LastVote
from replset.errors import BadValueError, StorageError
from replset.ids import OpTime
from replset.runtime.machine import RealClock
from replset.storage.disk import RealDisk
from replset.storage.member_file import MEMBER_FILE, MemberFile
from replset.storage.offline import open_oplog
from replset.storage.store import lock_dbpath


@dataclass(frozen=True, slots=True)
class Terms:
    """What a member's files say: the term after a start is the highest of these."""

    vote: LastVote | None
    config: ReplSetConfig | None
    newest: OpTime
    vouched: OpTime

    def lines(self) -> list[str]:
        vote, config = self.vote, self.config
        return [
            f"set: {'none' if config is None else config.set_name}",
            f"last vote: {'none' if vote is None else f'term {vote.term}'}",
            f"configuration: {'none' if config is None else f'version {config.version}, term {config.term}'}",
            f"newest entry: {self.newest} (term {self.newest.term})",
            f"vouched for: {self.vouched}{' (entries behind the newest one are lost)' if self._has_loss else ''}",
        ]

    @property
    def _has_loss(self) -> bool:
        return self.newest < self.vouched


def repair(dbpath: Path, term: int | None, accept_data_loss: bool = False) -> list[str]:
    """Put vote and configuration into `term`, None: leave them; returns what the files say then, line by line.

    accept_data_loss: go on with the entries that are there; those that this member vouched for beyond them are lost.

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
        if accept_data_loss and newest < file.vouched:
            detail = f"the loss of all behind {newest}, up to {file.vouched}, was accepted by replset repair"
            file.append_journal(
                wall_ms=RealClock().wall_ms(), term=newest.term, event="data loss accepted", detail=detail
            )
            file.lower_mark(newest)
        return Terms(file.last_vote, file.config, newest, file.vouched).lines()


def _check_term(dbpath: Path, newest: OpTime, term: int) -> None:
    if not 0 < term < MAX_TERM:
        raise BadValueError(f"--term must be from 1 to {MAX_TERM - 1}, not {term}")
    if term < newest.term:
        # Entries cannot change their term: other members compare by it, and it is part of what is hashed.
        raise BadValueError(
            f"--term {term}: the newest entry in {dbpath} is of term {newest.term}, and no term below it can go on; "
            "give at least that one to every member, or bring the data into a new set"
        )

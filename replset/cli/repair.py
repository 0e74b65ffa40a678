"""`replset repair DBPATH [--term N]`: the terms that a stopped member's files hold, and putting them right.

A term is never taken back while a member runs. When the files hold one that cannot be true (a forged or damaged message
was believed once), or when a member was away while its set's term rose too far, a person says which term goes on.
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

    def lines(self) -> list[str]:
        vote, config = self.vote, self.config
        return [
            f"set: {'none' if config is None else config.set_name}",
            f"last vote: {'none' if vote is None else f'term {vote.term}'}",
            f"configuration: {'none' if config is None else f'version {config.version}, term {config.term}'}",
            f"newest entry: {self.newest} (term {self.newest.term})",
        ]


def repair(dbpath: Path, term: int | None) -> list[str]:
    """Put vote and configuration into `term`, None: change nothing; returns what the files say then, line by line.

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
        return Terms(file.last_vote, file.config, newest).lines()


def _check_term(dbpath: Path, newest: OpTime, term: int) -> None:
    if not 0 < term < MAX_TERM:
        raise BadValueError(f"--term must be from 1 to {MAX_TERM - 1}, not {term}")
    if term < newest.term:
        # Entries cannot change their term: other members compare by it, and it is part of what is hashed.
        raise BadValueError(
            f"--term {term}: the newest entry in {dbpath} is of term {newest.term}, and no term below it can go on; "
            "give at least that one to every member, or bring the data into a new set"
        )

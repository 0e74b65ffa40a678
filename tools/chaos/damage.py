"""Disks with changed bytes, with lost writes, or replaced by empty ones; the operator's part is here too.

Only one member at a time is hurt so, or as few as a majority of votes can do without: what every disk lost is lost.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
import time
from functools import partial
from pathlib import Path

from replset.errors import ReplError
from replset.local_set import LocalMember, wait_until
from replset.storage import DATABASE_FILE
from tools.chaos.clients import COLLECTION, DATABASE
from tools.chaos.context import CannotError, FaultContext, Mend, send_command, state_of, status_of

NAMESPACE = f"{DATABASE}.{COLLECTION}"
MARK_S = 2.5
"""By then the durability mark, which is raised once a second, covers all that was written."""
AMONG = 300
"""The damaged row is one of so many newest ones: what nobody reads again shows only to `oplog-spark verify`."""


def damaged_entry(context: FaultContext) -> tuple[str, Mend]:
    """A byte of an oplog row changes; half of the time one of a primary's, which the others have yet to fetch."""
    if context.hurt:
        raise CannotError("a member is hurt already")
    ahead = context.rng.random() < 0.5
    member = context.the_primary() if ahead else context.a_member()
    frozen = [(other, context.freeze_process(other)) for other in context.others(member) if ahead]
    if ahead:
        time.sleep(0.8)
    absence = context.take_down(member)
    what = damage_one_byte(member.dbpath / DATABASE_FILE, context, among=20 if ahead else AMONG)
    context.lost(member, what)
    context.bring_up(member, absence)
    for other, row in frozen:
        context.thaw_process(other, row)

    def mend() -> None:
        for other in context.others(member):
            if other.name not in context.down and (why := quarantine_of(other)):
                context.breach(f"damage in {member.name} put {other.name} into quarantine: {why}")
        copy_anew(context, member)

    return f"{what} of {member.name}", mend


def damage_one_byte(database: Path, context: FaultContext, among: int) -> str:
    """Change one byte of one of the newest entries; what was changed. The process that has the file is dead."""
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        rows = connection.execute(
            "SELECT ts, entry FROM oplog WHERE ns = ? ORDER BY ts DESC LIMIT ?", (NAMESPACE, among)
        ).fetchall()
        if not rows:
            raise CannotError("no entry is there")
        ts, entry = context.rng.choice(rows)
        place = context.rng.randrange(len(entry))
        changed = bytearray(entry)
        changed[place] ^= 1 << context.rng.randrange(8)
        connection.execute("UPDATE oplog SET entry = ? WHERE ts = ?", (bytes(changed), ts))
    return f"byte {place} of the entry {ts >> 31}:{ts & 0x7FFFFFFF} was damaged in the oplog"


def lost_wal(context: FaultContext) -> tuple[str, Mend]:
    """What the member wrote last is gone with its WAL, or with the end of it: it says so, and copies the data anew.

    Its durability mark is raised once a second; nobody writes for longer than that before the member dies.
    """
    if context.hurt:
        raise CannotError("a member is hurt already")
    member = context.a_member()
    with context.clients.quiet():
        time.sleep(MARK_S)
        absence = context.take_down(member)
    wal = member.dbpath / f"{DATABASE_FILE}-wal"
    written, _ = newest_in(member.dbpath)
    size = wal.stat().st_size if wal.exists() else 0
    keep = 0 if context.rng.random() < 0.5 else context.rng.randrange(size + 1)
    if keep:
        with wal.open("r+b") as file:
            file.truncate(keep)
    else:
        wal.unlink(missing_ok=True)
    wal.with_name(f"{DATABASE_FILE}-shm").unlink(missing_ok=True)
    what = f"{size - keep} of {size} bytes of the WAL of {member.name} were lost"
    try:
        _, newest = newest_in(member.dbpath)
    except sqlite3.DatabaseError:  # a checkpoint was under way: the pages do not fit
        _empty(context, member)
        return f"{what}, and its database with it", partial(context.bring_up, member, absence)
    context.lost(member, what)
    reported = member.log.stat().st_size
    context.bring_up(member, absence)
    if newest < written and not _log_contains(member.log, reported, "data lost"):
        context.breach(f"{what}, all behind {newest}, and it does not say that it lost {written}")

    def mend() -> None:
        if context.rng.random() < 0.5:  # the other half of the time it has to find the way back alone
            copy_anew(context, member)

    return what, mend


def _log_contains(log: Path, behind: int, words: str, within_s: float = 10.0) -> bool:
    """Whether the log says that soon, behind its first so many bytes."""
    deadline = time.monotonic() + within_s
    while words not in log.read_bytes()[behind:].decode(errors="replace"):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def newest_in(dbpath: Path) -> tuple[int, int]:
    """Of a dead member's oplog, read in a copy: the ts of the newest entry of a client, and of any."""
    with tempfile.TemporaryDirectory() as folder:
        for path in dbpath.glob(f"{DATABASE_FILE}*"):
            if not path.name.endswith("-shm"):
                shutil.copy(path, folder)
        with contextlib.closing(sqlite3.connect(Path(folder) / DATABASE_FILE)) as connection:
            try:
                rows = connection.execute("SELECT max(ts) FILTER (WHERE ns = ?), max(ts) FROM oplog", (NAMESPACE,))
                (written, newest) = rows.fetchone()
            except sqlite3.OperationalError:  # not even the schema is left
                return 0, 0
    return written or 0, newest or 0


def wipe(context: FaultContext) -> tuple[str, Mend]:
    """Disks are replaced by empty ones, one after the other is put into service: two at once where five vote."""
    if context.hurt:
        raise CannotError("a member is hurt already")
    count = context.rng.choice((1, 2)) if context.voters >= 5 else 1
    first = context.a_member()
    members = [first, *context.rng.sample(context.others(first), count - 1)]
    absences = [context.take_down(member) for member in members]
    for member in members:
        _empty(context, member)

    def mend() -> None:
        for member, absence in zip(members, absences, strict=True):
            context.bring_up(member, absence)
            if member is not members[-1]:
                wait_until(lambda member=member: _is_secondary(member), 90, f"{member.name} to have a copy")  # type: ignore[misc]

    return f"the disks of {', '.join(member.name for member in members)} are replaced by empty ones", mend


def _empty(context: FaultContext, member: LocalMember) -> None:
    """Give a member that is down an empty disk. The operator saves its rollback files before."""
    kept = context.local.folder / f"{member.name}.wiped.{len(context.moved_rollbacks) + 1}"
    if (member.dbpath / "rollback").is_dir():
        shutil.copytree(member.dbpath / "rollback", kept / "rollback")
        context.moved_rollbacks.append(kept)
    for path in member.dbpath.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    context.lost(member, "the disk was replaced by an empty one")


def copy_anew(context: FaultContext, member: LocalMember, within_s: float = 5.0) -> None:
    """What an operator does with a member whose disk is not to be trusted: `replset resync`."""
    deadline = time.monotonic() + within_s
    while True:
        if member.name in context.down:
            raise CannotError(f"{member.name} is down")
        try:
            if state_of(member) == "PRIMARY":
                member.command({"replSetStepDown": 10, "force": True}, timeout_s=15)
            send_command(member, {"replSetResync": 1})
        except (ReplError, CannotError) as error:
            if time.monotonic() > deadline:
                raise CannotError(f"{member.name} cannot be resynced: {error}") from error
            time.sleep(0.5)
        else:
            return


def quarantine_of(member: LocalMember) -> str:
    """Why it keeps out of the set; empty where it does not, or is not there to say."""
    try:
        rows = status_of(member)["members"]
    except ReplError:
        return ""
    return next((str(row.get("quarantine") or "") for row in rows if row.get("self")), "")


def _is_secondary(member: LocalMember) -> bool:
    return state_of(member) in ("SECONDARY", "PRIMARY")

"""Disks that rot, that lose what was written last, or that are replaced by empty ones; the operator's part is here too.

Only one member at a time is hurt so, or as few as a majority of votes can do without: what every disk lost is lost.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
import time
from pathlib import Path

from replset.cli.local_set import LocalMember, wait_until
from replset.errors import ReplError
from replset.storage.file_names import DATABASE_FILE
from tools.chaos.clients import COLLECTION, DATABASE
from tools.chaos.world import CannotError, Mend, World, state_of, status_of, told

NAMESPACE = f"{DATABASE}.{COLLECTION}"
MARK_S = 2.5
"""By then the durability mark, which is raised once a second, covers all that was written."""
AMONG = 300
"""The damaged row is one of so many newest ones: what nobody reads again shows only to `oplog-spark verify`."""


def damaged_entry(world: World) -> tuple[str, Mend]:
    """A byte of an oplog row rots; half of the time one of a primary's, which the others have yet to fetch."""
    if world.hurt:
        raise CannotError("a member is hurt already")
    ahead = world.rng.random() < 0.5
    member = world.the_primary() if ahead else world.a_member()
    frozen = [(other, world.freeze_process(other)) for other in world.others(member) if ahead]
    if ahead:
        time.sleep(0.8)
    absence = world.take_down(member)
    what = rot_one_byte(member.dbpath / DATABASE_FILE, world, among=20 if ahead else AMONG)
    world.lost(member, what)
    world.bring_up(member, absence)
    for other, row in frozen:
        world.thaw_process(other, row)

    def mend() -> None:
        for other in world.others(member):
            if other.name not in world.down and (why := quarantine_of(other)):
                world.breach(f"damage in {member.name} put {other.name} into quarantine: {why}")
        copy_anew(world, member)

    return f"{what} of {member.name}", mend


def rot_one_byte(database: Path, world: World, among: int) -> str:
    """Change one byte of one of the newest entries; what was changed. The process that has the file is dead."""
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        rows = connection.execute(
            "SELECT ts, entry FROM oplog WHERE ns = ? ORDER BY ts DESC LIMIT ?", (NAMESPACE, among)
        ).fetchall()
        if not rows:
            raise CannotError("no entry is there")
        ts, entry = world.rng.choice(rows)
        place = world.rng.randrange(len(entry))
        changed = bytearray(entry)
        changed[place] ^= 1 << world.rng.randrange(8)
        connection.execute("UPDATE oplog SET entry = ? WHERE ts = ?", (bytes(changed), ts))
    return f"byte {place} of the entry {ts >> 31}:{ts & 0x7FFFFFFF} was damaged in the oplog"


def lost_wal(world: World) -> tuple[str, Mend]:
    """What the member wrote last is gone with its WAL, or with the end of it: it says so, and copies the data anew.

    Its durability mark is raised once a second; nobody writes for longer than that before the member dies.
    """
    if world.hurt:
        raise CannotError("a member is hurt already")
    member = world.a_member()
    with world.clients.quiet():
        time.sleep(MARK_S)
        absence = world.take_down(member)
    wal = member.dbpath / f"{DATABASE_FILE}-wal"
    written, _ = newest_in(member.dbpath)
    size = wal.stat().st_size if wal.exists() else 0
    keep = 0 if world.rng.random() < 0.5 else world.rng.randrange(size + 1)
    if keep:
        with wal.open("r+b") as file:
            file.truncate(keep)
    else:
        wal.unlink(missing_ok=True)
    wal.with_name(f"{DATABASE_FILE}-shm").unlink(missing_ok=True)
    _, newest = newest_in(member.dbpath)
    what = f"{size - keep} of {size} bytes of the WAL of {member.name} were lost"
    world.lost(member, what)
    said = member.log.stat().st_size
    world.bring_up(member, absence)
    if newest < written and not _says(member.log, said, "data lost"):
        world.breach(f"{what}, all behind {newest}, and it does not say that it lost {written}")

    def mend() -> None:
        if world.rng.random() < 0.5:  # the other half of the time it has to find the way back alone
            copy_anew(world, member)

    return what, mend


def _says(log: Path, behind: int, words: str, within_s: float = 10.0) -> bool:
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


def wipe(world: World) -> tuple[str, Mend]:
    """Disks are replaced by empty ones, one after the other is put into service: two at once where five vote."""
    if world.hurt:
        raise CannotError("a member is hurt already")
    count = world.rng.choice((1, 2)) if world.voters >= 5 else 1
    first = world.a_member()
    members = [first, *world.rng.sample(world.others(first), count - 1)]
    absences = [world.take_down(member) for member in members]
    for member in members:
        kept = world.local.folder / f"{member.name}.wiped.{len(world.moved_rollbacks) + 1}"
        if (member.dbpath / "rollback").is_dir():  # the operator saves these files before the disk goes
            shutil.copytree(member.dbpath / "rollback", kept / "rollback")
            world.moved_rollbacks.append(kept)
        for path in member.dbpath.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        world.lost(member, "the disk was replaced by an empty one")

    def mend() -> None:
        for member, absence in zip(members, absences, strict=True):
            world.bring_up(member, absence)
            if member is not members[-1]:
                wait_until(lambda member=member: _is_secondary(member), 90, f"{member.name} to have a copy")  # type: ignore[misc]

    return f"the disks of {', '.join(member.name for member in members)} are replaced by empty ones", mend


def copy_anew(world: World, member: LocalMember, within_s: float = 5.0) -> None:
    """What an operator does with a member whose disk is not to be trusted: `replset resync`."""
    deadline = time.monotonic() + within_s
    while True:
        if member.name in world.down:
            raise CannotError(f"{member.name} is down")
        try:
            if state_of(member) == "PRIMARY":
                member.command({"replSetStepDown": 10, "force": True}, timeout_s=15)
            told(member, {"replSetResync": 1})
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

"""`replset backup DIR` fetches a member's data while it runs; `replset restore BACKUP DBPATH` makes a member of it."""

from __future__ import annotations

import http.client
import os
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from replset.cli import calls
from replset.cli.host_option import Host
from replset.client import HttpClient
from replset.config import ReplSetConfig
from replset.errors import BadValueError, CorruptDataError, HostUnreachableError, OutOfDiskSpaceError, ReplError
from replset.features.archive.archive import Archive
from replset.long_work import LongWork
from replset.storage import DATABASE_FILE
from replset.storage.disk import RealDisk, file_sha256
from replset.terminal import echo

if TYPE_CHECKING:  # the storage, which takes longer to import than most subcommands to run
    from replset.features.archive.point_in_time import Restored
    from replset.features.backup.backup_folder import BackupManifest, NewSet

COPY_WITHIN_S = 3600.0
"""How long a member may take to make the copy, before the first byte comes."""
_CHUNK = 1 << 20


def backup(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="a new or empty folder")],
    host: Host,
) -> None:
    """Copy a member's data while it runs: all of it at one moment, committed by a majority, checked by its hash."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadValueError(f"{folder} exists and is not an empty folder")
    hello = calls.ask(host, {"hello": 1})
    address = hello.get("httpAddress")
    if not address:
        raise HostUnreachableError(f"{host} names no HTTP address, from which a backup is read")
    with LongWork("replset") as work:
        work.begin(f"{host} makes a copy of its data")
        with HttpClient(str(address), timeout_s=COPY_WITHIN_S).stream("/v1/replset/backup", {}) as answer:
            manifest = receive_backup(answer, folder, work)
    echo(
        f"{folder} holds the data of {manifest.member} up to {manifest.newest}: {manifest.size} bytes,"
        f" SHA-256 {manifest.sha256}"
    )


@contextmanager
def for_owner_alone() -> Iterator[None]:
    """Make files that only their owner may read: they hold the keys of users, and documents."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


@for_owner_alone()
def receive_backup(source: IO[bytes] | http.client.HTTPResponse, folder: Path, work: LongWork) -> BackupManifest:
    """Write the tar file that `source` gives into `folder`. backup.json comes last, so without it there is no backup.

    After an error the folder is empty.
    """
    from replset.features.backup.backup_folder import MANIFEST_FILE, SPARE_BYTES, BackupManifest

    folder.mkdir(parents=True, exist_ok=True)
    database, part = folder / DATABASE_FILE, folder / f"{MANIFEST_FILE}.part"
    disk = RealDisk()
    try:
        try:
            with tarfile.open(fileobj=source, mode="r|") as tar:
                text = _next_file(tar, MANIFEST_FILE).read()
                manifest = BackupManifest.parse(text, f"the answer's {MANIFEST_FILE}")
                free = disk.free_bytes(str(folder))
                if free < manifest.size + SPARE_BYTES:
                    raise OutOfDiskSpaceError(f"the backup needs {manifest.size} bytes in {folder}, {free} are free")
                work.begin("fetching the copy", manifest.size, "B")
                disk.write_file(str(database), _chunks(_next_file(tar, DATABASE_FILE), work.advance))
        except (tarfile.TarError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            raise HostUnreachableError(f"the backup broke off: {error or type(error).__name__}") from error
        work.begin("checking its hash")
        disk.sync_file(str(database))
        if file_sha256(disk, str(database)) != manifest.sha256:
            raise CorruptDataError(f"{database} is not what the member sent: its hash differs")
        disk.write_file(str(part), [text])
        disk.sync_file(str(part))
        disk.rename(str(part), str(folder / MANIFEST_FILE))
        disk.sync_folder(str(folder))
        disk.sync_folder(str(folder.absolute().parent))
        return manifest
    except (ReplError, OSError, KeyboardInterrupt):
        for path in (database, part):
            with suppress(OSError):
                disk.remove(str(path))
        raise


def _next_file(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    """Open the next file of the stream, which must have this name. Its path is used for nothing else."""
    info = tar.next()
    file = None if info is None or info.name != name else tar.extractfile(info)
    if file is None:
        raise tarfile.ReadError(f"{name} is missing")
    return file


def _chunks(file: IO[bytes], on_bytes: Callable[[int], None]) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk
        on_bytes(len(chunk))


def restore(
    source: Annotated[Path, typer.Argument(metavar="BACKUP", help="a folder that `replset backup` made")],
    dbpath: Annotated[Path, typer.Argument(metavar="DBPATH", help="the new member's data folder: empty or missing")],
    new_set: Annotated[
        str | None,
        typer.Option("--new-set", metavar="HOST:PORT", help="begin a new set, whose first member is at this address"),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="of the new set; else that of the backup's")] = None,
    archive: Annotated[
        str | None, typer.Option("--archive", metavar="URL", help="go on with the entries archived since the backup")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="as it was then: 2026-10-03T12:00:00Z, or an entry's optime"),
    ] = None,
) -> None:
    """Make a member's data folder of a backup. It takes part in its set again, or begins a set of its own."""
    from replset.features.archive.point_in_time import PointInTime, bring_to
    from replset.features.backup.backup_folder import read_manifest, restore_backup

    if at is not None and new_set is None:
        raise BadValueError("--at is for --new-set: in its own set a member would fetch all that came later")
    point = None if at is None else PointInTime.parse(at)
    if name is not None and new_set is None:
        raise BadValueError("--name is for --new-set: in its own set a member keeps the set's name")
    manifest = read_manifest(RealDisk(), os.fspath(source))
    wanted = None if new_set is None else make_new_set(name or manifest.set_name, new_set)
    entries = None if archive is None else archive_of(manifest, archive)
    restored: list[Restored] = []
    with for_owner_alone(), LongWork("replset") as work:

        def bring_to_point() -> None:
            work.begin("applying entries")
            restored.append(bring_to(RealDisk(), os.fspath(dbpath), entries, point, work.advance))

        work.begin("restoring", manifest.size, "B")
        is_new = not dbpath.exists()
        try:
            restore_backup(
                *(RealDisk(), os.fspath(source), os.fspath(dbpath), wanted, work.advance),
                None if point is None and entries is None else bring_to_point,
            )
        except (ReplError, OSError, KeyboardInterrupt):
            if is_new:
                with suppress(OSError):  # not empty: something could not be removed
                    dbpath.rmdir()
            raise
    newest = restored[0].newest if restored else manifest.newest
    echo(f"{dbpath} holds the data of set {manifest.set_name} up to {newest}")
    for one in restored:
        if one.note:
            echo(one.note)
        hashes = ", ".join(f"{database} {text}" for database, text in sorted(one.hashes.items()))
        echo(f"{one.documents} documents; dbHash: {hashes}")
    if wanted is None:
        echo(
            f"start it with --replSet {manifest.set_name} under an address that the set has or is given with"
            " `replset add`: it fetches what came since, then it votes"
        )
    else:
        port = wanted.host.rpartition(":")[2]
        echo(
            f"start it with --replSet {wanted.name} --port {port}, reached as {wanted.host}: it is primary of a new"
            " set; then `replset add` the others"
        )


def archive_of(manifest: BackupManifest, address: str) -> Archive:
    """Open the archive of the backup's set."""
    archive = Archive.open(address)
    if archive.info.set_id != manifest.set_id:
        raise BadValueError(f"{address} is the archive of set {archive.info.set_id}, the backup of {manifest.set_id}")
    return archive


def make_new_set(name: str, host: str) -> NewSet:
    """Check name and address as a configuration does."""
    from replset.features.backup.backup_folder import NewSet

    config = ReplSetConfig.parse({"_id": name, "version": 1, "members": [{"_id": 0, "host": host}]})
    return NewSet(config.set_name, config.members[0].host)

"""The interface to the disk: every byte that a member writes or reads goes through one `Disk`.

SQLite's files too: `connect` opens them through this disk's own SQLite VFS. The simulator replaces `RealDisk` by a
recorder that can lose what was not synced. Paths are plain strings.

A file that SQLite has open must not be opened by anything else in this process: closing such a second handle drops
SQLite's locks (POSIX), after which another process may delete a live WAL. The calls below refuse such paths.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple, Protocol

import apsw

from replset.errors import DbPathLockedError
from replset.ids import invariant

_CHUNK = 1 << 20
WAL_SUFFIX = "-wal"
SHM_SUFFIX = "-shm"
_MACHINE_ID = "/etc/machine-id"  # Linux; drawn when the system was installed


class Lock(Protocol):
    """An exclusive lock on a file, held until released or until the process ends."""

    def release(self) -> None: ...


class Disk(Protocol):
    """What storage needs of a disk. OSError where the file system refuses, apsw.Error where SQLite does."""

    def connect(self, path: str, *, read_only: bool = False) -> apsw.Connection:
        """Open (and create, unless read_only) the database at `path` through this disk's VFS."""
        ...

    def sync_file(self, path: str) -> None:
        """Make what was written to `path` durable (fdatasync of the inode that the path names now)."""
        ...

    def write_file(self, path: str, chunks: Iterable[bytes], *, append: bool = False) -> None:
        """Create or replace the file's content, or add to its end. Not synced."""
        ...

    def truncate(self, path: str, size: int) -> None:
        """Cut the file to its first `size` bytes. Not synced."""
        ...

    def read_file(self, path: str) -> bytes: ...

    def read_at(self, path: str, offset: int, length: int) -> bytes:
        """Read `length` bytes from `offset`; fewer only at the end of the file."""
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int:
        """Bytes of the file; FileNotFoundError when there is none."""
        ...

    def list_folder(self, path: str) -> list[str]:
        """Names in the folder, sorted; FileNotFoundError when there is none."""
        ...

    def make_folder(self, path: str) -> None:
        """Create the folder and those above it; nothing happens when it exists."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Atomic; replaces a file at `target`. Durable after sync_folder."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file. Nothing happens when there is none."""
        ...

    def sync_folder(self, path: str) -> None:
        """Make the names in the folder durable."""
        ...

    def free_bytes(self, path: str) -> int:
        """What an ordinary user may still write on the file system of `path`."""
        ...

    def identity(self, path: str) -> str:
        """Say which file of which machine this is. A copy has another one; a restart changes nothing."""
        ...

    def lock(self, path: str) -> Lock:
        """Take the lock at once, or raise DbPathLockedError."""
        ...


class _FileLock:
    def __init__(self, handle: int) -> None:
        self._handle = handle

    def release(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


class _OpenWal(NamedTuple):
    """found: which file it is. No other one is called so while the handle is open."""

    handle: int
    found: os.stat_result

    def sync_if_at(self, path: str) -> bool:
        """Sync the file. False if `path` does not name it any more. FileNotFoundError."""
        os.fdatasync(self.handle)
        return os.path.samestat(os.stat(path), self.found)


class RealDisk:
    """The machine's file system, and SQLite's own VFS."""

    def __init__(self) -> None:
        self._connections: dict[str, weakref.WeakSet[apsw.Connection]] = {}
        self._wals: dict[str, _OpenWal] = {}
        self._guard = threading.Lock()

    def connect(self, path: str, *, read_only: bool = False) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        connection = apsw.Connection(path, flags=flags)
        with self._guard:
            self._connections.setdefault(os.path.abspath(path), weakref.WeakSet()).add(connection)
        return connection

    def sync_file(self, path: str) -> None:
        if path.endswith(WAL_SUFFIX):
            self._sync_wal(path)
            return
        self._refuse_open_database(path)
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def _sync_wal(self, path: str) -> None:
        """Sync a WAL through a kept handle, opened anew when the path names another inode. SQLite takes no lock on it.

        The path is looked at behind the sync. A look before it would let the thread wait for the interpreter once more
        while the disk has nothing to do.
        """
        wal = self._wals.get(path)
        if wal is not None and wal.sync_if_at(path):
            return
        with self._guard:
            if self._wals.get(path) is wal:  # else another thread has opened it anew
                if wal is not None:
                    os.close(self._wals.pop(path).handle)
                handle = os.open(path, os.O_RDONLY)
                self._wals[path] = _OpenWal(handle, os.fstat(handle))
            wal = self._wals[path]
        if not wal.sync_if_at(path):
            raise OSError(errno.ESTALE, "replaced while it was synced", path)

    def write_file(self, path: str, chunks: Iterable[bytes], *, append: bool = False) -> None:
        self._refuse_open_database(path)
        with open(path, "ab" if append else "wb") as file:
            for chunk in chunks:
                file.write(chunk)

    def truncate(self, path: str, size: int) -> None:
        self._refuse_open_database(path)
        os.truncate(path, size)

    def read_file(self, path: str) -> bytes:
        self._refuse_open_database(path)
        with open(path, "rb") as file:
            return file.read()

    def read_at(self, path: str, offset: int, length: int) -> bytes:
        self._refuse_open_database(path)
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(length)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def list_folder(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_folder(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        self._refuse_open_database(source)
        self._refuse_open_database(target)
        os.replace(source, target)

    def remove(self, path: str) -> None:
        self._refuse_open_database(path)
        with self._guard:
            wal = self._wals.pop(path, None)
        if wal is not None:
            os.close(wal.handle)
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def sync_folder(self, path: str) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def free_bytes(self, path: str) -> int:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def identity(self, path: str) -> str:
        machine = ""
        with suppress(OSError, UnicodeDecodeError), open(_MACHINE_ID, encoding="ascii") as file:
            machine = hashlib.sha256(file.read().strip().encode()).hexdigest()[:12]
        return f"inode {os.stat(path).st_ino}, machine {machine or 'unknown'}"

    def lock(self, path: str) -> Lock:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(handle, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(handle)
            raise DbPathLockedError(
                f"another process (pid {holder}) holds the data folder {os.path.dirname(path)}"
            ) from None
        if not _is_at(handle, path):  # a restore that failed has removed the file since it was opened
            os.close(handle)
            return self.lock(path)
        os.ftruncate(handle, 0)
        os.pwrite(handle, b"%d\n" % os.getpid(), 0)
        return _FileLock(handle)

    def close(self) -> None:
        """Give back the handles that sync_file keeps."""
        with self._guard:
            wals, self._wals = list(self._wals.values()), {}
        for wal in wals:
            os.close(wal.handle)

    def _refuse_open_database(self, path: str) -> None:
        with self._guard:
            connections = list(self._connections.get(os.path.abspath(path), ()))
        invariant(not any(map(_is_open, connections)), f"{path} is open in SQLite; nothing else may touch it")


def _is_at(handle: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _is_open(connection: apsw.Connection) -> bool:
    try:
        connection.in_transaction  # noqa: B018  # only a closed connection raises here
    except apsw.ConnectionClosedError:
        return False
    return True


def read_chunks(disk: Disk, path: str) -> Iterator[bytes]:
    """The file in pieces of a mebibyte."""
    offset = 0
    while chunk := disk.read_at(path, offset, _CHUNK):
        yield chunk
        offset += len(chunk)


def file_sha256(disk: Disk, path: str) -> str:
    """SHA-256 of the file's bytes, as hex digits."""
    digest = hashlib.sha256()
    for chunk in read_chunks(disk, path):
        digest.update(chunk)
    return digest.hexdigest()

"""A disk that knows what is durable: it records every write, sync and name, SQLite's through a VFS of its own.

Files live in a real folder, so that SQLite works on them as ever; beside them the recorder keeps, per file, its bytes
at the last sync and everything written since, and per folder its names at the last folder sync and every change since.
`crash` builds the machine's next disk in a fresh folder from that. Nothing is ever really synced.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import apsw

from replset.errors import DbPathLockedError
from replset.ids import invariant
from tests.simulation.kit.threads import sleep, step

DATABASES = ("replset.db", "member.db")
PLENTY = 100 << 30
"""What a disk has free, as a rule."""
_numbers = itertools.count(1)
_DIRSYNC_TYPES = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL
_RECORDED_TYPES = _DIRSYNC_TYPES | apsw.SQLITE_OPEN_MAIN_DB

_TREE_PAGES = (2, 5, 10, 13)
"""The first byte of a page in a b-tree; SQLite's file format, section 1.6."""

Change = tuple[int, bytes | None]
"""What a write (offset, bytes) or a truncation (size, None) does to a file."""


def apply_change(content: bytearray, change: Change) -> None:
    """Do one change to a file's bytes; a gap before a write reads as zeros."""
    offset, data = change
    if data is None:
        if len(content) > offset:
            del content[offset:]
        else:
            content.extend(bytes(offset - len(content)))
        return
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


@dataclass(eq=False, slots=True)
class FileNode:
    """One inode: its bytes at the last sync and what came later."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)
    synced: int = 0  # how many changes ever were

    def sync(self, changes: int | None = None) -> None:
        """changes: so many of all that there ever were; None: all."""
        number = len(self.pending) if changes is None else max(0, changes - self.synced)
        for change in self.pending[:number]:
            apply_change(self.durable, change)
        del self.pending[:number]
        self.synced += number

    def forget(self, changes: int) -> None:
        """A sync of so many failed: they are seen until the process ends, and are on no disk."""
        number = max(0, changes - self.synced)
        del self.pending[:number]
        self.synced += number

    @property
    def changes(self) -> int:
        """How many there ever were."""
        return self.synced + len(self.pending)

    def written(self) -> bytearray:
        """What a reader sees, and what survives the death of the process."""
        content = bytearray(self.durable)
        for change in self.pending:
            apply_change(content, change)
        return content

    def after_power_loss(self, rng: random.Random) -> bytearray:
        """The last sync plus: nothing, all, a prefix whose last write may be torn, or any of the later writes."""
        content = bytearray(self.durable)
        if not self.pending:
            return content
        kind = rng.choice(("nothing", "all", "prefix", "prefix", "scattered"))
        if kind == "all":
            return self.written()
        if kind == "prefix":
            kept = rng.randrange(len(self.pending))
            for change in self.pending[:kept]:
                apply_change(content, change)
            offset, data = self.pending[kept]
            if data is not None:
                apply_change(content, (offset, data[: rng.randrange(len(data) + 1)]))
        if kind == "scattered":
            for change in self.pending:
                if rng.random() < 0.5:
                    apply_change(content, change)
        return content

    def copy(self) -> FileNode:
        return FileNode(bytearray(self.durable), list(self.pending))


@dataclass(eq=False, slots=True)
class FolderNode:
    """One folder: its names at the last sync and the changes since, each of which happens as a whole."""

    names: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    pending: list[dict[str, Node | None]] = field(default_factory=list)

    def change(self, changes: dict[str, Node | None]) -> None:
        _apply_names(self.names, changes)
        self.pending.append(changes)

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.pending.clear()

    def after_power_loss(self, rng: random.Random) -> dict[str, Node]:
        names = dict(self.durable)
        if self.pending:
            for changes in self.pending[: rng.randrange(len(self.pending) + 1)]:
                _apply_names(names, changes)
        return names


Node = FileNode | FolderNode


def _apply_names(names: dict[str, Node], changes: dict[str, Node | None]) -> None:
    for name, node in changes.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class _SimLock:
    def __init__(self, held: set[str], path: str) -> None:
        self._held = held
        self._path = path

    def release(self) -> None:
        self._held.discard(self._path)


class SimDisk:
    """storage/disk.py Disk on a recorder. `folder`: where the member's files are, for as long as this disk is used.

    changed: set whenever SQLite wrote; whoever checks the stores resets it. written: into which of its databases, since
    the last reset. free: what free_bytes answers.
    is_full: no file grows any more (ENOSPC), SQLite's included. failing: what ends with EIO from now on, syncs, or
    writes too; failed: names of files to which that happened; unsynced: those of them whose sync failed. What that
    sync should have made durable never is, and the next one says nothing of it: the kernel has let go of those pages.
    """

    def __init__(self, folder: str, tree: FolderNode | None = None) -> None:
        self.folder = os.path.abspath(folder)
        self.tree = tree or FolderNode()
        self.changed = True
        self.written = set(DATABASES)
        self.free = PLENTY
        self.is_full = False
        self.failing: frozenset[str] = frozenset()
        self.failed: set[str] = set()
        self.unsynced: set[str] = set()
        self.syncs = 0
        self._vfs = _RecordingVFS(f"sim-{next(_numbers)}", self)
        self._connections: list[tuple[str, weakref.ref[apsw.Connection]]] = []
        self._locked: set[str] = set()
        self._closed = False
        os.makedirs(self.folder, exist_ok=True)

    # --- the Disk port

    def connect(self, path: str, *, read_only: bool = False) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        connection = apsw.Connection(path, flags=flags, vfs=self._vfs.vfs_name)
        self._connections.append((os.path.abspath(path), weakref.ref(connection)))
        return connection

    def sync_file(self, path: str) -> None:
        self.syncs += 1
        if not path.endswith("-wal"):
            self._refuse_open_database(path)
        node = self.file(path)
        changes = node.changes
        step()
        if self.fails("sync", path):
            node.forget(changes)
            raise OSError(errno.EIO, "input/output error", path)
        node.sync(changes)  # what was written meanwhile may be there, or not

    def write_file(self, path: str, chunks: Iterable[bytes], *, append: bool = False) -> None:
        step()
        self._refuse_open_database(path)
        if self.is_full:
            raise OSError(errno.ENOSPC, "no space left on the disk", path)
        if self.fails("write", path):
            raise OSError(errno.EIO, "input/output error", path)
        node = self.created(path)
        offset = os.stat(path).st_size if append and os.path.exists(path) else 0
        with open(path, "ab" if append else "wb") as real:
            if not append:
                node.pending.append((0, None))
            for chunk in chunks:
                real.write(chunk)
                node.pending.append((offset, bytes(chunk)))
                offset += len(chunk)

    def truncate(self, path: str, size: int) -> None:
        self._refuse_open_database(path)
        os.truncate(path, size)
        self.file(path).pending.append((size, None))

    def read_file(self, path: str) -> bytes:
        self._refuse_open_database(path)
        with open(path, "rb") as real:
            return real.read()

    def read_at(self, path: str, offset: int, length: int) -> bytes:
        self._refuse_open_database(path)
        with open(path, "rb") as real:
            real.seek(offset)
            return real.read(length)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def list_folder(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_folder(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)
        folder = self.tree
        for part in self._parts(path):
            node = folder.names.get(part)
            if node is None:
                node = FolderNode()
                folder.change({part: node})
            if not isinstance(node, FolderNode):
                raise FileExistsError(path)
            folder = node

    def rename(self, source: str, target: str) -> None:
        step()
        self._refuse_open_database(source)
        self._refuse_open_database(target)
        os.replace(source, target)
        node = self.node(source)
        old, new = self._folder_of(source), self._folder_of(target)
        if old is new:
            old.change({os.path.basename(source): None, os.path.basename(target): node})
        else:
            new.change({os.path.basename(target): node})
            old.change({os.path.basename(source): None})

    def remove(self, path: str) -> None:
        self._refuse_open_database(path)
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        self.removed(path)

    def sync_folder(self, path: str) -> None:
        step()
        node = self.node(path)
        invariant(isinstance(node, FolderNode), f"{path} is a folder")
        assert isinstance(node, FolderNode)
        node.sync()

    def free_bytes(self, path: str) -> int:
        return self.free

    def identity(self, path: str) -> str:
        return "simulated"

    def lock(self, path: str) -> _SimLock:
        if path in self._locked:
            raise DbPathLockedError(f"another process (pid 0) holds the data folder {os.path.dirname(path)}")
        self.created(path)
        with open(path, "ab"):
            pass
        self._locked.add(path)
        return _SimLock(self._locked, path)

    def close(self) -> None:
        """Close what SQLite has open, for a dead process. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self.failing = frozenset()
        self.is_full = False  # SQLite may have a page left to write; the run has its verdict already
        for _, reference in self._connections:
            connection = reference()
            if connection is not None:
                connection.close(True)
        self._connections.clear()
        self._vfs.unregister()

    def reader(self, path: str) -> apsw.Connection | None:
        """One of the member's own connections to the database at `path`, outside a transaction; None: there is none.

        For checkers, between two turns of the loop: a connection of their own would change what SQLite does when the
        member closes its last one.
        """
        target = os.path.abspath(path)
        for known, reference in self._connections:
            connection = reference()
            if known == target and connection is not None and _is_idle(connection):
                return connection
        return None

    def damage_pages(self, path: str, rng: random.Random, number: int) -> list[int]:
        """The disk loses so many b-tree pages of the database at `path`; they read as zeros. Return their numbers."""
        database = self.file(path)
        content = database.written()
        size = int.from_bytes(content[16:18], "big")
        size = 65536 if size == 1 else size
        trees = [
            page for page in range(2, len(content) // (size or 1) + 1) if content[(page - 1) * size] in _TREE_PAGES
        ]
        lost = sorted(rng.sample(trees, min(number, len(trees))))
        with open(path, "r+b") as real:
            for page in lost:
                offset = (page - 1) * size
                os.pwrite(real.fileno(), bytes(size), offset)
                apply_change(database.durable, (offset, bytes(size)))
                database.pending.append((offset, bytes(size)))
        return lost

    def fails(self, what: str, path: str) -> bool:
        """Whether this ends with EIO; then it is noted."""
        if what not in self.failing:
            return False
        self.failed.add(os.path.basename(path))
        if what == "sync":
            self.unsynced.add(os.path.basename(path))
        return True

    # --- the record

    def _parts(self, path: str) -> list[str]:
        whole = os.path.abspath(path)
        if whole == self.folder:
            return []
        if not whole.startswith(self.folder + os.sep):
            raise FileNotFoundError(f"{path} is not on this disk")
        return whole[len(self.folder) + 1 :].split(os.sep)

    def node(self, path: str) -> Node:
        """What the path names now; FileNotFoundError when nothing."""
        found: Node = self.tree
        for part in self._parts(path):
            child = found.names.get(part) if isinstance(found, FolderNode) else None
            if child is None:
                raise FileNotFoundError(path)
            found = child
        return found

    def file(self, path: str) -> FileNode:
        node = self.node(path)
        if not isinstance(node, FileNode):
            raise IsADirectoryError(path)
        return node

    def _folder_of(self, path: str) -> FolderNode:
        node = self.node(os.path.dirname(os.path.abspath(path)))
        if not isinstance(node, FolderNode):
            raise NotADirectoryError(path)
        return node

    def created(self, path: str) -> FileNode:
        """The file's node; made, and its name noted, when it is new."""
        folder, name = self._folder_of(path), os.path.basename(path)
        node = folder.names.get(name)
        if node is None:
            node = FileNode()
            folder.change({name: node})
        if not isinstance(node, FileNode):
            raise IsADirectoryError(path)
        return node

    def removed(self, path: str) -> None:
        folder, name = self._folder_of(path), os.path.basename(path)
        if name in folder.names:
            folder.change({name: None})

    def sync_names_beside(self, path: str) -> None:
        """SQLite's own sync of the folder that `path` is in."""
        self._folder_of(path).sync()

    def _refuse_open_database(self, path: str) -> None:
        target = os.path.abspath(path)
        open_here = [ref() for known, ref in self._connections if known == target]
        invariant(
            not any(connection is not None and _is_open(connection) for connection in open_here),
            f"{path} is open in SQLite; nothing else may touch it",
        )

    # --- death

    def crash(self, folder: str, rng: random.Random, *, power_loss: bool) -> SimDisk:
        """The disk as the next process finds it, in the new folder `folder`. This one stays with the dead process.

        Without power loss everything written is there, still unsynced where it was unsynced.
        """
        os.makedirs(folder)
        tree = _after_power_loss(self.tree, rng) if power_loss else _copied(self.tree, {})
        _write_out(tree, folder)
        return SimDisk(folder, tree)


def _after_power_loss(folder: FolderNode, rng: random.Random) -> FolderNode:
    names: dict[str, Node] = {}
    for name, node in sorted(folder.after_power_loss(rng).items()):
        if isinstance(node, FolderNode):
            names[name] = _after_power_loss(node, rng)
        else:
            names[name] = FileNode(node.after_power_loss(rng))
    return FolderNode(names, dict(names))


def _copied(folder: FolderNode, known: dict[int, Node]) -> FolderNode:
    """A copy of the tree in which the same node stays the same node. known: by id of the original."""

    def copy_of(node: Node) -> Node:
        if id(node) not in known:
            known[id(node)] = node.copy() if isinstance(node, FileNode) else _copied(node, known)
        return known[id(node)]

    return FolderNode(
        {name: copy_of(node) for name, node in folder.names.items()},
        {name: copy_of(node) for name, node in folder.durable.items()},
        [
            {name: None if node is None else copy_of(node) for name, node in changes.items()}
            for changes in folder.pending
        ],
    )


def _write_out(folder: FolderNode, path: str) -> None:
    for name, node in folder.names.items():
        target = os.path.join(path, name)
        if isinstance(node, FolderNode):
            os.mkdir(target)
            _write_out(node, target)
        else:
            with open(target, "wb") as real:
                real.write(node.written())


def _is_open(connection: apsw.Connection) -> bool:
    try:
        connection.in_transaction  # noqa: B018  # only a closed connection raises here
    except apsw.ConnectionClosedError:
        return False
    except apsw.ThreadingViolationError:  # a thread stands in the middle of a call
        return True
    return True


def _is_idle(connection: apsw.Connection) -> bool:
    """Open, outside a transaction, and nothing of it under way in a thread."""
    try:
        return not connection.in_transaction
    except (apsw.ConnectionClosedError, apsw.ThreadingViolationError):
        return False


# --- SQLite's files ------------------------------------------------------------------------------------------------


class _RecordingVFS(apsw.VFS):
    """The system's VFS that reports every change to a SimDisk. Shared memory and locks stay the system's."""

    def __init__(self, name: str, disk: SimDisk) -> None:
        self.vfs_name = name
        self._disk = weakref.ref(disk)
        super().__init__(name, "")

    def disk(self) -> SimDisk:
        disk = self._disk()
        assert disk is not None
        return disk

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        if path is None or not flags[0] & _RECORDED_TYPES:
            return apsw.VFSFile("", name, flags)
        return _RecordingFile(self.disk(), path, name, flags)

    def xSleep(self, microseconds: int) -> int:
        return sleep(microseconds)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        step()
        super().xDelete(filename, False)
        disk = self.disk()
        disk.removed(filename)
        if syncdir:
            disk.sync_names_beside(filename)


class _RecordingFile(apsw.VFSFile):
    def __init__(self, disk: SimDisk, path: str, name: Any, flags: list[int]) -> None:
        super().__init__("", name, flags)
        is_new = os.path.basename(path) not in disk._folder_of(path).names
        self._disk = disk
        self._path = path
        self._database = os.path.basename(path).removesuffix("-wal").removesuffix("-journal")
        self._node = disk.created(path)
        # As SQLite's own VFS: the first sync of a new journal or WAL syncs its folder too.
        self._folder_to_sync = is_new and bool(flags[0] & _DIRSYNC_TYPES)

    def xWrite(self, data: Any, offset: int) -> None:
        step()
        raw = bytes(data)
        if self._disk.fails("write", self._path):
            raise apsw.IOError("input/output error")
        if self._disk.is_full and offset + len(raw) > super().xFileSize():
            raise apsw.FullError("no space left on the disk")
        super().xWrite(raw, offset)
        self._node.pending.append((offset, raw))
        self._disk.changed = True
        self._disk.written.add(self._database)

    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize)
        self._node.pending.append((newsize, None))

    def xSync(self, flags: int) -> None:
        self._disk.syncs += 1
        changes = self._node.changes
        step()
        if self._disk.fails("sync", self._path):
            self._node.forget(changes)
            error = apsw.IOError("input/output error")
            error.extendedresult = apsw.SQLITE_IOERR_FSYNC
            raise error
        self._node.sync(changes)
        if self._folder_to_sync:
            self._disk.sync_names_beside(self._path)
            self._folder_to_sync = False

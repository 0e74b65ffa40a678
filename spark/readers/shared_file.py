"""A look into a file that SQLite may have open in this process too, without taking SQLite's locks away.

POSIX drops all locks that a process has on a file when the process closes any descriptor of it, whoever opened that.
A read of a member's file would lose the lock that keeps the member, when it ends, from copying the -wal into the file
and deleting it: pages would change under the read. SQLite itself puts off closing for this reason, and so does this
module: what was opened for a look is closed when the file's last user in this process has gone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class SharedFile:
    """One for each file in use, whatever its paths; `shared_file` gives it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path, self._descriptor, self.users = path, -1, 0

    def read(self, size: int, offset: int) -> bytes:
        """At most `size` bytes. OSError."""
        with _lock:
            if self._descriptor < 0:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self._descriptor, size, offset)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


@contextmanager
def shared_file(path: str | os.PathLike[str]) -> Iterator[SharedFile]:
    """Whoever has a connection of SQLite's to the file, or reads it, does so inside. OSError when there is none."""
    state = os.stat(path)
    key = state.st_dev, state.st_ino
    with _lock:
        file = _files.setdefault(key, SharedFile(path))
        file.users += 1
    try:
        yield file
    finally:
        with _lock:
            file.users -= 1
            if file.users == 0:
                del _files[key]
                file.close()


_lock = threading.Lock()
_files: dict[tuple[int, int], SharedFile] = {}

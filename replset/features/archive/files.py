"""The files of an archive: in a local folder, or at an address that fsspec knows (s3://, gs://, abfs://, sftp://...)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from replset.errors import BadValueError, ErrorCode, ReplError


class ArchiveError(ReplError, code=ErrorCode.OPERATION_FAILED):
    """The archive cannot be read or written now; what is archived already is unchanged."""


class Files(Protocol):
    """Names are relative, with `/` between their parts. Every method raises ArchiveError."""

    @property
    def address(self) -> str: ...

    def read(self, name: str) -> bytes | None:
        """The content of a file; None: there is none."""

    def write(self, name: str, data: bytes) -> None:
        """Create or replace a file, whole or not at all; on return it is durable."""

    def names(self, folder: str) -> list[str]:
        """The names of the files in this folder, sorted; none where it is missing."""

    def remove(self, name: str) -> None:
        """Remove a file. Nothing happens when there is none."""


def open_files(address: str) -> Files:
    """Return the files at a folder's path, or at an address. BadValueError: fsspec is missing or knows no such kind."""
    kind, separator, path = address.partition("://")
    if not separator or kind == "file":
        return FolderFiles(path if separator else address)
    try:
        import fsspec
    except ImportError as error:
        raise BadValueError(
            f"{kind}:// needs the package fsspec (pip install '.[archive]' in the clone of replset)"
        ) from error
    try:
        system, root = fsspec.core.url_to_fs(address)
    except (ImportError, ValueError, OSError) as error:
        raise BadValueError(f"{address}: {_text(error)}") from error
    return RemoteFiles(address, system, root)


class FolderFiles:
    """A folder of this machine, or of one that is mounted."""

    def __init__(self, folder: str) -> None:
        self._folder = os.path.abspath(os.path.expanduser(folder))

    @property
    def address(self) -> str:
        return self._folder

    def read(self, name: str) -> bytes | None:
        with _reported(self._path(name)), open(self._path(name), "rb") as file:
            return file.read()
        return None

    def write(self, name: str, data: bytes) -> None:
        """Written beside its place, synced, renamed: a crash leaves the file as it was, and perhaps a `.part`."""
        path = self._path(name)
        part = f"{path}.{os.getpid()}.part"
        folder = os.path.dirname(path)
        with _reported(path, may_be_missing=False):
            try:
                self._make_folder(folder)
                with open(part, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(part, path)
                _sync_folder(folder)
            except OSError:
                with suppress(OSError):
                    os.unlink(part)
                raise

    def _make_folder(self, folder: str) -> None:
        if not os.path.isdir(folder):
            os.makedirs(folder, exist_ok=True)
            while len(folder) >= len(self._folder):
                folder = os.path.dirname(folder)
                _sync_folder(folder)

    def names(self, folder: str) -> list[str]:
        with _reported(self._path(folder)):
            return sorted(os.listdir(self._path(folder)))
        return []

    def remove(self, name: str) -> None:
        with _reported(self._path(name)):
            os.unlink(self._path(name))

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, *name.split("/"))


def _sync_folder(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class RemoteFiles:
    """What fsspec reaches. An object store shows a file only when all of it is there; what else there is (sftp://) may
    show the beginning of one after a crash, see write_segment.
    """

    def __init__(self, address: str, system: Any, root: str) -> None:
        self.address = address
        self._system, self._root = system, root.rstrip("/")

    def read(self, name: str) -> bytes | None:
        with _reported(self._path(name)):
            return bytes(self._system.cat_file(self._path(name)))
        return None

    def write(self, name: str, data: bytes) -> None:
        path = self._path(name)
        with _reported(path, may_be_missing=False):
            self._system.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._system.pipe_file(path, data)

    def names(self, folder: str) -> list[str]:
        with _reported(self._path(folder)):
            self._system.invalidate_cache()
            return sorted(path.rpartition("/")[2] for path in self._system.ls(self._path(folder), detail=False))
        return []

    def remove(self, name: str) -> None:
        with _reported(self._path(name)):
            self._system.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


@contextmanager
def _reported(path: str, *, may_be_missing: bool = True) -> Iterator[None]:
    """Raise an ArchiveError of any error, fsspec's are of any kind. A file that may be missing is none."""
    try:
        yield
    except Exception as error:
        if not (may_be_missing and isinstance(error, FileNotFoundError)):
            raise ArchiveError(f"archive: {path}: {_text(error)}") from error


def _text(error: Exception) -> str:
    """The first line of what the system or a library says."""
    text = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    return (text.splitlines() or [type(error).__name__])[0][:300]

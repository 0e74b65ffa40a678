"""Opens the read transactions of a store, and ends them when the store needs that."""

from __future__ import annotations

import threading
from contextlib import suppress

import apsw

from replset.errors import StorageError
from replset.storage.disk import Disk
from replset.storage.snapshot import Snapshot
from replset.storage.sqlite import BUSY_MS, storage_error

_MAX_IDLE = 4


class Readers:
    """Keeps the open snapshots and a few idle connections. Calls may come from any thread."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._closed = False
        self._open: set[Snapshot] = set()
        self._idle: list[apsw.Connection] = []
        self._guard = threading.Lock()

    def read(self) -> Snapshot:
        """Begin a read transaction. StorageError once the store is closed.

        The guard is held until `close`, which may come from another thread, can see the snapshot. Otherwise a
        connection could be opened in a database file that is just being replaced.
        """
        with self._guard:
            if self._closed:
                raise StorageError(f"{self._path} is closed: the member stops, or its data is being replaced")
            connection = self._idle.pop() if self._idle else None
            try:
                if connection is None:
                    connection = self._disk.connect(self._path)
                    connection.set_busy_timeout(BUSY_MS)
                    connection.pragma("query_only", True)
                snapshot = Snapshot(connection, self._path, self._on_done)
            except apsw.Error as error:
                raise storage_error(error, self._path) from error
            self._open.add(snapshot)
        return snapshot

    def _on_done(self, snapshot: Snapshot, is_reusable: bool) -> None:
        with self._guard:
            self._open.discard(snapshot)
            if is_reusable and not self._closed and len(self._idle) < _MAX_IDLE:
                self._idle.append(snapshot.connection)
                return
        snapshot.connection.close(True)

    def cut(self) -> int:
        """End every open snapshot, so that the last pass can reach the WAL's end. Return how many there were."""
        with self._guard:
            snapshots = list(self._open)
        for snapshot in snapshots:
            snapshot.cut()
        return len(snapshots)

    def close(self) -> None:
        """End every snapshot, close all connections, and refuse new ones."""
        with self._guard:
            self._closed = True
            connections, self._idle = self._idle, []
            snapshots = list(self._open)
        for snapshot in snapshots:
            snapshot.cut()
            connections.append(snapshot.connection)
        for connection in connections:
            with suppress(apsw.Error):  # inside a call in another thread: closed when that thread ends its snapshot
                connection.close(True)

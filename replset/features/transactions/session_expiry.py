"""Forgets sessions that have written nothing for 30 minutes: the primary removes their records by an entry.

How old an entry is, the member measures (`Store.ages`): neither a wall clock that jumps nor one of another member makes
a session end early, or late. After a start, and after a rollback, the time begins anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Final

import apsw

from replset.core.node import Node
from replset.errors import ReplError
from replset.ids import Millis, OpTime
from replset.member.disk.writer import Writer
from replset.member.feature import FeaturePart
from replset.operations.session_table import SessionTable
from replset.replication.context import MemberContext
from replset.replication.session_write import expiry_note
from replset.replication.write_ops import WriteGroup, do_noop
from replset.storage.catalog import SESSIONS
from replset.storage.retention import note_ages
from replset.storage.schema import DOC, KEY
from replset.storage.sessions import read_record
from replset.storage.sqlite import rows_of

log = logging.getLogger("replset.sessions")

SESSION_TIMEOUT_MS: Final = Millis(30 * 60_000)
NOTES: Final = 30
"""Notes within the timeout: so exact is the age of a session."""
SLICE: Final = 200
SLICE_BYTES: Final = 1 << 20
"""How many bytes of records one slice reads, and the last one: one with a findAndModify's image has up to 16 MiB."""
PAUSE_S: Final = 0.02
"""Between two slices: some ten thousand records are looked at in a second."""


class SessionExpiry(FeaturePart):
    """Runs as a task of its own on every member; only a primary removes records."""

    def __init__(
        self, context: MemberContext, node: Node, writer: Writer, sessions: SessionTable, timeout_ms: Millis
    ) -> None:
        self._context = context
        self._node = node
        self._writer = writer
        self._sessions = sessions
        self._timeout_ms = timeout_ms
        self._through = 0
        """All entries up to this ts are older than the timeout."""

    def jobs(self) -> Iterable[Coroutine[Any, Any, None]]:
        return (self.run(),)

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await asyncio.sleep(self._timeout_ms / NOTES / 1000)
            try:
                self.take_note()
                if self._through and self._node.writable:
                    await self.forget()
            except ReplError as error:  # while a copy is installed the store is closed; the next round goes on
                log.info("sessions are not forgotten now: %s", error.message)

    def take_note(self) -> None:
        """Note how far the oplog is now, and what is older than the timeout."""
        store, now = self._context.store, self._context.clock.now()
        note_ages(store, now)
        self._through = store.ages.older_than(self._timeout_ms, now).ts

    async def forget(self) -> None:
        """Remove the records of sessions that have written nothing for so long."""
        through, after, more = self._through, b"", True
        while more:
            page, more = self._page(after)
            old = [key for key, optime in page if optime.ts <= through]
            if old:
                is_used: Callable[[bytes], bool] = self._sessions.is_checked_out
                await self._writer.write(partial(_remove, keys=old, through=through, is_used=is_used))
            if more:
                after = page[-1][0]
                await asyncio.sleep(PAUSE_S)

    def _page(self, after: bytes) -> tuple[list[tuple[bytes, OpTime]], bool]:
        """The next records, each by its key and newest entry, and whether there may be more."""

        def read(connection: apsw.Connection) -> tuple[list[tuple[bytes, OpTime]], bool]:
            page: list[tuple[bytes, OpTime]] = []
            size = 0
            for key, document in rows_of(connection, sql, (after,)):
                page.append((key, read_record(document).optime))
                size += len(document)
                if size > SLICE_BYTES:
                    return page, True
            return page, len(page) == SLICE

        sql = f"SELECT {KEY}, {DOC} FROM {SESSIONS.table} WHERE key > ? ORDER BY key LIMIT {SLICE}"
        return self._context.store.query(read)


def _remove(group: WriteGroup, *, keys: Sequence[bytes], through: int, is_used: Callable[[bytes], bool]) -> None:
    found = [(key, group.txn.session(key)) for key in keys if not is_used(key)]
    records = [(key, document) for key, document in found if document and read_record(document).optime.ts <= through]
    if records:
        do_noop(group, expiry_note(group.txn, records, group.next_optime().ts))

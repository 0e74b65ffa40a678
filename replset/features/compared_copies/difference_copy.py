"""Makes the copy of a member that is too stale out of its own documents: only those that differ come from the source.

The member's own database is copied on its disk first, so that it stays whole until the copy is installed, as with any
other initial sync. A member that dies in between copies everything.
"""

from __future__ import annotations

import logging

from replset.errors import OutOfDiskSpaceError, RemoteProtocolError
from replset.features.compared_copies.difference_protocol import CompareReply, CompareRequest
from replset.features.compared_copies.differences import (
    FIRST_PLACE,
    SPAN_BITS,
    Differences,
    Spans,
    begin_build,
    end_build,
    put_rows,
    read_hashes,
    read_spans,
)
from replset.replication.context import MemberContext
from replset.replication.copy_transfer import CopyTransfer
from replset.replication.partial_copy import CopyRecord
from replset.storage.copies import open_copy
from replset.storage.sqlite import storage_error

log = logging.getLogger("replset.initial_sync")

SPANS_ASKED = 512
"""Spans of one question about rows: their hashes take 128 KiB at most."""


class DifferenceCopy:
    """Builds a whole copy beside the frame that was fetched, and puts it in the frame's place."""

    def __init__(self, context: MemberContext, transfer: CopyTransfer) -> None:
        self._context = context
        self._transfer = transfer
        self._rows = 0
        """Documents that came from the source, those that are gone included."""

    async def complete(self, record: CopyRecord) -> int:
        """See FrameCopies."""
        self._rows = 0
        try:
            await self._build(record)
        except OSError as error:
            raise storage_error(error, self._transfer.copy.built) from error
        return self._rows

    async def _build(self, record: CopyRecord) -> None:
        context, copy = self._context, self._transfer.copy

        def check_space() -> None:
            if context.disk.free_bytes(context.dbpath) < self._transfer.options.spare_bytes:
                raise OutOfDiskSpaceError("comparing needs as much disk space as the data takes")

        store = context.store
        await context.workers.run(lambda: store.copy_to(copy.built, pause=check_space, hashed=False))
        collections = await context.workers.run(lambda: begin_build(context.disk, copy.built, copy.path))
        for uuid in collections:
            await self._compare(record, uuid)
        await context.workers.run(lambda: end_build(context.disk, copy.built, copy.path, check_space))
        await context.workers.run(copy.replace_by_built)
        log.info("compared %d collections with %s: %d documents differed", len(collections), record.source, self._rows)

    async def _compare(self, record: CopyRecord, uuid: bytes) -> None:
        low: int | None = FIRST_PLACE
        while low is not None:
            reply = await self._ask(record, CompareRequest("spans", record.snapshot_id, uuid, low))
            theirs = reply.spans
            if theirs is None or (theirs.next is not None and theirs.next <= low):
                raise RemoteProtocolError(f"{record.source} did not say what its documents are")
            mine = await self._own_spans(uuid, low, theirs.next)
            differing = [
                span for span in sorted({*mine, *theirs.digests}) if mine.get(span) != theirs.digests.get(span)
            ]
            for first in range(0, len(differing), SPANS_ASKED):
                await self._fetch_rows(record, uuid, differing[first : first + SPANS_ASKED], theirs)
            low = theirs.next

    async def _ask(self, record: CopyRecord, request: CompareRequest) -> CompareReply:
        reply = CompareReply.parse(await self._transfer.compare(record, request.document()))
        # As in any step of a copy: the documents that it compares may be undone by now.
        if reply.rollback_id != record.rollback_id:
            raise RemoteProtocolError(f"{record.source} rolled back while its copy was compared")
        return reply

    async def _own_spans(self, uuid: bytes, low: int, end: int | None) -> dict[int, int]:
        """The digests of the spans here before the place `end`."""
        found: dict[int, int] = {}
        while True:
            spans = await self._context.workers.run(lambda: self._read_spans(uuid, low, end))  # noqa: B023 - awaited
            found |= spans.digests
            if spans.next is None:
                return found
            low = spans.next

    def _read_spans(self, uuid: bytes, low: int, end: int | None) -> Spans:
        with open_copy(self._context.disk, self._transfer.copy.built) as connection:
            return read_spans(connection, uuid, low) if end is None else read_spans(connection, uuid, low, end - 1)

    async def _fetch_rows(self, record: CopyRecord, uuid: bytes, spans: list[int], theirs: Spans) -> None:
        """Fetch and write what differs in these spans."""
        context, built = self._context, self._transfer.copy.built

        def own_hashes() -> dict[int, int]:
            with open_copy(context.disk, built) as connection:
                return read_hashes(connection, uuid, spans)

        hashes = await context.workers.run(own_hashes)
        low: int | None = FIRST_PLACE
        while low is not None:
            left = [span for span in spans if (span + 1) << SPAN_BITS > low]
            known = {place: hashed for place, hashed in hashes.items() if place >= low}
            request = CompareRequest("rows", record.snapshot_id, uuid, low, left, known)
            found = (await self._ask(record, request)).differences
            if found is None or (found.next is not None and found.next <= low):
                raise RemoteProtocolError(f"{record.source} did not send its documents")
            end = found.next
            done = {span: theirs.digests.get(span) for span in left if end is None or (span + 1) << SPAN_BITS <= end}
            await context.workers.run(lambda: self._put(uuid, found, done))  # noqa: B023 - awaited
            self._rows += len(found.rows) + len(found.gone)
            low = end

    def _put(self, uuid: bytes, found: Differences, expected: dict[int, int | None]) -> None:
        put_rows(self._context.disk, self._transfer.copy.built, uuid, found, expected)

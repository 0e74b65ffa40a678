"""Runs the index builds of this member, slice by slice; on a primary it also ends each, by a commit or an abort.

A build that was begun goes on after a restart, and on a new primary after a failover. What a former primary wrote may
break a unique index, since its fill was elsewhere: so before the commit a primary looks through the whole index.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from replset.errors import (
    CannotCreateIndexError,
    IndexBuildAbortedError,
    InterruptedDueToReplStateChangeError,
    NotWritablePrimaryError,
    OutOfDiskSpaceError,
    ReplError,
    ShutdownInProgressError,
)
from replset.ids import OpTime
from replset.replication.context import MemberContext
from replset.replication.index_ops import do_abort_build, do_commit_build
from replset.replication.write_ops import WriteGroup
from replset.storage.index_build import duplicate_in, fill_slice, indexes_of_build, refused_in
from replset.storage.indexes import Index
from replset.storage.sqlite import is_about_the_disk

log = logging.getLogger("replset.index_builder")

SLICE_MS = 5
INTERVAL_S = 0.5
"""Between two looks for builds, on a member where nobody waits for one."""
FULL_DISK_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class IndexBuildOptions:
    """slice_documents: at most so many in a slice. pause_s: between two slices."""

    slice_documents: int = 2000
    pause_s: float = 0.0


async def write_slice(
    context: MemberContext,
    uuid: bytes,
    build: bytes,
    limit: int | None = None,
    refuses: Callable[[], bool] = lambda: False,
) -> bool:
    """Put some more documents into the indexes of a build. True: call again. refuses: see `fill_slice`."""

    def write() -> bool:
        until = context.clock.now() + SLICE_MS
        with context.store.group() as txn:
            return fill_slice(txn, uuid, build, lambda: context.clock.now() >= until, limit=limit, refuses=refuses())

    return await context.write_queue.write(write)


class IndexBuilder:
    """Runs as a task of its own. Each of its steps on the event loop takes a few milliseconds."""

    def __init__(
        self,
        context: MemberContext,
        *,
        busy: asyncio.Lock,
        leads_in: Callable[[], int | None],
        write: Callable[[Callable[[WriteGroup], OpTime | None]], Awaitable[OpTime | None]],
        options: IndexBuildOptions | None = None,
    ) -> None:
        """busy: who replaces the store takes it first. leads_in: the term in which this member accepts writes.
        write: see Kernel.write.
        """
        self._context = context
        self._busy = busy
        self._leads_in = leads_in
        self._write = write
        self._options = options or IndexBuildOptions()
        self._wanted = asyncio.Event()
        self._waiting: dict[bytes, list[asyncio.Future[OpTime]]] = {}
        self._aborts: dict[bytes, ReplError] = {}

    def result(self, build: bytes) -> asyncio.Future[OpTime]:
        """Return what becomes of a build that this primary began: the optime of its commit, or why it ended.

        InterruptedDueToReplStateChangeError when this member is primary no more; the next primary goes on with it.
        """
        future: asyncio.Future[OpTime] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_retrieve)  # the client may be gone, or its group may have failed
        self._waiting.setdefault(build, []).append(future)
        self._wanted.set()
        return future

    def abort(self, build: bytes, cause: ReplError) -> None:
        """End the build, if it is not committed by then."""
        self._aborts[build] = cause
        self._wanted.set()

    def on_stepdown(self) -> None:
        """Fail everybody who waits for a build."""
        for build in list(self._waiting):
            self._settle(build, InterruptedDueToReplStateChangeError("the primary stepped down; the build goes on"))
        self._aborts.clear()

    async def run(self) -> None:
        """Work until cancelled. A storage error but a full disk is raised; the member must stop then."""
        loop = asyncio.get_running_loop()
        while True:
            timer = loop.call_later(INTERVAL_S, self._wanted.set)
            await self._wanted.wait()
            timer.cancel()
            self._wanted.clear()
            await self.work()

    async def work(self) -> None:
        """Do what there is to do now."""
        try:
            for coll, build in self._context.store.index_builds():
                await self._build(coll.uuid, build)
        except OutOfDiskSpaceError as error:
            log.warning("%s: index builds wait", error.message)
            await asyncio.sleep(FULL_DISK_PAUSE_S)
        except (NotWritablePrimaryError, ShutdownInProgressError):
            pass  # the next primary ends the build
        self._fail_vanished()

    async def _build(self, uuid: bytes, build: bytes) -> None:
        """Fill the indexes of a build; on a primary end it."""
        term = self._leads_in()
        failure: ReplError | None = None
        try:
            was_begun = self._is_begun(uuid, build)
            await self._fill(uuid, build)
            if term is not None and was_begun and build not in self._aborts:
                failure = await self._find_refused(uuid, build)
            if term is not None and failure is None and build not in self._aborts:
                failure = await self._find_duplicate(uuid, build)
        except Exception as error:
            if is_about_the_disk(error):
                raise
            # A document that cannot be in an index, or whose bytes this disk changed. On a secondary the entry that
            # ends the build decides what follows.
            failure = (
                error if isinstance(error, ReplError) else CannotCreateIndexError(f"{type(error).__name__}: {error}")
            )
        if term is not None and term == self._leads_in():
            await self._end(uuid, build, term, self._aborts.pop(build, failure))

    async def _fill(self, uuid: bytes, build: bytes) -> None:
        more = True
        while more and build not in self._aborts:
            async with self._busy:
                limit = self._options.slice_documents
                more = await write_slice(self._context, uuid, build, limit, lambda: self._leads_in() is not None)
            await asyncio.sleep(self._options.pause_s)

    def _is_begun(self, uuid: bytes, build: bytes) -> bool:
        """Whether documents are in the indexes already: maybe this member did not lead then, and refused none."""
        coll = self._context.store.collection_by_uuid(uuid)
        return coll is not None and any(index.position != b"" for index in indexes_of_build(coll, build))

    async def _find_refused(self, uuid: bytes, build: bytes) -> ReplError | None:
        """Look through the documents for one that cannot be in an index of the build. As `_find_duplicate`."""
        after: bytes | None = b""
        while after is not None and build not in self._aborts:
            async with self._busy:
                store = self._context.store
                coll = store.collection_by_uuid(uuid)
                if coll is None or build not in coll.builds:
                    return None  # it was dropped meanwhile
                error, after = store.query(partial(refused_in, coll=coll, build=build, after=after))
            if error is not None:
                return error
            await asyncio.sleep(0)
        return None

    async def _find_duplicate(self, uuid: bytes, build: bytes) -> ReplError | None:
        """Look through the unique indexes of a build. Since this member leads, its own writes were checked."""
        coll = self._context.store.collection_by_uuid(uuid)
        for index in [] if coll is None else indexes_of_build(coll, build):
            after: tuple[bytes, bytes] | None = (b"", b"")
            while index.unique and after is not None:
                async with self._busy:
                    error, after = self._duplicate_in(index, after)
                if error is not None:
                    return error
                await asyncio.sleep(0)
        return None

    def _duplicate_in(
        self, index: Index, after: tuple[bytes, bytes]
    ) -> tuple[ReplError | None, tuple[bytes, bytes] | None]:
        store = self._context.store
        coll = store.collection_by_uuid(index.coll)
        if coll is None or all(index.id != known.id for known in coll.indexes):
            return None, None  # it was dropped meanwhile
        return store.query(lambda connection: duplicate_in(connection, coll, index, after))

    async def _end(self, uuid: bytes, build: bytes, term: int, failure: ReplError | None) -> None:
        """Write the commit or the abort of the build, and answer who waits for it."""

        def operation(group: WriteGroup) -> OpTime | None:
            coll = group.txn.catalog.by_uuid.get(uuid)
            if coll is None or build not in coll.builds or group.term != term:
                return None
            if failure is not None:
                return do_abort_build(group, coll, build, failure)
            if any(index.position is not None for index in indexes_of_build(coll, build)):
                return None
            return do_commit_build(group, coll, build)

        optime = await self._write(operation)
        if optime is not None:
            log.info("index build %s: %s", build.hex(), "committed" if failure is None else failure.message)
            self._settle(build, failure or optime)

    def _settle(self, build: bytes, result: OpTime | ReplError) -> None:
        for future in self._waiting.pop(build, []):
            if future.done():
                continue
            if isinstance(result, ReplError):
                future.set_exception(result)
            else:
                future.set_result(result)

    def _fail_vanished(self) -> None:
        """Answer who waits for a build whose collection or index was dropped meanwhile."""
        if not self._waiting and not self._aborts:
            return
        alive = {build for _, build in self._context.store.index_builds()}
        for build in [build for build in self._waiting if build not in alive]:
            self._settle(build, IndexBuildAbortedError("the index or the collection was dropped during the build"))
        for build in [build for build in self._aborts if build not in alive]:
            del self._aborts[build]


def _retrieve(future: asyncio.Future[OpTime]) -> None:
    if not future.cancelled():
        future.exception()

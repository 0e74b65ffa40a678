"""The runtime's parts alone: virtual time, and threads whose work ends when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from replset.ids import HostPort
from replset.replication.context import Identity, MemberContext
from replset.replication.ports import Clock
from replset.replication.write_queue import WriteQueue
from replset.storage.disk import RealDisk

T = TypeVar("T")


def unused_callback(*_: object) -> None:
    raise AssertionError("the part under test does not call this")


def context_of(
    store: object, clock: Clock, workers: object = None, *, on_broken: Callable[[BaseException], None] = unused_callback
) -> MemberContext:
    """What the parts of a member share, as far as the part under test looks at it."""
    return MemberContext(
        disk=RealDisk(),
        dbpath="",
        clock=clock,
        workers=workers,  # type: ignore[arg-type]
        store=store,  # type: ignore[arg-type]
        write_queue=WriteQueue(),
        identity=Identity("rs0", HostPort("a:27017")),
        on_report=unused_callback,
        on_undone=unused_callback,
        on_broken=on_broken,
    )


async def settle() -> None:
    """Let everything run that can run without time passing."""
    for _ in range(20):
        await asyncio.sleep(0)


class HandWorkers:
    """The Workers port: work waits in `jobs` until `finish` does the oldest."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []

    async def run(self, work: Callable[[], T]) -> T:
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.jobs.append((work, done))
        return await done

    def start(self, work: Callable[[], Any], on_ended: Callable[[BaseException | None], None]) -> None:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        done.add_done_callback(lambda job: on_ended(job.exception()))
        self.jobs.append((work, done))

    async def finish(self) -> None:
        """Do the oldest work, which comes at the latest now, and let the loop see that it is done."""
        await settle()
        work, done = self.jobs.pop(0)
        try:
            result = work()
        except Exception as error:
            if not done.done():
                done.set_exception(error)
        else:
            if not done.done():
                done.set_result(result)
        await settle()

"""All that writes the store passes one queue, in order; a busy store is tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from replset.errors import StorageError, StoreBusyError
from replset.replication.write_queue import BUSY_PAUSE_S, WARN_AFTER, WriteQueue
from tests.unit.member.kit import settle


class Rig:
    def __init__(self) -> None:
        self.write_queue = WriteQueue()
        self.done: list[str] = []
        self.busy = 0

    def work(self, name: str) -> Callable[[], str]:
        def run() -> str:
            if self.busy:
                self.busy -= 1
                raise StoreBusyError("somebody writes")
            self.done.append(name)
            return name

        return run

    def submit(self, name: str) -> None:
        work = self.work(name)
        self.write_queue.submit(lambda: self.done.append("submitted") if work() else None)


def test_an_open_gate_lets_work_pass_at_once() -> None:
    rig = Rig()
    rig.submit("noop")
    assert rig.done == ["noop", "submitted"]


async def test_what_waits_at_a_held_gate_passes_in_order() -> None:
    rig = Rig()
    rig.write_queue.pause()
    rig.submit("noop")
    tasks = [asyncio.ensure_future(rig.write_queue.write(rig.work(name))) for name in ("page", "undo")]
    await asyncio.sleep(60)
    assert rig.done == []
    rig.write_queue.resume()
    assert rig.done == ["noop", "submitted", "page", "undo"]
    assert await asyncio.gather(*tasks) == ["page", "undo"]


async def test_a_busy_store_is_tried_again_before_what_came_later() -> None:
    rig = Rig()
    rig.busy = 3
    tasks = [asyncio.ensure_future(rig.write_queue.write(rig.work(name))) for name in ("first", "second")]
    await settle()
    assert rig.done == []
    await asyncio.sleep(4 * BUSY_PAUSE_S)
    assert rig.done == ["first", "second"]
    assert await asyncio.gather(*tasks) == ["first", "second"]


async def test_the_log_says_now_and_then_that_a_busy_store_holds_writes_up(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.busy = 2 * WARN_AFTER + 1
    task = asyncio.ensure_future(rig.write_queue.write(rig.work("page")))
    await asyncio.sleep((2 * WARN_AFTER + 2) * BUSY_PAUSE_S)
    assert await task == "page"
    assert [record.getMessage() for record in caplog.records] == ["writes wait: somebody writes"] * 2


async def test_a_task_that_is_cancelled_at_the_gate_writes_nothing() -> None:
    rig = Rig()
    rig.write_queue.pause()
    task = asyncio.ensure_future(rig.write_queue.write(rig.work("page")))
    await settle()
    task.cancel()
    rig.write_queue.resume()
    await settle()
    assert task.cancelled()
    assert rig.done == []


async def test_an_error_goes_to_who_wrote_and_the_next_one_passes() -> None:
    rig = Rig()

    def fail() -> None:
        raise StorageError("disk I/O error")

    with pytest.raises(StorageError, match="disk I/O"):
        await rig.write_queue.write(fail)
    assert await rig.write_queue.write(rig.work("page")) == "page"


def test_work_that_sets_off_more_work_is_ended_first() -> None:
    rig = Rig()

    def outer() -> None:
        rig.submit("inner")
        rig.done.append("outer")

    rig.write_queue.submit(outer)
    assert rig.done == ["outer", "inner", "submitted"]


def test_a_closed_gate_forgets_what_waits() -> None:
    rig = Rig()
    rig.write_queue.pause()
    rig.submit("noop")
    rig.write_queue.close()
    rig.write_queue.resume()
    rig.submit("later")
    assert rig.done == []

"""The loop's virtual time, its numbered tasks, and what a kill leaves."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.simulation.kit.clock import EPOCH_MS, SimClock
from tests.simulation.kit.loop import DeadlockError, Process, RealWaitError, SimLoop, current_process
from tests.simulation.kit.workers import SimWorkers


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    made = SimLoop()
    yield made
    made.close()


def test_an_hour_takes_no_time(loop: SimLoop) -> None:
    loop.run_until_complete(asyncio.sleep(3600))
    assert (loop.now_ms, loop.steps) == (3_600_000, 4)


def test_nothing_scheduled_is_a_deadlock(loop: SimLoop) -> None:
    with pytest.raises(DeadlockError):
        loop.run_until_complete(loop.create_future())


def test_tasks_hash_by_their_number() -> None:
    async def main() -> list[int]:
        tasks = {asyncio.ensure_future(asyncio.sleep(1)) for _ in range(100)}
        order = [hash(task) for task in tasks]
        await asyncio.wait(tasks)
        return order

    orders = []
    for _ in range(2):
        loop = SimLoop()
        orders.append(loop.run_until_complete(main()))
        loop.close()
    assert orders[0] == orders[1]


def test_the_real_machine_is_out_of_reach(loop: SimLoop) -> None:
    async def main() -> None:
        await asyncio.to_thread(time.monotonic)

    with pytest.raises(RealWaitError):
        loop.run_until_complete(main())


def test_a_generator_that_nobody_closed_is_closed_also_where_a_process_ends(loop: SimLoop) -> None:
    closed = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    async def leave() -> None:
        async for _ in numbers():
            break
        gc.collect()
        loop.kill(Process("another"))

    loop.run_until_complete(leave())
    loop.run_until_complete(asyncio.sleep(1))
    assert closed == [True]


def test_a_kill_ends_tasks_timers_and_work_of_that_process_alone(loop: SimLoop) -> None:
    starts = {name: Process(name) for name in ("dies", "stays")}
    seen: list[str] = []

    async def work_for(process: Process) -> None:
        asyncio.get_running_loop().call_later(2, seen.append, f"{process.name} timer")
        workers = SimWorkers(loop, process, random.Random(1), 3000.0)
        writing = asyncio.ensure_future(workers.run(lambda: seen.append(f"{process.name} work")))
        try:
            await asyncio.sleep(5)
            await writing
            seen.append(f"{process.name} end")
        finally:
            await asyncio.sleep(0)

    for process in starts.values():
        token = current_process.set(process)
        loop.create_task(work_for(process))
        current_process.reset(token)
    loop.call_later(1, loop.kill, starts["dies"])
    loop.run_until_complete(asyncio.sleep(40))
    assert sorted(seen) == ["stays end", "stays timer", "stays work"]
    assert not starts["dies"].tasks()
    assert not loop.unhandled


def test_a_paused_process_stops_and_then_catches_up(loop: SimLoop) -> None:
    process = Process("a")
    seen: list[int] = []

    async def count() -> None:
        for _ in range(10):
            await asyncio.sleep(1)
            seen.append(loop.now_ms)

    token = current_process.set(process)
    loop.create_task(count())
    current_process.reset(token)
    loop.call_later(2.5, loop.pause, process)
    loop.call_later(6.5, loop.resume, process)
    loop.run_until_complete(asyncio.sleep(20))
    assert seen[:4] == [1000, 2000, 6500, 7500]
    assert len(seen) == 10


def test_work_in_a_thread_fails_at_the_await(loop: SimLoop) -> None:
    def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        loop.run_until_complete(SimWorkers(loop, Process("a"), random.Random(1)).run(work))


def test_clocks_differ_by_offset_and_drift(loop: SimLoop) -> None:
    exact, odd = SimClock(loop), SimClock(loop, offset_ms=-300, drift=0.001)
    loop.run_until_complete(asyncio.sleep(1000))
    assert (exact.now(), exact.wall_ms()) == (1_000_000, EPOCH_MS + 1_000_000)
    assert (odd.now(), odd.wall_ms()) == (1_001_000, EPOCH_MS + 1_000_700)

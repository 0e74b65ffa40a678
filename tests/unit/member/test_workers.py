"""Threads of one member: a stop waits for its own, and clients never have all of them."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading

import pytest

from replset.member.process.machine import SWITCH_S, LimitedWorkers, RealWorkers, TrackedWorkers
from tests.unit.member.kit import HandWorkers, settle


async def test_abandoned_work_is_waited_for_at_the_end() -> None:
    hands = HandWorkers()
    workers = TrackedWorkers(hands)
    done: list[str] = []
    waiting = asyncio.ensure_future(workers.run(lambda: done.append("renamed")))
    await settle()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    ending = asyncio.ensure_future(workers.wait())
    await settle()
    assert not ending.done()
    await hands.finish()
    assert done == ["renamed"]
    assert ending.done()


async def test_a_failure_that_nobody_awaits_any_more_is_not_reported() -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    hands = HandWorkers()
    workers = TrackedWorkers(hands)
    waiting = asyncio.ensure_future(workers.run(lambda: 1 // 0))
    await settle()
    waiting.cancel()
    await settle()
    await hands.finish()
    await workers.wait()
    await settle()
    del waiting
    gc.collect()
    assert reported == []


async def test_results_and_failures_come_back() -> None:
    hands = HandWorkers()
    workers = TrackedWorkers(hands)
    good = asyncio.ensure_future(workers.run(lambda: 7))
    bad = asyncio.ensure_future(workers.run(lambda: 1 // 0))
    await settle()
    await hands.finish()
    await hands.finish()
    assert await good == 7
    with pytest.raises(ZeroDivisionError):
        await bad
    await workers.wait()


async def test_long_reads_of_clients_leave_threads_for_the_sync() -> None:
    hands = HandWorkers()
    reads = LimitedWorkers(hands, 2)
    waiting = [asyncio.ensure_future(reads.run(lambda: None)) for _ in range(5)]
    await settle()
    assert len(hands.jobs) == 2
    for _ in range(5):
        await hands.finish()
    assert all(task.done() for task in waiting)


async def test_a_client_that_gives_up_frees_no_thread() -> None:
    hands = HandWorkers()
    evaluations = LimitedWorkers(hands, 1)
    for _ in range(20):
        waiting = asyncio.ensure_future(evaluations.run(lambda: 1 // 0))
        await settle()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert len(hands.jobs) == 1, "the others never began"
    await hands.finish()
    last = asyncio.ensure_future(evaluations.run(lambda: 7))
    await settle()
    await hands.finish()
    assert await last == 7


def test_threads_take_short_turns_only_while_clients_work_runs() -> None:
    usual = sys.getswitchinterval()
    assert usual > SWITCH_S
    begun, go_on = threading.Semaphore(0), [threading.Event(), threading.Event()]

    def work(number: int) -> float:
        begun.release()
        go_on[number].wait(10)
        return sys.getswitchinterval()

    async def main() -> None:
        threads = RealWorkers(threads=2)
        limited = LimitedWorkers(threads, 2)
        first, second = (asyncio.ensure_future(limited.run(lambda number=n: work(number))) for n in range(2))
        for _ in range(2):
            await asyncio.to_thread(begun.acquire)
        go_on[0].set()
        assert await first == pytest.approx(SWITCH_S)
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S), "the other one still runs"
        go_on[1].set()
        assert await second == pytest.approx(SWITCH_S)
        assert sys.getswitchinterval() == pytest.approx(usual)
        with pytest.raises(ZeroDivisionError):
            await limited.run(lambda: 1 // 0)
        assert sys.getswitchinterval() == pytest.approx(usual)
        assert await threads.run(sys.getswitchinterval) == pytest.approx(usual), "a sync needs none"
        threads.close()

    asyncio.run(main())

"""Threads of one member: a stop waits for its own, and clients never have all of them."""

from __future__ import annotations

import asyncio

import pytest

from replset.runtime.machine import KeptWorkers, LimitedWorkers
from tests.simulation.kit.clock import SimClock
from tests.unit.runtime.kit import HandWorkers, on_virtual_time, settle


def test_what_nobody_awaits_any_more_is_still_waited_for_at_the_end() -> None:
    async def main(clock: SimClock) -> None:
        hands = HandWorkers()
        workers = KeptWorkers(hands)
        done: list[str] = []
        waiting = asyncio.ensure_future(workers.run(lambda: done.append("renamed")))
        await settle()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        ending = asyncio.ensure_future(workers.idle())
        await settle()
        assert not ending.done()
        await hands.finish()
        assert done == ["renamed"]
        assert ending.done()

    on_virtual_time(main)


def test_results_and_failures_come_back() -> None:
    async def main(clock: SimClock) -> None:
        hands = HandWorkers()
        workers = KeptWorkers(hands)
        good = asyncio.ensure_future(workers.run(lambda: 7))
        bad = asyncio.ensure_future(workers.run(lambda: 1 // 0))
        await settle()
        await hands.finish()
        await hands.finish()
        assert await good == 7
        with pytest.raises(ZeroDivisionError):
            await bad
        await workers.idle()

    on_virtual_time(main)


def test_long_reads_of_clients_leave_threads_for_the_sync() -> None:
    async def main(clock: SimClock) -> None:
        hands = HandWorkers()
        reads = LimitedWorkers(hands, 2)
        waiting = [asyncio.ensure_future(reads.run(lambda: None)) for _ in range(5)]
        await settle()
        assert len(hands.jobs) == 2
        for _ in range(5):
            await hands.finish()
        assert all(task.done() for task in waiting)

    on_virtual_time(main)


def test_a_client_that_gives_up_frees_no_thread() -> None:
    async def main(clock: SimClock) -> None:
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

    on_virtual_time(main)

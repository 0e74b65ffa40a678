"""Background tasks end in the order in which they began, so that a simulated run is the same each time."""

from __future__ import annotations

import asyncio

from replset.member.process.machine import BackgroundTasks


def test_tasks_are_cancelled_in_the_order_in_which_they_began() -> None:
    ended: list[int] = []

    async def work(number: int) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(number)

    async def run() -> None:
        tasks = BackgroundTasks(on_error=lambda error: None)
        for number in range(50):
            tasks.start(work(number))
        await asyncio.sleep(0)
        tasks.cancel()
        await tasks.wait()

    asyncio.run(run())
    assert ended == list(range(50))

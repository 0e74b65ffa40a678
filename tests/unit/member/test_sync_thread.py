"""The thread of the WAL's syncs."""

import asyncio
import threading

import pytest

from replset.member.process.machine import RealSyncThread


def test_work_runs_in_order_and_its_end_comes_to_the_loop() -> None:
    ran: list[tuple[str, bool]] = []
    ended: list[tuple[str, str, bool]] = []
    main = threading.current_thread()

    def work(name: str) -> None:
        ran.append((name, threading.current_thread() is main))
        if name == "broken":
            raise OSError("the disk is gone")

    async def run() -> None:
        thread, done = RealSyncThread(), asyncio.Event()

        def on_ended(name: str, error: BaseException | None) -> None:
            ended.append((name, str(error), threading.current_thread() is main))
            if len(ended) == 3:
                done.set()

        for name in ("first", "broken", "last"):
            thread.start(lambda name=name: work(name), lambda error, name=name: on_ended(name, error))  # type: ignore[misc]
        await asyncio.wait_for(done.wait(), 10)
        thread.close()

    asyncio.run(run())
    assert ran == [("first", False), ("broken", False), ("last", False)]
    assert ended == [("first", "None", True), ("broken", "the disk is gone", True), ("last", "None", True)]


def test_its_end_waits_for_the_work_under_way_and_refuses_more(capfd: pytest.CaptureFixture[str]) -> None:
    thread, go, done = RealSyncThread(), threading.Event(), threading.Event()

    def work() -> None:
        go.wait(10)
        done.set()

    async def run() -> None:
        thread.start(work, lambda error: None)

    asyncio.run(run())  # its loop is closed while the work is under way
    threading.Timer(0.05, go.set).start()
    thread.close()
    assert done.is_set()
    with pytest.raises(RuntimeError):
        asyncio.run(run())
    assert capfd.readouterr().err == ""


def test_a_thread_that_was_never_needed_ends_at_once() -> None:
    RealSyncThread().close()

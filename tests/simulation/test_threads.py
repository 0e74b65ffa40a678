"""Jobs that overlap with the loop in virtual time: they stop where the disk works, and hold what they hold."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import apsw
import pytest

from tests.simulation.kit.disk import SimDisk
from tests.simulation.kit.errors import SimulationError
from tests.simulation.kit.loop import Life, SimLoop
from tests.simulation.kit.threads import Job, SimLock, current_job, sleep
from tests.simulation.kit.workers import SimWorkers


def test_a_job_stops_and_goes_on_where_it_was() -> None:
    seen: list[int] = []

    def work() -> str:
        for n in range(3):
            seen.append(n)
            job = current_job()
            assert job is not None
            job.stop(0.5)
        return "done"

    job = Job(work, random.Random(1), 1.0)
    for n in range(3):
        job.go_on()
        assert (seen, job.done, job.waits_s) == (list(range(n + 1)), False, 0.5)
    job.go_on()
    assert (job.done, job.result) == (True, "done")
    assert current_job() is None


def test_a_job_whose_process_is_dead_runs_to_its_end() -> None:
    def work() -> None:
        while current_job() is not None:
            job.stop(1.0)
            if job.abandoned:
                raise ValueError("over")

    job = Job(work, random.Random(1), 1.0)
    job.go_on()
    job.to_the_end()
    assert isinstance(job.error, ValueError)


def test_the_loop_that_finds_a_lock_taken_stands_still_until_its_holder_is_done() -> None:
    lock, order = SimLock(), []

    def work() -> None:
        with lock:
            job.stop(1.0)
            order.append("job")

    job = Job(work, random.Random(1), 1.0)
    job.go_on()
    with lock:
        order.append("loop")
    assert order == ["job", "loop"]


def test_a_writer_of_the_loop_meets_the_lock_of_a_transaction_in_a_thread(tmp_path: Path) -> None:
    disk = SimDisk(str(tmp_path / "disk"))
    path = str(tmp_path / "disk" / "x.db")
    one, other = disk.connect(path), disk.connect(path)
    one.pragma("journal_mode", "wal")
    one.execute("CREATE TABLE t (n)")

    def work() -> None:
        one.execute("BEGIN IMMEDIATE")
        job.stop(1.0)
        one.execute("COMMIT")

    job = Job(work, random.Random(1), 1.0)
    job.go_on()
    with pytest.raises(apsw.BusyError):
        other.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(SimulationError, match="the loop waits"):
        sleep(1000)
    job.to_the_end()
    other.execute("INSERT INTO t VALUES (1)")
    disk.close()


def test_a_sync_covers_what_was_written_before_it_began(tmp_path: Path) -> None:
    disk = SimDisk(str(tmp_path / "disk"))
    path = str(tmp_path / "disk" / "file")
    disk.write_file(path, [b"before"])
    job = Job(lambda: disk.sync_file(path), _AlwaysStops(), 1.0)
    job.go_on()
    assert not job.done
    disk.write_file(path, [b" meanwhile"], append=True)
    job.to_the_end()
    assert bytes(disk.file(path).durable) == b"before"
    assert bytes(disk.file(path).written()) == b"before meanwhile"


class _AlwaysStops(random.Random):
    def random(self) -> float:
        return 0.0

    def choice(self, seq):  # type: ignore[no-untyped-def]
        return seq[-1]


def test_work_overlaps_with_the_loop() -> None:
    loop = SimLoop()
    life = Life("a")
    workers = SimWorkers(loop, life, random.Random(1), 100.0, overlap=1.0)
    turns: list[str] = []

    def work() -> None:
        job = current_job()
        assert job is not None
        turns.append("begins")
        job.stop(1.0)
        turns.append("ends")

    loop.call_later(0.5, turns.append, "loop")
    loop.run_until_complete(workers.run(work))
    loop.close()
    assert turns == ["begins", "loop", "ends"]


def test_a_job_that_the_loop_brought_to_its_end_for_its_lock_is_answered_once() -> None:
    loop, life, lock = SimLoop(), Life("a1"), SimLock()
    workers = SimWorkers(loop, life, random.Random(3), 4.0, overlap=1.0)

    def work() -> str:
        job = current_job()
        assert job is not None
        with lock:
            job.stop(0.5)
        return "done"

    async def main() -> str:
        result = loop.create_task(workers.run(work))
        await asyncio.sleep(0.2)
        assert lock._held
        with lock:
            pass
        return await result

    try:
        assert loop.run_until_complete(main()) == "done"
    finally:
        loop.close()

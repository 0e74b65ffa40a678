"""Jobs that overlap with the loop in virtual time: they stop where the disk works, and hold what they hold."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from tests.simulation.kit.disk import SimDisk
from tests.simulation.kit.environment import Environment
from tests.simulation.kit.errors import SimulationError
from tests.simulation.kit.fault_mix import NO_FAULTS
from tests.simulation.kit.loop import Process, SimLoop
from tests.simulation.kit.runs import Plan, run_seed
from tests.simulation.kit.threads import Job, SimLock, current_job, sleep
from tests.simulation.kit.workers import SimWorkers
from tests.simulation.kit.workload import Mix


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


def test_a_lock_is_waited_for_by_threads_and_never_by_the_loop() -> None:
    lock, order = SimLock(), []

    def work(job: list[Job], name: str) -> None:
        with lock:
            job[0].stop(1.0)
            order.append(name)

    first: list[Job] = []
    second: list[Job] = []
    first.append(Job(lambda: work(first, "first"), random.Random(1), 1.0))
    second.append(Job(lambda: work(second, "second"), random.Random(1), 1.0))
    first[0].go_on()
    second[0].go_on()
    with pytest.raises(SimulationError, match="the loop waits"):
        lock.acquire()
    first[0].go_on()
    second[0].go_on()
    second[0].go_on()
    assert order == ["first", "second"]
    assert second[0].done


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
    process = Process("a")
    workers = SimWorkers(loop, process, random.Random(1), 100.0, overlap=1.0)
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


@pytest.mark.in_turns
def test_no_loop_waits_for_a_checkpoint_on_a_slow_disk() -> None:
    environment = Environment(worker_ms=40.0, checkpoint_bytes=4 << 10, overlap=1.0)
    plan = Plan(environment=environment, faults=replace(NO_FAULTS, slow_disk=1), load=Mix(4, 1), faults_s=8.0)
    outcome = run_seed(1, plan)
    assert outcome.error is None, outcome.report()

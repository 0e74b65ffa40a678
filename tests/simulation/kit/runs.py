"""One seeded run: faults and load, then heal, quiet and judgement."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from tests.simulation.kit.checkers import Checkers
from tests.simulation.kit.cluster import SimCluster, Weather, quiet_logs
from tests.simulation.kit.errors import SimulationError
from tests.simulation.kit.faults import FaultMix, Faults
from tests.simulation.kit.workload import Mix, Workload

FAULTS_S = 40.0
CONVERGES_WITHIN_S = 90.0
SHAPES = ((3, 0), (3, 0), (3, 0), (3, 0), (2, 1), (2, 1), (3, 2), (3, 1), (4, 0), (5, 0))
"""Data-bearing members and arbiters; one after the other."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a run. error: None when every invariant held."""

    seed: int
    error: str | None
    digest: str
    trace: tuple[str, ...]
    facts: str

    def report(self) -> str:
        """What a failing run prints."""
        lines = [*self.trace[-60:], f"seed {self.seed}: {self.error or 'held'}; {self.facts}", f"trace {self.digest}"]
        if self.error is not None:
            lines.append(f"run it again: ./dev sim --seeds 1 --start {self.seed}")
        return "\n".join(lines)


def draw_weather(seed: int) -> Weather:
    """Slow and fast disks, small and large oplogs, short and long histories."""
    rng = random.Random(f"{seed} weather")
    return Weather(
        worker_ms=rng.choice((2.0, 4.0, 10.0, 40.0, 120.0)),
        oplog_bytes=rng.choice((8 << 10, 32 << 10, 1 << 30, 1 << 30)),
        history_s=rng.choice((0, 2, 300)),
        checkpoint_bytes=rng.choice((64 << 10, 256 << 10, 1 << 20)),
        page_bytes=rng.choice((300, 2_000, 4 << 20)),
        chunk_bytes=rng.choice((20_000, 4 << 20)),
        undo_step=rng.choice((1, 3, 200)),
        catch_up_ms=rng.choice((-1, 0, 500, 2_000)),
    )


def run_seed(seed: int, *, faults_s: float = FAULTS_S, mix: FaultMix | None = None) -> Outcome:
    """Run one seed to its end or to the first broken invariant."""
    quiet_logs()
    shape = SHAPES[seed % len(SHAPES)]
    with SimCluster(*shape, seed=seed, weather=draw_weather(seed)) as cluster:
        workload = Workload(
            cluster.loop,
            [machine.host for machine in cluster.machines.values() if not machine.arbiter],
            cluster.random_for("workload"),
            cluster.client,
            Mix(),
        )
        checkers = Checkers(cluster, workload.history)
        error: str | None = None
        try:
            cluster.initiate()
            cluster.run(_faulty(cluster, workload, mix, faults_s))
            cluster.run_until(cluster.converged, CONVERGES_WITHIN_S, "converged")
            checkers.at_the_end()
            if cluster.loop.unhandled:
                raise SimulationError(f"unhandled in a callback or task: {cluster.loop.unhandled[0]}")
        except Exception as broken:  # whatever stops a run is its verdict
            error = f"{type(broken).__name__}: {broken}"
        history = workload.history
        facts = (
            f"{shape[0]}+{shape[1]} members, {cluster.loop.now_ms / 1000:.0f} s, {cluster.loop.steps} steps,"
            f" {len(history.acknowledged())} of {len(history.writes)} writes acknowledged,"
            f" {sum(read.found is not None for read in history.reads)} reads,"
            f" {len(checkers.primaries)} terms, {checkers.rollbacks} undo steps, {checkers.copies} copies"
        )
        for write in history.writes:
            cluster.trace.lines.append(
                f"write {write.number} {write.concern} {write.target} {write.done_ms} {write.outcome}"
            )
        for read in history.reads:
            cluster.trace.lines.append(f"read {read.target} {read.done_ms} {len(read.found or ())} {read.detail}")
        digest = cluster.trace.digest()
        told = tuple(line for line in cluster.trace.lines if not line.startswith(("write", "read")))
        return Outcome(seed, error, digest, told, facts)


async def _faulty(cluster: SimCluster, workload: Workload, mix: FaultMix | None, faults_s: float) -> None:
    """Load and faults together; the load goes on for a while on the healed set."""
    workload.start()
    await Faults(cluster, mix).run(faults_s)
    await asyncio.sleep(3)
    await workload.stop()

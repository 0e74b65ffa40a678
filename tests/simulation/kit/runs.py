"""One seeded run: faults and load, then heal, quiet and judgement."""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TypeVar

from replset.features.archive.archiver import GAP_WAITS_MS
from replset.ids import HostPort
from tests.simulation.kit.checkers import Checkers
from tests.simulation.kit.clients import ClientSite
from tests.simulation.kit.cluster import CONVERGES_WITHIN_S, SimCluster, quiet_logs
from tests.simulation.kit.consumers import ConsumerMix, ConsumerReaders
from tests.simulation.kit.document_faults import self_repairs
from tests.simulation.kit.entries import kind_of_entry
from tests.simulation.kit.environment import SESSION_TIMEOUT_MS, Environment
from tests.simulation.kit.errors import SimulationError
from tests.simulation.kit.fault_mix import NO_FAULTS, FaultMix, draw_changes, draw_mix, draw_rare, with_far_clocks
from tests.simulation.kit.faults import Faults
from tests.simulation.kit.linearizability import violation
from tests.simulation.kit.operations import OperationMix, Operations
from tests.simulation.kit.registers import RegisterMix, Registers
from tests.simulation.kit.rest_checks import fault_at_rest, refusal_fault
from tests.simulation.kit.rest_work import RestWork, has_slow_disks
from tests.simulation.kit.retries import RetryingClients, RetryMix
from tests.simulation.kit.small_sizes import scrub_times, small_sizes
from tests.simulation.kit.streams import StreamMix, StreamReaders
from tests.simulation.kit.time_checks import TRIMMED_IN_TURN_S, TRIMMED_WITHIN_S, violation_of_time
from tests.simulation.kit.transfers import TransferMix, Transfers
from tests.simulation.kit.workload import ALL_CONCERNS, OLD_CONCERNS, Mix, Workload

M = TypeVar("M")
C = TypeVar("C")
FAULTS_S = 40.0
PROOF_TRIES = 3
RECORDED = 200_000
"""Below it are the seeds of named tests and broken rules."""
NAMED = frozenset({510_004, 700_046})
"""These are recorded too."""
SHAPES = ((3, 0), (3, 0), (3, 0), (4, 1), (2, 1), (2, 1), (3, 2), (3, 1), (4, 0), (5, 0))
"""Data-bearing members and arbiters; one after the other."""
WITNESS_SHAPES = {12: (2, 1), 18: (3, 2)}
"""Data-bearing members and witnesses, for these two of twenty seeds."""
ROLLBACKS = "--rollbacks"
CHANGES = "--changes"
CONCERNS = "--concerns"
STALE = "--stale"
CONSUMERS = "--consumers"
STREAMS = "--streams"
RELEASES = "--releases"
ARCHIVE = "--archive"
LATE = "late writes"
MORE_CLIENTS = (CONSUMERS, STREAMS, ARCHIVE, LATE)
ROLLBACK_FAULTS = {
    "isolate_primary": 8,
    "strike_at_change": 6,
    "hit_undo": 4,
    "isolate_someone": 2,
    "kill_primary": 2,
    "lasting_one_way": 1,
    "power_loss": 1,
    "out_of_space": 1,
    "wipe": 1,
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is made of; what happens in it is drawn from the seed. registers, operations, retries, transfers,
    consumers, streams: None runs without.

    options: of members in the configuration. settings: of the configuration. spare: one more machine, for the fault
    that adds a member.
    auto_repair: whether members put right by themselves what a disk changed; they look all the time. None: they look as
    rarely as they do, and do not. Seeds that are recorded were drawn before they did.
    journal_default: where it is False, what a majority acknowledged need not be on disks, and nobody loses power.

    option: of `./dev sim`, for a run that is drawn in another way than most.
    """

    members: int = 3
    arbiters: int = 0
    witnesses: int = 0
    environment: Environment = field(default_factory=Environment)
    faults: FaultMix = field(default_factory=FaultMix)
    load: Mix = field(default_factory=Mix)
    registers: RegisterMix | None = None
    operations: OperationMix | None = None
    retries: RetryMix | None = None
    transfers: TransferMix | None = None
    consumers: ConsumerMix | None = None
    streams: StreamMix | None = None
    options: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    spare: bool = False
    spare_arbiter: bool = False
    journal_default: bool = True
    auto_repair: bool | None = None
    faults_s: float = FAULTS_S
    option: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a run. error: None when every invariant held. counts: what happened in it, for sums."""

    seed: int
    error: str | None
    digest: str
    trace: tuple[str, ...]
    facts: str
    counts: Counter[str]
    option: str = ""

    @property
    def again(self) -> str:
        """The command that runs it again."""
        return " ".join(filter(None, ("./dev sim", self.option, f"--seeds 1 --start {self.seed}")))

    def report(self) -> str:
        """What a failing run prints."""
        lines = [*self.trace[-60:], f"seed {self.seed}: {self.error or 'held'}; {self.facts}", f"trace {self.digest}"]
        if self.error is not None:
            lines.append(f"run it again: {self.again}")
        return "\n".join(lines)


def draw_environment(seed: int) -> Environment:
    """Slow and fast disks, small and large oplogs, short and long histories."""
    rng = random.Random(f"{seed} weather")
    environment = Environment(
        worker_ms=rng.choice((2.0, 4.0, 10.0, 40.0, 120.0)),
        oplog_bytes=rng.choice((8 << 10, 32 << 10, 1 << 30, 1 << 30)),
        history_s=rng.choice((0, 2, 300)),
        checkpoint_bytes=rng.choice((16 << 10, 64 << 10, 256 << 10, 1 << 20)),
        page_bytes=rng.choice((300, 2_000, 4 << 20)),
        chunk_bytes=rng.choice((20_000, 4 << 20)),
        undo_step=rng.choice((1, 2, 3, 200)),
        catch_up_ms=rng.choice((-1, 0, 500, 2_000)),
        skew_ms=rng.choice((200, 200, 3_000, 120_000)),
        group_statements=rng.choice((1, 3, 500)),
        overlap=rng.choice((0.0, 0.0, 0.3, 1.0)),
        keyed=rng.random() < 0.25,
        oplog_lagging_bytes=rng.choice((0, 0, 24 << 10)),
    )
    answer = random.Random(f"{seed} answers").choice(((1, 300), (3, 3_000), (4096, 8 << 20)))
    environment = replace(environment, answer_spans=answer[0], answer_bytes=answer[1])
    if environment.worker_ms >= 40 and environment.oplog_bytes == 8 << 10:
        # A copy over such a disk takes so long that this oplog has moved on at its end, and the member copies for ever.
        return replace(environment, oplog_lagging_bytes=256 << 10)
    return environment


def far_clocks(seed: int, mix: FaultMix) -> FaultMix:
    """See `with_far_clocks`. Seeds that are recorded stay as they were drawn."""
    return mix if seed < RECORDED else with_far_clocks(random.Random(f"{seed} far clocks"), mix)


def draw_plan(seed: int, always: str = "") -> Plan:
    """Everything about a run that its number decides before it begins. always: the option of who takes part anyway."""
    return with_more_clients(seed, draw_set(seed), always)


def with_more_clients(seed: int, plan: Plan, always: str) -> Plan:
    """The plan with readers of named consumers, readers of change streams, an archive, and clients that send writes
    late, each in a quarter of the runs.

    An archive, and most consumers, are promised all entries: small oplogs grow for them, and no disk gets full, since
    its oplog would be trimmed all the same.
    """
    rng = random.Random(f"{seed} client")
    drawn = {name for name in MORE_CLIENTS if rng.random() < 0.25} | {always}
    is_kept, ack_timeout_ms, oplog_bytes = (
        rng.random() < 0.75,
        rng.choice((500, 2_000)),
        rng.choice((8 << 10, 32 << 10)),
    )
    has_archive = ARCHIVE in drawn
    if CONSUMERS in drawn:
        plan = replace(plan, consumers=ConsumerMix(is_kept=is_kept or has_archive, ack_timeout_ms=ack_timeout_ms))
        if plan.consumers is not None and seed >= RECORDED:
            max_refusals = random.Random(f"{seed} refusals").choice((1, 2, 4))
            plan = replace(plan, consumers=replace(plan.consumers, max_refusals=max_refusals))
        if plan.consumers is not None and seed >= RECORDED and seed not in NAMED:
            elsewhere = random.Random(f"{seed} elsewhere").choice((0.0, 0.3, 0.7))
            plan = replace(plan, consumers=replace(plan.consumers, elsewhere=elsewhere))
    if STREAMS in drawn:
        plan = replace(plan, streams=StreamMix())
    if plan.consumers or plan.streams:
        plan = replace(plan, transfers=plan.transfers or TransferMix(2, 1))
    if has_archive or (plan.consumers and plan.consumers.is_kept):
        environment = replace(plan.environment, oplog_bytes=oplog_bytes, oplog_lagging_bytes=1 << 30)
        plan = replace(plan, environment=replace(environment, archives=has_archive))
        plan = replace(plan, faults=replace(plan.faults, disk_full=0, out_of_space=0))
    if LATE in drawn and plan.retries:
        plan = replace(plan, retries=replace(plan.retries, late=0.3))
    return replace(plan, option=always)


def draw_set(seed: int) -> Plan:
    """The members, the faults, and the clients that most runs have."""
    rng = random.Random(f"{seed} plan")
    members, arbiters = SHAPES[seed % len(SHAPES)]
    faults = far_clocks(seed, draw_rare(random.Random(f"{seed} rare"), draw_mix(rng)))
    plan = Plan(
        members,
        arbiters,
        0,
        draw_environment(seed),
        faults,
        Mix(*rng.choice(((4, 2), (2, 1), (2, 1), (1, 1))), pause_ms=rng.choice(((50, 350), (100, 700), (100, 1_500)))),
        RegisterMix(*rng.choice(((3, 1), (3, 2), (2, 2)))),
        retries=RetryMix(random.Random(f"{seed} retries").choice((1, 2))),
    )
    load = random.Random(f"{seed} load")
    concerns = load.choice((OLD_CONCERNS, ALL_CONCERNS, ALL_CONCERNS))
    several, cursors, local = load.choice((0.0, 0.15)), load.choice((0.0, 0.5)), load.choice((0.0, 0.3))
    transfers = TransferMix(*random.Random(f"{seed} transfers").choice(((3, 1), (2, 2), (4, 1, 6))))
    shape = random.Random(f"{seed} shape")
    options = draw_options(shape, members)
    if any("secondaryDelaySecs" in row for row in options.values()):  # it waits for its own wall clock
        plan = replace(plan, environment=replace(plan.environment, skew_ms=200))
    plan = replace(
        plan,
        load=replace(
            plan.load,
            concerns=concerns,
            several=several,
            cursors=cursors,
            local=local,
            confirms=seed >= RECORDED and random.Random(f"{seed} confirms").random() < 0.4,
            crowd=draw_crowd(seed),
        ),
        transfers=transfers if seed % 2 else None,
        options=options,
        spare=shape.random() < 0.3,
        journal_default=shape.random() >= 0.12,
    )
    return with_witnesses(seed, with_auto_repair(seed, plan))


def draw_crowd(seed: int) -> int:
    """How many clients write at one moment; 0: none do."""
    if seed < RECORDED or seed in NAMED:
        return 0
    return random.Random(f"{seed} crowd").choice((0, 3, 6, 12))


def with_auto_repair(seed: int, plan: Plan) -> Plan:
    """The plan with repairs that nobody asks for, or without, as the setting says."""
    if seed < RECORDED or seed in NAMED:
        return plan
    wanted = random.Random(f"{seed} auto repair").random() < 0.6
    settings = plan.settings if wanted else {**plan.settings, "autoRepair": False}
    return replace(plan, auto_repair=wanted, settings=settings)


def with_witnesses(seed: int, plan: Plan) -> Plan:
    """The plan with witnesses in the place of some members, where the seed is one for that."""
    if seed % 20 not in WITNESS_SHAPES:
        return plan
    members, witnesses = WITNESS_SHAPES[seed % 20]
    return replace(plan, members=members, arbiters=0, witnesses=witnesses, options={})


def draw_options(rng: random.Random, members: int) -> dict[str, dict[str, object]]:
    """Now and then the last data-bearing member is hidden, delayed, without a vote, or all of it."""
    kind = rng.choice(("", "", "", "hidden", "delayed", "no vote", "all"))
    if not kind or members < 3:
        return {}
    row: dict[str, object] = {"priority": 0}
    if kind in ("hidden", "delayed", "all"):
        row["hidden"] = True
    if kind in ("delayed", "all"):
        row["secondaryDelaySecs"] = rng.choice((1, 3))
    if kind in ("no vote", "all"):
        row["votes"] = 0
    return {"abcdefg"[members - 1]: row}


def rollback_plan(seed: int) -> Plan:
    """Rollbacks of operations of every kind: the primary is cut off again and again, and fails while it rolls back."""
    members, arbiters = SHAPES[seed % len(SHAPES)]
    rng = random.Random(f"{seed} rollbacks")
    environment = replace(draw_environment(seed), worker_ms=rng.choice((2.0, 10.0, 40.0)))
    faults = replace(NO_FAULTS, **ROLLBACK_FAULTS, pause_s=rng.choice(((1.0, 5.0), (2.0, 8.0))))
    faults = far_clocks(seed, faults)
    load = Mix(1, 1, pause_ms=(300, 1_500))
    operations = OperationMix(rng.choice((2, 3)))
    transfers = TransferMix(2, 1)
    plan = Plan(
        members,
        arbiters,
        environment=environment,
        faults=faults,
        load=load,
        operations=operations,
        retries=RetryMix(1),
        transfers=transfers,
        faults_s=25.0,
        option=ROLLBACKS,
    )
    return with_witnesses(seed, with_auto_repair(seed, plan))


def changes_plan(seed: int) -> Plan:
    """Operators change the set all the time. In half of the runs there is a hot spare, which votes for who is gone; in
    others a witness.
    """
    rng = random.Random(f"{seed} changes")
    members, arbiters = rng.choice(((3, 0), (3, 1), (2, 1), (4, 0), (4, 1)))
    faults = far_clocks(seed, draw_changes(rng))
    options = draw_options(rng, members)
    if members > 2 and not faults.force_reconfig and rng.random() < 0.5:
        options = {"abcdefg"[members - 1]: {"priority": 0, "votes": 0, "spareAfterSecs": rng.choice((1, 3))}}
    witnesses = int(members < 5 and random.Random(f"{seed} witness").random() < 0.4)
    arbiters -= witnesses * arbiters  # it takes the arbiter's place
    environment = replace(draw_environment(seed), worker_ms=rng.choice((2.0, 10.0, 40.0)))
    if any("secondaryDelaySecs" in row for row in options.values()):
        environment = replace(environment, skew_ms=200)
    plan = Plan(
        members,
        arbiters,
        witnesses,
        environment,
        faults,
        Mix(2, 1, pause_ms=(100, 900)),
        RegisterMix(2, 1),
        retries=RetryMix(1),
        options=options,
        spare=rng.random() < 0.5,
        spare_arbiter=arbiters < 1 and rng.random() < 0.6,
        option=CHANGES,
    )
    return with_auto_repair(seed, plan)


def concerns_plan(seed: int) -> Plan:
    """Majority writes ask for all in sync; the set is small or large, few may be too few, and writers are slowed."""
    rng = random.Random(f"{seed} concerns")
    plan = draw_set(seed)
    settings = {
        **plan.settings,
        "inSyncLagSecs": rng.choice((1, 3)),
        "minInSync": rng.choice((1, 2)) if plan.members > 2 else 1,
        "flowControlTargetLagSecs": rng.choice((0, 1, 1)),
    }
    return replace(plan, load=replace(plan.load, in_sync=True), settings=settings, option=CONCERNS)


def stale_plan(seed: int) -> Plan:
    """Members are away again and again while the others write more than their small oplogs keep."""
    rng = random.Random(f"{seed} stale")
    plan = draw_set(seed)
    beside = ("kill", "kill_primary", "power_loss", "isolate_primary", "step_down", "disk_full", "bad_links", "resync")
    faults = replace(NO_FAULTS, make_too_stale=8, **{name: rng.choice((0, 0, 1, 2)) for name in beside})
    faults = replace(faults, strike_at_copy=random.Random(f"{seed} full copies").choice((0, 0, 6)))
    environment = replace(
        plan.environment,
        oplog_bytes=8 << 10,
        oplog_lagging_bytes=0,
        worker_ms=rng.choice((2.0, 10.0)),
        history_s=rng.choice((0, 300)),
    )
    return replace(plan, members=3, arbiters=0, environment=environment, faults=faults, options={}, option=STALE)


def releases_plan(seed: int) -> Plan:
    """Each member that starts is of this tree or of the last release: a set that is upgraded, and goes back, for ever.

    Without an archive, whose sizes are those of the simulator only in this tree.
    """
    plan = draw_set(seed)
    return replace(plan, environment=replace(plan.environment, mixed=True), option=RELEASES)


def run_releases(seed: int) -> Outcome:
    """The run of this seed with members of two releases."""
    return run_seed(seed, releases_plan(seed))


def run_stale(seed: int) -> Outcome:
    """The run with many stale members that this seed draws."""
    return run_seed(seed, stale_plan(seed))


def run_consumers(seed: int) -> Outcome:
    """The run of this seed with named consumers."""
    return run_seed(seed, draw_plan(seed, CONSUMERS))


def run_streams(seed: int) -> Outcome:
    """The run of this seed with readers of change streams."""
    return run_seed(seed, draw_plan(seed, STREAMS))


def run_archive(seed: int) -> Outcome:
    """The run of this seed with an archive."""
    return run_seed(seed, draw_plan(seed, ARCHIVE))


def run_concerns(seed: int) -> Outcome:
    """The run of this seed with other write concerns."""
    return run_seed(seed, concerns_plan(seed))


def run_changes(seed: int) -> Outcome:
    """The run with many changes of the set that this seed draws."""
    return run_seed(seed, changes_plan(seed))


def run_rollbacks(seed: int) -> Outcome:
    """The run with many rollbacks that this seed draws."""
    return run_seed(seed, rollback_plan(seed))


def classic_plan(seed: int) -> Plan:
    """As seeds were drawn before there were clock jumps, slow disks, registers and the like: recorded ones need it."""
    members, arbiters = SHAPES[seed % len(SHAPES)]
    return Plan(members, arbiters, environment=replace(draw_environment(seed), skew_ms=200))


def run_seed(seed: int, plan: Plan | None = None) -> Outcome:
    """Run one seed to its end or to the first broken invariant. Without a plan the seed draws it."""
    quiet_logs()
    plan = plan or draw_plan(seed)
    with (
        without_collector(),
        nullcontext() if plan.environment.mixed else small_sizes(seed, timed=seed >= RECORDED),
        nullcontext() if plan.environment.mixed else scrub_times(plan.auto_repair),
        SimCluster(
            plan.members,
            plan.arbiters,
            seed=seed,
            witnesses=plan.witnesses,
            environment=plan.environment,
            spare=plan.spare,
            spare_arbiter=plan.spare_arbiter,
            options=plan.options,
            journal_default=plan.journal_default,
        ) as cluster,
    ):
        run = Run(cluster, plan)
        error: str | None = None
        try:
            run.to_the_end()
        except Exception as broken:  # whatever stops a run is its verdict
            error = f"{type(broken).__name__}: {broken}"
        return run.outcome(seed, error)


@contextmanager
def without_collector() -> Iterator[None]:
    """A run makes some ten thousand cycles in all; looking for them all the time costs an eighth of it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Run:
    def __init__(self, cluster: SimCluster, plan: Plan) -> None:
        self.cluster = cluster
        self.plan = plan
        cluster.auto_repair = None if plan.environment.mixed else plan.auto_repair
        hosts = [machine.host for machine in cluster.members() if machine.bears_data]

        def site(name: str) -> ClientSite:
            return ClientSite(cluster.loop, hosts, cluster.random_for(name), cluster.client)

        def clients(kind: Callable[[ClientSite, M], C], name: str, mix: M | None) -> C | None:
            return None if mix is None else kind(site(name), mix)

        self.workload = Workload(site("workload"), plan.load)
        self.registers = clients(Registers, "registers", plan.registers)
        self.operations = clients(Operations, "deeds", plan.operations)
        self.retries = clients(RetryingClients, "retries", plan.retries)
        self.transfers = clients(Transfers, "transfers", plan.transfers)
        self.consumers = clients(ConsumerReaders, "consumers", plan.consumers)
        if self.consumers is not None:
            self.consumers.clocks = lambda: {machine.host: machine.clock for machine in cluster.members()}
        self.streams = clients(StreamReaders, "streams", plan.streams)
        operations = self.operations.history if self.operations else None
        self.checkers = Checkers(cluster, self.workload.history, operations, self.transfers)
        if self.retries is not None:
            self.checkers.retried = self.retries.history
        self.workload.on_acknowledged = self.checkers.note_acknowledged
        self.faults = Faults(cluster, plan.faults, hosts)
        self.rest_work = RestWork(cluster, self.faults, self.checkers.fail)
        self.healed_ms = self.well_ms = 0

    def to_the_end(self) -> None:
        """Two phases: faults and load, and is it safe? Then everything whole, and is it well again in time?"""
        cluster = self.cluster
        cluster.initiate(settings=self.plan.settings)
        cluster.run(self.faulty())
        self.healed_ms = cluster.loop.now_ms
        cluster.run_until(cluster.all_counted, CONVERGES_WITHIN_S, "one primary, and everybody counted")
        self.well_ms = cluster.loop.now_ms
        cluster.run(self.last_load())
        cluster.run_until(cluster.converged, CONVERGES_WITHIN_S, "converged")
        self.rest_work.carry_out()
        self._prove_it_takes_writes()
        self._drain_consumers()
        self.checkers.at_the_end()
        self._judge_rest()
        self._judge_repairs()
        self._judge_consumers()
        self._judge_archive()
        self._judge_registers()
        self._judge_time()
        if cluster.loop.unhandled:
            raise SimulationError(f"unhandled in a callback or task: {cluster.loop.unhandled[0]}")

    async def faulty(self) -> None:
        """Load and faults together."""
        self.workload.start()
        for clients in (self.registers, self.operations, self.retries, self.transfers, self.consumers, self.streams):
            if clients is not None:
                clients.start()
        await self.faults.run(self.plan.faults_s)

    async def last_load(self) -> None:
        """The load goes on for a while on the healed set, whose primary's process is killed once and comes back."""
        await asyncio.sleep(1)
        primary = self.cluster.primary()
        if primary is not None:
            self.cluster.kill(primary)
        await asyncio.sleep(2)
        if primary is not None and self.cluster.machines[primary].process is None:
            self.cluster.restart(primary)
        await asyncio.sleep(1)
        await self.workload.stop()
        for clients in (self.registers, self.operations, self.retries, self.transfers, self.consumers, self.streams):
            if clients is not None:
                await clients.stop()

    def _prove_it_takes_writes(self) -> None:
        """On the set that says it is well: each member once, a majority write through the primary.

        One that has a higher priority may take the lead meanwhile, so there is a second try and a third.
        """
        if self.registers is None:
            return
        for name in self.cluster.machines:
            command = {"update": "proofs", "updates": [{"q": {"_id": name}, "u": {"$set": {"is": 1}}, "upsert": True}]}
            concern = {"w": "majority", "wtimeout": 5_000}
            for _ in range(PROOF_TRIES):
                self.cluster.run_until(self.cluster.all_counted, CONVERGES_WITHIN_S, "one primary, everybody counted")
                primary = self.cluster.primary()
                reply = self.cluster.command(primary or name, {**command, "writeConcern": concern}, "app")
                if reply["ok"] == 1 and not reply.get("writeErrors") and not reply.get("writeConcernError"):
                    break
            else:
                raise SimulationError(f"a set that is well does not take a majority write: {reply}")
        # A delayed member is never level while sessions expire, each by an entry.
        within_s = SESSION_TIMEOUT_MS / 1000 + CONVERGES_WITHIN_S
        self.cluster.run_until(self.cluster.converged, within_s, "converged after the last writes")

    def _drain_consumers(self) -> None:
        """Read the rest of what consumers and streams follow."""
        cluster = self.cluster

        def primary() -> HostPort | None:
            name = cluster.primary()
            return None if name is None else cluster.host(name)

        if self.streams is not None:
            cluster.run(self.streams.drain(primary))
        if self.consumers is not None:
            cluster.run(self.consumers.drain(primary))
        if self.streams is not None or self.consumers is not None:
            # Time went by: a delayed member may lack a no-op entry that the primary wrote meanwhile.
            cluster.run_until(cluster.converged, CONVERGES_WITHIN_S, "converged after the last read")

    def _judge_rest(self) -> None:
        """Invariant 24."""
        if has_slow_disks(self.cluster):
            return
        wrong = fault_at_rest(self.cluster) or refusal_fault(self.cluster)
        if wrong:
            self.checkers.fail("24", wrong)

    def _judge_repairs(self) -> None:
        """No member repaired what no disk changed, and none at all where the setting forbids it."""
        cluster = self.cluster
        for machine in cluster.members():
            if self_repairs(machine) and not (cluster.auto_repair and machine.name in cluster.rotted):
                raise SimulationError(f"{machine.name} repaired documents by itself: {self_repairs(machine)}")

    def _judge_consumers(self) -> None:
        """Invariants 18 and 19."""
        primary = self.cluster.primary()
        if primary is not None and self.streams is not None:
            wrong = self.streams.violation(self.checkers.mirrors[primary].entries)
            if wrong:
                self.checkers.fail("19", wrong)
        if self.consumers is None or primary is None:
            return
        wrong = self.consumers.violation(self.checkers.mirrors[primary].entries)
        if wrong:
            self.checkers.fail("18", wrong)

    def _judge_archive(self) -> None:
        """Invariant 20."""
        archive, primary = self.cluster.archive, self.cluster.primary()
        running = None if primary is None else self.cluster.machines[primary].running
        if archive is None or running is None:
            return
        archive.rest()
        point = running.node.commit_point
        try:
            # What no member has any more is left out only after a while.
            within_s = GAP_WAITS_MS / 1000 + 40
            self.cluster.run_until(lambda: archive.reaches(point), within_s, "the archive has all")
        except SimulationError as error:
            self.checkers.fail("20", str(error))
        wrong = archive.violation(list(self.cluster.machines.values()))
        if wrong:
            self.checkers.fail("20", wrong)

    def _judge_registers(self) -> None:
        """Invariant 7, and with it what majority reads promise."""
        primary = self.cluster.primary()
        if self.registers is None or primary is None:
            return
        self.cluster.run(self.registers.read_all(self.cluster.host(primary)))
        found = violation(self.registers.history)
        if found is not None:
            self.checkers.fail("7", str(found))

    def _judge_time(self) -> None:
        """Invariant 22, where a clock was far from right."""
        if not self.faults.done["far_clock"]:
            return
        written = max(machine.running.store.last_applied for machine in self.cluster.members() if machine.running)
        self.cluster.run(asyncio.sleep(self.plan.environment.history_s + TRIMMED_WITHIN_S))
        wrong = violation_of_time(self.cluster, written, self.plan.environment)
        if wrong:  # what was kept for a copy until a moment ago is trimmed in the next turn
            self.cluster.run(asyncio.sleep(TRIMMED_IN_TURN_S))
            wrong = violation_of_time(self.cluster, written, self.plan.environment)
        if wrong:
            self.checkers.fail("22", wrong)

    def outcome(self, seed: int, error: str | None) -> Outcome:
        cluster, history, checkers = self.cluster, self.workload.history, self.checkers
        facts = (
            f"{self.plan.members}+{self.plan.arbiters} members, {self.plan.witnesses} witnesses,"
            f" {cluster.loop.now_ms / 1000:.0f} s,"
            f" {cluster.loop.steps} steps,"
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
        for operation in () if self.registers is None else self.registers.history:
            cluster.trace.lines.append(f"register {operation}")
        digest = cluster.trace.digest()
        shown = tuple(line for line in cluster.trace.lines if not line.startswith(("write", "read", "register")))
        return Outcome(seed, error, digest, shown, facts, self._counts(), self.plan.option)

    def _counts(self) -> Counter[str]:
        history, checkers = self.workload.history, self.checkers
        counts = Counter({f"fault {name}": n for name, n in self.faults.done.items()})
        if self.rest_work.done:
            counts[f"{self.rest_work.done} at rest"] = 1
        counts["simulated seconds"] = self.cluster.loop.now_ms // 1000
        counts["writes acknowledged"] = len(history.acknowledged())
        counts["writes confirmed later"] = self.workload.confirmed
        counts["writes sent at once"] = self.workload.sent_at_once
        counts["terms"] = len(checkers.primaries)
        counts["undo steps"] = checkers.rollbacks
        counts["uncounted copies undone"] = checkers.uncounted_undone
        counts["copies"] = checkers.copies
        counts["resyncs of a member with data"] = self.cluster.resyncs
        up = [machine.running for machine in self.cluster.machines.values()]
        counts["stale members that compared"] = sum(one.initial_sync.progress.compared > 0 for one in up if one)
        reads = [read for read in history.reads if read.found is not None]
        counts["reads"] = len(reads)
        counts["reads by cursor"] = sum(read.asked_ms >= 0 for read in reads)
        counts["local reads"] = sum(read.level == "local" for read in reads)
        if self.transfers is not None:
            counts["transactions"] = sum(move.acknowledged for move in self.transfers.history)
            counts["transactions aborted"] = sum(move.outcome == "fail" for move in self.transfers.history)
            counts["snapshot reads"] = len(self.transfers.reads)
        counts.update({f"elections {reason}": n for reason, n in self.cluster.elections.items()})
        counts["ms until well"] = max(0, self.well_ms - self.healed_ms)
        if self.registers is not None:
            for kind, n in self.registers.answered.items():
                counts[f"register {kind}"] = n
        if self.retries is not None:
            sent = self.retries.history
            counts["retryable writes"] = len(sent)
            counts["retryable writes, sent again"] = sum(write.attempts > 1 for write in sent)
            counts["retryable writes, certain"] = sum(write.is_certain for write in sent)
        if self.streams is not None:
            parts = [part for reader in self.streams.followed for part in reader]
            counts["streams opened"] = self.streams.opened
            counts["events of streams"] = sum(len(part.events) for part in parts)
        if self.consumers is not None:
            for name, followed in self.consumers.histories.items():
                counts[f"{name} consumer, events"] = sum(len(given.events) for given in followed.given)
                counts[f"{name} consumer, acknowledgements"] = sum(ack.answered > 0 for ack in followed.acknowledged)
                counts[f"{name} consumer, lost history"] = len(followed.sought)
            counts["events that were parked"] = self.consumers.parked
            counts["consumer events from any member"] = self.consumers.elsewhere
            counts["events whose time had to come"] = self.consumers.waited
        if self.cluster.archive is not None:
            counts["segments"] = sum(name.endswith(".json") for name in self.cluster.archive.files.content) - 1
        if self.operations is not None:
            counts.update(f"undone {kind_of_entry(entry.body)}" for entry in checkers.undone.values())
            counts.update(
                f"operation {operation.kind}" for operation in self.operations.history if operation.acknowledged
            )
        return counts

"""A set that follows another one: two sets under faults, also between them; a switch-over, or a loss.

Invariant 21: what the follower has of its source is what the source has committed, each entry once and in order, and
after a quiet end all of it. What it acknowledges at the source is committed at the follower. A planned switch-over
loses nothing; after an unplanned one `--missing` lists exactly what is not at the follower.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
import typer

from replset.bson import encode
from replset.cli.follow import change_roles, list_missing
from replset.ejson import to_ejson
from replset.errors import ReplError
from replset.features.follower.followed import FollowProgress
from replset.ids import OPTIME_NULL, OpTime, pack_ts
from replset.oplog_entry import update_entry
from replset.replication import applier
from replset.storage import txn
from tests.simulation.kit.blocking import BlockingSite, blocking_clients, run_blocking
from tests.simulation.kit.cluster import CONVERGES_WITHIN_S, SimCluster, quiet_logs
from tests.simulation.kit.consumers import place_of
from tests.simulation.kit.entries import Entry
from tests.simulation.kit.environment import Environment
from tests.simulation.kit.errors import SimulationError
from tests.simulation.kit.fault_mix import draw_mix
from tests.simulation.kit.replay import Documents, documents_of, first_difference
from tests.simulation.kit.retries import RetryMix
from tests.simulation.kit.runs import Outcome, Plan, Run, draw_environment, without_collector
from tests.simulation.kit.transfers import TransferMix
from tests.simulation.kit.workload import DATABASE, Mix

FOLLOW = "--follow"
FOLLOWS, PLANNED, LOST = "follows", "planned", "lost"
WAYS = (FOLLOWS, PLANNED, LOST)
SHAPES = ((3, 0), (2, 1), (3, 0), (3, 1))
OWN_DATABASES = ("admin", "config", "local", "")
LARGEST_OWN, LARGEST = 7 << 10, 8 << 10
"""Bytes of an entry that a primary writes, and of one that came: small, so that a run can reach them."""
LARGE = "large"
MOST_NOTES = 60
FIRST_OF_OTHERS = 100_000
"""The number of the first write of the other set's clients: none has the number of a write here."""


def follow_plans(seed: int) -> tuple[Plan, Plan]:
    """Plans of the source and of its follower. In half of the runs the source's oplog is so small that the follower
    reads in its archive.
    """
    rng = random.Random(f"{seed} follow")
    plans = []
    for number in range(2):
        members, arbiters = rng.choice(SHAPES)
        archives = number == 0 and rng.random() < 0.5
        oplog_bytes, lagging_bytes = rng.choice(((1 << 30, 0), (8 << 10, 64 << 20)))
        environment = replace(
            draw_environment(2 * seed + number),
            oplog_bytes=8 << 10 if archives else oplog_bytes,
            oplog_lagging_bytes=16 << 10 if archives else lagging_bytes,
            worker_ms=rng.choice((2.0, 4.0, 10.0)),
            skew_ms=200,
            archives=archives,
        )
        faults = replace(
            draw_mix(rng),
            **dict.fromkeys(("disk_full", "out_of_space", "failing_disk", "make_too_stale", "resend_message"), 0),
            **dict.fromkeys(("wipe_two", "lose_wal", "stranger"), 0),
        )
        faults = replace(faults, kill_primary=faults.kill_primary + 2, isolate_primary=faults.isolate_primary + 2)
        plans.append(Plan(members, arbiters, environment=environment, faults=faults, faults_s=15.0, option=FOLLOW))
    load = Mix(2, 1, pause_ms=(100, 500))
    source = replace(plans[0], load=load, transfers=TransferMix(2, 1), retries=RetryMix(1))
    return source, replace(plans[1], load=replace(load, writers=1))


def run_follow(seed: int) -> Outcome:
    """The run of two sets that this seed draws."""
    quiet_logs()
    source, follower = follow_plans(seed)
    with (
        _small_entries(),
        without_collector(),
        _cluster(seed, source) as first,
        _cluster(seed, follower, first) as second,
    ):
        run = Run(first, source)
        error: str | None = None
        try:
            with blocking_clients(first, second) as site:
                sites = _TwoSites(WAYS[seed % len(WAYS)], run, Run(second, follower), site)
                sites.to_the_end()
        except Exception as broken:  # whatever stops a run is its verdict
            error = f"{type(broken).__name__}: {broken}"
        outcome = run.outcome(seed, error)
        outcome.counts.update(sites.counts())
        return outcome


@contextmanager
def _small_entries() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(txn, "MAX_ENTRY_SIZE", LARGEST_OWN)
        patch.setattr(txn, "MAX_INTERNAL_SIZE", LARGEST)
        patch.setattr(applier, "MAX_INTERNAL_SIZE", LARGEST)
        yield


def _cluster(seed: int, plan: Plan, beside: SimCluster | None = None) -> SimCluster:
    environment: Environment = plan.environment
    return SimCluster(plan.members, plan.arbiters, seed=seed, environment=environment, beside=beside)


class _TwoSites:
    def __init__(self, way: str, first: Run, second: Run, site: BlockingSite) -> None:
        """way: how it ends. first: the source. second: its follower."""
        self._way = way
        self._first, self._second = first, second
        self._loop = first.cluster.loop
        self._network = first.cluster.network
        self._rng = first.cluster.random_for("follow")
        self._site = site
        self._is_over = False
        self._cuts = self._failed_tries = self._large = self._notes = 0
        second.workload.begin_with(FIRST_OF_OTHERS)
        site.on_command.append(self._look_at_command)

    def counts(self) -> Mapping[str, int]:
        came = [entry for entry in self._entries(self._second) if "from" in entry.body]
        archive = self._first.cluster.archive
        return {
            "entries of a source": len(came),
            "sites cut off": self._cuts,
            "entries of almost the largest size": self._large,
            "notes of the follower": self._notes,
            "pages from the archive": 0 if archive is None else archive.reads,
            f"sites, {self._way}": 1,
            "sites, history was lost": int(self._has_lost_history()),
            "switch-overs tried again": self._failed_tries,
        }

    def to_the_end(self) -> None:
        first, second = self._first.cluster, self._second.cluster
        if first.archive is not None:
            first.archive.rest()  # where it fails for long the oplog is trimmed all the same, and the follower is lost
        first.initiate()
        second.initiate()
        first.run(self._begin())
        first.run(self._faulty())
        for cluster in (first, second):
            cluster.run_until(cluster.all_counted, CONVERGES_WITHIN_S, "one primary, and everybody counted")
        first.run(self._ending())
        for cluster in (first, second):
            cluster.run_until(cluster.all_counted, CONVERGES_WITHIN_S, "one primary, and everybody counted")
        self._judge()
        first.run_until(lambda: first.converged() and second.converged(), CONVERGES_WITHIN_S, "both converged")
        self._first.checkers.at_the_end()
        self._second.checkers.at_the_end()
        self._judge_documents()
        if self._loop.unhandled:
            raise SimulationError(f"unhandled in a callback or task: {self._loop.unhandled[0]}")

    # --- what happens

    async def _begin(self) -> None:
        """The empty follower begins with the first entry; from then on its source keeps what it lacks."""
        hosts = ",".join(self._hosts(self._first))
        await self._until_answered(self._second, {"replSetFollow": "start", "source": hosts})
        await self._until_answered(self._first, {"replSetConsumers": "follower-rs1"})
        await asyncio.sleep(1)  # and a majority has it

    async def _faulty(self) -> None:
        cuts = asyncio.gather(self._cut_sites(), self._write_large_and_notes())
        change = asyncio.ensure_future(self._switch_over()) if self._way == PLANNED else None
        await asyncio.gather(self._first.faulty(), self._second.faulty())
        self._is_over = True
        await cuts
        self._first.cluster.heal()
        if change is not None:
            await change

    async def _cut_sites(self) -> None:
        """Now and then the sites do not reach each other."""
        while not self._is_over:
            await asyncio.sleep(self._rng.uniform(1, 6))
            self._cut_apart()
            self._cuts += 1
            await asyncio.sleep(self._rng.uniform(0.5, 6))
            self._first.cluster.heal()

    async def _write_large_and_notes(self) -> None:
        """Now and then the source writes an entry of almost the largest size, or the follower many of its own."""
        for number in itertools.count():
            await asyncio.sleep(self._rng.uniform(1, 5))
            if self._is_over:
                return
            with suppress(ReplError):  # faults are on; and an entry may be too large
                if self._rng.random() < 0.5:
                    await self._write_large(number)
                elif self._way != PLANNED:  # there they push out of a small oplog what the other set begins with
                    for _ in range(self._rng.randint(1, MOST_NOTES)):
                        await self._on_primary(self._second, {"appendOplogNote": 1, "data": {"n": number}})
                        self._notes += 1

    async def _write_large(self, number: int) -> None:
        same = {"_id": number, "b": ""}
        smallest = update_entry(f"{DATABASE}.{LARGE}", bytes(16), encode({"_id": number}), encode(same), OPTIME_NULL, 0)
        text = "x" * (LARGEST_OWN - len(smallest) + self._rng.randint(-80, 1))
        change = {"q": {"_id": number}, "u": {"b": text}}
        await self._on_primary(self._first, {"insert": LARGE, "documents": [{"_id": number}]}, DATABASE)
        await self._on_primary(self._first, {"update": LARGE, "updates": [change]}, DATABASE)
        self._large += 1

    def _cut_apart(self) -> None:
        for one in self._first.cluster.machines:
            for other in self._second.cluster.machines:
                self._network.cut(one, other)
                self._network.cut(other, one)
        self._first.cluster.trace.add("network", "sites cut apart")

    async def _switch_over(self) -> None:
        """As the operator does who reads what the command and `--status` say."""
        await asyncio.sleep(self._rng.uniform(3, 12))
        trace, first_hosts, second_hosts = self._first.cluster.trace, *map(self._hosts, (self._first, self._second))
        for _ in range(60):
            try:
                mode = (await self._on_primary(self._second, {"replSetFollowStatus": 1}))["mode"]
                if mode == "following":
                    await run_blocking(change_roles, self._rng.choice(second_hosts))
                else:
                    start = {"replSetFollow": "start", "source": ",".join(second_hosts)}
                    await run_blocking(self._site_call, self._rng.choice(first_hosts), start)
            except ReplError as error:
                self._failed_tries += 1
                failure = error.message
                trace.add("operator", f"is told: {failure}")
                if "follows rs1 already" in failure:
                    return
                if "beyond that here" in failure:
                    break
                if self._first.cluster.archive is not None and self._has_lost_history():
                    return  # trimmed before a primary could archive it: see `_judge`
                await asyncio.sleep(1)
            else:
                return
        raise SimulationError(f"invariant 21 broken: the switch-over comes to no end: {failure}")

    async def _ending(self) -> None:
        """The load goes on for a while; primaries are killed once more, or the source is lost."""
        if self._way == LOST:
            self._cut_apart()
            await asyncio.sleep(self._rng.uniform(0.5, 4))
            await self._until_answered(self._second, {"replSetFollow": "stop"})
        await asyncio.gather(self._first.last_load(), self._second.last_load())
        self._first.cluster.heal()

    async def _until_answered(self, run: Run, command: dict[str, object]) -> None:
        for _ in range(60):
            try:
                await self._on_primary(run, command)
            except ReplError as error:
                failure = error.message
                if "follows" in failure:  # an answer was lost: it follows already, or nobody
                    return
                await asyncio.sleep(1)
            else:
                return
        raise SimulationError(f"invariant 21 broken: {command} comes to no end: {failure}")

    def _hosts(self, run: Run) -> list[str]:
        return [str(machine.host) for machine in run.cluster.members() if machine.bears_data]

    async def _on_primary(self, run: Run, command: dict[str, object], database: str = "admin") -> dict[str, Any]:
        return await run_blocking(self._site_call, self._rng.choice(self._hosts(run)), command, database)

    @staticmethod
    def _site_call(host: str, command: dict[str, object], database: str = "admin") -> dict[str, Any]:
        from replset.cli import calls

        return calls.on_primary(host, command, database=database)

    # --- judging

    def _look_at_command(self, command: Mapping[str, object]) -> None:
        """What a follower acknowledges has to be committed there."""
        name = next(iter(command))
        if name != "replSetConsumerAck":
            return
        consumer, token = str(command[name]), command["token"]
        assert isinstance(token, dict)
        source, follower = (self._first, self._second) if consumer == "follower-rs1" else (self._second, self._first)
        through = place_of(str(token["_data"]))[0]
        wanted = [entry for entry in made_here(self._entries(source)) if entry.optime.ts <= through]
        known = follower.checkers.known
        committed = {source_of(known[at]) for at in follower.checkers.committed if "from" in known[at].body}
        if wanted and wanted[-1].optime not in committed:
            what = f"{wanted[-1].optime} is acknowledged at the source, and not committed at the follower"
            follower.cluster.broken.append(f"invariant 21 broken: {what}")  # this is a thread: the loop ends the run

    def _entries(self, run: Run) -> list[Entry]:
        primary = run.cluster.primary()
        return [] if primary is None else run.checkers.mirrors[primary].entries

    def _judge(self) -> None:
        """Invariant 21."""
        if self._way != PLANNED and self._first.cluster.archive is None and self._has_lost_history():
            self._fail("the source did not keep what its follower has not acknowledged")
        ends = CONVERGES_WITHIN_S if self._way != LOST else 1
        try:
            self._first.cluster.run_until(self._is_decided, ends, "the follower has everything")
        except SimulationError as error:
            if self._way != LOST and not self._has_lost_history():
                self._fail(self._difference() or str(error))
        wrong = self._difference(is_prefix=self._way == LOST or self._has_lost_history())
        if wrong:
            self._fail(wrong)
        if self._way == LOST and not self._has_lost_history():
            self._judge_missing()

    def _fail(self, why: str) -> None:
        up = [machine.running for run in (self._first, self._second) for machine in run.cluster.machines.values()]
        following = [one[FollowProgress] for one in up if one is not None]
        why += f"\nfollowing: {[one for one in following if one.source]}"
        self._first.checkers.fail("21", f"{why}\n{self._second.cluster.summary()}")

    def _has_lost_history(self) -> bool:
        """Whether the sites were apart for longer than the source's oplog reaches, and its archive was not as far."""
        primary = self._first.cluster.primary()
        running = None if primary is None else self._first.cluster.machines[primary].running
        came = [entry for entry in self._entries(self._second) if "from" in entry.body]
        position = source_of(came[-1]) if came else OPTIME_NULL
        return running is not None and not running.history.reaches(position)

    def _is_decided(self) -> bool:
        return bool(self._difference(is_prefix=True)) or not self._difference()

    def _difference(self, *, is_prefix: bool = False) -> str:
        """What one set has of the other one, and what it should have; empty: nothing is wrong."""
        for source, follower in ((self._first, self._second), (self._second, self._first)):
            made = made_here(self._entries(source))
            came = [entry for entry in self._entries(follower) if "from" in entry.body]
            if follower is self._first and self._way != PLANNED:
                made = []
            for number, (one, other) in enumerate(zip(made, came, strict=False)):
                if one.optime != source_of(other):
                    before = "" if not number else f" behind {made[number - 1].optime}"
                    return f"{source_of(other)} came{before}, and not {one.optime}"
                if _content(one) != _content(other):
                    return f"{other.body} came of {one.body}"
            if len(came) > len(made):
                return f"{source_of(came[len(made)])} came, and is not in the source's history"
            if len(came) < len(made) and not is_prefix:
                return f"{made[len(came)].optime} did not come: {made[len(came)].body}"
        return ""

    def _judge_missing(self) -> None:
        """`--missing` lists exactly what did not come."""
        came = sum("from" in entry.body for entry in self._entries(self._second))
        expected = []
        for entry in made_here(self._entries(self._first))[came:]:
            for one in entry.body["o"].get("applyOps", [entry.body]):
                expected.append((str(entry.optime), str(one["op"]), str(one["ns"]), _named(one)))
        second = self._hosts(self._second)[0]
        self._site.said.clear()
        try:
            self._first.cluster.run(run_blocking(list_missing, second, ",".join(self._hosts(self._first))))
            code = 0
        except typer.Exit as end:
            code = end.exit_code
        *lines, last = self._site.said
        listed = [tuple(line.split("  ", 3)) for line in lines]
        if listed != expected or code != bool(expected) or not last.startswith(f"{len(expected)} operations"):
            self._fail(f"--missing lists {listed}, {last!r} with status {code}, and there is {expected}")

    def _judge_documents(self) -> None:
        """Both sets have the same documents."""
        if self._way == LOST or self._has_lost_history():
            return
        mine, theirs = (self._documents(run) for run in (self._first, self._second))
        if mine != theirs:
            self._fail(first_difference(mine, theirs))

    def _documents(self, run: Run) -> Documents:
        primary = run.cluster.primary()
        found = None if primary is None else documents_of(run.cluster.machines[primary].disk)
        assert found is not None, "it runs and nothing is under way"
        return {ns: rows for ns, rows in found.items() if ns.partition(".")[0] not in OWN_DATABASES}


def source_of(entry: Entry) -> OpTime:
    """The optime that it had where it came from."""
    at = entry.body["from"]
    return OpTime(int(at["t"]), pack_ts(at["ts"].time, at["ts"].inc))


def made_here(entries: list[Entry]) -> list[Entry]:
    """The entries about clients' data that came from no other set."""
    return [entry for entry in entries if "from" not in entry.body and _is_clients(entry.body)]


def _is_clients(body: Mapping[str, Any]) -> bool:
    if body["op"] == "n":
        return False
    operations = body["o"].get("applyOps", [body])
    return any(one["ns"].partition(".")[0] not in OWN_DATABASES for one in operations)


def _content(entry: Entry) -> dict[str, Any]:
    return {name: value for name, value in entry.body.items() if name not in ("ts", "t", "from")}


def _named(operation: Mapping[str, Any]) -> str:
    if operation["op"] == "c":
        return to_ejson(operation["o"])[:100]
    about = operation["o2"] if operation["op"] == "u" else operation["o"]
    return to_ejson({"_id": about["_id"]})

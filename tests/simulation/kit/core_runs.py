"""One seeded run of the core alone: faults and writes, then heal and judgement."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from typing import Any

from replset.config import ReplSetConfig
from replset.core.member_state import MemberState
from replset.core.messages import InitiateRequest, Request
from replset.ids import HostPort
from tests.simulation.kit.core_only import CoreMember, World
from tests.simulation.kit.errors import SimulationError
from tests.simulation.kit.runs import Outcome

CORE = "--core"
SHAPES = ((3, 0), (3, 0), (2, 1), (3, 2), (5, 0), (4, 1), (1, 0))
"""Data-bearing members and arbiters."""
FAULTS = (
    *("kill", "power", "primary", "cut", "cut", "one way", "heal", "heal", "loss", "disk", "all"),
    *("wipe", "wipe and cut", "while it saves", "while it saves"),
)
FAULTS_MS = 60_000
RING_LOOK_MS = 250
RING_LOOKS_MAX = 16
"""A ring stays until a member gives up on a source that it does not reach, 1.5 s each; four seconds are too long."""


def run_core(seed: int) -> Outcome:
    """Run one seed to its end or to the first broken invariant."""
    world = World(random.Random(seed))
    error: str | None = None
    try:
        play(world)
    except Exception as broken:  # whatever stops a run is its verdict
        error = f"{type(broken).__name__}: {broken}"
    counts = world.done
    counts["simulated seconds"] = world.now // 1000
    counts["terms"] = len(world.primaries)
    counts["entries committed"] = len(world.committed)
    arbiters = sum(member.arbiter for member in world.members.values())
    facts = (
        f"{len(world.members) - arbiters}+{arbiters} members, {world.now / 1000:.0f} s, {counts['terms']} terms,"
        f" {counts['entries committed']} entries committed, {counts['undo steps']} undo steps,"
        f" {counts['copies']} copies"
    )
    digest = hashlib.sha256("\n".join(world.trace).encode()).hexdigest()
    return Outcome(seed, error, digest, tuple(world.trace), facts, counts, CORE)


def play(world: World) -> None:
    """Two phases: faults and writes, then everything whole and well in time; SimulationError when something breaks."""
    begin(world)
    wait_well(world, 60_000)
    write(world)
    look_for_rings(world, Counter())
    ends = world.now + FAULTS_MS
    while world.now < ends:
        world.run_for(world.rng.randrange(300, 5000))
        one_fault(world)
    world.cuts.clear()
    world.loss = world.slow_disk = 0.0
    for member in world.members.values():
        if not member.alive:
            member.start()
    healed = world.now
    wait_well(world, 90_000)
    world.done["ms until well"] = world.now - healed
    for member in world.members.values():
        if not member.arbiter and member.held.log[: len(world.committed)] != world.committed:
            world.fail("3", f"{member.host} lacks committed entries")


def begin(world: World) -> None:
    """Members of a shape that is drawn, and their configuration."""
    rng = world.rng
    data, arbiters = rng.choice(SHAPES)
    hosts = [HostPort(f"{name}:1") for name in "abcdefg"[: data + arbiters]]
    world.members = {host: CoreMember(world, host, arbiter=n >= data) for n, host in enumerate(hosts)}
    for member in world.members.values():
        member.start()
    settings = {"electionTimeoutMillis": 2000, "heartbeatIntervalMillis": 500, "heartbeatTimeoutSecs": 2}
    settings["catchUpTimeoutMillis"] = rng.choice((-1, 0, 2000))
    config = ReplSetConfig.parse(
        {
            "_id": "rs0",
            "version": 1,
            "members": [{"_id": n, "host": host, "arbiterOnly": n >= data} for n, host in enumerate(hosts)],
            "settings": settings,
        }
    )
    first = world.members[hosts[0]]
    answers: list[Any] = []
    first.next_request = 1
    first.answers[1] = answers.append
    first.feed(Request(1, InitiateRequest(config)))


def write(world: World) -> None:
    """Somebody writes wherever writes are accepted, now and then."""
    for member in world.members.values():
        if member.alive and member.accepts and world.rng.random() < 0.7:
            member.append(member.accepts)
    world.at(world.rng.uniform(5, 200), lambda: write(world))


# --- faults


def one_fault(world: World) -> None:
    rng = world.rng
    alive = [member for member in world.members.values() if member.alive]
    primary = next((member for member in alive if member.accepts), None)
    hosts = list(world.members)
    kind = rng.choice(FAULTS)
    world.done[f"fault {kind}"] += 1
    if kind in ("kill", "power") and alive:
        stop(world, rng.choice(alive), power_loss=kind == "power")
    elif kind == "primary" and primary is not None:
        stop(world, primary, power_loss=rng.random() < 0.5)
    elif kind == "all":
        for member in alive:
            stop(world, member, power_loss=True)
    elif kind in ("wipe", "wipe and cut") and primary is not None and len(alive) > 1 and all_are_named(world):
        stop(world, rng.choice([member for member in alive if member is not primary]), power_loss=False, wipe=True)
        if kind == "wipe and cut":
            world.cuts.clear()
            cut(world, {primary.host})
    elif kind == "cut" and len(hosts) > 1:
        alone = primary is not None and rng.random() < 0.5
        cut(world, {primary.host} if primary and alone else set(rng.sample(hosts, rng.randrange(1, len(hosts)))))
    elif kind == "one way":
        one = rng.choice(hosts)
        out = rng.random() < 0.5
        world.note("net", f"cut {one} {'out' if out else 'in'}")
        world.cuts |= {(one, other) if out else (other, one) for other in hosts if other != one}
    elif kind == "loss":
        world.loss = rng.choice((0.0, 0.05, 0.2))
    elif kind == "disk":
        world.slow_disk = rng.choice((0.0, 0.1, 0.4))
    elif kind == "while it saves":
        world.on_persist.append(lambda member: ambush(world, member))
    elif kind == "heal":
        world.note("net", "healed")
        world.cuts.clear()


def ambush(world: World, member: CoreMember) -> None:
    """The next member that saves something loses its power before that is on disk, or right after."""
    world.on_persist.clear()
    world.at(world.rng.uniform(0, 6), lambda: stop(world, member, power_loss=True) if member.alive else None)


def cut(world: World, inside: set[HostPort]) -> None:
    world.note("net", f"cut {sorted(inside)}")
    world.cuts |= {(a, b) for a in world.members for b in world.members if (a in inside) != (b in inside)}


def stop(world: World, member: CoreMember, *, power_loss: bool, wipe: bool = False) -> None:
    member.die(power_loss=power_loss, wipe=wipe)
    at_once = world.rng.random() < 0.4  # as a supervisor does it
    world.at(world.rng.uniform(10, 300 if at_once else 8000), lambda: None if member.alive else member.start())


def all_are_named(world: World) -> bool:
    """The configuration of a majority names everybody's data, so one disk more may be lost."""
    configs = [member.held.config for member in world.members.values() if member.held.config is not None]
    newest = max(configs, key=lambda config: config.version_and_term[::-1])
    named = {member.host: member.incarnation for member in newest.members if not member.newly_added}
    return 2 * configs.count(newest) > len(world.members) and all(
        named.get(host) == member.held.incarnation for host, member in world.members.items()
    )


# --- judgement


def is_well(world: World) -> bool:
    """One writable primary, everybody in place and named, all logs the same and committed but for the last moments."""
    members = list(world.members.values())
    if not all(member.alive for member in members) or sum(member.node.writable for member in members) != 1:
        return False
    good = (MemberState.PRIMARY, MemberState.SECONDARY, MemberState.ARBITER)
    primary = next(member for member in members if member.node.writable)
    config = primary.node.config
    if config is None or any(m.newly_added or m.incarnation is None for m in config.members):
        return False
    point = primary.node.commit_point
    return point.term == primary.node.term and all(
        member.node.state in good and member.node.config == config and (member.arbiter or point in member.held.log)
        for member in members
    )


def wait_well(world: World, within_ms: int) -> None:
    ends = world.now + within_ms
    while not is_well(world):
        if world.now >= ends:
            states = [
                f"{m.host}: {m.node.state.name} term {m.node.term} log {len(m.held.log)} {m.position().last_applied}"
                f" commit {m.node.commit_point} source {m.node.sync_source} {m.node.quarantine}"
                for m in world.members.values()
            ]
            raise SimulationError(f"at {world.now} ms: not well in time\n" + "\n".join(states))
        world.run_for(100)


def look_for_rings(world: World, seen: Counter[frozenset[HostPort]]) -> None:
    """From now on: a ring of members each of which follows the next one passes, since it brings nobody anything."""
    found = rings(world)
    for ring in [*seen]:
        if ring not in found:
            del seen[ring]
    for ring in found:
        seen[ring] += 1
        if seen[ring] > RING_LOOKS_MAX:
            world.fail("9", f"{sorted(ring)} follow each other")
    world.at(RING_LOOK_MS, lambda: look_for_rings(world, seen))


def rings(world: World) -> set[frozenset[HostPort]]:
    found = set()
    for host in world.members:
        path: list[HostPort] = []
        at: HostPort | None = host
        while at is not None and at not in path:
            path.append(at)
            member = world.members[at]
            at = member.node.sync_source if member.alive else None
        if at is not None:
            found.add(frozenset(path[path.index(at) :]))
    return found

"""The machine of one member, over all starts of its process, and what is seen of the member that runs on it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from replset.core.member_state import MemberState
from replset.core.node import Node
from replset.core.state import NodeState
from replset.ids import OPTIME_NULL, HostPort, MemberId, OpTime
from replset.member.member import RunningMember
from tests.simulation.kit.clock import SimClock
from tests.simulation.kit.disk import SimDisk
from tests.simulation.kit.loop import Process
from tests.simulation.kit.workers import SimWorkers


@dataclass(slots=True)
class Machine:
    """One member's machine, over all starts of its process."""

    name: str
    host: HostPort
    arbiter: bool
    witness: bool
    clock: SimClock
    rng: random.Random
    disk: SimDisk
    process: Process | None = None
    workers: SimWorkers | None = None
    member: RunningMember | None = None
    started: bool = False  # this process's start() came to its end
    dead_disk: SimDisk | None = None  # of the process before
    starts: int = 0
    # At the last death of a process that had come up; a start that did not come to its end adds a loss of power only.
    database_at_death: object = None
    lost_power: bool = False
    durable_at_death: OpTime | None = None
    state_at_death: MemberState | None = None
    slowness: float = 1.0  # how many times as long as ever its disk takes
    may_have_lost_data: bool = False  # a test cut its WAL
    may_not_start: bool = False  # its disk takes nothing more
    is_of_last_release: bool = False  # from its next start on it runs the last release
    is_spare: bool = False  # it has not been added to the set yet

    @property
    def bears_data(self) -> bool:
        return not self.arbiter and not self.witness

    @property
    def running(self) -> RunningMember | None:
        """The member, once it is up."""
        return self.member if self.started else None


@dataclass(frozen=True, slots=True)
class DamagedEntry:
    """An oplog entry that a disk changed. entry: its bytes as they were."""

    name: str
    ts: int
    entry: bytes


@dataclass(slots=True)
class RunningNode:
    """A member that is up, and what was seen of it last. The node's state is read directly: this is looked at after
    every turn of the loop.
    """

    name: str
    machine: Machine
    node: Node
    node_state: NodeState
    state: MemberState | None = None
    term: int = -1
    primary: MemberId | None = None
    point: OpTime = OPTIME_NULL
    changed: bool = False  # it came into another state just now

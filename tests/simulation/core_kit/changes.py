"""What operators do to a set of cores, drawn at random: members come, go and change their role; step-ups, priorities,
settings, forced configurations, and one link that stays broken.

By the seed's number a run loses disks, moves votes, or forces configurations: two of these at once may lose what is
committed, and no rule could help.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from replset.config import Member, ReplSetConfig
from replset.core.member_state import MemberState
from replset.core.messages import MaintenanceRequest, ReconfigRequest, ResyncRequest, StepUpRequest, SyncFromRequest
from replset.errors import ReplError
from replset.ids import HostPort, MemberId, Millis
from tests.simulation.core_kit.machine import CoreMachine, host
from tests.simulation.kit.errors import SimulationError

if TYPE_CHECKING:
    from tests.simulation.core_kit.runs import CoreRun

SHAPES_OF_CHANGES = ((3, 0), (3, 0), (3, 1), (4, 1), (4, 0), (5, 0), (5, 1), (5, 2), (2, 0))
"""Members at first, and how many of them are arbiters."""
ALWAYS = (
    *("step up",) * 3,
    *("priority",) * 3,
    "hide",
    "settings",
    "guest",
    "gone",
    "sync from",
    "sync from",
    "maintenance",
)
OF_DISKS = ("lose disk", "lose disk", "resync")
OF_VOTES = (*("add",) * 3, *("remove",) * 3, "vote", "vote", "resync")
OF_FORCE = ("force",) * 4
PRIORITIES = (0.5, 1.0, 1.0, 2.0, 5.0)
CALM_MS = 7_000
AFTER_TAKEOVERS_MS = 90_000
"""How long a member waits at most that took over and lost its place, several times running."""
"""Longer than the highest rank waits with a takeover, at the longest election timeout that is drawn."""
LINK_BROKEN_MS = 15_000
PRIMARIES_MAX = 3
"""While a link is broken and nothing else is: who reaches nobody new, and a takeover or two."""


class CoreChanges:
    """Draws from a generator of its own."""

    def __init__(self, run: CoreRun) -> None:
        self.run = run
        self.rng = random.Random(f"{run.seed} changes")
        run.loses_disks, run.moves_votes = run.seed % 3 == 0, run.seed % 3 == 1
        mode = OF_DISKS if run.loses_disks else OF_VOTES if run.moves_votes else OF_FORCE
        self._kinds = ALWAYS + mode
        self._has_spares = mode is not OF_FORCE and self.rng.random() < 0.7
        self._given_back: dict[tuple[HostPort, int, MemberId], int] = {}

    @property
    def cluster(self):  # type: ignore[no-untyped-def]
        return self.run.cluster

    def shape(self) -> tuple[int, int]:
        return self.rng.choice(SHAPES_OF_CHANGES)

    def witnesses(self) -> int:
        """How many of the first members are witnesses: of two data members and a third one now and then."""
        return int(self.run.size - self.run.arbiters >= 3 and self.rng.random() < 0.3)

    def extra(self) -> int:
        """Machines that are no members at first."""
        return self.rng.choice((1, 1, 2)) if self.run.size > 3 else 1

    def rows(self, members: tuple[Member, ...]) -> tuple[Member, ...]:
        """The members at first, a spare with them."""
        if not self._has_spares:
            return members
        number = len(members)
        return (*members, Member(MemberId(number), host(number), **self._guest_row()))  # type: ignore[arg-type]

    def _guest_row(self) -> dict[str, object]:
        after = self.rng.choice((1, 1, 2)) if self._has_spares else 0
        return {"votes": 0, "priority": 0.0, "hidden": self.rng.random() < 0.5, "spare_after_secs": after}

    def draw(self) -> None:
        kind = self.rng.choice(self._kinds)
        done = {
            "step up": self._step_up,
            "priority": self._priority,
            "hide": self._hide,
            "settings": self._settings,
            "guest": self._guest,
            "gone": self._gone,
            "sync from": self._sync_from,
            "maintenance": self._maintenance,
            "lose disk": self._lose_disk,
            "resync": self._resync,
            "add": self._add,
            "remove": self._remove,
            "vote": self._vote,
            "force": self._force,
        }[kind]()
        if done:
            self.cluster.done[f"fault {kind}"] += 1
            self.cluster.note("fault", f"{kind} {done if isinstance(done, str) else ''}")

    def end(self) -> None:
        """Nothing more is wrong, or one link alone: then nobody takes over again and again."""
        self.run.is_over = True
        self.run.repair_all()
        self.cluster.until(self.cluster.is_quiet, 60_000)
        self.cluster.run(CALM_MS)
        if self.rng.random() < 0.5:
            self._break_link()
        self._rest()

    def _rest(self) -> None:
        """The member of the highest priority leads a set at rest, and nobody takes over from it."""
        self.cluster.until(self.cluster.is_quiet, 10_000)
        self.cluster.until(self._highest_leads, AFTER_TAKEOVERS_MS)
        before = self._terms()
        self.cluster.run(CALM_MS)
        if self._terms() != before:
            raise SimulationError(f"invariant 12 broken: {self._terms() - before} elections in a set at rest")

    def _highest_leads(self) -> bool:
        leader = self.cluster.primary
        config = None if leader is None else leader.node.config
        mine = None if leader is None or config is None else config.member_at(leader.host)
        if mine is None or config is None:
            return False
        return not any(row.is_electable and row.priority > mine.priority for row in config.members)

    def _break_link(self) -> None:
        """The link between two members breaks for long, whatever their priorities: the primary changes a few times at
        most.
        """
        config = self._config()
        if config is None or len(config.members) < 3:
            return
        one, other = self.rng.sample([row.host for row in config.members], 2)
        self.cluster.done["fault broken link"] += 1
        self.cluster.note("fault", f"{one} and {other} do not hear each other")
        self.cluster.cut = {(one, other), (other, one)}
        before = self._terms()
        self.cluster.run(LINK_BROKEN_MS)
        self.cluster.heal()
        seen = self._terms() - before
        if seen > PRIMARIES_MAX:
            raise SimulationError(f"invariant 12 broken: {seen} primaries while {one} and {other} heard nothing")
        self.cluster.run(CALM_MS)

    def _terms(self) -> int:
        return len(self.cluster.checkers.primaries)

    # --- asking a primary ----------------------------------------------------------------------------------------

    def _config(self) -> ReplSetConfig | None:
        primary = self.cluster.primary
        return None if primary is None else primary.node.config

    def _ask(self, rows: list[Member], *, force_at: CoreMachine | None = None, settings: object = None) -> bool:
        """Ask the primary, or one member by force, for a configuration with these members."""
        machine = self.cluster.primary if force_at is None else force_at
        if machine is None or not machine.alive or machine.node.config is None:
            return False
        number = self.cluster.number_of(machine)
        config = self.cluster.user_config(number, *rows)
        if settings is not None:
            config = replace(config, settings=settings)
        try:
            wanted = ReplSetConfig.parse(config.document())
        except ReplError:
            return False  # nobody electable left, or nobody who votes
        self.cluster.ask(number, ReconfigRequest(wanted, force_at is not None, 2_000))
        return True

    def _others(self, config: ReplSetConfig) -> list[Member]:
        """Members that bear data, but for the primary."""
        primary = self.cluster.primary
        return [row for row in config.members if row.bears_data and (primary is None or row.host != primary.host)]

    # --- changes -------------------------------------------------------------------------------------------------

    def _step_up(self) -> bool:
        number = self.rng.randrange(self.run.size)
        if not self.cluster[number].alive:
            return False
        self.cluster.ask(number, StepUpRequest(self.rng.random() < 0.5))
        return True

    def _priority(self) -> bool:
        config = self._config()
        able = [] if config is None else [row for row in config.members if row.priority]
        if config is None or not able:
            return False
        chosen, priority = self.rng.choice(able), self.rng.choice(PRIORITIES)
        return self._ask([replace(row, priority=priority) if row is chosen else row for row in config.members])

    def _hide(self) -> bool:
        """A member becomes hidden, with priority 0, or is shown again."""
        config = self._config()
        able = [] if config is None else [row for row in self._others(config) if row.votes]
        if config is None or not able:
            return False
        chosen = self.rng.choice(able)
        changed = replace(chosen, hidden=not chosen.hidden, priority=float(chosen.hidden))
        return self._ask([changed if row is chosen else row for row in config.members])

    def _settings(self) -> bool:
        config = self._config()
        if config is None:
            return False
        settings = replace(
            config.settings,
            chaining_allowed=self.rng.random() < 0.5,
            fast_failover=self.rng.random() < 0.5,
            catch_up_takeover_delay_ms=self.rng.choice((-1, 0, 300, 2_000)),
            election_timeout_ms=Millis(self.rng.choice((700, 1_000, 1_200))),
            catch_up_timeout_ms=self.rng.choice((-1, 0, 300)),
        )
        return self._ask(list(config.members), settings=settings)

    def _sync_from(self) -> bool:
        """A member is told whom to follow; now and then that would be a cycle."""
        number = self.rng.randrange(self.run.size)
        if not self.cluster[number].alive:
            return False
        self.cluster.ask(number, SyncFromRequest(host(self.rng.randrange(self.run.size))))
        return True

    def _maintenance(self) -> bool:
        """A secondary serves no reads for a while."""
        number = self.rng.randrange(self.run.size)
        machine, start = self.cluster[number], self.cluster[number].start_number
        if not machine.alive or machine is self.cluster.primary:
            return False
        self.cluster.ask(number, MaintenanceRequest(True))

        def end() -> None:
            if machine.alive and machine.start_number == start:
                self.cluster.ask(number, MaintenanceRequest(False))

        self.cluster.at(self.rng.choice((300, 1_500)), end)
        return True

    def _guest(self) -> bool | str:
        """A member without a vote comes or goes; when votes move, one that bears no data may come as well."""
        config = self._config()
        if config is None:
            return False
        guests = [row for row in config.members if not row.votes]
        if guests and self.rng.random() < 0.5:
            gone = self.rng.choice(guests)
            return self._ask([row for row in config.members if row is not gone]) and f"{gone.host} goes"
        return self._come(config, self._guest_row())

    def _gone(self) -> bool | str:
        """A member is gone for so long that a spare votes for it, maybe for good."""
        machine = self.cluster[self.rng.randrange(self.run.size)]
        if not machine.alive:
            return False
        machine.crash()
        back = self.rng.choice((2_000, 4_000, 8_000, 60_000))
        self.cluster.at(back, lambda: None if machine.alive else machine.boot())
        return str(machine.host)

    def watch_spares(self, machine: CoreMachine, before: ReplSetConfig, after: ReplSetConfig) -> None:
        """Who has its vote back keeps it for as long as its spare waits, as far as one primary sees."""
        if machine.node.state is not MemberState.PRIMARY:
            return
        for row in after.members:
            was = before.member(row.id)
            if was is None or was.spare_for == row.spare_for:
                continue
            voter = row.spare_for if row.spare_for is not None else was.spare_for
            key = (machine.host, machine.node.term, voter)
            if row.spare_for is None:
                back = after.member(voter)
                if back is not None and back.is_voter:  # else an operator took the vote from the spare
                    self._given_back[key] = self.cluster.now
                self.cluster.done["votes given back by spares"] += not row.votes
            else:
                self.cluster.done["votes of spares"] += 1
                held_ms = self.cluster.now - self._given_back.get(key, -(1 << 40))
                if held_ms < row.spare_after_secs * 1000:
                    raise SimulationError(f"invariant 12 broken: member {voter} had its vote for {held_ms} ms only")

    def _add(self) -> bool | str:
        """A machine that is no member becomes one that votes, an arbiter, or a witness."""
        config = self._config()
        if config is None:
            return False
        kind = self.rng.choice(("plain", "plain", "arbiter", "witness", "priority 0"))
        row = {"priority": 0.0, "arbiter_only": kind == "arbiter", "witness": kind == "witness"}
        row = {} if kind == "plain" else row
        return self._come(config, row)

    def _come(self, config: ReplSetConfig, row: dict[str, object]) -> bool | str:
        present = {member.host for member in config.members}
        away = [number for number in range(self.run.size) if host(number) not in present]
        if not away or self._misses_everybody(away, config):
            return False
        number = self.rng.choice(away)
        ids = {member.id for member in config.members}
        member_id = MemberId(number) if MemberId(number) not in ids else MemberId(max(ids) + 1)
        added = Member(member_id, host(number), **row)  # type: ignore[arg-type]
        return self._ask([*config.members, added]) and f"{host(number)} comes, {row}"

    def _misses_everybody(self, away: list[int], config: ReplSetConfig) -> bool:
        """Whether one that is away knows none of the members any more; no order of events can reach it."""
        present = {member.host for member in config.members}
        known = [self.cluster[number].disk.config for number in away]
        return any(one is not None and not present & {row.host for row in one.members} for one in known)

    def _remove(self) -> bool | str:
        config = self._config()
        primary = self.cluster.primary
        if config is None or primary is None or len(config.members) < 3:
            return False
        gone = self.rng.choice([row for row in config.members if row.host != primary.host])
        return self._ask([row for row in config.members if row is not gone]) and f"{gone.host} goes"

    def _vote(self) -> bool:
        config = self._config()
        able = [] if config is None else self._others(config)
        if config is None or not able:
            return False
        chosen = self.rng.choice(able)
        votes = 1 - chosen.votes
        changed = replace(chosen, votes=votes, priority=float(votes), hidden=False)
        return self._ask([changed if row is chosen else row for row in config.members])

    def _force(self) -> bool | str:
        """Another priority, by force, on any member that bears data, whatever it knows of the others."""
        machine = self.cluster[self.rng.randrange(self.run.size)]
        config = machine.node.config
        row = None if config is None else config.member_at(machine.host)
        if config is None or row is None or row.arbiter_only:
            return False
        able = [member for member in config.members if member.priority]
        chosen, priority = self.rng.choice(able), self.rng.choice(PRIORITIES)
        rows = [replace(member, priority=priority) if member is chosen else member for member in config.members]
        return self._ask(rows, force_at=machine) and f"at {machine.host}"

    def _lose_disk(self) -> bool:
        machine = self.cluster[self.rng.randrange(self.run.size)]
        if not self.run.may_lose(machine):
            return False
        self.run.stop(machine, wipe=True)
        return True

    def _resync(self) -> bool:
        number = self.rng.randrange(self.run.size)
        if not self.cluster[number].alive or self.cluster[number] is self.cluster.primary:
            return False
        self.cluster.ask(number, ResyncRequest())
        return True

"""Members that change their kind, for one seed in five: a witness becomes a data member, or the other way.

An administrator takes the member out of the set and adds it again as the other kind, with the disk that it has.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from replset.config import Member, ReplSetConfig
from replset.core.messages import ReconfigRequest
from replset.errors import ReplError
from replset.ids import MemberId

if TYPE_CHECKING:
    from tests.simulation.core_kit.runs import CoreRun

SHAPES = ((3, 0, 1), (3, 0, 1), (3, 0, 1), (5, 0, 2), (5, 1, 1), (4, 0, 1), (2, 0, 1))
"""Members, how many of them are arbiters, and how many are witnesses."""
EVERY = 6


class KindChanges:
    """Draws from a generator of its own, so that the other seeds stay what they are."""

    def __init__(self, run: CoreRun) -> None:
        self.run = run
        self.rng = random.Random(f"{run.seed} kinds")
        self._gone: list[Member] = []

    def shape(self) -> tuple[int, int, int]:
        return self.rng.choice(SHAPES)

    def draw(self) -> None:
        """Take a member out, or bring one back as the other kind."""
        primary = self.run.cluster.primary
        if primary is None or primary.node.config is None or self.rng.randrange(EVERY):
            return
        rows = list(primary.node.config.members)
        self._gone = [row for row in self._gone if all(row.host != other.host for other in rows)]
        if self._gone:
            done = self._add(rows, self.rng.choice(self._gone))
        else:
            able = [row for row in rows if row.host != primary.host and not row.arbiter_only]
            done = bool(able) and self._take_out(rows, self.rng.choice(able))
        if done:
            self._ask(rows)

    def _take_out(self, rows: list[Member], row: Member) -> bool:
        rows.remove(row)
        if len(rows) < 2:
            return False
        self._gone.append(row)
        return True

    def _add(self, rows: list[Member], row: Member) -> bool:
        witness = not row.witness if self.rng.random() < 0.8 else row.witness
        number = MemberId(max(int(other.id) for other in rows) + 1)
        rows.append(replace(row, id=number, witness=witness, priority=0.0 if witness else 1.0, votes=1))
        return True

    def _ask(self, rows: list[Member]) -> None:
        cluster = self.run.cluster
        primary = cluster.primary
        if primary is None:
            return
        try:
            number = cluster.number_of(primary)
            wanted = ReplSetConfig.parse(cluster.user_config(number, *rows).document())
        except ReplError:
            return
        cluster.ask(number, ReconfigRequest(wanted, False, 2_000))
        cluster.done["fault change kind"] += 1
        cluster.note("fault", f"members {[(row.host, 'witness' if row.witness else '') for row in rows]}")

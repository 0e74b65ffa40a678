"""Members that die while they compare their documents with a source's copy: the next attempt copies everything."""

from __future__ import annotations

from replset.core.member_state import MemberState
from replset.replication.initial_sync_progress import InitialSyncProgress
from tests.simulation.kit.machine import RunningNode
from tests.simulation.kit.process_faults import ProcessFaults


class CopyFaults(ProcessFaults):
    """Ends the way by differences, so that the one by a whole copy is gone too."""

    def _strike_at_copy(self) -> None:
        """The next member that has compared something dies, at that moment or a little later."""
        rng = self._rng_copies
        fault, delay_s = rng.choice(("kill", "kill", "power")), rng.choice((0.0, 0.002, 0.02))
        waiting = [True]

        def look(row: RunningNode) -> None:
            member = row.machine.running
            if not waiting[0] or row.state is not MemberState.STARTUP2 or member is None:
                return
            progress = member[InitialSyncProgress]
            if progress.running and progress.compared:
                end()
                self.done["struck while it compared"] += 1
                self._later(delay_s, lambda: self._strike(row.name, fault))

        def end() -> None:
            if waiting[0]:
                waiting[0] = False
                self._cluster.loop.call_soon(self._cluster.on_change.remove, look)

        self._cluster.on_change.append(look)
        self._later(self._at_most(20.0), end)

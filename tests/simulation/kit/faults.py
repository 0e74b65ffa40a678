"""What goes wrong in a seeded run: faults of all kinds, drawn, one after the other; at the end all is put right.

The kinds are in process_faults.py, copy_faults.py, disk_faults.py, document_faults.py, network_faults.py,
administrators.py and membership.py.
"""

from __future__ import annotations

import asyncio

from replset.ids import HostPort
from tests.simulation.kit.cluster import SimCluster
from tests.simulation.kit.copy_faults import CopyFaults
from tests.simulation.kit.document_faults import DocumentFaults
from tests.simulation.kit.errors import SimulationError
from tests.simulation.kit.fault_base import REPAIRED_WITHIN_S
from tests.simulation.kit.fault_mix import FaultMix
from tests.simulation.kit.membership import Membership
from tests.simulation.kit.network import QUIET
from tests.simulation.kit.network_faults import NetworkFaults


class Faults(CopyFaults, DocumentFaults, NetworkFaults, Membership):
    """Runs faults until `stop`, then puts everything right."""

    def __init__(self, cluster: SimCluster, mix: FaultMix | None = None, hosts: list[HostPort] | None = None) -> None:
        """hosts: see FaultBase."""
        super().__init__(cluster, hosts)
        self._mix = mix or FaultMix()
        cluster.on_disk_death.append(self._later_revived)

    async def run(self, seconds: float) -> None:
        """Faults for so long; on return all members run, all links are whole."""
        cluster, mix = self._cluster, self._mix
        kinds = {
            self._kill_one: mix.kill,
            self._power_loss: mix.power_loss,
            self._power_loss_of_all: mix.power_loss_of_all,
            self._isolate_primary: mix.isolate_primary,
            self._isolate_someone: mix.isolate_someone,
            self._one_way: mix.one_way,
            self._kill_primary: mix.kill_primary,
            self._bad_links: mix.bad_links,
            self._pause: mix.pause,
            self._stop_cleanly: mix.stop_cleanly,
            self._step_down: mix.step_down,
            self._disk_full: mix.disk_full,
            self._change_votes: mix.change_votes,
            self._wipe: mix.wipe,
            self._clock_jump: mix.clock_jump,
            self._slow_disk: mix.slow_disk,
            self._out_of_space: mix.out_of_space,
            self._resend_message: mix.resend_message,
            self._lasting_one_way: mix.lasting_one_way,
            self._make_too_stale: mix.make_too_stale,
            self._reconfigure: mix.reconfigure,
            self._remove_and_add: mix.remove_and_add,
            self._strike_at_change: mix.strike_at_change,
            self._hit_undo: mix.hit_undo,
            self._resync: mix.resync,
            self._freeze: mix.freeze,
            self._bridge: mix.bridge,
            self._add_new: mix.add_new,
            self._failing_disk: mix.failing_disk,
            self._damage_entry: mix.damage_entry,
            self._stranger: mix.stranger,
            self._wipe_two: mix.wipe_two,
            self._lose_wal: mix.lose_wal,
            self._lose_pages: mix.lose_pages,
            self._force_reconfig: mix.force_reconfig,
            self._sync_from: mix.sync_from,
            self._step_up: mix.step_up,
            self._gone: mix.gone,
            self._maintenance: mix.maintenance,
            self._change_role: mix.change_role,
            self._switch: mix.switch,
            self._arbiter: mix.arbiter,
            self._damage_document: mix.damage_document,
            self._strike_at_copy: mix.strike_at_copy,
            self._far_clock: mix.far_clock,
        }
        self._ends = cluster.loop.time() + seconds
        while cluster.loop.time() < self._ends:
            await asyncio.sleep(self._rng.uniform(*mix.pause_s))
            fault = self._rng.choices(list(kinds), list(kinds.values()))[0]
            self.done[fault.__name__[1:]] += 1
            fault()
        self._over = True
        ends = cluster.loop.time() + REPAIRED_WITHIN_S
        while self._repairs:
            for repair in (await asyncio.wait(self._repairs, timeout=1.0))[0]:
                repair.result()
            if cluster.damaged_entry is not None:  # beside an arbiter nothing is committed without that member
                await self._copied_anew(cluster.machines[cluster.damaged_entry.name])
            if cluster.loop.time() > ends:
                raise SimulationError(f"not put right within {REPAIRED_WITHIN_S:g} s\n{cluster.summary()}")
        cluster.network.faults = QUIET
        cluster.heal()
        if self.done["maintenance"]:
            await self._end_all_maintenance()
        if cluster.damaged_entry is not None:
            await self._repair_damage(cluster.damaged_entry)
        for name in sorted(cluster.damaged):
            await self._empty(name)
        for machine in cluster.members():
            if machine.may_have_lost_data:
                await self._copy_anew(machine)
        if self.done["damage_document"]:
            await self._damage_and_repair_documents()

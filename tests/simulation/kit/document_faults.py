"""A disk that changes documents: nobody notices until members are compared, and the majority puts it right."""

from __future__ import annotations

import asyncio

import apsw

from replset.bson import encode, encode_key
from replset.errors import ReplError
from tests.simulation.kit.errors import SimulationError
from tests.simulation.kit.fault_base import REPAIRED_WITHIN_S, FaultBase
from tests.simulation.kit.machine import Machine

SCRUBBED = "scrub.kept"
COUNT = 12


class DocumentFaults(FaultBase):
    """Changes documents of one member, behind its back."""

    def _damage_document(self) -> None:
        """Once a run, noted here and done when the other faults are over: a copy that a member makes of a damaged one
        has the damage too, and then the majority may be wrong.
        """

    async def _damage_and_repair_documents(self) -> None:
        """Some documents of a collection change, and one is lost, in one member's file. `replSetCheckDocuments` names
        them, and `replSetRepairDocuments` puts them right; the member may lose its power meanwhile.

        Not in a set with a member whose delay is longer than the history: it cannot be compared (docs/scrub.md).
        """
        cluster = self._cluster
        if cluster.delay_s >= max(1, cluster.environment.history_s):
            return
        ends = cluster.loop.time() + REPAIRED_WITHIN_S
        documents = [{"_id": number, "v": f"right {number}"} for number in range(COUNT)]
        insert = {"insert": "kept", "documents": documents, "writeConcern": {"w": "majority"}}
        while (await self._ask(cluster.primary() or cluster.alive()[0], insert, "scrub") or {}).get("n") != COUNT:
            reply = await self._ask(cluster.primary() or cluster.alive()[0], {"count": "kept"}, "scrub")
            if reply is not None and reply.get("n") == COUNT:
                break  # an earlier one was applied
            await self._pause_until(ends, "the documents are not written")
        bearers = [machine for machine in cluster.members() if not machine.arbiter and not machine.witness]
        machine = self._rng.choice(bearers)
        changed = self._rng.sample(range(COUNT), 3)
        cluster.rotten = machine.name
        while not (cluster.all_counted() and self._change(machine, changed)):
            await self._pause_until(ends, f"{machine.name} does not have the documents, or a copy is made")
        cluster.trace.add(machine.name, f"has other documents {changed}")
        others = [other.name for other in bearers if other is not machine]
        trusted = {"from": cluster.host(others[0])} if len(bearers) == 2 else {}
        if self._rng.random() < 0.5 and len(bearers) > 2:
            self._later(self._rng.uniform(0.0, 0.5), lambda: self._kill(machine.name, power_loss=True))
        repair = {"replSetRepairDocuments": SCRUBBED, **(trusted if others else {})}
        while True:
            asked = await self._ask(machine.name, repair)
            found = await self._ask(cluster.primary() or machine.name, {"replSetCheckDocuments": 1, "ns": SCRUBBED})
            if found and found["ok"] == 1.0 and not found["notCompared"] and not found["differing"]:
                cluster.rotten = ""
                return
            if not others:
                raise SimulationError(f"one copy of the documents cannot differ: {found}")
            await self._pause_until(ends, f"documents of {machine.name} still differ: {asked} {found}")

    def _change(self, machine: Machine, ids: list[int]) -> bool:
        """Change the documents; the last one is gone. False: not now."""
        member = machine.running
        if member is None:
            return False
        committed = min(member.store.commit_point, member.store.last_applied)
        try:
            with member.store.read() as snapshot:
                coll = snapshot.collection(SCRUBBED, committed)
                if coll is None or any(snapshot.get(coll, encode_key(n), committed) is None for n in range(COUNT)):
                    return False
            connection = member.store._connection
            if connection.in_transaction:
                return False
            for number in ids[:-1]:
                doc = encode({"_id": number, "v": f"wrong {number}"})
                connection.execute(coll.sql_update, (doc, encode_key(number)))
            connection.execute(coll.sql_delete, (encode_key(ids[-1]),)).fetchall()
        except (ReplError, apsw.Error):
            return False
        return True

    async def _pause_until(self, ends: float, what: str) -> None:
        if self._cluster.loop.time() > ends:
            raise SimulationError(f"{what}\n{self._cluster.summary()}")
        await asyncio.sleep(0.5)

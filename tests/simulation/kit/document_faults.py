"""A disk that changes documents: nobody notices until members are compared, and the majority puts it right."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import apsw

from replset.bson import encode, encode_key
from replset.errors import ReplError
from replset.replication.rollback_manifest import FOLDER
from tests.simulation.kit.disk_faults import DiskFaults
from tests.simulation.kit.errors import SimulationError
from tests.simulation.kit.fault_base import REPAIRED_WITHIN_S
from tests.simulation.kit.machine import Machine

SCRUBBED, EMPTIED = "scrub.kept", "scrub.gone"
COUNT = 12
NEAR_S = 1
MAJORITY = {"writeConcern": {"w": "majority"}}
KINDS = ("bytes", "type", "type and bytes", "no document")
"""Which part of a row changes: its document, what the row says of it, or both."""


def kept_bytes(machine: Machine) -> dict[str, bytes]:
    """The files of the machine's rollback folder."""
    disk, folder = machine.disk, os.path.join(machine.disk.folder, FOLDER)
    names = disk.list_folder(folder) if disk.exists(folder) else []
    return {name: disk.read_file(os.path.join(folder, name)) for name in names}


def self_repairs(machine: Machine) -> list[str]:
    """The manifests of documents that the machine's member replaced by itself."""
    return [name for name, data in kept_bytes(machine).items() if name.endswith(".json") and b'"auto repair ' in data]


class DocumentFaults(DiskFaults):
    """Changes documents of one member, behind its back."""

    def _damage_document(self) -> None:
        """Once a run, noted here and done when the other faults are over: a copy that a member makes of a damaged one
        has the damage too, and then the majority may be wrong.
        """

    async def _damage_and_repair_documents(self) -> None:
        """Some documents of a collection change in one member's file, one is lost, and one that was deleted is back in
        another collection, which is empty for the set. `replSetCheckDocuments` names them, and
        `replSetRepairDocuments` puts them right; the member may lose its power meanwhile.

        Before that the empty collection may get an index, and a changed document an update that does not fit it: then
        the member keeps out of the set until it is copied anew.

        Not in a set with a member whose delay is longer than the history: it cannot be compared (docs/scrub.md).
        """
        cluster, rng = self._cluster, self._rng_rows
        if cluster.delay_s >= max(1, cluster.environment.history_s):
            return
        ends = cluster.loop.time() + REPAIRED_WITHIN_S
        await self._write(SCRUBBED, COUNT, ends)
        await self._write(EMPTIED, 2, ends)
        while (await self._ask_primary({"count": "gone"}) or {}).get("n") != 0:
            await self._ask_primary({"delete": "gone", "deletes": [{"q": {}, "limit": 0}], **MAJORITY})
            await self._pause_until(ends, "the documents are not deleted")
        bearers = self._bearers()
        machine = self._rng.choice(bearers)
        changed = self._rng.sample(range(COUNT), 3)
        kinds = [rng.choice(KINDS) for _ in changed[:-1]]
        cluster.rotten = machine.name
        cluster.rotted.add(machine.name)
        self._kept: dict[int, bytes] = {}
        while not (cluster.all_counted() and self._are_near(bearers) and self._change(machine, changed, kinds)):
            await self._pause_until(ends, f"a member of {machine.name}'s set does not have the documents")
        cluster.trace.add(machine.name, f"has other documents {changed}: {', '.join(kinds)}, and a deleted one")
        await self._are_named([("scrub.gone", 1), *(("scrub.kept", number) for number in sorted(changed))])
        others = [other.name for other in bearers if other is not machine]
        trusted = {"from": cluster.host(others[0])} if len(bearers) == 2 else {}
        if rng.random() < 0.5:
            index = {"createIndexes": "gone", "indexes": [{"key": {"v": 1}, "name": "v_1"}]}
            await self._ask_primary(index)
        if rng.random() < 0.5 and cluster.primary() != machine.name:
            self._kept.pop(changed[0], None)
            update = {"q": {"_id": changed[0]}, "u": {"$set": {"v": "right again"}}}
            await self._ask_primary({"update": "kept", "updates": [update]})
        if self._rng.random() < 0.5 and len(bearers) > 2:
            self._later(self._rng.uniform(0.0, 0.5), lambda: self._kill(machine.name, power_loss=True))
        if cluster.auto_repair:
            # Twice as long: with the smallest oplogs under load most comparisons are trimmed behind before they end.
            await self._repairs_itself(machine, cluster.loop.time() + 2 * REPAIRED_WITHIN_S)
            ends = cluster.loop.time() + REPAIRED_WITHIN_S
        for ns in (SCRUBBED, EMPTIED):
            await self._repair_documents(machine, ns, trusted if others else {}, bool(others), ends)
        cluster.rotten = ""
        ends = cluster.loop.time() + REPAIRED_WITHIN_S
        while await self._have_remarks(bearers):  # of a comparison before the repair
            for other in bearers:  # as `replset repair` does
                for ns in (SCRUBBED, EMPTIED):
                    await self._ask(other.name, {"replSetRepairDocuments": ns})
            await self._pause_until(ends, "a member takes documents for differing that are alike")

    async def _have_remarks(self, bearers: list[Machine]) -> bool:
        for machine in bearers:
            status = await self._ask(machine.name, {"replSetGetStatus": 1}, "admin") or {}
            if status.get("documentCheck", {}).get("differing"):
                return True
        return False

    async def _repairs_itself(self, machine: Machine, ends: float) -> None:
        """A secondary whose documents a majority has otherwise puts them right, and keeps what was there. Not one that
        leads, or has to be copied anew, or without which there are not enough votes.
        """
        cluster, kept = self._cluster, self._kept
        while True:
            member = machine.running
            config = None if member is None else member.node.config
            voters = [each.host for each in config.voters if each.bears_data] if config else []
            others = len(voters) - (cluster.host(machine.name) in voters)
            if config and (others <= len(voters) // 2 or len(config.data_bearing) < 3):
                return
            if cluster.primary() == machine.name or (member is not None and member.node.quarantine):
                return
            found = await self._ask_primary({"replSetCheckDocuments": 1, "ns": "scrub"}, "admin") or {"ok": 0.0}
            are_alike = found["ok"] == 1.0 and not found["notCompared"] and not found["differing"]
            if are_alike and all(self._is_whole(machine, ns) for ns in (SCRUBBED, EMPTIED)):
                break
            await self._pause_until(ends, f"{machine.name} does not put its documents right by itself: {found}")
        data = b"".join(kept_bytes(machine).values())
        lost = [number for number, doc in kept.items() if doc not in data]
        if lost:
            raise SimulationError(f"{machine.name} kept nothing of {lost} when it put them right")
        cluster.trace.add(machine.name, "has put its documents right by itself")

    def _are_near(self, bearers: list[Machine]) -> bool:
        """Whether no member is so far behind that it may soon copy documents, and perhaps the damaged ones."""
        running = [machine.running for machine in bearers if machine.running]
        oldest, most = max(member.store.oldest for member in running), (self._cluster.delay_s + NEAR_S) * 1000
        return len(running) == len(bearers) and all(
            member.store.last_applied > oldest and (member.node.lag_ms() or 0) <= most for member in running
        )

    async def _ask_primary(self, command: dict[str, Any], database: str = "scrub") -> dict[str, Any] | None:
        cluster = self._cluster
        return await self._ask(cluster.primary() or cluster.alive()[0], command, database)

    def _bearers(self) -> list[Machine]:
        return [machine for machine in self._cluster.members() if machine.bears_data]

    async def _write(self, ns: str, count: int, ends: float) -> None:
        """Insert so many documents; an attempt without an answer may have been applied."""
        name = ns.split(".")[1]
        documents = [{"_id": number, "v": f"right {number}"} for number in range(count)]
        while (await self._ask_primary({"insert": name, "documents": documents, **MAJORITY}) or {}).get("n") != count:
            if (await self._ask_primary({"count": name}) or {}).get("n") == count:
                break
            await self._pause_until(ends, "the documents are not written")

    async def _are_named(self, changed: list[tuple[str, int]]) -> None:
        """A comparison names these documents and no others, if it comes to its end.

        The first one may be as of a time before the delete: a new primary learns how far the others are with their
        heartbeats.
        """
        ends = self._cluster.loop.time() + REPAIRED_WITHIN_S
        while True:
            found = await self._ask_primary({"replSetCheckDocuments": 1, "ns": "scrub"}, "admin") or {"ok": 0.0}
            if found["ok"] != 1.0 or "next" in found or found["notCompared"] or len(self._bearers()) == 1:
                return
            named = sorted((row["ns"], row["_id"]) for row in found["differing"])
            if self._cluster.auto_repair:  # some may be right again already
                changed = [one for one in changed if one in named]
            if named == changed:
                return
            if set(named) - set(changed):
                raise SimulationError(f"{changed} differ, and a comparison names {named}")
            await self._pause_until(ends, f"{changed} differ, and a comparison names {named}")

    async def _repair_documents(
        self, machine: Machine, ns: str, trusted: dict[str, str], has_others: bool, ends: float
    ) -> None:
        """Until no member's documents of the collection differ, and all rows say that they are bytes."""
        cluster = self._cluster
        while True:
            if await self._copied_anew(machine):
                cluster.trace.add(machine.name, "is copied anew, since an entry did not fit its disk")
            asked = await self._ask(machine.name, {"replSetRepairDocuments": ns, **trusted})
            found = await self._ask(cluster.primary() or machine.name, {"replSetCheckDocuments": 1, "ns": ns})
            if found and found["ok"] == 1.0 and not found["notCompared"] and not found["differing"]:
                if self._is_whole(machine, ns):
                    return
            elif not has_others:
                raise SimulationError(f"one copy of the documents cannot differ: {found}")
            await self._pause_until(ends, f"documents of {machine.name} still differ: {asked} {found}")

    def _is_whole(self, machine: Machine, ns: str) -> bool:
        """Whether the member's own rows are as they should be, by SQL."""
        member = machine.running
        coll = None if member is None else member.store.collection(ns)
        if member is None or coll is None:
            return False
        sql = f"SELECT count(*), total(typeof(doc) <> 'blob') FROM {coll.table}"
        try:
            ((count, mistyped),) = member.store._connection.execute(sql).fetchall()
        except apsw.Error:
            return False
        return (count, mistyped) == (COUNT if ns == SCRUBBED else 0, 0)

    def _change(self, machine: Machine, ids: list[int], kinds: list[str]) -> bool:
        """Change the documents; the last one is gone, and a deleted one is back. False: not now."""
        member = machine.running
        if member is None:
            return False
        committed = min(member.store.commit_point, member.store.last_applied)
        try:
            with member.store.read() as snapshot:
                coll, emptied = snapshot.collection(SCRUBBED, committed), snapshot.collection(EMPTIED, committed)
                if coll is None or any(snapshot.get(coll, encode_key(n), committed) is None for n in range(COUNT)):
                    return False
                if emptied is None or snapshot.count(emptied) or snapshot.count(emptied, committed):
                    return False
            connection = member.store._connection
            if connection.in_transaction:
                return False
            for number, kind in zip(ids[:-1], kinds, strict=True):
                doc = encode({"_id": number, "v": f"{'right' if kind == 'type' else 'wrong'} {number}"})
                doc = b"\x07 none" if kind == "no document" else doc
                value = "CAST(? AS TEXT)" if kind.startswith("type") else "?"
                sql = f"UPDATE {coll.table} SET doc = {value} WHERE key = ?"
                connection.execute(sql, (doc, encode_key(number)))
                self._kept[number] = doc
            connection.execute(coll.sql_delete, (encode_key(ids[-1]),)).fetchall()
            connection.execute(emptied.sql_insert, (encode_key(1), encode({"_id": 1, "v": "right 1"})))
            if self._cluster.auto_repair:
                member.store.wal.sync()
        except (ReplError, apsw.Error):
            return False
        return True

    async def _pause_until(self, ends: float, what: str) -> None:
        if self._cluster.loop.time() > ends:
            raise SimulationError(f"{what}\n{self._cluster.summary()}")
        await asyncio.sleep(0.5)

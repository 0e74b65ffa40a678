"""$out on whole members under faults: the collection is always of one run of the pipeline, and no acknowledged one is
lost. Temporary collections go away.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from replset.bson import decode
from tests.simulation.kit.scenarios import ScenarioRun, scenario_run
from tests.simulation.kit.wire import NoAnswerError, SimClient

DATABASE = "app"
DOCUMENTS = 30
MAJORITY = {"w": "majority", "wtimeout": 5_000}


class Runs:
    """A client that runs the pipelines again and again, each with its number, on whoever leads.

    started, acknowledged: the numbers. seen: what majority reads of the copy told, the number of documents by run.
    """

    def __init__(self, scenario: ScenarioRun, client: SimClient) -> None:
        self._cluster = scenario.cluster
        self._client = client
        self.started = 0
        self.acknowledged: list[int] = []
        self.seen: list[dict[int, int]] = []

    async def call(self, name: str, over: str, *stages: dict[str, Any], **more: Any) -> dict[str, Any] | None:
        command = {"aggregate": over, "pipeline": list(stages), "cursor": {}, **more}
        try:
            return await self._client.call(self._cluster.host(name), DATABASE, command, 8.0)
        except NoAnswerError:
            return None

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            name = self._cluster.primary()
            if name is None:
                continue
            self.started += 1
            concern = MAJORITY if self.started % 2 else {"w": 1}
            stage = {"$set": {"g": self.started}}
            reply = await self.call(name, "source", stage, {"$out": "copy"}, writeConcern=concern)
            if reply is not None and reply["ok"] == 1 and "writeConcernError" not in reply and self.started % 2:
                self.acknowledged.append(self.started)
            counts = {"$group": {"_id": "$g", "n": {"$sum": 1}}}
            found = await self.call(name, "copy", counts, readConcern={"level": "majority"}, maxTimeMS=2_000)
            if found is not None and found["ok"] == 1:
                self.seen.append({row["_id"]: row["n"] for row in found["cursor"]["firstBatch"]})


@pytest.mark.in_turns
def test_an_out_is_whole_through_cuts_and_deaths() -> None:
    with scenario_run(seed=3) as scenario:
        cluster = scenario.cluster
        documents = [{"_id": number} for number in range(DOCUMENTS)]
        filled = {"insert": "source", "documents": documents, "writeConcern": MAJORITY}
        assert cluster.command(scenario.primary, filled, DATABASE)["ok"] == 1
        runs = Runs(scenario, cluster.client())
        task = cluster.loop.create_task(runs.run())
        cluster.run_for(1)
        for power_loss in (False, True):
            old = cluster.primary() or ""
            cluster.cut([old])
            cluster.run_for(0.5)
            cluster.run_until(lambda old=old: cluster.primary() not in (None, old), 60, "another one leads")  # type: ignore[misc]
            cluster.run_for(1)
            cluster.heal()
            cluster.run_for(2)
            old = cluster.primary() or ""
            cluster.kill(old, power_loss=power_loss)
            cluster.run_until(lambda old=old: cluster.primary() not in (None, old), 60, "another one leads")  # type: ignore[misc]
            cluster.restart(old)
            cluster.run_for(3)
        task.cancel()
        scenario.heal_all_and_judge()
        cluster.run_for(65)  # temporary collections are looked for once a minute
        cluster.run_until(cluster.converged, 30, "the drops are everywhere")
        assert len(runs.acknowledged) > 5
        assert all(found == {} or list(found.values()) == [DOCUMENTS] for found in runs.seen)
        for machine in cluster.machines.values():
            assert machine.running is not None
            store = machine.running.store
            assert not [coll.ns for coll in store.collections() if coll.name.startswith("tmp.")]
            coll = store.collection(f"{DATABASE}.copy")
            assert coll is not None
            with store.read() as snapshot:
                generations = {decode(raw)["g"] for _, raw in snapshot.scan(coll)}
                assert snapshot.count(coll) == DOCUMENTS
            assert len(generations) == 1
            assert max(generations) >= max(runs.acknowledged)

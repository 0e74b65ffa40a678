"""The history of documents on whole members: what a rollback took away is told by the member that took it."""

from __future__ import annotations

from typing import Any

import pytest

from replset.features.history import document_history
from tests.simulation.kit.scenarios import ScenarioRun, scenario_run
from tests.simulation.kit.workload import COLLECTION, DATABASE


def history(scenario: ScenarioRun, name: str, id_: int) -> list[dict[str, Any]]:
    command = {"replSetDocumentHistory": f"{DATABASE}.{COLLECTION}", "id": id_}
    versions: list[dict[str, Any]] = scenario.cluster.command(name, command)["versions"]
    return versions


def test_each_version_that_a_rollback_took_away_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with scenario_run() as scenario:
        cluster, old = scenario.cluster, scenario.primary
        kept, deleted = (scenario.write(old).id for _ in range(2))
        scenario.cut(old)
        scenario.write(old, "update", kept, "journaled")
        scenario.write(old, "delete", deleted, "w1")
        lost = scenario.write(old, concern="w1").id
        cluster.run_until(lambda: cluster.primary() not in (None, old), 20, "another primary")
        new = cluster.primary() or ""
        scenario.write(new, "update", kept)
        scenario.heal_all_and_judge()
        expected = {kept: ["insert", "update", "update"], deleted: ["insert", "delete"], lost: ["insert"]}
        for id_, operations in expected.items():
            told = history(scenario, old, id_)
            assert [row["operation"] for row in told] == operations
            taken = [row for row in told if "rolledBack" in row]
            assert len(taken) == 1
            assert taken[0]["rolledBack"]["state"] == "finished"
            assert taken[0]["committed"] is False
            stayed = [row for row in told if "rolledBack" not in row]
            assert stayed == history(scenario, new, id_), "the others have the same without it"
            assert all(row["committed"] for row in stayed)
        monkeypatch.setattr(document_history, "LOST_BYTES", 1)
        command = {"replSetDocumentHistory": f"{DATABASE}.{COLLECTION}", "id": lost}
        reply = cluster.command(old, command)
        assert (reply["versions"], len(reply["rollbacksNotRead"])) == ([], 1), "what is not read is named"
        assert history(scenario, old, kept)[-1]["document"] == history(scenario, new, kept)[-1]["document"]

"""Linearizable reads on whole members: a cut-off primary never tells what is no longer so, whatever its clients ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.simulation.kit.scenarios import ScenarioRun, scenario_run
from tests.simulation.kit.wire import NoAnswerError
from tests.simulation.kit.workload import COLLECTION, DATABASE

KEY = 1
READ: dict[str, object] = {
    "find": COLLECTION,
    "filter": {"_id": KEY},
    "readConcern": {"level": "linearizable"},
    "$readPreference": {"mode": "secondaryPreferred"},
}


def read(scenario: ScenarioRun, name: str, **more: object) -> dict[str, Any]:
    return scenario.cluster.command(name, {**READ, **more}, DATABASE, timeout_s=30)  # type: ignore[no-any-return]


def token(reply: Mapping[str, Any]) -> str:
    (document,) = reply["cursor"]["firstBatch"]
    return str(document["token"])


def test_a_primary_answers_with_the_newest_state_and_others_do_not() -> None:
    with scenario_run() as scenario:
        write = scenario.write(scenario.primary, "update", KEY, "w1")
        reply = read(scenario, scenario.primary)
        assert token(reply) == write.token
        member = scenario.cluster.machines[scenario.primary].running
        assert member is not None
        assert member.node.commit_point.ts >= write.ts, "what was told is committed"
        for name in scenario.others:
            assert read(scenario, name)["code"] == 10107
        scenario.heal_all_and_judge()


@pytest.mark.parametrize("direction", ["both", "in", "out"])
def test_a_cut_off_primary_answers_no_stale_linearizable_read(direction: str) -> None:
    """It still takes itself for the primary while another one commits; what it is asked then it must not answer."""
    with scenario_run() as scenario:
        cluster, old = scenario.cluster, scenario.primary
        first = scenario.write(old, "update", KEY)
        scenario.expect(first.acknowledged, "a majority write")
        cluster.cut([old], direction=direction)
        scenario.expect(scenario.is_primary(old), "it has not noticed yet")
        if direction == "both":
            assert read(scenario, old, maxTimeMS=300)["code"] == 50
            assert scenario.is_primary(old)
        ended: list[dict[str, Any]] = []
        asking = cluster.loop.create_task(ask_on(scenario, old, ended))
        cluster.run_until(lambda: cluster.primary() in scenario.others, 30, "another one leads")
        new = cluster.primary()
        assert new is not None
        second = scenario.write(new, "update", KEY)
        scenario.expect(second.acknowledged, "a majority write of the new primary")
        since = len(ended)
        cluster.run_for(5.0)
        asking.cancel()
        assert ended, "the old primary was asked"
        for number, reply in enumerate(ended):
            if reply["ok"] == 1:
                assert number <= since, "a read that began after the new primary's write"
                assert token(reply) == first.token
            else:
                assert reply["code"] in (50, 189, 10107, 11602, 13436), reply
        assert token(read(scenario, new)) == second.token
        scenario.heal_all_and_judge()


async def ask_on(scenario: ScenarioRun, name: str, ended: list[dict[str, Any]]) -> None:
    """Ask `name` again and again, each time with half a second to answer."""
    client = scenario.cluster.client()
    while True:
        try:
            ended.append(await client.call(scenario.cluster.host(name), DATABASE, {**READ, "maxTimeMS": 500}, 5.0))
        except NoAnswerError as error:
            ended.append({"ok": 0, "code": 50, "errmsg": str(error)})

"""Linearizable reads on whole members: a cut-off primary never tells what is no longer so, whatever its clients ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.simulation.kit.scenarios import Stage, staged
from tests.simulation.kit.wire import NoAnswerError
from tests.simulation.kit.workload import COLLECTION, DATABASE

KEY = 1
READ: dict[str, object] = {
    "find": COLLECTION,
    "filter": {"_id": KEY},
    "readConcern": {"level": "linearizable"},
    "$readPreference": {"mode": "secondaryPreferred"},
}


def read(stage: Stage, name: str, **more: object) -> dict[str, Any]:
    return stage.cluster.command(name, {**READ, **more}, DATABASE, timeout_s=30)  # type: ignore[no-any-return]


def token(reply: Mapping[str, Any]) -> str:
    (document,) = reply["cursor"]["firstBatch"]
    return str(document["token"])


def test_a_primary_answers_with_the_newest_state_and_others_do_not() -> None:
    with staged() as stage:
        write = stage.write(stage.primary, "update", KEY, "w1")
        reply = read(stage, stage.primary)
        assert token(reply) == write.token
        member = stage.cluster.machines[stage.primary].running
        assert member is not None
        assert member.node.commit_point.ts >= write.ts, "what was told is committed"
        for name in stage.others:
            assert read(stage, name)["code"] == 10107
        stage.heal_all_and_judge()


@pytest.mark.parametrize("direction", ["both", "in", "out"])
def test_a_cut_off_primary_tells_nothing_that_is_no_longer_so(direction: str) -> None:
    """It still takes itself for the primary while another one commits; what it is asked then it must not answer."""
    with staged() as stage:
        cluster, old = stage.cluster, stage.primary
        first = stage.write(old, "update", KEY)
        stage.expect(first.acknowledged, "a majority write")
        cluster.cut([old], direction=direction)
        stage.expect(stage.is_primary(old), "it has not noticed yet")
        if direction == "both":
            assert read(stage, old, maxTimeMS=300)["code"] == 50
            assert stage.is_primary(old)
        ended: list[dict[str, Any]] = []
        asking = cluster.loop.create_task(ask_on(stage, old, ended))
        cluster.run_until(lambda: cluster.primary() in stage.others, 30, "another one leads")
        new = cluster.primary()
        assert new is not None
        second = stage.write(new, "update", KEY)
        stage.expect(second.acknowledged, "a majority write of the new primary")
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
        assert token(read(stage, new)) == second.token
        stage.heal_all_and_judge()


async def ask_on(stage: Stage, name: str, ended: list[dict[str, Any]]) -> None:
    """Ask `name` again and again, each time with half a second to answer."""
    client = stage.cluster.client()
    while True:
        try:
            ended.append(await client.call(stage.cluster.host(name), DATABASE, {**READ, "maxTimeMS": 500}, 5.0))
        except NoAnswerError as error:
            ended.append({"ok": 0, "code": 50, "errmsg": str(error)})

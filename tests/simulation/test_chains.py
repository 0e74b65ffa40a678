"""Chains of sync sources on whole members: what travels up and down them, and that no ring of them lasts."""

from __future__ import annotations

import pytest

from tests.simulation.kit.scenarios import ScenarioRun, scenario_run


def follow(scenario: ScenarioRun, name: str, source: str) -> None:
    cluster = scenario.cluster
    reply = cluster.command(name, {"replSetSyncFrom": cluster.host(source)})
    assert reply["ok"] == 1, reply
    cluster.run_until(lambda: source_of(scenario, name) == source, 5, f"{name} to follow {source}")


def source_of(scenario: ScenarioRun, name: str) -> str:
    member = scenario.cluster.machines[name].running
    host = None if member is None else member.node.sync_source
    return "" if host is None else scenario.cluster.name_of(host)


def test_a_majority_counts_each_member_of_a_chain_for_what_it_has() -> None:
    """Two of five have a write; the third follows the second and takes nothing. Nobody may count it."""
    with scenario_run(members=5) as scenario:
        cluster, a = scenario.cluster, scenario.primary
        b, c, d, e = scenario.others
        cluster.run_for(3)  # everybody knows that the others have everything, and follow the primary
        follow(scenario, c, b)
        assert scenario.write(a).acknowledged
        cluster.run_until(cluster.converged, 10, "all the same")
        cluster.cut([d, e])
        stop = {"configureFailPoint": "stopReplProducer", "mode": "alwaysOn"}
        assert cluster.command(c, stop)["ok"] == 1
        scenario.write(a, concern="w1")  # the page that the fail point holds back
        assert not scenario.write(a).acknowledged
        assert cluster.command(c, {**stop, "mode": "off"})["ok"] == 1
        began = cluster.loop.now_ms
        assert scenario.write(a).acknowledged
        assert cluster.loop.now_ms - began < 1_000
        assert source_of(scenario, c) == b
        scenario.heal_all_and_judge()


def test_a_chain_acknowledges_as_fast_as_a_fetch_goes() -> None:
    """Heartbeats bring positions too; a write that waited for them would take half an interval of theirs."""
    with scenario_run(heartbeatIntervalMillis=2_000) as scenario:
        cluster, a = scenario.cluster, scenario.primary
        b, c = scenario.others
        cluster.run_for(3)  # everybody knows that the others have everything, and follow the primary
        follow(scenario, c, b)
        began = cluster.loop.now_ms
        for number in range(20):
            insert = {"insert": "orders", "documents": [{"_id": number}], "writeConcern": {"w": 3}}
            assert "writeConcernError" not in cluster.command(a, insert, "shop")
        assert cluster.loop.now_ms - began < 20 * 100
        assert source_of(scenario, c) == b
        scenario.heal_all_and_judge()


@pytest.mark.parametrize("seed", range(4))
def test_members_that_are_told_to_follow_each_other_do_not_for_long(seed: int) -> None:
    with scenario_run(members=4, seed=seed) as scenario:
        cluster, a = scenario.cluster, scenario.primary
        cluster.run_for(3)  # everybody knows that the others have everything, and follow the primary
        told = {name: {"replSetSyncFrom": cluster.host(other)} for name, other in ring_of(scenario.others)}
        clients = [cluster.client() for _ in told]
        tasks = [
            cluster.loop.create_task(client.call(cluster.host(name), "admin", command, 5.0))
            for client, (name, command) in zip(clients, told.items(), strict=True)
        ]
        cluster.run_until(lambda: all(task.done() for task in tasks), 6, "the answers")
        for _ in range(5):
            assert scenario.write(a).acknowledged
        cluster.run_until(lambda: not scenario.ring(), 10, "the ring to end")
        cluster.run_until(cluster.converged, 10, "all the same")
        scenario.heal_all_and_judge()


def ring_of(names: tuple[str, ...]) -> list[tuple[str, str]]:
    return list(zip(names, (*names[1:], names[0]), strict=True))

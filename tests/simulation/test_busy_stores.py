"""A store that another process writes: its member waits, hears the others meanwhile, and goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import apsw

from replset.core.member_state import MemberState
from tests.simulation.kit.cluster import SimCluster
from tests.simulation.kit.scenarios import ScenarioRun, scenario_run


@contextmanager
def locked(cluster: SimCluster, *names: str) -> Iterator[None]:
    """Somebody holds SQLite's write lock on these members' stores."""
    connections: list[apsw.Connection] = []
    for name in names:
        machine = cluster.machines[name]
        assert machine.running is not None
        connections.append(machine.disk.connect(machine.running.store.path))
        connections[-1].execute("BEGIN IMMEDIATE")
    yield
    for connection in connections:
        connection.execute("ROLLBACK")
        connection.close()


def state_of(scenario: ScenarioRun, name: str) -> MemberState:
    running = scenario.cluster.machines[name].running
    assert running is not None
    return running.node.state


def test_secondaries_with_busy_stores_catch_up() -> None:
    with scenario_run(seed=1) as scenario:
        with locked(scenario.cluster, *scenario.others):
            scenario.write(scenario.primary, concern="w1")
            scenario.cluster.run_for(5)
            scenario.cluster.check_unbroken()
        scenario.write(scenario.primary)
        scenario.heal_all_and_judge()


def test_a_member_with_a_busy_store_wins_and_leads_once_it_can_write() -> None:
    with scenario_run(seed=2) as scenario:
        cluster, other = scenario.cluster, scenario.others[0]
        with locked(cluster, *scenario.others):
            cluster.kill(scenario.primary)
            cluster.run_until(lambda: MemberState.PRIMARY in [state_of(scenario, name) for name in scenario.others], 60)
            cluster.run_for(3)
            cluster.check_unbroken()
        cluster.run_until(lambda: cluster.primary() is not None, 60)
        scenario.write(cluster.primary() or other)
        cluster.restart(scenario.primary)
        scenario.heal_all_and_judge()


def test_a_rollback_in_a_busy_store_is_done_once_it_can_be() -> None:
    with scenario_run(seed=3) as scenario:
        cluster, old = scenario.cluster, scenario.primary
        scenario.cut(old)
        scenario.write(old, concern="w1")
        cluster.run_until(lambda: cluster.primary() in scenario.others, 60)
        with locked(cluster, old):
            scenario.heal()
            cluster.run_until(lambda: state_of(scenario, old) is MemberState.ROLLBACK, 60)
            cluster.run_for(5)
            assert state_of(scenario, old) is MemberState.ROLLBACK
            cluster.check_unbroken()
        scenario.heal_all_and_judge()

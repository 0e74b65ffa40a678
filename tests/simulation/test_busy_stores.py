"""A store that another process writes: its member waits, hears the others meanwhile, and goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import apsw

from replset.core.member_state import MemberState
from tests.simulation.kit.cluster import SimCluster
from tests.simulation.kit.scenarios import Stage, staged


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


def state_of(stage: Stage, name: str) -> MemberState:
    running = stage.cluster.machines[name].running
    assert running is not None
    return running.node.state


def test_secondaries_with_busy_stores_catch_up() -> None:
    with staged(seed=1) as stage:
        with locked(stage.cluster, *stage.others):
            stage.write(stage.primary, concern="w1")
            stage.cluster.run_for(5)
            stage.cluster.check_unbroken()
        stage.write(stage.primary)
        stage.heal_all_and_judge()


def test_a_member_with_a_busy_store_wins_and_leads_once_it_can_write() -> None:
    with staged(seed=2) as stage:
        cluster, other = stage.cluster, stage.others[0]
        with locked(cluster, *stage.others):
            cluster.kill(stage.primary)
            cluster.run_until(lambda: MemberState.PRIMARY in [state_of(stage, name) for name in stage.others], 60)
            cluster.run_for(3)
            cluster.check_unbroken()
        cluster.run_until(lambda: cluster.primary() is not None, 60)
        stage.write(cluster.primary() or other)
        cluster.restart(stage.primary)
        stage.heal_all_and_judge()


def test_a_rollback_in_a_busy_store_is_done_once_it_can_be() -> None:
    with staged(seed=3) as stage:
        cluster, old = stage.cluster, stage.primary
        stage.cut(old)
        stage.write(old, concern="w1")
        cluster.run_until(lambda: cluster.primary() in stage.others, 60)
        with locked(cluster, old):
            stage.heal()
            cluster.run_until(lambda: state_of(stage, old) is MemberState.ROLLBACK, 60)
            cluster.run_for(5)
            assert state_of(stage, old) is MemberState.ROLLBACK
            cluster.check_unbroken()
        stage.heal_all_and_judge()

"""The dbpath of a member is copied to another machine, and a member starts there, at an address of its own."""

from __future__ import annotations

import pytest

from replset.core.member_state import MemberState
from tests.simulation.kit.cluster import SPARE, SimCluster

DOCS = {"insert": "docs", "writeConcern": {"w": "majority"}}


@pytest.mark.parametrize("power_loss", [False, True])
def test_a_copy_becomes_a_member_of_its_own(power_loss: bool) -> None:
    """Of a running member's files, or of what a loss of power leaves of them. Its source is counted as before."""
    with SimCluster(3, seed=1, spare=True) as cluster:
        cluster.initiate()
        leader = cluster.primary()
        assert leader is not None
        for number in range(20):
            assert cluster.command(leader, {**DOCS, "documents": [{"_id": number}]}, "app")["ok"] == 1.0
        source = next(name for name in "abc" if name != leader)
        cluster.copy_dbpath(source, SPARE, power_loss=power_loss)
        cluster.start(SPARE)
        machine = cluster.machines[SPARE]
        cluster.run_until(lambda: machine.running is not None, 10)
        copy = machine.running
        assert copy is not None
        assert copy.node.state is MemberState.REMOVED
        assert "other place" in [line.event for line in copy._member_file.journal(5)]
        reply = cluster.command(leader, {"replSetAddMember": {"host": machine.host}}, timeout_s=60)
        assert reply["ok"] == 1.0
        machine.is_spare = False
        cluster.run_until(cluster.converged, 60)
        config = cluster.config()
        assert config is not None
        assert len({member.incarnation for member in config.members}) == 4
        cluster.kill(SPARE)
        cluster.restart(SPARE)
        cluster.run_until(cluster.converged, 60)
        assert cluster.config() == config, "at its own address it is the same member after a restart"

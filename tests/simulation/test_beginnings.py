"""The first seconds of a set, and a data file that is gone while the member file is not: with power cuts."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

import pytest

from tests.simulation.kit.cluster import SETTINGS, SimCluster, quiet_logs
from tests.simulation.kit.environment import Environment
from tests.simulation.kit.scenarios import scenario_run
from tests.simulation.kit.wire import NoAnswerError

SLOW_DISKS = Environment(worker_ms=25.0)


@pytest.mark.in_turns
@pytest.mark.parametrize("seed", range(40))
def test_a_power_cut_while_a_set_begins_leaves_one_that_can_begin(seed: int) -> None:
    """A set of one: what its member file promises, its data file holds, or nobody else could bring it back."""
    quiet_logs()
    with SimCluster(1, seed=seed, environment=SLOW_DISKS) as cluster:
        machine = cluster.machines["a"]
        cluster.start("a")
        cluster.run_until(lambda: machine.started, 10, "started")
        config = {
            "_id": "rs0",
            "version": 1,
            "members": [{"_id": 0, "host": str(machine.host)}],
            "settings": dict(SETTINGS),
        }

        async def initiate(timeout_s: float) -> None:
            client = cluster.client()
            with suppress(NoAnswerError):
                await client.call(machine.host, "admin", {"replSetInitiate": config}, timeout_s)
            client.close()

        async def begin() -> None:
            asking = asyncio.ensure_future(initiate(2.0))
            await asyncio.sleep(0.006 * (seed + 1))
            cluster.kill("a", power_loss=True)
            await asking

        cluster.run(begin())
        cluster.start("a")
        cluster.run_until(lambda: machine.started, 10, "started again")
        assert machine.running is not None
        if machine.running.node.config is None:
            cluster.run(initiate(5.0))
        cluster.run_until(lambda: cluster.primary() == "a", 30, "a leads")
        cluster.check_unbroken()


@pytest.mark.in_turns
@pytest.mark.parametrize("seed", range(12))
def test_expected_members_make_one_set_whoever_loses_power_meanwhile(seed: int) -> None:
    """They come up one after the other, and two of them lose power around the moment when the set is made."""
    quiet_logs()
    expected = ("a:27017", "b:27017", "c:27017")
    with SimCluster(3, seed=seed, environment=SLOW_DISKS, expect_members=expected) as cluster:
        for name in "cab":
            cluster.start(name)
            cluster.run(asyncio.sleep(0.4))
        assert cluster.config() is None or len(cluster.config().members) == 3
        cluster.run(asyncio.sleep(0.1 * seed))
        for name in ("a", "abc"[seed % 3]):
            if cluster.machines[name].process is not None:
                cluster.kill(name, power_loss=True)
            cluster.run(asyncio.sleep(0.03 * seed))
            cluster.start(name)
        cluster.run_until(cluster.all_counted, 60, "one set of all three")
        config = cluster.config()
        assert config is not None
        assert [member.host for member in config.members] == list(expected)
        cluster.kill("a")
        cluster.start("a")
        cluster.run_until(cluster.all_counted, 60, "a is back")
        now = cluster.config()
        assert now is not None
        assert now.settings.replica_set_id == config.settings.replica_set_id, "starting again makes no other set"
        cluster.check_unbroken()


def test_a_member_says_for_whom_the_expected_set_waits() -> None:
    quiet_logs()
    with SimCluster(3, seed=1, expect_members=("a:27017", "b:27017", "c:27017")) as cluster:
        for name in "ab":
            cluster.start(name)
        cluster.run(asyncio.sleep(12))  # the question to a machine that is off ends after ten seconds
        for name, reason in {"a": "cannot reach c:27017", "b": "a:27017 makes the set once all of them answer"}.items():
            status = cluster.command(name, {"replSetGetStatus": 1})
            assert status["code"] == 94
            assert f"--expect-members: {reason}" in status["errmsg"]
        cluster.start("c")
        cluster.run_until(cluster.all_counted, 60, "one set of all three")


def test_one_that_is_not_expected_waits_until_it_is_added() -> None:
    """As the fourth pod of a StatefulSet, which has the environment of the first three."""
    quiet_logs()
    with SimCluster(1, seed=1, expect_members=("a:27017",), spare=True) as cluster:
        cluster.start("n")
        cluster.run(asyncio.sleep(3))
        status = cluster.command("n", {"replSetGetStatus": 1})
        assert "n:27017 is none of them, and waits until a set adds it" in status["errmsg"]
        alone = {"_id": "rs0", "version": 1, "members": [{"_id": 0, "host": "n:27017"}]}
        assert cluster.command("n", {"replSetInitiate": alone})["code"] == 103
        cluster.start("a")
        cluster.run_until(lambda: cluster.primary() == "a", 30, "a leads")
        added = cluster.command("a", {"replSetAddMember": {"host": "n:27017"}}, timeout_s=30)
        assert added["ok"] == 1, added
        cluster.run_until(lambda: cluster.all_counted() and len(cluster.config().members) == 2, 60, "n has its vote")


def test_wiped_disks_of_all_expected_members_make_no_set_beside_one_that_is_not_listed() -> None:
    """The member that was added later has the data, and finds them."""
    quiet_logs()
    with SimCluster(1, seed=1, expect_members=("a:27017",), spare=True) as cluster:
        for name in "an":
            cluster.start(name)
        cluster.run_until(lambda: cluster.primary() == "a", 30, "a leads")
        added = cluster.command("a", {"replSetAddMember": {"host": "n:27017"}}, timeout_s=30)
        assert added["ok"] == 1, added
        cluster.run_until(lambda: cluster.all_counted() and len(cluster.config().members) == 2, 60, "n has its vote")
        before = cluster.config()
        cluster.kill("a", wipe=True)
        cluster.run(asyncio.sleep(1))
        cluster.start("a")
        wiped = cluster.machines["a"]
        cluster.run_until(lambda: wiped.started and wiped.running.node.config is not None, 60, "a is found")
        assert wiped.running.node.config.settings.replica_set_id == before.settings.replica_set_id


@pytest.mark.parametrize("which", ["the primary", "a secondary"])
def test_a_member_without_its_data_file_takes_nothing_from_the_others(which: str) -> None:
    """Somebody deletes replset.db to have it copied anew. The member's vote must not be worth anything until it is."""
    with scenario_run() as scenario:
        cluster = scenario.cluster
        name = scenario.primary if which == "the primary" else scenario.others[0]
        for _ in range(5):
            scenario.expect(scenario.write(scenario.primary).acknowledged, "a majority write")
        cluster.kill(name)
        machine = cluster.machines[name]
        for ending in ("", "-wal", "-shm"):
            path = os.path.join(machine.disk.folder, f"replset.db{ending}")
            if machine.disk.exists(path):
                machine.disk.remove(path)
        machine.state_at_death = None
        machine.may_have_lost_data = True
        for look in cluster.on_wipe:  # the checkers know that this disk's entries went by hand
            look(name)
        before = {other: cluster.machines[other].running for other in cluster.machines if other != name}
        scenario.heal_all_and_judge()
        assert {other: cluster.machines[other].running for other in before} == before, "nobody else had to go"

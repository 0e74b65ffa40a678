"""With settings.failover "manual" nobody leads before an operator says so."""

from __future__ import annotations

from tests.simulation.kit.scenarios import scenario_run


def test_after_the_primarys_death_the_set_waits_for_an_operator() -> None:
    with scenario_run(3) as scenario:
        cluster, old = scenario.cluster, scenario.primary
        scenario.expect(scenario.write(old).acknowledged, "a majority write")
        config = cluster.command(old, {"replSetGetConfig": 1})["config"]
        manual = {**config, "version": config["version"] + 1, "settings": {**config["settings"], "failover": "manual"}}
        assert cluster.command(old, {"replSetReconfig": manual}, timeout_s=30)["ok"] == 1
        scenario.expect(scenario.write(old).acknowledged, "a majority write")
        scenario.kill(old)
        cluster.run_for(60)
        assert cluster.primary() in (None, old)
        candidate = scenario.others[0]
        remarks = cluster.command(candidate, {"replSetGetStatus": 1})
        assert "replset step-up" in str(remarks)
        assert cluster.command(candidate, {"replSetStepUp": 1}, timeout_s=30)["ok"] == 1
        cluster.run_until(lambda: cluster.primary() == candidate, 20, "the chosen member leads")
        scenario.restart(old)
        scenario.expect(scenario.write(candidate).acknowledged, "a majority write there")
        scenario.heal_all_and_judge()

"""Members of a newer release wrote fields into the configuration that this release does not know."""

from __future__ import annotations

from dataclasses import replace

from replset.errors import ErrorCode
from replset.storage.member_file import MemberFile
from tests.simulation.kit.scenarios import scenario_run


def test_a_set_goes_on_with_a_configuration_of_a_newer_release() -> None:
    with scenario_run(3) as scenario:
        cluster = scenario.cluster
        scenario.expect(scenario.write(scenario.primary).acknowledged, "a majority write")
        names = [*cluster.machines]
        config = cluster.command(scenario.primary, {"replSetGetConfig": 1})["config"]
        for name in names:
            scenario.kill(name)
        for name in names:
            machine = cluster.machines[name]
            file = MemberFile.open(machine.disk, machine.disk.folder)
            assert file.config is not None
            members = tuple(replace(member, others={"shelf": member.host}) for member in file.config.members)
            file.save_config(replace(file.config, members=members, others={"region": {"name": "north"}}))
            file.close()
        for name in names:
            scenario.restart(name)
        cluster.run_until(lambda: cluster.primary() is not None, 60, "a primary")
        primary = cluster.primary() or ""

        given = cluster.command(primary, {"replSetGetConfig": 1})["config"]
        assert given["region"] == {"name": "north"}
        assert [row["shelf"] for row in given["members"]] == [row["host"] for row in config["members"]]
        changed = {
            **given,
            "version": given["version"] + 1,
            "settings": {**given["settings"], "chainingAllowed": False},
        }
        own = {**changed, "members": [{**row, "color": "red"} for row in changed["members"]]}
        refused = cluster.command(primary, {"replSetReconfig": own}, timeout_s=30)
        assert (refused["code"], refused["errmsg"]) == (ErrorCode.BAD_VALUE, "unknown field members.0.color")
        assert cluster.command(primary, {"replSetReconfig": changed}, timeout_s=30)["ok"] == 1
        for name in names:
            running = cluster.machines[name].running
            assert running is not None
            node = running.node
            cluster.run_until(
                lambda node=node: node.config is not None and node.config.version > given["version"], 20, "it has it"
            )
            there = cluster.command(name, {"replSetGetConfig": 1})["config"]
            assert there["region"] == {"name": "north"}
            assert [row["shelf"] for row in there["members"]] == [row["host"] for row in config["members"]]
        scenario.heal_all_and_judge()

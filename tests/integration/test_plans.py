"""`replset reconfig --plan` on real processes: the primary is replaced by a new member, step by step."""

from __future__ import annotations

import json
from pathlib import Path

from tests.integration.conftest import MakeSet, next_ports
from tests.integration.forked import run_program
from tests.integration.talk import insert, run, same_everywhere


def replset(*arguments: object, status: int = 0) -> str:
    done = run_program("replset.cli.main", *arguments)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 else done.stderr


def test_the_primary_is_replaced_by_a_plan(make_set: MakeSet, tmp_path: Path) -> None:
    local = make_set()
    old = local.wait_for_primary()
    insert(old, *range(20))
    new = local.add(next_ports(1)[0], flags=["--enable-test-commands"])
    config = json.loads(replset("conf", "--host", old.host))
    next(row for row in config["members"] if row["host"] == old.host)["host"] = new.host
    wanted = tmp_path / "new.json"
    wanted.write_text(json.dumps(config))

    said = replset("reconfig", "--plan", wanted, "--host", old.host)
    assert said.splitlines()[0].startswith(f"1. add member {new.host}, and wait until it has caught up")
    assert f"{old.host} is primary and hands over first" in said
    assert said.endswith("step 2 of 2 is done\n")

    primary = local.wait_for_primary(among=[member for member in local.members if member is not old])
    hosts = {row["host"] for row in run(primary, {"replSetGetConfig": 1}, "admin")["config"]["members"]}
    assert hosts == {member.host for member in local.members if member is not old}
    insert(primary, 20)
    local.members.remove(old)
    assert len(same_everywhere(local)) == 21
    local.members.append(old)  # its process ends with the test
    assert "as wanted already" in replset("reconfig", "--plan", wanted, "--host", primary.host)

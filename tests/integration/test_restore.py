"""After a failover, rollback-tools on a real set: a restore that is killed is run again, and acknowledged."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replset.cli.local_set import LocalMember, LocalSet, wait_until
from replset.replication.rollback_manifest import acknowledged, list_manifests
from tests.integration.conftest import MakeSet, login_environment
from tests.integration.forked import run_program
from tests.integration.talk import cut, heal, insert, run, same_everywhere, state

W1 = {"w": 1}


@dataclass(frozen=True)
class Story:
    """A set whose old primary rolled back; `manifest` is its rollback's."""

    local: LocalSet
    old: LocalMember
    new: LocalMember
    manifest: Path


def update(member: LocalMember, number: int, change: dict[str, object], w: object = 1) -> None:
    statement = {"q": {"_id": number}, "u": change}
    reply = run(member, {"update": "orders", "updates": [statement], "writeConcern": {"w": w}})
    assert reply["n"] == 1


def delete(member: LocalMember, number: int) -> None:
    run(member, {"delete": "orders", "deletes": [{"q": {"_id": number}, "limit": 1}], "writeConcern": W1})


def lose_writes(local: LocalSet) -> Story:
    """Lost: inserts 100 and 101, updates of 1, 2 and 3, deletes of 4 and 5, a collection, a drop. Meanwhile the set
    changed another field of 2, the same of 3, and 5.
    """
    old = local.wait_for_primary()
    insert(old, *range(10))
    run(old, {"insert": "spare", "documents": [{"_id": 1}], "writeConcern": {"w": "majority"}})
    rest = [member for member in local.members if member is not old]
    cut(old, rest)
    insert(old, 100, 101, w=1)
    for number in (1, 2, 3):
        update(old, number, {"$set": {"lost": True}})
    delete(old, 4)
    delete(old, 5)
    run(old, {"create": "fresh", "writeConcern": W1})
    run(old, {"drop": "spare", "writeConcern": W1})
    new = local.wait_for_primary(among=rest)
    update(new, 2, {"$set": {"kept": True}}, "majority")
    update(new, 3, {"$set": {"lost": "otherwise"}}, "majority")
    update(new, 5, {"$inc": {"n": 100}}, "majority")
    heal(old)
    return Story(local, old, new, rolled_back(old))


def rolled_back(member: LocalMember) -> Path:
    """Wait for it; the manifest."""

    def finished() -> Path | None:
        for manifest in list_manifests(member.dbpath):
            if manifest.state.value == "finished":
                return member.dbpath / "rollback" / f"{manifest.id}.json"
        return None

    path = wait_until(finished, 40, "the rollback to be finished")
    wait_until(lambda: state(member) == "SECONDARY", 40, "the old primary to be SECONDARY")
    return path


def tool(*arguments: object, status: int = 0) -> str:
    """Run rollback-tools as a person would; what it printed."""
    done = run_program("rollback_tools.main", *arguments, environment=login_environment())
    assert done.returncode == status, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def rows_of(text: str) -> dict[Any, dict[str, Any]]:
    """By `_id`, or by the command's name."""
    rows = json.loads(text)["writes"]
    return {int(row["_id"]["$numberInt"]) if "_id" in row else row["command"]: row for row in rows}


def metric(member: LocalMember, name: str) -> float:
    host, _, port = member.host.rpartition(":")
    with urllib.request.urlopen(f"http://{host}:{int(port) + 1000}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def test_a_restore_that_is_killed_is_run_again_and_the_rollback_acknowledged(make_set: MakeSet) -> None:
    story = many_lost(make_set())
    local, old, path = story.local, story.old, story.manifest
    host, _, port = old.host.rpartition(":")
    api = f"http://{host}:{int(port) + 1000}"
    tool("verify", path)
    tool("verify", f"{api}/v1/replset/rollbacks/{path.stem}")
    command = [sys.executable, "-m", "rollback_tools.main", "restore", str(path), "--host", story.new.host]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline().startswith("put back  shop.orders 1000: lost insert")
        running.kill()
    done = json.loads(tool("restore", path, "--host", old.host, "--json"))["counts"]
    assert done["there"] >= 1
    assert done["there"] + done["done"] == MANY
    assert len(same_everywhere(local)) == MANY + 10
    assert tool("diff", path, "--host", old.host).splitlines()[-1] == f"{MANY} in the set"

    name = "replset_rollbacks_unacknowledged"
    wait_until(lambda: metric(old, name) == 1, 20, "the rollback to be counted")
    tool("ack", f"{api}/v1/replset/rollbacks/{path.stem}", "--by", "a test")
    assert json.loads(tool("list", old.dbpath, "--json")) == {
        "rollbacks": [{**json.loads(path.read_text()), "acknowledged": acknowledged(path.parent, path.stem)}],
        "damaged": {},
    }
    wait_until(lambda: metric(old, name) == 0, 20, "the acknowledgement to be seen")
    rows = run(story.new, {"replSetGetRollbacks": 1, "all": True}, "admin")["rollbacks"]
    assert [(row["id"], row["acknowledged"] is not None) for row in rows] == [(path.stem, True)]


MANY = 1_500


def many_lost(local: LocalSet) -> Story:
    old = local.wait_for_primary()
    insert(old, *range(10))
    rest = [member for member in local.members if member is not old]
    cut(old, rest)
    insert(old, *range(1000, 1000 + MANY), w=1)
    new = local.wait_for_primary(among=rest)
    heal(old)
    return Story(local, old, new, rolled_back(old))

"""After a failover: what a real set lost is found, compared and put back, by the tools and over HTTP.

What the policies do, and what else either way answers, is in the unit tests of `recovery`, `rollback_tools` and `api`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from replset.client import SETTINGS
from replset.ids import HostPort
from replset.key_file import read_key_file
from replset.local_set import LocalMember, LocalSet, wait_until
from replset.replication.rollback_manifest import list_manifests
from tests.integration.conftest import PASSWORD, ROOT, begin_with_logins, next_ports
from tests.integration.forked import ForkedSet, running_set
from tests.integration.page import differences, running_shell, without_widths
from tests.integration.talk import cut, heal, insert, others_of, run, same_everywhere, state, status

W1, MAJORITY = ({"writeConcern": {"w": w}} for w in (1, "majority"))


@dataclass(frozen=True)
class Story:
    """A set whose old primary rolled back; `manifest` is its rollback's."""

    local: LocalSet
    old: LocalMember
    new: LocalMember
    manifest: Path

    @property
    def url(self) -> str:
        return f"{self.old.http}/v1/replset/rollbacks/{self.manifest.stem}"


def update(member: LocalMember, number: int, change: dict[str, object], **concern: object) -> None:
    assert run(member, {"update": "orders", "updates": [{"q": {"_id": number}, "u": change}], **concern})["n"] == 1


def lose_writes(local: LocalSet) -> Story:
    """Lost: inserts 100 and 101, updates of 1, 2 and 3, deletes of 4 and 5, a collection, a drop. Meanwhile the set
    changed another field of 2, the same of 3, and 5.
    """
    old = local.wait_for_primary()
    insert(old, *range(10))
    run(old, {"insert": "spare", "documents": [{"_id": 1}], **MAJORITY})
    rest = others_of(local, old)
    cut(old, rest)
    insert(old, 100, 101, w=1)
    for number in (1, 2, 3):
        update(old, number, {"$set": {"lost": True}}, **W1)
    for number in (4, 5):
        run(old, {"delete": "orders", "deletes": [{"q": {"_id": number}, "limit": 1}], **W1})
    run(old, {"create": "fresh", **W1})
    run(old, {"drop": "spare", **W1})
    new = local.wait_for_primary(among=rest)
    update(new, 2, {"$set": {"kept": True}}, **MAJORITY)
    update(new, 3, {"$set": {"lost": "otherwise"}}, **MAJORITY)
    update(new, 5, {"$inc": {"n": 100}}, **MAJORITY)
    return rolled_back(local, old, new)


def rolled_back(local: LocalSet, old: LocalMember, new: LocalMember) -> Story:
    """Let the old primary come back, and wait until it has rolled back."""
    before = {manifest.id for manifest in list_manifests(old.dbpath)}
    heal(old)

    def finished() -> Path | None:
        for manifest in list_manifests(old.dbpath):
            if manifest.state.value == "finished" and manifest.id not in before:
                return old.dbpath / "rollback" / f"{manifest.id}.json"
        return None

    path = wait_until(finished, 40, "the rollback to be finished")
    wait_until(lambda: state(old) == "SECONDARY", 40, "the old primary to be SECONDARY")
    return Story(local, old, new, path)


def get(url: str) -> Any:
    response = httpx.get(url, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.in_turns
def test_the_page_is_true(local: ForkedSet, tmp_path: Path) -> None:
    """Its commands put all back on this set; every member tells of the rollback until somebody acknowledges it."""
    story = lose_writes(local)
    (other,) = (member for member in local.members if member not in (story.old, story.new))
    wait_until(lambda: status(other)["unacknowledgedRollbacks"] == 1, 60, "the others to hear of the rollback")
    wait_until(lambda: status(story.new)["unacknowledgedRollbacks"] == 1, 60, "the primary to hear of it")
    assert "replset_rollbacks_unacknowledged 1.0" in httpx.get(f"{story.old.http}/metrics").text
    lost = get(f"{story.url}/writes")["writes"][0]
    assert lost["_id"] == 100
    for member in local.members:
        found = get(f"{member.http}/v1/replset/writes/{lost['optime']}")
        assert (found["state"], [row["member"] for row in found["rollbacks"]]) == ("notInSet", [story.old.host])

    ports = [member.port for member in (story.old, story.new, other)]
    names = {"/data/m1": str(story.old.dbpath), "2026-09-21T14-13-25.0": story.manifest.stem.removeprefix("rollback-")}
    with running_shell(tmp_path, ports, names) as shell:
        shell.environment["COLUMNS"] = "200"
        wrong = differences("after-a-failover.md", shell, without_widths)
    assert wrong == [], "\n".join(wrong)

    wait_until(lambda: status(other)["unacknowledgedRollbacks"] == 0, 40, "the others to know of that too")
    assert "replset_rollbacks_unacknowledged 0.0" in httpx.get(f"{story.old.http}/metrics").text
    (row,) = get(f"{other.http}/v1/replset/rollbacks")["rollbacks"]
    assert (row["id"], row["member"], bool(row["acknowledged"])) == (story.manifest.stem, story.old.host, True)
    assert (f"http://{row['httpAddress']}", get(f"{other.http}/v1/replset/rollbacks?local=true")["rollbacks"]) == (
        story.old.http,
        [],
    )


@pytest.fixture
def secured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkedSet]:
    """Three members where clients log in, and rollbacks have MongoDB's layout too."""
    with running_set(tmp_path / "set") as local:
        for port in next_ports(3):
            local.add(port, flags=["--enable-test-commands", "--auth", "--rollback-layout", "mongodb"])
        begin_with_logins(local, monkeypatch)
        yield local


def test_over_http_each_step_needs_its_role_and_the_member_writes_as_a_member(secured: ForkedSet) -> None:
    keys = read_key_file(secured.key_file)
    with pytest.MonkeyPatch.context() as patch:  # only members may cut a member off
        patch.setattr(SETTINGS, "login", lambda client: client.prove(keys, HostPort("127.0.0.1:1")))
        story = lose_writes(secured)
    (removed,) = story.manifest.parent.glob("*/removed.*.bson")
    (documents,) = story.manifest.parent.glob("shop.orders.*.bson")
    assert removed.read_bytes() == documents.read_bytes()
    for name, roles in {"keeper": ["backup"], "fixer": ["restore", "clusterMonitor"]}.items():
        run(story.new, {"createUser": name, "pwd": PASSWORD, "roles": roles}, "admin")

    def ask(user: str, what: str, body: object = None) -> httpx.Response:
        method = "GET" if body is None else "POST"
        return httpx.request(method, f"{story.url}/{what}", json=body, auth=(user, PASSWORD), timeout=60)

    def restore(**wanted: object) -> dict[str, Any]:
        answer: dict[str, Any] = ask(ROOT, "restore", wanted).json()
        return answer

    dry = {"policy": "merge", "dryRun": True}
    for user, what, body, code in (
        ("nobody", "diff", None, 401),
        ("keeper", "diff", None, 200),
        ("keeper", "restore", dry, 403),
        ("fixer", "restore", dry, 200),
        ("fixer", "ack", {}, 403),
    ):
        assert ask(user, what, body).status_code == code, (user, what)
    assert ask("fixer", "verify").json()["ok"] is True
    assert {row["class"] for row in ask("keeper", "diff").json()["writes"]} == {"insert", "update", "delete", "command"}

    done = restore(policy="merge")
    assert (done["counts"], done["primary"]) == ({"done": 6, "there": 0, "would": 0, "left": 3}, story.new.host)
    assert Path(done["audit"]).parent == story.manifest.parent
    orders = {row["_id"]: row for row in same_everywhere(secured)}
    assert orders[2] == {"_id": 2, "n": 2, "kept": True, "lost": True}
    assert ({100, 101} <= set(orders), 4 in orders, orders[3]["lost"]) == (True, False, "otherwise")
    applied = status(story.new)["optimes"]["appliedOpTime"]
    assert restore(policy="merge")["counts"] == {"done": 0, "there": 6, "would": 0, "left": 3}
    assert restore(policy="overwrite")["counts"]["left"] == 0
    assert status(story.new)["optimes"]["appliedOpTime"]["ts"] > applied["ts"]
    orders = {row["_id"]: row for row in same_everywhere(secured)}
    assert (orders[3], 5 in orders) == ({"_id": 3, "n": 3, "lost": True}, False)


MANY = 600


@pytest.mark.in_turns
def test_a_restore_that_is_killed_is_run_again(local: ForkedSet) -> None:
    """By the tool, and then by the member."""
    old = local.wait_for_primary()
    insert(old, *range(10))
    cut(old, others_of(local, old))
    insert(old, *range(1000, 1000 + MANY), w=1)
    story = rolled_back(local, old, local.wait_for_primary(among=others_of(local, old)))
    command = [sys.executable, "-m", "rollback_tools.main", "restore", str(story.manifest), "--host", old.host]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline().startswith("put back  shop.orders 1000: lost insert")
        running.kill()
    done = httpx.post(f"{story.url}/restore", json={}, timeout=60).json()["counts"]
    assert (done["there"] > 0, done["there"] + done["done"]) == (True, MANY)
    assert len(same_everywhere(local)) == MANY + 10
    assert get(f"{story.url}/diff")["counts"]["there"] == MANY

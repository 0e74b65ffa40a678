"""After a failover, over HTTP alone: lost writes checked, compared and put back as the tools do it, on a real set."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from replset.cli.local_set import wait_until
from replset.client import SETTINGS
from replset.ids import HostPort
from replset.key_file import read_key_file
from tests.integration.conftest import PASSWORD, ROOT, MakeSet, begin_with_logins, next_ports
from tests.integration.forked import ForkedSet, running_set
from tests.integration.talk import find, run, same_everywhere
from tests.integration.test_restore import MANY, Story, lose_writes, many_lost, rows_of, tool


class Rollback:
    """One rollback, asked of the member that holds it."""

    def __init__(self, story: Story, user: str = ROOT) -> None:
        self.url = f"{story.old.http}/v1/replset/rollbacks/{story.manifest.stem}"
        self._login = (user, PASSWORD)  # a member without users takes no notice

    def code(self, what: str, body: object = None) -> int:
        method = "GET" if body is None else "POST"
        return httpx.request(method, f"{self.url}/{what}", json=body, auth=self._login, timeout=60).status_code

    def get(self, what: str) -> str:
        response = httpx.get(f"{self.url}/{what}", auth=self._login, timeout=60)
        assert response.status_code == 200, response.text
        return response.text

    def restore(self, **wanted: object) -> dict[str, Any]:
        response = httpx.post(f"{self.url}/restore", json=wanted, auth=self._login, timeout=60)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer


@pytest.fixture
def secured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkedSet]:
    """Three members where clients log in."""
    with running_set(tmp_path / "set") as local:
        for port in next_ports(3):
            local.add(port, flags=["--enable-test-commands", "--auth"])
        begin_with_logins(local, monkeypatch)
        yield local


def test_lost_writes_are_checked_compared_and_put_back(secured: ForkedSet) -> None:
    """With logins: each step needs its role, and the member writes to the primary as a member."""
    keys = read_key_file(secured.key_file)
    with pytest.MonkeyPatch.context() as patch:  # only members may cut a member off
        patch.setattr(SETTINGS, "login", lambda client: client.prove(keys, HostPort("127.0.0.1:1")))
        story = lose_writes(secured)
    for name, roles in {"keeper": ["backup"], "fixer": ["restore", "clusterMonitor"]}.items():
        run(story.new, {"createUser": name, "pwd": PASSWORD, "roles": roles}, "admin")
    keeper, fixer = Rollback(story, "keeper"), Rollback(story, "fixer")
    assert [one.code("diff") for one in (keeper, fixer, Rollback(story, "nobody"))] == [200, 200, 401]
    assert keeper.code("restore", {"policy": "merge"}) == 403
    assert fixer.code("restore", {"policy": "merge", "dryRun": True}) == 200
    assert fixer.code("ack", {}) == 403
    local, path, host = story.local, story.manifest, story.old.host
    over_http = Rollback(story)

    found = json.loads(over_http.get("verify"))
    assert {name: found[name] for name in ("id", "ok", "files", "problems")} == json.loads(
        tool("verify", path, "--json")
    )
    text = over_http.get("diff")
    assert text == tool("diff", path, "--host", host, "--json", status=1)
    rows = rows_of(text)
    assert {key: (row["class"], row["standing"]) for key, row in rows.items()} == {
        100: ("insert", "clean"),
        101: ("insert", "clean"),
        1: ("update", "clean"),
        2: ("update", "conflict"),
        3: ("update", "conflict"),
        4: ("delete", "clean"),
        5: ("delete", "conflict"),
        "create": ("command", "clean"),
        "drop": ("command", "conflict"),
    }
    assert (rows[2]["lostChange"], rows[2]["liveChange"]) == ({"$set": {"lost": True}}, {"$set": {"kept": True}})
    assert (rows[2]["conflicts"], rows[3]["conflicts"]) == ([], ["lost"])

    before = find(story.new)
    dry = over_http.restore(policy="merge", dryRun=True)
    assert dry == json.loads(
        tool("restore", path, "--host", host, "--policy", "merge", "--dry-run", "--json", status=1)
    )
    assert (find(story.new), list(path.parent.glob("restore.*"))) == (before, [])

    done = over_http.restore(policy="merge")
    assert done["counts"] == {"done": 6, "there": 0, "would": 0, "left": 3}
    assert (done["policy"], done["primary"], done["dryRun"]) == ("merge", story.new.host, False)
    audit = Path(done["audit"])
    assert audit.parent == path.parent
    notes = [json.loads(line) for line in audit.read_text().splitlines()]
    outcomes = [note["outcome"] for note in notes if "outcome" in note]
    assert sorted(outcomes, key=str) == sorted(done["writes"], key=str)
    assert notes[-1]["counts"] == done["counts"]
    orders = {row["_id"]: row for row in same_everywhere(local)}
    assert ({100, 101} <= set(orders), 4 in orders) == (True, False)
    assert orders[1] == {"_id": 1, "n": 1, "lost": True}
    assert orders[2] == {"_id": 2, "n": 2, "kept": True, "lost": True}
    assert (orders[3]["lost"], orders[5]["n"]) == ("otherwise", 105)
    last = newest(story)
    again = over_http.restore(policy="merge")
    assert again["counts"] == {"done": 0, "there": 6, "would": 0, "left": 3}
    assert newest(story) == last, "nothing was written the second time"

    assert over_http.restore(policy="overwrite")["counts"]["left"] == 0
    assert over_http.restore()["counts"] == {"done": 0, "there": 9, "would": 0, "left": 0}
    orders = {row["_id"]: row for row in same_everywhere(local)}
    assert (orders[3], 5 in orders) == ({"_id": 3, "n": 3, "lost": True}, False)
    names = {row["name"] for row in run(story.new, {"listCollections": 1})["cursor"]["firstBatch"]}
    assert names == {"orders", "fresh"}
    lives = [
        json.loads(line).get("live") for log in path.parent.glob("restore.*") for line in log.read_text().splitlines()
    ]
    assert {"_id": {"$numberInt": "3"}, "n": {"$numberInt": "3"}, "lost": "otherwise"} in lives, "it can be found again"

    copied = over_http.restore(policy="to-collection", collection="saved")
    assert (copied["policy"], copied["counts"]["done"]) == ("to-collection saved", 5)
    saved = run(story.new, {"find": "saved", "sort": {"_id": 1}})["cursor"]["firstBatch"]
    assert [row["_id"] for row in saved] == [1, 2, 3, 100, 101]
    assert set(rows_of(over_http.get("diff"))) == {100, 101, 1, 2, 3, 4, 5, "create", "drop"}


def newest(story: Story) -> tuple[int, int]:
    """The newest entry that is no no-op on the primary."""
    command = {"find": "oplog.rs", "filter": {"op": {"$ne": "n"}}, "sort": {"$natural": -1}, "limit": 1}
    (entry,) = run(story.local.wait_for_primary(), command, "local")["cursor"]["firstBatch"]
    return entry["ts"].time, entry["ts"].inc


def test_a_client_that_goes_away_stops_the_restore_and_the_next_one_finishes_it(make_set: MakeSet) -> None:
    story = many_lost(make_set())
    over_http = Rollback(story)
    with httpx.stream("POST", f"{over_http.url}/restore", json={}, timeout=60) as response:
        assert response.status_code == 200
        assert next(response.iter_raw()).startswith(b"{")

    def restored() -> dict[str, Any] | None:
        response = httpx.post(f"{over_http.url}/restore", json={}, timeout=60)
        if response.status_code == 409:
            assert response.json()["code"] == 117
            return None
        answer: dict[str, Any] = response.json()
        return answer

    answer = wait_until(restored, 60, "the first restore to have stopped")
    counts = answer["counts"]
    assert counts["there"] >= 1
    assert (counts["there"] + counts["done"], counts["left"]) == (MANY, 0)
    assert len(same_everywhere(story.local)) == MANY + 10
    health = httpx.get(f"{story.old.http}/health", timeout=10)
    assert health.status_code == 200


def test_without_a_primary_nothing_is_put_back(make_set: MakeSet) -> None:
    story = lose_writes(make_set())
    for member in story.local.members:
        if member is not story.old:
            story.local.kill(member)

    def refused() -> httpx.Response | None:
        response = httpx.post(f"{Rollback(story).url}/restore", json={}, timeout=60)
        return response if response.json().get("code") == 10107 else None

    response = wait_until(refused, 60, "the member to know no primary any more")
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert json.loads(Rollback(story).get("verify"))["ok"] is True

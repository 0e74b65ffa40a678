"""A second set follows the first: real processes, both ends killed, a planned switch-over and an unplanned one."""

from __future__ import annotations

import threading
from typing import Any

from replset.cli.local_set import LocalMember, LocalSet, wait_until
from tests.integration.conftest import MakeSet
from tests.integration.forked import run_program
from tests.integration.talk import DATABASE, find, insert, run


def replset(*arguments: object) -> tuple[int, str]:
    done = run_program("replset.cli.main", *arguments)
    return done.returncode, done.stdout + done.stderr


def everything(member: LocalMember) -> dict[str, list[dict[str, Any]]]:
    """All of the database's documents, in natural order, and its indexes."""
    names = run(member, {"listCollections": 1})["cursor"]["firstBatch"]
    found = {}
    for row in sorted(names, key=lambda one: one["name"]):
        name = row["name"]
        found[name] = run(member, {"find": name, "batchSize": 100_000})["cursor"]["firstBatch"]
        indexes = run(member, {"listIndexes": name})["cursor"]["firstBatch"]
        found[f"{name} indexes"] = sorted(indexes, key=lambda one: one["name"])
    return found


def same(source: LocalSet, follower: LocalSet) -> None:
    def is_same() -> bool:
        return everything(source.wait_for_primary()) == everything(follower.wait_for_primary())

    wait_until(is_same, 60, "the follower to have everything")


def write_all_kinds(primary: LocalMember) -> None:
    insert(primary, *range(100))
    run(primary, {"update": "orders", "updates": [{"q": {"_id": 1}, "u": {"$set": {"n": -1, "a.b": [1, 2]}}}]})
    run(primary, {"delete": "orders", "deletes": [{"q": {"_id": {"$gte": 90}}, "limit": 0}]})
    run(primary, {"createIndexes": "orders", "indexes": [{"key": {"n": 1}, "name": "n_1"}]})
    run(primary, {"create": "log", "capped": True, "size": 100_000})
    run(primary, {"insert": "log", "documents": [{"_id": n} for n in range(20)]})
    run(primary, {"insert": "old", "documents": [{"_id": 1}]})
    run(primary, {"renameCollection": f"{DATABASE}.old", "to": f"{DATABASE}.renamed"}, "admin")
    run(primary, {"insert": "gone", "documents": [{"_id": 1}]})
    run(primary, {"drop": "gone"})


class Writer(threading.Thread):
    """Inserts numbers one by one with a majority, on whatever member leads, until it is stopped."""

    def __init__(self, local: LocalSet, first: int) -> None:
        super().__init__()
        self._local = local
        self._next = first
        self.acknowledged: list[int] = []
        self.is_over = threading.Event()

    def run(self) -> None:
        while not self.is_over.is_set():
            for member in self._local.members:
                try:
                    concern = {"w": "majority", "wtimeout": 3_000}
                    document = {"insert": "orders", "documents": [{"_id": self._next}], "writeConcern": concern}
                    reply = member.command(document, DATABASE, timeout_s=5)
                except Exception:
                    continue
                if reply.get("n") == 1 and "writeConcernError" not in reply:
                    self.acknowledged.append(self._next)
                if reply.get("ok") == 1.0:
                    self._next += 1
                    break

    def stop(self) -> None:
        self.is_over.set()
        self.join()


def test_two_sites(make_set: MakeSet) -> None:
    first, second = make_set(), make_set(members=2, name="site2")
    primary, away = first.wait_for_primary(), second.wait_for_primary()
    write_all_kinds(primary)

    hosts = ",".join(member.host for member in first.members)
    code, text = replset("follow", hosts, "--host", away.host)
    assert code == 0, text
    assert "this set follows" in text
    same(first, second)
    refused = away.command({"insert": "orders", "documents": [{"_id": "mine"}]}, DATABASE)
    assert (refused.get("code") or refused["writeErrors"][0]["code"]) == 20, refused
    code, text = replset("follow", "--status", "--host", away.host)
    assert (code, "following: " in text) == (0, True), text

    # Both primaries die while writes go on: nothing is missing, and nothing is there twice.
    writer = Writer(first, 1_000)
    writer.start()
    wait_until(lambda: len(writer.acknowledged) > 20, 30, "some writes")
    first.kill(primary)
    wait_until(lambda: first.wait_for_primary() is not primary, 60, "another primary of the source")
    second.kill(away)
    second.start(away)
    first.start(primary)
    before = len(writer.acknowledged)
    wait_until(lambda: len(writer.acknowledged) > before + 20, 60, "some more writes")

    # Planned: under load, and nothing that was acknowledged is lost.
    code, text = replset("follow", "--switch-over", "--host", second.wait_for_primary().host)
    writer.stop()
    assert code == 0, text
    held = {document["_id"] for document in find(second.wait_for_primary())}
    assert set(writer.acknowledged) <= held
    insert(second.wait_for_primary(), "after the switch-over")
    same(second, first)

    # Unplanned: the second site leads, and is cut off; the first takes over without what it did not get.
    for member in first.members:
        first.stop(member)
    insert(second.wait_for_primary(), "lost", "lost too")
    for member in second.members:
        second.stop(member)
    for member in first.members:
        first.start(member)
    code, text = replset("follow", "--stop", "--host", first.wait_for_primary().host)
    assert (code, "this set takes writes" in text) == (0, True), text
    insert(first.wait_for_primary(), "new")
    for member in second.members:
        second.start(member)
    back = ",".join(member.host for member in second.members)
    second.wait_for_primary()
    code, text = replset("follow", back, "--missing", "--host", first.wait_for_primary().host)
    assert code == 1, text
    assert "2 operations" in text
    assert '{"_id":"lost"}' in text
    code, text = replset("follow", hosts, "--host", second.wait_for_primary().host)
    assert code != 0
    assert "beyond that here" in text

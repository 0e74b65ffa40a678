"""A second set follows the first: real processes, both ends killed under load, and a planned switch-over."""

from __future__ import annotations

from typing import Any

import pytest

from replset.local_set import LocalMember, LocalSet, wait_until
from tests.integration.conftest import MakeSet
from tests.integration.forked import run_program
from tests.integration.talk import DATABASE, Writer, find, insert, run


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


@pytest.mark.in_turns
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
    with Writer(first, 1_000) as writer:
        writer.wait_for_more(20)
        first.kill(primary)
        wait_until(lambda: first.wait_for_primary() is not primary, 60, "another primary of the source")
        second.kill(away)
        second.start(away)
        first.start(primary)
        writer.wait_for_more(20)

        # Planned: under load, and nothing that was acknowledged is lost.
        code, text = replset("follow", "--switch-over", "--host", second.wait_for_primary().host)
    assert code == 0, text
    held = {document["_id"] for document in find(second.wait_for_primary())}
    assert set(writer.acknowledged) <= held
    insert(second.wait_for_primary(), "after the switch-over")
    same(second, first)

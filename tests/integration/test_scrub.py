"""Documents that one member's disk changed: named by `replset check`, put right by `replset repair DB.COLLECTION`."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest

from replset.bson import encode, encode_key
from replset.local_set import LocalMember, LocalSet, wait_until
from replset.replication.rollback_manifest import list_manifests
from tests.integration.forked import ForkedSet, run_program
from tests.integration.talk import (
    DATABASE,
    all_counted,
    find,
    insert,
    others_of,
    run,
    same_everywhere,
    status,
)

Change = Callable[[sqlite3.Connection, str], object]
NS = f"{DATABASE}.orders"


def change_file(local: LocalSet, member: LocalMember, change: Change) -> None:
    """Stop the member, change its data file as a bad disk would, start it again."""
    local.stop(member)
    with closing(sqlite3.connect(member.dbpath / "replset.db")) as database:
        ((uuid,),) = database.execute("SELECT uuid FROM catalog WHERE ns = ?", (NS,)).fetchall()
        change(database, f"d_{uuid.hex()}")
        database.commit()
    local.start(member)
    all_counted(local)


def damage(database: sqlite3.Connection, table: str) -> None:
    """One document has other bytes, one is gone, and one was never written by anybody."""
    changed = database.execute(
        f"UPDATE {table} SET doc = ? WHERE key = ?", (encode({"_id": 3, "n": 999}), encode_key(3))
    )
    assert changed.rowcount == 1
    database.execute(f"DELETE FROM {table} WHERE key = ?", (encode_key(5),))
    database.execute(f"INSERT INTO {table} (key, doc) VALUES (?, ?)", (encode_key(77), encode({"_id": 77, "n": 0})))


def lose_one(database: sqlite3.Connection, table: str) -> None:
    database.execute(f"DELETE FROM {table} WHERE key = ?", (encode_key(8),))


def replset(*arguments: object) -> tuple[int, str]:
    done = run_program("replset.cli.main", *arguments)
    assert not done.stderr or done.returncode, done.stderr
    return done.returncode, done.stdout


@pytest.mark.in_turns
def test_documents_that_a_disk_changed_are_named_and_put_right(local: ForkedSet) -> None:
    primary = local.wait_for_primary()
    rotten, other = others_of(local, primary)
    insert(primary, *range(40))
    run(primary, {"createIndexes": "orders", "indexes": [{"key": {"n": 1}, "name": "n_1"}]})
    same_everywhere(local)
    assert replset("check", NS, "--host", other.host) == (0, f"40 documents of {primary.host} compared, 0 differ\n")
    change_file(local, rotten, damage)
    assert {"_id": 3, "n": 999} in find(rotten), "it serves what the disk gives"

    code, text = replset("check", "--host", rotten.host)
    assert code == 1, text
    assert f"40 documents of {primary.host} compared, 3 differ" in text
    assert f'{NS} {{"_id":5}}' in text
    assert f"{rotten.host} without it" in text
    assert text.rstrip().endswith(f"to put it right: replset repair {NS}")
    found = json.loads(replset("check", DATABASE, "--host", other.host, "--json")[1])
    assert [row["_id"] for row in found["differing"]] == [3, 5, 77]
    assert replset("check", "no.such", "--host", other.host) == (2, "")

    code, text = replset("repair", NS, "--host", other.host)
    assert code == 0, text
    assert f"{rotten.host}: 3 documents of {NS} corrected" in text
    assert text.count("nothing to do") == 2
    assert replset("check", "--host", other.host)[0] == 0
    assert len(same_everywhere(local)) == 40
    assert find(rotten, {"n": 3}, hint="n_1") == [{"_id": 3, "n": 3}]
    hashes = {run(member, {"dbHash": 1, "$readPreference": {"mode": "secondary"}})["md5"] for member in local.members}
    assert len(hashes) == 1
    assert run(rotten, {"validate": "orders", "$readPreference": {"mode": "secondary"}})["valid"]

    # What only this member had is kept, and any tool for rollbacks shows it.
    (manifest,) = list_manifests(rotten.dbpath)
    (file,) = manifest.files
    kept = (rotten.dbpath / "rollback" / file.name).read_bytes()
    assert kept == encode({"_id": 3, "n": 999}) + encode({"_id": 77, "n": 0})
    path = rotten.dbpath / "rollback" / f"{manifest.id}.json"
    assert run_program("rollback_tools.main", "verify", path).returncode == 0
    restored = run_program("rollback_tools.main", "restore", path, "--host", other.host, "--json")
    assert json.loads(restored.stdout)["counts"] == {"done": 1, "there": 0, "would": 0, "left": 1}
    assert len(same_everywhere(local)) == 41
    assert find(primary, {"_id": {"$in": [3, 77]}}) == [{"_id": 3, "n": 3}, {"_id": 77, "n": 0}]
    wait_until(lambda: status(primary)["unacknowledgedRollbacks"] == 1, 20, "the primary to know of it")

    # On the primary it is the same; the secondaries agree on what is right.
    change_file(local, primary, lose_one)
    code, text = replset("repair", NS, "--host", other.host, "--json")
    assert code == 0, text
    corrected = {row["member"]: len(row["corrected"]) for row in json.loads(text)["members"]}
    assert corrected == {member.host: int(member is primary) for member in local.members}
    assert len(same_everywhere(local)) == 41

"""Index builds in a real set: beside writes, through the death of the primary, in an initial sync."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing, suppress

from replset.cli.local_set import LocalMember, wait_until
from tests.integration.conftest import MakeSet
from tests.integration.forked import ForkedSet
from tests.integration.talk import all_counted, run, same_everywhere
from tests.simulation.kit.index_model import index_fault

DOCUMENTS = 20_000


def create(member: LocalMember, *indexes: dict[str, object]) -> dict[str, object]:
    return run(member, {"createIndexes": "orders", "indexes": list(indexes), "writeConcern": {"w": "majority"}})


def names(member: LocalMember) -> list[str]:
    command = {"listIndexes": "orders", "$readPreference": {"mode": "secondaryPreferred"}}
    return sorted(str(index["name"]) for index in run(member, command)["cursor"]["firstBatch"])


def insert_many(member: LocalMember) -> None:
    for start in range(0, DOCUMENTS, 1_000):
        documents = [{"_id": n, "n": n, "tags": [n % 7, f"t{n % 100}"]} for n in range(start, start + 1_000)]
        run(member, {"insert": "orders", "documents": documents, "writeConcern": {"w": 1}})


def check_files(local: ForkedSet) -> None:
    """Stop the members and compare the indexes in their files with the documents."""
    for member in local.members:
        local.stop(member)
        path = member.dbpath / "replset.db"
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            rows = connection.execute("SELECT ready FROM indexes WHERE dropped_ts IS NULL").fetchall()
            assert rows
            assert all(ready for (ready,) in rows)
            assert index_fault(connection, None) is None  # type: ignore[arg-type]


def test_builds_beside_writes_and_through_a_failover(make_set: MakeSet) -> None:
    local = make_set()
    primary = local.wait_for_primary()
    insert_many(primary)
    stop = threading.Event()

    def keep_writing() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            with suppress(Exception):  # while there is no primary
                update = {"q": {"_id": number * 37 % DOCUMENTS}, "u": {"$set": {"n": -number, "tags": [number]}}}
                run(local.wait_for_primary(), {"update": "orders", "updates": [update]})

    writer = threading.Thread(target=keep_writing)
    writer.start()
    try:
        create(primary, {"key": {"n": 1}, "name": "n_1", "unique": True}, {"key": {"tags": -1, "n": 1}})
        building = threading.Thread(target=lambda: _ignoring(primary, {"key": {"tags": 1}, "name": "second"}))
        building.start()
        wait_until(lambda: "second" in names(primary), 20, "the build to begin")
        local.kill(primary)
        building.join()
        new = local.wait_for_primary()
        create(new, {"key": {"tags": 1}, "name": "second"})  # waits for the build, or makes the index
        local.start(primary)
        all_counted(local)
    finally:
        stop.set()
        writer.join()
    same_everywhere(local)
    assert all(names(member) == ["_id_", "n_1", "second", "tags_-1_n_1"] for member in local.members)
    assert run(new, {"count": "orders", "query": {"tags": 3}})["n"] > 0
    check_files(local)


def _ignoring(member: LocalMember, index: dict[str, object]) -> None:
    with suppress(Exception):  # it is killed
        create(member, index)

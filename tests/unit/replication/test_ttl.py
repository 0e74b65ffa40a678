"""TTL indexes: which documents expire, in slices, and only on a primary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from replset.bson import DateTime
from replset.errors import IllegalOperationError
from replset.ids import OPTIME_NULL
from replset.replication.held_keys import HeldKeys
from replset.replication.index_ops import do_create_index, do_drop_index, do_start_build
from replset.replication.ttl import TtlMonitor
from replset.replication.write_ops import WriteGroup
from tests.unit.replication.kit import NS, WALL_MS, Member, Network, indexes_are_sound, key_of, run
from tests.unit.replication.test_index_builds import Builds, spec


def date(seconds: int) -> DateTime:
    return DateTime(WALL_MS + seconds * 1000)


DOCUMENTS: list[dict[str, Any]] = [
    {"_id": 0, "a": date(-100)},
    {"_id": 1, "a": date(-11)},
    {"_id": 2, "a": date(-10)},
    {"_id": 3, "a": date(-9)},
    {"_id": 4, "a": [date(5), date(-50), date(-60)]},
    {"_id": 5, "a": [date(5), "x"]},
    {"_id": 6, "a": "2000-01-01"},
    {"_id": 7, "a": 5},
    {"_id": 8},
    {"_id": 9, "a": None},
    {"_id": 10, "a": DateTime(-(1 << 63))},
    {"_id": 11, "a": {"b": date(-100)}},
]


@pytest.fixture
def builds(tmp_path: Path) -> Builds:
    member = Member("source:1", tmp_path, Network())
    member.create(NS)
    return Builds(member)


def monitor(builds: Builds) -> TtlMonitor:
    return TtlMonitor(builds.member.context, leads_in=lambda: 1, write=builds.write)


def left(builds: Builds) -> list[object]:
    return sorted(builds.member.documents(NS))


@pytest.mark.parametrize("direction", [1, -1])
def test_what_expires(builds: Builds, direction: int) -> None:
    ttl = spec(expireAfterSeconds=10, key={"a": direction})
    builds.do(lambda group: do_create_index(group, builds.coll(group), ttl))
    builds.member.insert(NS, *DOCUMENTS)
    run(monitor(builds).work)
    assert left(builds) == [3, 5, 6, 7, 8, 9, 11]
    assert indexes_are_sound(builds.member.store)
    builds.member.clock.ms = 1000
    run(monitor(builds).work)
    assert left(builds) == [5, 6, 7, 8, 9, 11]


def test_what_a_transaction_holds_stays_for_now(builds: Builds) -> None:
    builds.do(lambda group: do_create_index(group, builds.coll(group), spec(expireAfterSeconds=10)))
    builds.member.insert(NS, *DOCUMENTS)
    held = HeldKeys()

    async def write(operation: Callable[[WriteGroup], bool]) -> bool:
        def holding(group: WriteGroup) -> bool:
            group.held = held
            return operation(group)

        return await builds.write(holding)

    coll = builds.member.store.collection(NS)
    held.hold(coll.uuid, key_of(1), "a transaction")
    waiting = TtlMonitor(builds.member.context, leads_in=lambda: 1, write=write)
    run(waiting.work)
    assert left(builds) == [1, 3, 5, 6, 7, 8, 9, 11]
    held.release([(coll.uuid, key_of(1))], "a transaction")
    run(waiting.work)
    assert left(builds) == [3, 5, 6, 7, 8, 9, 11]


def test_temporary_collections_of_an_earlier_term_are_dropped(builds: Builds) -> None:
    member = builds.member
    member.create("app.old", temp=True)
    member.create("app.used")
    member.node.term = 2
    member.noop()
    member.create("app.new", temp=True)
    run(monitor(builds).work)
    assert [coll.ns for coll in member.store.collections() if coll.ns != NS] == ["app.new", "app.used"]


def test_a_partial_index_expires_only_its_documents(builds: Builds) -> None:
    partial = spec(expireAfterSeconds=0, partialFilterExpression={"kind": "session"})
    builds.do(lambda group: do_create_index(group, builds.coll(group), partial))
    builds.member.insert(NS, {"_id": 1, "a": date(-5)}, {"_id": 2, "a": date(-5), "kind": "session"})
    run(monitor(builds).work)
    assert left(builds) == [1]


def test_many_are_deleted_in_slices_as_ordinary_deletes(builds: Builds) -> None:
    builds.do(lambda group: do_create_index(group, builds.coll(group), spec(expireAfterSeconds=0)))
    builds.member.insert(NS, *[{"_id": n, "a": [date(-n), date(-n - 1)]} for n in range(1, 500)])
    moves = builds.member.moves
    ttl = monitor(builds)
    run(ttl.work)
    assert left(builds) == []
    assert ttl.deleted == 499
    assert builds.member.moves > moves + 3
    rows = builds.member.store.oplog_after(OPTIME_NULL, limit=2000, max_bytes=1 << 30)
    assert [row.op for row in rows[-499:]] == ["d"] * 499


def test_nothing_expires_by_an_index_under_build_or_dropped_or_on_a_secondary(builds: Builds) -> None:
    builds.member.insert(NS, {"_id": 1, "a": date(-5)})
    assert builds.do(lambda group: do_start_build(group, builds.coll(group), [spec(expireAfterSeconds=0)]))
    run(monitor(builds).work)
    assert left(builds) == [1]
    run(builds.builder.work)
    builds.leads = False
    run(monitor(builds).work)
    assert left(builds) == [1]
    builds.leads = True
    ttl = monitor(builds)
    builds.do(lambda group: [do_drop_index(group, builds.coll(group), i) for i in builds.coll(group).indexes])
    run(ttl.work)
    assert left(builds) == [1]


def test_a_set_that_begins_to_follow_another_one_ends_the_pass(builds: Builds) -> None:
    builds.do(lambda group: do_create_index(group, builds.coll(group), spec(expireAfterSeconds=10)))
    builds.member.insert(NS, *DOCUMENTS)

    async def refused(_operation: Callable[[WriteGroup], bool]) -> bool:
        raise IllegalOperationError("this set follows another one")

    waiting = TtlMonitor(builds.member.context, leads_in=lambda: 1, write=refused)
    run(waiting.work)
    assert waiting.passes == 1

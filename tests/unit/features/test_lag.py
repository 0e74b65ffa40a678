"""Lags are measured: a wall clock that was wrong once changes none of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from replset.bson import DateTime
from replset.features.archive.archive_lease import ArchiveRecord, ArchiveStatus
from replset.features.archive.segments import Position
from replset.member.member import RunningMember
from replset.operations.lag import age_ms
from tests.rig import Client, Rig, a_set

YEARS_MS = 3650 * 86_400_000
WRONG = pytest.mark.parametrize(
    "wrong_ms",
    [
        pytest.param(0, id="right"),
        pytest.param(3_600_000, id="an-hour-ahead-once"),
        pytest.param(YEARS_MS, id="ten-years-ahead-once"),
        pytest.param(-YEARS_MS, id="ten-years-behind-once"),
    ],
)
WAITED_S = 7


def insert(client: Client, _id: int) -> None:
    client.ok({"insert": "orders", "documents": [{"_id": _id}], "writeConcern": {"w": 1}}, "shop")


def insert_by_a_wrong_clock(client: Client, wrong_ms: int) -> None:
    client.member.clock.set_wall_ahead(wrong_ms)
    insert(client, 1)
    client.member.clock.set_wall_ahead(0)


@pytest.fixture
def three() -> Iterator[Rig]:
    with a_set(3) as made:
        yield made


@WRONG
def test_of_members_and_of_the_commit_point(three: Rig, wrong_ms: int) -> None:
    client = three.client()
    insert_by_a_wrong_clock(client, wrong_ms)
    three.until(three.cluster.converged)
    three.cluster.cut(["c"])
    three.stop_disk("b")
    insert(client, 2)
    three.wait(WAITED_S)
    status = client.ok({"replSetGetStatus": 1}, "admin")
    lags = {row["name"]: row["lagMillis"] for row in status["members"]}
    assert lags[client.member.host] == 0
    assert (WAITED_S - 1) * 1000 < lags[three.cluster.host("c")] < 3 * WAITED_S * 1000
    assert (WAITED_S - 1) * 1000 < status["commitPointLagMillis"] < (WAITED_S + 1) * 1000
    assert status["blockingSince"] == DateTime(client.member.clock.wall_ms() - status["commitPointLagMillis"])
    remarks = [row["why"] for row in status["remarks"]]
    assert any("a primary's clock was ahead" in why for why in remarks) is (wrong_ms > 0)
    three.cluster.heal()
    three.start_disk("b")


@WRONG
def test_of_a_consumer_and_of_the_archive(client: Client, member: RunningMember, wrong_ms: int) -> None:
    client.ok({"create": "orders"}, "shop")
    client.rig.wait(1)  # what comes in the first moment of a member counts as older than it
    insert_by_a_wrong_clock(client, wrong_ms)
    client.ok({"replSetConsumerCreate": "c", "ns": "shop.orders", "ackTimeoutMS": 5_000}, "admin")
    archived = ArchiveStatus(ArchiveRecord(through=Position(member.store.last_applied, member.store.chain)))
    insert(client, 2)
    client.rig.wait(WAITED_S)
    (consumer,) = client.ok({"replSetConsumers": "c"}, "admin")["consumers"]
    assert consumer["lagSecs"] == WAITED_S
    assert archived.lag_s(member) == WAITED_S
    assert age_ms(member, client.rig.newest()) // 1000 == WAITED_S

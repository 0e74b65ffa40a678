"""What drivers need of the wire port, with PyMongo: fail points, streams, and a failover seen at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymongo
import pytest
from pymongo.cursor import CursorType
from pymongo.errors import AutoReconnect, ExecutionTimeout, NotPrimaryError, OperationFailure

from replset.cli.local_set import LocalMember, LocalSet, wait_until
from tests.integration.conftest import MakeSet
from tests.integration.talk import run

Client = pymongo.MongoClient[dict[str, Any]]
NEVER_MS = 600_000
"""The heartbeat of a client that notices nothing by it."""


def connect(local: LocalSet, **options: Any) -> Client:
    hosts = ",".join(member.host for member in local.members)
    return pymongo.MongoClient(
        f"mongodb://{hosts}/?replicaSet={local.name}", serverSelectionTimeoutMS=20_000, **options
    )


@contextmanager
def fail_point(member: LocalMember, mode: object, name: str = "failCommand", **data: object) -> Iterator[None]:
    run(member, {"configureFailPoint": name, "mode": mode, "data": data}, "admin")
    try:
        yield
    finally:
        run(member, {"configureFailPoint": name, "mode": "off"}, "admin")


def wait_for_other_primary(client: Client, old: str) -> None:
    """Wait until the client knows it. The client is asked for nothing, which would make it look."""

    def knows_it() -> bool:
        servers = client.topology_description.server_descriptions().values()
        primaries = ["{}:{}".format(*server.address) for server in servers if server.server_type_name == "RSPrimary"]
        return bool(primaries) and old not in primaries

    wait_until(knows_it, 60, "the client to know another primary", every_s=0.005)


def test_a_driver_knows_the_new_primary_without_its_heartbeat(make_set: MakeSet) -> None:
    local = make_set()
    with connect(local, heartbeatFrequencyMS=NEVER_MS) as client:
        client.shop.orders.insert_one({"_id": 1})
        old = local.wait_for_primary()
        run(old, {"replSetStepDown": 5, "secondaryCatchUpPeriodSecs": 4}, "admin")
        wait_for_other_primary(client, old.host)
        client.shop.orders.insert_one({"_id": 2})
        for member in local.members:
            member.command({"replSetFreeze": 0})  # the new primary refuses it
        old = local.wait_for_primary()
        stopping = threading.Thread(target=lambda: local.stop(old))
        stopping.start()
        wait_for_other_primary(client, old.host)
        client.shop.orders.insert_one({"_id": 3})
        stopping.join()


def test_fail_points(make_set: MakeSet) -> None:
    local = make_set(members=1)
    (member,) = local.members
    with connect(local, retryReads=False, retryWrites=False, appname="mine") as client, connect(local) as other:
        orders = client.shop.orders
        orders.insert_many([{"_id": n} for n in range(10)])
        with fail_point(member, {"times": 1}, failCommands=["find"], closeConnection=True, appName="mine"):
            assert other.shop.orders.find_one() is not None
            with pytest.raises(AutoReconnect):
                orders.find_one()
            assert orders.find_one() is not None
        with fail_point(member, {"times": 1}, failCommands=["insert"], errorCode=10107, errorLabels=["X"]):
            with pytest.raises(NotPrimaryError) as failed:
                orders.insert_one({"_id": 10})
            assert failed.value.has_error_label("X")
        with (
            fail_point(member, "alwaysOn", failCommands=["find"], blockConnection=True, blockTimeMS=60_000),
            pytest.raises(ExecutionTimeout),
        ):
            orders.find_one(max_time_ms=20)


def test_a_secondary_that_takes_nothing_more(make_set: MakeSet) -> None:
    local = make_set()
    primary = local.wait_for_primary()
    secondary = next(member for member in local.members if member is not primary)
    insert: dict[str, object] = {"insert": "orders", "documents": [{}], "writeConcern": {"w": 3, "wtimeout": 300}}
    with fail_point(secondary, "alwaysOn", "stopReplProducer"):
        assert run(primary, insert)["writeConcernError"]["code"] == 64
    assert "writeConcernError" not in run(primary, {**insert, "writeConcern": {"w": 3, "wtimeout": 20_000}})


def test_a_capped_collection_is_tailed(make_set: MakeSet) -> None:
    local = make_set(members=1)
    with connect(local) as client:
        log = client.shop.create_collection("log", capped=True, size=1 << 16)
        log.insert_one({"_id": 1})
        tail = log.find(cursor_type=CursorType.TAILABLE_AWAIT).max_await_time_ms(NEVER_MS)  # it must be told
        assert next(tail) == {"_id": 1}
        found: list[object] = []
        waiting = threading.Thread(target=lambda: found.append(next(tail)))
        waiting.start()
        wait_until(lambda: client.admin.command({"currentOp": 1, "op": "getmore"})["inprog"], 60, "the cursor to wait")
        log.insert_one({"_id": 2})
        waiting.join()
        assert found == [{"_id": 2}]
        tail.close()


def test_exhaust_cursors(make_set: MakeSet) -> None:
    local = make_set(members=1)
    with connect(local) as client:
        client.shop.orders.insert_many([{"_id": n} for n in range(1000)])
        cursor = client.shop.orders.find(cursor_type=CursorType.EXHAUST, batch_size=7)
        assert sorted(row["_id"] for row in cursor) == list(range(1000))
        left = client.shop.orders.find(cursor_type=CursorType.EXHAUST, batch_size=7)
        next(left)
        left.close()  # in the middle of its stream: the connection is closed, and the client goes on with another one
        assert client.shop.orders.find_one({"_id": 5}) == {"_id": 5}


def test_an_operation_is_seen_and_killed(make_set: MakeSet) -> None:
    local = make_set(members=1)
    (member,) = local.members
    with connect(local, appname="slow") as client, connect(local) as other:
        client.shop.orders.insert_one({"_id": 1})
        with fail_point(member, "alwaysOn", failCommands=["find"], blockConnection=True, blockTimeMS=60_000):
            failures: list[OperationFailure] = []

            def find() -> None:
                try:
                    client.shop.orders.find_one(comment="kill me")
                except OperationFailure as error:
                    failures.append(error)

            finding = threading.Thread(target=find)
            finding.start()
            rows: list[dict[str, Any]] = []
            while not rows:
                rows = other.admin.command({"currentOp": 1, "command.comment": "kill me"})["inprog"]
            assert (rows[0]["ns"], rows[0]["appName"]) == ("shop.orders", "slow")
            other.shop.orders.insert_one({"_id": 2})
            other.admin.command("killOp", op=rows[0]["opid"])
            finding.join()
            assert [failure.code for failure in failures] == [11601], "it ran while others were answered"
        assert client.shop.orders.find_one() == {"_id": 1}

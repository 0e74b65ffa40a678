"""What drivers need of the wire port, with PyMongo: fail points, streams, and a failover seen at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymongo
import pytest
from pymongo.cursor import CursorType
from pymongo.errors import AutoReconnect, ExecutionTimeout, NotPrimaryError, OperationFailure

from replset.cli.local_set import LocalMember, LocalSet
from tests.integration.conftest import MakeSet
from tests.integration.talk import run

Client = pymongo.MongoClient[dict[str, Any]]
NOTICED_WITHIN_S = 5.0
"""Far below a driver's heartbeat of 10 s; the machine may be busy."""


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


def seconds_to_new_primary(client: Client, old: str) -> float:
    began = time.monotonic()
    while True:
        for server in client.topology_description.server_descriptions().values():
            if server.server_type_name == "RSPrimary" and "{}:{}".format(*server.address) != old:
                return time.monotonic() - began
        assert time.monotonic() - began < 60, "the client knows no other primary"
        time.sleep(0.005)


def test_a_driver_knows_the_new_primary_long_before_its_heartbeat(make_set: MakeSet) -> None:
    local = make_set()
    with connect(local) as client:
        client.shop.orders.insert_one({"_id": 1})
        old = local.wait_for_primary()
        run(old, {"replSetStepDown": 5, "secondaryCatchUpPeriodSecs": 4}, "admin")
        assert seconds_to_new_primary(client, old.host) < NOTICED_WITHIN_S
        client.shop.orders.insert_one({"_id": 2})
        for member in local.members:
            member.command({"replSetFreeze": 0})  # the new primary refuses it
        old = local.wait_for_primary()
        stopping = threading.Thread(target=lambda: local.stop(old))
        stopping.start()
        assert seconds_to_new_primary(client, old.host) < NOTICED_WITHIN_S
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
        with fail_point(member, "alwaysOn", failCommands=["find"], blockConnection=True, blockTimeMS=1000):
            slow = threading.Thread(target=orders.find_one)
            slow.start()
            began = time.monotonic()
            for _ in range(20):
                other.shop.command("ping")
            assert time.monotonic() - began < 0.9, "others are answered meanwhile"
            slow.join()
            with pytest.raises(ExecutionTimeout):
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
        tail = log.find(cursor_type=CursorType.TAILABLE_AWAIT).max_await_time_ms(5_000)
        assert next(tail) == {"_id": 1}
        later = threading.Timer(0.3, lambda: log.insert_one({"_id": 2}))
        later.start()
        began = time.monotonic()
        assert next(tail) == {"_id": 2}
        assert time.monotonic() - began < 4, "it was told at once"
        later.join()
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
            other.admin.command("killOp", op=rows[0]["opid"])
            finding.join()
            assert [failure.code for failure in failures] == [11601]
        assert client.shop.orders.find_one() == {"_id": 1}

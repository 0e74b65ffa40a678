"""A real driver on a real set: PyMongo's commands, sessions, transactions, cursors, and failovers that it sees at once.

`test_real_clients.py` has the writes and transactions of several clients through every kind of failover, and what else
their users do.
"""

from __future__ import annotations

import threading

import pymongo
import pytest
from pymongo.client_session import ClientSession
from pymongo.cursor import CursorType
from pymongo.errors import BulkWriteError, DuplicateKeyError, NotPrimaryError, OperationFailure, WTimeoutError
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import SecondaryPreferred
from pymongo.write_concern import WriteConcern

from replset.local_set import wait_until
from tests.integration.forked import ForkedSet
from tests.integration.talk import Client, connect, others_of, run

MAJORITY = WriteConcern("majority")
NEVER_MS = 600_000
"""The heartbeat of a client that notices nothing by it."""


def test_errors_of_writes(local: ForkedSet) -> None:
    with connect(local) as client:
        orders = client.shop.orders
        assert len(orders.insert_many([{"item": f"item {n}", "qty": n} for n in range(200)]).inserted_ids) == 200
        orders.insert_one({"_id": 1})
        with pytest.raises(DuplicateKeyError):
            orders.insert_one({"_id": 1})
        with pytest.raises(BulkWriteError) as bulk:
            orders.insert_many([{"_id": 1}, {"_id": 2}], ordered=False)
        assert bulk.value.details["nInserted"] == 1
        assert len(list(orders.find({"qty": {"$gte": 100}}, {"item": 1}).sort("qty", -1).batch_size(10))) == 100
        for member in others_of(local, local.wait_for_primary()):
            local.kill(member)
        with pytest.raises(WTimeoutError):
            orders.with_options(write_concern=WriteConcern(3, wtimeout=200)).insert_one({"_id": "on the primary"})


def wait_for_other_primary(client: Client, old: str) -> None:
    """Wait until the client knows it. The client is asked for nothing, which would make it look."""

    def knows_it() -> bool:
        servers = client.topology_description.server_descriptions().values()
        primaries = ["{}:{}".format(*server.address) for server in servers if server.server_type_name == "RSPrimary"]
        return bool(primaries) and old not in primaries

    wait_until(knows_it, 60, "the client to know another primary", every_s=0.005)


def test_a_new_primary_is_known_without_a_heartbeat(local: ForkedSet) -> None:
    """After a step-down, and after SIGTERM, at which a primary hands over."""
    with connect(local, heartbeatFrequencyMS=NEVER_MS) as client:
        client.shop.orders.insert_one({"_id": 1})
        old = local.wait_for_primary()
        run(old, {"replSetStepDown": 5, "secondaryCatchUpPeriodSecs": 4}, "admin")
        wait_for_other_primary(client, old.host)
        client.shop.orders.insert_one({"_id": 2})
        for member in local.members:
            member.command({"replSetFreeze": 0})  # the new primary refuses it
        old = local.wait_for_primary()
        stopping = threading.Thread(target=local.stop, args=(old,))
        stopping.start()
        wait_for_other_primary(client, old.host)
        client.shop.orders.insert_one({"_id": 3})
        stopping.join()


def test_cursors(local: ForkedSet) -> None:
    with connect(local) as client:
        client.shop.orders.insert_many([{"_id": n} for n in range(1000)])
        cursor = client.shop.orders.find(cursor_type=CursorType.EXHAUST, batch_size=7)
        assert sorted(row["_id"] for row in cursor) == list(range(1000))
        left = client.shop.orders.find(cursor_type=CursorType.EXHAUST, batch_size=7)
        next(left)
        left.close()  # in the middle of its stream: the connection is closed, and the client goes on with another one
        assert client.shop.orders.find_one({"_id": 5}) == {"_id": 5}

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


def test_transactions(local: ForkedSet) -> None:
    """In several collections, and two that write the same document."""
    with connect(local) as client:

        def fill(session: ClientSession) -> None:
            for name in ("one", "two"):
                client.shop[name].insert_many([{"_id": n} for n in range(50)], session=session)
            client.shop.one.delete_many({"_id": {"$gte": 40}}, session=session)
            assert client.shop.one.find_one_and_update({"_id": 1}, {"$set": {"x": 1}}, session=session) == {"_id": 1}
            assert len(list(client.shop.one.find({}, batch_size=7, session=session))) == 40

        with client.start_session() as session:
            session.with_transaction(fill, write_concern=MAJORITY)
        for member in local.members:
            with pymongo.MongoClient(member.host, directConnection=True) as direct:
                there = direct.shop.with_options(read_preference=SecondaryPreferred())
                with direct.start_session(snapshot=True) as session:
                    assert len(list(there.one.find(session=session))) == 40

        one, two = client.start_session(), client.start_session()
        one.start_transaction()
        two.start_transaction()
        client.shop.one.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=one)
        with pytest.raises(OperationFailure) as conflict:
            client.shop.one.update_one({"_id": 1}, {"$inc": {"n": 10}}, session=two)
        assert (conflict.value.code, conflict.value.has_error_label("TransientTransactionError")) == (112, True)
        two.abort_transaction()
        one.commit_transaction()
        assert client.shop.one.find_one({"_id": 1}) == {"_id": 1, "x": 1, "n": 1}


def test_snapshot_causal_and_linearizable_reads(local: ForkedSet) -> None:
    with connect(local) as client:
        things = client.shop.get_collection("things", write_concern=MAJORITY)
        things.insert_many([{"_id": n} for n in range(5)])
        there = things.with_options(read_preference=SecondaryPreferred(), read_concern=ReadConcern("majority"))
        with client.start_session(snapshot=True) as session:
            assert len(list(things.find(session=session))) == 5
            things.insert_one({"_id": 5})
            for _ in range(5):
                assert len(list(things.find(session=session))) == 5
                assert len(there.with_options(read_concern=None).distinct("_id", session=session)) == 5
        with client.start_session(causal_consistency=True) as session:
            for number in range(10, 40):
                things.insert_one({"_id": number}, session=session)
                assert there.find_one({"_id": number}, session=session) == {"_id": number}
        linearizable = things.with_options(read_concern=ReadConcern("linearizable"))
        assert linearizable.find_one({"_id": 39}) == {"_id": 39}
        with pytest.raises(NotPrimaryError, match="linearizable"):
            linearizable.with_options(read_preference=SecondaryPreferred()).find_one({"_id": 39})

"""PyMongo's sessions on a real set: with_transaction through stepDown and kill, conflicts, snapshots, causal reads."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymongo
import pytest
from pymongo.client_session import ClientSession
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import SecondaryPreferred
from pymongo.write_concern import WriteConcern

from tests.integration.conftest import MakeSet
from tests.integration.talk import all_counted
from tests.integration.test_drivers import Client, connect

MAJORITY = WriteConcern("majority")
ACCOUNTS = 6


class Movers:
    """Threads that move amounts between accounts in with_transaction. done: the tokens of those that returned."""

    def __init__(self, client: Client) -> None:
        self._accounts = client.bank.accounts
        self._client = client
        self._numbers = itertools.count(1)
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(3)]
        self.done: list[int] = []
        self.errors: list[PyMongoError] = []

    def _run(self, seed: int) -> None:
        rng = random.Random(seed)
        while not self._stop.is_set():
            number, amount = next(self._numbers), rng.randrange(1, 50)
            one, other = rng.sample(range(ACCOUNTS), 2)

            def move(
                session: ClientSession, number: int = number, moves: Any = ((one, -amount), (other, amount))
            ) -> None:
                for account, change in moves:
                    found = self._accounts.find_one({"_id": account}, session=session)
                    assert found is not None
                    balance = found["n"] + change
                    self._accounts.update_one({"_id": account}, {"$set": {"n": balance}}, session=session)
                self._client.bank.moves.insert_one({"_id": number}, session=session)

            try:
                with self._client.start_session() as session:
                    session.with_transaction(move, ReadConcern("snapshot"), MAJORITY)
            except PyMongoError as error:
                self.errors.append(error)
            else:
                self.done.append(number)

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()


def test_with_transaction_through_a_stepdown_and_a_kill(make_set: MakeSet) -> None:
    local = make_set()
    with connect(local) as client:
        client.bank.accounts.with_options(write_concern=MAJORITY).insert_many(
            [{"_id": n, "n": 0} for n in range(ACCOUNTS)]
        )
        movers = Movers(client)
        with movers.running():
            time.sleep(2)
            local.wait_for_primary().command({"replSetStepDown": 10, "secondaryCatchUpPeriodSecs": 5, "force": True})
            time.sleep(4)
            killed = local.wait_for_primary()
            local.kill(killed)
            time.sleep(5)
            local.start(killed)
            time.sleep(2)
        all_counted(local)
        assert movers.errors == []
        assert len(movers.done) > 10
        moves = [row["_id"] for row in client.bank.moves.find()]
        assert sorted(moves) == sorted(movers.done)
        with client.start_session(snapshot=True) as session:
            assert sum(row["n"] for row in client.bank.accounts.find(session=session)) == 0


def test_two_sessions_that_write_the_same(make_set: MakeSet) -> None:
    local = make_set()
    with connect(local) as client, client.start_session() as one, client.start_session() as two:
        things = client.shop.things
        things.insert_one({"_id": 1, "n": 0})
        one.start_transaction()
        two.start_transaction()
        things.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=one)
        with pytest.raises(OperationFailure) as conflict:
            things.update_one({"_id": 1}, {"$inc": {"n": 10}}, session=two)
        assert conflict.value.code == 112
        assert conflict.value.has_error_label("TransientTransactionError")
        two.abort_transaction()
        plain = threading.Thread(target=things.update_one, args=({"_id": 1}, {"$inc": {"n": 100}}))
        plain.start()
        time.sleep(0.5)
        assert things.find_one({"_id": 1}) == {"_id": 1, "n": 0}
        one.commit_transaction()
        plain.join()
        assert things.find_one({"_id": 1}) == {"_id": 1, "n": 101}


def test_snapshot_and_causal_sessions(make_set: MakeSet) -> None:
    local = make_set()
    with connect(local) as client:
        things = client.shop.get_collection("things", write_concern=MAJORITY)
        things.insert_many([{"_id": n} for n in range(5)])
        there = things.with_options(read_preference=SecondaryPreferred())
        with client.start_session(snapshot=True) as session:
            assert len(list(there.find(session=session))) == 5
            things.insert_one({"_id": 5})
            for _ in range(5):
                assert len(list(there.find(session=session))) == 5
                assert len(there.distinct("_id", session=session)) == 5
        with client.start_session(causal_consistency=True) as session:
            for number in range(10, 40):
                things.insert_one({"_id": number}, session=session)
                assert there.find_one({"_id": number}, session=session) == {"_id": number}


def test_a_transaction_in_several_collections(make_set: MakeSet) -> None:
    local = make_set()
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
                assert len(list(there.two.find())) in (0, 50)

"""PyMongo's retries (`retryWrites`, its default): no error surfaces in a failover, and each write is applied once."""

from __future__ import annotations

import threading
import time
from typing import Any

import pymongo
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import Secondary
from pymongo.write_concern import WriteConcern

from replset.cli.local_set import LocalSet, wait_until
from tests.integration.conftest import MakeSet
from tests.integration.talk import all_counted

WRITERS = 8
CALM_S = 1.0


class Writers:
    """Threads that increment a counter each, one update after the other, and note what they were told."""

    def __init__(self, local: LocalSet) -> None:
        hosts = ",".join(member.host for member in local.members)
        self.client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(
            f"mongodb://{hosts}/?replicaSet={local.name}", serverSelectionTimeoutMS=30_000
        )
        self.counters = self.client.shop.get_collection("counters", write_concern=WriteConcern("majority"))
        self.done = [0] * WRITERS
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(WRITERS)]
        for thread in self._threads:
            thread.start()

    def _write(self, number: int) -> None:
        while not self._stop.is_set():
            try:
                if self.done[number] % 2:
                    changed = self.counters.find_one_and_update(
                        {"_id": number}, {"$inc": {"n": 1}}, return_document=pymongo.ReturnDocument.AFTER
                    )
                    assert changed is not None
                    assert changed["n"] == self.done[number] + 1
                else:
                    self.counters.update_one({"_id": number}, {"$inc": {"n": 1}}, upsert=True)
                self.done[number] += 1
            except Exception as error:
                self.errors.append(f"writer {number}: {error!r}")
                return

    def wait_for_more(self) -> None:
        """Return once each of them has written ten more times, or one of them has failed."""
        before = list(self.done)

        def is_done() -> bool:
            return bool(self.errors) or all(now >= was + 10 for was, now in zip(before, self.done, strict=True))

        wait_until(is_done, 60, "ten more writes of each writer")

    def stop(self) -> dict[int, int]:
        """End the threads; return the counters."""
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=60)
        found = {row["_id"]: row["n"] for row in self.counters.find()}
        self.client.close()
        return found


def test_each_increment_is_applied_once_through_a_kill_and_a_stepdown(make_set: MakeSet) -> None:
    local = make_set()
    writers = Writers(local)
    try:
        writers.wait_for_more()
        killed = local.wait_for_primary()
        local.kill(killed)
        writers.wait_for_more()
        local.start(killed)
        all_counted(local)
        time.sleep(CALM_S)
        local.wait_for_primary().command({"replSetStepDown": 10, "secondaryCatchUpPeriodSecs": 5})
        writers.wait_for_more()
    finally:
        counters = writers.stop()
    assert writers.errors == []
    assert counters == dict(enumerate(writers.done))


def test_a_causal_session_reads_its_own_writes_on_secondaries(make_set: MakeSet) -> None:
    local = make_set()
    hosts = ",".join(member.host for member in local.members)
    with pymongo.MongoClient[dict[str, Any]](f"mongodb://{hosts}/?replicaSet={local.name}") as client:
        orders = client.shop.get_collection(
            "orders",
            write_concern=WriteConcern("majority"),
            read_preference=Secondary(),
            read_concern=ReadConcern("majority"),
        )
        with client.start_session(causal_consistency=True) as session:
            for number in range(100):
                orders.insert_one({"_id": number}, session=session)
                assert orders.find_one({"_id": number}, session=session) == {"_id": number}

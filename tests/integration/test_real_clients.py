"""Real clients, unmodified, against four members and an arbiter, while primaries step down, die, hang and restart.

PyMongo, the Node driver and mongosh do the same things at the same time: inserts,
updates, findAndModify, bulk writes and transactions. What they do is in `clients/workload.*`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymongo
import pytest

from replset.local_set import LocalSet, wait_until
from tests.integration.clients.workload import (
    DATABASE,
    ClientHangsError,
    NodeClient,
    SyncClient,
    Tally,
    check,
    failures_of_driver,
    failures_of_mongosh,
    start_driver,
    start_mongosh,
)
from tests.integration.conftest import start_set
from tests.integration.forked import ForkedSet, running_set
from tests.integration.talk import all_counted, others_of

HANGS_FOR_S = 5.0
CALM_S = 1.0
"""How long the clients work undisturbed after each fault: drivers try a write again once only."""


def uri_of(local: LocalSet, **options: object) -> str:
    hosts = ",".join(member.host for member in local.members)
    return "&".join([f"mongodb://{hosts}/?replicaSet={local.name}", *(f"{name}={options[name]}" for name in options)])


def pymongo_uri(local: LocalSet) -> str:
    """Let PyMongo notice a member that hangs: it looks every half second and waits two for an answer."""
    return uri_of(local, heartbeatFrequencyMS=500, connectTimeoutMS=2000)


def node_uri(local: LocalSet) -> str:
    """Let the Node driver learn of a failure from its commands.

    If its monitor is first, it clears the pool. The commands on connections of a cleared pool then fail without the
    labels that lead to another try (`decorateCommandError` of the driver), whatever the server is.

    No wait is without an end, so that a client that hangs says at which step: for a connection, or for an answer.
    """
    limits = {"serverSelectionTimeoutMS": 30_000, "waitQueueTimeoutMS": 30_000, "socketTimeoutMS": 60_000}
    return uri_of(local, serverMonitoringMode="poll", **limits)


def steps_down(local: LocalSet) -> None:
    old = local.wait_for_primary()
    old.command({"replSetStepDown": 10, "secondaryCatchUpPeriodSecs": 5})
    local.wait_for_primary(among=others_of(local, old))


def is_killed(local: LocalSet) -> None:
    old = local.wait_for_primary()
    local.kill(old)
    local.wait_for_primary()
    local.start(old)


def hangs(local: LocalSet) -> None:
    """Stop the primary without ending it; it wakes up among members that have elected another one."""
    old = local.wait_for_primary()
    os.kill(old.pid, signal.SIGSTOP)
    try:
        local.wait_for_primary(among=others_of(local, old))
        time.sleep(HANGS_FOR_S)
    finally:
        os.kill(old.pid, signal.SIGCONT)


def restarts_one_by_one(local: LocalSet) -> None:
    for member in local.members:
        local.stop(member)
        local.start(member)
        all_counted(local)
        time.sleep(CALM_S)


FAULTS: tuple[Callable[[LocalSet], None], ...] = (steps_down, is_killed, hangs, restarts_one_by_one)


def finished(client: SyncClient | NodeClient, local: LocalSet) -> Tally:
    """What it was told. mongosh may hang by itself: with nothing of it at any member, and all its limits over."""
    try:
        return client.finish(200)
    except ClientHangsError as hangs:
        replies: list[Any] = [member.command({"currentOp": 1, "$all": True}) for member in local.members]
        operations = [reply["inprog"] for reply in replies]
        is_waited_for = any(len(rows) > 1 for rows in operations)  # one is the question itself
        if client.name != "mongosh" or is_waited_for:
            raise AssertionError(f"{hangs}\n{operations}") from hangs
        return hangs.tally


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedSet]:
    """Four members and an arbiter."""
    with running_set(tmp_path_factory.mktemp("five") / "set") as made:
        start_set(made, members=4, arbiters=1)
        yield made


def test_what_users_of_node_and_mongosh_do(five: ForkedSet, tmp_path: Path) -> None:
    assert failures_of_driver(uri_of(five)) == []
    assert failures_of_mongosh(uri_of(five), tmp_path) == []


def test_no_write_is_lost_or_applied_twice(five: ForkedSet, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    thread = SyncClient(pymongo_uri(five), "pymongo", stop)
    thread.start()
    clients: list[SyncClient | NodeClient] = [
        thread,
        start_driver(node_uri(five), "node", stop, tmp_path),
        start_mongosh(node_uri(five), "mongosh", stop, tmp_path),
    ]
    try:
        with pymongo.MongoClient(uri_of(five), w="majority") as watcher:
            data = watcher[DATABASE]
            wait_until(lambda: data.documents.find_one({"_id": "mongosh-0"}), 60, "the slowest client to begin")
            for fault in FAULTS:
                print(f"{time.monotonic():.1f} the primary {fault.__name__}")  # errors of clients have the time too
                fault(five)
                all_counted(five)
                time.sleep(CALM_S)
    finally:
        stop.touch()
        tallies = [finished(client, five) for client in clients]
    rounds = [(tally.name, tally.rounds) for tally in tallies]
    assert all(tally.rounds > 5 for tally in tallies if not tally.is_cut), rounds  # mongosh may hang in the first ones
    all_counted(five)
    with pymongo.MongoClient(uri_of(five), readConcernLevel="majority") as reader:
        check(tallies, reader[DATABASE])

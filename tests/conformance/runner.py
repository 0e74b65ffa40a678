"""Runs one test of a file: requirements, entities, initial data, operations, events, outcome."""

from __future__ import annotations

import copy
import enum
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partialmethod
from typing import Any

import pymongo
from pymongo import common
from pymongo.client_session import ClientSession
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.synchronous.client_session import _TxnState
from pymongo.write_concern import WriteConcern

from tests.conformance import events
from tests.conformance.entities import Client, Entities, OperationThread, UnsupportedError
from tests.conformance.errors import check_error
from tests.conformance.matching import Matcher, MismatchError
from tests.conformance.operations import run_operation
from tests.conformance.requirements import Server, unmet
from tests.conformance.suites import SpecFile

TEST_ENDS_WITHIN_S = 60.0
EVENT_WITHIN_S = 10.0


class Status(enum.Enum):
    """How a test ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Result:
    """How one test ended, and why if it did not pass."""

    suite: str
    file: str
    test: str
    status: Status
    reason: str = ""
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.suite}/{self.file}: {self.test}"


@contextmanager
def fast_monitoring() -> Iterator[None]:
    """Let PyMongo look at a server again after 0.1 s rather than 10 s (0.5 s when asked to), as its own tests do."""
    before = common.HEARTBEAT_FREQUENCY, common.MIN_HEARTBEAT_INTERVAL
    common.HEARTBEAT_FREQUENCY, common.MIN_HEARTBEAT_INTERVAL = 0.1, 0.1
    try:
        yield
    finally:
        common.HEARTBEAT_FREQUENCY, common.MIN_HEARTBEAT_INTERVAL = before


class Runner:
    """Runs tests one after the other against the set at `hosts`."""

    def __init__(self, hosts: Iterable[str], set_name: str) -> None:
        self._hosts = tuple(hosts)
        self._uri = f"mongodb://{','.join(self._hosts)}/?replicaSet={set_name}"
        self._client: Client = pymongo.MongoClient(self._uri, serverSelectionTimeoutMS=20_000)
        self._server = Server.of(self._client)

    def close(self) -> None:
        self._client.close()

    def run(self, file: SpecFile, test: Mapping[str, Any]) -> Result:
        """Run one test; a test that hangs is left behind in its thread."""
        reason = (
            test.get("skipReason")
            or unmet(self._server, file.content.get("runOnRequirements"))
            or unmet(self._server, test.get("runOnRequirements"))
        )
        if reason:
            return Result(file.suite, file.name, test["description"], Status.SKIPPED, reason)
        ended = (Status.FAILED, f"the test did not end within {TEST_ENDS_WITHIN_S:.0f} s")

        def work() -> None:
            nonlocal ended
            ended = self._run_in_thread(file, test)

        start = time.monotonic()
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(TEST_ENDS_WITHIN_S)
        self._clean_up()
        return Result(file.suite, file.name, test["description"], *ended, time.monotonic() - start)

    def _run_in_thread(self, file: SpecFile, test: Mapping[str, Any]) -> tuple[Status, str]:
        entities = Entities(self._uri)
        try:
            content, test = copy.deepcopy(file.content), copy.deepcopy(test)
            entities.create(content.get("createEntities", ()))
            self._insert(content.get("initialData", ()))
            entities.advance_cluster_times(self._client._topology.max_cluster_time())
            TestExecution(self._client, entities).run(test)
        except UnsupportedError as missing:
            return Status.SKIPPED, f"PyMongo does not support {missing}"
        except MismatchError as mismatch:
            return Status.FAILED, str(mismatch)
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1].name
            details = getattr(error, "details", None) or {}
            code = f" ({details['code']})" if isinstance(details, dict) and "code" in details else ""
            return Status.FAILED, f"{type(error).__name__}{code} in {where}: {str(error).split(', full error')[0]}"
        finally:
            with suppress(PyMongoError):
                entities.close()
        return Status.PASSED, ""

    def _insert(self, collections: Iterable[Mapping[str, Any]]) -> None:
        for one in collections:
            database = self._client.get_database(one["databaseName"], write_concern=WriteConcern("majority"))
            database.drop_collection(one["collectionName"])
            options = one.get("createOptions", {})
            if options or not one["documents"]:
                database.create_collection(one["collectionName"], check_exists=False, **options)
            if one["documents"]:
                database[one["collectionName"]].insert_many(one["documents"])

    def _clean_up(self) -> None:
        """End what a test may have left: fail points on any member and open transactions."""
        for host in self._hosts:
            with suppress(PyMongoError), pymongo.MongoClient(host, directConnection=True) as direct:
                for name in ("failCommand", "onPrimaryTransactionalWrite", "failGetMoreAfterCursorCheckout"):
                    with suppress(PyMongoError):
                        direct.admin.command("configureFailPoint", name, mode="off")
                with suppress(PyMongoError):
                    direct.admin.command("killAllSessions", [])


class TestExecution:
    """Runs the operations of one test and checks what they did."""

    def __init__(self, internal: Client, entities: Entities) -> None:
        self._internal = internal
        self._entities = entities
        self._matcher = Matcher(entities.__getitem__, entities.lsid)

    def run(self, test: Mapping[str, Any]) -> None:
        for operation in test["operations"]:
            self.operate(operation)
        for expectation in test.get("expectEvents", ()):
            events.check(self._matcher, self._entities.recorders[expectation["client"]], expectation)
        for collection in test.get("outcome", ()):
            self._check_outcome(collection)

    def operate(self, operation: Mapping[str, Any]) -> BaseException | None:
        """Run one operation; return an error that the test expects or lets pass."""
        name, raw = operation["name"], operation.get("arguments", {})
        if operation["object"] == "testRunner":
            getattr(self, f"_do_{name}", self._unknown)(**raw)
            return None
        if "callback" in raw:
            raw = {**raw, "callback": self._callback(raw["callback"])}
        try:
            result = run_operation(self._entities, self._entities[operation["object"]], name, raw)
        except (UnsupportedError, MismatchError):
            raise
        except Exception as error:
            if operation.get("ignoreResultAndError"):
                return error
            if "expectError" not in operation:
                raise
            check_error(self._matcher, operation["expectError"], error)
            return error
        if "expectError" in operation:
            raise MismatchError(f"{name} raised no error; expected {operation['expectError']!r}")
        if "expectResult" in operation:
            self._matcher.match(operation["expectResult"], result, name, root=name != "distinct")
        if "saveResultAsEntity" in operation:
            self._entities[operation["saveResultAsEntity"]] = result
        return None

    def _callback(self, operations: list[Mapping[str, Any]]) -> Callable[[ClientSession], None]:
        def run_all(_: ClientSession) -> None:
            for operation in operations:
                error = self.operate(operation)
                if error is not None:
                    raise error

        return run_all

    def _check_outcome(self, expected: Mapping[str, Any]) -> None:
        collection = self._internal[expected["databaseName"]].get_collection(
            expected["collectionName"], read_concern=ReadConcern("local")
        )
        documents = list(collection.find({}, sort=[("_id", 1)]))
        name = f"the outcome in {expected['collectionName']}"
        self._matcher.match(sorted(expected["documents"], key=lambda one: one["_id"]), documents, name, root=False)

    def _unknown(self, **_: Any) -> None:
        raise UnsupportedError("an operation of the test runner")

    def _recorder(self, client: str) -> events.Recorder:
        return self._entities.recorders[client]

    # The operations of the test runner itself, named as in the format.

    def _do_failPoint(self, client: str, failPoint: Mapping[str, Any], session: str | None = None) -> None:
        used = None if session is None else self._entities[session]
        self._entities[client].admin.command(dict(failPoint), session=used)

    def _do_targetedFailPoint(self, session: str, failPoint: Mapping[str, Any]) -> None:
        raise UnsupportedError("sessions pinned to a mongos of a replica set")

    def _do_createEntities(self, entities: list[Mapping[str, Any]]) -> None:
        self._entities.create(entities)

    def _do_wait(self, ms: int) -> None:
        time.sleep(ms / 1000)

    def _do_runOnThread(self, thread: str, operation: Mapping[str, Any]) -> None:
        runner: OperationThread = self._entities[thread]
        runner.schedule(lambda: self.operate(operation))

    def _do_waitForThread(self, thread: str) -> None:
        self._entities[thread].wait()

    def _do_waitForEvent(self, client: str, event: dict[str, Any], count: int) -> None:
        def seen() -> bool:
            return self._recorder(client).matching(self._matcher, event) >= count

        _wait_until(seen, EVENT_WITHIN_S, f"{count} of {event}")

    def _do_assertEventCount(self, client: str, event: dict[str, Any], count: int) -> None:
        found = self._recorder(client).matching(self._matcher, event)
        _require(found == count, f"{found} events match {event}; expected {count}")

    def _do_assertNumberConnectionsCheckedOut(self, client: str, connections: int) -> None:
        found = self._recorder(client).checked_out
        _require(found == connections, f"{found} connections are checked out; expected {connections}")

    def _do_assertSessionPinned(self, session: str, pinned: bool = True) -> None:
        found = self._entities[session]._pinned_address is not None
        _require(found is pinned, f"the session is{' ' if found else ' not '}pinned")

    _do_assertSessionUnpinned = partialmethod(_do_assertSessionPinned, pinned=False)

    def _do_assertSessionDirty(self, session: str, dirty: bool = True) -> None:
        found = self._entities[session]._server_session.dirty
        _require(found is dirty, f"the session is{' ' if found else ' not '}dirty")

    _do_assertSessionNotDirty = partialmethod(_do_assertSessionDirty, dirty=False)

    def _do_assertSessionTransactionState(self, session: str, state: str) -> None:
        states = {value: name.lower() for name, value in vars(_TxnState).items() if not name.startswith("_")}
        found = states[self._entities[session]._transaction.state].replace("committed_empty", "committed")
        _require(found == state, f"the transaction is {found}; expected {state}")

    def _do_assertSameLsidOnLastTwoCommands(self, client: str, same: bool = True) -> None:
        started = [event for name, event in self._recorder(client).events() if name == "commandStartedEvent"]
        first, second = (event.command["lsid"] for event in started[-2:])
        _require((first == second) is same, f"the sessions of the last two commands: {first} and {second}")

    _do_assertDifferentLsidOnLastTwoCommands = partialmethod(_do_assertSameLsidOnLastTwoCommands, same=False)

    def _do_assertCollectionExists(self, databaseName: str, collectionName: str, exists: bool = True) -> None:
        found = self._internal[databaseName].list_collection_names()
        _require((collectionName in found) is exists, f"the collections are {found}")

    _do_assertCollectionNotExists = partialmethod(_do_assertCollectionExists, exists=False)

    def _do_assertIndexExists(
        self, databaseName: str, collectionName: str, indexName: str, exists: bool = True
    ) -> None:
        found = [index["name"] for index in self._internal[databaseName][collectionName].list_indexes()]
        _require((indexName in found) is exists, f"the indexes are {found}")

    _do_assertIndexNotExists = partialmethod(_do_assertIndexExists, exists=False)

    def _do_recordTopologyDescription(self, client: str, id: str) -> None:
        self._entities[id] = self._entities[client].topology_description

    def _do_assertTopologyType(self, topologyDescription: str, topologyType: str) -> None:
        found = self._entities[topologyDescription].topology_type_name
        _require(found == topologyType, f"the topology is {found}; expected {topologyType}")

    def _do_waitForPrimaryChange(self, client: str, priorTopologyDescription: str, timeoutMS: int = 10_000) -> None:
        prior = self._entities[priorTopologyDescription].server_descriptions().values()
        before = {server.address for server in prior if server.server_type_name == "RSPrimary"}

        def changed() -> bool:
            return self._entities[client].primary not in {None, *before}

        _wait_until(changed, timeoutMS / 1000, "another primary")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise MismatchError(otherwise)


def _wait_until(condition: Callable[[], bool], within_s: float, what: str) -> None:
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            raise MismatchError(f"waited {within_s:.0f} s in vain for {what}")
        time.sleep(0.02)

"""The entities of one test: clients, databases, collections, sessions, buckets, threads, cursors and saved values."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import pymongo
from gridfs import GridFSBucket
from pymongo.client_session import ClientSession, TransactionOptions
from pymongo.errors import InvalidOperation
from pymongo.server_api import ServerApi

from tests.conformance.events import Recorder
from tests.conformance.names import common_options

Client = pymongo.MongoClient[dict[str, Any]]
THREAD_ENDS_WITHIN_S = 10.0


class UnsupportedError(Exception):
    """PyMongo cannot do what a test asks. The test is skipped; the message says what it was."""


class Entities:
    """Makes and keeps entities by name. `close` ends sessions, threads and clients."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._values: dict[str, Any] = {}
        self._lsids: dict[str, Mapping[str, Any]] = {}
        self._closing = ExitStack()
        self.recorders: dict[str, Recorder] = {}

    def __getitem__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AssertionError(f"the test file has no entity {name}") from None

    def __setitem__(self, name: str, value: Any) -> None:
        self._values[name] = value

    def lsid(self, name: str) -> Mapping[str, Any]:
        """Return the id of a session, of one that has ended too."""
        return self._lsids[name]

    def create(self, specs: Iterable[Mapping[str, Any]]) -> None:
        for spec in specs:
            ((kind, fields),) = spec.items()
            make: Callable[[dict[str, Any]], Any] = getattr(self, f"_make_{kind}", self._make_unknown)
            self._values[fields["id"]] = make(fields)

    def close(self) -> None:
        self._closing.close()

    def advance_cluster_times(self, cluster_time: Any) -> None:
        """Let every session know of the newest time, as the format asks before a test's operations."""
        if cluster_time is not None:
            for value in self._values.values():
                if isinstance(value, ClientSession):
                    value.advance_cluster_time(cluster_time)

    def _make_unknown(self, fields: dict[str, Any]) -> Any:
        raise UnsupportedError(f"entities like {fields['id']}")

    def _make_client(self, fields: dict[str, Any]) -> Client:
        if "autoEncryptOpts" in fields:
            raise UnsupportedError("client-side encryption")
        recorder = Recorder(
            fields.get("observeEvents", ()),
            fields.get("ignoreCommandMonitoringEvents", ()),
            sensitive=fields.get("observeSensitiveCommands", False),
        )
        options = {"serverSelectionTimeoutMS": 10_000, **fields.get("uriOptions", {})}
        if "serverApi" in fields:
            api = fields["serverApi"]
            options["server_api"] = ServerApi(api["version"], api.get("strict"), api.get("deprecationErrors"))
        client: Client = pymongo.MongoClient(self._uri, event_listeners=[recorder], **options)
        self._closing.callback(client.close)
        self.recorders[fields["id"]] = recorder
        return client

    def _make_database(self, fields: dict[str, Any]) -> Any:
        return self[fields["client"]].get_database(
            fields["databaseName"], **common_options(fields.get("databaseOptions", {}))
        )

    def _make_collection(self, fields: dict[str, Any]) -> Any:
        return self[fields["database"]].get_collection(
            fields["collectionName"], **common_options(fields.get("collectionOptions", {}))
        )

    def _make_session(self, fields: dict[str, Any]) -> ClientSession:
        options = common_options(fields.get("sessionOptions", {}))
        if "default_transaction_options" in options:
            options["default_transaction_options"] = TransactionOptions(
                **common_options(options["default_transaction_options"])
            )
        if "snapshot_time" in options:
            raise UnsupportedError("snapshotTime of a session")
        session: ClientSession = self[fields["client"]].start_session(**options)
        self._closing.callback(_end, session)
        self._lsids[fields["id"]] = session.session_id
        return session

    def _make_bucket(self, fields: dict[str, Any]) -> GridFSBucket:
        return GridFSBucket(self[fields["database"]], **common_options(fields.get("bucketOptions", {})))

    def _make_thread(self, fields: dict[str, Any]) -> OperationThread:
        thread = OperationThread()
        thread.start()
        self._closing.callback(thread.schedule, None)
        return thread


def _end(session: ClientSession) -> None:
    """End a session whose client may be closed already."""
    try:
        session.end_session()
    except InvalidOperation:
        return


class OperationThread(threading.Thread):
    """Runs the operations that a test schedules on it, in order, and keeps the first error."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._jobs: queue.Queue[Callable[[], object] | None] = queue.Queue()
        self._error: BaseException | None = None

    def schedule(self, job: Callable[[], object] | None) -> None:
        """Queue a job; None ends the thread after those before it."""
        self._jobs.put(job)

    def run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except BaseException as error:
                self._error = self._error or error

    def wait(self) -> None:
        """Wait for its end; raise the error of an operation that failed."""
        self.schedule(None)
        self.join(THREAD_ENDS_WITHIN_S)
        if self.is_alive():
            raise AssertionError("a thread still runs its last operation")
        if self._error is not None:
            raise self._error

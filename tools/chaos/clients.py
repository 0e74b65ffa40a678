"""Threads that write and read over the wire port while things break, and note everything in the history."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from replset.bson import Timestamp
from replset.client import WireClient
from replset.errors import ReplError
from replset.local_set import LocalMember
from tools.chaos.history import History, Read, Write, fill_in

DATABASE, COLLECTION = "chaos", "things"
GREEDY = "greedy"
"""The collection of hostile clients; they drop it."""
FIRST_INSERTED = 1_000_000
"""Inserted documents have keys from here on, updated ones below."""
UPDATES_PER_KEY = 60
TIMEOUT_S = 5.0
CONCERNS: dict[str, dict[str, object]] = {
    "w1": {"w": 1, "j": False},
    "journaled": {"w": 1, "j": True},
    "majority": {"w": "majority", "wtimeout": 4_000},
    "two": {"w": 2, "wtimeout": 4_000},
    "two_journaled": {"w": 2, "j": True, "wtimeout": 4_000},
}
DRAWN = ("w1", "w1", "journaled", "journaled", "majority", "majority", "two", "two_journaled")


class Clients:
    """`start` them, `stop` them; each thread draws from a seed of its own."""

    def __init__(self, members: Sequence[LocalMember], history: History, rng: random.Random) -> None:
        self._members = list(members)
        self._history = history
        self._rng = rng
        self._numbers = itertools.count(1)
        self._stopped = threading.Event()
        self._may_write = threading.Event()
        self._may_write.set()
        self._threads: list[threading.Thread] = []
        self._deletable: list[int] = []
        self._primary: LocalMember | None = None

    def start(self, writers: int = 4, readers: int = 2) -> None:
        for role, count in ((self._write_on, writers), (self._read_on, readers)):
            for _ in range(count):
                seed = self._rng.getrandbits(64)
                thread = threading.Thread(target=role, args=(random.Random(seed),), daemon=True)
                self._threads.append(thread)
                thread.start()

    def stop(self) -> None:
        """Let what is under way end."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    # --- writing -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Nobody begins a write in the block."""
        self._may_write.clear()
        try:
            yield
        finally:
            self._may_write.set()

    def _write_on(self, rng: random.Random) -> None:
        connections = _Connections()
        while not self._stopped.wait(rng.uniform(0.005, 0.05)):
            self._may_write.wait()
            known = self._primary
            target = known if known is not None and rng.random() < 0.8 else rng.choice(self._members)
            write = self._history.begin(self._drawn(rng, target))
            try:
                fill_in(write, connections.ask(target, _command_of(write)))
            except _NothingSentError as error:
                write.outcome, write.detail = "refused", str(error)
            except ReplError as error:
                write.detail = str(error)
            write.ended = self._history.now()
            self._history.end(write)
            if write.outcome == "ok":
                self._primary = target
                if write.kind == "insert" and write.concern == "majority":
                    self._deletable.append(write.key)
            elif known is target:
                self._primary = None
        connections.close()

    def _drawn(self, rng: random.Random, target: LocalMember) -> Write:
        number, draw = next(self._numbers), rng.random()
        if draw < 0.1 and len(self._deletable) > 3:
            kind, key = "delete", self._deletable.pop(rng.randrange(3))  # each is deleted once at most
        elif draw < 0.4:
            kind, key = "update", number // UPDATES_PER_KEY
        else:
            kind, key = "insert", FIRST_INSERTED + number
        return Write(number, kind, key, rng.choice(DRAWN), target.name, self._history.now())

    # --- reading -------------------------------------------------------------------------------------------------

    def _read_on(self, rng: random.Random) -> None:
        connections = _Connections()
        while not self._stopped.wait(rng.uniform(0.2, 0.6)):
            target = rng.choice(self._members)
            after = self._history.newest_majority_time()
            read = self._history.begin(Read(target.name, after, self._history.now()))
            concern: dict[str, object] = {"level": "majority"}
            if after:
                concern["afterClusterTime"] = Timestamp(after >> 31, after & 0x7FFFFFFF)
            try:
                reply = connections.ask(target, {**_FIND, "readConcern": concern, "maxTimeMS": 4_000})
                documents: list[dict[str, Any]] = []
                while reply.get("ok") == 1.0:  # a member that is asked much gives small batches
                    cursor = reply["cursor"]
                    documents += cursor.get("firstBatch", cursor.get("nextBatch"))
                    if not cursor["id"]:
                        read.found, read.keys = numbers_in(documents), [int(document["_id"]) for document in documents]
                        break
                    reply = connections.ask(target, {"getMore": cursor["id"], "collection": COLLECTION})
                else:
                    read.detail = f"{reply.get('code')}: {reply.get('errmsg')}"
            except ReplError as error:
                read.detail = str(error)
            read.ended = self._history.now()
            self._history.end(read)
        connections.close()


_FIND: dict[str, object] = {
    "find": COLLECTION,
    "filter": {},
    "batchSize": 10_000_000,
    "$readPreference": {"mode": "secondaryPreferred"},
}


def numbers_in(documents: Sequence[dict[str, Any]]) -> list[int]:
    """The numbers of the writes that these documents show."""
    return [int(number) for document in documents for number in document["numbers"]]


def _command_of(write: Write) -> dict[str, object]:
    concern = {"writeConcern": CONCERNS[write.concern]}
    if write.kind == "insert":
        return {"insert": COLLECTION, "documents": [{"_id": write.key, "numbers": [write.number]}], **concern}
    if write.kind == "update":
        change = {"q": {"_id": write.key}, "u": {"$push": {"numbers": write.number}}, "upsert": True}
        return {"update": COLLECTION, "updates": [change], **concern}
    return {"delete": COLLECTION, "deletes": [{"q": {"_id": write.key}, "limit": 1}], **concern}


class _NothingSentError(ReplError):
    """No connection came about."""


class _Connections:
    """One connection to each member, made anew after any failure."""

    def __init__(self) -> None:
        self._open: dict[str, WireClient] = {}

    def ask(self, member: LocalMember, command: dict[str, object]) -> dict[str, Any]:
        client = self._open.pop(member.host, None)
        if client is None:
            try:
                client = WireClient(member.host, timeout_s=TIMEOUT_S)
            except ReplError as error:
                raise _NothingSentError(error.message) from error
        try:
            reply = client.command(DATABASE, command)
        except BaseException:
            client.close()
            raise
        self._open[member.host] = client
        return reply

    def close(self) -> None:
        for client in self._open.values():
            client.close()

"""Clients that write and read, and the history of what they asked and what they were told, as plain data."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from replset.bson import Timestamp
from replset.ids import HostPort, pack_ts
from tests.simulation.kit.clients import Clients
from tests.simulation.kit.loop import SimLoop
from tests.simulation.kit.wire import NoAnswerError, SimClient

DATABASE = "app"
COLLECTION = "things"
SHARED_KEYS = 4

CONCERNS: dict[str, dict[str, object]] = {
    "w1": {"w": 1, "j": False},
    "journaled": {"w": 1, "j": True},
    "majority": {"w": "majority", "wtimeout": 5_000},
}
NOT_APPLIED = frozenset({10107, 13435, 13436, 11600, 94, 14031})
"""Error codes that say that nothing was done."""


@dataclass(slots=True)
class Write:
    """One write. token: unique in its oplog entry. outcome: ok | fail (not applied, for sure) | unknown."""

    number: int
    kind: str  # insert | update | delete
    id: int
    token: str
    concern: str
    target: HostPort
    invoked_ms: int
    outcome: str = "unknown"
    done_ms: int = -1
    ts: int = 0  # operationTime of the reply, packed
    detail: str = ""

    @property
    def acknowledged(self) -> bool:
        return self.outcome == "ok"


@dataclass(slots=True)
class Read:
    """One majority read of the whole collection with afterClusterTime. found: _id -> token."""

    target: HostPort
    after: int
    invoked_ms: int
    done_ms: int = -1
    found: dict[int, str] | None = field(default=None, repr=False)
    detail: str = ""


@dataclass(slots=True)
class History:
    """Everything that clients did, in the order in which they began."""

    writes: list[Write] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)

    def acknowledged(self, concern: str | None = None) -> list[Write]:
        return [w for w in self.writes if w.acknowledged and concern in (None, w.concern)]


@dataclass(frozen=True, slots=True)
class Mix:
    """How many clients, and how often each does something."""

    writers: int = 4
    readers: int = 2
    pause_ms: tuple[int, int] = (50, 350)


class Workload(Clients):
    """Runs the clients until `stop`."""

    def __init__(
        self,
        loop: SimLoop,
        hosts: list[HostPort],
        rng: random.Random,
        new_client: Callable[[], SimClient],
        mix: Mix | None = None,
    ) -> None:
        self._mix = mix or Mix()
        super().__init__(loop, hosts, rng, new_client, self._mix.pause_ms)
        self._numbers = itertools.count(1)
        self._mine: list[int] = []  # ids that may be deleted, each once
        self.history = History()
        self.primary: HostPort | None = None

    def start(self) -> None:
        for _ in range(self._mix.writers):
            self._launch(self._writer)
        for _ in range(self._mix.readers):
            self._launch(self._reader)

    # --- writing

    async def _writer(self, rng: random.Random) -> None:
        client = self._new_client()
        while not self._stopped:
            await self._pause(rng)
            # A client mostly goes where the primary is; now and then to somebody who may think that he is.
            target = self.primary if self.primary and rng.random() < 0.7 else rng.choice(self._hosts)
            if rng.random() < 0.08:
                await self._scratch(client, target, rng)
            else:
                await self.write(client, self._draw(rng, target))
        client.close()

    async def _scratch(self, client: SimClient, target: HostPort, rng: random.Random) -> None:
        """Make, fill and drop collections: nobody is promised what is in them, but every member must agree on it."""
        name = f"scratch{rng.randrange(3)}"
        documents = [{"_id": rng.randrange(50), "n": n} for n in range(rng.randrange(1, 4))]
        commands: tuple[dict[str, object], ...] = (
            {"insert": name, "documents": documents, "ordered": False},
            {"insert": name, "documents": documents, "ordered": False},
            {"update": name, "updates": [{"q": {"n": {"$gte": 1}}, "u": {"$inc": {"n": 2}}, "multi": True}]},
            {"delete": name, "deletes": [{"q": {"n": 0}, "limit": 0}]},
            {"drop": name},
        )
        with suppress(NoAnswerError):
            await client.call(target, DATABASE, {**rng.choice(commands), "writeConcern": {"w": 1}})

    def _draw(self, rng: random.Random, target: HostPort) -> Write:
        number = next(self._numbers)
        concern = rng.choice(tuple(CONCERNS))
        draw = rng.random()
        if draw < 0.1 and self._mine:
            kind, key = "delete", self._mine.pop(rng.randrange(len(self._mine)))
        elif draw < 0.35:
            kind, key = "update", rng.randrange(SHARED_KEYS)
        else:
            kind, key = "insert", 1000 + number
        return Write(number, kind, key, f"token-{number}-", concern, target, self._loop.now_ms)

    async def write(self, client: SimClient, write: Write) -> Write:
        """Send one write and note what was told of it."""
        self.history.writes.append(write)
        try:
            reply = await client.call(write.target, DATABASE, command_of(write))
        except NoAnswerError as error:
            write.outcome, write.detail = "fail" if error.unsent else "unknown", str(error)
        else:
            judge(write, reply)
        write.done_ms = self._loop.now_ms
        if write.acknowledged:
            self.primary = write.target
            if write.kind == "insert" and write.concern == "majority":
                self._mine.append(write.id)
        elif self.primary == write.target:
            self.primary = None
        return write

    # --- reading

    async def _reader(self, rng: random.Random) -> None:
        client = self._new_client()
        while not self._stopped:
            await self._pause(rng)
            await self._pause(rng)
            await self.read(client, rng.choice(self._hosts))
        client.close()

    async def read(self, client: SimClient, target: HostPort) -> Read:
        """A majority read of everything, not older than the newest write that a majority acknowledged."""
        after = max((write.ts for write in self.history.acknowledged("majority")), default=0)
        read = Read(target, after, self._loop.now_ms)
        self.history.reads.append(read)
        concern: dict[str, object] = {"level": "majority"}
        if after:
            concern["afterClusterTime"] = Timestamp(after >> 31, after & ((1 << 31) - 1))
        command = {
            "find": COLLECTION,
            "filter": {},
            "batchSize": 100_000,
            "readConcern": concern,
            "maxTimeMS": 4_000,
            "$readPreference": {"mode": "secondaryPreferred"},
        }
        try:
            reply = await client.call(target, DATABASE, command)
        except NoAnswerError as error:
            read.detail = str(error)
        else:
            if reply["ok"] == 1:
                read.found = {int(d["_id"]): str(d.get("token")) for d in reply["cursor"]["firstBatch"]}
            else:
                read.detail = f"{reply.get('code')}: {reply.get('errmsg')}"
        read.done_ms = self._loop.now_ms
        return read


def command_of(write: Write) -> dict[str, object]:
    concern = {"writeConcern": CONCERNS[write.concern]}
    match write.kind:
        case "insert":
            return {"insert": COLLECTION, "documents": [{"_id": write.id, "token": write.token}], **concern}
        case "update":
            change: dict[str, object] = {
                "$set": {"token": write.token, f"by{write.number % 3}": write.number},
                "$inc": {"changes": 1},
                "$unset": {f"by{(write.number + 1) % 3}": ""},
            }
            statement = {"q": {"_id": write.id}, "u": change, "upsert": True}
            return {"update": COLLECTION, "updates": [statement], **concern}
        case _:
            return {"delete": COLLECTION, "deletes": [{"q": {"_id": write.id}, "limit": 1}], **concern}


def judge(write: Write, reply: Mapping[str, Any]) -> None:
    """Fill in the outcome from the reply."""
    if reply["ok"] != 1:
        write.outcome = "fail" if reply.get("code") in NOT_APPLIED else "unknown"
        write.detail = f"{reply.get('code')}: {reply.get('errmsg')}"
    elif reply.get("writeErrors"):
        error = reply["writeErrors"][0]
        write.outcome = "fail" if error.get("code") in NOT_APPLIED else "unknown"
        write.detail = str(error)
    elif reply.get("writeConcernError"):
        write.outcome, write.detail = "unknown", str(reply["writeConcernError"].get("errmsg"))
    elif reply.get("n") != 1:
        write.outcome, write.detail = "unknown", f"n: {reply.get('n')}"
    else:
        write.outcome = "ok"
        when = reply["operationTime"]
        write.ts = pack_ts(when.time, when.inc)

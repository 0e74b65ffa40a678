"""Clients that write and read, and the history of their commands and the answers, as plain data."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from replset.bson import Binary, Int64, Timestamp
from replset.ids import OPTIME_NULL, HostPort, OpTime, pack_ts
from tests.simulation.kit.clients import Clients, ClientSite
from tests.simulation.kit.wire import NoAnswerError, SimClient

DATABASE = "app"
COLLECTION = "things"
SHARED_KEYS = 4
CONFIRMED_MAX = 20
SEVERAL_MAX = 9
"""Documents of one insert."""

CONCERNS: dict[str, dict[str, object]] = {
    "w1": {"w": 1, "j": False},
    "journaled": {"w": 1, "j": True},
    "majority": {"w": "majority", "wtimeout": 5_000},
    "two": {"w": 2, "j": False, "wtimeout": 5_000},
    "two journaled": {"w": 2, "j": True, "wtimeout": 5_000},
}
IN_SYNC: dict[str, object] = {"w": "inSync", "wtimeout": 5_000}
OLD_CONCERNS = ("w1", "journaled", "majority")
ALL_CONCERNS = tuple(CONCERNS)
UNSYNCED = frozenset({"w1", "two"})
"""What a loss of power may take from all who had it."""
NOT_APPLIED = frozenset({20, 10107, 13435, 13436, 11600, 94, 14031, 9_900_001})
"""Error codes that say that nothing was done."""


INDEXES: tuple[dict[str, object], ...] = (
    {"key": {"n": -1, "_id": 1}, "name": "by n"},
    {"key": {"token": 1}, "name": "by token", "unique": True},
)
"""Of a scratch collection, and of the one whose writes are judged: no two of its documents have one token."""


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
    optime: OpTime = OPTIME_NULL  # of the reply, once it is acknowledged

    @property
    def acknowledged(self) -> bool:
        return self.outcome == "ok"


@dataclass(slots=True)
class Read:
    """One read of the whole collection, a majority read with afterClusterTime. found: _id -> token.

    first_ms, asked_ms: of a cursor, when its first batch was there and when its last one was asked for.
    """

    target: HostPort
    after: int
    invoked_ms: int
    level: str = "majority"
    done_ms: int = -1
    first_ms: int = -1
    asked_ms: int = -1
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
    """How many clients, and how often each does something.

    concerns: of a write, each as likely as the others. several: how many of the inserts are of several documents.
    cursors: how many of the reads go through a cursor, in small batches. local: how many are at `local`. in_sync:
    writes of a majority ask for `w: "inSync"`, which promises no less. confirms: a client confirms what the others were
    told early. crowd: so many more clients write at one moment, again and again.
    """

    writers: int = 4
    readers: int = 2
    pause_ms: tuple[int, int] = (50, 350)
    concerns: tuple[str, ...] = OLD_CONCERNS
    several: float = 0.0
    cursors: float = 0.0
    local: float = 0.0
    in_sync: bool = False
    confirms: bool = False
    crowd: int = 0


class Workload(Clients):
    """Runs the clients until `stop`."""

    def __init__(self, site: ClientSite, mix: Mix | None = None) -> None:
        self._mix = mix or Mix()
        super().__init__(site, self._mix.pause_ms)
        self._numbers = itertools.count(1)
        self._mine: list[int] = []  # ids that may be deleted, each once
        self.history = History()
        self.confirmed = self.sent_at_once = 0
        self.on_acknowledged: Callable[[Write], None] | None = None

    def begin_with(self, number: int) -> None:
        """Give the first write this number, so that it is none of other clients'."""
        self._numbers = itertools.count(number)

    def start(self) -> None:
        for _ in range(self._mix.writers):
            self._launch(self._writer)
        for _ in range(self._mix.readers):
            self._launch(self._reader)
        if self._mix.confirms:
            self._launch(self._confirmer)
        if self._mix.crowd:
            self._launch(self._crowd)

    # --- writing

    async def _writer(self, rng: random.Random) -> None:
        client = self._new_client()
        while not self._stopped:
            await self._pause(rng)
            target = self._target(rng, 0.7)
            if rng.random() < 0.08:
                await self._scratch(client, target, rng)
            elif self._mix.several and rng.random() < self._mix.several:
                await self._insert_several(client, target, rng)
            else:
                await self.write(client, self._draw(rng, target))
        client.close()

    async def _crowd(self, rng: random.Random) -> None:
        """Many clients write at one moment: their writes are one group of the member, and mostly of one shape."""
        clients = [self._new_client(together=True) for _ in range(self._mix.crowd)]
        sessions = [{"id": Binary(rng.randbytes(16), 4)} for _ in clients]
        for number in itertools.count(1):
            await self._pause(rng)
            if self._stopped:
                break
            target, concern = self._target(rng, 0.9), rng.choice(("w1", "journaled", "majority"))
            with_sessions, odd = rng.random() < 0.5, rng.random() < 0.3
            sent = []
            for client, lsid in zip(clients, sessions, strict=True):
                kind, key = "insert", 1000 + (n := next(self._numbers))
                if odd and rng.random() < 0.3:
                    again = ("insert", sent[0][1].id if sent else key)
                    kind, key = rng.choice((("update", rng.randrange(SHARED_KEYS)), again))
                write = Write(n, kind, key, f"token-{n}-", concern, target, self._loop.now_ms)
                command = command_of(write)
                if concern == "majority":
                    command["writeConcern"] = {"w": "majority"}  # a limit goes another way in the member
                if with_sessions and rng.random() < 0.9:
                    command |= {"lsid": lsid, "txnNumber": Int64(number)}
                sent.append((client, write, command))
            await asyncio.gather(*(self._send(client, [write], command) for client, write, command in sent))
            self.sent_at_once += len(sent)
        for client in clients:
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
            {"createIndexes": name, "indexes": [INDEXES[0]]},
            {"createIndexes": COLLECTION, "indexes": [INDEXES[1]]},
            {"dropIndexes": rng.choice((name, COLLECTION)), "index": "*"},
        )
        with suppress(NoAnswerError):
            await client.call(target, DATABASE, {**rng.choice(commands), "writeConcern": {"w": 1}})

    def _draw(self, rng: random.Random, target: HostPort) -> Write:
        number = next(self._numbers)
        concern = rng.choice(self._mix.concerns)
        draw = rng.random()
        if draw < 0.1 and self._mine:
            kind, key = "delete", self._mine.pop(rng.randrange(len(self._mine)))
        elif draw < 0.35:
            kind, key = "update", rng.randrange(SHARED_KEYS)
        else:
            kind, key = "insert", 1000 + number
        return Write(number, kind, key, f"token-{number}-", concern, target, self._loop.now_ms)

    async def write(self, client: SimClient, write: Write) -> Write:
        """Send one write and note its answer."""
        await self._send(client, [write], command_of(write))
        return write

    async def _insert_several(self, client: SimClient, target: HostPort, rng: random.Random) -> None:
        """One insert of several documents: it is committed in several groups where those are small."""
        concern, number = rng.choice(self._mix.concerns), rng.randrange(2, SEVERAL_MAX + 1)
        writes = []
        for n in itertools.islice(self._numbers, number):
            writes.append(Write(n, "insert", 1000 + n, f"token-{n}-", concern, target, self._loop.now_ms))
        documents = [{"_id": write.id, "token": write.token} for write in writes]
        command: dict[str, object] = {"insert": COLLECTION, "documents": documents, "writeConcern": CONCERNS[concern]}
        await self._send(client, writes, command)

    async def _send(self, client: SimClient, writes: list[Write], command: Mapping[str, object]) -> None:
        """Send what these writes ask for, in one command."""
        self.history.writes += writes
        if self._mix.in_sync and writes[0].concern == "majority":
            command = {**command, "writeConcern": IN_SYNC}
        target = writes[0].target
        try:
            reply = await client.call(target, DATABASE, command)
        except NoAnswerError as error:
            for write in writes:
                write.outcome, write.detail = "fail" if error.unsent else "unknown", str(error)
        else:
            for write in writes:
                judge(write, reply, len(writes))
        for write in writes:
            write.done_ms = self._loop.now_ms
            self._note_primary(target, leads=write.acknowledged)
            if write.acknowledged and write.kind == "insert" and write.concern == "majority":
                self._mine.append(write.id)
        if writes[-1].acknowledged and self.on_acknowledged is not None:
            self.on_acknowledged(writes[-1])

    async def _confirmer(self, rng: random.Random) -> None:
        """Ask any member to confirm writes that a majority need not have; then they are promised as if it had them."""
        client = self._new_client()
        while not self._stopped:
            await self._pause(rng)
            early = [write for write in self.history.acknowledged() if write.concern != "majority"][-CONFIRMED_MAX:]
            if not early:
                continue
            command = {"replSetConfirmWrites": [str(write.optime) for write in early], "timeoutMS": 2_000}
            with suppress(NoAnswerError):
                reply = await client.call(rng.choice(self._hosts), "admin", command)
                if reply["ok"] != 1:
                    continue
                left = {row["optime"] for row in reply["notConfirmed"]}
                confirmed = [write for write in early if str(write.optime) not in left]
                for write in confirmed:
                    write.concern, write.done_ms = "majority", self._loop.now_ms
                self.confirmed += len(confirmed)
        client.close()

    # --- reading

    async def _reader(self, rng: random.Random) -> None:
        client = self._new_client()
        while not self._stopped:
            await self._pause(rng)
            await self._pause(rng)
            level = "local" if self._mix.local and rng.random() < self._mix.local else "majority"
            by_cursor = bool(self._mix.cursors) and rng.random() < self._mix.cursors
            await self.read(client, rng.choice(self._hosts), level, rng if by_cursor else None)
        client.close()

    async def read(
        self, client: SimClient, target: HostPort, level: str = "majority", batches: random.Random | None = None
    ) -> Read:
        """A read of everything; at majority not older than the newest write that a majority acknowledged.

        batches: draws the sizes of a cursor's batches and the pauses between them; None: all in the first one.
        """
        after = max((write.ts for write in self.history.acknowledged("majority")), default=0)
        read = Read(target, after if level == "majority" else 0, self._loop.now_ms, level)
        self.history.reads.append(read)
        concern: dict[str, object] = {"level": level}
        if read.after:
            concern["afterClusterTime"] = Timestamp(after >> 31, after & ((1 << 31) - 1))
        command = {
            "find": COLLECTION,
            "filter": {},
            "batchSize": 100_000 if batches is None else batches.choice((1, 3, 10)),
            "readConcern": concern,
            "maxTimeMS": 4_000,
            "$readPreference": {"mode": "secondaryPreferred"},
        }
        try:
            documents = await self._all_batches(client, read, command, batches)
        except NoAnswerError as error:
            read.detail = str(error)
        else:
            if documents is not None:
                read.found = {int(d["_id"]): str(d.get("token")) for d in documents}
        read.done_ms = self._loop.now_ms
        return read

    async def _all_batches(
        self, client: SimClient, read: Read, command: Mapping[str, object], batches: random.Random | None
    ) -> list[dict[str, Any]] | None:
        """The documents; None when some batch was refused, with the reason in `read.detail`."""
        reply = await client.call(read.target, DATABASE, command)
        if reply["ok"] != 1:
            read.detail = f"{reply.get('code')}: {reply.get('errmsg')}"
            return None
        documents: list[dict[str, Any]] = reply["cursor"]["firstBatch"]
        cursor_id = reply["cursor"]["id"]
        read.first_ms = self._loop.now_ms
        while cursor_id:
            assert batches is not None, "everything fits the first batch"
            await asyncio.sleep(batches.choice((0.0, 0.0, 0.02, 0.5, 4.0)) * batches.random())
            read.asked_ms = self._loop.now_ms
            size = max(batches.choice((1, 10, 100)), len(documents) // 4)
            more = {"getMore": Int64(cursor_id), "collection": COLLECTION, "batchSize": size}
            reply = await client.call(read.target, DATABASE, more)
            if reply["ok"] != 1:
                read.detail = f"{reply.get('code')}: {reply.get('errmsg')}"
                return None
            documents += reply["cursor"]["nextBatch"]
            cursor_id = reply["cursor"]["id"]
        return documents


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


def judge(write: Write, reply: Mapping[str, Any], number: int = 1) -> None:
    """Fill in the outcome from the reply to a command of so many writes."""
    if reply["ok"] != 1:
        write.outcome = "fail" if reply.get("code") in NOT_APPLIED else "unknown"
        write.detail = f"{reply.get('code')}: {reply.get('errmsg')}"
    elif reply.get("writeErrors"):
        error = reply["writeErrors"][0]
        is_refused = number == 1 and error.get("code") in NOT_APPLIED  # of several, those before it may be there
        write.outcome = "fail" if is_refused else "unknown"
        write.detail = str(error)
    elif reply.get("writeConcernError"):
        write.outcome, write.detail = "unknown", str(reply["writeConcernError"].get("errmsg"))
    elif reply.get("n") != number:
        write.outcome, write.detail = "unknown", f"n: {reply.get('n')}"
    else:
        write.outcome = "ok"
        when, optime = reply["operationTime"], reply["opTime"]
        write.ts = pack_ts(when.time, when.inc)
        write.optime = OpTime(int(optime["t"]), pack_ts(optime["ts"].time, optime["ts"].inc))

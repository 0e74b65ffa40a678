"""Clients that move amounts between documents in transactions, and what they saw.

The sum over all documents is zero before and after each transaction. So a transaction that is half there, two that
overlapped, or a read of two moments show as another sum.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from replset.bson import Binary, Int64, Timestamp
from replset.ids import HostPort, pack_ts
from tests.simulation.kit.clients import Clients, ClientSite
from tests.simulation.kit.wire import NoAnswerError, SimClient
from tests.simulation.kit.workload import CONCERNS, DATABASE

ACCOUNTS = "accounts"
TRANSIENT = "TransientTransactionError"
_MASK = (1 << 31) - 1
Balances = dict[str, int]


@dataclass(frozen=True, slots=True)
class TransferMix:
    """How many clients move amounts between how many documents, and how many read them."""

    clients: int = 3
    readers: int = 1
    documents: int = 4
    pause_ms: tuple[int, int] = (80, 700)


@dataclass(slots=True)
class Transfer:
    """One transaction. outcome: ok | fail (not applied, for sure) | unknown."""

    token: str
    concern: str
    target: HostPort
    invoked_ms: int
    outcome: str = "unknown"
    detail: str = ""

    @property
    def acknowledged(self) -> bool:
        return self.outcome == "ok"


@dataclass(slots=True)
class BalanceRead:
    """One read of all documents. ts: of a read at level snapshot outside of a transaction, when; 0 inside."""

    target: HostPort
    found: Balances = field(default_factory=dict)
    ts: int = 0


class _RefusedError(Exception):
    """The member answered a command with an error."""

    def __init__(self, reply: Mapping[str, Any]) -> None:
        super().__init__(f"{reply.get('code')}: {reply.get('errmsg')}")
        self.code = reply.get("code")
        self.is_transient = TRANSIENT in reply.get("errorLabels", ())


class Transfers(Clients):
    """Runs the clients until `stop`."""

    def __init__(self, site: ClientSite, mix: TransferMix) -> None:
        super().__init__(site, mix.pause_ms)
        self._mix = mix
        self._numbers = itertools.count(1)
        self._names = [f"a{n}" for n in range(mix.documents)]
        self.history: list[Transfer] = []
        self.reads: list[BalanceRead] = []

    def start(self) -> None:
        for _ in range(self._mix.clients):
            self._launch(self._mover)
        self._launch(self._noter)
        for _ in range(self._mix.readers):
            self._launch(self._reader)

    # --- moving

    async def _mover(self, rng: random.Random) -> None:
        client = self._new_client()
        while not self._stopped:
            await self._pause(rng)
            target = self._target(rng, 0.8)
            await self._move(client, target, rng)
        client.close()

    async def _noter(self, rng: random.Random) -> None:
        client = self._new_client()
        while not self._stopped:
            await self._pause(rng)
            await self._note(client, self.primary or rng.choice(self._hosts), rng)
        client.close()

    async def _note(self, client: SimClient, target: HostPort, rng: random.Random) -> None:
        """Add a field outside of transactions, a new one each time, so that it is missing if a transaction hides it."""
        statement = {"q": {"_id": rng.choice(self._names)}, "u": {"$set": {f"note{next(self._numbers)}": 1}}}
        command = {"update": ACCOUNTS, "updates": [statement], "writeConcern": {"w": 1}, "maxTimeMS": 3_000}
        try:
            reply = await client.call(target, DATABASE, command)
        except NoAnswerError:
            return
        if reply["ok"] == 1:
            self.primary = target

    async def _move(self, client: SimClient, target: HostPort, rng: random.Random) -> None:
        transaction = _Transaction(client, target, rng)
        concern = rng.choice(("majority", "majority", "w1"))
        move = Transfer(f"move-{next(self._numbers)}-", concern, target, self._loop.now_ms)
        self.history.append(move)
        try:
            await self._write_inside(transaction, move, rng)
        except (_RefusedError, NoAnswerError) as error:
            self._note_primary(target, leads=False)
            move.outcome, move.detail = "fail", str(error)  # nobody ever sent the commit
            return
        self.primary = target
        if rng.random() < 0.1:
            move.outcome, move.detail = "fail", "aborted"
            await transaction.abort()
            return
        await self._commit(transaction, move, rng)

    async def _write_inside(self, transaction: _Transaction, move: Transfer, rng: random.Random) -> None:
        one, other = rng.sample(self._names, 2)
        found = await transaction.find({"_id": {"$in": [one, other]}})
        await asyncio.sleep(rng.choice((0.0, 0.0, 0.05, 0.5)) * rng.random())
        amount = rng.randrange(1, 100)
        balances = {one: found.get(one, 0) - amount, other: found.get(other, 0) + amount}
        statements = [
            {"q": {"_id": name}, "u": {"$set": {"n": balance, "token": move.token}}, "upsert": True}
            for name, balance in balances.items()
        ]
        if rng.random() < 0.5:
            await transaction.run({"update": ACCOUNTS, "updates": statements})
        else:
            for statement in statements:
                await transaction.run({"update": ACCOUNTS, "updates": [statement]})
                await asyncio.sleep(rng.choice((0.0, 0.05)) * rng.random())
        await asyncio.sleep(rng.choice((0.0, 0.0, 0.5)) * rng.random())
        if rng.random() < 0.3:
            self.reads.append(BalanceRead(move.target, await transaction.find({}, batch_size=rng.choice((2, 100)))))

    async def _commit(self, transaction: _Transaction, move: Transfer, rng: random.Random) -> None:
        """Ask for the commit, as a driver does: again, and of other members, while the answer is not known."""
        for attempt in range(4):
            try:
                await transaction.commit(move.concern if attempt == 0 else "majority")
            except NoAnswerError as error:
                move.detail = str(error)
            except _RefusedError as error:
                move.detail = str(error)
                if error.is_transient:
                    move.outcome = "fail"
                    return
            else:
                move.outcome = "ok"
                return
            await asyncio.sleep(rng.random() * 2)
            transaction.target = self._target(rng, 0.5)

    # --- reading

    async def _reader(self, rng: random.Random) -> None:
        client = self._new_client()
        while not self._stopped:
            await self._pause(rng)
            try:
                if rng.random() < 0.4:
                    await self._read_inside(client, rng)
                    continue
                first = await self._read(client, rng, None)
                if rng.random() < 0.5:
                    await asyncio.sleep(rng.random())
                    await self._read(client, rng, first.ts)
            except (_RefusedError, NoAnswerError):
                continue
        client.close()

    async def _read_inside(self, client: SimClient, rng: random.Random) -> None:
        """All documents in a transaction that only reads, in two commands with a pause between them."""
        target, half = self.primary or rng.choice(self._hosts), len(self._names) // 2
        transaction, found = _Transaction(client, target, rng), {}
        for names in (self._names[:half], self._names[half:]):
            found |= await transaction.find({"_id": {"$in": names}})
            await asyncio.sleep(rng.random())
        await transaction.commit("w1")
        self.reads.append(BalanceRead(target, found))

    async def _read(self, client: SimClient, rng: random.Random, ts: int | None) -> BalanceRead:
        """All documents at one moment: at `ts`, or at the newest that the member can show."""
        target = rng.choice(self._hosts)
        concern: dict[str, object] = {"level": "snapshot"}
        if ts is not None:
            concern["atClusterTime"] = Timestamp(ts >> 31, ts & _MASK)
        command = {
            "find": ACCOUNTS,
            "readConcern": concern,
            "batchSize": rng.choice((2, 100)),
            "maxTimeMS": 4_000,
            "$readPreference": {"mode": "secondaryPreferred"},
        }
        reply = _answered(await client.call(target, DATABASE, command))
        when = reply["cursor"]["atClusterTime"]
        documents = await _rest(client, target, reply["cursor"], {}, rng.choice((0.0, 0.3)))
        read = BalanceRead(target, documents, pack_ts(when.time, when.inc) if ts is None else ts)
        self.reads.append(read)
        return read


class _Transaction:
    """One transaction of a new session. target: where its next command goes."""

    def __init__(self, client: SimClient, target: HostPort, rng: random.Random) -> None:
        self.target = target
        self._client = client
        lsid = {"id": Binary(rng.randbytes(16), 4)}
        self._session: dict[str, object] = {"lsid": lsid, "txnNumber": Int64(1), "autocommit": False}
        self._begun = False

    async def run(self, command: Mapping[str, object], database: str = DATABASE) -> dict[str, Any]:
        first: dict[str, object] = {}
        if not self._begun:
            first = {"startTransaction": True, "readConcern": {"level": "snapshot"}}
        self._begun = True
        reply = _answered(await self._client.call(self.target, database, {**command, **self._session, **first}))
        if reply.get("writeErrors"):
            raise _RefusedError(reply["writeErrors"][0])
        return reply

    async def find(self, query: Mapping[str, object], batch_size: int = 100) -> Balances:
        reply = await self.run({"find": ACCOUNTS, "filter": query, "batchSize": batch_size})
        return await _rest(self._client, self.target, reply["cursor"], self._session, 0.1)

    async def commit(self, concern: str) -> None:
        reply = await self.run({"commitTransaction": 1, "writeConcern": CONCERNS[concern]}, "admin")
        if reply.get("writeConcernError"):
            raise _RefusedError(reply["writeConcernError"])

    async def abort(self) -> None:
        try:
            await self.run({"abortTransaction": 1}, "admin")
        except (_RefusedError, NoAnswerError):
            return


async def _rest(
    client: SimClient, target: HostPort, cursor: Mapping[str, Any], session: Mapping[str, object], pause_s: float
) -> Balances:
    """The documents of the first batch and of all that follow."""
    found = {str(doc["_id"]): int(doc.get("n", 0)) for doc in cursor["firstBatch"]}
    cursor_id = cursor["id"]
    while cursor_id:
        await asyncio.sleep(pause_s)
        more = {"getMore": Int64(cursor_id), "collection": ACCOUNTS, **session}
        page = _answered(await client.call(target, DATABASE, more))["cursor"]
        found |= {str(doc["_id"]): int(doc.get("n", 0)) for doc in page["nextBatch"]}
        cursor_id = page["id"]
    return found


def _answered(reply: dict[str, Any]) -> dict[str, Any]:
    if reply["ok"] != 1:
        raise _RefusedError(reply)
    return reply

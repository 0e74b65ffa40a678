"""Clients of single documents, and the history of what they asked, for the checker of linearizability.

Writes at `w: "majority"`: puts, deletes, inserts and compare-and-set by filter. Reads at `linearizable` from the
primary, and at `majority` from anybody with afterClusterTime at the newest operationTime that any of these clients was
told: such a read must not miss what one of them knew before it began.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from replset.bson import Timestamp
from replset.ids import HostPort, pack_ts
from tests.simulation.kit.clients import Clients, ClientSite
from tests.simulation.kit.linearizability import ABSENT, Kind, Operation
from tests.simulation.kit.wire import NoAnswerError, SimClient
from tests.simulation.kit.workload import DATABASE, NOT_APPLIED

REGISTERS = "registers"
_MAJORITY: dict[str, object] = {"writeConcern": {"w": "majority", "wtimeout": 4_000}}
_MASK = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class RegisterMix:
    """How many clients and documents, and how long a client waits between two operations."""

    clients: int = 3
    documents: int = 2
    pause_ms: tuple[int, int] = (80, 600)


class Registers(Clients):
    """Runs the clients until `stop`; `history` is what can be said of what they did."""

    def __init__(self, site: ClientSite, mix: RegisterMix) -> None:
        super().__init__(site, mix.pause_ms)
        self._mix = mix
        self._values = itertools.count(1)
        self._instants = itertools.count(1)  # one loop: calls and answers have an order even in one moment
        self._known: dict[str, str | None] = {}  # what a client saw last
        self._newest = 0  # the highest operationTime in any answer
        self.history: list[Operation] = []
        self.answered: dict[str, int] = {}  # certain operations by kind

    def start(self) -> None:
        for n in range(self._mix.clients):
            self._launch(partial(self._client, f"client {n}"))

    async def read_all(self, primary: HostPort) -> None:
        """One last read of each document, on a set that is well: what was lost shows there."""
        client = self._new_client()
        for n in range(self._mix.documents):
            await self._read(client, "last", f"r{n}", primary, linearizable=False)
        client.close()

    async def _client(self, who: str, rng: random.Random) -> None:
        client = self._new_client()
        while not self._stopped:
            await self._pause(rng)
            key = f"r{rng.randrange(self._mix.documents)}"
            target = self._target(rng, 0.7)
            draw = rng.random()
            if draw < 0.25:
                await self._put(client, who, key, target)
            elif draw < 0.30:
                await self._delete(client, who, key, target)
            elif draw < 0.55:
                await self._swap(client, who, key, target)
            elif draw < 0.75:
                await self._read(client, who, key, target, linearizable=True)
            else:
                await self._read(client, who, key, rng.choice(self._hosts), linearizable=False)
        client.close()

    # --- writes

    async def _put(self, client: SimClient, who: str, key: str, target: HostPort) -> None:
        value = self._new_value()
        statement = {"q": {"_id": key}, "u": {"$set": {"v": value}}, "upsert": True}
        await self._write(client, Kind.PUT, who, key, target, {"update": REGISTERS, "updates": [statement]}, value)

    async def _delete(self, client: SimClient, who: str, key: str, target: HostPort) -> None:
        command = {"delete": REGISTERS, "deletes": [{"q": {"_id": key}, "limit": 1}]}
        await self._write(client, Kind.PUT, who, key, target, command, ABSENT)

    async def _swap(self, client: SimClient, who: str, key: str, target: HostPort) -> None:
        """From the value that a client saw last: an insert when there was none."""
        expected, value = self._known.get(key), self._new_value()
        if expected is None:
            command: dict[str, object] = {"insert": REGISTERS, "documents": [{"_id": key, "v": value}]}
        else:
            statement = {"q": {"_id": key, "v": expected}, "u": {"$set": {"v": value}}}
            command = {"update": REGISTERS, "updates": [statement]}
        await self._write(client, Kind.CAS, who, key, target, command, value, expected)

    def _new_value(self) -> str:
        return f"v{next(self._values)}"

    async def _write(
        self,
        client: SimClient,
        kind: Kind,
        who: str,
        key: str,
        target: HostPort,
        command: dict[str, object],
        value: str | None,
        expected: str | None = ABSENT,
    ) -> None:
        operation = Operation(key, kind, value, next(self._instants), expected=expected, who=f"{who} at {target}")
        try:
            reply = await client.call(target, DATABASE, {**command, **_MAJORITY})
        except NoAnswerError as error:
            self._note_primary(target, leads=False)
            if not error.unsent:
                self.history.append(operation)
            return
        self._note_primary(target, leads=reply["ok"] == 1)
        if _did_nothing(reply, operation):
            return
        if reply["ok"] == 1 and not reply.get("writeErrors") and not reply.get("writeConcernError"):
            self._known[key] = value
            operation = self._certain(operation, reply)
        self.history.append(operation)

    # --- reads

    async def _read(self, client: SimClient, who: str, key: str, target: HostPort, *, linearizable: bool) -> None:
        concern: dict[str, object] = {"level": "linearizable" if linearizable else "majority"}
        if not linearizable and self._newest:
            concern["afterClusterTime"] = Timestamp(self._newest >> 31, self._newest & _MASK)
        command: dict[str, object] = {
            "find": REGISTERS,
            "filter": {"_id": key},
            "readConcern": concern,
            "maxTimeMS": 4_000,
        }
        if not linearizable:
            command["$readPreference"] = {"mode": "secondaryPreferred"}
        invoked = next(self._instants)
        try:
            reply = await client.call(target, DATABASE, command)
        except NoAnswerError:
            self._note_primary(target, leads=False)
            return
        if reply["ok"] != 1:
            return
        batch = reply["cursor"]["firstBatch"]
        value = str(batch[0]["v"]) if batch else ABSENT
        self._known[key] = value
        level = "linearizable" if linearizable else "majority"
        operation = Operation(key, Kind.READ, value, invoked, who=f"{who} at {target}, {level}")
        self.history.append(self._certain(operation, reply, level))

    # --- answers

    def _certain(self, operation: Operation, reply: dict[str, Any], kind: str = "") -> Operation:
        when = reply.get("operationTime")
        if when is not None:
            self._newest = max(self._newest, pack_ts(when.time, when.inc))
        name = kind or operation.kind.value
        self.answered[name] = self.answered.get(name, 0) + 1
        return replace(operation, returned=next(self._instants))


def _did_nothing(reply: dict[str, Any], operation: Operation) -> bool:
    """Refused, or nothing matched. What such an answer says of the document may be old: it is no read."""
    if reply["ok"] != 1:
        return reply.get("code") in NOT_APPLIED
    errors = reply.get("writeErrors")
    if errors:
        return errors[0].get("code") == 11000 or errors[0].get("code") in NOT_APPLIED
    is_delete = operation.kind is Kind.PUT and operation.value is ABSENT
    return reply.get("n") == 0 and (operation.kind is Kind.CAS or is_delete)

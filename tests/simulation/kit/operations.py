"""Clients that do everything a client can do to documents and collections, for rollbacks of every kind of entry.

An operation is identified by the entry that its answer names. That entry has to be in the set at the end, or in a
rollback's oplog file.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from replset.ids import OPTIME_NULL, HostPort, OpTime, pack_ts
from tests.simulation.kit.clients import Clients, ClientSite
from tests.simulation.kit.wire import NoAnswerError, SimClient
from tests.simulation.kit.workload import CONCERNS

DATABASES = ("deeds", "deeds", "deeds", "others")
COLLECTIONS = 3
DOCUMENTS = 12
INDEXES: tuple[dict[str, object], ...] = (
    {"key": {"n": 1}, "name": "n_1"},
    {"key": {"n": 1}, "name": "unique", "unique": True},
    {"key": {"whole": 1, "n": -1}, "name": "whole"},
    {"key": {"whole.new": 1}, "name": "sparse", "sparse": True},
    {"key": {"changes": -1}, "name": "partial", "partialFilterExpression": {"n": {"$gt": 500}}},
)
DRAWN_CONCERNS = ("w1", "journaled", "journaled", "majority")
"""What a primary that is cut off acknowledges comes more often than what it cannot."""


@dataclass(frozen=True, slots=True)
class OperationMix:
    """How many clients, and how long one waits between two operations."""

    clients: int = 2
    pause_ms: tuple[int, int] = (60, 400)


@dataclass(slots=True)
class ClientOperation:
    """One command. optime: of the newest entry that its answer covers, once it is acknowledged."""

    kind: str
    concern: str
    target: HostPort
    optime: OpTime = OPTIME_NULL

    @property
    def acknowledged(self) -> bool:
        return self.optime != OPTIME_NULL


class Operations(Clients):
    """Runs the clients until `stop`; each stays with its member for as long as that one carries out commands."""

    def __init__(self, site: ClientSite, mix: OperationMix) -> None:
        super().__init__(site, mix.pause_ms)
        self._number = mix.clients
        self.history: list[ClientOperation] = []

    def start(self) -> None:
        for _ in range(self._number):
            self._launch(self._client)

    async def _client(self, rng: random.Random) -> None:
        client = self._new_client()
        target = rng.choice(self._hosts)
        while not self._stopped:
            await self._pause(rng)
            database = rng.choice(DATABASES)
            kind, command = draw_command(rng, database)
            operation = ClientOperation(kind, rng.choice(DRAWN_CONCERNS), target)
            self.history.append(operation)
            if not await self._carry_out(client, operation, "admin" if kind == "rename" else database, command):
                target = rng.choice(self._hosts)
        client.close()

    async def _carry_out(
        self, client: SimClient, operation: ClientOperation, database: str, command: Mapping[str, object]
    ) -> bool:
        """Whether the member did it; one that reached no majority in time did it as well."""
        try:
            reply = await client.call(
                operation.target, database, {**command, "writeConcern": CONCERNS[operation.concern]}
            )
        except NoAnswerError:
            return False
        if reply["ok"] != 1 or reply.get("writeErrors"):
            return bool(reply["ok"])  # a duplicate key is no reason to leave
        if not reply.get("writeConcernError"):
            operation.optime = optime_of(reply)
        return True


def optime_of(reply: Mapping[str, Any]) -> OpTime:
    optime = reply["opTime"]
    return OpTime(int(optime["t"]), pack_ts(optime["ts"].time, optime["ts"].inc))


def draw_command(rng: random.Random, database: str) -> tuple[str, dict[str, object]]:
    """The kind of an operation, and its command without a concern; each kind of entry comes often enough to be lost."""
    name = f"c{rng.randrange(COLLECTIONS)}"
    key, number = rng.randrange(DOCUMENTS), rng.randrange(1_000)
    several = [{"_id": rng.randrange(DOCUMENTS), "n": number + n, "padding": "x" * 40} for n in range(3)]
    other = f"c{rng.randrange(COLLECTIONS)}"
    validator: dict[str, object] = rng.choice([{}, {"n": {"$not": {"$gt": 990}}}])
    some: dict[str, object] = {"n": {"$gte": number}}
    commands: dict[str, tuple[int, dict[str, object]]] = {
        "insert": (4, {"insert": name, "documents": several[:1]}),
        "insert several": (2, {"insert": name, "documents": several, "ordered": False}),
        "upsert": (3, _update(name, {"_id": key}, {"$set": {"n": number, "by": "upsert"}}, upsert=True)),
        "update": (4, _update(name, {"_id": key}, {"$inc": {"changes": 1}, "$unset": {"by": ""}})),
        "update several": (2, _update(name, some, {"$inc": {"n": 2}}, multi=True)),
        "replace": (3, _update(name, {"_id": key}, {"n": number, "whole": [number, {"new": True}]}, upsert=True)),
        "delete": (3, {"delete": name, "deletes": [{"q": {"_id": key}, "limit": 1}]}),
        "delete several": (1, {"delete": name, "deletes": [{"q": some, "limit": 0}]}),
        "create": (1, {"create": name}),
        "create capped": (1, {"create": name, "capped": True, "size": 4096, "max": 4}),
        "rename": (2, {"renameCollection": f"{database}.{name}", "to": f"{database}.{other}", "dropTarget": True}),
        "modify": (3, {"collMod": name, "validator": validator, "validationLevel": "moderate"}),
        "create index": (3, {"createIndexes": name, "indexes": [rng.choice(INDEXES)]}),
        "drop index": (2, {"dropIndexes": name, "index": "*"}),
        "drop": (1, {"drop": name}),
        "drop database": (1, {"dropDatabase": 1}),
    }
    kind = rng.choices(list(commands), [weight for weight, _ in commands.values()])[0]
    return kind, commands[kind][1]


def _update(name: str, query: dict[str, object], change: dict[str, object], **options: bool) -> dict[str, object]:
    return {"update": name, "updates": [{"q": query, "u": change, **options}]}

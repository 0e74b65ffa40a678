"""Clients that send a write again under the same number until they have an answer, as drivers do by themselves.

Each write has a token of its own, which its oplog entry holds. Invariant 13: no token is in the history twice, whatever
happened between two attempts; one that a majority acknowledged is there once, and the answer is that of the first time.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from replset.bson import Binary, Int64
from replset.errors import Trait, has_trait
from tests.simulation.kit.clients import Clients, ClientSite
from tests.simulation.kit.wire import NoAnswerError, SimClient
from tests.simulation.kit.workload import CONCERNS, DATABASE

COUNTERS = "counters"
COUNTERS_NS = f"{DATABASE}.{COUNTERS}"
COUNTER_KEYS = 3
RETRIES_FOR_MS = 15_000
"""A client gives up then: its session may be forgotten some time after it."""
WRITES_OF_A_SESSION = 12
HISTORY_GONE, NO_SUCH_TRANSACTION = 217, 251
TRANSACTION = "transaction"


@dataclass(frozen=True, slots=True)
class RetryMix:
    """How many clients, and how long one waits between two writes.

    late: how often a client sends an earlier write of its session once more. Above 0 some writes are transactions.
    """

    clients: int = 2
    pause_ms: tuple[int, int] = (60, 700)
    late: float = 0.0


@dataclass(slots=True)
class RetriedWrite:
    """One command. tokens: of its statements. value: what a findAndModify answered. wrong: an answer that cannot be."""

    kind: str
    concern: str
    tokens: tuple[str, ...]
    outcome: str = "unknown"  # ok | unknown
    attempts: int = 0
    value: int | None = None
    wrong: str = ""

    @property
    def is_certain(self) -> bool:
        """Whether a majority acknowledged it."""
        return self.outcome == "ok" and self.concern == "majority"


@dataclass(slots=True)
class _Session:
    """sent: each write with its commands."""

    lsid: dict[str, object]
    number: int = 0
    writes: int = field(default=0)
    sent: list[tuple[RetriedWrite, list[_Command]]] = field(default_factory=list)


_Command = tuple[str, dict[str, object]]
"""The database, and the command."""


class RetryingClients(Clients):
    """Runs the clients until `stop`; `history` is what they sent and what they heard."""

    def __init__(self, site: ClientSite, mix: RetryMix) -> None:
        super().__init__(site, mix.pause_ms)
        self._mix = mix
        self._numbers = itertools.count(1)
        self.history: list[RetriedWrite] = []

    def start(self) -> None:
        for _ in range(self._mix.clients):
            self._launch(self._client)

    async def _client(self, rng: random.Random) -> None:
        client = self._new_client()
        session = _new_session(rng)
        while not self._stopped:
            await self._pause(rng)
            if session.writes >= WRITES_OF_A_SESSION:
                session = _new_session(rng)
            session.writes += 1
            session.number += rng.choice((1, 1, 1, 5))
            if self._mix.late and rng.random() < 0.3:
                write, commands = self._draw_transaction(session)
            else:
                write, command = self._draw(rng)
                numbered = {**command, "lsid": session.lsid, "txnNumber": Int64(session.number)}
                commands = [(DATABASE, {**numbered, "writeConcern": CONCERNS[write.concern]})]
            self.history.append(write)
            session.sent.append((write, commands))
            if len(commands) == 1 or (await self._ask(client, commands[0], rng)).get("ok") == 1:
                await self._send(client, write, commands[-1], rng)
            if self._mix.late and rng.random() < self._mix.late:
                await self._send_late(client, session, rng)
        client.close()

    async def _send_late(self, client: SimClient, session: _Session, rng: random.Random) -> None:
        """An earlier write of the session comes once more. A primary that knows of a later one refuses it."""
        write, commands = rng.choice(session.sent)
        reply: Mapping[str, Any] = {}
        for command in commands:
            reply = await self._ask(client, command, rng)
            if reply.get("ok") != 1:
                return
        _judge(write, reply)

    async def _ask(self, client: SimClient, command: _Command, rng: random.Random) -> Mapping[str, Any]:
        """The answer to a command that is sent once; {}: there is none."""
        try:
            return await client.call(self.primary or rng.choice(self._hosts), *command, timeout_s=2.0)
        except NoAnswerError:
            return {}

    def _draw_transaction(self, session: _Session) -> tuple[RetriedWrite, list[_Command]]:
        """One that inserts a document."""
        write = RetriedWrite(TRANSACTION, "majority", (f"once-{next(self._numbers)}-0-",))
        inside = {"lsid": session.lsid, "txnNumber": Int64(session.number), "autocommit": False}
        insert = {"insert": COUNTERS, "documents": [{"_id": write.tokens[0]}], **inside, "startTransaction": True}
        commit = {"commitTransaction": 1, **inside, "writeConcern": CONCERNS[write.concern]}
        return write, [(DATABASE, insert), ("admin", commit)]

    def _draw(self, rng: random.Random) -> tuple[RetriedWrite, dict[str, object]]:
        kind = rng.choice(("update", "update", "several", "modify", "insert"))
        number = next(self._numbers)
        tokens = tuple(f"once-{number}-{n}-" for n in range(2 if kind == "several" else 1))
        write = RetriedWrite(kind, rng.choice(("w1", "majority", "majority")), tokens)
        if kind == "insert":
            return write, {"insert": COUNTERS, "documents": [{"_id": tokens[0]}]}
        keys = rng.sample(range(COUNTER_KEYS), len(tokens))
        changes = [{"$inc": {"n": 1}, "$set": {"last": token}} for token in tokens]
        if kind == "modify":
            options: dict[str, object] = {"new": True, "upsert": True}
            return write, {"findAndModify": COUNTERS, "query": {"_id": keys[0]}, "update": changes[0], **options}
        statements = [
            {"q": {"_id": key}, "u": change, "upsert": True} for key, change in zip(keys, changes, strict=True)
        ]
        return write, {"update": COUNTERS, "updates": statements}

    async def _send(self, client: SimClient, write: RetriedWrite, command: _Command, rng: random.Random) -> None:
        """Send it again and again, to the primary or to somebody else, until the answer says what became of it."""
        until = self._loop.now_ms + RETRIES_FOR_MS
        while self._loop.now_ms < until:
            target = self.primary or rng.choice(self._hosts)
            write.attempts += 1
            try:
                reply = await client.call(target, *command, timeout_s=rng.choice((0.5, 2.0, 8.0)))
            except NoAnswerError:
                self.primary = None
            else:
                if _judge(write, reply):
                    self.primary = target
                    return
                self.primary = None
            await asyncio.sleep(rng.uniform(0.02, 0.4))


def _new_session(rng: random.Random) -> _Session:
    return _Session({"id": Binary(rng.randbytes(16), 4)})


def _judge(write: RetriedWrite, reply: Mapping[str, Any]) -> bool:
    """Note what the answer says; True when it is the last word."""
    if reply["ok"] != 1:
        return _judge_failure(write, reply)
    if reply.get("writeErrors"):
        error = reply["writeErrors"][0]
        if not has_trait(error["code"], Trait.RETRYABLE) and error["code"] != 14031:
            write.wrong = f"a write error: {error}"
            return True
        return False
    if write.kind == "modify":
        write.value = int(reply["value"]["n"]) if reply.get("value") else None
        if write.value is None:
            write.wrong = f"no value: {reply}"
    elif write.kind != TRANSACTION and reply["n"] != len(write.tokens):
        write.wrong = f"n: {reply['n']}"
    if reply.get("writeConcernError"):
        return False  # applied; the next attempt waits for the concern again
    write.outcome = "ok"
    return True


def _judge_failure(write: RetriedWrite, reply: Mapping[str, Any]) -> bool:
    code = reply.get("code")
    if has_trait(code, Trait.RETRYABLE) and "RetryableWriteError" not in reply.get("errorLabels", ()):
        write.wrong = f"no label: {reply}"
    if code == 225:
        write.wrong = f"refused for a newer number: {reply}"
    return code in (HISTORY_GONE, NO_SUCH_TRANSACTION) or bool(write.wrong)

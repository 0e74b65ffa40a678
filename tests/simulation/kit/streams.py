"""Readers of change streams, who go on behind their token on any member, and what they were given.

Invariant 19: what a reader is given behind its token is the final history of what it follows, in order, without a gap
and without a repeat; nothing that was not committed is ever among it.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from replset.bson import Int64
from replset.ids import HostPort
from tests.simulation.kit.clients import Clients, ClientSite
from tests.simulation.kit.consumers import Place, changes_of, place_of
from tests.simulation.kit.entries import Entry
from tests.simulation.kit.errors import SimulationError
from tests.simulation.kit.wire import NoAnswerError, SimClient
from tests.simulation.kit.workload import COLLECTION, DATABASE

FOLLOWED = (COLLECTION, "accounts", COLLECTION)
WHOLE_DATABASE = 2
"""The reader of this number follows the database, and takes its collection out of that."""
HISTORY_LOST = 286
DRAIN_TRIES = 400
NEAREST = {"mode": "nearest"}


@dataclass(frozen=True, slots=True)
class StreamMix:
    """pause_ms: between two batches of a reader."""

    pause_ms: tuple[int, int] = (20, 400)


@dataclass(slots=True)
class Followed:
    """What a reader was given behind one token. token: where it goes on."""

    begin: Place
    token: dict[str, Any]
    events: list[tuple[Place, str]] = field(default_factory=list)


class StreamReaders(Clients):
    """Follow changes until `stop`; `drain` then reads the rest."""

    def __init__(self, site: ClientSite, mix: StreamMix) -> None:
        super().__init__(site, mix.pause_ms)
        self.followed: list[list[Followed]] = [[] for _ in FOLLOWED]
        """Of each reader; a new one begins where history was lost."""
        self.opened = 0

    def start(self) -> None:
        for number in range(len(FOLLOWED)):
            self._launch(partial(self._follow, number))

    async def _follow(self, number: int, rng: random.Random) -> None:
        while not self._stopped:
            client = self._new_client()
            with suppress(NoAnswerError):
                await self._read_on(number, client, rng.choice(self._hosts), rng)
            client.close()
            await self._pause(rng)

    async def _read_on(
        self, number: int, client: SimClient, host: HostPort, rng: random.Random, *, to_the_end: bool = False
    ) -> bool:
        """Open a stream behind the token, and read until it fails or the reader leaves. True: nothing is left."""
        reply = await client.call(host, DATABASE, self._open(number, rng))
        self.opened += reply["ok"] == 1
        while self._take(number, reply):
            cursor = reply["cursor"]
            if to_the_end and not cursor.get("nextBatch", [1]):
                return True
            if not to_the_end:
                await self._pause(rng)
                if self._stopped or rng.random() < 0.1:
                    return False  # it leaves without a word
            more: dict[str, object] = {"getMore": Int64(cursor["id"]), "collection": cursor["ns"].partition(".")[2]}
            more |= {"batchSize": rng.choice((1, 3, 50))}
            more |= {"maxTimeMS": 200 if to_the_end else rng.choice((1, 300, 1_500))}
            reply = await client.call(host, DATABASE, more)
        return False

    def _open(self, number: int, rng: random.Random) -> dict[str, object]:
        known = self.followed[number]
        options: dict[str, object] = {"fullDocument": rng.choice(("default", "updateLookup", "whenAvailable"))}
        if known:
            options[rng.choice(("resumeAfter", "startAfter"))] = known[-1].token
        pipeline: list[dict[str, object]] = [{"$changeStream": options}]
        target: object = FOLLOWED[number]
        if number == WHOLE_DATABASE:
            target = Int64(1)
            pipeline.append({"$match": {"ns.coll": FOLLOWED[number]}})
        command: dict[str, object] = {"aggregate": target, "pipeline": pipeline, "$readPreference": NEAREST}
        return command | {"cursor": {"batchSize": rng.choice((0, 1, 101))}, "maxTimeMS": 5_000}

    def _take(self, number: int, reply: dict[str, Any]) -> bool:
        """Note what an answer gives, and where it leaves the reader. False: it is an error."""
        known = self.followed[number]
        if reply["ok"] != 1:
            if reply["code"] == HISTORY_LOST:
                token = reply["oldestToken"]
                known.append(Followed(place_of(token["_data"]), token))
            return False
        cursor = reply["cursor"]
        token = cursor["postBatchResumeToken"]
        if not known:
            known.append(Followed(place_of(token["_data"]), token))
        now = known[-1]
        for event in cursor.get("firstBatch", cursor.get("nextBatch", [])):
            if "documentKey" in event:
                now.events.append((place_of(event["_id"]["_data"]), repr(event["documentKey"]["_id"])))
        if place_of(token["_data"]) < place_of(now.token["_data"]):
            raise SimulationError(f"invariant 19 broken: a stream went back from {now.token} to {token}")
        now.token = token
        return bool(cursor["id"])

    async def drain(self, primary: Callable[[], HostPort | None]) -> None:
        """Read all that is left, on a set that is well."""
        rng = random.Random(1)
        for number in range(len(FOLLOWED)):
            for _ in range(DRAIN_TRIES):
                client, host = self._new_client(), primary()
                try:
                    if host is not None and await self._read_on(number, client, host, rng, to_the_end=True):
                        break
                except NoAnswerError:
                    pass
                finally:
                    client.close()
                await asyncio.sleep(0.1)
            else:
                raise SimulationError(f"invariant 19 broken: the stream of reader {number} never ends")

    def violation(self, entries: list[Entry]) -> str:
        """What is wrong, "" for nothing. entries: the final history."""
        for number, collection in enumerate(FOLLOWED):
            expected = list(changes_of(entries, f"{DATABASE}.{collection}").items())
            places = [place for place, _ in expected]
            for followed in self.followed[number]:
                first = bisect_right(places, followed.begin)
                is_last = followed is self.followed[number][-1]
                right = expected[first:] if is_last else expected[first : first + len(followed.events)]
                if followed.events != right:
                    pairs = enumerate(zip(followed.events, right, strict=False))
                    at = next((n for n, (given, wanted) in pairs if given != wanted), -1)
                    return (
                        f"reader {number} of {collection} behind {followed.begin}: {len(followed.events)} events, and"
                        f" {len(right)} in the history; the first difference is number {at}:"
                        f" {followed.events[at : at + 2]} and {right[at : at + 2]}"
                    )
        return ""

"""Readers of named consumers, who die and come back, and what they were given and acknowledged.

One consumer is read in order by readers of which one holds it, one is shared. Invariant 18: every committed change of
what is followed is given to a reader at least once, none again after its acknowledgement was answered, nothing that is
not in the final history, in order; and the oplog is kept for them. A third one, of newer runs, has `deliverAfter` and
`maxRefusals`: each of its events is given or parked, none before its time; its order is not promised.

In some runs the holder of the first one also reads on at any member. There a reader whose place another one has taken
may be given once more what that one acknowledged; it can acknowledge nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import struct
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from replset.bson import DateTime, Int64
from replset.ids import HostPort, pack_ts
from tests.simulation.kit.clients import Clients, ClientSite
from tests.simulation.kit.clock import EPOCH_MS, SimClock
from tests.simulation.kit.entries import Entry
from tests.simulation.kit.errors import SimulationError
from tests.simulation.kit.wire import NoAnswerError, SimClient
from tests.simulation.kit.workload import COLLECTION, DATABASE

ORDERED, SHARED, LATER = "ordered", "shared", "later"
FOLLOWED = {ORDERED: f"{DATABASE}.{COLLECTION}", SHARED: f"{DATABASE}.accounts"}
MAILS = "mails"
AHEAD_MS = (-1_000, 300, 2_000, 8_000)
"""In how many milliseconds a mail is to be delivered, by a clock that is right."""
HISTORY_LOST, MOVED = 286, 9_900_013
DRAIN_TRIES = 400
LOSSES_MAX = 5
"""Then a drain goes on from now: in a small oplog that is full, the entries of each seek push the oldest one out."""
DELAYED_MS = 1_000
"""For so long at most an event that was given back comes not again. A new primary counts it from its first look on."""
Place = tuple[int, int, int]
"""Timestamp and number of the operation in its entry; 2 for what stands behind both, as in a token."""


@dataclass(frozen=True, slots=True)
class ConsumerMix:
    """readers: of each consumer. is_kept: the oplog is large enough that no consumer may ever lose history.

    max_refusals: of the consumer LATER; 0: there is none. elsewhere: how often the holder of ORDERED reads on at any
    member.
    """

    readers: int = 2
    ack_timeout_ms: int = 2_000
    is_kept: bool = True
    pause_ms: tuple[int, int] = (30, 400)
    max_refusals: int = 0
    elsewhere: float = 0.0


@dataclass(slots=True)
class Given:
    """One answer with events. asked, answered: numbers of moments. after: the place behind which the reader asked.

    elsewhere: it need not be the primary's.
    """

    reader: str
    generation: int
    asked: int
    answered: int
    after: Place
    events: list[tuple[Place, str]]
    elsewhere: bool = False


@dataclass(slots=True)
class Acknowledged:
    """One acknowledgement: through a place, or of single ones. answered: when it was confirmed; 0: it was not."""

    places: set[Place]
    through: Place | None
    asked: int
    generation: int
    answered: int = 0

    def covers(self, place: Place) -> bool:
        return place in self.places or (self.through is not None and place <= self.through)


@dataclass(slots=True)
class ConsumerHistory:
    """What happened with one consumer. sought: when its position was set to which place, since history was lost."""

    begin: Place = (0, 0, 0)
    given: list[Given] = field(default_factory=list)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    sought: list[tuple[int, Place]] = field(default_factory=list)
    kept: set[Place] = field(default_factory=set)
    """What is held or parked at the end."""
    wrong: str = ""


def place_of(token: str) -> Place:
    """Where a token stands, read by its documented layout."""
    _, seconds, increment, operation, kind = struct.unpack_from(">BIIIB", bytes.fromhex(token))
    return pack_ts(seconds, increment), operation, {0: 0, 3: 2}.get(kind, 1)


class ConsumerReaders(Clients):
    """Creates the consumers, and reads until `stop`; `drain` then reads the rest."""

    def __init__(self, site: ClientSite, mix: ConsumerMix) -> None:
        super().__init__(site, mix.pause_ms)
        self._mix = mix
        self._moments = itertools.count(1)
        self._followed = FOLLOWED | ({LATER: f"{DATABASE}.{MAILS}"} if mix.max_refusals else {})
        self.histories = {name: ConsumerHistory() for name in self._followed}
        self._is_draining, self._losses = False, 0
        self.clocks: Callable[[], dict[HostPort, SimClock]] = dict
        self.parked = self.waited = self.elsewhere = 0

    def start(self) -> None:
        for name in self._followed:
            self._launch(partial(self._create_and_read, name))
        if self._mix.max_refusals:
            self._launch(self._write_mails)
            self._launch(self._unpark_some)

    async def _create_and_read(self, name: str, rng: random.Random) -> None:
        if not await self._create(name, rng):
            return
        for number in range(self._mix.readers):
            self._launch(partial(self._reader, name, f"r{number}"))

    async def stop(self) -> None:
        """Let what is under way end; a reader may have started others meanwhile."""
        self._stopped = True
        while self._tasks:
            await self._tasks.pop(0)

    # --- one command

    async def _ask(self, client: SimClient, rng: random.Random, command: dict[str, object]) -> dict[str, Any] | None:
        """The reply of the primary, also when it is an error of the consumer; None: no answer of a primary."""
        target = self._target(rng, 0.9)
        try:
            reply = await client.call(target, "admin", command)
        except NoAnswerError:
            self.primary = None
            return None
        if reply["ok"] == 1 or reply["code"] in (HISTORY_LOST, MOVED):
            self.primary = target
            return reply
        self._note_primary(target, leads=False)
        return None

    async def _create(self, name: str, rng: random.Random) -> bool:
        client = self._new_client()
        more: dict[str, object] = {
            "ns": self._followed[name],
            "startAt": "oldest",
            "ackTimeoutMS": self._mix.ack_timeout_ms,
        }
        more["mode"] = "failover" if name == ORDERED else "shared"
        if name == LATER:
            more |= {"deliverAfter": "sendAt", "maxRefusals": self._mix.max_refusals}
        while not self._stopped:
            reply = await self._ask(client, rng, {"replSetConsumerCreate": name, **more})
            if reply is not None and reply["ok"] == 1:
                self.histories[name].begin = place_of(reply["position"])
                return True
            await self._pause(rng)
        return False

    async def _write_mails(self, rng: random.Random) -> None:
        """Insert mails to be delivered later, and change some of them before and after that."""
        client = self._new_client()
        for number in itertools.count():
            if self._stopped:
                break
            await self._pause(rng)
            about = {"writeConcern": rng.choice(({"w": 1}, {"w": "majority", "wtimeout": 2_000}))}
            if number and rng.random() < 0.2:
                changed = {"q": {"_id": rng.randrange(number)}, "u": {"$set": {"changed": number}}}
                command: dict[str, object] = {"update": MAILS, "updates": [changed]}
            else:
                at = DateTime(EPOCH_MS + self._loop.now_ms + rng.choice(AHEAD_MS))
                command = {"insert": MAILS, "documents": [{"_id": number, "sendAt": at}]}
            try:
                await client.call(self._target(rng, 0.9), DATABASE, command | about)
            except NoAnswerError:
                self.primary = None
        client.close()

    async def _unpark_some(self, rng: random.Random) -> None:
        client = self._new_client()
        while not self._stopped:
            await asyncio.sleep(rng.uniform(0.5, 3))
            found = await self._ask(client, rng, {"replSetConsumerParked": LATER})
            rows = found["parked"] if found is not None else []
            self.parked = max(self.parked, len(rows))
            if rows:
                which: dict[str, object] = {"all": True} if rng.random() < 0.3 else {"id": rng.choice(rows)["id"]}
                await self._ask(client, rng, {"replSetConsumerUnpark": LATER, **which})
        client.close()

    # --- reading

    async def _reader(self, name: str, kind: str, rng: random.Random) -> None:
        """Read and acknowledge; die now and then without a word, and come back under another name."""
        client, lives = self._new_client(), itertools.count(1)
        reader, last = f"{kind}-0", (0, "")
        while not self._stopped:
            await self._pause(rng)
            after = last if name == ORDERED and rng.random() < 0.6 else (0, "")
            if after[1] and self._mix.elsewhere and rng.random() < self._mix.elsewhere:
                found = await self._read_elsewhere(client, rng, reader, after)
            else:
                found = await self._read(name, client, rng, reader, after)
            if found is None or not found["events"]:
                last = (0, "")
                continue
            generation = int(found["generation"])
            last = (generation, str(found.get("next", "")))
            await self._pause(rng)
            choice = rng.random()
            if choice < 0.1:
                reader, last = f"{kind}-{next(lives)}", (0, "")
            elif choice < (0.4 if name == LATER else 0.2):
                last = (0, "")
                await self._give_back(name, client, rng, found, reader)
            elif choice < 0.9:
                await self._acknowledge(name, client, rng, found)
        client.close()

    async def _read(
        self, name: str, client: SimClient, rng: random.Random, reader: str, after: tuple[int, str] = (0, "")
    ) -> dict[str, Any] | None:
        history, asked = self.histories[name], next(self._moments)
        command: dict[str, object] = {"replSetConsumerRead": name, "reader": reader}
        command |= {"maxEvents": rng.choice((1, 3, 20)), "waitMS": rng.choice((0, 300, 1_500))}
        generation, token = after
        if token:
            command |= {"after": token, "generation": Int64(generation)}
        reply = await self._ask(client, rng, command)
        if reply is None or reply.get("code") == MOVED:
            return None
        if reply.get("code") == HISTORY_LOST:
            await self._seek(name, client, rng, reply)
            return None
        begin = place_of(reply.get("position") or "82" + "0" * 46)
        if token and reply.get("generation") == generation:
            begin = max(begin, place_of(token))
        if name == LATER:
            self._check_times(history, reply["events"])
        events = [(place_of(event["_id"]["_data"]), repr(event["documentKey"]["_id"])) for event in reply["events"]]
        if events:
            history.given.append(Given(reader, int(reply["generation"]), asked, next(self._moments), begin, events))
        return reply

    async def _read_elsewhere(
        self, client: SimClient, rng: random.Random, reader: str, after: tuple[int, str]
    ) -> dict[str, Any] | None:
        """Read on at any member, which may know little, or be far behind."""
        history, asked, (generation, token) = self.histories[ORDERED], next(self._moments), after
        command: dict[str, object] = {"replSetConsumerReadHere": ORDERED, "reader": reader, "after": token}
        command |= {"generation": Int64(generation), "maxEvents": rng.choice((1, 3, 20))}
        command |= {"waitMS": rng.choice((0, 300, 1_500))}
        try:
            reply = await client.call(rng.choice(self._hosts), "admin", command)
        except NoAnswerError:
            return None
        if reply["ok"] != 1:
            if reply["code"] == HISTORY_LOST and self._mix.is_kept:
                raise SimulationError(f"invariant 18 broken: the oplog was not kept: {reply['errmsg']}")
            return None
        begin = max(place_of(reply["position"]), place_of(token))
        events = [(place_of(event["_id"]["_data"]), repr(event["documentKey"]["_id"])) for event in reply["events"]]
        if events:
            self.elsewhere += len(events)
            moment = next(self._moments)
            history.given.append(Given(reader, int(reply["generation"]), asked, moment, begin, events, elsewhere=True))
        return reply

    def _check_times(self, history: ConsumerHistory, events: list[dict[str, Any]]) -> None:
        """No member's wall clock may have been behind the time of an event that was given."""
        latest = max(clock.furthest_wall_ms() for clock in self.clocks().values())
        for event in events:
            at = event.get("fullDocument", {}).get("sendAt", DateTime(0)).ms
            self.waited += at > event["wallTime"].ms
            if at > latest:
                history.wrong = f"given before its time, {at} while no clock is beyond {latest}: {event}"

    async def _seek(self, name: str, client: SimClient, rng: random.Random, lost: dict[str, Any]) -> None:
        if self._mix.is_kept:
            raise SimulationError(f"invariant 18 broken: the oplog was not kept for {name}: {lost['errmsg']}")
        self._losses += self._is_draining
        if self._losses > LOSSES_MAX:
            reply = await self._ask(client, rng, {"replSetConsumerSeek": name, "to": "now"})
            if reply is not None and reply["ok"] == 1:
                self.histories[name].sought.append((next(self._moments), place_of(reply["position"])))
            return
        self.histories[name].sought.append((next(self._moments), place_of(lost["oldestToken"]["_data"])))
        await self._ask(client, rng, {"replSetConsumerSeek": name, "to": lost["oldestToken"]})

    async def _acknowledge(
        self, name: str, client: SimClient, rng: random.Random, found: dict[str, Any], *, all_of_it: bool = False
    ) -> bool:
        tokens = [event["_id"]["_data"] for event in found["events"]]
        command: dict[str, object] = {"replSetConsumerAck": name, "generation": found["generation"]}
        if name == ORDERED:
            token = found["next"] if all_of_it or rng.random() < 0.6 else rng.choice(tokens)
            command["token"] = token
            acknowledged = Acknowledged(set(), place_of(token), next(self._moments), int(found["generation"]))
        else:
            chosen = [token for token in tokens if all_of_it or rng.random() < 0.8]
            command["tokens"] = chosen
            places = set(map(place_of, chosen))
            acknowledged = Acknowledged(places, None, next(self._moments), int(found["generation"]))
        self.histories[name].acknowledged.append(acknowledged)
        reply = await self._ask(client, rng, command)
        if reply is not None and reply["ok"] == 1:
            acknowledged.answered = next(self._moments)
        return bool(acknowledged.answered)

    async def _give_back(
        self, name: str, client: SimClient, rng: random.Random, found: dict[str, Any], reader: str
    ) -> None:
        command: dict[str, object] = {"replSetConsumerNack": name, "generation": found["generation"]}
        command["delayMS"] = rng.choice((0, 200, DELAYED_MS))
        if rng.random() < (0.2 if name == LATER else 0.5):
            command |= {"leave": True, "reader": reader}
        else:
            command["tokens"] = [event["_id"]["_data"] for event in found["events"]]
            command |= {"reason": "not now"} if name == LATER else {}
        await self._ask(client, rng, command)

    async def drain(self, primary: Callable[[], HostPort | None]) -> None:
        """Read and acknowledge all that is left, on a set that is well."""
        client, rng = self._new_client(), random.Random(1)
        self._is_draining = True
        for name in self._followed:
            quiet_ms = 2 * DELAYED_MS + (max(AHEAD_MS) if name == LATER else 0)
            quiet_since: int | None = None  # of the first answer in a row without an event; one may take long itself
            for _ in range(DRAIN_TRIES):
                self.primary = primary()
                found = await self._read(name, client, rng, "last")
                if found is None or found["events"] or found.get("active") is False or found.get("outstanding"):
                    quiet_since = None
                elif quiet_since is None:
                    quiet_since = self._loop.now_ms
                elif self._loop.now_ms - quiet_since > quiet_ms:
                    break
                if found is not None and found["events"]:
                    await self._acknowledge(name, client, rng, found, all_of_it=True)
                else:
                    await asyncio.sleep(0.1)
            else:
                raise SimulationError(f"invariant 18 broken: consumer {name} never ends")
        if LATER in self.histories:
            await self._note_kept(client, rng, primary)
        client.close()

    async def _note_kept(self, client: SimClient, rng: random.Random, primary: Callable[[], HostPort | None]) -> None:
        """Note what is parked, and what is held since the primary's wall clock is behind."""
        history = self.histories[LATER]
        for name in ("heldEvents", "parkedEvents"):
            reply = None
            while reply is None or reply["ok"] != 1:
                self.primary = host = primary()
                if host is None:
                    await asyncio.sleep(0.1)
                    continue
                with suppress(NoAnswerError):
                    reply = await client.call(host, "config", {"find": name, "batchSize": 10_000})
            wall_ms = self.clocks()[host].wall_ms() if host is not None else 0
            for document in reply["cursor"]["firstBatch"]:
                _, token, *at = document["_id"].split("/")
                if at and int(at[0]) <= wall_ms - DELAYED_MS:
                    history.wrong = f"not given though its time is over since {wall_ms - int(at[0])} ms: {document}"
                history.kept.add(place_of(token))
            self.parked += len(reply["cursor"]["firstBatch"]) if name == "parkedEvents" else 0

    # --- judging

    def violation(self, entries: list[Entry]) -> str:
        """What is wrong, "" for nothing. entries: the final history."""
        for name, history in self.histories.items():
            expected = changes_of(entries, self._followed[name])
            wrong = history.wrong or _wrong_answer(name, history, expected)
            wrong = wrong or _skipped(history, expected) or _repeated(history)
            if wrong:
                return f"consumer {name}: {wrong}"
        return ""


def changes_of(entries: list[Entry], ns: str) -> dict[Place, str]:
    """Each change of a document of this collection, with its `_id`, in order."""
    found: dict[Place, str] = {}
    for entry in entries:
        body = entry.body
        operations = body["o"]["applyOps"] if body["op"] == "c" and "applyOps" in body["o"] else [body]
        for number, operation in enumerate(operations):
            if operation["ns"] == ns and operation["op"] in ("i", "u", "d"):
                about = operation["o2"] if operation["op"] == "u" else operation["o"]
                found[entry.optime.ts, number, 1] = repr(about["_id"])
    return found


def _wrong_answer(name: str, history: ConsumerHistory, expected: dict[Place, str]) -> str:
    """An event that is not in the final history, or out of its order."""
    order, begin = list(expected), max([history.begin, *(at for _, at in history.sought)])
    of_key: defaultdict[str, list[Place]] = defaultdict(list)
    for place, key in expected.items():
        of_key[key].append(place)
    for given in history.given:
        places = [place for place, _ in given.events]
        for place, key in given.events:
            if expected.get(place) != key:
                return f"{place} of {key} is not in the final history: {given}"
        if name == ORDERED:
            first = bisect_right(order, given.after)
            if order[first : first + len(places)] != places:
                return f"behind {given.after} come {order[first : first + len(places)]}: {given}"
        if name != SHARED:
            continue
        sent = {one for ack in history.acknowledged if ack.asked < given.answered for one in ack.places}
        for number, (place, key) in enumerate(given.events):
            overtaken = {one for one in of_key[key] if begin < one < place} - sent - set(places[:number])
            if overtaken:
                return f"{place} of {key} came before {overtaken}: {given}"
    return ""


def _skipped(history: ConsumerHistory, expected: dict[Place, str]) -> str:
    given = {place for answer in history.given for place, _ in answer.events} | history.kept
    begin = max([history.begin, *(place for _, place in history.sought)])
    missing = [place for place in expected if place > begin and place not in given]
    return f"never given to anybody: {missing}" if missing else ""


def _repeated(history: ConsumerHistory) -> str:
    for given in history.given:
        for place, _ in given.events:
            for ack in history.acknowledged:
                if 0 < ack.answered < given.asked and ack.covers(place):
                    if any(ack.asked < when and at <= place for when, at in history.sought):
                        continue
                    if given.elsewhere and ack.generation > given.generation:
                        continue
                    return f"{place} was acknowledged, {ack}, and came again: {given}"
    return ""

"""What a set endures: a crowd of clients that ask too much at once, and half of what it can do for a long time."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from replset.bson import RawDocument, encode
from replset.client import HttpClient
from replset.errors import ReplError
from replset.local_set import LocalMember, LocalSet, free_ports, wait_until
from replset.wire.framing import FrameReader, encode_msg

CLIENTS = 500
SLOW_READERS = 20
SMALLEST, LARGEST = 1_000, 15_000_000
OPLOG_MB = 64
EVERY_S = 5.0
"""So often the soak looks at its members."""
FLAT = 0.05
"""So much may memory grow from the second quarter of the soak to the last."""
DOCUMENTS = 50_000
"""So many documents the soak keeps changing: its data stays as large as it is."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_CHUNK = 1 << 18


class Client:
    """One connection; a command at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames = FrameReader()
        self._ids = count(1)

    @classmethod
    async def to(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=_CHUNK))

    async def ask(self, command: Mapping[str, object], pause_s: float = 0.0) -> RawDocument:
        """The reply. pause_s: after each piece of it that was read, as a slow reader does."""
        self._writer.write(encode_msg(next(self._ids), 0, encode(command)))
        await self._writer.drain()
        while True:
            data = await self._reader.read(_CHUNK)
            if not data:
                raise ConnectionError("the member closed the connection")
            for message in self._frames.feed(data):
                return message.body
            if pause_s:
                await asyncio.sleep(pause_s)

    def close(self) -> None:
        self._writer.close()


@dataclass(slots=True)
class Sample:
    """A member at one moment."""

    at: float
    rss: int
    descriptors: int


@dataclass
class Members:
    """Looks at the members now and then: memory and descriptors of each, terms, lag, size of the oplog."""

    members: list[LocalMember]
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    terms: set[int] = field(default_factory=set)
    most_lag_s: float = 0.0
    most_oplog_bytes: int = 0
    silent: int = 0
    most_stolen: float = 0.0
    """Share of the CPU that the host gave to other machines between two looks, where it did most."""
    _ticks: tuple[int, int] | None = None

    def look(self) -> None:
        before, self._ticks = self._ticks, _cpu_ticks()
        if before is not None and self._ticks[1] > before[1]:
            stolen = (self._ticks[0] - before[0]) / (self._ticks[1] - before[1])
            self.most_stolen = max(self.most_stolen, stolen)
        for member in self.members:
            folder = Path(f"/proc/{member.pid}")
            rss = int((folder / "statm").read_text().split()[1]) * _PAGE
            sample = Sample(time.monotonic(), rss, len(list((folder / "fd").iterdir())))
            self.samples.setdefault(member.name, []).append(sample)
            try:
                status: Any = member.command({"replSetGetStatus": 1}, timeout_s=5.0)
                oplog = HttpClient(member.http, timeout_s=5.0).get("/v1/replset/oplog/info")
            except ReplError:
                self.silent += 1
                continue
            self.terms.add(int(status["term"]))
            self.most_oplog_bytes = max(self.most_oplog_bytes, oplog["bytes"])
            behind = status["date"].ms - status["optimes"]["lastAppliedWallTime"].ms
            self.most_lag_s = max(self.most_lag_s, behind / 1000)


def _cpu_ticks() -> tuple[int, int]:
    """Stolen ones, all of them."""
    ticks = [int(value) for value in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return ticks[7], sum(ticks)


@contextmanager
def looking(members: list[LocalMember], every_s: float) -> Iterator[Members]:
    found, done = Members(members), threading.Event()

    def run() -> None:
        while not done.wait(every_s):
            found.look()

    thread = threading.Thread(target=run, name="looks at the members")
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


@contextmanager
def three_members(folder: Path, flags: list[str]) -> Iterator[tuple[LocalSet, LocalMember]]:
    from replset.local_set import running_set

    with running_set(folder) as local:
        for port in free_ports(3, 24017):
            local.add(port, flags=flags)
        local.initiate()
        primary = local.wait_for_primary()
        wait_until(lambda: _all_counted(primary), 60, "three counted members")
        yield local, primary


def _all_counted(primary: LocalMember) -> bool:
    rows: Any = primary.command({"replSetGetStatus": 1}).get("members")
    return isinstance(rows, list) and all(row["counted"] and row["state"] in (1, 2) for row in rows)


# --- a crowd --------------------------------------------------------------------------------------------------------


def crowd(folder: Path, seconds: float, connections: int) -> int:
    """`connections` clients write documents of 1 KB to 15 MB at once, some read large answers slowly."""
    with three_members(folder, []) as (local, primary), looking(local.members, 1.0) as found:
        term = primary.command({"replSetGetStatus": 1})["term"]
        outcome = asyncio.run(_crowd(primary.port, seconds, connections))
        kept = _kept(primary)
    acknowledged, answers, latencies, beats = outcome
    latencies.sort()
    lost = acknowledged - kept
    print(f"{connections} clients, {SLOW_READERS} of them slow readers, {seconds:.0f} s: ", end="")
    print(", ".join(f"{what}: {times:,}" for what, times in sorted(answers.items())))
    print(f"writes acknowledged by a majority: {len(acknowledged):,}; of these missing afterwards: {len(lost)}")
    if latencies:
        p50, p99 = (latencies[int(len(latencies) * share)] for share in (0.5, 0.99))
        print(f"latency of these, p50: {p50:.2f} s, p99: {p99:.2f} s")
    print(f"a ping meanwhile, longest: {max(beats):.2f} s; terms seen: {sorted(found.terms)} (before: {term})")
    for name, samples in found.samples.items():
        print(
            f"{name}: at most {max(one.rss for one in samples) >> 20} MiB,"
            f" {max(one.descriptors for one in samples)} descriptors"
        )
    unknown = {what for what in answers if what not in ("acknowledged", "read", "refused: 462")}
    return 1 if lost or found.terms != {term} or unknown else 0


async def _crowd(
    port: int, seconds: float, connections: int
) -> tuple[set[int], Counter[str], list[float], list[float]]:
    rng = random.Random(7)
    until = time.monotonic() + seconds
    numbers = count(1)
    acknowledged: set[int] = set()
    answers: Counter[str] = Counter()
    latencies: list[float] = []
    beats: list[float] = []

    async def writer() -> None:
        client = await Client.to(port)
        while time.monotonic() < until:
            number = next(numbers)
            size = int(SMALLEST * (LARGEST / SMALLEST) ** (rng.random() ** 3))
            document = {"_id": number, "pad": "x" * size}
            began = time.monotonic()
            command = {"insert": "crowd", "documents": [document], "writeConcern": {"w": "majority"}, "$db": "bench"}
            reply = await client.ask(command)
            if reply.get("ok") == 1 and "writeErrors" not in reply and "writeConcernError" not in reply:
                acknowledged.add(number)
                answers["acknowledged"] += 1
                latencies.append(time.monotonic() - began)
            else:
                answers[f"refused: {reply.get('code')}"] += 1
                await asyncio.sleep(0.5 + rng.random())
        client.close()

    async def slow_reader() -> None:
        client = await Client.to(port)
        while time.monotonic() < until:
            reply = await client.ask({"find": "crowd", "batchSize": 1000, "singleBatch": True, "$db": "bench"}, 0.1)
            answers["read" if reply.get("ok") == 1 else f"refused: {reply.get('code')}"] += 1
            await asyncio.sleep(0.5 + rng.random())
        client.close()

    async def beat() -> None:
        client = await Client.to(port)
        while time.monotonic() < until:
            began = time.monotonic()
            await client.ask({"ping": 1, "$db": "admin"})
            beats.append(time.monotonic() - began)
            await asyncio.sleep(0.2)
        client.close()

    tasks = [writer() for _ in range(connections - SLOW_READERS)] + [slow_reader() for _ in range(SLOW_READERS)]
    await asyncio.gather(beat(), *tasks)
    return acknowledged, answers, latencies, beats


def _kept(primary: LocalMember) -> set[int]:
    """The numbers of the documents that are there."""
    found: set[int] = set()
    find: dict[str, object] = {"find": "crowd", "projection": {"_id": 1}, "batchSize": 10_000}
    reply: Any = primary.command(find, "bench", 60.0)
    while True:
        if reply["ok"] != 1:
            raise RuntimeError(f"the documents cannot be read: {reply['errmsg']}")
        cursor = reply["cursor"]
        found.update(row["_id"] for row in cursor.get("firstBatch", cursor.get("nextBatch")))
        if not cursor["id"]:
            return found
        reply = primary.command({"getMore": cursor["id"], "collection": "crowd", "batchSize": 10_000}, "bench", 60.0)


# --- a soak ---------------------------------------------------------------------------------------------------------


def soak(folder: Path, seconds: float, connections: int) -> int:
    """Half of what the set can do, for `seconds`; its first tenth warms it up."""
    with three_members(folder, ["--oplog-size-mb", str(OPLOG_MB)]) as (local, primary):
        term = primary.command({"replSetGetStatus": 1})["term"]
        most = len(asyncio.run(_change(primary.port, 5.0, connections, None))) / 5.0
        with looking(local.members, EVERY_S) as found:
            late = sorted(asyncio.run(_change(primary.port, seconds, connections, most / 2)))
    print(f"{len(late):,} changes in {seconds:.0f} s, {len(late) / seconds:,.0f}/s (half of {most:,.0f}/s)")
    p50, p99 = (late[int(len(late) * share)] for share in (0.5, 0.99))
    print(f"late, p50: {p50:.2f} s, p99: {p99:.2f} s, at most: {late[-1]:.2f} s", end="; ")
    print(f"the host kept back at most {found.most_stolen:.0%} of the CPU in {EVERY_S:.0f} s")
    good = found.terms == {term}
    print(
        f"terms seen: {sorted(found.terms)} (before: {term}); lag at most {found.most_lag_s:.1f} s; oplog at most ",
        end="",
    )
    print(f"{found.most_oplog_bytes / (1 << 20):.1f} MiB of {OPLOG_MB}")
    for name, samples in found.samples.items():
        kept = samples[len(samples) // 10 :]
        memory = _by_quarter([one.rss for one in kept])
        descriptors = [one.descriptors for one in kept]
        growth = memory[3] / memory[1] - 1
        print(
            f"{name}: {', '.join(f'{part / (1 << 20):.0f}' for part in memory)} MiB by quarter"
            f" ({growth:+.1%} from the second to the last); {min(descriptors)} to {max(descriptors)} descriptors"
        )
        good = good and growth < FLAT and max(descriptors) - min(descriptors) <= 8
    return 0 if good and found.most_oplog_bytes < OPLOG_MB * 1.2 * (1 << 20) else 1


def _by_quarter(values: list[int]) -> list[float]:
    """The mean of each quarter; all the same where there are too few."""
    size = max(1, len(values) // 4)
    parts = [values[n * size : (n + 1) * size] or values for n in range(4)]
    return [sum(part) / len(part) for part in parts]


async def _change(port: int, seconds: float, connections: int, rate: float | None) -> array[float]:
    """Updates by `connections` clients, all in all `rate` a second (None: as many as they can). How late each was."""
    began = time.monotonic()
    numbers = count()
    late = array("d")

    async def client() -> None:
        connection = await Client.to(port)
        while True:
            number = next(numbers)
            due = began + number / rate if rate else time.monotonic()
            if due >= began + seconds:
                break
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            change = {"q": {"_id": number % DOCUMENTS}, "u": {"$set": {"at": due, "pad": "x" * 200}}, "upsert": True}
            command = {"update": "soak", "updates": [change], "writeConcern": {"w": "majority"}, "$db": "bench"}
            reply = await connection.ask(command)
            if reply.get("ok") != 1 or "writeConcernError" in reply:
                raise RuntimeError(f"a write failed: {reply.decode()}")
            late.append(time.monotonic() - due)
        connection.close()

    await asyncio.gather(*(client() for _ in range(connections)))
    return late


BENCHES: dict[str, Callable[[Path, float, int], int]] = {"crowd": crowd, "soak": soak}


def run(name: str, folder: Path, seconds: float, connections: int) -> int:
    try:
        return BENCHES[name](folder, seconds, connections)
    except (OSError, RuntimeError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1

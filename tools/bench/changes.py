"""How late change events are while writers load the set fully, and how fast a named consumer reads and acknowledges.

The C program writes. One client more inserts a document that it can find again every few milliseconds: the event of
such a document is as late as it arrives at a reader after the insert was sent, beside which stands the insert's answer.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from replset.bson import RawDocument
from replset.client import WireClient
from tools.bench import generator
from tools.bench.endure import Client
from tools.bench.generator import NoCompilerError
from tools.bench.measure import watched
from tools.bench.subjects import ReplSet, running_replset

STREAMS = (0, 1, 100)
WRITERS = 16
BULKS_PER_S = 3
"""Of 1,000 events each, for a consumer: so many for each second of a load."""
READ_AT_ONCE = {"exclusive": 1_000, "shared": 500}
PAUSE_S = 0.005
"""Between two inserts that are looked for."""
MOST_WARM_UP_S = 1.0
LAST_EVENTS_S = 0.5
_ID = re.compile(rb"\x02_id\x00....(probe [0-9 ]+)\x00", re.DOTALL)


class Latencies:
    """The writer of the inserts that are looked for, and the readers of `streams` change streams."""

    def __init__(self, port: int, streams: int) -> None:
        self._port, self._streams = port, streams
        self._sent: dict[bytes, float] = {}
        self._ready = asyncio.Semaphore(0)
        self.writes: list[float] = []
        self.events: list[float] = []
        self.shown = 0
        """Events that all streams showed."""

    async def run(self, seconds: float) -> None:
        """Write for so long, while all streams are open."""
        readers = [asyncio.create_task(self._read()) for _ in range(self._streams)]
        for _ in readers:
            await self._ready.acquire()
        await self._write(seconds)
        await asyncio.sleep(LAST_EVENTS_S)
        for reader in readers:
            reader.cancel()
        for outcome in await asyncio.gather(*readers, return_exceptions=True):
            if not isinstance(outcome, asyncio.CancelledError):
                raise RuntimeError(f"a stream ended: {outcome!r}")

    async def _write(self, seconds: float) -> None:
        client = await Client.to(self._port)
        until = time.monotonic() + seconds
        for number in count():
            name, began = f"probe {self._streams} {number}", time.monotonic()
            if began >= until:
                break
            self._sent[name.encode()] = began
            command = {"insert": "bench", "documents": [{"_id": name}], "writeConcern": {"w": "majority"}}
            _good(await client.ask({**command, "$db": "bench"}))
            self.writes.append(time.monotonic() - began)
            await asyncio.sleep(PAUSE_S)
        client.close()

    async def _read(self) -> None:
        client = await Client.to(self._port)
        opened = {"aggregate": "bench", "pipeline": [{"$changeStream": {}}], "cursor": {}, "$db": "bench"}
        cursor: Any = _good(await client.ask(opened)).get("cursor")
        more = {"getMore": cursor["id"], "collection": "bench", "maxTimeMS": 1_000, "$db": "bench"}
        self._ready.release()
        while True:
            raw = _good(await client.ask(more)).raw
            now = time.monotonic()
            self.shown += raw.count(b"\x02operationType\x00")
            self.events += [now - self._sent[name] for name in set(_ID.findall(raw))]


def _good(reply: RawDocument) -> RawDocument:
    if reply.get("ok") != 1 or "writeErrors" in reply or "writeConcernError" in reply:
        raise RuntimeError(f"a command failed: {reply.decode()}")
    return reply


def quantiles_ms(seconds: Sequence[float]) -> str:
    """Return p50 and p99; of nothing a dash."""
    if not seconds:
        return "-"
    found = sorted(seconds)
    return " / ".join(f"{found[int(len(found) * share)] * 1000:.1f}" for share in (0.5, 0.99))


async def _streams(subject: ReplSet, program: Path, streams: int, connections: int, seconds: float) -> None:
    port, warm_up = subject.at_primary.port, min(MOST_WARM_UP_S, seconds)
    latencies = Latencies(port, streams)
    load = partial(generator.run, program, port, "majority", connections=connections, warm_up=warm_up)
    with watched() as watch:
        loading = asyncio.create_task(asyncio.to_thread(load, seconds=seconds + LAST_EVENTS_S))
        await asyncio.sleep(warm_up)
        await latencies.run(seconds)
        loaded = await loading
    if loaded.errors:
        raise RuntimeError(f"the load failed: {loaded.error_text}")
    print(
        f"{streams:7} {loaded.operations_per_s:10,.0f} {quantiles_ms(latencies.writes):>15}"
        f" {quantiles_ms(latencies.events):>15} {latencies.shown / seconds:12,.0f} {watch.others:10.1f}",
        flush=True,
    )


def _consume(subject: ReplSet, program: Path, mode: str, bulks: int) -> None:
    """Let one reader read and acknowledge the events of so many bulk inserts."""
    with WireClient(subject.at_primary.host, timeout_s=60.0) as client:

        def ask(command: dict[str, object]) -> dict[str, Any]:
            reply = client.command("admin", command)
            if reply["ok"] != 1:
                raise RuntimeError(f"a command failed: {reply}")
            return reply

        ask({"replSetConsumerCreate": mode, "ns": "bench.bench", "mode": mode})
        generator.run(program, subject.at_primary.port, "bulk", connections=1, warm_up=0, operations=bulks)
        subject.settle()
        began, found = time.monotonic(), 0
        while found < bulks * 1_000:
            reply = ask({"replSetConsumerRead": mode, "reader": "bench", "maxEvents": READ_AT_ONCE[mode]})
            tokens = [event["_id"]["_data"] for event in reply["events"]]
            what = {"token": reply["next"]} if "next" in reply else {"tokens": tokens}
            ask({"replSetConsumerAck": mode, "generation": reply["generation"], **what})
            found += len(tokens)
        print(f"{mode:>10} {found / (time.monotonic() - began):10,.0f}", flush=True)
        ask({"replSetConsumerRemove": mode})


def run(folder: Path, seconds: float, connections: int, members: int) -> int:
    """Print both tables. Exit status 2: there is no C compiler."""
    try:
        program = generator.build(folder)
    except NoCompilerError as error:
        print(f"./dev bench: {error}", file=sys.stderr)
        return 2
    with running_replset(folder / "set", members=members) as subject:
        print(f"{members} members, {connections} connections that insert at w: majority; p50 / p99")
        print(f"{'streams':>7} {'writes/s':>10} {'write, ms':>15} {'event, ms':>15} {'events/s':>12} {'elsewhere':>10}")
        for streams in STREAMS:
            asyncio.run(_streams(subject, program, streams, connections, seconds))
        print(f"{'consumer':>10} {'events/s':>10}, each acknowledged")
        for mode in READ_AT_ONCE:
            _consume(subject, program, mode, max(1, round(seconds * BULKS_PER_S)))
    return 0

"""How the cost of a write or read grows: with members, size of documents, documents, size of the oplog, connections.

Each sweep is one function that loads sets at some points; docs/performance.md shows what they found. None of them is
part of a run without names, for they take minutes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from tools.bench.endure import Client
from tools.bench.measure import tree_seconds
from tools.bench.subjects import ReplSet, running_replset
from tools.bench.throughput import Bench, Point, plain, say
from tools.bench.where import where

MEMBERS = (3, 5, 7)
SIZES = (100, 1_000, 10_000, 100_000)
OPLOG_MB = (16, 64, 256)
CONNECTIONS = (1, 4, 16, 64, 256, 1_000, 2_000)
DOCUMENTS = 1_000_000
MEMORY_S = 600.0
PARTS = 10
IDLE_S = 30.0
PROBES_PER_S = 50


def by_members(bench: Bench, folder: Path, options: Namespace) -> None:
    """Load sets of 3, 5 and 7 members on this one machine."""
    for count in MEMBERS:
        points = [Point("majority", many, label=f"{count} members") for many in options.connections or (1, 64)]
        with running_replset(folder / str(count), members=count) as subject:
            _rounds(bench, points, subject, options)


def by_size(bench: Bench, folder: Path, options: Namespace) -> None:
    """Insert documents of 100 bytes to 100 KB."""
    with running_replset(folder / "set", members=options.members) as subject:
        for many in options.connections or (1, 16):
            points = [Point("majority", many, size=size, label=f"{size:,} bytes") for size in SIZES]
            _rounds(bench, points, subject, options)


def by_collection(bench: Bench, folder: Path, options: Namespace) -> None:
    """Read random documents of a collection, and write to it: 1,000 documents, ten times as many, and so on."""
    with running_replset(folder / "set", members=options.members) as subject:
        count = 1_000
        while count <= options.documents:
            for row in ("find", "majority"):
                point = Point(row, 64, documents=count, label=f"{row}, {count:,} documents")
                _rounds(bench, [point], subject, options)
            say(f"{count:,} documents: {_size_mib(subject):,.0f} MiB on the primary's disk")
            count *= 10


def by_oplog(bench: Bench, folder: Path, options: Namespace) -> None:
    """Write with oplogs of 16 to 256 MB that are full, so that each write trims as much as it adds."""
    for size in OPLOG_MB:
        with running_replset(
            folder / str(size), members=options.members, flags=["--oplog-size-mb", str(size)]
        ) as subject:
            full = size * 3000  # an entry has 350 bytes, about
            point = Point("majority", 64, documents=full // 1000 * 1000, label=f"oplog of {size} MB")
            _rounds(bench, [point], subject, options)


def by_connections(bench: Bench, folder: Path, options: Namespace) -> None:
    """Write and read on 1 to 2,000 connections."""
    with running_replset(folder / "set", members=options.members) as subject:
        for row in ("majority", "find"):
            points = [
                Point(row, many, label=f"{row}, {many:,} connections") for many in options.connections or CONNECTIONS
            ]
            _rounds(bench, points, subject, options)


def memory(bench: Bench, folder: Path, options: Namespace) -> None:
    """Write for ten minutes in ten parts, with the memory after each; and show the CPU of members without work."""
    bench.seconds = (options.seconds or MEMORY_S) / PARTS
    with running_replset(folder / "set", members=options.members) as subject:
        time.sleep(IDLE_S)
        say(_idle(subject, "before the load"))
        for part in range(1, PARTS + 1):
            bench.measure(Point("majority", 64, label=f"part {part} of {PARTS}"), subject)
        time.sleep(IDLE_S)
        say(_idle(subject, "after the load"))


def _idle(subject: ReplSet, when: str) -> str:
    """Say how much of a core each member takes while nobody asks it anything."""
    pids = [subject.primary, *subject.secondaries]
    before = [tree_seconds(pid) for pid in pids]
    time.sleep(IDLE_S)
    shares = [(tree_seconds(pid) - old) / IDLE_S for pid, old in zip(pids, before, strict=True)]
    return f"idle {when}: {', '.join(f'{share:.2%}' for share in shares)} of a core (the primary first)"


def visible(bench: Bench, folder: Path, options: Namespace) -> None:
    """Measure how long after its acknowledgement a w:1 write can be read on a secondary, while 64 connections write."""
    with running_replset(folder / "set") as subject:
        secondary = next(member for member in subject.members if member is not subject.at_primary)
        for _ in range(options.rounds):
            found: list[float] = []
            done = threading.Event()
            probe = threading.Thread(target=_probe, args=(subject.at_primary.port, secondary.port, done, found))
            probe.start()
            load = bench.measure(Point("w1", 64), subject)
            done.set()
            probe.join()
            if load is not None and found:
                bench.add(Point("visible", 64), subject.name, plain(PROBES_PER_S, found))


def _probe(primary: int, secondary: int, done: threading.Event, found: list[float]) -> None:
    asyncio.run(_writes_and_reads(primary, secondary, done, found))


async def _writes_and_reads(primary: int, secondary: int, done: threading.Event, found: list[float]) -> None:
    """Write on one port, then read on the other with afterClusterTime, which waits until the write is there."""
    writer, reader = await Client.to(primary), await Client.to(secondary)
    number = time.time_ns()
    while not done.is_set():
        number += 1
        insert = {"insert": "probe", "documents": [{"_id": number}], "writeConcern": {"w": 1}, "$db": "bench"}
        written = await writer.ask(insert)
        began = time.perf_counter()
        concern = {"level": "local", "afterClusterTime": written.get("operationTime")}
        find = {"find": "probe", "filter": {"_id": number}, "readConcern": concern, "$db": "bench"}
        read = await reader.ask({**find, "$readPreference": {"mode": "secondary"}})
        found.append((time.perf_counter() - began) * 1000)
        if read.get("ok") != 1 or not read.decode()["cursor"]["firstBatch"]:  # type: ignore[index]
            raise RuntimeError(f"the write was not there: {read.decode()}")
        await asyncio.sleep(1 / PROBES_PER_S)
    writer.close()
    reader.close()


SWEEPS: dict[str, Callable[[Bench, Path, Namespace], None]] = {
    "by-members": by_members,
    "by-size": by_size,
    "by-collection": by_collection,
    "by-oplog": by_oplog,
    "by-connections": by_connections,
    "memory": memory,
    "visible": visible,
    "where": where,
}


def _rounds(bench: Bench, points: list[Point], subject: ReplSet, options: Namespace) -> None:
    for number in range(options.rounds):
        bench.round(number, points, [subject])


def _size_mib(subject: ReplSet) -> float:
    folder = subject.at_primary.dbpath
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / (1 << 20)

"""`./dev bench [NAME]`: throughput of a real three-member set; codec and storage; Spark. Never part of the tests."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tools.bench import bson, changes, endure, failover, peers, pipelines, spark, storage, sweeps
from tools.bench.floors import apsw_rows_per_s, running_echo
from tools.bench.generator import NoCompilerError, build
from tools.bench.subjects import ROWS, Subject, running_replset
from tools.bench.throughput import Bench, Point, plain, say

ALONE = {"bson": bson.run, "storage": storage.run}
CHANGES, FAILOVER, PIPELINES = "changes", "failover", "pipelines"
NAMES = [*ALONE, *ROWS, *sweeps.SWEEPS, *endure.BENCHES, CHANGES, FAILOVER, PIPELINES, *spark.BENCHES]
LONG_S = 10.0
ROUND_S = 3.0


def connection_counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="./dev bench")
    made.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"of: {', '.join(NAMES)}; none: all but sweeps, crowd, soak, changes, failover, pipelines",
    )
    made.add_argument(
        "--seconds", type=float, help=f"of each load: {ROUND_S:g}; of crowd and soak: {LONG_S:g}; of memory: 600"
    )
    made.add_argument("--connections", type=connection_counts, help="1,16,64; in crowd 500, in soak 64")
    made.add_argument("--members", type=int, default=3, help="of each set of ours")
    made.add_argument("--kills", type=int, default=20, help="in failover, each of a set of its own")
    made.add_argument("--rounds", type=int, default=3, help="of which the table shows the medians")
    made.add_argument("--peers", action="store_true", help="PostgreSQL, etcd and Redis in turn with the set")
    made.add_argument("--beside", type=Path, metavar="FOLDER", help="another checkout's set in turn with this one's")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the table there for programs")
    made.add_argument("--documents", type=int, default=sweeps.DOCUMENTS, help="the most in by-collection; in pipelines")
    made.add_argument("--entries", type=int, default=2_000_000, help="a member's, in the benchmarks of Spark")
    made.add_argument("--keep", type=Path, metavar="FOLDER", help="keep Spark's members there for the next run")
    return made


def main() -> int:
    given = parser()
    options = given.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers end, too
    unknown = [name for name in options.names if name not in NAMES]
    if options.beside is not None and not (options.beside / "replset").is_dir():
        given.error(f"no checkout in {options.beside}")
    if unknown:
        given.error(f"no benchmark {unknown[0]}")
    wanted = options.names or [*ALONE, *ROWS, spark.ALL]
    for name in wanted:
        if name in ALONE:
            ALONE[name]()
    loads = [name for name in wanted if name in (*ROWS, *sweeps.SWEEPS)]
    failed = bench_sets(loads, options) if loads else 0
    for name in wanted:
        if name in endure.BENCHES:
            with tempfile.TemporaryDirectory(prefix="replset-bench-") as folder:
                many = (options.connections or [{"crowd": endure.CLIENTS, "soak": 64}[name]])[0]
                failed = max(failed, endure.run(name, Path(folder), options.seconds or LONG_S, many))
    if CHANGES in wanted:
        with tempfile.TemporaryDirectory(prefix="replset-bench-") as folder:
            many = (options.connections or [changes.WRITERS])[0]
            failed = max(failed, changes.run(Path(folder), options.seconds or LONG_S, many, options.members))
    if FAILOVER in wanted:
        with tempfile.TemporaryDirectory(prefix="replset-bench-") as folder:
            failed = max(failed, failover.run(Path(folder), options.kills, options.members))
    if PIPELINES in wanted:
        failed = max(failed, pipelines.run(options.documents))
    jobs = [name for name in wanted if name in spark.BENCHES]
    return max(failed, spark.run(jobs, options.entries, options.keep) if jobs else 0)


def bench_sets(names: list[str], options: argparse.Namespace) -> int:
    """Run rows and sweeps, and show what they found in one table."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="replset-bench-")))
        try:
            bench = Bench(build(folder), options.seconds or ROUND_S)
        except NoCompilerError as error:
            say(f"./dev bench: {error}")
            return 2
        rows = [name for name in names if name in ROWS]
        missing = load_rows(bench, rows, folder, options) if rows else []
        for name in names:
            if name in sweeps.SWEEPS:
                sweeps.SWEEPS[name](bench, folder / name, options)
        title = (
            f"{options.members} members, 256-byte documents, {os.cpu_count()} cores, medians of {options.rounds} rounds"
        )
        if missing:
            title += f"; not installed: {', '.join(missing)}"
        return bench.show(title, options.json)


def load_rows(bench: Bench, rows: list[str], folder: Path, options: argparse.Namespace) -> list[str]:
    """Load this checkout's set, and what else was asked for, in turn. Returns the peers that are not installed."""
    connections = options.connections or [1, 16, 64]
    floors = [Point("floor", many) for many in connections]
    points = [Point(row, many) for row in rows for many in connections_of(row, connections)]
    missing: list[str] = []
    with ExitStack() as stack:
        subjects: list[Subject] = [stack.enter_context(running_replset(folder / "set", members=options.members))]
        if options.beside is not None:
            beside = running_replset(folder / "beside", name="beside", checkout=options.beside, members=options.members)
            subjects.append(stack.enter_context(beside))
        if options.peers:
            started, missing = peers.start_all(stack)
            subjects += started
        subjects.append(stack.enter_context(running_echo()))
        for number in range(options.rounds):
            for point in floors:
                bench.add(point, "apsw", plain(apsw_rows_per_s(point.connections, min(bench.seconds, 1.0), folder)))
            bench.round(number, [*floors, *points], subjects)
    return missing


def connections_of(row: str, connections: list[int]) -> list[int]:
    """Bulk inserts fill a member with a few connections."""
    return sorted({min(many, 4) for many in connections}) if row == "bulk" else connections


if __name__ == "__main__":
    sys.exit(main())

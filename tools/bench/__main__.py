"""`./dev bench [NAME]`: throughput of a real three-member set; codec and storage; Spark. Never part of the tests."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from replset.cli.local_set import HTTP_OFFSET, LocalMember, free_ports, running_set, wait_until
from tools.bench import bson, endure, spark, storage
from tools.bench.load import HttpClient, Result, RetryableClient, WireClient, run_load

ROWS: dict[str, tuple[type[WireClient] | type[HttpClient], dict[str, object], int]] = {
    "wire-w1": (WireClient, {"w": 1}, 8000),
    "wire-retryable": (RetryableClient, {"w": 1}, 6000),
    "wire-majority": (WireClient, {"w": "majority"}, 4000),
    "http-majority": (HttpClient, {"w": "majority"}, 2000),
}
ALONE = {"bson": bson.run, "storage": storage.run}
NAMES = [*ALONE, *ROWS, *endure.BENCHES, *spark.BENCHES]


def cpu_seconds(member: LocalMember) -> float:
    """CPU time that the member's process used so far, user and system."""
    fields = Path(f"/proc/{member.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev bench")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of: {', '.join(NAMES)}; none: all but crowd and soak"
    )
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--connections", type=int, help="64; in crowd 500")
    parser.add_argument("--entries", type=int, default=2_000_000, help="a member's, in the benchmarks of Spark")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep Spark's members there for the next run")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        parser.error(f"no benchmark {unknown[0]}")
    wanted = options.names or [*ALONE, *ROWS, spark.ALL]
    for name in wanted:
        if name in ALONE:
            ALONE[name]()
    rows = [name for name in wanted if name in ROWS]
    failed = bench_set(rows, options.seconds, options.connections or 64) if rows else 0
    for name in wanted:
        if name in endure.BENCHES:
            with tempfile.TemporaryDirectory(prefix="replset-bench-") as folder:
                many = options.connections or {"crowd": endure.CLIENTS, "soak": 64}[name]
                failed = max(failed, endure.run(name, Path(folder), options.seconds, many))
    jobs = [name for name in wanted if name in spark.BENCHES]
    return max(failed, spark.run(jobs, options.entries, options.keep) if jobs else 0)


def bench_set(rows: list[str], seconds: float, connections: int) -> int:
    console = Console()
    table = Table(title=f"three members, {connections} connections, 256-byte documents, {os.cpu_count()} cores")
    for column in ("row", "writes/s", "at least", "p50 ms", "p99 ms", "cpu: primary", "secondaries", "client"):
        table.add_column(column, justify="left" if column == "row" else "right")
    failed = False
    with tempfile.TemporaryDirectory(prefix="replset-bench-") as folder, running_set(Path(folder)) as local:
        for port in free_ports(3, 37017):
            local.add(port)
        local.initiate()
        primary = local.wait_for_primary()
        wait_until(lambda: all_counted(primary), 60, "three counted members")
        secondaries = [member for member in local.members if member is not primary]
        for number, name in enumerate(rows):
            kind, concern, least = ROWS[name]
            port = primary.port + (HTTP_OFFSET if kind is HttpClient else 0)
            before = cpu_seconds(primary), sum(map(cpu_seconds, secondaries)), sum(os.times()[:2])
            load = run_load(
                kind, port, concern, connections=connections, seconds=seconds, warm_up_s=2, first=(number + 1) << 40
            )
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                result: Result = runner.run(load)
            after = cpu_seconds(primary), sum(map(cpu_seconds, secondaries)), sum(os.times()[:2])
            for error in result.errors:
                failed = True
                console.print(f"{name}: {error}", style="red", markup=False)
            shares = [f"{(new - old) / (seconds + 2):.0%}" for old, new in zip(before, after, strict=True)]
            figures = [
                f"{result.per_second:,.0f}",
                f"{least:,}",
                f"{result.percentile(0.5):.1f}",
                f"{result.percentile(0.99):.1f}",
            ]
            table.add_row(name, *figures, *shares)
    console.print(table)
    return 1 if failed else 0


def all_counted(primary: LocalMember) -> bool:
    rows = primary.command({"replSetGetStatus": 1}).get("members")
    return isinstance(rows, list) and all(row["counted"] and row["state"] in (1, 2) for row in rows)


if __name__ == "__main__":
    sys.exit(main())

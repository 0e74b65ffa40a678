"""Eight pipelines over a million documents, beside DuckDB and pandas with the same rows in memory.

The table shows seconds of the clock and of the processor, the least of `ROUNDS`; of ours one round, which takes long
enough.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from replset.bson import DateTime
from replset.local_set import LocalMember
from tools.bench.subjects import running_replset

ROUNDS = 3
BATCH = 1000
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
TAGS = [f"tag{number}" for number in range(50)]
Row = dict[str, Any]
Times = tuple[float, float]


def rows(count: int) -> Iterator[Row]:
    """Yield orders."""
    rng = random.Random(18)
    for number in range(count):
        yield {
            "_id": number,
            "customer": rng.randrange(10_000),
            "region": f"region {rng.randrange(12)}",
            "category": f"category {rng.randrange(200)}",
            "quantity": rng.randrange(1, 20),
            "price": round(rng.uniform(1, 500), 2),
            "at": BEGIN + timedelta(seconds=rng.randrange(366 * 86_400)),
            "tags": rng.sample(TAGS, rng.randrange(4)),
        }


REVENUE = {"$multiply": ["$quantity", "$price"]}
WINDOW = {"$sum": "$quantity", "window": {"documents": ["unbounded", "current"]}}
PIPELINES: dict[str, list[Row]] = {
    "count with a filter": [{"$match": {"region": "region 3"}}, {"$count": "n"}],
    "group by one field": [{"$group": {"_id": "$category", "n": {"$sum": 1}, "q": {"$sum": "$quantity"}}}],
    "group by two, computed": [
        {"$group": {"_id": {"r": "$region", "c": "$category"}, "sum": {"$sum": REVENUE}, "mean": {"$avg": "$price"}}}
    ],
    "filter, compute, 100 greatest": [
        {"$match": {"quantity": {"$gte": 10}}},
        {"$project": {"customer": 1, "revenue": REVENUE}},
        {"$sort": {"revenue": -1}},
        {"$limit": 100},
    ],
    "unwind and count": [{"$unwind": "$tags"}, {"$sortByCount": "$tags"}],
    "sum by month": [
        {"$group": {"_id": {"$dateTrunc": {"date": "$at", "unit": "month"}}, "sum": {"$sum": REVENUE}}},
        {"$sort": {"_id": 1}},
    ],
    "sort all": [{"$sort": {"price": 1, "_id": 1}}, {"$skip": 500_000}, {"$limit": 1}],
    "running sum by customer": [
        {"$setWindowFields": {"partitionBy": "$customer", "sortBy": {"at": 1}, "output": {"s": WINDOW}}},
        {"$group": {"_id": None, "max": {"$max": "$s"}}},
    ],
}
SQL = {
    "count with a filter": "select count(*) from t where region = 'region 3'",
    "group by one field": "select category, count(*), sum(quantity) from t group by 1",
    "group by two, computed": "select region, category, sum(quantity * price), avg(price) from t group by 1, 2",
    "filter, compute, 100 greatest": (
        "select _id, customer, quantity * price as revenue from t where quantity >= 10 order by revenue desc limit 100"
    ),
    "unwind and count": "select tag, count(*) as n from (select unnest(tags) as tag from t) group by 1 order by n desc",
    "sum by month": "select date_trunc('month', \"at\") as m, sum(quantity * price) from t group by 1 order by 1",
    "sort all": "select * from t order by price, _id limit 1 offset 500000",
    "running sum by customer": (
        'select max(s) from (select sum(quantity) over (partition by customer order by "at" rows between unbounded'
        " preceding and current row) as s from t)"
    ),
}


def pandas_runs(frame: Any) -> dict[str, Callable[[], Any]]:
    """Return what pandas does for each pipeline."""

    def revenue() -> Any:
        return frame.assign(revenue=frame.quantity * frame.price)

    return {
        "count with a filter": lambda: int((frame.region == "region 3").sum()),
        "group by one field": lambda: frame.groupby("category").agg(n=("quantity", "size"), q=("quantity", "sum")),
        "group by two, computed": lambda: (
            revenue().groupby(["region", "category"]).agg({"revenue": "sum", "price": "mean"})
        ),
        "filter, compute, 100 greatest": lambda: revenue()[frame.quantity >= 10].nlargest(100, "revenue"),
        "unwind and count": lambda: frame.tags.explode().value_counts(),
        "sum by month": lambda: revenue().groupby(frame["at"].dt.month).revenue.sum(),
        "sort all": lambda: frame.sort_values(["price", "_id"]).iloc[500_000:500_001],
        "running sum by customer": lambda: frame.sort_values("at").groupby("customer").quantity.cumsum().max(),
    }


def least_s(call: Callable[[], object], cpu_s: Callable[[], float] = time.process_time, rounds: int = ROUNDS) -> Times:
    """Return the least seconds, of the clock and of the processor."""
    times = []
    for _ in range(rounds):
        began, before = time.perf_counter(), cpu_s()
        call()
        times.append((time.perf_counter() - began, cpu_s() - before))
    return min(times)


def member_cpu_s(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def ask(member: LocalMember, command: Row) -> None:
    reply = member.command(command, "bench", 600)
    if not reply["ok"] or "writeErrors" in reply:
        raise RuntimeError(str(reply)[:500])


def fetch(database: Any, sql: str) -> None:
    database.execute(sql).fetchall()


def run(count: int) -> int:
    """Load `count` documents everywhere, and print seconds."""
    import duckdb  # of the extra `bench`
    import pandas as pd

    found: dict[str, list[Times]] = {name: [] for name in PIPELINES}
    with (
        tempfile.TemporaryDirectory(prefix="replset-bench-") as folder,
        running_replset(Path(folder), members=1) as ours,
    ):
        member = ours.at_primary
        documents = ({**row, "at": DateTime(int(row["at"].timestamp() * 1000))} for row in rows(count))
        while batch := list(islice(documents, BATCH)):
            ask(member, {"insert": "t", "documents": batch})
        for name, pipeline in PIPELINES.items():
            command = {"aggregate": "t", "pipeline": pipeline, "cursor": {"batchSize": 10_000}}
            found[name].append(least_s(partial(ask, member, command), partial(member_cpu_s, member.pid), 1))
            print(f"{name:32} {found[name][0][0]:9.2f} s", file=sys.stderr, flush=True)
    frame = pd.DataFrame(rows(count))
    with duckdb.connect() as database:
        database.execute("create table t as select * from frame")
        for name, sql in SQL.items():
            found[name].append(least_s(partial(fetch, database, sql)))
    for name, call in pandas_runs(frame).items():
        found[name].append(least_s(call))
    print(f"{count:,} documents, {os.cpu_count()} cores, seconds of the clock (of the processor)")
    print(f"{'pipeline':32} {'replset':>18} {'DuckDB':>18} {'pandas':>18}")
    for name, times in found.items():
        print(f"{name:32} " + " ".join(f"{wall:9.3f} ({cpu:6.2f})" for wall, cpu in times))
    return 0

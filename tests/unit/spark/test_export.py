"""Where an export puts what, and what it refuses, without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from replset.ids import pack_ts
from spark.columns import COLUMNS
from spark.oplog import EVERYTHING, Span
from spark.readers.sqlite import SqliteOplog
from spark.reports.export import by_namespace, merges, runs_by_day
from spark.reports.export_folder import ExportedFile, ExportError, Mode, Target, day_of, folder_of, segment
from tests.spark.kit import T0, insert, write_oplog

MIDNIGHT = 1_760_054_400
MIB = 1 << 20


def test_names_of_folders() -> None:
    told = {"shop.orders": "shop.orders", "größe.$cmd": "größe.$cmd", "": "__HIVE_DEFAULT_PARTITION__"}
    told |= {"127.0.0.1:28017": "127.0.0.1%3A28017", "a/b=c%d": "a%2Fb%3Dc%25d", "tab\there": "tab%09here"}
    assert {name: segment(name) for name in told} == told
    first, second = segment("x" * 300 + "1"), segment("x" * 300 + "2")
    assert first != second
    assert max(len(first), len(second), len(segment("ü" * 150).encode())) <= 200
    assert day_of(pack_ts(MIDNIGHT - 1, 5)) == "2025-10-09"
    assert day_of(pack_ts(MIDNIGHT, 0)) == "2025-10-10"
    assert folder_of("a:1", "2025-10-10", "x.y") == "member=a%3A1/day=2025-10-10/ns=x.y"


def rows(*found: tuple[int, str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"ts": pack_ts(seconds, 1), "ns": ns} for seconds, ns in found])


def test_runs_by_day() -> None:
    batch = rows((MIDNIGHT - 2, "a"), (MIDNIGHT - 1, "b"), (MIDNIGHT, "c"), (MIDNIGHT + 86_400, "d"))
    found = [(day, part.column("ns").to_pylist()) for day, part in runs_by_day(batch)]
    assert found == [("2025-10-09", ["a", "b"]), ("2025-10-10", ["c"]), ("2025-10-11", ["d"])]
    assert list(runs_by_day(batch.slice(0, 0))) == []


def test_by_namespace_keeps_the_order() -> None:
    batches = [rows((1, "b"), (2, "a"), (3, "b")), rows((4, "a"), (5, ""))]
    found = [(ns, [ts >> 31 for ts in table.column("ts").to_pylist()]) for ns, table in by_namespace(batches)]
    assert found == [("", [5]), ("a", [2, 4]), ("b", [1, 3])]
    ((ns, table),) = by_namespace([rows((1, "b"), (2, "b"))])
    assert (ns, len(table)) == ("b", 2)


def file(first_ts: int, size: int, ns: str = "x", day: str = "d") -> ExportedFile:
    return ExportedFile("a", day, ns, f"{ns}{first_ts}", 1, size, first_ts, first_ts)


@pytest.mark.parametrize(
    ("files", "together"),
    [
        ([], []),
        ([file(1, 5)], []),
        ([file(2, 5), file(1, 5)], [[1, 2]]),
        ([file(1, 5), file(2, 5, ns="y"), file(3, 5, day="e")], []),
        ([file(1, 5), file(2, 17 * MIB), file(3, 5)], []),
        ([file(1, 5), file(2, 5), file(3, 17 * MIB), file(4, 5), file(5, 5)], [[1, 2], [4, 5]]),
        ([file(n, 15 * MIB) for n in range(10)], [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9]]),
    ],
)
def test_merges(files: list[ExportedFile], together: list[list[int]]) -> None:
    assert [[found.first_ts for found in group] for group in merges(files)] == together


def test_what_the_folder_must_be(tmp_path: Path) -> None:
    oplog = SqliteOplog("a", str(write_oplog(tmp_path / "a", [insert(n) for n in range(3)]) / "replset.db"))
    bounds = oplog.bounds()
    whole = [(oplog.pin(), Span(bounds.oldest.ts, bounds.newest.ts + 1))]
    out = tmp_path / "out"
    for made in (out, out / "_temporary-of-a-run-that-died"):
        assert Target.open(str(out)).prepare([oplog], Mode.NEW, EVERYTHING) == whole
        made.mkdir()
    assert Target.open(str(out)).prepare([oplog], Mode.NEW, EVERYTHING) == whole
    (out / "notes.txt").write_text("mine")
    with pytest.raises(ExportError, match="is not empty"):
        Target.open(str(out)).prepare([oplog], Mode.NEW, EVERYTHING)
    for mode in (Mode.OVERWRITE, Mode.APPEND):
        with pytest.raises(ExportError, match=r"is no export: it holds notes\.txt"):
            Target.open(str(out)).prepare([oplog], mode, EVERYTHING)
    with pytest.raises(ExportError, match="notes"):
        Target.open(str(out / "notes.txt")).prepare([oplog], Mode.NEW, EVERYTHING)
    with pytest.raises(ExportError, match="nowhere://x"):
        Target.open("nowhere://x/y")


def test_appending_begins_behind_what_is_there(tmp_path: Path) -> None:
    history = [insert(n, per_second=1) for n in range(10)]
    oplog = SqliteOplog("a", str(write_oplog(tmp_path / "a", history) / "replset.db"))
    out = tmp_path / "out"
    target = Target.open(str(out))
    oplog = oplog.pin()
    assert target.prepare([oplog], Mode.APPEND, EVERYTHING) == [(oplog, Span(history[0][0], history[-1][0] + 1))]

    (batch,) = oplog.read(Span(history[0][0], history[5][0]), COLUMNS)
    folder = out / folder_of("a", day_of(history[0][0]), "shop.orders")
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_batches([batch]), folder / "part-1.parquet")
    assert target.prepare([oplog], Mode.APPEND, EVERYTHING) == [(oplog, Span(history[4][0] + 1, history[-1][0] + 1))]
    assert target.prepare([oplog], Mode.APPEND, Span(0, history[7][0])) == [
        (oplog, Span(history[4][0] + 1, history[7][0]))
    ]
    assert target.prepare([oplog], Mode.APPEND, Span(0, history[3][0])) == []

    other = [*history[:4], insert(4, per_second=1, text="other"), *history[5:]]
    rolled_back = SqliteOplog("a", str(write_oplog(tmp_path / "b", other) / "replset.db"))
    with pytest.raises(ExportError, match=rf"a: the newest exported entry, {T0 + 4}:1, is not in its history"):
        target.prepare([rolled_back], Mode.APPEND, EVERYTHING)
    trimmed = SqliteOplog(
        "a", str(write_oplog(tmp_path / "c", history[6:], trimmed_through=history[5][0]) / "replset.db")
    )
    with pytest.raises(ExportError, match=rf"the oplog begins at 1:{T0 + 6}:1, after the newest exported entry"):
        target.prepare([trimmed], Mode.APPEND, EVERYTHING)

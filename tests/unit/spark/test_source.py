"""The options of format("oplog"), and what a stream answers when it is asked as Spark does."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from replset.errors import BadValueError
from replset.ids import pack_ts
from spark.columns import SPARK_TYPES
from spark.oplog import EVERYTHING, EntryFilter, OplogError, OplogRolledBackError, OplogTrimmedError, Span
from spark.source import MAX_ENTRIES, OplogStreamReader, Options
from tests.spark.kit import T0, append, insert, trim, write_oplog


def test_options() -> None:
    options = Options.parse({"path": "/a,b"})
    assert options == Options(texts=("/a,b",))
    assert (options.span, options.only, options.columns) == (EVERYTHING, EntryFilter(), tuple(SPARK_TYPES))
    assert (options.max_entries, options.skip_trimmed, options.from_now) == (MAX_ENTRIES, False, False)
    given = {"PATHS": '["/a", "m=http://h:1"]', "member": "a, m", "ns": '["shop.a,b"]', "op": "i,u"}
    given |= {"from": "2:100:5", "to": "1970-01-01T00:03:20Z", "columns": "hash,ts,hash"}
    given |= {"rowspertask": "10", "maxEntriesPerBatch": "20", "onTrimmed": "skip"}
    assert Options.parse(given) == Options(
        texts=("/a", "m=http://h:1"),
        members=("a", "m"),
        only=EntryFilter(ns=("shop.a,b",), op=("i", "u")),
        span=Span(pack_ts(100, 5), pack_ts(200, 0)),
        columns=("hash", "ts"),
        rows_per_task=10,
        max_entries=20,
        skip_trimmed=True,
    )
    assert Options.parse({"path": "/a", "from": "now"}).from_now
    assert Options.parse({"path": "/a", "to": "1:100:5"}).span.end_ts == pack_ts(100, 6)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "say what to read"),
        ({"path": "/a", "rowPerTask": "1"}, "has no option rowpertask; it has path, paths"),
        ({"path": "/a", "from": "soon"}, "option from: 'soon'"),
        ({"path": "/a", "columns": "ts,x"}, "there is no column x"),
        ({"path": "/a", "rowsPerTask": "0"}, "option rowsPerTask: '0'"),
        ({"path": "/a", "maxEntriesPerBatch": "many"}, "option maxEntriesPerBatch: 'many'"),
        ({"path": "/a", "onTrimmed": "ignore"}, "is not fail or skip"),
        ({"paths": "[1]"}, "is no array of texts"),
        ({"paths": "[1"}, "is no JSON array"),
    ],
)
def test_what_cannot_be(given: dict[str, str], why: str) -> None:
    with pytest.raises(BadValueError, match=why.replace("[", r"\[")):
        Options.parse(given)


def test_members_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(OplogError, match="x: there is no such member; there are a, h:1"):
        Options.parse({"paths": "a=http://h:2,http://h:1", "member": "a,x"}).oplogs()
    (tmp_path / "oplog.bson").write_bytes(insert(0)[6])
    with pytest.raises(OplogError, match=r"d: it does not grow; read it with spark\.read, not readStream"):
        stream(f"d={tmp_path}/oplog.bson")


# --- streams, as Spark asks for them


def stream(*members: object, **options: object) -> OplogStreamReader:
    given = {name.removesuffix("_"): str(value) for name, value in options.items()}
    return OplogStreamReader(Options.parse({"paths": json.dumps(list(map(str, members)))} | given), ("member", "ts"))


def ahead(reader: OplogStreamReader, start: dict[str, Any], limit: int | None = None) -> dict[str, Any]:
    """An offset as Spark has it: through JSON."""
    found = reader.latestOffset(start, reader.getDefaultReadLimit() if limit is None else ReadMaxRows(limit))
    return dict(json.loads(json.dumps(found)))


def given_by(reader: OplogStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, int]]:
    rows = (row for part in reader.partitions(start, end) for batch in reader.read(part) for row in batch.to_pylist())
    return [(row["member"], row["ts"]) for row in rows]


def marks(offset: dict[str, Any]) -> dict[str, str]:
    return {name: mark["optime"] for name, mark in offset.items()}


def stamps(member: str, *numbers: int) -> list[tuple[str, int]]:
    return [(member, insert(n)[0]) for n in range(*numbers)]


def test_a_stream_begins_where_it_was_told_and_goes_on_in_bounded_steps(tmp_path: Path) -> None:
    member = write_oplog(tmp_path / "m1", map(insert, range(50)))
    reader = stream(member, maxEntriesPerBatch=30)
    offsets = [reader.initialOffset()]
    for _ in range(4):
        offsets.append(ahead(reader, offsets[-1]))
    assert [mark["m1"] for mark in map(marks, offsets)] == [f"0:{T0}:0", f"1:{T0}:30", *[f"1:{T0}:50"] * 3]
    steps = [given_by(reader, *pair) for pair in pairwise(offsets)]
    assert steps == [stamps("m1", 30), stamps("m1", 30, 50), [], []]
    later = stream(member, from_=f"1:{T0}:11", to=f"1:{T0}:20")
    start = later.initialOffset()
    assert given_by(later, start, ahead(later, start)) == stamps("m1", 10, 20)


def test_from_now_and_a_choice(tmp_path: Path) -> None:
    member = write_oplog(tmp_path / "m1", map(insert, range(50)))
    reader = stream(member, from_="now", ns="shop.a")
    start = reader.initialOffset()
    assert ahead(reader, start) == start
    append(member, (insert(n, ns="shop.a" if n % 2 else "shop.b") for n in range(50, 60)))
    end = ahead(reader, start)
    assert given_by(reader, start, end) == [("m1", insert(n)[0]) for n in range(51, 60, 2)]
    again = stream(member, from_="now", ns="shop.a")  # a restart: the offset counts, not `from`
    assert given_by(again, start, end) == [("m1", insert(n)[0]) for n in range(51, 60, 2)]


def test_what_is_there_at_the_beginning_is_all_that_availableNow_takes(tmp_path: Path) -> None:
    member = write_oplog(tmp_path / "m1", map(insert, range(10)))
    reader = stream(member)
    reader.prepareForTriggerAvailableNow()
    append(member, map(insert, range(10, 20)))
    assert marks(ahead(reader, reader.initialOffset())) == {"m1": f"1:{T0}:10"}


def test_members_that_come_and_go_at_a_restart(tmp_path: Path) -> None:
    one, two = (write_oplog(tmp_path / name, map(insert, range(10))) for name in ("m1", "m2"))
    before = stream(one)
    start = before.initialOffset()
    end = ahead(before, start)
    both = stream(one, two)
    assert given_by(both, start, end) == stamps("m1", 10)  # the batch that was planned without the other
    assert given_by(both, end, ahead(both, end)) == stamps("m2", 10)
    assert marks(ahead(stream(two), ahead(both, end))) == {"m2": f"1:{T0}:10"}
    with pytest.raises(OplogError, match="n1: the stream does not know this member, it knows m1"):
        ahead(stream(f"n1={one}"), end)


def test_an_oplog_that_is_empty_at_first(tmp_path: Path) -> None:
    member = write_oplog(tmp_path / "m1", [])
    for begin in ("now", f"1:{T0}:1"):
        reader = stream(member, from_=begin)
        start = reader.initialOffset()
        assert given_by(reader, start, ahead(reader, start)) == []
    append(member, map(insert, range(3)))
    assert given_by(reader, start, ahead(reader, start)) == stamps("m1", 3)


@pytest.mark.parametrize("skip", [False, True])
def test_a_head_that_was_trimmed_unread(tmp_path: Path, skip: bool) -> None:
    member = write_oplog(tmp_path / "m1", map(insert, range(5000)))
    reader = stream(member, onTrimmed="skip" if skip else "fail")
    start = ahead(reader, reader.initialOffset(), 100)
    planned = ahead(reader, start, 900)
    trim(member, insert(4499)[0])
    if not skip:
        for do in (lambda: ahead(reader, start), lambda: given_by(reader, start, planned)):
            with pytest.raises(OplogTrimmedError, match=f"m1: .* up to {T0 + 2}:500 were trimmed away"):
                do()
        return
    assert given_by(reader, start, planned) == []  # all of the batch is gone
    end = ahead(reader, start)
    gone = {"times": 1, "seconds": 2, "lastFrom": f"0:{T0}:101", "lastThrough": f"0:{T0 + 2}:500"}
    assert end["m1"]["skipped"] == gone
    assert given_by(reader, start, end) == stamps("m1", 4500, 5000)
    append(member, map(insert, range(5000, 9000)))
    trim(member, insert(7999)[0])
    assert ahead(reader, end)["m1"]["skipped"] == gone | {
        "times": 2,
        "seconds": 3,
        "lastFrom": f"0:{T0 + 2}:1001",
        "lastThrough": f"0:{T0 + 3}:2000",
    }


def test_a_member_that_rolled_back(tmp_path: Path) -> None:
    member = write_oplog(tmp_path / "m1", map(insert, range(100)))
    reader = stream(member)
    start = reader.initialOffset()
    end = ahead(reader, start)
    append(member, (insert(n, term=2) for n in range(90, 120)), keep=90)
    for do in (lambda: ahead(reader, end), lambda: given_by(reader, start, end)):
        with pytest.raises(OplogRolledBackError, match=rf"m1: its entry 1:{T0}:100 .* new checkpointLocation"):
            do()

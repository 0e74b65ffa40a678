"""Entries as only mongods write them: read, counted, replayed, or named as not replayed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from replset.bson import Binary, DateTime, Int64, Timestamp, decode, encode, encode_key
from replset.ids import OpTime, pack_ts
from replset.oplog_entry import OplogEntry
from spark.entry_bytes import diff_size
from spark.mongod_entries import is_part, places_of, without_operations
from spark.oplog import EVERYTHING, OplogError
from spark.readers.dump import DumpOplog
from spark.reports.replay.replay import collection_at, steps_of
from spark.reports.summary import summary_of
from spark.reports.verify.check import verification
from spark.runners import LocalRunner
from tests.unit.spark.test_replay import folded

NS, T0 = "shop.orders", 1_760_000_000
UUID = Binary(b"a" * 16, 4)
LSID = {"id": Binary(b"i" * 16, 4), "uid": b"u" * 32}
Fields = dict[str, object]


def entry(number: int, op: str, o: Fields, ns: str = NS, **more: object) -> bytes:
    """With fields in the order in which a mongod 7 has them."""
    tail = {"ts": Timestamp(T0 + number, 1), "t": Int64(1), "v": Int64(2), "wall": DateTime((T0 + number) * 1000)}
    return encode({"op": op, "ns": ns, "ui": UUID, "o": o, **more, **tail})


def insert(number: int, **fields: object) -> bytes:
    return entry(number, "i", {"_id": 1, **fields}, o2={"_id": 1})


def update(number: int, o: Fields, **more: object) -> bytes:
    return entry(number, "u", o, o2={"_id": 1}, **more)


def command(number: int, o: Fields, txn: int = 1) -> bytes:
    previous = {"ts": Timestamp(T0 + number - 1, 1), "t": Int64(1)}
    return entry(number, "c", o, "admin.$cmd", lsid=LSID, txnNumber=Int64(txn), prevOpTime=previous)


def part(number: int, *values: int, txn: int = 1, **marks: object) -> bytes:
    """An entry of a transaction that sets `n` to these values, one after the other."""
    operations = [
        {"op": "u", "ns": NS, "ui": UUID, "o": {"$v": 2, "diff": {"u": {"n": value}}}, "o2": {"_id": 1}}
        for value in values
    ]
    return command(number, {"applyOps": operations, **marks}, txn)


def replayed(entries: Sequence[bytes]) -> Fields | None:
    """The document 1 after these entries."""
    views = [OplogEntry(raw) for raw in entries]
    parts = filter(is_part, views)
    stripped = [OplogEntry(without_operations(view)) if "applyOps" in view.o else view for view in parts]
    places = places_of(stripped, "m1")
    rows = [(view.key(), view.optime.ts, view.op, view.raw) for view in views]
    found = folded(list(steps_of(NS, rows, places)), 3)
    return decode(found[encode_key(1)]) if found else None


PREPARED = [
    insert(1),
    part(2, 2, 3, partialTxn=True),
    part(3, 4, prepare=True, count=Int64(3)),
    update(4, {"$v": 2, "diff": {"u": {"m": 1}}}),
]
COMMIT = command(5, {"commitTransaction": 1, "commitTimestamp": Timestamp(T0 + 3, 1)})
ABORT = command(5, {"abortTransaction": 1})


@pytest.mark.parametrize(
    ("entries", "document"),
    [
        pytest.param([insert(1), part(2, 2, 3, partialTxn=True), part(3, 4, count=Int64(3))], {"n": 4}, id="several"),
        pytest.param([insert(1), part(2, 2, 3, partialTxn=True)], {}, id="not-ended-yet"),
        pytest.param(PREPARED, {"m": 1}, id="prepared"),
        pytest.param([*PREPARED, COMMIT], {"m": 1, "n": 4}, id="committed"),
        pytest.param([*PREPARED, ABORT], {"m": 1}, id="aborted"),
        pytest.param([*PREPARED[:2], part(4, 8, txn=2), *PREPARED[2:3], COMMIT], {"n": 4}, id="another-one-in-between"),
        pytest.param(
            [*PREPARED[:2], ABORT, part(6, 7, txn=2, partialTxn=True), part(7, 9, txn=2, count=Int64(2))],
            {"n": 9},
            id="after-an-aborted-one",
        ),
        pytest.param([insert(1), part(2, 5, multiOpType=1)], {"n": 5}, id="alone"),
    ],
)
def test_transactions(entries: list[bytes], document: Fields) -> None:
    assert replayed(entries) == {"_id": 1, **document}


@pytest.mark.parametrize("end", [COMMIT, part(5, 4, count=Int64(3))])
def test_a_transaction_whose_beginning_is_not_there(end: bytes) -> None:
    with pytest.raises(OplogError, match=rf"^m1: 1:{T0 + 5}:1 ends a transaction that began before"):
        replayed([insert(1), end])


@pytest.mark.parametrize(
    ("o", "document"),
    [
        ({"$v": 1, "$set": {"a.0.b": 5, "c": 1}}, {"a": [{"b": 5}, 2], "c": 1}),
        ({"$v": 1, "$unset": {"a": True}, "$set": {"z": 1}}, {"z": 1}),
        ({"$set": {"a.3": 7}}, {"a": [{"b": 1}, 2, None, 7]}),
        ({"$v": 1, "$set": {"a.1.x": 5, "b": 6}}, {"a": [{"b": 1}, 2], "b": 6}),  # what a.1 is a later entry says
        ({"$v": 1}, {"a": [{"b": 1}, 2]}),
        ({"_id": 1, "whole": True}, {"whole": True}),
    ],
)
def test_updates_as_operators(o: Fields, document: Fields) -> None:
    assert replayed([insert(1, a=[{"b": 1}, 2]), update(2, o)]) == {"_id": 1, **document}


def test_fields_that_only_mongods_have() -> None:
    marked = update(2, {"$v": 2, "diff": {"u": {"n": 2}}}, needsRetryImage="postImage", fromMigrate=True, stmtId=0)
    noop = entry(3, "n", {"_id": 1, "n": 2}, fromMigrate=True)
    assert replayed([insert(1), marked, noop]) == {"_id": 1, "n": 2}


MAKE = OplogEntry(entry(1, "c", {"create": "orders", "capped": True, "size": 4096}, "shop.$cmd"))
INDEXES = [
    {name: "orders", "indexBuildUUID": UUID, "indexes": [{"v": 2, "key": {"a": 1}, "name": "a_1"}]}
    for name in ("startIndexBuild", "commitIndexBuild", "createIndexes", "abortIndexBuild")
]


def test_commands_on_a_collection() -> None:
    builds = [OplogEntry(entry(number, "c", o, "shop.$cmd")) for number, o in enumerate(INDEXES, 2)]
    life = collection_at([MAKE, *builds], NS, None, "m1")
    assert life is not None
    assert life.after_ts == pack_ts(T0 + 1, 1)
    buckets = OplogEntry(
        entry(1, "c", {"create": "system.buckets.orders", "timeseries": {"timeField": "t"}}, "shop.$cmd")
    )
    assert collection_at([buckets], "shop.system.buckets.orders", None, "m1") is not None
    with pytest.raises(OplogError, match=r"makes shop.orders a time series, .* in shop.system.buckets.orders"):
        collection_at([buckets], NS, None, "m1")
    with pytest.raises(OplogError, match=r"'convertToCapped' on shop.orders, which is not replayed"):
        collection_at([MAKE, OplogEntry(entry(2, "c", {"convertToCapped": "orders"}, "shop.$cmd"))], NS, None, "m1")


def test_every_form_is_counted_and_sound(tmp_path: Path) -> None:
    entries = [
        *(MAKE.raw, *(entry(2 + number, "c", o, "shop.$cmd") for number, o in enumerate(INDEXES))),
        insert(10, a=1),
        update(11, {"$v": 1, "$set": {"a": 2}}),
        update(12, {"$v": 2, "diff": {"u": {"a": 3}}}, needsRetryImage="preImage"),
        part(13, 2, 3, partialTxn=True),
        part(14, 4, prepare=True, count=Int64(3)),
        command(15, {"commitTransaction": 1, "commitTimestamp": Timestamp(T0 + 14, 1)}),
        entry(16, "i", {"_id": 2}, "config.system.sessions", fromMigrate=True),
    ]
    (tmp_path / "oplog.rs.bson").write_bytes(b"".join(entries))
    oplog = DumpOplog("m1", str(tmp_path / "oplog.rs.bson"))
    found = summary_of(LocalRunner(), [oplog], span=EVERYTHING, top=5)
    assert {row["op"]: row["entries"] for row in found.operations.to_pylist()} == {"c": 8, "i": 2, "u": 2}
    (updates,) = found.updates.to_pylist()
    assert (updates["diffs"], updates["replacements"]) == (2, 0)
    assert diff_size(entries[6]) == len(encode({"$v": 1, "$set": {"a": 2}}))
    assert verification(LocalRunner(), [oplog], span=EVERYTHING).faults.to_pylist() == []
    assert OpTime(1, pack_ts(T0 + 16, 1)) == oplog.bounds().newest

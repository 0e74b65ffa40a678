"""Files of concatenated entries: ours, a rollback's, and MongoDB's of any age; in any order, damaged, changed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from replset.bson import Binary, DateTime, Int64, ObjectId, Timestamp, encode, encode_key
from replset.ids import OPTIME_NULL, OpTime, pack_ts
from replset.oplog_entry import OplogEntry, command_entry, delete_entry, noop_entry, update_entry
from replset.oplog_row import entry_hash
from spark.columns import COLUMNS
from spark.oplog import EVERYTHING, Bounds, EntryFilter, OplogError, Span
from spark.readers import dump
from spark.readers.dump import DumpOplog
from tests.spark.kit import T0, UUID, insert


def oplog(folder: Path, entries: Iterable[bytes]) -> DumpOplog:
    file = folder / "oplog.bson"
    file.write_bytes(b"".join(entries))
    return DumpOplog("dump", str(file))


def rows_of(read: DumpOplog, span: Span = EVERYTHING, only: EntryFilter = EntryFilter()) -> list[dict[str, Any]]:  # noqa: B008
    return [row for batch in read.read(span, COLUMNS, only) for row in batch.to_pylist()]


def stamps(read: DumpOplog, span: Span = EVERYTHING) -> list[int]:
    return [ts for batch in read.read(span, ("ts",)) for ts in batch.column(0).to_pylist()]


def test_our_own_entries_of_every_kind(tmp_path: Path) -> None:
    optimes = [OpTime(3, pack_ts(T0, number)) for number in range(1, 6)]
    id_element = encode({"_id": 7})
    entries = [
        insert(0)[6],
        update_entry("shop.a", UUID, id_element, encode({"$v": 2}), optimes[1], T0 * 1000 + 5),
        delete_entry("shop.a", UUID, id_element, optimes[2], T0 * 1000),
        command_entry("shop", UUID, {"drop": "a"}, optimes[3], T0 * 1000),
        noop_entry({"msg": "hello"}, optimes[4], T0 * 1000),
    ]
    for row, entry in zip(rows_of(oplog(tmp_path, entries)), entries, strict=True):
        view = OplogEntry(entry)
        assert row == {
            "ts": view.optime.ts,
            "term": view.optime.term,
            "op": view.op,
            "ns": view.ns,
            "key": view.key(),
            "wall": view.wall_ms,
            "hash": entry_hash(entry),
            "chain": None,
            "entry": entry,
        }


def test_mongodbs_entries_old_and_new(tmp_path: Path) -> None:
    oid = ObjectId(b"0123456789ab")
    newer: dict[str, object] = {
        "lsid": {"id": Binary(b"i" * 16, 4), "uid": b"u" * 32},
        "txnNumber": Int64(1),
        "op": "u",
        "ns": "shop.orders",
        "ui": Binary(UUID, 4),
        "o": {"$v": 2, "diff": {"u": {"a": 1}}},
        "o2": {"shard": 5, "_id": oid},
        "stmtId": 0,
        "ts": Timestamp(T0, 1),
        "t": Int64(12),
        "v": Int64(2),
        "wall": DateTime(T0 * 1000 + 123),
        "prevOpTime": {"ts": Timestamp(0, 0), "t": Int64(-1)},
    }
    plain = {name: newer[name] for name in ("op", "ns", "ui", "o2", "o", "ts", "t", "v", "wall")}
    old: dict[str, object] = {"ts": Timestamp(T0, 1), "h": Int64(5), "v": 2, "op": "i", "ns": "shop.a", "o": {"x": 1}}
    protocol_0 = old | {"t": Int64(-1), "o": {"_id": "k", "x": 1}, "op": "d"}
    found = rows_of(oplog(tmp_path, map(encode, (newer, plain, old, protocol_0))))
    assert [row["term"] for row in found] == [12, 12, 0, 0]
    assert [row["key"] for row in found] == [encode_key(oid), encode_key(oid), None, encode_key("k")]
    assert [row["wall"] for row in found] == [T0 * 1000 + 123] * 2 + [T0 * 1000] * 2
    assert {row["ts"] for row in found} == {pack_ts(T0, 1)}


def test_bounds_and_a_choice(tmp_path: Path) -> None:
    read = oplog(tmp_path, (insert(n, ns=f"shop.c{n % 2}")[6] for n in range(10)))
    pinned = read.pin()
    assert pinned.pin().index is pinned.index
    ends = [OpTime(1, insert(n)[0]) for n in (0, 9)]
    assert read.bounds() == pinned.bounds() == Bounds(ends[0], ends[1], 10)
    found = rows_of(read, Span(insert(2)[0], insert(8)[0]), EntryFilter(ns=("shop.c1",), op=("i",)))
    assert [row["ts"] for row in found] == [insert(n)[0] for n in (3, 5, 7)]
    assert rows_of(read, only=EntryFilter(op=("d",))) == []
    empty = oplog(tmp_path, [])
    assert empty.bounds() == Bounds(OPTIME_NULL, OPTIME_NULL, 0)
    assert (rows_of(empty), empty.split(EVERYTHING, 3)) == ([], [EVERYTHING])


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("parts", [1, 3, 8])
def test_parts_hold_everything_once_and_in_order(
    tmp_path: Path, shuffled: bool, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dump, "_CHUNK_BYTES", 3000)
    numbers = [*range(1500), 100, 100, 700]  # some stand there twice
    numbers.sort()
    if shuffled:
        Random(5).shuffle(numbers)
    read = oplog(tmp_path, (insert(n, per_second=50, text="x" * (n % 70 * 100))[6] for n in numbers)).pin()
    assert len(read.index.chunks) > 100
    assert read.index.in_order is not shuffled
    spans = read.split(EVERYTHING, parts)
    found = [stamps(read, span) for span in spans]
    assert [ts for part in found for ts in part] == [insert(n, per_second=50)[0] for n in sorted(numbers)]
    assert len(found) == parts
    assert max(map(len, found)) <= 2 * len(numbers) / parts
    assert read.count(EVERYTHING) == len(numbers)
    for span, part in zip(spans, found, strict=True):
        assert read.count(span) == pytest.approx(len(part), rel=0.3, abs=20)


def test_a_span_reads_only_its_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dump, "_CHUNK_BYTES", 3000)
    read = oplog(tmp_path, (insert(n, per_second=10)[6] for n in range(1000))).pin()
    file = Path(read.path)
    damaged = bytearray(file.read_bytes())
    damaged[20_000:25_000] = bytes(5000)  # where another span lies
    file.write_bytes(damaged)
    changed = DumpOplog("dump", read.path, read.index._replace(changed=file.stat().st_mtime_ns))
    assert len(stamps(changed, Span(insert(900, per_second=10)[0], EVERYTHING.end_ts))) == 100
    with pytest.raises(OplogError, match=r"dump: .*oplog.bson is damaged: the document at byte \d{5}: "):
        stamps(changed)


def error_text(read: DumpOplog) -> str:
    with pytest.raises(OplogError) as caught:
        stamps(read)
    assert caught.value.name == "dump"
    return caught.value.reason


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        pytest.param({"a": 1}, "it has no ts", id="no-entry"),
        pytest.param({"ts": 5, "op": "i", "ns": "a.b", "o": {}}, "it has no ts", id="ts-is-a-number"),
        pytest.param({"ts": Timestamp(T0, 1 << 31), "op": "i", "ns": "a.b", "o": {}}, "increment", id="increment"),
        pytest.param({"ts": Timestamp(T0, 1), "op": 5, "ns": "a.b", "o": {}}, "no op and ns", id="op-is-a-number"),
    ],
)
def test_a_document_that_is_no_entry(tmp_path: Path, entry: dict[str, object], why: str) -> None:
    first = insert(0)[6]
    reason = error_text(oplog(tmp_path, [first, encode(entry)]))
    assert f"the document at byte {len(first)}: " in reason
    assert why in reason


def test_damaged_files(tmp_path: Path) -> None:
    whole = b"".join(insert(n)[6] for n in range(50))
    size = len(insert(0)[6])
    cut_off = oplog(tmp_path, [whole[:-10]])
    assert f"the document at byte {49 * size}: the file ends after {size - 10} bytes of it" in error_text(cut_off)
    assert f"the document at byte {size}: its length says -1" in error_text(
        oplog(tmp_path, [whole[:size], b"\xff" * 100])
    )
    assert "is compressed: gunzip it first" in error_text(oplog(tmp_path, [b"\x1f\x8b\x08\0" + bytes(100)]))
    inside = bytearray(whole)
    inside[3 * size + 4 : 3 * size + 40] = b"\xee" * 36
    assert f"the document at byte {3 * size}: " in error_text(oplog(tmp_path, [bytes(inside)]))
    Path(cut_off.path).unlink()
    assert error_text(cut_off) == f"{cut_off.path}: No such file or directory"


def test_a_file_that_changes_after_it_was_pinned(tmp_path: Path) -> None:
    read = oplog(tmp_path, [insert(0)[6]]).pin()
    with open(read.path, "ab") as file:
        file.write(insert(1)[6])
    assert "was changed while it was read" in error_text(read)


def test_entries_larger_than_a_chunk(tmp_path: Path) -> None:
    read = oplog(tmp_path, (insert(n, text="x" * 7_000_000)[6] for n in range(4)))
    batches = list(read.read(EVERYTHING, ("entry",)))
    assert [batch.num_rows for batch in batches] == [3, 1]

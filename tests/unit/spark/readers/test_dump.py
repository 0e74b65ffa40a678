"""Files of concatenated entries: ours, a rollback's, and MongoDB's of any age; in any order, damaged, changed."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

import pytest

from replset.bson import Binary, DateTime, Int64, ObjectId, Timestamp, encode, encode_key
from replset.ids import OpTime, pack_ts
from replset.oplog_entry import OplogEntry, command_entry, delete_entry, noop_entry, update_entry
from replset.oplog_row import entry_hash
from spark.oplog import EVERYTHING, OplogError, Span
from spark.readers import dump
from spark.readers.dump import DumpOplog
from tests.spark.kit import T0, UUID, insert
from tests.unit.spark.readers.conftest import mongodump_archive, rows_of, stamps


def oplog(folder: Path, entries: Iterable[bytes]) -> DumpOplog:
    file = folder / "oplog.bson"
    file.write_bytes(b"".join(entries))
    return DumpOplog("dump", str(file))


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


@pytest.mark.parametrize("shuffled", [False, True])
def test_parts_of_entries_that_stand_there_twice(
    tmp_path: Path, shuffled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dump, "_CHUNK_BYTES", 3000)
    numbers = [*range(1500), 100, 100, 700]  # some stand there twice
    numbers.sort()
    if shuffled:
        Random(5).shuffle(numbers)
    read = oplog(tmp_path, (insert(n, per_second=50, text="x" * (n % 70 * 100))[6] for n in numbers)).pin()
    assert len(read.index.chunks) > 100
    assert read.index.in_order is not shuffled
    spans = read.split(EVERYTHING, 8)
    found = [stamps(read, span) for span in spans]
    assert [ts for part in found for ts in part] == [insert(n, per_second=50)[0] for n in sorted(numbers)]
    assert len(found) == 8
    assert max(map(len, found)) <= 2 * len(numbers) / 8
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


def test_a_file_that_changes_after_it_was_pinned(tmp_path: Path) -> None:
    read = oplog(tmp_path, [insert(0)[6]]).pin()
    with open(read.path, "ab") as file:
        file.write(insert(1)[6])
    with pytest.raises(OplogError, match=r"^dump: .*was changed while it was read"):
        stamps(read)


def test_entries_larger_than_a_chunk(tmp_path: Path) -> None:
    read = oplog(tmp_path, (insert(n, text="x" * 7_000_000)[6] for n in range(4)))
    batches = list(read.read(EVERYTHING, ("entry",)))
    assert [batch.num_rows for batch in batches] == [3, 1]


ENTRIES = [insert(n, per_second=10)[6] for n in range(300)]
OTHERS = [encode({"_id": n, "x": "y" * 900}) for n in range(50)]


def plain(entries: list[bytes]) -> bytes:
    return b"".join(entries)


def alone(entries: list[bytes]) -> bytes:
    return mongodump_archive(("local.oplog.rs", entries))


def among_others(entries: list[bytes]) -> bytes:
    """As of `mongodump --oplog --archive`, whose collections take turns."""
    return mongodump_archive(
        ("shop.a", OTHERS), (".oplog", entries[:100]), ("shop.a", OTHERS), (".oplog", entries[100:])
    )


@pytest.mark.parametrize("written", [plain, alone, among_others])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_every_form_that_mongodump_writes(
    tmp_path: Path,
    written: Callable[[list[bytes]], bytes],
    pack: Callable[[bytes], bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dump, "_CHUNK_BYTES", 3000)
    file = tmp_path / "dump"
    file.write_bytes(pack(written(ENTRIES)))
    read = DumpOplog("dump", str(file)).pin()
    assert read.bounds().rows == len(ENTRIES)
    spans = read.split(EVERYTHING, 4)
    assert [row["entry"] for span in spans for row in rows_of(read, span)] == ENTRIES
    assert len(spans) == 4


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (mongodump_archive(("shop.a", OTHERS)), "has no oplog: neither local.oplog.rs nor"),
        (mongodump_archive(("local.oplog.rs", ENTRIES), ended=False), "is cut: it ends before the end of the oplog"),
        (alone(ENTRIES)[:20_000], "is damaged: the document at byte .* ends"),
        (alone(ENTRIES)[: -len(ENTRIES[-1]) - 100], "is damaged: the document at byte .* the file ends after"),
        (mongodump_archive() + encode({"a": 1}), "is damaged: .*: it is no header of an archive's block"),
    ],
)
def test_archives_that_are_none(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(OplogError, match=f"^dump: .*/a {why}"):
        DumpOplog("dump", str(tmp_path / "a")).bounds()

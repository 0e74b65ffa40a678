"""Names, the manifest's form, and the reading side."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replset.bson import encode
from replset.errors import CorruptDataError
from replset.ids import OPTIME_NULL, OpTime, pack_ts
from replset.replication import rollback_files
from replset.replication.rollback_files import (
    RollbackFiles,
    RollbackWriter,
    _left_out,
    escape_namespace,
    file_timestamp,
)
from replset.replication.rollback_manifest import (
    FileKind,
    Manifest,
    RollbackFile,
    RollbackState,
    acknowledge,
    acknowledged,
    list_manifests,
    parse_utc,
    read_manifest,
    settle_manifest,
    utc_text,
    verify_file,
)
from replset.storage.disk import RealDisk
from tests.unit.replication.kit import Member, NotingDisk

WALL_MS = 1_790_000_000_123
UUID_A = UUID(int=7)


def manifest(**changed: object) -> Manifest:
    fields: dict[str, object] = {
        "id": "rollback-2026-09-21T14-13-20.0",
        "state": RollbackState.PLANNED,
        "reason": "rollback",
        "set_name": "rs0",
        "member": "a:1",
        "when": utc_text(WALL_MS),
        "source": "b:2",
        "common_point": OpTime(1, pack_ts(10, 1)),
        "first": OpTime(1, pack_ts(10, 2)),
        "last": OpTime(2, pack_ts(11, 1)),
        "first_wall_ms": WALL_MS,
        "last_wall_ms": WALL_MS + 5,
        "entries": 3,
        "operations": {"i": 2, "d": 1},
        "files": (RollbackFile("x.bson", FileKind.DOCUMENTS, "db.ü/x", UUID_A, 1, 5, "00"),),
    }
    return Manifest(**{**fields, **changed})


@pytest.mark.parametrize(
    ("ns", "name"),
    [
        ("app.orders", "app.orders"),
        ("app.system.views", "app.system.views"),
        ("app.a b", "app.a%20b"),
        ("app.a/b", "app.a%2Fb"),
        ("app.100%", "app.100%25"),
        ("app.ä", "app.%C3%A4"),
        ("app.a~b", "app.a%7Eb"),
        ("app.$cmd", "app.$cmd"),
        (".hidden", "%2Ehidden"),
    ],
)
def test_namespaces_are_escaped(ns: str, name: str) -> None:
    assert escape_namespace(ns) == name


@pytest.mark.parametrize("length", [179, 180, 181, 300])
def test_a_name_is_as_long_as_it_may_be(length: int) -> None:
    name = escape_namespace("a" * length)
    assert len(name) == min(length, 180)
    assert ("~" in name) is (length > 180)


@pytest.mark.parametrize(("count", "end"), [(1, "1:1:0"), (20, ":19"), (21, ":19 and 1 more"), (25, ":19 and 5 more")])
def test_so_many_damaged_entries_are_named(count: int, end: str) -> None:
    text = _left_out([OpTime(1, pack_ts(1, number)) for number in range(count)])
    assert text.count("1:1:") == min(count, 20)
    assert text.endswith(end)


def test_a_damaged_entry_is_left_out_and_named(mine: Member) -> None:
    """A restore would take it for what a client wrote."""
    mine.create("db.damaged")
    mine.insert("db.damaged", *({"_id": number} for number in range(3)))
    damaged = mine.store.oplog_after(OPTIME_NULL, limit=9, max_bytes=1 << 20)[2]
    mine.store._connection.execute("UPDATE oplog SET entry = entry || x'00' WHERE ts = ?", (damaged.ts,))
    files = RollbackFiles(mine.context, WALL_MS, OPTIME_NULL, "rollback", None)
    written = files.write(mine.store.read(), RollbackState.PLANNED)
    entries = next(file for file in written.files if file.kind is FileKind.OPLOG)
    assert written.entries == entries.count == mine.store.entries_behind(OPTIME_NULL, most=999) - 1
    assert str(damaged.optime) in written.reason


def test_long_namespaces_are_cut_with_a_hash() -> None:
    first, second = escape_namespace("app." + "é" * 100 + "1"), escape_namespace("app." + "é" * 100 + "2")
    assert first != second
    assert first.partition("~")[0] == second.partition("~")[0]
    assert first.partition("~")[0].endswith("%C3%A9"), "never cut inside a character"
    assert len(f"before.{first}.{file_timestamp(WALL_MS)}.1000.bson") <= 255


@given(st.text(min_size=1, max_size=120), st.text(min_size=1, max_size=120))
def test_no_two_namespaces_share_a_name(one: str, other: str) -> None:
    assert (escape_namespace(one) == escape_namespace(other)) == (
        one.encode("utf-8", "replace") == other.encode("utf-8", "replace")
    )
    assert len(escape_namespace(one)) <= 180
    assert escape_namespace(one).isascii()


@given(st.integers(0, 4_000_000_000_000))
def test_times_round_trip(wall_ms: int) -> None:
    assert parse_utc(utc_text(wall_ms)) == wall_ms
    assert len(file_timestamp(wall_ms)) == 19


@pytest.mark.parametrize("state", list(RollbackState))
def test_manifests_round_trip(tmp_path: Path, state: RollbackState) -> None:
    written = manifest(state=state, source=None)
    (tmp_path / "rollback").mkdir()
    settled = settle_manifest(RealDisk(), str(tmp_path), written, state, WALL_MS)
    assert list_manifests(tmp_path) == list_manifests(tmp_path / "rollback") == [settled]
    assert settled.settled == "2026-09-21T14:13:20.123Z"
    assert read_manifest(tmp_path / "rollback" / f"{written.id}.json") == settled


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"version": 2}',
        b"\xff",
        b'{"version": 1, "id": "x", "state": "undone"}',
        b'{"version": 1, "range": []}',
    ],
)
def test_what_is_no_manifest_is_named(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "rollback-x.json"
    file.write_bytes(text)
    with pytest.raises(CorruptDataError, match=r"rollback-x\.json"):
        read_manifest(file)
    with pytest.raises(CorruptDataError):
        list_manifests(tmp_path)


def test_manifests_are_listed_oldest_first_by_number(tmp_path: Path) -> None:
    assert list_manifests(tmp_path) == list_manifests(tmp_path / "absent") == []
    (tmp_path / "rollback").mkdir()
    disk = RealDisk()
    for number in (10, 9, 2):
        named = manifest(id=f"rollback-2026-09-21T14-13-20.{number}")
        settle_manifest(disk, str(tmp_path), named, RollbackState.FINISHED, WALL_MS)
    assert [found.id.rpartition(".")[2] for found in list_manifests(tmp_path)] == ["2", "9", "10"]


def test_the_writer_streams_and_describes(tmp_path: Path) -> None:
    writer = RollbackWriter(RealDisk(), str(tmp_path), WALL_MS)
    large = encode({"_id": 1, "data": b"x" * (3 << 20)})
    small = encode({"_id": 2})
    for document in (large, small, large):
        writer.add(FileKind.DOCUMENTS, "db.big", UUID_A, document)
    writer.add(FileKind.BEFORE, "db.big", UUID_A, small)
    before, documents = writer.finish()
    assert (documents.count, documents.size) == (3, 2 * len(large) + len(small))
    assert (tmp_path / "rollback" / documents.name).read_bytes() == large + small + large
    assert before.name == "before.db.big.2026-09-21T14-13-20.0.bson"
    assert verify_file(tmp_path / "rollback", documents) is None
    written = writer.write_manifest(manifest(id="", files=(before, documents)))
    assert written.id == "rollback-2026-09-21T14-13-20.0"
    writer.discard()
    assert list_manifests(tmp_path) == [written], "what is done stays"


@pytest.mark.parametrize("layout", [False, True])
def test_documents_wait_in_memory_up_to_a_bound_and_all_is_durable_before_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: bool
) -> None:
    disk, document = NotingDisk(), encode({"_id": 1})
    monkeypatch.setattr(rollback_files, "_BUFFER_BYTES", 4 * len(document))
    writer = RollbackWriter(disk, str(tmp_path), WALL_MS, mongodb_layout=layout)
    for _ in range(9):
        writer.add(FileKind.DOCUMENTS, "db.c", UUID_A, document)
    writer.add(FileKind.DOCUMENTS, "db.c", UUID(int=8), document)
    first, second = writer.finish()
    time = "2026-09-21T14-13-20"
    assert [(file.name, file.count) for file in (first, second)] == [
        (f"db.c.{time}.0.bson", 9),
        (f"db.c.{time}.1.bson", 1),
    ]
    removed = f"removed.{time}.0.bson"
    writes = [f"write {4 // (1 + layout)} to {first.name}", *[f"write {2} to {removed}"] * layout] * (2 * (1 + layout))
    writes += [f"write 1 to {first.name}", f"write 1 to {second.name}", *[f"write 1 to {removed}"] * (2 * layout)]
    syncs = [text for uuid in (UUID_A, UUID(int=8)) for text in (f"sync {removed}", f"sync folder {uuid}")] * layout
    syncs += [f"sync {first.name}", f"sync {second.name}", "sync folder rollback", f"sync folder {tmp_path.name}"]
    assert disk.done == writes + syncs
    disk.done.clear()
    written = writer.write_manifest(manifest(id="", files=(first, second)))
    name = f"{written.id}.json"
    assert disk.done == [f"write 1 to {name}.tmp", f"sync {name}.tmp", f"rename to {name}", "sync folder rollback"]
    writer.discard()
    assert all((tmp_path / "rollback" / name).exists() for name in (first.name, *written.mongodb_files))


@pytest.mark.parametrize("failing", ["rename to NAME", "sync NAME.tmp", "sync folder rollback"])
def test_a_manifest_that_may_not_last_does_not_outlive_its_files(tmp_path: Path, failing: str) -> None:
    disk = NotingDisk()
    writer = RollbackWriter(disk, str(tmp_path), WALL_MS)
    writer.add(FileKind.DOCUMENTS, "db.c", UUID_A, encode({"_id": 1}))
    files = writer.finish()
    disk.failing = failing.replace("NAME", "rollback-2026-09-21T14-13-20.0.json")
    with pytest.raises(OSError, match="Input/output"):
        writer.write_manifest(manifest(id="", files=files))
    writer.discard()
    assert list((tmp_path / "rollback").iterdir()) == []


def test_the_writer_never_takes_a_name_that_exists(tmp_path: Path) -> None:
    disk = RealDisk()
    for number in range(3):
        writer = RollbackWriter(disk, str(tmp_path), WALL_MS)
        writer.add(FileKind.DOCUMENTS, "db.c", UUID_A, encode({"_id": number}))
        (file,) = writer.finish()
        assert file.name == f"db.c.2026-09-21T14-13-20.{number}.bson"


def test_verify_names_what_is_wrong(tmp_path: Path) -> None:
    writer = RollbackWriter(RealDisk(), str(tmp_path), WALL_MS)
    writer.add(FileKind.OPLOG, "local.oplog.rs", None, encode({"a": 1}))
    (file,) = writer.finish()
    folder = tmp_path / "rollback"
    path = folder / file.name
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"\x01")
    assert verify_file(folder, file) == "its SHA-256 is not the manifest's"
    path.write_bytes(data + b"\0")
    assert verify_file(folder, file) == f"{len(data) + 1} bytes, the manifest says {len(data)}"
    path.unlink()
    assert verify_file(folder, file) == "missing"


def test_an_acknowledgement_stands_beside_the_manifest_and_the_first_one_stays(tmp_path: Path) -> None:
    folder, stem = str(tmp_path), "rollback-2026-09-21T14-13-20.0"
    assert acknowledged(folder, stem) is None
    assert acknowledge(RealDisk(), folder, stem, wall_ms=WALL_MS, by="anna")
    assert not acknowledge(RealDisk(), folder, stem, wall_ms=WALL_MS + 1, by="bert")
    assert acknowledged(folder, stem) == utc_text(WALL_MS)
    assert [path.name for path in tmp_path.iterdir()] == [f"{stem}.ack"]
    assert list_manifests(folder) == []


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"\xff"])
def test_a_damaged_acknowledgement_still_counts(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "rollback-x.0.ack").write_bytes(text)
    assert acknowledged(tmp_path, "rollback-x.0") == "unknown"


def test_an_acknowledgement_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    class Full(RealDisk):
        def sync_file(self, path: str) -> None:
            raise OSError(28, "No space left on device", path)

    with pytest.raises(OSError, match="No space left"):
        acknowledge(Full(), str(tmp_path), "rollback-x.0", wall_ms=WALL_MS, by="anna")
    assert list(tmp_path.iterdir()) == []


def test_documents_stand_in_mongodb_s_layout_too_where_that_is_asked_for(tmp_path: Path) -> None:
    one, other = UUID(int=7), UUID(int=8)
    folder = tmp_path / "rollback"
    for number in range(2):
        writer = RollbackWriter(RealDisk(), str(tmp_path), WALL_MS, mongodb_layout=True)
        writer.add(FileKind.DOCUMENTS, "db.c", one, encode({"_id": 1}))
        writer.add(FileKind.BEFORE, "db.c", one, encode({"_id": 0}))
        writer.add(FileKind.DOCUMENTS, "db.d", other, encode({"_id": 2}))
        writer.add(FileKind.DOCUMENTS, "db.c", one, encode({"_id": 3}))
        writer.add(FileKind.OPLOG, "local.oplog.rs", None, encode({"op": "n"}))
        files = writer.finish()
        written = writer.write_manifest(manifest(id="", files=files))
        assert written.mongodb_files == (
            f"{one}/removed.2026-09-21T14-13-20.{number}.bson",
            f"{other}/removed.2026-09-21T14-13-20.{number}.bson",
        )
        (documents,) = [file for file in files if (file.kind, file.uuid) == (FileKind.DOCUMENTS, one)]
        first, second = ((folder / name).read_bytes() for name in written.mongodb_files)
        assert first == (folder / documents.name).read_bytes() == encode({"_id": 1}) + encode({"_id": 3})
        assert second == encode({"_id": 2})
        assert read_manifest(folder / f"{written.id}.json") == written
        assert all("removed" not in file.name for file in files), "the manifest counts each document once"


def test_what_is_discarded_goes_from_mongodb_s_layout_too(tmp_path: Path) -> None:
    writer = RollbackWriter(RealDisk(), str(tmp_path), WALL_MS, mongodb_layout=True)
    writer.add(FileKind.DOCUMENTS, "db.c", UUID_A, encode({"_id": 1}))
    writer.finish()
    writer.discard()
    assert [path for path in (tmp_path / "rollback").rglob("*") if path.is_file()] == []

"""The reader of a member's file: every entry once, balanced spans, what is wrong said with the member's name."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from replset.ids import OPTIME_NULL, pack_ts
from replset.oplog_row import UnchainedRow
from spark.columns import COLUMNS
from spark.members import open_members
from spark.oplog import EVERYTHING, OplogError
from spark.readers import sqlite as reader
from spark.readers.sqlite import SqliteOplog
from tests.spark.kit import T0, change, insert, write_oplog
from tests.unit.spark.readers.conftest import descriptors_of, stamps


def oplog(folder: Path, pending: Iterable[UnchainedRow]) -> SqliteOplog:
    return SqliteOplog("m1", str(write_oplog(folder, pending) / "replset.db"))


def at(seconds: int, increment: int, number: int = 0) -> UnchainedRow:
    return (pack_ts(seconds, increment), *insert(number)[1:])


# --- reading


def test_a_key_that_is_null_everywhere(tmp_path: Path) -> None:
    read = oplog(tmp_path, [(*insert(n)[:4], None, *insert(n)[5:]) for n in range(3)])
    assert [row for batch in read.read(EVERYTHING, ("key",)) for row in batch.column(0).to_pylist()] == [None] * 3


def test_large_entries_come_alone_and_in_order(tmp_path: Path) -> None:
    sizes = [10, 40_000, 10, 10, 3_000_000, 33_000, 10]
    pending = [insert(n, text="x" * size) for n, size in enumerate(sizes)]
    read = oplog(tmp_path, pending)
    for columns in (("ts", "entry"), ("entry", "hash")):
        batches = list(read.read(EVERYTHING, columns))
        assert [batch.num_rows for batch in batches] == [1, 1, 2, 1, 1, 1]
        found = [entry for batch in batches for entry in batch.column("entry").to_pylist()]
        assert found == [row[6] for row in pending]


def test_a_read_sees_one_state_of_the_file(tmp_path: Path) -> None:
    read = oplog(tmp_path, [insert(n) for n in range(40_000)])
    batches = read.read(EVERYTHING, ("ts",))
    seen = next(batches).num_rows
    in_another_process(
        f"""
        connection = sqlite3.connect({read.path!r})
        connection.execute("DELETE FROM oplog WHERE ts > 0")
        connection.execute("INSERT INTO meta VALUES ('trimmed_through', 1 << 62)")
        connection.commit()
        """
    )
    assert seen + sum(batch.num_rows for batch in batches) == 40_000
    assert read.bounds().newest == OPTIME_NULL


def test_a_read_that_is_given_up_closes_the_file(tmp_path: Path) -> None:
    read = oplog(tmp_path, [insert(n) for n in range(40_000)])
    batches = read.read(EVERYTHING, ("ts",))
    next(batches)
    batches.close()
    assert not descriptors_of(read.path)


@pytest.mark.in_turns
@pytest.mark.parametrize("look", ["split", "bounds", "open_members"])
def test_a_read_keeps_its_lock_while_others_look_at_the_file(tmp_path: Path, look: str) -> None:
    """A member that ends finds the file in use: it must not fold its -wal into it and delete that."""
    read = oplog(tmp_path, [insert(n) for n in range(40_000)])
    batches = read.read(EVERYTHING, ("ts", "entry"))
    found = [next(batches)]
    looks: dict[str, Callable[[], object]] = {
        "split": lambda: read.split(EVERYTHING, 4),
        "bounds": read.bounds,
        "open_members": lambda: [open_members([read.path]), open_members([str(copy_of(read))])],
    }
    looks[look]()
    in_another_process(
        f"""
        connection = sqlite3.connect({read.path!r})
        connection.execute("DELETE FROM oplog WHERE ts > 0")
        connection.commit()
        connection.execute("VACUUM")
        connection.close()
        """
    )
    assert Path(read.path + "-wal").stat().st_size > 0
    found += batches
    rows = [row for batch in found for row in batch.to_pylist()]
    assert rows == [{"ts": (entry := insert(n))[0], "entry": entry[6]} for n in range(40_000)]
    assert not descriptors_of(read.path)


def copy_of(read: SqliteOplog) -> Path:
    """Another name of the same file, which does not tell its kind."""
    link = Path(read.path).with_name("copy")
    link.symlink_to(read.path)
    return link


def test_odd_paths(tmp_path: Path) -> None:
    for name in ("with space", "a%20b", "q?mode=rw&x#y", "\u00e9\u4e16", os.fsdecode(b"\xff\xfe")):
        assert len(stamps(oplog(tmp_path / name, [insert(0)]))) == 1


# --- bounds, count, split


def plain(count: int) -> Iterator[UnchainedRow]:
    return (insert(n, per_second=500) for n in range(count))


def hot_second(count: int) -> Iterator[UnchainedRow]:
    """A tenth before, four fifths in one second, a tenth behind it."""
    for n in range(count):
        if n < count // 10:
            yield at(T0 + n, 1, n)
        elif n < count * 9 // 10:
            yield at(T0 + count, n - count // 10 + 1, n)
        else:
            yield at(T0 + count + n, 1, n)


def sparse(count: int) -> Iterator[UnchainedRow]:
    return (at(T0 + n * 3600, 1, n) for n in range(count))


def bursts(count: int) -> Iterator[UnchainedRow]:
    """Now a thousand in a second, now one in an hour; after a year of silence ten in each second."""
    for n in range(count):
        if n < count // 2:
            yield at(T0 + n // 1000 * 3600, n % 1000 + 1, n)
        else:
            yield at(T0 + 31_536_000 + n // 10, n % 10 + 1, n)


@pytest.mark.in_turns
@pytest.mark.parametrize("times", [plain, hot_second, sparse, bursts])
@pytest.mark.parametrize("parts", [2, 7, 24])
def test_split_is_balanced_and_complete(
    tmp_path: Path, times: Callable[[int], Iterator[UnchainedRow]], parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_TAIL_ROWS", 500)  # as if the table were too large to walk over
    read = oplog(tmp_path, times(12_000))
    spans = read.split(EVERYTHING, parts)
    assert [span.first_ts for span in spans] == [0, *(span.end_ts for span in spans[:-1])]
    assert spans[-1].end_ts == EVERYTHING.end_ts
    counts = [len(stamps(read, span)) for span in spans]
    assert (len(counts), sum(counts)) == (parts, 12_000)
    assert max(counts) <= 2 * 12_000 / parts
    assert read.bounds().rows == pytest.approx(12_000, rel=0.2)
    for span, count in zip(spans, counts, strict=True):
        assert read.count(span) == pytest.approx(count, rel=0.35, abs=80)


def test_a_part_splits_again(tmp_path: Path) -> None:
    read = oplog(tmp_path, hot_second(12_000))
    part = read.split(EVERYTHING, 3)[1]
    counts = [len(stamps(read, span)) for span in read.split(part, 5)]
    assert sum(counts) == len(stamps(read, part))
    assert max(counts) <= 2 * sum(counts) / 5


def test_split_of_what_only_the_wal_holds(tmp_path: Path) -> None:
    others = "term, op, ns, key, wall, hash, chain, entry"
    read = oplog(tmp_path, [insert(n) for n in range(10)])
    in_another_process(
        f"""
        connection = sqlite3.connect({read.path!r})
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        add = "INSERT INTO oplog SELECT ts + ? * (1 << 31), {others} FROM oplog LIMIT 10"
        connection.executemany(add, [[n] for n in range(1, 800)])
        connection.commit()
        os._exit(0)
        """
    )
    assert Path(read.path).stat().st_size < 200_000 < Path(read.path + "-wal").stat().st_size
    counts = [len(stamps(read, span)) for span in read.split(EVERYTHING, 4)]
    assert sum(counts) == 8_000
    assert max(counts) <= 2 * 8_000 / 4


# --- what is wrong with a file


def error_text(read: SqliteOplog, columns: tuple[str, ...] = COLUMNS) -> str:
    with pytest.raises(OplogError) as caught:
        list(read.read(EVERYTHING, columns))
    assert caught.value.name == "m1"
    assert str(caught.value).startswith("m1: ")
    assert "\n" not in str(caught.value)
    return caught.value.reason


@pytest.mark.parametrize("number", [0, 5, 17_000])
@pytest.mark.parametrize(("column", "value"), [("term", "abc"), ("hash", 1.5), ("wall", b"1")])
def test_another_type_than_it_should_be(tmp_path: Path, column: str, value: object, number: int) -> None:
    read = oplog(tmp_path, map(insert, range(number + 10)))
    change(read.path, f"UPDATE oplog SET {column} = ? WHERE ts = ?", value, insert(number)[0])
    reason = error_text(read, ("ts", column))
    assert f"{read.path} is damaged" in reason


def test_a_file_locked_by_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_BUSY_MS", 50)
    read = oplog(tmp_path, map(insert, range(10)))
    script = f"""
        connection = sqlite3.connect({read.path!r}, isolation_level=None)
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("CREATE TABLE held(a)")
        print("held", flush=True)
        sys.stdin.read()
    """
    with another_process(script) as process:
        assert process.stdout.readline() == "held\n"
        assert "is locked by another process" in error_text(read)
    assert len(stamps(read)) == 10


def test_a_dead_members_wal_is_read(tmp_path: Path) -> None:
    read = dead_member(tmp_path)
    Path(read.path + "-shm").unlink()
    assert len(stamps(read)) == 900


def test_a_member_that_died_before_its_wal(tmp_path: Path) -> None:
    """In its first start, or behind an initial sync: there is a journal that only the member's start plays back."""
    alive, dead = write_oplog(tmp_path / "alive", map(insert, range(1000))), tmp_path / "dead"
    with closing(sqlite3.connect(alive / "replset.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = delete")
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("BEGIN")
        connection.execute("UPDATE oplog SET wall = 1")  # more than the cache holds: written before the COMMIT
        shutil.copytree(alive, dead)
    assert (dead / "replset.db-journal").stat().st_size > 0
    path = dead / "replset.db"
    reason = error_text(SqliteOplog("m1", str(path)))
    assert reason.startswith(
        f"{path} was left by a member that died in the middle of a write; start it once, then read"
    )


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    closed = oplog(tmp_path / "closed", map(insert, range(1000)))
    no_shm(closed)
    assert len(stamps(closed)) == 1000
    dead = dead_member(tmp_path / "dead")
    no_shm(dead)
    reason = error_text(dead)
    assert "copy" in reason
    assert f"{dead.path}-wal" in reason


def dead_member(folder: Path) -> SqliteOplog:
    """A thousand entries, of which the -wal takes the last hundred away."""
    read = oplog(folder, map(insert, range(1000)))
    in_another_process(
        f"""
        connection = sqlite3.connect({read.path!r})
        connection.execute("DELETE FROM oplog WHERE ts > ?", [{insert(899)[0]}])
        connection.commit()
        os._exit(0)
        """
    )
    return read


def no_shm(read: SqliteOplog) -> None:
    """As in a folder without write permission, which binds everybody but root: the -shm cannot be made."""
    shm = Path(read.path + "-shm")
    shm.unlink(missing_ok=True)
    shm.symlink_to("/nonexistent/folder/shm")


@contextmanager
def another_process(script: str) -> Iterator[subprocess.Popen[str]]:
    """POSIX locks do not bind within one process."""
    lines = ["import os, sqlite3, sys", *(line.strip() for line in script.strip().splitlines())]
    process = subprocess.Popen(
        [sys.executable, "-c", "\n".join(lines)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        yield process
    assert process.returncode == 0


def in_another_process(script: str) -> None:
    with another_process(script):
        pass

"""The schema comes from sqlite-utils, step by step, and a made one needs it no more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import apsw
import pytest
from sqlite_utils import Database

from replset.errors import CorruptDataError
from replset.storage import DATABASE_FILE
from replset.storage.disk import RealDisk
from replset.storage.schema import (
    DATA_SCHEMA,
    SESSIONS_UUID,
    Schema,
    collection_table,
    collection_table_sql,
    ensure_schema,
)
from replset.storage.store import Store, StoreOptions
from replset.storage.txn import write_meta

START = """
import sys
from replset.storage.disk import RealDisk
from replset.storage.member_file import MemberFile
from replset.storage.store import Store
disk = RealDisk()
Store.open(disk, sys.argv[1]).close()
MemberFile.open(disk, sys.argv[1]).close()
print(sorted({"sqlite_utils", "pandas", "numpy", "pyarrow", "sqlite3", "typer"} & set(sys.modules)))
"""


def start(folder: Path) -> str:
    command = [sys.executable, "-c", START, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_only_a_new_file_needs_sqlite_utils_and_none_needs_pandas(tmp_path: Path) -> None:
    """Either would stay in the member's memory until its end."""
    made = start(tmp_path)
    assert "sqlite_utils" in made
    assert not any(name in made for name in ("pandas", "numpy", "pyarrow"))
    assert start(tmp_path) == "[]"


def _first(db: Database) -> None:
    db.table("a").create({"id": int, "name": str}, pk="id")


def _second(db: Database) -> None:
    db.table("a").add_column("size", int)
    db.table("a").create_index(["name"])


def _third(db: Database) -> None:
    db.table("b").create({"id": int, "a_id": int}, pk="id")


def columns(connection: apsw.Connection, table: str) -> list[object]:
    return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]


@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_migrations_go_on_from_any_version_and_keep_the_rows(first: int) -> None:
    steps = (_first, _second, _third)
    connection = apsw.Connection(":memory:")
    ensure_schema(connection, Schema(7, steps[:first]), "x.db")
    if first:
        connection.execute("INSERT INTO a (id, name) VALUES (1, 'kept')")
    assert ensure_schema(connection, Schema(7, steps), "x.db") == (first < 3)
    assert not ensure_schema(connection, Schema(7, steps), "x.db")
    assert columns(connection, "a") == ["id", "name", "size"]
    assert columns(connection, "b") == ["id", "a_id"]
    assert connection.execute("SELECT count(*) FROM a").get == (1 if first else 0)
    assert connection.execute("SELECT name FROM sqlite_schema WHERE type = 'index'").get == "idx_a_name"


def test_a_step_that_fails_leaves_the_file_as_it_was() -> None:
    def broken(db: Database) -> None:
        db.table("c").create({"id": int}, pk="id")
        db.execute("INSERT INTO c (id) VALUES (1)")

    connection = apsw.Connection(":memory:")
    ensure_schema(connection, Schema(7, (_first,)), "x.db")
    connection.execute("CREATE TABLE c (other)")
    with pytest.raises(apsw.SQLError):
        ensure_schema(connection, Schema(7, (_first, _second, broken)), "x.db")
    assert columns(connection, "a") == ["id", "name"]
    assert connection.execute("PRAGMA user_version").get == 1


def test_a_newer_files_schema_is_refused(tmp_path: Path) -> None:
    Store.open(RealDisk(), tmp_path, StoreOptions()).close()
    connection = apsw.Connection(str(tmp_path / "replset.db"))
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(CorruptDataError, match=r"replset\.db was made by a newer version"):
        Store.open(RealDisk(), tmp_path, StoreOptions())


def test_another_applications_file_is_refused(tmp_path: Path) -> None:
    connection = apsw.Connection(str(tmp_path / "replset.db"))
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(CorruptDataError, match=r"replset\.db is no database of ours"):
        Store.open(RealDisk(), tmp_path, StoreOptions())


def test_deletes_of_an_older_version_get_places() -> None:
    connection = apsw.Connection(":memory:")
    ensure_schema(connection, Schema(DATA_SCHEMA.application_id, DATA_SCHEMA.steps[:1]), "old.db")
    uuid = b"u" * 16
    connection.execute(collection_table_sql(uuid))
    connection.execute("INSERT INTO catalog (uuid, ns, options, created_ts) VALUES (?, 'a.b', x'00', 1)", (uuid,))
    connection.execute(f"INSERT INTO {collection_table(uuid)} (key, doc) VALUES (x'01', x'aa'), (x'02', x'bb')")
    changes = [
        (2, b"\1", None),  # inserted
        (3, b"\1", b"old"),  # updated
        (4, b"\2", b"old"),  # deleted
        (5, b"\2", None),  # inserted again
        (6, b"\3", b"old"),  # updated
        (7, b"\3", b"new"),  # deleted
    ]
    for row in changes:
        connection.execute(
            "INSERT INTO undo (ts, seq, kind, coll, key, before) VALUES (?, 0, 'doc', ?, ?, ?)",
            (row[0], uuid, *row[1:]),
        )
    assert ensure_schema(connection, DATA_SCHEMA, "old.db")
    places = dict(connection.execute("SELECT ts, place FROM undo WHERE place IS NOT NULL"))
    assert set(places) == {4, 7}
    assert len({*places.values()}) == 2
    assert max(places.values()) < 0


def test_the_undo_of_sessions_is_in_no_index_and_every_other_question_finds_its_rows_by_one() -> None:
    connection = apsw.Connection(":memory:")
    ensure_schema(connection, Schema(DATA_SCHEMA.application_id, DATA_SCHEMA.steps[:-1]), "old.db")
    rows = [(1, SESSIONS_UUID), (2, b"u" * 16), (3, SESSIONS_UUID)]
    connection.executemany("INSERT INTO undo (ts, seq, kind, coll, key) VALUES (?, 0, 'doc', ?, x'01')", rows)
    assert ensure_schema(connection, DATA_SCHEMA, "old.db")
    assert list(connection.execute("SELECT ts, coll FROM undo")) == [(1, None), (2, b"u" * 16), (3, None)]
    for condition in (
        "coll = ? AND key = ?",
        "coll = ? AND key >= ? AND key < ?",
        "(coll, key) > (?, ?) AND coll >= ?",
    ):
        sql = f"EXPLAIN QUERY PLAN SELECT before FROM undo WHERE {condition} AND ts > ?"
        (plan,) = connection.execute(sql, (b"",) * sql.count("?"))
        assert "undo_by_key" in plan[3], condition


@pytest.mark.parametrize("name", ["trimmed_through", "pruned_through", "oplog_bytes"])
def test_a_value_of_another_type_is_damage(tmp_path: Path, name: str) -> None:
    Store.open(RealDisk(), tmp_path, StoreOptions(min_free_bytes=0)).close()
    connection = apsw.Connection(str(tmp_path / DATABASE_FILE))
    write_meta(connection, name, "many")
    connection.close()
    with pytest.raises(CorruptDataError, match=f"meta {name} is no number"):
        Store.open(RealDisk(), tmp_path, StoreOptions(min_free_bytes=0))

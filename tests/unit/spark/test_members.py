"""What people write for a member, and what it is called."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark.columns import COLUMNS, MEMBER, arrow_schema
from spark.members import open_members
from spark.oplog import OplogError
from spark.readers.dump import DumpOplog
from spark.readers.live import LiveOplog
from spark.readers.parquet import ParquetOplog
from spark.readers.sqlite import SqliteOplog
from tests.spark.kit import change, insert, write_oplog


def dbpath(folder: Path) -> str:
    return str(write_oplog(folder, [insert(0)]))


def exported(folder: Path, *members: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    schema = arrow_schema((MEMBER, *COLUMNS))
    for member in members:
        row = dict.fromkeys(COLUMNS, 1) | {"op": "i", "ns": "a.b", "key": b"k", "entry": b"e", MEMBER: member}
        pq.write_table(pa.Table.from_pylist([row], schema), folder / f"{member}.parquet")
    return str(folder)


def test_each_kind(tmp_path: Path) -> None:
    one = dbpath(tmp_path / "m1")
    file = dbpath(tmp_path / "m2") + "/replset.db"
    copy = tmp_path / "copy.sqlite"
    change(file, "VACUUM INTO ?", str(copy))
    dump = tmp_path / "dump" / "oplog.bson"
    dump.parent.mkdir()
    dump.write_bytes(insert(0)[6])
    lost = tmp_path / "rollback" / "local.oplog.rs.2026-01-01T00-00-00.0.bson"
    lost.parent.mkdir()
    lost.write_bytes(insert(0)[6])
    texts = [one, file, str(copy), str(dump.parent), str(lost), exported(tmp_path / "old", "x"), "http://[::1]:28017/"]
    assert open_members(texts) == [
        SqliteOplog("m1", f"{one}/replset.db"),
        SqliteOplog("m2", file),
        SqliteOplog("copy.sqlite", str(copy)),
        DumpOplog("dump", str(dump)),
        DumpOplog(lost.name, str(lost)),
        ParquetOplog("x", str(tmp_path / "old"), "x"),
        LiveOplog("[::1]:28017", "http://[::1]:28017"),
    ]
    assert open_members([str(tmp_path / "old" / "x.parquet"), str(dump)]) == [
        ParquetOplog("x", str(tmp_path / "old" / "x.parquet"), "x"),
        DumpOplog("dump", str(dump)),
    ]


@pytest.mark.parametrize("name", ["oplog.bson", "oplog.bson.gz", "local/oplog.rs.bson", "local/oplog.rs.bson.gz"])
def test_the_folder_of_a_mongodump(tmp_path: Path, name: str) -> None:
    file = tmp_path / "dump" / name
    file.parent.mkdir(parents=True)
    file.write_bytes(b"")
    assert open_members([str(tmp_path / "dump")]) == [DumpOplog("dump", str(file))]
    assert open_members([str(file.parent)]) == open_members([str(file)]) == [DumpOplog("dump", str(file))]


def test_members_by_their_addresses() -> None:
    texts = ["mongodb://u:secret@h1,h2/", "mongodb://u:secret@h:1/?a", "mongodb+srv://u:secret@h.example.org"]
    for text in texts:
        with pytest.raises(OplogError, match=r"^mongodb://: (a member is|connection string:)") as caught:
            open_members([text])
        assert "secret" not in str(caught.value)
    one, two = "mongodb://u:secret@h:27018/?replicaSet=rs0", "mongodb://h"
    opened = open_members([one, f"b={two}"])
    assert [oplog.name for oplog in opened] == ["h:27018", "b"]
    assert "secret" not in repr(opened)
    with pytest.raises(OplogError, match=r"^h:27018: it is given twice"):
        open_members([one, "b=mongodb://h:27018"])


def test_names_are_the_shortest_tails_that_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("a/x/m1", "b/x/m1", "b/y/m1", "m2"):
        dbpath(tmp_path / folder)
    export = exported(tmp_path / "export", "m1", "m2", "h:27017")
    monkeypatch.chdir(tmp_path / "a")
    texts = ["x/m1", f"{tmp_path}/b/x/m1", "../b/y/m1/replset.db", f"{tmp_path}/m2", export]
    opened = open_members(texts)
    beside = [f"{tmp_path.name}/m2", "h:27017", "export/m1", "export/m2"]
    assert [oplog.name for oplog in opened] == ["a/x/m1", "b/x/m1", "y/m1", *beside]
    paths = [oplog.path for oplog in opened if isinstance(oplog, SqliteOplog)]
    assert paths[0] == str(tmp_path / "a/x/m1/replset.db"), "a worker of a cluster has another working folder"


def test_names_by_hand(tmp_path: Path) -> None:
    one, two = dbpath(tmp_path / "m1"), dbpath(tmp_path / "other" / "m1")
    odd = dbpath(tmp_path / "day=1")
    export = exported(tmp_path / "export", "p", "q")
    assert [oplog.name for oplog in open_members([one, f"x={two}"])] == ["m1", "x"]
    texts = [f"m1={one}", two, odd, "live=http://h:1", f"old={export}"]
    assert [oplog.name for oplog in open_members(texts)] == ["m1", "other/m1", "day=1", "live", "old/p", "old/q"]


def error_text(*texts: str) -> str:
    with pytest.raises(OplogError) as caught:
        open_members(texts)
    return str(caught.value)


def test_what_stands_for_no_oplog(tmp_path: Path) -> None:
    assert error_text(str(tmp_path)).startswith(f"{tmp_path}: no oplog is there")
    assert error_text(f"{tmp_path}/none") == f"{tmp_path}/none: there is no such file or folder"
    for url in ("http://host", "http://host:port", "http://a..b:1", "http://host:1/v1", "https://host"):
        assert "http://HOST:PORT" in error_text(url)
    assert "nosuch://a" in error_text("nosuch://a")


def test_the_same_twice(tmp_path: Path) -> None:
    one, two = dbpath(tmp_path / "m1"), dbpath(tmp_path / "m2")
    (tmp_path / "link").symlink_to(one)
    for texts in ([one, one], [one, f"{one}/replset.db"], [one, f"n={tmp_path}/m2/../m1"], [one, f"{tmp_path}/link"]):
        assert "it is given twice" in error_text(*texts)
    assert error_text("http://h:1", "x=http://h:1/").endswith("it is given twice")
    assert error_text(f"n={one}", f"n={two}") == "n: two members have this name; give others with NAME=MEMBER"

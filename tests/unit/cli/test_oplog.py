"""`replset oplog tail|info DBPATH`: the oplog of a member that does not run, or runs elsewhere."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from replset.bson import encode, encode_key
from replset.cli.main import main
from replset.ids import OpTime
from replset.replication.write_ops import WriteGroup, do_create, do_delete, do_insert, do_noop
from replset.storage.disk import RealDisk
from replset.storage.store import Store, StoreOptions

WALL_MS = 1_790_000_000_123
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """One no-op, a collection, three inserts and a delete, a second apart."""
    made = Store.open(RealDisk(), str(tmp_path / "data"), StoreOptions(min_free_bytes=0))
    rng = random.Random(1)
    for second in range(6):
        with made.group() as txn:
            group = WriteGroup(txn, 1 if second == 0 else 2, WALL_MS + second * 1000, rng)
            if second == 0:
                do_noop(group, {"msg": "initiating set"})
            elif second == 1:
                do_create(group, "shop.orders")
            else:
                coll = txn.collection("shop.orders")
                assert coll is not None
                doc = encode({"_id": min(second, 4), "who": "Ana"})
                if second < 5:
                    do_insert(group, coll, encode_key(second), doc)
                else:
                    do_delete(group, coll, encode_key(4), doc)
    yield made
    made.close()


def lines(capsys: Capture, *arguments: str) -> list[str]:
    assert main(["oplog", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_tail_shows_the_newest_entries_oldest_first(store: Store, capsys: Capture) -> None:
    assert lines(capsys, "tail", store.dbpath, "-n", "2") == [
        '2:1790000004:1           14:13:24.123 i shop.orders              {"_id":4,"who":"Ana"}',
        '2:1790000005:1           14:13:25.123 d shop.orders              {"_id":4}',
    ]
    shown = lines(capsys, "tail", store.path)  # the database file will do as well
    assert [line.split()[2] for line in shown] == ["n", "c", "i", "i", "i", "d"]
    assert (shown[0].endswith('{"msg":"initiating set"}'), '"create":"orders"' in shown[1]) == (True, True)
    entries = [json.loads(line) for line in lines(capsys, "tail", store.dbpath, "--json")]
    assert [entry["op"] for entry in entries] == ["n", "c", "i", "i", "i", "d"]
    assert entries[2]["o"] == {"_id": 2, "who": "Ana"}
    assert entries[2]["ts"] == {"$timestamp": {"t": 1790000002, "i": 1}}


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ("--ns shop.orders", 4),
        ("--op d", 1),
        ("--ns shop.orders --op i -n 2", 2),
        ("--ns shop.nothing", 0),
        ("--after 2:1790000003:1", 2),
    ],
)
def test_tail_by_namespace_operation_and_place(store: Store, capsys: Capture, options: str, count: int) -> None:
    assert len(lines(capsys, "tail", store.dbpath, *options.split())) == count


def test_info(store: Store, capsys: Capture) -> None:
    facts = json.loads(lines(capsys, "info", store.dbpath, "--json")[0])
    assert facts == {
        "first": "1:1790000000:1",
        "last": "2:1790000005:1",
        "windowSecs": 5,
        "entries": 6,
        "bytes": store.oplog_bytes,
    }
    table = "\n".join(lines(capsys, "info", store.dbpath))
    for name, value in facts.items():
        assert any(name in line and str(value) in line for line in table.splitlines())


def test_an_empty_oplog(tmp_path: Path, capsys: Capture) -> None:
    Store.open(RealDisk(), str(tmp_path), StoreOptions(min_free_bytes=0)).close()
    assert lines(capsys, "tail", str(tmp_path)) == []
    assert json.loads(lines(capsys, "info", str(tmp_path), "--json")[0])["entries"] == 0


def test_a_dbpath_in_use_can_be_read(store: Store, capsys: Capture) -> None:
    with store.group() as txn:
        do_noop(WriteGroup(txn, 3, WALL_MS + 60_000, random.Random(2)), {"msg": "new primary"})
    assert lines(capsys, "tail", store.dbpath, "-n", "1")[0].startswith(f"{OpTime(3, store.last_applied.ts)}")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tail", "none"], "no member's data at none: none does not exist"),
        (["info", "."], "no member's data at .: replset.db does not exist"),
        (["info", "text"], "text is damaged: "),
        (["tail", ".", "--after", "5"], "--after: not an optime (TERM:SECONDS:INC): '5'"),
        (["tail", ".", "-n", "0"], "Invalid value for '"),
        (["tail", "--host", "nonsense:x"], "'nonsense:x' is not HOST:PORT"),
        (["tail", "--host", "127.0.0.1:1"], "127.0.0.1:1 cannot be reached: Connection refused"),
    ],
)
def test_errors_are_one_line_and_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("no database " * 100)
    assert main(["oplog", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"replset: {words}")
    assert err.count("\n") == 1


def test_a_place_that_was_trimmed_away(store: Store, capsys: Capture) -> None:
    with store.group() as txn:
        txn.set_meta("trimmed_through", OpTime.parse("2:1790000002:1").ts)
    assert main(["oplog", "tail", store.dbpath, "--after", "2:1790000001:1"]) == 2
    assert capsys.readouterr().err == "replset: the oplog after 2:1790000001:1 was trimmed away\n"

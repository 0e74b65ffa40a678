"""Replay in Spark against the documents of a real member's storage after the same history."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from replset.bson import RawDocument, decode, encode, encode_key
from replset.ejson import to_ejson
from replset.ids import OpTime, pack_ts
from replset.oplog_entry import OplogEntry, command_entry, delete_entry, insert_entry, noop_entry, update_entry
from replset.query.diff import update_entry_object
from replset.replication.applier import apply_entry
from replset.storage.disk import RealDisk
from replset.storage.store import Store, StoreOptions
from spark.jobs import oplog_error
from spark.oplog import OplogError
from spark.readers.dump import DumpOplog
from spark.readers.sqlite import SqliteOplog
from spark.reports.replay.base import BsonBase, DbpathBase, EmptyBase
from spark.reports.replay.replay import ejson_lines, replay, write_bson
from tests.spark.kit import T0, UUID, write_oplog
from tests.unit.spark import test_mongod_entries as mongod

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NS = "shop.orders"
OPTIONS = StoreOptions(min_free_bytes=0)
State = dict[bytes, bytes]


@dataclass(frozen=True)
class Past:
    """A member's files, what it held after each entry, and its files as they were after the entry number `middle`."""

    oplog: SqliteOplog
    states: list[tuple[OpTime, State]]
    entries: list[bytes]
    middle: int
    copy: Path
    dropped: int
    """The entry that dropped the first collection."""


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Past:
    """About 600 entries on 40 documents, one of them hot; the collection is dropped and made again on the way."""
    folder = tmp_path_factory.mktemp("past")
    entries, dropped = history(random.Random(3))
    middle = len(entries) * 2 // 3
    states: list[tuple[OpTime, State]] = []
    copy = folder / "copy"
    store = Store.open(RealDisk(), folder / "a", OPTIONS)
    for number, raw in enumerate(entries):
        with store.group() as txn:
            apply_entry(txn, OplogEntry(raw))
        coll = store.collection(NS)
        with store.read() as snapshot:
            states.append((store.last_applied, {} if coll is None else dict(snapshot.scan(coll))))
        if number == middle:
            store.close()
            shutil.copytree(folder / "a", copy)
            store = Store.open(RealDisk(), folder / "a", OPTIONS)
    store.close()
    return Past(SqliteOplog("a", str(folder / "a/replset.db")), states, entries, middle, copy, dropped)


def history(rng: random.Random) -> tuple[list[bytes], int]:
    entries: list[bytes] = []
    documents: dict[int, dict[str, object]] = {}
    uuid = b"1" * 16
    dropped = 0

    def next_optime() -> tuple[OpTime, int]:
        return OpTime(1, pack_ts(T0 + len(entries) // 7, 1 + len(entries) % 7)), (T0 + len(entries) // 7) * 1000

    entries.append(noop_entry({"msg": "initiating set"}, *next_optime()))
    entries.append(command_entry("shop", uuid, {"create": "orders"}, *next_optime()))
    entries.append(command_entry("shop", b"9" * 16, {"create": "users"}, *next_optime()))
    for number in range(600):
        if number == 250:
            dropped = len(entries)
            entries.append(command_entry("shop", uuid, {"drop": "orders"}, *next_optime()))
            uuid, documents = b"2" * 16, {}
            entries.append(command_entry("shop", uuid, {"create": "orders"}, *next_optime()))
        key = 0 if rng.random() < 0.4 else rng.randrange(40)
        document: dict[str, object] = {"_id": key, "n": rng.randrange(5), "list": list(range(rng.randrange(4)))}
        about = encode({"_id": key})
        entries.append(insert_entry("shop.users", b"9" * 16, encode({"_id": number}), *next_optime()))
        if key not in documents:
            entries.append(insert_entry(NS, uuid, encode(document), *next_optime()))
            documents[key] = document
        elif rng.random() < 0.15:
            entries.append(delete_entry(NS, uuid, about, *next_optime()))
            del documents[key]
        elif (o := update_entry_object(documents[key], document)) is not None:
            entries.append(update_entry(NS, uuid, about, encode(o), *next_optime()))
            documents[key] = document
    return entries, dropped


def found(documents: DataFrame) -> State:
    rows = documents.collect()
    keys = [bytes(row["key"]) for row in rows]
    assert keys == sorted(set(keys))
    for row in rows:
        identity = RawDocument(bytes(row["document"])).get("_id")
        assert (row["id"], bytes(row["key"])) == (to_ejson(identity), encode_key(identity))
    return {bytes(row["key"]): bytes(row["document"]) for row in rows}


@pytest.mark.parametrize("share", [0.1, 0.75, 1.0])
def test_documents_are_those_a_member_had(spark: SparkSession, past: Past, share: float) -> None:
    optime, state = past.states[int((len(past.states) - 1) * share)]
    assert len(state) > 10
    assert found(replay(spark, past.oplog, NS, at=optime, rows_per_task=100)) == state


def test_dropped_made_again_and_never_there(spark: SparkSession, past: Past) -> None:
    for number in (0, past.dropped, past.dropped + 1):
        optime, state = past.states[number]
        assert state == {}
        assert found(replay(spark, past.oplog, NS, at=optime)) == state
    assert found(replay(spark, past.oplog, "shop.nothing")) == {}


def test_from_a_base(spark: SparkSession, past: Past, tmp_path: Path) -> None:
    optime, state = past.states[-1]
    copy = DbpathBase("copy", str(past.copy / "replset.db"))
    assert found(replay(spark, past.oplog, NS, base=copy)) == state

    at, documents = past.states[past.middle]
    dump = tmp_path / "orders.bson"
    dump.write_bytes(b"".join(documents.values()))
    assert found(replay(spark, past.oplog, NS, at=optime, base=BsonBase("dump", str(dump), at))) == state
    # Overlap does no harm: the documents are later than the optime that they are said to be of.
    early = past.states[past.middle - 100][0]
    assert found(replay(spark, past.oplog, NS, base=BsonBase("dump", str(dump), early))) == state


def test_the_oplog_alone_does_not_reach_back(spark: SparkSession, past: Past, tmp_path: Path) -> None:
    """A trimmed oplog needs a base, and one that it goes on from."""
    pending = rows_of(past, past.middle - 50)
    trimmed = rows_of(past, past.middle - 51)[0][0]
    oplog = SqliteOplog("t", str(write_oplog(tmp_path / "t", pending, trimmed_through=trimmed) / "replset.db"))
    state = past.states[-1][1]
    copy = DbpathBase("copy", str(past.copy / "replset.db"))
    assert found(replay(spark, oplog, NS, base=copy)) == state
    early = BsonBase("dump", str(past.copy / "replset.db"), past.states[10][0])
    with pytest.raises(OplogError, match=r"t: the oplog begins at .*, after the base dump at"):
        replay(spark, oplog, NS, at=past.states[-1][0], base=early)
    assert past.states[past.middle][0].ts == pending[50][0]
    apart = [*pending[:50], *pending[51:]]
    parted = SqliteOplog("p", str(write_oplog(tmp_path / "p", apart, trimmed_through=trimmed) / "replset.db"))
    with pytest.raises(OplogError, match=r"p: .*, where the base copy is, is not in its history"):
        replay(spark, parted, NS, base=copy)


def rows_of(past: Past, first: int) -> list[tuple[int, int, str, str, bytes | None, int, bytes]]:
    entries = [OplogEntry(raw) for raw in past.entries[first:]]
    return [(e.optime.ts, e.optime.term, e.op, e.ns, e.key(), e.wall_ms, e.raw) for e in entries]


def test_a_members_own_documents_go_back_by_their_undo(spark: SparkSession, past: Past, tmp_path: Path) -> None:
    """An oplog that does not tell of the creation any more."""
    shutil.copytree(Path(past.oplog.path).parent, tmp_path / "own")
    store = Store.open(RealDisk(), tmp_path / "own", OPTIONS)
    created = past.states[past.dropped + 5][0]
    with store.group() as txn:
        txn.connection.execute("DELETE FROM oplog WHERE ts <= ?", (created.ts,))
        txn.set_meta("trimmed_through", created.ts)
    store.close()
    oplog = SqliteOplog("own", str(tmp_path / "own/replset.db"))
    for number in (past.middle, len(past.states) - 1):
        optime, state = past.states[number]
        assert found(replay(spark, oplog, NS, at=optime)) == state


def test_points_and_histories_that_are_refused(spark: SparkSession, past: Past, tmp_path: Path) -> None:
    last = past.states[-1][0]
    with pytest.raises(OplogError, match="a: the oplog ends at"):
        replay(spark, past.oplog, NS, at=OpTime(1, last.ts + 1))
    with pytest.raises(OplogError, match=r"a: 2:.* is not in its history: 1:.* is there"):
        replay(spark, past.oplog, NS, at=OpTime(2, last.ts))
    empty = SqliteOplog("e", str(write_oplog(tmp_path / "e", []) / "replset.db"))
    with pytest.raises(OplogError, match="e: the oplog is empty"):
        replay(spark, empty, NS)


def test_an_entry_that_cannot_be_applied_is_told_with_the_members_name(spark: SparkSession, tmp_path: Path) -> None:
    def entry(number: int, o: dict[str, object]) -> tuple[int, int, str, str, bytes | None, int, bytes]:
        at = OpTime(1, pack_ts(T0, number))
        raw = update_entry(NS, UUID, encode({"_id": 1}), encode(o), at, 0)
        return (at.ts, 1, "u", NS, encode_key(1), 0, raw)

    at = OpTime(1, pack_ts(T0, 1))
    first = (at.ts, 1, "i", NS, encode_key(1), 0, insert_entry(NS, UUID, encode({"_id": 1}), at, 0))
    bad = [first, entry(2, {"$v": 2, "diff": {"a": True}})]
    oplog = SqliteOplog("bad", str(write_oplog(tmp_path, bad) / "replset.db"))
    with pytest.raises(Exception, match="cannot be applied") as raised:
        replay(spark, oplog, NS, base=EmptyBase()).collect()
    told = oplog_error(raised.value)
    assert told.name == "bad"


def test_as_text_and_as_a_bson_file(spark: SparkSession, past: Past, tmp_path: Path) -> None:
    optime, state = past.states[200]
    documents = replay(spark, past.oplog, NS, at=optime)
    expected: Sequence[bytes] = [state[key] for key in sorted(state)]
    assert list(ejson_lines(documents)) == [to_ejson(decode(document)) for document in expected]
    assert list(ejson_lines(documents, canonical=True)) == [to_ejson(decode(d), canonical=True) for d in expected]
    file = tmp_path / "orders.bson"
    assert write_bson(documents, file) == len(state)
    assert file.read_bytes() == b"".join(expected)
    with pytest.raises(FileExistsError):
        write_bson(documents, file)


def test_a_renamed_collection_is_found_under_the_name_that_it_had(tmp_path: Path) -> None:
    store = Store.open(RealDisk(), tmp_path / "a", OPTIONS)
    commands: list[dict[str, object]] = [{"create": "old"}, {"renameCollection": "app.old", "to": "app.new"}]
    for number, o in enumerate(commands, 1):
        with store.group() as txn:
            apply_entry(txn, OplogEntry(command_entry("app", UUID, o, OpTime(1, pack_ts(T0, number)), 0)))
    store.close()
    base = DbpathBase("a", str(tmp_path / "a/replset.db"))
    created, renamed = (OpTime(1, pack_ts(T0, number)) for number in (1, 2))
    assert base.collections(created) == {"app.old": UUID}
    assert base.collections(renamed) == {"app.new": UUID}
    assert base.find("app.old", created).uuid == UUID
    assert not base.find("app.new", created).exists
    assert base.find("app.new", renamed).uuid == UUID


def test_a_mongods_oplog(spark: SparkSession, tmp_path: Path) -> None:
    entries = [*mongod.PREPARED, mongod.COMMIT, mongod.update(6, {"$v": 1, "$set": {"a.b": 1}})]
    (tmp_path / "oplog.rs.bson").write_bytes(b"".join(entries))
    oplog = DumpOplog("m1", str(tmp_path / "oplog.rs.bson"))

    def document(number: int) -> object:
        at = OpTime(1, pack_ts(mongod.T0 + number, 1))
        (row,) = replay(spark, oplog, NS, at=at, base=EmptyBase()).collect()
        return decode(bytes(row["document"]))

    assert document(4) == {"_id": 1, "m": 1}
    assert document(6) == {"_id": 1, "m": 1, "n": 4, "a": {"b": 1}}

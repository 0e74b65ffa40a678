"""Replay without Spark: which collection has a name, and steps folded to documents as a real member applies them."""

from __future__ import annotations

import io
import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replset.bson import decode, encode, encode_key
from replset.errors import BadValueError
from replset.ids import OPTIME_NULL, OpTime, pack_ts
from replset.oplog_entry import OplogEntry, command_entry, operation_of, transaction_entry
from replset.oplog_row import OplogRow
from replset.replication.applier import apply_entry
from replset.storage.disk import RealDisk
from replset.storage.store import Store, StoreOptions
from spark.oplog import OplogError
from spark.reports.replay.base import BsonBase, DbpathBase, EmptyBase, Start, bson_documents, bson_parts, open_base
from spark.reports.replay.replay import BASE, CollectionStart, DocumentFold, Step, collection_at, names, steps_of
from tests.examples import examples
from tests.spark.audit_kit import Story

NS = "shop.orders"
A, B = b"a" * 16, b"b" * 16
T0 = 1_760_000_000
OPTIONS = StoreOptions(min_free_bytes=0)


def at(number: int, term: int = 1) -> OpTime:
    return OpTime(term, pack_ts(T0 + number, 1))


def command(number: int, o: dict[str, object], *, uuid: bytes | None = None, database: str = "shop") -> OplogEntry:
    return OplogEntry(command_entry(database, uuid, o, at(number), (T0 + number) * 1000))


def in_transaction(*entries: OplogEntry) -> list[OplogEntry]:
    """The operations of a transaction that holds these entries."""
    optime = entries[0].optime
    return OplogEntry(transaction_entry([operation_of(entry.raw) for entry in entries], optime, 1_000, b"")).operations


CREATE_A = command(1, {"create": "orders"}, uuid=A)
CREATE_B = command(3, {"create": "orders"}, uuid=B)
DROP_A = command(2, {"drop": "orders"}, uuid=A)
DROP_ALL = command(2, {"dropDatabase": 1})
OTHER = command(2, {"create": "users"}, uuid=B)
BASE_A = Start(at(0), True, A)


MADE, AGAIN, IN_BASE = (
    CollectionStart(A, at(1).ts, False),
    CollectionStart(B, at(3).ts, False),
    CollectionStart(A, at(0).ts, True),
)


@pytest.mark.parametrize(
    ("commands", "base", "life"),
    [
        pytest.param([CREATE_A, OTHER], None, MADE, id="another-collection"),
        pytest.param([DROP_A, CREATE_B], None, AGAIN, id="older-one-dropped"),
        pytest.param([CREATE_A, DROP_ALL], None, None, id="database-dropped"),
        pytest.param([CREATE_A, DROP_ALL, CREATE_B], None, AGAIN, id="made-again"),
        pytest.param([CREATE_A], BASE_A, IN_BASE, id="created-in-the-base-already"),
        pytest.param([CREATE_A], Start(at(0), False), MADE, id="not-in-the-base-yet"),
        pytest.param([CREATE_A], Start(at(0), True, None), IN_BASE, id="base-gets-its-uuid"),
        pytest.param([DROP_A, CREATE_B], BASE_A, AGAIN, id="base-dropped"),
        pytest.param([DROP_A], Start(at(0), True, None), None, id="unknown-base-dropped"),
        pytest.param([command(2, {"drop": "orders"}, uuid=B)], BASE_A, IN_BASE, id="drop-of-an-older-one"),
        pytest.param([CREATE_A, CREATE_B], None, MADE, id="name-taken"),
        pytest.param([command(2, {"collMod": "orders"}, uuid=A)], BASE_A, IN_BASE, id="collMod"),
        pytest.param([command(2, {"drop": "orders"}, uuid=A, database="x")], BASE_A, IN_BASE, id="other-database"),
        pytest.param(in_transaction(CREATE_A), None, CollectionStart(A, at(1).ts - 1, False), id="in-a-transaction"),
    ],
)
def test_life_at(commands: list[OplogEntry], base: Start | None, life: CollectionStart | None) -> None:
    """The plain ones: below, against a real member's storage."""
    assert collection_at(commands, NS, base, "a") == life


@pytest.mark.parametrize(
    ("o", "reason"),
    [
        ({"renameCollection": NS, "to": "shop.old"}, "renames shop.orders"),
        ({"renameCollection": "shop.new", "to": NS}, "renames shop.orders"),
        ({"emptycapped": "orders"}, "'emptycapped' on shop.orders"),
    ],
)
def test_what_is_not_replayed_is_refused(o: dict[str, object], reason: str) -> None:
    with pytest.raises(OplogError, match=reason):
        collection_at([command(2, o)], NS, BASE_A, "a")


def test_names() -> None:
    assert all(names(entry, NS) for entry in (CREATE_A, DROP_A, DROP_ALL))
    assert not any(names(entry, NS) for entry in (OTHER, command(2, {"collMod": "orders"})))


# --- against a real member's storage ---------------------------------------------------------------------------

KEYS = st.integers(0, 3)
VALUES = st.dictionaries(st.sampled_from("abc"), st.one_of(st.integers(0, 9), st.lists(st.integers(0, 3), max_size=3)))
OPERATIONS = st.lists(st.tuples(st.sampled_from(["put", "delete", "drop"]), KEYS, VALUES), max_size=30)


def history(operations: Sequence[tuple[str, int, dict[str, object]]]) -> list[bytes]:
    """Entries as a primary would write them for these operations; an update is a diff where that is smaller."""
    story = Story(per_second=1)
    uuids = (bytes([number]) * 16 for number in itertools.count(1))
    uuid: bytes | None = None
    for name, key, fields in operations:
        if name == "drop":
            if uuid is not None:
                story.drop(uuid)
            uuid = None
            continue
        if uuid is None:
            uuid = next(uuids)
            story.command({"create": "orders"}, uuid)
        is_there = (uuid, encode_key(key)) in story.documents
        if name == "put":
            (story.update if is_there else story.insert)({"_id": key, **fields}, uuid)
        elif is_there:
            story.delete(key, uuid)
    return [row[-1] for row in story.pending]


def folded(steps: Sequence[Step], step_size: int) -> dict[bytes, bytes]:
    """The steps folded, handed over in batches of `step_size`."""
    ordered = sorted(steps, key=lambda step: (step.key, step.ts, step.n))
    folding = DocumentFold(NS)
    found: list[tuple[bytes, bytes]] = []
    for begin in range(0, len(ordered), step_size):
        found += folding.take(ordered[begin : begin + step_size])
    found += folding.end()
    assert len(dict(found)) == len(found)
    return dict(found)


def steps_after(rows: Sequence[OplogRow], after_ts: int, until: OpTime) -> list[Step]:
    wanted = [row for row in rows if row.ns in (NS, "admin.$cmd") and after_ts < row.ts <= until.ts]
    return list(steps_of(NS, [(row.key, row.ts, row.op, row.entry) for row in wanted]))


def in_transactions(entries: Sequence[bytes], size: int) -> list[OplogEntry]:
    """The entries, up to `size` of them together in a transaction; a drop stands alone."""
    found: list[OplogEntry] = []
    for is_drop, run in itertools.groupby(map(OplogEntry, entries), lambda entry: entry.o.first_key == "drop"):
        left = list(run)
        while left:
            part, left = left[: 1 if is_drop else size], left[1 if is_drop else size :]
            rows, last = [operation_of(entry.raw) for entry in part], part[-1]
            whole = transaction_entry(rows, last.optime, last.wall_ms, b"")
            found.append(last if len(part) == 1 else OplogEntry(whole))
    return found


@examples(60)
@given(
    operations=OPERATIONS,
    size=st.integers(1, 4),
    step_size=st.integers(1, 7),
    base_from=st.integers(0, 30),
    base_to=st.integers(0, 30),
)
def test_replay_equals_a_members_documents_at_every_optime(
    operations: list[tuple[str, int, dict[str, object]]], size: int, step_size: int, base_from: int, base_to: int
) -> None:
    entries = in_transactions(history(operations), size)
    documents: list[dict[bytes, bytes]] = []
    alive: list[bytes | None] = []
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(RealDisk(), folder, OPTIONS)
        for entry in entries:
            with store.group() as txn:
                apply_entry(txn, entry)
            coll = store.collection(NS)
            alive.append(None if coll is None else coll.uuid)
            with store.read() as snapshot:
                documents.append({} if coll is None else dict(snapshot.scan(coll)))
        rows = store.oplog_after(OPTIME_NULL, limit=1000, max_bytes=1 << 30)
        store.close()
    commands = [operation for entry in entries for operation in entry.operations if operation.op == "c"]
    for number, (entry, expected) in enumerate(zip(entries, documents, strict=True)):
        until = entry.optime
        life = collection_at([c for c in commands if c.optime <= until], NS, None, "a")
        assert (None if life is None else life.uuid) == alive[number]
        steps = [] if life is None else steps_after(rows, life.after_ts, until)
        assert folded(steps, step_size) == expected

        # From a base that is as of an earlier entry, or holds some later changes already.
        begin, end = sorted((base_from % (number + 1), base_to % (number + 1)))
        base = Start(entries[begin].optime, alive[begin] is not None, alive[begin])
        life = collection_at([c for c in commands if base.at < c.optime <= until], NS, base, "a")
        assert (None if life is None else life.uuid) == alive[number]
        if life is None:
            continue
        steps = steps_after(rows, life.after_ts, until)
        if life.from_base and alive[begin] == alive[end]:
            steps += [Step(key, -1, 0, BASE, document) for key, document in documents[end].items()]
            assert folded(steps, step_size) == expected


# --- bases -----------------------------------------------------------------------------------------------------


def test_bson_parts_end_where_documents_end() -> None:
    documents = [encode({"_id": number, "text": "x" * number}) for number in range(50)]
    data = b"".join(documents)
    for size in (1, 40, 200, len(data), 1 << 20):
        parts = list(bson_parts(io.BytesIO(data), size))
        assert [begin for begin, _ in parts] == [0, *(end for _, end in parts[:-1])]
        found: list[bytes] = []
        for begin, end in parts:
            file = io.BytesIO(data)
            file.seek(begin)
            found += bson_documents(file, end - begin)
        assert found == documents
    assert list(bson_documents(io.BytesIO(data), None)) == documents
    assert list(bson_parts(io.BytesIO(b""), 10)) == []


@pytest.mark.parametrize("cut", [1, 3, 4, 20])
def test_a_document_that_is_cut_off_is_refused(cut: int) -> None:
    data = encode({"_id": 1, "text": "some text to cut"})[:-cut]
    with pytest.raises(BadValueError, match="cut off"):
        list(bson_documents(io.BytesIO(data), None))
    with pytest.raises(BadValueError, match="no document at byte 0"):
        list(bson_parts(io.BytesIO(b"\x02\0\0\0"), 10))


def test_open_base(tmp_path: Path) -> None:
    (tmp_path / "orders.bson").write_bytes(b"")
    dump = str(tmp_path / "orders.bson")
    store = Store.open(RealDisk(), tmp_path / "member", OPTIONS)
    store.close()
    member = str(tmp_path / "member")
    assert open_base("empty") == EmptyBase()
    assert open_base(dump) == BsonBase(dump, dump, OPTIME_NULL)
    assert open_base(f"{dump}@1:5:2") == BsonBase(dump, dump, OpTime(1, pack_ts(5, 2)))
    assert open_base(member) == DbpathBase(member, f"{member}/replset.db")
    for text, reason in (
        (f"{dump}@yesterday", "not an optime"),
        (f"{tmp_path}/none.bson", "does not exist"),
        (str(tmp_path), "neither a member's files nor"),
        (f"{member}@1:5:2", "know their optime themselves"),
    ):
        with pytest.raises(BadValueError, match=reason):
            open_base(text)


def test_a_members_documents_are_a_base_now_and_back_to_its_undo(tmp_path: Path) -> None:
    operations: list[tuple[str, int, dict[str, object]]] = [
        ("put", 1, {"a": 1}),
        ("put", 2, {"a": 1}),
        ("put", 1, {"a": 2}),
        ("delete", 2, {}),
        ("put", 3, {"b": [1]}),
        ("put", 2, {"c": 3}),
    ]
    store = Store.open(RealDisk(), tmp_path, OPTIONS)
    states: list[tuple[OpTime, dict[bytes, bytes]]] = []
    for raw in history(operations):
        with store.group() as txn:
            apply_entry(txn, OplogEntry(raw))
        coll = store.collection(NS)
        with store.read() as snapshot:
            states.append((store.last_applied, dict(snapshot.scan(coll))))
    store.close()
    base = open_base(str(tmp_path))
    for point, expected in states:
        start = base.find(NS, point)
        found: dict[bytes, bytes] = {}
        for part in start.parts:
            for batch in base.read(start, part, NS, point):
                found.update(zip(*(column.to_pylist() for column in batch.columns), strict=True))
        assert (start.at, found) == (point, expected)
    assert base.find("shop.users", states[0][0]) == Start(states[0][0], False, undone=True)
    assert base.find("shop.users", states[-1][0]) == Start(states[-1][0], False)
    earlier = OpTime(1, states[0][0].ts - 1)
    assert not base.find(NS, earlier).exists


def test_a_collection_of_a_dump(tmp_path: Path) -> None:
    documents = [{"_id": number, "n": number} for number in range(5)]
    path = tmp_path / "orders.bson"
    path.write_bytes(b"".join(map(encode, documents)))
    base = BsonBase("dump", str(path), at(3))
    start = base.find(NS, at(4))
    assert (start.at, start.exists, start.uuid) == (at(3), True, None)
    (batch,) = [batch for part in start.parts for batch in base.read(start, part, NS, at(4))]
    assert batch.column(0).to_pylist() == [encode_key(number) for number in range(5)]
    assert [decode(document) for document in batch.column(1).to_pylist()] == documents
    with pytest.raises(OplogError, match="dump: its documents are as of"):
        base.find(NS, at(2))


def test_a_renamed_collection_is_found_under_the_name_that_it_had(tmp_path: Path) -> None:
    store = Store.open(RealDisk(), tmp_path / "a", OPTIONS)
    for number, o in enumerate(({"create": "old"}, {"renameCollection": "shop.old", "to": "shop.new"}), 1):
        with store.group() as txn:
            apply_entry(txn, command(number, o, uuid=A))
    store.close()
    base = DbpathBase("a", str(tmp_path / "a/replset.db"))
    created, renamed = at(1), at(2)
    assert base.collections(created) == {"shop.old": A}
    assert base.collections(renamed) == {"shop.new": A}
    assert base.find("shop.old", created).uuid == A
    assert not base.find("shop.new", created).exists
    assert base.find("shop.new", renamed).uuid == A

"""The keys of documents in indexes, and the entries that a store keeps of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from replset.bson import RawDocument, Undefined, encode, encode_key, parts
from replset.errors import CannotBuildIndexKeysError, CannotIndexParallelArraysError, DuplicateKeyError
from replset.features.collections import index_check
from replset.features.collections.index_check import IndexCheck
from replset.storage import indexes
from replset.storage.indexes import KEYS_MAX, Index, has_entry, keys_of, write_entries
from replset.storage.undo import undo_step
from tests.unit.storage.conftest import Driver, key_of

_COMPLEMENT = bytes(range(255, -1, -1))
_UNDEFINED = Undefined()
_TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table'"


def index_of(key: dict[str, int], **options: object) -> Index:
    spec = encode({"v": 2, "key": key, "name": "i", **options})
    return Index(1, b"\0" * 16, RawDocument(spec), None, None, True, 0)


@pytest.mark.parametrize(
    ("key", "document", "expected"),
    [
        pytest.param({"a": 1}, {"a": 5}, [[5]], id="plain"),
        pytest.param({"a": 1}, {}, [[None]], id="missing is null"),
        pytest.param({"a": 1}, {"a": []}, [[_UNDEFINED]], id="empty array is undefined"),
        pytest.param({"a": 1}, {"a": [1, 2, 1]}, [[1], [2]], id="array"),
        pytest.param({"a": 1}, {"a": [[1, 2], 3]}, [[[1, 2]], [3]], id="array in an array is one value"),
        pytest.param({"a.b": 1}, {"a": {"b": 1}}, [[1]], id="nested"),
        pytest.param({"a.b": 1}, {"a": 1}, [[None]], id="no document"),
        pytest.param({"a.b": 1}, {"a": [{"b": 1}, {"b": [2, 3]}, {}, 4]}, [[1], [2], [3], [None]], id="documents"),
        pytest.param({"a.b": 1}, {"a": []}, [[None]], id="no documents"),
        pytest.param({"a.b": 1}, {"a": [[{"b": 1}]]}, [[None]], id="array of arrays"),
        pytest.param({"a.1": 1}, {"a": [5, 6]}, [[6]], id="item by its index"),
        pytest.param({"a.0": 1}, {"a": [[5, 6]]}, [[[5, 6]]], id="an array named by its index is one value"),
        pytest.param({"a.0.b": 1}, {"a": [{"b": 1}, {"b": 2}]}, [[1]], id="field of an item"),
        pytest.param({"a": 1, "b": 1}, {"a": [1, 2], "b": 3}, [[1, 3], [2, 3]], id="compound"),
        pytest.param({"a": 1, "a.b": 1}, {"a": [{"b": 1}]}, [[{"b": 1}, 1]], id="one array for both"),
        pytest.param({"a.b": 1, "a.c": 1}, {"a": [{"b": 1, "c": [2, 3]}]}, [[1, 2], [1, 3]], id="array in an item"),
    ],
)
def test_keys(key: dict[str, int], document: dict[str, Any], expected: list[list[object]]) -> None:
    made = keys_of(index_of(key), encode({"_id": 1, **document}))
    assert made == sorted(b"".join(map(encode_key, row)) for row in expected)


def test_a_descending_part_is_complemented() -> None:
    (made,) = keys_of(index_of({"a": 1, "b": -1}), encode({"a": 1, "b": "x"}))
    assert made == encode_key(1) + encode_key("x").translate(_COMPLEMENT)


@pytest.mark.parametrize(
    ("options", "document", "is_in"),
    [
        ({"sparse": True}, {"a": None}, True),
        ({"sparse": True}, {"b": 1}, True),
        ({"sparse": True}, {"c": 1}, False),
        ({"sparse": True}, {"a": []}, True),
        ({"partialFilterExpression": {"c": {"$gt": 3}}}, {"c": 4}, True),
        ({"partialFilterExpression": {"c": {"$gt": 3}}}, {"c": 3, "a": 1}, False),
    ],
)
def test_sparse_and_partial(options: dict[str, Any], document: dict[str, Any], is_in: bool) -> None:
    assert bool(keys_of(index_of({"a": 1, "b": 1}, **options), encode(document))) == is_in


def test_documents_that_cannot_be_indexed() -> None:
    with pytest.raises(CannotIndexParallelArraysError, match=r"cannot index parallel arrays \[b\] \[a\]"):
        keys_of(index_of({"a": 1, "b": 1}), encode({"a": [1], "b": [1]}))
    with pytest.raises(CannotBuildIndexKeysError):
        keys_of(index_of({"a": 1}), encode({"a": list(range(KEYS_MAX + 1))}))


@pytest.mark.parametrize(
    ("key", "document"),
    [
        pytest.param({"a": 1}, {"a": [7] * 20}, id="an array of one value"),
        pytest.param({"a": 1}, {"a": {"b": [[1]] * 10}}, id="a value with many in it"),
        pytest.param({"b": 1}, {f"f{number}": 0 for number in range(21)}, id="many fields before its own"),
        pytest.param({"a.b": 1}, {"a": [{"x": 0}] * 10}, id="documents in an array"),
    ],
)
def test_a_document_with_too_many_values_is_refused_before_they_are_decoded(
    key: dict[str, int], document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    index = index_of(key)
    raw = encode({"_id": 1, **document, "padding": "x" * indexes.LARGE})
    assert keys_of(index, raw)
    monkeypatch.setattr(indexes, "VALUES_MAX", 20)
    monkeypatch.setattr(parts, "read_value", lambda *_: pytest.fail("a value was decoded"))
    with pytest.raises(CannotBuildIndexKeysError, match="more than 20 values"):
        keys_of(index, raw)


def test_the_bytes_of_the_keys_of_one_document_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "KEY_BYTES_MAX", 10_000)
    made: list[object] = []
    monkeypatch.setattr(indexes, "encode_key", lambda value: made.append(value) or encode_key(value))
    keys_of(index_of({"a": 1, "b": 1}), encode({"a": "x" * 1000, "b": [1, 2, 3]}))
    assert made == ["x" * 1000, 1, 2, 3]  # what all keys begin with is encoded once
    for document in ({"a": "x" * 1000, "b": list(range(20))}, {"a": "x" * 1000, "b": [0] * 20}, {"a": "x" * 10_000}):
        with pytest.raises(CannotBuildIndexKeysError, match="more than 10000 bytes"):
            keys_of(index_of({"a": 1, "b": 1}), encode(document))


# --- entries


def create_index(driver: Driver, key: dict[str, int], **options: object) -> None:
    with driver.store.group() as txn:
        driver.run(txn, "noop")
        spec = RawDocument(encode({"v": 2, "key": key, "name": "_".join(key), **options}))
        txn.create_index(driver.coll("db.c"), spec, ts=txn.last.ts)


def entries(driver: Driver, number: int = 0) -> list[tuple[bytes, bytes]]:
    with driver.store.read() as snapshot:
        return snapshot.index_scan(driver.coll("db.c").indexes[number], b"", None, limit=1000)


def recomputed(driver: Driver, number: int = 0) -> list[tuple[bytes, bytes]]:
    index = driver.coll("db.c").indexes[number]
    with driver.store.read() as snapshot:
        return sorted((k, key) for key, doc in snapshot.scan(driver.coll("db.c")) for k in keys_of(index, doc))


def test_entries_follow_the_documents(driver: Driver) -> None:
    driver.apply(("create", "db.c"))
    create_index(driver, {"text": 1})
    driver.apply(*[("put", "db.c", n, f"t{n % 7}") for n in range(20)])
    common = driver.store.last_applied
    driver.apply(*[("put", "db.c", n, "other") for n in range(5, 10)], ("delete", "db.c", 3), ("put", "db.c", 50, "x"))
    assert entries(driver) == recomputed(driver)
    assert len(entries(driver)) == 20
    undo_step(driver.store, common, stem="s")
    assert entries(driver) == recomputed(driver)
    assert (encode_key("t3"), key_of(3)) in entries(driver)
    driver.reopen()
    assert entries(driver) == recomputed(driver)


@pytest.mark.parametrize("table", ["indexes", "i"])
def test_an_index_whose_rows_say_that_they_are_text_is_read(driver: Driver, table: str) -> None:
    """One bit of a row's header: it stops neither a start nor a look at the index, which finds that entries differ."""
    driver.apply(("create", "db.c"))
    create_index(driver, {"text": 1})
    driver.apply(*[("put", "db.c", n, f"t{n}") for n in range(5)])
    before, (index,) = recomputed(driver), driver.coll("db.c").indexes
    column, place = ("spec", "indexes") if table == "indexes" else ("key", index.table)
    driver.store._connection.execute(f"UPDATE {place} SET {column} = CAST({column} AS TEXT)")
    driver.reopen()
    assert recomputed(driver) == before
    with driver.store.read() as snapshot:
        check = IndexCheck(driver.coll("db.c"), driver.coll("db.c").indexes[0])
        while check.next_slice(snapshot, 7):
            pass
    assert (len(check.missing), check.extra) == (0 if table == "indexes" else 5, [])


def test_a_slice_of_a_check_ends_when_so_many_keys_were_made(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many documents and entries it may compare."""
    monkeypatch.setattr(index_check, "KEYS_IN_SLICE", 3)
    driver.apply(("create", "db.c"))
    create_index(driver, {"text": 1})
    driver.apply(*[("put", "db.c", n, f"t{n}") for n in range(20)])
    coll, done = driver.coll("db.c"), [(0, 0)]
    with driver.store.read() as snapshot:
        check = IndexCheck(coll, coll.indexes[0])
        while check.next_slice(snapshot, 1_000):
            done.append((check.documents, check.entries))
    assert (check.documents, check.entries) == (20, 20)
    assert all(sum(after) - sum(before) <= 4 for before, after in pairwise([*done, (20, 20)]))


@pytest.mark.parametrize("before", [0, 30], ids=["few-fields-before", "many-fields-before"])
@pytest.mark.parametrize("after", [0, 30], ids=["few-fields-after", "many-fields-after"])
def test_a_large_document_with_too_many_fields_has_no_entry_where_it_was_accepted_before(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, before: int, after: int
) -> None:
    driver.apply(("create", "db.c"))
    create_index(driver, {"text": 1})
    monkeypatch.setattr(indexes, "VALUES_MAX", 20)

    def document(text: str, fields: int) -> bytes:
        more = {f"f{number}": 0 for number in range(fields)}
        return encode({**more, "text": text, "padding": "x" * indexes.LARGE})

    with driver.store.group() as txn:
        driver.run(txn, "noop")
        coll, old, new = driver.coll("db.c"), document("old", before), document("new", after)
        write_entries(txn.connection, coll.indexes, key_of(1), None, old)
        write_entries(txn.connection, coll.indexes, key_of(1), old, new)
        found = [
            text for text in ("old", "new") if has_entry(txn.connection, coll.indexes[0], encode_key(text), key_of(1))
        ]
        assert found == ([] if after else ["new"])


def test_a_failing_operation_takes_its_entries_back(driver: Driver) -> None:
    driver.apply(("create", "db.c"), ("noop",))
    create_index(driver, {"text": 1}, unique=True)
    driver.apply(("put", "db.c", 1, "one"))
    with driver.store.group() as txn:
        txn.refuses_duplicates = True
        mark = txn.mark()
        driver.run(txn, "put", "db.c", 2, "two")
        with pytest.raises(DuplicateKeyError) as caught:
            driver.run(txn, "put", "db.c", 3, "one")
        txn.revert_to(mark)
        del driver.state["db.c"][key_of(2)]
        driver.run(txn, "put", "db.c", 1, "one")
    assert entries(driver) == recomputed(driver) == [(encode_key("one"), key_of(1))]
    assert caught.value.message == ('E11000 duplicate key error collection: db.c index: text dup key: { text: "one" }')
    assert caught.value.details == {"keyPattern": {"text": 1}, "keyValue": {"text": "one"}}


def test_the_multikey_flag_is_kept(driver: Driver) -> None:
    driver.apply(("create", "db.c"))
    create_index(driver, {"a": 1, "b": 1})
    coll = driver.coll("db.c")
    before = driver.store.last_applied
    with driver.store.group() as txn:
        driver.run(txn, "noop")
        assert txn.insert_new(coll, key_of(1), encode({"_id": 1, "b": [1, 2]}), txn.last.ts)
    assert driver.coll("db.c").indexes[0].multikey_fields == 0b10
    undo_step(driver.store, before, stem="s")
    driver.reopen()
    assert driver.coll("db.c").indexes[0].multikey
    assert entries(driver) == []


def test_index_scan(driver: Driver) -> None:
    driver.apply(("create", "db.c"))
    create_index(driver, {"text": 1})
    driver.apply(*[("put", "db.c", n, f"t{n % 3}") for n in range(9)])
    index = driver.coll("db.c").indexes[0]
    every = entries(driver)
    t1 = encode_key("t1")
    with driver.store.read() as snapshot:
        assert snapshot.index_scan(index, t1, t1 + b"\xff", limit=10) == every[3:6]
        assert snapshot.index_scan(index, b"", None, limit=2, after=every[3]) == every[4:6]
        assert snapshot.index_scan(index, b"", None, limit=2, after=every[3], backwards=True) == [every[2], every[1]]
        assert snapshot.index_scan(index, t1, None, limit=99, backwards=True) == every[:2:-1]
    with driver.store.group() as txn:
        assert txn.index_scan(index, t1, t1 + b"\xff", limit=1) == every[3:4]


def test_a_dropped_index_comes_back_with_its_entries(driver: Driver) -> None:
    driver.apply(("create", "db.c"))
    create_index(driver, {"text": 1})
    driver.apply(("put", "db.c", 1, "one"))
    common = driver.store.last_applied
    with driver.store.group() as txn:
        driver.run(txn, "noop")
        txn.drop_index(driver.coll("db.c").indexes[0], ts=txn.last.ts)
    driver.apply(("put", "db.c", 1, "two"), ("put", "db.c", 2, "three"))
    assert driver.coll("db.c").indexes == ()
    undo_step(driver.store, common, stem="s")
    assert entries(driver) == recomputed(driver) == [(encode_key("one"), key_of(1))]


def test_an_undone_or_dropped_index_is_removed(driver: Driver) -> None:
    driver.apply(("create", "db.c"))
    common = driver.store.last_applied
    create_index(driver, {"text": 1})
    undo_step(driver.store, common, stem="s")
    create_index(driver, {"other": 1})
    with driver.store.group() as txn:
        driver.run(txn, "noop")
        txn.drop_index(driver.coll("db.c").indexes[0], ts=txn.last.ts)
    driver.apply(("noop",))
    driver.commit()
    tables = driver.store.query(lambda connection: [name for (name,) in connection.execute(_TABLES)])
    assert [name for name in tables if name.startswith("i_")] == []

"""`/v1/replset/oplog` over a real store: pages, filters, both forms, what was trimmed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replset.bson import Binary, RawDocument, decode, encode, encode_key
from replset.ejson import from_ejson_value
from replset.errors import CappedPositionLostError, SnapshotCutError
from replset.ids import OPTIME_NULL, OpTime, pack_ts
from replset.oplog_entry import insert_entry, noop_entry, operation_of, transaction_entry
from replset.storage.disk import RealDisk
from replset.storage.store import Store, StoreOptions
from tests.unit.api.kit import Api

WALL = 1_700_000_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store.open(RealDisk(), tmp_path, StoreOptions(min_free_bytes=0, snapshot_history_s=0))
    yield made
    made.close()


@pytest.fixture
def api(store: Store) -> Api:
    made = Api()
    made.member.store = store
    return made


def insert(store: Store, ns: str, document: dict[str, Any]) -> OpTime:
    with store.group() as txn:
        optime = txn.next_optime(1, WALL)
        raw = encode(document)
        entry = insert_entry(ns, bytes(16), raw, optime, WALL)
        txn.append(entry, optime, op="i", ns=ns, key=encode_key(document["_id"]), wall_ms=WALL)
    return optime


def noop(store: Store) -> OpTime:
    with store.group() as txn:
        optime = txn.next_optime(1, WALL)
        entry = noop_entry({"msg": "periodic noop"}, optime, WALL)
        txn.append(entry, optime, op="n", ns="", key=None, wall_ms=WALL)
    return optime


def pages(api: Api, limit: int, query: str = "") -> list[list[dict[str, Any]]]:
    """All pages, each begun where the one before says."""
    found, after = [], ""
    while True:
        page = api.get(f"/v1/replset/oplog?limit={limit}{query}{after}").json()
        found.append(page["entries"])
        if page["next"] is None:
            return found
        after = f"&after={page['next']}"


def test_an_empty_oplog(api: Api) -> None:
    assert api.get("/v1/replset/oplog").json() == {"entries": [], "next": None}
    info = api.get("/v1/replset/oplog/info").json()
    assert (info["first"], info["last"], info["windowSecs"], info["bytes"]) == (None, None, 0, 0)


def test_a_row_is_whole(api: Api, store: Store) -> None:
    optime = insert(store, "shop.orders", {"_id": 7, "item": "pen"})
    (row,) = api.get("/v1/replset/oplog").json()["entries"]
    newest = store.newest_row()
    assert newest is not None
    assert set(row) == {"optime", "key", "hash", "chain", "entry"}
    assert row["optime"] == str(optime)
    assert from_ejson_value(row["key"]) == Binary(encode_key(7))
    assert (row["hash"], row["chain"]) == (newest.hash, newest.chain)
    assert from_ejson_value(row["entry"]) == decode(newest.entry)


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6, 100])
def test_pages_give_every_entry_once(api: Api, store: Store, limit: int) -> None:
    optimes = [insert(store, "shop.orders", {"_id": number}) for number in range(6)]
    found = pages(api, limit)
    assert [row["optime"] for page in found for row in page] == [str(optime) for optime in optimes]
    assert len(found) == -(-6 // limit), "the last page says that it is the last"


def test_after_is_exclusive(api: Api, store: Store) -> None:
    first, second = insert(store, "a.b", {"_id": 1}), insert(store, "a.b", {"_id": 2})
    (row,) = api.get(f"/v1/replset/oplog?after={first}").json()["entries"]
    assert row["optime"] == str(second)
    assert api.get(f"/v1/replset/oplog?after={second}").json()["entries"] == []


def test_filters(api: Api, store: Store) -> None:
    one = insert(store, "shop.orders", {"_id": 1})
    noop(store)
    insert(store, "shop.other", {"_id": 2})
    two = insert(store, "shop.orders", {"_id": 3})
    noop(store)
    assert [len(page) for page in pages(api, 1, "&op=n")] == [1, 1]
    found = pages(api, 1, "&ns=shop.orders&op=i")
    assert [row["optime"] for page in found for row in page] == [str(one), str(two)]
    assert api.get("/v1/replset/oplog?ns=no.such").json() == {
        **api.get("/v1/replset/oplog?op=d").json(),
        "entries": [],
        "next": None,
    }


def test_bson_rows_one_after_the_other(api: Api, store: Store) -> None:
    optimes = [insert(store, "a.b", {"_id": number}) for number in range(3)]
    response = api.get("/v1/replset/oplog?limit=2", headers={"accept": "application/bson"})
    assert response.headers["content-type"] == "application/bson"
    assert response.headers["x-replset-next"] == str(optimes[1])
    data, rows = response.content, []
    while data:
        size = int.from_bytes(data[:4], "little")
        rows.append(RawDocument(data[:size]))
        data = data[size:]
    assert [row.get("optime") for row in rows] == [str(optime) for optime in optimes[:2]]
    newest = store.oplog_after(OPTIME_NULL, limit=1, max_bytes=1)[0]
    assert rows[0].get_raw("entry") == newest.entry
    response = api.get(f"/v1/replset/oplog?after={optimes[1]}", headers={"accept": "application/bson"})
    assert "x-replset-next" not in response.headers


def nested(levels: int) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for _ in range(levels - 1):
        document = {"a": document}
    return document


def test_a_document_as_deep_as_one_may_be_is_shown(api: Api, store: Store) -> None:
    insert(store, "a.b", {"_id": 1, **nested(200)})
    (row,) = api.get("/v1/replset/oplog").json()["entries"]
    assert row["entry"]["o"]["_id"] == 1
    assert row["entry"]["o"]["a"]["a"] is not None


def test_info(api: Api, store: Store) -> None:
    first, last = insert(store, "a.b", {"_id": 1}), insert(store, "a.b", {"_id": 2})
    info = api.get("/v1/replset/oplog/info").json()
    assert (info["first"], info["last"]) == (str(first), str(last))
    assert info["windowSecs"] == last.seconds - first.seconds
    assert info["bytes"] == store.oplog_bytes > 0


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("after=x", "not an optime"),
        ("after=1:2", "not an optime"),
        ("after=1:99999999999:1", "not an optime"),
        ("after=1:4294967296:1", "out of range"),
        ("after=", "not an optime"),
        ("limit=0", "query limit"),
        ("limit=10001", "query limit"),
        ("limit=x", "query limit"),
        ("op=insert", "query op"),
        ("ns=" + "x" * 300, "query ns"),
    ],
)
def test_parameters_that_are_refused(api: Api, query: str, text: str) -> None:
    response = api.get(f"/v1/replset/oplog?{query}")
    assert (response.status_code, response.json()["code"]) == (400, 2)
    assert text in response.json()["errmsg"]


def test_the_highest_optime_that_can_be_written(api: Api, store: Store) -> None:
    insert(store, "a.b", {"_id": 1})
    top = OpTime(9_999_999_999_999_999_999, pack_ts((1 << 32) - 1, (1 << 31) - 1))
    assert api.get(f"/v1/replset/oplog?after={top}").json()["entries"] == []


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (CappedPositionLostError("the oplog after 1:1:1 was trimmed away"), 400),
        (SnapshotCutError("the read was cut off"), 503),
    ],
)
def test_what_the_store_refuses(api: Api, error: Exception, status: int) -> None:
    class Failing:
        def __enter__(self) -> Failing:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def oplog_after(self, *_: object, **__: object) -> list[object]:
            raise error

    class Trimmed:
        last_applied = OpTime(1, pack_ts(1, 1))

        @staticmethod
        def read() -> Failing:
            return Failing()

    api.member.store = Trimmed()
    response = api.get("/v1/replset/oplog?after=1:1:1")
    assert (response.status_code, response.json()["code"]) == (status, 136 if status == 400 else 246)


def transaction(store: Store, *namespaces: str) -> OpTime:
    with store.group() as txn:
        optime = txn.next_optime(1, WALL)
        rows = [insert_entry(ns, bytes(16), encode({"_id": 1}), optime, WALL) for ns in namespaces]
        entry = transaction_entry([operation_of(row) for row in rows], optime, WALL, b"")
        txn.append(entry, optime, op="c", ns="admin.$cmd", key=None, wall_ms=WALL)
    return optime


def test_a_namespace_shows_the_transactions_that_write_there(api: Api, store: Store) -> None:
    wanted = [insert(store, "app.a", {"_id": 1})]
    insert(store, "app.b", {"_id": 1})
    wanted.append(transaction(store, "app.b", "app.a"))
    transaction(store, "app.b")
    wanted.append(insert(store, "app.a", {"_id": 2}))
    for limit in (1, 2, 10):
        found = [row["optime"] for page in pages(api, limit, "&ns=app.a") for row in page]
        assert found == [str(optime) for optime in wanted]

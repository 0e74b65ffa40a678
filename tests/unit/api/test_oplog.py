"""`/v1/replset/oplog` of a member: pages, filters, both forms, what was trimmed."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from replset.bson import Binary, Int64, RawDocument, decode, encode_key
from replset.ejson import from_ejson_value
from replset.errors import CappedPositionLostError, SnapshotCutError
from replset.ids import OPTIME_NULL, OpTime, pack_ts
from replset.storage.snapshot import Snapshot
from tests.rig import a_set
from tests.unit.api.kit import Api, plain

PATH = "/v1/replset/oplog"
SESSION = {"id": Binary(bytes(16), 4)}


class Log:
    """The entries behind the creation of the collections that the tests use."""

    def __init__(self, api: Api) -> None:
        self.api, self.client = api, api.rig.client()
        for database, name in (("shop", "orders"), ("shop", "other"), ("app", "a"), ("app", "b")):
            self.client.ok({"create": name}, database)
        self.begin = api.rig.newest()

    def insert(self, ns: str, document: dict[str, Any]) -> str:
        database, _, name = ns.partition(".")
        self.client.ok({"insert": name}, database, documents=[document])
        return str(self.api.rig.newest())

    def transaction(self, number: int, *names: str) -> str:
        about = {"lsid": SESSION, "txnNumber": Int64(number), "autocommit": False}
        for n, name in enumerate(names):
            begins = {} if n else {"startTransaction": True}
            self.client.ok({"insert": name, "documents": [{}], **about, **begins}, "app")
        self.client.ok({"commitTransaction": 1, **about}, "admin")
        return str(self.api.rig.newest())

    def get(self, query: str = "", after: object = None, **options: Any) -> httpx.Response:
        return self.api.get(f"{PATH}?after={after or self.begin}&{query}".rstrip("&"), **options)

    def pages(self, limit: int, query: str = "") -> list[list[str]]:
        """The optimes of all pages, each begun where the one before says."""
        found, after = [], str(self.begin)
        while after is not None:
            page = self.get(f"limit={limit}{query}", after).json()
            found.append([row["optime"] for row in page["entries"]])
            after = page["next"]
        return found


@pytest.fixture
def log(api: Api) -> Log:
    return Log(api)


def test_an_empty_oplog(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_set(initiates=False) as rig:
        api = Api(rig, monkeypatch)
        assert api.get(PATH).json() == {"entries": [], "next": None}
        info = api.get(f"{PATH}/info").json()
        assert (info["first"], info["last"], info["windowSecs"], info["bytes"]) == (None, None, 0, 0)


def test_a_row_is_whole(log: Log) -> None:
    optime, newest = log.insert("shop.orders", {"_id": 7, "item": "pen"}), log.api.member.store.newest_row()
    assert newest is not None
    (row,) = log.get().json()["entries"]
    assert set(row) == {"optime", "key", "hash", "chain", "entry"}
    assert row["optime"] == optime
    assert from_ejson_value(row["key"]) == Binary(encode_key(7))
    assert (row["hash"], row["chain"]) == (newest.hash, newest.chain)
    assert from_ejson_value(row["entry"]) == decode(newest.entry)


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6, 100])
def test_pages_give_every_entry_once(log: Log, limit: int) -> None:
    optimes = [log.insert("shop.orders", {"_id": number}) for number in range(6)]
    found = log.pages(limit)
    assert [row for page in found for row in page] == optimes
    assert len(found) == -(-6 // limit), "the last page says that it is the last"


def test_after_is_exclusive(log: Log) -> None:
    first, second = log.insert("shop.orders", {"_id": 1}), log.insert("shop.orders", {"_id": 2})
    (row,) = log.get(after=first).json()["entries"]
    assert row["optime"] == second
    assert log.get(after=second).json()["entries"] == []


def test_filters(log: Log) -> None:
    one = log.insert("shop.orders", {"_id": 1})
    log.client.ok({"appendOplogNote": 1, "data": {}}, "admin")
    log.insert("shop.other", {"_id": 2})
    two = log.insert("shop.orders", {"_id": 3})
    log.client.ok({"appendOplogNote": 1, "data": {}}, "admin")
    assert [len(page) for page in log.pages(1, "&op=n")] == [1, 1]
    assert log.pages(1, "&ns=shop.orders&op=i") == [[one], [two]]
    for query in ("ns=no.such", "op=d"):
        assert plain(log.get(query)) == {"entries": [], "next": None}


def test_bson_rows_one_after_the_other(log: Log) -> None:
    optimes = [log.insert("shop.orders", {"_id": number}) for number in range(3)]
    response = log.get("limit=2", headers={"accept": "application/bson"})
    assert response.headers["content-type"] == "application/bson"
    assert response.headers["x-replset-next"] == optimes[1]
    data, rows = response.content, []
    while data:
        size = int.from_bytes(data[:4], "little")
        rows.append(RawDocument(data[:size]))
        data = data[size:]
    assert [row.get("optime") for row in rows] == optimes[:2]
    stored = log.api.member.store.oplog_after(log.begin, limit=1, max_bytes=1)[0]
    assert rows[0].get_raw("entry") == stored.entry
    response = log.get(after=optimes[1], headers={"accept": "application/bson"})
    assert "x-replset-next" not in response.headers


def test_a_document_as_deep_as_one_may_be_is_shown(log: Log) -> None:
    document: dict[str, Any] = {}
    for _ in range(199):
        document = {"a": document}
    log.insert("shop.orders", {"_id": 1, **document})
    (row,) = log.get().json()["entries"]
    assert row["entry"]["o"]["_id"] == 1
    assert row["entry"]["o"]["a"]["a"] is not None


def test_info(log: Log) -> None:
    log.api.rig.wait(3)
    last = log.insert("shop.orders", {"_id": 2})
    store = log.api.member.store
    first = store.oplog_after(OPTIME_NULL, limit=1, max_bytes=1)[0].optime
    info = log.api.get(f"{PATH}/info").json()
    assert (info["first"], info["last"]) == (str(first), last)
    assert info["windowSecs"] == store.last_applied.seconds - first.seconds >= 3
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


def test_the_highest_optime_that_can_be_written(api: Api) -> None:
    top = OpTime(9_999_999_999_999_999_999, pack_ts((1 << 32) - 1, (1 << 31) - 1))
    assert api.get(f"/v1/replset/oplog?after={top}").json()["entries"] == []


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (CappedPositionLostError("the oplog after 1:1:1 was trimmed away"), 400),
        (SnapshotCutError("the read was cut off"), 503),
    ],
)
def test_what_the_store_refuses(api: Api, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Snapshot, "oplog_after", fails)
    response = api.get(f"{PATH}?after=1:1:1")
    assert (response.status_code, response.json()["code"]) == (status, 136 if status == 400 else 246)


def test_a_namespace_shows_the_transactions_that_write_there(log: Log) -> None:
    wanted = [log.insert("app.a", {"_id": 1})]
    log.insert("app.b", {"_id": 1})
    wanted.append(log.transaction(1, "b", "a"))
    log.transaction(2, "b")
    wanted.append(log.insert("app.a", {"_id": 2}))
    for limit in (1, 2, 10):
        assert [row for page in log.pages(limit, "&ns=app.a") for row in page] == wanted

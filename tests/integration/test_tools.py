"""What the MongoDB tools send, as recorded from mongodump and mongorestore: nothing may fail.

A restore with --drop has dropped the data before it fails. The tools themselves are run by hand.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest
from bson import Binary, Int64, Timestamp
from pymongo.errors import PyMongoError

from tests.integration.conftest import MakeSet
from tests.integration.talk import Client, connect

Document = dict[str, Any]
MAJORITY = {"w": "majority"}
DOCUMENTS = 400
KEPT_OF_CONFIG = {"chunks", "collections", "databases", "settings", "shards", "tags", "version"}
"""The collections of `config` that mongodump takes along, and whose entries mongorestore replays."""


class Dump:
    """mongodump --oplog: the collections with their metadata, and the entries written meanwhile. Into an archive it
    writes the same.
    """

    def __init__(self, client: Client, load: Load) -> None:
        oplog = client.local["oplog.rs"]
        begin = next(oplog.find({}, sort=[("$natural", -1)], limit=1))["ts"]
        self.collections: dict[tuple[str, str], tuple[Document, list[Document], list[Any]]] = {}
        load.wait_for(20)
        for database in client.admin.command("listDatabases", nameOnly=True)["databases"]:
            name = database["name"]
            if name == "local":
                continue
            for info in client[name].command("listCollections", cursor={})["cursor"]["firstBatch"]:
                if name == "config" and info["name"] not in KEPT_OF_CONFIG:
                    continue
                collection = client[name][info["name"]]
                indexes = list(collection.list_indexes())
                hint = {"_id": 1}
                documents = list(collection.find({}, hint=hint, no_cursor_timeout=True, batch_size=100))
                self.collections[name, info["name"]] = info, indexes, documents
        load.wait_for(20)
        load.stop()
        self.entries = list(oplog.find({"ts": {"$gte": begin}}, oplog_replay=True))
        assert next(oplog.find({}, sort=[("$natural", 1)], limit=1))["ts"] <= begin


class Load:
    """Clients that write all the time: every kind of entry that a dump may meet but a rename."""

    def __init__(self, client: Client, database: str) -> None:
        self._database = client[database]
        if "valid" not in self._database.list_collection_names():
            self._database.create_collection("valid")
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self.done = 0
        self.failure: PyMongoError | None = None
        self._thread.start()

    def _run(self) -> None:
        orders, made = self._database.orders, self._database.made
        try:
            while not self._stopped.is_set():
                number = self.done
                orders.insert_one({"_id": 10_000 + number, "n": number, "tags": ["new"]})
                orders.update_one({"_id": number % DOCUMENTS}, {"$inc": {"n": 1}, "$push": {"tags": number}})
                orders.replace_one({"_id": number % 7}, {"n": 1, "whole": True}, upsert=True)
                orders.delete_one({"_id": 200 + number % 100})
                self._database.capped.insert_one({"n": number})
                made.insert_one({"n": number})
                if number % 5 == 4:
                    self._database.client.admin.command("setDefaultRWConcern", defaultWriteConcern=MAJORITY)
                    self._database.command("createUser", f"user{number}", pwd="secret", roles=["read"])
                    made.drop()
                    self._database.command("collMod", "valid", validationLevel="moderate")
                with self._database.client.start_session() as session, session.start_transaction():
                    orders.insert_one({"_id": 20_000 + number, "n": 0}, session=session)
                    orders.update_one({"_id": 1}, {"$set": {"last": number}}, session=session)
                self.done += 1
        except PyMongoError as error:
            self.failure = error

    def wait_for(self, rounds: int) -> None:
        goal = self.done + rounds
        while self.done < goal and self.failure is None:
            self._stopped.wait(0.01)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        assert self.failure is None, self.failure


def fill(client: Client) -> None:
    shop = client.shop
    shop.create_collection("capped", capped=True, size=1 << 16, max=50)
    shop.create_collection("valid", validator={"$jsonSchema": {"required": ["n"]}}, validationLevel="strict")
    shop.create_collection("empty")
    shop.orders.insert_many([{"_id": n, "n": n, "tags": [f"t{n % 5}"]} for n in range(DOCUMENTS)])
    shop.orders.create_index([("n", 1)])
    shop.orders.create_index([("tags", 1), ("n", -1)], name="both", sparse=True)
    shop.valid.insert_one({"_id": 1, "n": 1, "t": Timestamp(5, 6), "long": Int64(1)})
    client.other.things.insert_many([{"k": n} for n in range(30)])
    client.other.things.create_index("k", unique=True)


def run(client: Client, database: str, command: Mapping[str, object]) -> Document:
    return dict(client[database].command(dict(command)))


def apply_op(client: Client, entry: Mapping[str, object], *, keep_uuid: bool) -> None:
    """One entry, as mongorestore sends it: without its session, and without the UUID unless that is kept."""
    op: Document = {"ts": entry.get("ts", Timestamp(0, 0)), "v": 2, "op": entry["op"], "ns": entry["ns"]}
    op |= {"o": entry["o"], "o2": entry.get("o2", {})}
    if keep_uuid and "ui" in entry:
        op["ui"] = entry["ui"]
    reply = run(client, "admin", {"applyOps": [op], "bypassDocumentValidation": False, "writeConcern": MAJORITY})
    assert reply["ok"] == 1.0


def replay(client: Client, entry: Mapping[str, Any], *, keep_uuid: bool) -> None:
    name = next(iter(entry["o"]), "")
    database, _, collection = entry["ns"].partition(".")
    is_own = database == "config" and collection not in KEPT_OF_CONFIG
    if entry["op"] == "n" or is_own or name in ("startIndexBuild", "commitIndexBuild"):
        return
    if name == "applyOps":
        for inner in entry["o"]["applyOps"]:
            replay(client, inner, keep_uuid=keep_uuid)
        return
    apply_op(client, entry, keep_uuid=keep_uuid)


def restore(client: Client, dump: Dump, *, keep_uuid: bool) -> None:
    """mongorestore --drop --oplogReplay [--preserveUUID]."""
    for (database, name), (info, _, documents) in dump.collections.items():
        run(client, database, {"drop": name, "writeConcern": MAJORITY})
        options = {"create": name, **info["options"], "idIndex": info["idIndex"]}
        if keep_uuid:
            entry = {"op": "c", "ns": f"{database}.$cmd", "o": options, "ui": info["info"]["uuid"]}
            apply_op(client, entry, keep_uuid=True)
        else:
            run(client, database, {**options, "writeConcern": MAJORITY})
        for start in range(0, len(documents), 100):
            batch = {"insert": name, "ordered": False, "bypassEmptyTsReplacement": True, "writeConcern": MAJORITY}
            assert "writeErrors" not in run(client, database, {**batch, "documents": documents[start : start + 100]})
    for entry in dump.entries:
        replay(client, entry, keep_uuid=keep_uuid)
    for (database, name), (_, indexes, _) in dump.collections.items():
        specs = [{**index, "ns": f"{database}.{name}"} for index in indexes if index["name"] != "_id_"]
        for spec in specs:
            del spec["v"]
        if specs:
            run(client, database, {"createIndexes": name, "indexes": specs, "ignoreUnknownIndexOptions": True})


def everything(client: Client) -> Document:
    found: Document = {}
    for database in ("shop", "other"):
        for info in client[database].list_collections():
            collection = client[database].get_collection(info["name"])
            documents = {str(document["_id"]): document for document in collection.find()}
            indexes = sorted(collection.index_information().items(), key=str)
            found[f"{database}.{info['name']}"] = documents, indexes, info["options"]
    return found


@pytest.mark.in_turns
def test_a_whole_set_goes_out_and_in_again(make_set: MakeSet) -> None:
    source, target = make_set(members=1), make_set()
    with connect(source) as there, connect(target) as here:
        fill(there)
        there.admin.command("setDefaultRWConcern", defaultWriteConcern={"w": 1})
        dump = Dump(there, Load(there, "shop"))
        assert {entry["op"] for entry in dump.entries} >= {"i", "u", "d", "c"}
        assert {entry["ns"] for entry in dump.entries} >= {"config.settings", "admin.system.users"}
        expected = everything(there)
        restore(here, dump, keep_uuid=False)
        assert everything(here) == expected
        busy = Load(here, "busy")
        busy.wait_for(3)
        restore(here, dump, keep_uuid=True)
        busy.wait_for(3)
        busy.stop()
        assert everything(here) == expected
        (info,) = here.shop.list_collections(filter={"name": "orders"})
        (was,) = there.shop.list_collections(filter={"name": "orders"})
        assert isinstance(info["info"]["uuid"], Binary) == isinstance(was["info"]["uuid"], Binary)
        assert info["info"]["uuid"] == was["info"]["uuid"]
        there.shop.orders.delete_many({"_id": {"$lt": 50}})
        restore(there, dump, keep_uuid=False)
        assert everything(there) == expected, "also into the set that it was made of"
        assert there.admin.command("getDefaultRWConcern")["defaultWriteConcern"]["w"] == "majority"

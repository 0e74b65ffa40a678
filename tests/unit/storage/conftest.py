"""A store on a real folder, driven beside a naive model of what it must hold."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from replset.bson import encode, encode_key
from replset.ids import OPTIME_NULL, Millis, OpTime
from replset.oplog_entry import command_entry, delete_entry, insert_entry, noop_entry, update_entry
from replset.storage.catalog import Collection
from replset.storage.disk import RealDisk
from replset.storage.retention import remove_old_data
from replset.storage.store import Store, StoreOptions
from replset.storage.txn import Txn
from replset.storage.undo import undo_step

WALL = 1_700_000_000_000
State = dict[str, dict[bytes, bytes]]


def key_of(number: int) -> bytes:
    return encode_key(number)


def doc_of(number: int, text: str) -> bytes:
    return encode({"_id": number, "text": text})


CAPPED = "db.b"
"""Is capped when it is created under this name; nothing is removed from it here."""


class Driver:
    """Runs operations on a store and remembers the whole state after each entry: ns -> key -> document."""

    def __init__(self, folder: Path, options: StoreOptions | None = None) -> None:
        self.folder = folder
        self.disk = RealDisk()
        self.options = options or StoreOptions(min_free_bytes=0, snapshot_history_s=0)
        self.store = Store.open(self.disk, folder, self.options)
        self.term = 1
        self.wall_ms = WALL
        self.state: State = {}
        self.history: list[tuple[OpTime, State]] = [(OPTIME_NULL, {})]
        self._uuids = 0

    def reopen(self) -> Store:
        self.store.close()
        self.store = Store.open(self.disk, self.folder, self.options)
        return self.store

    def apply(self, *operations: tuple[object, ...]) -> None:
        """All in one group: (create | drop, ns), (rename, ns, to), (put, ns, number, text), (delete, ns, number),
        (noop,).
        """
        with self.store.group() as txn:
            for operation in operations:
                self.run(txn, *operation)

    def run(self, txn: Txn, name: str, *arguments: object) -> None:
        optime = txn.next_optime(self.term, self.wall_ms)
        getattr(self, f"_{name}")(txn, optime, *arguments)
        self.history.append((optime, copy.deepcopy(self.state)))

    def _noop(self, txn: Txn, optime: OpTime) -> None:
        entry = noop_entry({"msg": "periodic noop"}, optime, self.wall_ms)
        txn.append(entry, optime, op="n", ns="", wall_ms=self.wall_ms)

    def _create(self, txn: Txn, optime: OpTime, ns: str) -> None:
        self._uuids += 1
        uuid = self._uuids.to_bytes(16, "big")
        options = {"capped": True, "size": 1 << 20} if ns == CAPPED else {}
        txn.create_collection(ns, uuid, options, ts=optime.ts)
        entry = command_entry("db", uuid, {"create": ns}, optime, self.wall_ms)
        txn.append(entry, optime, op="c", ns="db.$cmd", wall_ms=self.wall_ms)
        self.state[ns] = {}

    def _drop(self, txn: Txn, optime: OpTime, ns: str) -> None:
        coll = self.coll(ns)
        txn.drop_collection(coll, ts=optime.ts)
        entry = command_entry("db", coll.uuid, {"drop": ns}, optime, self.wall_ms)
        txn.append(entry, optime, op="c", ns="db.$cmd", wall_ms=self.wall_ms)
        del self.state[ns]

    def _rename(self, txn: Txn, optime: OpTime, ns: str, to: str) -> None:
        coll = self.coll(ns)
        txn.rename_collection(coll, to, ts=optime.ts)
        entry = command_entry("db", coll.uuid, {"renameCollection": ns, "to": to}, optime, self.wall_ms)
        txn.append(entry, optime, op="c", ns="db.$cmd", wall_ms=self.wall_ms)
        self.state[to] = self.state.pop(ns)

    def _put(self, txn: Txn, optime: OpTime, ns: str, number: int, text: str) -> None:
        coll, key, doc = self.coll(ns), key_of(number), doc_of(number, text)
        before = txn.get(coll, key)
        if before is None:
            entry = insert_entry(ns, coll.uuid, doc, optime, self.wall_ms)
        else:
            entry = update_entry(ns, coll.uuid, encode({"_id": number}), doc, optime, self.wall_ms)
        if before is None and number % 2:
            assert txn.insert_new(coll, key, doc, optime.ts)
        else:
            txn.put(coll, key, doc, ts=optime.ts, before=before)
        txn.append(entry, optime, op="i" if before is None else "u", ns=ns, key=key, wall_ms=self.wall_ms)
        self.state[ns][key] = doc

    def _delete(self, txn: Txn, optime: OpTime, ns: str, number: int) -> None:
        coll, key = self.coll(ns), key_of(number)
        before = txn.get(coll, key)
        if before is not None:
            txn.remove(coll, key, ts=optime.ts, before=before)
        entry = delete_entry(ns, coll.uuid, encode({"_id": number}), optime, self.wall_ms)
        txn.append(entry, optime, op="d", ns=ns, key=key, wall_ms=self.wall_ms)
        self.state[ns].pop(key, None)

    def coll(self, ns: str) -> Collection:
        return self.store.collection(ns)

    def undo_to(self, point: OpTime, limit: int = 500) -> None:
        while undo_step(self.store, point, stem="rollback-1", limit=limit):
            pass

    def commit(self, point: OpTime | None = None, now: int = WALL) -> None:
        """All up to there is committed, or everything; what nobody needs any more goes."""
        self.store.set_commit_point(point or self.store.last_applied)
        self.settle(now)

    def settle(self, now: int = 0, needed: OpTime | None = None, copied: OpTime | None = None) -> int:
        """Remove what nobody needs; how many slices that took."""
        slices = 0
        while remove_old_data(self.store, Millis(now), needed, copied=copied):
            slices += 1
        return slices

    def documents(self) -> State:
        """What the store holds now, through a snapshot."""
        with self.store.read() as snapshot:
            return {coll.ns: dict(snapshot.scan(coll)) for coll in self.store.collections()}


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    made = Driver(tmp_path / "data")
    yield made
    made.store.close()


@pytest.fixture
def make_driver(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    """For other options and for several: called with a name for the folder and the options."""
    made: list[Driver] = []

    def make(name: str = "data", options: StoreOptions | None = None) -> Driver:
        made.append(Driver(tmp_path / name, options))
        return made[-1]

    yield make
    for one in made:
        one.store.close()

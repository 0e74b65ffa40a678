"""A set in memory that the tools read and write, and rollbacks written from a few operations."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from replset.auth.users import USERS_NS
from replset.bson import Binary, decode, encode, encode_key
from replset.errors import ErrorCode, HostUnreachableError, ReplError
from replset.features.recovery.live_set import LiveSet, Write, WriteResult
from replset.features.recovery.oplog_history import DocumentKey
from replset.ids import OpTime, pack_ts
from replset.oplog_entry import (
    command_entry,
    delete_entry,
    extra_fields,
    insert_entry,
    noop_entry,
    operation_of,
    transaction_entry,
    update_entry,
)
from replset.replication.rollback_files import RollbackWriter
from replset.replication.rollback_manifest import OPLOG_NS, FileKind, Manifest, RollbackState, utc_text
from replset.storage.disk import RealDisk

Doc = dict[str, object]
WALL_MS = 1_790_000_000_123
ORDERS, UUID_OF_ORDERS = "shop.orders", UUID(int=7).bytes
COMMON = OpTime(1, pack_ts(10, 1))


def lost_at(number: int) -> OpTime:
    """The optime of the lost entry with this number."""
    return OpTime(1, pack_ts(11, number))


def live_at(number: int, term: int = 2) -> OpTime:
    return OpTime(term, pack_ts(12, number))


class FakeSet(LiveSet):
    """A set with its documents and the last entries of its oplog. Answers as a live one does.

    A real one would take a rollback for each of some hundred cases; test_live_set.py asks a real one.
    """

    primary = "127.0.0.1:27018"

    def __init__(self, documents: Mapping[str, Iterable[Doc]] | None = None) -> None:
        self._client = None
        self.data: dict[str, dict[bytes, bytes]] = {}
        self.uuids: dict[str, bytes] = {}
        self.entries: dict[DocumentKey, OpTime] = {}
        self.oplog: set[OpTime] = set()
        self.terms: list[OpTime] = []
        self.at_common: dict[DocumentKey, bytes | None] = {}
        self.oplog_is_complete = True
        self.scanned: set[DocumentKey] = set()
        self.writes = 0
        self.before_write: Callable[[Sequence[Write]], None] = lambda writes: None
        self.after_write: Callable[[], None] = lambda: None
        self.refuse: Callable[[Write], str] = lambda write: ""
        self._numbers = itertools.count(1)
        for ns, rows in (documents or {}).items():
            self.create(ns, {})
            for row in rows:
                self.data[ns][encode_key(row["_id"])] = encode(row)
        self.uuids = {ns: UUID_OF_ORDERS if ns == ORDERS else uuid for ns, uuid in self.uuids.items()}

    # --- as a client that writes meanwhile

    def put(self, ns: str, document: Doc, at: OpTime | None = None) -> None:
        self._write(ns, encode_key(document["_id"]), encode(document), at)

    def remove(self, ns: str, key: object, at: OpTime | None = None) -> None:
        self._write(ns, encode_key(key), None, at)

    def _write(self, ns: str, key: bytes, raw: bytes | None, at: OpTime | None = None) -> None:
        if raw is None:
            self.data[ns].pop(key, None)
        else:
            if ns not in self.data:
                self.create(ns, {})
            self.data[ns][key] = raw
        self.entries[ns, key] = live_at(next(self._numbers)) if at is None else at

    def rows(self, ns: str = ORDERS) -> list[Doc]:
        return [decode(raw) for _, raw in sorted(self.data.get(ns, {}).items())]

    # --- what is asked of it

    def collections(self, *, every: bool = False) -> dict[str, bytes]:
        return dict(self.uuids)

    def ends_of_terms(self, until_s: int) -> list[OpTime]:
        return self.terms

    def check_common_point(self, common: OpTime) -> None:
        """Every one is there."""

    def documents(self, ns: str, ids: Sequence[object]) -> dict[bytes, bytes]:
        if ns == USERS_NS:
            raise ReplError("no command reads users", code=ErrorCode.UNAUTHORIZED)
        found = self.data.get(ns, {})
        return {key: found[key] for key in map(encode_key, ids) if key in found}

    def scan(self, since: OpTime, wanted: frozenset[DocumentKey]) -> None:
        self.scanned |= wanted

    def last_entry(self, key: DocumentKey) -> OpTime | None:
        return self.entries.get(key) if key in self.scanned else None

    def versions_at(self, common: OpTime, wanted: frozenset[DocumentKey]) -> dict[DocumentKey, bytes | None]:
        return {key: self.at_common[key] for key in wanted & self.at_common.keys()}

    def has_entry(self, optime: OpTime) -> bool:
        return optime in self.oplog

    def write(self, writes: Sequence[Write]) -> WriteResult:
        self.writes += 1
        self.before_write(writes)
        written = WriteResult(set(), {})
        for index, write in enumerate(writes):
            key = encode_key(decode(write.id_element)["_id"])
            if reason := self.refuse(write):
                written.refused[index] = reason
            elif self.data.get(write.ns, {}).get(key) == write.before:
                self._write(write.ns, key, write.after)
                written.done.add(index)
        self.after_write()
        return written

    def create(self, ns: str, options: dict[str, object]) -> None:
        self.data.setdefault(ns, {})
        self.uuids.setdefault(ns, UUID(int=1000 + len(self.uuids)).bytes)

    def drop(self, ns: str) -> None:
        self.data.pop(ns, None)
        self.uuids.pop(ns, None)


def unreachable() -> None:
    raise HostUnreachableError("the connection broke")


@dataclass
class LostHistory:
    """What a member did after the common point, and the files that its rollback writes."""

    before: dict[int, Doc] = field(default_factory=dict)
    now: dict[int, Doc] = field(default_factory=dict)
    entries: list[bytes] = field(default_factory=list)
    touched: list[int] = field(default_factory=list)
    operations: dict[str, int] = field(default_factory=dict)
    ns: str = ORDERS

    def __post_init__(self) -> None:
        self.now = dict(self.before)

    def _next(self, op: str, number: int | None = None) -> OpTime:
        self.operations[op] = self.operations.get(op, 0) + 1
        if number is not None and number not in self.touched:
            self.touched.append(number)
        return lost_at(len(self.entries) + 1)

    def insert(self, document: Doc, extra: bytes = b"") -> None:
        number = document["_id"]
        assert isinstance(number, int)
        at = self._next("i", number)
        self.now[number] = document
        self.entries.append(insert_entry(self.ns, UUID_OF_ORDERS, encode(document), at, WALL_MS, extra))

    def update(self, document: Doc) -> None:
        number = document["_id"]
        assert isinstance(number, int)
        at = self._next("u", number)
        self.now[number] = document
        about = encode({"_id": number})
        self.entries.append(update_entry(self.ns, UUID_OF_ORDERS, about, encode(document), at, WALL_MS))

    def delete(self, number: int) -> None:
        at = self._next("d", number)
        del self.now[number]
        self.entries.append(delete_entry(self.ns, UUID_OF_ORDERS, encode({"_id": number}), at, WALL_MS))

    def command(self, o: Doc, uuid: bytes | None) -> None:
        self.entries.append(command_entry(self.ns.partition(".")[0], uuid, o, self._next("c"), WALL_MS))

    def into_transaction(self, extra: bytes = b"") -> None:
        """Make one transaction of all that was done so far."""
        rows = [operation_of(entry) for entry in self.entries]
        self.entries, self.operations = [], {}
        self.entries.append(transaction_entry(rows, self._next("c"), WALL_MS, extra))

    def noop(self) -> None:
        self.entries.append(noop_entry({"msg": "x"}, self._next("n"), WALL_MS))

    def write(
        self,
        dbpath: Path,
        state: RollbackState = RollbackState.FINISHED,
        *,
        with_before: bool = True,
        wall_ms: int = WALL_MS,
    ) -> Path:
        """Write the files; returns the manifest's path. with_before: also the versions at the common point."""
        writer = RollbackWriter(RealDisk(), str(dbpath), wall_ms)
        for entry in self.entries:
            writer.add(FileKind.OPLOG, OPLOG_NS, None, entry)
        for number in self.touched:
            now, before = self.now.get(number), self.before.get(number)
            if now is not None and now != before:
                writer.add(FileKind.DOCUMENTS, self.ns, UUID(bytes=UUID_OF_ORDERS), encode(now))
                if before is not None and with_before:
                    writer.add(FileKind.BEFORE, self.ns, UUID(bytes=UUID_OF_ORDERS), encode(before))
        manifest = writer.write_manifest(
            Manifest(
                id="",
                state=state,
                reason="rollback",
                set_name="rs0",
                member="127.0.0.1:27017",
                when=utc_text(wall_ms),
                source="127.0.0.1:27018",
                common_point=COMMON,
                first=lost_at(1),
                last=lost_at(len(self.entries)),
                first_wall_ms=wall_ms,
                last_wall_ms=wall_ms,
                entries=len(self.entries),
                operations=self.operations,
                files=writer.finish(),
                settled=None if state is RollbackState.PLANNED else utc_text(wall_ms),
            )
        )
        return dbpath / "rollback" / f"{manifest.id}.json"


BEFORE: dict[int, Doc] = {number: {"_id": number, "a": 1, "b": 1} for number in range(1, 7)}
SESSION = extra_fields({"lsid": {"id": Binary(bytes(range(16)), 4), "uid": Binary(b"x")}, "txnNumber": 7})


def lost_orders() -> LostHistory:
    """Lost: insert 10, updates of `a` in 2, 3 and 4, deletes of 5 and 6."""
    lost = LostHistory(BEFORE)
    lost.insert({"_id": 10, "new": True}, SESSION)
    for number in (2, 3, 4):
        lost.update({**BEFORE[number], "a": 2})
    lost.delete(5)
    lost.delete(6)
    lost.noop()
    return lost


def live_orders() -> FakeSet:
    """The set in which, meanwhile, 3 got another `b`, 4 another `a`, 6 another `b`."""
    found = FakeSet({ORDERS: BEFORE.values()})
    for document in ({**BEFORE[3], "b": 9}, {**BEFORE[4], "a": 9}, {**BEFORE[6], "b": 9}):
        found.put(ORDERS, document)
    return found

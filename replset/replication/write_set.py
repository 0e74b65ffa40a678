"""What an open transaction has written, in memory, over the documents as they were at its read point.

A `WriteSet` takes the place of a group's `Txn`. So the write commands run inside a transaction as they do outside. It
is refused (112) what somebody else has changed after the read point, and what another transaction holds. Its own
documents are held from their first write on, and a plain write of one waits (`HeldKeys`). The commit writes everything
into one group, with one oplog entry. Until then nothing is on disk, so an abort only forgets.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar

from replset.bson import MAX_ENTRY_SIZE, RawDocument, encode
from replset.errors import (
    DuplicateKeyError,
    ErrorCode,
    NamespaceExistsError,
    ReplError,
    WriteConflictError,
)
from replset.ids import OpTime, invariant
from replset.oplog_entry import operation_of, transaction_entry
from replset.replication.held_keys import HeldKeys
from replset.replication.write_ops import WriteGroup, check_case
from replset.storage.catalog import Catalog, Collection, is_same
from replset.storage.indexes import (
    Index,
    check_number_of_keys,
    check_number_of_values,
    duplicate_of,
    id_index_spec,
    keys_of,
)
from replset.storage.snapshot import Snapshot
from replset.storage.store import Store
from replset.storage.txn import Txn

T = TypeVar("T")
Documents = Mapping[bytes, bytes | None]
"""The documents of one collection, by key, in the order of the first write; None: deleted."""
ADMIN_NS: Final = "admin.$cmd"
_NO_DOCUMENTS: Documents = {}
_ENTRY_OVERHEAD: Final = 16 << 10
"""Bytes of the commit's entry beside its operations, at most."""
WRITES_MAX: Final = 100_000
"""Documents and their index entries that one commit writes: about a second of the event loop, on each member."""
_OPERATION_BYTES: Final = 200
"""What Python adds to an operation and a document."""
_KEYSTRING_BYTES: Final = 400
"""What a key of a unique index adds to it. An array of small values takes far more there than in the document."""


class _Change(NamedTuple):
    """One change of a document; with the key None the creation of a collection, or of the index `spec` in it.

    kept: whether the write set had the document before.
    """

    coll: Collection
    key: bytes | None
    before: bytes | None
    after: bytes | None
    kept: bool
    spec: RawDocument | None = None


class WriteSet(Txn):
    """The writes of one transaction. at: the optime whose state it reads. size: bytes in memory, roughly.

    Reads and writes work inside of `run` only. Not thread-safe, as `Txn`.
    """

    def __init__(self, store: Store, held: HeldKeys) -> None:  # not the parent's: there is no connection to write to
        self._store = store
        self._held = held
        self._holding: list[tuple[bytes, bytes]] = []
        self._snapshot: Snapshot | None = None
        self._documents: dict[bytes, dict[bytes, bytes | None]] = {}
        self._changes: list[_Change] = []
        self._created: set[bytes] = set()
        self._keystrings: dict[tuple[int, bytes], set[bytes]] = {}
        """Which documents of the transaction have or had a keystring of a unique index."""
        self._operations: list[bytes] = []
        self.at = self.last = store.last_applied
        self.catalog = store.copy_catalog()
        self.appended_bytes = self.size = self._writes = 0

    def run(self, operation: Callable[[WriteGroup], T], term: int, wall_ms: int, rng: random.Random) -> T:
        """Run a write operation, as `Kernel.write` does; one that fails leaves nothing."""
        with self._store.read() as self._snapshot:
            mark = self.mark()
            try:
                return operation(WriteGroup(self, term, wall_ms, rng))
            except Exception:
                self.revert_to(mark)
                raise
            finally:
                self._snapshot = None

    @property
    def is_empty(self) -> bool:
        return not self._changes

    @property
    def namespaces(self) -> list[str]:
        """The collections that the transaction has written or made, sorted."""
        written = {*self._documents, *self._created}
        return sorted(coll.ns for uuid in written if (coll := self.catalog.by_uuid.get(uuid)) is not None)

    def documents(self, coll: Collection) -> Documents:
        """The documents of the collection that the transaction has written."""
        return self._documents.get(coll.uuid, _NO_DOCUMENTS)

    def is_created(self, coll: Collection) -> bool:
        """Whether the transaction itself creates the collection, so that only its own documents are in there."""
        return coll.uuid in self._created

    # --- reading

    def get(self, coll: Collection, key: bytes) -> bytes | None:
        own = self._documents.get(coll.uuid)
        if own is not None and key in own:
            return own[key]
        return None if self.is_created(coll) else self.snapshot.get(coll, key, self.at)

    @property
    def snapshot(self) -> Snapshot:
        invariant(self._snapshot is not None, "a transaction reads inside of run")
        assert self._snapshot is not None  # for the type checker
        return self._snapshot

    def changed_keys(self, coll: Collection, after_ts: int) -> set[bytes]:
        """None: nothing that the transaction sees is changed by others."""
        return set()

    # --- writing

    def append(self, entry: bytes, optime: OpTime, *, op: str, ns: str, key: bytes | None = None, wall_ms: int) -> None:
        """Keep the entry as an operation of the transaction. 257 when all of them are too large for one entry."""
        operation = operation_of(entry)
        self.appended_bytes += len(operation) + 8
        if self.appended_bytes > MAX_ENTRY_SIZE - _ENTRY_OVERHEAD:
            raise ReplError(
                f"the writes of the transaction take more than the {MAX_ENTRY_SIZE} bytes of one oplog entry",
                code=ErrorCode.TRANSACTION_TOO_LARGE,
            )
        self._operations.append(operation)

    def insert_new(self, coll: Collection, key: bytes, doc: bytes, ts: int) -> bool:
        if self.get(coll, key) is not None:
            return False
        self._write(coll, key, None, doc)
        return True

    def put(self, coll: Collection, key: bytes, doc: bytes, *, ts: int, before: bytes | None) -> None:
        self._write(coll, key, before, doc)

    def remove(self, coll: Collection, key: bytes, *, ts: int, before: bytes) -> None:
        self._write(coll, key, before, None)

    def _write(self, coll: Collection, key: bytes, before: bytes | None, after: bytes | None) -> None:
        coll = self.catalog.by_uuid[coll.uuid]
        if coll.capped is not None:
            raise ReplError(
                f"Collection '{coll.ns}' is a capped collection. Writes in transactions are not allowed on capped"
                " collections.",
                code=ErrorCode.OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
            )
        if coll.indexes and after is not None:
            self._check_indexes(coll, key, before, after)
        own = self._documents.setdefault(coll.uuid, {})
        kept = key in own
        if not kept:
            self._hold(coll.uuid, key)
            if not self.is_created(coll):
                self._check_unchanged(coll, key)
        own[key] = after
        self._changes.append(_Change(coll, key, before, after, kept))
        self._count_writes(coll)
        self.size += len(before or b"") + len(after or b"") + _OPERATION_BYTES

    def _count_writes(self, coll: Collection) -> None:
        """Refuse (257) what the commit could not write before the election timeout of the other members.

        The commit is one group, which nothing interrupts. While it runs, the primary sends no heartbeat.
        """
        self._writes += 1 + len(coll.indexes)
        if self._writes > WRITES_MAX:
            raise ReplError(
                f"the transaction writes more than {WRITES_MAX} documents and index entries",
                code=ErrorCode.TRANSACTION_TOO_LARGE,
            )

    def _hold(self, uuid: bytes, key: bytes) -> None:
        if self._held.hold(uuid, key, self):
            self._holding.append((uuid, key))

    def _check_indexes(self, coll: Collection, key: bytes, before: bytes | None, after: bytes) -> None:
        """Refuse a document that an index refuses, as it stands at the read point and in this transaction.

        WriteConflictError when the other document was written after the read point.
        """
        check_number_of_values(coll.indexes, after, coll.ns)
        made = 0
        for index in coll.indexes:
            new = keys_of(index, after)
            is_compared = before is not None and (index.unique or len(new) > 1)
            old = set(keys_of(index, before)) if is_compared and before is not None else set()
            made += sum(keystring not in old for keystring in new)
            check_number_of_keys(made, coll.ns)
            for keystring in new if index.unique else ():
                if keystring not in old:
                    for owner in self._owners(coll, index, keystring) - {key}:
                        document = self.get(coll, owner)
                        if document is not None and keystring in keys_of(index, document):
                            raise duplicate_of(index, coll.ns, after, keystring)
                        if document is None and owner not in self._documents.get(coll.uuid, ()):
                            raise WriteConflictError(f"a document of {coll.ns} was written after the transaction began")
                self._keystrings.setdefault((index.id, keystring), set()).add(key)
                self.size += len(keystring) + _KEYSTRING_BYTES

    def _owners(self, coll: Collection, index: Index, keystring: bytes) -> set[bytes]:
        """The documents that have the keystring, and some that had it once."""
        own = self._keystrings.get((index.id, keystring), set())
        if self.is_created(coll):
            return set(own)
        found = self.snapshot.index_scan(index, keystring, keystring + b"\0", limit=2)
        return own | {key for _, key in found}

    def _check_unchanged(self, coll: Collection, key: bytes) -> None:
        now = self._store.collection_by_uuid(coll.uuid)
        if now is None or not is_same(now, coll):
            raise WriteConflictError(f"{coll.ns} was dropped or changed after the transaction began")
        if self.snapshot.is_written_after(coll, key, self.at):
            raise WriteConflictError(f"a document of {coll.ns} was written after the transaction began")

    def create_collection(
        self, ns: str, uuid: bytes, options: Mapping[str, object] | RawDocument, *, ts: int
    ) -> Collection:
        if ns in self.catalog.by_ns:
            raise NamespaceExistsError(f"collection {ns} already exists")
        if self._store.collection(ns) is not None:
            raise WriteConflictError(f"{ns} was created after the transaction began")
        self._hold(b"", ns.encode())
        coll = Collection(ns, uuid, RawDocument(encode(options)), ts)
        if coll.fold is not None:  # as the commit makes it
            spec = RawDocument(encode(id_index_spec(coll.options)))
            coll = replace(coll, indexes=(Index(-len(self._changes), uuid, spec, None, None, True, 0),))
        self.catalog.put(coll)
        self._created.add(uuid)
        self._changes.append(_Change(coll, None, None, None, False))
        return coll

    def create_index(self, coll: Collection, spec: RawDocument, *, build: bytes | None = None, ts: int) -> Index:
        """Make an index of a collection that the transaction itself makes, and that is empty so far. 263."""
        if build is not None or not self.is_created(coll):
            raise ReplError(
                f"Cannot create new indexes on existing collection {coll.ns} in a multi-document transaction.",
                code=ErrorCode.OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
            )
        made = self.catalog.by_uuid[coll.uuid]
        index = Index(-len(self._changes), coll.uuid, spec, None, None, True, 0)
        self.catalog.put(replace(made, indexes=(*made.indexes, index)))
        self._changes.append(_Change(coll, None, None, None, False, spec))
        return index

    def drop_collection(self, coll: Collection, *, ts: int) -> None:
        raise ReplError("a transaction drops nothing", code=ErrorCode.OPERATION_NOT_SUPPORTED_IN_TRANSACTION)

    def mark(self) -> tuple[int, int, int, OpTime]:
        return len(self._changes), len(self._operations), self.appended_bytes, self.last

    def revert_to(self, mark: tuple[int, int, int, OpTime]) -> None:
        """Take back everything since `mark`. What was held stays held."""
        changes, operations, self.appended_bytes, _ = mark
        for coll, key, before, _, kept, spec in reversed(self._changes[changes:]):
            if spec is not None:
                made = self.catalog.by_uuid[coll.uuid]
                self.catalog.put(replace(made, indexes=made.indexes[:-1]))
            elif key is None:
                self.catalog.forget(coll.uuid)
                self._created.discard(coll.uuid)
            else:
                self._writes -= 1 + len(coll.indexes)
                if kept:
                    self._documents[coll.uuid][key] = before
                else:
                    del self._documents[coll.uuid][key]
        del self._changes[changes:], self._operations[operations:]

    # --- the end

    def commit(self, group: WriteGroup, extra: bytes) -> bytes:
        """Write everything into the open group, and the entry, which is returned. extra: of the entry.

        WriteConflictError when a collection was dropped or made meanwhile, or a unique index refuses a document.
        """
        txn, optime = group.txn, group.next_optime()
        entry = transaction_entry(self._operations, optime, group.wall_ms, extra)
        try:
            for change in self._changes:
                _do_again(txn, change, optime.ts)
        except (DuplicateKeyError, NamespaceExistsError) as error:
            raise WriteConflictError(f"at the commit: {error.message}") from error
        txn.append(entry, optime, op="c", ns=ADMIN_NS, wall_ms=group.wall_ms)
        return entry

    def end(self) -> None:
        """Release everything: committed or aborted."""
        self._held.release(self._holding, self)
        self._documents, self._changes, self._operations, self._holding = {}, [], [], []
        self._keystrings, self.catalog = {}, Catalog([])
        self.size = 0


def _do_again(txn: Txn, change: _Change, ts: int) -> None:
    """Make the change in a group. The document is as the transaction saw it, since it is held."""
    coll, key, before, after, _, spec = change
    if key is None and spec is None:
        check_case(txn.catalog, coll.database)
        txn.create_collection(coll.ns, coll.uuid, coll.options, ts=ts)
        return
    now = txn.catalog.by_uuid.get(coll.uuid)
    if now is None or not is_same(now, coll):
        raise WriteConflictError(f"{coll.ns} was dropped or changed after the transaction began")
    if key is None:
        assert spec is not None
        txn.create_index(now, spec, ts=ts)
    elif after is None:
        assert before is not None  # only a document that is there is deleted
        txn.remove(now, key, ts=ts, before=before)
    elif before is None:
        if not txn.insert_new(now, key, after, ts):
            raise WriteConflictError(f"a document of {coll.ns} was inserted meanwhile")
    else:
        txn.put(now, key, after, ts=ts, before=before)

"""Makes a primary's changes of indexes inside an open group, each with its oplog entry, and applies those entries.

An index of an empty collection is made by one entry, `createIndexes`. Else `startIndexBuild` makes it, hidden from
queries, on every member. Each member fills its own (storage/index_build.py); `commitIndexBuild` makes it ready on all
of them, or `abortIndexBuild` removes it. What the entries hold is MongoDB's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from replset.bson import Binary, RawDocument, encode
from replset.errors import CannotCreateIndexError, RemoteProtocolError, ReplError
from replset.ids import OpTime
from replset.oplog_entry import OplogEntry, command_entry
from replset.replication.write_ops import WriteGroup
from replset.storage.catalog import Collection
from replset.storage.index_build import fill_at_once, fill_slice, indexes_of_build
from replset.storage.indexes import Index
from replset.storage.txn import Txn

CREATE, DROP = "createIndexes", "dropIndexes"
START, COMMIT, ABORT = "startIndexBuild", "commitIndexBuild", "abortIndexBuild"
SPEC_BYTES_MAX = 8 << 20
NAMES = frozenset({CREATE, DROP, START, COMMIT, ABORT})


# --- on a primary -----------------------------------------------------------------------------------------------


def do_create_index(group: WriteGroup, coll: Collection, spec: RawDocument) -> OpTime:
    """Make an index of an empty collection, ready at once."""
    optime = group.next_optime()
    group.txn.create_index(coll, spec, ts=optime.ts)
    return _append(group, coll, {CREATE: coll.name, **_fields(spec)}, optime)


def do_start_build(group: WriteGroup, coll: Collection, specs: Sequence[RawDocument]) -> bytes:
    """Begin to build these indexes; return the UUID of the build. CannotCreateIndexError for huge ones: the entry that
    ends the build is a little larger than the one that begins it, and has to fit too.
    """
    if sum(len(spec.raw) for spec in specs) > SPEC_BYTES_MAX:
        raise CannotCreateIndexError(f"the indexes of one command are described in at most {SPEC_BYTES_MAX} bytes")
    build = group.new_uuid()
    optime = group.next_optime()
    for spec in specs:
        group.txn.create_index(coll, spec, build=build, ts=optime.ts)
    _append(group, coll, _build_fields(START, coll, build, specs), optime)
    return build


def do_commit_build(group: WriteGroup, coll: Collection, build: bytes) -> OpTime:
    """Let queries use the indexes of the build, which hold all documents."""
    optime = group.next_optime()
    indexes = indexes_of_build(coll, build)
    for index in indexes:
        group.txn.commit_index(index, ts=optime.ts)
    return _append(group, coll, _build_fields(COMMIT, coll, build, [index.spec for index in indexes]), optime)


def do_abort_build(group: WriteGroup, coll: Collection, build: bytes, cause: ReplError) -> OpTime:
    """Remove the unfinished indexes of the build."""
    optime = group.next_optime()
    indexes = indexes_of_build(coll, build)
    for index in indexes:
        group.txn.drop_index(index, ts=optime.ts)
    o = _build_fields(ABORT, coll, build, [index.spec for index in indexes])
    o["cause"] = {"ok": False, "code": cause.code, "codeName": cause.code_name, "errmsg": cause.message}
    return _append(group, coll, o, optime)


def do_drop_index(group: WriteGroup, coll: Collection, index: Index) -> OpTime:
    """Drop an index that is ready."""
    optime = group.next_optime()
    group.txn.drop_index(index, ts=optime.ts)
    return _append(group, coll, {DROP: coll.name, "index": index.name}, optime, o2=_fields(index.spec))


def _fields(spec: RawDocument) -> dict[str, object]:
    return dict(spec.items())


def _build_fields(name: str, coll: Collection, build: bytes, specs: Sequence[RawDocument]) -> dict[str, object]:
    return {name: coll.name, "indexBuildUUID": Binary(build, 4), "indexes": list(specs)}


def _append(
    group: WriteGroup, coll: Collection, o: dict[str, object], optime: OpTime, o2: dict[str, object] | None = None
) -> OpTime:
    entry = command_entry(coll.database, coll.uuid, o, optime, group.wall_ms, o2=o2)
    group.txn.append(entry, optime, op="c", ns=f"{coll.database}.$cmd", wall_ms=group.wall_ms)
    return optime


# --- on the others ----------------------------------------------------------------------------------------------


def apply_index_entry(txn: Txn, entry: OplogEntry, coll: Collection, ts: int) -> None:
    """Do what the entry says to the indexes of `coll`. What is done already is left as it is."""
    o = entry.o
    match o.first_key:
        case "createIndexes":
            spec = RawDocument(encode({name: value for name, value in o.items() if name != CREATE}))
            _create(txn, coll, spec, None, ts)
        case "dropIndexes":
            for index in coll.indexes:
                if index.name == o.get("index"):
                    txn.drop_index(index, ts=ts)
        case "startIndexBuild":
            build, specs = _build_of(entry)
            for spec in specs:
                _create(txn, coll, spec, build, ts)
        case "commitIndexBuild":
            build, specs = _build_of(entry)
            for spec in specs:
                _create(txn, coll, spec, build, ts)
            while fill_slice(txn, coll.uuid, build, lambda: False):
                pass
            for index in indexes_of_build(txn.catalog.by_uuid[coll.uuid], build):
                txn.commit_index(index, ts=ts)
        case _:
            build, _ = _build_of(entry)
            for index in indexes_of_build(coll, build):
                txn.drop_index(index, ts=ts)


def _create(txn: Txn, coll: Collection, spec: RawDocument, build: bytes | None, ts: int) -> None:
    known = txn.catalog.by_uuid[coll.uuid].indexes
    if txn.builds_indexes and all(index.name != spec.get("name") for index in known):
        index = txn.create_index(coll, spec, build=build, ts=ts)
        if build is None:
            # The collection was empty where the entry was made. Here it holds documents if later entries were applied
            # before, or if the disk brought deleted ones back.
            fill_at_once(txn, coll, index)


def unfinished_build(txn: Txn, entry: OplogEntry) -> tuple[bytes, bytes] | None:
    """The collection and the build whose indexes this entry makes ready, while this member still has to fill them."""
    coll = txn.catalog.by_uuid.get(entry.ui or b"")
    if coll is None or entry.o.first_key != COMMIT:
        return None
    build, _ = _build_of(entry)
    unfinished = any(index.position is not None for index in indexes_of_build(coll, build))
    return (coll.uuid, build) if unfinished else None


def _build_of(entry: OplogEntry) -> tuple[bytes, list[RawDocument]]:
    build: Any = entry.o.get("indexBuildUUID")
    specs: Any = entry.o.get("indexes")
    if not isinstance(build, Binary) or not isinstance(specs, list):
        raise RemoteProtocolError(f"oplog entry {entry.optime} is about an index build without its UUID or indexes")
    return bytes(build), [RawDocument(encode(spec)) for spec in specs]

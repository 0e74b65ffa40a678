"""Sizes, hashes and checks of collections: dbStats, collStats, dbHash, validate.

They walk what they describe, in a thread and in slices: on a large collection they take seconds, and nobody waits for
them. MongoDB keeps counts and sizes; here a write would pay for that.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from replset.auth.roles import Action
from replset.bson import Binary, Int64, is_document_of
from replset.errors import NamespaceNotFoundError, NotBuiltError
from replset.features.collections.index_check import IndexCheck
from replset.features.crud.scan import SLICE_BYTES, SLICE_RAW, pause, read_in_thread
from replset.operations import fields
from replset.operations.command import Command, CommandContext, Where
from replset.operations.namespaces import OPLOG, check_database, collection_field, namespace, refuse_view
from replset.operations.request import Reply
from replset.storage.catalog import Collection
from replset.storage.indexes import ID_INDEX, TO_THE_END
from replset.storage.snapshot import Sizes, Snapshot
from replset.storage.txn import next_key

T = TypeVar("T")
INDEX_SLICE = 500
COLLECTIONS_AT_ONCE = 32
"""Collections whose size a worker finds before others get a turn."""
BYTES_AT_ONCE = 256 << 20
"""The size of a database in which one walk finds the sizes of all collections, in about a tenth of a second."""
MOST_SHOWN = 100
"""Damaged documents that validate names."""


async def each_document(ctx: CommandContext, coll: Collection, take: Callable[[bytes, bytes], None]) -> None:
    """Give (key, document) of all documents as they are now to `take`, in the order of their keys, in a thread."""
    store = ctx.member.store
    at, after, more = store.last_applied, b"", True
    pin = store.pin(at)

    def read(snapshot: Snapshot) -> tuple[list[tuple[bytes, bytes]], bool]:
        rows: list[tuple[bytes, bytes]] = []
        size = 0
        for row in islice(snapshot.scan(coll, at, low=next_key(after)), SLICE_RAW):
            rows.append(row)
            size += len(row[1])
            if size > SLICE_BYTES:
                return rows, True
        return rows, len(rows) == SLICE_RAW

    def take_all(rows: list[tuple[bytes, bytes]]) -> None:
        for row in rows:
            take(*row)

    try:
        while more:
            rows, more = await read_in_thread(ctx, read)
            if rows:
                after = rows[-1][0]
            await ctx.member.workers.run(partial(take_all, rows))
            await pause(ctx)
    finally:
        pin.release()


# --- sizes ------------------------------------------------------------------------------------------------------


async def sizes_of(ctx: CommandContext, collections: Iterable[Collection]) -> list[Sizes]:
    """The sizes of each collection. One that is dropped meanwhile has none."""
    found: list[Sizes] = []
    for coll in collections:
        try:
            found.append(await read_in_thread(ctx, lambda snapshot, coll=coll: snapshot.sizes(coll)))  # type: ignore[misc]
        except NamespaceNotFoundError:
            found.append(Sizes(0, 0, 0, {}))
        await pause(ctx)
    return found


async def bytes_by_database(ctx: CommandContext, collections: Sequence[Collection]) -> Counter[str]:
    """What the collections of each database take. Documents are not counted: that would take as long again."""
    found: Counter[str] = Counter()
    # A walk over a larger database would be cut off by a checkpoint, again and again.
    is_one_walk = ctx.member.store.data_bytes() <= BYTES_AT_ONCE
    count = max(1, len(collections)) if is_one_walk else COLLECTIONS_AT_ONCE
    read = Snapshot.all_bytes_on_disk if is_one_walk else _bytes_of_each
    for begin in range(0, len(collections), count):
        some = collections[begin : begin + count]
        sizes = await read_in_thread(ctx, partial(read, collections=some))
        for coll, size in zip(some, sizes, strict=True):
            found[coll.database] += size
        await pause(ctx)
    return found


def _bytes_of_each(snapshot: Snapshot, collections: Sequence[Collection]) -> list[int]:
    return [snapshot.bytes_on_disk(coll) for coll in collections]


async def coll_stats(ctx: CommandContext) -> Reply:
    """Count and sizes of a collection and its indexes; zeros for one that is not there."""
    ns = namespace(ctx.database, collection_field(ctx.body, ctx.name))
    return await collection_stats(ctx, ns, _scale(ctx))


async def collection_stats(ctx: CommandContext, ns: str, scale: int) -> dict[str, object]:
    """Return collStats of `ns`, with sizes in units of `scale` bytes. The stage $collStats shows the same."""
    store = ctx.member.store
    coll = store.collection(ns)
    refuse_view(coll)
    row: dict[str, object] = {"ns": ns}
    if ns == OPLOG:
        count = await read_in_thread(ctx, lambda snapshot: snapshot.entries_after(0))
        sizes = Sizes(count, store.oplog_bytes, store.oplog_bytes, {})
    else:
        sizes = Sizes(0, 0, 0, {}) if coll is None else (await sizes_of(ctx, [coll]))[0]
    indexes = {name: size // scale for name, size in sizes.indexes.items()}
    row |= {"size": sizes.data // scale, "count": sizes.count}
    if sizes.count:
        row["avgObjSize"] = sizes.data // sizes.count
    capped = ns == OPLOG or (coll is not None and coll.options.get("capped") is True)
    row |= {
        "numOrphanDocs": 0,
        "storageSize": sizes.table // scale,
        "freeStorageSize": 0,
        "capped": capped,
        "nindexes": len(indexes),
        "indexBuilds": [] if coll is None else [index.name for index in coll.indexes if not index.ready],
        "totalIndexSize": sum(sizes.indexes.values()) // scale,
        "totalSize": (sizes.table + sum(sizes.indexes.values())) // scale,
        "indexSizes": indexes,
        "indexDetails": {},
        "scaleFactor": scale,
    }
    if capped:
        most: Any = None if coll is None else coll.options.get("size")
        row["max"] = 0 if coll is None else coll.options.get("max", 0)
        row["maxSize"] = int(store.options.oplog_max_bytes if coll is None else most or 0) // scale
    return row


def _scale(ctx: CommandContext) -> int:
    return fields.whole(ctx.body, "scale", ctx.name, 1, least=1)


async def db_stats(ctx: CommandContext) -> Reply:
    """Count and sizes of a database."""
    database, scale, store = check_database(ctx.database), _scale(ctx), ctx.member.store
    every = store.collections(database)
    collections = [coll for coll in every if coll.view_on is None]
    sizes = await sizes_of(ctx, collections)
    objects, data = sum(size.count for size in sizes), sum(size.data for size in sizes)
    table = sum(size.table for size in sizes)
    indexes = sum(sum(size.indexes.values()) for size in sizes)
    used, free = store.data_bytes(), store.disk.free_bytes(store.dbpath)
    return {
        "db": database,
        "collections": Int64(len(collections)),
        "views": Int64(len(every) - len(collections)),
        "objects": Int64(objects),
        "avgObjSize": data / objects if objects else 0.0,
        "dataSize": data / scale,
        "storageSize": table / scale,
        "indexes": Int64(sum(len(size.indexes) for size in sizes)),
        "indexSize": indexes / scale,
        "totalSize": (table + indexes) / scale,
        "scaleFactor": Int64(scale),
        "fsUsedSize": used / scale,
        "fsTotalSize": (used + free) / scale,
    }


# --- dbHash and validate ----------------------------------------------------------------------------------------


async def db_hash(ctx: CommandContext) -> Reply:
    """An MD5 of each collection of the database, over its documents in the order of `_id`, and one over all of them.

    Two members with the same documents give the same hashes, and so does a MongoDB.
    """
    began = ctx.member.clock.now()
    database = check_database(ctx.database)
    wanted = None
    if not fields.is_absent(ctx.body, "collections"):
        wanted = {str(name) for name in fields.values(ctx.body, "collections", ctx.name)}
    hashes: dict[str, object] = {}
    uuids: dict[str, object] = {}
    whole = hashlib.md5(usedforsecurity=False)
    for coll in ctx.member.store.collections(database):
        if coll.view_on is not None or (wanted is not None and coll.name not in wanted):
            continue
        hashed = hashlib.md5(usedforsecurity=False)
        try:
            await each_document(ctx, coll, lambda _, doc, hashed=hashed: hashed.update(doc))  # type: ignore[misc]
        except NamespaceNotFoundError:
            continue  # dropped meanwhile
        hashes[coll.name] = hashed.hexdigest()
        uuids[coll.name] = Binary(coll.uuid, 4)
        whole.update(hashed.hexdigest().encode())
    capped = [coll.name for coll in ctx.member.store.collections(database) if coll.options.get("capped") is True]
    return {
        "host": str(ctx.member.host),
        "collections": hashes,
        "capped": [name for name in capped if name in hashes],
        "uuids": uuids,
        "md5": whole.hexdigest(),
        "timeMillis": int(ctx.member.clock.now() - began),
    }


async def validate(ctx: CommandContext) -> Reply:
    """Check that every document is well-formed and under its own key, and that each index has just their entries."""
    for name in ("repair", "metadata", "checkBSONConformance", "enforceFastCount"):
        if fields.given(ctx.body, name):
            raise NotBuiltError(f"validate.{name} is not built yet")
    for name in ("full", "background"):
        fields.boolean(ctx.body, name, ctx.name)  # both are so in any case
    ns = namespace(ctx.database, collection_field(ctx.body, ctx.name))
    coll = ctx.member.store.collection(ns)
    if coll is None:
        raise NamespaceNotFoundError(f"Collection '{ns}' does not exist to validate.")
    refuse_view(coll)
    count = 0
    bad: list[bytes] = []

    def take(key: bytes, doc: bytes) -> None:
        nonlocal count
        count += 1
        if not is_document_of(key, doc):
            bad.append(key)

    await each_document(ctx, coll, take)
    bad += sorted((await read_in_thread(ctx, lambda snapshot: snapshot.mistyped(coll, b"", TO_THE_END))) - set(bad))
    keys: dict[str, object] = {"_id_": Int64(count)}
    details: dict[str, object] = {"_id_": {"valid": not bad}}
    errors = [f"{len(bad)} documents are damaged or stored under another key"] if bad else []
    missing: list[dict[str, object]] = []
    extra: list[dict[str, object]] = []
    for check in [IndexCheck(coll, index) for index in coll.indexes if index.ready]:
        while await read_in_thread(ctx, lambda snapshot, check=check: check.next_slice(snapshot, INDEX_SLICE)):  # type: ignore[misc]
            await pause(ctx)
        name = check.index.name
        keys[name] = Int64(check.entries)
        details[name] = {"valid": not (check.missing or check.extra or (name == ID_INDEX and bad))}
        missing += [_entry(name, entry) for entry in check.missing]
        extra += [_entry(name, entry) for entry in check.extra]
        if check.missing or check.extra:
            errors.append(f"index '{name}' does not fit the documents")
    return {
        "ns": ns,
        "uuid": Binary(coll.uuid, 4),
        "nInvalidDocuments": Int64(len(bad)),
        "nNonCompliantDocuments": Int64(0),
        "nrecords": Int64(count),
        "nIndexes": len(keys),
        "keysPerIndex": keys,
        "indexDetails": details,
        "valid": not errors,
        "repaired": False,
        "warnings": [],
        "errors": errors,
        "extraIndexEntries": extra,
        "missingIndexEntries": missing,
        "corruptRecords": [Binary(key) for key in bad[:MOST_SHOWN]],
    }


def _entry(index: str, entry: tuple[bytes, bytes]) -> dict[str, object]:
    return {"indexName": index, "keyString": Binary(entry[0]), "recordId": Binary(entry[1])}


COMMANDS: tuple[Command, ...] = (
    Command(
        "collStats",
        coll_stats,
        frozenset({"scale"}),
        aliases=("collstats",),
        where=Where.READABLE,
        needs=Action.COLL_STATS,
    ),
    Command(
        "dbStats", db_stats, frozenset({"scale"}), aliases=("dbstats",), where=Where.READABLE, needs=Action.DB_STATS
    ),
    Command(
        "dbHash", db_hash, frozenset({"collections"}), aliases=("dbhash",), where=Where.READABLE, needs=Action.DB_HASH
    ),
    Command(
        "validate", validate, frozenset({"full", "background", "scandata"}), where=Where.READABLE, needs=Action.VALIDATE
    ),
)

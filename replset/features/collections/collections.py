"""create, drop, dropDatabase, and the lists of collections and databases."""

from __future__ import annotations

from replset.auth.roles import Action
from replset.auth.users import USERS_NS
from replset.bson import Binary, Int64, RawDocument
from replset.ejson import to_ejson
from replset.errors import BadValueError, ErrorCode, InvalidOptionsError, NamespaceExistsError, ReplError
from replset.features.collections.collection_options import CREATE_FIELDS, options_of
from replset.features.collections.statistics import bytes_by_database
from replset.features.collections.view_options import check_definition
from replset.operations import fields
from replset.operations.authorization import is_allowed
from replset.operations.collations import refuse_newer
from replset.operations.command import Command, CommandContext, Where
from replset.operations.evaluation import read_statement, run_in_thread
from replset.operations.namespaces import (
    INTERNAL_DATABASES,
    check_database,
    collection_field,
    droppable_database,
    writable_namespace,
)
from replset.operations.replies import list_reply
from replset.operations.request import Reply
from replset.operations.write_concern import write_and_wait
from replset.query.collation import with_version
from replset.query.match import compile_filter
from replset.replication.write_ops import WriteGroup, do_create, do_drop, do_drop_database
from replset.storage.catalog import Collection
from replset.storage.indexes import id_index_spec, shown_spec

OPLOG_UUID_NAME = "oplog.rs"
_SHOWN_BYTES = 300


async def create(ctx: CommandContext) -> Reply:
    """Create an empty collection; one that is there with the same options is no error but in a transaction."""
    ns = writable_namespace(ctx.database, collection_field(ctx.body, ctx.name))
    options = await read_statement(ctx.member, ctx.body, lambda: options_of(ctx.body, ctx.name))
    if "viewOn" in options and ctx.transaction is not None:
        raise ReplError(
            "Cannot create a view in a multi-document transaction",
            code=ErrorCode.OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
        )

    def operation(group: WriteGroup) -> None:
        refuse_newer(ctx.member, options, InvalidOptionsError)
        if ctx.transaction is not None and ns in group.txn.catalog.by_ns:
            raise NamespaceExistsError(f"namespace {ns} already exists; a transaction makes only new collections")
        create_in(group, ns, options)

    _, reply = await write_and_wait(ctx, operation)
    return reply


def create_in(group: WriteGroup, ns: str, options: RawDocument, uuid: bytes | None = None) -> None:
    """Do as `create` in an open group. NamespaceExistsError: the collection is there with other options."""
    coll = group.txn.catalog.by_ns.get(ns)
    if coll is None:
        if "viewOn" in options:
            check_definition(group.txn.catalog.by_ns, ns, options)
        do_create(group, ns, options.top_level(), uuid)
    elif coll.options != options:
        known = coll.options
        shown = {name: known.get(name) if known.size_of(name) < _SHOWN_BYTES else "..." for name in known.keys()}  # noqa: SIM118
        raise NamespaceExistsError(
            f"namespace {ns} already exists, but with different options: {to_ejson(shown):.{_SHOWN_BYTES}}"
        )


async def drop(ctx: CommandContext) -> Reply:
    """Drop a collection; one that is not there is no error."""
    ns = writable_namespace(ctx.database, collection_field(ctx.body, ctx.name))

    def operation(group: WriteGroup) -> int | None:
        coll = group.txn.catalog.by_ns.get(ns)
        if coll is None:
            return None
        do_drop(group, coll)
        return 0 if coll.view_on is not None else len(coll.more_indexes) + 1

    was, reply = await write_and_wait(ctx, operation)
    return ({} if was is None else {"nIndexesWas": was, "ns": ns} if was else {"ns": ns}) | reply


async def drop_database(ctx: CommandContext) -> Reply:
    """Drop every collection of the database."""
    database = droppable_database(ctx.database)
    if fields.whole(ctx.body, ctx.name, ctx.name) != 1:
        raise BadValueError("have to pass 1 as db parameter")

    def operation(group: WriteGroup) -> bool:
        return do_drop_database(group, database) is not None

    was, reply = await write_and_wait(ctx, operation)
    return ({"dropped": database} if was else {}) | reply


# --- lists ------------------------------------------------------------------------------------------------------


def _collection_document(coll: Collection, name_only: bool) -> dict[str, object]:
    document: dict[str, object] = {"name": coll.name, "type": "collection" if coll.view_on is None else "view"}
    options: object = coll.options
    if coll.fold is not None:
        options = {**coll.options.top_level(), "collation": with_version(coll.fold.spec)}
    if coll.view_on is not None and not name_only:
        return document | {"options": options, "info": {"readOnly": True}}
    if not name_only:
        document["options"] = options
        document["info"] = {"readOnly": False, "uuid": Binary(coll.uuid, 4)}
        document["idIndex"] = shown_spec(id_index_spec(coll.options))
    return document


async def list_collections(ctx: CommandContext) -> Reply:
    """The collections of the database, filtered. Those that clients cannot write to are left out: a dump that has one
    cannot be restored.
    """
    database = check_database(ctx.database)
    name_only = fields.boolean(ctx.body, "nameOnly", ctx.name)
    documents = [
        _collection_document(coll, False)
        for coll in ctx.member.store.collections(database)
        if coll.database not in INTERNAL_DATABASES and coll.ns != USERS_NS
    ]
    if database == "local":
        documents.append(
            {"name": OPLOG_UUID_NAME, "type": "collection", "options": {"capped": True}, "info": {"readOnly": True}}
        )
    documents = await _filtered(ctx, documents)
    if name_only:
        documents = [{"name": doc["name"], "type": doc["type"]} for doc in documents]
    return list_reply(ctx, f"{database}.$cmd.listCollections", documents)


async def _filtered(ctx: CommandContext, documents: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return the rows that match the command's `filter`."""
    if fields.is_absent(ctx.body, "filter"):
        return documents

    def work() -> list[dict[str, object]]:
        matcher = compile_filter(fields.decoded(ctx.body, "filter", ctx.name))
        return [doc for doc in documents if matcher.matches({**doc, "options": _plain(doc.get("options"))})]

    return await run_in_thread(ctx.member, work)


def _plain(options: object) -> object:
    return options.decode() if isinstance(options, RawDocument) else options


async def list_databases(ctx: CommandContext) -> Reply:
    """The databases that hold a collection, and the three that every member has."""
    store = ctx.member.store
    name_only = fields.boolean(ctx.body, "nameOnly", ctx.name)
    names = sorted({*store.databases(), "admin", "config", "local"})
    if not is_allowed(ctx.member, ctx.sender, Action.LIST_DATABASES):
        names = [name for name in names if is_allowed(ctx.member, ctx.sender, Action.FIND, name)]
    rows: list[dict[str, object]] = [{"name": name} for name in names]
    if name_only:
        return {"databases": await _filtered(ctx, rows)}
    sizes = await bytes_by_database(ctx, [coll for name in names for coll in store.collections(name)])
    for row, name in zip(rows, names, strict=True):
        row["sizeOnDisk"] = Int64(sizes[name] + (store.oplog_bytes if name == "local" else 0))
        row["empty"] = False
    rows = await _filtered(ctx, rows)
    total = store.data_bytes()
    return {"databases": rows, "totalSize": Int64(total), "totalSizeMb": Int64(total >> 20)}


COMMANDS: tuple[Command, ...] = (
    Command(
        "create",
        create,
        CREATE_FIELDS,
        where=Where.PRIMARY,
        write_concern=True,
        needs=Action.CREATE_COLLECTION,
    ),
    Command("drop", drop, where=Where.PRIMARY, write_concern=True, needs=Action.DROP_COLLECTION),
    Command("dropDatabase", drop_database, where=Where.PRIMARY, write_concern=True, needs=Action.DROP_DATABASE),
    Command(
        "listCollections",
        list_collections,
        frozenset({"filter", "nameOnly", "cursor"}),
        where=Where.READABLE,
        needs=Action.LIST_COLLECTIONS,
    ),
    Command(
        "listDatabases",
        list_databases,
        frozenset({"filter", "nameOnly"}),
        where=Where.READABLE,
        admin_only=True,
        needs=Action.LOGIN,
    ),
)

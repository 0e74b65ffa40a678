"""Names of databases and collections: which can be, and which clients may write to (73)."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from replset.auth.users import USERS_NS
from replset.bson import RawDocument
from replset.errors import ErrorCode, IllegalOperationError, InvalidNamespaceError, ReplError
from replset.operations.fields import missing, wrong_type

if TYPE_CHECKING:
    from replset.operations.command import CommandContext
    from replset.storage.catalog import Collection

MAX_DATABASE_BYTES = 63
MAX_NAMESPACE_BYTES = 255
_BAD_IN_DATABASE = frozenset('\0/\\. "$')
INTERNAL_DATABASES = frozenset({"local", "config"})
OPLOG = "local.oplog.rs"


@lru_cache(maxsize=1024)
def check_database(name: str) -> str:
    """The name itself; InvalidNamespaceError when it cannot be one."""
    if not name or len(name.encode()) > MAX_DATABASE_BYTES or not _BAD_IN_DATABASE.isdisjoint(name):
        raise InvalidNamespaceError(f"Invalid database name: {name!r:.80}")
    return name


def droppable_database(name: str) -> str:
    """Do as `check_database`, and refuse (20) admin, which has the users, and local and config, the member's own."""
    if check_database(name) in INTERNAL_DATABASES or name == "admin":
        raise IllegalOperationError(f"dropping the '{name}' database is prohibited")
    return name


@lru_cache(maxsize=4096)
def namespace(database: str, collection: str) -> str:
    """`database.collection`; InvalidNamespaceError when it cannot be one."""
    check_database(database)
    ns = f"{database}.{collection}"
    if ns == USERS_NS:
        raise ReplError(
            f"{USERS_NS} is read by usersInfo and by the find of a dump, and written by createUser and its like alone",
            code=ErrorCode.UNAUTHORIZED,
        )
    bad = not collection or collection[0] == "." or collection[-1] == "." or "$" in collection or "\0" in collection
    if bad or len(ns.encode()) > MAX_NAMESPACE_BYTES:
        raise InvalidNamespaceError(f"Invalid namespace specified: {ns!r:.300}")
    return ns


def cursor_namespace(database: str, collection: str) -> str:
    """The namespace of a cursor: of a collection, or of a command that reads none, such as `$cmd.aggregate`."""
    if collection.startswith("$cmd."):
        return f"{check_database(database)}.{collection}"
    if f"{database}.{collection}" == USERS_NS:  # of a dump, which may read it
        return USERS_NS
    return namespace(database, collection)


@lru_cache(maxsize=4096)
def writable_namespace(database: str, collection: str) -> str:
    """Return `namespace` if clients may write to it."""
    ns = namespace(database, collection)
    if database in INTERNAL_DATABASES:
        raise InvalidNamespaceError(f"cannot write to {ns}: the database {database} is the member's own")
    if collection.startswith("system."):
        raise InvalidNamespaceError(f"cannot write to {ns}: system collections are the member's own")
    return ns


def collection_of(ctx: CommandContext) -> str:
    """Return the `collection_field` of this command. It is kept, since currentOp's table asks for it too."""
    name = ctx.collection
    if name is None:
        name = ctx.collection = collection_field(ctx.body, ctx.name)
    return name


def collection_field(body: RawDocument, name: str) -> str:
    """The collection that the command names in its first field: a string, else 14 (or 73 when it is empty)."""
    found = body.get_string(name)
    if found is not None:
        return found
    kind = body.type_of(name)
    if kind is None:
        raise missing(name, name)
    raise wrong_type(name, name, kind, "string")


def refuse_view(coll: Collection | None) -> None:
    """Raise 166 if it is a view: it has neither documents nor indexes of its own."""
    if coll is not None and coll.view_on is not None:
        raise ReplError(
            f"Namespace {coll.ns} is a view, not a collection", code=ErrorCode.COMMAND_NOT_SUPPORTED_ON_VIEW
        )


def collection_here(ctx: CommandContext, name: str) -> Collection | None:
    """Return the collection or view of that name in the command's database, as its transaction sees it."""
    if f"{ctx.database}.{name}" == USERS_NS:  # no view; who may read it is asked where it is read
        return None
    ns = namespace(ctx.database, name)
    return ctx.member.store.collection(ns) if ctx.transaction is None else ctx.transaction.write_set.collection(ns)

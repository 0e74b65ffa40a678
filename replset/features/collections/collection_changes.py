"""renameCollection and collMod."""

from __future__ import annotations

from collections.abc import Callable

from replset.auth.roles import Action
from replset.bson import Int64, RawDocument, encode
from replset.errors import (
    BadValueError,
    ErrorCode,
    IllegalOperationError,
    InvalidNamespaceError,
    InvalidOptionsError,
    NamespaceExistsError,
    NamespaceNotFoundError,
    NotBuiltError,
    ReplError,
)
from replset.features.collections.collection_options import capped_max, capped_size, images_option, validation_options
from replset.features.collections.view_options import check_definition, definition_of
from replset.operations import fields
from replset.operations.authorization import authorize
from replset.operations.command import Command, CommandContext, Where
from replset.operations.evaluation import read_statement
from replset.operations.namespaces import collection_field, refuse_view, writable_namespace
from replset.operations.request import Reply
from replset.operations.write_concern import write_and_wait
from replset.replication.write_ops import COLL_MOD_NAMES, WriteGroup, do_change_index, do_rename, do_set_options
from replset.storage.catalog import Collection
from replset.storage.indexes import Index

_INDEX_FIELDS = frozenset({"name", "keyPattern", "expireAfterSeconds", "hidden"})
_OF_OTHERS = {
    "expireAfterSeconds": "a collection clustered by _id, or a time-series collection",
    "timeseries": "a time-series collection",
}


# --- renameCollection -------------------------------------------------------------------------------------------


async def rename_collection(ctx: CommandContext) -> Reply:
    """Rename a collection within its database."""
    source = whole_namespace(collection_field(ctx.body, ctx.name))
    to = whole_namespace(fields.text(ctx.body, "to", ctx.name))
    authorize(ctx.member, ctx.sender, Action.RENAME_COLLECTION, source.partition(".")[0], ctx.name)
    drop_target = fields.boolean(ctx.body, "dropTarget", ctx.name)

    def operation(group: WriteGroup) -> None:
        rename(group, source, to, drop_target)

    _, reply = await write_and_wait(ctx, operation)
    return reply


def whole_namespace(ns: str) -> str:
    """A namespace that a command names whole: as `writable_namespace`."""
    database, _, collection = ns.partition(".")
    if not collection:
        raise InvalidNamespaceError(f"Invalid namespace specified: {ns!r:.300}")
    return writable_namespace(database, collection)


def rename(group: WriteGroup, source: str, to: str, drop_target: bool) -> None:
    """Raises 20 for the same name, 238 for another database, 26 without the source, 48 for a name that is taken, 12587
    while an index is being built.
    """
    if source == to:
        raise IllegalOperationError("Can't rename a collection to itself")
    if source.partition(".")[0] != to.partition(".")[0]:
        raise NotBuiltError("renameCollection between two databases is not built yet")
    by_ns = group.txn.catalog.by_ns
    coll, target = by_ns.get(source), by_ns.get(to)
    if coll is None:
        raise NamespaceNotFoundError(f"Source collection {source} does not exist")
    refuse_view(coll)
    refuse_view(target)
    if target is not None and not drop_target:
        raise NamespaceExistsError("target namespace exists")
    if any(not index.ready for index in coll.indexes):
        raise ReplError(
            f"cannot perform operation: an index build is currently running for collection '{source}'",
            code=ErrorCode.BACKGROUND_OPERATION_IN_PROGRESS,
        )
    do_rename(group, coll, to, target)


# --- collMod ----------------------------------------------------------------------------------------------------


async def coll_mod(ctx: CommandContext) -> Reply:
    """Change the options of a collection, or of one of its indexes."""
    ns = writable_namespace(ctx.database, collection_field(ctx.body, ctx.name))
    change = await read_statement(ctx.member, ctx.body, lambda: coll_mod_of(ctx.body, ctx.name))
    changed, reply = await write_and_wait(ctx, lambda group: change(group, ns))
    return changed | reply


def coll_mod_of(body: RawDocument, place: str) -> Callable[[WriteGroup, str], dict[str, object]]:
    """Parse collMod; what comes back carries it out and returns what the reply says of it.

    Compiles the validator or the view, and encodes it: in a thread when the body is large.
    """
    for name, kind in _OF_OTHERS.items():
        if not fields.is_absent(body, name):
            raise InvalidOptionsError(f"'{name}' option is only supported on {kind}")
    definition = RawDocument(encode(definition_of(body, place))).top_level()
    changes = RawDocument(encode(validation_options(body, place) | images_option(body, place))).top_level()
    for name, read in (("cappedSize", capped_size), ("cappedMax", capped_max)):
        if not fields.is_absent(body, name):
            changes[name] = read(body, name, place)
    index = fields.document(body, "index", place)
    find_index, index_changes = (None, {}) if index is None else _index_of(index, f"{place}.index")

    def change(group: WriteGroup, ns: str) -> dict[str, object]:
        coll = group.txn.catalog.by_ns.get(ns)
        if coll is None:
            raise NamespaceNotFoundError(f"ns does not exist: {ns}")
        if coll.view_on is not None or definition:
            _redefine(group, coll, definition, refused=sorted(changes) + ["index"] * (index is not None))
            return {}
        if coll.capped is None and not COLL_MOD_NAMES.keys().isdisjoint(changes):
            raise InvalidOptionsError("collMod: cappedSize and cappedMax are for a capped collection")
        told: dict[str, object] = {}
        if find_index is not None:
            found = find_index(coll)
            if coll.capped is not None and "expireAfterSeconds" in index_changes:
                raise InvalidOptionsError("TTL indexes are not supported for capped collections.")
            told = _told(found, index_changes)
            if told:
                do_change_index(group, coll, found, index_changes)
        if changes or not told:  # a collMod that changes nothing is told to change streams, too
            do_set_options(group, coll, changes)
        return told

    return change


def _redefine(group: WriteGroup, coll: Collection, definition: dict[str, object], refused: list[str]) -> None:
    """Give a view another definition. refused: what else the command asks for, which no view has."""
    if coll.view_on is None:
        raise InvalidOptionsError(f"'{next(iter(definition))}' option is only supported on a view")
    if refused:
        raise InvalidOptionsError(f"option not supported on a view: {refused[0]}")
    if definition:
        becomes = RawDocument(encode({**coll.options.top_level(), **definition}))
        check_definition(group.txn.catalog.by_ns, coll.ns, becomes)
        do_set_options(group, coll, definition)


def _index_of(index: RawDocument, place: str) -> tuple[Callable[[Collection], Index], dict[str, object]]:
    """How to find the index, and what changes about it."""
    fields.check_fields(index, _INDEX_FIELDS, place)
    name = fields.text(index, "name", place, "")
    pattern = fields.document(index, "keyPattern", place)
    if bool(name) == (pattern is not None):
        raise InvalidOptionsError(
            "Cannot specify both key pattern and name." if name else "Must specify either index name or key pattern."
        )
    changes: dict[str, object] = {}
    if not fields.is_absent(index, "expireAfterSeconds"):
        changes["expireAfterSeconds"] = fields.whole(index, "expireAfterSeconds", place, least=0, most=(1 << 31) - 1)
    if not fields.is_absent(index, "hidden"):
        changes["hidden"] = fields.boolean(index, "hidden", place)
    if not changes:
        raise InvalidOptionsError("no expireAfterSeconds, hidden, unique, or prepareUnique field")
    key = None if pattern is None else pattern.decode()

    def find(coll: Collection) -> Index:
        if name == "_id_" or (key is not None and list(key) == ["_id"]):
            raise BadValueError("can't hide _id index, and the _id field does not support TTL indexes")
        found = [
            one for one in coll.indexes if one.ready and (one.name == name if key is None else one.key_pattern == key)
        ]
        if len(found) > 1:
            raise ReplError(
                f"index keyPattern {key!r} matches {', '.join(one.name for one in found)}, use the name instead",
                code=ErrorCode.AMBIGUOUS_INDEX_KEY_PATTERN,
            )
        if found:
            return found[0]
        raise ReplError(f"cannot find index {name or key!r} for ns {coll.ns}", code=ErrorCode.INDEX_NOT_FOUND)

    return find, changes


def _told(index: Index, changes: dict[str, object]) -> dict[str, object]:
    """What the reply says of what changes; empty when everything is so already."""
    told: dict[str, object] = {}
    if "expireAfterSeconds" in changes:
        if len(index.fields) > 1:
            raise InvalidOptionsError("TTL indexes are single-field indexes, compound indexes do not support TTL.")
        was, becomes = index.spec.get("expireAfterSeconds"), changes["expireAfterSeconds"]
        if was != becomes:
            told |= {} if was is None else {"expireAfterSeconds_old": was}
            told["expireAfterSeconds_new"] = Int64(int(str(becomes)))
    if "hidden" in changes and index.hidden != changes["hidden"]:
        told |= {"hidden_old": index.hidden, "hidden_new": changes["hidden"]}
    return told


COMMANDS: tuple[Command, ...] = (
    Command(
        "renameCollection",
        rename_collection,
        frozenset({"to", "dropTarget"}),
        where=Where.PRIMARY,
        admin_only=True,
        write_concern=True,
        needs=Action.LOGIN,
    ),
    Command(
        "collMod",
        coll_mod,
        frozenset({"index", "validator", "validationLevel", "validationAction", "viewOn", "pipeline"})
        | {"expireAfterSeconds", "timeseries", "changeStreamPreAndPostImages", "cappedSize", "cappedMax"},
        where=Where.PRIMARY,
        write_concern=True,
        needs=Action.COLL_MOD,
    ),
)

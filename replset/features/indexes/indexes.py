"""createIndexes, dropIndexes, listIndexes and reIndex."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

from replset.auth.roles import Action
from replset.bson import RawDocument, encode_key
from replset.core.quorum import WriteConcern
from replset.errors import (
    BadValueError,
    CannotCreateIndexError,
    ErrorCode,
    FailedToParseError,
    IllegalOperationError,
    IndexBuildAbortedError,
    IndexNotFoundError,
    MaxTimeMSExpiredError,
    NamespaceNotFoundError,
    ReplError,
    TypeMismatchError,
)
from replset.features.crud.candidates import view_of
from replset.features.indexes.index_specs import existing_index, parse_index, with_collation
from replset.ids import OpTime
from replset.operations import fields
from replset.operations.collations import refuse_newer
from replset.operations.command import Command, CommandContext, Where
from replset.operations.evaluation import read_statement
from replset.operations.namespaces import OPLOG, collection_field, namespace, refuse_view, writable_namespace
from replset.operations.replies import list_reply, write_times
from replset.operations.request import Reply
from replset.operations.write_concern import (
    MAX_W,
    also_if_it_fails,
    wait_for_write_concern,
    write_and_wait,
    write_concern_of,
)
from replset.query.errors import show
from replset.replication.index_builder import IndexBuilder
from replset.replication.index_ops import do_abort_build, do_create_index, do_drop_index, do_start_build
from replset.replication.write_ops import WriteGroup, do_create
from replset.storage.catalog import Collection
from replset.storage.indexes import Index, id_index_spec, shown_spec

VOTING_MEMBERS = "votingMembers"


async def list_indexes(ctx: CommandContext) -> Reply:
    """The indexes of a collection, also those under build. The oplog has none."""
    ns = namespace(ctx.database, collection_field(ctx.body, ctx.name))
    if ns == OPLOG:
        return list_reply(ctx, ns, [])
    coll = ctx.member.store.collection(ns)
    if coll is None:
        raise NamespaceNotFoundError(f"ns does not exist: {ns}")
    refuse_view(coll)
    specs = [id_index_spec(coll.options), *[index.spec.decode() for index in coll.more_indexes]]
    return list_reply(ctx, ns, list(map(shown_spec, specs)))


# --- createIndexes ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Plan:
    """What one group did for createIndexes. build: the result of the build that was begun, or that is waited for."""

    before: int
    created: bool
    term: int
    optime: OpTime
    wanted: int = 0
    build: tuple[asyncio.Future[OpTime], bytes] | None = None
    waits_for: bytes | None = None


async def create_indexes(ctx: CommandContext) -> Reply:
    """Make indexes, and the collection when it is not there. Indexes of documents are built while writes go on."""
    ns = writable_namespace(ctx.database, collection_field(ctx.body, ctx.name))
    concern = write_concern_of(ctx)
    quorum = _commit_quorum(ctx)
    ignore_unknown = fields.boolean(ctx.body, "ignoreUnknownIndexOptions", ctx.name)
    specs = []
    for index in fields.documents(ctx.body, ctx.request.sequences, "indexes", ctx.name):
        parse = partial(parse_index, index, f"{ctx.name}.indexes", ignore_unknown)
        specs.append(await read_statement(ctx.member, index, parse))
    if not specs:
        raise BadValueError("Must specify at least one index to create")
    created = False
    while True:
        async with also_if_it_fails(ctx, concern):
            plan = await ctx.write(lambda group: _begin(ctx, group, ns, specs))
        created = created or plan.created
        if plan.waits_for is None:
            break
        await _other_build(ctx, plan.waits_for)
    optime = plan.optime if plan.build is None else await _own_build(ctx, *plan.build)
    failure = await wait_for_write_concern(ctx, optime, concern)
    if failure is None and quorum is not None and plan.wanted:
        failure = await wait_for_write_concern(ctx, optime, quorum)
    reply: dict[str, object] = {
        "numIndexesBefore": plan.before,
        "numIndexesAfter": plan.before + plan.wanted,
        "createdCollectionAutomatically": created,
    }
    if plan.wanted:
        reply["commitQuorum"] = ctx.body.get("commitQuorum", VOTING_MEMBERS)
    else:
        reply["note"] = "all indexes already exist"
    if failure is not None:
        reply["writeConcernError"] = failure
    return reply | write_times(optime, plan.term)


def _begin(ctx: CommandContext, group: WriteGroup, ns: str, specs: list[RawDocument]) -> _Plan:
    """Make the indexes of an empty collection, or begin to build those of another one."""
    txn = group.txn
    coll = txn.catalog.by_ns.get(ns)
    refuse_view(coll)
    created = coll is None
    if coll is None:
        coll = do_create(group, ns)
    plan = _Plan(len(coll.more_indexes) + 1, created, group.term, txn.last)
    is_empty = not any(doc for _, doc in view_of(txn, coll).by_key(b"", None, False))
    wanted: list[RawDocument] = []
    for given in specs:
        spec = with_collation(given, coll.fold)
        if spec is None:
            continue
        refuse_newer(ctx.member, spec, CannotCreateIndexError)
        same = existing_index(ns, [*[index.spec for index in coll.more_indexes], *wanted], spec)
        if same is None:
            wanted.append(spec)
        elif plan.waits_for is None:
            plan.waits_for = next((i.build for i in coll.indexes if i.spec is same and not i.ready), None)
    if coll.capped is not None and any("expireAfterSeconds" in spec for spec in wanted):
        raise CannotCreateIndexError("Cannot create TTL index on a capped collection")
    if plan.waits_for is None:
        plan.wanted = len(wanted)
        if is_empty:
            for spec in wanted:
                do_create_index(group, coll, spec)
        elif wanted:
            build = do_start_build(group, coll, wanted)
            plan.build = ctx.member[IndexBuilder].result(build), build
    plan.optime = txn.last
    return plan


async def _own_build(ctx: CommandContext, result: asyncio.Future[OpTime], build: bytes) -> OpTime:
    """Wait for the build that this command began. When maxTimeMS is over it is ended, as in MongoDB."""
    if not await _is_done_in_time(ctx, result):
        ctx.member[IndexBuilder].abort(build, MaxTimeMSExpiredError("operation exceeded time limit"))
    return await result


async def _is_done_in_time(ctx: CommandContext, result: asyncio.Future[OpTime]) -> bool:
    timeout_s = None if ctx.deadline is None else max(0, ctx.deadline - ctx.member.clock.now()) / 1000
    await asyncio.wait([result], timeout=timeout_s)
    return result.done()


async def _other_build(ctx: CommandContext, build: bytes) -> None:
    """Wait until a build that another command began has ended, however it did."""
    result = ctx.member[IndexBuilder].result(build)
    if not await _is_done_in_time(ctx, result):
        raise MaxTimeMSExpiredError("operation exceeded time limit")
    try:
        await result
    except ReplError as error:
        if error.code == ErrorCode.INTERRUPTED_BY_STATE_CHANGE:
            raise


def _commit_quorum(ctx: CommandContext) -> WriteConcern | None:
    """How many members must have finished a build before the command is answered; None: the write concern says.

    A member that has applied a build's commit has filled the indexes. So this is a write concern for that entry.
    """
    value = ctx.body.get("commitQuorum")
    if value is None or value == 0:
        return None
    if isinstance(value, str) and value:
        if value != VOTING_MEMBERS:
            return WriteConcern(value)
        config = ctx.member.node.config
        return None if config is None else WriteConcern(sum(voter.bears_data for voter in config.voters))
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_W or value % 1:
        raise FailedToParseError(f"commitQuorum has to be a name or a whole number from 0 to {MAX_W}: {show(value)}")
    return WriteConcern(int(value))


# --- dropIndexes ------------------------------------------------------------------------------------------------


async def drop_indexes(ctx: CommandContext) -> Reply:
    """Drop indexes by name, by names, by key, or with "*" all but the one on `_id`. Builds under way are ended."""
    ns = writable_namespace(ctx.database, collection_field(ctx.body, ctx.name))
    given = ctx.body.get("index")
    if given is None:
        raise fields.missing(ctx.name, "index")
    names = given if isinstance(given, list) else [given]
    if not isinstance(given, str | list | dict) or (names is given and not all(isinstance(n, str) for n in names)):
        raise TypeMismatchError("BSON field 'dropIndexes.index' has to be a name, a list of names, or a key")

    def operation(group: WriteGroup) -> int:
        coll = group.txn.catalog.by_ns.get(ns)
        if coll is None:
            raise NamespaceNotFoundError(f"ns not found {ns}")
        refuse_view(coll)
        chosen = list(coll.more_indexes) if given == "*" else [_find_index(coll, name) for name in names]
        _drop(group, coll, chosen)
        return len(coll.more_indexes) + 1

    was, reply = await write_and_wait(ctx, operation)
    message = {"msg": "non-_id indexes dropped for collection"} if given == "*" else {}
    return {"nIndexesWas": was, **message} | reply


def _find_index(coll: Collection, given: object) -> Index:
    """The index of a name or a key; IndexNotFoundError, 181 when several have the key, 72 for the one on `_id`."""
    if given in ("_id_", {"_id": 1}):
        raise ReplError("cannot drop _id index", code=ErrorCode.INVALID_OPTIONS)
    if isinstance(given, str):
        found = [index for index in coll.indexes if index.name == given]
        if not found:
            raise IndexNotFoundError(f"index not found with name [{given:.200}]")
        return found[0]
    key = encode_key(given)
    found = [index for index in coll.indexes if encode_key(index.key_pattern) == key]
    if not found:
        raise IndexNotFoundError(f"can't find index with key: {show(given)}")
    if len(found) > 1:
        raise ReplError(
            f"{len(found)} indexes found for key: {show(given)}, identify by name instead. Conflicting indexes:"
            f" {', '.join(index.name for index in found)}",
            code=ErrorCode.AMBIGUOUS_INDEX_KEY_PATTERN,
        )
    return found[0]


def _drop(group: WriteGroup, coll: Collection, chosen: list[Index]) -> None:
    """Drop these indexes. A build is ended as a whole; 12587 when only some of its indexes are meant."""
    for build in coll.builds:
        of_build = [index for index in coll.indexes if index.build == build and not index.ready]
        if any(index in chosen for index in of_build):
            if not all(index in chosen for index in of_build):
                raise ReplError(
                    f"cannot perform operation: an index build is currently running for collection '{coll.ns}'",
                    code=ErrorCode.BACKGROUND_OPERATION_IN_PROGRESS,
                )
            do_abort_build(group, coll, build, IndexBuildAbortedError("dropIndexes command"))
    for index in dict.fromkeys(chosen):
        if index.ready:
            do_drop_index(group, coll, index)


async def re_index(ctx: CommandContext) -> Reply:
    """Refused: in MongoDB it is for servers outside of a set."""
    raise IllegalOperationError("reIndex is only allowed on a standalone mongod instance.")


COMMANDS: tuple[Command, ...] = (
    Command("listIndexes", list_indexes, frozenset({"cursor"}), where=Where.READABLE, needs=Action.LIST_INDEXES),
    Command(
        "createIndexes",
        create_indexes,
        frozenset({"indexes", "ignoreUnknownIndexOptions", "commitQuorum"}),
        where=Where.PRIMARY,
        write_concern=True,
        needs=Action.CREATE_INDEX,
    ),
    Command(
        "dropIndexes",
        drop_indexes,
        frozenset({"index"}),
        aliases=("deleteIndexes",),
        where=Where.PRIMARY,
        write_concern=True,
        needs=Action.DROP_INDEX,
    ),
    Command("reIndex", re_index, needs=Action.CREATE_INDEX),
)

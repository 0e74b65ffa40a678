"""Writes what a pipeline makes: $out, which replaces a collection, and $merge, which writes into one.

$out writes into a temporary collection and renames it at the end, so readers see the old documents or all of the new
ones. The temporary collection is dropped if anything fails. One whose primary died with it is dropped by a later one
(features/aggregation/temporary.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from replset.auth.roles import Action
from replset.bson import DateTime, RawDocument, Timestamp, decode
from replset.errors import ErrorCode, NotWritablePrimaryError, ReplError
from replset.features.aggregation.pipeline_run import PipelineRun
from replset.features.aggregation.temporary import TEMPORARY
from replset.features.collections.collection_changes import rename
from replset.features.crud.filters import filter_of
from replset.features.crud.insert import InsertBatch, prepare_all
from replset.features.crud.scan import pause
from replset.features.crud.search_batch import Search
from replset.features.crud.update import UpdateBatch, UpdateStatement
from replset.features.crud.write_batch import Batch, run_groups
from replset.ids import Millis, OpTime
from replset.operations.authorization import authorize
from replset.operations.command import CommandContext
from replset.operations.cursors import Cursor, DocumentsCursor
from replset.operations.evaluation import UNBOUNDED, evaluate, read_statement, weight_of
from replset.operations.namespaces import refuse_view, writable_namespace
from replset.operations.request import Reply
from replset.query.collation import Fold
from replset.query.errors import ImmutableFieldError
from replset.query.expressions import fault
from replset.query.match import Matcher
from replset.query.stages.output import MergeStage, OutStage
from replset.query.update import Update, keep_id
from replset.replication.index_ops import do_create_index
from replset.replication.write_ops import WriteGroup, do_create, do_drop, do_set_options
from replset.storage.catalog import Collection
from replset.storage.indexes import Index

FORWARD_MS: Final = 600_000
"""How long the primary may take with a command that a secondary sends on."""
_OF_THIS_MEMBER: Final = frozenset({"$db", "$readPreference", "$clusterTime", "lsid"})
_DETAILS: Final = frozenset({"keyPattern", "keyValue", "errInfo", "writeConcernError"})
BATCH: Final = 500
"""Documents that are read, and then written, at once."""
_NEEDS: Final = {
    "replace": {Action.UPDATE},
    "merge": {Action.UPDATE},
    "pipeline": {Action.UPDATE},
    "keepExisting": set[Action](),
    "fail": set[Action](),
}
"""What each mode of $merge needs; with whenNotMatched: insert also that."""


def authorize_output(ctx: CommandContext, stage: OutStage | MergeStage) -> None:
    """Raise 13 if the sender may not write there, 263 in a transaction."""
    if ctx.transaction is not None:
        raise ReplError(
            "$out and $merge cannot be used in a transaction", code=ErrorCode.OPERATION_NOT_SUPPORTED_IN_TRANSACTION
        )
    needs = {Action.INSERT, Action.REMOVE}
    if isinstance(stage, MergeStage):
        needs = _NEEDS[stage.when_matched] | ({Action.INSERT} if stage.when_not_matched == "insert" else set())
    for action in sorted(needs, key=lambda one: str(one.value)):
        authorize(ctx.member, ctx.sender, action, stage.database or ctx.database, ctx.name)
    writable_namespace(stage.database or ctx.database, stage.collection)


async def run_on_primary(ctx: CommandContext) -> Reply:
    """Have the primary run the command: a driver may send a pipeline that writes to a secondary. 10107 without one.

    What a member or the HTTP API sends is not sent on. Where the connection breaks the outcome is unknown (6).
    """
    member, primary = ctx.member, ctx.member.node.primary_host
    if primary in (None, member.host) or ctx.connection.is_member or ctx.request.source != "wire":
        raise NotWritablePrimaryError()
    body = await read_statement(member, ctx.body, ctx.body.decode)
    login = ctx.sender.login
    sender: object = True if login is None else {"user": login.name, "db": login.database}
    command = {name: value for name, value in body.items() if name not in _OF_THIS_MEMBER}
    limit_ms = Millis(FORWARD_MS if ctx.left_ms is None else ctx.left_ms)
    assert primary is not None
    answer = await member.peer.call(
        primary, {**command, "$replsetForwarded": sender}, timeout_ms=limit_ms, database=ctx.database
    )
    reply = answer.decode()
    if reply.get("ok") != 1:
        details = {name: value for name, value in reply.items() if name in _DETAILS}
        raise ReplError(str(reply.get("errmsg")), code=int(str(reply.get("code", 1))), details=details)
    return {name: value for name, value in reply.items() if name in ("cursor", "writeConcernError", "operationTime")}


class Output:
    """Runs the batches of one stage. optime: of the newest entry. All writes are of one term: behind a stepdown the
    first of them may be rolled back, and an acknowledgement of the last one would say nothing about them.
    """

    def __init__(self, run: PipelineRun, ns: str) -> None:
        self.ctx = run.ctx
        self.ns = ns
        self._run = run
        self._term = 0

    async def write(self, batch: Batch) -> None:
        """Run a batch. Raises what its first statement fails with."""
        batch.term = self._term
        await run_groups(batch)
        self._term, self._run.written = batch.term, batch.optime
        for error in batch.errors:
            known = ("index", "code", "errmsg")
            details = {name: value for name, value in error.items() if name not in known}
            raise ReplError(str(error["errmsg"]), code=int(str(error["code"])), details=details)

    async def operate(self, operation: Any) -> Any:
        """Run one operation in a group of the same term, and return its result."""

        def work(group: WriteGroup) -> tuple[Any, OpTime, int]:
            if self._term not in (0, group.term):
                raise NotWritablePrimaryError()
            return operation(group), group.txn.last, group.term

        result, self._run.written, self._term = await self.ctx.write(work)
        return result

    async def insert(self, rows: Sequence[bytes], ns: str) -> None:
        batch = InsertBatch(self.ctx, len(rows), ns)
        batch.ready = await prepare_all(self.ctx, [RawDocument(raw) for raw in rows], batch.ordered)
        await self.write(batch)


async def write_out(run: PipelineRun, stage: OutStage, source: Cursor | None) -> Cursor:
    """Replace the collection by the documents of the source; nothing comes out."""
    assert source is not None  # $out is never the first stage by itself: pipelines.py gives it a cursor
    ctx = run.ctx
    database = stage.database or ctx.database
    output = Output(run, writable_namespace(database, stage.collection))
    before = ctx.member.store.collection(output.ns)
    made: Collection = await output.operate(partial(_make_temporary, database=database, ns=output.ns))
    try:
        while rows := await _next_rows(ctx, source):
            await output.insert(rows, made.ns)
        await output.operate(partial(_take_place, temporary=made, ns=output.ns, before=before))
    except BaseException:
        with suppress(ReplError):
            await output.operate(partial(_drop_temporary, temporary=made))
        raise
    return DocumentsCursor(source.ns, [])


def _make_temporary(group: WriteGroup, database: str, ns: str) -> Collection:
    """Make the temporary collection, with the options and indexes of the one whose place it takes."""
    target = group.txn.catalog.by_ns.get(ns)
    refuse_view(target)
    options: dict[str, object] = {} if target is None else target.options.top_level()
    if target is not None and target.capped is not None:
        raise fault(17152, f"namespace '{ns}' is capped so it can't be used for $out")
    if target is not None and any(not index.ready for index in target.indexes):
        raise ReplError(
            f"cannot perform operation: an index build is currently running for collection '{ns}'",
            code=ErrorCode.BACKGROUND_OPERATION_IN_PROGRESS,
        )
    name = f"{database}.tmp.agg_out.{group.new_uuid().hex()}"
    made = do_create(group, name, {**options, TEMPORARY: True})
    for index in () if target is None else target.more_indexes:
        do_create_index(group, made, index.spec)
    return made


def _take_place(group: WriteGroup, temporary: Collection, ns: str, before: Collection | None) -> None:
    """Give the temporary collection its name, if the target has still the options and indexes that were copied."""
    by_ns = group.txn.catalog.by_ns
    made, target = by_ns.get(temporary.ns), by_ns.get(ns)
    if made is None:
        raise NotWritablePrimaryError()
    if _shape(target) != _shape(before):
        raise ReplError(
            f"collection options or indexes of target collection {ns} changed while processing",
            code=ErrorCode.COMMAND_FAILED,
        )
    do_set_options(group, made, {TEMPORARY: False})
    rename(group, made.ns, ns, True)


def _shape(coll: Collection | None) -> object:
    if coll is None:
        return None
    return coll.uuid, coll.options.raw, sorted(index.spec.raw for index in coll.indexes)


def _drop_temporary(group: WriteGroup, temporary: Collection) -> None:
    coll = group.txn.catalog.by_uuid.get(temporary.uuid)
    if coll is not None and coll.dropped_ts is None:
        do_drop(group, coll)


# --- $merge -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MergeStatement(UpdateStatement):
    """One document that comes. new: it, with an `_id` if it is found by that. variables: of the stage's pipeline."""

    new: dict[str, Any]
    variables: dict[str, Any]


class MergedUpdate(Update):
    """What a $merge makes of the document that it found, or inserts."""

    def __init__(self, stage: MergeStage, statement: MergeStatement) -> None:
        super().__init__((), None, {})
        self._stage = stage
        self._statement = statement

    def apply(
        self,
        doc: dict[str, Any],
        *,
        now: DateTime,
        timestamp: Timestamp,
        is_insert: bool = False,
        matcher: Matcher | None = None,
    ) -> dict[str, Any]:
        new = self._statement.new
        if is_insert:
            return new
        after = self._stage.merged(doc, new, self._statement.variables)
        if after is new and "_id" not in new:
            after = {"_id": doc["_id"], **new}
        try:
            return after if after is doc else keep_id(doc, after, False, False)
        except ImmutableFieldError as error:
            raise ImmutableFieldError(
                "$merge failed to update the matching document, did you attempt to modify the _id or the shard key?"
            ) from error


class MergeBatch(UpdateBatch):
    """Some documents of a $merge."""

    def __init__(self, ctx: CommandContext, stage: MergeStage, statements: list[MergeStatement], ns: str) -> None:
        super().__init__(ctx, statements, ns=ns)
        self._stage = stage

    def begin(self) -> Search:
        statement = self.statements[self.index]
        assert isinstance(statement, MergeStatement)
        self.update = MergedUpdate(self._stage, statement)
        return Search(filter_of(statement.query, fold=statement.fold))

    def proceed(self, group: WriteGroup, search: Search) -> None:
        super().proceed(group, search)
        if search.is_done and not self.matched and self._stage.when_not_matched == "fail":
            raise ReplError(
                "$merge could not find a matching document in the target collection for at least one document in the"
                " source collection",
                code=ErrorCode.MERGE_NO_MATCH,
            )


async def write_merge(run: PipelineRun, stage: MergeStage, source: Cursor | None) -> Cursor:
    """Write the documents of the source into the collection; nothing comes out."""
    assert source is not None
    ctx = run.ctx
    output = Output(run, writable_namespace(stage.database or ctx.database, stage.collection))
    stage.start(run.run)
    target = ctx.member.store.collection(output.ns)
    refuse_view(target)
    indexes = () if target is None else target.indexes
    # An index tells values apart by its own collation. Of the simple one, that on _id is the table of the documents.
    is_by_id = stage.on == ("_id",) and (target is None or target.fold is None)
    if not is_by_id and not any(_is_unique_by(stage, index, run.fold) for index in indexes):
        raise fault(51183, "Cannot find index to verify that join fields will be unique")
    fold = None if is_by_id else run.fold
    while rows := await _next_rows(ctx, source):
        if stage.when_matched == "fail":
            await output.insert(rows, output.ns)
            continue
        while rows:
            statements, looked_at = await evaluate(ctx.member, run.weight, rows, partial(_statement, run, stage, fold))
            await output.write(MergeBatch(ctx, stage, statements, output.ns))
            rows = rows[looked_at:]
    return DocumentsCursor(source.ns, [])


def _is_unique_by(stage: MergeStage, index: Index, fold: Fold | None) -> bool:
    fields = sorted(path for path, _ in index.fields)
    is_whole = index.ready and index.unique and index.partial_filter is None
    return is_whole and index.fold == fold and fields == sorted(stage.on)


def _statement(run: PipelineRun, stage: MergeStage, fold: Fold | None, raw: bytes) -> MergeStatement:
    new = decode(raw)
    if "_id" not in new and "_id" in stage.on:
        new = {"_id": run.ctx.member.new_id(), **new}
    query: dict[str, object] = {path: {"$eq": value} for path, value in zip(stage.on, stage.key_of(new), strict=True)}
    variables = stage.variables_of(new) if stage.when_matched == "pipeline" else {}
    # Each stage can double what the one before made, so the size of the command says nothing about the cost.
    weight = UNBOUNDED if len(stage.stages) > 1 else weight_of(len(raw), query) + run.weight
    upsert = stage.when_not_matched == "insert"
    return MergeStatement(query, False, None, weight, {}, upsert, [], {}, new, variables, fold=fold)


async def _next_rows(ctx: CommandContext, source: Cursor) -> list[bytes]:
    """Return the next documents, none at the end."""
    while not source.finished:
        rows = await source.batch(partial(pause, ctx), BATCH, None)
        if rows:
            return rows
        await pause(ctx)
    return []

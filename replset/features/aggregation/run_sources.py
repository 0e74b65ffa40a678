"""Stages that begin a pipeline with documents about the member: $collStats, $indexStats, $currentOp, $listSessions and
$listLocalSessions; and $documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from replset.auth.roles import Action
from replset.auth.users import Login
from replset.bson import DateTime, Int64, encode
from replset.errors import InvalidNamespaceError, NamespaceNotFoundError
from replset.features.aggregation.pipeline_run import Opener, PipelineRun, checked
from replset.features.aggregation.run_joins import UnionCursor
from replset.features.collections.statistics import collection_stats
from replset.features.diagnostics.current_op import current_operations
from replset.operations.authorization import authorize, is_allowed
from replset.operations.command import CommandContext
from replset.operations.current_operations import OperationTable
from replset.operations.cursors import Cursor, DocumentsCursor
from replset.operations.evaluation import run_in_thread
from replset.operations.namespaces import OPLOG, collection_field, namespace, refuse_view
from replset.operations.session_request import NOBODY, SESSION_MINUTES, lsid_of, uid_of
from replset.operations.transactions import TransactionTable
from replset.operations.user_directory import UserDirectory
from replset.query.pipeline import compile_pipeline
from replset.query.stages.joins import UnionWithStage
from replset.query.stages.sources import (
    CollStatsStage,
    CurrentOpStage,
    DocumentsStage,
    IndexStatsStage,
    ListLocalSessionsStage,
    ListSessionsStage,
)
from replset.query.stages.stage import Stage, StageScope
from replset.storage.indexes import id_index_spec, shown_spec

SESSIONS_NS: Final = "config.system.sessions"
NEEDS: Final = {
    "$collStats": Action.COLL_STATS,
    "$indexStats": Action.COLL_STATS,
    "$changeStream": Action.LOGIN,
    "$currentOp": Action.LOGIN,
    "$listLocalSessions": Action.LOGIN,
    "$listSessions": Action.LOGIN,
}
"""What the sender must be allowed to do; FIND where the first stage is another one. LOGIN: the stage asks by itself."""
WITHOUT_COLLECTION: Final = frozenset({"$currentOp", "$documents", "$listLocalSessions"})
_READS: Final = frozenset({"find", "getMore", "aggregate", "count", "distinct"})


def check_collection(first: str, ns: str) -> None:
    """Refuse a first stage that is not for this collection, or for none (73)."""
    if first == "$currentOp":
        raise InvalidNamespaceError("$currentOp must be run against the 'admin' database with {aggregate: 1}")
    if first in WITHOUT_COLLECTION:
        raise InvalidNamespaceError(f"{first} must be run with {{aggregate: 1}}, without a collection")
    if first == "$listSessions" and ns != SESSIONS_NS:
        raise InvalidNamespaceError(f"$listSessions may only be run against {SESSIONS_NS}")


async def _collection_stats(run: PipelineRun, stage: CollStatsStage, _source: Cursor | None) -> Cursor:
    ctx = run.ctx
    collection = collection_field(ctx.body, ctx.name)
    ns = namespace(ctx.database, collection)
    document: dict[str, object] = {
        "ns": ns,
        "host": ctx.member.host,
        "localTime": DateTime(ctx.member.clock.wall_ms()),
    }
    if stage.has_count and ns != OPLOG and ctx.member.store.collection(ns) is None:
        raise NamespaceNotFoundError(
            f"Unable to retrieve count in $collStats stage :: caused by :: Collection [{ns}] not found."
        )
    if stage.has_latency:
        document["latencyStats"] = _latencies(ctx.member[OperationTable], ctx.database, collection)
    if stage.scale or stage.has_count:
        stats = await collection_stats(ctx, ns, stage.scale or 1)
        document |= {"storageStats": stats} if stage.scale else {}
        document |= {"count": stats["count"]} if stage.has_count else {}
    return DocumentsCursor(ns, [encode(document)])


def _latencies(operations: OperationTable, database: str, collection: str) -> dict[str, object]:
    """How long reads and writes of the collection took in all since the start, in microseconds."""
    totals = {"reads": [0, 0], "writes": [0, 0]}
    for (one, name, command), (times, ran_ms) in operations.used.items():
        if (one, name) == (database, collection):
            total = totals["reads" if command in _READS else "writes"]
            total[0] += ran_ms * 1000
            total[1] += times
    totals |= {"commands": [0, 0], "transactions": [0, 0]}
    return {kind: {"latency": Int64(total[0]), "ops": Int64(total[1])} for kind, total in totals.items()}


async def _index_stats(run: PipelineRun, _stage: IndexStatsStage, _source: Cursor | None) -> Cursor:
    ctx = run.ctx
    ns = namespace(ctx.database, collection_field(ctx.body, ctx.name))
    coll = ctx.member.store.collection(ns)
    refuse_view(coll)
    if coll is None:
        return DocumentsCursor(ns, [])
    uses, clock = ctx.member[OperationTable].index_uses, ctx.member.clock
    since = DateTime(clock.wall_ms() - (clock.now() - ctx.member.started_at))
    rows = []
    for spec in [id_index_spec(coll.options), *[one.spec.decode() for one in coll.more_indexes if one.ready]]:
        shown = shown_spec(spec)
        times = Int64(uses.get((coll.uuid, str(spec["name"])), 0))
        accesses = {"ops": times, "since": since}
        rows.append(
            {
                "name": spec["name"],
                "key": spec["key"],
                "host": ctx.member.host,
                "accesses": accesses,
                "spec": shown,
            }
        )
    return DocumentsCursor(ns, [encode(row) for row in rows])


async def _operations(run: PipelineRun, stage: CurrentOpStage, _source: Cursor | None) -> Cursor:
    """Without `allUsers` a user sees his own, for which he needs no right."""
    ctx = run.ctx
    only_own = ctx.member[UserDirectory].required and not stage.all_users
    rows = await current_operations(ctx, {}, only_own=only_own)
    if stage.idle_cursors:
        login = ctx.sender.login
        uid = None if not only_own else str(login)
        rows += ctx.cursors.idle(uid)
    return DocumentsCursor(f"{ctx.database}.$cmd.aggregate", [encode(row) for row in rows])


async def _documents(run: PipelineRun, stage: DocumentsStage, _source: Cursor | None) -> Cursor:
    """Evaluate in the thread: a few bytes can make many documents."""
    documents = await run_in_thread(
        run.ctx.member, lambda: [checked(encode(document)) for document in stage.documents(run.run.variables)]
    )
    return DocumentsCursor(f"{run.ctx.database}.$cmd.aggregate", documents)


# --- sessions ---------------------------------------------------------------------------------------------------


async def _local_sessions(run: PipelineRun, stage: ListLocalSessionsStage, _source: Cursor | None) -> Cursor:
    uids = _wanted(run.ctx, stage)
    rows = _sessions_here(run.ctx, uids)
    return DocumentsCursor(f"{run.ctx.database}.$cmd.aggregate", [encode(row) for row in rows])


async def _sessions(run: PipelineRun, stage: ListSessionsStage, _source: Cursor | None) -> Cursor:
    """The sessions in use here, and those that have written something in the last 30 minutes."""
    uids = _wanted(run.ctx, stage)
    rows = _sessions_here(run.ctx, uids)
    match: dict[str, Any] = {"_id": {"$nin": [row["_id"] for row in rows]}}
    if uids is not None:
        match["_id.uid"] = {"$in": sorted(uids)}
    stages = [{"$match": match}, {"$project": {"lastUse": "$lastWriteDate"}}]
    rest = UnionWithStage({"coll": "transactions", "pipeline": stages}, StageScope(compile_pipeline))
    return UnionCursor(run, rest, DocumentsCursor(SESSIONS_NS, [encode(row) for row in rows]))


def _wanted(ctx: CommandContext, stage: ListLocalSessionsStage) -> set[Any] | None:
    """The `uid`s of the users whose sessions are listed, None for all. 13 for those of others without the right."""
    login = ctx.sender.login
    own = NOBODY if login is None else login.uid
    if not stage.all_users and not stage.users:
        return {own}
    uids = {Login(name, database).uid for name, database in stage.users}
    if not (uids and uids == {own}) and not is_allowed(ctx.member, ctx.sender, Action.IN_PROGRESS):
        authorize(ctx.member, ctx.sender, Action.IN_PROGRESS, "admin", "$listSessions of other users")
    return None if stage.all_users else uids


def _sessions_here(ctx: CommandContext, uids: set[Any] | None) -> list[dict[str, Any]]:
    """The sessions that commands, cursors and transactions use now, and those used in the last 30 minutes."""
    clock = ctx.member.clock
    now, wall_ms = clock.now(), clock.wall_ms()
    used = {key: at for key, at in ctx.sessions.recent.items() if now - at < SESSION_MINUTES * 60_000}
    for key in (*ctx.cursors.sessions(), *ctx.member[TransactionTable].sessions()):
        used.setdefault(key, now)
    return [
        {"_id": lsid_of(key).decode(), "lastUse": DateTime(wall_ms - (now - at))}
        for key, at in used.items()
        if uids is None or uid_of(key) in uids
    ]


OPENERS: Final[Mapping[type[Stage], Opener]] = {
    CollStatsStage: _collection_stats,
    CurrentOpStage: _operations,
    DocumentsStage: _documents,
    IndexStatsStage: _index_stats,
    ListLocalSessionsStage: _local_sessions,
    ListSessionsStage: _sessions,
}

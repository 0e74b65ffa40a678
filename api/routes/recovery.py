"""`/v1/replset/rollbacks/{id}`: verifies a rollback of this member, compares it with the set, and restores it."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from fastapi import APIRouter, Request, Response

from api.errors import failure, http_error, rollback_error
from api.exchange import HttpAnswer, HttpRequest, read_options, to_response
from api.openapi import answers, body
from api.routes.rollbacks import find_manifest
from api.streaming import ReportSource, report_chunks, run_in_thread, stream_response
from replset.errors import ErrorCode, OverloadedError, ReplError, ShutdownInProgressError
from replset.features.recovery.compare import RollbackDiff
from replset.features.recovery.live_set import LiveSet
from replset.features.recovery.lost_writes import LostWrites
from replset.features.recovery.policy import Policy, parse_policy
from replset.features.recovery.restore import AuditLog, Restore, read_restorable_manifest
from replset.features.recovery.verify import RollbackCheck, verify_rollback
from replset.ids import HostPort
from replset.member.member import RunningMember
from replset.replication.rollback_list import RollbackList
from replset.replication.rollback_manifest import read_manifest

JOBS_MAX = 2


class RollbackJobLimiter:
    """Limits concurrent reads of rollbacks to JOBS_MAX and allows one restore per rollback. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._restored: set[str] = set()

    @contextmanager
    def admit_read(self) -> Iterator[None]:
        """Hold a place while a rollback is read. HttpError 503 (462) when all places are taken."""
        with self._lock:
            if self._running >= JOBS_MAX:
                many = f"it works on {self._running} rollbacks"
                raise http_error(OverloadedError(f"this member is overloaded: {many}; nothing was applied, try again"))
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1

    @contextmanager
    def admit_restore(self, rollback: str) -> Iterator[None]:
        """Lock a rollback while it is restored. HttpError 409 (117) when a restore of it runs already."""
        with self._lock:
            if rollback in self._restored:
                raise failure(
                    ErrorCode.CONFLICTING_OPERATION_IN_PROGRESS,
                    f"a restore of {rollback} is under way on this member",
                    status=409,
                )
            self._restored.add(rollback)
        try:
            yield
        finally:
            with self._lock:
                self._restored.discard(rollback)


Row: TypeAlias = dict[str, Any]
RECORD_BYTES = 1000
"""The memory that one lost entry takes while its rollback is compared."""
RESERVED_BYTES_MAX = 48 << 20
"""Two rollbacks that reserve this much leave memory for other requests."""
_RESTORE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "policy": {"type": "string", "enum": [policy.value for policy in Policy], "default": Policy.SKIP.value},
        "collection": {"type": "string", "description": "with to-collection: the collection of each database"},
        "dryRun": {"type": "boolean", "default": False},
    },
    "additionalProperties": False,
}


def router(member: RunningMember) -> APIRouter:
    routes = APIRouter(prefix="/v1/replset/rollbacks", tags=["rollbacks"])
    limiter = RollbackJobLimiter()

    @routes.get(
        "/{rollback}/verify",
        summary="Check each file against the manifest, document by document.",
        description="As `rollback-tools verify --json`: `ok` is the result, `problems` of a file name its bytes.",
        responses=answers(200, 400, 404, 405, 503),
    )
    async def verify(rollback: str, request: Request) -> Response:
        http = HttpRequest(request.scope)
        path = await _find_manifest_path(member, http, rollback)

        def work() -> RollbackCheck:
            with limiter.admit_read():
                return verify_rollback(path, read_manifest(path))

        try:
            found = await run_in_thread(work)
        except (OSError, ReplError) as error:
            raise rollback_error(error) from error
        return await to_response(member, http, HttpAnswer(found.document(), is_heavy=True))

    @routes.get(
        "/{rollback}/diff",
        summary="Compare each lost write with the set: at the common point, as lost, and as live now, field by field.",
        description="As `rollback-tools diff --json`, and like it canonical Extended JSON, whatever `Accept` says. An"
        " answer that could not be completed has `error` instead of `counts`.",
        responses=answers(200, 400, 404, 405, 503),
    )
    async def diff(rollback: str, request: Request) -> Response:
        path = await _find_manifest_path(member, HttpRequest(request.scope), rollback)
        primary = _primary(member)

        def begin(stack: ExitStack) -> ReportSource:
            stack.enter_context(limiter.admit_read())
            found = read_manifest(path)
            lost = stack.enter_context(LostWrites(path.parent, found))
            rollback_diff = RollbackDiff(lost, stack.enter_context(LiveSet(primary, found.set_name)))
            rows = _until_shutdown(member, (difference.row() for difference in rollback_diff.run()))
            return ReportSource(rollback_diff.head(), rows, rollback_diff.counts)

        return await stream_response(report_chunks(begin))

    @routes.post(
        "/{rollback}/restore",
        summary="Put the lost writes back, as new writes that a majority has. A second restore changes nothing.",
        description="Ask the member that has the files. As `rollback-tools restore --json`, canonical Extended JSON"
        " whatever `Accept` says. `counts.left` says how many stay undone, `audit` where on that member the record is."
        " An answer that could not be completed has `error` instead of `counts`.",
        responses=answers(200, 400, 404, 405, 409, 413, 415, 503, 504),
        openapi_extra=body(_RESTORE, required=False),
    )
    async def restore(rollback: str, request: Request) -> Response:
        http = HttpRequest(request.scope)
        policy, collection, is_dry = await _read_restore_options(http, request)
        path = await _find_manifest_path(member, http, rollback)
        primary = _primary(member)

        def now() -> datetime.datetime:
            return datetime.datetime.fromtimestamp(member.clock.wall_ms() / 1000, datetime.UTC)

        def begin(stack: ExitStack) -> ReportSource:
            if not is_dry:
                stack.enter_context(limiter.admit_restore(path.stem))
            stack.enter_context(limiter.admit_read())
            found = read_restorable_manifest(path)
            lost = stack.enter_context(LostWrites(path.parent, found))
            live = stack.enter_context(LiveSet(primary, found.set_name))
            run = Restore(lost, live, policy, collection=collection)
            log = None if is_dry else stack.enter_context(AuditLog.beside(path, now()))
            outcomes = stack.enter_context(closing(run.run(log, now)))
            rows = _until_shutdown(member, (outcome.row() for outcome in outcomes))
            return ReportSource(run.head(log), rows, run.counts, lambda: run.has_written)

        return await stream_response(report_chunks(begin))

    return routes


async def _read_restore_options(http: HttpRequest, request: Request) -> tuple[Policy, str, bool]:
    """The policy, the collection that it copies to, and whether this is a dry run."""
    known = _RESTORE["properties"]
    fields = await read_options(http, request.receive, known)
    for name, kind in (("policy", str), ("collection", str), ("dryRun", bool)):
        if not isinstance(fields.get(name, kind()), kind):
            raise failure(ErrorCode.TYPE_MISMATCH, f"field {name!r} must be a {known[name]['type']}")
    collection = fields.get("collection", "")
    return parse_policy(fields.get("policy", Policy.SKIP.value), collection), collection, fields.get("dryRun", False)


def _until_shutdown(member: RunningMember, rows: Iterator[Row]) -> Iterator[Row]:
    """Yield the rows until the member stops. A restore must not delay its shutdown."""
    while not member.shutting_down:
        row = next(rows, None)
        if row is None:
            return
        yield row
    raise ShutdownInProgressError("this member is shutting down; ask again when it is back")


def _primary(member: RunningMember) -> HostPort:
    primary = member.node.primary_host
    if primary is None:
        raise failure(
            ErrorCode.NOT_WRITABLE_PRIMARY,
            "this member knows no primary, with whose documents to compare; nothing was applied",
        )
    return primary


async def _find_manifest_path(member: RunningMember, http: HttpRequest, rollback: str) -> Path:
    """The manifest of a rollback on this member. Reserves the memory that reading it takes."""
    folder = Path(member[RollbackList].folder)
    try:
        manifest = await member.workers.run(lambda: find_manifest(folder, rollback))
    except ReplError as error:
        raise rollback_error(error) from error
    http.memory.reserve(min(manifest.entries * RECORD_BYTES, RESERVED_BYTES_MAX))
    return folder / f"{rollback}.json"

"""Runs pipelines. Each segment of a pipeline is a cursor over the cursor before it.

What a pipeline begins with and a query can do ($match, $sort, $skip, $limit, $project) becomes a query and reads
through find's cursor, with its indexes and limits. Stages that need no collection are a chain (`ChainCursor`). A stage
that reads or writes collections (`ReadingStage`) has a function in a table of openers, which makes its cursor.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from replset.bson import MAX_BSON_SIZE, encode
from replset.errors import CatalogChangedError, ErrorCode, ReplError
from replset.features.crud.find import Query, make_query, open_cursor
from replset.features.crud.scan import SLICE_BYTES, SLICE_DECODED, SLICE_RAW
from replset.ids import OpTime
from replset.operations.command import CommandContext
from replset.operations.cursors import Batch, Cursor, CursorTable, Pause
from replset.operations.evaluation import TimeSlice, compiled, is_small, read_statement, run_in_thread, weight_of
from replset.operations.kernel import Kernel
from replset.operations.namespaces import collection_here, namespace
from replset.operations.read_concern import open_collection, read_concern_of
from replset.query.collation import Fold
from replset.query.pipeline import compile_pipeline
from replset.query.pipeline_rewrite import rewrite
from replset.query.stages.basic import LimitStage, MatchStage, SkipStage, SortStage
from replset.query.stages.projections import ProjectStage
from replset.query.stages.stage import Chain, ChainStage, ReadingStage, Run, SourceStage, Stage, StageScope
from replset.query.views import MAX_DEPTH, too_deep
from replset.storage.catalog import Collection

_SMALL_END = 1 << 20
"""Bytes that stages kept, of which the event loop makes the results."""


@dataclass(slots=True)
class QueryPart:
    """The part of a pipeline that a query does, and the stages behind it."""

    filter: dict[str, object] = field(default_factory=dict)
    sort: dict[str, object] = field(default_factory=dict)
    skip: int = 0
    limit: int = 0
    projection: dict[str, object] = field(default_factory=dict)
    rest: list[Stage] = field(default_factory=list)

    @property
    def counter(self) -> ChainStage | None:
        """The stage that only counts all documents of the collection, if the pipeline begins with one."""
        first = self.rest[0] if self.rest and not (self.filter or self.skip or self.limit) else None
        return first if isinstance(first, ChainStage) and first.only_counts else None


def split_pipeline(stages: Sequence[Stage]) -> QueryPart:
    """Return the query that the first stages are. A query filters, sorts, skips, limits and projects in this order.

    A projection is left to a chain that there is anyway, which has the documents decoded.
    """
    part = QueryPart()
    filters: list[dict[str, object]] = []
    order: tuple[type[Stage], ...] = (MatchStage, SortStage, SkipStage, LimitStage, ProjectStage)
    place = 0
    last = len(stages) - 1
    for number, stage in enumerate(stages):
        kind = type(stage)
        if kind not in order[place:] or (isinstance(stage, ProjectStage) and not (stage.is_plain and number == last)):
            part.rest = list(stages[number:])
            break
        # A second $match goes on with the first, every other stage stands once.
        place = order.index(kind) + (kind is not MatchStage)
        if isinstance(stage, MatchStage):
            filters.append(stage.filter)
        elif isinstance(stage, SortStage):
            part.sort = stage.spec
        elif isinstance(stage, SkipStage):
            part.skip = stage.count
        elif isinstance(stage, LimitStage):
            part.limit = stage.count
        elif isinstance(stage, ProjectStage):
            part.projection = stage.spec
    part.filter = filters[0] if len(filters) == 1 else {"$and": filters} if filters else {}
    return part


@dataclass(slots=True)
class PipelineRun:
    """Opens the cursors of one aggregate command, those of pipelines within pipelines too.

    weight: of the command (evaluation.py). run: what all stages share. fold: of the command's collation, which governs
    whatever the pipelines compare. at: the point of the first read (None: now).
    views: that the pipeline stands within. is_inner: it is a pipeline within a stage. writes: it ends with $out or
    $merge; then it reads as of its beginning, and not what it writes itself. written: the newest entry of that.
    """

    ctx: CommandContext
    weight: int
    run: Run
    openers: Mapping[type[Stage], Opener]
    fold: Fold | None = None
    at: OpTime | None = None
    views: int = 0
    is_inner: bool = False
    writes: bool = False
    written: OpTime | None = None

    @property
    def inner_weight(self) -> int | None:
        """The weight of a pipeline within a stage, which may hold values that are not in the command; else None."""
        return self.weight if self.is_inner else None

    def inner(self, variables: Mapping[str, Any]) -> PipelineRun:
        """Return what opens a pipeline within a stage, which has more variables."""
        return replace(self, run=replace(self.run, variables={**self.run.variables, **variables}), is_inner=True)

    async def through_views(self, collection: str, stages: Sequence[Stage] = ()) -> tuple[str, Sequence[Stage]]:
        """Return the collection that a view stands for, with the stages of the view in front of those given."""
        name, elements, views = await _resolve(self.ctx, collection)
        self.views += views
        if self.views > MAX_DEPTH:
            raise too_deep()
        if not views:
            return collection, stages
        view = collection_here(self.ctx, collection)
        if view is not None and view.fold != self.fold:
            raise ReplError(
                f"Cannot override the default collation of a view: {namespace(self.ctx.database, collection)}",
                code=ErrorCode.OPTION_NOT_SUPPORTED_ON_VIEW,
            )
        self.weight += weight_of(len(encode({"": elements})), elements)
        scope = StageScope(compile_pipeline, fold=self.fold)
        found = await compiled(self.ctx.member, self.weight, lambda: compile_pipeline(elements, scope))
        return name, await self.rewritten([*found, *stages])

    async def rewritten(self, stages: Sequence[Stage]) -> list[Stage]:
        """Return the stages of several pipelines, one behind the other, rewritten as one."""
        return await compiled(self.ctx.member, self.weight, lambda: rewrite(stages, self.scope))

    @property
    def scope(self) -> StageScope:
        """What surrounds a stage of the command."""
        return StageScope(compile_pipeline, frozenset(self.run.variables), fold=self.fold)

    async def query_of(self, part: QueryPart) -> Query:
        """The query with which a pipeline begins."""
        found, of_query = self.run.variables, (part.filter, part.projection, part.sort, part.skip, part.limit)
        return await make_query(self.ctx, *of_query, found, of_inner=self.inner_weight, fold=self.fold)

    async def open(self, collection: str, stages: Sequence[Stage]) -> Cursor:
        """Open the cursor of a pipeline over a collection of the command's database.

        The stages must not be in another run at the same time.
        """
        if stages and isinstance(stages[0], SourceStage):
            cursor = await self.openers[type(stages[0])](self, stages[0], None)
            return await self.over(cursor, stages[1:])
        ns = namespace(self.ctx.database, collection)
        collection, stages = await self.through_views(collection, stages)
        part = split_pipeline(stages)
        source = await self._open_source(await self.query_of(part), collection)
        cursor = await self.over(source, part.rest)
        cursor.ns = ns
        return cursor

    async def _open_source(self, query: Query, collection: str) -> Cursor:
        """Open the cursor of a query. A pipeline within a stage reads at the point of the command, if it has one."""
        if self.is_inner and self.at is not None:
            try:
                source, _ = await open_cursor(self.ctx, query, collection, point=self.at)
                return source
            except CatalogChangedError:  # made or dropped since: only a snapshot cannot be of another point
                if read_concern_of(self.ctx).level == "snapshot":
                    raise
        source, at = await open_cursor(self.ctx, query, collection, at_once=self.writes)
        self.at = self.at if self.is_inner else at
        return source

    async def over(self, source: Cursor, stages: Sequence[Stage]) -> Cursor:
        """Open the cursor of stages over the documents of another one, which it closes with itself."""
        cursor, start = source, 0
        try:
            for end in range(len(stages) + 1):
                reading = stages[end] if end < len(stages) else None
                if reading is not None and not isinstance(reading, ReadingStage):
                    continue
                if start < end:
                    chain = Chain(stages[start:end], self.run)
                    cursor = ChainCursor(self.ctx.member, self.ctx.cursors, cursor, chain, self.weight)
                if reading is not None:
                    cursor = await self.openers[type(reading)](self, reading, cursor)
                start = end + 1
        except BaseException:
            cursor.close()
            raise
        return cursor


Opener = Callable[[PipelineRun, Any, Cursor | None], Awaitable[Cursor]]
"""Makes the cursor of a stage that reads, over the cursor before it; None for a stage that begins a pipeline."""


def checked(raw: bytes) -> bytes:
    """Return a document that a pipeline made. 10334 if it is too large."""
    if len(raw) > MAX_BSON_SIZE:
        raise ReplError(
            f"a pipeline made a document of {len(raw)} bytes; {MAX_BSON_SIZE} are the most",
            code=ErrorCode.DOCUMENT_TOO_LARGE,
        )
    return raw


class ChainCursor(Cursor):
    """What comes out of a chain of stages over the documents of another cursor."""

    def __init__(self, member: Kernel, table: CursorTable, source: Cursor, chain: Chain, weight: int) -> None:
        super().__init__(source.ns)
        self.snapshot_at = source.snapshot_at
        self._member = member
        self._table = table
        self._source = source
        source.batch_bytes = SLICE_BYTES  # what is fed at once
        self._chain = chain
        self._weight = weight
        self._results: Iterator[bytes | None] | None = None
        """What comes of the documents that were fed last, or of the end."""
        self._fed_bytes = 0
        self._in_loop = False
        """Whether making these results is small work."""
        self._is_ending = self._is_over = self._is_working = self._is_closed = False
        self._waiting: list[bytes] = []
        """What came out and is still to be answered, the first document last."""

    async def batch(self, pause: Pause, limit: int | None, await_ms: int | None) -> list[bytes]:
        batch = Batch(self.batch_bytes, limit)
        while batch.fill(self._waiting) and not self._is_over:
            await self._go_on(pause)
        self.finished = self._is_over and not self._waiting
        return batch.documents

    async def _go_on(self, pause: Pause) -> None:
        """Feed the next documents, or end the chain behind the last, for one slice."""
        results = self._results or await self._next_results(pause)
        work = self._slice_of(results)
        self._is_working = True
        try:
            found, is_all = work() if self._in_loop else await run_in_thread(self._member, work)
        finally:
            self._is_working = False
            if self._is_closed:
                self._chain.close()
        if is_all:
            self._results, self._is_over = None, self._is_ending
        self.check_alive()
        self._waiting = found[::-1]
        self._table.set_memory(self, self._kept_bytes())
        await pause()
        self.check_alive()

    async def _next_results(self, pause: Pause) -> Iterator[bytes | None]:
        chain = self._chain
        if self._source.finished or chain.is_full:
            self._source.close()
            kept = chain.memory_bytes
            self._is_ending = True
            self._in_loop = chain.is_simple and kept <= _SMALL_END and is_small(self._weight, kept)
            self._results = chain.end()
        else:
            is_small_chain = chain.is_simple and chain.memory_bytes <= _SMALL_END
            # The way to the thread and back takes as long as some dozen documents.
            rows = await self._source.batch(pause, SLICE_DECODED if is_small_chain else SLICE_RAW, None)
            self._in_loop = is_small_chain and is_small(self._weight, max(map(len, rows), default=0))
            self._fed_bytes = sum(map(len, rows))
            self._results = chain.feed(rows)
        return self._results

    def _slice_of(self, results: Iterator[bytes | None]) -> Callable[[], tuple[list[bytes], bool]]:
        """Return the work of one slice: it returns some results, and whether they were the last."""

        def work() -> tuple[list[bytes], bool]:
            time_slice = TimeSlice(self._member.clock)
            found: list[bytes] = []
            size = 0
            for raw in results:
                if raw is not None:
                    found.append(checked(raw))
                    size += len(raw)
                if size > SLICE_BYTES or time_slice.is_over():
                    return found, False
            return found, True

        return work

    def _kept_bytes(self) -> int:
        return sum(map(len, self._waiting)) + (0 if self._is_over else self._chain.memory_bytes)

    def count_kept(self, table: CursorTable) -> None:
        table.set_memory(self, self._kept_bytes() + (0 if self._results is None else self._fed_bytes))
        self._source.count_kept(table)

    def close(self) -> None:
        super().close()
        self._source.killed = self.killed
        self._source.close()
        self._is_closed = True
        if not self._is_working:
            self._chain.close()


async def _resolve(ctx: CommandContext, name: str) -> tuple[str, list[object], int]:
    """Return the collection at the bottom of a view, the stages of the views on it, and how many views these are.

    A read at a point waits until the definitions are committed, as it waits for a collection.
    """
    elements: list[object] = []
    concern = read_concern_of(ctx)
    for views in range(MAX_DEPTH + 1):
        coll = collection_here(ctx, name)
        if coll is None or coll.view_on is None:
            return name, elements, views
        if ctx.transaction is None and concern.level in ("majority", "snapshot"):
            await open_collection(ctx, name, concern)
        elements = [*await _elements_of(ctx, coll), *elements]
        name = coll.view_on
    raise too_deep()


async def _elements_of(ctx: CommandContext, view: Collection) -> list[object]:
    return await read_statement(ctx.member, view.options, lambda: view.pipeline)

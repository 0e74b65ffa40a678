"""Runs the stages that read other collections: $lookup, $graphLookup and $unionWith, and a $facet that has one.

Each reads through `PipelineRun.open`, so with indexes, through views, and within the command's transaction. Where the
command reads at a point, they read at that point too.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from replset.bson import MAX_BSON_SIZE, Int64, RawDocument, decode, encode, encode_key
from replset.errors import ReplError
from replset.features.aggregation.pipeline_run import PipelineRun, checked
from replset.features.crud.scan import SLICE_BYTES, SLICE_DECODED, pause
from replset.operations.cursors import Cursor, CursorTable, DocumentsCursor, Pause
from replset.operations.evaluation import evaluate, run_in_thread
from replset.query.expressions import fault
from replset.query.order import MISSING
from replset.query.sorter import MAX_BYTES
from replset.query.stages.basic import MatchStage
from replset.query.stages.facet import ReadingFacetStage
from replset.query.stages.joins import GraphLookupStage, JoinStage, LookupStage, UnionWithStage, values_on
from replset.query.stages.stage import Stage
from replset.query.stages.unwind import UnwindStage, with_value

T = TypeVar("T")
KNOWN_BYTES: Final = 16 << 20
"""How many bytes of results a $lookup keeps for further documents with the same values."""
KNOWN_OVERHEAD: Final = 200
TURN_MS: Final = 10
"""How long documents are joined before others get a turn."""
MOST_ASKED: Final = 1000
"""Values that one read of a $lookup looks for."""


class RowCursor(Cursor):
    """A cursor that makes one document after the other."""

    kept_bytes = 0
    """What it keeps for the documents to come."""

    def __init__(self, run: PipelineRun, source: Cursor) -> None:
        super().__init__(source.ns)
        self.snapshot_at = source.snapshot_at
        self._run = run
        self._source = source
        self._waiting: list[bytes] = []
        """Documents of the source, the next one last."""
        self._ready: bytes | None = None
        # Where the command reads at a point, its later reads do too, when the source is over already.
        self._pin = None if run.at is None else run.ctx.member.store.pin(run.at)

    async def batch(self, pause: Pause, limit: int | None, await_ms: int | None) -> list[bytes]:
        documents: list[bytes] = []
        size = 0
        clock = self._run.ctx.member.clock
        until = clock.now() + TURN_MS
        while limit is None or len(documents) < limit:
            if self._ready is None:
                self._ready = await self._next(pause)
            if clock.now() >= until:
                await pause()
                self.check_alive()
                until = clock.now() + TURN_MS
            if self._ready is None:
                self.finished = True
                break
            size += len(self._ready) + 16
            if size > self.batch_bytes and documents:
                break
            documents.append(self._ready)
            self._ready = None
        return documents

    @abstractmethod
    async def _next(self, pause: Pause) -> bytes | None:
        """Return the next document, None behind the last."""

    async def _next_of_source(self, pause: Pause) -> bytes | None:
        """Return the next document of the source, None behind the last."""
        while not self._waiting and not self._source.finished:
            self._waiting = (await self._source.batch(pause, SLICE_DECODED, None))[::-1]
            self.check_alive()
            self.count_memory()
        return self._waiting.pop() if self._waiting else None

    def count_memory(self, size: int = 0) -> None:
        """Count what is kept, and `size` bytes for now. OverloadedError (462)."""
        self._run.ctx.cursors.set_memory(self, sum(map(len, self._waiting)) + self.kept_bytes + size)

    def count_kept(self, table: CursorTable) -> None:
        self.count_memory(0 if self._ready is None else len(self._ready))
        self._source.count_kept(table)

    def close(self) -> None:
        super().close()
        self._close(self._source)
        if self._pin is not None:
            self._pin.release()
            self._pin = None

    def _close(self, cursor: Cursor) -> None:
        cursor.killed = cursor.killed or self.killed
        cursor.close()


class UnionCursor(RowCursor):
    """The documents of a cursor, and behind them those of another pipeline."""

    def __init__(self, run: PipelineRun, stage: UnionWithStage, source: Cursor) -> None:
        super().__init__(run, source)
        self._stage: UnionWithStage | None = stage
        """None once its pipeline is the source."""

    async def _next(self, pause: Pause) -> bytes | None:
        found = await self._next_of_source(pause)
        if found is None and self._stage is not None:
            stage, self._stage = self._stage, None
            self._source.close()
            self._source = await self._run.inner({}).open(stage.source, stage.stages)
            self.check_alive()
            found = await self._next_of_source(pause)
        return found


class JoinCursor(RowCursor):
    """The documents of another cursor, each with an array of documents of another collection.

    Where an $unwind takes the array apart, with one of them after the other.
    """

    most_bytes = MAX_BSON_SIZE
    """How many bytes one read takes at most."""

    def __init__(self, run: PipelineRun, stage: JoinStage, source: Cursor) -> None:
        super().__init__(run, source)
        self._as = stage.name
        self._unwind = stage.unwind
        self._local: dict[str, Any] = {}
        """With an $unwind: the document of which the array is taken apart."""
        self._local_bytes = 0
        self._items: list[bytes] = []
        """What is still to come of its array, the next one last."""
        self._number = -1
        """The number of the next item; -1 where there is no document."""
        self._collection = stage.source
        self._view: Sequence[Stage] | None = None
        """The stages of the view that is joined, once they are known; none for a collection."""
        self._within = run.inner({})
        self._inner: Cursor | None = None
        """The cursor of the pipeline that is read; with an $unwind it stays open as long as an array goes on."""

    async def _next(self, pause: Pause) -> bytes | None:
        if self._unwind is not None:
            return await self._next_item(pause, self._unwind)
        raw = await self._next_local(pause)
        if raw is None:
            return None
        found = await self._found(pause, raw)
        size = sum(map(len, found))
        if size > MAX_BSON_SIZE:
            raise self.too_large()
        items = [RawDocument(one) for one in found]
        return await self._made(size + len(raw), lambda: encode(with_value(decode(raw), self._as, items)))

    async def _next_local(self, pause: Pause) -> bytes | None:
        raw = await self._next_of_source(pause)
        if raw is not None and self._view is None:
            name = self._collection
            self._collection, self._view = await self._within.through_views(name) if name else ("", ())
        return raw

    async def _next_item(self, pause: Pause, unwind: UnwindStage) -> bytes | None:
        """Return the next document with one item of its array in the place of the array, None behind the last."""
        while not self._items:
            if self._inner is not None:
                self._items = (await self._next_batch(pause, self._inner))[::-1]
            elif self._number == 0 and unwind.keeps_empty:
                return await self._unwound(unwind, MISSING, 0)
            else:
                raw = await self._next_local(pause)
                if raw is None:
                    return None
                self._local, self._local_bytes = await self._evaluate(dict, raw), len(raw)
                self._number = 0
                self._items = list(await self._found(pause, raw))[::-1]
        raw = self._items.pop()
        return await self._unwound(unwind, RawDocument(raw), len(raw))

    async def _unwound(self, unwind: UnwindStage, item: object, size: int) -> bytes:
        """Return the document with an item of so many bytes."""
        number, self._number = self._number, self._number + 1
        index = None if item is MISSING else number
        return await self._made(self._local_bytes + size, lambda: encode(unwind.with_item(self._local, item, index)))

    async def _made(self, size: int, work: Callable[[], bytes]) -> bytes:
        """Return the document that `work` makes of so many bytes."""
        made = work() if size < SLICE_BYTES else await run_in_thread(self._run.ctx.member, work)
        self.check_alive()
        return checked(made)

    async def _next_batch(self, pause: Pause, inner: Cursor) -> list[bytes]:
        """Return the next documents of the open pipeline, and close it behind the last."""
        rows = await inner.batch(pause, None, None)
        self.check_alive()
        self.count_memory(sum(map(len, rows)))
        if inner.finished:
            inner.close()
            self._inner = None
        return rows

    def count_memory(self, size: int = 0) -> None:
        super().count_memory(self._local_bytes + sum(map(len, self._items)) + size)

    @abstractmethod
    async def _found(self, pause: Pause, raw: bytes) -> Sequence[bytes]:
        """Return the documents that belong to this one; with an $unwind the first of them, while `_inner` is open."""

    async def _behind_view(self, run: PipelineRun, stages: Sequence[Stage]) -> Sequence[Stage]:
        """Return the stages of a pipeline over what is joined, behind those of the view that it may be."""
        return await run.rewritten([*self._view, *stages]) if self._view else stages

    def too_large(self) -> ReplError:
        return fault(
            4568, f"Total size of documents in a $lookup exceeds maximum document size of {MAX_BSON_SIZE} bytes"
        )

    async def _read(
        self, run: PipelineRun, pause: Pause, stages: Sequence[Stage], most_bytes: int | None = None
    ) -> list[bytes] | None:
        """Return all documents of a pipeline, None for more than `most_bytes` (default: then it fails)."""
        found: list[bytes] = []
        size = 0
        self._inner = inner = await run.open(self._collection, stages)
        try:
            while not inner.finished:
                rows = await inner.batch(pause, None, None)
                self.check_alive()
                found += rows
                size += sum(map(len, rows))
                if most_bytes is not None and size > most_bytes:
                    return None
                if size > self.most_bytes:
                    raise self.too_large()
                self.count_memory(size)
                if not inner.finished:
                    await pause()
        finally:
            inner.close()
            self._inner = None
        return found

    async def _evaluate(self, pure: Callable[[dict[str, Any]], T], raw: bytes) -> T:
        """Return what a pure function makes of a document, in the thread if that may be long."""
        (made,), _ = await evaluate(self._run.ctx.member, self._within.weight, [raw], lambda one: pure(decode(one)))
        self.check_alive()
        return made

    def close(self) -> None:
        super().close()
        if self._inner is not None:
            self._close(self._inner)


class AskedValues:
    """Values that were looked for. size: the bytes of their keys."""

    def __init__(self) -> None:
        self._keys: set[bytes] = set()
        self.size = 0

    def add(self, values: list[object]) -> list[object]:
        """Add values, and return those that are new."""
        found = []
        for value in values:
            key = encode_key(value)
            if key not in self._keys:
                self._keys.add(key)
                self.size += len(key)
                found.append(value)
        return found


class LookupCursor(JoinCursor):
    """$lookup. Documents with the same values are answered from memory as long as it is little."""

    def __init__(self, run: PipelineRun, stage: LookupStage, source: Cursor) -> None:
        super().__init__(run, stage, source)
        self._stage = stage
        self._known: dict[bytes, list[bytes]] = {}
        self._reads_ahead = stage.local is not None and stage.stages is None

    async def _found(self, pause: Pause, raw: bytes) -> list[bytes]:
        stage = self._stage
        values, variables = await self._evaluate(stage.question, raw)
        key = _key(values, variables)
        if self._reads_ahead and key not in self._known:
            await self._read_ahead(pause, [raw, *self._waiting[::-1]])
        if key in self._known:
            return self._known[key]
        run = self._within.inner(variables)
        run.weight += len(key)
        matched = [] if values is None else [MatchStage(stage.filter_of(values), run.scope)]
        own = stage.stages or []
        begin = 0 if stage.source else 1  # a pipeline without a collection begins with documents of its own
        stages = await self._behind_view(run, [*own[:begin], *matched, *own[begin:]])
        if stage.unwind is None:
            found = await self._read(run, pause, stages) or []
        else:
            self._inner = inner = await run.open(self._collection, stages)
            found = await self._next_batch(pause, inner)
        if stage.is_constant and self._inner is None:
            self._keep(key, found)
        return found

    async def _read_ahead(self, pause: Pause, rows: list[bytes]) -> None:
        """Read at once what belongs to these documents, as long as it is little: one read instead of one for each."""
        stage, member = self._stage, self._run.ctx.member
        asked, _ = await evaluate(member, self._within.weight, rows, lambda one: stage.question(decode(one))[0])
        self.check_alive()
        questions: dict[bytes, list[object]] = {}
        seen = AskedValues()
        every: list[object] = []
        for values in asked:
            key = _key(values, {})
            if values is None or key in self._known or key in questions:
                continue
            if len(every) + len(values) > MOST_ASKED:
                break
            questions[key] = values
            every += seen.add(values)
        if len(questions) < 2:
            return
        run = self._within.inner({})
        run.weight += seen.size
        stages = await self._behind_view(run, [MatchStage(stage.filter_of(every), run.scope)])
        found = await self._read(run, pause, stages, KNOWN_BYTES // 4)
        if found is None:
            self._reads_ahead = False
            return
        for key, belongs in (await run_in_thread(member, partial(stage.distribute, questions, found))).items():
            self._keep(key, belongs)
        self.check_alive()

    def _keep(self, key: bytes, found: list[bytes]) -> None:
        size = len(key) + sum(map(len, found)) + KNOWN_OVERHEAD
        if self.kept_bytes + size > KNOWN_BYTES:
            self._known, self.kept_bytes = {}, 0
        if size <= KNOWN_BYTES:
            self._known[key] = found
            self.kept_bytes += size


class GraphLookupCursor(JoinCursor):
    """$graphLookup: a search step by step, each with one read for all values that the step before has found."""

    most_bytes = MAX_BYTES

    def __init__(self, run: PipelineRun, stage: GraphLookupStage, source: Cursor) -> None:
        super().__init__(run, stage, source)
        self._stage = stage

    def too_large(self) -> ReplError:
        return fault(40099, "$graphLookup reached maximum memory consumption")

    async def _found(self, pause: Pause, raw: bytes) -> list[bytes]:
        stage = self._stage
        reached: dict[bytes, bytes] = {}
        asked = AskedValues()
        values = asked.add(await self._evaluate(stage.first_values, raw))
        depth = size = 0
        while values and (stage.max_depth is None or depth <= stage.max_depth):
            run = self._within.inner({})
            run.weight += asked.size
            following: list[object] = []
            stages = await self._behind_view(run, [MatchStage(stage.filter_of(values), run.scope)])
            rows = await self._read(run, pause, stages) or []
            while rows:
                step = partial(self._step, depth)
                steps, looked_at = await evaluate(self._run.ctx.member, self._within.weight, rows, step)
                rows = rows[looked_at:]
                for key, shown, linked in steps:
                    if key not in reached:
                        reached[key] = shown
                        following += asked.add(linked)
                        size += len(shown) + len(key)
                await pause()
                self.check_alive()
            if size + asked.size > MAX_BYTES:
                raise self.too_large()
            self.count_memory(size + asked.size)
            values = following
            depth += 1
            await pause()
        return list(reached.values())

    def _step(self, depth: int, raw: bytes) -> tuple[bytes, bytes, list[object]]:
        """Return the key of a document that was reached, what is shown of it, and the values that it leads to."""
        document = decode(raw)
        if "_id" not in document:
            raise fault(40271, "Documents must contain an _id for de-duplication in $graphLookup")
        stage = self._stage
        linked = list(values_on(document, stage.connect_from))
        shown = document if stage.depth_field is None else with_value(document, stage.depth_field, Int64(depth))
        return encode_key(document["_id"]), raw if shown is document else encode(shown), linked


def _key(values: list[object] | None, variables: dict[str, Any]) -> bytes:
    """Return the key of a question. A variable without a value is another one than null."""
    return encode({"values": values, "let": {name: v for name, v in variables.items() if v is not MISSING}})


async def open_facet(run: PipelineRun, stage: ReadingFacetStage, source: Cursor | None) -> Cursor:
    """Run the pipelines of a $facet one after the other over the same documents, which are kept meanwhile."""
    assert source is not None
    kept = DocumentsCursor(source.ns, [])
    document: dict[str, list[RawDocument]] = {}
    try:
        rows = await _all_of(run, source, kept)
        for name, stages in stage.pipelines.items():
            cursor = await run.over(DocumentsCursor(source.ns, rows), stages)
            document[name] = [RawDocument(raw) for raw in await _all_of(run, cursor, kept)]
        return DocumentsCursor(source.ns, [await run_in_thread(run.ctx.member, lambda: encode(document))])
    finally:
        kept.close()


async def _all_of(run: PipelineRun, cursor: Cursor, kept: Cursor) -> list[bytes]:
    """Return all documents of a cursor, and close it. kept: counts the memory; 4031700 over 100 MiB."""
    rows: list[bytes] = []
    try:
        while not cursor.finished:
            found = await cursor.batch(partial(pause, run.ctx), None, None)
            rows += found
            run.ctx.cursors.set_memory(kept, kept.memory_bytes + sum(map(len, found)))
            if kept.memory_bytes > MAX_BYTES:
                raise fault(4031700, f"a $facet that reads other collections takes more than {MAX_BYTES} bytes")
            await pause(run.ctx)
    finally:
        cursor.close()
    return rows


async def open_lookup(run: PipelineRun, stage: LookupStage, source: Cursor | None) -> Cursor:
    assert source is not None
    stage.start(run.run)
    return LookupCursor(run, stage, source)


async def open_graph_lookup(run: PipelineRun, stage: GraphLookupStage, source: Cursor | None) -> Cursor:
    assert source is not None
    stage.start(run.run)
    return GraphLookupCursor(run, stage, source)


async def open_union(run: PipelineRun, stage: UnionWithStage, source: Cursor | None) -> Cursor:
    assert source is not None
    return UnionCursor(run, stage, source)

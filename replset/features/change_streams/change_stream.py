"""Change streams: `aggregate` with $changeStream, whose cursor tails the events of the set (map X2).

The stages behind $changeStream look at one event alone. The token of an event is its `_id`, which they must keep. Each
batch says where the stream is (`postBatchResumeToken`), also when nothing in it concerned the client.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Sequence
from typing import Final

from replset.auth.roles import Action
from replset.bson import MAX_INTERNAL_SIZE, RawDocument
from replset.errors import ErrorCode, InvalidNamespaceError, InvalidOptionsError, ReplError
from replset.features.change_streams.event_reader import PAGE_EVENTS, EventOptions, EventReader, ToldEvent
from replset.ids import OpTime
from replset.member.feature import FeaturePart
from replset.operations import fields
from replset.operations.authorization import authorize
from replset.operations.command import CommandContext
from replset.operations.cursors import Cursor, CursorTable, Pause
from replset.operations.evaluation import UNBOUNDED, evaluate
from replset.operations.history import History
from replset.operations.namespaces import INTERNAL_DATABASES, collection_field, namespace, refuse_view
from replset.operations.read_concern import ReadConcern, read_concern_of, read_point
from replset.operations.slow_operations import WORK
from replset.query.change_events import Watched
from replset.query.change_tokens import Kind, Token, behind
from replset.query.row import Row
from replset.query.stages.changes import ChangeStreamStage, SplitStage, split_event
from replset.query.stages.stage import Chain, Run, Stage

AWAIT_MS: Final = 1_000
KEPT_BYTES: Final = 1 << 20
"""What a stream keeps between two batches at most; more is read again. Parts of one event stay together."""
MORE_MS: Final = 5
"""How long a batch goes on to read for more, once it has an event."""
SHOWN_AT_ONCE: Final = 8
"""Events between two looks at how many bytes the stages have made of them."""


class ChangeStreamCursor(Cursor):
    """Gives events behind a token, forever or until what it follows is gone."""

    def __init__(
        self, ns: str, ctx: CommandContext, options: EventOptions, start: Token, stages: Sequence[Stage], weight: int
    ) -> None:
        super().__init__(ns)
        member = ctx.member
        self.await_data = True
        self.is_change_stream = True
        self._member = member
        self._reader = EventReader(member, options)
        self._splits = bool(stages) and isinstance(stages[-1], SplitStage)
        shown = stages[:-1] if self._splits else stages
        self._chain = Chain(shown, Run(rng=member.rng)) if shown else None
        self._weight = 0 if self._chain is None else weight if self._chain.is_simple else UNBOUNDED
        self._at = _read_from(start)
        """Behind it the next read begins."""
        self._passed = start
        """Up to here everything was answered, or does not concern the client."""
        self._waiting: deque[tuple[Token, bytes]] = deque()
        self._is_over = self._began = False

    async def batch(self, pause: Pause, limit: int | None, await_ms: int | None) -> list[bytes]:
        now = asyncio.get_running_loop().time
        is_first, self._began = not self._began, True
        deadline = now() + (AWAIT_MS if await_ms is None else await_ms) / 1000
        documents: list[bytes] = []
        size = 0
        must_pause = False
        while limit is None or len(documents) < limit:
            self.check_alive()
            if self._waiting:
                size += len(self._waiting[0][1]) + 16
                if size > self.batch_bytes and documents:
                    break
                if not documents:
                    deadline = min(deadline, now() + MORE_MS / 1000)
                self._passed, raw = self._waiting.popleft()
                documents.append(raw)
                continue
            # What is committed meanwhile comes with the next batch: an event must not wait for those behind it.
            is_at_end = self._reader.is_at_end(self._at)
            if self._is_over or (is_at_end and (documents or is_first or not await self._wait(deadline))):
                break
            if must_pause:
                if now() >= deadline:
                    break
                await pause()
            must_pause = await self._read(PAGE_EVENTS if limit is None else limit - len(documents))
            if not (must_pause or is_at_end):
                break
        if not self._waiting:
            self._passed = max(self._passed, self._at)
            self.finished = self._is_over
        self.resume_token = self._passed.document()
        return documents

    def count_kept(self, table: CursorTable) -> None:
        """Keep nothing large, and nothing for which there is no room: it is read again then."""
        size = self._reader.kept_bytes + sum(len(raw) for _, raw in self._waiting)
        is_within = bool(self._waiting) and self._waiting[0][0].fragment > 1
        if (size > KEPT_BYTES and not is_within) or not table.has_room(self, size):
            self._waiting.clear()
            self._reader.drop_page()
            self._at, self._is_over, size = _read_from(self._passed), False, 0
        table.set_memory(self, size)

    async def _read(self, wanted: int) -> bool:
        """Read on. False: there is nothing more yet."""
        limit = min(wanted, PAGE_EVENTS) if self._chain is None else PAGE_EVENTS
        told, reached = await self._reader.read(self._at, limit=limit)
        before, self._at = self._at, await self._show(told, reached)
        self.check_alive()
        return self._at != before

    async def _wait(self, deadline: float) -> bool:
        """Wait for more, until a time of the event loop. False: it is over."""
        began = self._member.clock.now()
        left_ms = math.ceil((deadline - asyncio.get_running_loop().time()) * 1000)
        if left_ms <= 0:
            return False
        self._at = await self._reader.wait(self._at, left_ms)
        if (work := WORK.get()) is not None:
            work.idle_ms += self._member.clock.now() - began
        return True

    async def _show(self, told: list[ToldEvent], reached: Token) -> Token:
        """Let events through the stages, and keep what comes out. Return where the next read begins: at `reached`, or
        behind the last event that was shown, once what is kept fills a batch.
        """
        left, size = told, 0
        while left:
            part = [event.raw for event in left[:SHOWN_AT_ONCE]]
            shown, looked_at = await evaluate(self._member, self._weight, part, self._shown)
            for event, results in zip(left, shown, strict=False):
                for raw in results:
                    self._keep(event, raw)
                    size += len(raw)
                self._is_over |= event.is_last
            if size >= self.batch_bytes and looked_at < len(left):
                return left[looked_at - 1].token
            left = left[looked_at:]
        return reached

    def _shown(self, raw: bytes) -> list[bytes]:
        if self._chain is None:
            return [raw]
        return [row.raw for row in self._chain.take(Row(raw)) if row is not None]

    def _keep(self, event: ToldEvent, raw: bytes) -> None:
        if self._chain is not None:
            _check_token(event, raw)
        if self._splits:
            after = self._passed
            self._waiting.extend(part for part in split_event(raw, event.token) if part[0] > after)
        elif len(raw) > MAX_INTERNAL_SIZE:
            raise ReplError(
                f"a change event of {len(raw)} bytes is too large; $changeStreamSplitLargeEvent would cut it",
                code=ErrorCode.DOCUMENT_TOO_LARGE,
            )
        else:
            self._waiting.append((event.token, raw))


def _read_from(token: Token) -> Token:
    """Where to read on behind the token: in front of an event that was answered in part."""
    return token._replace(kind=Kind.BEFORE, fragment=0) if token.fragment else token


def _check_token(event: ToldEvent, shown: bytes) -> None:
    """Raise 280 if the stages took the token away or changed it: nobody could resume behind this event."""
    before, after = RawDocument(event.raw).get_raw("_id"), RawDocument(shown)
    if after.get_raw("_id") != before:
        found = repr(after.get("_id")) if "_id" in after else "no _id"
        raise ReplError(
            "Encountered an event whose _id field, which contains the resume token, was modified by the pipeline."
            " Modifying the _id field of an event makes it impossible to resume the stream from that point. Only"
            f" transformations that retain the unmodified _id field are allowed. Expected: {event.token}, found:"
            f" {found:.200}",
            code=ErrorCode.CHANGE_STREAM_FATAL,
        )


# --- opening ----------------------------------------------------------------------------------------------------


class ChangeStreams(FeaturePart):
    """On a member that has change streams: aggregate opens them here."""

    async def open(self, ctx: CommandContext, stages: Sequence[Stage], weight: int) -> tuple[Cursor, OpTime | None]:
        """Open the stream of a pipeline that begins with $changeStream."""
        stage = stages[0]
        assert isinstance(stage, ChangeStreamStage)
        scope, ns = _scope_of(ctx, stage)
        authorize(ctx.member, ctx.sender, Action.CHANGE_STREAM, scope.database, ctx.name)
        after = _read_concern(ctx).after
        options = EventOptions(scope, stage.full_document, stage.before_change, stage.expanded)
        start = stage.from_token
        if start is None:
            # A stream that begins now must not miss what is acknowledged from now on, nor show what was written before.
            # So it begins behind this member's newest entry, once that is committed.
            after = max(after or 0, ctx.member.store.last_applied.ts)
        point = await read_point(ctx, ReadConcern("majority", after))
        if start is None:
            start = behind(point or ctx.member[History].committed)
        elif start.is_event and not (
            isinstance(stages[-1], SplitStage) >= bool(start.fragment)
            and await EventReader(ctx.member, options).knows(start)
        ):
            raise ReplError(
                f"cannot resume stream; the resume token was not found. {start.document()}: no event of this stream has"
                " it",
                code=ErrorCode.CHANGE_STREAM_FATAL,
            )
        elif stage.is_resumed or start.ts <= ctx.member[History].committed.ts:
            await ctx.member[History].after(start.read_after, limit=1)  # 286 at once if that is gone
        return ChangeStreamCursor(ns, ctx, options, start, stages[1:], weight), point


def _read_concern(ctx: CommandContext) -> ReadConcern:
    if ctx.in_transaction:
        raise ReplError(
            "Stage not supported inside of a multi-document transaction: $changeStream",
            code=ErrorCode.OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
        )
    concern = read_concern_of(ctx)
    if concern.level != "majority" and _has_level(ctx.body):
        raise InvalidOptionsError(
            "$changeStream cannot run with a readConcern other than 'majority', or in a multi-document transaction."
            f" Current readConcern: {concern.level}"
        )
    return concern


def _has_level(body: RawDocument) -> bool:
    given = fields.document(body, "readConcern", "aggregate")
    return given is not None and "level" in given


def _scope_of(ctx: CommandContext, stage: ChangeStreamStage) -> tuple[Watched, str]:
    """What is followed, and the namespace of the cursor. 72 and 73 for what cannot be followed."""
    body, name, database = ctx.body, ctx.name, ctx.database
    is_whole = body.type_of(name) != 2
    if stage.is_of_deployment:
        if not is_whole or database != "admin":
            raise InvalidOptionsError(
                "A $changeStream with 'allChangesForCluster:true' may only be opened on the 'admin' database, and with"
                f" no collection name; found {database}.{'$cmd.aggregate' if is_whole else body.get(name)}"
            )
        return Watched(), "admin.$cmd.aggregate"
    if database in INTERNAL_DATABASES or database == "admin":
        raise InvalidNamespaceError(f"$changeStream may not be opened on the internal {database} database")
    if is_whole:
        return Watched(database), f"{database}.$cmd.aggregate"
    collection = collection_field(body, name)
    ns = namespace(database, collection)
    if collection.startswith("system."):
        raise InvalidNamespaceError(f"$changeStream may not be opened on the internal {ns} collection")
    refuse_view(ctx.member.store.collection(ns))
    return Watched(database, collection), ns

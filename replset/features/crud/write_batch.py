"""Runs the statements of insert, update and delete in order, in limited groups, and builds the reply.

A command is one `Batch`. The member runs it inside a group commit as long as its share of the event loop allows, and
again in later groups until all statements are done. A statement that fails becomes a write error at its index.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from replset.bson import MAX_WRITE_BATCH, RawDocument, encode
from replset.errors import BadValueError, ErrorCode, NotWritablePrimaryError, PrimarySteppedDownError, ReplError, Trait
from replset.features.crud.retryable import Executed, RetryableWrite
from replset.features.crud.scan import pause
from replset.features.crud.validators import Validator, validator_of
from replset.ids import OPTIME_NULL, OpTime
from replset.operations import fields
from replset.operations.command import CommandContext
from replset.operations.evaluation import SMALL_STATEMENT, run_in_thread
from replset.operations.namespaces import collection_of, refuse_view, writable_namespace
from replset.operations.replies import LargeReply, encode_write_reply, write_times
from replset.operations.request import Reply
from replset.operations.transactions import TransactionTable
from replset.operations.write_concern import note_awaited, wait_for_write_concern, write_concern_of
from replset.optime import optime_document
from replset.replication.held_keys import Place
from replset.replication.write_ops import WriteGroup, do_create
from replset.storage.catalog import Collection

T = TypeVar("T")
GROUP_STATEMENTS = 500
"""Statements of one command in one group; each costs some 20 to 60 microseconds of the loop."""
GROUP_BYTES = 2 << 20
GROUP_MS = 10
"""What one command takes of one group; the commit comes on top."""
TURN_BYTES = 128 << 10
"""How many bytes of documents or statements a command reads in one turn: 250 usual ones take 1 to 4 ms."""
LEAST_BYTES = 256
"""What each of them counts there beside its own bytes."""
ERROR_BYTES = 1 << 20
"""How many bytes of write errors a reply has; later ones only name the statement and the code, as in MongoDB."""


@dataclass(slots=True)
class Committed:
    """What of a command is committed for certain. index: of the statement that comes next, or is under way."""

    index: int
    counters: tuple[tuple[str, int], ...]
    extra: dict[str, object]
    errors: list[dict[str, object]]
    optime: OpTime


class Batch(ABC):
    """The statements of one write command and how far they are."""

    def __init__(self, ctx: CommandContext, size: int, ns: str | None = None) -> None:
        """ns: to write to, which is checked already; None: the collection that the command names."""
        body, name = ctx.body, ctx.name
        if not 1 <= size <= MAX_WRITE_BATCH:
            raise BadValueError(
                f"Write batch sizes must be between 1 and {MAX_WRITE_BATCH}. Got {size} operations.",
                code=ErrorCode.INVALID_LENGTH,
            )
        self.ctx = ctx
        self.ns = writable_namespace(ctx.database, collection_of(ctx)) if ns is None else ns
        self.ordered = fields.boolean(body, "ordered", name, True)
        self.validates = not fields.boolean(body, "bypassDocumentValidation", name)
        self.size = size
        self.index = 0
        self.n = 0
        self.errors: list[dict[str, object]] = []
        self.error_bytes = 0
        self.optime = OPTIME_NULL
        self.term = 0
        self.stopped = False
        self.committed: Committed | None = None
        session = ctx.session
        self.retry = RetryableWrite(ctx, session, size) if session and session.is_retryable_write else None
        self.blocked_by: Place | None = None
        """The document of a transaction at which the last group had to stop."""
        self.thread_work: Callable[[], None] | None = None
        """What has to be evaluated before the next group: it takes longer than a group has."""

    def outcome(self) -> Committed:
        """What the whole command did, now or in an earlier attempt whose answer is kept."""
        if self.retry is not None and self.retry.answer is not None:
            return Committed(self.size, (), self.retry.answer, [], self.optime)
        return Committed(self.index, self.counters(), self.extra(), self.errors, self.optime)

    def note_committed(self) -> None:
        """A group of this command is committed: what is done so far stays, whatever becomes of the next one."""
        self.committed = Committed(self.index, self.counters(), self.extra(), list(self.errors), self.optime)

    def __call__(self, group: WriteGroup) -> bool:
        """Go on in this group; True once all is done. Runs on the event loop, without await.

        Raises NotWritablePrimaryError in a later term than the groups before. Those groups may have been rolled back
        meanwhile. The write concern of the last entry would not cover them: the reply would acknowledge lost writes.
        """
        if self.term not in (0, group.term):
            raise NotWritablePrimaryError()
        self.term = group.term
        if self.retry is not None and not self.retry.begin(group):
            return False
        self.blocked_by = None
        try:
            return self._go_on(group)
        finally:
            group.session_write = None
            # Of a write that changed nothing, too: its answer follows from what is here, which a rollback could take
            # back, so that it waits for the newest entry (map W7).
            self.optime = group.txn.last

    def _go_on(self, group: WriteGroup) -> bool:
        retry = self.retry
        if retry is not None and retry.answer is not None:
            return True
        try:
            refuse_view(group.txn.catalog.by_ns.get(self.ns))
        except ReplError as error:
            self._fail_all(error)
        else:
            self.run(group)
        is_done = self.stopped or self.index >= self.size
        if is_done and retry is not None and retry.is_keyed and self.keeps_answer:
            errors = {"writeErrors": self.errors} if self.errors else {}
            answer = {**dict(self.counters()), **self.extra(), **errors}
            answer.pop("retriedStmtIds", None)
            retry.record_answer(group, answer)
        return is_done

    @property
    def keeps_answer(self) -> bool:
        """Whether the counters are the whole answer, which can then be kept for retries."""
        return True

    @abstractmethod
    def run(self, group: WriteGroup) -> None:
        """Do statements from `index` on, as many as one group may take; each moves `index` on or calls `failed`."""

    @abstractmethod
    def counters(self) -> tuple[tuple[str, int], ...]:
        """The reply's counters: n and what goes with it."""

    def extra(self) -> dict[str, object]:
        """More fields of the reply, between the counters and the write errors."""
        return {"retriedStmtIds": list(self.retry.retried)} if self.retry and self.retry.retried else {}

    @abstractmethod
    def answer(self, executed: Executed) -> None:
        """Count the statement at `index` as it was counted when it was executed."""

    def was_executed(self) -> bool:
        """Whether the statement at `index` was executed by an earlier attempt. Then it is answered, and over."""
        executed = None if self.retry is None else self.retry.executed(self.index)
        if executed is None:
            return False
        self.answer(executed)
        self.index += 1
        return True

    def failed(self, error: ReplError) -> None:
        """The statement at `index` failed; an ordered command stops there."""
        row = {"index": self.index, "code": error.code, **error.details, "errmsg": error.message}
        self.error_bytes += len(encode(row))
        if self.error_bytes > ERROR_BYTES:
            row = {"index": self.index, "code": error.code, "errmsg": ""}
        self.errors.append(row)
        self.index += 1
        if self.ordered:
            self.stopped = True

    def _fail_all(self, error: ReplError) -> None:
        """Fail the next statements, as many as a group takes; what an earlier attempt executed is answered."""
        last = min(self.size, self.index + GROUP_STATEMENTS)
        while self.index < last and not self.stopped:
            if not self.was_executed():
                self.failed(error)

    def validator_of(self, coll: Collection | None) -> Validator | None:
        """What documents that this command writes into the collection must satisfy."""
        return validator_of(coll, self.ctx.member) if self.validates else None

    def collection(self, group: WriteGroup) -> Collection:
        """The collection, created now if it is not there."""
        coll = group.txn.catalog.by_ns.get(self.ns)
        return do_create(group, self.ns) if coll is None else coll


async def run_groups(batch: Batch) -> None:
    """Run the batch in one group after the other until it is done. What takes long is evaluated between two groups.

    A retryable write runs while no other command writes in its session.
    """
    ctx, retry = batch.ctx, batch.retry
    coll = ctx.member.store.collection(batch.ns)
    if coll is not None and coll.has_validator and len(coll.options.raw) > SMALL_STATEMENT:
        await run_in_thread(ctx.member, partial(batch.validator_of, coll))  # compiles it, if that is to be done
    if retry is None:
        while not await ctx.write(batch):
            await _between_groups(batch)
        return
    if not ctx.sessions.check_out_now(retry.key):
        await ctx.sessions.check_out(retry.key, ctx.left_ms)
    ctx.has_written = True  # for who is killed from here on: the group under way may be committed
    try:
        # Again: a transaction of the session may have begun while this write waited. Committed behind it, its older
        # number would be the record's, and a retry of this write would be applied.
        ctx.member[TransactionTable].check_retryable_write(retry.key, retry.number)
        while not await ctx.write(batch):
            await _between_groups(batch)
    except ReplError:
        ctx.has_written = batch.committed is not None
        raise
    finally:
        ctx.sessions.check_in(retry.key)


async def _between_groups(batch: Batch) -> None:
    """Do what has to be done before the batch's next group."""
    ctx, member, retry = batch.ctx, batch.ctx.member, batch.retry
    if retry is not None and retry.unread is not None:
        await retry.read_chain()
        return
    if batch.index or not batch.blocked_by:
        batch.note_committed()
    ctx.check_deadline()
    if batch.blocked_by is not None:
        await ctx.wait_until_free(batch.blocked_by)
    work, batch.thread_work = batch.thread_work, None
    if work is not None:
        await run_in_thread(member, work)


async def run_batch(batch: Batch) -> Reply:
    """Run all statements, wait for the write concern, build the reply.

    A failure before anything was committed is an error reply. After the first group is committed, a stepdown answers
    189 with the counters so far, and another failure is a write error of the statement under way. The client must not
    think that nothing of the command was applied, or it would send the same writes again.
    """
    ctx = batch.ctx
    concern = write_concern_of(ctx)
    if ctx.transaction is None:
        note_awaited(ctx.member, concern)
    try:
        await run_groups(batch)
    except ReplError as error:
        if batch.committed is None or ctx.transaction is not None:  # a transaction ends with it
            raise
        if batch.retry is not None and error.has(Trait.SHUTDOWN):
            raise  # labelled, it makes the client go on with the rest
        done = batch.committed
        if isinstance(error, NotWritablePrimaryError):
            raise PrimarySteppedDownError(
                f"the primary stepped down after {done.index} of {batch.size} statements",
                details={**dict(done.counters), "opTime": optime_document(done.optime)},
            ) from error
        done.errors.append({"index": done.index, "code": error.code, "errmsg": error.message})
    else:
        done = batch.outcome()
    errors = done.errors
    failure = await wait_for_write_concern(ctx, done.optime, concern)
    if failure is None and not errors and not done.extra:
        return encode_write_reply(done.counters, done.optime, batch.term)
    reply: dict[str, object] = {**dict(done.counters), **done.extra}
    if errors:
        reply["writeErrors"] = errors
    if failure is not None:
        reply["writeConcernError"] = failure
    reply |= write_times(done.optime, batch.term)
    return reply if batch.size <= GROUP_STATEMENTS else LargeReply(reply)


async def read_statements(ctx: CommandContext, name: str) -> Sequence[RawDocument]:
    """The statements of the command, from the sequence or the body."""

    read = partial(fields.documents, ctx.body, ctx.request.sequences, name, ctx.name)
    return read() if len(ctx.body.raw) <= SMALL_STATEMENT else await run_in_thread(ctx.member, read)


async def parse_in_slices(
    ctx: CommandContext, documents: Sequence[RawDocument], parse: Callable[[RawDocument], T]
) -> list[T]:
    """`parse` of each document, giving others a turn in between."""
    parsed: list[T] = []
    are_little = True
    size = 0  # since the last turn
    for document in documents:
        if size > TURN_BYTES:
            await pause(ctx)
            size = 0
        size += len(document.raw) + LEAST_BYTES
        is_little = len(document.raw) <= SMALL_STATEMENT
        are_little = are_little and is_little
        parsed.append(parse(document) if is_little else await run_in_thread(ctx.member, partial(parse, document)))
    if are_little:
        ctx.work.note_parts(0)  # they are compiled one by one
    return parsed

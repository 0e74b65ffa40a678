"""What insert, update and delete share: statements run in order, in bounded groups, each failing alone; the reply.

A command is one `Batch`: the member runs it inside a group, as long as its share of the event loop allows, and again
in a later group until all statements are done. A statement that fails becomes a write error at its index.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from replset.bson import MAX_WRITE_BATCH, RawDocument, encode
from replset.commands import fields
from replset.commands.command import CommandContext
from replset.commands.namespaces import collection_field, writable_namespace
from replset.commands.ports import Reply, Writing
from replset.commands.replies import election_id, hot_reply, optime_document, timestamp
from replset.commands.scan import breathe, candidate_keys, matcher_of
from replset.commands.write_concern import concern_of, wait_for
from replset.errors import (
    BadValueError,
    NotWritablePrimaryError,
    OutOfDiskSpaceError,
    PrimarySteppedDownError,
    ReplError,
    StorageError,
    UnknownFieldError,
)
from replset.ids import OPTIME_NULL, OpTime
from replset.query.regex import begin_turn, turn_is_over
from replset.replication.write_ops import do_create
from replset.storage.catalog import Collection
from replset.storage.txn import Txn

T = TypeVar("T")
GROUP_STATEMENTS = 500
"""Statements of one command in one group; each costs some 20 to 60 microseconds of the loop."""
GROUP_DOCUMENTS = 200
"""Documents that one group decodes and matches for one command."""
GROUP_BYTES = 2 << 20
ERROR_BYTES = 1 << 20
"""Of write errors in one reply; the later ones say only which statement failed with which code, as in MongoDB."""


@dataclass(frozen=True, slots=True)
class Committed:
    """What of a command is committed for certain. index: of the statement that comes next, or is under way."""

    index: int
    counters: tuple[tuple[str, int], ...]
    extra: dict[str, object]
    errors: list[dict[str, object]]
    optime: OpTime


class Batch(ABC):
    """The statements of one write command and how far they are."""

    __slots__ = (
        "committed",
        "ctx",
        "error_bytes",
        "errors",
        "index",
        "n",
        "ns",
        "optime",
        "ordered",
        "size",
        "stopped",
        "term",
    )

    def __init__(self, ctx: CommandContext, size: int) -> None:
        body, name = ctx.body, ctx.name
        if not 1 <= size <= MAX_WRITE_BATCH:
            raise BadValueError(
                f"Write batch sizes must be between 1 and {MAX_WRITE_BATCH}. Got {size} operations.", code=16
            )
        self.ctx = ctx
        self.ns = writable_namespace(ctx.database, collection_field(body, name))
        self.ordered = fields.boolean(body, "ordered", name, True)
        self.size = size
        self.index = 0
        self.n = 0
        self.errors: list[dict[str, object]] = []
        self.error_bytes = 0
        self.optime = OPTIME_NULL
        self.term = 0
        self.stopped = False
        self.committed: Committed | None = None

    def note_committed(self) -> None:
        """A group of this command is committed: what is done so far stays, whatever becomes of the next one."""
        self.committed = Committed(self.index, self.counters(), self.extra(), list(self.errors), self.optime)

    def __call__(self, writing: Writing) -> bool:
        """Go on in this group; True once all is done. Runs on the event loop, without await.

        NotWritablePrimaryError in a later term than the groups before: they may have been rolled back meanwhile, and
        the write concern of what came last would say nothing of them.
        """
        if self.term not in (0, writing.term):
            raise NotWritablePrimaryError(primary=None)
        self.term = writing.term
        try:
            self.run(writing)
        finally:
            self.optime = writing.txn.last
        return self.stopped or self.index >= self.size

    @abstractmethod
    def run(self, writing: Writing) -> None:
        """Do statements from `index` on, as many as one group may take; each moves `index` on or calls `failed`."""

    @abstractmethod
    def counters(self) -> tuple[tuple[str, int], ...]:
        """The reply's counters: n and what goes with it."""

    def extra(self) -> dict[str, object]:
        """More fields of the reply, between the counters and the write errors."""
        return {}

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

    def collection(self, writing: Writing) -> Collection:
        """The collection, created now if it is not there."""
        coll = writing.txn.catalog.by_ns.get(self.ns)
        return do_create(writing, self.ns) if coll is None else coll


def check_options(ctx: CommandContext, not_built: tuple[str, ...]) -> None:
    """Options that a client may send empty, and that are refused by name when they say something."""
    for name in not_built:
        if name in ctx.body and fields.given(ctx.body, name):
            raise UnknownFieldError(f"{ctx.name}.{name} is not built yet")


async def run_batch(batch: Batch) -> Reply:
    """Run all statements, wait for the write concern, build the reply.

    What fails before anything was committed is an error. Later, a stepdown is 189 with what was done in its details,
    and another failure is a write error of the statement that was under way: the client must not take the command for
    one that never was.
    """
    ctx = batch.ctx
    concern = concern_of(ctx)
    member = ctx.member
    try:
        while not await member.write(batch):
            batch.note_committed()
            ctx.check_deadline()
    except ReplError as error:
        if batch.committed is None:
            raise
        done = batch.committed
        if isinstance(error, NotWritablePrimaryError):
            raise PrimarySteppedDownError(
                f"the primary stepped down after {done.index} of {batch.size} statements",
                details={**dict(done.counters), "opTime": optime_document(done.optime)},
            ) from error
        done.errors.append({"index": done.index, "code": error.code, "errmsg": error.message})
    else:
        done = Committed(batch.index, batch.counters(), batch.extra(), batch.errors, batch.optime)
    errors = done.errors
    failure = await wait_for(ctx, done.optime, concern)
    if failure is None and not errors and not done.extra:
        return hot_reply(done.counters, done.optime, batch.term)
    reply: dict[str, object] = {**dict(done.counters), **done.extra}
    if errors:
        reply["writeErrors"] = errors
    if failure is not None:
        reply["writeConcernError"] = failure
    return reply | write_times(done.optime, batch.term)


def write_times(optime: OpTime, term: int) -> dict[str, object]:
    """opTime, electionId and operationTime of a write's reply."""
    return {
        "opTime": optime_document(optime),
        "electionId": election_id(term),
        "operationTime": timestamp(optime.ts),
    }


def sub_documents(ctx: CommandContext, name: str) -> list[RawDocument]:
    """The statements of the command, from the sequence or the body."""
    return list(fields.documents(ctx.body, ctx.request.sequences, name, ctx.name))


async def in_slices(ctx: CommandContext, documents: list[RawDocument], parse: Callable[[RawDocument], T]) -> list[T]:
    """`parse` of each document, giving others a turn in between."""
    parsed: list[T] = []
    for begin in range(0, len(documents), GROUP_STATEMENTS):
        if begin:
            await breathe(ctx)
        parsed += [parse(document) for document in documents[begin : begin + GROUP_STATEMENTS]]
    return parsed


class Search:
    """Where an update or delete statement looks: a few keys, or all documents behind `after`."""

    __slots__ = ("after", "keys", "matcher")

    def __init__(self, query: dict[str, object]) -> None:
        """Compiles the filter; raises what compile_filter raises."""
        self.matcher = matcher_of(query)
        self.keys = candidate_keys(self.matcher)
        if self.keys is not None:
            self.keys.reverse()
        self.after = b""

    def candidates(self, txn: Txn, coll: Collection) -> Iterator[tuple[bytes, bytes]]:
        """(key, document) from where the last group stopped."""
        keys = self.keys
        if keys is None:
            for key, raw in txn.scan(coll, self.after):
                self.after = key
                yield key, raw
            return
        while keys:
            key = keys.pop()
            found = txn.get(coll, key)
            if found is not None:
                yield key, found


class SearchingBatch(Batch):
    """Statements that look for documents. Each is parsed when its turn comes, and may go on over several groups."""

    __slots__ = ("matched", "search")

    def __init__(self, ctx: CommandContext, size: int) -> None:
        super().__init__(ctx, size)
        self.search: Search | None = None
        self.matched = False

    @abstractmethod
    def begin(self) -> Search:
        """Compile the statement at `index`."""

    @abstractmethod
    def go_on(self, writing: Writing, search: Search, budget: int) -> tuple[int, bool]:
        """Work on the statement; (documents looked at, at most `budget`; whether it is done)."""

    def run(self, writing: Writing) -> None:
        budget = GROUP_DOCUMENTS
        begin_turn()
        for _ in range(GROUP_STATEMENTS):
            if self.index >= self.size or self.stopped or budget <= 0 or turn_is_over():
                return
            mark = writing.txn.mark()
            try:
                search = self.search = self.search or self.begin()
                looked_at, is_done = self.go_on(writing, search, budget)
            except (StorageError, OutOfDiskSpaceError):
                raise
            except ReplError as error:
                writing.txn.back_to(mark)
                self.end()
                self.failed(error)
                continue
            budget -= looked_at
            if is_done:
                self.end()
                self.index += 1

    def end(self) -> None:
        """The statement is over, one way or the other."""
        self.search = None
        self.matched = False

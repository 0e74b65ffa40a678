"""Finds the documents that a statement of update, delete or findAndModify means, in limited groups.

A statement may look at more documents than one group can. Its `Search` says where the next group goes on.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, Final

from replset.bson import decode, encode
from replset.errors import (
    DocumentHeldError,
    OutOfDiskSpaceError,
    QueryPlanKilledError,
    ReplError,
    StorageError,
    WriteConflictError,
)
from replset.features.crud.candidates import Candidate, KeySource, Source, source_of, view_of
from replset.features.crud.filters import Filter
from replset.features.crud.hint import Hint
from replset.features.crud.let import let_weight
from replset.features.crud.plan import AnyOf, ByIndex, Natural, choose_plan, index_names
from replset.features.crud.retryable import Executed
from replset.features.crud.scan import SLICE_BYTES, SLICE_DECODED
from replset.features.crud.write_batch import GROUP_MS, GROUP_STATEMENTS, Batch
from replset.ids import OpTime
from replset.operations.command import CommandContext
from replset.operations.evaluation import SMALL_STATEMENT, TimeSlice, is_small
from replset.query.collation import Fold
from replset.query.match import NO_VARIABLES
from replset.query.projection import Projection
from replset.query.sort import Sort
from replset.replication.held_keys import NOTHING_HELD
from replset.replication.write_ops import WriteGroup
from replset.replication.write_set import WriteSet
from replset.storage.catalog import Collection
from replset.storage.indexes import ID_INDEX
from replset.storage.txn import Txn

KEPT: Final = 100
KEPT_BYTES: Final = 1 << 20
"""How many documents are kept, and how large their sort keys are together; one is always kept."""


class FirstMatches:
    """The first matches in the order of their sort keys, while a search goes on over several groups.

    Others may change them until the search is over.
    A document that changes is forgotten, and added again with its new sort key. Those that come behind the kept ones
    are dropped. The first one is right as long as one is kept.
    """

    __slots__ = ("_bound", "_bytes", "_order", "_sort_keys")

    def __init__(self) -> None:
        self._order: list[tuple[bytes, bytes]] = []
        self._sort_keys: dict[bytes, bytes] = {}
        self._bytes = 0
        self._bound: tuple[bytes, bytes] | None = None
        """The first pair that was dropped. Whether there are pairs behind it is not known."""

    @property
    def first(self) -> bytes | None:
        """Return the key of the first document."""
        return self._order[0][1] if self._order else None

    @property
    def is_exhausted(self) -> bool:
        """Return True if nothing is kept, though there may be matches: the search has to begin again."""
        return not self._order and self._bound is not None

    def add(self, sort_key: bytes, key: bytes) -> None:
        """Add a match, or the document with its new sort key."""
        self.forget((key,))
        pair = (sort_key, key)
        if self._bound is not None and pair >= self._bound:
            return
        insort(self._order, pair)
        self._sort_keys[key] = sort_key
        self._bytes += len(sort_key)
        while len(self._order) > 1 and (len(self._order) > KEPT or self._bytes > KEPT_BYTES):
            self._bound = self._order[-1]
            self.forget((self._bound[1],))

    def end_behind(self, sort_key: bytes, key: bytes) -> None:
        """Note that matches behind this one are not known: the search stopped there."""
        self._bound = (sort_key, key + b"\0")

    def forget(self, keys: Iterable[bytes]) -> None:
        """Drop the documents with these keys: they changed, or they are gone."""
        for key in keys:
            sort_key = self._sort_keys.pop(key, None)
            if sort_key is not None:
                del self._order[bisect_left(self._order, (sort_key, key))]
                self._bytes -= len(sort_key)


GROUP_DOCUMENTS = 200
"""Documents that one group decodes and matches for one command."""


@dataclass(frozen=True, slots=True)
class Match:
    """What a statement does to a document that it finds. after, o: that document and its entry's `o`; empty: none.

    shown: what findAndModify returns of it.
    """

    after: bytes = b""
    o: bytes = b""
    shown: bytes = b""


class ReturnedDocument:
    """The document that findAndModify changes and returns. value: what it returns, None when it found none.

    sort: the document is the first one in this order; None: any. is_new: it is returned as the update leaves it.
    """

    def __init__(self, sort: Sort | None, projection: Projection | None, is_new: bool) -> None:
        self.sort = sort
        self.is_new = is_new
        self.value: bytes | None = None
        self._projection = projection

    def shown(self, raw: bytes) -> bytes:
        """Return the fields of the document that the client wants."""
        return raw if self._projection is None else encode(self._projection(decode(raw)))


class Search:
    """Where an update or delete statement looks, and how far it is.

    evaluated: by key, the bytes of a document that was evaluated in the thread, and the result. is_scan: it reads the
    whole collection. sorted: of a search for the first document of an order.
    """

    def __init__(
        self, found: Filter, hint: Hint | None = None, sort: Sort | None = None, keys: Iterable[bytes] | None = None
    ) -> None:
        """keys: the only documents to look at. sort: an order that the plan gives if it can."""
        self.filter = found
        self.hint = hint
        self.sort = sort
        if keys is None and hint is None:
            keys = found.keys
        self.keys = None if keys is None else KeySource(sorted(keys))
        self.evaluated: dict[bytes, tuple[bytes, Match | ReplError | None]] = {}
        self.is_done = False
        self.is_sorted = False
        self.is_scan = False
        self.indexes: tuple[str, ...] = () if self.keys is None else (ID_INDEX,)
        """The names of those that the plan uses."""
        self.sorted: SortedSearch | None = None
        self.taken: set[bytes] | None = None
        """The documents that a search through an index is done with: a change may move one ahead of the search."""
        self._source: Source | None = self.keys
        self._coll = b""

    def candidates(self, txn: Txn, coll: Collection) -> Iterator[Candidate]:
        """Those from where the last group stopped."""
        if self.keys is not None:
            return self.keys.candidates(view_of(txn, coll))
        if self._source is None or self._coll != coll.uuid:
            in_transaction = isinstance(txn, WriteSet)
            plan, self.is_sorted = choose_plan(coll, self.filter, self.sort, self.hint, in_transaction=in_transaction)
            self._source, self._coll = source_of(plan), coll.uuid
            self.is_scan = isinstance(plan, Natural)
            self.indexes = index_names(plan)
            self.taken = set() if isinstance(plan, ByIndex | AnyOf) else None
        return self._source.candidates(view_of(txn, coll))

    def advance(self, candidate: Candidate) -> None:
        """This one is done with."""
        if self._source is not None:
            self._source.advance(candidate)


class SortedSearch:
    """What a search for the first document of an order knows by now.

    coll: the collection's UUID. changes: looks again at what was changed since the group before. is_ended: the search
    went in this order, and has found a match.
    """

    __slots__ = ("_filter", "_seen_ts", "_target", "changes", "coll", "is_ended", "matches")

    def __init__(self, coll: bytes, found: Filter) -> None:
        self.coll = coll
        self.matches = FirstMatches()
        self.is_ended = False
        self._filter = found
        self._seen_ts: int | None = None
        self.changes = self._search_of(set())
        self._target: tuple[bytes | None, Search] | None = None

    def note_changes(self, txn: Txn, coll: Collection) -> None:
        """Look again at what was changed since the last call."""
        changed = set() if self._seen_ts is None else txn.changed_keys(coll, self._seen_ts)
        self._seen_ts = txn.last.ts
        if changed:
            self.matches.forget(changed)
            left = self.changes.keys.left if self.changes.keys else ()
            before, self.changes = self.changes, self._search_of(changed.union(left))
            self.changes.evaluated = before.evaluated

    def target(self) -> Search:
        """Return the search of the first document. It is the same as long as that document is the first."""
        first = self.matches.first
        if self._target is None or self._target[0] != first:
            self._target = first, self._search_of(set() if first is None else {first})
        return self._target[1]

    def _search_of(self, keys: set[bytes]) -> Search:
        return Search(self._filter, keys=keys)


@dataclass(frozen=True, slots=True)
class SearchStatement:
    """An element of `updates` or `deletes`: its fields are checked, its filter is not yet compiled.

    multi: it takes all documents that match, not the first one alone. weight: see evaluation.py.
    fold: of its collation.
    """

    query: dict[str, object]
    multi: bool
    hint: Hint | None
    weight: int
    fold: Fold | None = field(default=None, kw_only=True)


class SearchingBatch(Batch):
    """Statements that look for documents. Each is parsed when its turn comes, and may go on over several groups.

    What is too large for the event loop (evaluation.py) is evaluated between two groups, from the bytes of the document
    that the first one saw. The next group takes the result only if the document still has those bytes: nobody else's
    change is lost, and one that changes all the time is evaluated again.
    """

    def __init__(
        self,
        ctx: CommandContext,
        statements: Sequence[SearchStatement],
        returned: ReturnedDocument | None = None,
        ns: str | None = None,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> None:
        """returned: of findAndModify, whose one statement takes one document. ns: as in Batch.

        variables: of the command's expressions.
        """
        super().__init__(ctx, len(statements), ns)
        self.statements = statements
        self.variables = variables
        self._let_weight = let_weight(ctx.body)
        self.returned = returned
        self.changed_before: set[bytes] = set()
        """Keys of the documents that an interrupted attempt of the statement changed."""
        if returned is not None and self.retry is not None:
            self.retry.write.image = "postImage" if returned.is_new else "preImage"
        self.search: Search | None = None
        self.refusal: ReplError | None = None
        self.matched = False
        self.budget = 0  # documents that this group may still look at
        self.held = NOTHING_HELD
        self.time_slice: TimeSlice
        """The time slice of the group that runs."""

    @property
    def weight(self) -> int:
        """The weight of the statement at `index`."""
        return self.statements[self.index].weight + self._let_weight

    @property
    def multi(self) -> bool:
        return self.statements[self.index].multi

    @property
    def keeps_answer(self) -> bool:
        return self.returned is None

    def was_executed(self) -> bool:
        """See `Batch`. A statement over many documents, which only an Idempotency-Key makes retryable, goes on with
        the documents that an interrupted attempt has not changed.
        """
        if self.retry is None or not self.multi:
            return super().was_executed()
        if self.changed_before:
            return False
        executed = self.retry.executed(self.index)
        if executed is not None and executed.op == "i":  # an upsert is done at once
            self.answer(executed)
            self.index += 1
            return True
        if executed is not None:
            self.changed_before = self.retry.keys_of(self.index)
            self.count_changed(len(self.changed_before))
        return False

    def count_changed(self, number: int) -> None:
        """Count documents that an interrupted attempt changed."""
        self.n += number

    def answer(self, executed: Executed) -> None:
        self.n += 1
        if self.returned is not None and executed.image is not None:
            self.returned.value = self.returned.shown(executed.image.raw)

    @abstractmethod
    def begin(self) -> Search:
        """Compile the statement at `index`."""

    @abstractmethod
    def evaluate(self, search: Search, raw: bytes) -> Match | None:
        """What the statement does to a document; None when it is not among those that it looks for."""

    @abstractmethod
    def proceed(self, group: WriteGroup, search: Search) -> None:
        """Work on the statement for this group's time; `search.is_done` at its end."""

    def run(self, group: WriteGroup) -> None:
        self.held = group.held
        self.budget = GROUP_DOCUMENTS
        self.time_slice = TimeSlice(self.ctx.member.clock, GROUP_MS)
        for _ in range(GROUP_STATEMENTS):
            if (
                self.index >= self.size
                or self.stopped
                or self.budget <= 0
                or self.thread_work
                or self.time_slice.is_over()
            ):
                return
            if self.search is None and self.was_executed():
                continue
            mark = group.txn.mark()
            try:
                search = self._begun()
                if search is None:
                    return
                self.proceed(group, search)
            except (StorageError, OutOfDiskSpaceError):
                raise
            except DocumentHeldError as held:  # by an upsert: once the other one is there, it may match
                self._take_back(group, mark)
                self.blocked_by = held.place
                return
            except WriteConflictError:  # inside of a transaction, which is over
                raise
            except ReplError as error:
                if isinstance(error, QueryPlanKilledError) and isinstance(group.txn, WriteSet):
                    raise
                self._take_back(group, mark)
                self.failed(error)
                continue
            if self.blocked_by is not None:
                return
            if search.is_done and self.thread_work is None:
                self.end()
                self.index += 1

    def _take_back(self, group: WriteGroup, mark: tuple[int, int, int, OpTime]) -> None:
        """Take back what the statement wrote in this group."""
        group.txn.revert_to(mark)
        if self.retry is not None:
            self.retry.taken_back(group)
        self.end()

    def _begun(self) -> Search | None:
        """Return the search of the statement at `index`; None when it must be compiled in the thread first."""
        if self.refusal is not None:
            raise self.refusal
        if self.search is None:
            if self.weight > SMALL_STATEMENT:
                self.thread_work = self._begin_in_thread
                return None
            self.search = self.begin()
        return self.search

    def _begin_in_thread(self) -> None:
        try:
            self.search = self.begin()
            _ = self.search.filter.bounds
        except ReplError as error:
            self.refusal = error

    def failed(self, error: ReplError) -> None:
        if self.returned is not None:
            raise error
        super().failed(error)

    def matches(self, txn: Txn, coll: Collection, search: Search) -> Iterator[tuple[bytes, bytes, Match]]:
        """(key, document, what the statement does to it) of the next matches, while this group's time lasts.

        Sets `search.is_done` behind the last document, `thread_work` if something must be evaluated in the thread.
        """
        if self.returned is None:
            found = self._walk(txn, coll, search, self.evaluate, not self.multi)
            return found if not self.changed_before else (row for row in found if row[0] not in self.changed_before)
        return self._one_match(txn, coll, search, self.returned)

    def _one_match(
        self, txn: Txn, coll: Collection, search: Search, returned: ReturnedDocument
    ) -> Iterator[tuple[bytes, bytes, Match]]:
        """Do as `matches` for the document that findAndModify takes."""

        def evaluate(search: Search, raw: bytes) -> Match | None:
            match = self.evaluate(search, raw)
            if match is None:
                return None
            return replace(match, shown=returned.shown(match.after if returned.is_new and match.after else raw))

        target: Search | None = search
        if returned.sort is not None:
            target = self._first_in_order(txn, coll, search, returned.sort)
        if target is None:
            return
        for key, raw, match in self._walk(txn, coll, target, evaluate, True):
            returned.value = match.shown
            yield key, raw, match
        search.is_done = target.is_done

    def _first_in_order(self, txn: Txn, coll: Collection, search: Search, sort: Sort) -> Search | None:
        """Return the search of the document that comes first as of now; None while that is not known.

        Groups of other clients run between those of a long search. What they change is looked at again.
        """
        if search.sorted is None:
            search.sort = sort
            search.sorted = SortedSearch(coll.uuid, search.filter)
        state = search.sorted
        if state.matches.is_exhausted or state.coll != coll.uuid:
            self.search = None  # begin again
            return None
        state.note_changes(txn, coll)

        def rank(search: Search, raw: bytes) -> Match | None:
            document = decode(raw)
            return Match(after=sort(document)) if search.filter.matches(document) else None

        for part in (state.changes, search):
            if part is search and state.is_ended:
                continue
            for key, _, match in self._walk(txn, coll, part, rank, False):
                state.matches.add(match.after, key)
                if part.is_sorted:
                    state.matches.end_behind(match.after, key)
                    part.is_done = state.is_ended = True
                    break
            if not part.is_done:
                return None
        search.is_done = False  # the document is found, but not yet changed
        return None if state.matches.is_exhausted else state.target()

    def _walk(
        self,
        txn: Txn,
        coll: Collection,
        search: Search,
        evaluate: Callable[[Search, bytes], Match | None],
        only_one: bool,
    ) -> Iterator[tuple[bytes, bytes, Match]]:
        """Do as `matches`. evaluate: what is done to a document. only_one: the caller takes one match."""
        candidates = search.candidates(txn, coll)
        work = self.ctx.work
        work.is_scan |= search.is_scan
        work.indexes.update((coll.uuid, name) for name in search.indexes)
        for candidate in candidates:
            work.documents += 1
            _, key, raw = candidate
            if search.taken is not None and key in search.taken:
                raw = None
            seen, result = search.evaluated.pop(key, (None, None))
            if raw is not None and seen != raw:
                if not is_small(self.weight, len(raw)):
                    documents = _some((key, raw), candidates)
                    self.thread_work = partial(self._evaluate_in_thread, search, documents, evaluate, only_one)
                    return
                result = evaluate(search, raw)
            is_held = self.held and (only_one or self.multi) and self.held.is_held((coll.uuid, key))
            if is_held and raw is not None and result is not None:
                self.blocked_by = coll.uuid, key
                return
            search.advance(candidate)
            self.budget -= 1
            if raw is not None and result is not None:
                if isinstance(result, ReplError):
                    raise result
                if search.taken is not None and not only_one:
                    search.taken.add(key)
                yield key, raw, result
            if self.budget <= 0 or self.time_slice.is_over():
                return
        search.is_done = True

    def _evaluate_in_thread(
        self,
        search: Search,
        documents: list[tuple[bytes, bytes]],
        evaluate: Callable[[Search, bytes], Match | None],
        only_one: bool,
    ) -> None:
        time_slice = TimeSlice(self.ctx.member.clock)
        search.evaluated = {}
        for key, raw in documents:
            try:
                result: Match | ReplError | None = evaluate(search, raw)
            except ReplError as error:
                result = error
            search.evaluated[key] = raw, result
            if (result is not None and only_one) or time_slice.is_over():
                return

    def end(self) -> None:
        """The statement is over, one way or the other."""
        self.search = self.refusal = None
        self.matched = False
        self.changed_before = set()


def _some(first: tuple[bytes, bytes], rest: Iterator[Candidate]) -> list[tuple[bytes, bytes]]:
    """The first of some documents and those behind it, as many as are evaluated at once."""
    documents = [first]
    size = len(first[1])
    for _, key, raw in islice(rest, SLICE_DECODED):
        if size > SLICE_BYTES:
            break
        if raw is not None:
            documents.append((key, raw))
            size += len(raw)
    return documents

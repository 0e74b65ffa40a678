"""Walks the documents that a query has to look at, in the order that its plan says (plan.py).

A `View` is what one reader sees of one collection: a snapshot now or at an earlier point, an open group, or either of
them below the own writes of a transaction. A `Source` is a position in the candidates of a plan. It holds nothing of
the view, so each slice of a read may bring a new one.

An index has the entries of now. At an earlier point C, and in a transaction, a document that was written since has
others. So the source leaves out all entries of such a document, and puts it in the place that its version of C has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

from replset.bson import RawDocument, encode_key
from replset.errors import QueryPlanKilledError
from replset.features.crud.plan import AnyOf, ById, ByIndex, ByKeys, Natural, Plan, Range
from replset.ids import OpTime
from replset.replication.write_set import WriteSet
from replset.storage.catalog import Collection
from replset.storage.indexes import TO_THE_END, Index, key_of, keys_of
from replset.storage.snapshot import Snapshot
from replset.storage.sqlite import PAGE_ROWS
from replset.storage.txn import Txn, next_key

Candidate: TypeAlias = tuple[Any, bytes, bytes | None]
"""Its place in the source, its key, the document. Without a document there is nothing at that place; it counts as work
all the same.
"""
Entry: TypeAlias = tuple[bytes, bytes]
"""keystring, key."""
_FIRSTS = 10_000
"""Documents of a multikey index whose first key is kept."""
_EMPTY_RANGES = 50
"""Ranges without entries that are looked at before others may get a turn: about a millisecond."""
_BEHIND_ALL = 1 << 62
"""Natural places from here on are those of the documents that a transaction has inserted."""


class View(ABC):
    """One collection as one reader sees it."""

    def __init__(self, coll: Collection) -> None:
        self.coll = coll

    @abstractmethod
    def get(self, key: bytes) -> bytes | None: ...

    @abstractmethod
    def by_key(self, low: bytes, high: bytes | None, backwards: bool) -> Iterator[tuple[bytes, bytes]]:
        """(key, document). At an earlier point also keys without a document (b""), where the reader may pause."""

    @abstractmethod
    def natural(self, after: int | None, backwards: bool) -> Iterator[tuple[int, bytes, bytes]]: ...

    def natural_pages(self, after: int | None, backwards: bool) -> Iterator[list[tuple[int, bytes, bytes]]]:
        """Give what `natural` gives, those together that were read together."""
        for row in self.natural(after, backwards):
            yield [row]

    @abstractmethod
    def entries(self, index: Index, part: Range, after: Entry | None, backwards: bool) -> list[Entry]:
        """The next page of entries, as they are now."""

    @abstractmethod
    def indexes(self) -> tuple[Index, ...]:
        """The collection's indexes as they are now."""

    def is_changed(self, _key: bytes) -> bool:
        """Whether the entries of this document may be others than those of the version that the reader sees."""
        return False

    def changed(self, after: Any) -> tuple[list[tuple[bytes, bytes]], Any, bool]:
        """(key, document) of some documents of which `is_changed` is true; how far the call looked; whether there is
        more. after: how far the call before looked.
        """
        return [], after, False

    @property
    def own(self) -> Mapping[bytes, bytes | None]:
        """The documents that the reader's transaction has written, None for a deleted one."""
        return {}


class SnapshotView(View):
    """at: None for now. rows: read at once."""

    def __init__(self, snapshot: Snapshot, coll: Collection, at: OpTime | None, rows: int = PAGE_ROWS) -> None:
        super().__init__(coll)
        self._snapshot = snapshot
        self._at = at
        self._rows = min(rows, PAGE_ROWS)

    def get(self, key: bytes) -> bytes | None:
        return self._snapshot.get(self.coll, key, self._at)

    def by_key(self, low: bytes, high: bytes | None, backwards: bool) -> Iterator[tuple[bytes, bytes]]:
        return self._snapshot.scan(
            self.coll, self._at, low=low, high=high, backwards=backwards, rows=self._rows, pauses=True
        )

    def natural(self, after: int | None, backwards: bool) -> Iterator[tuple[int, bytes, bytes]]:
        return chain.from_iterable(self.natural_pages(after, backwards))

    def natural_pages(self, after: int | None, backwards: bool) -> Iterator[list[tuple[int, bytes, bytes]]]:
        return self._snapshot.natural_pages(self.coll, self._at, after=after, backwards=backwards, rows=self._rows)

    def entries(self, index: Index, part: Range, after: Entry | None, backwards: bool) -> list[Entry]:
        return self._snapshot.index_scan(index, *part, after=after, limit=PAGE_ROWS, backwards=backwards)

    def indexes(self) -> tuple[Index, ...]:
        known = self._snapshot.collection_by_uuid(self.coll.uuid)
        return () if known is None else known.indexes

    def is_changed(self, key: bytes) -> bool:
        return self._at is not None and self._snapshot.is_written_after(self.coll, key, self._at)

    def changed(self, after: Any) -> tuple[list[tuple[bytes, bytes]], Any, bool]:
        if self._at is None:
            return [], None, False
        return self._snapshot.changed_documents(self.coll, self._at, after)


class TxnView(View):
    """What an open group sees, its own writes included."""

    def __init__(self, txn: Txn, coll: Collection) -> None:
        super().__init__(coll)
        self._txn = txn

    def get(self, key: bytes) -> bytes | None:
        return self._txn.get(self.coll, key)

    def by_key(self, low: bytes, high: bytes | None, backwards: bool) -> Iterator[tuple[bytes, bytes]]:
        return self._txn.scan(self.coll, low=low, high=high, backwards=backwards)

    def natural(self, after: int | None, backwards: bool) -> Iterator[tuple[int, bytes, bytes]]:
        return self._txn.natural_scan(self.coll, after, backwards=backwards)

    def entries(self, index: Index, part: Range, after: Entry | None, backwards: bool) -> list[Entry]:
        return self._txn.index_scan(index, *part, after=after, limit=PAGE_ROWS, backwards=backwards)

    def indexes(self) -> tuple[Index, ...]:
        known = self._txn.catalog.by_uuid.get(self.coll.uuid)
        return () if known is None else known.indexes


class OverlayView(View):
    """A view below the documents that a transaction has written."""

    def __init__(self, base: View, writes: WriteSet) -> None:
        super().__init__(base.coll)
        self._base = base
        self._own = writes.documents(base.coll)
        self._base_is_empty = writes.is_created(base.coll)

    @property
    def own(self) -> Mapping[bytes, bytes | None]:
        return self._own

    def get(self, key: bytes) -> bytes | None:
        if key in self._own or self._base_is_empty:
            return self._own.get(key)
        return self._base.get(key)

    def by_key(self, low: bytes, high: bytes | None, backwards: bool) -> Iterator[tuple[bytes, bytes]]:
        own = sorted((key for key in self._own if low <= key and (high is None or key < high)), reverse=not backwards)
        for key, doc in () if self._base_is_empty else self._base.by_key(low, high, backwards):
            while own and (own[-1] > key if backwards else own[-1] < key):
                yield from self._own_document(own.pop())
            if key not in self._own:
                yield key, doc
        while own:
            yield from self._own_document(own.pop())

    def _own_document(self, key: bytes) -> Iterator[tuple[bytes, bytes]]:
        doc = self._own[key]
        if doc is not None:
            yield key, doc

    def natural(self, after: int | None, backwards: bool) -> Iterator[tuple[int, bytes, bytes]]:
        """What the transaction has inserted comes last."""
        if backwards:
            yield from self._inserted(_BEHIND_ALL - 1, after, backwards)
            yield from self._below(None if after is None or after >= _BEHIND_ALL else after, backwards)
            return
        if after is None or after < _BEHIND_ALL:
            yield from self._below(after, backwards)
        yield from self._inserted(_BEHIND_ALL - 1 if after is None else after, None, backwards)

    def _below(self, after: int | None, backwards: bool) -> Iterator[tuple[int, bytes, bytes]]:
        for place, key, doc in () if self._base_is_empty else self._base.natural(after, backwards):
            was = self._own.get(key, doc)
            if was is not None:
                yield place, key, was

    def _inserted(self, after: int, before: int | None, backwards: bool) -> Iterator[tuple[int, bytes, bytes]]:
        places = [(_BEHIND_ALL + number, key, doc) for number, (key, doc) in enumerate(self._own.items())]
        for place, key, doc in reversed(places) if backwards else places:
            if doc is None or place <= after or (before is not None and place >= before):
                continue
            if self._base_is_empty or self._base.get(key) is None:
                yield place, key, doc

    def entries(self, index: Index, part: Range, after: Entry | None, backwards: bool) -> list[Entry]:
        return [] if self._base_is_empty else self._base.entries(index, part, after, backwards)

    def indexes(self) -> tuple[Index, ...]:
        return () if self._base_is_empty else self._base.indexes()

    def is_changed(self, key: bytes) -> bool:
        return key in self._own or self._base.is_changed(key)

    def changed(self, after: Any) -> tuple[list[tuple[bytes, bytes]], Any, bool]:
        return ([], after, False) if self._base_is_empty else self._base.changed(after)


def view_of(txn: Txn, coll: Collection) -> View:
    """What an open group, or a transaction, sees of the collection."""
    if isinstance(txn, WriteSet):
        return OverlayView(SnapshotView(txn.snapshot, coll, txn.at), txn)
    return TxnView(txn, coll)


# --- sources ----------------------------------------------------------------------------------------------------


class Source(ABC):
    """A position in the candidates of a plan."""

    @abstractmethod
    def candidates(self, view: View) -> Iterator[Candidate]:
        """Those behind the position, each document once. The documents may be written meanwhile."""

    def pages(self, view: View) -> Iterator[list[Candidate]]:
        """Give `candidates`, those together that were read together. A page that is asked for has at least one."""
        for candidate in self.candidates(view):
            yield [candidate]

    @abstractmethod
    def advance(self, candidate: Candidate) -> None:
        """This one, and all before it, are done with."""


def source_of(plan: Plan) -> Source:
    match plan:
        case ByKeys(keys=keys):
            return KeySource(keys)
        case Natural(backwards=backwards):
            return _NaturalOrder(backwards)
        case ById(ranges=ranges, backwards=backwards):
            return _KeyOrder(ranges, backwards)
        case ByIndex():
            return _IndexOrder(plan)
        case AnyOf(parts=parts):
            return _Union(parts)


class KeySource(Source):
    """left: the keys that are still to come, the next one last."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self.left = list(reversed(keys))

    def candidates(self, view: View) -> Iterator[Candidate]:
        for key in self.left[::-1]:
            yield key, key, view.get(key)

    def advance(self, candidate: Candidate) -> None:
        while self.left and self.left.pop() != candidate[1]:
            pass


class _NaturalOrder(Source):
    def __init__(self, backwards: bool) -> None:
        self._after: int | None = None
        self._backwards = backwards

    def candidates(self, view: View) -> Iterator[Candidate]:
        for place, key, doc in view.natural(self._after, self._backwards):
            yield place, key, doc or None

    def pages(self, view: View) -> Iterator[list[Candidate]]:
        for page in view.natural_pages(self._after, self._backwards):
            yield [(place, key, doc or None) for place, key, doc in page]

    def advance(self, candidate: Candidate) -> None:
        self._after = candidate[0]


class _KeyOrder(Source):
    def __init__(self, ranges: Sequence[Range], backwards: bool) -> None:
        self._left = list(ranges if backwards else reversed(ranges))
        self._backwards = backwards

    def candidates(self, view: View) -> Iterator[Candidate]:
        for low, high in self._left[::-1]:
            for key, doc in view.by_key(low, high, self._backwards):
                yield key, key, doc or None

    def advance(self, candidate: Candidate) -> None:
        key = candidate[1]
        while self._left:
            low, high = self._left[-1]
            if low <= key < high:
                self._left[-1] = Range(low, key) if self._backwards else Range(next_key(key), high)
                return
            self._left.pop()


class _IndexOrder(Source):
    """A place is (keystring, key). A document comes at the first of its keys that lies in the ranges."""

    def __init__(self, plan: ByIndex) -> None:
        self._index = plan.index
        self._ranges = plan.ranges
        self._backwards = plan.backwards
        self._after: Entry | None = None
        self._changes: Any = None
        self._moved: list[Entry] = []
        """Places of documents that were changed since the point of the read."""
        self._firsts: dict[bytes, tuple[int, bytes | None]] = {}
        """Of a multikey index, by key: the document's hash and the first of its keys. It may have thousands of them."""
        self._own: dict[bytes, tuple[bytes, bytes | None]] = {}
        """By key, a document of the reader's transaction, which may have many, and the first of its keys."""

    def advance(self, candidate: Candidate) -> None:
        if candidate[0] is not None:
            self._after = candidate[0]

    def candidates(self, view: View) -> Iterator[Candidate]:
        index = _current(view, self._index)
        yield from self._note_changed(view, index)
        moved = self._places_of_moved(view, index)
        firsts: dict[bytes, bytes | None] = {}  # as `_firsts`, in this view
        for place in self._entries(view, index):
            shown = None
            while moved and not self._is_before(place, moved[-1]):
                shown = moved.pop()
                yield _candidate(view, shown)
            if shown == place:  # the entry is as it was
                continue
            key = place[1]
            # A document of some MiB may have 100,000 entries. It is read once in a slice, and not for each of them.
            is_elsewhere = firsts.get(key, place[0]) != place[0]
            doc = None if is_elsewhere or view.is_changed(key) else view.get(key)
            if doc is not None and index.multikey:
                firsts[key] = self._first_of(index, key, doc)
                if firsts[key] != place[0]:
                    doc = None
            yield place, key, doc
        while moved:
            yield _candidate(view, moved.pop())

    def _first_of(self, index: Index, key: bytes, doc: bytes) -> bytes | None:
        version = hash(doc)
        known, first = self._firsts.get(key, (None, None))
        if known != version:
            first = first_key(index, self._ranges, doc, self._backwards)
            if len(self._firsts) >= _FIRSTS:
                self._firsts.clear()
            self._firsts[key] = version, first
        return first

    def _note_changed(self, view: View, index: Index) -> Iterator[Candidate]:
        """Find the places of the documents that were changed since the last slice."""
        more = True
        while more:
            documents, self._changes, more = view.changed(self._changes)
            self._moved += self._places_ahead(index, documents)
            if documents or more:
                yield None, b"", None

    def _places_ahead(self, index: Index, documents: Iterable[tuple[bytes, bytes]]) -> list[Entry]:
        found = []
        for key, doc in documents:
            keystring = first_key(index, self._ranges, doc, self._backwards)
            if keystring is not None and self._is_ahead((keystring, key)):
                found.append((keystring, key))
        return found

    def _places_of_moved(self, view: View, index: Index) -> list[Entry]:
        """Where the documents come whose entries do not count, the next one last."""
        own = view.own
        self._moved = [place for place in self._moved if self._is_ahead(place)]
        places = [place for place in self._moved if place[1] not in own]
        places += self._own_places(index, own)
        return sorted(places, reverse=not self._backwards)

    def _own_places(self, index: Index, own: Mapping[bytes, bytes | None]) -> list[Entry]:
        found = []
        for key, doc in own.items():
            if doc is None:
                continue
            known = self._own.get(key)
            if known is None or known[0] is not doc:
                known = self._own[key] = doc, first_key(index, self._ranges, doc, self._backwards)
            if known[1] is not None and self._is_ahead((known[1], key)):
                found.append((known[1], key))
        return found

    def _entries(self, view: View, index: Index) -> Iterator[Entry]:
        """Those behind the position; now and then a place without an entry, when many ranges have none."""
        after, ranges = self._after, self._ranges
        if after is not None and self._backwards:
            ranges = ranges[: bisect_right(ranges, after[0], key=lambda part: part.low)]
        elif after is not None:
            ranges = ranges[bisect_right(ranges, after[0], key=lambda part: part.high) :]
        for number, part in enumerate(ranges[:: -1 if self._backwards else 1], 1):
            place = after if after is not None and part.low <= after[0] < part.high else None
            page = view.entries(index, part, place, self._backwards)
            if not page and number % _EMPTY_RANGES == 0:
                yield (part.low if self._backwards else part.high), b""
            while page:
                yield from page
                page = view.entries(index, part, page[-1], self._backwards) if len(page) >= PAGE_ROWS else []

    def _is_ahead(self, place: Entry) -> bool:
        return self._after is None or self._is_before(self._after, place)

    def _is_before(self, one: Entry, other: Entry) -> bool:
        return one > other if self._backwards else one < other


class _Union(Source):
    """The parts one after the other, without the documents that an earlier part has shown. A place is (part, place)."""

    def __init__(self, parts: Sequence[ById | ByIndex]) -> None:
        self._parts = parts
        self._sources = [source_of(part) for part in parts]
        self._part = 0

    def candidates(self, view: View) -> Iterator[Candidate]:
        for number in range(self._part, len(self._parts)):
            for place, key, doc in self._sources[number].candidates(view):
                is_shown = doc is not None and any(_is_in(part, key, doc) for part in self._parts[:number])
                yield (number, place), key, None if is_shown else doc

    def advance(self, candidate: Candidate) -> None:
        self._part, place = candidate[0]
        self._sources[self._part].advance((place, *candidate[1:]))


def _current(view: View, index: Index) -> Index:
    """The index as it is now: it may have become multikey. QueryPlanKilledError when it is gone."""
    for one in view.indexes():
        if (one.id, one.name, one.fields) == (index.id, index.name, index.fields) and one.ready:
            return one
    raise QueryPlanKilledError(f"query plan killed :: caused by :: index '{index.name}' dropped")


def _is_in(part: ById | ByIndex, key: bytes, doc: bytes) -> bool:
    if isinstance(part, ById):
        return any(low <= key < high for low, high in part.ranges)
    return first_key(part.index, part.ranges, doc, False) is not None


def first_key(index: Index, ranges: Sequence[Range], doc: bytes, backwards: bool) -> bytes | None:
    """The first of the document's keys that lies in the ranges, which are in order; None if there is none."""
    keys = keys_of(index, doc)
    for key in reversed(keys) if backwards else keys:
        at = bisect_right(ranges, (key, TO_THE_END)) - 1
        if at >= 0 and ranges[at].low <= key < ranges[at].high:
            return key
    return None


def index_key(plan: Plan, doc: bytes) -> dict[str, object]:
    """Return the key by which a plan found the document, by the paths of its index; {} without an index."""
    match plan:
        case ByKeys() | ById():
            return {"_id": RawDocument(doc).get("_id")}
        case ByIndex(index=index):
            return key_of(index, doc, first_key(index, plan.ranges, doc, plan.backwards))
        case AnyOf(parts=parts):
            key = encode_key(RawDocument(doc).get("_id"))
            return next((index_key(part, doc) for part in parts if _is_in(part, key, doc)), {})
        case Natural():
            return {}


def _candidate(view: View, place: Entry) -> Candidate:
    return place, place[1], view.get(place[1])

"""Whether members' oplogs are sound: hashes, the chain, the order, the columns, what entries look like, idempotence.

One pass over the oplog checks each entry by itself and against the one before it; where a worker's part begins, against
the end of the part before, once all are done. The entries of documents that were ever updated by a difference go on to
a second stage, where each worker has all entries of some `_id`s in order, as a stream, and applies them
(`idempotence`). Both engines use the same functions, and what is found does not depend on how the oplog was cut up.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64_intdigest

from replset.bson import DateTime, InvalidBSONError, encode_key, validate, walk
from replset.errors import ReplError
from replset.ids import OpTime
from replset.oplog_entry import COMMAND, DELETE, INSERT, NOOP, UPDATE, VERSION, OplogEntry
from replset.oplog_row import CHAIN_START, next_chain
from spark.columns import batch_from, schema_of
from spark.entry_bytes import EntryPrefixes, collection_of, id_text
from spark.jobs import ROWS_PER_TASK, pinned
from spark.oplog import EVERYTHING, EntryFilter, Oplog, Span, ts_text
from spark.reports.diff.digests import is_among
from spark.reports.elections import INITIATING
from spark.reports.verify.idempotence import Change, DocumentStates, Fault, NotIdempotentError
from spark.runners import Runner, SparkRunner, frames, ordered, table_of_rows, where

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Numbers = npt.NDArray[np.int64]
Table = TypeVar("Table")
HASH = "hash"
CHAIN = "chain"
ORDER = "order"
ENTRY = "entry"
COLUMNS = "columns"
DIFF = "diff"
IDEMPOTENCE = "idempotence"
KINDS = (HASH, CHAIN, ORDER, ENTRY, COLUMNS, DIFF, IDEMPOTENCE)
COUNTS = ("entries", "hashes", "links", "updates", "documents", "applied")
FAULT_COLUMNS = ("member", "ts", "term", "optime", "kind", "ns", "key", "id", "detail")
MOST_DOCUMENTS = 1_000_000
LOCAL_DOCUMENTS = 200_000
ROWS_PER_SORT = 250_000
"""Entries looked at for each task that sorts what is left of them: it sorts in memory however long the oplogs are."""
_READ = ("ts", "term", "op", "ns", "key", "wall", "hash", "chain", "entry")
_ROW = ("ts", "term", "op", "ns", "key", "wall", "entry")
_BATCH_ROWS = 4096
_DOCUMENT_OPS = frozenset({INSERT, UPDATE, DELETE})
_OPS = _DOCUMENT_OPS | {COMMAND, NOOP}
_FAULT, _COUNT, _EDGE, _DOCUMENT = "fault", "count", "edge", "document"
_FINDINGS = schema_of(
    "member tag route ts term kind ns key id detail n ui entry optime",
    **dict.fromkeys(("member", "tag", "kind", "ns", "id", "detail", "optime"), pa.string()),
    **dict.fromkeys(("key", "ui", "entry"), pa.binary()),
)
"""route: of a document row the hash of its key; rows of one route come to one worker. kind: of a fault; of a count its
name; of a document row the op. n: of a count; of a document row where in the entry `o` begins."""
_SORTED_BY = ("member", "tag", "route", "ts", "term", "entry")
_ROUTES = pa.schema([_FINDINGS.field("route")])


@dataclass(frozen=True, slots=True)
class Verification(Generic[Table]):
    """`Table`: a DataFrame, or a pyarrow Table (local engine).

    faults (sorted by member, ts, term, kind, detail): member, ts, term, optime, kind, ns, key, id (the `_id` in
    Extended JSON where the entry can be read) and detail:

    - hash: the entry's bytes do not give the stored hash. Such an entry is not looked into further;
    - chain: the stored chain does not follow from the chain before and the hash (or, if only the stored hash is wrong,
      from the hash of the bytes): an entry is missing, was put in, or is another one. One fault for each break;
    - order: an optime that is not above the one before it in the oplog's own order: ts must rise, term must not fall;
    - entry: no oplog entry of a kind that is known: op, ns, ts, t, v: 2, o, and where it is about a document ui and
      `_id` are there and of their types. Where no hash is kept, whether all its bytes are BSON;
    - columns: what is stored beside the entry (ts, term, op, ns, key, wall) is not what the entry holds. Not where no
      hash is kept: there the columns are made of the entry;
    - diff: the `o` of an update is neither a replacement with the same `_id` nor a well-formed difference;
    - idempotence: see the module of that name.

    The first entry of what is read has nothing before it that it could be checked against, and is the chain's base,
    unless it is the one that initiated the set.
    checked (sorted by member, one row for each): entries read; hashes: computed, none where the source keeps no chain;
    links: of the chain; updates: whose form was looked at; documents: that differences changed, and the entries of them
    that were applied.
    """

    faults: Table
    checked: Table


def verify(spark: SparkSession, oplogs: Sequence[Oplog], **how: Any) -> Verification[DataFrame]:
    """The tables as DataFrames. how: as in `verification`."""
    found: Verification[Any] = frames(spark, verification(SparkRunner.of(spark), oplogs, **how))
    return found


def verification(
    runner: Runner, oplogs: Sequence[Oplog], *, span: Span = EVERYTHING, rows_per_task: int = ROWS_PER_TASK
) -> Verification[Any]:
    """Check every entry of the span.

    The oplogs are read once more for keys alone; in this process also for every 200,000 documents that were updated.
    """
    oplogs = pinned(oplogs)
    entries = sum(oplog.count(span) for oplog in oplogs)
    runner = runner.of_size(entries, ROWS_PER_SORT)
    read = partial(runner.read, span=span, rows_per_task=rows_per_task)
    most = MOST_DOCUMENTS if isinstance(runner, SparkRunner) else None
    keys = read(oplogs, ("key",), updated_documents_in, _ROUTES, only=EntryFilter(op=(UPDATE,)))
    known = runner.run(
        runner.grouped(keys, ("route",), tasks=runner.tasks(0, 1)), partial(distinct_in, most=most), _ROUTES
    )
    done = []
    for number, wanted in enumerate(WantedDocuments.of(table_of_rows(known)["route"], most)):
        work = partial(checked_in, wanted=wanted, documents_only=number > 0)
        found = read(oplogs, _READ, work, _FINDINGS)
        streams = runner.grouped(found, _SORTED_BY[:3], _SORTED_BY, runner.tasks(entries, ROWS_PER_SORT))
        done.append(runner.kept(runner.run(streams, finished, _FINDINGS)))
    rows = done[0] if len(done) == 1 else pa.concat_tables(done)
    faults = where(rows, "tag", _FAULT).select(list(FAULT_COLUMNS))
    checked = _checked(table_of_rows(where(rows, "tag", _COUNT)), oplogs)
    return Verification(ordered(faults, "member", "ts", "term", "kind", "detail"), checked)


# --- in the worker: one part of an oplog -----------------------------------------------------------------------


class WantedDocuments(NamedTuple):
    """Of which documents the entries go on to the second stage, by hash of the key, rising. None: of all."""

    routes: Numbers | None

    @classmethod
    def of(cls, found: pa.ChunkedArray, most: int | None) -> list[WantedDocuments]:
        """In parts, each for a pass over the oplogs. With `most` all at once, of more than that without a list."""
        routes = np.unique(np.asarray(found))
        if most is not None:
            return [cls(None if len(routes) > most else routes)]
        return [cls(some) for some in np.array_split(routes, len(routes) // LOCAL_DOCUMENTS + 1)]

    def among(self, routes: Numbers) -> npt.NDArray[np.bool_]:
        return np.ones(len(routes), np.bool_) if self.routes is None else is_among(routes, self.routes)


def updated_documents_in(_member: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The routes of all keys of one part, each once."""
    known: set[bytes] = set()
    for batch in batches:
        known.update(batch.column("key").drop_null().to_pylist())
    yield pa.RecordBatch.from_arrays([pa.array(_key_hashes(known))], schema=_ROUTES)


def distinct_in(batches: Iterator[pa.RecordBatch], most: int | None) -> Iterator[pa.RecordBatch]:
    """Each route once; where there are more than `most`, some more than that."""
    known: set[int] = set()
    for batch in batches:
        known.update(batch.column(0).to_pylist())
        if most is not None and len(known) > most:
            break
    yield pa.RecordBatch.from_arrays([pa.array(known, pa.int64())], schema=_ROUTES)


def checked_in(
    member: str, batches: Iterator[pa.RecordBatch], wanted: WantedDocuments, documents_only: bool = False
) -> Iterator[pa.RecordBatch]:
    """The first stage over one part: faults, counts, the part's edges, and the entries of the documents wanted.

    documents_only: nothing but the last.
    """
    part = _Part(member, wanted)
    for batch in batches:
        if batch.num_rows:
            yield part.look_at(batch, documents_only)
    if not documents_only:
        yield part.end()


class _Finding(NamedTuple):
    """A row of what was found, but for the member."""

    tag: str
    route: int
    ts: int
    term: int
    kind: str | None = None
    ns: str | None = None
    key: bytes | None = None
    id: str | None = None
    detail: str | None = None
    n: int = 0
    ui: bytes | None = None
    entry: bytes | None = None
    optime: str | None = None

    def as_fault(self, kind: str, detail: str) -> _Finding:
        return self._replace(tag=_FAULT, kind=kind, detail=detail, optime=str(OpTime(self.term, self.ts)))


class _Row(NamedTuple):
    """A row of the oplog but for hash and chain."""

    ts: int
    term: int
    op: str
    ns: str
    key: bytes | None
    wall: int
    entry: bytes

    def fault(self, kind: str, detail: str) -> _Finding:
        row = _Finding(_FAULT, self.ts, self.ts, self.term, ns=self.ns, key=self.key, id=id_text(self.entry))
        return row.as_fault(kind, detail)


class _Link(NamedTuple):
    """What ties an entry to its neighbours. chain: None where none is kept. digest: the hash of its bytes."""

    ts: int
    term: int
    hash: int
    chain: int | None
    digest: int


class _Part:
    """The first stage over one part of one member's oplog."""

    def __init__(self, member: str, wanted: WantedDocuments) -> None:
        self._member = member
        self._wanted = wanted
        self._heads = EntryPrefixes()
        self._counts = Counter[str]()
        self._edge: _Finding | None = None
        self._first: _Link | None = None
        self._last: _Link | None = None

    def look_at(self, batch: pa.RecordBatch, documents_only: bool) -> pa.RecordBatch:
        """What one batch of the part gives."""
        columns = [batch.column(name).to_pylist() for name in _ROW]
        entries = columns[-1]
        digests = np.fromiter(map(xxh3_64_intdigest, entries), np.uint64, len(entries)).view(np.int64)
        kept = np.asarray(pc.is_valid(batch.column("chain")))
        found = [*self._each(columns, (digests != np.asarray(batch.column("hash"))) & kept, kept)]
        if documents_only:
            found = [row for row in found if row[0] == _DOCUMENT]
        else:
            found += self._linked(batch, columns, digests, kept)
            self._counts["entries"] += len(entries)
            self._counts["hashes"] += int(kept.sum())
        return _batch(self._member, found)

    def end(self) -> pa.RecordBatch:
        """The counts, and the part's edges."""
        found = _counted(self._counts)
        if self._edge is not None and self._first is not None and self._last is not None:
            detail = json.dumps([self._first, self._last])
            found.append(self._edge._replace(detail=detail))
        return _batch(self._member, found)

    def _each(
        self, columns: list[list[Any]], damaged: npt.NDArray[np.bool_], kept: npt.NDArray[np.bool_]
    ) -> Iterator[tuple[Any, ...]]:
        """Each entry by itself: faults, and what goes on to the second stage."""
        routes = _key_hashes(columns[_ROW.index("key")])
        wanted = self._wanted.among(routes)
        start_of_checked_o = self._heads.start_of_checked_o
        for row, is_damaged, is_kept, route, is_wanted in zip(
            zip(*columns, strict=True), damaged.tolist(), kept.tolist(), routes.tolist(), wanted.tolist(), strict=True
        ):
            ts, term, op, ns, key, wall, entry = row
            if is_damaged:
                yield _Row(*row).fault(HASH, "the entry's bytes do not give the stored hash")
                if is_wanted and key is not None:
                    yield _Finding(_DOCUMENT, route, ts, term)
                continue
            if not is_kept or key is None or not (begin := start_of_checked_o(entry, ts, term, op, ns, key, wall)):
                yield from self._check_closely(_Row(*row), is_kept)
            elif is_wanted or op == UPDATE:
                ui = collection_of(entry, begin)
                yield _DOCUMENT, route, ts, term, op, ns, key, None, None, begin, ui, entry, None

    def _check_closely(self, row: _Row, is_kept: bool) -> Iterator[_Finding]:
        """The same of an entry that is written in another way than primaries do, or is wrong."""
        try:
            if not is_kept:
                validate(row.entry)
            entry = OplogEntry(row.entry)
            problem = entry_problem(entry)
        except InvalidBSONError as error:
            problem = error.message
        if problem is not None:
            yield row.fault(ENTRY, problem)
            if row.key is not None:
                yield from self._document_rows(row, row.key)
            return
        if is_kept and (differing := _differing(row, entry)):
            yield row.fault(COLUMNS, differing)
        if (key := entry.key()) is not None:
            yield from self._document_rows(row, key, entry)
        elif entry.op == COMMAND:
            for changed in _in_transaction(entry):
                yield from self._document_rows(row, changed)

    def _document_rows(self, row: _Row, key: bytes, entry: OplogEntry | None = None) -> Iterator[_Finding]:
        """What goes to the second stage of a change to the document `key`; without the entry, that there is one."""
        routes = _key_hashes([key])
        route = int(routes[0])
        if entry is None:
            if self._wanted.among(routes)[0]:
                yield _Finding(_DOCUMENT, route, row.ts, row.term)
        elif entry.op == UPDATE or self._wanted.among(routes)[0]:
            begin = next(start for name, _, start, _ in walk(entry.raw) if name == "o")
            yield _Finding(
                _DOCUMENT, route, row.ts, row.term, entry.op, entry.ns, key, n=begin, ui=entry.ui, entry=entry.raw
            )

    def _linked(
        self, batch: pa.RecordBatch, columns: list[list[Any]], digests: Numbers, kept: npt.NDArray[np.bool_]
    ) -> Iterator[_Finding]:
        """Each entry against the one before it. Arrays find the entries to look at, `_link_faults` what is wrong."""
        ts, term, hashes = (np.asarray(batch.column(name)) for name in ("ts", "term", "hash"))
        chains = np.asarray(pc.fill_null(batch.column("chain"), 0))

        def link(at: int) -> _Link:
            chain = int(chains[at]) if kept[at] else None
            return _Link(int(ts[at]), int(term[at]), int(hashes[at]), chain, int(digests[at]))

        first, before = link(0), self._last
        if before is None:
            row = _Row(*(column[0] for column in columns))
            self._first = first
            what = _initiating_message(row.entry)
            self._edge = _Finding(_EDGE, 0, row.ts, row.term, what, row.ns, row.key, id_text(row.entry))
        else:
            self._counts["links"] += _is_link(before, first)
            yield from (_Row(*(column[0] for column in columns)).fault(*fault) for fault in _link_faults(before, first))
        pairs = np.column_stack([chains[:-1], hashes[1:]]).tobytes()
        given = [xxh3_64_intdigest(pairs[at : at + 16]) for at in range(0, len(pairs), 16)]
        linked = kept[1:] & kept[:-1]
        breaks = linked & (np.array(given, np.uint64).view(np.int64) != chains[1:])
        unordered = (ts[1:] <= ts[:-1]) | (term[1:] < term[:-1])
        self._counts["links"] += int(linked.sum())
        for at in np.flatnonzero(breaks | unordered).tolist():
            row = _Row(*(column[at + 1] for column in columns))
            yield from (row.fault(*fault) for fault in _link_faults(link(at), link(at + 1)))
        self._last = link(len(ts) - 1)


def entry_problem(entry: OplogEntry) -> str | None:
    """Why this is no entry of a kind that is known, None when it is one. InvalidBSONError: the same."""
    if entry.op not in _OPS:
        return f"the op {entry.op[:20]!r} is not known"
    if (version := entry.get("v")) != VERSION:
        return f"v is {version!r:.40}, not {VERSION}"
    if not isinstance(entry.get("wall"), DateTime | None):
        return "wall is no date"
    if entry.op in _DOCUMENT_OPS:
        entry.key()
        if not all(entry.ns.partition(".")):
            return f"the namespace {entry.ns[:100]!r} names no collection"
        if entry.ui is None:
            return "it names no collection by ui, so no member applies it"
    if entry.op == COMMAND and entry.o.first_key is None:
        return "it holds no command"
    return None


def _differing(row: _Row, entry: OplogEntry) -> str:
    """The columns that differ from the entry, as text; empty when none does."""
    pairs: list[tuple[str, object, object]] = [
        ("ts", row.ts, entry.optime.ts),
        ("term", row.term, entry.optime.term),
        ("op", row.op, entry.op),
        ("ns", row.ns, entry.ns),
        ("key", row.key, entry.key()),
        ("wall", row.wall, entry.wall_ms),
    ]
    return "; ".join(f"{name} is {_shown(name, a)}, in the entry {_shown(name, b)}" for name, a, b in pairs if a != b)


def _shown(name: str, value: object) -> str:
    if name == "ts" and isinstance(value, int):
        return ts_text(value)
    return value.hex()[:80] if isinstance(value, bytes) else f"{value!r:.80}"


def _in_transaction(entry: OplogEntry) -> Iterator[bytes]:
    """Keys of the documents that an applyOps changes. Its entries are not looked into further."""
    inner = entry.o.get("applyOps")
    for change in inner if isinstance(inner, list) else []:
        about = change.get("o2" if change.get("op") == UPDATE else "o") if isinstance(change, Mapping) else None
        if isinstance(about, Mapping) and "_id" in about:
            yield encode_key(about["_id"])


def _is_link(before: _Link, link: _Link) -> bool:
    return before.chain is not None and link.chain is not None


def _link_faults(before: _Link, link: _Link) -> Iterator[tuple[str, str]]:
    """What is wrong between two entries that follow each other."""
    at = OpTime(before.term, before.ts)
    if link.ts <= before.ts or link.term < before.term:
        yield ORDER, f"it comes after {at}"
    if before.chain is None or link.chain is None or next_chain(before.chain, link.hash) == link.chain:
        return
    # Where the stored hash alone is wrong, the chain still is that of the bytes.
    if link.digest == link.hash or next_chain(before.chain, link.digest) != link.chain:
        yield CHAIN, f"it does not follow from the chain of {at}"


def _initiating_message(entry: bytes) -> str | None:
    """INITIATING when the entry is the first that the set ever wrote."""
    try:
        o = OplogEntry(entry).o
        return INITIATING if o.get("msg") == INITIATING else None
    except InvalidBSONError:
        return None


def _key_hashes(keys: Iterable[bytes | None]) -> Numbers:
    digests = [0 if key is None else xxh3_64_intdigest(key) for key in keys]
    return np.array(digests, np.uint64).view(np.int64)


# --- in the worker: the second stage ---------------------------------------------------------------------------


def finished(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Faults and counts, from rows of the first stage sorted by _SORTED_BY that hold whole routes."""
    rows = (
        row
        for batch in batches
        for row in zip(*(batch.column(name).to_pylist() for name in _FINDINGS.names), strict=True)
    )
    counts: dict[str, Counter[str]] = {}
    out: dict[str, list[_Finding]] = {}
    for (member, tag, _), group in groupby(rows, key=lambda row: row[:3]):
        found = out.setdefault(member, [])
        some = (_Finding(*row[1:]) for row in group)
        count = counts.setdefault(member, Counter())
        match tag:
            case "edge":
                found.extend(_join_parts(some, count))
            case "document":
                found.extend(_apply_twice(some, count))
            case _:
                found.extend(some)
        if len(found) >= _BATCH_ROWS:
            yield _batch(member, out.pop(member))
    for member, found in out.items():
        yield _batch(member, found + _counted(counts[member]))


def _join_parts(edges: Iterable[_Finding], count: Counter[str]) -> Iterator[_Finding]:
    """The first entry of each part against the last of the part before; the very first against nothing."""
    before: _Link | None = None
    for edge in edges:
        first, last = (_Link(*link) for link in json.loads(edge.detail or "[]"))
        if before is None and edge.kind == INITIATING:
            before = _Link(-1, first.term, 0, CHAIN_START, 0)
        if before is not None:
            count["links"] += _is_link(before, first)
            for kind, detail in _link_faults(before, first):
                yield edge.as_fault(kind, detail)
        before = last


def _apply_twice(rows: Iterable[_Finding], count: Counter[str]) -> Iterator[_Finding]:
    """The entries of the documents of one route."""
    documents = DocumentStates()
    faults: list[Fault] = []
    for row in rows:
        if row.entry is None or row.kind is None or row.key is None or row.ui is None:
            faults += documents.make_uncertain()
            continue
        count["updates"] += row.kind == UPDATE
        o = row.entry[row.n : row.n + int.from_bytes(row.entry[row.n : row.n + 4], "little")]
        change = Change(row.ts, row.term, row.kind, row.ui, row.key, o, row.entry)
        try:
            faults += documents.apply(change)
        except NotIdempotentError as error:
            faults.append(Fault(change, error.message))
        except ReplError as error:
            yield _fault_of(change, error.message, DIFF if row.kind == UPDATE else ENTRY)
    yield from (_fault_of(*fault) for fault in [*faults, *documents.end()])
    count["documents"] += documents.changed
    count["applied"] += documents.applied


def _fault_of(change: Change, detail: str, kind: str = IDEMPOTENCE) -> _Finding:
    ns, shown = OplogEntry(change.entry).ns, id_text(change.entry)
    row = _Finding(_FAULT, change.ts, change.ts, change.term, ns=ns, key=change.key, id=shown)
    return row.as_fault(kind, detail)


# --- tables ----------------------------------------------------------------------------------------------------


def _counted(counts: Counter[str]) -> list[_Finding]:
    return [_Finding(_COUNT, 0, 0, 0, name, n=n) for name, n in counts.items() if n]


def _batch(member: str, found: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    return batch_from([(member, *row) for row in found], _FINDINGS)


def _checked(rows: pa.Table, oplogs: Sequence[Oplog]) -> pa.Table:
    counts = {oplog.name: Counter[str]() for oplog in oplogs}
    found = (rows[name].to_pylist() for name in ("member", "kind", "n"))
    for member, name, n in zip(*found, strict=True):
        counts[member][name] += n
    shown = [{"member": name, **{of: counts[name][of] for of in COUNTS}} for name in sorted(counts)]
    return pa.Table.from_pylist(shown, schema_of(" ".join(("member", *COUNTS)), member=pa.string()))

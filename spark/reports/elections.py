"""The terms of a set, from its members' oplogs: who led, how long nobody did, and what each change cost.

The history is the one of the member whose newest optime is highest. By Raft's log matching an entry of another member
is in it exactly when the history reaches that far in the entry's term, so the newest optime of each term decides.
A term without any entry (an election that nobody won) leaves no trace in an oplog.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from replset.bson import RawDocument
from replset.errors import CorruptDataError
from replset.ids import OpTime
from replset.oplog_entry import NOOP
from replset.replication.rollback_manifest import Manifest, list_manifests
from spark.columns import MEMBER, arrow_schema, batch_from, schema_of, table_from, tuples_of
from spark.jobs import pinned, with_member
from spark.oplog import EntryFilter, Oplog, OplogError, Span
from spark.readers.sqlite import SqliteOplog
from spark.runners import Rows, Runner, SparkRunner, frames

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Manifests = Sequence[tuple[str, Manifest]]
"""Each with the name of the oplog that has it."""
NEW_PRIMARY = "new primary"
INITIATING = "initiating set"
NOOPS = EntryFilter(op=(NOOP,))
_TEXT, _NAMES = pa.string(), pa.list_(pa.string())
TERMS = schema_of(
    "term primary began first_ts first first_wall last_ts last last_wall entries gap_ms members lost lost_by "
    "rolled_back rollbacks",
    **dict.fromkeys(("primary", "began", "first", "last"), _TEXT),
    **dict.fromkeys(("members", "lost_by", "rollbacks"), _NAMES),
)
LOST = schema_of(
    "member ts term optime op ns key wall entry rollback",
    **dict.fromkeys(("member", "optime", "op", "ns", "rollback"), _TEXT),
    **dict.fromkeys(("key", "entry"), pa.binary()),
)
ROLLBACKS = schema_of(
    "member id state reason when source common_point first_ts first_term first last_ts last_term last entries",
    **dict.fromkeys(("member", "id", "state", "reason", "when", "source", "common_point", "first", "last"), _TEXT),
)
_MEMBER_TERMS = schema_of("member term first_ts first_wall last_ts last_wall entries", member=pa.string())
_TERM_STARTS = schema_of("term ts msg host", msg=pa.string(), host=pa.string())
_INCREMENT = (1 << 31) - 1
_LOST_COLUMNS = ("ts", "term", "op", "ns", "key", "wall", "entry")


@dataclass(frozen=True, slots=True)
class Elections:
    """winner: whose history it is; None when all oplogs are empty. The rows of each table by its schema above.

    terms: one row a term, by term. `first`, `last`, `entries` are of the history, in a term that it lost of what was
    lost. gap_ms: from the last entry of the term before to the first of this one; null without one before, or when the
    term's beginning was trimmed away. `lost`: entries of the term that some member (`lost_by`) has and the history has
    not. rolled_back: entries that the manifests beside the members' files (`rollbacks`: MEMBER/ID) record of the term,
    a manifest of several terms counted in each.
    lost: those entries, with the rollback that recorded them, if one did. rollbacks: the manifests.
    """

    winner: str | None
    terms: Rows
    lost: Rows
    rollbacks: Rows


def elections(spark: SparkSession, oplogs: Sequence[Oplog]) -> Elections:
    """The tables as DataFrames."""
    return frames(spark, elections_of(SparkRunner.of(spark), oplogs))


def elections_of(runner: SparkRunner, oplogs: Sequence[Oplog]) -> Elections:
    """Find the set's terms in the members' oplogs and rollback folders. OplogError: one could not be read."""
    oplogs = pinned(oplogs)
    here = runner.of_size(0, 0)  # few rows leave a part
    member_terms = member_terms_of(here, oplogs)
    winner = winner_of(member_terms)
    manifests = [(oplog.name, manifest) for oplog in oplogs for manifest in manifests_of(oplog)]
    lost = _lost_entries(runner, oplogs, member_terms, winner, manifests)
    lost_by_members = _holders(lost) if lost is not None else []
    starts = tuples_of(here.read(oplogs, ("ts", "term", "entry"), _term_start_batches, _TERM_STARTS, only=NOOPS))
    rows = term_rows(member_terms, winner, {TermStart(*row) for row in starts}, lost_by_members, manifests)
    return Elections(
        winner,
        table_from(rows, TERMS),
        LOST.empty_table() if lost is None else lost.select(*LOST.names).orderBy("member", "ts"),
        table_from([_rollback_row(*pair) for pair in manifests], ROLLBACKS),
    )


class MemberTerm(NamedTuple):
    """What one member has of one term."""

    member: str
    term: int
    first_ts: int
    first_wall: int
    last_ts: int
    last_wall: int
    entries: int


class TermStart(NamedTuple):
    """A no-op that begins a term. host: of the new primary, where the entry has it."""

    term: int
    ts: int
    msg: str
    host: str | None


class Fork(NamedTuple):
    """Where a member leaves the history. common: the newest entry that both have, None when none is known.

    tail: the span of the entries that only the member has; None when it has none such.
    """

    common: OpTime | None
    tail: Span | None


# --- pure ------------------------------------------------------------------------------------------------------


def winner_of(member_terms: Iterable[MemberTerm]) -> str | None:
    """The member with the newest optime; of several the one that reaches back furthest, then the first by name."""
    newest: dict[str, tuple[int, int]] = {}
    oldest: dict[str, int] = {}
    for part in member_terms:
        optime = (part.term, part.last_ts)
        newest[part.member] = max(newest.get(part.member, optime), optime)
        oldest[part.member] = min(oldest.get(part.member, part.first_ts), part.first_ts)
    if not newest:
        return None
    return min(newest, key=lambda name: (-newest[name][0], -newest[name][1], oldest[name], name))


def fork_of(mine: Iterable[MemberTerm], history: Iterable[MemberTerm]) -> Fork:
    """Where one member's stretches leave those of the history. What the history trimmed away counts as common."""
    theirs = {part.term: part for part in history}
    ordered = sorted(mine, key=lambda part: part.term)
    if not theirs or not ordered:
        return Fork(None, None)
    end = max(part.last_ts for part in ordered) + 1
    oldest = min(theirs.values(), key=lambda part: part.term)
    common: OpTime | None = None
    for part in ordered:
        other = theirs.get(part.term)
        if other is not None:
            common = OpTime(part.term, min(part.last_ts, other.last_ts))
            if part.last_ts > other.last_ts:
                return Fork(common, Span(other.last_ts + 1, end))
        elif part.term > oldest.term or part.last_ts >= oldest.first_ts:
            # A term that the history does not know, or entries where its oldest ones are of a later term.
            return Fork(common, Span(max(part.first_ts, 0 if common else oldest.first_ts), end))
    return Fork(common, None)


def term_rows(
    member_terms: Sequence[MemberTerm],
    winner: str | None,
    starts: Iterable[TermStart],
    lost_by_members: Iterable[tuple[int, Sequence[str], int]],
    manifests: Manifests,
) -> list[tuple[Any, ...]]:
    """The rows of `Elections.terms`. lost_by_members: (term, members, entries) that just these members have."""
    lost: dict[tuple[str, int], int] = {}
    lost_distinct: dict[int, int] = {}
    for term, members, entries in lost_by_members:
        lost_distinct[term] = lost_distinct.get(term, 0) + entries
        for member in members:
            lost[member, term] = lost.get((member, term), 0) + entries
    began: dict[int, TermStart] = {}
    primaries: dict[int, str | None] = {}
    for start in sorted(starts, key=lambda start: (start.term, start.ts)):
        began.setdefault(start.term, start)
        if start.msg == NEW_PRIMARY:
            primaries.setdefault(start.term, start.host)
    theirs = {part.term: part for part in member_terms if part.member == winner}
    rows: list[tuple[Any, ...]] = []
    before_wall: int | None = None
    for term in sorted({part.term for part in member_terms}):
        having = [part for part in member_terms if part.term == term]
        kept = [part for part in having if part.entries > lost.get((part.member, term), 0)]
        shown = kept or having
        first = min(shown, key=lambda part: part.first_ts)
        last = theirs.get(term) or max(shown, key=lambda part: part.last_ts)
        began_with = began.get(term)
        whole = began_with is not None and began_with.ts == first.first_ts
        recorded = [(name, m) for name, m in manifests if m.first.term <= term <= m.last.term]
        rows.append(
            (
                term,
                primaries.get(term),
                began_with.msg if began_with is not None and whole else None,
                first.first_ts,
                str(OpTime(term, first.first_ts)),
                first.first_wall,
                last.last_ts,
                str(OpTime(term, last.last_ts)),
                last.last_wall,
                max(part.entries - (lost.get((part.member, term), 0) if kept else 0) for part in shown),
                first.first_wall - before_wall if kept and whole and before_wall is not None else None,
                sorted(part.member for part in having),
                lost_distinct.get(term, 0),
                sorted(name for name, of in lost if of == term),
                sum(manifest.entries for _, manifest in recorded),
                [f"{name}/{manifest.id}" for name, manifest in recorded],
            )
        )
        if kept:
            before_wall = last.last_wall
    return rows


def member_terms_in(member: str, batches: Iterator[pa.RecordBatch]) -> Iterator[MemberTerm]:
    """The runs of equal terms in batches of (ts, term, wall), ended by each batch's end."""
    for batch in batches:
        if batch.num_rows == 0:
            continue
        ts, term, wall = (np.asarray(batch.column(name)) for name in ("ts", "term", "wall"))
        begins = np.concatenate(([0], np.flatnonzero(np.diff(term)) + 1, [batch.num_rows]))
        for at, end in zip(begins[:-1].tolist(), begins[1:].tolist(), strict=True):
            yield MemberTerm(
                member, int(term[at]), int(ts[at]), int(wall[at]), int(ts[end - 1]), int(wall[end - 1]), end - at
            )


def term_start_in(ts: int, term: int, entry: bytes) -> TermStart | None:
    """The opening that this no-op is, if it is one."""
    o = RawDocument(entry).get("o")
    if not isinstance(o, Mapping) or o.get("msg") not in (NEW_PRIMARY, INITIATING):
        return None
    host = o.get("host")
    return TermStart(term, ts, str(o["msg"]), host if isinstance(host, str) else None)


def manifests_of(oplog: Oplog) -> list[Manifest]:
    """The rollbacks recorded beside a member's database file, oldest first; none for oplogs of other kinds."""
    if not isinstance(oplog, SqliteOplog):
        return []
    try:
        return list_manifests(Path(oplog.path).absolute().parent)
    except (CorruptDataError, OSError) as error:
        raise OplogError(oplog.name, error) from error


# --- in Spark --------------------------------------------------------------------------------------------------


def member_terms_of(runner: Runner, oplogs: Sequence[Oplog]) -> list[MemberTerm]:
    """What each member has of each term: one row a member and term."""
    found = tuples_of(runner.read(oplogs, ("ts", "term", "wall"), _member_term_batches, _MEMBER_TERMS))
    terms: dict[tuple[str, int], MemberTerm] = {}
    for part in sorted(MemberTerm(*row) for row in found):
        name = (part.member, part.term)
        first = terms.setdefault(name, part._replace(entries=0))
        terms[name] = part._replace(
            first_ts=first.first_ts, first_wall=first.first_wall, entries=first.entries + part.entries
        )
    return list(terms.values())


def _member_term_batches(member: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield batch_from(list(member_terms_in(member, batches)), _MEMBER_TERMS)


def _term_start_batches(_member: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        yield batch_from([start for row in rows if (start := term_start_in(*row)) is not None], _TERM_STARTS)


def _lost_entries(
    runner: SparkRunner,
    oplogs: Sequence[Oplog],
    member_terms: Sequence[MemberTerm],
    winner: str | None,
    manifests: Manifests,
) -> DataFrame | None:
    """Of each member the entries behind its common point that the winner lacks, by (term, ts). None: no tail."""
    from pyspark.sql import functions as f

    def read(oplogs: Sequence[Oplog], columns: Sequence[str], span: Span) -> Any:
        return runner.read(oplogs, columns, with_member, arrow_schema((MEMBER, *columns)), span=span)

    history = [part for part in member_terms if part.member == winner]
    kept_by = [oplog for oplog in oplogs if oplog.name == winner]
    found: DataFrame | None = None
    for oplog in oplogs:
        tail = fork_of([part for part in member_terms if part.member == oplog.name], history).tail
        if oplog.name == winner or tail is None:
            continue
        there = read(kept_by, ("ts", "term"), span=tail).drop(MEMBER)
        only_here = read([oplog], _LOST_COLUMNS, span=tail).join(there, ["ts", "term"], "left_anti")
        found = only_here if found is None else found.unionByName(only_here)
    if found is None:
        return None
    named = f.lit(None).cast("string")
    for member, manifest in reversed(manifests):  # the first of several that recorded an entry is named
        named = f.when(_within(manifest), f.lit(f"{member}/{manifest.id}")).otherwise(named)
    seconds, increment = f.shiftright("ts", 31).cast("string"), f.col("ts").bitwiseAND(_INCREMENT).cast("string")
    return found.withColumn("optime", f.concat_ws(":", "term", seconds, increment)).withColumn("rollback", named)


def _within(manifest: Manifest) -> Column:
    """Whether an entry is one of those that the rollback took away."""
    from pyspark.sql import functions as f

    first, last, term, ts = manifest.first, manifest.last, f.col("term"), f.col("ts")
    begun = (term > first.term) | ((term == first.term) & (ts >= first.ts))
    return begun & ((term < last.term) | ((term == last.term) & (ts <= last.ts)))


def _holders(lost: DataFrame) -> list[tuple[int, list[str], int]]:
    """(term, members, entries): how many entries of the term just these members hold."""
    from pyspark.sql import functions as f

    entries = lost.groupBy("term", "ts").agg(f.array_sort(f.collect_set("member")).alias("members"))
    rows = entries.groupBy("term", "members").count().orderBy("term", "members").collect()
    return [(row[0], list(row[1]), row[2]) for row in rows]


def _rollback_row(member: str, manifest: Manifest) -> tuple[Any, ...]:
    first, last = manifest.first, manifest.last
    return (
        member,
        manifest.id,
        manifest.state.value,
        manifest.reason,
        manifest.when,
        manifest.source,
        str(manifest.common_point),
        first.ts,
        first.term,
        str(first),
        last.ts,
        last.term,
        str(last),
        manifest.entries,
    )

"""What differences between members' oplogs mean: kinds of entries, common points and verdicts of pairs.

Works on batches of rows of the buckets that differ (`ROWS`), in the same way for both engines. Members are numbers, in
the order of their names. Two entries are the same when term, ts and hash are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from replset.ids import OPTIME_NULL, OpTime
from spark.columns import FIELDS, repeated, schema_of, sorted_by
from spark.oplog import ALL, Bounds, EntryFilter, Oplog, Span
from spark.reports.diff.digests import Flags, Numbers, groups, mixed, numbers, run_starts
from spark.runners import Rows, aggregated, ordered, where_given

Table = TypeVar("Table")
Pair = tuple[int, int]
Chained = tuple[int, OpTime]
READ_FOR_ROWS = ("ts", "term", "hash", "op", "ns", "key")
ROWS = pa.schema([("at", pa.int64()), *((name, FIELDS[name]) for name in READ_FOR_ROWS)])
ROW_ORDER = ("ts", "term", "at", "hash")
_TEXT, _NAMES = pa.string(), pa.list_(pa.string())
_HASHES = pa.list_(pa.struct([("member", _TEXT), ("hash", pa.int64())]))
ENTRIES = schema_of(
    "optime ts term op ns key kind reason present absent hashes",
    **{"key": pa.binary(), "present": _NAMES, "absent": _NAMES, "hashes": _HASHES},
    **dict.fromkeys(("optime", "op", "ns", "kind", "reason"), _TEXT),
)
ENTRY_ORDER = ("ts", "term", "kind", "reason")
PAIRS = schema_of(
    "a b verdict follower common common_ts common_term same_chain "
    "a_after b_after a_missing b_missing divergent duplicated",
    **dict.fromkeys(("a", "b", "verdict", "follower", "common"), _TEXT),
    same_chain=pa.bool_(),
)
MEMBERS = schema_of(
    "member oldest newest oldest_ts oldest_term newest_ts newest_term entries trimmed",
    **dict.fromkeys(("member", "oldest", "newest"), _TEXT),
)


class Kind(StrEnum):
    """divergent: the same optime, other content: a bug or bit rot. duplicated: some member has the optime more than
    once. missing: `absent` should have it. rolled-back: a candidate, on a branch that loses against `absent`.
    extra: newer than all that `absent` has, which is behind.
    """

    DIVERGENT = "divergent"
    DUPLICATED = "duplicated"
    MISSING = "missing"
    ROLLED_BACK = "rolled-back"
    EXTRA = "extra"


class Reason(StrEnum):
    """Of `missing`: a hole in a history that goes on behind it, or the winning branch, which the loser will fetch once
    it has rolled back. The other kinds have one each.
    """

    CONTENT = "content"
    COPIES = "copies"
    HOLE = "hole"
    LOSING = "losing branch"
    WINNING = "winning branch"
    AHEAD = "ahead"


class Verdict(StrEnum):
    """Of a pair, the first that holds: nothing in common; content that differs, copies or holes in what should be one
    history; both went on from the common point; one did; none did.
    """

    NO_COMMON_POINT = "no common point"
    INCONSISTENT = "inconsistent"
    DIVERGED = "diverged"
    BEHIND = "behind"
    SAME = "same"


class Absence(IntEnum):
    """Why an entry of one member is not on another, strongest first; 0 where it is, or need not be."""

    HOLE = 1
    WINNING = 2
    LOSING = 3
    AHEAD = 4


_ABSENCES = {
    Absence.HOLE: (Kind.MISSING, Reason.HOLE),
    Absence.WINNING: (Kind.MISSING, Reason.WINNING),
    Absence.LOSING: (Kind.ROLLED_BACK, Reason.LOSING),
    Absence.AHEAD: (Kind.EXTRA, Reason.AHEAD),
}


@dataclass(frozen=True, slots=True)
class Diff(Generic[Table]):
    """`Table`: a DataFrame, or a pyarrow Table (local engine). Sorted by the columns in brackets.

    members (member): its bounds; `entries`: how many of it were compared; `trimmed`: how many were left out since its
    oldest ones were trimmed away during the run.
    pairs (a, b), a < b: verdict; common: the common point, which is the newest (term, ts) that both have with the same
    hash, null for none; same_chain: whether their hash chains agree there, so that all before it is the same, what
    is before the oldest entries included (null: unknown); a_after, b_after: entries behind the common point;
    a_missing: holes of a, which are entries of b; divergent: optimes with other content; duplicated: optimes that they
    have in other numbers; follower: who is behind, or would roll back (lower last term), null for none of them.
    entries (ts, term, kind, reason): what differs; see Kind and Reason. present: who has it. absent: of whom the row
    is, empty for divergent and duplicated. Members whose oldest entry is newer are in neither. hashes: of every copy,
    null but for divergent and duplicated. op, ns, key: as the first of `present` has them.
    by_namespace (ns, kind): entries, and how many documents they are about. by_document (most entries first, ns, key).
    """

    members: Table
    pairs: Table
    entries: Table
    by_namespace: Table
    by_document: Table
    verdicts: tuple[Verdict, ...]
    trimmed: int
    chosen: bool = False
    """Whether `entries` are some of those that differ, by `only`."""

    @property
    def same(self) -> bool:
        """Whether no members differ where they can be compared: of what was chosen, if something was."""
        if all(verdict is Verdict.SAME for verdict in self.verdicts):
            return True
        if not self.chosen:
            return False
        rows: Any = self.entries
        return rows.num_rows == 0 if isinstance(rows, pa.Table) else bool(rows.isEmpty())


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the members before their entries are looked at.

    heads: the ts of the oldest entry of each; nothing older is expected of it. newest: OPTIME_NULL in an empty oplog.
    common: the common point of each pair (a < b) that has one.
    """

    names: tuple[str, ...]
    heads: tuple[int, ...]
    newest: tuple[OpTime, ...]
    common: Mapping[Pair, OpTime]

    @classmethod
    def of(cls, names: Sequence[str], bounds: Sequence[Bounds], first_ts: int) -> Facts:
        """Before any common point is known. first_ts: before it nothing is read."""
        heads = tuple(max(one.oldest.ts, first_ts) for one in bounds)
        return cls(tuple(names), heads, tuple(one.newest for one in bounds), {})

    def common_ts(self, one: int, other: int) -> int:
        """-1 when they have no common point."""
        found = self.common.get((min(one, other), max(one, other)))
        return -1 if found is None else found.ts

    def pairs(self) -> list[Pair]:
        return [(one, other) for one in range(len(self.names)) for other in range(one + 1, len(self.names))]

    def absence(self, holder: int, member: int, ts: Numbers) -> npt.NDArray[np.int8]:
        """Why entries that `holder` has at `ts` are not on `member`, which should have them if it is not behind.

        The side with the lower last term loses: it would roll back. A member of an equal last term, or one that did
        not go on by itself, has a hole where it has newer entries, and is behind otherwise.
        """
        common, newest = self.common_ts(holder, member), self.newest[member]
        if newest.term > self.newest[holder].term:
            behind = np.full(len(ts), Absence.LOSING, np.int8)
        elif newest.term < self.newest[holder].term and newest.ts > common and newest.ts >= self.heads[holder]:
            behind = np.full(len(ts), Absence.WINNING, np.int8)
        else:
            behind = np.where(ts <= newest.ts, Absence.HOLE, Absence.AHEAD).astype(np.int8)
        return np.where(ts <= common, np.int8(Absence.HOLE), behind)


class Tally(NamedTuple):
    """Counts of a pair, as in `Diff.pairs`."""

    a_after: int = 0
    b_after: int = 0
    a_missing: int = 0
    b_missing: int = 0
    divergent: int = 0
    duplicated: int = 0

    def __add__(self, other: object) -> Tally:
        return Tally(*map(sum, zip(self, other, strict=True))) if isinstance(other, Tally) else NotImplemented


class RowsByOptime:
    """The rows of a table by optime: arrays of (optime, member). Rows older than their member's head do not count.

    The table: of ROWS, ordered by ROW_ORDER, whole optimes.
    """

    def __init__(self, facts: Facts, table: pa.Table) -> None:
        at, ts, term, hashed = (numbers(table, name) for name in ("at", "ts", "term", "hash"))
        heads = np.asarray(facts.heads)
        counts = ts >= heads[at]
        if not counts.all():
            table = table.filter(pa.array(counts))
            at, ts, term, hashed = at[counts], ts[counts], term[counts], hashed[counts]
        self.rows, self.at, self.hashes = table, at, hashed
        self.starts = starts = run_starts(ts, term)
        self.group = group = groups(starts, len(ts))
        self.ts, self.term = ts[starts], term[starts]
        shape = (len(starts), len(facts.names))
        self.copies = np.zeros(shape, np.int64)
        np.add.at(self.copies, (group, at), 1)
        self.present: Flags = self.copies > 0
        self.covered: Flags = self.ts[:, None] >= heads[None, :]
        value = mixed(hashed.view(np.uint64))
        self.content = np.zeros(shape, np.uint64)
        """Of each member the set of its hashes, summed up."""
        self.all_content = self.content
        """The same with every copy."""
        fresh = np.zeros(len(ts), bool)
        fresh[run_starts(group, at, hashed)] = True
        np.add.at(self.content, (group[fresh], at[fresh]), value[fresh])
        if not fresh.all():
            self.all_content = np.zeros(shape, np.uint64)
            np.add.at(self.all_content, (group, at), value)
        self.several: Flags = np.zeros(len(starts), bool)
        """Whether it comes with more than one content."""
        if len(starts):
            self.several = np.minimum.reduceat(hashed, starts) != np.maximum.reduceat(hashed, starts)

    def differs(self) -> Flags:
        """Whether not all members that reach back so far have it alike."""
        first = self.all_content[np.arange(len(self.ts)), self.present.argmax(axis=1)] if len(self.ts) else self.ts
        differs: Flags = (self.covered & ~(self.present & (self.all_content == first[:, None]))).any(axis=1)
        return differs


def newest_common(facts: Facts, table: pa.Table) -> dict[Pair, OpTime]:
    """The newest entry in these rows that both of a pair have with the same hash."""
    at, ts, term, hashed = (numbers(table, name) for name in ("at", "ts", "term", "hash"))
    counts = ts >= np.asarray(facts.heads)[at]
    at, ts, term, hashed = at[counts], ts[counts], term[counts], hashed[counts]
    order = np.lexsort((hashed, term, ts))
    starts = run_starts(ts[order], term[order], hashed[order])
    present = np.zeros((len(starts), len(facts.names)), bool)
    present[groups(starts, len(ts)), at[order]] = True
    first = order[starts]
    found = {}
    for one, other in facts.pairs():
        both = np.flatnonzero(present[:, one] & present[:, other])
        if len(both):
            newest = first[both[-1]]
            found[one, other] = OpTime(int(term[newest]), int(ts[newest]))
    return found


def newest_of(found: Iterable[Mapping[Pair, OpTime]]) -> dict[Pair, OpTime]:
    """Of each pair the newest, by ts."""
    newest: dict[Pair, OpTime] = {}
    for some in found:
        for pair, optime in some.items():
            if pair not in newest or (newest[pair].ts, newest[pair].term) < (optime.ts, optime.term):
                newest[pair] = optime
    return newest


def tallies(facts: Facts, table: pa.Table) -> dict[Pair, Tally]:
    """The counts of each pair in these rows."""
    found = RowsByOptime(facts, table)
    ts, present, covered = found.ts, found.present, found.covered
    counted = {}
    for a, b in facts.pairs():
        both = present[:, a] & present[:, b]
        only_a, only_b = present[:, a] & ~present[:, b] & covered[:, b], present[:, b] & ~present[:, a] & covered[:, a]
        behind = ts > facts.common_ts(a, b)
        divergent = both & (found.content[:, a] != found.content[:, b])
        counted[a, b] = Tally(
            int((present[:, a] & covered[:, b] & behind).sum()),
            int((present[:, b] & covered[:, a] & behind).sum()),
            int((facts.absence(b, a, ts[only_b]) == Absence.HOLE).sum()),
            int((facts.absence(a, b, ts[only_a]) == Absence.HOLE).sum()),
            int(divergent.sum()),
            int((both & ~divergent & (found.all_content[:, a] != found.all_content[:, b])).sum()),
        )
    return counted


def added(counts: Iterable[Mapping[Pair, Tally]]) -> dict[Pair, Tally]:
    total: dict[Pair, Tally] = {}
    for some in counts:
        for pair, tally in some.items():
            total[pair] = total.get(pair, Tally()) + tally
    return total


def entries(facts: Facts, table: pa.Table, only: EntryFilter = ALL) -> pa.Table:
    """The rows of `Diff.entries` for these rows, ordered. only: which of them are wanted."""
    found = RowsByOptime(facts, table)
    differs = found.differs()
    reasons = [
        (Kind.DIVERGENT, Reason.CONTENT, found.several, None),
        (Kind.DUPLICATED, Reason.COPIES, (found.copies > 1).any(axis=1), None),
    ]
    absences = _absences(facts, found)
    for absence, (kind, reason) in _ABSENCES.items():
        absent = absences == absence
        reasons.append((kind, reason, absent.any(axis=1), absent))
    parts = [
        _rows(facts, found, np.flatnonzero(differs & those), kind, reason, absent)
        for kind, reason, those, absent in reasons
    ]
    rows = pa.concat_tables(parts)
    for column, wanted in (("ns", only.ns), ("op", only.op)):
        if wanted:
            rows = rows.filter(pc.is_in(rows[column], pa.array(wanted, pa.string())))
    return sorted_by(rows, *ENTRY_ORDER) if rows.num_rows else rows


def _absences(facts: Facts, found: RowsByOptime) -> npt.NDArray[np.int8]:
    """By optime and member; of several holders the one with the strongest reason counts."""
    none = np.int8(len(Absence) + 1)
    reasons = np.full(found.present.shape, none, np.int8)
    lacking = found.covered & ~found.present
    for holder in np.flatnonzero(found.present.any(axis=0)).tolist():
        for member in np.flatnonzero(lacking.any(axis=0)).tolist():
            those = np.flatnonzero(found.present[:, holder] & lacking[:, member])
            if len(those):
                reason = facts.absence(holder, member, found.ts[those])
                reasons[those, member] = np.minimum(reasons[those, member], reason)
    return np.where(reasons == none, np.int8(0), reasons)


def _rows(
    facts: Facts, found: RowsByOptime, those: Numbers, kind: Kind, reason: Reason, absent: Flags | None
) -> pa.Table:
    names = pa.array(facts.names, pa.string())
    ts, term = found.ts[those], found.term[those]
    present = found.present[those]
    lacking = np.zeros_like(present) if absent is None else absent[those]
    columns = found.rows.select(["op", "ns", "key"]).take(pa.array(found.starts[those])).combine_chunks()
    texts = [pa.array(number).cast(pa.string()) for number in (term, ts >> 31, ts & ((1 << 31) - 1))]
    hashes = _hashes(found, those, names) if absent is None else pa.nulls(len(those), _HASHES)
    arrays = [
        pc.binary_join_element_wise(*texts, ":"),
        pa.array(ts),
        pa.array(term),
        *columns.columns,
        repeated(kind.value, len(those)),
        repeated(reason.value, len(those)),
        _name_lists(present, names),
        _name_lists(lacking, names),
        hashes,
    ]
    return pa.Table.from_arrays(arrays, schema=ENTRIES)


def _name_lists(flags: Flags, names: pa.Array) -> pa.Array:
    offsets = np.concatenate(([0], np.cumsum(flags.sum(axis=1)))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), names.take(pa.array(np.nonzero(flags)[1])))


def _hashes(found: RowsByOptime, those: Numbers, names: pa.Array) -> pa.Array:
    wanted = np.zeros(len(found.ts), bool)
    wanted[those] = True
    rows = wanted[found.group]
    sizes = np.bincount(found.group[rows], minlength=len(found.ts))[those]
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    fields = [names.take(pa.array(found.at[rows])), pa.array(found.hashes[rows])]
    values = pa.StructArray.from_arrays(fields, fields=list(_HASHES.value_type))
    return pa.ListArray.from_arrays(pa.array(offsets), values)


# --- tables of a few rows --------------------------------------------------------------------------------------


def chains_at(oplogs: Sequence[Oplog], facts: Facts) -> dict[Chained, int | None]:
    """The members' chains at their common points."""
    wanted = {(member, common) for pair, common in facts.common.items() for member in pair}
    return {(member, common): _chain(oplogs[member], common) for member, common in sorted(wanted)}


def _chain(oplog: Oplog, optime: OpTime) -> int | None:
    for batch in oplog.read(Span(optime.ts, optime.ts + 1), ("ts", "term", "chain")):
        for term, chain in zip(batch.column("term").to_pylist(), batch.column("chain").to_pylist(), strict=True):
            if term == optime.term:
                return None if chain is None else int(chain)
    return None


def verdict_of(common: OpTime | None, tally: Tally, *, empty: bool) -> Verdict:
    """empty: neither of the pair has any entry that was compared."""
    if common is None:
        return Verdict.SAME if empty else Verdict.NO_COMMON_POINT
    if tally.a_missing or tally.b_missing or tally.divergent or tally.duplicated:
        return Verdict.INCONSISTENT
    if tally.a_after and tally.b_after:
        return Verdict.DIVERGED
    return Verdict.BEHIND if tally.a_after or tally.b_after else Verdict.SAME


def pair_rows(
    facts: Facts, tally: Mapping[Pair, Tally], chains: Mapping[Chained, int | None], compared: Sequence[int]
) -> list[dict[str, Any]]:
    """The rows of `Diff.pairs`. chains: of the common points, None where a member keeps none. compared: how many
    entries of each member.
    """
    rows: list[dict[str, Any]] = []
    for a, b in facts.pairs():
        counts, common = tally.get((a, b), Tally()), facts.common.get((a, b))
        empty = not compared[a] and not compared[b]
        chain = [chains.get((member, common)) for member in (a, b)] if common else [None]
        rows.append(
            {
                "a": facts.names[a],
                "b": facts.names[b],
                "verdict": verdict_of(common, counts, empty=empty).value,
                "follower": _follower(facts, a, b, counts),
                "common": None if common is None else str(common),
                "common_ts": None if common is None else common.ts,
                "common_term": None if common is None else common.term,
                "same_chain": None if None in chain else chain[0] == chain[1],
                **counts._asdict(),
            }
        )
    return rows


def _follower(facts: Facts, a: int, b: int, counts: Tally) -> str | None:
    if counts.a_after and counts.b_after:
        if facts.newest[a].term == facts.newest[b].term:
            return None
        return facts.names[a if facts.newest[a].term < facts.newest[b].term else b]
    if counts.a_after or counts.b_after:
        return facts.names[b if counts.a_after else a]
    return None


def member_rows(
    facts: Facts, bounds: Sequence[Bounds], counted: Sequence[int], left_out: Sequence[int]
) -> list[dict[str, Any]]:
    """The rows of `Diff.members`."""
    return [
        {
            "member": name,
            "oldest": None if one.oldest == OPTIME_NULL else str(one.oldest),
            "newest": None if one.newest == OPTIME_NULL else str(one.newest),
            "oldest_ts": one.oldest.ts,
            "oldest_term": one.oldest.term,
            "newest_ts": one.newest.ts,
            "newest_term": one.newest.term,
            "entries": int(entries),
            "trimmed": int(trimmed),
        }
        for name, one, entries, trimmed in zip(facts.names, bounds, counted, left_out, strict=True)
    ]


def count_by_namespace(rows: Rows) -> Rows:
    how = {"entries": ("count", "ns"), "documents": ("count_distinct", "key")}
    return ordered(aggregated(rows, ("ns", "kind"), **how), "ns", "kind")


def count_by_document(rows: Rows) -> Rows:
    """One entry may be in several rows; it counts once."""
    how = {
        "entries": ("count_distinct", "optime"),
        "first_ts": ("min", "ts"),
        "last_ts": ("max", "ts"),
        "kinds": ("set", "kind"),
    }
    return ordered(aggregated(where_given(rows, "key"), ("ns", "key"), **how), "-entries", "ns", "key")

"""`difference` finds exactly what was planted, and says what a comparison entry by entry, in plain dicts, says."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from replset.bson import encode_key
from replset.ids import OpTime, pack_ts
from replset.oplog_row import OplogRow
from spark.oplog import ALL, EVERYTHING, EntryFilter, Span
from spark.reports.diff.classify import Diff
from spark.reports.diff.compare import difference
from spark.reports.diff.digests import BucketGrid
from spark.runners import LocalRunner
from tests.examples import examples
from tests.spark.kit import T0, ListOplog
from tests.spark.planted import SAYS_NOTHING, Plan, plans, plant

Row = dict[str, Any]
Rows = Sequence[OplogRow]
GRIDS = st.none() | st.builds(BucketGrid, st.sampled_from([1, 2, 8, 1 << 10]), st.sampled_from([0, 1, 3, 1 << 20]))
TASKS = st.sampled_from([1, 3, 10, 1000])
BATCHES = st.sampled_from([1, 2, 5, 1000])
ONLY = st.sampled_from(
    [ALL, ALL, EntryFilter(ns=("shop.orders",)), EntryFilter(op=("i",)), EntryFilter(("a.b", "app.users"), ("u", "i"))]
)
EXAMPLES = examples(60)


@EXAMPLES
@given(plans(), GRIDS, TASKS, BATCHES)
def test_what_was_planted_is_found_and_nothing_else(plan: Plan, grid: BucketGrid | None, rows: int, batch: int) -> None:
    planted = plant(plan)
    found = difference(LocalRunner(), planted.oplogs(batch), grid=grid, rows_per_task=rows)
    assert found.entries.to_pylist() == planted.expected


@EXAMPLES
@given(plans(changes=SAYS_NOTHING))
def test_what_only_verify_sees_is_no_difference(plan: Plan) -> None:
    found = difference(LocalRunner(), plant(plan).oplogs())
    assert {row["kind"] for row in found.entries.to_pylist()} <= {"extra", "rolled-back", "missing"}
    assert all(pair["divergent"] == 0 for pair in found.pairs.to_pylist())


@st.composite
def oplogs(draw: st.DrawFn) -> dict[str, Rows]:
    """Two to four members with a few entries each, which agree on nothing in particular."""
    increments = st.sampled_from([1, 2, 511, 512, 513, 1024, (1 << 31) - 1])
    stamp = st.builds(pack_ts, st.integers(T0, T0 + 5), increments)
    entry = st.tuples(stamp, st.integers(1, 3), st.integers(0, 2))
    pool = draw(st.lists(entry, min_size=1, max_size=15))
    names = draw(st.permutations(["a", "b", "c", "d"]))[: draw(st.integers(2, 4))]
    return {name: _rows(draw(st.lists(st.sampled_from(pool), max_size=15))) for name in names}


@st.composite
def spans(draw: st.DrawFn) -> Span:
    first, end = sorted(draw(st.tuples(*[st.integers(T0, T0 + 6)] * 2)))
    increments = st.sampled_from([0, 1, 512])
    return Span(pack_ts(first, draw(increments)), pack_ts(end + 1, draw(increments)))


@examples(150)
@given(oplogs(), GRIDS, TASKS, BATCHES, st.just(EVERYTHING) | spans(), ONLY)
def test_says_what_a_comparison_entry_by_entry_says(
    members: dict[str, Rows], grid: BucketGrid | None, rows: int, batch: int, span: Span, only: EntryFilter
) -> None:
    oplogs = [ListOplog(name, tuple(some), batch) for name, some in members.items()]
    found = difference(LocalRunner(), oplogs, span=span, only=only, rows_per_task=rows, grid=grid)
    _check(found, Naive(members, span, only))


@EXAMPLES
@given(plans(), GRIDS, TASKS, st.just(EVERYTHING) | spans(), ONLY)
def test_says_so_of_planted_members(
    plan: Plan, grid: BucketGrid | None, rows: int, span: Span, only: EntryFilter
) -> None:
    planted = plant(plan)
    found = difference(LocalRunner(), planted.oplogs(), span=span, only=only, rows_per_task=rows, grid=grid)
    _check(found, Naive(planted.members, span, only))


def _check(found: Diff[pa.Table], naive: Naive) -> None:
    assert found.members.to_pylist() == naive.member_rows()
    assert found.pairs.to_pylist() == naive.pair_rows()
    assert found.entries.to_pylist() == naive.entry_rows()
    assert found.by_namespace.to_pylist() == naive.namespace_rows()
    assert found.by_document.to_pylist() == naive.document_rows()
    assert [str(verdict) for verdict in found.verdicts] == [row["verdict"] for row in naive.pair_rows()]
    assert found.same == naive.same()
    assert found.trimmed == 0


def _rows(entries: Iterable[tuple[int, int, int]]) -> Rows:
    """From (ts, term, content). The operation, its namespace and document hang on the content."""
    rows, chain = [], 0
    for ts, term, content in sorted(entries, key=lambda entry: entry[0]):
        op, ns, key = (("i", "a.b", encode_key(1)), ("u", "a.b", encode_key(ts % 2)), ("n", "", None))[content]
        hashed = hash((ts, term, content))
        chain = hash((chain, hashed))
        rows.append(OplogRow(ts, term, op, ns, key, 0, hashed, chain, b""))
    return rows


class Naive:
    """Every entry of every member in dicts; rules as `Diff`, `Kind`, `Reason` and `Verdict` give them, one by one."""

    def __init__(self, members: Mapping[str, Rows], span: Span, only: EntryFilter) -> None:
        self.names = sorted(members)
        self.all = members
        self.only = only
        self.rows = {name: [row for row in members[name] if span.first_ts <= row.ts < span.end_ts] for name in members}
        self.heads = {name: max(rows[0].ts if rows else 0, span.first_ts) for name, rows in members.items()}
        self.newest = {name: rows[-1].optime if rows else OpTime(0, 0) for name, rows in members.items()}
        self.at: dict[tuple[int, int], dict[str, list[OplogRow]]] = defaultdict(dict)
        for name in self.names:
            for row in self.rows[name]:
                self.at[row.ts, row.term].setdefault(name, []).append(row)
        self.common = {(a, b): self._common(a, b) for a in self.names for b in self.names if a != b}

    def _common(self, a: str, b: str) -> tuple[int, int] | None:
        """(ts, term) of the newest entry that both have."""
        of_a, of_b = ({(row.ts, row.term, row.hash) for row in self.rows[name]} for name in (a, b))
        return max(of_a & of_b)[:2] if of_a & of_b else None

    def hashes(self, at: tuple[int, int], name: str) -> list[int]:
        return sorted(row.hash for row in self.at[at].get(name, []))

    def reaching(self, ts: int) -> list[str]:
        return [name for name in self.names if self.heads[name] <= ts]

    def why_absent(self, holder: str, name: str, ts: int) -> tuple[str, str]:
        common = self.common[holder, name]
        if common and ts <= common[0]:
            return "missing", "hole"
        mine, other = self.newest[name], self.newest[holder]
        if mine.term > other.term:
            return "rolled-back", "losing branch"
        went_on = mine.ts > (common[0] if common else -1) and mine.ts >= self.heads[holder]
        if mine.term < other.term and went_on:
            return "missing", "winning branch"
        return ("missing", "hole") if ts <= mine.ts else ("extra", "ahead")

    # --- tables

    def member_rows(self) -> list[Row]:
        rows = []
        for name in self.names:
            oldest = self.all[name][0].optime if self.all[name] else OpTime(0, 0)
            newest = self.newest[name]
            rows.append(
                {
                    "member": name,
                    "oldest": str(oldest) if self.all[name] else None,
                    "newest": str(newest) if self.all[name] else None,
                    "oldest_ts": oldest.ts,
                    "oldest_term": oldest.term,
                    "newest_ts": newest.ts,
                    "newest_term": newest.term,
                    "entries": len(self.rows[name]),
                    "trimmed": 0,
                }
            )
        return rows

    def pair_rows(self) -> list[Row]:
        return [self._pair_row(a, b) for a in self.names for b in self.names if a < b]

    def _pair_row(self, a: str, b: str) -> Row:
        common = self.common[a, b]
        counts: Counter[str] = Counter()
        for at, holders in self.at.items():
            both = [name for name in (a, b) if name in holders and at[0] >= max(self.heads[a], self.heads[b])]
            for name, side in ((a, "a"), (b, "b")):
                if name in both and at[0] > (common[0] if common else -1):
                    counts[f"{side}_after"] += 1
            if both == [a] and self.why_absent(a, b, at[0]) == ("missing", "hole"):
                counts["b_missing"] += 1
            if both == [b] and self.why_absent(b, a, at[0]) == ("missing", "hole"):
                counts["a_missing"] += 1
            if both == [a, b] and set(self.hashes(at, a)) != set(self.hashes(at, b)):
                counts["divergent"] += 1
            elif both == [a, b] and self.hashes(at, a) != self.hashes(at, b):
                counts["duplicated"] += 1
        verdict, follower = self._verdict(a, b, counts)
        chains = [self._chain(name, common) for name in (a, b)]
        return {
            "a": a,
            "b": b,
            "verdict": verdict,
            "follower": follower,
            "common": str(OpTime(common[1], common[0])) if common else None,
            "common_ts": common[0] if common else None,
            "common_term": common[1] if common else None,
            "same_chain": chains[0] == chains[1] if common else None,
            **{
                name: counts[name]
                for name in ("a_after", "b_after", "a_missing", "b_missing", "divergent", "duplicated")
            },
        }

    def _verdict(self, a: str, b: str, counts: Mapping[str, int]) -> tuple[str, str | None]:
        follower = None
        if counts["a_after"] and counts["b_after"]:
            terms = self.newest[a].term, self.newest[b].term
            follower = None if terms[0] == terms[1] else (a if terms[0] < terms[1] else b)
        elif counts["a_after"] or counts["b_after"]:
            follower = b if counts["a_after"] else a
        if self.common[a, b] is None:
            return ("no common point" if self.rows[a] or self.rows[b] else "same"), follower
        if any(counts[name] for name in ("a_missing", "b_missing", "divergent", "duplicated")):
            return "inconsistent", follower
        if counts["a_after"] and counts["b_after"]:
            return "diverged", follower
        return ("behind" if follower else "same"), follower

    def _chain(self, name: str, common: tuple[int, int] | None) -> int | None:
        return next((row.chain for row in self.rows[name] if (row.ts, row.term) == common), None)

    def entry_rows(self) -> list[Row]:
        rows = []
        for at in self.at:
            for row in self._entry_rows(at):
                if row["ns"] in (self.only.ns or (row["ns"],)) and row["op"] in (self.only.op or (row["op"],)):
                    rows.append(row)
        return sorted(rows, key=lambda row: [row[name] for name in ("ts", "term", "kind", "reason")])

    def _entry_rows(self, at: tuple[int, int]) -> list[Row]:
        reaching = self.reaching(at[0])
        if all(self.hashes(at, name) == self.hashes(at, reaching[0]) for name in reaching):
            return []
        holders = [name for name in reaching if name in self.at[at]]
        first = min(self.at[at][holders[0]], key=lambda row: row.hash)
        copies = [{"member": name, "hash": hashed} for name in holders for hashed in self.hashes(at, name)]
        plain = {
            "optime": str(OpTime(at[1], at[0])),
            "ts": at[0],
            "term": at[1],
            "op": first.op,
            "ns": first.ns,
            "key": first.key,
            "present": holders,
        }
        rows: list[Row] = []
        if len({copy["hash"] for copy in copies}) > 1:
            rows.append({**plain, "kind": "divergent", "reason": "content", "absent": [], "hashes": copies})
        if len(copies) > len(holders):
            rows.append({**plain, "kind": "duplicated", "reason": "copies", "absent": [], "hashes": copies})
        strongest = ["hole", "winning branch", "losing branch", "ahead"]
        absent: dict[tuple[str, str], list[str]] = defaultdict(list)
        for name in set(reaching) - set(holders):
            reasons = [self.why_absent(holder, name, at[0]) for holder in holders]
            absent[min(reasons, key=lambda why: strongest.index(why[1]))].append(name)
        for (kind, reason), names in absent.items():
            rows.append({**plain, "kind": kind, "reason": reason, "absent": sorted(names), "hashes": None})
        return rows

    def namespace_rows(self) -> list[Row]:
        groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
        for row in self.entry_rows():
            groups[row["ns"], row["kind"]].append(row)
        return [
            {"ns": ns, "kind": kind, "entries": len(rows), "documents": len({row["key"] for row in rows} - {None})}
            for (ns, kind), rows in sorted(groups.items())
        ]

    def document_rows(self) -> list[Row]:
        groups: dict[tuple[str, bytes], list[Row]] = defaultdict(list)
        for row in self.entry_rows():
            if row["key"] is not None:
                groups[row["ns"], row["key"]].append(row)
        counted = [
            {
                "ns": ns,
                "key": key,
                "entries": len({(row["ts"], row["term"]) for row in rows}),
                "first_ts": min(row["ts"] for row in rows),
                "last_ts": max(row["ts"] for row in rows),
                "kinds": sorted({row["kind"] for row in rows}),
            }
            for (ns, key), rows in groups.items()
        ]
        return sorted(counted, key=lambda row: (-row["entries"], row["ns"], row["key"]))

    def same(self) -> bool:
        if all(row["verdict"] == "same" for row in self.pair_rows()):
            return True
        return self.only != ALL and not self.entry_rows()

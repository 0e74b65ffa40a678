"""Differences planted into members' oplogs, each of which knows the rows of `Diff.entries` that it must make.

A plan is plain data, drawn by Hypothesis or by hand: a history that all members share, at most one change at each of
its entries, heads that are trimmed away, and a tail in which one member parts from the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import strategies as st

from replset.bson import encode, encode_key
from replset.ids import OpTime, pack_ts
from replset.oplog_entry import insert_entry
from replset.oplog_row import CHAIN_START, OplogRow, UnchainedRow, chained_rows
from replset.storage import DATABASE_FILE
from spark.readers.sqlite import SqliteOplog
from spark.reports.diff.classify import ENTRY_ORDER
from tests.spark.kit import T0, UUID, ListOplog, write_rows

_ROOM = 4
"""Increments from an entry of the shared history to the next one of its second."""
_OTHER_TERM = 10
_FOREIGN = 10_000
_SPACES = ("shop.orders", "shop.items", "app.users")


class Change(StrEnum):
    """What a member has in place of an entry that the others have."""

    HOLE = "nothing"
    FOREIGN = "the entry and one more behind it that nobody else has"
    CONTENT = "the same optime about something else"
    SWAPPED = "this entry's operation and the next one's, in the other order"
    TERM = "the entry with another term"
    HASH = "the entry with a hash that does not fit it"
    CHAIN = "the entry with a chain that does not fit it"
    BYTES = "an entry that does not fit its hash"
    COPY = "the entry twice"
    VERSION = "the entry and another of the same optime"


SAYS_NOTHING = frozenset({Change.CHAIN, Change.BYTES})
"""`diff` compares stored hashes; that they are right is `verify`'s to say."""
TWICE = frozenset({Change.COPY, Change.VERSION})
"""What a member's file cannot hold: there an optime is unique."""


class Tail(StrEnum):
    """How one member ends, behind all that is shared."""

    SHARED = "as the others"
    BEHIND = "before the others"
    AHEAD = "behind the others"
    LOSING = "on a branch of a lower term than the others' branch"
    SAME_TERM = "on a branch of the same term, older than the others' branch"


@dataclass(frozen=True, slots=True)
class Plan:
    """changes: by entry's number, the member's number and what it has there. trimmed: by member, its oldest entries
    that are gone. tail: of the member `parted`, `own` entries on its side and `others` on the other one.
    """

    entries: int
    members: int = 3
    per_second: int = 3
    changes: Mapping[int, tuple[int, Change]] = field(default_factory=dict)
    trimmed: tuple[int, ...] = ()
    tail: Tail = Tail.SHARED
    parted: int = 0
    own: int = 2
    others: int = 3


@dataclass(frozen=True, slots=True)
class Planted:
    """Members' rows by name, and the rows of `Diff.entries` in their order."""

    members: dict[str, list[OplogRow]]
    expected: list[dict[str, Any]]

    def oplogs(self, batch_rows: int = 5) -> list[ListOplog]:
        return [ListOplog(name, tuple(rows), batch_rows) for name, rows in self.members.items()]


def in_files(folder: Path, members: Mapping[str, Iterable[OplogRow]]) -> list[SqliteOplog]:
    """Each member's rows in a dbpath below the folder."""
    return [SqliteOplog(name, str(write_rows(folder / name, rows) / DATABASE_FILE)) for name, rows in members.items()]


def plant(plan: Plan) -> Planted:
    names = [f"m{number}" for number in range(plan.members)]
    shared = [_insert(*_place(plan, number), about=number) for number in range(plan.entries)]
    kept = {name: [[entry] for entry in shared] for name in names}
    for name, trimmed in zip(names, plan.trimmed, strict=False):
        many = min(trimmed, plan.entries - 1)
        kept[name][:many] = [[] for _ in range(many)]
    made: list[tuple[Change, str, int]] = []
    done = -1
    for number, (member, change) in sorted(plan.changes.items()):
        name, last = names[member], number + (change is Change.SWAPPED)
        if number > done and last < plan.entries - 1 and kept[name][number]:
            done = last
            made.append((change, name, number))
            _make(plan, kept[name], number, change)
    tails = {name: _tail(plan, parted=name == names[plan.parted]) for name in names}
    pending = {name: [*(entry for some in kept[name] for entry in some), *tails[name]] for name in names}
    members = {
        name: [_damaged(row, _wrong(made, name, row.ts, shared)) for row in chained_rows(pending[name], CHAIN_START)]
        for name in names
    }
    telling = ExpectedRows(members)
    for change, name, number in made:
        telling.of_change(change, name, *(OpTime(entry[1], entry[0]) for entry in shared[number : number + 2]))
    telling.of_tail(plan.tail, names[plan.parted], shared[-1][0])
    return Planted(members, sorted(telling.rows, key=lambda row: [row[name] for name in ENTRY_ORDER]))


def _insert(ts: int, term: int, *, about: int, text: str = "x") -> UnchainedRow:
    """An insert of the document number `about`."""
    ns, key, wall_ms = _SPACES[about % len(_SPACES)], about // 2, (ts >> 31) * 1000
    entry = insert_entry(ns, UUID, encode({"_id": key, "text": text}), OpTime(term, ts), wall_ms)
    return (ts, term, "i", ns, encode_key(key), wall_ms, entry)


def _place(plan: Plan, number: int) -> tuple[int, int]:
    """ts and term of an entry of the shared history."""
    seconds, count = divmod(number, plan.per_second)
    return pack_ts(T0 + seconds, 1 + count * _ROOM), 1 + number * 3 // plan.entries


def _make(plan: Plan, kept: list[list[UnchainedRow]], number: int, change: Change) -> None:
    ts, term = _place(plan, number)
    plain, other = kept[number][0], _insert(ts, term, about=number, text="other")
    match change:
        case Change.HOLE:
            kept[number] = []
        case Change.FOREIGN:
            kept[number] = [plain, _insert(ts + 1, term, about=number + _FOREIGN)]
        case Change.CONTENT:
            kept[number] = [other]
        case Change.SWAPPED:
            kept[number] = [_insert(ts, term, about=number + 1)]
            kept[number + 1] = [_insert(*_place(plan, number + 1), about=number)]
        case Change.TERM:
            kept[number] = [_insert(ts, term + _OTHER_TERM, about=number)]
        case Change.COPY:
            kept[number] = [plain, plain]
        case Change.VERSION:
            kept[number] = [plain, other]


def _wrong(
    made: Sequence[tuple[Change, str, int]], name: str, ts: int, shared: Sequence[UnchainedRow]
) -> Change | None:
    return next((change for change, of, number in made if of == name and shared[number][0] == ts), None)


def _damaged(row: OplogRow, change: Change | None) -> OplogRow:
    match change:
        case Change.HASH:
            return row._replace(hash=row.hash ^ 1)
        case Change.CHAIN:
            return row._replace(chain=row.chain ^ 1)
        case Change.BYTES:
            return row._replace(entry=row.entry[:-2] + b"?" + row.entry[-1:])
    return row


def _tail(plan: Plan, *, parted: bool) -> list[UnchainedRow]:
    """What comes behind the shared history on this side."""
    last_ts, term = _place(plan, plan.entries - 1)
    second, many, text = (last_ts >> 31) + 1, plan.own if parted else plan.others, "own" if parted else "others"
    match plan.tail:
        case Tail.SHARED:
            return []
        case Tail.BEHIND:
            many = 0 if parted else many
        case Tail.AHEAD:
            many = many if parted else 0
        case Tail.LOSING:
            term += 1 if parted else 2
        case Tail.SAME_TERM:
            second += 0 if parted else plan.own
    stamps = (pack_ts(second + number // plan.per_second, 1 + number % plan.per_second) for number in range(many))
    return [_insert(ts, term, about=plan.entries + number, text=text) for number, ts in enumerate(stamps)]


_AHEAD = ("extra", "ahead")
_SIDES = {
    Tail.LOSING: (("rolled-back", "losing branch"), ("missing", "winning branch")),
    Tail.SAME_TERM: (("missing", "hole"), _AHEAD),
}
"""What an entry of the parted member is, and what one of the others'."""


class ExpectedRows:
    """Writes down what must be found. Behind every change lies an entry that all members share."""

    def __init__(self, members: Mapping[str, list[OplogRow]]) -> None:
        self.rows: list[dict[str, Any]] = []
        self._members = members
        self._at = {
            name: {optime: list(rows) for optime, rows in groupby(all_rows, lambda row: row.optime)}
            for name, all_rows in members.items()
        }

    def of_change(self, change: Change, name: str, optime: OpTime, following: OpTime) -> None:
        mine, others = self._reaching([name], optime), self._reaching(set(self._members) - {name}, optime)
        everyone = sorted(mine + others)
        other_term = OpTime(optime.term + _OTHER_TERM, optime.ts)
        match change:
            case Change.HOLE if mine and others:
                self._add(optime, "missing", "hole", others, mine)
            case Change.FOREIGN:
                added = OpTime(optime.term, optime.ts + 1)
                lacking = self._reaching(set(self._members) - {name}, added)
                if lacking:
                    self._add(added, "missing", "hole", [name], lacking)
            case Change.TERM if others:
                self._add(optime, "missing", "hole", others, mine)
                self._add(other_term, "missing", "hole", [name], others)
            case Change.CONTENT | Change.HASH if others:
                self._add(optime, "divergent", "content", everyone)
            case Change.SWAPPED:
                for one in (optime, following):
                    holders = self._reaching(self._members, one)
                    if len(holders) > 1:
                        self._add(one, "divergent", "content", holders)
            case Change.COPY if others:
                self._add(optime, "duplicated", "copies", everyone)
            case Change.VERSION if others:
                self._add(optime, "divergent", "content", everyone)
                self._add(optime, "duplicated", "copies", everyone)

    def of_tail(self, tail: Tail, parted: str, shared_ts: int) -> None:
        others = sorted(set(self._members) - {parted})
        own, theirs = _SIDES.get(tail, (_AHEAD, _AHEAD))
        on_own, on_others = (
            {optime for optime in self._at[name] if optime.ts > shared_ts} for name in (parted, others[0])
        )
        for optime in on_own - on_others:
            self._add(optime, *own, [parted], others)
        for optime in on_others - on_own:
            self._add(optime, *theirs, others, [parted])

    def _reaching(self, names: Iterable[str], optime: OpTime) -> list[str]:
        """Those whose oldest entry is not newer."""
        return sorted(name for name in names if self._members[name][0].ts <= optime.ts)

    def _add(self, optime: OpTime, kind: str, reason: str, present: list[str], absent: Sequence[str] = ()) -> None:
        copies = [(name, row) for name in present for row in sorted(self._at[name][optime], key=lambda row: row.hash)]
        first = copies[0][1]
        self.rows.append(
            {
                "optime": str(optime),
                "ts": optime.ts,
                "term": optime.term,
                "op": first.op,
                "ns": first.ns,
                "key": first.key,
                "kind": kind,
                "reason": reason,
                "present": present,
                "absent": list(absent),
                "hashes": None if absent else [{"member": name, "hash": row.hash} for name, row in copies],
            }
        )


# --- plans -----------------------------------------------------------------------------------------------------


@st.composite
def plans(draw: st.DrawFn, *, changes: Collection[Change] = tuple(Change)) -> Plan:
    """From no change to one at each entry that may have one."""
    entries, members = draw(st.integers(2, 30)), draw(st.integers(2, 4))
    change = st.tuples(st.integers(0, members - 1), st.sampled_from(sorted(changes)))
    every = st.lists(change, min_size=entries, max_size=entries).map(lambda made: dict(enumerate(made)))
    return Plan(
        entries,
        members,
        draw(st.integers(1, 5)),
        draw(st.one_of(st.dictionaries(st.integers(0, entries - 1), change, max_size=6), every)),
        tuple(draw(st.lists(st.sampled_from([0, 0, 1, 2, entries // 2, entries]), max_size=members))),
        draw(st.sampled_from(Tail)),
        draw(st.integers(0, members - 1)),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 4)),
    )


def dense(share: float, seed: int, *, entries: int = 400, **others: Any) -> Plan:
    """A plan with changes of all kinds that a member's file can hold, at this share of the entries."""
    random, kinds = Random(seed), sorted(set(Change) - TWICE)
    numbers = random.sample(range(entries), round(share * entries))
    changes = {number: (random.randrange(3), kinds[at % len(kinds)]) for at, number in enumerate(numbers)}
    return Plan(entries, changes=changes, **others)

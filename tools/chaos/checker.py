"""Whether a run kept the promises. The checker knows only the recorded history and what is there at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from replset.oplog_row import OplogRow, entry_hash, next_chain
from tools.chaos.clients import numbers_in
from tools.chaos.history import Attack, History, Read, Write

MOST_SHOWN = 20
STALLED_S = 0.25
"""A third of what a sync of the disk may take: a machine that kept us waiting so long may elect by itself."""
MOST_WAIT_S = 0.75
"""Half the election timeout of a run: a member that stands still for longer is close to losing its place."""
MOST_MEMORY_MB = 768
"""What docs/production.md says that a member needs, and half as much: what one attack leaves is there in the next."""
NEED_TWO = frozenset({"majority", "two", "two_journaled"})
"""Write concerns that one member cannot meet."""


@dataclass(frozen=True, slots=True)
class RolledBack:
    """What finished rollbacks' oplog files hold: the numbers of inserts and updates, the keys of deletes."""

    numbers: frozenset[int] = frozenset()
    deleted: frozenset[int] = frozenset()

    @classmethod
    def of(cls, entries: Iterable[Mapping[str, Any]]) -> RolledBack:
        """entries: decoded oplog entries of the collection."""
        numbers, deleted = set[int](), set[int]()
        for entry in entries:
            if entry["op"] == "d":
                deleted.add(int(entry["o"]["_id"]))
            elif entry["op"] == "i":
                numbers.update(map(int, entry["o"]["numbers"]))
            elif entry["op"] == "u":
                numbers.update(_numbers_of_update(entry["o"]))
        return cls(frozenset(numbers), frozenset(deleted))


@dataclass(frozen=True, slots=True)
class End:
    """documents, oplogs: of each data-bearing member, after everything was mended."""

    documents: Mapping[str, Sequence[dict[str, Any]]]
    rolled_back: RolledBack = field(default_factory=RolledBack)
    oplogs: Mapping[str, Sequence[OplogRow]] = field(default_factory=dict)


def check_history(history: History, end: End) -> list[str]:
    """What is wrong, a line each; nothing when all promises were kept."""
    found = [breach.what for breach in history.breaches]
    found += [*_members_differ(end), *_oplogs_are_wrong(end.oplogs), *_harm_by_attacks(history.attacks)]
    name, documents = next(iter(end.documents.items()))
    kept = numbers_in(documents)
    if len(kept) != len(set(kept)):
        found.append(f"{name} applied a write twice: {sorted(n for n in set(kept) if kept.count(n) > 1)[:5]}")
    state = _State(frozenset(kept), frozenset(int(document["_id"]) for document in documents), history)
    if strange := sorted(set(kept) - state.by_number.keys()):
        found.append(f"{name} holds writes {strange[:5]}, which no client of ours made")
    for write in history.writes:
        found += _write_is_wrong(write, state, end.rolled_back)
        found += _acknowledged_alone(write, history)
    for read in history.reads:
        if read.found is not None:
            found += _read_is_wrong(read, read.found, state, history)
    return found[:MOST_SHOWN] + ([f"and {len(found) - MOST_SHOWN} more"] if len(found) > MOST_SHOWN else [])


class _State:
    """What is there at the end. A delete hides what was written before it."""

    def __init__(self, numbers: frozenset[int], keys: frozenset[int], history: History) -> None:
        self.numbers = numbers
        self.keys = keys
        self.by_number = {write.number: write for write in history.writes}
        self.losses = history.losses
        self.deletes = {w.key: w for w in history.writes if w.kind == "delete" and w.outcome != "refused"}

    def shows(self, write: Write) -> bool:
        if write.kind == "delete":
            return write.key not in self.keys
        return write.number in self.numbers or self.was_deleted(write)

    def may_be_lost(self, write: Write) -> bool:
        """Whether the disk of the member that acknowledged it was lost, before anybody else needed to have it."""
        lost = (loss for loss in self.losses if loss.member == write.member and loss.at >= write.began)
        return write.concern != "majority" and any(lost)

    def explains(self, number: int) -> bool:
        """Whether a write is not there any more for the reason that a client deleted the document."""
        write = self.by_number.get(number)
        return write is not None and self.was_deleted(write)

    def was_deleted(self, write: Write) -> bool:
        return write.key in self.deletes and write.key not in self.keys


def _members_differ(end: End) -> Iterable[str]:
    (first, expected), *others = end.documents.items()
    for name, documents in others:
        if documents != expected:
            ours, theirs = ({document["_id"]: document for document in some} for some in (expected, documents))
            key = next((key for key in sorted(ours.keys() | theirs.keys()) if ours.get(key) != theirs.get(key)), None)
            shown = "order" if key is None else f"_id {key}: {ours.get(key)} and {theirs.get(key)}"
            yield f"{first} and {name} are not the same at the end: {shown}"


def _oplogs_are_wrong(oplogs: Mapping[str, Sequence[OplogRow]]) -> Iterable[str]:
    """Damage that is left or was spread, and two entries at one place."""
    known: dict[int, tuple[str, bytes]] = {}
    for name, rows in oplogs.items():
        before: OplogRow | None = None
        for row in rows:
            if entry_hash(row.entry) != row.hash:
                yield f"{name} holds a damaged entry at {row.optime}"
            elif before is not None and next_chain(before.chain, row.hash) != row.chain:
                yield f"the oplog of {name} does not continue at {row.optime}"
            other, entry = known.setdefault(row.ts, (name, row.entry))
            if entry != row.entry:
                yield f"{other} and {name} hold different entries at {row.optime}"
            before = row


def _harm_by_attacks(attacks: Iterable[Attack]) -> Iterable[str]:
    for attack in attacks:
        before, after = attack.terms
        if after > before + attack.most_terms and attack.stalled_s < STALLED_S:
            yield f"{after - before} elections, at most {attack.most_terms} expected: {attack}"
        if attack.waited_s > MOST_WAIT_S:
            yield f"another client waited for {attack.waited_s:g} s of the member's CPU: {attack}"
        if attack.memory_mb > MOST_MEMORY_MB:
            yield f"the member took {attack.memory_mb} MB: {attack}"


def _acknowledged_alone(write: Write, history: History) -> Iterable[str]:
    """No two members ran while a write began and was acknowledged that needs two."""
    if write.outcome != "ok" or write.concern not in NEED_TWO or not history.absences:
        return
    away = {row.member for row in history.absences if row.began <= write.began and write.ended <= row.ended}
    ran = [name for name in history.members if name not in away]
    if len(ran) < 2:
        yield f"acknowledged by two members while {', '.join(ran) or 'nobody'} ran alone: {write}"


def _write_is_wrong(write: Write, state: _State, rolled_back: RolledBack) -> Iterable[str]:
    shown = state.shows(write)
    if write.outcome == "refused" and write.kind != "delete" and write.number in state.numbers:
        yield f"refused, and yet applied: {write}"
    if write.outcome != "ok" or shown:
        return
    if write.concern == "majority":
        yield f"acknowledged by a majority, and lost: {write}"
    elif state.may_be_lost(write):
        return
    elif (write.key not in rolled_back.deleted) if write.kind == "delete" else write.number not in rolled_back.numbers:
        yield f"acknowledged, and neither in the set nor in a rollback file: {write}"


def _read_is_wrong(read: Read, numbers: list[int], state: _State, history: History) -> Iterable[str]:
    seen, keys = set(numbers), set(read.keys)
    if gone := sorted(number for number in seen - state.numbers if not state.explains(number)):
        yield f"a majority read showed writes {gone[:5]}, which did not stay: {read}"
    for write in history.writes:
        if write.outcome != "ok" or write.concern != "majority" or write.ended > read.began:
            continue
        if write.operation_time > read.after or write.kind == "delete":
            continue
        deleted = state.deletes.get(write.key)
        if write.number not in seen and (deleted is None or deleted.began > read.ended):
            yield f"a majority read misses {write}: {read}"
    for deleted in state.deletes.values():
        is_old = deleted.outcome == "ok" and deleted.concern == "majority" and deleted.ended < read.began
        if is_old and deleted.operation_time <= read.after and deleted.key in keys:
            yield f"a majority read shows what was deleted by {deleted}: {read}"


def _numbers_of_update(o: Mapping[str, Any]) -> set[int]:
    """Of a `$v: 2` difference or a replacement every number in it that a list `numbers` got."""
    if o.get("$v") != 2:
        return set(map(int, o.get("numbers", ())))
    found = set[int]()
    diff = o["diff"]
    for part in ("u", "i"):
        found.update(map(int, diff.get(part, {}).get("numbers", ())))
    for name, value in diff.get("snumbers", {}).items():
        if name.startswith("u"):
            found.add(int(value))
    return found

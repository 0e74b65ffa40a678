"""Members' files with millions of oplog entries, in seconds: every entry is a template with its numbers filled in.

A history is a cycle of 20 entries over and over: inserts, updates and deletes of four namespaces, about 300 bytes each.
Increments are odd, so that a planted entry finds a free optime anywhere. `python -m tools.bench.oplogs FOLDER` makes
three members with some 20 planted differences.
"""

from __future__ import annotations

import argparse
import gc
import random
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import astuple, dataclass, field
from itertools import chain, repeat
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from replset.bson import Int64, ObjectId, encode
from replset.ids import OpTime, pack_ts
from replset.oplog_entry import delete_entry, insert_entry, update_entry
from replset.oplog_row import CHAIN_START, COLUMNS, OplogRow, UnchainedRow, chained_rows, entry_hash
from replset.storage import DATABASE_FILE
from tests.spark.kit import T0, write_rows

CYCLE = 20
_BLOCK_CYCLES = 1000
_PLACES = ("shop.orders", "shop.items", "app.users", "app.events")
_OID = b"\xa1" * 12
_AMOUNT = 0x7A7B7C7D7A7B7C7D
_OBJECT_ID_TAG = b"d"
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Shape:
    """`hot_second`, `hot_document`: the part (0 to 1) of the entries of one second, and about one document."""

    entries: int = 2_000_000
    per_second: int = 2000
    hot_second: float = 0.0
    hot_document: float = 0.0
    terms: int = 3

    @property
    def name(self) -> str:
        """Of a folder that holds it."""
        return "-".join(str(value) for value in astuple(self))

    def terms_of(self, numbers: Numbers) -> Numbers:
        return 1 + numbers * self.terms // self.entries

    def places_of(self, numbers: Numbers) -> tuple[Numbers, Numbers]:
        """Seconds and increments of the entries with these numbers."""
        size = int(self.entries * self.hot_second)
        first = (self.entries - size) // 2 // self.per_second * self.per_second
        seconds, counts = numbers // self.per_second, numbers % self.per_second
        if size:
            hot, after = (numbers >= first) & (numbers < first + size), numbers >= first + size
            late = numbers - first - size
            seconds = np.where(hot, first // self.per_second, seconds)
            counts = np.where(hot, numbers - first, counts)
            seconds = np.where(after, first // self.per_second + 1 + late // self.per_second, seconds)
            counts = np.where(after, late % self.per_second, counts)
        return T0 + seconds, 1 + 2 * counts

    def ts_of(self, number: int) -> int:
        seconds, increments = self.places_of(np.array([number]))
        return pack_ts(int(seconds[0]), int(increments[0]))

    def term_spans(self) -> Iterator[tuple[int, int, int | None]]:
        """(term, first ts, last ts or None for the newest term)."""
        firsts = [-(-term * self.entries // self.terms) for term in range(self.terms)]
        for term, (first, after) in enumerate(zip(firsts, [*firsts[1:], None], strict=True), 1):
            yield term, self.ts_of(first), None if after is None else self.ts_of(after - 1)


class Slot(NamedTuple):
    """One place of the cycle: an operation on the document that was inserted at `about` of the same cycle."""

    op: str
    ns: str
    about: int


@dataclass(frozen=True, slots=True)
class Change:
    """What a member has in place of the entry with a number: `make` gets the entry as it should be."""

    kind: str
    make: Callable[[UnchainedRow], list[UnchainedRow]]


@dataclass(frozen=True, slots=True)
class Plan:
    """One member: which entries differ from the plain history, how many of the oldest are trimmed away."""

    changes: Mapping[int, Change] = field(default_factory=dict)
    trimmed: int = 0


def cycle(shape: Shape) -> list[Slot]:
    """Slot 0 inserts the document that all the slots of a hot document update."""
    hot = round(CYCLE * shape.hot_document)
    plain = CYCLE - hot
    slots = [Slot("i", _PLACES[0], 0)]
    for number in range(1, plain):
        place = _PLACES[number % len(_PLACES)]
        earlier = max((at for at in range(number) if slots[at].op == "i" and slots[at].ns == place), default=None)
        if earlier is None or number % 10 < 6:
            slots.append(Slot("i", place, number))
        else:
            slots.append(Slot("d" if number % 10 == 9 else "u", place, earlier))
    return slots + [Slot("u", _PLACES[0], -1)] * hot


def pending(shape: Shape, *, first: int = 0, end: int | None = None) -> Iterator[list[UnchainedRow]]:
    """Blocks of entries in order. first, end: entries' numbers, multiples of CYCLE."""
    templates = [_Template.of(slot) for slot in cycle(shape)]
    last = (shape.entries if end is None else end) // CYCLE
    for start in range(first // CYCLE, last, _BLOCK_CYCLES):
        cycles = np.arange(start, min(start + _BLOCK_CYCLES, last), dtype=np.int64)
        columns = [template.fill(shape, cycles, slot) for slot, template in enumerate(templates)]
        yield list(chain.from_iterable(zip(*columns, strict=True)))


@dataclass(frozen=True, slots=True)
class _Template:
    slot: Slot
    raw: bytes

    @classmethod
    def of(cls, slot: Slot) -> _Template:
        about, optime = ObjectId(_OID), OpTime(1, pack_ts(T0, 1))
        uuid = bytes([_PLACES.index(slot.ns)]) * 16
        if slot.op == "i":
            text = "plain text of about the size that people store, " * 4
            made = {"_id": about, "state": "new", "amount": Int64(_AMOUNT), "text": text[:170]}
            return cls(slot, insert_entry(slot.ns, uuid, encode(made), optime, 0))
        if slot.op == "u":
            diff = {"$v": 2, "diff": {"u": {"state": "paid", "amount": Int64(_AMOUNT), "note": "seen " * 20}}}
            return cls(slot, update_entry(slot.ns, uuid, encode({"_id": about}), encode(diff), optime, 0))
        return cls(slot, delete_entry(slot.ns, uuid, encode({"_id": about}), optime, 0))

    def fill(self, shape: Shape, cycles: Numbers, slot: int) -> Iterator[UnchainedRow]:
        """The entries of this slot in these cycles."""
        numbers = cycles * CYCLE + slot
        seconds, increments = shape.places_of(numbers)
        terms = shape.terms_of(numbers)
        abouts = np.zeros_like(numbers) if self.slot.about < 0 else cycles * CYCLE + self.slot.about
        ids = np.zeros((len(numbers), 12), np.uint8)
        _put(ids, 0, np.full(len(numbers), T0), ">u4")
        _put(ids, 4, abouts, ">u8")
        made = np.tile(np.frombuffer(self.raw, np.uint8), (len(numbers), 1))
        at = self.raw.index(_OID)
        made[:, at : at + 12] = ids
        amount = self.raw.find(_AMOUNT.to_bytes(8, "little"))
        if amount >= 0:
            _put(made, amount, numbers, "<i8")
        stamp, term, wall = tail_offsets(self.raw)
        _put(made, stamp, increments, "<u4")
        _put(made, stamp + 4, seconds, "<u4")
        _put(made, term, terms, "<i8")
        _put(made, wall, seconds * 1000, "<i8")
        return zip(
            ((seconds << 31) | increments).tolist(),
            terms.tolist(),
            repeat(self.slot.op),
            repeat(self.slot.ns),
            [_OBJECT_ID_TAG + one for one in _slices(ids)],
            (seconds * 1000).tolist(),
            _slices(made),
            strict=False,
        )


def tail_offsets(raw: bytes) -> tuple[int, int, int]:
    """Where the values of ts (increment, seconds), t and wall begin."""
    return raw.rindex(b"\x11ts\0") + 4, raw.rindex(b"\x12t\0") + 3, raw.rindex(b"\x09wall\0") + 6


def moved(entry: UnchainedRow, ts: int, term: int) -> UnchainedRow:
    """The same operation at another optime."""
    raw = bytearray(entry[6])
    stamp, at, _ = tail_offsets(entry[6])
    raw[stamp : stamp + 4] = (ts & 0x7FFFFFFF).to_bytes(4, "little")
    raw[stamp + 4 : stamp + 8] = (ts >> 31).to_bytes(4, "little")
    raw[at : at + 8] = term.to_bytes(8, "little")
    return (ts, term, *entry[2:6], bytes(raw))


def _missing(_: UnchainedRow) -> list[UnchainedRow]:
    return []


def _divergent(entry: UnchainedRow) -> list[UnchainedRow]:
    """Other content at the same optime: written a millisecond later."""
    raw, wall_ms = bytearray(entry[6]), entry[5] + 1
    at = tail_offsets(entry[6])[2]
    raw[at : at + 8] = wall_ms.to_bytes(8, "little")
    return [(*entry[:5], wall_ms, bytes(raw))]


def _extra(entry: UnchainedRow) -> list[UnchainedRow]:
    """The operation is there twice, the second time right behind the first one."""
    return [entry, moved(entry, entry[0] + 1, entry[1])]


def _other_term(entry: UnchainedRow) -> list[UnchainedRow]:
    return [moved(entry, entry[0], entry[1] + 1)]


KINDS: dict[str, Callable[[UnchainedRow], list[UnchainedRow]]] = {
    "missing": _missing,
    "divergent": _divergent,
    "extra": _extra,
    "other term": _other_term,
}


def planted(shape: Shape, members: int = 3, count: int = 20, seed: int = 3) -> list[Plan]:
    """Differences of every kind by turns, dealt out among the members, nowhere two at one entry."""
    draw = random.Random(seed)
    numbers = draw.sample(range(CYCLE, shape.entries - CYCLE), count)
    plans = [dict[int, Change]() for _ in range(members)]
    for turn, number in enumerate(numbers):
        kind = list(KINDS)[turn % len(KINDS)]
        plans[turn % members][number] = Change(kind, KINDS[kind])
    return [Plan(changes) for changes in plans]


def history(shape: Shape, plan: Plan) -> Iterator[list[OplogRow]]:
    """The rows of one member in blocks, hashed and chained as that member wrote them."""
    before, number = CHAIN_START, 0
    for block in pending(shape):
        size = len(block)
        if any(number <= at < number + size for at in plan.changes):
            block = _changed(block, number, plan)
        rows = chained_rows(block, before)
        before = rows[-1].chain
        if number + size > plan.trimmed:
            yield rows[max(0, plan.trimmed - number) :]
        number += size


def _changed(block: list[UnchainedRow], number: int, plan: Plan) -> list[UnchainedRow]:
    changes = plan.changes
    return list(
        chain.from_iterable(
            changes[at].make(entry) if at in changes else [entry] for at, entry in enumerate(block, number)
        )
    )


def write_member(folder: Path, shape: Shape, plan: Plan) -> Path:
    """A dbpath with this history; the folder itself."""
    write_rows(folder, [], trimmed_through=shape.ts_of(plan.trimmed - 1) if plan.trimmed else 0)
    gc.disable()  # it would walk through each block's tuples again and again: half of the time
    try:
        with closing(sqlite3.connect(folder / DATABASE_FILE, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode=OFF")
            connection.execute("PRAGMA synchronous=OFF")
            connection.execute("BEGIN")
            for rows in history(shape, plan):
                connection.executemany(f"INSERT INTO oplog({COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?)", rows)
            connection.executemany("INSERT INTO terms VALUES (?, ?, ?)", shape.term_spans())
            connection.execute("COMMIT")
            connection.execute("PRAGMA journal_mode=WAL")
    finally:
        gc.enable()
    return folder


def write_members(folder: Path, shape: Shape, plans: list[Plan]) -> list[Path]:
    """dbpaths m0, m1 … in `folder`, made on two cores."""
    places = [folder / f"m{number}" for number in range(len(plans))]
    with ProcessPoolExecutor(2, mp_context=get_context("forkserver")) as pool:
        return list(pool.map(write_member, places, repeat(shape), plans))


def differing(shape: Shape, plans: list[Plan]) -> set[tuple[int, int, int, int]]:
    """(member, ts, term, hash) of every entry that not all the members have; what each engine has to find."""
    held: dict[tuple[int, int, int], set[int]] = {}
    for number in sorted({at for plan in plans for at in plan.changes}):
        start = number // CYCLE * CYCLE
        entry = next(pending(shape, first=start, end=start + CYCLE))[number - start]
        for member, plan in enumerate(plans):
            change = plan.changes.get(number)
            for ts, term, *_, raw in [entry] if change is None else change.make(entry):
                held.setdefault((ts, term, entry_hash(raw)), set()).add(member)
    everyone = set(range(len(plans)))
    return {(member, *entry) for entry, members in held.items() if members != everyone for member in members}


def _put(into: npt.NDArray[np.uint8], at: int, values: Numbers, kind: str) -> None:
    size = int(kind[2])
    into[:, at : at + size] = values.astype(kind).view(np.uint8).reshape(-1, size)


def _slices(matrix: npt.NDArray[np.uint8]) -> list[bytes]:
    raw, size = matrix.tobytes(), matrix.shape[1]
    return [raw[at : at + size] for at in range(0, len(raw), size)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.oplogs")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--entries", type=int, default=2_000_000)
    parser.add_argument("--per-second", type=int, default=2000)
    parser.add_argument("--hot-second", type=float, default=0.0)
    parser.add_argument("--hot-document", type=float, default=0.0)
    parser.add_argument("--differences", type=int, default=20)
    options = parser.parse_args()
    shape = Shape(options.entries, options.per_second, options.hot_second, options.hot_document)
    began = perf_counter()
    plans = planted(shape, count=options.differences)
    for place in write_members(options.folder, shape, plans):
        print(place)
    print(f"{len(differing(shape, plans))} entries differ; {perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()

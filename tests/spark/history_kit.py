"""A set's past in three files: a primary that wrote on alone, the one elected instead, one that fell behind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from replset.bson import Timestamp
from replset.ids import OpTime, pack_ts
from replset.oplog_entry import noop_entry
from replset.oplog_row import UnchainedRow
from spark.readers.sqlite import SqliteOplog
from tests.spark.kit import T0, insert, write_oplog


def noop(seconds: int, msg: str, *, term: int = 1, **fields: object) -> UnchainedRow:
    """A no-op `seconds` after T0."""
    optime = OpTime(term, pack_ts(T0 + seconds, 1))
    wall_ms = (T0 + seconds) * 1000
    return (optime.ts, term, "n", "", None, wall_ms, noop_entry({"msg": msg, **fields}, optime, wall_ms))


def periodic(seconds: int, point: int, *, term: int = 1) -> UnchainedRow:
    """A periodic no-op that says: committed is the first entry of `point` seconds after T0, in term 1."""
    return noop(seconds, "periodic noop", term=term, commitPoint={"ts": Timestamp(T0 + point, 1), "t": 1})


def inserts(first: int, count: int, *, term: int = 1) -> list[UnchainedRow]:
    """Ten a second; number 10 * s is s seconds after T0."""
    return [insert(number, per_second=10, term=term) for number in range(first, first + count)]


COMMON = [noop(-2, "initiating set"), noop(-1, "new primary", member=0, host="a:1"), *inserts(0, 100), periodic(20, 5)]
LOST = inserts(300, 20)
NEXT = [noop(40, "new primary", term=2, member=1, host="b:1"), *inserts(500, 100, term=2)]


def member(folder: Path, name: str, pending: Sequence[UnchainedRow]) -> SqliteOplog:
    return SqliteOplog(name, str(write_oplog(folder / name, pending) / "replset.db"))


def parted_set(folder: Path) -> list[SqliteOplog]:
    """a wrote LOST alone, b leads term 2, c stopped after 48 inserts."""
    return [
        member(folder, "a", [*COMMON, *LOST]),
        member(folder, "b", [*COMMON, *NEXT]),
        member(folder, "c", COMMON[:50]),
    ]

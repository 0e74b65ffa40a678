"""Counting by second without Spark: which seconds are full, what a restart knows, how a line reads."""

from __future__ import annotations

import itertools
import signal
from collections import Counter
from pathlib import Path
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replset.ids import pack_ts
from spark.reports.tail import Count, Second, Seconds, counted, line_of, second_of, tail_stream

T = 1_760_000_000


def full(seconds: list[Second]) -> list[tuple[str, int, int]]:
    return [(second.member, second.second, second.entries) for second in seconds]


def test_a_second_is_full_when_a_later_one_of_the_same_member_begins() -> None:
    seconds = Seconds()
    assert seconds.add([Count("a", 1, "i", "x", 2), Count("b", 5, "i", "x", 1)]) == []
    assert full(seconds.add([Count("a", 1, "d", "x", 1)])) == []
    assert full(seconds.add([Count("a", 2, "i", "x", 1)])) == [("a", 1, 3)]
    assert full(seconds.add([Count("a", 3, "i", "x", 4), Count("a", 4, "i", "x", 1)])) == [("a", 2, 1), ("a", 3, 4)]
    assert full(seconds.add([Count("a", 3, "i", "x", 2)])) == [("a", 3, 2)], "a member went back"
    assert full(seconds.close()) == [("a", 4, 1), ("b", 5, 1)]
    assert seconds.close() == []


COUNTS = st.builds(Count, *map(st.sampled_from, (["a", "b"], range(1, 7), ["i", "d"], ["x", ""])), st.integers(1, 5))
BATCHES = st.lists(st.lists(COUNTS, max_size=4), max_size=8)


@given(batches=BATCHES, restart_at=st.integers(0, 8))
def test_every_entry_is_counted_once_over_a_restart(batches: list[list[Count]], restart_at: int) -> None:
    seconds, shown = Seconds(), []
    for number, batch in enumerate(batches):
        if number == restart_at:
            seconds = Seconds.parse(seconds.document())
        shown += seconds.add(batch)
        seconds.batch = number
    assert seconds.batch == len(batches) - 1
    shown += seconds.close()
    told, expected = Counter[tuple[str, int, str]](), Counter[tuple[str, int, str]]()
    for second in shown:
        assert sum(second.by_ns.values()) == sum(second.by_op.values()) == second.entries
        told.update({(second.member, second.second, op): entries for op, entries in second.by_op.items()})
    for count in itertools.chain.from_iterable(batches):
        expected[count.member, count.second, count.op] += count.entries
    assert told == expected


def test_second_of() -> None:
    counts = {("i", "shop.orders"): 3, ("u", "shop.users"): 5, ("d", "shop.orders"): 4}
    assert second_of("a", T, counts) == Second(
        "a", T, 12, {"u": 5, "d": 4, "i": 3}, {"shop.orders": 7, "shop.users": 5}
    )


@pytest.mark.parametrize(
    ("by_ns", "told"),
    [
        ({"": 1}, "- 1"),
        ({"a.a": 3, "b.b": 2}, "a.a 3, b.b 2"),
        ({f"a.{n}": 9 - n for n in range(6)}, "a.0 9, a.1 8, a.2 7, a.3 6, 2 more 9"),
    ],
)
def test_line_of(by_ns: dict[str, int], told: str) -> None:
    second = Second("a", T, sum(by_ns.values()), {"i": sum(by_ns.values())}, by_ns)
    line = line_of(second)
    assert line.startswith("2025-10-09T08:53:20 a ")
    assert line.endswith(told)


def test_counted() -> None:
    rows = [("i", "x", 1), ("i", "x", 1), ("d", "x", 1), ("i", "y", 1), ("i", "x", 2)]
    batch = pa.RecordBatch.from_pylist(
        [{"member": "a", "ts": pack_ts(T + s, n), "op": op, "ns": ns} for n, (op, ns, s) in enumerate(rows)]
    )
    found = sorted(Count(**row) for row in counted(batch).to_pylist())
    assert found == [
        Count("a", T + 1, "d", "x", 1),
        Count("a", T + 1, "i", "x", 2),
        Count("a", T + 1, "i", "y", 1),
        Count("a", T + 2, "i", "x", 1),
    ]
    assert counted(batch.slice(0, 0)).num_rows == 0


class Query:
    """A running query below which Ctrl-C is pressed, once while it is waited for and once while it ends."""

    stopped = 0

    @property
    def isActive(self) -> bool:
        signal.raise_signal(signal.SIGINT)
        return True

    def stop(self) -> None:
        signal.raise_signal(signal.SIGINT)
        self.stopped += 1

    def exception(self) -> None:
        return None


def test_ctrl_c_ends_a_tail_quietly_even_when_pressed_twice(tmp_path: Path) -> None:
    stream, query = MagicMock(), Query()
    stream.select().writeStream.foreachBatch().option().trigger().start.return_value = query
    before = signal.getsignal(signal.SIGINT)
    tail_stream(stream, lambda seconds: None, checkpoint=tmp_path)
    assert query.stopped == 1
    assert signal.getsignal(signal.SIGINT) is before

"""summary_of: counts, sizes, hot documents and the cost of updates, against sums made by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from replset.bson import encode, encode_key
from replset.ids import OpTime, pack_ts
from replset.oplog_entry import command_entry, delete_entry, noop_entry, update_entry
from replset.oplog_row import CHAIN_START, UnchainedRow, chained_rows
from spark.entry_bytes import diff_size
from spark.oplog import EntryFilter, Span
from spark.reports.summary import Summary, summary_of
from spark.runners import LocalRunner
from tests.spark.kit import T0, UUID, ListOplog, insert

DIFF = encode({"u": {"a": 1, "text": "y" * 40}})
DIFF_O = encode({"$v": 2, "diff": {"u": {"a": 1, "text": "y" * 40}}})
WHOLE_O = encode({"_id": 1, "text": "z"})


def entry(
    number: int, op: str, o: bytes = b"", *, of: object = 1, term: int = 1, ns: str = "shop.orders"
) -> UnchainedRow:
    """The entry of second T0 + number, about the document `of`."""
    optime, wall = OpTime(term, pack_ts(T0 + number, 1)), (T0 + number) * 1000
    about = encode({"_id": of})
    key = encode_key(of)
    match op:
        case "u":
            return (optime.ts, term, op, ns, key, wall, update_entry(ns, UUID, about, o, optime, wall))
        case "d":
            return (optime.ts, term, op, ns, key, wall, delete_entry(ns, UUID, about, optime, wall))
        case "c":
            raw = command_entry("shop", UUID, {"create": "orders"}, optime, wall)
            return (optime.ts, term, op, "shop.$cmd", None, wall, raw)
        case _:
            return (optime.ts, term, op, "", None, wall, noop_entry({"msg": "x"}, optime, wall))


ENTRIES = [
    entry(0, "n"),
    entry(1, "c"),
    *(insert(n, per_second=1) for n in range(2, 12)),
    *(entry(n, "u", DIFF_O, of=3) for n in range(12, 100)),
    entry(100, "u", WHOLE_O, of=1, term=2),
    entry(101, "d", of=3, term=2),
    entry(102, "u", DIFF_O, of="four", term=2, ns="shop.other"),
]


def summed(entries: list[UnchainedRow], **how: Any) -> Summary[pa.Table]:
    return summary_of(LocalRunner(), [ListOplog("a", chained_rows(entries, CHAIN_START))], **how)


def test_counts_by_namespace_operation_term_and_minute() -> None:
    found = summed(ENTRIES)
    sizes = {e[0]: len(e[6]) for e in ENTRIES}
    for table, column, of in (
        (found.namespaces, "ns", lambda e: e[3]),
        (found.operations, "op", lambda e: e[2]),
        (found.terms, "term", lambda e: e[1]),
        (found.minutes, "minute", lambda e: e[5] // 60_000 * 60_000),
    ):
        expected = [
            {
                "member": "a",
                column: group,
                "entries": len(rows),
                "bytes": sum(sizes[e[0]] for e in rows),
                "first_wall": rows[0][5],
                "last_wall": rows[-1][5],
                "per_second": len(rows) / max(1.0, (rows[-1][5] - rows[0][5]) / 1000),
                "first_ts": rows[0][0],
                "last_ts": rows[-1][0],
            }
            for group in sorted({of(e) for e in ENTRIES})
            if (rows := [e for e in ENTRIES if of(e) == group])
        ]
        assert table.to_pylist() == expected
    [member] = found.members.to_pylist()
    assert (member["entries"], member["bytes"]) == (len(ENTRIES), sum(sizes.values()))
    assert member["per_second"] == len(ENTRIES) / 102


def test_sizes_are_counted_in_powers_of_two() -> None:
    exact = [insert(0, text="x" * n) for n in range(500)]
    lengths = {len(e[6]) for e in exact}
    assert {256, 257, 512, 513} <= lengths
    entries = [(e[0] + n, *e[1:]) for n, e in enumerate(exact)]
    found = summed(entries).sizes.to_pylist()
    classes = Counter(next(1 << n for n in range(20) if len(e[6]) <= 1 << n) for e in entries)
    assert {row["at_most"]: row["entries"] for row in found} == classes


def test_hot_documents_by_entries_then_bytes() -> None:
    found = summed(ENTRIES, top=3).hot.to_pylist()
    assert [(row["rank"], row["ns"], row["id"], row["entries"]) for row in found] == [
        (1, "shop.orders", "3", 90),
        (2, "shop.other", '"four"', 1),
        (3, "shop.orders", "1", 1),
    ]
    of_three = [e for e in ENTRIES if e[4] == encode_key(3)]
    assert found[0]["bytes"] == sum(len(e[6]) for e in of_three)
    assert (found[0]["first_ts"], found[0]["last_ts"]) == (of_three[0][0], of_three[-1][0])
    of_two = [entry(n, "d", of=1, ns=f"shop.c{n % 2}") for n in range(5)]  # one id in two namespaces
    found = summed([entry(0, "n"), *of_two]).hot.to_pylist()
    key = encode_key(1)
    assert [(row["ns"], row["key"], row["entries"]) for row in found] == [("shop.c0", key, 3), ("shop.c1", key, 2)]


def test_of_equally_hot_documents_the_one_changed_last_comes_first() -> None:
    entries = [insert(n % 40, per_second=1) for n in range(80)]
    entries = [(pack_ts(T0 + n, 1), *e[1:]) for n, e in enumerate(entries)]
    longer = insert(100, per_second=1, text="longer")
    found = summed([*entries, longer], top=41, rows_per_task=7).hot.to_pylist()
    assert [row["id"] for row in found] == [*(str(n) for n in reversed(range(40))), "100"]
    assert [row["rank"] for row in found] == list(range(1, 42))


def test_what_updates_cost() -> None:
    found = summed(ENTRIES).updates.to_pylist()
    diffs = [len(e[6]) for e in ENTRIES if e[2] == "u" and e[3] == "shop.orders"][:-1]
    whole = len(next(e for e in ENTRIES if e[0] == pack_ts(T0 + 100, 1))[6])
    assert found[0] == {
        "member": "a",
        "ns": "shop.orders",
        "updates": 89,
        "bytes": sum(diffs) + whole,
        "replacements": 1,
        "diffs": 88,
        "diff_entry_bytes": sum(diffs),
        "diff_bytes": 88 * len(DIFF),
        "replaced_share": 1 / 89,
        "bytes_per_update": (sum(diffs) + whole) / 89,
        "amplification": diffs[0] / len(DIFF),
    }
    assert (found[1]["ns"], found[1]["replaced_share"]) == ("shop.other", 0.0)
    [row] = summed([entry(0, "u", WHOLE_O)]).updates.to_pylist()
    assert (row["diffs"], row["amplification"], row["replaced_share"]) == (0, None, 1.0)


def test_an_update_that_cannot_be_read_is_neither() -> None:
    broken = entry(0, "u", DIFF_O)
    found = summed([(*broken[:6], broken[6][:40])], top=1)
    [row] = found.updates.to_pylist()
    assert (row["updates"], row["diffs"], row["replacements"], row["bytes"]) == (1, 0, 0, 40)
    assert found.hot.to_pylist()[0]["id"] is None


def test_a_span_and_a_namespace() -> None:
    span, only = Span(pack_ts(T0 + 5, 0), pack_ts(T0 + 20, 0)), EntryFilter(op=("u",))
    [row] = summed(ENTRIES, span=span, only=only).members.to_pylist()
    assert (row["entries"], row["first_ts"]) == (8, pack_ts(T0 + 12, 1))


def test_an_empty_oplog_has_no_rows() -> None:
    found = summary_of(
        LocalRunner(), [ListOplog("a", ()), ListOplog("b", chained_rows(ENTRIES[:1], CHAIN_START))], top=0
    )
    assert found.members["member"].to_pylist() == ["b"]
    assert found.hot.num_rows == found.updates.num_rows == 0


@pytest.mark.parametrize(
    ("o", "expected"),
    [
        (DIFF_O, len(DIFF)),
        (WHOLE_O, None),
        (encode({"_id": 1, "$v": 2, "diff": {"u": {"a": 1}}}), len(encode({"u": {"a": 1}}))),
        (encode({"$v": 1, "diff": {}}), None),
        (encode({"$v": 2, "diff": 1}), None),
    ],
)
def test_diff_size(o: bytes, expected: int | None) -> None:
    raw = entry(0, "u", o)[6]
    assert diff_size(raw) == diff_size(raw, raw.index(b"\x03o\0") + 3) == expected

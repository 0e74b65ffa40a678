"""Results as documents, and what tables and pages say of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from replset.bson import encode, encode_key
from replset.ids import OpTime, pack_ts
from replset.oplog_row import CHAIN_START, UnchainedRow, chained_rows
from spark.oplog import Bounds
from spark.render import report_documents
from spark.render.content import ContentSamples, ContentTable, text_of
from spark.render.html import page
from spark.reports import elections_text, export, lag, summary_text
from spark.reports.elections import Elections
from spark.reports.summary import summary_of
from spark.runners import LocalRunner
from tests.spark.kit import T0, ListOplog, insert
from tests.unit.spark.test_render import check_self_contained, printed
from tests.unit.spark.test_summary import DIFF_O, entry

Document = dict[str, Any]
WALL = T0 * 1000
REPORTS: Any = {"elections": elections_text, "export": export, "lag": lag, "summary": summary_text}


class Shown:
    """A document as a command prints it, and as a terminal and a page show it."""

    def __init__(self, command: str, found: Document) -> None:
        self.document: Document = json.loads(json.dumps({**report_documents.header(command, "spark", []), **found}))
        report = REPORTS[command]
        self.content = report.content(self.document)
        self.answers = [(said.tone.value, said.text) for said in self.content.answers]
        self.terminal = printed(self.content, width=250)
        charts = report.charts(self.document) if hasattr(report, "charts") else []
        self.page = page(self.document, self.content, charts)
        self.words = " ".join(words for _, words in check_self_contained(self.page).texts)

    def check(self, *words: str) -> None:
        for word in words:
            assert word in self.terminal
            assert word in self.words

    def grid(self, title: str) -> list[dict[str, str]]:
        """The rows of a table by column."""
        found = next(part for part in self.content.parts if isinstance(part, ContentTable) and part.title == title)
        return [dict(zip(found.columns, map(text_of, row), strict=True)) for row in found.rows]


def test_the_head_of_every_document_and_what_is_no_bson() -> None:
    ends = Bounds(OpTime(1, pack_ts(T0, 1)), OpTime(1, pack_ts(T0, 5)), 5)
    assert report_documents.header("diff", "local", [(ListOplog("m1", ()), ends), (ListOplog("m2", ()), Bounds())]) == {
        "command": "diff",
        "engine": "local",
        "members": [
            {"name": "m1", "oldest": f"1:{T0}:1", "newest": f"1:{T0}:5"},
            {"name": "m2", "oldest": None, "newest": None},
        ],
    }
    damaged = report_documents.entry_value(b"\x05\x00")
    assert damaged["bytes"] == "0500"
    assert damaged["damaged"]
    assert report_documents.entry_value(None) is None
    assert report_documents.entry_value(encode({"_id": 1})) == {"_id": 1}


@pytest.mark.parametrize(
    ("command", "found", "says"),
    [
        ("elections", {"terms": [], "lost": []}, "The oplogs are empty."),
        ("lag", {"series": []}, "The oplogs are empty."),
        ("summary", {"totals": []}, "There are no such entries."),
    ],
)
def test_nothing_was_found(command: str, found: Document, says: str) -> None:
    shown = Shown(command, found)
    assert shown.answers == [("warn", says)]
    shown.check(says)


# --- elections -------------------------------------------------------------------------------------------------


def elections(lost: int, recorded: int = 1) -> Shown:
    """Two terms; `lost` entries of the first are m2's alone, and in its rollback file."""
    names = ("term", "primary", "first_wall", "entries", "gap_ms", "members", "lost", "lost_by")
    rows = [
        (1, "h1:1", T0, 40, None, ["m1", "m2"], lost, ["m2"] if lost else []),
        (2, "h2:1", T0 + 60, 7, 48_500, ["m1"], 0, []),
    ]
    terms = [dict(zip(names, row, strict=True)) for row in rows]
    for row in terms:
        begin = row["first_wall"]
        row |= {"first": f"{row['term']}:{begin}:1", "last": f"{row['term']}:{begin + 9}:1"}
        row |= {"first_wall": begin * 1000, "last_wall": (begin + 9) * 1000, "first_ts": 1, "last_ts": 2}
    of_lost = {"member": "m2", "term": 1, "op": "i", "ns": "shop.orders", "key": encode_key(4), "wall": WALL}
    of_lost |= {"entry": insert(4, text="<doomed>")[6], "rollback": "m2/rollback-1"}
    gone = [{**of_lost, "ts": n, "optime": f"1:{T0 + 9}:{n}"} for n in range(1, max(1, lost) + 1)]
    manifest = {"member": "m2", "id": "rollback-1", "state": "finished", "common_point": f"1:{T0}:40", "entries": lost}
    manifest |= dict.fromkeys(("first", "last"), "1:1:1") | dict.fromkeys(("first_ts", "last_ts", "first_term"), 1)
    tables = [pa.Table.from_pylist(found) for found in (terms, gone, [manifest])]
    found: Any = Elections("m1", tables[0], tables[1][:lost], tables[2][:lost])
    return Shown("elections", elections_text.document_of(found, samples=2))


def test_elections_say_how_long_nobody_led_and_what_was_lost() -> None:
    shown = elections(lost=1)
    assert shown.document["history"] == "m1"
    (lost,) = shown.document["lost"]
    assert (lost["optime"], lost["entry"]["o"]) == (f"1:{T0 + 9}:1", {"_id": 4, "text": "<doomed>"})
    assert "key" not in lost
    assert shown.document["rollbacks"][0]["commonPoint"] == f"1:{T0}:40"
    assert not shown.document["moreLost"]
    assert shown.answers[1:3] == [
        ("plain", "48.5 s without a primary's entries in all, 48.5 s at the longest."),
        ("bad", "1 entry lost to the history, held by m2 only. 1 of 1 shown below are in rollback files."),
    ]
    assert [row["primary"] for row in shown.grid("Terms")] == ["h1:1", "h2:1"]
    (samples,) = [part for part in shown.content.parts if isinstance(part, ContentSamples)]
    assert [sample.badge.tone.value for sample in samples.samples] == ["bad"]
    shown.check("1 entry lost", "<doomed>", "m2/rollback-1", "48.5 s")


def test_lost_entries_that_are_not_shown_are_counted() -> None:
    shown = elections(lost=5)
    assert len(shown.document["lost"]) == 2
    shown.check("5 entries lost", "More were lost; --parquet writes all.")
    assert ("good", "No entry that these members hold was lost at a change of term.") in elections(lost=0).answers


# --- lag, export -----------------------------------------------------------------------------------------------


def lagging(*rows: tuple[str | None, int, str, int]) -> Shown:
    names, place = ("member", "at", "source", "behind_ms"), {"ts": 1, "term": 1, "optime": "1:0:1"}
    table = [dict(zip(names, (of, WALL + at, *rest), strict=True)) | place for of, at, *rest in rows]
    return Shown("lag", lag.document_of(pa.Table.from_pylist(table)))


def test_lag_by_member_and_source() -> None:
    walls = [("m1", 0, "walls", 0), ("m2", 0, "walls", 500), ("m1", 1000, "walls", 0), ("m2", 1000, "walls", 250)]
    shown = lagging(*walls, (None, 1000, "commitPoint", 2000), ("m2", 1000, "status", 0))
    m2 = shown.document["series"][1]
    assert (m2["now"], m2["worst"], m2["points"]) == (250, 500, [[WALL, 500], [WALL + 1000, 250]])
    assert shown.answers == [
        ("warn", "m2 is furthest behind at the end: 0.25 s."),
        ("plain", "At worst the commit point was 2 s behind."),
    ]
    shown.check("commit point", "now, as live members report", "0.25 s")
    assert shown.page.count("<path") == 2, "what is one moment only has no line"
    assert lagging(*walls[:1]).answers == [("good", "At the end no member is behind the newest entry.")]


def test_an_export_is_summed_up_by_member_and_namespace() -> None:
    file = {"member": "m1", "ns": "a.b", "file": "x", "entries": 5, "bytes": 1000}
    files = pa.Table.from_pylist([{**file, "day": day} for day in ("2025-10-10", "2025-10-09")])
    shown = Shown("export", export.document_of(files, "/somewhere"))
    assert shown.document["written"] == [{"member": "m1", "ns": "a.b", "files": 2, "entries": 10, "bytes": 2000}]
    assert shown.answers == [("good", "10 entries in 2 files below /somewhere, 2025-10-09 to 2025-10-10.")]


# --- summary ---------------------------------------------------------------------------------------------------


def summed(*members: Sequence[UnchainedRow]) -> Shown:
    oplogs = [ListOplog(f"m{n}", chained_rows(rows, CHAIN_START)) for n, rows in enumerate(members, 1)]
    return Shown("summary", summary_text.document_of(summary_of(LocalRunner(), oplogs)))


def test_summary_says_how_much_there_is_first() -> None:
    updates = [entry(n, "u", DIFF_O, of="x", ns="shop.hot") for n in range(9)]
    rows = [*updates, *(insert(n, ns="shop.cold", per_second=1) for n in range(60, 62))]
    shown = summed(rows, rows[:10])
    size, of_diff = sum(len(row[6]) for row in rows), len(updates[0][6])
    assert shown.answers == [
        ("plain", f"11 entries in m1, {size / 1024:.1f} KiB, 0.2 a second; 2 namespaces."),
        ("plain", "From 2025-10-09 08:53:20 to 2025-10-09 08:54:21 UTC (1 min 1 s)."),
        ("warn", "The members do not hold equally many: m1 11 and m2 10. `oplog-spark diff` says why."),
        ("plain", 'The hottest document takes 81.8 % of the entries: shop.hot "x".'),
    ]
    assert shown.grid("Namespaces")[1] == {
        "namespace": "shop.cold",
        "entries, m1": "2",
        "entries, m2": "1",
        "bytes": f"{2 * len(rows[-1][6])} B",
    }
    (cost,) = shown.grid("What updates cost")
    assert (cost["updates"], cost["bytes an update"], cost["whole documents"]) == ("9", f"{of_diff} B", "0 %")
    shown.check("insert", "update", "Hot documents", "shop.cold")


def test_summary_of_many_namespaces_shows_the_largest_and_none_that_is_hot() -> None:
    shown = summed([insert(n, ns=f"shop.{n}") for n in range(50)])
    assert len(shown.grid("Namespaces")) == 30
    shown.check("and 20 more, in --json and --parquet")
    assert "30 more" in shown.page, "the chart has 20 bars and one for the others"
    assert "Hot documents" not in shown.terminal
    assert set(shown.grid("Operations")[0]) == {"operation", "entries", "bytes"}

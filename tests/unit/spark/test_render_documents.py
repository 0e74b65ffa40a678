"""Results as documents, and what tables and pages say of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from replset.bson import encode, encode_key
from replset.ids import OpTime, pack_ts
from spark.oplog import Bounds
from spark.render import documents
from spark.render.content import Content, ContentSamples, ContentTable, Tone, text_of
from spark.render.page import page as page_of
from spark.reports import elections_text as elections_report
from spark.reports import export as export_report
from spark.reports import lag as lag_report
from spark.reports import summary_text as summary_report
from spark.reports.elections import Elections
from spark.reports.summary import Summary
from tests.spark.kit import T0, insert
from tests.unit.spark.test_render import check_self_contained, printed

Document = dict[str, Any]
WALL = T0 * 1000


@dataclass(frozen=True)
class BoundsOnly:
    """A place that has bounds and nothing else."""

    name: str
    newest: int = 5

    def bounds(self) -> Bounds:
        if self.newest == 0:
            return Bounds()
        return Bounds(OpTime(1, pack_ts(T0, 1)), OpTime(1, pack_ts(T0, self.newest)), self.newest)


def whole(command: str, found: Document, *, engine: str = "spark") -> Document:
    """A document as the command prints it, gone through JSON once."""
    oplogs: Any = [BoundsOnly("m1"), BoundsOnly("m2", 0)]
    members = [(oplog, oplog.bounds()) for oplog in oplogs]
    document: Document = json.loads(json.dumps({**documents.header(command, engine, members), **found}))
    return document


REPORTS: Any = {"elections": elections_report, "export": export_report, "lag": lag_report, "summary": summary_report}


def content_of(document: Document) -> Content:
    content: Content = REPORTS[document["command"]].content(document)
    return content


def page(document: Document) -> str:
    report = REPORTS[document["command"]]
    charts = report.charts(document) if hasattr(report, "charts") else []
    return page_of(document, report.content(document), charts)


def answers(content: Content) -> list[tuple[str, str]]:
    return [(said.tone.value, said.text) for said in content.answers]


def grid(content: Content, title: str) -> list[dict[str, str]]:
    """The rows of a table by column."""
    found = next(part for part in content.parts if isinstance(part, ContentTable) and part.title == title)
    return [dict(zip(found.columns, map(text_of, row), strict=True)) for row in found.rows]


def check_shown(document: Document, *words: str) -> None:
    """Both a terminal and a page show these words, and the page is whole."""
    content = content_of(document)
    text = printed(content, width=250)
    shown = " ".join(words for _, words in check_self_contained(page(document)).texts)
    for word in words:
        assert word in text
        assert word in shown


def test_the_head_of_every_document() -> None:
    assert whole("diff", {}, engine="local") == {
        "command": "diff",
        "engine": "local",
        "members": [
            {"name": "m1", "oldest": f"1:{T0}:1", "newest": f"1:{T0}:5"},
            {"name": "m2", "oldest": None, "newest": None},
        ],
    }


def test_what_is_no_bson_is_shown_as_bytes() -> None:
    damaged = documents.entry_value(b"\x05\x00")
    assert damaged["bytes"] == "0500"
    assert damaged["damaged"]
    assert documents.entry_value(None) is None
    assert documents.entry_value(encode({"_id": 1})) == {"_id": 1}


# --- elections -------------------------------------------------------------------------------------------------


def elections(lost: int = 1) -> Document:
    ts = pack_ts(T0 + 9, 1)
    terms = [
        ("h1:1", 1, T0, 40, None, ["m1", "m2"], lost, ["m2"] if lost else []),
        ("h2:1", 2, T0 + 60, 7, 48_500, ["m1"], 0, []),
    ]
    rows = [
        {
            "term": term,
            "primary": primary,
            "began": "new primary",
            "first_ts": pack_ts(begin, 1),
            "first": f"{term}:{begin}:1",
            "first_wall": begin * 1000,
            "last_ts": pack_ts(begin + 9, 1),
            "last": f"{term}:{begin + 9}:1",
            "last_wall": (begin + 9) * 1000,
            "entries": entries,
            "gap_ms": gap,
            "members": members,
            "lost": gone,
            "lost_by": by,
            "rolled_back": gone,
            "rollbacks": [f"{name}/rollback-1" for name in by],
        }
        for primary, term, begin, entries, gap, members, gone, by in terms
    ]
    entry = insert(4, text="<doomed>")[6]
    gone_rows = [
        {
            **{"member": "m2", "ts": ts + n, "term": 1, "optime": str(OpTime(1, ts + n)), "op": "i"},
            **{"ns": "shop.orders", "key": encode_key(4), "wall": WALL, "entry": entry, "rollback": "m2/rollback-1"},
        }
        for n in range(max(1, lost))
    ]
    recorded = [
        {
            **{"member": "m2", "id": "rollback-1", "state": "finished", "reason": "rollback", "when": "2025-10-09"},
            **{"source": "h1:1", "common_point": f"1:{T0}:40", "first_ts": ts, "first_term": 1},
            **{"first": str(OpTime(1, ts)), "last_ts": ts, "last_term": 1, "last": str(OpTime(1, ts)), "entries": lost},
        }
    ]
    tables: Any = [
        pa.Table.from_pylist(rows),
        pa.Table.from_pylist(gone_rows)[:lost],
        pa.Table.from_pylist(recorded)[:lost],
    ]
    return whole("elections", elections_report.document_of(Elections("m1", *tables), samples=2))


def test_elections_as_a_document() -> None:
    document = elections()
    assert document["history"] == "m1"
    assert [(row["term"], row["primary"], row["gapMs"]) for row in document["terms"]] == [
        (1, "h1:1", None),
        (2, "h2:1", 48_500),
    ]
    (lost,) = document["lost"]
    assert lost["optime"] == f"1:{T0 + 9}:1"
    assert lost["entry"]["o"] == {"_id": 4, "text": "<doomed>"}
    assert "key" not in lost
    assert document["rollbacks"][0]["commonPoint"] == f"1:{T0}:40"
    assert not document["moreLost"]


def test_elections_say_how_long_nobody_led_and_what_was_lost() -> None:
    content = content_of(elections())
    assert answers(content)[1:3] == [
        ("plain", "48.5 s without a primary's entries in all, 48.5 s at the longest."),
        ("bad", "1 entry lost to the history, held by m2 only. 1 of 1 shown below are in rollback files."),
    ]
    assert [row["primary"] for row in grid(content, "Terms")] == ["h1:1", "h2:1"]
    check_shown(elections(), "1 entry lost", "<doomed>", "m2/rollback-1", "48.5 s")


def test_more_lost_entries_than_are_shown_are_counted() -> None:
    document = elections(lost=5)
    assert len(document["lost"]) == 2
    assert document["moreLost"]
    check_shown(document, "5 entries lost", "More were lost; --parquet writes all.")


def test_elections_without_a_loss_and_without_entries() -> None:
    assert ("good", "No entry that these members hold was lost at a change of term.") in answers(
        content_of(elections(lost=0))
    )
    nothing = whole("elections", {"history": None, "terms": [], "lost": [], "moreLost": False, "rollbacks": []})
    assert answers(content_of(nothing)) == [("warn", "The oplogs are empty.")]
    check_shown(nothing, "The oplogs are empty.")


# --- lag -------------------------------------------------------------------------------------------------------


def lag(*rows: tuple[str | None, int, str, int]) -> Document:
    table = pa.Table.from_pylist(
        [
            {
                **{"member": member, "at": WALL + at, "source": source, "behind_ms": behind},
                **{"ts": 1, "term": 1, "optime": "1:0:1"},
            }
            for member, at, source, behind in rows
        ]
    )
    return whole("lag", lag_report.document_of(table if rows else table.slice(0, 0)))


def test_lag_by_member_and_source() -> None:
    document = lag(
        ("m1", 0, "walls", 0),
        ("m2", 0, "walls", 500),
        ("m1", 1000, "walls", 0),
        ("m2", 1000, "walls", 250),
        (None, 1000, "commitPoint", 2000),
        ("m2", 1000, "status", 0),
    )
    m2 = document["series"][1]
    assert (m2["now"], m2["worst"], m2["points"]) == (250, 500, [[WALL, 500], [WALL + 1000, 250]])
    content = content_of(document)
    assert answers(content) == [
        ("warn", "m2 is furthest behind at the end: 0.25 s."),
        ("plain", "At worst the commit point was 2 s behind."),
    ]
    check_shown(document, "commit point", "now, as live members report", "0.25 s")
    assert page(document).count("<path") == 2, "what is one moment only has no line"


def test_lag_of_members_that_are_not_behind_and_of_empty_oplogs() -> None:
    assert answers(content_of(lag(("m1", 0, "walls", 0)))) == [
        ("good", "At the end no member is behind the newest entry.")
    ]
    check_shown(lag(), "The oplogs are empty.")


# --- summary ---------------------------------------------------------------------------------------------------


def summary(members: int = 2, *, namespaces: int = 2, hot: int = 9) -> Document:
    names = [f"m{n}" for n in range(1, members + 1)]

    def rows(key: str, values: list[Any]) -> pa.Table:
        return pa.Table.from_pylist(
            [
                {
                    **{"member": name, key: value, "entries": 10 - at + number, "bytes": 4096 * (number + 1)},
                    **{"first_wall": WALL, "last_wall": WALL + 60_000, "per_second": 2.5},
                    **{"first_ts": 1, "last_ts": 2},
                }
                for at, name in enumerate(names)
                for number, value in enumerate(values)
            ]
        )

    hottest = [
        {
            **{"member": name, "rank": 1, "ns": "a.b", "key": encode_key(1), "entries": hot, "bytes": 12},
            **{"first_wall": WALL, "last_wall": WALL, "first_ts": 1, "last_ts": 1, "id": '{"$oid": "x"}'},
        }
        for name in names
    ]
    updates = [
        {
            **{"member": name, "ns": "a.b", "updates": 4, "bytes": 400, "replacements": 1, "diffs": 3},
            **{"diff_entry_bytes": 300, "diff_bytes": 100, "replaced_share": 0.25, "bytes_per_update": 100.0},
            "amplification": 3.0,
        }
        for name in names
    ]
    return whole(
        "summary",
        summary_report.document_of(
            Summary(
                members=rows("ignored", [None]),
                namespaces=rows("ns", [f"shop.{n}" for n in range(namespaces)]),
                operations=rows("op", ["i", "u"]),
                terms=rows("term", [1, 2]),
                minutes=rows("minute", [WALL, WALL + 60_000]),
                sizes=rows("at_most", [128, 256]),
                hot=pa.Table.from_pylist(hottest),
                updates=pa.Table.from_pylist(updates),
            )
        ),
    )


def test_summary_says_how_much_there_is_first() -> None:
    content = content_of(summary())
    assert answers(content) == [
        ("plain", "10 entries in m1, 4.0 KiB, 2.5 a second; 2 namespaces."),
        ("plain", "From 2025-10-09 08:53:20 to 2025-10-09 08:54:20 UTC (1 min 0 s)."),
        ("warn", "The members do not hold equally many: m1 10 and m2 9. `oplog-spark diff` says why."),
        ("plain", 'The hottest document takes 90.0 % of the entries: a.b {"$oid": "x"}.'),
    ]
    assert grid(content, "Namespaces")[0] == {
        "namespace": "shop.1",
        "entries, m1": "11",
        "entries, m2": "10",
        "bytes": "8.0 KiB",
    }
    assert grid(content, "What updates cost") == [
        {
            "namespace": "a.b",
            "updates": "4",
            "bytes an update": "100 B",
            "whole documents": "25 %",
            "amplification": "3.0",
        }
    ]
    check_shown(summary(), "insert", "Hot documents", "shop.0")


def test_summary_of_many_namespaces_shows_the_largest() -> None:
    content = content_of(summary(namespaces=50))
    assert len(grid(content, "Namespaces")) == 30
    check_shown(summary(namespaces=50), "and 20 more, in --json and --parquet")
    assert "30 more" in page(summary(namespaces=50)), "the chart has 20 bars and one for the others"


def test_documents_that_are_not_hot_are_not_shown() -> None:
    assert "Hot documents" not in printed(content_of(summary(hot=1)))


def test_summary_of_one_member_and_of_nothing() -> None:
    (first, *_) = grid(content_of(summary(members=1)), "Operations")
    assert set(first) == {"operation", "entries", "bytes"}
    nothing = whole("summary", {"totals": [], "namespaces": [], "hot": []})
    check_shown(nothing, "There are no such entries.")


# --- export ----------------------------------------------------------------------------------------------------


def test_export_is_summed_up_by_member_and_namespace() -> None:
    files = pa.Table.from_pylist(
        [
            {"member": "m1", "day": day, "ns": "a.b", "file": day, "entries": 5, "bytes": 1000}
            for day in ("2025-10-09", "2025-10-10")
        ]
    )
    document = whole("export", export_report.document_of(files, "/somewhere"))
    assert document["written"] == [{"member": "m1", "ns": "a.b", "files": 2, "entries": 10, "bytes": 2000}]
    assert answers(content_of(document)) == [
        ("good", "10 entries in 2 files below /somewhere, 2025-10-09 to 2025-10-10.")
    ]


def test_samples_are_as_loud_as_they_are_bad() -> None:
    (samples,) = [part for part in content_of(elections()).parts if isinstance(part, ContentSamples)]
    assert [sample.badge.tone for sample in samples.samples] == [Tone.BAD]

"""Pages and tables: what they say of a document; nothing leaves the page, and no text becomes markup."""

from __future__ import annotations

from html.parser import HTMLParser
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from spark.render.charts import Chart, Count, bar_chart
from spark.render.content import (
    Content,
    ContentSample,
    ContentSamples,
    ContentTable,
    Phrase,
    Tone,
    byte_size,
    duration,
    listed,
    several,
)
from spark.render.page import page
from spark.render.terminal import print_content
from spark.reports.summary_text import widened

VOID = {"meta", "link", "br", "img", "input", "hr"}
REACHING_OUT = {"src", "href", "srcset", "action", "data", "xlink:href"}


class Reader(HTMLParser):
    """The texts of a page by element; fails on what is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.elements: list[str] = []
        self.attributes: set[str] = set()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data))


def check_self_contained(text: str) -> Reader:
    reader = Reader(text)
    assert not reader.attributes & REACHING_OUT
    assert not {"script", "link", "img", "iframe"} & set(reader.elements)
    style = next(words for element, words in reader.texts if element == "style")
    assert "url(" not in style
    assert "@import" not in style
    return reader


def printed(content: Content, *, colour: bool = False, width: int = 120) -> str:
    out = Console(file=StringIO(), width=width, force_terminal=colour, color_system="standard" if colour else None)
    print_content(content, out)
    return out.file.getvalue()


def whole(content: Content, *charts: Chart, name: str = "m1") -> str:
    members = [{"name": name, "oldest": None, "newest": None}]
    return page({"command": "diff", "engine": "local", "members": members}, content, charts)


# --- a page ----------------------------------------------------------------------------------------------------

NASTY = "a\x00b\x1bc\ud800d\te</p></pre></td><script>alert(1)</script>"
SHOWN = NASTY.translate({0: "\\u0000", 0x1B: "\\u001b", 0xD800: "\\ud800"})


def test_no_text_becomes_markup() -> None:
    content = Content(
        "Diff",
        [Phrase(NASTY)],
        [
            ContentTable(NASTY, [NASTY], [[NASTY], [Phrase(NASTY, Tone.BAD)]], note=NASTY),
            ContentSamples(NASTY, [ContentSample(Phrase(NASTY), NASTY, [(NASTY, NASTY)])]),
        ],
    )
    bars = bar_chart([Count(NASTY, [("c0", 1)], NASTY)], label=NASTY)
    text = whole(content, Chart(NASTY, bars, NASTY, [(NASTY, "bad")]), name=NASTY)
    text.encode("utf-8")
    found = {element: words for element, words in check_self_contained(text).texts}
    assert {found[element] for element in ("li", "code", "dt", "pre")} == {SHOWN}
    assert text.count("<script") == 0


# --- content on a terminal -------------------------------------------------------------------------------------

CONTENT = Content(
    "Title",
    [Phrase("They differ.", Tone.BAD), Phrase("[red]not markup[/red]")],
    [
        ContentTable(
            "Table [x]", ["name", "[n]"], [["[bold]a", Phrase("1", Tone.GOOD)]], numbers=["[n]"], note="a note"
        ),
        ContentSamples(
            "Samples", [ContentSample(Phrase("lost", Tone.BAD), "1:2:3", [("does", "one\ntwo"), ("by", "m1")])], "more"
        ),
    ],
)


def test_a_terminal_shows_all_of_it() -> None:
    text = printed(CONTENT)
    lines = [line.rstrip() for line in text.splitlines()]
    assert lines[:2] == ["They differ.", "[red]not markup[/red]"]
    assert "Table [x]" in text
    assert "[bold]a" in text
    assert lines[lines.index("Samples") :] == ["Samples", "lost  1:2:3", "  does  one\\ntwo", "  by    m1", "more"]


def test_a_pipe_gets_no_colours_and_a_terminal_does() -> None:
    assert "\x1b" not in printed(CONTENT)
    assert printed(CONTENT, colour=True).startswith("\x1b[1;31mThey differ.")


def test_a_sample_is_not_broken_where_the_terminal_ends() -> None:
    long = "x" * 500
    content = Content("", [], [ContentSamples("s", [ContentSample(Phrase("lost"), "h", [("does", long)])])])
    assert long in printed(content, width=40)


def test_control_characters_of_an_oplog_do_not_reach_the_terminal() -> None:
    """A document must not be able to move the cursor, set the title or begin a line."""
    nasty = "a\x1b[31mb\x07\x9b2Jc\nforged"
    content = Content(
        "",
        [Phrase(nasty)],
        [
            ContentTable("g", [nasty], [[nasty]]),
            ContentSamples("s", [ContentSample(Phrase(nasty), nasty, [(nasty, nasty)])]),
        ],
    )
    lines = printed(content).split("\n")
    assert [line for line in lines if not line.isprintable() or line.lstrip(" │┃").startswith("forged")] == []


# --- words -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "-"),
        (0, "0 s"),
        (12, "0.012 s"),
        (1500, "1.5 s"),
        (59_999, "60 s"),
        (61_000, "1 min 1 s"),
        (3_660_000, "1 h 1 min"),
        (172_800_000, "2 d 0 h"),
    ],
)
def test_spans_of_time(ms: int | None, text: str) -> None:
    assert duration(ms) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "-"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**20 * 200, "200 MiB"), (2**50, "1024.0 TiB")],
)
def test_sizes(count: int | None, text: str) -> None:
    assert byte_size(count) == text


def test_lists_and_numbers_of_things() -> None:
    assert [listed([]), listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]
    assert several(1, "entry", "entries") == "1 entry"
    assert several(1200, "entry", "entries") == "1,200 entries"
    assert several(0, "term") == "0 terms"


@given(st.dictionaries(st.integers(0, 500_000), st.integers(1, 100), min_size=1, max_size=300))
def test_minutes_are_added_up_until_they_fit(found: dict[int, int]) -> None:
    points = [(minute * 60_000, count) for minute, count in sorted(found.items())]
    wide, width_ms = widened(points, 60_000)
    assert sum(count for _, count in wide) == sum(found.values())
    assert all(at % width_ms == 0 for at, _ in wide)
    assert len(wide) <= 241

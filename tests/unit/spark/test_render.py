"""Pages and tables: what they say of a document; nothing leaves the page, and no text becomes markup."""

from __future__ import annotations

from collections.abc import Iterable
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
from spark.render.html import page
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


# --- a page ----------------------------------------------------------------------------------------------------

NASTY = "a\x00b\x1bc\ud800d\te</p></pre></td><script>alert(1)</script>"
SHOWN = NASTY.translate({0: "\\u0000", 0x1B: "\\u001b", 0xD800: "\\ud800"})


def everywhere(text: str) -> Content:
    samples = ContentSamples(text, [ContentSample(Phrase(text), text, [(text, text)])])
    return Content(
        "", [Phrase(text)], [ContentTable(text, [text], [[text], [Phrase(text, Tone.BAD)]], note=text), samples]
    )


def test_no_text_becomes_markup() -> None:
    bars = bar_chart([Count(NASTY, [("c0", 1)], NASTY)], label=NASTY)
    document = {"command": "diff", "engine": "local", "members": [{"name": NASTY, "oldest": None, "newest": None}]}
    text = page(document, everywhere(NASTY), [Chart(NASTY, bars, NASTY, [(NASTY, "bad")])])
    text.encode("utf-8")
    found = {element: words for element, words in check_self_contained(text).texts}
    assert {found[element] for element in ("li", "code", "dt", "pre")} == {SHOWN}
    assert text.count("<script") == 0


# --- content on a terminal -------------------------------------------------------------------------------------

CONTENT = Content(
    "Title",
    [Phrase("They differ.", Tone.BAD), Phrase("[red]not markup[/red]")],
    [
        ContentTable("Table [x]", ["[n]"], [["[bold]a"], [Phrase("1", Tone.GOOD)]], numbers=["[n]"], note="a note"),
        ContentSamples(
            "Samples",
            [ContentSample(Phrase("lost", Tone.BAD), "1:2:3", [("does", "one\ntwo"), ("by", "x" * 500)])],
            "more",
        ),
    ],
)


def test_a_terminal_shows_all_of_it() -> None:
    text = printed(CONTENT)
    lines = [line.rstrip() for line in text.splitlines()]
    assert lines[:2] == ["They differ.", "[red]not markup[/red]"]
    for word in ("Table [x]", "[n]", "[bold]a", "a note"):
        assert word in text
    samples = ["Samples", "lost  1:2:3", "  does  one\\ntwo", f"  by    {'x' * 500}", "more"]
    assert lines[lines.index("Samples") :] == samples, "a sample is not broken where the terminal ends"
    assert "\x1b" not in text, "a pipe gets no colours"
    assert printed(CONTENT, colour=True).startswith("\x1b[1;31mThey differ.")


def test_control_characters_of_an_oplog_do_not_reach_the_terminal() -> None:
    """A document must not be able to move the cursor, set the title or begin a line."""
    lines = printed(everywhere("a\x1b[31mb\x07\x9b2Jc\nforged")).split("\n")
    assert [line for line in lines if not line.isprintable() or line.lstrip(" │┃").startswith("forged")] == []


# --- words -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "texts"),
    [
        (map(duration, (None, 0, 12, 1500, 59_999)), ["-", "0 s", "0.012 s", "1.5 s", "60 s"]),
        (map(duration, (61_000, 3_660_000, 172_800_000)), ["1 min 1 s", "1 h 1 min", "2 d 0 h"]),
        (map(byte_size, (None, 0, 1023, 1536)), ["-", "0 B", "1023 B", "1.5 KiB"]),
        (map(byte_size, (2**20 * 200, 2**50)), ["200 MiB", "1024.0 TiB"]),
        (map(listed, ([], ["a"], ["a", "b"], ["a", "b", "c"])), ["", "a", "a and b", "a, b and c"]),
        ([several(1, "entry", "entries"), several(1200, "entry", "entries")], ["1 entry", "1,200 entries"]),
        ([several(0, "term")], ["0 terms"]),
    ],
)
def test_numbers_as_text(found: Iterable[str], texts: list[str]) -> None:
    assert list(found) == texts


@given(st.dictionaries(st.integers(0, 500_000), st.integers(1, 100), min_size=1, max_size=300))
def test_minutes_are_added_up_until_they_fit(found: dict[int, int]) -> None:
    points = [(minute * 60_000, count) for minute, count in sorted(found.items())]
    wide, width_ms = widened(points, 60_000)
    assert sum(count for _, count in wide) == sum(found.values())
    assert all(at % width_ms == 0 for at, _ in wide)
    assert len(wide) <= 241

"""Pages and tables: what they say of a document; nothing leaves the page, and no text becomes markup."""

from __future__ import annotations

from html.parser import HTMLParser
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from spark.render.content import (
    Content,
    ContentSample,
    ContentSamples,
    ContentTable,
    Phrase,
    Tone,
    listed,
    seconds,
    several,
    size,
)
from spark.render.markup import document, table, tag
from spark.render.page import widened
from spark.render.terminal import print_content

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
    assert isinstance(out.file, StringIO)
    return out.file.getvalue()


# --- markup ----------------------------------------------------------------------------------------------------


@given(st.text(), st.text())
def test_no_text_becomes_markup(title: str, text: str) -> None:
    whole = document(title, [tag("p", text, title=text), table(["a<b>"], [[text]])])
    reader = check_self_contained(whole)
    assert reader.elements.count("p") == 1
    assert reader.elements.count("td") == 1


def test_a_page_holds_what_no_page_can() -> None:
    whole = document("x", [tag("p", "a\x00b\x1bc\ud800d\te</p><script>alert(1)</script>")])
    texts = "".join(text for element, text in Reader(whole).texts if element == "p")
    assert texts == "a\ufffdb\ufffdc\ufffdd\te</p><script>alert(1)</script>"
    whole.encode("utf-8")


def test_attributes_get_their_names() -> None:
    node = tag("rect", class_="a", stroke_width=2, viewBox="0 0 1 1", x=1.04, y=None)
    assert node.attrib == {"class": "a", "stroke-width": "2", "viewBox": "0 0 1 1", "x": "1"}


def test_texts_and_elements_keep_their_order() -> None:
    whole = document("x", [tag("p", "a", tag("b", "c"), "d", ["e", tag("i", "f")], None, "g")])
    assert "<p>a<b>c</b>de<i>f</i>g</p>" in whole


# --- content on a terminal -------------------------------------------------------------------------------------

CONTENT = Content(
    "Title",
    [Phrase("They differ.", Tone.BAD), Phrase("[red]not markup[/red]")],
    [
        ContentTable(
            "ContentTable [x]", ["name", "[n]"], [["[bold]a", Phrase("1", Tone.GOOD)]], numbers=["[n]"], note="a note"
        ),
        ContentSamples(
            "ContentSamples",
            [ContentSample(Phrase("lost", Tone.BAD), "1:2:3", [("does", "one\ntwo"), ("by", "m1")])],
            "more",
        ),
    ],
)


def test_a_terminal_shows_all_of_it() -> None:
    text = printed(CONTENT)
    lines = [line.rstrip() for line in text.splitlines()]
    assert lines[:2] == ["They differ.", "[red]not markup[/red]"]
    assert "ContentTable [x]" in text
    assert "[bold]a" in text
    assert lines[lines.index("ContentSamples") :] == [
        "ContentSamples",
        "lost  1:2:3",
        "  does  one",
        "        two",
        "  by    m1",
        "more",
    ]


def test_a_pipe_gets_no_colours_and_a_terminal_does() -> None:
    assert "\x1b" not in printed(CONTENT)
    assert printed(CONTENT, colour=True).startswith("\x1b[1;31mThey differ.")


def test_a_sample_is_not_broken_where_the_terminal_ends() -> None:
    long = "x" * 500
    content = Content("", [], [ContentSamples("s", [ContentSample(Phrase("lost"), "h", [("does", long)])])])
    assert long in printed(content, width=40)


def test_control_characters_of_an_oplog_do_not_reach_the_terminal() -> None:
    """A document must not be able to move the cursor or set the title."""
    nasty = "a\x1b[31mb\x07\x9b2Jc"
    content = Content(
        "",
        [Phrase(nasty)],
        [ContentTable("g", [nasty], [[nasty]]), ContentSamples("s", [ContentSample(Phrase(nasty), nasty, [])])],
    )
    assert not set(printed(content)) & set("\x1b\x07\x9b")


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
    assert seconds(ms) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "-"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**20 * 200, "200 MiB"), (2**50, "1024.0 TiB")],
)
def test_sizes(count: int | None, text: str) -> None:
    assert size(count) == text


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

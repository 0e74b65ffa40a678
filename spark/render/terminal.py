"""Content on a terminal: the answers first, then tables, then samples; into a file or pipe the same without colours."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from replset.terminal import console
from spark.render.content import (
    Cell,
    Content,
    ContentSample,
    ContentSamples,
    ContentTable,
    Tone,
    readable,
    text_of,
    tone_of,
)

_STYLES = {Tone.PLAIN: "", Tone.GOOD: "green", Tone.WARN: "yellow", Tone.BAD: "bold red", Tone.SOFT: "dim"}


def print_content(content: Content, out: Console | None = None) -> None:
    out = out or console()
    for phrase in content.answers:
        out.print(_text(phrase.text, _STYLES[phrase.tone]), highlight=False)
    for part in content.parts:
        out.print()
        if isinstance(part, ContentTable):
            _print_grid(part, out)
        else:
            _print_samples(part, out)


def _print_grid(grid: ContentTable, out: Console) -> None:
    table = Table(title=_escaped(grid.title), title_justify="left", title_style="bold")
    for name in grid.columns:
        table.add_column(_escaped(name), justify="right" if name in grid.numbers else "left", overflow="fold")
    for row in grid.rows:
        table.add_row(*map(_cell, row))
    out.print(table)
    if grid.note:
        out.print(_text(grid.note, "dim"), highlight=False)


def _print_samples(samples: ContentSamples, out: Console) -> None:
    out.print(_text(samples.title, "bold"))
    for sample in samples.samples:
        _print_sample(sample, out)
    if samples.note:
        out.print(_text(samples.note, "dim"), highlight=False)


def _print_sample(sample: ContentSample, out: Console) -> None:
    head = Text.assemble((readable(sample.badge.text), _STYLES[sample.badge.tone]), "  ", readable(sample.heading))
    out.print(head, highlight=False, soft_wrap=True)
    width = max((len(name) for name, _ in sample.lines), default=0)
    for name, text in sample.lines:
        for number, line in enumerate(readable(text).splitlines() or [""]):
            shown = Text.assemble((f"  {readable(name) if number == 0 else '':<{width}}  ", "dim"), line)
            out.print(shown, highlight=False, soft_wrap=True)


def _cell(cell: Cell) -> Text:
    return _text(text_of(cell), _STYLES[tone_of(cell)])


def _text(text: str, style: str) -> Text:
    return Text(readable(text), style)


def _escaped(text: str) -> str:
    return escape(readable(text))

"""Content on a terminal: the answers first, then tables, then samples; into a file or pipe the same without colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from replset.terminal import Text, console
from spark.render.content import (
    Cell,
    Content,
    ContentSample,
    ContentSamples,
    ContentTable,
    Tone,
    text_of,
    tone_of,
)

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {Tone.PLAIN: "", Tone.GOOD: "green", Tone.WARN: "yellow", Tone.BAD: "bold red", Tone.SOFT: "dim"}


def print_content(content: Content, out: Console | None = None) -> None:
    out = out or console()
    for phrase in content.answers:
        out.print(Text(phrase.text, _STYLES[phrase.tone]))
    for part in content.parts:
        out.print()
        if isinstance(part, ContentTable):
            _print_grid(part, out)
        else:
            _print_samples(part, out)


def _print_grid(grid: ContentTable, out: Console) -> None:
    table = Table(title=Text(grid.title), title_justify="left", title_style="bold")
    for name in grid.columns:
        table.add_column(Text(name), justify="right" if name in grid.numbers else "left", overflow="fold")
    for row in grid.rows:
        table.add_row(*map(_cell, row))
    out.print(table)
    if grid.note:
        out.print(Text(grid.note, "dim"))


def _print_samples(samples: ContentSamples, out: Console) -> None:
    out.print(Text(samples.title, "bold"))
    for sample in samples.samples:
        _print_sample(sample, out)
    if samples.note:
        out.print(Text(samples.note, "dim"))


def _print_sample(sample: ContentSample, out: Console) -> None:
    badge = Text(sample.badge.text, _STYLES[sample.badge.tone])
    out.print(badge, Text(sample.heading), sep="  ", soft_wrap=True)
    width = max((len(name) for name, _ in sample.lines), default=0)
    for name, text in sample.lines:
        out.print(Text(f"  {name:<{width}}", "dim"), Text(text), sep="  ", soft_wrap=True)


def _cell(cell: Cell) -> Text:
    return Text(text_of(cell), _STYLES[tone_of(cell)])

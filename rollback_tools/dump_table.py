"""Documents as a table, in memory that does not grow: the first ones say which columns there are and how wide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import BinaryIO

from rollback_tools.text import printable, short

FIRST_ROWS = 100
MOST_COLUMNS = 12
WIDEST = 40
MORE = "more"
GAP = "  "


class TableWriter:
    """Takes documents one after the other and writes lines. `close` writes what is waiting."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._waiting: list[Mapping[str, object]] = []
        self._widths: dict[str, int] | None = None

    def add(self, document: Mapping[str, object]) -> None:
        if self._widths is not None:
            self._write(document)
            return
        self._waiting.append(document)
        if len(self._waiting) == FIRST_ROWS:
            self._begin()

    def close(self) -> None:
        if self._widths is None:
            self._begin()

    def _begin(self) -> None:
        names = list(dict.fromkeys(name for document in self._waiting for name in document))[:MOST_COLUMNS]
        widths = {name: len(_shown(name)) for name in names}
        for document in self._waiting:
            for name in names:
                if name in document:
                    widths[name] = max(widths[name], len(short(document[name], WIDEST)))
        self._widths = widths
        if widths:
            self._line([_shown(name) for name in widths])
            self._line(["-" * width for width in widths.values()])
        for document in self._waiting:
            self._write(document)
        self._waiting.clear()

    def _write(self, document: Mapping[str, object]) -> None:
        """A row; fields that have no column are named behind the last one."""
        widths = self._widths or {}
        cells = [short(document[name], WIDEST) if name in document else "" for name in widths]
        others = [_shown(name) for name in document if name not in widths]
        self._line(cells, f"{MORE}: {', '.join(others)}" if others else "")

    def _line(self, cells: list[str], rest: str = "") -> None:
        padded = [cell.ljust(width) for cell, width in zip(cells, (self._widths or {}).values(), strict=True)]
        self._out.write(GAP.join([*padded, rest]).rstrip().encode("utf-8", "replace") + b"\n")


def _shown(name: str) -> str:
    """A name without what would break the line."""
    text = printable(name)
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"

"""Prints documents as a table in bounded memory. The first documents decide the columns and their widths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import BinaryIO

from replset.text import printable
from rollback_tools.bson_text import short

FIRST_ROWS = 100
COLUMNS_MAX = 12
WIDTH_MAX = 40
MORE = "more"
GAP = "  "


class TableWriter:
    """Takes documents one after the other and writes lines. `close` writes those that still wait."""

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
        names = list(dict.fromkeys(name for document in self._waiting for name in document))[:COLUMNS_MAX]
        widths = {name: len(_column_name(name)) for name in names}
        for document in self._waiting:
            for name in names:
                if name in document:
                    widths[name] = max(widths[name], len(short(document[name], WIDTH_MAX)))
        self._widths = widths
        if widths:
            self._line([_column_name(name) for name in widths])
            self._line(["-" * width for width in widths.values()])
        for document in self._waiting:
            self._write(document)
        self._waiting.clear()

    def _write(self, document: Mapping[str, object]) -> None:
        """Write a row. Fields without a column are named after the last column."""
        widths = self._widths or {}
        cells = [short(document[name], WIDTH_MAX) if name in document else "" for name in widths]
        others = [_column_name(name) for name in document if name not in widths]
        self._line(cells, f"{MORE}: {', '.join(others)}" if others else "")

    def _line(self, cells: list[str], rest: str = "") -> None:
        padded = [cell.ljust(width) for cell, width in zip(cells, (self._widths or {}).values(), strict=True)]
        self._out.write(GAP.join([*padded, rest]).rstrip().encode("utf-8", "replace") + b"\n")


def _column_name(name: str) -> str:
    """A printable name that is not too long for a column."""
    text = printable(name)
    return text if len(text) <= WIDTH_MAX else f"{text[: WIDTH_MAX - 1]}…"

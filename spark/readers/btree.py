"""Where a large SQLite table parts into about equal pieces, from a few interior pages of its B-tree.

SQL can only count rows by walking over them; the interior pages hold such borders ready, whatever the keys are. What
is in the -wal alone is not seen, and a page may change while it is read: what comes back is good for planning only.
The pages are read without SQLite, which gives none out (no build that ADBC ships has `sqlite_dbpage`), but not without
regard for it: see `shared_file`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from spark.readers.shared_file import SharedFile, shared_file

_HEADER = 100
_INTERIOR, _LEAF = 5, 13
_SAMPLES = 8


class Borders(NamedTuple):
    """keys: rising rowids inside the range; about `rows_between` rows are between each and the one before it."""

    keys: list[int]
    rows_between: float


NO_BORDERS = Borders([], 0.0)


def table_borders(path: str, root_page: int, first: int, last: int, wanted: int) -> Borders:
    """At least `wanted` borders (if there are so many pages) between the rowids `first` and `last`.

    None when the file cannot be understood.
    """
    try:
        with shared_file(path) as file:
            return _borders(_Pages(file), root_page, first, last, wanted)
    except (OSError, ValueError, IndexError):
        return NO_BORDERS


class _Pages:
    def __init__(self, file: SharedFile) -> None:
        self._file = file
        size = int.from_bytes(file.read(_HEADER, 0)[16:18], "big")
        self._size = 65536 if size == 1 else size

    def read(self, number: int) -> _Page:
        data = self._file.read(self._size, (number - 1) * self._size)
        if number < 2 or len(data) < self._size or data[0] not in (_INTERIOR, _LEAF):
            raise ValueError("no page of a table")
        return _Page(data)


class _Page(NamedTuple):
    data: bytes

    @property
    def is_leaf(self) -> bool:
        return self.data[0] == _LEAF

    @property
    def cells(self) -> int:
        """An interior page has one child more."""
        return int.from_bytes(self.data[3:5], "big")

    def child(self, number: int) -> int:
        at = 8 if number == self.cells else self._cell(number)
        return int.from_bytes(self.data[at : at + 4], "big")

    def key(self, number: int) -> int:
        """The greatest rowid below child `number`; the last child's is not stored."""
        value, start = 0, self._cell(number) + 4
        for at in range(start, start + 8):
            byte = self.data[at]
            value = value << 7 | byte & 0x7F
            if byte < 0x80:
                return value
        return value << 8 | self.data[start + 8]

    def _cell(self, number: int) -> int:
        at = 12 + 2 * number
        return int.from_bytes(self.data[at : at + 2], "big")


class _Node(NamedTuple):
    """A page and its children from `begin` to `end`, both included, which hold the range's rows."""

    page: _Page
    begin: int
    end: int


def _borders(pages: _Pages, root_page: int, first: int, last: int, wanted: int) -> Borders:
    root = pages.read(root_page)
    if root.is_leaf:
        return NO_BORDERS
    level = [_node(root, first, last)]
    while True:
        children = sum(node.end - node.begin + 1 for node in level)
        if children > wanted or pages.read(level[0].page.child(level[0].begin)).is_leaf:
            break
        level = [
            _node(pages.read(page.child(number)), first, last)
            for page, begin, end in level
            for number in range(begin, end + 1)
        ]
    step = max(1, children // (4 * wanted))
    keys = [key for key in _rising(_keys(level, step)) if first <= key < last]
    return Borders(keys, _rows_below(pages, level) * step)


def _node(page: _Page, first: int, last: int) -> _Node:
    if page.is_leaf:
        raise ValueError("leaves of different depth")
    numbers = range(page.cells)
    return _Node(page, bisect_left(numbers, first, key=page.key), bisect_left(numbers, last, key=page.key))


def _keys(level: list[_Node], step: int) -> Iterator[int]:
    """Every step-th key. The border between two pages of a level is stored above them and left out."""
    ahead = step - 1
    for page, begin, end in level:
        for number in range(begin + ahead, end, step):
            yield page.key(number)
        children = end - begin + 1
        ahead = (ahead - children) % step


def _rising(keys: Iterator[int]) -> Iterator[int]:
    last = 0
    for key in keys:
        if key > last:
            last = key
            yield key


def _rows_below(pages: _Pages, level: list[_Node]) -> float:
    """Rows below one child of this level, from a few ways down."""
    rows = 0.0
    for sample in range(_SAMPLES):
        page, begin, end = level[sample * len(level) // _SAMPLES]
        rows += _rows_on_the_way_down(pages, page.child(begin + (end - begin) * sample // _SAMPLES))
    return rows / _SAMPLES


def _rows_on_the_way_down(pages: _Pages, number: int) -> float:
    page, rows = pages.read(number), 1.0
    while not page.is_leaf:
        rows *= page.cells + 1
        page = pages.read(page.child(page.cells // 2))
    return rows * page.cells

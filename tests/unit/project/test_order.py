"""Each worker of `./dev test` begins with its share of the long tests, and no module of real processes is divided."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

from tests.conftest import APART, HERE, LONG, TOOLS, dealt

WORKERS = 3


class Item:
    def __init__(self, path: Path) -> None:
        self.path = path


def test_the_order_of_the_tests() -> None:
    long = {folder: 8 if folder in APART else 4 for folder in LONG}  # tests in a module
    items: list[Any] = [
        Item(folder / f"test_{module}.py")
        for folder in (HERE / "unit/core", *LONG)
        for module in range(6)
        for _ in range(long.get(folder, 100))
    ]
    order = dealt(list(items), WORKERS)
    assert len(order) == len(items)
    assert {id(item) for item in order} == {id(item) for item in items}
    shares = [order[len(items) * n // WORKERS : len(items) * (n + 1) // WORKERS] for n in range(WORKERS)]
    for share in shares:
        assert [item.path.parent == TOOLS for item in share[:24]] == [share is shares[0]] * 24
        assert share[-1].path.parent not in LONG
        kinds = [folder for folder, _ in groupby(item.path.parent in APART for item in share)]
        assert len(kinds) >= 5, "by turns"
    whole: list[Path] = [path for path, _ in groupby(item.path for item in order) if path.parent not in APART]
    assert len([path for path in whole if path.parent in LONG]) == 18, "each in one piece"

"""`diff` in this process over files that change or fail while they are read. What it says: tests/property."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark.oplog import OplogError
from spark.reports.diff.compare import difference
from spark.reports.diff.digests import BucketGrid
from spark.runners import LocalRunner
from tests.spark.planted import dense, in_files, plant
from tests.spark.trimming import LaterTrimmed


@pytest.mark.parametrize("at_once", [False, True], ids=["after-the-digests", "before-the-digests"])
def test_a_head_that_moves_away_meanwhile(at_once: bool, tmp_path: Path) -> None:
    """As if the entries had been gone before; how many they were is said."""
    made = plant(dense(0.5, 7, entries=100))
    through = made.members["m0"][40].ts
    gone = {name: [row for row in rows if name != "m0" or row.ts > through] for name, rows in made.members.items()}
    expected = difference(LocalRunner(), in_files(tmp_path / "gone", gone))
    first, *others = in_files(tmp_path, made.members)
    found = difference(LocalRunner(), [LaterTrimmed(first, through, at_once), *others], grid=BucketGrid())
    assert found.entries == expected.entries
    assert found.pairs == expected.pairs
    trimmed = found.members["trimmed"].to_pylist()
    assert trimmed[1:] == [0, 0]
    assert found.trimmed == trimmed[0]
    assert (trimmed[0] > 30) != at_once


def test_a_member_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    made = plant(dense(0.1, 1, entries=50))
    oplogs = in_files(tmp_path, made.members)
    Path(oplogs[1].path).unlink()
    with pytest.raises(OplogError, match=r"^m1: .* does not exist"):
        difference(LocalRunner(), oplogs)

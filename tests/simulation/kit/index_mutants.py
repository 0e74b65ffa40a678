"""Rules of indexes, each broken on purpose. See `mutants.py`."""

from __future__ import annotations

from typing import Any

import pytest

from replset.replication.index_builder import IndexBuilder
from replset.storage import txn
from replset.storage.indexes import Index
from tests.simulation.kit.kinds import ROLLBACK_RUNS
from tests.simulation.kit.mutant import Mutant


def index_entries_not_removed(patch: pytest.MonkeyPatch) -> None:
    """A delete leaves the entries of its document in the indexes."""
    real = txn.write_entries

    def write_entries(connection: Any, indexes: Any, key: bytes, before: Any, after: Any, **more: Any) -> bool:
        return after is not None and real(connection, indexes, key, before, after, **more)

    patch.setattr(txn, "write_entries", write_entries)


def index_entries_not_undone(patch: pytest.MonkeyPatch) -> None:
    """An undo puts documents back, and leaves the entries of indexes as they are."""
    real = txn.write_entries

    def write_entries(*args: Any, **more: Any) -> bool:
        return "unique_in" in more and real(*args, **more)

    patch.setattr(txn, "write_entries", write_entries)


def build_misses_writes(patch: pytest.MonkeyPatch) -> None:
    """What is written during an index build is not put into the part that is filled."""
    real = txn.write_entries

    def write_entries(connection: Any, indexes: tuple[Index, ...], *args: Any, **more: Any) -> bool:
        return real(connection, tuple(index for index in indexes if index.ready), *args, **more)

    patch.setattr(txn, "write_entries", write_entries)


def unique_keys_unchecked(patch: pytest.MonkeyPatch) -> None:
    """A primary takes a write that gives two documents one key in a unique index."""
    real = txn.write_entries

    def write_entries(*args: Any, **more: Any) -> bool:
        return real(*args, **{**more, "unique_in": None})

    patch.setattr(txn, "write_entries", write_entries)


def build_of_a_former_primary_unchecked(patch: pytest.MonkeyPatch) -> None:
    """A new primary commits a unique index without a look at what the former one let in."""

    async def find_duplicate(*_: object) -> None:
        return None

    patch.setattr(IndexBuilder, "_find_duplicate", find_duplicate)


BUILDS = "tests/unit/replication/test_index_builds.py"
INDEX_MUTANTS = (
    Mutant(index_entries_not_removed, (4, 3), "invariant 15", ROLLBACK_RUNS),
    Mutant(index_entries_not_undone, (3,), "invariant 15", ROLLBACK_RUNS),
    Mutant(build_misses_writes, test=f"{BUILDS}::test_a_build_beside_writes_and_a_secondary_that_follows"),
    Mutant(unique_keys_unchecked, test="tests/unit/features/test_indexes.py::test_unique"),
    Mutant(
        build_of_a_former_primary_unchecked,
        test=f"{BUILDS}::test_a_former_primarys_duplicate_ends_a_unique_build",
    ),
)

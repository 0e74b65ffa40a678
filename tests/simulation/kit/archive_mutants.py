"""Rules of the archive, each broken on purpose. See `mutants.py`."""

from __future__ import annotations

from typing import Any

import pytest

from replset.features.archive.archive import Archive
from replset.features.archive.archiver import Archiver
from replset.features.archive.segments import Segment
from replset.ids import OpTime
from replset.member.member import RunningMember
from replset.storage.store import Store
from tests.simulation.kit.mutant import Mutant


def uncommitted_is_archived(patch: pytest.MonkeyPatch) -> None:
    """Entries are archived before they are committed."""

    def last_applied(store: Store) -> OpTime:
        return store.last_applied

    patch.setattr(Archiver, "_committed", staticmethod(last_applied))


def trimmed_before_archived(patch: pytest.MonkeyPatch) -> None:
    """The oplog is trimmed as if there were no archive."""

    def oldest_needed(self: RunningMember) -> OpTime | None:
        return self.node.oldest_needed()

    patch.setattr(RunningMember, "_oldest_needed", oldest_needed)


def manifest_first(patch: pytest.MonkeyPatch) -> None:
    """The manifest of a segment is written before its rows."""
    real = Archive.add

    def add(self: Archive, *args: Any, **options: Any) -> Segment:
        files, writes = self.files, list[tuple[str, bytes]]()

        class Later:
            def write(self, name: str, data: bytes) -> None:
                writes.append((name, data))

        self.files = Later()  # type: ignore[assignment]
        segment = real(self, *args, **options)
        for name, data in reversed(writes):
            files.write(name, data)
        return segment

    patch.setattr(Archive, "add", add)


TESTS = "tests/unit/features/archive/test_archive.py"

ARCHIVE_MUTANTS = (
    Mutant(uncommitted_is_archived, (27, 4), "invariant 20"),
    Mutant(trimmed_before_archived, (3,), "invariant 20"),
    Mutant(manifest_first, test=f"{TESTS}::test_a_crash_at_each_write_leaves_an_archive_that_goes_on"),
)

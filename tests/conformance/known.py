"""Why tests do not pass: written by hand, one cause for all tests that fail for it.

`test_unified.py` holds this table against a run: a failure that no row names and a row whose tests all pass are both
errors. Skipped tests carry their own reason, which the runner finds in the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class Cause:
    """A reason and the tests that fail for it. tests: patterns of `SUITE/FILE: TEST`, with `*` and `?`."""

    reason: str
    tests: tuple[str, ...]

    def covers(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern.replace("[", "[[]")) for pattern in self.tests)


CAUSES: tuple[Cause, ...] = (Cause("Change streams are not built yet.", ("change-streams/*",)),)


def cause_of(name: str) -> Cause | None:
    """Return the first cause that names a test."""
    return next((cause for cause in CAUSES if cause.covers(name)), None)

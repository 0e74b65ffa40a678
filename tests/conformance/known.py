"""Why tests do not pass: written by hand, one cause for all tests that fail for it.

`./dev conformance` holds this table against a run: a failure that no row names and a test that passes though a row
names it are both errors. Skipped tests carry their own reason, which the runner finds in the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class Cause:
    """A reason and the tests that fail for it. tests: patterns of `SUITE/FILE: TEST`, as `fnmatch` reads them."""

    reason: str
    tests: tuple[str, ...]

    def covers(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.tests)


CAUSES: tuple[Cause, ...] = (
    Cause(
        "Images before and after a change are there without `changeStreamPreAndPostImages`.",
        (
            "change-streams/change-streams-pre_and_post_images: fullDocument*:whenAvailable * disabled",
            "change-streams/change-streams-pre_and_post_images: fullDocument*:required * disabled",
        ),
    ),
    Cause(
        "collMod's `prepareUnique` is not built yet; refused with 238.",
        ("collection-management/modifyCollection-errorResponse: *",),
    ),
    Cause(
        "Clustered collections are not built yet; refused with 238.", ("collection-management/clustered-indexes: *",)
    ),
    Cause("Time series are not built yet; refused with 238.", ("collection-management/timeseries-collection: *",)),
    Cause(
        "$where is not built; refused with 238.",
        ("server-discovery-and-monitoring/interruptInUse-pool-clear: Error returned *",),
    ),
    Cause(
        "PyMongo sends another filter than the file expects: {_id: {$eq: ...}}.",
        ("retryable-reads/gridfs-download: *", "retryable-reads/gridfs-download-serverErrors: *"),
    ),
    Cause(
        "PyMongo gives no partial result with an error of the connection (PYTHON-4597; skipped in its own suite).",
        ("retryable-writes/bulkWrite: * is never committed",),
    ),
    Cause(
        "PyMongo extends the monitor's timeout before it streams (PYTHON-5966; skipped in its own suite).",
        ("server-discovery-and-monitoring/interruptInUse-pool-clear: Connection pool clear uses *",),
    ),
)


def cause_of(name: str) -> Cause | None:
    """Return the first cause that names a test."""
    return next((cause for cause in CAUSES if cause.covers(name)), None)

"""The suites that are run, and their files as data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bson import json_util

VARIABLE = "REPLSET_SPECIFICATIONS"
FOLDERS = {
    "crud": "crud/tests/unified",
    "retryable-reads": "retryable-reads/tests/unified",
    "retryable-writes": "retryable-writes/tests/unified",
    "sessions": "sessions/tests",
    "transactions": "transactions/tests/unified",
    "transactions-convenient-api": "transactions-convenient-api/tests/unified",
    "causal-consistency": "causal-consistency/tests",
    "index-management": "index-management/tests",
    "collection-management": "collection-management/tests",
    "run-command": "run-command/tests/unified",
    "read-write-concern": "read-write-concern/tests/operation",
    "server-discovery-and-monitoring": "server-discovery-and-monitoring/tests/unified",
    "versioned-api": "versioned-api/tests",
    "gridfs": "gridfs/tests",
    "command-monitoring": "command-logging-and-monitoring/tests/monitoring",
    "change-streams": "change-streams/tests/unified",
}
_OPTIONS = json_util.JSONOptions(tz_aware=False, json_mode=json_util.JSONMode.RELAXED)


def specifications() -> Path | None:
    """Return the clone of mongodb/specifications; None where no variable names one."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else None


@dataclass(frozen=True, slots=True)
class SpecFile:
    """One file of a suite, decoded from Extended JSON."""

    suite: str
    name: str
    content: dict[str, Any]

    def tests(self) -> list[dict[str, Any]]:
        tests: list[dict[str, Any]] = self.content["tests"]
        return tests


def files_of(suite: str, clone: Path) -> Iterator[SpecFile]:
    """Yield the unified test files of a suite, by name."""
    for path in sorted((clone / "source" / FOLDERS[suite]).glob("*.json")):
        content = json_util.loads(path.read_text(), json_options=_OPTIONS)
        if "schemaVersion" in content:
            yield SpecFile(suite, path.stem, content)

"""Keeps the audit log of a restore: what was decided, what was there before, and the outcome. One JSON document a line.

Each decision to write is on disk before the write is sent, together with the document that it replaces. So whatever
was overwritten can be found again.
"""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any, Self


class AuditLog:
    """An append-only file; use it in `with`. OSError when it cannot be written."""

    def __init__(self, path: Path) -> None:
        """Create the file; FileExistsError when it exists."""
        self.path = path
        self._file = path.open("xb")

    @classmethod
    def beside(cls, manifest: Path, now: datetime.datetime) -> Self:
        """Create `restore.ID.TIME.N.jsonl` next to the manifest, with the first N that is free."""
        stamp = now.strftime("%Y-%m-%dT%H-%M-%S")
        number = 0
        while True:
            try:
                return cls(manifest.parent / f"restore.{manifest.stem}.{stamp}.{number}.jsonl")
            except FileExistsError:
                number += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.sync()
        finally:
            self._file.close()

    def add(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n")

    def sync(self) -> None:
        """Make what was added survive a crash."""
        self._file.flush()
        os.fsync(self._file.fileno())

"""The record of a restore: what was decided, what was there before, what came of it. One JSON document a line.

Each decision to write is on disk before the write is sent, with the document that it replaces, so that whatever was
overwritten can be found again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Self


class AuditLog:
    """An append-only file; use it in `with`. OSError where it cannot be written."""

    def __init__(self, path: Path) -> None:
        """Makes the file; FileExistsError when it is there."""
        self.path = path
        self._file = path.open("xb")

    @classmethod
    def beside(cls, manifest: Path, stamp: str) -> Self:
        """`restore.ID.STAMP.N.jsonl` next to the manifest, with the first N that is free."""
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
        """What was added survives a crash from here on."""
        self._file.flush()
        os.fsync(self._file.fileno())

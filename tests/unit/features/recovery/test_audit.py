"""The audit log of a restore: what it holds is on disk before the write that it describes is sent."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from replset.features.recovery.restore import AuditLog


def test_a_sync_covers_every_line_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[list[object]] = []
    sync_now, path = os.fsync, tmp_path / "audit"

    def fsync(handle: int) -> None:
        synced.append([json.loads(line) for line in path.read_text().splitlines()])
        sync_now(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with AuditLog(path) as log:
        log.add({"n": 1})
        log.add({"n": 2})
        log.sync()
        log.add({"n": 3})
    assert synced == [[{"n": 1}, {"n": 2}], [{"n": 1}, {"n": 2}, {"n": 3}]]

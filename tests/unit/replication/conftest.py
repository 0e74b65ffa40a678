"""Pauses on a full disk are short in these tests."""

from __future__ import annotations

import pytest

from replset.replication import disk_space


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_space, "PAUSE_S", 0.001)

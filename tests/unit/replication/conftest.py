"""Two members in most tests. Pauses on a full disk are short."""

from __future__ import annotations

from pathlib import Path

import pytest

from replset.replication import disk_space
from tests.unit.replication.diverged import two_members
from tests.unit.replication.kit import Member, Pair


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_space, "PAUSE_S", 0.001)


@pytest.fixture
def members(tmp_path: Path) -> Pair:
    """With a common history; a module that needs others has this fixture itself."""
    return two_members(tmp_path)


@pytest.fixture
def source(members: Pair) -> Member:
    return members[0]


@pytest.fixture
def mine(members: Pair) -> Member:
    return members[1]

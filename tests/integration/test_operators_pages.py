"""Pages of docs/ for operators, word for word: their commands are run in order and print what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from replset.cli.local_set import LocalSet
from tests.integration.conftest import next_ports
from tests.integration.page import Shell, differences

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("page", "folder"), [("first-set.md", "replset-data"), ("rolling-restart.md", "demo")])
def test_the_page_is_true(page: str, folder: str, tmp_path: Path) -> None:
    try:
        wrong = differences(page, Shell(tmp_path, next_ports(3)))
    finally:
        if (tmp_path / folder / "set.json").exists():
            for member in (local := LocalSet.load(tmp_path / folder)).members:
                local.kill(member)
    assert wrong == [], "\n".join(wrong)

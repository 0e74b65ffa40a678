"""docs/psa.md, word for word: its commands are run in order, in one shell, and print what it says."""

from __future__ import annotations

from pathlib import Path

from replset.cli.local_set import LocalSet
from tests.integration.conftest import next_ports
from tests.integration.page import Shell, differences


def test_the_page_is_true(tmp_path: Path) -> None:
    try:
        wrong = differences("psa.md", Shell(tmp_path, next_ports(3)))
    finally:
        if (tmp_path / "replset-data" / "set.json").exists():
            for member in (local := LocalSet.load(tmp_path / "replset-data")).members:
                local.kill(member)
    assert wrong == [], "\n".join(wrong)

"""docs/psa.md, word for word: its commands are run in order, in one shell, and print what it says."""

from __future__ import annotations

from pathlib import Path

from tests.integration.conftest import next_ports
from tests.integration.page import differences, running_shell


def test_the_page_is_true(tmp_path: Path) -> None:
    with running_shell(tmp_path, next_ports(3)) as shell:
        wrong = differences("psa.md", shell)
    assert wrong == [], "\n".join(wrong)

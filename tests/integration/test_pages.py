"""Pages of docs/ for operators, word for word: their commands are run in order and print what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import next_ports
from tests.integration.page import differences, running_shell

ONE_MEMBER = "replset cluster up --members 1 --base-port 27017"
OTHERS = {
    **{"rolling-restart.md": "", "logins.md": "", "http.md": ONE_MEMBER},
    **{"psa.md": "", "witness.md": "", "backup.md": "", "history.md": "", "confirms.md": "", "undo.md": ""},
    "consumers.md": "",
    "scrub.md": "",
}
"""Each with what is run before. `test_restore.py` runs "after-a-failover.md"."""


@pytest.mark.parametrize(
    ("page", "before"),
    [("first-set.md", ""), *(pytest.param(*row, marks=pytest.mark.in_turns) for row in OTHERS.items())],
)
def test_the_page_is_true(page: str, before: str, tmp_path: Path) -> None:
    with running_shell(tmp_path, next_ports(4)) as shell:
        if before:
            shell.run(before)
        wrong = differences(page, shell)
    assert wrong == [], "\n".join(wrong)

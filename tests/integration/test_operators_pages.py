"""Pages of docs/ for operators, word for word: their commands are run in order and print what the page says."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from replset.cli.local_set import LocalSet
from tests.integration.conftest import next_ports
from tests.integration.page import Shell, differences

ONE_MEMBER = "replset cluster up --members 1 --base-port 27017"


@pytest.mark.parametrize(
    ("page", "before"),
    [("first-set.md", ""), ("rolling-restart.md", ""), ("logins.md", ""), ("http.md", ONE_MEMBER)],
)
def test_the_page_is_true(page: str, before: str, tmp_path: Path) -> None:
    shell = Shell(tmp_path, next_ports(3))
    try:
        if before:
            shell.run(before)
        wrong = differences(page, shell)
    finally:
        for folder in (found.parent for found in tmp_path.glob("*/set.json")):
            for member in (local := LocalSet.load(folder)).members:
                local.kill(member)
        for pid in tmp_path.glob("*.pid"):
            with suppress(OSError, ValueError):
                os.kill(int(pid.read_text(encoding="utf-8")), signal.SIGKILL)
    assert wrong == [], "\n".join(wrong)

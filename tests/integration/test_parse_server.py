"""Parse Server, unmodified, signs its users up: it makes unique names and addresses by indexes with a collation."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.integration.clients.install import HERE, HOME, installed, node
from tests.programs import run_to_end


@pytest.mark.night("npm installs 640 packages")
def test_a_user_signs_up(tmp_path: Path) -> None:
    modules = installed("parse-server.json", HOME.with_name("parse-server")) / "node_modules"
    (tmp_path / "node_modules").symlink_to(modules)
    program = Path(shutil.copy(HERE / "signup.cjs", tmp_path))
    command = [sys.executable, "-m", "replset.cli.main", "test", "--", node(), program]
    done = run_to_end(command, cwd=tmp_path)
    assert (done.returncode, "signed up" in done.stdout) == (0, True), done.stdout + done.stderr

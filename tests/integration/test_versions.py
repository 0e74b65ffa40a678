"""A set goes from the last release to this tree and back, one member at a time, while a client writes.

`tests/simulation/test_releases.py` does so with each commit.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from replset.local_set import LocalSet
from replset.own_process import command_of
from tests.integration.conftest import start_set
from tests.integration.talk import Writer, all_counted, run, same_everywhere

(WHEEL,) = (Path(__file__).parents[1] / "releases").glob("*.whl")
THIS = command_of("replset.cli.main", "start")


@pytest.fixture
def release(tmp_path: Path) -> Sequence[str]:
    """The command that starts a member of the last release."""
    with zipfile.ZipFile(WHEEL) as wheel:
        wheel.extractall(tmp_path / "release")
    return [sys.executable, "-P", str(tmp_path / "release/replset/own_process.py"), "replset.cli.main", "start"]


def commits(local: LocalSet) -> set[str]:
    return {str(run(member, {"buildInfo": 1})["gitVersion"]) for member in local.members}


def move(local: LocalSet, program: Sequence[str]) -> None:
    """The secondaries first, then the primary, which hands over as it stops."""
    local.program = program
    primary = local.wait_for_primary()
    for member in [*(one for one in local.members if one is not primary), primary]:
        local.stop(member)
        local.start(member)
        all_counted(local)


@pytest.mark.in_turns
def test_a_set_goes_to_this_version_and_back_while_a_client_writes(release: Sequence[str], tmp_path: Path) -> None:
    local = LocalSet(tmp_path / "set")
    local.program = release
    try:
        start_set(local, members=3)
        before = commits(local)
        with Writer(local) as writer:
            writer.wait_for_more()
            move(local, THIS)
            assert len(commits(local)) == 1
            assert commits(local) != before
            writer.wait_for_more()
            move(local, release)
            assert commits(local) == before
            writer.wait_for_more()
        rows = same_everywhere(local)
        assert set(writer.acknowledged) <= {row["_id"] for row in rows}
    finally:
        local.stop_all()

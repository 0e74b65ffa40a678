"""What a test starts ends with it."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from replset.local_set import wait_until
from tests.programs import run_to_end

LEAVES_ONE = """
import pathlib, subprocess, sys, time
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True,
                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
place = pathlib.Path(sys.argv[1])
place.with_suffix(".new").write_text(str(left.pid))
place.with_suffix(".new").rename(place)
time.sleep(float(sys.argv[2]))
"""


class TimeUpError(Exception):
    """The test's time is up."""


@pytest.mark.parametrize("is_cut_short", [False, True])
def test_a_process_in_a_session_of_its_own_ends_with_the_program(
    tmp_path: Path, is_cut_short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "pid"
    command = [sys.executable, "-c", LEAVES_ONE, str(place), "600" if is_cut_short else "0"]
    if is_cut_short:

        def time_is_up(*_: object, **__: object) -> None:
            wait_until(place.exists, 60, "the process that is left")
            raise TimeUpError

        monkeypatch.setattr("subprocess.Popen.communicate", time_is_up)  # where pytest-timeout breaks off
        with pytest.raises(TimeUpError):
            run_to_end(command)
    else:
        assert run_to_end(command).returncode == 0
    pid = int(place.read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE

"""`--workers N` divides the tests among forks, and reports them as if they ran in one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.workers import APART, HERE, LONG, TOOLS, groups

ROOT = HERE.parent
TESTS = """
import os
import pytest

@pytest.fixture(scope="session", autouse=True)
def _ends(tmp_path_factory):
    yield
    open(os.environ["ENDED"], "a").write(os.environ["REPLSET_TEST_WORKER"])

@pytest.mark.parametrize("n", range(3))
def test_well(n, tmp_path):
    assert tmp_path.is_dir()

def test_wrong():
    os.system("echo of a program")
    assert 1 == 2

@pytest.mark.skip("no")
def test_skipped():
    pass
"""


class Item:
    def __init__(self, path: Path) -> None:
        self.path = path


def test_the_order_of_the_tests() -> None:
    folders = (HERE / "unit/core", TOOLS, *LONG)
    items: list[Any] = [
        Item(folder / f"test_{module}.py") for folder in folders for module in range(6) for _ in range(module + 2)
    ]
    found = groups(items)
    assert sorted(id(item) for group in found for item in group) == sorted(map(id, items))
    tools, *long, _, _, _, _, _, _ = found
    assert {item.path.parent for item in tools} == {TOOLS}, "all of them in one"
    assert [len(group) for group in found[-6:]] == [7, 6, 5, 4, 3, 2]
    assert all(len(group) == 1 or len({item.path for item in group}) == 1 for group in long)
    assert all(len(group) == 1 for group in long if group[0].path.parent in APART)
    first = {group[0].path.parent for group in long[: len(long) // 2]}
    assert first == set(LONG), "by turns"


def run(folder: Path, **files: str) -> tuple[int, list[str], str]:
    """The status of a run of two workers, its tests with their outcomes, and what it printed."""
    (folder / "pytest.ini").touch()
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "tests.workers", "-p", "no:cacheprovider", "--workers", "2"]
    done = subprocess.run(
        [*command, "-rA", f"--basetemp={folder / 'base'}", str(folder)],
        env={"PYTHONPATH": str(ROOT), "ENDED": str(folder / "ended"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    rows = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "PASSED", "SKIPPED"))]
    return done.returncode, sorted(row.split(" - ")[0] for row in rows), done.stdout


def test_what_two_workers_report_is_what_one_process_says(tmp_path: Path) -> None:
    status, rows, said = run(tmp_path, a=TESTS, c="def test_c(): pass\n")
    assert (status, rows) == (
        1,
        [
            "FAILED test_a.py::test_wrong",
            "PASSED test_a.py::test_well[0]",
            "PASSED test_a.py::test_well[1]",
            "PASSED test_a.py::test_well[2]",
            "PASSED test_c.py::test_c",
            "SKIPPED [1] test_a.py:18: no",
        ],
    )
    assert "of a program" in said
    assert (tmp_path / "ended").read_text() in {"0", "1"}, "the fixtures of the worker's session ended"


def test_a_worker_that_ends_fails_the_run_and_others_go_on(tmp_path: Path) -> None:
    ends = "import os\ndef test_ends(): os._exit(0)\ndef test_is_not_run(): pass\n"
    status, rows, _ = run(tmp_path, b=ends, c="def test_c(): pass\n")
    assert (status, rows) == (1, ["FAILED test_b.py::test_ends", "PASSED test_c.py::test_c"])

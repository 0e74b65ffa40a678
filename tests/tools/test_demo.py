"""The demo holds, and it can fail: a broken step ends it with a non-zero status."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import next_ports
from tests.programs import run_to_end
from tests.spark.cluster import SHORT_LIVED
from tools.demo import reason_of


def run_demo(folder: Path, prelude: str = "") -> subprocess.CompletedProcess[str]:
    """The demo with fast timeouts in a process of its own, its files in `folder`; `prelude` may break it first."""
    program = (
        "import sys, tools.demo as demo\n"
        f"{prelude}\n"
        f"sys.exit(demo.main(['--fast', '--base-port', '{next_ports(5)[0]}']))"
    )
    for name in ("api", "spark"):  # a caller's PYTHONPATH may name a project that has packages of our names
        (folder / "project" / name).mkdir(parents=True)
        (folder / "project" / name / "__init__.py").write_text("raise SystemExit('imported from PYTHONPATH')")
    environment = {"PYTHONPATH": str(folder / "project"), "JDK_JAVA_OPTIONS": SHORT_LIVED, "TMPDIR": str(folder)}
    return run_to_end([sys.executable, "-c", program], environment=environment)


@pytest.mark.in_turns
def test_every_step_of_the_demo_holds(tmp_path: Path) -> None:
    done = run_demo(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every step held" in done.stdout
    assert done.stdout.count("✔") == 12


@pytest.mark.night("the demo a second time, with a step that fails")
def test_a_broken_step_ends_the_demo_with_a_failure(tmp_path: Path) -> None:
    done = run_demo(tmp_path, "demo.Demo.count = lambda *_: 0")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "✘" in done.stdout
    assert "FAILED" in done.stdout


def test_a_failed_program_is_reported_with_its_last_line() -> None:
    missing = 'oplog-spark: no pyspark here: pip install ".[spark]" in the clone of replset'
    done = subprocess.CompletedProcess(["oplog-spark"], 2, stdout="", stderr=f"oplog-spark: Java 17\n{missing}\n")
    assert reason_of(done, "oplog-spark") == f"{missing} (exit status 2)"
    assert reason_of(subprocess.CompletedProcess([], -9, "", ""), "oplog-spark").endswith("(exit status -9)")

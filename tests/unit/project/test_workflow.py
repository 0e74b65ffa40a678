"""The public CI runs what a contributor can run, on the versions of Python that the project supports."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
COMMANDS = [step["run"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "run" in step]


def test_it_tests_every_supported_python() -> None:
    versions = WORKFLOW["jobs"]["test"]["strategy"]["matrix"]["python"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == f">={versions[0]}"
    named = re.search(r"for candidate in ((?:python3\.\d+ )+)", (ROOT / "dev").read_text(encoding="utf-8"))
    assert named is not None
    assert sorted(named[1].split()) == [f"python{version}" for version in versions]


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith(("./", "."))])
def test_what_it_runs_is_there(command: str) -> None:
    path, *arguments = command.split()
    assert (ROOT / path).stat().st_mode & 0o111, f"{path} can be run"
    if path == "./dev":
        usage = subprocess.run([ROOT / "dev", "help"], capture_output=True, text=True, check=True).stdout
        assert re.search(rf"^  .*\b{arguments[0]}\b", usage, re.MULTILINE)

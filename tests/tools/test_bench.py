"""The benchmarks of writes reach a real set over both ports."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def test_writes_arrive_over_the_wire_and_over_http() -> None:
    command = [sys.executable, "-m", "tools.bench", "--seconds", "1", "--connections", "4"]
    done = subprocess.run([*command, "wire-majority", "http-majority"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rates = [
        int(found.replace(",", "")) for found in re.findall(r"^│ (?:wire|http)\S+ +│ +([\d,]+) ", done.stdout, re.M)
    ]
    assert len(rates) == 2, done.stdout
    assert min(rates) > 0, done.stdout

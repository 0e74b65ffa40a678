"""What a large document took is given back to the system once it is gone, also from between smaller blocks."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
from replset.cli.start import give_back_large_blocks

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

give_back_large_blocks()
_ = b"x" * (30 << 20)
del _
before, kept, large = resident(), [], []
for _ in range(30):
    large.append(b"x" * (4 << 20))
    kept.append(b"x" * 100_000)
large.clear()
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_large_blocks_are_given_back() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    assert int(run.stdout) < 60 << 20

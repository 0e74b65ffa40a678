"""Starts a module of the product in a process of its own, as `python -m` does, but always the product's.

`python -m` looks into the working directory first, and every Python into the folders of PYTHONPATH before the installed
packages. A folder named `api`, as most web projects have one, would be imported instead of ours. So the process is
started from this file's path, without the working directory (`-P`), and puts the folder of the product first. The
environment stays as it is: a hook that a member starts gets the PYTHONPATH of its owner.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[1])


def command_of(module: str, *arguments: str) -> list[str]:
    """Return the command that runs `module` of the product as a program with these arguments."""
    return [sys.executable, "-P", __file__, module, *arguments]


def put_product_first() -> None:
    """Let `import api` of this process find the product's, whatever folders PYTHONPATH names."""
    if sys.path[:1] != [ROOT]:
        sys.path.insert(0, ROOT)


if __name__ == "__main__":
    import runpy

    put_product_first()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)

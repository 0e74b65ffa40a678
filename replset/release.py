"""Which release of the product this is, and which commit it was built from."""

from __future__ import annotations

import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
COMMIT_FILE = "commit.txt"
"""Beside this file in what was built (setup.py)."""
SHOWN = 12


@cache
def commit() -> str:
    """The commit as 40 hexadecimal digits, of a build or of the checkout that runs; "": unknown."""
    try:
        return (HERE / COMMIT_FILE).read_text(encoding="ascii").strip()
    except OSError:
        return commit_of(HERE.parent)


def commit_of(checkout: Path) -> str:
    """The commit that is checked out; "": this is no checkout, or there is no git."""
    return _of_git(checkout, "rev-parse", "HEAD")


def time_of(checkout: Path) -> int:
    """When that commit was made, in seconds since 1970; 0 where there is none."""
    return int(_of_git(checkout, "log", "-1", "--format=%ct") or 0)


def _of_git(checkout: Path, *arguments: str) -> str:
    if not (checkout / ".git").exists():  # or git would find that of a project around an installed package
        return ""
    command = ["git", "-C", str(checkout), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def described() -> str:
    """The version, with the commit where that is known."""
    found = commit()
    number = version("replset")
    return f"{number} (commit {found[:SHOWN]})" if found else number

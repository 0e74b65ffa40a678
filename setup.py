"""Builds what pyproject.toml describes, and notes in it which commit it is of (replset/release.py)."""

import os
import runpy
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
RELEASE = runpy.run_path(str(HERE / "replset" / "release.py"))


class BuildWithCommit(build_py):
    """Where there is no checkout, as in a container's build, REPLSET_COMMIT says it."""

    def run(self) -> None:
        super().run()
        commit = os.environ.get("REPLSET_COMMIT") or RELEASE["commit_of"](HERE)
        if commit and not self.editable_mode:
            Path(self.build_lib, "replset", RELEASE["COMMIT_FILE"]).write_text(commit + "\n", encoding="ascii")


setup(cmdclass={"build_py": BuildWithCommit})

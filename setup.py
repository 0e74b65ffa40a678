"""Builds what pyproject.toml describes, and notes in it which commit it is of (replset/release.py)."""

import os
import runpy
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).parent
RELEASE = runpy.run_path(str(HERE / "replset" / "release.py"))


def note_commit(folder: str) -> None:
    """Where there is no checkout, as in a container's build, REPLSET_COMMIT says it, or the sdist that is built."""
    commit = os.environ.get("REPLSET_COMMIT") or RELEASE["commit_of"](HERE)
    if commit:
        Path(folder, "replset", RELEASE["COMMIT_FILE"]).write_text(commit + "\n", encoding="ascii")


class BuildWithCommit(build_py):
    def run(self) -> None:
        super().run()
        if not getattr(self, "editable_mode", False):  # setuptools has it since 64
            note_commit(self.build_lib)


class SdistWithCommit(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        note_commit(base_dir)


setup(cmdclass={"build_py": BuildWithCommit, "sdist": SdistWithCommit})

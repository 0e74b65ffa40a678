"""Builds what pyproject.toml describes.

What is built knows its commit (replset/release.py), has the same bytes each time, and has one name at the top: `api`,
`spark` and `rollback_tools` of the repository are `replset.api` and so on there. Projects have folders of these names,
and an installed package `api` would hide theirs, or theirs ours.
"""

import gzip
import os
import re
import runpy
import shutil
import tarfile
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).parent
RELEASE = runpy.run_path(str(HERE / "replset" / "release.py"))
MOVED = ("api", "rollback_tools", "spark")
IMPORT = re.compile(rf"^(\s*from )({'|'.join(MOVED)})(?=[. ])", re.MULTILINE)
ENTRY = re.compile(rf"= ({'|'.join(MOVED)})\.")

# The time of all files: of the commit; of an sdist that is built, that of the sdist; else a zip's earliest.
_own = HERE / "PKG-INFO"
_time = RELEASE["time_of"](HERE) or (int(_own.stat().st_mtime) if _own.exists() else 315532800)
os.environ.setdefault("SOURCE_DATE_EPOCH", str(_time))
TIME = int(os.environ["SOURCE_DATE_EPOCH"])


def note_commit(folder: str) -> None:
    """Where there is no checkout, as in a container's build, REPLSET_COMMIT says it, or the sdist that is built."""
    commit = os.environ.get("REPLSET_COMMIT") or RELEASE["commit_of"](HERE)
    if commit:
        Path(folder, "replset", RELEASE["COMMIT_FILE"]).write_text(commit + "\n", encoding="ascii")


class Build(build_py):
    def run(self) -> None:
        if self.editable_mode:
            super().run()
            return
        shutil.rmtree(self.build_lib, ignore_errors=True)  # modules of an older build that are no more
        super().run()
        note_commit(self.build_lib)
        for name in MOVED:
            Path(self.build_lib, name).rename(Path(self.build_lib, "replset", name))
        for path in Path(self.build_lib).rglob("*.py"):
            path.write_text(IMPORT.sub(r"\1replset.\2", path.read_text(encoding="utf-8")), encoding="utf-8")


class Wheel(bdist_wheel):
    def write_wheelfile(self, wheelfile_base: str, *arguments: str) -> None:
        super().write_wheelfile(wheelfile_base, *arguments)
        if "editable_wheel" in self.distribution.command_obj:  # it points into the checkout, where nothing is moved
            return
        entries = Path(wheelfile_base, "entry_points.txt")
        entries.write_text(ENTRY.sub(r"= replset.\1.", entries.read_text(encoding="utf-8")), encoding="utf-8")
        Path(wheelfile_base, "top_level.txt").write_text("replset\n", encoding="ascii")


class Sdist(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        note_commit(base_dir)

    def make_archive(self, base_name: str, format: str, *arguments: object, **options: object) -> str:
        """A .tar.gz whose bytes depend on the files alone. `base_name` is also the folder that it holds."""
        path = f"{base_name}.tar.gz"
        with (
            open(path, "wb") as raw,
            gzip.GzipFile("", "wb", fileobj=raw, mtime=TIME) as packed,
            tarfile.open(fileobj=packed, mode="w") as tar,
        ):
            for source in sorted(Path(self.distribution.get_fullname()).rglob("*")):
                tar.add(source, recursive=False, filter=plain)
        return path


def plain(row: tarfile.TarInfo) -> tarfile.TarInfo:
    row.mtime, row.uid, row.gid, row.uname, row.gname = TIME, 0, 0, "", ""
    return row


setup(cmdclass={"build_py": Build, "sdist": Sdist, "bdist_wheel": Wheel})

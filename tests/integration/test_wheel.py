"""What is built for people: a wheel and an sdist, and what stands in an environment that has only them."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import urllib.request
import venv
from pathlib import Path

import pytest

from tests.integration.conftest import next_ports

ROOT = Path(__file__).parents[2]
SOURCES = (
    "replset",
    "api",
    "rollback_tools",
    "spark",
    "pyproject.toml",
    "setup.cfg",
    "setup.py",
    "README.md",
    "LICENSE",
)
BUILD = """
import sys, setuptools.build_meta as backend
folder = sys.argv[1]  # the builds change the arguments
backend.build_sdist(folder)
backend.build_wheel(folder)
"""
WITHIN_S = 240


def build(folder: Path, source: Path | None = None) -> tuple[Path, Path]:
    """The sdist and the wheel of a copy of this checkout, or of `source`."""
    made = folder / "dist"
    made.mkdir(parents=True)
    if source is None:
        source = folder / "src"
        source.mkdir()
        for name in SOURCES:
            path = ROOT / name
            if path.is_dir():
                shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(path, source / name)
    command = [sys.executable, "-c", BUILD, str(made)]
    environment = os.environ | {"REPLSET_COMMIT": "0123456789abcdef0123456789abcdef01234567"}
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (sdist,), (wheel,) = made.glob("*.tar.gz"), made.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(tmp_path_factory.mktemp("built"))


def digests(paths: tuple[Path, Path]) -> list[str]:
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]


@pytest.mark.in_turns
def test_a_second_build_and_one_of_the_sdist_have_the_same_bytes(built: tuple[Path, Path], tmp_path: Path) -> None:
    assert digests(build(tmp_path / "again")) == digests(built)
    shutil.unpack_archive(built[0], tmp_path / "sdist", filter="data")
    (unpacked,) = (tmp_path / "sdist").iterdir()
    assert digests(build(tmp_path / "of-sdist", unpacked))[1] == digests(built)[1]


@pytest.mark.in_turns
def test_those_who_publish_packages_find_nothing_wrong(built: tuple[Path, Path]) -> None:
    """Such as a second name at the top: `api` and `spark` would hide the folders of a project."""
    for checker in (["twine", "check", "--strict", *map(str, built)], ["check_wheel_contents", str(built[1])]):
        done = subprocess.run([sys.executable, "-m", *checker], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def run(project: Path, *command: str | Path) -> str:
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("REPLSET_", "PYTEST", "COV"))}
    done = subprocess.run(command, cwd=project, env=bare, capture_output=True, text=True, check=False, timeout=WITHIN_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.night("pip installs every requirement into an empty environment")
def test_an_empty_environment_runs_the_story_of_the_readme(built: tuple[Path, Path], tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / "bin"
    run(tmp_path, programs / "pip", "install", "--quiet", f"replset[spark] @ {built[1].as_uri()}", "pytest", "pymongo")
    project = tmp_path / "project"
    for name in ("api", "spark"):  # a project's own
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").write_text("mine = True\n")
    (project / "test_mine.py").write_text(
        "import pymongo, api, spark\n"
        "def test_mine(replica_set_uri):\n"
        "    assert api.mine and spark.mine\n"
        "    pymongo.MongoClient(replica_set_uri).shop.orders.insert_one({'_id': 1})\n"
    )
    assert "1 passed" in run(project, programs / "python", "-m", "pytest", "-q")
    port = next_ports(3)[0]
    run(project, programs / "replset", "cluster", "up", "--base-port", str(port), "--dir", "set")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port + 1000}/") as page:
            assert b"<!doctype html>" in page.read(400)
    finally:
        run(project, programs / "replset", "cluster", "down", "--dir", "set")
    run(project, programs / "python", "-c", "from replset.spark import register")
    assert "entries" in run(project, programs / "oplog-spark", "diff", "set/m1", "set/m2", "--engine", "spark")
    assert "0123456789ab" in run(project, programs / "replset", "--version")
    for program in ("rollback-tools", "oplog-spark"):
        assert program in run(project, programs / program, "--help")

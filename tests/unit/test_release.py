"""The commit is that of the build, else of the checkout that runs, and of no other project's."""

from __future__ import annotations

import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from replset import release
from replset.cli.main import main
from tests.rig import a_set

ROOT = Path(__file__).parents[2]


def head() -> str:
    command = ["git", "-C", ROOT, "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_checkout_says_its_commit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"replset {version('replset')} (commit {head()[:12]})\n"
    with a_set() as rig:
        assert rig.client().ok({"buildInfo": 1})["gitVersion"] == head()


def test_a_build_says_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "HERE", tmp_path)
    release.commit.cache_clear()
    try:
        assert release.commit() == ""
        assert release.described() == version("replset"), "nothing is known"
        release.commit.cache_clear()
        (tmp_path / release.COMMIT_FILE).write_text("0123456789abcdef\n")
        assert release.described().endswith("(commit 0123456789ab)")
    finally:
        release.commit.cache_clear()


def test_what_is_installed_inside_of_another_checkout_is_none(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    packages = tmp_path / "site-packages"
    packages.mkdir()
    assert release.commit_of(packages) == ""
    assert release.commit_of(tmp_path) == "", "no commit yet"
    assert release.commit_of(ROOT) == head()

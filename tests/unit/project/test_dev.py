"""`./dev` and `.ci/run`: what they do before any of the project's own code runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def run(script: Path, *arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ) if path is None else {"PATH": path, "HOME": str(script.parent)}
    return subprocess.run(
        [str(script), *arguments], capture_output=True, text=True, check=False, timeout=60, env=environment
    )


@pytest.fixture
def bare(tmp_path: Path) -> tuple[Path, Path]:
    """A copy of `dev` in an empty folder, and a folder of programs that holds no Python."""
    script = tmp_path / "clone" / "dev"
    script.parent.mkdir()
    shutil.copy(ROOT / "dev", script)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "env", "dirname", "mkdir", "touch"):
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    return script, programs


@pytest.mark.parametrize("name", ["dev", ".ci/run"])
def test_the_scripts_are_executable_bash(name: str) -> None:
    path = ROOT / name
    assert os.access(path, os.X_OK)
    subprocess.run(["bash", "-n", str(path)], check=True)


@pytest.mark.parametrize("arguments", [(), ("help",), ("--help",), ("-h",)])
def test_help(arguments: tuple[str, ...]) -> None:
    done = run(ROOT / "dev", *arguments)
    assert done.returncode == 0
    assert done.stdout.startswith("usage: ./dev COMMAND")
    for chore in ("demo", "test", "lint", "fmt", "bench", "sim", "docs", "setup"):
        assert f"  {chore} " in done.stdout or f"| {chore} " in done.stdout


def test_an_unknown_chore_is_status_2() -> None:
    done = run(ROOT / "dev", "frobnicate")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1] == "dev: unknown command: frobnicate"


def test_without_a_fitting_python_it_says_so_in_one_line(bare: tuple[Path, Path]) -> None:
    script, programs = bare
    old = programs / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    for chore in ("demo", "test", "setup"):
        done = run(script, chore, path=str(programs))
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr == "dev: needs a Python 3.11 to 3.14 with its venv module; none was found on PATH\n"


def test_it_takes_the_first_python_that_fits(bare: tuple[Path, Path]) -> None:
    """python3.13 is too old in disguise here; python3.12 fits, and is asked to make .venv."""
    script, programs = bare
    for name, code in (("python3.13", "exit 1"), ("python3.12", 'echo "$@" >> asked; [ "$1" = -c ]')):
        program = programs / name
        program.write_text(f"#!/bin/sh\n{code}\n")
        program.chmod(0o755)
    done = run(script, "setup", path=str(programs))
    assert done.returncode == 1, "making .venv failed here"
    assert done.stdout == "making .venv with python3.12\n"
    assert (script.parent / "asked").read_text().splitlines()[-1] == "-m venv .venv"


@pytest.mark.parametrize(
    ("parallel", "spark", "types", "arguments", "status"),
    [
        (0, 0, 0, (), 0),
        (1, 0, 0, (), 1),
        (0, 1, 0, (), 1),
        (0, 0, 1, (), 1),
        (0, 5, 0, (), 1),
        (0, 5, 0, ("tests/unit",), 0),
        (5, 0, 0, ("tests/spark",), 0),
        (5, 5, 0, ("tests/none",), 1),
    ],
)
def test_the_suite_fails_when_a_part_does(
    bare: tuple[Path, Path], parallel: int, spark: int, types: int, arguments: tuple[str, ...], status: int
) -> None:
    """5 is pytest's status when it selected nothing."""
    script, programs = bare
    for name in ("cat", "nice", "tail", "tee", "sed", "grep"):
        (programs / name).symlink_to(str(shutil.which(name)))
    tools = script.parent / ".venv/bin"
    tools.mkdir(parents=True)
    (tools.parent / ".installed-test").touch()
    said = {0: "", 1: "\\033[31mFAILED\\033[0m tests/{}.py::test_a - broken\\n", 5: ""}
    runs = (
        f'case "$*" in *"-m spark"*) printf "{said[spark].format("spark")}Spark\\n"; exit {spark};;'
        f' *"-n "*) printf "{said[parallel].format("others")}others\\n"; exit {parallel};; esac'
    )
    mypy = f"{'echo a.py:1: error: wrong; ' * types}exit {types}"
    for name, does in (("python", runs), ("ruff", ""), ("mypy", mypy)):
        (tools / name).write_text(f"#!/bin/sh\n{does}\n")
        (tools / name).chmod(0o755)
    done = run(script, "test", *arguments, path=str(programs))
    assert (done.returncode, done.stderr) == (status, "")
    failed = [
        f"FAILED tests/{name}.py::test_a - broken"
        for name, ended in (("others", parallel), ("spark", spark))
        if ended == 1
    ]
    failed = ["a.py:1: error: wrong"] * types + (failed or ["no test; see above"])
    last = ["in parallel, beside: others"] if status == 0 else ["failed:", *failed]
    assert done.stdout.splitlines()[-len(last) :] == last
    assert "others\n" in done.stdout
    assert "Spark\n" in done.stdout


@pytest.mark.parametrize(("tests", "conformance", "status"), [(0, 0, 0), (1, 0, 1), (0, 1, 1), (0, None, 0)])
def test_ci_runs_the_tests_and_then_the_conformance_that_is_there(
    tmp_path: Path, tests: int, conformance: int | None, status: int
) -> None:
    """None: no test files of the specifications lie beside the checkout."""
    clone = tmp_path / "clone"
    (clone / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci/run", clone / ".ci/run")
    (clone / "dev").write_text(
        f'#!/bin/sh\necho "$1 $REPLSET_SPECIFICATIONS"\n[ "$1" = test ] && exit {tests}\nexit {conformance}\n'
    )
    (clone / "dev").chmod(0o755)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "env", "dirname", "sh"):
        (programs / name).symlink_to(str(shutil.which(name)))
    for name in ("chromium", "haproxy", "prometheus"):
        (programs / name).symlink_to("/bin/true")
    if conformance is not None:
        (tmp_path / "shared/specifications/source").mkdir(parents=True)
    done = run(clone / ".ci/run", path=str(programs))
    assert done.returncode == status, done.stderr
    ran = [line.split()[0] for line in done.stdout.splitlines()]
    assert ran == (["test"] if tests or conformance is None else ["test", "conformance"])

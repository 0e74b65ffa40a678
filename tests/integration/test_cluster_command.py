"""`replset cluster up|status|down`, and the administrator's commands against what it made."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from replset.local_set import LocalMember, LocalSet, LocalSetError
from tests.integration.conftest import next_ports
from tests.integration.forked import run_program, running_set
from tests.programs import all_ended
from tests.spark.cluster import SHORT_LIVED

ENVIRONMENT: Mapping[str, str] = os.environ
"""Of the programs of the test that runs; not this process's own, whose server of forks outlives a test."""


def replset(*arguments: str, status: int = 0) -> str:
    """Run the command line as a process of its own; its standard output, or its standard error when it fails."""
    if arguments[:2] == ("cluster", "up"):  # as from a shell, with all that is imported then
        command = [sys.executable, "-m", "replset.cli.main", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    else:
        done = run_program("replset.cli.main", *arguments)
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What `cluster up` has started ends with the test, also if it ends before it has noted what it started."""
    place = tmp_path / "set"
    with all_ended() as environment:
        monkeypatch.setattr(sys.modules[__name__], "ENVIRONMENT", environment)
        yield place
        if (place / "set.json").exists():
            local = LocalSet.load(place)
            for member in local.members:
                local.kill(member)


def primary_of(folder: Path) -> LocalMember:
    return LocalSet.load(folder).wait_for_primary()


def test_settings_status_and_a_member_less(folder: Path) -> None:
    """The pages first-set.md, rolling-restart.md and psa.md have the rest."""
    where = ("--dir", str(folder))
    settings = ("--election-timeout", "1500", "--heartbeat-interval", "250", "--oplog-size-mb", "20")
    replset("cluster", "up", "--members", "3", "--base-port", str(next_ports(4)[0]), *where, *settings)
    assert all("20" in member.flags for member in LocalSet.load(folder).members)
    shown = json.loads(replset("cluster", "status", "--json", *where))["members"]
    assert ([row["name"] for row in shown], all(row["pid"] for row in shown)) == (["m1", "m2", "m3"], True)

    primary = primary_of(folder)
    config = json.loads(replset("conf", "--host", primary.host))
    assert config["settings"]["electionTimeoutMillis"] == 1500
    victim = next(row for row in config["members"] if row["host"] != primary.host)
    victim["priority"] = 0
    file = folder / "new.json"
    file.write_text(json.dumps(config))
    replset("reconfig", str(file), "--host", victim["host"])
    changed = json.loads(replset("conf", "--host", primary.host))
    assert next(row for row in changed["members"] if row["host"] == victim["host"])["priority"] == 0
    assert "is removed" in replset("remove", victim["host"], "--host", primary.host, "--accept")

    assert replset("cluster", "down", *where) == "3 members stopped\n"
    stopped = replset("cluster", "status", *where, status=1)
    assert re.findall(r"pid - +stopped", stopped) == ["pid -  stopped"] * 3


@pytest.mark.in_turns
def test_a_process_that_listens_on_a_members_port_is_not_taken_for_it(folder: Path, tmp_path: Path) -> None:
    with running_set(tmp_path / "one") as local:
        stranger = local.add(next_ports(1)[0])
        with pytest.raises(LocalSetError, match="cannot listen"):
            LocalSet(folder).add(stranger.port)
        up = replset("cluster", "up", "--dir", str(folder), "--members", "1")
        assert up.split()[1] != stranger.host, "this set was never initiated: it goes to another port"
        assert replset("cluster", "down", "--dir", str(folder)) == "1 members stopped\n"
        assert stranger.is_running()


@pytest.mark.in_turns
def test_what_a_failed_up_left_is_brought_up_by_the_next(folder: Path) -> None:
    """m2 cannot start, so nothing is initiated; once its place is free, the same command makes the whole set."""
    folder.mkdir()
    (folder / "m2").write_text("no folder")
    command = ("cluster", "up", "--members", "2", "--arbiters", "1", "--dir", str(folder))
    error = replset(*command, "--base-port", str(next_ports(3)[0]), status=2)
    assert "m2 did not start" in error
    assert "continues from here" in error
    (folder / "m2").unlink()
    up = replset(*command).splitlines()
    assert up.pop(0).startswith("the default write concern is {w: 'majority'}")
    assert sorted(line.split()[-1] for line in up) == ["arbiter", "primary", "secondary"]
    assert primary_of(folder).command({"getDefaultRWConcern": 1})["defaultWriteConcernSource"] == "global"


@pytest.mark.in_turns
def test_a_folder_with_packages_of_our_names_does_not_hide_the_product(folder: Path, tmp_path: Path) -> None:
    project, programs = tmp_path / "project", Path(sys.executable).parent
    for name in ("api", "spark", "replset", "rollback_tools"):
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").write_text(f"raise SystemExit('the {name} of the project was imported')")
    up = ("cluster", "up", "--members", "1", "--base-port", str(next_ports(1)[0]), "--dir", str(folder))

    def run(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [programs / program, *arguments],
            cwd=project,
            env={**ENVIRONMENT, "JDK_JAVA_OPTIONS": SHORT_LIVED, **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    assert run("replset", *up).returncode == 0
    (member,) = LocalSet.load(folder).members
    assert run("rollback-tools", "list", member.http).returncode == 0
    assert run("oplog-spark", "summary", str(member.dbpath), "--engine", "spark").returncode == 0
    assert run("replset", "cluster", "down", "--dir", str(folder)).returncode == 0
    # PYTHONPATH is the caller's too: what it names must not hide the packages that a member imports.
    shutil.rmtree(project / "replset")
    assert run("replset", *up, PYTHONPATH=str(project)).returncode == 0

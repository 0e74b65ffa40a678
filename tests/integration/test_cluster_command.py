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

from replset.cli.local_set import LocalMember, LocalSet, LocalSetError, wait_until
from tests.integration.conftest import next_ports
from tests.integration.forked import run_program
from tests.programs import all_ended

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


def test_a_set_from_up_to_down(folder: Path) -> None:
    where = ("--dir", str(folder))
    up = replset("cluster", "up", "--members", "3", "--base-port", str(next_ports(4)[0]), *where)
    assert sorted(line.split()[-1] for line in up.splitlines()) == ["primary", "secondary", "secondary"]

    shown = json.loads(replset("cluster", "status", "--json", *where))
    assert [row["name"] for row in shown["members"]] == ["m1", "m2", "m3"]
    assert all(row["pid"] for row in shown["members"])

    host = shown["members"][0]["host"]
    table = replset("status", "--host", host)
    assert "PRIMARY" in table
    assert "a majority write needs 2 of 3 copies" in table
    document = json.loads(replset("status", "--host", host, "--json"))
    assert [row["name"] for row in document["members"]] == [row["host"] for row in shown["members"]]

    assert "new primary" in replset("oplog", "tail", "--host", host)
    assert "initiating set" in replset("oplog", "tail", "--host", host, "-n", "100").splitlines()[0]
    facts = json.loads(replset("oplog", "info", "--host", host, "--json"))
    assert facts["first"] != facts["last"]

    before = primary_of(folder)
    replset("step-down", "--host", host)
    after = wait_until(lambda: member if (member := primary_of(folder)).host != before.host else None, 60, "another")
    assert after.host in table
    story = replset("why", "--host", host, "--last", "1")
    assert story.startswith(f"{after.host} is primary of term")
    assert "the primary before it handed over (stepUpRequestSkipDryRun)" in story
    assert re.search(r"took +election \d+ ms, catch-up \d+ ms, drain \d+ ms", story)

    config = json.loads(replset("conf", "--host", host))
    victim = next(row for row in config["members"] if row["host"] != after.host)
    victim["priority"] = 0
    file = folder / "new.json"
    file.write_text(json.dumps(config))
    replset("reconfig", str(file), "--host", host)
    changed = json.loads(replset("conf", "--host", host))
    assert changed["version"] > config["version"]
    assert next(row for row in changed["members"] if row["host"] == victim["host"])["priority"] == 0
    assert "is removed" in replset("remove", victim["host"], "--host", after.host, "--accept")
    assert len(json.loads(replset("conf", "--host", after.host))["members"]) == 2

    assert replset("cluster", "down", *where) == "3 members stopped\n"
    stopped = replset("cluster", "status", *where, status=1)
    assert re.findall(r"pid - +stopped", stopped) == ["pid -  stopped"] * 3
    offline = replset("oplog", "tail", str(folder / "m1"), "-n", "1")
    assert offline.count("\n") == 1


def test_administration_of_nothing(tmp_path: Path) -> None:
    for arguments, words in (
        (("cluster", "status", "--dir", str(tmp_path)), f"no local set in {tmp_path}"),
        (("cluster", "down", "--dir", str(tmp_path)), f"no local set in {tmp_path}"),
        (("status", "--host", "127.0.0.1:1"), "127.0.0.1:1 cannot be reached: Connection refused"),
        (("add", "x:1", "--host", "127.0.0.1:1"), "cannot be reached"),
        (("reconfig", str(tmp_path / "none.json")), "cannot read"),
    ):
        error = replset(*arguments, status=2)
        assert error.startswith("replset: ")
        assert words in error
        assert error.count("\n") == 1


def test_a_process_that_listens_on_a_members_port_is_not_taken_for_it(folder: Path, tmp_path: Path) -> None:
    port = next_ports(1)[0]
    local = LocalSet(tmp_path / "one")
    other = LocalSet(folder)
    try:
        stranger = local.add(port)
        with pytest.raises(LocalSetError, match="cannot listen"):
            other.add(port)
        assert stranger.is_running()
        error = replset("cluster", "up", "--dir", str(folder), "--members", "1", status=0)
        assert error.split()[1] != stranger.host  # this set was never initiated: it goes to another port
        assert replset("cluster", "down", "--dir", str(folder)) == "1 members stopped\n"
        assert stranger.is_running()
    finally:
        for member in local.members:
            local.kill(member)


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
    stored = primary_of(folder).command({"getDefaultRWConcern": 1})
    assert (stored["defaultWriteConcern"], stored["defaultWriteConcernSource"]) == (
        {"w": "majority", "wtimeout": 0},
        "global",
    )
    assert replset("cluster", "down", "--dir", str(folder)) == "3 members stopped\n"


def test_a_member_that_was_started_by_hand_is_taken_over(folder: Path) -> None:
    command = ("cluster", "up", "--members", "1", "--dir", str(folder))
    replset(*command, "--base-port", str(next_ports(1)[0]))
    local = LocalSet.load(folder)
    (member,) = local.members
    local.stop(member)
    before = member.pid, member.started
    local.start(member)
    by_hand = member.pid
    member.pid, member.started = before
    local.save()
    first, shown = replset(*command).splitlines()
    assert first == f"m1 runs already, started by hand as process {by_hand}: it is taken over"
    assert shown.split()[-1] == "primary"
    assert replset("cluster", "down", "--dir", str(folder)) == "1 members stopped\n"
    local._children[by_hand].wait(timeout=20)


def test_an_arbiter_and_its_process_in_one_command(folder: Path, tmp_path: Path) -> None:
    ports = next_ports(3)
    settings = ("--election-timeout", "1500", "--heartbeat-interval", "250", "--oplog-size-mb", "20")
    replset("cluster", "up", "--members", "2", "--base-port", str(ports[0]), "--dir", str(folder), *settings)
    primary = primary_of(folder)
    config = primary.command({"replSetGetConfig": 1})["config"]
    assert isinstance(config, dict)
    assert config["settings"]["electionTimeoutMillis"] == 1500
    assert config["settings"]["heartbeatIntervalMillis"] == 250
    assert all("20" in member.flags for member in LocalSet.load(folder).members)

    place = tmp_path / "arbiter"
    command = ("add-arbiter", f"127.0.0.1:{ports[2]}", "--host", primary.host, "--start", str(place))
    said = replset(*command, "--key-file", str(folder / "key"))
    try:
        assert f"replset cluster down --dir {place}` stops it" in said
        assert "the default write concern is {w: 'majority'} from now on" in said
        assert said.endswith("is added as arbiter\n")
        assert "arbiter" in replset("cluster", "status", "--dir", str(place))
        assert "is in the set already" in replset(*command, "--key-file", str(folder / "key"), "--if-needed")
    finally:
        assert replset("cluster", "down", "--dir", str(place)) == "1 members stopped\n"


@pytest.fixture
def web_project(tmp_path: Path) -> Path:
    """A folder with packages that have the names of the product's, and end whoever imports them."""
    project = tmp_path / "project"
    for name in ("api", "spark", "replset", "rollback_tools"):
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").write_text(f"raise SystemExit('the {name} of the project was imported')")
    return project


def test_a_folder_with_packages_of_our_names_does_not_hide_the_product(folder: Path, web_project: Path) -> None:
    programs = Path(sys.executable).parent
    up = ("cluster", "up", "--members", "1", "--base-port", str(next_ports(1)[0]), "--dir", str(folder))

    def run(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [programs / program, *arguments],
            cwd=web_project,
            env={**ENVIRONMENT, **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    started = run("replset", *up)
    assert started.returncode == 0, started.stdout + started.stderr
    (member,) = LocalSet.load(folder).members
    assert run("rollback-tools", "list", member.http).returncode == 0
    summary = run("oplog-spark", "summary", str(member.dbpath), "--engine", "spark")
    assert summary.returncode == 0, summary.stderr
    assert run("replset", "cluster", "down", "--dir", str(folder)).returncode == 0
    # PYTHONPATH is the caller's too: what it names must not hide the packages that a member imports.
    shutil.rmtree(web_project / "replset")
    again = run("replset", *up, PYTHONPATH=str(web_project))
    assert again.returncode == 0, again.stdout + again.stderr

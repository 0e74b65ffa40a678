"""Which process is a member's: no other one is signalled, whatever `set.json` says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from replset import local_set
from replset.cli import calls, cluster, host_option, known_hosts
from replset.cli.known_hosts import remember_hosts
from replset.cli.main import main
from replset.config import ReplSetConfig
from replset.errors import HostUnreachableError
from replset.local_set import LocalMember, LocalSet, LocalSetError, wait_until
from replset.processes import lock_holder, start_mark
from replset.storage.disk import RealDisk
from replset.storage.store import lock_dbpath

Capture = pytest.CaptureFixture[str]
HOLD_A_LOCK = (
    "import sys, time\n"
    "from replset.storage.disk import RealDisk\n"
    "from replset.storage.store import lock_dbpath\n"
    "lock = lock_dbpath(RealDisk(), sys.argv[1])\n"
    "print('locked', flush=True)\n"
    "time.sleep(600)\n"
)


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with any set."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait(timeout=20)


def write_set(folder: Path, pid: int, **more: object) -> LocalSet:
    row: dict[str, object] = {
        "name": "m1",
        "port": 1,
        "dbpath": str(folder / "m1"),
        "log": str(folder / "m1.log"),
        "pid": pid,
        "arbiter": False,
        "flags": [],
        **more,
    }
    (folder / "m1").mkdir(exist_ok=True)
    (folder / "set.json").write_text(json.dumps({"name": "rs0", "members": [row]}))
    return LocalSet.load(folder)


def test_a_process_without_the_lock_is_not_signalled_by_the_file_of_an_older_release(
    tmp_path: Path, stranger: subprocess.Popen[bytes], capsys: Capture
) -> None:
    write_set(tmp_path, stranger.pid)
    assert main(["cluster", "status", "--json", "--dir", str(tmp_path)]) == 1
    assert json.loads(capsys.readouterr().out)["members"][0]["state"] == "stopped"
    assert main(["cluster", "down", "--dir", str(tmp_path)]) == 0
    assert "0 members stopped" in capsys.readouterr().out
    assert stranger.poll() is None


def test_a_pid_that_was_given_away_again_is_not_signalled(tmp_path: Path, stranger: subprocess.Popen[bytes]) -> None:
    local = write_set(tmp_path, stranger.pid, started=f"{start_mark(os.getpid())}0")
    (tmp_path / "m1" / "replset.lock").write_text(f"{stranger.pid}\n")
    assert not local.members[0].is_running()
    assert local.stop_all() == []
    assert stranger.poll() is None
    assert local.members[0].pid == 0


def test_a_process_that_holds_no_lock_is_left_alone_and_named(
    tmp_path: Path, stranger: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(local_set, "LOCK_WITHIN_S", 0.0)
    local = write_set(tmp_path, stranger.pid, started=start_mark(stranger.pid))
    with pytest.raises(LocalSetError, match=f"process {stranger.pid} does not hold the lock"):
        local.kill(local.members[0])
    assert main(["cluster", "down", "--dir", str(tmp_path)]) == 1
    assert f"process {stranger.pid} does not hold the lock" in capsys.readouterr().err
    assert stranger.poll() is None


def test_a_member_that_hangs_is_known_by_its_lock_and_its_start(tmp_path: Path) -> None:
    """It answers nobody; it is still this folder's member, and `down` must be able to end it."""
    holder = subprocess.Popen([sys.executable, "-c", HOLD_A_LOCK, str(tmp_path / "m1")], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert (lock_holder(tmp_path / "m1"), lock_holder(tmp_path / "none")) == (holder.pid, 0)
        local = write_set(tmp_path, holder.pid, started=start_mark(holder.pid))
        assert local.members[0].is_running()
        assert local.stop_all() == []
        assert holder.wait(timeout=20) == -15
    finally:
        holder.kill()
        holder.wait(timeout=20)
        holder.stdout.close()


def test_a_member_that_was_started_by_hand_is_not_stopped_but_named(tmp_path: Path) -> None:
    local = write_set(tmp_path, 0)
    lock = lock_dbpath(RealDisk(), tmp_path / "m1")
    assert local.stop_all() == [f"m1 runs as process {os.getpid()}, which was not started here: not stopped"]
    lock.release()
    assert local.stop_all() == []


def test_a_member_that_was_started_by_hand_is_taken_over_where_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_set, "TAKE_OVER_WITHIN_S", 0)
    local = write_set(tmp_path, 0)
    member = local.members[0]
    assert local.take_over(member) == 0
    lock = lock_dbpath(RealDisk(), tmp_path / "m1")
    with pytest.raises(LocalSetError, match=f"process {os.getpid()}, which uses"):
        local.take_over(member)
    assert not member.is_running()
    monkeypatch.setattr(LocalMember, "answering_pid", lambda _: os.getpid())
    assert local.take_over(member) == os.getpid()
    assert LocalSet.load(tmp_path).members[0].is_running()
    lock.release()


def test_what_was_started_by_hand_is_taken_over_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def fail(_: LocalSet, *_more: object) -> None:
        raise LocalSetError("enough")

    monkeypatch.setattr(LocalSet, "take_over", lambda *_: 4711)
    monkeypatch.setattr(LocalSet, "launch", fail)
    with pytest.raises(LocalSetError, match="enough"):
        cluster.bring_up(write_set(tmp_path, 0))
    assert "m1 runs already, started by hand as process 4711" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("hello", "state", "word"),
    [
        ({"isWritablePrimary": True}, 1, "primary"),
        ({"secondary": True}, 2, "secondary"),
        ({"arbiterOnly": True}, 7, "arbiter"),
        ({}, 5, "starting"),
        ({}, 10, "removed"),
    ],
)
def test_the_state_of_a_member_in_one_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hello: dict[str, Any], state: int, word: str
) -> None:
    answers = {"hello": {"ok": 1.0, **hello}, "replSetGetStatus": {"ok": 1.0, "myState": state}}
    monkeypatch.setattr(LocalMember, "answering_pid", lambda member: member.pid)
    monkeypatch.setattr(LocalMember, "is_running", lambda _: True)
    monkeypatch.setattr(LocalMember, "command", lambda _, command: answers[next(iter(command))])
    assert cluster.state_of(write_set(tmp_path, 7).members[0]) == word


@pytest.mark.parametrize(
    ("members", "arbiters", "witnesses", "without_vote"),
    [(3, 0, 0, 0), (7, 0, 0, 0), (8, 0, 0, 1), (50, 0, 0, 43), (6, 2, 1, 2), (1, 6, 0, 0)],
)
def test_at_most_seven_members_of_a_new_set_vote(
    tmp_path: Path, members: int, arbiters: int, witnesses: int, without_vote: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "free_ports", lambda count, base: list(range(base, base + count)))
    local = cluster.planned_set(tmp_path, "rs0", members, arbiters, witnesses, 27017, [], {})
    config = ReplSetConfig.parse(local.first_config())
    assert len(config.voters) == min(7, members + arbiters + witnesses)
    assert [member.votes for member in config.members[:members]] == [1] * (members - without_vote) + [0] * without_vote


def test_more_members_or_voters_than_a_set_has_are_refused(tmp_path: Path) -> None:
    for counts in ((3, 4, 3), (48, 3, 0)):
        with pytest.raises(LocalSetError, match="at most 50 members; at most 7 of them vote"):
            cluster.planned_set(tmp_path, "rs0", *counts, 27017, [], {})
    assert list(tmp_path.iterdir()) == []


def test_options_in_the_environment_that_a_local_set_leaves_out_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    write_set(tmp_path, 0)
    monkeypatch.setenv("REPLSET_OPLOG_SIZE_MB", "20")
    monkeypatch.setenv("REPLSET_HOST", "localhost:1")

    def fail(_: LocalSet) -> None:
        raise LocalSetError("enough")

    monkeypatch.setattr(cluster, "bring_up", fail)
    assert main(["cluster", "up", "--dir", str(tmp_path)]) == 2
    assert "local set: REPLSET_OPLOG_SIZE_MB; see" in capsys.readouterr().err


def test_a_start_mark_is_of_one_process(stranger: subprocess.Popen[bytes]) -> None:
    mark = start_mark(stranger.pid)
    assert mark
    assert mark != start_mark(os.getpid())
    stranger.kill()
    os.waitid(os.P_PID, stranger.pid, os.WEXITED | os.WNOWAIT)
    assert start_mark(stranger.pid) == ""  # it waits for its parent to look
    assert start_mark(0) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the end of a process looks different")
def test_a_process_has_not_ended_while_a_thread_of_it_runs() -> None:
    source = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=[60]).start(); "
    source += "ctypes.CDLL(None).pthread_exit(None)"
    with subprocess.Popen([sys.executable, "-c", source]) as child:
        wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE, 20, "its first thread to end")
        assert start_mark(child.pid)
        child.kill()
        wait_until(lambda: not start_mark(child.pid), 20, "its last thread to end")


@pytest.mark.parametrize(
    "options",
    [
        *(["--members", "3"], ["--arbiters", "1"], ["--name", "other"], ["--base-port", "27117"]),
        *(["--enable-test-commands"], ["--oplog-size-mb", "20"]),
        *(["--election-timeout", "500"], ["--heartbeat-interval", "500"]),
    ],
    ids=lambda options: options[0],
)
def test_options_that_an_existing_set_would_ignore_are_refused(
    tmp_path: Path, options: list[str], capsys: Capture
) -> None:
    local = write_set(tmp_path, 0, flags=["--oplog-size-mb", "10"])
    local.base_port = 1
    local.save()
    assert main(["cluster", "up", "--dir", str(tmp_path), *options]) == 2
    names = {
        "--election-timeout": "settings.electionTimeoutMillis",
        "--heartbeat-interval": "settings.heartbeatIntervalMillis",
    }
    given = " ".join([names.get(options[0], options[0]), *options[1:]])
    assert capsys.readouterr().err.startswith(f"replset: {given}: the set in ")
    assert LocalSet.load(tmp_path).members[0].pid == 0


def test_without_host_the_set_in_the_folder_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert known_hosts.default_host() == "127.0.0.1:27017"
    place = tmp_path / "replset-data"
    place.mkdir()
    write_set(place, 0)
    for command in (["status"], ["conf"], ["remove", "x:1"], ["oplog", "info"], ["step-down"]):
        assert main(command) == 2
        assert capsys.readouterr().err.startswith("replset: 127.0.0.1:1 cannot be reached"), command
    (place / "set.json").write_text("[]")
    assert main(["status"]) == 2
    assert "is not what `cluster up` writes" in capsys.readouterr().err
    for options in (["--host", "127.0.0.1:2"], []):
        assert main(["status", *options]) == 2
        assert capsys.readouterr().err.startswith("replset: 127.0.0.1:2 cannot be reached")
        monkeypatch.setenv("REPLSET_HOST", "127.0.0.1:2")
    monkeypatch.chdir(place)
    (place / "set.json").write_text("{}")  # somebody else's file
    assert known_hosts.default_host() == "127.0.0.1:27017"


class Hosts:
    """Members that answer what is asked of them. asked: who was; silent: who does not answer."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.silent: dict[str, BaseException] = {"gone:1": HostUnreachableError("gone:1 cannot be reached")}
        for module in (calls, host_option):
            patch.setattr(module, "ask", self.ask)

    def ask(self, host: str, command: dict[str, object], *_: object) -> dict[str, Any]:
        self.asked.append(host)
        if host in self.silent:
            raise self.silent[host]
        found = {"hosts": ["m1:1", "m2:1"], "config": {}, "members": []}
        return {**found, "documents": 0, "bytes": 0, "differing": [], "notCompared": []}


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    """And a state of the program, and a current folder, of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return Hosts(monkeypatch)


def test_the_last_host_that_answered_is_remembered_for_the_folder(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert main(["conf", "--host", "m2:1"]) == 0
    assert main(["conf", "--host", "gone:1"]) == 2
    capsys.readouterr()
    hosts.asked.clear()
    assert main(["conf"]) == 0
    assert hosts.asked == ["m2:1"]
    assert capsys.readouterr().err == "replset: asks m2:1, of the last --host in this folder\n"
    assert known_hosts.known_hosts() == ["m2:1", "m1:1"]
    monkeypatch.chdir(tmp_path)
    assert known_hosts.known_hosts() == []
    write_set(tmp_path, 0)
    assert main(["conf", "--host", "m2:1"]) == 0
    assert known_hosts.default_host() == "127.0.0.1:1", "the set in the folder comes first"


def test_what_compares_or_corrects_documents_says_whose_too(hosts: Hosts, capsys: Capture) -> None:
    remember_hosts(["gone:1", "m2:1"])
    assert main(["check"]) == 0
    assert "replset: asks m2:1, of the last --host in this folder\n" in capsys.readouterr().err
    assert main(["check", "--host", "m2:1"]) == 0
    assert "--host" not in capsys.readouterr().err


def test_a_folder_that_is_gone_has_no_hosts(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "here").rmdir()
    assert main(["conf", "--host", "m1:1"]) == 0
    assert main(["conf"]) == 0
    assert known_hosts.default_host() == known_hosts.DEFAULT_HOST


def test_a_command_that_is_done_is_not_undone_by_what_is_asked_to_remember_its_host(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member may not answer any more: Ctrl-C then ends the wait alone."""
    monkeypatch.setattr(calls, "ask", lambda *_: {"config": {}})
    hosts.silent["m1:1"] = KeyboardInterrupt()
    assert main(["conf", "--host", "m1:1"]) == 0
    assert known_hosts.known_hosts() == []

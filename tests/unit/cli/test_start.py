"""`replset start`: what cannot start says why in one line, with status 2, and touches nothing; what starts is small."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

import pytest

from replset.cli import log_writer
from replset.cli.log_writer import LogWriter
from replset.cli.main import main
from replset.cli.start import refuse
from replset.client import WireClient
from replset.config import ReplSetConfig
from replset.local_set import free_ports, wait_until
from replset.storage.disk import RealDisk
from replset.storage.member_file import MemberFile
from replset.storage.store import Store, lock_dbpath
from tests.integration.forked import run_program
from tests.programs import free_port

COMMAND = [sys.executable, "-m", "replset.cli.main", "start", "--replSet", "rs0"]
BARE_ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("REPLSET_")}
HEAVY = ("typer", "rich", "sqlite_utils", "pandas", "numpy", "pydantic.v1", "regex")


@pytest.fixture
def port() -> int:
    return free_port()


def made_dbpath(folder: Path) -> Path:
    """A dbpath as a stopped member leaves it."""
    disk = RealDisk()
    lock = lock_dbpath(disk, str(folder))
    MemberFile.open(disk, str(folder), new_incarnation=lambda: "0123456789abcdef").close()
    Store.open(disk, str(folder)).close()
    lock.release()
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a dbpath but the lock, which names whoever tried last."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "replset.lock"}


def start(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `replset start` where it should refuse."""
    command = COMMAND[2:]
    return run_program(*command, *arguments, environment=environment)


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that a refusal prints."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("replset start: ")
    return lines[0].removeprefix("replset start: ")


@contextmanager
def running(
    dbpath: Path, port: int, *arguments: str, stderr: IO[bytes] | int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[bytes]]:
    """A member as a process, answering; killed at the end if it still runs."""
    command = [*COMMAND, "--dbpath", str(dbpath), "--port", str(port), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr, env=BARE_ENVIRONMENT)

    def answers() -> bool:
        assert process.poll() is None, "the member ended"
        with WireClient(f"127.0.0.1:{port}") as client:
            return client.command("admin", {"ping": 1})["ok"] == 1.0

    try:
        wait_until(answers, 60, "an answer", every_s=0.02)
        yield process
    finally:
        process.kill()
        process.wait(timeout=20)


# --- options, without a process -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--frobnicate"], "unrecognized arguments: --frobnicate (see `replset start --help`)"),
        (["--replSe", "rs0"], "unrecognized arguments: --replSe rs0 (see `replset start --help`)"),
        (["--port"], "argument --port: expected one argument (see `replset start --help`)"),
        (["surplus"], "unrecognized arguments: surplus (see `replset start --help`)"),
        (["--dbpath", "/nowhere"], "--replSet is missing (or REPLSET_REPL_SET, or the file)"),
        (["--dbpath", "/nowhere", "--replSet", "rs0", "--port", "0"], "--port: 0 is not a port (1 to 65535)"),
        (["--dbpath", "/nowhere", "--replSet", "rs0", "--port", "x"], "--port: 'x' is not a whole number"),
        (["--config", "/no/file"], "cannot read the configuration file /no/file: No such file or directory"),
    ],
)
def test_wrong_options_are_one_line_and_status_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("REPLSET_")]:
        monkeypatch.delenv(name)
    try:
        status = main(["start", *arguments])
    except SystemExit as stop:
        status = int(stop.code or 0)
    out, err = capsys.readouterr()
    assert (status, out, err) == (2, "", f"replset start: {words}\n")


# --- what is taken or damaged -------------------------------------------------------------------------------------


def test_what_cannot_start_makes_no_dbpath(tmp_path: Path, port: int) -> None:
    where = ("--dbpath", str(tmp_path / "data"), "--port")
    for taken in (port, port + 1000):
        with closing(socket.create_server(("127.0.0.1", taken))):
            assert refused(start(*where, str(port))) == f"cannot listen on 127.0.0.1:{taken}: Address already in use"
    for options, reason in (
        (["99999"], "--port: 99999 is not a port (1 to 65535)"),
        (
            [str(port), "--bind-ip", "192.0.2.1", "--insecure-members"],
            f"cannot listen on 192.0.2.1:{port}: Cannot assign requested address",
        ),
        *(
            ([str(port), option, "/no/m.log"], f"{option}: /no/m.log cannot be written: No such file or directory")
            for option in ("--log-file", "--audit-log")
        ),
    ):
        assert refused(start(*where, *options)) == reason
    assert not (tmp_path / "data").exists()
    (tmp_path / "data").write_text("a file")
    assert str(tmp_path / "data") in refused(start(*where, str(port)))


def overwrite(dbpath: Path, name: str) -> str:
    (dbpath / name).write_bytes(b"this is no database at all, " * 300)
    return str(dbpath / name)


def exchange(dbpath: Path, name: str) -> str:
    other = "member.db" if name == "replset.db" else "replset.db"
    (dbpath / name).write_bytes((dbpath / other).read_bytes())
    return str(dbpath / name)


def of_another_set(dbpath: Path, name: str) -> str:
    file = MemberFile.open(RealDisk(), dbpath)
    file.save_config(ReplSetConfig.parse({"_id": name, "members": [{"_id": 0, "host": "127.0.0.1:1"}]}))
    file.close()
    return f"{dbpath} belongs to a member of set '{name}', not 'rs0'; see --replSet"


def of_a_newer_release(dbpath: Path, name: str) -> str:
    file = MemberFile.open(RealDisk(), dbpath)
    members = [{"_id": 0, "host": "127.0.0.1:1"}]
    config = ReplSetConfig.parse({"_id": "rs0", "members": members, "featureCompatibilityVersion": name})
    file.save_config(config)
    file.close()
    return f"the set's featureCompatibilityVersion is {name}, and this release knows 1.0 to 1.1: start a newer release"


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        *((overwrite, name) for name in ("replset.db", "member.db")),
        *((exchange, name) for name in ("replset.db", "member.db")),
        (of_another_set, "other"),
        (of_a_newer_release, "1.2"),
    ],
)
def test_a_dbpath_that_does_not_fit_stays_as_it_is(
    tmp_path: Path, port: int, spoil: Callable[[Path, str], str], name: str
) -> None:
    dbpath = made_dbpath(tmp_path / "data")
    words = spoil(dbpath, name)
    before = contents(dbpath)
    assert words in refused(start("--dbpath", str(dbpath), "--port", str(port)))
    assert contents(dbpath) == before


def test_a_refusal_is_a_line_of_its_own_in_the_log(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log's thread writes to standard error too, and could come between the reason and the end of its line."""
    reading, writing = os.pipe()
    monkeypatch.setattr(log_writer, "FLUSH_S", 10.0)
    writer = LogWriter(writing)
    writer.write("a warning of the start")
    assert refuse("no room", writer) == 2
    assert os.read(reading, 1000) == b"a warning of the start\nreplset start: no room\n"
    assert capsys.readouterr() == ("", "")
    os.close(reading)
    os.close(writing)


def test_beyond_loopback_it_needs_a_key_file(tmp_path: Path, port: int) -> None:
    arguments = ("--dbpath", str(tmp_path / "data"), "--port", str(port), "--advertise", "m1")
    reason = refused(start(*arguments, "--bind-ip", "0.0.0.0"))
    assert reason.startswith("--bind-ip: 0.0.0.0 can be reached from other machines")
    key = tmp_path / "key"
    key.write_text("a2V5LWtleQ==")
    key.chmod(0o644)
    reason = refused(start(*arguments, environment={"REPLSET_KEY_FILE": str(key)}))
    assert reason == f"key file {key}: others than its owner may use it (chmod 600 {key})"
    key.chmod(0o600)
    key.write_text("-- no")
    keyed = (*arguments, "--bind-ip", "0.0.0.0", "--key-file", str(key))
    assert "give all members --auth" in refused(start(*keyed))
    assert refused(start(*keyed, "--insecure-clients")).startswith(f"key file {key}: ")
    assert not (tmp_path / "data").exists()


def test_an_insecure_member_says_so_at_its_start_and_in_its_status(tmp_path: Path, port: int) -> None:
    log = tmp_path / "log"
    with log.open("wb") as out, running(tmp_path / "data", port, "--insecure-members", stderr=out):
        wait_until(
            lambda: "anybody who reaches the wire port can act as a member" in log.read_text(), 20, "the warning"
        )
        with WireClient(f"127.0.0.1:{port}") as client:
            (line,) = client.command("admin", {"getLog": "startupWarnings"})["log"]
            assert "--insecure-members" in line
            assert client.command("admin", {"replSetInitiate": {}})["ok"] == 1.0
            assert "--insecure-members" in client.command("admin", {"replSetGetStatus": 1})["startupWarnings"][0]
        assert main(["status", "--host", f"127.0.0.1:{port}"]) == 0


# --- what starts --------------------------------------------------------------------------------------------------


def test_a_second_member_on_the_same_dbpath_is_refused_and_the_first_goes_on(tmp_path: Path, port: int) -> None:
    dbpath = tmp_path / "data"
    second = free_ports(1, port + 1)[0]
    with running(dbpath, port) as first:
        reason = refused(start("--dbpath", str(dbpath), "--port", str(second)))
        assert reason == f"another process (pid {first.pid}) holds the data folder {dbpath}"
        with WireClient(f"127.0.0.1:{port}") as client:
            assert client.command("admin", {"ping": 1})["ok"] == 1.0
        first.send_signal(signal.SIGTERM)
        assert first.wait(timeout=20) == 0


@pytest.mark.in_turns
def test_options_from_the_environment_alone(tmp_path: Path, port: int) -> None:
    environment = {"REPL_SET": "from-environment", "DBPATH": str(tmp_path / "data"), "PORT": str(port)}
    environment = {f"REPLSET_{name}": value for name, value in environment.items()}
    command = [sys.executable, "-m", "replset.cli.main", "start"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, env=BARE_ENVIRONMENT | environment, **pipes) as process:
        try:
            assert process.stdout is not None
            line = f"replset from-environment: wire 127.0.0.1:{port}, http http://127.0.0.1:{port + 1000}\n"
            assert process.stdout.readline() == line
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 0
        finally:
            process.kill()


@pytest.mark.in_turns
def test_a_member_on_a_made_schema_carries_no_tools(tmp_path: Path, port: int) -> None:
    """132 MB against 46: what only tools need is not imported by a server."""
    dbpath = made_dbpath(tmp_path / "data")
    code = (
        "import json, os, signal, socket, sys, threading, time\n"
        "from replset.cli.main import main\n"
        "def end_it():\n"
        f"    while socket.socket().connect_ex(('127.0.0.1', {port})):\n"
        "        time.sleep(0.05)\n"
        "    while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:\n"
        "        time.sleep(0.05)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "threading.Thread(target=end_it, daemon=True).start()\n"
        f"status = main(['start', '--replSet', 'rs0', '--dbpath', {str(dbpath)!r}, '--port', '{port}'])\n"
        f"print(json.dumps([status, [name for name in {HEAVY!r} if name in sys.modules]]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=BARE_ENVIRONMENT
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [0, []]


@pytest.mark.in_turns
def test_the_log_goes_to_a_file_as_json_and_follows_a_rename(tmp_path: Path, port: int) -> None:
    path, renamed = tmp_path / "m.log", tmp_path / "m.log.1"
    log = ("--log-file", str(path), "--log-format", "json")
    with running(tmp_path / "data", port, *log) as process:
        wait_until(lambda: f"wire 127.0.0.1:{port}" in path.read_text(), 20, "the first lines")
        path.rename(renamed)
        process.send_signal(signal.SIGUSR1)
        wait_until(lambda: path.exists() and "goes on in" in path.read_text(), 20, "the new file")
        process.terminate()
        assert process.wait(timeout=30) == 0
    before = [json.loads(line) for line in renamed.read_text().splitlines()]
    assert all(row["t"] for row in before)
    assert any(f"in no set yet: `replset initiate --host 127.0.0.1:{port}`" in row["msg"] for row in before)
    after = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["msg"] for row in after] == [
        f"the log goes on in {path}",
        "a signal asks this member to stop",
        "stopped: all is on disk",
    ]
    assert {row["s"] for row in after} == {"I"}

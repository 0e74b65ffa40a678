"""`replset start`: what cannot start says why in one line, with status 2, and touches nothing; what starts is small."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

import pytest

from replset.cli.local_set import free_ports, wait_until
from replset.cli.main import main
from replset.cli.start import refuse
from replset.client import WireClient
from replset.config import ReplSetConfig
from replset.errors import ReplError
from replset.runtime.process import log_writer
from replset.runtime.process.log_writer import LogWriter
from replset.storage.disk import RealDisk
from replset.storage.member_file import MemberFile
from replset.storage.store import Store, lock_dbpath
from tests.integration.forked import run_program

COMMAND = [sys.executable, "-m", "replset.cli.main", "start", "--replSet", "rs0"]
BARE_ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("REPLSET_")}
HEAVY = ("typer", "rich", "sqlite_utils", "pandas", "numpy")


@pytest.fixture
def port() -> int:
    return free_ports(1, 31000 + os.getpid() % 1000 * 4)[0]


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
    try:
        while True:
            try:
                with WireClient(f"127.0.0.1:{port}") as client:
                    assert client.command("admin", {"ping": 1})["ok"] == 1.0
                break
            except ReplError:
                assert process.poll() is None, "the member ended"
                time.sleep(0.02)
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


def test_help_lists_every_option_with_its_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["start", "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    for text in ("--replSet NAME", "--http-port PORT", "[REPLSET_HTTP_PORT]", "--enable-test-commands", "--config"):
        assert text in out


# --- what is taken or damaged -------------------------------------------------------------------------------------


def test_an_option_that_cannot_be_leaves_no_dbpath(tmp_path: Path) -> None:
    done = start("--dbpath", str(tmp_path / "data"), "--port", "99999")
    assert refused(done) == "--port: 99999 is not a port (1 to 65535)"
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("which", ["wire", "http"])
def test_a_port_in_use(tmp_path: Path, port: int, which: str) -> None:
    taken = port if which == "wire" else port + 1000
    with closing(socket.create_server(("127.0.0.1", taken))):
        done = start("--dbpath", str(tmp_path / "data"), "--port", str(port))
    assert refused(done) == f"cannot listen on 127.0.0.1:{taken}: Address already in use"
    assert not (tmp_path / "data").exists()


def test_a_dbpath_that_another_process_holds(tmp_path: Path, port: int) -> None:
    dbpath = made_dbpath(tmp_path / "data")
    before = contents(dbpath)
    lock = lock_dbpath(RealDisk(), str(dbpath))
    try:
        done = start("--dbpath", str(dbpath), "--port", str(port))
    finally:
        lock.release()
    assert refused(done) == f"another process (pid {os.getpid()}) holds the data folder {dbpath}"
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


def test_a_dbpath_of_another_set(tmp_path: Path, port: int) -> None:
    dbpath = made_dbpath(tmp_path / "data")
    file = MemberFile.open(RealDisk(), dbpath)
    file.save_config(ReplSetConfig.parse({"_id": "other", "members": [{"_id": 0, "host": f"127.0.0.1:{port}"}]}))
    file.close()
    before = contents(dbpath)
    reason = refused(start("--dbpath", str(dbpath), "--port", str(port)))
    assert reason == f"{dbpath} belongs to a member of set 'other', not 'rs0'; see --replSet"
    assert contents(dbpath) == before


@pytest.mark.parametrize("file", ["replset.db", "member.db"])
@pytest.mark.parametrize("damage", ["overwritten", "foreign"])
def test_a_damaged_file(tmp_path: Path, port: int, file: str, damage: str) -> None:
    dbpath = made_dbpath(tmp_path / "data")
    path = dbpath / file
    if damage == "overwritten":
        path.write_bytes(b"this is no database at all, " * 300)
    else:
        other = dbpath / ("member.db" if file == "replset.db" else "replset.db")
        path.write_bytes(other.read_bytes())
    before = contents(dbpath)
    reason = refused(start("--dbpath", str(dbpath), "--port", str(port)))
    assert str(path) in reason
    assert contents(dbpath) == before


def test_a_dbpath_that_is_a_file(tmp_path: Path, port: int) -> None:
    path = tmp_path / "data"
    path.write_text("x")
    assert str(path) in refused(start("--dbpath", str(path), "--port", str(port)))


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


def test_an_address_that_is_not_this_machine_s(tmp_path: Path, port: int) -> None:
    nowhere = ("--bind-ip", "192.0.2.1", "--insecure-members")
    done = start("--dbpath", str(tmp_path / "data"), "--port", str(port), *nowhere)
    assert refused(done) == f"cannot listen on 192.0.2.1:{port}: Cannot assign requested address"
    assert not (tmp_path / "data").exists()


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


def test_options_from_the_environment_alone(tmp_path: Path, port: int) -> None:
    environment = {
        "REPLSET_REPL_SET": "from-environment",
        "REPLSET_DBPATH": str(tmp_path / "data"),
        "REPLSET_PORT": str(port),
        "REPLSET_HTTP_PORT": str(port + 1000),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "replset.cli.main", "start"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=BARE_ENVIRONMENT | environment,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        assert line == f"replset from-environment: wire 127.0.0.1:{port}, http http://127.0.0.1:{port + 1000}\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
        process.stdout.close()
    finally:
        process.kill()
        process.wait(timeout=20)


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


def wait_for_line(path: Path, text: str) -> None:
    deadline = time.monotonic() + 20
    while not path.exists() or text not in path.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_log_goes_to_a_file_as_json_and_follows_a_rename(tmp_path: Path, port: int) -> None:
    path, renamed = tmp_path / "m.log", tmp_path / "m.log.1"
    log = ("--log-file", str(path), "--log-format", "json")
    with running(tmp_path / "data", port, *log) as process:
        wait_for_line(path, f"wire 127.0.0.1:{port}")
        path.rename(renamed)
        process.send_signal(signal.SIGUSR1)
        wait_for_line(path, "goes on in")
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


@pytest.mark.parametrize("option", ["--log-file", "--audit-log"])
def test_a_log_file_that_cannot_be_written(tmp_path: Path, port: int, option: str) -> None:
    path = tmp_path / "no" / "m.log"
    reason = refused(start("--dbpath", str(tmp_path / "data"), "--port", str(port), option, str(path)))
    assert reason == f"{option}: {path} cannot be written: No such file or directory"
    assert not (tmp_path / "data").exists()

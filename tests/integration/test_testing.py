"""A set for other people's tests: the page's examples, what a test does to a set, and that all of it ends."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from replset.bson import decode
from replset.local_set import LocalSetError, free_ports, wait_until
from replset.own_process import command_of
from replset.pytest_plugin import _number
from replset.testing import AsyncReplicaSet, ReplicaSet, replica_set
from tests.integration.clients.install import installed, node
from tests.integration.forked import ForkedSet

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
EXAMPLES: dict[str, str] = dict(re.findall(r"`(\S+)`:\n```\w+\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
WITHIN_S = 240
REPLSET = [sys.executable, "-m", "replset.cli.main"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Somebody's project. It has packages of the same names as ours."""
    for name in ("api", "spark", "tests"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("mine = True\n")
    for name, text in EXAMPLES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def run(project: Path, *command: str) -> str:
    """What it prints. It has to exit with 0."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, check=False, timeout=WITHIN_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pytest_in(project: Path, *arguments: str) -> str:
    return run(project, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments)


@pytest.mark.in_turns
def test_the_suite_of_the_page_passes(project: Path) -> None:
    (project / "test_names.py").write_text(
        "import api, spark, tests\ndef test_it():\n    assert api.mine and spark.mine\n"
    )
    assert "5 passed" in pytest_in(project, "test_orders.py", "test_names.py")


@pytest.mark.in_turns(together="examples")
def test_the_outbox_and_the_retries_of_the_page_pass(project: Path) -> None:
    assert "2 passed" in pytest_in(project, "test_outbox.py", "test_retries.py")


@pytest.mark.in_turns(together="examples")
def test_the_example_with_beanie_runs(project: Path) -> None:
    assert run(project, sys.executable, "orders_beanie.py") == "two orders\n"


@pytest.mark.in_turns(together="examples")
def test_the_example_with_mongoose_runs(project: Path) -> None:
    (project / "node_modules").symlink_to(installed() / "node_modules")
    said = run(project, *REPLSET, "test", "--members", "3", "--", str(node()), "--test", "orders.test.mjs")
    assert re.search(r"pass 1\b", said)


def test_every_example_is_run() -> None:
    names = {"test_orders.py", "orders_beanie.py", "orders.test.mjs", "test_outbox.py", "test_retries.py"}
    assert set(EXAMPLES) == names


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sets of this process start faster. Those of the page's examples and of the commands start as a user's do."""
    monkeypatch.setattr(replica_set, "LocalSet", ForkedSet)


def states(running: ReplicaSet) -> dict[str, str]:
    reply: Any = running.command({"replSetGetStatus": 1})
    return {row["name"]: row["stateStr"] for row in reply["members"]}


@pytest.mark.usefixtures("forked")
def test_what_a_test_asks_for_happens() -> None:
    with ReplicaSet(2, arbiters=1) as running:
        first = running.primary
        (other,) = running.secondaries
        assert running.http == first.http
        assert [member.arbiter for member in running.members] == [False, False, True]
        assert running.members[2].host not in running.uri
        lost = running.roll_back({"shop.orders": [{"_id": 1}, {"_id": 2}]})
        assert lost.member is first
        (file,) = [file for file in lost.files if file.name.startswith("shop.orders.")]
        data, ids = file.read_bytes(), []
        while data:
            size = int.from_bytes(data[:4], "little")
            ids.append(decode(data[:size])["_id"])
            data = data[size:]
        assert sorted(ids) == [1, 2]
        assert running.command({"count": "orders"}, "shop")["n"] == 0
        assert running.primary is other
        assert running.step_down() is first
        running.pause(first)
        assert running.primary is other, "after an election timeout"
        running.heal()
        running.wait_until(lambda: states(running)[first.host] == "SECONDARY", "the member that hung")
        assert running.kill_primary() is other
        assert running.primary is first
        with pytest.raises(LocalSetError, match=r"m\d runs"):
            running.restart(first)
        running.restart(other)
        assert set(states(running).values()) == {"PRIMARY", "SECONDARY", "ARBITER"}
        running.cut(first, other)
        command = {"insert": "c", "documents": [{}], "writeConcern": {"w": 2, "wtimeout": 100}}
        assert "writeConcernError" in first.command(command, "shop")
        with pytest.raises(LocalSetError, match=r"waited 0\.2 s for nothing"):
            running.wait_until(lambda: False, "nothing", 0.2)


@pytest.mark.usefixtures("forked")
def test_a_set_of_one_can_lose_nothing_to_another() -> None:
    with ReplicaSet() as running:
        with pytest.raises(LocalSetError, match="three members, or two and an arbiter"):
            running.roll_back({"shop.orders": [{"_id": 1}]})
        with pytest.raises(LocalSetError, match="did not step down"):
            running.step_down()
        assert running.secondaries == ()
        with pytest.raises(LocalSetError, match="runs already"):
            running.start()
    with pytest.raises(LocalSetError, match="does not run"):
        _ = running.uri


@pytest.mark.usefixtures("forked")
def test_asyncio_has_the_same() -> None:
    async def work() -> None:
        async with AsyncReplicaSet() as running:
            (member,) = running.members
            assert await running.primary() is member
            assert await running.http() == member.http
            assert await running.secondaries() == ()
            assert (await running.command({"ping": 1}))["ok"] == 1.0
            await running.pause(member)
            await running.heal()
            assert await running.kill_primary() is member
            await running.restart(member)
            assert await running.wait_until(member.is_running)

    asyncio.run(work())
    missing = {name for name in vars(ReplicaSet) if not name.startswith("_")} - set(vars(AsyncReplicaSet))
    assert not missing


@pytest.mark.usefixtures("forked")
def test_a_port_that_somebody_takes_meanwhile_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        given = [[taken.getsockname()[1]]]

        def ports(count: int, base: int) -> list[int]:
            return given.pop() if given else free_ports(count, base)

        monkeypatch.setattr(replica_set, "free_ports", ports)
        monkeypatch.setattr(replica_set.tempfile, "mkdtemp", lambda **_: str(tmp_path / f"set{len(given)}"))
        with ReplicaSet() as running:
            assert running.primary.port != taken.getsockname()[1]
        assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("forked")
def test_a_folder_of_ones_own_stays_and_has_to_be_empty(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    with ReplicaSet(folder=folder) as running:
        assert running.primary.dbpath == folder / "m1"
    assert (folder / "m1.log").exists()
    with pytest.raises(LocalSetError, match="is not empty"), ReplicaSet(folder=folder):
        pass


HELD = """
import sys, time
from replset.testing import ReplicaSet
with ReplicaSet() as running:
    running.pause(running.primary)
    print(running.members[0].pid, running.members[0].dbpath.parent, flush=True)
    time.sleep(600)
"""


def test_all_ends_with_a_test_that_is_killed() -> None:
    """Its member is stopped, too, so that it could not end by itself."""
    with subprocess.Popen([sys.executable, "-c", HELD], stdout=subprocess.PIPE, text=True) as test:
        assert test.stdout is not None
        pid, folder = test.stdout.readline().split()
        assert psutil.pid_exists(int(pid))
        test.send_signal(signal.SIGKILL)
        test.wait()
        wait_until(lambda: not psutil.pid_exists(int(pid)), 30, "the member to end")
        wait_until(lambda: not Path(folder).exists(), 30, "its files to be removed")


def test_the_guard_leaves_other_processes_alone(tmp_path: Path) -> None:
    """One that had ended before its start was looked at, and one whose pid is another process's now."""
    folder = tmp_path / "set"
    folder.mkdir()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as other:
        given = f"{other.pid} \n{other.pid} of:another\n"
        command = command_of("replset.testing.guard", str(folder))
        subprocess.run(command, input=given, text=True, check=True, timeout=WITHIN_S)
        assert other.poll() is None
        assert not folder.exists()
        other.kill()


@pytest.mark.usefixtures("forked")
def test_all_ends_though_the_guard_does_not() -> None:
    running = ReplicaSet()
    running.start()
    member, guard = running.members[0], running._guard
    assert guard is not None
    guard.kill()
    pid = member.pid
    running.stop()
    assert not psutil.pid_exists(pid)


@pytest.mark.in_turns
def test_the_fixtures_take_the_set_that_is_given(project: Path) -> None:
    (project / "test_given.py").write_text(
        "def test_uri(replica_set_uri, fresh_database):\n"
        "    assert replica_set_uri == 'mongodb://127.0.0.1:1/' and fresh_database.startswith('test_')\n"
        "def test_set(replica_set):\n    assert False\n"
    )
    said = pytest_in(project, "test_given.py", "--replica-set-uri", "mongodb://127.0.0.1:1/")
    assert "1 passed, 1 skipped" in said


@pytest.mark.in_turns
def test_the_fixtures_take_the_numbers_of_the_ini_file(project: Path) -> None:
    (project / "pytest.ini").write_text("[pytest]\nreplica_set_members = 2\nreplica_set_arbiters = 0\n")
    (project / "test_number.py").write_text(
        "def test_members(replica_set):\n    assert len(replica_set.members) == 2\n"
        "def test_first(replica_set, fresh_database):\n"
        "    replica_set.command({'insert': 'c', 'documents': [{}]}, fresh_database)\n"
        "def test_second(replica_set, fresh_database):\n"
        "    names = [row['name'] for row in replica_set.command({'listDatabases': 1})['databases']]\n"
        "    assert not [name for name in names if name.startswith('test_')]\n"
    )
    assert "3 passed" in pytest_in(project, "test_number.py")


def test_an_option_overrides_the_number_of_the_ini_file() -> None:
    def number(option: int | None, ini: str) -> int:
        config: Any = SimpleNamespace(getoption={"--members": option}.get, getini={"members": ini}.get)
        return _number(config, "--members", "members")

    assert [number(None, "3"), number(2, "many"), number(0, "3")] == [3, 2, 0]
    with pytest.raises(pytest.UsageError, match="members is no number: 'many'"):
        number(None, "many")


def test_a_command_gets_the_uri_and_gives_its_status() -> None:
    script = "import os, sys; print(os.environ['MONGODB_URI']); sys.exit(7)"
    done = subprocess.run(
        [*REPLSET, "test", "--", sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 7, done.stderr
    assert done.stdout.startswith("mongodb://127.0.0.1:")
    wrong = subprocess.run([*REPLSET, "test", "--", "/no/such"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stderr) == (2, "replset: /no/such: No such file or directory\n")


@pytest.mark.in_turns
@pytest.mark.parametrize(("how", "status"), [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, 9)])
def test_a_signal_reaches_the_command_and_the_set_ends(how: signal.Signals, status: int) -> None:
    script = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(9))\n"
        "print(os.environ['MONGODB_URI'].split(':')[2].split('/')[0], flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [*REPLSET, "test", "--", sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as running:
        assert running.stdout is not None
        port = int(running.stdout.readline())
        if how is signal.SIGINT:
            os.killpg(running.pid, how)  # as a terminal does
        else:
            running.send_signal(how)
        assert running.wait(WITHIN_S) == status
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port))

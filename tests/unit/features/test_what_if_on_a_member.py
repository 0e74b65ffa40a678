"""replSetWhatIf on whole members: it answers as the command line, and plays in a process that ends with who asked."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from replset.cli import calls
from replset.cli.calls import CommandFailedError
from replset.cli.main import main
from replset.errors import ErrorCode, HostUnreachableError, ReplError
from replset.features.what_if import plays
from replset.features.what_if.plays import Plays, _Process
from tests.rig import Rig, a_set


@pytest.fixture
def three() -> Iterator[Rig]:
    with a_set(3) as rig:
        yield rig


def asked(deed: str = "kill", host: str = "a:27017", **more: object) -> dict[str, object]:
    return {"replSetWhatIf": 1, "deed": deed, "host": host, "plays": 2, **more}


def by_command_line(rig: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    def ask(host: str, command: dict[str, Any], timeout_s: float = 30.0, *, database: str = "admin") -> Any:
        name = host.partition(":")[0]
        if rig.cluster.machines[name].running is None:
            raise HostUnreachableError(f"{host} is away")
        reply = rig.client(name).run(command, database)
        if reply["ok"] != 1:
            raise CommandFailedError(reply["errmsg"], code=reply["code"])
        return reply

    monkeypatch.setattr(calls, "ask", ask)
    assert main(["what-if", *words, "--plays", "2"]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.in_turns
def test_the_answer_is_that_of_the_command_line(
    three: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    three.client().ok({"insert": "c", "documents": [{"_id": 1}], "writeConcern": {"w": 3}})
    three.wait(5)
    before = three.client().ok({"replSetGetConfig": 1}, "admin")["config"]
    for deed, host in (("kill", "a"), ("stop", "a"), ("cut", "b"), ("lose-disk", "c"), ("remove", "b")):
        reply = three.client("b").ok(asked(deed, f"{host}:27017"), "admin")
        said = by_command_line(three, monkeypatch, capsys, deed, f"{host}:27017", "--host", "b:27017")
        assert reply["text"] == said
        assert (reply["plays"], reply["unreachable"], reply["uncommittedWrites"]) == (2, {}, 0)
    three.wait(5)
    assert three.client().ok({"replSetGetConfig": 1}, "admin")["config"] == before
    assert three.cluster.primary() == "a"


@pytest.mark.in_turns
def test_who_is_down_is_named_and_counts_as_down(
    three: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    three.cluster.kill("c")
    three.wait(15)
    reply = three.client("b").ok(asked(), "admin")
    assert (list(reply["unreachable"]), reply["primary"]) == (["c:27017"], None)
    assert reply["text"] == by_command_line(three, monkeypatch, capsys, "kill", "a:27017", "--host", "b:27017")
    assert three.client().run(asked("kill", "c:27017"), "admin")["errmsg"] == "c:27017 is not reachable already"


def test_an_arbiter_answers_too() -> None:
    with a_set(2, arbiters=1) as rig:
        arbiter = next(name for name, each in rig.cluster.machines.items() if each.running and name not in "ab")
        assert rig.client(arbiter).ok(asked(), "admin")["primary"] == "b:27017"


def test_what_cannot_be_is_refused(three: Rig) -> None:
    client = three.client()
    assert client.code(asked(host="d:27017"), "admin") == ErrorCode.NODE_NOT_FOUND
    assert client.code(asked(host="a:0"), "admin") == ErrorCode.BAD_VALUE
    assert client.code(asked("reconfig"), "admin") == ErrorCode.BAD_VALUE
    assert client.code(asked("remove", "a:27017"), "admin") == ErrorCode.BAD_VALUE
    assert client.code(asked(plays=101), "admin") == ErrorCode.NUMBER_OUT_OF_RANGE


def test_without_a_set_there_is_nothing_to_play() -> None:
    with a_set(initiates=False) as rig:
        assert rig.client().code(asked(), "admin") == ErrorCode.NOT_YET_INITIALIZED


class Threads:
    """Runs work in a thread that nobody waits for, once its process is there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self.threads: list[threading.Thread] = []
        self._started = threading.Event()
        self._start: Callable[..., Any] = subprocess.Popen
        monkeypatch.setattr(subprocess, "Popen", self._noted)

    def _noted(self, _command: list[str], **options: Any) -> Any:
        self.processes.append(self._start(["sleep", "600"], **options))
        self._started.set()
        return self.processes[-1]

    async def run(self, work: Callable[[], object]) -> object:
        def until_ended() -> None:
            with suppress(ReplError):
                work()

        self.threads.append(threading.Thread(target=until_ended))
        self.threads[-1].start()
        self._started.wait()
        return await asyncio.get_running_loop().create_future()

    def statuses(self) -> list[int | None]:
        """Of the processes, when their threads have ended too."""
        for thread in self.threads:
            thread.join()
        return [process.returncode for process in self.processes]


@pytest.fixture
def hanging(three: Rig, monkeypatch: pytest.MonkeyPatch) -> Threads:
    """The plays of the primary do not end by themselves."""
    threads = Threads(monkeypatch)
    monkeypatch.setattr(three.member()[Plays], "_workers", threads)
    return threads


def test_one_is_played_at_a_time_and_ends_with_its_client(three: Rig, hanging: Threads) -> None:
    first = three.client().begin(asked(), "admin")
    three.until(lambda: bool(hanging.processes))
    assert three.client().code(asked(maxTimeMS=500), "admin") == ErrorCode.MAX_TIME_EXPIRED
    assert len(hanging.processes) == 1
    second = three.client().begin(asked(), "admin")
    three.client().ok({"replSetGetStatus": 1}, "admin")
    first.cancel()
    three.until(lambda: len(hanging.processes) == 2)
    second.cancel()
    three.turn()
    assert hanging.statuses() == [-9, -9]


@pytest.mark.parametrize("more", [{}, {"maxTimeMS": 500}])
def test_plays_that_take_too_long_are_ended(three: Rig, hanging: Threads, more: dict[str, Any]) -> None:
    assert three.client().code(asked(**more), "admin") == ErrorCode.MAX_TIME_EXPIRED
    assert hanging.statuses() == [-9]


def test_a_stop_of_the_member_ends_them(three: Rig, hanging: Threads) -> None:
    three.client().begin(asked(), "admin")
    three.until(lambda: bool(hanging.processes))
    three.cluster.run(three.cluster.stop("a"))
    assert hanging.statuses() == [-9]


def test_plays_that_nobody_waits_for_any_more_are_ended_at_once() -> None:
    process = _Process()
    process.end()
    with pytest.raises(ReplError, match="status -9"):
        process.run(b"")


@pytest.mark.parametrize("command", [["false"], ["/no/such/program"]])
def test_a_process_that_fails_is_an_answer(three: Rig, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plays, "command_of", lambda _: command)
    assert three.client().code(asked(), "admin") == ErrorCode.OPERATION_FAILED
    monkeypatch.undo()
    assert three.client().ok(asked(), "admin")["plays"] == 2

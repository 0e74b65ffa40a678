"""`replset status` says on one screen who leads and why, what majority writes wait for, and works while one answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import RenderableType

from replset.bson import DateTime, Int64, Timestamp
from replset.cli import calls, status
from replset.cli.main import main
from replset.cli.status import role_of
from replset.errors import HostUnreachableError
from replset.terminal import console

NOW = 1_795_387_446_000
POINT = {"ts": Timestamp(NOW // 1000 - 10, 1), "t": Int64(2)}
Capture = pytest.CaptureFixture[str]


def reply(own: int = 0, primary: int | None = 0, **more: Any) -> dict[str, Any]:
    rows = []
    for number in range(3):
        row: dict[str, Any] = {"_id": number, "name": f"m{number}:1", "stateStr": "SECONDARY", "health": 1.0}
        row |= {"counted": True, "optime": POINT, "optimeDate": DateTime(NOW - 1_500 * number)}
        row |= {"entriesBehind": Int64(500 * number), "lastHeartbeat": DateTime(NOW - 61_000)}
        if number == primary:
            row |= {"stateStr": "PRIMARY", "electionDate": DateTime(NOW - 3_700_000)}
        if number == own:
            row["self"] = True
        rows.append(row)
    rows[2] |= {"stateStr": "(not reachable/healthy)", "syncSourceHost": "m0:1", "health": 0.0, "counted": False}
    document = {"set": "rs0", "term": Int64(2), "date": DateTime(NOW), "members": rows}
    return {**document, "optimes": {"lastCommittedOpTime": POINT}, **more}


ON_THE_PRIMARY = {
    "electionCandidateMetrics": {"lastElectionReason": "priorityTakeover"},
    "blocking": "a majority write needs 2 copies; not there yet: m1:1 (SECONDARY)",
    "blockingSince": DateTime(NOW - 12_000),
    "following": {"setName": "site1", "lagSecs": 7, "error": ""},
    "remarks": [{"why": "m2:1 falls off the oplog", "next": "start it again"}],
}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """The members that answer, by their host; the set of this folder has three."""
    found: dict[str, dict[str, Any]] = {}

    def ask(host: str, command: dict[str, Any], timeout_s: float = 30.0, database: str = "admin") -> dict[str, Any]:
        if host not in found:
            raise HostUnreachableError(f"{host} cannot be reached")
        hidden = {"host": "m1:1", "hidden": True, "priority": 0}
        return {"config": {"members": [hidden]}} if "replSetGetConfig" in command else found[host]

    monkeypatch.setattr(calls, "ask", ask)
    monkeypatch.setattr(calls, "known_hosts", lambda: ["m0:1", "m1:1", "m2:1"])
    return found


def shown(capsys: Capture, *arguments: str) -> str:
    assert main(["status", *arguments]) == 0
    return capsys.readouterr().out


def test_what_only_the_primary_knows_is_asked_of_it(answers: dict[str, Any], capsys: Capture) -> None:
    answers |= {"m1:1": reply(1), "m0:1": reply(0, **ON_THE_PRIMARY)}
    text = shown(capsys, "--host", "m1:1")
    assert text.startswith("rs0, term 2, as m1:1 sees it at 2026-11-22")
    assert "primary: m0:1 since 2026-11-22" in text
    assert "(1 h 1 min): its priority is higher than the primary's was (priorityTakeover)" in text
    assert "MAJORITY WRITES WAIT for 12 s, since 2026-11-22" in text
    assert "not there yet: m1:1" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["m1:1", "SECONDARY", "1.5", "s", "500", "-", "-"] in rows
    assert ["m2:1", "DOWN", "3.0", "s", "1000+", "-", "1", "min", "1", "s"] in rows
    assert "m1:1: hidden, priority 0" in text
    assert "m2:1 falls off the oplog\n  next: start it again" in text
    assert "follows site1: its newest entry that came is 7 s old" in text


def test_the_first_member_that_answers_is_enough(answers: dict[str, Any], capsys: Capture) -> None:
    why = "no primary: an election takes 2 of 3 votes, and only 1 voter can be reached from m2:1"
    answers["m2:1"] = reply(2, None, remarks=[{"why": why, "next": "start these members again"}])
    text = shown(capsys)
    assert "NO PRIMARY: writes are refused" in text
    assert f"{why}\n  next: start these members again" in text


def test_a_member_that_was_removed_shows_that(answers: dict[str, Any], capsys: Capture) -> None:
    row = {"_id": -1, "name": "m0:1", "stateStr": "REMOVED", "health": 1.0, "self": True, "counted": False}
    answers["m0:1"] = {**reply(), "members": [row]}
    screen = shown(capsys, "--host", "m0:1")
    assert "as m0:1 sees it" in screen
    assert "NO PRIMARY" not in screen
    assert "REMOVED" in next(line for line in screen.splitlines() if line.startswith("m0:1 "))


def test_why_is_asked_of_the_first_member_that_answers(answers: dict[str, Any], capsys: Capture) -> None:
    answers["m2:1"] = {**reply(2), "elections": []}
    assert main(["why"]) == 0
    assert capsys.readouterr().out.startswith("m0:1 is primary of term 2")


def test_nobody_answers(answers: dict[str, Any], capsys: Capture) -> None:
    assert main(["status"]) == 2
    assert "no member answers: m0:1 cannot be reached; m1:1 cannot be reached" in capsys.readouterr().err


def test_watching_goes_on_while_nobody_answers(
    answers: dict[str, Any], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    screens: list[str] = []

    class Recorder:
        """Takes the place of rich's Live."""

        def __init__(self, **_: object) -> None: ...
        def __enter__(self) -> Recorder:
            return self

        def __exit__(self, *_: object) -> None: ...
        def update(self, shown: RenderableType, *, refresh: bool) -> None:
            with console().capture() as found:
                console().print(shown)
            screens.append(str(shown) + found.get())

    def pause(_: float) -> None:
        answers["m0:1"] = reply()
        if len(screens) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(status, "Live", Recorder)
    monkeypatch.setattr(status.time, "sleep", pause)
    assert main(["status", "--watch"]) == 130
    assert len(screens) == 2
    assert "no member answers" in screens[0]


def test_without_a_set_in_this_folder_it_says_how_to_name_a_member(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(calls, "DEFAULT_HOST", "127.0.0.1:1")
    monkeypatch.delenv("REPLSET_HOST", raising=False)
    assert main(["status"]) == 2
    assert capsys.readouterr().err.endswith(
        "127.0.0.1:1 cannot be reached: Connection refused; --host HOST:PORT or REPLSET_HOST names another member\n"
    )


@pytest.mark.parametrize(
    ("row", "role"),
    [
        ({"priority": 1, "votes": 1}, ""),
        ({"priority": 0, "arbiterOnly": True}, ""),
        ({"priority": 0, "witness": True}, "witness"),
        (
            {"priority": 0, "votes": 0, "hidden": True, "secondaryDelaySecs": 9, "buildIndexes": False},
            "hidden, 9 s delayed, without indexes, priority 0, no vote",
        ),
        ({"priority": 2.5}, "priority 2.5"),
    ],
)
def test_roles(row: dict[str, Any], role: str) -> None:
    assert role_of(row) == role

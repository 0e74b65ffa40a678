"""`replset step-down`: its own flags are named, and a short period shortens the wait. `replset step-up`."""

from __future__ import annotations

from typing import Any

import pytest

from replset.cli import calls
from replset.cli.main import main


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    commands: list[dict[str, Any]] = []

    def ask(host: str, command: dict[str, Any], timeout_s: float = 30.0, database: str = "admin") -> dict[str, Any]:
        commands.append(command)
        return {"primary": "m0:1"}

    monkeypatch.setattr(calls, "ask", ask)
    return commands


@pytest.mark.parametrize(
    ("arguments", "seconds", "catch_up"),
    [
        ([], 60, 10),
        (["--seconds", "5"], 5, 5),
        (["--seconds", "20", "--catch-up", "20"], 20, 20),
        (["--seconds", "5", "--catch-up", "9", "--force"], 5, 0),
    ],
)
def test_how_long_it_waits(asked: list[dict[str, Any]], arguments: list[str], seconds: int, catch_up: int) -> None:
    assert main(["step-down", "--host", "m0:1", *arguments]) == 0
    assert [(row["replSetStepDown"], row["secondaryCatchUpPeriodSecs"]) for row in asked if "hello" not in row] == [
        (seconds, catch_up)
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seconds", "5", "--catch-up", "9"], "--catch-up 9 is longer than --seconds 5"),
        (["--seconds", "0"], "'--seconds'"),
        (["--catch-up", "-1"], "'--catch-up'"),
    ],
)
def test_what_cannot_be_is_refused_by_its_flag(
    asked: list[dict[str, Any]], arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["step-down", "--host", "m0:1", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert asked == []


@pytest.mark.parametrize(
    ("primary", "sent"),
    [
        pytest.param("m0:1", [("m0:1", "replSetStepDown")], id="the-primary-hands-over"),
        pytest.param(None, [("m1:1", "replSetStepUp")], id="no-primary"),
        pytest.param("m1:1", [], id="it-leads-already"),
    ],
)
def test_step_up(primary: str | None, sent: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[tuple[str, dict[str, Any]]] = []

    def ask(host: str, command: dict[str, Any], timeout_s: float = 30.0, database: str = "admin") -> dict[str, Any]:
        if "hello" not in command:
            commands.append((host, command))
        return {"primary": primary, "me": "m1:1", "isWritablePrimary": bool(commands)}

    monkeypatch.setattr(calls, "ask", ask)
    assert main(["step-up", "m1:1"]) == 0
    assert [(host, next(iter(command))) for host, command in commands] == sent
    assert all(command.get("handOverTo", "m1:1") == "m1:1" for _, command in commands)

"""`replset status` on rollbacks, and `replset resync`, against replies made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from replset.bson import DateTime, Int64, Timestamp
from replset.cli import administer, calls, operations, status
from replset.terminal import console

HOST = "127.0.0.1:27017"


def reply(*members: dict[str, Any], **more: Any) -> dict[str, Any]:
    rows = [
        {"_id": number, "name": f"m{number}:1", "stateStr": "SECONDARY", "counted": True, **member}
        for number, member in enumerate(members)
    ]
    point = {"ts": Timestamp(5, 1), "t": Int64(2)}
    about = {"set": "rs0", "term": Int64(2), "date": DateTime(1_000), "optimes": {"lastCommittedOpTime": point}}
    return {**about, "members": rows, **more}


def shown(capsys: pytest.CaptureFixture[str], document: dict[str, Any]) -> str:
    console().print(status.screen_of(document), soft_wrap=True)
    return " ".join(capsys.readouterr().out.split())


def test_rollbacks_and_remarks_are_told_where_there_are_any(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, reply({}, {"unacknowledgedRollbacks": 0}))
    assert ("acknowledged" in text, "resync" in text) == (False, False)
    more = {
        "remarks": [{"why": "no primary: [all] down", "next": "start them"}],
        "rollbackStatus": {"text": "400 of 900 entries undone"},
    }
    text = shown(capsys, reply({"unacknowledgedRollbacks": 1}, {"unacknowledgedRollbacks": 3}, **more))
    for part in (
        "m0:1: 1 rollback not acknowledged",
        "m1:1: 3 rollbacks not acknowledged",
        "no primary: [all] down next: start them",
        "400 of 900 entries undone",
    ):
        assert part in text


def answering(states: list[str]) -> Callable[..., dict[str, Any]]:
    """A member that is in one state after the other, the last one for ever."""

    def ask(host: str, command: dict[str, object], timeout_s: float = 30.0) -> dict[str, Any]:
        assert host == HOST
        if "replSetResync" in command:
            return {"info": "it copies"}
        state = states.pop(0) if len(states) > 1 else states[0]
        if state == "closed":
            raise calls.CommandFailedError(f"{HOST}: the store is closed")
        return reply({}, {"self": True, "stateStr": state})

    return ask


def test_resync_waits_until_it_is_secondary(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calls, "ask", answering(["RECOVERING", "STARTUP2", "closed", "SECONDARY"]))
    monkeypatch.setattr(operations.time, "sleep", lambda _: None)
    assert administer.run(["resync", "--host", HOST]) == 0
    assert capsys.readouterr().out == "it copies\n", "it returns at once"
    assert administer.run(["resync", "--host", HOST, "--wait", "60"]) == 0
    assert capsys.readouterr().out == f"it copies\n{HOST} is SECONDARY again\n"


def test_resync_gives_up_waiting_and_says_where_it_stands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter(range(0, 1_000, 20))
    monkeypatch.setattr(calls, "ask", answering(["STARTUP2"]))
    monkeypatch.setattr(operations.time, "sleep", lambda _: None)
    monkeypatch.setattr(operations.time, "monotonic", lambda: float(next(clock)))
    assert administer.run(["resync", "--host", HOST, "--wait", "30"]) == 2
    assert f"{HOST} is STARTUP2 after 30 s" in " ".join(capsys.readouterr().err.split())

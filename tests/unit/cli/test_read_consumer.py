"""`replset consumers read`: it reads at the secondary that the primary names, and goes back when that one refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from replset.cli import calls
from replset.cli.main import main
from replset.errors import ErrorCode, HostUnreachableError

TOKEN = "82%046x"


class TheSet:
    """A primary that is overloaded or not, and a secondary that answers, refuses, or is gone. Events are numbers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refusals: dict[int, Exception] | None = None) -> None:
        self.names, self.refusals = "b:1", refusals or {}
        self.asked: list[tuple[str, int, int]] = []
        self.acknowledged = 0
        monkeypatch.setattr(calls, "ask", self.secondary)
        monkeypatch.setattr(calls, "on_primary", self.primary)

    def primary(self, _host: str, command: dict[str, Any], **_: Any) -> dict[str, Any]:
        if "replSetConsumerAck" in command:
            assert command["generation"] == 7
            self.acknowledged = int(command["token"][2:], 16)
            return {}
        more = {"readFrom": self.names} if self.names else {}
        return {"active": True, **self.found("primary", command), **more}

    def secondary(self, host: str, command: dict[str, Any], *_: Any) -> dict[str, Any]:
        if "hello" in command:
            return {}
        assert command["generation"] == 7
        found = self.found(host, command)
        refusal = self.refusals.pop(len(self.asked), None)
        if refusal is not None:
            raise refusal
        return found

    def found(self, host: str, command: dict[str, Any]) -> dict[str, Any]:
        assert command["reader"] == "me"
        after = int(str(command.get("after", TOKEN % self.acknowledged))[2:], 16)
        self.asked.append((host, after, command["waitMS"]))
        events = [{"_id": {"_data": TOKEN % (after + 1)}}] if after < 5 else []
        return {"generation": 7, "position": TOKEN % after, "events": events, "next": TOKEN % (after + len(events))}


def read(capsys: pytest.CaptureFixture[str], *options: str) -> list[int]:
    assert main(["consumers", "read", "c", "--host", "a:1", "--reader", "me", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    return [int(json.loads(line)["_id"]["_data"][2:], 16) for line in lines]


def test_it_goes_where_the_primary_says_and_back_when_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = TheSet(monkeypatch)
    assert read(capsys) == [1, 2, 3, 4, 5]
    assert [host for host, *_ in one.asked] == ["primary", *["b:1"] * 5, "primary"]
    assert one.acknowledged == 5


@pytest.mark.parametrize(
    "refusal",
    [
        HostUnreachableError("b:1 is gone"),
        calls.CommandFailedError("behind", code=ErrorCode.READ_PREFERENCE_NOT_SATISFIED),
        calls.CommandFailedError("it is another one's", code=ErrorCode.CONSUMER_MOVED),
    ],
)
def test_it_goes_back_when_the_secondary_refuses_or_is_gone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], refusal: Exception
) -> None:
    one = TheSet(monkeypatch, {3: refusal})
    assert read(capsys) == [1, 2, 3, 4, 5]
    assert one.asked[:5] == [
        *(("primary", 0, 0), ("b:1", 1, 0), ("b:1", 2, 0)),
        *(("primary", 2, 0), ("b:1", 3, 0)),
    ]


def test_a_member_that_is_named_is_read_though_nobody_is_overloaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = TheSet(monkeypatch)
    one.names = ""
    assert read(capsys, "--from", "h:9") == [1, 2, 3, 4, 5]
    assert {host for host, *_ in one.asked} == {"primary", "h:9"}
    one = TheSet(monkeypatch)
    assert read(capsys, "--from", "h:9", "--no-ack") == [1, 2, 3, 4, 5]
    assert {host for host, *_ in one.asked} == {"primary"}, "nothing would renew the lease"
    assert main(["consumers", "read", "c", "--host", "a:1", "--from", "h:x"]) != 0
    assert "--from" in capsys.readouterr().err


def test_it_waits_at_the_primary_only_while_that_is_not_overloaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Enough(Exception):
        """Ends the loop of --follow."""

    one = TheSet(monkeypatch)
    one.acknowledged = 4
    real = one.primary

    def primary(host: str, command: dict[str, Any], **more: Any) -> dict[str, Any]:
        if len(one.asked) == 4:
            one.names = ""
        if len(one.asked) == 7:
            raise Enough
        return real(host, command, **more)

    monkeypatch.setattr(calls, "on_primary", primary)
    with pytest.raises(Enough):
        read(capsys, "--follow")
    waits = [(host, wait_ms) for host, _, wait_ms in one.asked]
    assert waits == [
        *(("primary", 5_000), ("b:1", 5_000), ("primary", 0), ("b:1", 5_000)),
        *(("primary", 0), ("primary", 5_000), ("primary", 5_000)),
    ]
